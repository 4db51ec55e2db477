/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_runfile.c: any bytes as a run file: a run within its limits, or an error with a text. */
#include "cli/runfile.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_runfile *run;
    char error[HTH_RUNFILE_ERROR_MAX];
    if (hth_runfile_parse("fuzz", data, size, &run, error) == HTH_OK) {
        HTH_ASSERT(strlen(run->run) <= HTH_NAME_LEN_MAX);
        hth_runfile_free(run);
    } else {
        HTH_ASSERT(error[0] != '\0');
    }
    return 0;
}
