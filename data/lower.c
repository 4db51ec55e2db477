/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lower.c: lower case of the scripts that have it, the same on every machine: no locale, and a
 * table of its own instead of the C library's, which differs between versions. Letters whose two
 * cases have a different number of bytes keep theirs.
 */
#include "data/words.h"

enum fold { ADD, EVEN, ODD }; /* a constant; the next of each even, or odd, character */

static const struct {
    uint32_t first, last;
    enum fold fold;
    int32_t add;
} folds[] = {
    {0x00c0, 0x00d6, ADD, 32},   {0x00d8, 0x00de, ADD, 32}, {0x0100, 0x012f, EVEN, 0},
    {0x0132, 0x0137, EVEN, 0},   {0x0139, 0x0148, ODD, 0},  {0x014a, 0x0177, EVEN, 0},
    {0x0178, 0x0178, ADD, -121}, {0x0179, 0x017e, ODD, 0},  {0x01cd, 0x01dc, ODD, 0},
    {0x01de, 0x01ef, EVEN, 0},   {0x01f8, 0x021f, EVEN, 0}, {0x0222, 0x0233, EVEN, 0},
    {0x0386, 0x0386, ADD, 38},   {0x0388, 0x038a, ADD, 37}, {0x038c, 0x038c, ADD, 64},
    {0x038e, 0x038f, ADD, 63},   {0x0391, 0x03a1, ADD, 32}, {0x03a3, 0x03ab, ADD, 32},
    {0x0400, 0x040f, ADD, 80},   {0x0410, 0x042f, ADD, 32}, {0x0460, 0x0481, EVEN, 0},
    {0x048a, 0x04bf, EVEN, 0},   {0x04c0, 0x04c0, ADD, 15}, {0x04c1, 0x04ce, ODD, 0},
    {0x04d0, 0x052f, EVEN, 0},   {0x0531, 0x0556, ADD, 48}, {0x1e00, 0x1e95, EVEN, 0},
    {0x1ea0, 0x1eff, EVEN, 0},   {0xff21, 0xff3a, ADD, 32},
};

static uint32_t lower_of(uint32_t c)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(folds) && c >= folds[i].first; i++) {
        if (c > folds[i].last)
            continue;
        if (folds[i].fold == ADD)
            return c + (uint32_t)folds[i].add;
        return c % 2 == (folds[i].fold == ODD) ? c + 1 : c;
    }
    return c;
}

void hth_text_lower(char *text, size_t len)
{
    uint8_t *p = (uint8_t *)text;
    size_t n;

    for (size_t at = 0; at < len; at += n) {
        n = p[at] < 0xc0 ? 1 : p[at] < 0xe0 ? 2 : p[at] < 0xf0 ? 3 : 4;
        if (n > len - at)
            return;
        if (p[at] >= 'A' && p[at] <= 'Z')
            p[at] = (uint8_t)(p[at] + 0x20);
        if (n == 2) {
            uint32_t c = lower_of((p[at] & 0x1fu) << 6 | (p[at + 1] & 0x3fu));
            p[at] = (uint8_t)(0xc0 | c >> 6);
            p[at + 1] = (uint8_t)(0x80 | (c & 0x3f));
        } else if (n == 3) {
            uint32_t c =
                lower_of((p[at] & 0x0fu) << 12 | (p[at + 1] & 0x3fu) << 6 | (p[at + 2] & 0x3fu));
            p[at] = (uint8_t)(0xe0 | c >> 12);
            p[at + 1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
            p[at + 2] = (uint8_t)(0x80 | (c & 0x3f));
        }
    }
}
