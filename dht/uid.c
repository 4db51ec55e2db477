/* SPDX-License-Identifier: Apache-2.0 */
#include "dht/uid.h"

#include <stdio.h>
#include <string.h>

struct uid_cursor {
    const char *p, *end;
};

static bool take(struct uid_cursor *c, char ch)
{
    if (c->p == c->end || *c->p != ch)
        return false;
    c->p++;
    return true;
}

/* A number without sign or leading zero. A number too large for a size is E_RANGE, however long it
 * is. */
static enum hth_err take_number(struct uid_cursor *c, uint32_t *out)
{
    const char *start = c->p;
    uint32_t v = 0;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9') {
        if (v <= HTH_GRID_DIM_MAX)
            v = v * 10 + (uint32_t)(*c->p - '0');
        c->p++;
    }
    if (c->p == start || (*start == '0' && c->p - start > 1))
        return HTH_E_MALFORMED;
    *out = v;
    return v > HTH_GRID_DIM_MAX ? HTH_E_RANGE : HTH_OK;
}

static enum hth_err take_name(struct uid_cursor *c, char name[HTH_NAME_LEN_MAX + 1])
{
    const char *dot = memchr(c->p, '.', (size_t)(c->end - c->p));
    if (dot == NULL)
        return HTH_E_MALFORMED;
    size_t len = (size_t)(dot - c->p);
    HTH_TRY(hth_name_check(c->p, len));
    memcpy(name, c->p, len);
    name[len] = '\0';
    c->p = dot;
    return HTH_OK;
}

/* Both kinds of plain names: ".n" repeated, and for a prefix one last dot. */
static enum hth_err parse_coords(struct uid_cursor *c, bool prefix, struct hth_uid *out)
{
    HTH_TRY(take_name(c, out->name));
    while (take(c, '.')) {
        if (prefix && c->p == c->end)
            return HTH_OK;
        uint32_t v;
        HTH_TRY(take_number(c, &v));
        if (v >= HTH_GRID_DIM_MAX)
            return HTH_E_RANGE;
        if (out->ncoord == (prefix ? HTH_GRID_DIMS_MAX - 1 : HTH_GRID_DIMS_MAX))
            return HTH_E_TOO_LARGE;
        out->coord[out->ncoord++] = v;
    }
    return c->p == c->end && !prefix ? HTH_OK : HTH_E_MALFORMED;
}

static enum hth_err parse_uid(const char *text, size_t len, bool prefix, struct hth_uid *out)
{
    struct uid_cursor c = {text, text + len};
    memset(out, 0, sizeof(*out));
    enum hth_err err = parse_coords(&c, prefix, out);
    if (err != HTH_OK)
        memset(out, 0, sizeof(*out));
    return err;
}

enum hth_err hth_uid_parse(const char *text, size_t len, struct hth_uid *out)
{
    return parse_uid(text, len, false, out);
}

enum hth_err hth_prefix_parse(const char *text, size_t len, struct hth_uid *out)
{
    return parse_uid(text, len, true, out);
}

static enum hth_err parse_axis(struct uid_cursor *c, uint32_t *lo, uint32_t *hi)
{
    if (!take(c, '[')) {
        HTH_TRY(take_number(c, lo));
        *hi = *lo + 1;
        return *lo < HTH_GRID_DIM_MAX ? HTH_OK : HTH_E_RANGE;
    }
    HTH_TRY(take_number(c, lo));
    if (!take(c, ':'))
        return HTH_E_MALFORMED;
    HTH_TRY(take_number(c, hi));
    if (!take(c, ']'))
        return HTH_E_MALFORMED;
    return *lo < *hi ? HTH_OK : HTH_E_RANGE;
}

static enum hth_err parse_pattern(struct uid_cursor *c, struct hth_pattern *out)
{
    uint64_t total = 1;
    HTH_TRY(take_name(c, out->name));
    while (take(c, '.')) {
        uint32_t lo, hi;
        HTH_TRY(parse_axis(c, &lo, &hi));
        if (out->ncoord == HTH_GRID_DIMS_MAX)
            return HTH_E_TOO_LARGE;
        out->lo[out->ncoord] = lo;
        out->hi[out->ncoord++] = hi;
        total *= hi - lo;
    }
    if (c->p != c->end)
        return HTH_E_MALFORMED;
    return total <= HTH_GRID_EXPERTS_MAX ? HTH_OK : HTH_E_RANGE;
}

enum hth_err hth_pattern_parse(const char *text, size_t len, struct hth_pattern *out)
{
    struct uid_cursor c = {text, text + len};
    memset(out, 0, sizeof(*out));
    enum hth_err err = parse_pattern(&c, out);
    if (err != HTH_OK)
        memset(out, 0, sizeof(*out));
    return err;
}

enum hth_err hth_grid_init(struct hth_grid *grid, const char *name, uint32_t ndim,
                           const uint32_t *dim)
{
    uint64_t total = 1;
    memset(grid, 0, sizeof(*grid));
    HTH_TRY(hth_name_check(name, strnlen(name, HTH_NAME_LEN_MAX + 1)));
    if (ndim == 0 || ndim > HTH_GRID_DIMS_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < ndim; i++) {
        if (dim[i] == 0 || dim[i] > HTH_GRID_DIM_MAX)
            return HTH_E_RANGE;
        total *= dim[i];
    }
    if (total > HTH_GRID_EXPERTS_MAX)
        return HTH_E_RANGE;
    memcpy(grid->name, name, strlen(name) + 1);
    grid->ndim = (uint8_t)ndim;
    for (uint32_t i = 0; i < HTH_GRID_DIMS_MAX; i++)
        grid->dim[i] = i < ndim ? dim[i] : 1;
    return HTH_OK;
}

enum hth_err hth_grid_parse(const char *text, size_t len, struct hth_grid *out)
{
    struct uid_cursor c = {text, text + len};
    char name[HTH_NAME_LEN_MAX + 1];
    uint32_t dim[HTH_GRID_DIMS_MAX], ndim = 0;
    memset(out, 0, sizeof(*out));
    HTH_TRY(take_name(&c, name));
    while (take(&c, '.')) {
        uint32_t v;
        HTH_TRY(take_number(&c, &v));
        if (ndim == HTH_GRID_DIMS_MAX)
            return HTH_E_TOO_LARGE;
        dim[ndim++] = v;
    }
    if (c.p != c.end)
        return HTH_E_MALFORMED;
    return hth_grid_init(out, name, ndim, dim);
}

static const char *text_of(const char *name, const uint32_t *coord, uint32_t n, const char *tail,
                           char *out)
{
    int at = snprintf(out, HTH_UID_TEXT_MAX, "%s", name);
    for (uint32_t i = 0; i < n; i++)
        at += snprintf(out + at, (size_t)(HTH_UID_TEXT_MAX - at), ".%u", coord[i]);
    snprintf(out + at, (size_t)(HTH_UID_TEXT_MAX - at), "%s", tail);
    return out;
}

const char *hth_uid_text(const struct hth_uid *uid, char out[HTH_UID_TEXT_MAX])
{
    return text_of(uid->name, uid->coord, uid->ncoord, "", out);
}

const char *hth_prefix_text(const struct hth_uid *prefix, char out[HTH_UID_TEXT_MAX])
{
    return text_of(prefix->name, prefix->coord, prefix->ncoord, ".", out);
}

const char *hth_grid_text(const struct hth_grid *grid, char out[HTH_UID_TEXT_MAX])
{
    return text_of(grid->name, grid->dim, grid->ndim, "", out);
}

uint32_t hth_grid_size(const struct hth_grid *grid)
{
    return grid->dim[0] * grid->dim[1] * grid->dim[2];
}

bool hth_grid_eq(const struct hth_grid *a, const struct hth_grid *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, sizeof(a->dim)) == 0 &&
           strcmp(a->name, b->name) == 0;
}

uint32_t hth_grid_index(const struct hth_grid *grid, const uint32_t coord[HTH_GRID_DIMS_MAX])
{
    uint32_t index = 0;
    for (uint32_t i = 0; i < grid->ndim; i++)
        index = index * grid->dim[i] + coord[i];
    return index;
}

void hth_grid_coords(const struct hth_grid *grid, uint32_t index, uint32_t coord[HTH_GRID_DIMS_MAX])
{
    for (uint32_t i = HTH_GRID_DIMS_MAX; i-- > 0;) {
        coord[i] = i < grid->ndim ? index % grid->dim[i] : 0;
        if (i < grid->ndim)
            index /= grid->dim[i];
    }
}

const char *hth_grid_uid_text(const struct hth_grid *grid, uint32_t index,
                              char out[HTH_UID_TEXT_MAX])
{
    uint32_t coord[HTH_GRID_DIMS_MAX];
    hth_grid_coords(grid, index, coord);
    return text_of(grid->name, coord, grid->ndim, "", out);
}

enum hth_err hth_grid_find(const struct hth_grid *grid, const struct hth_uid *uid, uint32_t *index)
{
    if (uid->ncoord != grid->ndim || strcmp(uid->name, grid->name) != 0)
        return HTH_E_WRONG_RUN;
    for (uint32_t i = 0; i < grid->ndim; i++)
        if (uid->coord[i] >= grid->dim[i])
            return HTH_E_RANGE;
    *index = hth_grid_index(grid, uid->coord);
    return HTH_OK;
}

uint32_t hth_pattern_count(const struct hth_pattern *pattern)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < pattern->ncoord; i++)
        n *= pattern->hi[i] - pattern->lo[i];
    return n;
}

void hth_pattern_at(const struct hth_pattern *pattern, uint32_t i, struct hth_uid *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->name, pattern->name, sizeof(out->name));
    out->ncoord = pattern->ncoord;
    for (uint32_t a = pattern->ncoord; a-- > 0;) {
        uint32_t width = pattern->hi[a] - pattern->lo[a];
        out->coord[a] = pattern->lo[a] + i % width;
        i /= width;
    }
}

enum hth_err hth_pattern_expand(const struct hth_pattern *pattern, const struct hth_grid *grid,
                                uint32_t *out)
{
    if (pattern->ncoord != grid->ndim || strcmp(pattern->name, grid->name) != 0)
        return HTH_E_WRONG_RUN;
    for (uint32_t a = 0; a < grid->ndim; a++)
        if (pattern->hi[a] > grid->dim[a])
            return HTH_E_RANGE;
    uint32_t count = hth_pattern_count(pattern);
    for (uint32_t i = 0; i < count; i++) {
        struct hth_uid uid;
        hth_pattern_at(pattern, i, &uid);
        out[i] = hth_grid_index(grid, uid.coord);
    }
    return HTH_OK;
}
