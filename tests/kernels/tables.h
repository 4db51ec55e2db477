/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables.h: the packed back ends that a test visits: all that this CPU runs, or only that of AMX
 * where its tiles are software (amx.cmake), because the same test visits the others elsewhere.
 */
#ifndef HTH_TESTS_KERNELS_TABLES_H
#define HTH_TESTS_KERNELS_TABLES_H

#include "kernels/backend.h"

static inline size_t test_tables(const struct hth_backend *out[HTH_PACKED_MAX])
{
    size_t count = hth_backend_packed_all(out);
#ifdef HTH_AMX_SHIM
    out[0] = out[count - 1];
    count = 1;
#endif
    return count;
}

#endif
