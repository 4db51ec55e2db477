/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lab.c: the arithmetic of netlab on a virtual clock, against times computed by hand; and its
 * files.
 */
#include "core/mem.h"
#include "lab/lab.h"
#include "support/suite.h"

#define MS INT64_C(1000000)

static void send_one(struct hth_lab_emu *emu, int64_t now_ns, uint32_t from, uint32_t to,
                     uint32_t len, uint8_t mark)
{
    struct hth_lab_packet *p = hth_lab_packet_new(len);
    p->from = from;
    p->to = to;
    p->data[0] = mark;
    hth_lab_emu_send_take(emu, now_ns, p);
}

/* Take the next packet, which must be due at that time; returns its mark. */
static uint8_t expect(struct hth_lab_emu *emu, int64_t due_ns)
{
    struct hth_lab_packet *p = NULL;
    while (p == NULL) {
        int64_t at_ns = hth_lab_emu_due_ns(emu);
        assert_true(at_ns < INT64_MAX);
        assert_null(hth_lab_emu_next(emu, at_ns - 1));
        p = hth_lab_emu_next(emu, at_ns);
    }
    assert_int_equal(p->due_ns, due_ns);
    uint8_t mark = p->data[0];
    hth_free(p);
    return mark;
}

static void empty(struct hth_lab_emu *emu)
{
    assert_int_equal(hth_lab_emu_due_ns(emu), INT64_MAX);
    assert_null(hth_lab_emu_next(emu, INT64_MAX - 1));
    hth_lab_emu_free(emu);
}

TEST(packets_take_line_and_way_times)
{
    (void)state;
    struct hth_lab_emu *emu = hth_lab_emu_new(1, 3);
    /* 1000 bytes take 1 ms up and 2 ms down. */
    const struct hth_lab_line line = {
        .up_bytes_per_s = 1e6, .down_bytes_per_s = 5e5, .queue_bytes = 1 << 20};
    const struct hth_link way = {.latency_us = 10000};
    hth_lab_emu_line(emu, 0, &line);
    hth_lab_emu_line(emu, 1, &line);
    hth_lab_emu_way(emu, 0, 1, &way);
    send_one(emu, 0, 0, 1, 1000, 1);
    send_one(emu, 0, 0, 1, 1000, 2);
    send_one(emu, 0, 0, 2, 1000, 3); /* waits for the sender's line only */
    send_one(emu, 0, 2, 2, 1000, 4); /* to itself: at once */
    assert_int_equal(expect(emu, 0), 4);
    assert_int_equal(expect(emu, 3 * MS), 3);
    assert_int_equal(expect(emu, 13 * MS), 1); /* 1 up, 10 on the way, 2 down */
    assert_int_equal(expect(emu, 15 * MS), 2); /* waits for the receiver's line */
    /* The lines are free again later. */
    send_one(emu, 100 * MS, 0, 1, 500, 5);
    assert_int_equal(expect(emu, 100 * MS + MS / 2 + 10 * MS + MS), 5);
    struct hth_lab_count c;
    hth_lab_emu_count(emu, 0, &c);
    assert_int_equal(c.sent, 4);
    hth_lab_emu_count(emu, 1, &c);
    assert_int_equal(c.delivered, 3);
    assert_int_equal(c.delivered_bytes, 2500);
    empty(emu);
}

TEST(full_queues_drop_packets)
{
    (void)state;
    struct hth_lab_emu *emu = hth_lab_emu_new(1, 2);
    const struct hth_lab_line up = {.up_bytes_per_s = 1e6, .queue_bytes = 3000};
    const struct hth_lab_line down = {.down_bytes_per_s = 1e5, .queue_bytes = 2000};
    hth_lab_emu_line(emu, 0, &up);
    hth_lab_emu_line(emu, 1, &down);
    for (int i = 0; i < 5; i++)
        send_one(emu, 0, 0, 1, 1000, (uint8_t)i);
    struct hth_lab_count c;
    hth_lab_emu_count(emu, 0, &c);
    assert_int_equal(c.dropped_up, 2); /* three fit */
    /* They arrive after 1, 2 and 3 ms at a line that needs 10 ms for each: two fit. */
    assert_int_equal(expect(emu, 11 * MS), 0);
    assert_int_equal(expect(emu, 21 * MS), 1);
    hth_lab_emu_count(emu, 1, &c);
    assert_int_equal(c.dropped_down, 1);
    /* Half a packet's time later there is no room for a whole packet. */
    send_one(emu, 30 * MS, 0, 1, 1000, 6);
    send_one(emu, 30 * MS, 0, 1, 1000, 7);
    send_one(emu, 30 * MS, 0, 1, 1000, 8);
    send_one(emu, 30 * MS + MS / 2, 0, 1, 1000, 9);
    send_one(emu, 31 * MS, 0, 1, 1000, 10);
    hth_lab_emu_count(emu, 0, &c);
    assert_int_equal(c.dropped_up, 3);
    hth_lab_emu_free(emu); /* with packets under way */
}

TEST(loss_has_its_probability)
{
    (void)state;
    struct hth_lab_emu *emu = hth_lab_emu_new(7, 2);
    const struct hth_link way = {.latency_us = 5, .loss = 0.1};
    enum { N = 20000 };
    hth_lab_emu_way(emu, 0, 1, &way);
    uint32_t got = 0;
    for (int i = 0; i < N; i++) {
        send_one(emu, i * MS, 0, 1, 100, 0);
        for (struct hth_lab_packet *p; (p = hth_lab_emu_next(emu, (i + 1) * MS)) != NULL; got++)
            hth_free(p);
    }
    struct hth_lab_count c;
    hth_lab_emu_count(emu, 0, &c);
    assert_int_equal(got + c.lost, N);
    assert_close(c.lost, 0.1 * N, 0, 4 * sqrt(N * 0.1 * 0.9));
    empty(emu);
}

/* Packets far apart in time have separate draws, with the mean of the law; a burst has one draw. */
TEST(jitter_is_drawn_per_burst)
{
    (void)state;
    struct hth_lab_emu *emu = hth_lab_emu_new(3, 2);
    const struct hth_link way = {
        .latency_us = 1000, .jitter_us = 5000, .jitter = HTH_JITTER_EXPONENTIAL};
    enum { N = 20000 };
    double sum_ms = 0, early = 0;
    hth_lab_emu_way(emu, 0, 1, &way);
    for (int i = 0; i < N; i++) {
        int64_t now_ns = i * 200 * MS;
        send_one(emu, now_ns, 0, 1, 100, 0);
        double ms = (double)(hth_lab_emu_due_ns(emu) - now_ns) / 1e6;
        hth_free(hth_lab_emu_next(emu, hth_lab_emu_due_ns(emu)));
        assert_true(ms >= 1);
        sum_ms += ms - 1;
        early += ms - 1 < 5;
    }
    assert_close(sum_ms / N, 5, 0, 4 * 5 / sqrt(N));
    assert_close(early / N, 1 - exp(-1), 0, 4 * 0.5 / sqrt(N));
    int64_t begin_ns = N * 200 * MS, first_ns = 0;
    for (int i = 0; i < 60; i++) /* 60 000 bytes within a segment, 1 ms apart */
        send_one(emu, begin_ns + i * MS, 0, 1, 1000, (uint8_t)i);
    for (int i = 0; i < 60; i++) {
        first_ns = i == 0 ? hth_lab_emu_due_ns(emu) : first_ns;
        assert_int_equal(expect(emu, first_ns + i * MS), i);
    }
    empty(emu);
}

/* A way keeps the order under every draw; and the same seed gives the same times. */
TEST(ways_keep_order_and_replay_from_the_seed)
{
    (void)state;
    const struct hth_link way = {
        .latency_us = 100, .jitter_us = 20000, .jitter = HTH_JITTER_NORMAL};
    int64_t due_ns[2][200];
    for (int run = 0; run < 2; run++) {
        struct hth_lab_emu *emu = hth_lab_emu_new(11, 2);
        hth_lab_emu_way(emu, 0, 1, &way);
        for (int i = 0; i < 200; i++)
            send_one(emu, i * 3 * MS, 0, 1, 100, (uint8_t)i);
        for (int i = 0; i < 200; i++) {
            due_ns[run][i] = hth_lab_emu_due_ns(emu);
            assert_int_equal(expect(emu, due_ns[run][i]), i);
        }
        empty(emu);
    }
    assert_memory_equal(due_ns[0], due_ns[1], sizeof(due_ns[0]));
}

/* ---- files --------------------------------------------------------------------------------- */

TEST(parser_reads_every_key)
{
    (void)state;
    static const char text[] =
        "seed: 9\nlink: { latency_ms: 25, jitter_ms: 5, jitter: exponential, loss: 0.001 }\n"
        "hosts:\n  - { name: home, up_mbit: 20, down_mbit: 100, queue_kib: 64 }\n"
        "  - { name: server }\n"
        "ways:\n  - { from: home, to: server, latency_ms: 100 }\n";
    char error[HTH_LAB_ERROR_MAX];
    struct hth_lab_spec *s;
    assert_ok(hth_lab_parse("t", (const uint8_t *)text, strlen(text), &s, error));
    assert_int_equal(s->seed, 9);
    assert_int_equal(s->host_count, 2);
    assert_true(s->link.jitter == HTH_JITTER_EXPONENTIAL && s->link.loss == 0.001);
    assert_true(s->hosts[0].up_mbit == 20 && s->hosts[0].queue_kib == 64);
    assert_int_equal(hth_lab_find(s, "server"), 1);
    assert_int_equal(hth_lab_find(s, "serve"), UINT32_MAX);
    assert_true(s->ways[0].link.latency_ms == 100);
    hth_lab_spec_free(s);
}

static void refuses(const char *text, const char *words)
{
    char error[HTH_LAB_ERROR_MAX];
    struct hth_lab_spec *s;
    assert_err(HTH_E_CONFIG, hth_lab_parse("t", (const uint8_t *)text, strlen(text), &s, error));
    if (strstr(error, words) == NULL)
        fail_msg("'%s' gave '%s', without '%s'", text, error, words);
    assert_null(s);
}

TEST(errors_of_files_name_the_key)
{
    (void)state;
    refuses("", "empty");
    refuses("hosts: []\n", "0 of 1");
    refuses("hosts:\n - { name: a, upp: 3 }\n", "upp");
    refuses("hosts:\n - { name: a }\n - { name: a }\n", "two hosts");
    refuses("hosts:\n - { name: 'a b' }\n", "letters");
    refuses("hosts:\n - { name: 'a:1' }\n", "letters");
    refuses("hosts:\n - { name: a, up_mbit: -1 }\n", "up_mbit is -1");
    refuses("hosts:\n - { name: a, down_mbit: 1e-300 }\n", "down_mbit is 1e-300");
    refuses("hosts:\n - { name: a, queue_kib: 1 }\n", "queue_kib is 1");
    refuses("mtu: 500\nhosts:\n - { name: a }\n", "mtu is 500");
    refuses("link: { loss: 1.5 }\nhosts:\n - { name: a }\n", "loss is 1.5");
    refuses("link: { jitter: often }\nhosts:\n - { name: a }\n", "often");
    refuses("hosts:\n - { name: a }\nways:\n - { from: a, to: b }\n", "no host 'b'");
    refuses("hosts:\n - { name: a }\nways:\n - { from: a, to: a, latency_ms: 60001 }\n",
            "latency_ms is 60001");
}

TEST(numbers_of_hosts_and_packets_are_bounded)
{
    (void)state;
    char error[HTH_LAB_ERROR_MAX], *text = hth_calloc(HTH_LAB_TEXT_MAX + 1, 1);
    struct hth_lab_spec *s;
    size_t len = 0;
    memset(text, '#', HTH_LAB_TEXT_MAX + 1);
    assert_err(HTH_E_TOO_LARGE,
               hth_lab_parse("t", (uint8_t *)text, HTH_LAB_TEXT_MAX + 1, &s, error));
    len += (size_t)sprintf(text, "hosts:\n");
    for (int i = 0; i < HTH_LAB_HOSTS_MAX; i++)
        len += (size_t)sprintf(text + len, " - { name: h%d }\n", i);
    assert_ok(hth_lab_parse("t", (uint8_t *)text, len, &s, error));
    hth_lab_spec_free(s);
    sprintf(text + len, " - { name: more }\n");
    refuses(text, "200 max");
    hth_free(text);
    /* Packets that are delayed for long do not exhaust the memory. */
    struct hth_lab_emu *emu = hth_lab_emu_new(1, 2);
    const struct hth_link slow = {.latency_us = 60 * HTH_US_PER_S};
    struct hth_lab_count c;
    hth_lab_emu_way(emu, 0, 1, &slow);
    for (uint32_t i = 0; i <= HTH_LAB_BYTES_MAX / (1u << 20); i++)
        send_one(emu, 0, 0, 1, 1u << 20, 0);
    hth_lab_emu_count(emu, 0, &c);
    assert_int_equal(c.dropped_up, 1);
    hth_lab_emu_free(emu);
}
