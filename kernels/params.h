/* SPDX-License-Identifier: Apache-2.0 */
/*
 * params.h: the weights of one model part (an expert, a trunk), their gradients and optimiser
 * state.
 *
 * A set of parameters is a named list of matrices over flat buffers of floats: one for the values
 * (the fp32 master), one for the gradients, and one per optimiser state (Adam has two). All have
 * the same layout: tensor i starts at hth_weight_offset(i), a multiple of 16 floats, and is dense
 * and row-major; the few floats between tensors stay zero. So averaging, checkpoints and norms work
 * on one flat vector, while operations work on *weights*.
 *
 * A weight is opaque because a back end may keep other images of it (packed panels, bf16, device
 * memory). Code that changes values from outside (averaging, a restored checkpoint) calls
 * hth_params_touched, and the back end rebuilds the images before the next use.
 *
 * Life: hth_params_new, hth_params_add for each tensor, hth_params_seal once; then use. Gradients
 * start as zero and accumulate over backward calls until hth_params_zero_grads, which costs
 * nothing: the first backward after it overwrites.
 *
 * Thread: one at a time per set. The set owns everything; weights live as long as it does.
 */
#ifndef HTH_KERNELS_PARAMS_H
#define HTH_KERNELS_PARAMS_H

#include "core/base.h"
#include "kernels/backend.h"

struct hth_params;
struct hth_weight;

enum hth_init {
    HTH_INIT_ZEROS,
    HTH_INIT_ONES,    /* all `scale` */
    HTH_INIT_UNIFORM, /* in [-scale, scale) */
    HTH_INIT_NORMAL,  /* mean 0, deviation `scale` */
    HTH_INIT_KAIMING, /* normal with deviation scale * sqrt(2 / rows); rows are the inputs */
    HTH_INIT_LINEAR,  /* uniform within scale / sqrt(rows): PyTorch's for nn.Linear */
};

struct hth_param_spec {
    const char *name; /* at most HTH_PARAM_NAME_MAX bytes, unique in the set; copied */
    uint32_t rows;    /* inputs of a linear layer; 1 for biases and norms */
    uint32_t cols;
    enum hth_init init;
    float scale;   /* 0 means 1 */
    bool no_decay; /* without weight decay */
};

/* Which of the flat buffers. */
enum hth_part { HTH_PART_VALUE, HTH_PART_GRAD, HTH_PART_STATE0, HTH_PART_STATE1 };

enum hth_err hth_params_new(const struct hth_backend *be, struct hth_params **out) HTH_MUST;
void hth_params_free(struct hth_params *p);

/* The weight may be given to operations after the seal. Errors: E_CONFIG (sealed already, bad or
 * double name, no elements), E_TOO_LARGE (over HTH_PARAMS_TENSORS_MAX or HTH_PARAMS_FLOATS_MAX). */
enum hth_err hth_params_add(struct hth_params *p, const struct hth_param_spec *spec,
                            struct hth_weight **out) HTH_MUST;

struct hth_seal_options {
    uint64_t seed;        /* of the run: key of Philox */
    uint32_t stream;      /* of this set (the expert's number): sets of one seed draw apart */
    uint32_t state_slots; /* 0, 1 or 2; hth_optim_slots() says how many an optimiser needs */
    bool forward_only;    /* no gradients, no state */
    /* Gradients of few rows may stay products x^T dy until a step or a read needs them: packed back
     * ends then step without writing them. For sets whose gradients are seldom read. */
    bool factored_grads;
};
#define HTH_SEAL_OPTIONS_INIT ((struct hth_seal_options){.state_slots = 2})

/* Allocates and initialises: element e of tensor t is a pure function of (seed, stream, t, e), the
 * same on every back end. Errors: E_NO_MEMORY, E_CONFIG (sealed already, more than 2 slots). */
enum hth_err hth_params_seal(struct hth_params *p, const struct hth_seal_options *options) HTH_MUST;

const struct hth_backend *hth_params_backend(const struct hth_params *p);
uint32_t hth_params_count(const struct hth_params *p);
/* The number of parameters: elements of all tensors, without padding. */
uint64_t hth_params_elements(const struct hth_params *p);
/* Floats of each flat buffer, padding included. */
size_t hth_params_flat_len(const struct hth_params *p);
uint32_t hth_params_state_slots(const struct hth_params *p);

/* By index in order of hth_params_add, or by name; NULL when there is none. */
struct hth_weight *hth_params_at(struct hth_params *p, uint32_t index);
struct hth_weight *hth_params_find(struct hth_params *p, const char *name);
const char *hth_weight_name(const struct hth_weight *w);
uint32_t hth_weight_rows(const struct hth_weight *w);
uint32_t hth_weight_cols(const struct hth_weight *w);
size_t hth_weight_offset(const struct hth_weight *w);

/* The flat buffer itself, for averaging and tests: NULL where the back end's memory is not this
 * process's, or the set has no such part. It zeroes gradients and states that were never written.
 * After writing values call hth_params_touched. */
float *hth_params_flat(struct hth_params *p, enum hth_part part);
void hth_params_touched(struct hth_params *p);

/* Copies `count` floats of a flat buffer from position `first`, out or in; works on every back end,
 * waits for the context, and an import of values implies hth_params_touched.
 * Errors: E_RANGE (beyond the end), E_UNSUPPORTED (no such part), and the device's. */
enum hth_err hth_params_export(struct hth_exec *ex, struct hth_params *p, enum hth_part part,
                               size_t first, size_t count, float *dst) HTH_MUST;
enum hth_err hth_params_import(struct hth_exec *ex, struct hth_params *p, enum hth_part part,
                               size_t first, size_t count, const float *src) HTH_MUST;
/* One tensor, dense and row-major: rows * cols floats. */
enum hth_err hth_weight_export(struct hth_exec *ex, struct hth_weight *w, enum hth_part part,
                               float *dst) HTH_MUST;
enum hth_err hth_weight_import(struct hth_exec *ex, struct hth_weight *w, enum hth_part part,
                               const float *src) HTH_MUST;

/* Multiplies a flat buffer by a number, in place. Errors: E_UNSUPPORTED (no such part). */
enum hth_err hth_params_scale(struct hth_exec *ex, struct hth_params *p, enum hth_part part,
                              float factor) HTH_MUST;

/* Prefetches a set that a forward pass needs soon, or a backward pass (`gradients`): where sets
 * move to and from a device's memory, the copy starts beside the computation. Never waits. */
void hth_params_ahead(struct hth_exec *ex, struct hth_params *p, bool gradients);

/* Gradients become zero. */
void hth_params_zero_grads(struct hth_params *p);

/* Optimiser steps taken; Adam's bias correction depends on it, so checkpoints carry it. */
uint64_t hth_params_steps(const struct hth_params *p);
void hth_params_set_steps(struct hth_params *p, uint64_t steps);

#endif
