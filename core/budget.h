/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.h: a bound on the bytes that peers make us hold. Budgets nest (connection within peer
 * within process); taking draws on every level or on none. Thread safe.
 */
#ifndef HTH_CORE_BUDGET_H
#define HTH_CORE_BUDGET_H

#include "core/base.h"

struct hth_budget {
    int64_t limit_bytes;
    int64_t used_bytes; /* read with hth_budget_used */
    struct hth_budget *parent;
};

void hth_budget_init(struct hth_budget *budget, int64_t limit_bytes, struct hth_budget *parent);
/* Errors: E_BUDGET, and nothing was taken. */
enum hth_err hth_budget_take(struct hth_budget *budget, size_t bytes) HTH_MUST;
void hth_budget_give(struct hth_budget *budget, size_t bytes);
int64_t hth_budget_used(const struct hth_budget *budget);

#endif
