/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency hiding: with enough flights a mean delay of 200 ms on every call costs less than a tenth
 * of the throughput; with one flight it costs most of it.
 */
#include "scenarios/latency.h"
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
