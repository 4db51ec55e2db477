/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decoder.h: a small network that paints the codes of a book better than its centres do.
 *
 * For each patch, the codes of its 3 x 3 neighbourhood (beyond the edge: one more code, "outside"):
 *
 *     9 embeddings of 16 numbers -> linear 256, GELU -> linear 3 f f, + the patch's own centre
 *
 * in units of 255. The last layer begins at 0, so an untrained decoder paints the centres. Adam
 * lowers the squared error; the rate falls from 0.003 along a cosine. The same pictures, seed and
 * back end give the same bits.
 *
 * One thread at a time per decoder. Back ends with memory of this process only (kernels/backend.h).
 */
#ifndef HTH_DATA_DECODER_H
#define HTH_DATA_DECODER_H

#include "data/book.h"
#include "kernels/params.h"

#define HTH_DECODER_STEPS 2000 /* by default: about a minute on two cores for 8 x 8 codes */

struct hth_decoder;

struct hth_decoder_opts {
    const struct hth_backend *backend;
    struct hth_team *team;
    const struct hth_book *book; /* borrowed while the decoder lives */
    uint32_t side;               /* of the pictures */
    uint64_t seed;
};

/* Errors: E_NO_MEMORY, those of hth_params_add. */
enum hth_err hth_decoder_new(const struct hth_decoder_opts *opts,
                             struct hth_decoder **out) HTH_MUST;
/* NULL is fine. */
void hth_decoder_free(struct hth_decoder *d);
/* The weights, for files: embed [codes + 1, 16], w1 [144, 256], b1, w2 [256, 3 f f], b2. */
struct hth_params *hth_decoder_params(struct hth_decoder *d);

/* Errors: those of kernels/. */
enum hth_err hth_decoder_train(struct hth_decoder *d, const struct hth_book_pictures *pictures,
                               uint32_t steps, hth_book_progress_fn *progress, void *arg) HTH_MUST;
/* side * side * 3 bytes in rgb. */
enum hth_err hth_decoder_paint(struct hth_decoder *d, const uint16_t *codes, uint8_t *rgb) HTH_MUST;

#endif
