/* SPDX-License-Identifier: Apache-2.0 */
/* quant_generic.c: the loops of quant.h for any CPU. */
#define QUANT_TABLE hth_quantops_generic
#define QUANT_ISA   "generic"
#include "kernels/quant_template.h"
