/* SPDX-License-Identifier: Apache-2.0 */
/* test_picture.c: PNG and JPEG become pixels, are fitted and shifted; broken ones are named. */
#include <stdlib.h>
#include <turbojpeg.h>
#include <zlib.h>

#include "core/mem.h"
#include "data/picture.h"
#include "data/sheet.h"
#include "support/suite.h"

#define W 24
#define H 10

/* Left half red, right half blue. */
static void two_halves(uint8_t *rgb)
{
    for (size_t i = 0; i < (size_t)W * H; i++) {
        rgb[3 * i] = i % W < W / 2 ? 255 : 0;
        rgb[3 * i + 1] = 0;
        rgb[3 * i + 2] = i % W < W / 2 ? 0 : 255;
    }
}

static struct hth_blob *jpeg_file(void)
{
    uint8_t rgb[W * H * 3], *bytes = NULL;
    unsigned long len = 0;
    tjhandle jpeg = tjInitCompress();
    struct hth_blob *out;
    two_halves(rgb);
    assert_int_equal(tjCompress2(jpeg, rgb, W, 0, H, TJPF_RGB, &bytes, &len, TJSAMP_444, 95, 0), 0);
    out = hth_blob_copy(bytes, len);
    tjFree(bytes);
    tjDestroy(jpeg);
    return out;
}

static struct hth_blob *png_file(void)
{
    uint8_t rgb[W * H * 3];
    struct hth_blob *out;
    two_halves(rgb);
    assert_ok(hth_picture_png(rgb, W, H, &out));
    return out;
}

/* Writes another size into the header of a PNG, with its checksum. */
static void lie_png(uint8_t *png, uint32_t width, uint32_t height)
{
    const uint32_t sizes[] = {width, height};
    for (int i = 0; i < 8; i++)
        png[16 + i] = (uint8_t)(sizes[i / 4] >> (24 - 8 * (i % 4)));
    uint32_t crc = (uint32_t)crc32(0, png + 12, 17);
    for (int i = 0; i < 4; i++)
        png[29 + i] = (uint8_t)(crc >> (24 - 8 * i));
}

/* Writes another size into the frame header (FF C0) of a JPEG. */
static void lie_jpeg(uint8_t *jpeg, size_t len, uint32_t width, uint32_t height)
{
    size_t at = 0;
    while (at + 9 < len && !(jpeg[at] == 0xff && jpeg[at + 1] == 0xc0))
        at++;
    jpeg[at + 5] = (uint8_t)(height >> 8);
    jpeg[at + 6] = (uint8_t)height;
    jpeg[at + 7] = (uint8_t)(width >> 8);
    jpeg[at + 8] = (uint8_t)width;
}

TEST(files_become_pixels)
{
    (void)state;
    uint8_t want[W * H * 3];
    two_halves(want);
    for (int i = 0; i < 2; i++) {
        struct hth_blob *file = i == 0 ? png_file() : jpeg_file();
        struct hth_picture p;
        struct hth_why why = {""};
        assert_ok(hth_picture_decode("f", file->data, file->size, &p, &why));
        assert_int_equal(p.width, W);
        assert_int_equal(p.height, H);
        for (size_t k = 0; k < sizeof(want); k++)
            if (abs(p.rgb[k] - want[k]) > (i == 0 ? 0 : 40))
                fail_msg("byte %zu is %u, not %u", k, p.rgb[k], want[k]);
        hth_picture_clear(&p);
        hth_blob_unref(file);
    }
}

static enum hth_err decode(const struct hth_blob *file, size_t len, struct hth_why *why)
{
    struct hth_picture p;
    why->text[0] = '\0';
    enum hth_err err = hth_picture_decode("cats/1.png", file->data, len, &p, why);
    assert_true(err == HTH_OK || p.rgb == NULL);
    hth_picture_clear(&p);
    if (err != HTH_OK)
        assert_non_null(strstr(why->text, "cats/1.png"));
    return err;
}

TEST(broken_files_are_named)
{
    (void)state;
    struct hth_blob *png = png_file(), *jpeg = jpeg_file();
    struct hth_why why;
    for (size_t len = 0; len + 12 < png->size; len++) /* without its end chunk it still decodes */
        assert_true(decode(png, len, &why) != HTH_OK);
    for (size_t len = 0; len + 2 < jpeg->size; len++)
        assert_true(decode(jpeg, len, &why) != HTH_OK);
    assert_err(HTH_E_BAD_MAGIC, decode(png, 3, &why));
    png->data[png->size - 20] ^= 0x55;
    assert_err(HTH_E_CORRUPT, decode(png, png->size, &why));
    hth_blob_unref(png);
    hth_blob_unref(jpeg);
}

TEST(huge_pictures_are_refused_by_their_header)
{
    (void)state;
    static const struct {
        uint32_t width, height;
        enum hth_err err;
    } sizes[] = {
        {30000, 30000, HTH_E_TOO_LARGE},
        {HTH_PICTURE_SIDE_MAX + 1, 1, HTH_E_TOO_LARGE},
        {1, HTH_PICTURE_SIDE_MAX + 1, HTH_E_TOO_LARGE},
        {8192, 8193, HTH_E_TOO_LARGE},
        {HTH_PICTURE_SIDE_MAX, 16, HTH_E_CORRUPT}, /* a lie within the limits */
    };
    struct hth_why why;
    for (size_t i = 0; i < HTH_ARRAY_LEN(sizes); i++) {
        struct hth_blob *png = png_file(), *jpeg = jpeg_file();
        lie_png(png->data, sizes[i].width, sizes[i].height);
        lie_jpeg(jpeg->data, jpeg->size, sizes[i].width, sizes[i].height);
        assert_err(sizes[i].err, decode(png, png->size, &why));
        assert_err(sizes[i].err, decode(jpeg, jpeg->size, &why));
        hth_blob_unref(png);
        hth_blob_unref(jpeg);
    }
    struct hth_blob *file = hth_blob_try_new(HTH_PICTURE_BYTES_MAX + 1);
    assert_non_null(file);
    assert_err(HTH_E_TOO_LARGE, decode(file, file->size, &why));
    hth_blob_unref(file);
}

TEST(a_picture_is_fitted_by_its_longest_side)
{
    (void)state;
    uint8_t rgb[W * H * 3], out[12 * 12 * 3];
    struct hth_picture p = {W, H, rgb};
    two_halves(rgb);
    hth_picture_fit(&p, 12, out);
    for (size_t y = 0; y < 12; y++) {
        for (size_t x = 0; x < 12; x++) {
            const uint8_t *at = out + 3 * (12 * y + x);
            bool inside = y >= 3 && y < 8; /* 24 x 10 becomes 12 x 5 */
            uint8_t want[3] = {255, 255, 255};
            if (inside) {
                want[0] = x < 6 ? 255 : 0;
                want[1] = 0;
                want[2] = x < 6 ? 0 : 255;
            }
            assert_memory_equal(at, want, 3);
        }
    }
    /* Larger than it is, and a line that is thinner than a pixel. */
    struct hth_picture line = {W, 1, rgb};
    hth_picture_fit(&line, 2, out);
    const uint8_t want[] = {255, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255};
    assert_memory_equal(out, want, sizeof(want));
    struct hth_picture dot = {1, 1, rgb};
    hth_picture_fit(&dot, 12, out);
    for (size_t i = 0; i < 12 * 12; i++)
        assert_memory_equal(out + 3 * i, rgb, 3);
}

TEST(a_shift_moves_and_fills_with_white)
{
    (void)state;
    uint8_t in[5 * 5 * 3], out[5 * 5 * 3];
    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (uint8_t)(i + 1);
    for (int dy = -2; dy <= 2; dy++) {
        for (int dx = -2; dx <= 2; dx++) {
            hth_picture_shift(in, 5, dx, dy, out);
            for (int y = 0; y < 5; y++)
                for (int x = 0; x < 5; x++) {
                    int fx = x - dx, fy = y - dy;
                    uint8_t want =
                        fx < 0 || fx > 4 || fy < 0 || fy > 4 ? 255 : in[3 * (5 * fy + fx)];
                    assert_int_equal(out[3 * (5 * y + x)], want);
                }
        }
    }
}

TEST(a_sheet_places_its_pictures)
{
    (void)state;
    uint8_t black[2 * 2 * 3] = {0};
    struct hth_sheet s;
    struct hth_blob *png;
    struct hth_picture p;
    assert_ok(hth_sheet_init(&s, 3, 2, 2, 5));
    hth_sheet_put(&s, 4, black); /* the middle of the second row */
    assert_ok(hth_sheet_png(&s, &png));
    assert_ok(hth_picture_decode("s", png->data, png->size, &p, NULL));
    assert_int_equal(p.width, 3 * 14 + 4);
    assert_int_equal(p.height, 2 * 14 + 4);
    for (uint32_t y = 0; y < p.height; y++)
        for (uint32_t x = 0; x < p.width; x++) {
            bool inside = x >= 18 && x < 28 && y >= 18 && y < 28;
            assert_int_equal(p.rgb[3 * (y * p.width + x)], inside ? 0 : 192);
        }
    hth_picture_clear(&p);
    hth_blob_unref(png);
    hth_sheet_clear(&s);
}

/* An Exif block of one entry, behind the first two bytes of a JPEG. */
static struct hth_blob *jpeg_held(uint8_t orientation, bool big)
{
    static const uint8_t head[] = {0xff, 0xe1, 0, 34, 'E', 'x', 'i', 'f', 0, 0};
    static const uint8_t tiff[2][26] = {
        {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
        {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}};
    struct hth_blob *plain = jpeg_file(), *out = hth_blob_try_new(plain->size + 36);
    uint8_t *p = out->data;
    memcpy(p, plain->data, 2);
    memcpy(p + 2, head, sizeof(head));
    memcpy(p + 12, tiff[big], sizeof(tiff[big]));
    p[12 + (big ? 19 : 18)] = orientation;
    memcpy(p + 38, plain->data + 2, plain->size - 2);
    hth_blob_unref(plain);
    return out;
}

/* Exif says on which side of the upright picture the file's first row and first column lie; the
 * left half of the file is red. */
TEST(photos_are_turned_upright)
{
    (void)state;
    enum side { TOP, RIGHT, BOTTOM, LEFT };
    static const enum side column[] = {LEFT, LEFT, RIGHT, RIGHT, LEFT, TOP, TOP, BOTTOM, BOTTOM};
    for (uint8_t o = 0; o <= 9; o++)
        for (int big = 0; big < 2; big++) {
            struct hth_blob *file = jpeg_held(o, big);
            struct hth_why why = {""};
            struct hth_picture p;
            enum side red = o <= 8 ? column[o] : LEFT;
            assert_int_equal(hth_jpeg_orientation(file->data, file->size),
                             o >= 1 && o <= 8 ? o : 1);
            if (hth_picture_decode("f", file->data, file->size, &p, &why) != HTH_OK)
                fail_msg("%s", why.text);
            assert_int_equal(p.width, red == LEFT || red == RIGHT ? W : H);
            assert_int_equal(p.height, red == LEFT || red == RIGHT ? H : W);
            for (uint32_t y = 0; y < p.height; y++)
                for (uint32_t x = 0; x < p.width; x++) {
                    uint32_t near_red = red == LEFT    ? x
                                        : red == RIGHT ? p.width - 1 - x
                                        : red == TOP   ? y
                                                       : p.height - 1 - y;
                    const uint8_t *rgb = p.rgb + 3 * ((size_t)y * p.width + x);
                    assert_int_equal(rgb[0] > rgb[2], near_red < W / 2);
                }
            hth_picture_clear(&p);
            for (size_t len = 0; len < file->size; len++) /* cut short */
                assert_in_range(hth_jpeg_orientation(file->data, len), 1, 8);
            hth_blob_unref(file);
        }
}

/* Every orientation moves the corner between the first row and the first column to where Exif says,
 * and its two neighbours too. */
TEST(corners_go_where_exif_says)
{
    (void)state;
    /* corners of the upright picture: 0 top left, 1 top right, 2 bottom left, 3 bottom right; for
     * the file's (first row, first column), (first, last), (last, first) */
    static const int corner[][3] = {{0, 1, 2}, {1, 0, 3}, {3, 2, 1}, {2, 3, 0},
                                    {0, 2, 1}, {1, 3, 0}, {3, 1, 2}, {2, 0, 3}};
    for (uint32_t o = 1; o <= 8; o++) {
        struct hth_picture p = {3, 2, hth_calloc(3 * 2, 3)};
        p.rgb[0] = 1;
        p.rgb[3 * 2] = 2;
        p.rgb[3 * 3] = 3;
        assert_ok(hth_picture_turn(&p, o));
        assert_int_equal(p.width, o <= 4 ? 3 : 2);
        for (int i = 0; i < 3; i++) {
            uint32_t x = corner[o - 1][i] % 2 ? p.width - 1 : 0;
            uint32_t y = corner[o - 1][i] / 2 ? p.height - 1 : 0;
            assert_int_equal(p.rgb[3 * (y * p.width + x)], i + 1);
        }
        hth_picture_clear(&p);
    }
}
