/* SPDX-License-Identifier: Apache-2.0 */
/*
 * book.h: a patch code book: pictures as grids of small numbers.
 *
 *     a picture of side x side is cut into patches of f x f pixels
 *     code of a patch     = the nearest of K centres, by squared distance; the first of equals
 *     picture of the codes = their centres, or what a decoder makes of them (data/decoder.h)
 *
 * Centres are found by k-means over the different patches of the training pictures, each with its
 * count: a k-means++ start (Arthur and Vassilvitskii 2007) drawn from the seed, then rounds of
 * assigning and averaging; a centre without a patch takes the patch that is worst off. Everything
 * is counted in whole numbers, centres in eighths of a pixel's step; so codes are a pure function
 * of picture and book, and the book one of pictures and seed: the same bits on every machine, with
 * any number of threads.
 *
 * Any thread, one at a time per book; training uses the team that it is given.
 */
#ifndef HTH_DATA_BOOK_H
#define HTH_DATA_BOOK_H

#include "core/base.h"
#include "core/team.h"
#include "data/why.h"

#define HTH_BOOK_CODES_MAX 16384
#define HTH_BOOK_PATCH_MAX 16
#define HTH_BOOK_ROUNDS    25
#define HTH_BOOK_SCALE     8 /* centres are in eighths */

struct hth_book {
    uint32_t codes, patch;
    int16_t *centres; /* [codes, 3 * patch * patch]: pixels row by row, RGB, 0..255 * 8 */
};

/* Square pictures, one after the other; borrowed. */
struct hth_book_pictures {
    const uint8_t *rgb;
    uint32_t count, side;
};

/* Called for each centre of the start, then for each round. */
typedef void hth_book_progress_fn(void *arg, uint64_t done, uint64_t total);

struct hth_book_opts {
    uint32_t codes, patch;
    uint64_t seed;
    struct hth_team *team;
    hth_book_progress_fn *progress; /* or NULL */
    void *arg;
};

/* Errors: E_CONFIG (codes or patch out of range, or a patch that does not divide the side),
 * E_BAD_SHAPE (fewer different patches than codes), E_NO_MEMORY. */
enum hth_err hth_book_train(const struct hth_book_opts *opts,
                            const struct hth_book_pictures *pictures, struct hth_book *out,
                            struct hth_why *why) HTH_MUST;
void hth_book_clear(struct hth_book *book);

/* The (side / patch)^2 codes of a picture, row by row. */
void hth_book_encode(const struct hth_book *book, const uint8_t *rgb, uint32_t side,
                     uint16_t *codes);
/* The picture that the centres give: side * side * 3 bytes. */
void hth_book_paint(const struct hth_book *book, const uint16_t *codes, uint32_t side,
                    uint8_t *rgb);

#endif
