/* SPDX-License-Identifier: Apache-2.0 */
/* Averagers, whole, on the lines that volunteers have: thin ones, and those over a satellite. */
#include "averaging/pit.h"
#include "support/suite.h"

#define MBIT           1e6
#define DOWN_MBIT      50.0
#define ROUNDS_STRANGE 3 /* far peers have met by then */

static struct pit pit;

/* `jitter` is the mean of what comes on top of half the round trip, as a part of it. */
static void begin(uint64_t seed, uint32_t peers, double up_mbit, bool said, double floats,
                  int64_t rtt_us, double jitter)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;

    w.ghost = true;
    w.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    w.device.up_bytes_per_s = up_mbit * MBIT / 8;
    w.device.down_bytes_per_s = HTH_MAX(up_mbit, DOWN_MBIT) * MBIT / 8;
    w.link.latency_us = rtt_us / 2;
    w.link.jitter = HTH_JITTER_EXPONENTIAL;
    w.link.jitter_us = (int64_t)(jitter * (double)rtt_us / 2);
    pit_init(&pit, seed, peers, (size_t)floats, &w);
    pit.has_cells = true;
    pit.shape = (struct hth_avg_shape){.dims = 1, .size = {peers}};
    pit.bandwidth = said ? up_mbit * MBIT : 0;
    pit_start(&pit, 15 * HTH_US_PER_S);
}

static bool is_whole(const struct hth_avg_result *r)
{
    return r->err == HTH_OK && r->round.drops == 0 && r->round.members == pit.peers &&
           r->round.weight_fraction > 1 - 1e-9;
}

/* A round of all; returns whether all averaged all. The slowest's time to reduce in *took_s. */
static bool sweep(double *took_s)
{
    bool whole = true;

    *took_s = 0;
    pit_offer_all(&pit, 1);
    assert_true(pit_run(&pit, 1000 * HTH_US_PER_S));
    for (uint32_t i = 0; i < pit.peers; i++) {
        const struct hth_avg_result *r = &pit.peer[i].result;

        whole = whole && is_whole(r);
        *took_s = HTH_MAX(*took_s, (double)r->round.reduce_us / HTH_US_PER_S);
    }
    return whole;
}

/* ---- thin lines ------------------------------------------------------------------------------ */

/* Sixteen, each with so many Mbit/s up. A round takes what its bytes take on the line: nobody is
 * given up for what it must wait for there, nor is the round, however long it takes. */
static void check_thin(uint64_t seed, double up_mbit, double mib, bool said)
{
    enum { PEERS = 16 };
    double floats = mib * (1 << 18), took_s;
    double floor_s = 2.0 * (PEERS - 1) / PEERS * floats * 32 / (up_mbit * MBIT);
    bool whole;

    begin(seed, PEERS, up_mbit, said, floats, 40 * HTH_US_PER_MS, 0.2);
    whole = sweep(&took_s);
    print_message("%4g Mbit/s up, %s, %2g MiB: %.2f s, %.3f of the line's least\n", up_mbit,
                  said ? "said" : "not said", mib, took_s, took_s / floor_s);
    assert_true(whole);
    assert_true(took_s > floor_s && took_s < 1.3 * floor_s);
    pit_stop(&pit);
}

TEST(test_thin)
{
    (void)state;
    check_thin(1, 10, 1, false);
    check_thin(2, 10, 16, true);
    check_thin(3, 5, 4, false);
    check_thin(4, 2, 4, true); /* longer than round_us */
}

/* One falls silent when a third of the bytes have gone: it is noticed within 3 s, and
 * nobody else is given up for it. The others have less to send then. */
TEST(test_thin_death)
{
    enum { PEERS = 8, DEAD = 3 };
    static const double up_mbit[] = {10, 5, 2};

    (void)state;
    for (uint32_t k = 0; k < HTH_ARRAY_LEN(up_mbit); k++) {
        double floats = 1 << 17, floor_s, took_s = 0;

        floor_s = 2.0 * (PEERS - 1) / PEERS * floats * 32 / (up_mbit[k] * MBIT);
        begin(20 + k, PEERS, up_mbit[k], true, floats, 40 * HTH_US_PER_MS, 0.2);
        pit_offer_all(&pit, 1);
        hth_world_run_for(pit.world, (int64_t)(floor_s / 3 * 1e6));
        hth_node_crash(pit.peer[DEAD].node, HTH_CRASH_SILENT);
        pit.peer[DEAD].up = false;
        assert_true(pit_run(&pit, 100 * HTH_US_PER_S));
        for (uint32_t i = 0; i < PEERS; i++) {
            const struct hth_avg_result *r = &pit.peer[i].result;

            if (i == DEAD)
                continue;
            took_s = HTH_MAX(took_s, (double)r->round.reduce_us / HTH_US_PER_S);
            assert_ok(r->err);
            assert_int_equal(r->round.drops, 1);
        }
        print_message("%4g Mbit/s up, one dies: %.2f s, %.2f s more than the line's least\n",
                      up_mbit[k], took_s, took_s - floor_s);
        assert_true(took_s < floor_s + 3);
        pit_stop(&pit);
    }
}

/* ---- long ways ------------------------------------------------------------------------------- */

/* Peers who never met take a sweep or more until there are connections, which is longer than
 * a stranger is waited for, and until all know how far the others are; then each has all in it. */
static uint32_t check_far(uint64_t seed, int64_t rtt_ms, double up_mbit, uint32_t sweeps)
{
    double took_s, longest_s = 0;
    uint32_t broken = 0;

    begin(seed, 8, up_mbit, true, 1 << 18, rtt_ms * HTH_US_PER_MS, 0.2);
    for (uint32_t k = 0; k < ROUNDS_STRANGE + sweeps; k++) {
        bool whole = sweep(&took_s);

        broken += k >= ROUNDS_STRANGE && !whole;
        if (k >= ROUNDS_STRANGE && whole)
            longest_s = HTH_MAX(longest_s, took_s);
        hth_world_run_for(pit.world, 2 * HTH_US_PER_S);
    }
    print_message("round trips of %4lld ms, %3g Mbit/s, seed %llu: %u of %u rounds have all in "
                  "them and take up to %.2f s\n",
                  (long long)rtt_ms, up_mbit, (unsigned long long)seed, sweeps - broken, sweeps,
                  longest_s);
    /* Its bytes, and a few round trips. */
    assert_true(longest_s <
                2 * 7.0 / 8 * 32 * (1 << 18) / (up_mbit * MBIT) + 6 * (double)rtt_ms / 1000);
    pit_stop(&pit);
    return broken;
}

TEST(test_far)
{
    (void)state;
    assert_int_equal(check_far(1, 300, 100, 2), 0);
    assert_int_equal(check_far(2, 600, 100, 4), 0);
    assert_int_equal(check_far(3, 600, 10, 2), 0);
    assert_int_equal(check_far(4, 1000, 100, 3), 0);
}
