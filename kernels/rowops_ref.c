/* SPDX-License-Identifier: Apache-2.0 */
/* rowops_ref.c: the loops for any x86-64, contraction off: the reference. */
#define ROWOPS_TABLE hth_rowops_ref
#define ROWOPS_WIDTH 4
#include "kernels/rowops_template.h"
