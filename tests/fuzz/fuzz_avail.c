/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_avail.c: any bytes as a trace of availability: rows in order and in range, or an error with
 * a text.
 */
#include "scenarios/avail.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_avail a;
    char error[HTH_AVAIL_ERROR_MAX];
    enum hth_err err = hth_avail_parse(data, size, &a, error);
    HTH_ASSERT((err == HTH_OK) == (error[0] == '\0'));
    for (size_t p = 0; err == HTH_OK && p < a.peer_count; p++) {
        int64_t last_us = 0;
        HTH_ASSERT(a.peers[p].count > 0);
        for (size_t i = 0; i < a.peers[p].count; i++) {
            const struct hth_avail_row *r = &a.peers[p].rows[i];
            HTH_ASSERT(r->on_us >= last_us && r->off_us > r->on_us && r->speed > 0);
            HTH_ASSERT(r->up_bytes_per_s >= 0 && r->down_bytes_per_s >= 0);
            last_us = r->off_us;
        }
    }
    hth_avail_clear(&a);
    return 0;
}
