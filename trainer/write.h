/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write.h: continues a text with a causal language model, token by token.
 *
 * The model sees at most C = model.context tokens. Of a text of n > C tokens it sees the last ones
 * from
 *
 *     start(n) = H ceil((n - C) / H),   H = C - C / 2
 *
 * on: when the context is full, it begins anew with its last half. Between two such points each
 * token costs one row; at them, half a context.
 *
 * Loop thread only. It borrows infer, whose only user it is until it is freed.
 */
#ifndef HTH_TRAINER_WRITE_H
#define HTH_TRAINER_WRITE_H

#include "trainer/infer.h"
#include "trainer/sample.h"

struct hth_write;

struct hth_write_opts {
    struct hth_sample_opts sample;
    uint32_t tokens; /* to write, at least 1 */
    /* Each token, as it is made. */
    void (*on_token)(void *arg, int32_t token);
    /* Once: all are written, or an error ended it. The caller may free. */
    void (*on_done)(void *arg, enum hth_err err);
    void *arg;
};

/* First token that a model with that context sees of a text of n tokens. */
uint64_t hth_write_start_of(uint64_t n, uint32_t context);
/* Begins with a prompt of at least one token, which is copied. Callbacks never run inside this
 * call. Errors: E_CONFIG (no prompt, no tokens, the sample's options), E_RANGE (a token that the
 * model lacks), E_TOO_LARGE, E_NO_MEMORY, and those of hth_infer_begin. */
enum hth_err hth_write_new(struct hth_env *env, struct hth_infer *infer, const int32_t *prompt,
                           size_t count, const struct hth_write_opts *opts,
                           struct hth_write **out) HTH_MUST;
/* NULL is fine; while it writes, free infer first. */
void hth_write_free(struct hth_write *write);

#endif
