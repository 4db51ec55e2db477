/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_manifest.c: any bytes as data.json; one that is read can be written and read again. */
#include "data/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_manifest *m, *again;
    struct hth_blob *blob;
    struct hth_why why = {""};

    if (hth_manifest_parse("data.json", data, size, &m, &why) != HTH_OK) {
        HTH_ASSERT(m == NULL && why.text[0] != '\0');
        return 0;
    }
    HTH_ASSERT(hth_manifest_write(m, &blob) == HTH_OK);
    HTH_ASSERT(hth_manifest_parse("data.json", blob->data, blob->size, &again, &why) == HTH_OK);
    hth_blob_unref(blob);
    hth_manifest_free(m);
    hth_manifest_free(again);
    return 0;
}
