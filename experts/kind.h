/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * kind.h: what an expert computes, as a table of functions.
 *
 * A *kind* is a network that maps rows of width d to rows of width d:
 *
 *   ffn           y = LayerNorm(x + W2 gelu(W1 x + b1) + b2)           any number of rows
 *   transformer   a causal block over sequences of `block_rows` rows   whole sequences only
 *   nop           y = x                                                no weights; for measuring
 *
 * A new kind is one file that fills a struct hth_expert_kind, and one line in kind.c's table. The
 * server, the store and the trainer's local experts call only this table.
 *
 * A *module* is one instance: its parameters (kernels/params.h: values, gradients, moments in flat
 * buffers) and the images that the kernels made of them. The functions are fit for jobs: they touch
 * the module, their arguments and the context's scratch, and allocate nothing. forward only reads
 * the module, so several threads may run it at once; backward adds to the gradients and step
 * changes the weights, so each must be the only writer (store.h has the exact rule).
 *
 * Rows are dense fp32, row-major [rows, d]. The same row (for a transformer: the same sequence)
 * gives the same bits in any batch.
 */
/* clang-format on */
#ifndef HTH_EXPERTS_KIND_H
#define HTH_EXPERTS_KIND_H

#include "core/base.h"
#include "kernels/backend.h"
#include "kernels/params.h"

struct hth_module;

struct hth_expert_shape {
    uint32_t d;          /* width of a row */
    uint32_t inner;      /* width of the hidden layer; 0: 4 * d */
    uint32_t heads;      /* transformer only: divides d, d / heads is even; 0: d / 64, at least 1 */
    uint32_t block_rows; /* transformer only: rows of one sequence; 0 means 1 */
};

struct hth_module_opts {
    const struct hth_backend *backend;
    struct hth_expert_shape shape; /* complete: the kind's `shape` has filled in the defaults */
    struct hth_seal_options seal;  /* seed of the weights, slots of the optimiser */
};

/* One call of `many`: a forward uses y, a backward dy and dx. */
#define HTH_MODULE_CALLS_MAX 64
struct hth_module_call {
    struct hth_module *module;
    struct hth_view x, y, dy, dx;
};

struct hth_expert_kind {
    const char *name;
    /* Fills in the defaults. Errors: E_BAD_SHAPE, E_TOO_LARGE. */
    enum hth_err (*shape)(struct hth_expert_shape *shape);
    /* Makes a module with random weights. Errors: E_NO_MEMORY. */
    enum hth_err (*module_new)(const struct hth_module_opts *opts, struct hth_module **out);
    void (*module_free)(struct hth_module *module);
    /* NULL for a kind without weights. */
    struct hth_params *(*params)(struct hth_module *module);
    /* Scratch that a call on that many rows takes from its context; works without a module. */
    size_t (*scratch_bytes)(const struct hth_module_opts *opts, uint32_t rows, bool backward);
    /* y = f(x). x and y do not overlap. */
    enum hth_err (*forward)(const struct hth_module *module, struct hth_exec *ex, struct hth_view x,
                            struct hth_view y);
    /* Recomputes the forward, writes dx = (df/dx)^T dy, adds (df/dw)^T dy to the gradients. */
    enum hth_err (*backward)(struct hth_module *module, struct hth_exec *ex, struct hth_view x,
                             struct hth_view dy, struct hth_view dx);
    /* Computes up to HTH_MODULE_CALLS_MAX modules of one shape at once; a backward takes each
     * module once. NULL: it would be no faster than one after the other. Scratch: the sum of the
     * single calls. An error holds for all calls. */
    enum hth_err (*many)(struct hth_exec *ex, const struct hth_module_call *calls, uint32_t count,
                         bool backward);
    /* Multiply-adds count as two. For the simulator's clock and for admission. */
    double (*flops_per_row)(const struct hth_expert_shape *shape, bool backward);
    /* Number of weights, for limits and for the cost of a step. */
    uint64_t (*weights)(const struct hth_expert_shape *shape);
    bool passes_through; /* y is x, dx is dy: the server replies with the request's bytes */
};

/* NULL when there is no such kind. */
const struct hth_expert_kind *hth_expert_kind_find(const char *name);
/* The i-th kind, for lists; NULL past the last. */
const struct hth_expert_kind *hth_expert_kind_at(size_t i);

/* Each kind has its own file. */
extern const struct hth_expert_kind hth_kind_ffn;
extern const struct hth_expert_kind hth_kind_transformer;
extern const struct hth_expert_kind hth_kind_nop;

#endif
