/* SPDX-License-Identifier: Apache-2.0 */
#include "support/env_conformance.h"

#include "support/test.h"

#include "core/budget.h"
#include "core/limits.h"
#include "core/mem.h"

#define TIMEOUT_US (30 * HTH_US_PER_S)
#define A_WHILE_US (30 * HTH_US_PER_MS)

static bool never(void *arg)
{
    (void)arg;
    return false;
}

static void pass_time(struct conform *c, int64_t us)
{
    (void)c->run(c, never, NULL, us);
}

static bool is_set(void *arg)
{
    return *(int *)arg > 0;
}

static void await(struct conform *c, int *flag)
{
    assert_true(c->run(c, is_set, flag, TIMEOUT_US));
}

/* ---- timers and posts ---------------------------------------------------------------------- */

struct tick {
    struct hth_env *env;
    struct hth_timer *timer;
    int count;
    int64_t at_us;
    int again; /* how often it rearms itself */
    bool free_self;
};

static void on_tick(void *arg)
{
    struct tick *t = arg;
    t->count++;
    t->at_us = hth_now_us(t->env);
    if (t->again-- > 0)
        hth_timer_set(t->env, t->timer, 1000);
    if (t->free_self)
        hth_timer_free(t->env, t->timer);
}

static void tick_init(struct tick *t, struct hth_env *env)
{
    *t = (struct tick){.env = env};
    t->timer = hth_timer_new(env, on_tick, t);
}

static bool armed_enough(void *arg)
{
    return ((struct tick *)arg)->again < 0;
}

void conform_timers(struct conform *c)
{
    struct tick t, other, last;
    tick_init(&t, c->a);
    tick_init(&other, c->a);
    tick_init(&last, c->a);
    pass_time(c, A_WHILE_US);
    assert_int_equal(t.count, 0); /* made, not armed */

    int64_t start_us = hth_now_us(c->a);
    hth_timer_set(c->a, t.timer, 5000);
    hth_timer_set(c->a, other.timer, 2000);
    hth_timer_cancel(c->a, other.timer);
    assert_int_equal(t.count, 0);
    await(c, &t.count);
    assert_true(t.at_us - start_us >= 5000);
    pass_time(c, A_WHILE_US);
    assert_int_equal(t.count, 1); /* one-shot */
    assert_int_equal(other.count, 0);

    t.count = 0; /* moved from far to near */
    hth_timer_set(c->a, t.timer, TIMEOUT_US * 10);
    hth_timer_set(c->a, t.timer, 1000);
    await(c, &t.count);
    t.count = 0; /* rearms itself from its callback */
    t.again = 4;
    hth_timer_set(c->a, t.timer, 0);
    assert_int_equal(t.count, 0); /* the next turn, not this one */
    assert_true(c->run(c, armed_enough, &t, TIMEOUT_US));
    pass_time(c, A_WHILE_US);
    assert_int_equal(t.count, 5);
    last.free_self = true;
    hth_timer_set(c->a, last.timer, -1);
    await(c, &last.count);
    hth_timer_free(c->a, t.timer);
    hth_timer_set(c->a, other.timer, 0);
    hth_timer_free(c->a, other.timer); /* armed: never fires */
    pass_time(c, A_WHILE_US);
    assert_int_equal(other.count, 0);
}

struct mail {
    int *log;
    int *count;
    int number;
};

static void on_mail(void *arg)
{
    struct mail *m = arg;
    m->log[(*m->count)++] = m->number;
}

#define MAILS 100

static bool all_came(void *arg)
{
    return *(int *)arg == MAILS;
}

void conform_posts(struct conform *c)
{
    struct mail mail[MAILS];
    int log[MAILS], count = 0;
    for (int i = 0; i < MAILS; i++) {
        mail[i] = (struct mail){log, &count, i};
        hth_post(c->a, on_mail, &mail[i]);
        assert_int_equal(count, 0);
    }
    assert_true(c->run(c, all_came, &count, TIMEOUT_US));
    for (int i = 0; i < MAILS; i++)
        assert_int_equal(log[i], i);
}

/* ---- jobs ---------------------------------------------------------------------------------- */

struct work {
    struct hth_job job;
    int value, runs, dones;
    int *left;
    enum hth_err err;
};

static void work_run(struct hth_job *job)
{
    struct work *w = HTH_CONTAINER(job, struct work, job);
    w->runs++;
    w->value *= 2;
}

static void work_done(struct hth_job *job, enum hth_err err)
{
    struct work *w = HTH_CONTAINER(job, struct work, job);
    w->dones++;
    w->err = err;
    --*w->left;
}

static bool is_zero(void *arg)
{
    return *(int *)arg == 0;
}

void conform_jobs(struct conform *c)
{
    enum { N = 64 };
    struct work work[N];
    int left = N;
    assert_true(hth_lane_width(c->a, HTH_LANE_COMPUTE) >= 1);
    assert_int_equal(hth_lane_width(c->a, HTH_LANE_IO), 1);
    for (int i = 0; i < N; i++) {
        work[i] = (struct work){.value = i, .left = &left};
        work[i].job.lane = i % 3 == 0 ? HTH_LANE_IO : HTH_LANE_COMPUTE;
        work[i].job.run = work_run;
        work[i].job.done = work_done;
        work[i].job.flops = 1e4;
        assert_ok(hth_job_submit(c->a, &work[i].job));
        assert_int_equal(work[i].dones, 0); /* never inside the call */
    }
    assert_true(c->run(c, is_zero, &left, TIMEOUT_US));
    for (int i = 0; i < N; i++) {
        assert_int_equal(work[i].runs, 1);
        assert_int_equal(work[i].dones, 1);
        assert_int_equal(work[i].err, HTH_OK);
        assert_int_equal(work[i].value, 2 * i);
    }
}

/* ---- streams ------------------------------------------------------------------------------- */

enum close_in { NOWHERE, IN_OPEN, IN_READABLE, IN_DRAINED };

struct end {
    struct hth_env *env;
    struct hth_stream *s;
    struct hth_blob *into;
    size_t read_max;
    uint64_t got, wrong, want;
    int opens, reads, drains, closes, complete;
    enum hth_err err;
    bool echo, attach_nothing, inside, stranger;
    enum close_in close_in;
};

static uint8_t pattern(uint64_t at)
{
    return (uint8_t)(at * 31 + (at >> 8) * 7 + (at >> 16));
}

static void close_here(struct end *e, enum close_in where)
{
    if (e->close_in != where || e->s == NULL)
        return;
    hth_stream_close(e->env, e->s, false);
    e->s = NULL;
}

static void on_open(struct hth_stream *s, void *arg)
{
    struct end *e = arg;
    assert_false(e->inside);
    assert_ptr_equal(s, e->s);
    assert_int_equal(e->reads, 0);
    e->opens++;
    close_here(e, IN_OPEN);
}

static void on_readable(struct hth_stream *s, void *arg)
{
    struct end *e = arg;
    assert_false(e->inside);
    assert_ptr_equal(s, e->s);
    e->reads++;
    size_t n = hth_stream_read(e->env, s, e->into, 0, e->read_max);
    for (size_t i = 0; i < n; i++)
        e->wrong += e->into->data[i] != pattern(e->got + i);
    e->got += n;
    if (e->echo && n > 0) {
        struct hth_blob *copy = hth_blob_copy(e->into->data, n);
        struct hth_span span = {copy, 0, n};
        assert_ok(hth_stream_write(e->env, s, &span, 1));
        hth_blob_unref(copy);
    }
    e->complete += e->got == e->want && n > 0;
    close_here(e, IN_READABLE);
}

static void on_drained(struct hth_stream *s, void *arg)
{
    struct end *e = arg;
    assert_false(e->inside);
    assert_true(hth_stream_queued(e->env, s) < HTH_STREAM_LOW_BYTES);
    e->drains++;
    close_here(e, IN_DRAINED);
}

static void on_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct end *e = arg;
    assert_false(e->inside);
    assert_ptr_equal(s, e->s);
    e->closes++;
    e->err = err;
    e->s = NULL;
}

static const struct hth_stream_ops end_ops = {.on_open = on_open,
                                              .on_readable = on_readable,
                                              .on_drained = on_drained,
                                              .on_closed = on_closed};
static const struct hth_stream_ops stranger_ops = {
    .on_readable = on_readable, .on_closed = on_closed, .is_stranger = true};

static void on_accept(void *arg, struct hth_stream *s)
{
    struct end *e = arg;
    e->opens++;
    if (e->attach_nothing)
        return;
    e->s = s;
    hth_stream_attach(e->env, s, e->stranger ? &stranger_ops : &end_ops, e);
}

struct duo {
    struct end a, b;
    struct hth_listener *listener;
    struct hth_addr addr;
};

static void end_init(struct end *e, struct hth_env *env)
{
    *e = (struct end){.env = env, .read_max = 65536};
    e->into = hth_blob_try_new(65536);
    assert_non_null(e->into);
}

static void duo_listen(struct conform *c, struct duo *d)
{
    end_init(&d->a, c->a);
    end_init(&d->b, c->b);
    assert_ok(hth_listen(c->b, &c->listen, on_accept, &d->b, &d->listener));
    hth_listener_addr(c->b, d->listener, &d->addr);
    assert_int_not_equal(d->addr.port, 0);
}

static void duo_dial(struct conform *c, struct duo *d)
{
    d->a.inside = true;
    assert_ok(hth_dial(c->a, &d->addr, &c->b->self, &end_ops, &d->a, &d->a.s));
    d->a.inside = false;
}

static void duo_init(struct conform *c, struct duo *d)
{
    duo_listen(c, d);
    duo_dial(c, d);
    await(c, &d->a.opens);
    await(c, &d->b.opens);
}

static void duo_clear(struct conform *c, struct duo *d)
{
    struct end *ends[2] = {&d->a, &d->b};
    for (int i = 0; i < 2; i++) {
        if (ends[i]->s != NULL)
            hth_stream_close(ends[i]->env, ends[i]->s, false);
        hth_blob_unref(ends[i]->into);
    }
    hth_listener_free(c->b, d->listener);
    pass_time(c, A_WHILE_US);
}

/* Writes the pattern's bytes [from, from + len) in spans of odd sizes. */
static enum hth_err write_pattern(struct end *e, uint64_t from, size_t len)
{
    struct hth_blob *blob = hth_blob_try_new(len + 5);
    assert_non_null(blob);
    memset(blob->data, 0xee, 5);
    for (size_t i = 0; i < len; i++)
        blob->data[5 + i] = pattern(from + i);
    size_t cut = len / 3;
    struct hth_span spans[4] = {
        {blob, 5, cut}, {blob, 0, 0}, {blob, 5 + cut, 1}, {blob, 6 + cut, len - cut - 1}};
    e->inside = true;
    enum hth_err err = hth_stream_write(e->env, e->s, spans, 4);
    e->inside = false;
    hth_blob_unref(blob);
    return err;
}

void conform_echo(struct conform *c)
{
    struct duo d;
    struct hth_peer_id id;
    struct hth_addr addr;
    duo_init(c, &d);
    d.b.echo = true;
    d.a.want = 3000000;
    uint64_t sent = 0;
    for (size_t n = 100; sent < d.a.want; sent += n, n = HTH_MIN(n * 2, d.a.want - sent))
        assert_ok(write_pattern(&d.a, sent, n));
    await(c, &d.a.complete);
    assert_int_equal(d.a.wrong, 0);
    assert_int_equal(d.b.wrong, 0);
    assert_int_equal(d.b.got, d.a.want);
    assert_int_equal(hth_stream_queued(c->a, d.a.s), 0);
    hth_stream_peer(c->a, d.a.s, &id, &addr);
    assert_true(hth_peer_id_eq(&id, &c->b->self));
    assert_true(hth_addr_eq(&addr, &d.addr));
    hth_stream_peer(c->b, d.b.s, &id, &addr);
    assert_true(hth_peer_id_eq(&id, &c->a->self));
    assert_int_equal(d.a.opens, 1);
    duo_clear(c, &d);
}

void conform_level_triggered(struct conform *c)
{
    struct duo d;
    duo_init(c, &d);
    d.b.read_max = 1; /* on_readable repeats for unread bytes without new arrivals */
    d.b.want = 500;
    assert_ok(write_pattern(&d.a, 0, 500));
    await(c, &d.b.complete);
    assert_int_equal(d.b.wrong, 0);
    hth_stream_pause(c->b, d.b.s, true);
    assert_ok(write_pattern(&d.a, 500, 100));
    pass_time(c, 3 * A_WHILE_US);
    assert_int_equal(d.b.got, 500);
    d.b.want = 600;
    d.b.complete = 0;
    d.b.read_max = 65536;
    hth_stream_pause(c->b, d.b.s, false);
    await(c, &d.b.complete);
    duo_clear(c, &d);
}

void conform_strangers_say_little(struct conform *c)
{
    struct duo d;
    duo_listen(c, &d);
    d.b.stranger = true;
    d.b.want = 500;
    duo_dial(c, &d);
    await(c, &d.a.opens);
    assert_ok(write_pattern(&d.a, 0, 500));
    await(c, &d.b.complete);
    assert_ok(write_pattern(&d.a, 500, 3 * HTH_STRANGER_BYTES_MAX));
    await(c, &d.b.closes);
    assert_int_equal(d.b.err, HTH_E_PROTOCOL);
    assert_true(d.b.got <= HTH_STRANGER_BYTES_MAX);
    await(c, &d.a.closes);

    d.a.opens = d.a.closes = d.b.complete = 0;
    d.b.got = 0;
    duo_dial(c, &d);
    await(c, &d.a.opens);
    assert_ok(write_pattern(&d.a, 0, 500));
    await(c, &d.b.complete);
    hth_stream_attach(c->b, d.b.s, &end_ops, &d.b); /* now it is known */
    d.b.want = 500 + 3 * HTH_STRANGER_BYTES_MAX;
    d.b.complete = 0;
    assert_ok(write_pattern(&d.a, 500, 3 * HTH_STRANGER_BYTES_MAX));
    await(c, &d.b.complete);
    assert_int_equal(d.b.wrong, 0);
    duo_clear(c, &d);
}

void conform_failed_dials(struct conform *c)
{
    struct duo d;
    struct hth_peer_id wrong = c->b->self;
    duo_listen(c, &d);
    wrong.b[0] ^= 1;
    assert_ok(hth_dial(c->a, &d.addr, &wrong, &end_ops, &d.a, &d.a.s));
    await(c, &d.a.closes);
    assert_int_equal(d.a.err, HTH_E_BAD_PEER_ID);
    assert_int_equal(d.a.opens, 0);

    assert_ok(hth_dial(c->a, &d.addr, NULL, &end_ops, &d.a, &d.a.s)); /* any key is accepted */
    await(c, &d.a.opens);
    hth_stream_close(c->a, d.a.s, false);
    d.a.s = NULL;
    pass_time(c, 3 * A_WHILE_US);

    hth_listener_free(c->b, d.listener);
    d.listener = NULL;
    d.a.closes = d.a.opens = 0;
    pass_time(c, A_WHILE_US);
    duo_dial(c, &d);
    await(c, &d.a.closes);
    assert_int_equal(d.a.err, HTH_E_REFUSED);
    assert_int_equal(d.a.opens, 0);
    assert_int_equal(d.a.closes, 1);

    duo_dial(c, &d); /* closed at once: no callback */
    hth_stream_close(c->a, d.a.s, true);
    d.a.s = NULL;
    pass_time(c, 3 * A_WHILE_US);
    assert_int_equal(d.a.closes, 1);
    struct hth_addr none = {.family = 0};
    assert_err(HTH_E_UNSUPPORTED, hth_dial(c->a, &none, NULL, &end_ops, &d.a, &d.a.s));
    duo_clear(c, &d);
}

void conform_ends(struct conform *c)
{
    struct duo d;
    duo_init(c, &d); /* flushed: all bytes arrive, then a clean end */
    d.b.want = 2000000;
    assert_ok(write_pattern(&d.a, 0, 2000000));
    hth_stream_close(c->a, d.a.s, true);
    d.a.s = NULL;
    await(c, &d.b.closes);
    assert_int_equal(d.b.err, HTH_OK);
    assert_int_equal(d.b.got, 2000000);
    assert_int_equal(d.b.wrong, 0);
    assert_int_equal(d.a.closes, 0);
    duo_clear(c, &d);

    duo_init(c, &d); /* closed without a flush */
    hth_stream_close(c->b, d.b.s, false);
    d.b.s = NULL;
    await(c, &d.a.closes);
    assert_int_equal(d.a.err, HTH_E_CLOSED);
    assert_int_equal(d.b.closes, 0);
    duo_clear(c, &d);
}

void conform_closing_in_callbacks(struct conform *c)
{
    static const enum close_in where[3] = {IN_OPEN, IN_READABLE, IN_DRAINED};
    for (int i = 0; i < 3; i++) {
        struct duo d;
        duo_listen(c, &d);
        d.a.close_in = where[i];
        d.b.echo = where[i] == IN_READABLE;
        duo_dial(c, &d);
        await(c, &d.a.opens);
        if (where[i] == IN_OPEN) { /* the other side may or may not have opened */
            pass_time(c, 3 * A_WHILE_US);
            if (d.b.opens > 0)
                await(c, &d.b.closes);
        } else {
            await(c, &d.b.opens);
            assert_ok(write_pattern(&d.a, 0, where[i] == IN_READABLE ? 1000 : 32u << 20));
            await(c, &d.b.closes);
        }
        assert_int_equal(d.b.closes, d.b.opens);
        assert_null(d.a.s);
        assert_int_equal(d.a.closes, 0);
        duo_clear(c, &d);
    }
}

void conform_unattached(struct conform *c)
{
    struct duo d;
    duo_listen(c, &d);
    d.b.attach_nothing = true;
    duo_dial(c, &d);
    await(c, &d.b.opens);
    await(c, &d.a.closes);
    duo_clear(c, &d);
}

void conform_pressure(struct conform *c)
{
    struct duo d;
    duo_init(c, &d);
    struct hth_blob *blob = hth_blob_try_new(16u << 20);
    struct hth_span spans[17];
    memset(blob->data, 0, blob->size);
    for (int i = 0; i < 17; i++)
        spans[i] = (struct hth_span){blob, 0, blob->size};
    assert_err(HTH_E_QUEUE_FULL, hth_stream_write(c->a, d.a.s, spans, 17)); /* all or nothing */
    assert_int_equal(hth_stream_queued(c->a, d.a.s), 0);

    hth_stream_pause(c->b, d.b.s, true);
    assert_ok(hth_stream_write(c->a, d.a.s, spans, 2));
    pass_time(c, 10 * A_WHILE_US);
    assert_true(hth_stream_queued(c->a, d.a.s) > HTH_STREAM_LOW_BYTES);
    assert_int_equal(d.a.drains, 0);
    assert_int_equal(d.b.got, 0);
    hth_stream_pause(c->b, d.b.s, false);
    await(c, &d.a.drains);
    d.b.want = 32u << 20;
    await(c, &d.b.complete);
    assert_int_equal(d.a.drains, 1);
    assert_int_equal(blob->refs, 1);
    hth_blob_unref(blob);
    duo_clear(c, &d);
}

void conform_listeners(struct conform *c)
{
    struct duo d, e;
    struct hth_listener *l = NULL;
    duo_listen(c, &d);
    assert_err(HTH_E_ADDR_IN_USE, hth_listen(c->b, &d.addr, on_accept, &d.b, &l));
    duo_listen(c, &e);
    assert_int_not_equal(d.addr.port, e.addr.port);
    struct hth_addr addr = d.addr;
    duo_clear(c, &e);
    duo_clear(c, &d);
    assert_ok(hth_listen(c->b, &addr, on_accept, &d.b, &l)); /* the port is free again */
    hth_listener_free(c->b, l);
    hth_listener_free(c->b, NULL);
}

/* ---- files and payloads -------------------------------------------------------------------- */

static void put_text(struct hth_env *env, const char *path, const char *text)
{
    struct hth_blob *blob = hth_blob_copy(text, strlen(text));
    size_t cut = blob->size / 2;
    struct hth_span spans[2] = {{blob, 0, cut}, {blob, cut, blob->size - cut}};
    assert_ok(hth_file_write(env, path, spans, 2));
    hth_blob_unref(blob);
}

void conform_files(struct conform *c)
{
    char path[256], buf[8];
    uint64_t size;
    size_t got;
    struct hth_blob *blob;
    snprintf(path, sizeof(path), "%sone/two/file", c->file_prefix);
    assert_err(HTH_E_NO_FILE, hth_file_size(c->a, path, &size));
    assert_err(HTH_E_NO_FILE, hth_file_pread(c->a, path, 0, buf, 1, &got));
    assert_err(HTH_E_NO_FILE, hth_file_remove(c->a, path));
    put_text(c->a, path, "0123456789"); /* makes the folders */
    assert_ok(hth_file_size(c->a, path, &size));
    assert_int_equal(size, 10);
    assert_ok(hth_file_pread(c->a, path, 2, buf, 4, &got));
    assert_int_equal(got, 4);
    assert_memory_equal(buf, "2345", 4);
    assert_ok(hth_file_pread(c->a, path, 8, buf, 8, &got));
    assert_int_equal(got, 2);
    assert_ok(hth_file_pread(c->a, path, 100, buf, 8, &got));
    assert_int_equal(got, 0);
    assert_err(HTH_E_TOO_LARGE, hth_file_read(c->a, path, 9, &blob));
    put_text(c->a, path, "abc"); /* replaces, whole */
    assert_ok(hth_file_read(c->a, path, 10, &blob));
    assert_int_equal(blob->size, 3);
    assert_memory_equal(blob->data, "abc", 3);
    hth_blob_unref(blob);
    assert_ok(hth_file_write(c->a, path, NULL, 0)); /* an empty file is a file */
    assert_ok(hth_file_size(c->a, path, &size));
    assert_int_equal(size, 0);
    assert_ok(hth_file_remove(c->a, path));
    assert_err(HTH_E_NO_FILE, hth_file_size(c->a, path, &size));
}

void conform_payloads(struct conform *c)
{
    struct hth_budget budget;
    struct hth_blob *a, *b;
    hth_budget_init(&budget, 1 << 20, NULL);
    assert_ok(hth_env_blob_new(c->a, 1 << 20, &budget, &a));
    assert_int_equal(a->size, 1 << 20);
    assert_true(a->data == NULL || (uintptr_t)a->data % 64 == 0);
    assert_err(HTH_E_BUDGET, hth_env_blob_new(c->a, 1, &budget, &b));
    assert_null(b);
    hth_blob_unref(a);
    assert_int_equal(hth_budget_used(&budget), 0);
    assert_false(hth_fault(c->a, "conformance.site"));
    assert_true(hth_wall_us(c->a) > 0);
}
