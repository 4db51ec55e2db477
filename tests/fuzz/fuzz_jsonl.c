/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_jsonl.c: any bytes as rows of JSON, read to the end over all bad lines. */
#include "data/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_jsonl rows;
    enum hth_err err;

    hth_jsonl_init(&rows, "f", data, size);
    do {
        size_t before = rows.at;
        err = hth_jsonl_next(&rows, NULL);
        if (err == HTH_OK)
            (void)(hth_jsonl_text(&rows, "text") != NULL && hth_jsonl_is(&rows, "text", "a"));
        HTH_ASSERT(err == HTH_E_NOT_FOUND || rows.at > before);
    } while (err != HTH_E_NOT_FOUND);
    hth_jsonl_clear(&rows);
    return 0;
}
