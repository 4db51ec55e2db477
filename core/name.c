/* SPDX-License-Identifier: Apache-2.0 */
#include "core/name.h"

#include "core/bytes.h"

#include <stdio.h>
#include <string.h>

#define MARK      '~'
#define ID_DIGITS (2 * HTH_NETWORK_ID_BYTES)

/* Length of the valid UTF-8 sequence at p, or 0 (overlong forms, surrogates, beyond U+10FFFF). */
static size_t utf8_len(const uint8_t *p, size_t left)
{
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF)
        return left >= 2 && (p[1] & 0xC0) == 0x80 ? 2 : 0;
    if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        if (left < 3 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80)
            return 0;
        if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F))
            return 0;
        return 3;
    }
    if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        if (left < 4 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80 || (p[3] & 0xC0) != 0x80)
            return 0;
        if ((p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] > 0x8F))
            return 0;
        return 4;
    }
    return 0;
}

/* Characters that control a terminal or the direction of text, end a line, or are not seen: with
 * them one name looks like another. Joiners are letters' own business. */
static bool is_hidden(const uint8_t *p, size_t n)
{
    static const uint32_t hidden[][2] = {{0x80, 0x9F},     {0x61C, 0x61C},   {0x200B, 0x200B},
                                         {0x200E, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F},
                                         {0xFEFF, 0xFEFF}};
    uint32_t c = p[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (p[i] & 0x3Fu);
    for (size_t i = 0; n > 1 && i < HTH_ARRAY_LEN(hidden); i++)
        if (c >= hidden[i][0] && c <= hidden[i][1])
            return true;
    return false;
}

enum hth_err hth_name_check(const char *name, size_t len)
{
    if (len == 0)
        return HTH_E_MALFORMED;
    if (len > HTH_NAME_LEN_MAX)
        return HTH_E_TOO_LARGE;
    const uint8_t *p = (const uint8_t *)name;
    for (size_t i = 0; i < len;) {
        if (p[i] <= ' ' || p[i] == 0x7F || strchr("./\\[]", p[i]) != NULL)
            return HTH_E_MALFORMED;
        size_t n = utf8_len(p + i, len - i);
        if (n == 0 || is_hidden(p + i, n))
            return HTH_E_MALFORMED;
        i += n;
    }
    return HTH_OK;
}

const char *hth_network_of(const char *run, const struct hth_hash *id,
                           char out[HTH_NAME_LEN_MAX + 1])
{
    char digits[ID_DIGITS + 1];
    size_t len = strnlen(run, HTH_NAME_LEN_MAX - ID_DIGITS - 1);
    while (len > 0 && ((uint8_t)run[len] & 0xC0) == 0x80) /* within a character */
        len--;
    hth_hex(id->b, HTH_NETWORK_ID_BYTES, digits);
    snprintf(out, HTH_NAME_LEN_MAX + 1, "%.*s%c%s", (int)len, run, MARK, digits);
    return out;
}

/* The mark before the id; NULL: the network is a name alone. */
static const char *mark_of(const char *network)
{
    const char *mark = strrchr(network, MARK);
    bool is_id = mark != NULL && strspn(mark + 1, "0123456789abcdef") == ID_DIGITS &&
                 mark[1 + ID_DIGITS] == '\0';
    return is_id ? mark : NULL;
}

bool hth_network_is_private(const char *network)
{
    return mark_of(network) == network;
}

const char *hth_network_name(const char *network, char out[HTH_NAME_LEN_MAX + 1])
{
    const char *mark = mark_of(network);
    if (mark == network)
        network = "private";
    else if (mark != NULL)
        return memcpy(memset(out, 0, HTH_NAME_LEN_MAX + 1), network, (size_t)(mark - network));
    snprintf(out, HTH_NAME_LEN_MAX + 1, "%s", network);
    return out;
}
