/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_learn.c: the scenario of learning, in small: it learns, it replays, and each kind of fault
 * shows in its own numbers and in no others.
 */
#include "core/rng.h"
#include "scenarios/idx.h"
#include "scenarios/learn.h"
#include "support/suite.h"

#include <math.h>
#include <string.h>

#define SIDE    6
#define PIXELS  (SIDE * SIDE)
#define ITEMS   512
#define CLASSES 4

static struct {
    uint8_t images[16 + ITEMS * PIXELS], labels[8 + ITEMS];
} file[2];
static struct hth_learn_data data;

/* A class is the place of a bright spot, under noise. */
static void make_data(void)
{
    struct hth_rng rng;

    hth_rng_init(&rng, 5);
    for (int f = 0; f < 2; f++) {
        hth_sim_idx_heads(file[f].images, file[f].labels, ITEMS, SIDE);
        for (int i = 0; i < ITEMS; i++) {
            uint32_t c = (uint32_t)hth_rng_below(&rng, CLASSES);

            file[f].labels[8 + i] = (uint8_t)c;
            for (uint32_t j = 0; j < PIXELS; j++)
                file[f].images[16 + i * PIXELS + (int)j] =
                    (uint8_t)(hth_rng_below(&rng, 200) + (j % CLASSES == c ? 55 : 0));
        }
    }
    data = (struct hth_learn_data){
        .images = {file[0].images, sizeof(file[0].images)},
        .labels = {file[0].labels, sizeof(file[0].labels)},
        .test_images = {file[1].images, sizeof(file[1].images)},
        .test_labels = {file[1].labels, sizeof(file[1].labels)},
        .features = PIXELS,
        .classes = CLASSES,
    };
}

static struct hth_learn_opts small(void)
{
    struct hth_learn_opts o = HTH_LEARN_OPTS_INIT;

    make_data();
    o.data = &data;
    o.d = 8;
    o.layers = 2;
    o.experts = 4;
    o.k = 2;
    o.hosts = 3;
    o.flights = 4;
    o.micro_batch = 8;
    o.updates = 120;
    o.lr = o.expert_lr = 3e-3f;
    o.evals = 4;
    o.eval_samples = o.eval_samples_last = 64;
    o.delay_ms = 20;
    o.down_us = HTH_US_PER_S;
    return o;
}

static struct hth_learn_report run(const struct hth_learn_opts *o)
{
    struct hth_learn_report r;

    assert_ok(hth_sim_learn(o, &r));
    assert_true(r.evals >= o->evals);
    assert_true(r.eval[r.evals - 1].updates == o->updates);
    assert_true(r.used > 0 && r.used <= 1 + 1e-12 && r.busiest >= 1);
    double sum = 0;
    for (size_t i = 0; i < HTH_LEARN_STALE_MAX; i++)
        sum += r.stale[i];
    assert_float_equal(sum, 1, 1e-9);
    assert_true(r.dropped == 0);
    return r;
}

TEST(trainer_learns_and_replays)
{
    struct hth_learn_opts o = small();
    struct hth_learn_report first = run(&o), again;

    (void)state;
    assert_true(first.eval[first.evals - 1].loss < 0.8 * first.eval[0].loss);
    assert_true(first.eval[first.evals - 1].accuracy > 0.5); /* 0.25 by chance */
    assert_int_equal(first.deaths, 0);
    /* Four flights: during one micro-batch three others end. */
    assert_true(first.staleness > 2 && first.staleness < 4 && first.stale[0] > 0.99);
    again = run(&o);
    assert_memory_equal(&first, &again, sizeof(first));
    o.seed = 2;
    again = run(&o);
    assert_true(again.hash != first.hash);
}

/* A lost request's answer is missing; a refused request's answer comes later. */
TEST(lost_requests_miss_answers_and_refused_ones_do_not)
{
    struct hth_learn_opts o = small();
    struct hth_learn_report calm, lost, refused;

    (void)state;
    o.delay_ms = 0;
    calm = run(&o);
    assert_true(calm.answered == 1 && calm.learned == 1 && calm.short_rows == 0);
    o.lost = 0.3;
    lost = run(&o);
    assert_true(lost.answered > 0.6 && lost.answered < 0.99);
    assert_true(lost.learned < lost.answered && lost.short_rows > 0.02);
    assert_true(lost.samples_per_s < 0.5 * calm.samples_per_s);
    o.lost = 0;
    o.refused = 0.3;
    refused = run(&o);
    assert_true(refused.answered > 0.95 && refused.samples_per_s < calm.samples_per_s);
}

TEST(host_faults_show_in_their_own_numbers)
{
    struct hth_learn_opts o = small();
    struct hth_learn_report calm = run(&o), r;

    (void)state;
    o.down = 0.3;
    r = run(&o);
    assert_true(r.deaths > 0 && r.learned < 1);
    o.down = 0;
    o.replaced = 10;
    o.blank = true;
    o.delay_ms = 200;
    r = run(&o);
    assert_true(r.deaths > 0);
    o = small();
    o.slow = 1;
    r = run(&o);
    assert_true(r.deaths == 0 && r.virtual_s > 1.05 * calm.virtual_s);
}

TEST(dense_model_and_several_trainers_run)
{
    struct hth_learn_opts o = small();
    struct hth_learn_report r;

    (void)state;
    o.experts = o.k = 1;
    o.d = 16;
    r = run(&o);
    assert_true(r.used == 1 && r.busiest == 1);
    assert_true(r.eval[r.evals - 1].accuracy > 0.5);
    o = small();
    o.trainers = 3;
    o.flights = 1;
    r = run(&o);
    assert_true(r.staleness == 0); /* each trainer has a trunk of its own */
    assert_true(r.eval[r.evals - 1].accuracy > 0.4);
}

TEST(text_model_learns)
{
    static char text[4096];
    struct hth_learn_opts o = small();
    struct hth_learn_report r;

    (void)state;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = "abcdefg "[i % 8];
    data.text = (struct hth_learn_file){text, sizeof(text)};
    o.lm = true;
    o.seq = 8;
    o.micro_batch = 2;
    o.eval_samples = o.eval_samples_last = 8;
    r = run(&o);
    assert_true(r.eval[r.evals - 1].loss < 0.5 * log(256));
}

/* The number of evaluations does not change the training. */
TEST(evaluations_do_not_change_training)
{
    struct hth_learn_opts o = small();
    struct hth_learn_report few, many;

    (void)state;
    o.lost = 0.3;
    o.updates = 400;
    o.evals = 1;
    few = run(&o);
    o.evals = 8;
    o.eval_samples = 256;
    many = run(&o);
    assert_true(many.evals > few.evals);
    assert_true(few.learned < 0.95 * few.answered);
    assert_float_equal(many.learned, few.learned, 0.02);
    assert_float_equal(many.answered, few.answered, 0.02);
    assert_float_equal(many.short_rows, few.short_rows, 0.03);
    assert_float_equal(many.samples_per_s / few.samples_per_s, 1, 0.05);
}

TEST(invalid_options_are_refused)
{
    struct hth_learn_report r;
    struct hth_learn_opts o = small();

    (void)state;
    o.experts = 5;
    assert_err(HTH_E_CONFIG, hth_sim_learn(&o, &r));
    o = small();
    o.k = 5;
    assert_err(HTH_E_CONFIG, hth_sim_learn(&o, &r));
    o = small();
    o.lost = 1;
    assert_err(HTH_E_CONFIG, hth_sim_learn(&o, &r));
    o = small();
    o.lm = true; /* without a text */
    assert_err(HTH_E_CONFIG, hth_sim_learn(&o, &r));
    o = small();
    o.limit_us = HTH_US_PER_S / 10;
    assert_err(HTH_E_TIMEOUT, hth_sim_learn(&o, &r));
}
