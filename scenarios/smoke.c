/* SPDX-License-Identifier: Apache-2.0 */
/* smoke.c: a scenario with fixed numbers, and its result as a line. */
#include "scenarios/smoke.h"

#include "scenarios/scenario.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct hth_range exactly(double x)
{
    return (struct hth_range){x, x};
}

/* One peer in a hundred crashes each second, half of them silently, and returns after 5 s. */
static void add_faults(struct hth_scenario *s)
{
    s->links.loss = exactly(0.001);
    s->churn.kind = HTH_LIFE_POISSON;
    s->churn.up_s = exactly(100);
    s->churn.down_s = exactly(5);
    s->partitions.every_s = s->partitions.for_s = exactly(5);
    s->partitions.share = exactly(0.125);
    s->dht.lost_put = s->dht.lost_get = exactly(0.02);
    s->dht.partial = s->dht.repeat = exactly(0.05);
    s->chaos.sites = s->chaos.fires = 0.25;
}

static void make_scenario(const struct hth_smoke_opts *opts, struct hth_scenario *s)
{
    hth_scenario_init(s);
    s->name = (char *)(uintptr_t) "smoke";
    s->nodes = opts->peers;
    s->duration_s = (double)opts->duration_us / 1e6;
    s->load.payload_kib = opts->payload_bytes / 1024.0;
    s->load.experts = opts->experts;
    s->load.real = opts->real_payloads;
    s->links.latency_ms = exactly(20);
    s->links.jitter_ms = exactly(5);
    s->clocks.skew_ms = exactly(1000);
    if (!opts->calm)
        add_faults(s);
}

static void take_report(const struct hth_scenario_report *from, struct hth_smoke_report *to)
{
    to->pass = from->pass;
    memcpy(to->why, from->why, sizeof(to->why));
    to->hash = from->hash;
    to->virtual_us = from->virtual_us;
    to->events = from->events;
    to->calls = from->calls;
    to->calls_ok = from->calls_ok;
    to->calls_failed = from->calls_failed;
    to->calls_again = from->calls_again;
    to->calls_vanished = from->calls_vanished;
    to->calls_without_host = from->calls_without_host;
    to->crashes = from->deaths;
    to->partitions = from->partitions;
    to->bytes_delivered = from->bytes_delivered;
    to->dht_values = from->dht_values;
    to->latency_median_us = from->latency_median_us;
}

enum hth_err hth_smoke_run(const struct hth_smoke_opts *opts, struct hth_smoke_report *report)
{
    struct hth_scenario_opts run = {
        .log_level = opts->log_level, .progress = opts->progress, .arg = opts->arg};
    struct hth_scenario_report result;
    struct hth_scenario scenario;
    struct hth_plan plan;
    memset(report, 0, sizeof(*report));
    report->peers = opts->peers;
    report->asked = *opts;
    report->seed = opts->seed;
    if (opts->peers < 2 || opts->peers > 100000 || opts->experts < 1 ||
        opts->experts > HTH_SMOKE_EXPERTS_MAX || opts->duration_us < 60 * HTH_US_PER_S ||
        opts->payload_bytes == 0 || opts->payload_bytes > 64u << 20)
        return HTH_E_RANGE;
    make_scenario(opts, &scenario);
    hth_scenario_draw(&scenario, opts->seed, &plan);
    HTH_TRY(hth_scenario_run(&plan, &run, &result));
    take_report(&result, report);
    return HTH_OK;
}

/* ---- the line ------------------------------------------------------------------------------ */

static size_t append(char *out, size_t at, const char *fmt, ...) HTH_PRINTF(3, 4);

static size_t append(char *out, size_t at, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(out + at, HTH_SMOKE_LINE_MAX - at, fmt, args);
    va_end(args);
    return HTH_MIN(at + (size_t)HTH_MAX(n, 0), (size_t)HTH_SMOKE_LINE_MAX - 1);
}

const char *hth_smoke_line(const struct hth_smoke_report *r, int64_t wall_us, uint64_t memory_bytes,
                           char out[HTH_SMOKE_LINE_MAX])
{
    double virtual_s = (double)r->virtual_us / 1e6;
    size_t at = append(out, 0, "%s seed=%" PRIu64 " hash=%016" PRIx64 " peers=%" PRIu32,
                       r->pass ? "PASS" : "FAIL", r->seed, r->hash, r->peers);
    at = append(out, at,
                " virtual_s=%.1f events=%" PRIu64 " calls=%" PRIu64 " ok=%" PRIu64
                " failed=%" PRIu64 " again=%" PRIu64 " vanished=%" PRIu64 " crashes=%" PRIu64,
                virtual_s, r->events, r->calls, r->calls_ok, r->calls_failed, r->calls_again,
                r->calls_vanished, r->crashes);
    at = append(out, at, " median_ms=%.1f mib_delivered=%.0f", r->latency_median_us / 1e3,
                (double)r->bytes_delivered / 1048576.0);
    if (wall_us > 0) {
        double wall_s = (double)wall_us / 1e6;
        at = append(out, at, " wall_s=%.2f virtual_per_wall=%.1f events_per_s=%.0f", wall_s,
                    virtual_s / wall_s, (double)r->events / wall_s);
    }
    if (memory_bytes > 0)
        at = append(out, at, " memory_mib=%.0f", (double)memory_bytes / 1048576.0);
    if (!r->pass)
        append(out, at,
               " why=\"%s\" again=\"hearth sim smoke --peers %" PRIu32 " --seed %" PRIu64
               " --duration %" PRIi64 "us --payload %" PRIu32 " --experts %" PRIu32 "%s%s\"",
               r->why, r->peers, r->seed, r->asked.duration_us, r->asked.payload_bytes,
               r->asked.experts, r->asked.calm ? " --calm" : "",
               r->asked.real_payloads ? " --real-payloads" : "");
    return out;
}
