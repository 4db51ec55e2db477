/* SPDX-License-Identifier: Apache-2.0 */
/*
 * way.h (internal): the way of a pass through the trunk, layer by layer, and through the experts
 * between two layers. Training, evaluation and the use of a trained model all go it.
 *
 *   start -> forward(0) -> [experts] -> forward(1) -> [experts] .. -> arrived
 *
 * forward is one job of the trunk's queue; that of a dense model does all layers. [experts] are
 * calls of the transport; they are skipped when no expert can be asked: the units then take the
 * residual path. When all layers are done, or at the first error, `arrived` is called once. The
 * last layer's answers wait in the pass for the head.
 *
 * The owner embeds a way, sets its first fields and `pass`, and may use `work` for jobs of its own
 * before the start and after the arrival. Loop thread.
 */
#ifndef HTH_TRAINER_WAY_H
#define HTH_TRAINER_WAY_H

#include "core/rng.h"
#include "trainer/pass.h"
#include "trainer/queue.h"
#include "trainer/transport.h"

struct hth_way {
    struct hth_env *env;
    struct hth_queue *trunk;
    struct hth_transport *transport;
    struct hth_budget *budget; /* of rows for experts; or NULL */
    struct hth_rng *rng;       /* of choices in a world without numbers */
    struct hth_pass *pass;
    uint64_t order; /* of its jobs in the queue */
    void (*answered)(void *arg, const struct hth_transport_batch *batch); /* or NULL */
    void (*arrived)(void *arg, enum hth_err err);
    void *arg;
    struct hth_work work;
    uint32_t layer; /* of the segment under way */
};

void hth_way_start(struct hth_way *way);
/* Puts the way's one job into a queue. */
void hth_way_submit(struct hth_way *way, struct hth_queue *queue, void (*run)(struct hth_work *),
                    void (*done)(struct hth_work *, enum hth_err), double flops);
/* The call that asks layer l's experts, without pairs. */
struct hth_transport_call hth_way_call(const struct hth_way *way, uint32_t l);
/* Rows of activations for the transport. Errors: E_NO_MEMORY, E_BUDGET. */
enum hth_err hth_way_rows(const struct hth_way *way, size_t rows, struct hth_blob **out) HTH_MUST;

#endif
