/* SPDX-License-Identifier: Apache-2.0 */
/* budget.c: nested bounds on bytes. */
#include "core/budget.h"

#include "core/counter.h"

void hth_budget_init(struct hth_budget *budget, int64_t limit_bytes, struct hth_budget *parent)
{
    HTH_ASSERT(limit_bytes <= INT64_MAX / 2); /* so that no sum overflows */
    budget->limit_bytes = limit_bytes;
    budget->used_bytes = 0;
    budget->parent = parent;
}

enum hth_err hth_budget_take(struct hth_budget *budget, size_t bytes)
{
    if (bytes > INT64_MAX / 2)
        return HTH_E_BUDGET;
    int64_t n = (int64_t)bytes;
    for (struct hth_budget *b = budget; b != NULL; b = b->parent) {
        int64_t used = hth_counter_add(&b->used_bytes, n);
        if (used > b->limit_bytes) {
            /* Give back what this call took, up to and including this level. */
            for (struct hth_budget *u = budget; u != b->parent; u = u->parent)
                hth_counter_add(&u->used_bytes, -n);
            return HTH_E_BUDGET;
        }
    }
    return HTH_OK;
}

void hth_budget_give(struct hth_budget *budget, size_t bytes)
{
    for (struct hth_budget *b = budget; b != NULL; b = b->parent) {
        int64_t left = hth_counter_add(&b->used_bytes, -(int64_t)bytes);
        HTH_ASSERT(left >= 0);
    }
}

int64_t hth_budget_used(const struct hth_budget *budget)
{
    return __atomic_load_n(&budget->used_bytes, __ATOMIC_RELAXED);
}
