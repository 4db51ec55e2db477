/* SPDX-License-Identifier: Apache-2.0 */
/* exif.c: the orientation that a camera notes in a JPEG (Exif 2.3, tag 0x0112), and its turn. */
#include <string.h>

#include "core/mem.h"
#include "data/picture.h"

#define TAG_ORIENTATION 0x0112
#define TYPE_SHORT      3

/* A TIFF block: numbers of either byte order. */
struct tiff {
    const uint8_t *bytes;
    size_t len;
    bool big;
};

/* A number of 2 or 4 bytes; 0 beyond the end. */
static uint32_t number(const struct tiff *t, size_t at, size_t size)
{
    uint32_t n = 0;

    if (at > t->len || t->len - at < size)
        return 0;
    for (size_t i = 0; i < size; i++)
        n |= (uint32_t)t->bytes[at + i] << 8 * (t->big ? size - 1 - i : i);
    return n;
}

static uint32_t tiff_orientation(const uint8_t *bytes, size_t len)
{
    struct tiff t = {bytes, len, len > 0 && bytes[0] == 'M'};
    size_t at = number(&t, 4, 4);
    uint32_t count = number(&t, at, 2), value;

    if (number(&t, 2, 2) != 42)
        return 1;
    for (uint32_t i = 0; i < count; i++) {
        size_t entry = at + 2 + 12 * (size_t)i;
        if (number(&t, entry, 2) != TAG_ORIENTATION || number(&t, entry + 2, 2) != TYPE_SHORT)
            continue;
        value = number(&t, entry + 8, 2);
        return value >= 1 && value <= 8 ? value : 1;
    }
    return 1;
}

uint32_t hth_jpeg_orientation(const uint8_t *bytes, size_t len)
{
    static const uint8_t exif[] = {'E', 'x', 'i', 'f', 0, 0};

    /* Segments before the picture's data: FF, a marker, a length of 2 bytes that counts itself. */
    for (size_t at = 2; at + 4 <= len && bytes[at] == 0xff && bytes[at + 1] != 0xda;) {
        size_t size = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        const uint8_t *body = bytes + at + 4;
        if (size < 2 || size > len - at - 2)
            return 1;
        if (bytes[at + 1] == 0xe1 && size - 2 > sizeof(exif) &&
            memcmp(body, exif, sizeof(exif)) == 0)
            return tiff_orientation(body + sizeof(exif), size - 2 - sizeof(exif));
        at += 2 + size;
    }
    return 1;
}

/* The orientations, by where the pixel of (row, col) of the upright picture lies in the file. */
static size_t stored_at(uint32_t orientation, size_t row, size_t col, size_t width, size_t height)
{
    bool swapped = orientation >= 5;
    size_t r = swapped ? col : row, c = swapped ? row : col;

    if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7)
        r = height - 1 - r;
    if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8)
        c = width - 1 - c;
    return r * width + c;
}

enum hth_err hth_picture_turn(struct hth_picture *p, uint32_t orientation)
{
    bool swapped = orientation >= 5;
    struct hth_picture out = {swapped ? p->height : p->width, swapped ? p->width : p->height, NULL};

    if (orientation <= 1 || orientation > 8)
        return HTH_OK;
    out.rgb = hth_try_alloc((size_t)p->width * p->height * 3);
    if (out.rgb == NULL)
        return HTH_E_NO_MEMORY;
    for (size_t row = 0; row < out.height; row++)
        for (size_t col = 0; col < out.width; col++)
            memcpy(out.rgb + 3 * (row * out.width + col),
                   p->rgb + 3 * stored_at(orientation, row, col, p->width, p->height), 3);
    hth_picture_clear(p);
    *p = out;
    return HTH_OK;
}
