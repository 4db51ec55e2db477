/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorboard.h: a new event file in a folder that TensorBoard reads (monitor/tfevents.h):
 * DIR/events.out.tfevents.TIME.hearth, with the folder made where it is missing.
 *
 * The run goes on without a record that can't be written: the first one is reported.
 *
 * Loop thread.
 */
#ifndef HTH_APP_TENSORBOARD_H
#define HTH_APP_TENSORBOARD_H

#include "core/env.h"
#include "monitor/tfevents.h"

struct hth_tensorboard;

/* Errors: E_IO, printed. */
enum hth_err hth_tensorboard_open(struct hth_env *env, const char *dir,
                                  struct hth_tensorboard **out) HTH_MUST;
/* NULL is fine, here and below: nothing is written. */
void hth_tensorboard_close(struct hth_tensorboard *t);
void hth_tensorboard_add(struct hth_tensorboard *t, uint64_t step,
                         const struct hth_tfevents_scalar *scalar, size_t count);

#endif
