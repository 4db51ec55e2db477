/* SPDX-License-Identifier: Apache-2.0 */
/* kind.c: the table of kinds, and the shape rules that they share. */
#include "experts/kind.h"

#include "core/limits.h"
#include "experts/kind_int.h"

#include <string.h>

static const struct hth_expert_kind *const kinds[] = {
    &hth_kind_ffn,
    &hth_kind_transformer,
    &hth_kind_nop,
};

const struct hth_expert_kind *hth_expert_kind_find(const char *name)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i]->name, name) == 0)
            return kinds[i];
    return NULL;
}

const struct hth_expert_kind *hth_expert_kind_at(size_t i)
{
    return i < HTH_ARRAY_LEN(kinds) ? kinds[i] : NULL;
}

enum hth_err hth_kind_rows_shape(struct hth_expert_shape *shape)
{
    if (shape->d == 0)
        return HTH_E_BAD_SHAPE;
    if (shape->d > HTH_EXPERT_D_MAX || shape->inner > HTH_EXPERT_INNER_MAX ||
        shape->block_rows > HTH_EXPERT_BLOCK_ROWS_MAX)
        return HTH_E_TOO_LARGE;
    if (shape->inner == 0)
        shape->inner = 4 * shape->d;
    if (shape->block_rows == 0)
        shape->block_rows = 1;
    return HTH_OK;
}
