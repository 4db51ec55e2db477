/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control of a run: a trainer without experts computes the trunk alone, moves only what the
 * trunk uses, and counts no row as lost.
 */
#include "core/mem.h"
#include "kernels/params.h"
#include "kernels/twin64.h"
#include "support/suite.h"
#include "trainer/model.h"
#include "trainer/task.h"

/* ---- the reference: the trunk of a classifier in double precision ---------------------------- */

static double *doubles(struct hth_trainer *t, const char *name)
{
    struct hth_params *params = task_params(t);
    const struct hth_weight *w = hth_params_find(params, name);

    assert_non_null(w);
    size_t n = (size_t)hth_weight_rows(w) * hth_weight_cols(w);
    double *x = hth_new_array(double, n);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)hth_params_flat(params, HTH_PART_VALUE)[hth_weight_offset(w) + i];
    return x;
}

/* The mean of -log softmax(W_out LayerNorm(W_in pixels + b_in) + b_out) of each picture's class. */
static double reference(struct task *f, struct hth_trainer *t, const struct hth_trainer_opts *o)
{
    enum { WEIGHTS = 6, ROOM = TASK_ITEMS * 64 };
    static const char *const names[WEIGHTS] = {"input.weight", "input.bias",    "norm.weight",
                                               "norm.bias",    "output.weight", "output.bias"};
    static double pixels[TASK_ITEMS * TASK_PIXELS], x[ROOM], h[ROOM], logits[ROOM];
    size_t d = o->model.d, classes = o->model.classes;
    int labels[TASK_ITEMS];
    double *w[WEIGHTS];

    assert_true(d <= 64 && classes <= 64);
    for (size_t i = 0; i < WEIGHTS; i++)
        w[i] = doubles(t, names[i]);
    for (size_t i = 0; i < TASK_ITEMS * TASK_PIXELS; i++)
        pixels[i] = (f->files.images[16 + i] / 255.0 - o->data.mean) / o->data.std;
    for (size_t i = 0; i < TASK_ITEMS; i++)
        labels[i] = f->files.labels[8 + i];
    const struct twin_norm norm = {.x = x, .gamma = w[2], .beta = w[3], .eps = 1e-5};
    twin_linear((struct twin_dims){TASK_ITEMS, TASK_PIXELS, d}, pixels, w[0], w[1], x);
    twin_layernorm(TASK_ITEMS, d, &norm, h);
    twin_linear((struct twin_dims){TASK_ITEMS, d, classes}, h, w[4], w[5], logits);
    for (size_t i = 0; i < WEIGHTS; i++)
        hth_free(w[i]);
    return twin_xent(TASK_ITEMS, classes, logits, labels, NULL) / TASK_ITEMS;
}

/* ---- the promise ----------------------------------------------------------------------------- */

static bool is_of_experts(const char *name)
{
    return strstr(name, ".gate.") != NULL || strstr(name, "layers.0.norm.") != NULL ||
           strstr(name, "layers.1.norm.") != NULL;
}

/* It starts with the trunk of a run with experts, computes that alone, and moves all of it but the
 * norm and the gate of each layer, which only experts use. */
TASK_TEST(control_is_the_trunk_alone)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    struct hth_trainer *with = task_make(f, o), *t;
    size_t n = hth_params_flat_len(task_params(with));
    float *start = hth_new_array(float, n);
    uint32_t kept = 0;
    double before;

    memcpy(start, task_values(with), n * sizeof(float));
    task_put_down(f, with);
    o.without_experts = true;
    o.model.balance = 0.5f; /* without experts to balance it must not move the trunk */
    o.eval_every = o.updates_max;
    t = task_make(f, o);
    assert_null(hth_trainer_local_expert(t, 0, 0));
    assert_int_equal(hth_params_flat_len(task_params(t)), n);
    assert_memory_equal(task_values(t), start, n * sizeof(float));
    before = reference(f, t, &o);
    task_end(f, t, HTH_OK);
    assert_int_equal(f->eval.samples, TASK_ITEMS);
    assert_close(f->eval.loss, reference(f, t, &o), 1e-4, 0);
    assert_true(f->eval.loss < 0.9 * before);
    assert_int_equal(f->eval.rows_without_expert, 0);
    assert_int_equal(f->stats.updates, 60);
    assert_int_equal(f->stats.rows_without_expert + f->stats.rows_below_k_min + f->stats.rows_short,
                     0);
    assert_int_equal(f->stats.answers + f->stats.answers_missing + f->stats.requests, 0);
    assert_int_equal(f->stats.live_experts, 0);
    assert_int_equal(f->stats.waiting_us, 0);
    assert_true(hth_metrics_get(f->env->metrics, "hearth_train_rows_without_expert_total") == 0);
    for (uint32_t i = 0; i < hth_params_count(task_params(t)); i++) {
        const struct hth_weight *w = hth_params_at(task_params(t), i);
        size_t first = hth_weight_offset(w);
        size_t bytes = (size_t)hth_weight_rows(w) * hth_weight_cols(w) * sizeof(float);
        bool same = memcmp(task_values(t) + first, start + first, bytes) == 0;

        if (same != is_of_experts(hth_weight_name(w)))
            fail_msg("%s %s", hth_weight_name(w), same ? "did not move" : "moved");
        kept += same;
    }
    assert_int_equal(kept, 2 * 4); /* norm and gate of each layer, weight and bias */
    task_put_down(f, t);
    hth_free(start);
}

TASK_TEST(language_model_learns_without_experts)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_lm();

    o.without_experts = true;
    o.optim.schedule.lr = 1e-2f;
    task_run(f, o);
    assert_true(f->stats.loss < 3.0); /* 5.5 for guesses */
    assert_int_equal(f->stats.rows_without_expert, 0);
}
