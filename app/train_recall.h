/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_recall.h: what a trainer remembers of its last hour, told to whoever asks
 * (monitor/recall.h).
 *
 * Loop thread.
 */
#ifndef HTH_APP_TRAIN_RECALL_H
#define HTH_APP_TRAIN_RECALL_H

#include "app/peer.h"
#include "trainer/trainer.h"

struct hth_train_recall;

/* `total`: steps of the schedule. Answers from here on; needs an rpc endpoint. */
struct hth_train_recall *hth_train_recall_new(struct hth_peer *peer, uint64_t total);
/* NULL is fine, here and below: nothing is remembered. Before the peer closes. */
void hth_train_recall_free(struct hth_train_recall *r);
void hth_train_recall_add(struct hth_train_recall *r, const struct hth_train_stats *stats);
void hth_train_recall_test(struct hth_train_recall *r, const struct hth_eval_result *result,
                           bool is_text);
void hth_train_recall_saved(struct hth_train_recall *r, uint64_t step);

#endif
