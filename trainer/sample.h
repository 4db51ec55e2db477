/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.h: chooses the next token from logits.
 *
 * With temperature 0 the largest logit wins, the lower index among equals. Else token i has the
 * probability p_i = exp(l_i / temperature) / sum; top_k keeps the k largest, top_p the fewest
 * largest whose sum reaches p ("nucleus sampling", Holtzman et al., 2020), and one of those that
 * are left is drawn. The draw is a pure function of (seed, stream, position): the same on every
 * machine whose logits have the same bits, in any order and in any batch.
 *
 * Pure, any thread.
 */
#ifndef HTH_TRAINER_SAMPLE_H
#define HTH_TRAINER_SAMPLE_H

#include "core/base.h"

struct hth_sample_opts {
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: all */
    float top_p;       /* 0 < p <= 1; 1: all */
    uint64_t seed;
};
#define HTH_SAMPLE_OPTS_INIT                                                                       \
    {                                                                                              \
        .temperature = 1, .top_p = 1                                                               \
    }

/* Errors: E_CONFIG (a temperature below 0 or not finite, a top_p outside its range). */
enum hth_err hth_sample_check(const struct hth_sample_opts *opts) HTH_MUST;
/* `stream` tells sequences apart, `position` the tokens of one. The options have passed the check,
 * and count > 0. Errors: E_NOT_FINITE (a logit is NaN or infinite). */
enum hth_err hth_sample(const struct hth_sample_opts *opts, const float *logits, uint32_t count,
                        uint32_t stream, uint32_t position, uint32_t *out) HTH_MUST;

#endif
