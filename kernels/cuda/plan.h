/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h: what is worked out once per shape and used again: by which key it is found, and how many
 * are kept.
 *
 * Two calls have the same key when the same plan serves both: shapes, leading dimensions, types and
 * the end are equal, and pointers are aligned alike (addresses are not part of it). The table holds
 * HTH_MATMUL_PLANS_MAX entries; a new one takes the place of that which was found longest ago.
 * Answers "it can't be done" are entries too, so that nobody asks again.
 *
 * One thread: each context has its own table.
 */
#ifndef HTH_KERNELS_CUDA_PLAN_H
#define HTH_KERNELS_CUDA_PLAN_H

#include "kernels/cuda/gpu.h"

#define HTH_MATMUL_PLANS_MAX 128
#define HTH_PLAN_ALIGN       256u /* nobody asks for more */

/* Without padding: compared and hashed as bytes. */
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
/* False: unknown. True: *plan is it, or NULL where it can't be done. */
bool hth_matmul_plans_find(struct hth_matmul_plans *plans, const struct hth_matmul_plan_key *key,
                           void **plan);
/* Takes the plan. The key must be unknown. */
void hth_matmul_plans_put(struct hth_matmul_plans *plans, const struct hth_matmul_plan_key *key,
                          void *plan);

#endif
