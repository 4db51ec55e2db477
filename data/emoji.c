/* SPDX-License-Identifier: Apache-2.0 */
/* emoji.c: rows of emoji-test.txt, and HarfBuzz for the glyph of a sequence and its PNG. */
#include "data/emoji.h"

#include <hb-ot.h>
#include <hb.h>
#include <string.h>

#include "core/mem.h"

#define FONT_BYTES_MAX (64u << 20)
#define LIST_BYTES_MAX (8u << 20)

/* ---- the list ------------------------------------------------------------------------------ */

/* A hexadecimal number of at most 6 digits; advances *p. Returns false if there is none. */
static bool read_point(const char **p, const char *end, uint32_t *out)
{
    const char *at = *p;

    *out = 0;
    for (; at < end && at - *p < 6; at++) {
        const char *digit = strchr("0123456789ABCDEF", *at);
        if (digit == NULL || *at == '\0')
            break;
        *out = *out << 4 | (uint32_t)(digit - "0123456789ABCDEF");
    }
    if (at == *p)
        return false;
    *p = at;
    return true;
}

static void skip_blanks(const char **p, const char *end)
{
    while (*p < end && **p == ' ')
        ++*p;
}

/* "# <the emoji> E4.0 man health worker": the name follows the version. */
static bool read_name(const char *p, const char *end, char *out)
{
    for (; p + 1 < end; p++)
        if (p[0] == 'E' && p[1] >= '0' && p[1] <= '9' && p[-1] == ' ')
            break;
    while (p < end && *p != ' ')
        p++;
    skip_blanks(&p, end);
    while (end > p && (end[-1] == ' ' || end[-1] == '\r'))
        end--;
    if (p >= end || end - p > HTH_EMOJI_NAME_MAX)
        return false;
    memcpy(out, p, (size_t)(end - p));
    out[end - p] = '\0';
    return strlen(out) == (size_t)(end - p);
}

bool hth_emoji_row(const char *line, size_t len, struct hth_emoji *out)
{
    static const char status[] = "; fully-qualified";
    const char *p = line, *end = line + len, *hash;

    memset(out, 0, sizeof(*out));
    while (out->points < HTH_EMOJI_POINTS_MAX && read_point(&p, end, &out->point[out->points])) {
        out->points++;
        skip_blanks(&p, end);
    }
    if (out->points == 0 || (size_t)(end - p) < sizeof(status) - 1 ||
        memcmp(p, status, sizeof(status) - 1) != 0)
        return false;
    hash = memchr(p, '#', (size_t)(end - p));
    return hash != NULL && read_name(hash + 1, end, out->name);
}

/* All rows; NULL and 0 if there are none. */
static struct hth_emoji *read_list(const struct hth_blob *list, size_t *count)
{
    const char *p = (const char *)list->data, *end = p + list->size;
    struct hth_emoji *all = NULL;
    size_t room = 0;

    *count = 0;
    while (p < end) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const char *stop = newline != NULL ? newline : end;
        if (*count == room) {
            room = 2 * room + 1024;
            all = hth_realloc(all, room, sizeof(*all));
        }
        *count += hth_emoji_row(p, (size_t)(stop - p), &all[*count]);
        p = stop + 1;
    }
    return all;
}

/* ---- the font ------------------------------------------------------------------------------ */

/* The PNG of the one picture that a sequence becomes; NULL if it is none or several. */
static hb_blob_t *picture_of(hb_font_t *font, const struct hth_emoji *emoji)
{
    hb_buffer_t *buffer = hb_buffer_create();
    hb_blob_t *found = NULL;
    unsigned count = 0, pictures = 0;
    const hb_glyph_info_t *glyphs;

    hb_buffer_add_utf32(buffer, emoji->point, (int)emoji->points, 0, (int)emoji->points);
    hb_buffer_guess_segment_properties(buffer);
    hb_shape(font, buffer, NULL, 0);
    glyphs = hb_buffer_get_glyph_infos(buffer, &count);
    for (unsigned i = 0; i < count; i++) {
        hb_blob_t *png = hb_ot_color_glyph_reference_png(font, glyphs[i].codepoint);
        if (hb_blob_get_length(png) == 0) {
            hb_blob_destroy(png);
            continue;
        }
        pictures++;
        hb_blob_destroy(found);
        found = png;
    }
    hb_buffer_destroy(buffer);
    if (pictures == 1)
        return found;
    hb_blob_destroy(found);
    return NULL;
}

static enum hth_err pack_one(hb_font_t *font, const struct hth_emoji *emoji, struct hth_pack *pack,
                             struct hth_why *why)
{
    hb_blob_t *png = picture_of(font, emoji);
    const uint8_t *bytes;
    unsigned len;
    enum hth_err err;

    if (png == NULL) {
        hth_pack_skip(pack, HTH_SKIP_NO_FILE, emoji->name);
        return HTH_OK;
    }
    bytes = (const uint8_t *)hb_blob_get_data(png, &len);
    err = hth_pack_file(pack, emoji->name, bytes, len, emoji->name, strlen(emoji->name), -1, why);
    hb_blob_destroy(png);
    return err;
}

static enum hth_err read_file(struct hth_env *env, const char *path, uint64_t max,
                              const char *package, struct hth_blob **out, struct hth_why *why)
{
    enum hth_err err = hth_file_read(env, path, max, out);

    if (err == HTH_OK)
        return HTH_OK;
    return hth_blame(why, err, "%s: %s; Debian's package %s has it", path, hth_err_text(err),
                     package);
}

/* A font with pictures as PNG, or NULL. */
static hb_font_t *open_font(const struct hth_blob *file)
{
    hb_blob_t *blob = hb_blob_create((const char *)file->data, (unsigned)file->size,
                                     HB_MEMORY_MODE_READONLY, NULL, NULL);
    hb_face_t *face = hb_face_create(blob, 0);
    hb_font_t *font = NULL;

    if (hb_face_get_glyph_count(face) > 0 && hb_ot_color_has_png(face))
        font = hb_font_create(face);
    hb_face_destroy(face);
    hb_blob_destroy(blob);
    return font;
}

static enum hth_err pack_list(hb_font_t *font, struct hth_emoji *all, size_t count,
                              struct hth_pack *pack, hth_pack_progress_fn *progress, void *arg,
                              struct hth_why *why)
{
    struct hth_rng rng;

    hth_rng_init(&rng, 1);
    hth_rng_shuffle(&rng, all, count, sizeof(*all));
    for (size_t i = 0; i < count; i++) {
        HTH_TRY(pack_one(font, &all[i], pack, why));
        if (progress != NULL)
            progress(arg, i + 1, count);
    }
    return HTH_OK;
}

enum hth_err hth_emoji_pack(struct hth_env *env, const char *font_path, const char *list_path,
                            struct hth_pack *pack, hth_pack_progress_fn *progress, void *arg,
                            struct hth_why *why)
{
    struct hth_blob *font_file = NULL, *list = NULL;
    struct hth_emoji *all = NULL;
    hb_font_t *font = NULL;
    size_t count;
    enum hth_err err;

    HTH_GOTO(out,
             read_file(env, font_path, FONT_BYTES_MAX, "fonts-noto-color-emoji", &font_file, why));
    HTH_GOTO(out, read_file(env, list_path, LIST_BYTES_MAX, "unicode-data", &list, why));
    font = open_font(font_file);
    if (font == NULL)
        HTH_GOTO(out,
                 hth_blame(why, HTH_E_BAD_MAGIC, "%s: not a font with pictures as PNG", font_path));
    all = read_list(list, &count);
    if (count == 0)
        HTH_GOTO(out, hth_blame(why, HTH_E_NOT_FOUND, "%s: no '; fully-qualified' row", list_path));
    err = pack_list(font, all, count, pack, progress, arg, why);
out:
    if (font != NULL)
        hb_font_destroy(font);
    hth_free(all);
    hth_blob_unref(font_file);
    hth_blob_unref(list);
    return err;
}
