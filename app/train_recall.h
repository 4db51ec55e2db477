/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_recall.h: what a trainer remembers of its last hour, told to whoever asks
 * (monitor/recall.h).
 *
 * A monitor asks every ten seconds. A run that ends between two questions would seem to stop before
 * its last steps, without its last test: so a trainer that is done waits until those who watch have
 * asked once more, for at most HTH_TRAIN_RECALL_END_US.
 *
 * Loop thread.
 */
#ifndef HTH_APP_TRAIN_RECALL_H
#define HTH_APP_TRAIN_RECALL_H

#include "app/peer.h"
#include "trainer/trainer.h"

struct hth_train_recall;

/* A watcher's period, and what a question of many peers takes. */
#define HTH_TRAIN_RECALL_END_US (14 * HTH_US_PER_S)

/* `total`: steps of the schedule. Answers from here on; needs an rpc endpoint. */
struct hth_train_recall *hth_train_recall_new(struct hth_peer *peer, uint64_t total);
/* NULL is fine, here and below: nothing is remembered. Before the peer closes. */
void hth_train_recall_free(struct hth_train_recall *r);
void hth_train_recall_add(struct hth_train_recall *r, const struct hth_train_stats *stats);
void hth_train_recall_test(struct hth_train_recall *r, const struct hth_eval_result *result,
                           bool is_text);
void hth_train_recall_saved(struct hth_train_recall *r, uint64_t step);
/* Calls done once, perhaps within itself, when nobody is left who asked lately and not since.
 * Returns whether somebody is. */
bool hth_train_recall_end(struct hth_train_recall *r, hth_fn *done, void *arg);
/* Ends that wait at once. */
void hth_train_recall_cut(struct hth_train_recall *r);

#endif
