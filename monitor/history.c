/* SPDX-License-Identifier: Apache-2.0 */
/* history.c: the two rings, and the jobs that keep them; history_file.c has the bytes. */
#include "monitor/history.h"

#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DAY_S        86400
#define RECENT_S     7200
#define FINE_FILES   25
#define COARSE_FILES 91
#define MINUTE_SLOTS 6
#define TEXT_PATH    "%s/events"

/* One of the two rings. */
struct ring {
    struct hth_history_row *row;
    uint32_t rows, period_s, file_s, files;
    const char *name;
    uint32_t dirty[COARSE_FILES]; /* the hour or day to write; 0: none */
};

struct save {
    struct hth_job job;
    struct hth_env *env;
    struct hth_history *of; /* NULL: it is gone */
    char *path;
    struct hth_blob *blob;
    uint32_t *dirty, number; /* where the file is marked, and the mark; NULL: it is the text */
    enum hth_err err;
};

struct hth_history {
    struct hth_env *env;
    const char *dir;
    uint64_t run; /* hash of its name */
    struct ring fine, coarse;
    uint32_t open;     /* the coarse row that is not complete yet, which is not written; 0: none */
    struct save *save; /* under way */
    struct hth_blob *kept; /* the text of the folder; NULL: none */
    struct hth_blob *text; /* to write; NULL: none is */
    enum hth_err err;
};

/* ---- rows ----------------------------------------------------------------------------------- */

static struct hth_history_row *place(const struct ring *r, uint32_t t)
{
    return &r->row[t / r->period_s % r->rows];
}

static const struct hth_history_row *at(const struct ring *r, uint32_t t)
{
    const struct hth_history_row *row = place(r, t);
    return row->t != 0 && row->t == t / r->period_s * r->period_s ? row : NULL;
}

const struct hth_history_row *hth_history_at(const struct hth_history *h, uint32_t t)
{
    return at(&h->fine, t);
}

const struct hth_history_row *hth_history_last(const struct hth_history *h, uint32_t t)
{
    for (uint32_t i = 0; i < HTH_HISTORY_FINE_MAX && t >= i * HTH_HISTORY_FINE_S; i++) {
        const struct hth_history_row *row = at(&h->fine, t - i * HTH_HISTORY_FINE_S);
        if (row != NULL)
            return row;
    }
    return NULL;
}

static uint32_t began_in(const struct ring *r)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < r->rows; i++) {
        const struct hth_history_row *row = &r->row[i];
        if (row->t != 0 && row->step != HTH_HISTORY_NO_STEP && row->step > 0 &&
            (first == 0 || row->t < first))
            first = row->t;
    }
    return first;
}

uint32_t hth_history_began(const struct hth_history *h)
{
    uint32_t fine = began_in(&h->fine), coarse = began_in(&h->coarse);
    bool older = coarse != 0 && (fine == 0 || coarse + HTH_HISTORY_COARSE_S <= fine);
    return older ? coarse : fine;
}

/* A mean of the numbers that are known. */
struct mean {
    double sum;
    uint32_t count;
};

static void mean_add(struct mean *m, double x)
{
    if (!isfinite(x))
        return;
    m->sum += x;
    m->count++;
}

static float mean_of(const struct mean *m)
{
    return m->count > 0 ? (float)(m->sum / m->count) : NAN;
}

/* Makes the coarse row of this time from the fine ones; false: there are none. */
static bool sum_up(const struct hth_history *h, uint32_t t, struct hth_history_row *out)
{
    struct mean loss = {0}, samples = {0}, rows = {0};
    uint32_t begin = t / HTH_HISTORY_COARSE_S * HTH_HISTORY_COARSE_S;
    *out = (struct hth_history_row){.t = 0};
    for (uint32_t i = 0; i < HTH_HISTORY_COARSE_S; i += HTH_HISTORY_FINE_S) {
        const struct hth_history_row *row = at(&h->fine, begin + i);
        if (row == NULL)
            continue;
        uint64_t step = out->t != 0 ? out->step : HTH_HISTORY_NO_STEP;
        *out = *row;
        if (row->step == HTH_HISTORY_NO_STEP)
            out->step = step;
        mean_add(&loss, row->loss);
        mean_add(&samples, row->samples_per_s);
        mean_add(&rows, row->rows_per_s);
    }
    if (out->t == 0)
        return false;
    out->t = begin;
    out->loss = mean_of(&loss);
    out->samples_per_s = mean_of(&samples);
    out->rows_per_s = mean_of(&rows);
    return true;
}

static size_t list_ring(const struct ring *r, uint32_t from, uint32_t to, uint32_t every,
                        struct hth_history_row *out)
{
    size_t n = 0;
    uint32_t last = to / r->period_s;
    for (uint32_t slot = (from + r->period_s - 1) / r->period_s; slot < last; slot++) {
        const struct hth_history_row *row = at(r, slot * r->period_s);
        if (row != NULL && slot % every == 0)
            out[n++] = *row;
    }
    return n;
}

/* The coarse rows whose slots are multiples of `every`. */
static uint32_t coarse_count(const struct hth_history *h, uint32_t from, uint32_t to,
                             uint32_t every)
{
    uint32_t n = 0, step = every * HTH_HISTORY_COARSE_S;
    for (uint32_t t = (from + step - 1) / step * step; t < to; t += step)
        n += at(&h->coarse, t) != NULL;
    return n;
}

/* Every so many slots, so that the rows are no more than HTH_HISTORY_OLD_MAX, even those of a
 * monitor that only runs each half hour. */
static uint32_t coarse_every(const struct hth_history *h, uint32_t from, uint32_t to)
{
    uint32_t every = coarse_count(h, from, to, 1) / HTH_HISTORY_OLD_MAX + 1;
    while (coarse_count(h, from, to, every) > HTH_HISTORY_OLD_MAX)
        every++;
    return every;
}

size_t hth_history_list(const struct hth_history *h, uint32_t t,
                        struct hth_history_row out[HTH_HISTORY_LIST_MAX])
{
    const uint32_t span_s = HTH_HISTORY_COARSE_MAX * HTH_HISTORY_COARSE_S;
    uint32_t end = t / HTH_HISTORY_FINE_S * HTH_HISTORY_FINE_S + HTH_HISTORY_FINE_S;
    uint32_t day = end > DAY_S ? end - DAY_S : 0, recent = end > RECENT_S ? end - RECENT_S : 0;
    day = day / HTH_HISTORY_COARSE_S * HTH_HISTORY_COARSE_S;
    uint32_t first = day > span_s ? day - span_s + DAY_S : 0;
    size_t n = list_ring(&h->coarse, first, day, coarse_every(h, first, day), out);
    n += list_ring(&h->fine, day, recent, MINUTE_SLOTS, out + n);
    n += list_ring(&h->fine, recent, end, 1, out + n);
    HTH_ASSERT(n <= HTH_HISTORY_LIST_MAX);
    return n;
}

/* ---- files ---------------------------------------------------------------------------------- */

static char *path_of(const struct hth_history *h, const struct ring *r, uint32_t place_in)
{
    return hth_asprintf("%s/%s-%02u", h->dir, r->name, place_in);
}

/* The rows of this file as they are; NULL: there are none. */
static struct hth_blob *pack(const struct hth_history *h, const struct ring *r, uint32_t number)
{
    struct hth_history_file *file = hth_new(struct hth_history_file);
    struct hth_blob *blob = NULL;
    file->coarse = r == &h->coarse;
    file->run = h->run;
    file->number = number;
    for (uint32_t i = 0; i < r->file_s; i += r->period_s) {
        const struct hth_history_row *row = at(r, number * r->file_s + i);
        if (row != NULL && (!file->coarse || row->t != h->open))
            file->row[file->count++] = *row;
    }
    uint8_t *bytes = hth_new_array(uint8_t, HTH_HISTORY_BYTES_MAX);
    if (file->count > 0)
        blob = hth_blob_copy(bytes, hth_history_write(file, bytes));
    hth_free(bytes);
    hth_free(file);
    return blob;
}

static void save_next(struct hth_history *h);

static void run_save(struct hth_job *job)
{
    struct save *s = HTH_CONTAINER(job, struct save, job);
    const struct hth_span span = {s->blob, 0, s->blob->size};
    s->err = hth_file_write(s->env, s->path, &span, 1);
}

/* Marks what could not be written, so that the next row tries again. */
static void mark_again(struct save *s)
{
    struct hth_history *h = s->of;
    if (s->dirty != NULL)
        *s->dirty = s->number;
    else if (h->text == NULL)
        h->text = hth_blob_ref(s->blob);
}

static void end_save(struct save *s)
{
    struct hth_history *h = s->of;
    if (h != NULL && s->err != HTH_OK && s->err != h->err)
        HTH_LOG(h->env, HTH_WARN, HTH_SUB_APP, "history %s: %s; it stays in memory", s->path,
                hth_err_text(s->err));
    if (h != NULL)
        h->err = s->err;
    if (h != NULL && s->err != HTH_OK)
        mark_again(s); /* with the next row */
    hth_blob_unref(s->blob);
    hth_free(s->path);
    hth_free(s);
}

static void saved(struct hth_job *job, enum hth_err err)
{
    struct save *s = HTH_CONTAINER(job, struct save, job);
    struct hth_history *h = s->of;
    if (err != HTH_OK)
        s->err = err;
    err = s->err;
    end_save(s);
    if (h == NULL)
        return;
    h->save = NULL;
    if (err == HTH_OK)
        save_next(h);
}

/* Takes the reference of the blob. */
static struct save *save_of(struct hth_history *h, char *path, struct hth_blob *blob)
{
    struct save *s = hth_new(struct save);
    s->env = h->env;
    s->of = h;
    s->path = path;
    s->blob = blob;
    return s;
}

/* The next file to write; NULL: none. */
static struct save *take_dirty(struct hth_history *h)
{
    struct ring *rings[] = {&h->fine, &h->coarse};
    struct hth_blob *text = h->text;
    h->text = NULL;
    if (text != NULL)
        return save_of(h, hth_asprintf(TEXT_PATH, h->dir), text);
    for (size_t r = 0; r < HTH_ARRAY_LEN(rings); r++)
        for (uint32_t i = 0; i < rings[r]->files; i++) {
            uint32_t number = rings[r]->dirty[i];
            struct hth_blob *blob = number != 0 ? pack(h, rings[r], number) : NULL;
            rings[r]->dirty[i] = 0;
            if (blob == NULL)
                continue;
            struct save *s = save_of(h, path_of(h, rings[r], i), blob);
            s->dirty = &rings[r]->dirty[i];
            s->number = number;
            return s;
        }
    return NULL;
}

static void save_next(struct hth_history *h)
{
    if (h->dir == NULL || h->save != NULL || (h->save = take_dirty(h)) == NULL)
        return;
    h->save->job = (struct hth_job){.lane = HTH_LANE_IO, .run = run_save, .done = saved};
    enum hth_err err = hth_job_submit(h->env, &h->save->job);
    if (err == HTH_OK)
        return;
    h->save->err = err;
    end_save(h->save);
    h->save = NULL;
}

void hth_history_keep(struct hth_history *h, struct hth_blob *text)
{
    if (h->dir == NULL)
        return;
    hth_blob_unref(h->text);
    h->text = hth_blob_ref(text);
    save_next(h);
}

const struct hth_blob *hth_history_kept(const struct hth_history *h)
{
    return h->kept;
}

static void mark(struct ring *r, uint32_t t)
{
    r->dirty[t / r->file_s % r->files] = t / r->file_s;
}

void hth_history_add(struct hth_history *h, const struct hth_history_row *row)
{
    struct hth_history_row coarse;
    *place(&h->fine, row->t) = *row;
    place(&h->fine, row->t)->t = row->t / HTH_HISTORY_FINE_S * HTH_HISTORY_FINE_S;
    mark(&h->fine, row->t);
    if (sum_up(h, row->t, &coarse)) {
        if (h->open != 0 && h->open != coarse.t)
            mark(&h->coarse, h->open);
        h->open = coarse.t;
        *place(&h->coarse, row->t) = coarse;
    }
    save_next(h);
}

/* ---- loading -------------------------------------------------------------------------------- */

static void load_file(struct hth_history *h, struct ring *r, uint32_t place_in,
                      struct hth_history_file *file)
{
    struct hth_blob *blob;
    char *path = path_of(h, r, place_in);
    enum hth_err err = hth_file_read(h->env, path, HTH_HISTORY_BYTES_MAX, &blob);
    if (err == HTH_OK) {
        err = hth_history_read(blob->data, blob->size, file);
        hth_blob_unref(blob);
    }
    if (err == HTH_OK && file->coarse != (r == &h->coarse))
        err = HTH_E_MALFORMED;
    if (err == HTH_OK && file->run != h->run)
        err = HTH_E_WRONG_RUN;
    if (err != HTH_OK && err != HTH_E_NO_FILE)
        HTH_LOG(h->env, HTH_WARN, HTH_SUB_APP, "history %s: %s; it is begun anew", path,
                hth_err_text(err));
    hth_free(path);
    for (uint32_t i = 0; err == HTH_OK && i < file->count; i++)
        if (file->row[i].t > place(r, file->row[i].t)->t)
            *place(r, file->row[i].t) = file->row[i];
}

/* Coarse rows that were not written before the process ended. */
static void sum_up_missing(struct hth_history *h)
{
    struct hth_history_row row;
    for (uint32_t i = 0; i < h->fine.rows; i++) {
        uint32_t t = h->fine.row[i].t;
        if (t != 0 && at(&h->coarse, t) == NULL && sum_up(h, t, &row))
            *place(&h->coarse, t) = row;
    }
}

static void load(struct hth_history *h)
{
    struct hth_history_file *file = hth_new(struct hth_history_file);
    struct ring *rings[] = {&h->fine, &h->coarse};
    for (size_t r = 0; r < HTH_ARRAY_LEN(rings); r++)
        for (uint32_t i = 0; i < rings[r]->files; i++)
            load_file(h, rings[r], i, file);
    hth_free(file);
    sum_up_missing(h);
    char *path = hth_asprintf(TEXT_PATH, h->dir);
    enum hth_err err = hth_file_read(h->env, path, HTH_HISTORY_TEXT_MAX, &h->kept);
    if (err != HTH_OK) {
        h->kept = NULL;
        if (err != HTH_E_NO_FILE)
            HTH_LOG(h->env, HTH_WARN, HTH_SUB_APP, "%s: %s; it is begun anew", path,
                    hth_err_text(err));
    }
    hth_free(path);
}

struct hth_history *hth_history_new(struct hth_env *env, const char *dir, const char *run)
{
    struct hth_history *h = hth_new(struct hth_history);
    h->env = env;
    h->dir = dir;
    h->run = hth_hash64(run, strlen(run), 1);
    h->fine = (struct ring){.rows = HTH_HISTORY_FINE_MAX,
                            .period_s = HTH_HISTORY_FINE_S,
                            .file_s = 3600,
                            .files = FINE_FILES,
                            .name = "10s"};
    h->coarse = (struct ring){.rows = HTH_HISTORY_COARSE_MAX,
                              .period_s = HTH_HISTORY_COARSE_S,
                              .file_s = DAY_S,
                              .files = COARSE_FILES,
                              .name = "5min"};
    h->fine.row = hth_new_array(struct hth_history_row, h->fine.rows);
    h->coarse.row = hth_new_array(struct hth_history_row, h->coarse.rows);
    if (dir != NULL)
        load(h);
    return h;
}

void hth_history_free(struct hth_history *h)
{
    if (h == NULL)
        return;
    if (h->save != NULL) { /* a simulated node's, that was halted: nobody waits for it */
        mark_again(h->save);
        h->save->of = NULL;
    }
    if (h->open != 0)
        mark(&h->coarse, h->open);
    h->open = 0;
    enum hth_err err = HTH_OK;
    for (struct save *s; h->dir != NULL && err == HTH_OK && (s = take_dirty(h)) != NULL;) {
        run_save(&s->job);
        err = s->err;
        end_save(s);
    }
    hth_blob_unref(h->text);
    hth_blob_unref(h->kept);
    hth_free(h->fine.row);
    hth_free(h->coarse.row);
    hth_free(h);
}

enum hth_err hth_history_err(const struct hth_history *h)
{
    return h->err;
}
