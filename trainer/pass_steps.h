/* SPDX-License-Identifier: Apache-2.0 */
/* pass_steps.h (internal): helpers of pass_forward.c and pass_backward.c. Jobs only. */
#ifndef HTH_TRAINER_PASS_STEPS_H
#define HTH_TRAINER_PASS_STEPS_H

#include "trainer/layer.h"

/* The address that kernels use for the process' address `here`: the same, or its twin on the
 * card. */
static inline void *hth_pass_there(const struct hth_pass *p, void *here)
{
    return p->card != NULL ? p->card + ((uint8_t *)here - p->memory) : here;
}

static inline struct hth_view hth_pass_view(const struct hth_pass *p, float *here, uint32_t rows,
                                            uint32_t cols)
{
    return hth_view_f32(hth_pass_there(p, here), rows, cols, cols);
}

static inline struct hth_view hth_pass_indices(const struct hth_pass *p, int32_t *here,
                                               uint32_t rows)
{
    return hth_view_i32(hth_pass_there(p, here), rows);
}

/* [R, d] */
static inline struct hth_view hth_pass_rows(const struct hth_pass *p, float *data)
{
    return hth_pass_view(p, data, p->rows, p->model->opts.d);
}

/* Uploads `here`; the kernels that are queued next see it. */
static inline enum hth_err hth_pass_up(const struct hth_pass *p, void *here, size_t count)
{
    if (p->card == NULL)
        return HTH_OK;
    return hth_exec_upload(p->model->exec, hth_pass_there(p, here), here, count * sizeof(float));
}

/* Downloads the twin of `here` to `to`; valid after the next sync. */
static inline enum hth_err hth_pass_down(const struct hth_pass *p, float *here, float *to,
                                         size_t count)
{
    if (p->card == NULL)
        return HTH_OK;
    return hth_exec_download(p->model->exec, to, hth_pass_there(p, here), count * sizeof(float));
}

/* h of a layer at the address that kernels use. */
static inline float *hth_pass_h(const struct hth_pass *p, uint32_t l)
{
    return p->card != NULL ? p->layer[l].h_there : (float *)p->layer[l].h->data;
}

/* The mixture of a layer over the answers that arrived. */
static inline struct hth_mixture hth_pass_mixture(const struct hth_pass *p, uint32_t l)
{
    const struct hth_model *m = p->model;

    return (struct hth_mixture){
        .rows = p->units,
        .k = m->opts.top_k,
        .d = (size_t)m->block_rows * m->opts.d,
        .k_min = m->opts.k_min,
        .scores = p->layer[l].score,
        .y = p->layer[l].yptr,
    };
}

/* pass_head.c: tokens or pixels -> x; and from dx the gradients of the input's tensors. */
enum hth_err hth_pass_enter(struct hth_pass *pass, float *x) HTH_MUST;
enum hth_err hth_pass_enter_back(struct hth_pass *pass) HTH_MUST;
/* From p->x: logits, losses and their gradients. */
enum hth_err hth_pass_losses(struct hth_pass *pass) HTH_MUST;
/* Gradients of the head's tensors, and dx. */
enum hth_err hth_pass_losses_back(struct hth_pass *pass) HTH_MUST;

/* From the losses: gradients of the head, dx, and the backward of the last mixture. */
enum hth_err hth_pass_head_back(struct hth_pass *pass) HTH_MUST;
/* From the losses: all gradients of a dense model. */
enum hth_err hth_pass_dense_back(struct hth_pass *pass) HTH_MUST;

/* Rooms of layer l (layer.h). */
struct hth_attn_room hth_pass_attn_room(const struct hth_pass *pass, uint32_t l);
struct hth_ffn_room hth_pass_ffn_room(const struct hth_pass *pass, uint32_t l);

#endif
