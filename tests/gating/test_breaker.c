/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The circuit breaker: every edge of its picture, back-off and jitter, the class of each error, and
 * the bound on memory.
 */
#include "gating/breaker.h"
#include "support/suite.h"

#define S HTH_US_PER_S

static struct hth_peer_id host_of(uint32_t n)
{
    struct hth_peer_id id = {{0}};
    memcpy(id.b + 20, &n, sizeof(n));
    return id;
}

static struct hth_breaker *breaker_with(double jitter, uint32_t hosts_max)
{
    struct hth_breaker_opts opts = HTH_BREAKER_OPTS_INIT;
    struct hth_rng rng;
    struct hth_breaker *breaker;
    opts.jitter = jitter;
    opts.hosts_max = hosts_max;
    hth_rng_init(&rng, 5);
    assert_ok(hth_breaker_new(&opts, &rng, &breaker));
    return breaker;
}

TEST(hard_failure_opens_at_once)
{
    (void)state;
    struct hth_breaker *b = breaker_with(0.0, 10);
    struct hth_peer_id h = host_of(1), other = host_of(2);
    assert_true(hth_breaker_allow(b, &h, 0));
    assert_int_equal(hth_breaker_retry_at(b, &h), INT64_MIN);
    assert_true(hth_breaker_report(b, &h, HTH_E_CLOSED, 100));
    assert_int_equal(hth_breaker_state(b, &h), HTH_BREAKER_OPEN);
    assert_int_equal(hth_breaker_retry_at(b, &h), 100 + S);
    assert_false(hth_breaker_allow(b, &h, 100));
    assert_false(hth_breaker_allow(b, &h, 99 + S));
    assert_false(hth_breaker_peek(b, &h, 99 + S));
    assert_true(hth_breaker_allow(b, &other, 100));
    /* Calls sent before it opened fail too; they neither reopen it nor extend the back-off. */
    assert_false(hth_breaker_report(b, &h, HTH_E_CLOSED, 200));
    assert_int_equal(hth_breaker_retry_at(b, &h), 100 + S);
    /* The back-off ends with exactly one probe. */
    assert_true(hth_breaker_peek(b, &h, 100 + S));
    assert_int_equal(hth_breaker_state(b, &h), HTH_BREAKER_OPEN);
    assert_true(hth_breaker_allow(b, &h, 100 + S));
    assert_int_equal(hth_breaker_state(b, &h), HTH_BREAKER_HALF_OPEN);
    assert_false(hth_breaker_allow(b, &h, 100 + S));
    assert_false(hth_breaker_report(b, &h, HTH_OK, 101 + S));
    assert_int_equal(hth_breaker_state(b, &h), HTH_BREAKER_CLOSED);
    struct hth_breaker_stats stats;
    hth_breaker_get_stats(b, &stats);
    assert_int_equal(stats.opened, 1);
    assert_int_equal(stats.probes, 1);
    assert_int_equal(stats.closed, 1);
    assert_int_equal(stats.refused, 3);
    assert_int_equal(stats.remembered, 0);
    hth_breaker_free(b);
}

TEST(soft_failures_in_a_row_open)
{
    (void)state;
    struct hth_breaker *b = breaker_with(0.0, 10);
    struct hth_peer_id h = host_of(1);
    assert_false(hth_breaker_report(b, &h, HTH_E_TIMEOUT, 0));
    assert_true(hth_breaker_allow(b, &h, 0));
    assert_false(hth_breaker_report(b, &h, HTH_OK, 1)); /* ends the run of failures */
    assert_false(hth_breaker_report(b, &h, HTH_E_TIMEOUT, 2));
    assert_false(hth_breaker_report(b, &h, HTH_E_BUSY, 3)); /* alive, but no success */
    assert_true(hth_breaker_report(b, &h, HTH_E_NOT_FINITE, 4));
    assert_false(hth_breaker_allow(b, &h, 5));
    /* A late success closes the breaker. */
    assert_false(hth_breaker_report(b, &h, HTH_OK, 6));
    assert_true(hth_breaker_allow(b, &h, 7));
    hth_breaker_free(b);
}

/* The back-off is 1, 2, 4 ... seconds, at most 60, and 1 again after a success. */
TEST(backoff_doubles_to_its_cap)
{
    (void)state;
    static const int64_t want[] = {1, 2, 4, 8, 16, 32, 60, 60, 60};
    struct hth_breaker *b = breaker_with(0.0, 10);
    struct hth_peer_id h = host_of(1);
    int64_t now = 0;
    for (size_t i = 0; i < HTH_ARRAY_LEN(want); i++) {
        assert_true(hth_breaker_report(b, &h, HTH_E_REFUSED, now));
        assert_int_equal(hth_breaker_retry_at(b, &h) - now, want[i] * S);
        now = hth_breaker_retry_at(b, &h);
        assert_true(hth_breaker_allow(b, &h, now));
    }
    for (int i = 0; i < 1000; i++) { /* the exponent is bounded */
        assert_true(hth_breaker_report(b, &h, HTH_E_TIMEOUT, now));
        now = hth_breaker_retry_at(b, &h);
        assert_true(hth_breaker_allow(b, &h, now));
    }
    assert_false(hth_breaker_report(b, &h, HTH_OK, now));
    assert_true(hth_breaker_report(b, &h, HTH_E_REFUSED, now));
    assert_int_equal(hth_breaker_retry_at(b, &h) - now, S);
    hth_breaker_free(b);
}

TEST(jitter_spreads_the_retries)
{
    (void)state;
    struct hth_breaker *b = breaker_with(0.25, 4096), *same = breaker_with(0.25, 4096);
    double sum = 0;
    int64_t least = INT64_MAX, most = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        struct hth_peer_id h = host_of(i);
        assert_true(hth_breaker_report(b, &h, HTH_E_CLOSED, 0));
        assert_true(hth_breaker_report(same, &h, HTH_E_CLOSED, 0));
        int64_t at = hth_breaker_retry_at(b, &h);
        assert_int_equal(at, hth_breaker_retry_at(same, &h)); /* drawn from the seed */
        least = HTH_MIN(least, at);
        most = HTH_MAX(most, at);
        sum += (double)at;
    }
    assert_true(least >= 3 * S / 4 && least < 77 * S / 100);
    assert_true(most <= 5 * S / 4 && most > 123 * S / 100);
    assert_close(sum / 2000, (double)S, 0.02, 0);
    hth_breaker_free(b);
    hth_breaker_free(same);
}

TEST(probe_verdict_decides_the_state)
{
    (void)state;
    struct hth_breaker *b = breaker_with(0.0, 10);
    struct hth_peer_id h = host_of(1);
    assert_true(hth_breaker_report(b, &h, HTH_E_CLOSED, 0));
    /* A probe that its caller cancels proves nothing: the next call may probe at once. */
    assert_true(hth_breaker_allow(b, &h, S));
    assert_false(hth_breaker_report(b, &h, HTH_E_CANCELED, S + 1));
    assert_int_equal(hth_breaker_state(b, &h), HTH_BREAKER_OPEN);
    assert_true(hth_breaker_allow(b, &h, S + 1));
    assert_false(hth_breaker_report(b, &h, HTH_E_NO_MEMORY, S + 2));
    assert_true(hth_breaker_allow(b, &h, S + 2));
    /* A probe without a verdict is given up after its timeout; another call may probe then. */
    assert_false(hth_breaker_allow(b, &h, S + 3));
    assert_false(hth_breaker_allow(b, &h, 31 * S + 1));
    assert_true(hth_breaker_allow(b, &h, 31 * S + 2));
    /* In HALF-OPEN one soft failure opens the breaker. */
    assert_true(hth_breaker_report(b, &h, HTH_E_TIMEOUT, 32 * S));
    assert_int_equal(hth_breaker_retry_at(b, &h), 34 * S);
    /* BUSY proves that the host is alive. */
    assert_true(hth_breaker_allow(b, &h, 34 * S));
    assert_false(hth_breaker_report(b, &h, HTH_E_BUSY, 34 * S));
    assert_int_equal(hth_breaker_state(b, &h), HTH_BREAKER_CLOSED);
    hth_breaker_free(b);
}

/* The effect of each error of the table on a closed breaker. */
TEST(every_error_has_its_class)
{
    (void)state;
    static const enum hth_err hard[] = {HTH_E_CLOSED,    HTH_E_REFUSED,     HTH_E_UNREACHABLE,
                                        HTH_E_DRAINING,  HTH_E_PROTOCOL,    HTH_E_VERSION,
                                        HTH_E_BAD_MAGIC, HTH_E_BAD_PEER_ID, HTH_E_WRONG_RUN};
    static const enum hth_err neutral[] = {HTH_OK,       HTH_E_BUSY,  HTH_E_QUEUE_FULL,
                                           HTH_E_BUDGET, HTH_E_AGAIN, HTH_E_CANCELED};
    for (int e = 0; e < HTH_ERR_COUNT; e++) {
        enum hth_err err = (enum hth_err)e;
        bool opens = false, ignored = false;
        for (size_t i = 0; i < HTH_ARRAY_LEN(hard); i++)
            opens |= hard[i] == err;
        for (size_t i = 0; i < HTH_ARRAY_LEN(neutral); i++)
            ignored |= neutral[i] == err;
        ignored |= hth_err_class(err) == HTH_CLASS_LOCAL || hth_err_class(err) == HTH_CLASS_BUG;
        struct hth_breaker *b = breaker_with(0.0, 10);
        struct hth_peer_id h = host_of(1);
        assert_int_equal(hth_breaker_report(b, &h, err, 0), opens);
        assert_int_equal(hth_breaker_report(b, &h, err, 0), !opens && !ignored);
        hth_breaker_free(b);
    }
}

TEST(full_table_drops_oldest_host)
{
    (void)state;
    struct hth_breaker *b = breaker_with(0.0, 3);
    struct hth_breaker_stats stats;
    for (uint32_t i = 0; i < 5000; i++) {
        struct hth_peer_id h = host_of(i);
        assert_true(hth_breaker_report(b, &h, HTH_E_CLOSED, 0));
        hth_breaker_get_stats(b, &stats);
        assert_true(stats.remembered <= 3);
    }
    struct hth_peer_id old = host_of(4996), kept = host_of(4997), last = host_of(4999);
    assert_true(hth_breaker_allow(b, &old, 1)); /* the oldest entry was dropped */
    assert_false(hth_breaker_allow(b, &kept, 1));
    assert_false(hth_breaker_allow(b, &last, 1));
    hth_breaker_forget(b, &last); /* the host published a newer record */
    assert_true(hth_breaker_allow(b, &last, 1));
    hth_breaker_forget(b, &last);
    hth_breaker_free(b);
    hth_breaker_free(NULL);
}

TEST(options_out_of_range_are_refused)
{
    (void)state;
    struct hth_rng rng;
    struct hth_breaker *b;
    hth_rng_init(&rng, 1);
    for (int i = 0; i < 9; i++) {
        struct hth_breaker_opts opts = HTH_BREAKER_OPTS_INIT;
        opts.failures_to_open = i == 0 ? 0 : 2;
        opts.hosts_max = i == 1 ? 0 : i == 2 ? HTH_BREAKER_HOSTS_MAX + 1 : 10;
        opts.backoff_us = i == 3 ? 0 : S;
        opts.backoff_max_us = i == 4 ? S - 1 : i == 5 ? INT64_MAX : 60 * S;
        opts.probe_timeout_us = i == 6 ? 0 : S;
        opts.jitter = i == 7 ? 1.1 : i == 8 ? (double)NAN : 0.0;
        assert_err(HTH_E_RANGE, hth_breaker_new(&opts, &rng, &b));
        assert_null(b);
    }
}
