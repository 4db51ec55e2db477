/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/recall.h"

#include "core/bytes.h"

#include <string.h>

void hth_recall_add(struct hth_recall_told *r, const struct hth_recall_point *point)
{
    uint32_t n = r->point_count, slot = point->t / HTH_RECALL_PERIOD_S;
    uint32_t newest = n > 0 ? r->point[n - 1].t / HTH_RECALL_PERIOD_S : 0;
    if (n > 0 && slot < newest)
        return;
    if (n > 0 && slot == newest)
        n--;
    if (n == HTH_RECALL_POINTS_MAX)
        memmove(&r->point[0], &r->point[1], --n * sizeof(r->point[0]));
    r->point[n] = *point;
    r->point_count = n + 1;
}

void hth_recall_add_test(struct hth_recall_told *r, const struct hth_recall_test *test)
{
    if (r->test_count == HTH_RECALL_TESTS_MAX)
        memmove(&r->test[0], &r->test[1], --r->test_count * sizeof(r->test[0]));
    r->test[r->test_count++] = *test;
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static uint64_t read_count(struct hth_reader *r)
{
    uint64_t n = hth_read_u64(r);
    if (n > HTH_RECALL_COUNT_MAX && r->err == HTH_OK)
        r->err = HTH_E_RANGE;
    return n;
}

static void write_point(struct hth_writer *w, const struct hth_recall_point *p)
{
    hth_write_u32(w, p->t);
    hth_write_u64(w, p->step);
    hth_write_u64(w, p->samples);
    hth_write_bytes(w, &p->loss, sizeof(p->loss));
    hth_write_bytes(w, &p->samples_per_s, sizeof(p->samples_per_s));
}

static void read_point(struct hth_reader *r, struct hth_recall_point *p)
{
    p->t = hth_read_u32(r);
    p->step = read_count(r);
    p->samples = read_count(r);
    hth_read_bytes(r, &p->loss, sizeof(p->loss));
    hth_read_bytes(r, &p->samples_per_s, sizeof(p->samples_per_s));
}

static void write_test(struct hth_writer *w, const struct hth_recall_test *t)
{
    hth_write_u32(w, t->t);
    hth_write_u64(w, t->step);
    hth_write_bytes(w, &t->loss, sizeof(t->loss));
    hth_write_bytes(w, &t->accuracy, sizeof(t->accuracy));
    hth_write_bytes(w, &t->bits_per_byte, sizeof(t->bits_per_byte));
}

static void read_test(struct hth_reader *r, struct hth_recall_test *t)
{
    t->t = hth_read_u32(r);
    t->step = read_count(r);
    hth_read_bytes(r, &t->loss, sizeof(t->loss));
    hth_read_bytes(r, &t->accuracy, sizeof(t->accuracy));
    hth_read_bytes(r, &t->bits_per_byte, sizeof(t->bits_per_byte));
}

size_t hth_recall_write(const struct hth_recall_told *r, uint32_t after_t,
                        uint8_t out[HTH_RECALL_BYTES_MAX])
{
    struct hth_writer w;
    uint32_t first = 0;
    while (first < r->point_count && r->point[first].t <= after_t)
        first++;
    hth_writer_init(&w, out, HTH_RECALL_BYTES_MAX);
    hth_write_u64(&w, r->total);
    hth_write_u64(&w, r->saved_step);
    hth_write_u32(&w, r->saved_t);
    hth_write_u32(&w, r->began_t);
    hth_write_u16(&w, (uint16_t)(r->point_count - first));
    for (uint32_t i = first; i < r->point_count; i++)
        write_point(&w, &r->point[i]);
    hth_write_u16(&w, (uint16_t)r->test_count);
    for (uint32_t i = 0; i < r->test_count; i++)
        write_test(&w, &r->test[i]);
    hth_write_u64(&w, r->behind);
    hth_write_u64(&w, r->forks);
    hth_write_u64(&w, r->joined);
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

enum hth_err hth_recall_read(const uint8_t *data, size_t len, struct hth_recall_told *out)
{
    struct hth_reader r;
    hth_reader_init(&r, data, len);
    memset(out, 0, sizeof(*out));
    out->total = read_count(&r);
    out->saved_step = read_count(&r);
    out->saved_t = hth_read_u32(&r);
    out->began_t = hth_read_u32(&r);
    uint32_t points = hth_read_u16(&r);
    HTH_TRY(r.err);
    if (points > HTH_RECALL_POINTS_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < points; i++) {
        read_point(&r, &out->point[i]);
        HTH_TRY(r.err);
        if (i > 0 &&
            out->point[i].t / HTH_RECALL_PERIOD_S <= out->point[i - 1].t / HTH_RECALL_PERIOD_S)
            return HTH_E_RANGE;
    }
    uint32_t tests = hth_read_u16(&r);
    HTH_TRY(r.err);
    if (tests > HTH_RECALL_TESTS_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < tests; i++)
        read_test(&r, &out->test[i]);
    if (hth_reader_left(&r) >= 8)
        out->behind = read_count(&r);
    if (hth_reader_left(&r) >= 16) {
        out->forks = read_count(&r);
        out->joined = read_count(&r);
    }
    out->point_count = points;
    out->test_count = tests;
    return r.err;
}
