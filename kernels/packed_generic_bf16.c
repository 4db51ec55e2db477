/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_generic_bf16.c: bf16 in plain C: operands are rounded as by the instructions of other
 * sets, products and sums are fp32. For tests of what bf16 does where the CPU cannot.
 */
#define PK_TABLE hth_packed_generic_bf16
#define PK_NAME  "generic"
#define PK_W     4
#define PK_MR    4
#define PK_BF16  1
#include "kernels/packed_template.h"
