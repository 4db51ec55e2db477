/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c: a small table of plans with least-recently-used replacement; see plan.h. */
#include "kernels/cuda/plan.h"

#include <string.h>

static uint32_t align_of(const void *p)
{
    uintptr_t at = (uintptr_t)p;
    uint32_t align = HTH_PLAN_ALIGN;
    while (at % align != 0)
        align /= 2;
    return align;
}

struct hth_matmul_plan_key hth_matmul_plan_key_of(const struct hth_gpu_matmul *m)
{
    struct hth_matmul_plan_key key;
    bool has_aux = m->aux != NULL && (m->end == HTH_GPU_BIAS_GELU || m->end == HTH_GPU_DGELU);
    memset(&key, 0, sizeof(key));
    key.form = (uint32_t)m->form;
    key.type = (uint32_t)m->type;
    key.end = (uint32_t)m->end;
    key.flags = (uint32_t)m->accumulate | (uint32_t)has_aux << 1;
    key.m = m->m;
    key.n = m->n;
    key.k = m->k;
    key.align_a = align_of(m->a);
    key.align_b = align_of(m->b);
    key.align_c = align_of(m->c);
    key.align_aux = has_aux ? align_of(m->aux) : 0;
    key.ld_aux = has_aux ? (uint32_t)m->ld_aux : 0;
    key.lda = m->lda;
    key.ldb = m->ldb;
    key.ldc = m->ldc;
    return key;
}

void hth_matmul_plans_init(struct hth_matmul_plans *plans, void (*free_plan)(void *plan))
{
    memset(plans, 0, sizeof(*plans));
    plans->free = free_plan;
}

static void drop(struct hth_matmul_plans *plans, struct hth_matmul_plan *entry)
{
    if (entry->plan != NULL)
        plans->free(entry->plan);
    entry->plan = NULL;
}

void hth_matmul_plans_clear(struct hth_matmul_plans *plans)
{
    for (uint32_t i = 0; i < plans->count; i++)
        drop(plans, &plans->entry[i]);
    plans->count = 0;
}

bool hth_matmul_plans_find(struct hth_matmul_plans *plans, const struct hth_matmul_plan_key *key,
                           void **plan)
{
    for (uint32_t i = 0; i < plans->count; i++) {
        struct hth_matmul_plan *e = &plans->entry[i];
        if (memcmp(&e->key, key, sizeof(*key)) == 0) {
            e->used = ++plans->clock;
            *plan = e->plan;
            return true;
        }
    }
    return false;
}

void hth_matmul_plans_put(struct hth_matmul_plans *plans, const struct hth_matmul_plan_key *key,
                          void *plan)
{
    struct hth_matmul_plan *e = &plans->entry[0];
    if (plans->count < HTH_MATMUL_PLANS_MAX) {
        e = &plans->entry[plans->count++];
    } else {
        for (uint32_t i = 1; i < plans->count; i++)
            e = plans->entry[i].used < e->used ? &plans->entry[i] : e;
        drop(plans, e);
    }
    e->key = *key;
    e->plan = plan;
    e->used = ++plans->clock;
}
