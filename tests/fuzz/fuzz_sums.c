/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_sums.c: any bytes as the sha256sums of a model; names that are taken stay in its folder. */
#include "app/model_dir.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_model_dir dir;
    struct hth_why why = {""};

    if (hth_model_dir_parse("s", data, size, &dir, &why) != HTH_OK) {
        HTH_ASSERT(why.text[0] != '\0');
        return 0;
    }
    for (size_t i = 0; i < dir.count; i++)
        HTH_ASSERT(dir.file[i].name[0] != '\0' && strchr(dir.file[i].name, '/') == NULL &&
                   strcmp(dir.file[i].name, "..") != 0);
    return 0;
}
