/* SPDX-License-Identifier: Apache-2.0 */
/* pass_steps.h (internal): what the two halves of a pass share. Jobs only. */
#ifndef HTH_TRAINER_PASS_STEPS_H
#define HTH_TRAINER_PASS_STEPS_H

#include "trainer/pass.h"

/* [R, d] */
static inline struct hth_view hth_pass_rows(const struct hth_pass *p, float *data)
{
    return hth_view_f32(data, p->rows, p->model->opts.d, p->model->opts.d);
}

/* From dlogits: gradients of the head, dx, and the last mixture's way back. */
enum hth_err hth_pass_head_back(struct hth_pass *pass, struct hth_view dlogits) HTH_MUST;

#endif
