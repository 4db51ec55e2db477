/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer with experts in its own process: every gradient of the trunk against central
 * differences, learning, resume to the bit, evaluation, and what is not finite.
 */
#include "core/budget.h"
#include "core/mem.h"
#include "experts/store.h"
#include "support/test.h"
#include "trainer/task.h"

/* ---- gradients ------------------------------------------------------------------------------- */

/* The loss of a trainer, which is gone then. */
static double loss_of(struct task *f, struct hth_trainer *t)
{
    assert_ok(hth_trainer_eval(t));
    hth_trainer_start(t);
    task_until(f, &f->evaluated);
    task_put_down(f, t);
    return f->eval.loss;
}

/* The loss of the first micro-batch if the trunk has these values. */
static double loss_at(struct task *f, const struct hth_trainer_opts *o, const float *values,
                      size_t n)
{
    struct hth_trainer *t = task_make(f, *o);
    struct hth_params *params = hth_model_params(hth_trainer_model(t));
    double loss;

    memcpy(hth_params_flat(params, HTH_PART_VALUE), values, n * sizeof(float));
    hth_params_touched(params);
    loss = loss_of(f, t);
    assert_int_equal(f->eval.samples, o->micro_batch);
    return loss;
}

/* A step of plain SGD with rate 1 gives the gradient as old - new. Along each tensor's own gradient
 * g the slope of the loss is |g|. */
static void check_gradients(struct task *f, struct hth_trainer_opts o)
{
    struct hth_trainer *t;
    struct hth_params *params;
    float *before, *grad, *at;
    size_t n;

    o.optim.optim = (struct hth_optim){.kind = HTH_OPTIM_SGD};
    o.optim.schedule.lr = 1;
    o.optim.clip_norm = 0;
    o.local_optim = o.optim;
    o.local_optim.schedule.lr = 0;
    o.model.balance = 0;
    o.model.top_k = 4; /* all experts: a choice that changes would be a step in the loss */
    o.updates_max = 1;
    o.eval_samples = o.micro_batch;
    t = task_make(f, o);
    params = hth_model_params(hth_trainer_model(t));
    n = hth_params_flat_len(params);
    before = hth_new_array(float, n);
    grad = hth_new_array(float, n);
    at = hth_new_array(float, n);
    memcpy(before, hth_params_flat(params, HTH_PART_VALUE), n * sizeof(float));
    hth_trainer_start(t);
    task_until(f, &f->done);
    assert_int_equal(f->err, HTH_OK);
    for (size_t i = 0; i < n; i++)
        grad[i] = before[i] - hth_params_flat(params, HTH_PART_VALUE)[i];
    for (uint32_t i = 0; i < hth_params_count(params); i++) {
        struct hth_weight *w = hth_params_at(params, i);
        size_t first = hth_weight_offset(w);
        size_t count = (size_t)hth_weight_rows(w) * hth_weight_cols(w);
        double norm = 0, h, slope = 0;

        for (size_t j = 0; j < count; j++)
            norm += (double)grad[first + j] * grad[first + j];
        norm = sqrt(norm);
        h = 4e-3 / fmax(1, norm);
        assert_true(norm > 0);
        for (int side = -1; side <= 1; side += 2) {
            double loss;

            memcpy(at, before, n * sizeof(float));
            for (size_t j = 0; j < count; j++)
                at[first + j] += (float)(side * h * grad[first + j] / norm);
            loss = loss_at(f, &o, at, n);
            slope = side < 0 ? -loss : slope + loss;
        }
        slope /= 2 * h;
        if (!(fabs(slope - norm) <= 0.02 * norm + 1e-4))
            fail_msg("%s: slope %.6g, gradient %.6g", hth_weight_name(w), slope, norm);
    }
    task_put_down(f, t);
    hth_free(before);
    hth_free(grad);
    hth_free(at);
}

static void classifier_gradients_match_differences(void **state)
{
    check_gradients(*state, task_classifier());
}

static void lm_gradients_match_differences(void **state)
{
    check_gradients(*state, task_lm());
}

static void lm_gradients_with_transformers_match_differences(void **state)
{
    struct hth_trainer_opts o = task_lm();

    o.model.expert_kind = "transformer";
    check_gradients(*state, o);
}

/* With one expert per layer every row is sent to it, so that a step of plain SGD with rate 1 is the
 * gradient of the mean loss. The flight's gradient and the expert's scale then agree. */
static void expert_gradients_match_the_mean_loss(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    double h = 2e-3;

    o.model.grid_ndim = 1;
    o.model.grid_dim[0] = 1;
    o.model.top_k = 1;
    o.model.balance = 0;
    o.optim.schedule.lr = 0;
    o.local_optim.optim = (struct hth_optim){.kind = HTH_OPTIM_SGD};
    o.local_optim.schedule.lr = 1;
    o.local_optim.clip_norm = 0;
    o.updates_max = 1;
    o.eval_samples = o.micro_batch;
    for (uint32_t l = 0; l < 2; l++) {
        struct hth_trainer *t = task_make(f, o);
        struct hth_params *params = hth_expert_params(hth_trainer_local_expert(t, l, 0));
        size_t n = hth_params_flat_len(params);
        float *before = hth_new_array(float, n), *grad = hth_new_array(float, n);
        double norm = 0, loss[2];

        memcpy(before, hth_params_flat(params, HTH_PART_VALUE), n * sizeof(float));
        hth_trainer_start(t);
        task_until(f, &f->done);
        for (size_t i = 0; i < n; i++) {
            grad[i] = before[i] - hth_params_flat(params, HTH_PART_VALUE)[i];
            norm += (double)grad[i] * grad[i];
        }
        norm = sqrt(norm);
        assert_true(norm > 1e-3);
        task_put_down(f, t);
        for (int side = 0; side < 2; side++) {
            t = task_make(f, o);
            params = hth_expert_params(hth_trainer_local_expert(t, l, 0));
            for (size_t i = 0; i < n; i++)
                hth_params_flat(params, HTH_PART_VALUE)[i] +=
                    (float)((side ? h : -h) * grad[i] / norm);
            hth_params_touched(params);
            loss[side] = loss_of(f, t);
        }
        assert_close((loss[1] - loss[0]) / (2 * h), norm, 0.02, 1e-4);
        hth_free(before);
        hth_free(grad);
    }
}

/* ---- learning -------------------------------------------------------------------------------- */

static void classifier_learns(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();

    o.eval_every = 30;
    o.eval_samples = 50;
    o.eval_samples_last = UINT64_MAX;
    task_run(f, o);
    assert_int_equal(f->stats.updates, 60);
    assert_true(f->loss[0] > 1.0);
    assert_true(f->loss[59] < 0.5 * f->loss[0]);
    assert_true(f->evaluated);
    assert_int_equal(f->eval.samples, TASK_ITEMS);
    assert_true(f->eval.accuracy > 0.8);
    assert_int_equal(
        f->stats.evals,
        1); /* in the statistics of the last update; the last evaluation came after it */
    assert_int_equal(f->stats.rows_without_expert, 0);
    assert_int_equal(f->stats.staleness[0], 60);
    assert_true(hth_metrics_get(f->env->metrics, "hearth_train_updates_total") == 60);
    assert_true(hth_metrics_get(f->env->metrics, "hearth_train_samples_total") == 60 * 32);
}

static void language_model_learns(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_lm();

    o.updates_max = 80;
    o.optim.schedule.lr = 1e-2f;
    task_run(f, o);
    assert_true(f->loss[0] > 5.0);
    assert_true(f->loss[79] < 0.5 * f->loss[0]);
}

static void many_flights_learn(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    uint64_t late = 0;

    o.flights = 6;
    task_run(f, o);
    assert_int_equal(f->stats.updates, 60);
    assert_true(f->loss[59] < 0.6 * f->loss[0]);
    for (int i = 1; i < HTH_STALENESS_BUCKETS; i++)
        late += f->stats.staleness[i];
    assert_true(late > 0);
}

static void padding_does_not_change_an_evaluation(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    struct hth_trainer *t;
    double whole;

    o.updates_max = 1;
    o.eval_samples = 50;
    t = task_make(f, o);
    assert_ok(hth_trainer_eval(t));
    assert_err(HTH_E_BUSY, hth_trainer_eval(t));
    hth_trainer_start(t);
    task_until(f, &f->evaluated);
    task_put_down(f, t);
    assert_int_equal(f->eval.samples, 50);
    whole = f->eval.loss;
    o.micro_batch = 25; /* without padding the mean is the same */
    assert_close(loss_of(f, task_make(f, o)), whole, 1e-6, 0);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Experts with rate 0 have no state of their own, so that the trunk's file is the whole run. */
static struct hth_trainer_opts frozen_experts(void)
{
    struct hth_trainer_opts o = task_classifier();

    o.local_optim.schedule.lr = 0;
    o.model.noise_std = 0.1f;
    o.data.shuffle_rows = 64;
    o.updates_max = 40;
    o.optim.schedule = (struct hth_schedule){HTH_SCHEDULE_COSINE, 3e-3f, 1e-4f, 5, 40};
    return o;
}

static void resume_is_exact(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = frozen_experts();
    double whole[40];

    task_run(f, o);
    memcpy(whole, f->loss, sizeof(whole));

    o.checkpoint_path = "run/trunk.safetensors";
    o.checkpoint_every = 15;
    o.updates_max = 15;
    task_run(f, o);
    assert_true(f->saved);
    assert_memory_equal(whole, f->loss, 15 * sizeof(double));

    memset(f->loss, 0, sizeof(f->loss));
    o.updates_max = 40;
    o.resume = true;
    task_run(f, o);
    assert_int_equal(f->stats.updates, 40);
    assert_memory_equal(whole + 15, f->loss + 15, 25 * sizeof(double));
}

/* hth_trainer_stop saves also if an earlier save failed, as the disk may have room again, and
 * reports another failure. */
static void stop_saves_a_checkpoint(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = frozen_experts();
    struct hth_trainer *t;
    struct hth_train_stats stats;
    struct hth_device small = HTH_DEVICE_INIT, roomy = HTH_DEVICE_INIT;
    size_t len;

    o.flights = 3;
    o.checkpoint_path = "trunk.safetensors";
    o.checkpoint_every = 20;
    small.disk_bytes_max = 100;
    hth_node_set_device(f->node, &small);
    f->save_err = HTH_E_DISK_FULL;
    t = task_make(f, o);
    hth_trainer_start(t);
    task_until(f, &f->saved);
    uint64_t failed_at = f->stats.updates;
    while (f->stats.updates == failed_at)
        hth_world_run_for(f->world, HTH_US_PER_MS / 10);
    hth_node_set_device(f->node, &roomy);
    f->save_err = HTH_OK;
    task_stop(f, t);
    hth_trainer_stats(t, &stats);
    assert_int_equal(stats.flights, 0);
    assert_true(stats.updates > 0 && stats.updates < 40);
    assert_int_equal(stats.checkpoints, 1);
    assert_int_equal(stats.unsaved_since_us, 0);
    assert_false(f->done);
    assert_non_null(hth_node_disk_get(f->node, "trunk.safetensors", &len));
    task_put_down(f, t);
}

/* A gradient that is longer than clip_norm moves the trunk by rate times clip_norm, in its
 * direction; the schedule's first rate is that of step 0. */
static void gradients_are_clipped(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    double clips[2] = {1e-3, 2e-3}, moved[2];

    o.optim.optim = (struct hth_optim){.kind = HTH_OPTIM_SGD};
    o.optim.schedule =
        (struct hth_schedule){.kind = HTH_SCHEDULE_CONSTANT, .lr = 0.5f, .warmup_steps = 5};
    o.updates_max = 1;
    for (int i = 0; i < 2; i++) {
        o.optim.clip_norm = (float)clips[i];
        struct hth_trainer *t = task_make(f, o);
        struct hth_params *params = hth_model_params(hth_trainer_model(t));
        size_t n = hth_params_flat_len(params);
        float *before = hth_new_array(float, n);

        memcpy(before, hth_params_flat(params, HTH_PART_VALUE), n * sizeof(float));
        f->done = false;
        hth_trainer_start(t);
        task_until(f, &f->done);
        assert_int_equal(f->stats.updates, 1);
        assert_true(f->stats.grad_norm > 10 * clips[i]);
        moved[i] = 0;
        for (size_t k = 0; k < n; k++) {
            double d = (double)hth_params_flat(params, HTH_PART_VALUE)[k] - before[k];
            moved[i] += d * d;
        }
        assert_close(sqrt(moved[i]), 0.5 / 5 * clips[i], 1e-2, 0); /* limited by floats near 1 */
        hth_free(before);
        task_put_down(f, t);
    }
}

/* ---- averaging ------------------------------------------------------------------------------- */

/* Averages with a twin whose weights are all `shift` higher, so that the average is shift / 2
 * above. Rounds end a while after the offer, and training continues meanwhile. */
struct twin {
    struct task *f;
    struct hth_timer *timer;
    hth_avg_round_fn *fn;
    void *arg;
    struct hth_blob *values, *average;
    float shift;
    bool busy, stopped;
    uint64_t offers;
    const struct hth_trainer *t;
    uint64_t samples; /* at the last offer */
};

static enum hth_err twin_start(void *self, hth_avg_round_fn *fn, void *arg)
{
    struct twin *twin = self;

    twin->fn = fn;
    twin->arg = arg;
    return HTH_OK;
}

static enum hth_err twin_ready(const void *self)
{
    const struct twin *twin = self;

    return twin->busy || twin->offers >= 3 ? HTH_E_BUSY : HTH_OK;
}

static enum hth_err twin_offer(void *self, const struct hth_avg_offer *offer)
{
    struct twin *twin = self;

    struct hth_train_stats now;
    hth_trainer_stats(twin->t, &now);
    assert_true(offer->schema != 0);
    assert_true(offer->weight ==
                (double)(now.samples - twin->samples)); /* the samples since the last offer */
    twin->samples = now.samples;
    twin->offers++;
    twin->busy = true;
    twin->values = hth_blob_ref(offer->values);
    twin->average = hth_blob_try_new(offer->count * sizeof(float));
    assert_non_null(twin->average);
    for (size_t i = 0; i < offer->count; i++)
        ((float *)twin->average->data)[i] =
            ((const float *)offer->values->data)[i] + twin->shift / 2;
    hth_timer_set(twin->f->env, twin->timer, 20 * HTH_US_PER_MS);
    return HTH_OK;
}

static void twin_round(void *arg)
{
    struct twin *twin = arg;
    struct hth_avg_result result = {.values = twin->values, .average = twin->average};

    twin->busy = false;
    twin->fn(twin->arg, &result);
    hth_blob_unref(twin->values);
    hth_blob_unref(twin->average);
    twin->values = twin->average = NULL;
}

static void twin_stop(void *self)
{
    ((struct twin *)self)->stopped = true;
}

static void twin_stats(const void *self, struct hth_averager_stats *out)
{
    (void)self;
    memset(out, 0, sizeof(*out));
}

static const struct hth_averager_ops twin_ops = {
    .start = twin_start,
    .ready = twin_ready,
    .offer = twin_offer,
    .stop = twin_stop,
    .stats = twin_stats,
};

static struct twin twin;
static struct hth_averager averager;

/* Three rounds with a twin; only they move the trunk. Returns the trainer. */
static struct hth_trainer *run_beside_twin(struct task *f, float shift, bool states, float *first)
{
    struct hth_trainer_opts o = task_classifier();
    struct hth_trainer *t;

    twin = (struct twin){.f = f, .shift = shift};
    averager = (struct hth_averager){&twin_ops, &twin};
    twin.timer = hth_timer_new(f->env, twin_round, &twin);
    o.averager = &averager;
    o.share.states = states;
    o.optim.schedule.lr = 0;
    o.updates_max = 200;
    twin.t = t = task_make(f, o);
    *first = *hth_params_flat(hth_model_params(hth_trainer_model(t)), HTH_PART_VALUE);
    hth_trainer_start(t);
    task_until(f, &f->done);
    assert_int_equal(f->err, HTH_OK);
    assert_int_equal(twin.offers, 3);
    assert_int_equal(f->stats.rounds, 3);
    return t;
}

static void end_beside_twin(struct task *f, struct hth_trainer *t)
{
    task_put_down(f, t);
    assert_true(twin.stopped);
    hth_timer_free(f->env, twin.timer);
}

static void rounds_shift_the_trunk(void **state)
{
    float before;
    struct hth_trainer *t = run_beside_twin(*state, 0.5f, false, &before);
    struct task *f = *state;
    struct hth_params *params = hth_model_params(hth_trainer_model(t));

    assert_close(*hth_params_flat(params, HTH_PART_VALUE), before + 3 * 0.25, 1e-6, 0);
    assert_close(f->stats.share.distance, 0.25 * sqrt((double)hth_params_flat_len(params)), 1e-6,
                 0);
    end_beside_twin(f, t);
}

/* The optimiser's states are averaged with the parameters. The difference to the average may be
 * larger than the state has grown to meanwhile, and a mean of squares must not become negative. */
static void averaged_second_moments_stay_positive(void **state)
{
    float before;
    struct hth_trainer *t = run_beside_twin(*state, -0.5f, true, &before);
    struct hth_params *params = hth_model_params(hth_trainer_model(t));
    size_t moved = 0;

    for (size_t i = 0; i < hth_params_flat_len(params); i++) {
        assert_true(hth_params_flat(params, HTH_PART_STATE1)[i] >= 0);
        moved += hth_params_flat(params, HTH_PART_STATE0)[i] < -0.1;
    }
    assert_true(moved > 0);
    end_beside_twin(*state, t);
}

/* ---- trouble --------------------------------------------------------------------------------- */

static void not_finite_gradients_are_dropped(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    struct hth_trainer *t;
    struct hth_params *params;
    struct hth_train_stats stats;

    t = task_make(f, o);
    params = hth_model_params(hth_trainer_model(t));
    hth_params_flat(params, HTH_PART_VALUE)[0] = NAN;
    hth_params_touched(params);
    hth_trainer_start(t);
    task_until(f, &f->done);
    assert_int_equal(f->err, HTH_E_NOT_FINITE);
    hth_trainer_stats(t, &stats);
    assert_int_equal(stats.updates, 0);
    assert_true(stats.flights_not_finite >= 100);
    task_put_down(f, t);
}

/* Runs with a budget for the rows of `rows` micro-batches; returns the number of updates. */
static uint64_t updates_with_room(struct task *f, uint32_t rows)
{
    struct hth_trainer_opts o = task_classifier();
    struct hth_budget budget;
    struct hth_train_stats stats;
    struct hth_trainer *t;

    o.updates_max = 2;
    hth_budget_init(&budget, (int64_t)(rows * o.micro_batch * o.model.d * sizeof(float)), NULL);
    o.budget = &budget;
    t = task_make(f, o);
    hth_trainer_start(t);
    task_until(f, &f->done);
    hth_trainer_stats(t, &stats);
    assert_int_equal(f->err, stats.updates > 0 ? HTH_OK : HTH_E_BUDGET);
    assert_int_equal(stats.flights_failed > 0, stats.updates == 0);
    task_put_down(f, t);
    assert_int_equal(hth_budget_used(&budget), 0);
    return stats.updates;
}

/* A flight allocates rows and gradients layer by layer. If the budget refuses one, the micro-batch
 * is dropped and frees what it has. */
static void flights_without_memory_are_dropped(void **state)
{
    struct task *f = *state;
    uint32_t rows = 0;

    while (rows < 20 && updates_with_room(f, rows) == 0)
        rows++;
    /* Rows of both layers, and a gradient for each of two answers in both. */
    assert_int_equal(rows, 2 + 2 * 2);
    assert_int_equal(updates_with_room(f, rows), 2);
}

static void bad_data_stop_training(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    struct hth_trainer *t;

    f->files.labels[8 + 70] = 77;
    t = task_make(f, o);
    hth_trainer_start(t);
    task_until(f, &f->done);
    assert_int_equal(f->err, HTH_E_CORRUPT);
    assert_int_equal(f->stats.updates, 2);
    task_put_down(f, t);
}

static void bad_options_are_refused(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o;
    struct hth_trainer *t;

#define REFUSED(error, field, value)                                                               \
    do {                                                                                           \
        o = task_classifier();                                                                     \
        o.local = true;                                                                            \
        o.field = value;                                                                           \
        assert_err(error, hth_trainer_new(f->env, &o, &t));                                        \
    } while (0)
    REFUSED(HTH_E_CONFIG, flights, HTH_FLIGHTS_MAX + 1);
    REFUSED(HTH_E_CONFIG, micro_batch, HTH_MICRO_BATCH_MAX + 1);
    REFUSED(HTH_E_CONFIG, model.layers, HTH_MODEL_LAYERS_MAX + 1);
    REFUSED(HTH_E_CONFIG, model.d, HTH_MODEL_DIM_MAX + 1);
    REFUSED(HTH_E_CONFIG, model.features, o.model.features + 1);
    REFUSED(HTH_E_CONFIG, model.expert_kind, "transformer"); /* rows have no neighbours here */
    REFUSED(HTH_E_CONFIG, local, false);                     /* without rpc and directory */
    REFUSED(HTH_E_NO_FILE, data.images, "absent");
    REFUSED(HTH_OK, has_eval_data, false);
#undef REFUSED
    assert_err(HTH_E_CONFIG, hth_trainer_eval(t));
    hth_trainer_free(t);
}

/* Frees the trainer at any moment: while it reads data, runs a job, or has not begun. */
static void trainer_is_freed_at_any_moment(void **state)
{
    struct task *f = *state;

    for (int64_t us = 0; us < 3000; us += 37) {
        struct hth_trainer_opts o = task_classifier();
        struct hth_trainer *t;

        o.flights = 3;
        t = task_make(f, o);
        hth_trainer_start(t);
        hth_world_run_for(f->world, us);
        task_put_down(f, t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(classifier_gradients_match_differences, task_setup,
                                        task_teardown),
        cmocka_unit_test_setup_teardown(lm_gradients_match_differences, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(lm_gradients_with_transformers_match_differences,
                                        task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(expert_gradients_match_the_mean_loss, task_setup,
                                        task_teardown),
        cmocka_unit_test_setup_teardown(classifier_learns, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(language_model_learns, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(many_flights_learn, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(padding_does_not_change_an_evaluation, task_setup,
                                        task_teardown),
        cmocka_unit_test_setup_teardown(resume_is_exact, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(stop_saves_a_checkpoint, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(gradients_are_clipped, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(rounds_shift_the_trunk, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(averaged_second_moments_stay_positive, task_setup,
                                        task_teardown),
        cmocka_unit_test_setup_teardown(not_finite_gradients_are_dropped, task_setup,
                                        task_teardown),
        cmocka_unit_test_setup_teardown(flights_without_memory_are_dropped, task_setup,
                                        task_teardown),
        cmocka_unit_test_setup_teardown(bad_data_stop_training, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(bad_options_are_refused, task_setup, task_teardown),
        cmocka_unit_test_setup_teardown(trainer_is_freed_at_any_moment, task_setup, task_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
