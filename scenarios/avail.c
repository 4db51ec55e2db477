/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/avail.h"

#include "core/limits.h"
#include "core/map.h"
#include "core/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS         6
#define LINE_BYTES_MAX  255
#define SECONDS_MAX     1e9
#define BYTES_PER_S_MAX 1e15
#define BYTES_PER_S_MIN 1.0 /* a slower link makes the time of a segment overflow */
#define SPEED_MAX       1e6

static const char header[] = "peer,on,off,up,down,speed";
static const char *const column_names[COLUMNS] = {"peer", "on", "off", "up", "down", "speed"};

struct reading {
    struct hth_avail *out;
    struct hth_map *by_name; /* name -> index + 1, as a pointer-sized number */
    size_t line;
    char *error;
    char text[LINE_BYTES_MAX + 1]; /* the present line, cut into columns */
    char *column[COLUMNS];
};

HTH_PRINTF(3, 4)
static enum hth_err complain(struct reading *r, enum hth_err err, const char *fmt, ...)
{
    va_list args;
    int n = snprintf(r->error, HTH_AVAIL_ERROR_MAX, "line %zu: ", r->line);
    va_start(args, fmt);
    vsnprintf(r->error + n, HTH_AVAIL_ERROR_MAX - (size_t)n, fmt, args);
    va_end(args);
    return err;
}

/* ---- columns ------------------------------------------------------------------------------- */

static enum hth_err split(struct reading *r)
{
    char *p = r->text;
    for (int i = 0; i < COLUMNS; i++) {
        r->column[i] = p;
        p = strchr(p, ',');
        if (i == COLUMNS - 1)
            break;
        if (p == NULL)
            return complain(r, HTH_E_MALFORMED, "%d columns; there must be %d: %s", i + 1, COLUMNS,
                            header);
        *p++ = '\0';
    }
    if (p != NULL)
        return complain(r, HTH_E_MALFORMED, "more than %d columns: %s", COLUMNS, header);
    return HTH_OK;
}

/* Read digits with one point at most. strtod alone would accept names, spaces and hex. */
static enum hth_err number(struct reading *r, int i, double max, double *out)
{
    const char *text = r->column[i];
    size_t len = strlen(text);
    if (len == 0 || len > 32 || strspn(text, "0123456789.") != len ||
        strchr(text, '.') != strrchr(text, '.') || strcmp(text, ".") == 0)
        return complain(r, HTH_E_MALFORMED, "%s is '%.40s'; it must be a number such as 12.5",
                        column_names[i], text);
    *out = strtod(text, NULL);
    if (!(*out <= max))
        return complain(r, HTH_E_RANGE, "%s is %s; it must be at most %g", column_names[i], text,
                        max);
    return HTH_OK;
}

static enum hth_err check_name(struct reading *r)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *name = r->column[0];
    size_t len = strlen(name);
    if (len == 0 || len > HTH_AVAIL_NAME_MAX || strspn(name, letters) != len)
        return complain(r, HTH_E_MALFORMED,
                        "peer is '%.40s'; it must be 1 to %d letters, digits, '.', '_' or '-'",
                        name, HTH_AVAIL_NAME_MAX);
    return HTH_OK;
}

/* Read the rate of a link: 0 (unlimited), or enough to send a segment in a finite time. */
static enum hth_err rate(struct reading *r, int i, double *out)
{
    HTH_TRY(number(r, i, BYTES_PER_S_MAX, out));
    if (*out > 0 && *out < BYTES_PER_S_MIN)
        return complain(r, HTH_E_RANGE,
                        "%s is %s bytes a second; it must be 0 for unlimited, or at least %g",
                        column_names[i], r->column[i], BYTES_PER_S_MIN);
    return HTH_OK;
}

static enum hth_err read_row(struct reading *r, struct hth_avail_row *row)
{
    double on, off, speed;
    HTH_TRY(split(r));
    HTH_TRY(check_name(r));
    HTH_TRY(number(r, 1, SECONDS_MAX, &on));
    row->on_us = (int64_t)(on * 1e6 + 0.5);
    row->off_us = INT64_MAX;
    if (r->column[2][0] != '\0') {
        HTH_TRY(number(r, 2, SECONDS_MAX, &off));
        row->off_us = (int64_t)(off * 1e6 + 0.5);
    }
    if (row->off_us <= row->on_us)
        return complain(r, HTH_E_RANGE, "off (%s) must be after on (%s)", r->column[2],
                        r->column[1]);
    HTH_TRY(rate(r, 3, &row->up_bytes_per_s));
    HTH_TRY(rate(r, 4, &row->down_bytes_per_s));
    HTH_TRY(number(r, 5, SPEED_MAX, &speed));
    if (speed < 1e-6)
        return complain(r, HTH_E_RANGE, "speed is %s; it must be at least 0.000001", r->column[5]);
    row->speed = speed;
    return HTH_OK;
}

/* ---- peers --------------------------------------------------------------------------------- */

/* Make room for one more element. The size comes from a file, so this may fail. */
static enum hth_err grow(struct reading *r, void **array, size_t *capacity, size_t count,
                         size_t size)
{
    if (count < *capacity)
        return HTH_OK;
    size_t more = *capacity > 0 ? 2 * *capacity : 4;
    void *grown = hth_try_realloc(*array, more, size);
    if (grown == NULL)
        return complain(r, HTH_E_NO_MEMORY, "no memory for more rows");
    *array = grown;
    *capacity = more;
    return HTH_OK;
}

static enum hth_err peer_of(struct reading *r, struct hth_avail_peer **out)
{
    struct hth_avail *a = r->out;
    const char *name = r->column[0];
    uintptr_t place = (uintptr_t)hth_map_get(r->by_name, name, strlen(name));
    if (place == 0) {
        if (a->peer_count == HTH_AVAIL_PEERS_MAX)
            return complain(r, HTH_E_TOO_LARGE, "more than %u peers", HTH_AVAIL_PEERS_MAX);
        HTH_TRY(grow(r, (void **)&a->peers, &a->peer_capacity, a->peer_count, sizeof(*a->peers)));
        struct hth_avail_peer *p = &a->peers[a->peer_count++];
        memset(p, 0, sizeof(*p));
        memcpy(p->name, name, strlen(name) + 1);
        place = a->peer_count;
        hth_map_put(r->by_name, name, strlen(name), (void *)place);
    }
    *out = &a->peers[place - 1];
    return HTH_OK;
}

static enum hth_err take_row(struct reading *r)
{
    struct hth_avail_row row;
    struct hth_avail_peer *p = NULL;
    HTH_TRY(read_row(r, &row));
    if (r->out->row_count == HTH_AVAIL_ROWS_MAX)
        return complain(r, HTH_E_TOO_LARGE, "more than %u rows", HTH_AVAIL_ROWS_MAX);
    HTH_TRY(peer_of(r, &p));
    if (p->count > 0 && row.on_us < p->rows[p->count - 1].off_us)
        return complain(r, HTH_E_RANGE, "%s comes at %s, before its last row has ended", p->name,
                        r->column[1]);
    HTH_TRY(grow(r, (void **)&p->rows, &p->capacity, p->count, sizeof(*p->rows)));
    p->rows[p->count++] = row;
    r->out->row_count++;
    return HTH_OK;
}

/* ---- lines --------------------------------------------------------------------------------- */

static enum hth_err take_line(struct reading *r, const char *line, size_t len, bool *headed)
{
    if (len > 0 && line[len - 1] == '\r')
        len--;
    if (len == 0 || line[0] == '#')
        return HTH_OK;
    if (len > LINE_BYTES_MAX || memchr(line, '\0', len) != NULL)
        return complain(r, HTH_E_MALFORMED, "%zu bytes, or a zero byte; a line has at most %d", len,
                        LINE_BYTES_MAX);
    memcpy(r->text, line, len);
    r->text[len] = '\0';
    if (*headed)
        return take_row(r);
    if (strcmp(r->text, header) != 0)
        return complain(r, HTH_E_MALFORMED, "'%.60s'; the first line must be '%s'", r->text,
                        header);
    *headed = true;
    return HTH_OK;
}

enum hth_err hth_avail_parse(const void *data, size_t len, struct hth_avail *out,
                             char error[HTH_AVAIL_ERROR_MAX])
{
    const char *p = data, *end = p + len;
    struct reading r = {.out = out, .error = error};
    bool headed = false;
    enum hth_err err = HTH_OK;
    memset(out, 0, sizeof(*out));
    error[0] = '\0';
    if (len > HTH_AVAIL_BYTES_MAX)
        return complain(&r, HTH_E_TOO_LARGE, "%zu bytes; a trace has at most %u", len,
                        HTH_AVAIL_BYTES_MAX);
    if (len >= 3 && memcmp(p, "\xEF\xBB\xBF", 3) == 0)
        p += 3; /* the byte order mark of UTF-8 that spreadsheets write */
    r.by_name = hth_map_new();
    while (p < end && err == HTH_OK) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop != NULL ? stop : end;
        r.line++;
        err = take_line(&r, p, (size_t)(stop - p), &headed);
        p = stop < end ? stop + 1 : end;
    }
    if (err == HTH_OK && out->row_count == 0)
        err = complain(&r, HTH_E_MALFORMED, "no rows; the file must begin with '%s'", header);
    hth_map_free(r.by_name);
    return err;
}

void hth_avail_clear(struct hth_avail *avail)
{
    for (size_t i = 0; i < avail->peer_count; i++)
        hth_free(avail->peers[i].rows);
    hth_free(avail->peers);
    memset(avail, 0, sizeof(*avail));
}
