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

/* A round of all that are up, `dead` of all are not; returns whether each averaged with all others,
 * and gave up on nobody else. The slowest's time to reduce in *took_s. */
static bool ends_whole(uint32_t dead, double *took_s)
{
    bool whole = true;

    *took_s = 0;
    assert_true(pit_run(&pit, 1000 * HTH_US_PER_S));
    for (uint32_t i = 0; i < pit.peers; i++) {
        const struct hth_avg_result *r = &pit.peer[i].result;

        if (!pit.peer[i].up)
            continue;
        whole &= r->err == HTH_OK && r->round.drops == dead && r->round.members == pit.peers &&
                 (dead > 0 || r->round.weight_fraction > 1 - 1e-9);
        *took_s = HTH_MAX(*took_s, (double)r->round.reduce_us / HTH_US_PER_S);
    }
    return whole;
}

/* ---- thin lines ------------------------------------------------------------------------------ */

/* Each with so many Mbit/s up. A round takes what its bytes take on the line: nobody is given up
 * for what it must wait for there, nor is the round, however long it takes. One that falls silent
 * when a third of the bytes have gone is noticed within 3 s. */
TEST(test_thin)
{
    static const struct {
        uint32_t peers;
        double up_mbit, mib;
        bool said, dies;
    } cases[] = {{16, 10, 1, false, false}, {16, 10, 16, true, false}, {16, 5, 4, false, false},
                 {16, 2, 4, true, false}, /* longer than round_us */
                 {8, 10, 0.5, true, true},  {8, 5, 0.5, true, true},   {8, 2, 0.5, true, true}};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        uint32_t n = cases[k].peers;
        double floats = cases[k].mib * (1 << 18), took_s;
        double floor_s = 2.0 * (n - 1) / n * floats * 32 / (cases[k].up_mbit * MBIT);

        begin(1 + k, n, cases[k].up_mbit, cases[k].said, floats, 40 * HTH_US_PER_MS, 0.2);
        pit_offer_all(&pit, 1);
        if (cases[k].dies) {
            hth_world_run_for(pit.world, (int64_t)(floor_s / 3 * 1e6));
            hth_node_crash(pit.peer[3].node, HTH_CRASH_SILENT);
            pit.peer[3].up = false;
        }
        assert_true(ends_whole(cases[k].dies, &took_s));
        print_message("%4g Mbit/s up, %s, %3g MiB%s: %.2f s, %.3f of the line's least\n",
                      cases[k].up_mbit, cases[k].said ? "said" : "not said", cases[k].mib,
                      cases[k].dies ? ", one dies" : "", took_s, took_s / floor_s);
        if (cases[k].dies)
            assert_true(took_s < floor_s + 3);
        else
            assert_true(took_s > floor_s && took_s < 1.3 * floor_s);
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
        bool whole;

        pit_offer_all(&pit, 1);
        whole = ends_whole(0, &took_s);
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
