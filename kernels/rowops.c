/* SPDX-License-Identifier: Apache-2.0 */
/* rowops.c: choosing a table of row loops. */
#include "kernels/rowops.h"

#include <string.h>

#include "kernels/isa.h"

const struct hth_rowops *hth_rowops_find(const char *isa)
{
    if (strcmp(isa, "amxbf16") == 0)
        isa = "avx512"; /* not asked about tiles, which rows have none of */
    if (strcmp(isa, "generic") == 0 || !hth_isa_runs(isa))
        return &hth_rowops_ref;
#ifdef __x86_64__
    return strcmp(isa, "avx2") == 0 ? &hth_rowops_avx2 : &hth_rowops_avx512;
#else
    return &hth_rowops_ref;
#endif
}

const struct hth_rowops *hth_rowops_fast(void)
{
    if (hth_isa_runs("avx512"))
        return hth_rowops_find("avx512");
    return hth_isa_runs("avx2") ? hth_rowops_find("avx2") : NULL;
}
