/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kind.h: what an expert computes, as a table of functions.
 *
 * A *kind* is a network that maps rows of width d to rows of width d:
 *
 *   ffn           y = LayerNorm(x + W2 gelu(W1 x + b1) + b2)           any number of rows
 *   transformer   a causal block over sequences of `block_rows` rows   whole sequences only
 *   nop           y = x                                                no weights; to measure the
 * rest
 *
 * A new kind is one file that fills a struct hth_expert_kind, and one line in kind.c's table. The
 * server, the store and the trainer's local experts call only this table.
 *
 * A *module* is one instance: its parameters (kernels/params.h: values, gradients, moments in flat
 * buffers) and whatever the kernels prepared from them. Functions are pure in the sense of jobs:
 * they touch the module, their arguments and the workspace, and allocate nothing. forward only
 * reads the module, so several threads may run it at once; backward adds to the gradients and step
 * changes the weights, so each needs the module alone among writers (store.h says the exact rule).
 *
 * Rows are dense fp32, row-major [rows, d]. The same row (for a transformer: the same sequence)
 * gives the same bits in whatever batch it travels.
 */
#ifndef HTH_EXPERTS_KIND_H
#define HTH_EXPERTS_KIND_H

#include "core/base.h"

struct hth_backend;
struct hth_params;
struct hth_module;

struct hth_expert_shape {
    uint32_t d;          /* width of a row */
    uint32_t inner;      /* width of the hidden layer; 0: 4 * d */
    uint32_t heads;      /* transformer only: divides d, d / heads is even; 0: d / 64, at least 1 */
    uint32_t block_rows; /* transformer only: rows of one sequence; 0 and 1 elsewhere mean 1 */
};

struct hth_expert_kind {
    const char *name;
    /* Fills in the defaults. Errors: E_BAD_SHAPE, E_TOO_LARGE. */
    enum hth_err (*shape)(struct hth_expert_shape *shape);
    /* Weights drawn by Philox from the key, so that replicas start equal. Errors: E_NO_MEMORY. */
    enum hth_err (*module_new)(const struct hth_backend *backend,
                               const struct hth_expert_shape *shape, const uint32_t key[2],
                               struct hth_module **out);
    void (*module_free)(struct hth_module *module);
    /* NULL when the kind has no parameters. */
    struct hth_params *(*params)(struct hth_module *module);
    /* What a call on that many rows needs, in bytes. */
    size_t (*workspace_bytes)(const struct hth_module *module, uint32_t rows, bool backward);
    /* y = f(x). x and y do not overlap. */
    enum hth_err (*forward)(const struct hth_module *module, uint32_t rows, const float *x,
                            float *y, void *workspace);
    /* Recomputes the forward, writes dx = (df/dx)^T dy, adds (df/dw)^T dy to the gradients. */
    enum hth_err (*backward)(struct hth_module *module, uint32_t rows, const float *x,
                             const float *dy, float *dx, void *workspace);
    /* Floating point operations of one row, for the simulator's clock and for admission. */
    double (*flops_per_row)(const struct hth_expert_shape *shape, bool backward);
    bool passes_through; /* y is x, dx is dy: the server answers with the bytes that came */
};

/* NULL when there is no such kind. */
const struct hth_expert_kind *hth_expert_kind_find(const char *name);
/* The i-th kind, for lists; NULL past the last. */
const struct hth_expert_kind *hth_expert_kind_at(size_t i);

#endif
