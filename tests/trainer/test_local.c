/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer with experts in its own process: every gradient of the trunk against central
 * differences, learning, resume to the bit, evaluation, averages, and what is not finite.
 */
#include "core/budget.h"
#include "core/mem.h"
#include "experts/store.h"
#include "kernels/backend.h"
#include "support/suite.h"
#include "trainer/task.h"

/* ---- gradients ------------------------------------------------------------------------------- */

enum { TRUNK = -1 };

/* The trunk's, or those of a layer's only expert. */
static struct hth_params *params_of(struct hth_trainer *t, int layer)
{
    return layer == TRUNK ? task_params(t)
                          : hth_expert_params(hth_trainer_local_expert(t, (uint32_t)layer, 0));
}

/* A step of plain SGD with rate 1 gives the gradient as old - new. */
static float *gradient_of(struct task *f, const struct hth_trainer_opts *o, int layer)
{
    struct hth_trainer *t = task_make(f, *o);
    const float *now = hth_params_flat(params_of(t, layer), HTH_PART_VALUE);
    size_t n = hth_params_flat_len(params_of(t, layer));
    float *grad = hth_new_array(float, n);

    memcpy(grad, now, n * sizeof(float));
    task_end(f, t, HTH_OK);
    for (size_t i = 0; i < n; i++)
        grad[i] -= now[i];
    task_put_down(f, t);
    return grad;
}

/* The loss of the first micro-batch with these weights moved by h along that direction. */
static double loss_at(struct task *f, const struct hth_trainer_opts *o, int layer, uint32_t weight,
                      const float *along, double h)
{
    struct hth_trainer *t = task_make(f, *o);
    struct hth_params *params = params_of(t, layer);
    const struct hth_weight *w = hth_params_at(params, weight);
    size_t first = hth_weight_offset(w);

    for (size_t i = first; i < first + hth_weight_rows(w) * hth_weight_cols(w); i++)
        hth_params_flat(params, HTH_PART_VALUE)[i] += (float)(h * along[i]);
    hth_params_touched(params);
    return task_loss(f, t);
}

/* Along each tensor's own gradient g the slope of the loss is |g|. */
static void check_gradients(struct task *f, struct hth_trainer_opts o, int layer)
{
    struct hth_train_optim *moves = layer == TRUNK ? &o.optim : &o.local_optim;
    struct hth_trainer *t;
    float *grad;

    o.optim.schedule.lr = o.local_optim.schedule.lr = 0;
    moves->optim = (struct hth_optim){.kind = HTH_OPTIM_SGD};
    moves->schedule.lr = 1;
    moves->clip_norm = 0;
    o.model.balance = 0;
    o.updates_max = 1;
    o.eval_samples = o.micro_batch;
    t = task_make(f, o);
    grad = gradient_of(f, &o, layer);
    for (uint32_t i = 0; i < hth_params_count(params_of(t, layer)); i++) {
        const struct hth_weight *w = hth_params_at(params_of(t, layer), i);
        const float *g = grad + hth_weight_offset(w);
        double norm = 0, h, slope;

        for (size_t k = 0; k < (size_t)hth_weight_rows(w) * hth_weight_cols(w); k++)
            norm += (double)g[k] * g[k];
        norm = sqrt(norm);
        assert_true(norm > 0);
        h = 4e-3 / fmax(1, norm);
        slope =
            loss_at(f, &o, layer, i, grad, h / norm) - loss_at(f, &o, layer, i, grad, -h / norm);
        if (!(fabs(slope / (2 * h) - norm) <= 0.02 * norm + 1e-4))
            fail_msg("%s: slope %.6g, gradient %.6g", hth_weight_name(w), slope / (2 * h), norm);
    }
    task_put_down(f, t);
    hth_free(grad);
}

/* All experts are chosen: a choice that changes would be a step in the loss. */
TASK_TEST(trunk_gradients_match_differences)
{
    struct hth_trainer_opts o[3] = {task_classifier(), task_lm(), task_lm()};

    o[2].model.expert_kind = "transformer";
    for (size_t i = 0; i < HTH_ARRAY_LEN(o); i++) {
        o[i].model.top_k = 4;
        check_gradients(*state, o[i], TRUNK);
    }
}

/* The flight's gradient and the expert's scale agree: every row is sent to the layer's only expert,
 * so that its gradient is that of the mean loss. */
TASK_TEST(expert_gradients_match_the_mean_loss)
{
    struct hth_trainer_opts o = task_classifier();

    o.model.grid_ndim = 1;
    o.model.grid_dim[0] = 1;
    o.model.top_k = 1;
    check_gradients(*state, o, 0);
    check_gradients(*state, o, 1);
}

/* ---- learning -------------------------------------------------------------------------------- */

TASK_TEST(classifier_learns)
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
    assert_int_equal(f->eval.samples, TASK_ITEMS);
    assert_true(f->eval.accuracy > 0.8);
    assert_int_equal(f->stats.evals, 2);
    assert_int_equal(f->stats.rows_without_expert, 0);
    assert_int_equal(f->stats.staleness[0], 60);
    assert_true(hth_metrics_get(f->env->metrics, "hearth_train_updates_total") == 60);
    assert_true(hth_metrics_get(f->env->metrics, "hearth_train_samples_total") == 60 * 32);
}

TASK_TEST(padding_does_not_change_an_evaluation)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    double loss[2];

    o.updates_max = 1;
    o.eval_samples = 50;
    for (int i = 0; i < 2; i++) {
        o.micro_batch = i == 0 ? 32 : 25; /* 25: without padding */
        loss[i] = task_loss(f, task_make(f, o));
        assert_int_equal(f->eval.samples, 50);
    }
    assert_close(loss[0], loss[1], 1e-6, 0);
}

/* A gradient that is longer than clip_norm moves the trunk by rate times clip_norm, in its
 * direction; the schedule's first rate is that of step 0. */
TASK_TEST(gradients_are_clipped)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();

    o.optim.optim = (struct hth_optim){.kind = HTH_OPTIM_SGD};
    o.optim.schedule =
        (struct hth_schedule){.kind = HTH_SCHEDULE_CONSTANT, .lr = 0.5f, .warmup_steps = 5};
    o.updates_max = 1;
    for (int i = 1; i <= 2; i++) {
        o.optim.clip_norm = (float)i * 1e-3f;
        struct hth_trainer *t = task_make(f, o);
        size_t n = hth_params_flat_len(task_params(t));
        float *moved = gradient_of(f, &o, TRUNK);
        double sum = 0;

        task_put_down(f, t);
        assert_true(f->stats.grad_norm > 10 * o.optim.clip_norm);
        for (size_t k = 0; k < n; k++)
            sum += (double)moved[k] * moved[k];
        /* limited by floats near 1 */
        assert_close(sqrt(sum), 0.5 / 5 * o.optim.clip_norm, 1e-2, 0);
        hth_free(moved);
    }
}

/* ---- averages -------------------------------------------------------------------------------- */

/* Only its rounds move the trunk, and with the parameters the optimiser's states. The difference to
 * the average may be larger than a state has grown to meanwhile, and a mean of squares must not
 * become negative. */
TASK_TEST(rounds_shift_the_trunk)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    struct twin twin = {.shift = -0.5f, .left = 3};
    struct hth_trainer *t;
    size_t moved = 0;

    o.share.states = true;
    o.optim.schedule.lr = 0;
    o.updates_max = 200;
    t = twin_make(&twin, f, o);
    size_t n = hth_params_flat_len(task_params(t));
    float before = task_values(t)[3];
    task_end(f, t, HTH_OK);
    assert_int_equal(twin.offers, 3);
    assert_close(task_values(t)[3], before - 3 * 0.25, 1e-6, 0);
    assert_close(f->stats.share.distance, 0.25 * sqrt((double)n), 1e-6, 0);
    for (size_t i = 0; i < n; i++) {
        assert_true(hth_params_flat(task_params(t), HTH_PART_STATE1)[i] >= 0);
        moved += hth_params_flat(task_params(t), HTH_PART_STATE0)[i] < -0.1;
    }
    assert_true(moved > 0);
    twin_put_down(&twin);
}

/* ---- values from outside --------------------------------------------------------------------- */

static struct {
    struct twin *twin;
    double loss[2]; /* before and after the round */
    uint32_t evals;
} seen;

/* A round moves the values between two evaluations, without training in between. A forward that
 * used a packed image of the old ones would give the old loss. */
static void move_between(struct task *f)
{
    seen.loss[seen.evals++] = f->eval.loss;
    if (seen.evals == 2)
        return;
    twin_end_round(seen.twin);
    assert_ok(hth_trainer_eval(seen.twin->trainer));
}

/* Returns the values after a round, and saves them. */
static float *averaged_values(struct task *f, struct hth_trainer_opts o)
{
    struct twin twin = {.shift = 0.25f, .left = 1, .by_hand = true};
    float *values;
    size_t n;

    o.updates_max = o.eval_every = 20;
    struct hth_trainer *t = twin_make(&twin, f, o);
    float first = task_values(t)[0];
    seen.twin = &twin;
    seen.evals = 0;
    f->on_eval = move_between;
    task_end(f, t, HTH_OK);
    f->on_eval = NULL;
    assert_int_equal(seen.evals, 2);
    n = hth_params_flat_len(task_params(t));
    values = hth_new_array(float, n);
    memcpy(values, task_values(t), n * sizeof(float));
    assert_close(values[0], first + 0.125f, 1e-6, 0);
    task_stop(f, t);
    twin_put_down(&twin);
    return values;
}

/* The next forward uses them, on every CPU back end. */
TASK_TEST(averages_and_checkpoints_are_used_at_once)
{
    const struct hth_backend *backends[1 + HTH_PACKED_MAX] = {hth_backend_ref()};
    size_t count = 1 + hth_backend_packed_all(backends + 1);
    struct task *f = *state;

    assert_true(count > 1);
    for (size_t i = 0; i < count; i++) {
        struct hth_trainer_opts o = task_classifier();
        struct hth_trainer *t;

        o.backend = backends[i];
        o.optim.schedule.lr = 0;
        o.local_optim.schedule.lr = 0;
        o.eval_samples = 128;
        double first = task_loss(f, task_make(f, o));
        o.checkpoint_path = "trunk";
        float *values = averaged_values(f, o);
        assert_true(seen.loss[0] == first);
        assert_true(seen.loss[1] != first);
        o.resume = true;
        o.updates_max = 1000;
        assert_true(task_loss(f, task_make(f, o)) == seen.loss[1]);
        o.checkpoint_path = NULL;
        o.resume = false;
        t = task_make(f, o);
        memcpy(task_values(t), values, hth_params_flat_len(task_params(t)) * sizeof(float));
        hth_params_touched(task_params(t));
        assert_true(task_loss(f, t) == seen.loss[1]);
        hth_free(values);
    }
}

/* ---- trouble --------------------------------------------------------------------------------- */

TASK_TEST(not_finite_gradients_are_dropped)
{
    struct task *f = *state;
    struct hth_trainer *t = task_make(f, task_classifier());

    task_values(t)[0] = NAN;
    hth_params_touched(task_params(t));
    task_end(f, t, HTH_E_NOT_FINITE);
    assert_int_equal(f->stats.updates, 0);
    assert_true(f->stats.flights_not_finite >= 100);
    task_put_down(f, t);
}

/* Runs with a budget for the rows of `rows` micro-batches; returns the number of updates. */
static uint64_t updates_with_room(struct task *f, uint32_t rows)
{
    struct hth_trainer_opts o = task_classifier();
    struct hth_budget budget;
    struct hth_trainer *t;

    o.updates_max = 2;
    hth_budget_init(&budget, (int64_t)(rows * o.micro_batch * o.model.d * sizeof(float)), NULL);
    o.budget = &budget;
    t = task_make(f, o);
    hth_trainer_start(t);
    task_until(f, &f->done);
    hth_trainer_stats(t, &f->stats);
    assert_int_equal(f->err, f->stats.updates > 0 ? HTH_OK : HTH_E_BUDGET);
    assert_int_equal(f->stats.flights_failed > 0, f->stats.updates == 0);
    task_put_down(f, t);
    assert_int_equal(hth_budget_used(&budget), 0);
    return f->stats.updates;
}

/* A flight allocates rows and gradients layer by layer. If the budget refuses one, the micro-batch
 * is dropped and frees what it has. */
TASK_TEST(flights_without_memory_are_dropped)
{
    struct task *f = *state;
    uint32_t rows = 0;

    while (rows < 20 && updates_with_room(f, rows) == 0)
        rows++;
    /* Rows of both layers, and a gradient for each of two answers in both. */
    assert_int_equal(rows, 2 + 2 * 2);
    assert_int_equal(updates_with_room(f, rows), 2);
}

TASK_TEST(bad_data_stop_training)
{
    struct task *f = *state;
    struct hth_trainer *t = task_make(f, task_classifier());

    f->files.labels[8 + 70] = 77;
    task_end(f, t, HTH_E_CORRUPT);
    assert_int_equal(f->stats.updates, 2);
    task_put_down(f, t);
}

TASK_TEST(bad_options_are_refused)
{
    struct task *f = *state;
    struct hth_trainer_opts o[11];
    struct hth_trainer *t;

    for (size_t i = 0; i < HTH_ARRAY_LEN(o); i++) {
        o[i] = task_classifier();
        o[i].local = i != 0; /* without rpc and directory */
    }
    o[1].flights = HTH_FLIGHTS_MAX + 1;
    o[2].micro_batch = HTH_MICRO_BATCH_MAX + 1;
    o[3].model.layers = HTH_MODEL_LAYERS_MAX + 1;
    o[4].model.d = HTH_MODEL_DIM_MAX + 1;
    o[5].model.features++;
    o[6].model.expert_kind = "transformer"; /* a classifier's rows have no neighbours */
    o[7].share.mode = o[8].share.mode = HTH_SHARE_BATCH;
    o[7].share.target = 0;
    o[8].share.step_samples_max = 1;
    o[9].local = false; /* a control is alone */
    o[9].without_experts = true;
    o[9].rpc = (struct hth_rpc *)f; /* never read */
    o[9].directory = (struct hth_directory *)f;
    o[10].data.images = "absent";
    for (size_t i = 0; i < HTH_ARRAY_LEN(o); i++)
        assert_err(i == 10 ? HTH_E_NO_FILE : HTH_E_CONFIG, hth_trainer_new(f->env, &o[i], &t));
    o[0].local = true;
    o[0].has_eval_data = false;
    assert_ok(hth_trainer_new(f->env, &o[0], &t));
    assert_err(HTH_E_CONFIG, hth_trainer_eval(t));
    hth_trainer_free(t);
}

/* Frees the trainer at any moment: while it reads data, runs a job, or has not begun. */
TASK_TEST(trainer_is_freed_at_any_moment)
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
