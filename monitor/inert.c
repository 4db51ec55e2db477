/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/inert.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* The character at p and its bytes; 0: it is no UTF-8. */
static uint32_t take(const unsigned char *p, size_t *bytes)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : p[0] >= 0xC0 ? 2 : 0;
    *bytes = 1;
    if (n < 2)
        return n == 1 ? p[0] : 0;
    uint32_t c = p[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80) /* the text's end, too */
            return 0;
        c = c << 6 | (p[i] & 0x3Fu);
    }
    if (c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    *bytes = n;
    return c;
}

static bool is_inert(uint32_t c)
{
    static const struct {
        uint32_t from, to;
    } bad[] = {{0, 0x1F},          {0x7F, 0x9F},     {0xAD, 0xAD},     {0x61C, 0x61C},
               {0x180E, 0x180E},   {0x200B, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F},
               {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF}, {0xFFF0, 0xFFFB}, {0xE0000, 0xE0FFF},
               {0xF0000, 0x10FFFF}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        if (c >= bad[i].from && c <= bad[i].to)
            return false;
    return true;
}

const char *hth_inert(const char *text, char *out, size_t size)
{
    size_t at = 0, bytes;
    for (const unsigned char *p = (const unsigned char *)text; *p != 0; p += bytes) {
        bool good = is_inert(take(p, &bytes));
        size_t n = good ? bytes : strlen(REPLACEMENT);
        if (at + n >= size)
            break;
        memcpy(out + at, good ? (const char *)p : REPLACEMENT, n);
        at += n;
    }
    out[at] = '\0';
    return out;
}
