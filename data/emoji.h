/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emoji.h: the pictures of a colour font, with the names that Unicode gives them, as samples.
 *
 * The list is emoji-test.txt of Debian's unicode-data; each "fully-qualified" row is a sequence of
 * code points and an English name, which becomes the caption. The font is NotoColorEmoji.ttf of
 * fonts-noto-color-emoji (SIL OFL 1.1); HarfBuzz turns a sequence into the one glyph that stands
 * for it and hands out that glyph's PNG. Sequences without a picture are counted and skipped.
 *
 * In a target of its own (hth_make): no other part needs HarfBuzz.
 */
#ifndef HTH_DATA_EMOJI_H
#define HTH_DATA_EMOJI_H

#include "data/folder.h"

#define HTH_EMOJI_FONT "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
#define HTH_EMOJI_LIST "/usr/share/unicode/emoji/emoji-test.txt"
#define HTH_EMOJI_LICENCE                                                                          \
    "pictures: Noto Color Emoji, SIL Open Font License 1.1; names: Unicode, Inc., Unicode License"

#define HTH_EMOJI_POINTS_MAX 16 /* code points of a sequence */
#define HTH_EMOJI_NAME_MAX   127

/* A row of the list. */
struct hth_emoji {
    uint32_t point[HTH_EMOJI_POINTS_MAX];
    uint32_t points;
    char name[HTH_EMOJI_NAME_MAX + 1];
};
/* Reads one line of `len` bytes; false: it is no fully-qualified row. */
bool hth_emoji_row(const char *line, size_t len, struct hth_emoji *out);

/* Packs all of them in a drawn order. Errors: E_NO_FILE and its like (the text names the package),
 * E_BAD_MAGIC (no font), E_NOT_FOUND (no row), those of the pack. */
enum hth_err hth_emoji_pack(struct hth_env *env, const char *font, const char *list,
                            struct hth_pack *pack, hth_pack_progress_fn *progress, void *arg,
                            struct hth_why *why) HTH_MUST;

#endif
