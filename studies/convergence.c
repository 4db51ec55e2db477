/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convergence.c: hearth sim convergence: learning under delays, lost calls and hosts that are
 * down.
 */
#include "studies/learn.h"
#include "studies/questions.h"
#include "studies/tools.h"

#define MID  16 /* experts of a layer in parts with a fixed number */
#define SLOW 1000.0
#define LOSS 0.1

static const struct hth_study_panel panels[] = {
    {"lost", "Calls lost: accuracy", HTH_LEARN_FAIL, HTH_LEARN_RIGHT, false, false, true},
    {"lost", "Calls lost: rows that had fewer than 4 answers", HTH_LEARN_FAIL, HTH_LEARN_SHORT,
     false, false, false},
    {"lost", "Calls lost: speed", HTH_LEARN_FAIL, HTH_LEARN_USEFUL_PER_S, false, true, false},
    {"down", "Hosts down: accuracy", HTH_LEARN_FAIL, HTH_LEARN_RIGHT, false, false, true},
    {"down", "Hosts down: speed", HTH_LEARN_FAIL, HTH_LEARN_USEFUL_PER_S, false, true, false},
    {"down", "Hosts down: work that no expert learned from", HTH_LEARN_FAIL, HTH_LEARN_WASTED,
     false, false, false},
    {"experts", "More experts (1: dense)", HTH_LEARN_EXPERTS, HTH_LEARN_RIGHT, true, false, true},
    {"experts", "More experts: speed", HTH_LEARN_EXPERTS, HTH_LEARN_USEFUL_PER_S, true, true,
     false},
    {"experts", "Are they used? (1: all alike)", HTH_LEARN_EXPERTS, HTH_LEARN_BUSIEST, true, false,
     false},
    {"staleness", "Micro-batches in the air at 1000 ms", HTH_LEARN_FLIGHTS, HTH_LEARN_RIGHT, true,
     false, true},
    {"histogram", "Staleness: 32 in the air at 1000 ms", HTH_LEARN_STALE, HTH_LEARN_SHARE, false,
     false, false},
    {"curves", "Loss against updates (16 samples each)", HTH_LEARN_UPDATES, HTH_LEARN_LOSS, false,
     false, true},
    {"curves", "Accuracy against samples", HTH_LEARN_SEEN, HTH_LEARN_RIGHT, false, false, true},
    {"curves", "Loss against virtual time", HTH_LEARN_TIME_S, HTH_LEARN_LOSS, true, false, true},
    {"curves", "Accuracy against virtual time", HTH_LEARN_TIME_S, HTH_LEARN_RIGHT, true, false,
     true},
    {"rates", "Learning rates at 1000 ms (of the experts in proportion)", HTH_LEARN_RATE,
     HTH_LEARN_RIGHT, true, false, true},
    {"trainers", "Trainers that average: 100 ms", HTH_LEARN_TRAINERS, HTH_LEARN_RIGHT, true, false,
     true},
    {"trainers", "Trainers that average: speed", HTH_LEARN_TRAINERS, HTH_LEARN_USEFUL_PER_S, true,
     true, false},
    {"grace", "Grace: 1000 ms and 10 % of the calls lost", HTH_LEARN_GRACE_S, HTH_LEARN_RIGHT, true,
     false, true},
    {"grace", "Grace: speed", HTH_LEARN_GRACE_S, HTH_LEARN_USEFUL_PER_S, true, false, false},
    {"lm", "Language model, calls lost", HTH_LEARN_FAIL, HTH_LEARN_BITS, false, false, true}};

static const double fails[] = {0.01, 0.05, 0.1, 0.2, 0.5};
static const uint32_t models[] = {1, 4, 16, 64};
static const char *const model_names[] = {"dense", "4 experts", "16 experts", "64 experts"};

static const char *delay_name(double ms)
{
    return ms < 50 ? "0 ms" : ms < 500 ? "100 ms" : "1000 ms";
}

/* Add the points without failures to the parts that vary failures. */
static void add_unfailing(struct hth_learn_study *s, double delay_ms)
{
    hth_learn_add(s, "lost", delay_name(delay_ms), 0);
    hth_learn_add(s, "down", delay_name(delay_ms), 0);
    if (delay_ms == SLOW)
        hth_learn_add(s, "lost", "refused 1000 ms", 0);
}

/* Run each model in a calm world, with delays, and with delays and lost calls. */
static void add_models(struct hth_learn_study *s)
{
    for (size_t m = 0; m < HTH_ARRAY_LEN(models); m++) {
        struct hth_learn_opts o = hth_learn_at(s, 0, models[m]);
        hth_learn_group(s, &o);
        hth_learn_add(s, "experts", "0 ms", 0);
        if (models[m] == MID) {
            hth_learn_add_curves(s, "curves", "16 experts 0 ms", 0);
            add_unfailing(s, 0);
            o = hth_learn_at(s, 100, MID);
            hth_learn_group(s, &o);
            add_unfailing(s, 100);
        }
        o = hth_learn_at(s, SLOW, models[m]);
        hth_learn_group(s, &o);
        hth_learn_add(s, "experts", "1000 ms", 0);
        hth_learn_add(s, "staleness", model_names[m], 0);
        hth_learn_add_histogram(s, "histogram", model_names[m], 0);
        hth_learn_add_curves(s, "curves", model_names[m], 0);
        if (models[m] != 4)
            hth_learn_add(s, "rates", model_names[m], 0);
        if (models[m] == MID)
            add_unfailing(s, SLOW);
        o.lost = LOSS;
        hth_learn_group(s, &o);
        hth_learn_add(s, "experts", "1000 ms 10 % lost", LOSS);
        if (models[m] != MID)
            continue;
        hth_learn_add_curves(s, "curves", "16 experts 10 % lost", LOSS);
        hth_learn_add(s, "lost", "1000 ms", LOSS);
        hth_learn_add(s, "grace", "16 experts", LOSS);
    }
}

static void add_staleness(struct hth_learn_study *s)
{
    static const uint32_t flights[] = {4, 16, 64};
    static const float factors[] = {1.0f / 3, 3};
    for (size_t m = 0; m < HTH_ARRAY_LEN(models); m++) {
        for (size_t i = 0; i < HTH_ARRAY_LEN(flights); i++) {
            struct hth_learn_opts o = hth_learn_at(s, SLOW, models[m]);
            o.flights = flights[i];
            hth_learn_group(s, &o);
            hth_learn_add(s, "staleness", model_names[m], 0);
        }
        for (size_t i = 0; i < HTH_ARRAY_LEN(factors) && models[m] != 4; i++) {
            struct hth_learn_opts o = hth_learn_at(s, SLOW, models[m]);
            o.lr *= factors[i];
            o.expert_lr *= factors[i];
            hth_learn_group(s, &o);
            hth_learn_add(s, "rates", model_names[m], 0);
        }
    }
}

static void add_failures(struct hth_learn_study *s)
{
    static const double delays[] = {0, 100, SLOW};
    struct hth_learn_opts o;
    for (size_t d = 0; d < HTH_ARRAY_LEN(delays); d++)
        for (size_t i = 0; i < HTH_ARRAY_LEN(fails); i++) {
            o = hth_learn_at(s, delays[d], MID);
            o.lost = fails[i];
            if (delays[d] != SLOW || fails[i] != LOSS) { /* add_models has added that point */
                hth_learn_group(s, &o);
                hth_learn_add(s, "lost", delay_name(delays[d]), fails[i]);
            }
            o.lost = 0;
            o.down = fails[i];
            hth_learn_group(s, &o);
            hth_learn_add(s, "down", delay_name(delays[d]), fails[i]);
        }
    for (size_t i = 0; i < HTH_ARRAY_LEN(fails); i++) {
        o = hth_learn_at(s, SLOW, MID);
        o.refused = fails[i];
        hth_learn_group(s, &o);
        hth_learn_add(s, "lost", "refused 1000 ms", fails[i]);
    }
}

static void add_trainers(struct hth_learn_study *s)
{
    static const uint32_t trainers[] = {1, 4, 16, 64};
    for (size_t i = 0; i < HTH_ARRAY_LEN(trainers); i++) {
        struct hth_learn_opts o = hth_learn_at(s, 100, MID);
        o.trainers = trainers[i];
        o.flights = 1;
        o.updates = HTH_MAX(o.updates / 16, 1u) * trainers[i];
        hth_learn_group(s, &o);
        hth_learn_add(s, "trainers", "16 experts", 0);
    }
}

static void add_grace(struct hth_learn_study *s)
{
    static const int64_t grace_ms[] = {250, 500, 1000, 2000, 8000};
    for (size_t i = 0; i < HTH_ARRAY_LEN(grace_ms); i++) {
        struct hth_learn_opts o = hth_learn_at(s, SLOW, MID);
        o.lost = LOSS;
        o.grace_us = grace_ms[i] * HTH_US_PER_MS;
        hth_learn_group(s, &o);
        hth_learn_add(s, "grace", "16 experts", LOSS);
    }
}

static void add_lm(struct hth_learn_study *s)
{
    static const struct {
        const char *series;
        uint32_t experts;
        double delay_ms;
    } lines[] = {
        {"16 experts 0 ms", MID, 0}, {"16 experts 1000 ms", MID, SLOW}, {"dense 1000 ms", 1, SLOW}};
    for (size_t l = 0; l < HTH_ARRAY_LEN(lines); l++)
        for (int lost = 0; lost < 2; lost++) {
            struct hth_learn_opts o = hth_learn_at(s, lines[l].delay_ms, lines[l].experts);
            o.lm = true;
            o.layers = 2;
            o.micro_batch = 4;
            o.eval_samples = o.eval_samples_last = s->quick ? 32 : 256;
            o.updates /= 2;
            o.lost = lost * LOSS;
            hth_learn_group(s, &o);
            hth_learn_add(s, "lm", lines[l].series, o.lost);
        }
}

static void add_points(struct hth_learn_study *s)
{
    add_models(s);
    add_staleness(s);
    add_failures(s);
    add_trainers(s);
    add_grace(s);
    if (s->text != NULL)
        add_lm(s);
}

static const char about[] =
    "The production trainer, experts, gate and protocol learn Fashion-MNIST in a simulated world, "
    "with real arithmetic. The model: 784 to 32, four mixture layers, each of 16 feed-forward "
    "experts (32 to 128 to 32) unless said otherwise, the best 4 for each row. Dense: one expert "
    "of twice the width in each layer, which is the same work for a row. A micro-batch is 16 rows; "
    "an expert steps after 16 rows. Every message is delayed by an exponential time, half of the "
    "mean "
    "each way, and waits for those before it. In the air: 4, 16, 32 micro-batches at 0, 100, 1000 "
    "ms. Lost: a request is never answered, and the trainer waits for its deadline, asks again "
    "once, or goes on without when the grace is over (4 s at 1000 ms, else 0.5 s). Refused: it is "
    "refused and asked again. Down: hosts are up and down for exponential times, down 10 s on "
    "average, "
    "half of the crashes silent; they save their experts every 10 s. Evaluations on the way happen "
    "in the failing world, the last one in a calm one: 1024 pictures of the test set. Staleness is "
    "counted in updates of the trunk from the start of a micro-batch to its own. Work that no "
    "expert learned from: (row, expert) pairs that were asked for and gave no answer, or whose "
    "gradient was lost.";

int hth_sim_convergence_verb(int argc, char **argv)
{
    static const struct hth_learn_verb verb = {
        .doc = "How do delays and failures affect learning? A mixture of experts learns "
               "Fashion-MNIST in a simulated swarm, beside a dense model of equal work. Parts: "
               "experts, staleness, histogram, curves, rates, lost, down, trainers, grace, and "
               "with --text lm.",
        .hosts = 8,
        .fail = {"fail_pct", "calls lost or hosts down (%)", 0},
        .add_points = add_points,
        .study = {.name = "convergence",
                  .title = "Learning under delays and failures",
                  .about = about,
                  .panels = panels,
                  .panel_count = HTH_ARRAY_LEN(panels)},
    };
    return hth_learn_verb(&verb, argc, argv);
}
