/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h: a table of the library's plans, one per shape of a product.
 *
 * Two calls have the same key when the same plan serves both: shapes, leading dimensions, types and
 * the end are equal, and pointers have the same alignment (addresses are not part of it). The table
 * holds HTH_MATMUL_PLANS_MAX entries; a new entry replaces the least recently used one. A shape
 * that the library can't compute is an entry with a NULL plan, so that the library is not asked
 * again.
 *
 * One thread: each context has its own table.
 */
#ifndef HTH_KERNELS_CUDA_PLAN_H
#define HTH_KERNELS_CUDA_PLAN_H

#include "kernels/cuda/gpu.h"

#define HTH_MATMUL_PLANS_MAX 128
#define HTH_PLAN_ALIGN       256u /* the most that a plan depends on */

/* It has no padding, because it is compared as bytes. */
struct hth_matmul_plan_key {
    uint32_t form, type, end, flags; /* flags: accumulate, aux there */
    uint32_t m, n, k;
    uint32_t align_a, align_b, align_c, align_aux;
    uint32_t ld_aux;
    uint64_t lda, ldb, ldc;
};

struct hth_matmul_plan {
    struct hth_matmul_plan_key key;
    void *plan; /* or NULL */
    uint64_t used;
};

struct hth_matmul_plans {
    struct hth_matmul_plan entry[HTH_MATMUL_PLANS_MAX];
    uint32_t count;
    uint64_t clock;
    void (*free)(void *plan);
};

struct hth_matmul_plan_key hth_matmul_plan_key_of(const struct hth_gpu_matmul *m);

void hth_matmul_plans_init(struct hth_matmul_plans *plans, void (*free_plan)(void *plan));
void hth_matmul_plans_clear(struct hth_matmul_plans *plans);
/* False: no entry. True: *plan is the plan, or NULL where the library has none. */
bool hth_matmul_plans_find(struct hth_matmul_plans *plans, const struct hth_matmul_plan_key *key,
                           void **plan);
/* Takes the plan. The key must be unknown. */
void hth_matmul_plans_put(struct hth_matmul_plans *plans, const struct hth_matmul_plan_key *key,
                          void *plan);

#endif
