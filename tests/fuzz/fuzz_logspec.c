/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_logspec.c: the levels of a log, as in flags and run files: a text is accepted as a whole, or
 * refused with the name of the wrong word.
 */
#include "core/log.h"
#include "core/mem.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* of the input's size, so that a sanitizer sees reads beyond it */
    char *text = hth_new_array(char, size + 1);
    struct hth_log before, log, again;
    char bad[64];
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    hth_log_init(&before);
    log = again = before;
    memset(bad, 'x', sizeof(bad));
    if (hth_log_parse(&log, text, bad) == HTH_OK) {
        for (int i = 0; i < HTH_SUB_COUNT; i++)
            HTH_ASSERT(log.level[i] <= HTH_TRACE);
        HTH_ASSERT(hth_log_parse(&again, text, bad) == HTH_OK);
        HTH_ASSERT(memcmp(again.level, log.level, sizeof(log.level)) == 0);
    } else {
        HTH_ASSERT(memcmp(before.level, log.level, sizeof(log.level)) == 0);
        HTH_ASSERT(memchr(bad, '\0', sizeof(bad)) != NULL && strstr(text, bad) != NULL);
    }
    hth_free(text);
    return 0;
}
