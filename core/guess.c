/* SPDX-License-Identifier: Apache-2.0 */
#include "core/guess.h"

#include <stdio.h>
#include <string.h>

size_t hth_text_distance(const char *a, const char *b)
{
    enum { LEN_MAX = 40 };
    size_t la = strlen(a), lb = strlen(b);
    size_t row[3][LEN_MAX + 1];
    if (la > LEN_MAX || lb > LEN_MAX)
        return la > lb ? la : lb;
    for (size_t j = 0; j <= lb; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t *cur = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        cur[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t cost = up[j - 1] + (a[i - 1] != b[j - 1]);
            cost = HTH_MIN(cost, up[j] + 1);
            cost = HTH_MIN(cost, cur[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost = HTH_MIN(cost, up2[j - 2] + 1);
            cur[j] = cost;
        }
    }
    return row[la % 3][lb];
}

bool hth_guess_is_near(const char *said, const char *name)
{
    size_t distance = hth_text_distance(said, name), len = strlen(said);
    return distance <= HTH_MAX(len / 3, (size_t)2) && distance < HTH_MAX(len, strlen(name));
}

static const char *name_at(const void *names, size_t stride, size_t i)
{
    const char *name;
    memcpy(&name, (const char *)names + i * stride, sizeof(name));
    return name;
}

const char *hth_guess_text(const char *said, const void *names, size_t stride, size_t count,
                           char *out, size_t size)
{
    size_t best = 0, least = SIZE_MAX, len;
    for (size_t i = 0; i < count; i++) {
        size_t distance = hth_text_distance(said, name_at(names, stride, i));
        if (distance < least) {
            least = distance;
            best = i;
        }
    }
    if (count > 0 && hth_guess_is_near(said, name_at(names, stride, best))) {
        snprintf(out, size, "; did you mean '%s'?", name_at(names, stride, best));
        return out;
    }
    len = (size_t)snprintf(out, size, "; expected one of:");
    for (size_t i = 0; i < count && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s %s", i > 0 ? "," : "",
                                name_at(names, stride, i));
    if (len >= size && size > 4)
        memcpy(out + size - 4, "...", 4);
    return out;
}
