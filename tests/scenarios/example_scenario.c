/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A third of the hosts lose their power for twenty seconds: how much does a trainer lose?
 * usage: example_scenario [SEED [trace]]
 */
#include "scenarios/swarm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define HOSTS 6
#define CUT   2 /* hosts that lose their power */

/* Two idx files, 64 images of 28 x 28 and 64 labels: headers, and zeros that ghosts do not read. */
static const uint8_t images[16 + 64 * 784] = {0, 0, 8, 3, 0, 0, 0, 64, 0, 0, 0, 28, 0, 0, 0, 28};
static const uint8_t labels[8 + 64] = {0, 0, 8, 1, 0, 0, 0, 64};

static void power_off(void *arg)
{
    for (uint32_t i = 0; i < CUT; i++)
        hth_node_crash(hth_swarm_host(arg, i), HTH_CRASH_SILENT);
}

static void power_on(void *arg)
{
    for (uint32_t i = 0; i < CUT; i++)
        hth_node_restart(hth_swarm_host(arg, i));
}

static void print_event(void *arg, int64_t now_us, const char *node, const char *event,
                        uint64_t detail)
{
    (void)arg;
    printf("%12" PRId64 " %-8s %-10s %" PRIx64 "\n", now_us, node, event, detail);
}

static struct hth_swarm *make_swarm(struct hth_world *world)
{
    struct hth_swarm_opts o = HTH_SWARM_OPTS_INIT;

    hth_world_mount(world, "images", images, sizeof(images));
    hth_world_mount(world, "labels", labels, sizeof(labels));
    o.hosts = HOSTS;
    o.record_life_us = 60 * HTH_US_PER_S;
    o.trainer.data.images = "images";
    o.trainer.data.labels = "labels";
    o.trainer.data.shuffle_rows = 0;
    o.trainer.updates_max = UINT32_MAX;
    return hth_swarm_new(world, &o);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_train_stats now, before = {.updates = 0};
    struct hth_open_counts leaks;

    w.ghost = true;
    w.link.jitter = HTH_JITTER_EXPONENTIAL;
    w.link.jitter_us = 5000;
    w.trace = argc > 2 ? print_event : NULL;
    struct hth_world *world = hth_world_new(seed, &w);
    struct hth_swarm *swarm = make_swarm(world);
    hth_world_at(world, 20 * HTH_US_PER_S, power_off, swarm);
    hth_world_at(world, 40 * HTH_US_PER_S, power_on, swarm);

    puts(" second  updates  live experts  answers lost");
    for (int second = 10; second <= 60; second += 10) {
        hth_world_run_for(world, 10 * HTH_US_PER_S);
        if (hth_swarm_err(swarm) != HTH_OK)
            break;
        hth_trainer_stats(hth_swarm_trainer(swarm), &now);
        printf("%7d %8" PRIu64 " %13" PRIu32 " %13" PRIu64 "\n", second,
               now.updates - before.updates, now.live_experts,
               now.answers_missing - before.answers_missing);
        before = now;
    }
    for (size_t i = 0; i < hth_world_node_count(world); i++)
        hth_node_crash(hth_world_node_at(world, i), HTH_CRASH_RESET);
    hth_world_leaks(world, &leaks);
    /* Both layers of 4 x 4 experts are back, and everything made on an env was freed. */
    bool pass = hth_swarm_err(swarm) == HTH_OK && before.live_experts == 32 &&
                before.flights_failed == 0 && hth_open_total(&leaks) == 0;
    printf("%s seed=%" PRIu64 " hash=%016" PRIx64 "\n", pass ? "PASS" : "FAIL", seed,
           hth_world_trace_hash(world));
    hth_world_free(world);
    hth_swarm_free(swarm);
    return pass ? EXIT_SUCCESS : EXIT_FAILURE;
}
