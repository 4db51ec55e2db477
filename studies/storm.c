/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm.c: hearth sim storm: hosts replaced, calls lost and hosts slow, one by one and all
 * together.
 */
#include "studies/learn.h"
#include "studies/questions.h"
#include "studies/tools.h"

#define EXPERTS  16
#define DELAY_MS 1000.0

/* A storm of strength 1. */
#define REPLACED 0.3 /* of the hosts, per minute */
#define LOST     0.1
#define SLOW     0.2

static const struct hth_study_panel panels[] = {
    {"strength", "Goodput", HTH_LEARN_FAIL, HTH_LEARN_USEFUL_PER_S, false, false, false},
    {"strength", "Accuracy", HTH_LEARN_FAIL, HTH_LEARN_RIGHT, false, false, true},
    {"strength", "Loss at the end", HTH_LEARN_FAIL, HTH_LEARN_LOSS, false, false, true},
    {"strength", "Work that no expert learned from", HTH_LEARN_FAIL, HTH_LEARN_WASTED, false, false,
     false},
    {"curves", "Accuracy against updates (16 samples each)", HTH_LEARN_UPDATES, HTH_LEARN_RIGHT,
     false, false, true},
    {"curves", "Accuracy against virtual time", HTH_LEARN_TIME_S, HTH_LEARN_RIGHT, true, false,
     true}};

static const struct {
    const char *name;
    bool replaced, blank, lost, slow;
} weathers[] = {{"hosts replaced", true, false, false, false},
                {"calls lost", false, false, true, false},
                {"hosts slow", false, false, false, true},
                {"all three", true, false, true, true},
                {"all three and experts gone", true, true, true, true}};

static void add_calm(struct hth_learn_study *s)
{
    struct hth_learn_opts o = hth_learn_at(s, DELAY_MS, EXPERTS);
    hth_learn_group(s, &o);
    hth_learn_add(s, "storm", "calm", 0);
    for (size_t w = 0; w < HTH_ARRAY_LEN(weathers); w++)
        hth_learn_add(s, "strength", weathers[w].name, 0);
    hth_learn_add_curves(s, "curves", "calm", 0);
}

static void add_points(struct hth_learn_study *s)
{
    static const double strengths[] = {0.5, 1, 2};
    add_calm(s);
    for (size_t w = 0; w < HTH_ARRAY_LEN(weathers); w++)
        for (size_t i = 0; i < HTH_ARRAY_LEN(strengths); i++) {
            struct hth_learn_opts o = hth_learn_at(s, DELAY_MS, EXPERTS);
            o.replaced = weathers[w].replaced * strengths[i] * REPLACED;
            o.lost = weathers[w].lost * strengths[i] * LOST;
            o.slow = weathers[w].slow * strengths[i] * SLOW;
            o.blank = weathers[w].blank;
            hth_learn_group(s, &o);
            hth_learn_add(s, "strength", weathers[w].name, strengths[i]);
            if (strengths[i] != 1)
                continue;
            hth_learn_add(s, "storm", weathers[w].name, 1);
            hth_learn_add_curves(s, "curves", weathers[w].name, 1);
        }
}

static const char about[] =
    "The swarm of `hearth sim convergence` (16 experts a layer, the best 4 of each row, 1000 ms, "
    "32 micro-batches in the air) on 10 hosts, in a storm. Strength 100 %: three in ten hosts are "
    "replaced every minute, one in ten requests is never answered, and two hosts of ten compute "
    "and send at a tenth of the speed. A replaced host crashes, half of the times silently, and "
    "its successor serves the same experts a second later, as they were last saved (every 10 s); "
    "experts gone: it has no checkpoint, and begins with new ones. Goodput is samples a second "
    "times the "
    "share of the work that experts learned from. The last evaluation happens in a calm world.";

int hth_sim_storm_verb(int argc, char **argv)
{
    static const struct hth_learn_verb verb = {
        .doc = "Hosts are replaced, calls are lost and hosts are slow, one by one and all at once: "
               "goodput and learning against a calm world. Parts: storm (at full strength), curves "
               "(of it), strength (half, full, twice).",
        .hosts = 10,
        .fail = {"strength_pct", "strength of the storm (%)", 0},
        .add_points = add_points,
        .study = {.name = "storm",
                  .title = "Learning in a storm",
                  .about = about,
                  .panels = panels,
                  .panel_count = HTH_ARRAY_LEN(panels)},
    };
    return hth_learn_verb(&verb, argc, argv);
}
