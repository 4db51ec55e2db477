/* SPDX-License-Identifier: Apache-2.0 */
/* picture.c: libpng's simple interface, TurboJPEG, and the mean over areas. */
#include "data/picture.h"

#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <turbojpeg.h>

#include "core/mem.h"

void hth_picture_clear(struct hth_picture *p)
{
    hth_free(p->rgb);
    *p = (struct hth_picture){0};
}

/* ---- decoding ------------------------------------------------------------------------------ */

struct file {
    const char *name;
    const uint8_t *bytes;
    size_t len;
    struct hth_why *why;
};

static enum hth_err check_size(const struct file *f, uint64_t width, uint64_t height)
{
    if (width == 0 || height == 0)
        return hth_blame(f->why, HTH_E_CORRUPT, "%s: a picture without pixels", f->name);
    if (width > HTH_PICTURE_SIDE_MAX || height > HTH_PICTURE_SIDE_MAX ||
        width * height > HTH_PICTURE_PIXELS_MAX)
        return hth_blame(f->why, HTH_E_TOO_LARGE,
                         "%s: %llu x %llu pixels; at most %d a side and %u in all: make it smaller",
                         f->name, (unsigned long long)width, (unsigned long long)height,
                         HTH_PICTURE_SIDE_MAX, HTH_PICTURE_PIXELS_MAX);
    return HTH_OK;
}

/* Puts RGBA on white, in place of the first three quarters. */
static void flatten(uint8_t *p, size_t pixels)
{
    for (size_t i = 0; i < pixels; i++) {
        uint32_t a = p[4 * i + 3];
        for (size_t c = 0; c < 3; c++)
            p[3 * i + c] = (uint8_t)((p[4 * i + c] * a + 255 * (255 - a) + 127) / 255);
    }
}

static enum hth_err decode_png(const struct file *f, struct hth_picture *out)
{
    png_image image;
    enum hth_err err;

    memset(&image, 0, sizeof(image));
    image.version = PNG_IMAGE_VERSION;
    if (png_image_begin_read_from_memory(&image, f->bytes, f->len) == 0)
        return hth_blame(f->why, HTH_E_CORRUPT, "%s: broken PNG: %s", f->name, image.message);
    err = check_size(f, image.width, image.height);
    image.format = PNG_FORMAT_RGBA;
    image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
    out->width = image.width;
    out->height = image.height;
    if (err == HTH_OK) {
        out->rgb = hth_try_alloc(PNG_IMAGE_SIZE(image));
        err = out->rgb != NULL ? HTH_OK : HTH_E_NO_MEMORY;
    }
    if (err == HTH_OK && png_image_finish_read(&image, NULL, out->rgb, 0, NULL) == 0)
        err = hth_blame(f->why, HTH_E_CORRUPT, "%s: broken PNG: %s", f->name, image.message);
    png_image_free(&image);
    if (err == HTH_OK)
        flatten(out->rgb, (size_t)out->width * out->height);
    return err;
}

static enum hth_err decode_jpeg(const struct file *f, struct hth_picture *out)
{
    tjhandle jpeg = tjInitDecompress();
    int width = 0, height = 0, sampling, colours;
    enum hth_err err = HTH_OK;

    if (jpeg == NULL)
        return HTH_E_NO_MEMORY;
    if (tjDecompressHeader3(jpeg, f->bytes, f->len, &width, &height, &sampling, &colours) != 0)
        err =
            hth_blame(f->why, HTH_E_CORRUPT, "%s: broken JPEG: %s", f->name, tjGetErrorStr2(jpeg));
    if (err == HTH_OK)
        err = check_size(f, (uint64_t)width, (uint64_t)height);
    if (err == HTH_OK) {
        out->rgb = hth_try_alloc((size_t)width * (size_t)height * 3);
        err = out->rgb != NULL ? HTH_OK : HTH_E_NO_MEMORY;
    }
    out->width = (uint32_t)width;
    out->height = (uint32_t)height;
    /* A warning is a damaged or short file; scans without end would take hours. */
    if (err == HTH_OK &&
        tjDecompress2(jpeg, f->bytes, f->len, out->rgb, width, 0, height, TJPF_RGB,
                      TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS | TJFLAG_ACCURATEDCT) != 0)
        err =
            hth_blame(f->why, HTH_E_CORRUPT, "%s: broken JPEG: %s", f->name, tjGetErrorStr2(jpeg));
    tjDestroy(jpeg);
    return err == HTH_OK ? hth_picture_turn(out, hth_jpeg_orientation(f->bytes, f->len)) : err;
}

enum hth_err hth_picture_decode(const char *name, const uint8_t *bytes, size_t len,
                                struct hth_picture *out, struct hth_why *why)
{
    static const uint8_t png[] = {0x89, 'P', 'N', 'G'}, jpeg[] = {0xff, 0xd8, 0xff};
    struct file f = {name, bytes, len, why};
    enum hth_err err;

    *out = (struct hth_picture){0};
    if (len > HTH_PICTURE_BYTES_MAX)
        return hth_blame(why, HTH_E_TOO_LARGE, "%s: a file of %zu bytes; at most %u", name, len,
                         HTH_PICTURE_BYTES_MAX);
    if (len >= sizeof(png) && memcmp(bytes, png, sizeof(png)) == 0)
        err = decode_png(&f, out);
    else if (len >= sizeof(jpeg) && memcmp(bytes, jpeg, sizeof(jpeg)) == 0)
        err = decode_jpeg(&f, out);
    else
        err = hth_blame(why, HTH_E_BAD_MAGIC, "%s: neither PNG nor JPEG by its first bytes", name);
    if (err != HTH_OK)
        hth_picture_clear(out);
    return err;
}

/* ---- fitting ------------------------------------------------------------------------------- */

/* Adds weight * each channel of a row's area [begin, end) to sum. */
static void add_area(const uint8_t *row, double begin, double end, double weight, double sum[3])
{
    for (size_t x = (size_t)begin; (double)x < end; x++) {
        double part = HTH_MIN(end, (double)x + 1) - HTH_MAX(begin, (double)x);
        for (size_t c = 0; c < 3; c++)
            sum[c] += weight * part * row[3 * x + c];
    }
}

/* The mean over a rectangle of the picture. */
static void mean_of(const struct hth_picture *p, double x0, double x1, double y0, double y1,
                    uint8_t out[3])
{
    double sum[3] = {0, 0, 0}, area = (x1 - x0) * (y1 - y0);

    for (size_t y = (size_t)y0; (double)y < y1; y++)
        add_area(p->rgb + y * p->width * 3, x0, x1,
                 HTH_MIN(y1, (double)y + 1) - HTH_MAX(y0, (double)y), sum);
    for (size_t c = 0; c < 3; c++)
        out[c] = (uint8_t)HTH_MIN(255.0, floor(sum[c] / area + 0.5));
}

/* The fitted size of a side, at least 1. */
static uint32_t fitted(uint32_t length, uint32_t longest, uint32_t side)
{
    uint64_t n = ((uint64_t)length * side + longest / 2) / longest;

    return (uint32_t)HTH_MAX(n, (uint64_t)1);
}

void hth_picture_fit(const struct hth_picture *p, uint32_t side, uint8_t *out)
{
    uint32_t longest = HTH_MAX(p->width, p->height);
    uint32_t w = fitted(p->width, longest, side), h = fitted(p->height, longest, side);
    uint32_t left = (side - w) / 2, top = (side - h) / 2;

    memset(out, 255, (size_t)side * side * 3);
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++)
            mean_of(p, (double)x * p->width / w, (double)(x + 1) * p->width / w,
                    (double)y * p->height / h, (double)(y + 1) * p->height / h,
                    out + 3 * ((size_t)(top + y) * side + left + x));
}

void hth_picture_shift(const uint8_t *in, uint32_t side, int dx, int dy, uint8_t *out)
{
    memset(out, 255, (size_t)side * side * 3);
    for (int y = HTH_MAX(0, dy); y < (int)side + HTH_MIN(0, dy); y++) {
        int from = HTH_MAX(0, -dx), to = HTH_MAX(0, dx);
        memcpy(out + 3 * ((size_t)y * side + (size_t)to),
               in + 3 * ((size_t)(y - dy) * side + (size_t)from), 3 * (side - (size_t)abs(dx)));
    }
}

/* ---- encoding ------------------------------------------------------------------------------ */

enum hth_err hth_picture_png(const uint8_t *rgb, uint32_t width, uint32_t height,
                             struct hth_blob **out)
{
    png_image image;
    png_alloc_size_t len;
    uint8_t *room;

    memset(&image, 0, sizeof(image));
    image.version = PNG_IMAGE_VERSION;
    image.width = width;
    image.height = height;
    image.format = PNG_FORMAT_RGB;
    *out = NULL;
    len = PNG_IMAGE_PNG_SIZE_MAX(image);
    room = hth_try_alloc(len);
    if (room == NULL)
        return HTH_E_NO_MEMORY;
    if (png_image_write_to_memory(&image, room, &len, 0, rgb, 0, NULL) != 0)
        *out = hth_blob_try_new(len);
    if (*out != NULL)
        memcpy((*out)->data, room, len);
    hth_free(room);
    return *out != NULL ? HTH_OK : HTH_E_NO_MEMORY;
}
