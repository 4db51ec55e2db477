/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency hiding: with enough flights a mean delay of 200 ms on every call costs less than a tenth
 * of the throughput; with one flight it costs most of it. If every call takes the same 200 ms, no
 * call is given up as lost.
 */
#include "scenarios/idx.h"
#include "scenarios/latency.h"
#include "scenarios/swarm.h"
#include "support/suite.h"

static struct hth_latency_row row_of(double delay_ms, uint32_t flights, uint32_t updates)
{
    struct hth_latency_opts o = HTH_LATENCY_OPTS_INIT;
    struct hth_latency_row row;

    o.delay_ms = delay_ms;
    o.flights = flights;
    o.updates = updates;
    assert_ok(hth_sim_latency(&o, &row));
    print_message("delay %.0f ms, %u flights: %.1f samples/s, staleness %.2f, missing %.4f\n",
                  delay_ms, flights, row.samples_per_s, row.staleness_mean, row.answers_missing);
    return row;
}

TEST(many_flights_hide_latency)
{
    struct hth_latency_row none = row_of(0, 320, 400), much = row_of(200, 320, 400);
    struct hth_latency_row one = row_of(200, 1, 20);

    assert_true(much.samples_per_s >= 0.9 * none.samples_per_s);
    assert_true(one.samples_per_s < 0.2 * none.samples_per_s);
    assert_true(much.answers_missing < 0.01);
}

#define ITEMS 64

/* Eight flights, no jitter, no failures. A deadline no longer than the usual call would miss each
 * call that met another on its way, and repeat it. */
TEST(regular_delays_lose_no_answers)
{
    static uint8_t images[16 + ITEMS * 784], labels[8 + ITEMS];
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_swarm_opts o = HTH_SWARM_OPTS_INIT;
    struct hth_train_stats s;

    w.ghost = true;
    w.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    w.link = (struct hth_link){.latency_us = 100 * HTH_US_PER_MS};
    struct hth_world *world = hth_world_new(1, &w);
    hth_sim_idx_heads(images, labels, ITEMS, 28);
    hth_world_mount(world, "images", images, sizeof(images));
    hth_world_mount(world, "labels", labels, sizeof(labels));
    o.hosts = 4;
    o.trainer.data.images = "images";
    o.trainer.data.labels = "labels";
    o.trainer.data.shuffle_rows = 0;
    o.trainer.micro_batch = 16;
    o.trainer.flights = 8;
    o.trainer.updates_max = UINT32_MAX;
    struct hth_swarm *swarm = hth_swarm_new(world, &o);
    hth_world_run_for(world, 20 * HTH_US_PER_S);
    assert_ok(hth_swarm_err(swarm));
    hth_trainer_stats(hth_swarm_trainer(swarm), &s);
    print_message("%.0f updates, %.0f calls, %.0f without an answer\n", (double)s.updates,
                  (double)s.requests, (double)s.requests_failed);
    assert_true(s.updates > 100);
    assert_int_equal(s.requests_failed, 0);
    assert_int_equal(s.answers_missing, 0);
    hth_world_free(world);
    hth_swarm_free(swarm);
}
