/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_events.c: any bytes as the events that a monitor kept: an error and no events, or some that
 * are written and read back as they are.
 */
#include "core/mem.h"
#include "monitor/events.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hth_event list[HTH_EVENTS_MAX], back[HTH_EVENTS_MAX];
    struct hth_events *e = hth_events_new(), *again = hth_events_new();
    enum hth_err err = hth_events_read(e, "run", data, size);
    uint32_t n = hth_events_list(e, list);
    HTH_ASSERT(err == HTH_OK || n == 0);
    char *text = hth_events_write(e, "run");
    HTH_ASSERT(hth_events_read(again, "run", text, strlen(text)) == HTH_OK);
    HTH_ASSERT(hth_events_list(again, back) == n);
    for (uint32_t i = 0; i < n; i++) {
        HTH_ASSERT(list[i].t == back[i].t && list[i].kind == back[i].kind);
        HTH_ASSERT(strcmp(list[i].peer, back[i].peer) == 0);
        HTH_ASSERT(strcmp(list[i].text, back[i].text) == 0);
    }
    hth_free(text);
    hth_events_free(e);
    hth_events_free(again);
    return 0;
}
