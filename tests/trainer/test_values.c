/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The next forward uses values that come from outside (an average, a checkpoint), on every CPU back
 * end: packed back ends keep images of the weights, which must follow.
 */
#include "core/mem.h"
#include "kernels/backend.h"
#include "support/test.h"
#include "trainer/task.h"

#define SHIFT 0.125f /* added to every value in a round */

struct twin;

static struct {
    struct hth_trainer *trainer;
    struct twin *twin; /* NULL: no rounds */
    double loss[2];    /* at each evaluation */
    uint32_t evals;
} seen;

static void end_round(struct twin *twin);

/* The values change between two evaluations, without training in between. A forward that used a
 * cached image of the old ones would give the old loss. */
static void on_eval(struct task *f)
{
    assert_true(seen.evals < 2);
    seen.loss[seen.evals++] = f->eval.loss;
    if (seen.twin != NULL && seen.evals == 1) {
        end_round(seen.twin);
        assert_ok(hth_trainer_eval(seen.trainer));
    }
}

static struct hth_trainer *make(struct task *f, struct hth_trainer_opts o, struct twin *twin)
{
    f->on_eval = on_eval;
    seen.evals = 0;
    seen.twin = twin;
    return seen.trainer = task_make(f, o);
}

/* ---- an averager of one round, which moves all values by SHIFT ------------------------------- */

struct twin {
    hth_avg_round_fn *fn;
    void *arg;
    struct hth_blob *values, *average;
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

    return twin->values != NULL ? HTH_E_BUSY : HTH_OK;
}

static enum hth_err twin_offer(void *self, const struct hth_avg_offer *offer)
{
    struct twin *twin = self;

    twin->values = hth_blob_ref(offer->values);
    twin->average = hth_blob_try_new(offer->count * sizeof(float));
    assert_non_null(twin->average);
    for (size_t i = 0; i < offer->count; i++)
        ((float *)twin->average->data)[i] = ((const float *)offer->values->data)[i] + SHIFT;
    return HTH_OK;
}

static void end_round(struct twin *twin)
{
    struct hth_avg_result result = {.values = twin->values, .average = twin->average};

    twin->fn(twin->arg, &result);
    hth_blob_unref(twin->values);
    hth_blob_unref(twin->average);
}

static void twin_stop(void *self)
{
    (void)self;
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

/* ---- the promise ----------------------------------------------------------------------------- */

/* The loss of a new model with these values; NULL: its initial ones. */
static double fresh_loss(struct task *f, const struct hth_trainer_opts *o, const float *values)
{
    struct hth_trainer *t = make(f, *o, NULL);
    struct hth_params *params = hth_model_params(hth_trainer_model(t));

    if (values != NULL) {
        memcpy(hth_params_flat(params, HTH_PART_VALUE), values,
               hth_params_flat_len(params) * sizeof(float));
        hth_params_touched(params);
    }
    assert_ok(hth_trainer_eval(t));
    hth_trainer_start(t);
    task_until(f, &f->evaluated);
    task_put_down(f, t);
    return seen.loss[0];
}

/* Only a round moves the trunk, after its last update. Returns the values, and saves them. */
static float *averaged_values(struct task *f, struct hth_trainer_opts o)
{
    struct twin twin = {.fn = NULL};
    struct hth_averager averager = {&twin_ops, &twin};

    o.averager = &averager;
    o.updates_max = o.eval_every = 20;
    struct hth_trainer *t = make(f, o, &twin);
    struct hth_params *params = hth_model_params(hth_trainer_model(t));
    size_t n = hth_params_flat_len(params);
    float *values = hth_new_array(float, n);
    float first = hth_params_flat(params, HTH_PART_VALUE)[0];
    hth_trainer_start(t);
    task_until(f, &f->done);
    assert_int_equal(seen.evals, 2);
    memcpy(values, hth_params_flat(params, HTH_PART_VALUE), n * sizeof(float));
    assert_close(values[0], first + SHIFT, 1e-6, 0);
    task_stop(f, t);
    task_put_down(f, t);
    return values;
}

static void check_backend(struct task *f, const struct hth_backend *backend)
{
    struct hth_trainer_opts o = task_classifier();

    o.backend = backend;
    o.optim.schedule.lr = 0;
    o.local_optim.schedule.lr = 0;
    o.eval_samples = 128;
    double first = fresh_loss(f, &o, NULL);
    o.checkpoint_path = "trunk";
    float *values = averaged_values(f, o);
    double averaged = seen.loss[1];
    assert_true(seen.loss[0] == first);
    assert_true(averaged != first);
    o.resume = true;
    o.updates_max = 1000;
    assert_true(fresh_loss(f, &o, NULL) == averaged);
    o.checkpoint_path = NULL;
    o.resume = false;
    assert_true(fresh_loss(f, &o, values) == averaged);
    hth_free(values);
}

static void next_forward_uses_averages_and_checkpoints(void **state)
{
    const struct hth_backend *backends[1 + HTH_PACKED_MAX] = {hth_backend_ref()};
    size_t count = 1 + hth_backend_packed_all(backends + 1);

    assert_true(count > 1);
    for (size_t i = 0; i < count; i++)
        check_backend(*state, backends[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(next_forward_uses_averages_and_checkpoints, task_setup,
                                        task_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
