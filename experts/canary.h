/* SPDX-License-Identifier: Apache-2.0 */
/*
 * canary.h: notices that an expert's steps go against what its senders asked for.
 *
 * A host has no data and no loss. It has the gradients dy that trainers sent for rows x: to first
 * order a row's loss changes by dy . (y_after - y_before). So the canary keeps a batch of such
 * rows, of each sender at most an eighth, so that one person's keys are one voice; computes their
 * y; and 16 steps later, or more, computes it again. Each row's dy counts as a direction only, so
 * that a large one says no more than others:
 *
 *     change of a sender = mean over its rows of (dy / ||dy||) . (y_after - y_before)
 *     change             = lower median of the senders'
 *
 * so that one sender among four can neither hide a jump, by rows that the steps do follow, nor
 * feign one. Of fewer than four the canary says nothing: their rows are too few to tell.
 *
 * A transformer needs whole sequences, so there a batch is of eight sequences and not of 32 rows,
 * and a look has at least 16 times as many rows of work between it and the last one. With few
 * senders a batch does not fill: then what they sent in that time is the batch.
 *
 * Learning makes the change fall, noise moves it about 0 by a size that is usual for this expert.
 * Where the mean of the last five or so rises by more than HTH_CANARY_FACTOR usual sizes, six
 * deviations of noise, and the last three all rose, the expert learns wrongly: the server logs it
 * and drops this expert's gradients for a while, so that its owner can look, and roll back
 * (experts/ring.h). Then a new batch is kept. Random rows would not do: nothing says in which
 * direction their y ought to go.
 *
 * It sees no damage that most senders ask for, and none to rows that nobody sends. Under the rule
 * of store.h: _keep beside a backward, _stepped in the job of a step. The batch lies in this
 * process's memory; an expert on a card gets a copy for each look.
 */
#ifndef HTH_EXPERTS_CANARY_H
#define HTH_EXPERTS_CANARY_H

#include "experts/senders.h"
#include "experts/store.h"

#define HTH_CANARY_FACTOR 2.5

struct hth_canary;

struct hth_canary *hth_canary_new(const struct hth_expert_shape *shape);
/* NULL is fine. */
void hth_canary_free(struct hth_canary *canary);
/* Rows of a backward that was applied, whole sequences; takes what it needs. */
void hth_canary_keep(struct hth_canary *canary, struct hth_sender_id sender, uint32_t rows,
                     const float *x, const float *dy);
/* Scratch that a context needs for _stepped. */
size_t hth_canary_scratch_bytes(const struct hth_canary *canary, const struct hth_expert *expert);
/* A step was done. True: a jump. Errors of the kernels end this batch. */
bool hth_canary_stepped(struct hth_canary *canary, const struct hth_expert *expert,
                        struct hth_exec *ex);

#endif
