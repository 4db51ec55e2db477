/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_generic.c: the packed kernels for any CPU: vectors of 16 bytes, which gcc and clang map to
 * SSE2 or NEON.
 */
#define PK_TABLE hth_packed_generic
#define PK_NAME  "generic"
#define PK_W     4
#define PK_MR    4
#define PK_BF16  0
#include "kernels/packed_template.h"
