/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_lab.c: any bytes as the description of a lab: one within its limits, or an error with a
 * text.
 */
#include "lab/lab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_lab_spec *s;
    char error[HTH_LAB_ERROR_MAX];
    if (hth_lab_parse("fuzz", data, size, &s, error) != HTH_OK) {
        HTH_ASSERT(error[0] != '\0' && s == NULL);
        return 0;
    }
    HTH_ASSERT(hth_lab_check(s, error, sizeof(error)) == HTH_OK);
    for (uint32_t i = 0; i < s->host_count; i++)
        HTH_ASSERT(hth_lab_find(s, s->hosts[i].name) == i);
    hth_lab_spec_free(s);
    return 0;
}
