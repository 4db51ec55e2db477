/* SPDX-License-Identifier: Apache-2.0 */
/* test_link.c: queues on access links against queueing theory, clogs, matrices of zones. */
#include "core/limits.h"
#include "core/mem.h"
#include "core/rng.h"
#include "sim/world.h"
#include "support/suite.h"

#include <math.h>

#define MESSAGE_BYTES 10000u
#define MESSAGES_MAX  60000

/* Sends messages at the times of a Poisson process and records the delay of each. */
struct flow {
    struct hth_env *from, *to;
    struct hth_listener *listener;
    struct hth_stream *out, *in;
    struct hth_timer *timer;
    struct hth_rng rng;
    double gap_us; /* mean; 0: the test sends by itself */
    int messages;  /* number to send */
    int sent, arrived;
    uint64_t bytes;
    int64_t sent_us[MESSAGES_MAX];
    int64_t arrived_us[MESSAGES_MAX];
};

static void send_one(struct flow *f)
{
    struct hth_blob *blob;
    assert_ok(hth_env_blob_new(f->from, MESSAGE_BYTES, NULL, &blob));
    struct hth_span span = {.blob = blob, .len = MESSAGE_BYTES};
    f->sent_us[f->sent++] = hth_now_us(f->from);
    assert_ok(hth_stream_write(f->from, f->out, &span, 1));
    hth_blob_unref(blob);
}

static void on_time(void *arg)
{
    struct flow *f = arg;
    send_one(f);
    if (f->sent < f->messages)
        hth_timer_set(f->from, f->timer, (int64_t)(hth_rng_exponential(&f->rng, f->gap_us) + 0.5));
}

static void on_open(struct hth_stream *s, void *arg)
{
    struct flow *f = arg;
    (void)s;
    if (f->gap_us > 0)
        hth_timer_set(f->from, f->timer, 0);
}

static void on_readable(struct hth_stream *s, void *arg)
{
    struct flow *f = arg;
    struct hth_blob *into;
    assert_ok(hth_env_blob_new(f->to, 1u << 20, NULL, &into));
    f->bytes += hth_stream_read(f->to, s, into, 0, 1u << 20);
    hth_blob_unref(into);
    while (f->bytes >= (uint64_t)(f->arrived + 1) * MESSAGE_BYTES)
        f->arrived_us[f->arrived++] = hth_now_us(f->to);
}

static void on_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct flow *f = arg;
    (void)err;
    if (s == f->in)
        f->in = NULL;
    else
        f->out = NULL;
}

static const struct hth_stream_ops ops = {
    .on_open = on_open, .on_readable = on_readable, .on_closed = on_closed};

static void on_accept(void *arg, struct hth_stream *s)
{
    struct flow *f = arg;
    f->in = s;
    hth_stream_attach(f->to, s, &ops, f);
}

static struct flow *flow_new(struct hth_node *from, struct hth_node *to, double gap_us,
                             int messages)
{
    struct flow *f = hth_new(struct flow);
    struct hth_addr addr = hth_node_addr(to, 7);
    f->from = hth_node_env(from);
    f->to = hth_node_env(to);
    f->gap_us = gap_us;
    f->messages = messages;
    hth_rng_init(&f->rng, 11);
    f->timer = hth_timer_new(f->from, on_time, f);
    assert_ok(hth_listen(f->to, &addr, on_accept, f, &f->listener));
    assert_ok(hth_dial(f->from, &addr, NULL, &ops, f, &f->out));
    return f;
}

static void flow_free(struct flow *f)
{
    if (f->out != NULL)
        hth_stream_close(f->from, f->out, false);
    if (f->in != NULL)
        hth_stream_close(f->to, f->in, false);
    hth_listener_free(f->to, f->listener);
    hth_timer_free(f->from, f->timer);
    hth_free(f);
}

static struct hth_world_opts plain(void)
{
    struct hth_world_opts o = HTH_WORLD_OPTS_INIT;
    o.ghost = true;
    o.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    o.segment_bytes = MESSAGE_BYTES;
    o.link.latency_us = 10000;
    o.device.up_bytes_per_s = o.device.down_bytes_per_s = 0;
    return o;
}

/* Messages of one size at random times on a link are the queue M/D/1: the mean wait is rho / (2 (1
 * - rho)) services (Pollaczek and Khinchine). Service here is 10 ms, the load rho. */
static double mean_wait_us(bool up, double rho)
{
    struct hth_world_opts o = plain();
    struct hth_world *w = hth_world_new(1, &o);
    struct hth_node_opts n = HTH_NODE_OPTS_INIT;
    struct hth_device slow = o.device;
    slow.up_bytes_per_s = slow.down_bytes_per_s = 1e6;
    n.device = up ? &slow : NULL;
    struct hth_node *a = hth_world_node(w, "a", &n);
    n.device = up ? NULL : &slow;
    struct hth_node *b = hth_world_node(w, "b", &n);
    struct flow *f = flow_new(a, b, 10000 / rho, MESSAGES_MAX);
    hth_world_run_for(w, 4000 * HTH_US_PER_S);
    assert_int_equal(f->arrived, MESSAGES_MAX);
    double sum = 0;
    for (int i = 0; i < f->arrived; i++)
        sum += (double)(f->arrived_us[i] - f->sent_us[i] - 10000 - 10000);
    flow_free(f);
    hth_world_free(w);
    return sum / MESSAGES_MAX;
}

TEST(access_links_queue_as_m_d_1)
{
    (void)state;
    for (int up = 0; up < 2; up++) {
        for (double rho = 0.3; rho < 0.8; rho += 0.2) {
            double expected = rho / (2 * (1 - rho)) * 10000, wait = mean_wait_us(up != 0, rho);
            if (!(fabs(wait - expected) <= 0.06 * expected))
                fail_msg("%s, load %.1f: mean wait %.0f us, not %.0f", up ? "up" : "down", rho,
                         wait, expected);
        }
    }
}

/* A message into a clog arrives when the clog ends, in order; the other direction is free. */
TEST(clogs_hold_one_direction)
{
    (void)state;
    struct hth_world_opts o = plain();
    struct hth_world *w = hth_world_new(1, &o);
    struct hth_node *a = hth_world_node(w, "a", NULL), *b = hth_world_node(w, "b", NULL);
    struct flow *there = flow_new(a, b, 0, 0), *back = flow_new(b, a, 0, 0);
    hth_world_run_until(w, HTH_US_PER_S);
    send_one(there);
    hth_world_clog(w, a, b, 9 * HTH_US_PER_S); /* the first message is already on its way */
    hth_world_run_until(w, 2 * HTH_US_PER_S);
    assert_int_equal(there->arrived_us[0], HTH_US_PER_S + 10000);
    for (int i = 0; i < 3; i++)
        send_one(there);
    send_one(back);
    hth_world_run_until(w, 9 * HTH_US_PER_S - 1);
    assert_int_equal(there->arrived, 1);
    assert_int_equal(back->arrived_us[0], 2 * HTH_US_PER_S + 10000);
    hth_world_run_until(w, 9 * HTH_US_PER_S);
    assert_int_equal(there->arrived, 4);
    send_one(there); /* the clog has ended by itself */
    hth_world_run_until(w, 10 * HTH_US_PER_S);
    assert_int_equal(there->arrived_us[4], 9 * HTH_US_PER_S + 10000);
    hth_world_clog(w, a, b, 100 * HTH_US_PER_S);
    hth_world_heal(w);
    send_one(there);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(there->arrived, 6);
    flow_free(there);
    flow_free(back);
    hth_world_free(w);
}

/* Each pair of zones has its own latency, the same in both directions; so has a zone with
 * itself. */
TEST(each_pair_of_zones_has_its_latency)
{
    (void)state;
    enum { ZONES = 3 };
    struct hth_world_opts o = plain();
    struct hth_world *w = hth_world_new(1, &o);
    struct hth_node *node[2 * ZONES];
    for (uint32_t i = 0; i < 2 * ZONES; i++) {
        struct hth_node_opts n = HTH_NODE_OPTS_INIT;
        n.zone = i / 2;
        node[i] = hth_world_node(w, "n", &n);
    }
    for (uint32_t i = 0; i < ZONES; i++) {
        for (uint32_t j = i; j < ZONES; j++) {
            struct hth_link link = {.latency_us = 1000 * (1 + 10 * i + j)};
            hth_world_zone_link(w, i, j, &link);
        }
    }
    for (uint32_t i = 0; i < 2 * ZONES; i++) {
        for (uint32_t j = 0; j < 2 * ZONES; j++) {
            uint32_t low = HTH_MIN(i, j) / 2, high = HTH_MAX(i, j) / 2;
            if (i == j)
                continue;
            struct flow *f = flow_new(node[i], node[j], 0, 0);
            hth_world_run_for(w, HTH_US_PER_S);
            send_one(f);
            hth_world_run_for(w, HTH_US_PER_S);
            assert_int_equal(f->arrived_us[0] - f->sent_us[0], 1000 * (1 + 10 * low + high));
            flow_free(f);
        }
    }
    hth_world_free(w);
}

#define DRAWS 100000

/* Assert |x - expected| within five standard errors. */
static void assert_mean(const char *what, double x, double expected, double variance)
{
    double error = 5 * sqrt(variance / DRAWS);
    if (!(fabs(x - expected) <= error))
        fail_msg("%s: %g is not %g +- %g", what, x, expected, error);
}

/* In units of jitter_us, with the latency taken off: UNIFORM is U(0, 2), EXPONENTIAL has mean 1,
 * and NORMAL is max(0, N(0, 1)) with mean 1 / sqrt(2 pi) and second moment 1/2. `below` is the
 * share of draws under 1; `all_below` and `above` bound the largest draw. */
TEST(jitter_has_the_mean_and_bounds_of_its_kind)
{
    static const double root = 0.3989422804014327; /* 1 / sqrt(2 pi) */
    const struct {
        const char *name;
        enum hth_jitter kind;
        double mean, variance, below, all_below, above;
    } cases[] = {
        {"none", HTH_JITTER_NONE, 0, 0, 1, 1e-9, -1},
        {"uniform", HTH_JITTER_UNIFORM, 1, 1.0 / 3, 0.5, 2, 1.99},
        {"exponential", HTH_JITTER_EXPONENTIAL, 1, 1, 0.6321206, INFINITY, 8},
        {"normal", HTH_JITTER_NORMAL, root, 0.5 - root * root, 0.8413447, INFINITY, 3.5},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_link link = {
            .latency_us = 5000, .jitter_us = 10 * HTH_US_PER_S, .jitter = cases[i].kind};
        double sum = 0, squares = 0, below = 0, least = INFINITY, most = 0;
        struct hth_rng rng;
        hth_rng_init(&rng, 3);
        for (int n = 0; n < DRAWS; n++) {
            int64_t us = hth_link_delay_us(&link, &rng) - link.latency_us;
            double x = (double)us / (double)link.jitter_us;
            sum += x;
            squares += x * x;
            below += x < 1;
            least = fmin(least, x);
            most = fmax(most, x);
        }
        double mean = sum / DRAWS, share = cases[i].below;
        assert_mean(cases[i].name, mean, cases[i].mean, cases[i].variance + 1e-12);
        assert_close(squares / DRAWS - mean * mean, cases[i].variance, 0.03, 1e-9);
        assert_mean(cases[i].name, below / DRAWS, share, share * (1 - share));
        assert_true(least >= 0 && least < 0.001);
        assert_true(most < cases[i].all_below && most > cases[i].above);
        link.jitter_us = 0;
        assert_int_equal(hth_link_delay_us(&link, &rng), link.latency_us);
    }
}
