/* SPDX-License-Identifier: Apache-2.0 */
/* kind_int.h: declarations that the files of the kinds share. */
#ifndef HTH_EXPERTS_KIND_INT_H
#define HTH_EXPERTS_KIND_INT_H

#include "experts/kind.h"

/* Checks the limits of all kinds and fills in inner and block_rows. Errors: E_BAD_SHAPE,
 * E_TOO_LARGE. */
enum hth_err hth_kind_rows_shape(struct hth_expert_shape *shape) HTH_MUST;

#endif
