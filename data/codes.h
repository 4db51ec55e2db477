/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codes.h: turns a data set of pictures into one of codes.
 *
 *     hth_codes_train   book and decoder, from the training part, and what they lose
 *     hth_codes_pack    every picture of both parts as codes; captions, classes and words stay
 *
 * Copies: each training picture is coded `copies` times, the first as it is, the others moved by
 * -shift..shift pixels on both axes, as drawn from the seed; a grid of codes can't be moved later.
 *
 * PSNR is 10 log10(255^2 / mean squared error over all pixels of a part).
 *
 * Main thread; it blocks on files. The book's file is the caller's part (trainer/book_file.h).
 */
#ifndef HTH_DATA_CODES_H
#define HTH_DATA_CODES_H

#include "data/decoder.h"
#include "data/pack.h"
#include "data/set.h"

#define HTH_CODES_PICTURES_MAX 16384 /* of the training part, that book and decoder learn from */

struct hth_codes_opts {
    uint32_t codes, patch, copies, shift;
    uint32_t steps; /* of the decoder; 0: none */
    uint32_t seed;
    const struct hth_backend *backend;
    struct hth_team *team;
    hth_book_progress_fn *progress;
    void *arg;
};

#define HTH_CODES_OPTS_INIT                                                                        \
    {                                                                                              \
        .codes = 512, .patch = 4, .copies = 1, .shift = 2, .steps = HTH_DECODER_STEPS, .seed = 1   \
    }

struct hth_codes {
    struct hth_book book;
    struct hth_decoder *decoder;        /* NULL: none */
    double psnr_centres[HTH_SET_PARTS]; /* dB; NAN for an empty part */
    double psnr_decoder[HTH_SET_PARTS];
    uint32_t used;  /* codes that the training part uses */
    double entropy; /* bits of a code there */
};

/* Errors: E_CONFIG (also a set that is not of pictures), those of hth_set_next, hth_book_train and
 * the decoder. Clear *out in any case. */
enum hth_err hth_codes_train(struct hth_set *set, const struct hth_codes_opts *opts,
                             struct hth_codes *out, struct hth_why *why) HTH_MUST;
void hth_codes_clear(struct hth_codes *codes);

enum hth_err hth_codes_pack(struct hth_set *set, const struct hth_codes_opts *opts,
                            const struct hth_codes *codes, struct hth_pack *pack,
                            struct hth_why *why) HTH_MUST;

#endif
