/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_tell.h: what a trainer tells of its run to those who watch it: its last hour to peers that
 * ask (monitor/recall.h), hearth_run_* to Prometheus (monitor/run_metrics.h), and scalars to
 * TensorBoard each 10 s and with each test.
 *
 * Loop thread.
 */
#ifndef HTH_APP_TRAIN_TELL_H
#define HTH_APP_TRAIN_TELL_H

#include "app/peer.h"
#include "trainer/trainer.h"

struct hth_train_tell;

struct hth_train_tell_opts {
    const char *tensorboard; /* the folder; NULL: none */
    uint64_t steps;          /* of the schedule */
    bool is_text;            /* tests count bits per byte, not what is right */
};

/* Answers from here on, where the peer has an rpc endpoint. Errors: those of
 * hth_tensorboard_open. */
enum hth_err hth_train_tell_new(struct hth_peer *peer, const struct hth_train_tell_opts *opts,
                                struct hth_train_tell **out) HTH_MUST;
/* NULL is fine. Before the peer closes. */
void hth_train_tell_free(struct hth_train_tell *t);
/* `trainers`: this one included. */
void hth_train_tell_progress(struct hth_train_tell *t, const struct hth_train_stats *stats,
                             uint32_t trainers);
void hth_train_tell_test(struct hth_train_tell *t, const struct hth_eval_result *result);
void hth_train_tell_saved(struct hth_train_tell *t, uint64_t step);
/* All is told: as hth_train_recall_end and _cut. */
bool hth_train_tell_end(struct hth_train_tell *t, hth_fn *done, void *arg);
void hth_train_tell_cut(struct hth_train_tell *t);

#endif
