/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend_int.h: the table that a back end fills, and the structs behind the opaque names.
 *
 * ops.c has checked shapes, types and limits before it calls through the table, so that a back end
 * holds arithmetic only: views are fp32 unless the slot or bf16_views says otherwise, rows > 0,
 * leading dimensions at least the columns (0 in a residual of linear_backward_data: one row for
 * all). A slot takes scratch from its context and may return E_NO_MEMORY; a device back end
 * otherwise returns at once and keeps its errors for `exec_sync`.
 *
 * A plug-in (plugin.h) hands out such tables; ABI number and sizes are checked first.
 */
#ifndef HTH_KERNELS_BACKEND_INT_H
#define HTH_KERNELS_BACKEND_INT_H

#include <stdatomic.h>

#include "core/limits.h"
#include "kernels/backend.h"
#include "kernels/blocks.h"
#include "kernels/ops.h"
#include "kernels/optim.h"
#include "kernels/params.h"

#define HTH_BACKEND_ABI 10u

struct hth_exec {
    const struct hth_backend *be;
    void *stream;     /* the back end's own; NULL on the CPU */
    uint8_t *scratch; /* back-end memory, used as a stack */
    size_t scratch_bytes, scratch_used;
    struct hth_team *team; /* borrowed; NULL: the caller alone */
    bool is_part;          /* one of several that work side by side (each.c) */
    uint8_t *spare;        /* scratch of helpers inside an operation; NULL: never needed */
    size_t spare_bytes;
};

/* Like hth_exec_each, but `ex` needs scratch for one call only: the helpers' scratch is allocated
 * at the first use and kept. Without memory for it, or inside an hth_exec_each, the caller works
 * alone. */
enum hth_err hth_exec_share(struct hth_exec *ex, uint32_t count, size_t scratch_bytes,
                            hth_exec_fn *fn, void *arg) HTH_MUST;

/* A copy of a weight's values in an order that the back end chooses. */
struct hth_image {
    void *data;                    /* the back end's own; freed through image_free */
    atomic_uint_least64_t version; /* of the values it was built from; 0: never */
    atomic_bool busy;              /* a thread is building it */
    atomic_uint_least32_t passes;  /* packed: blocks of rows computed with it since a step */
};

/* A gradient, or a summand of one, as a product of rows: see packed_factors.c. */
struct hth_factors {
    uint32_t units, cap; /* of K: there, and room */
    uint64_t starts;     /* bit u: a batch begins with unit u */
    uint32_t *x, *dy;    /* one block; NULL: never needed */
};

struct hth_weight {
    struct hth_params *owner;
    char name[HTH_PARAM_NAME_MAX + 1];
    uint32_t index;
    uint32_t rows, cols;
    size_t offset;              /* floats from the start of each flat buffer */
    float *value, *grad;        /* back-end memory; set by the seal */
    bool grad_zero;             /* logically zero: the buffer's content is not valid */
    struct hth_factors factors; /* to be added to grad; of back ends with factors_add */
    enum hth_init init;
    float scale;
    bool no_decay;
    struct hth_image image[2];
};

struct hth_params {
    const struct hth_backend *be;
    struct hth_weight **weights; /* each allocated alone: callers hold pointers while it grows */
    uint32_t count, cap;
    uint64_t elements;
    size_t flat_len;
    float *value, *grad, *state[2];
    uint32_t slots;
    bool sealed;
    bool has_grads;
    bool factored;    /* gradients may stay products until they are read or stepped with */
    void *home;       /* of a back end that moves sets (params_open); else NULL */
    bool state_zero;  /* states are logically zero: they were never written */
    uint64_t version; /* of the values; starts at 1, grows at each change */
    uint64_t steps;
};

/* One matrix of a rotary table: [seq_max, head_dim / 2] cosines, then as many sines. */
struct hth_rope {
    const struct hth_backend *be;
    uint32_t seq_max, half;
    float *cosines, *sines;
};

/* One step of an optimiser on one tensor; the equations stand in optim.h. */
struct hth_step {
    enum hth_optim_kind kind;
    float grad_scale, lr, momentum, beta1, beta2, eps;
    float decay;             /* of this tensor */
    float bias1, bias2_sqrt; /* 1 - beta1^t, sqrt(1 - beta2^t) */
    float trust_max;         /* LAMB: 0 for no bound */
    bool adapt;              /* LAMB: the tensor has a trust ratio */
};

struct hth_init_args {
    float *dst;
    size_t count;
    enum hth_init init; /* ZEROS, ONES, UNIFORM or NORMAL; the others are reduced to these */
    float scale;
    uint64_t seed;
    uint32_t stream, tensor;
};

/* The key of a block's call: everything that its launches depend on, except the numbers. It has no
 * padding, because it is compared as bytes. */
struct hth_call_key {
    uint32_t what, rows, dim, hidden, heads, seq;
    uint32_t zero; /* bits of gradients that are logically zero */
    float eps;
    uint32_t ld[4];
    const void *at[9];
};

/* One of many FFN blocks. Forward without `saved` has no pre, act, sum, stats. */
struct hth_ffn_member {
    const struct hth_ffn *ffn;
    uint32_t index; /* of the caller's entry */
    struct hth_view x, y, dy, dx;
    struct hth_view pre, act, sum, stats;
};

struct hth_backend {
    uint32_t abi, size;
    const char *name;
    uint32_t caps;
    uint32_t card;           /* its number + 1; 0: the CPU */
    enum hth_matmul compute; /* not AUTO */
    bool bf16_views;         /* the three linear slots take bf16 as well, see ops.h */
    const char *isa;         /* of the packed ones, else NULL */
    const void *impl;        /* the back end's own */

    void *(*alloc)(const struct hth_backend *be, size_t bytes);
    void (*free)(const struct hth_backend *be, void *p);
    enum hth_err (*exec_open)(struct hth_exec *ex); /* makes ex->stream */
    void (*exec_close)(struct hth_exec *ex);
    enum hth_err (*exec_sync)(struct hth_exec *ex);
    /* A clock of its own, or NULL. */
    enum hth_err (*stamp)(struct hth_exec *ex, bool last);
    enum hth_err (*stamped_us)(struct hth_exec *ex, double *us);
    enum hth_err (*upload)(struct hth_exec *ex, void *device, const void *host, size_t bytes);
    enum hth_err (*download)(struct hth_exec *ex, void *host, const void *device, size_t bytes);
    /* A device's bare speed, for measurements; or NULL. The driver's
     * copy within its memory, and the library's product c = a b: with HTH_MATMUL_BF16 of bf16
     * operands, else of fp32 ones. */
    enum hth_err (*bare_copy)(struct hth_exec *ex, void *to, const void *from, size_t bytes);
    enum hth_err (*bare_product)(struct hth_exec *ex, struct hth_view a, struct hth_view b,
                                 struct hth_view c);
    void (*image_free)(struct hth_weight *w); /* NULL when it keeps no images */
    /* For back ends whose gradients may stay products (else NULL): adds them to the buffer; returns
     * the sum of the product's squares. */
    void (*factors_add)(struct hth_weight *w, struct hth_team *team);
    double (*factors_sumsq)(const struct hth_weight *w);
    /* For back ends that move sets between memories (NULL for the others, whose buffers come from
     * `alloc`). open makes the buffers of a set and keeps them in place until opened; close frees
     * them. hold copies parts (bits 1 << enum hth_part) to the device's memory, where they stay
     * until the context's next sync; pointers into a set are valid from its hold to that sync.
     * ahead starts such a copy. Errors of open and hold: E_NO_MEMORY, E_DEVICE; E_UNSUPPORTED (no
     * such part). */
    enum hth_err (*params_open)(struct hth_params *p);
    void (*params_opened)(struct hth_params *p);
    void (*params_close)(struct hth_params *p);
    enum hth_err (*params_hold)(struct hth_exec *ex, struct hth_params *p, uint32_t reads,
                                uint32_t writes);
    void (*params_ahead)(struct hth_exec *ex, struct hth_params *p, uint32_t parts);
    /* Initialises or zeroes back-end memory before any context exists; synchronous. */
    enum hth_err (*init)(const struct hth_backend *be, const struct hth_init_args *args);

    size_t (*linear_scratch)(const struct hth_backend *be, uint32_t in, uint32_t out);
    enum hth_err (*linear_forward)(struct hth_exec *ex, const struct hth_linear *lin,
                                   struct hth_view x, struct hth_view y);
    enum hth_err (*linear_backward_data)(struct hth_exec *ex, const struct hth_linear_back *lin,
                                         struct hth_view dy, struct hth_view dx);
    /* Adds to the gradients, or overwrites where the weight's grad_zero says so. */
    enum hth_err (*linear_backward_weight)(struct hth_exec *ex, struct hth_weight *w,
                                           struct hth_weight *bias, struct hth_view x,
                                           struct hth_view dy);
    enum hth_err (*act_forward)(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                                struct hth_view y);
    enum hth_err (*act_backward)(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                                 struct hth_view dy, struct hth_view dx);
    /* These five or none: HTH_CAP_DENSE. column_sums adds to a bias' gradient. */
    enum hth_err (*geglu_forward)(struct hth_exec *ex, struct hth_view x, struct hth_view y);
    enum hth_err (*geglu_backward)(struct hth_exec *ex, struct hth_view x, struct hth_view dy,
                                   struct hth_view dx);
    enum hth_err (*scale_forward)(struct hth_exec *ex, struct hth_weight *scale, struct hth_view x,
                                  struct hth_view residual, struct hth_view y);
    enum hth_err (*scale_backward)(struct hth_exec *ex, struct hth_weight *scale, struct hth_view x,
                                   struct hth_view dy, struct hth_view dx);
    enum hth_err (*column_sums)(struct hth_exec *ex, struct hth_weight *bias, struct hth_view dy);
    enum hth_err (*layernorm_forward)(struct hth_exec *ex, const struct hth_layernorm *ln,
                                      struct hth_view x, struct hth_view y, struct hth_view stats);
    enum hth_err (*layernorm_backward)(struct hth_exec *ex, const struct hth_layernorm_back *ln,
                                       struct hth_view dy, struct hth_view dx);
    enum hth_err (*softmax_forward)(struct hth_exec *ex, struct hth_view x, struct hth_view y);
    enum hth_err (*softmax_backward)(struct hth_exec *ex, struct hth_view y, struct hth_view dy,
                                     struct hth_view dx);
    enum hth_err (*xent)(struct hth_exec *ex, struct hth_view logits, struct hth_view labels,
                         float grad_scale, struct hth_view dlogits, struct hth_xent_result *result);
    /* dst[i] = src[index[i]] for a dense table of `src_rows` rows; embedding's forward too. */
    enum hth_err (*gather_rows)(struct hth_exec *ex, struct hth_view src, struct hth_view index,
                                struct hth_view dst);
    /* Embedding's backward too. */
    enum hth_err (*scatter_add_rows)(struct hth_exec *ex, struct hth_view src,
                                     struct hth_view index, struct hth_view weight,
                                     struct hth_view dst);
    size_t (*attention_scratch)(const struct hth_backend *be, uint32_t seq, uint32_t head_dim);
    enum hth_err (*attention_forward)(struct hth_exec *ex, const struct hth_attention *att,
                                      struct hth_view qkv, struct hth_view out,
                                      struct hth_view lse);
    enum hth_err (*attention_backward)(struct hth_exec *ex, const struct hth_attention *att,
                                       const struct hth_attention_saved *saved,
                                       struct hth_view dout, struct hth_view dqkv);
    /* NULL on a card. */
    enum hth_err (*attention_grow)(struct hth_exec *ex, const struct hth_attention *att,
                                   const struct hth_attention_kept *kept, struct hth_view qkv,
                                   struct hth_view out);
    enum hth_err (*combine)(struct hth_exec *ex, float alpha, struct hth_view a, float beta,
                            struct hth_view b, struct hth_view y);
    enum hth_err (*fill)(struct hth_exec *ex, struct hth_view y, float value);
    enum hth_err (*dropout)(struct hth_exec *ex, const struct hth_dropout *drop, struct hth_view x,
                            struct hth_view y);
    enum hth_err (*cast)(struct hth_exec *ex, struct hth_view src, struct hth_view dst);
    enum hth_err (*sumsq)(struct hth_exec *ex, struct hth_view x, struct hth_sumsq_result *result);
    /* The caller has made gradients ready, and states where the kind needs them. */
    enum hth_err (*step)(struct hth_exec *ex, struct hth_weight *w, const struct hth_step *step);
    /* The same on all tensors of a set at once, or NULL: `base` without decay and adapt, which
     * follow from each tensor's no_decay. */
    enum hth_err (*step_all)(struct hth_exec *ex, struct hth_params *p, const struct hth_step *base,
                             float weight_decay);
    /* Calls fn(ex, arg, 0), or repeats the launches of an earlier call with an equal key; or NULL.
     * The caller holds the parts of `p` that fn uses. fn may be called twice, each time from the
     * state in arg. */
    enum hth_err (*replay)(struct hth_exec *ex, const struct hth_params *p,
                           const struct hth_call_key *key, hth_exec_fn *fn, void *arg);
    /* Many FFN blocks of one shape, all with rows; or NULL. It passes members that are better
     * computed one by one to alone(ex, arg, index), which keeps their errors. Errors: E_NO_MEMORY,
     * and nothing was computed. */
    enum hth_err (*ffn_many)(struct hth_exec *ex, const struct hth_ffn_member *members,
                             uint32_t count, bool backward, hth_exec_fn *alone, void *arg);
};

#define HTH_PARTS       4u /* of enum hth_part */
#define HTH_HOLD_VALUE  (1u << HTH_PART_VALUE)
#define HTH_HOLD_GRAD   (1u << HTH_PART_GRAD)
#define HTH_HOLD_STATES (1u << HTH_PART_STATE0 | 1u << HTH_PART_STATE1)

/* Call it before reading the pointers of a set; `ex` is of the set's back end. */
static inline enum hth_err hth_params_hold(struct hth_exec *ex, struct hth_params *p,
                                           uint32_t reads, uint32_t writes)
{
    return ex->be->params_hold != NULL ? ex->be->params_hold(ex, p, reads, writes) : HTH_OK;
}

/* Writes the zeros of a logically zero gradient, for a caller that reads or adds to it. Errors: a
 * device's own; the CPU has none. */
enum hth_err hth_weight_grad_ready(struct hth_weight *w) HTH_MUST;
/* Makes all gradients of the set ready; with `products` it leaves those that are only a product.
 * The other makes the states ready. */
enum hth_err hth_params_grads_ready(struct hth_params *p, bool products) HTH_MUST;
enum hth_err hth_params_states_ready(struct hth_params *p) HTH_MUST;

/* True if the whole gradient is a product that is not in its buffer. */
static inline bool hth_weight_is_product(const struct hth_weight *w)
{
    return w->grad_zero && w->factors.units > 0;
}

/* The reason why OpenBLAS was not loaded, or the library and core type in use. */
void hth_blas_describe(char *buf, size_t size);
/* One line: the instruction set that computes that type, or that this CPU has none. */
void hth_packed_describe(enum hth_matmul compute, char *buf, size_t size);

#endif
