/* SPDX-License-Identifier: Apache-2.0 */
/*
 * picture.h: PNG and JPEG files as RGB pixels, and back to PNG.
 *
 * Pictures are 8 bits a channel, row by row, 3 bytes a pixel. Transparent ones lie on white. A
 * picture is fitted into a square: the longest side becomes the square's, each pixel is the mean of
 * the area that it covers, and the rest is white. The result is a pure function of the pixels.
 *
 * Files are hostile input: the size in the header is checked before memory is taken for it, and a
 * file that is damaged or cut short is refused as a whole.
 *
 * Pure functions, any thread.
 */
#ifndef HTH_DATA_PICTURE_H
#define HTH_DATA_PICTURE_H

#include "core/blob.h"
#include "core/limits.h"
#include "data/why.h"

struct hth_picture {
    uint32_t width, height;
    uint8_t *rgb; /* owned; NULL: none */
};

/* `name` stands in error texts. Errors: E_BAD_MAGIC (neither PNG nor JPEG), E_TOO_LARGE (the file,
 * a side, or the whole: limits.h), E_CORRUPT, E_NO_MEMORY. */
enum hth_err hth_picture_decode(const char *name, const uint8_t *bytes, size_t len,
                                struct hth_picture *out, struct hth_why *why) HTH_MUST;
void hth_picture_clear(struct hth_picture *p);
/* How a camera held a JPEG's picture: 1 (upright) to 8, of its Exif block; 1 if there is none. The
 * decoder has turned the picture already. */
uint32_t hth_jpeg_orientation(const uint8_t *bytes, size_t len);
/* Turns a picture upright. Errors: E_NO_MEMORY. */
enum hth_err hth_picture_turn(struct hth_picture *p, uint32_t orientation) HTH_MUST;

/* side * side * 3 bytes in out. */
void hth_picture_fit(const struct hth_picture *p, uint32_t side, uint8_t *out);
/* Moves a square picture by dx, dy pixels (|d| < side); the freed edge is white. */
void hth_picture_shift(const uint8_t *in, uint32_t side, int dx, int dy, uint8_t *out);
/* A PNG file. Errors: E_NO_MEMORY. */
enum hth_err hth_picture_png(const uint8_t *rgb, uint32_t width, uint32_t height,
                             struct hth_blob **out) HTH_MUST;

#endif
