/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda.c: a trainer whose trunk is on a card: the CUDA back end with its kernels on the shim,
 * the card's memory closed to all code but kernels and copies. Its curves are those of the
 * CPU, and its checkpoints continue to the bit, on the card and across.
 */
#include "core/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/shim_control.h"
#include "support/test.h"
#include "trainer/pass.h"
#include "trainer/task.h"

#define LOSSES_MAX 200

static struct hth_cu_device device;

struct fixture {
    struct hth_world *world;
    struct hth_env *env;
    struct task_files files;
    double loss[LOSSES_MAX];
    uint64_t updates;
    double eval_loss;
    bool done;
    enum hth_err err;
};

static int setup(void **state)
{
    char why[200];
    (void)state;
    if (hth_cu_device_open(&device, &hth_gpu_shim, 0, 0, why, sizeof(why)) != HTH_OK)
        return -1;
    hth_shim_guard(true);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hth_shim_guard(false);
    assert_int_equal(device.pool.used, 0);
    hth_cu_device_close(&device);
    return 0;
}

static void open_world(struct fixture *f)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;

    memset(f, 0, sizeof(*f));
    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    f->world = hth_world_new(1, &opts);
    task_mount(f->world, &f->files, 3);
    f->env = hth_node_env(hth_world_node(f->world, "trainer", NULL));
}

static void on_update(void *arg, const struct hth_train_stats *stats)
{
    struct fixture *f = arg;

    assert_true(stats->updates >= 1 && stats->updates <= LOSSES_MAX);
    f->loss[stats->updates - 1] = stats->loss;
    f->updates = stats->updates;
}

static void on_eval(void *arg, const struct hth_eval_result *result)
{
    ((struct fixture *)arg)->eval_loss = result->loss;
}

static void on_done(void *arg, enum hth_err err)
{
    struct fixture *f = arg;

    f->done = true;
    f->err = err;
}

static bool flag(void *arg)
{
    return *(bool *)arg;
}

/* One run of a trainer from its start to its end. */
static void run(struct fixture *f, struct hth_trainer_opts o, const struct hth_backend *be)
{
    struct hth_trainer *t;

    o.local = true;
    o.backend = be;
    o.on = (struct hth_train_callbacks){on_update, on_eval, NULL, on_done, f};
    f->done = false;
    assert_ok(hth_trainer_new(f->env, &o, &t));
    hth_trainer_start(t);
    assert_true(hth_world_run_until_true(f->world, flag, &f->done, 1000 * HTH_US_PER_S));
    assert_int_equal(f->err, HTH_OK);
    assert_int_equal(f->updates, o.updates_max);
    hth_trainer_free(t);
    hth_world_run_for(f->world, HTH_US_PER_S);
}

/* Runs the task on the card and on the CPU: each loss is within the tolerance, and the loss
 * falls. */
static void same_curve(struct hth_trainer_opts o, enum hth_gpu_type type, double tolerance)
{
    struct fixture *f = hth_new(struct fixture);
    double want[LOSSES_MAX], want_eval;

    o.eval_every = o.updates_max;
    o.eval_samples = o.micro_batch;
    open_world(f);
    run(f, o, hth_backend_ref());
    memcpy(want, f->loss, sizeof(want));
    want_eval = f->eval_loss;
    run(f, o, &device.tables[type]);
    for (uint64_t i = 0; i < o.updates_max; i++) {
        if (!(fabs(f->loss[i] - want[i]) <= tolerance * want[i]))
            fail_msg("update %u: loss %.9g on the card, %.9g on the CPU", (unsigned)i + 1,
                     f->loss[i], want[i]);
    }
    assert_close(f->eval_loss, want_eval, tolerance, 0);
    assert_true(o.updates_max < 10 || want[o.updates_max - 1] < 0.9 * want[0]);
    hth_world_free(f->world);
    hth_free(f);
}

/* Uses all experts of a layer: a choice that changes with the last bit would give another curve. */
static struct hth_trainer_opts small(struct hth_trainer_opts o, uint64_t updates)
{
    o.model.grid_ndim = 1;
    o.model.grid_dim[0] = 2;
    o.model.top_k = 2;
    o.model.layers = 1;
    o.updates_max = updates;
    return o;
}

/* 200 steps of the trunk alone. */
static void trunk_alone_matches_the_cpu(void **state)
{
    struct hth_trainer_opts o = small(task_classifier(), 200);

    (void)state;
    o.model.expert_kind = "nop";
    o.model.d = 8;
    o.micro_batch = 4;
    hth_shim_guard(false); /* thousands of launches */
    same_curve(o, HTH_GPU_F32, 1e-3);
    hth_shim_guard(true);
}

static void classifier_matches_the_cpu(void **state)
{
    struct hth_trainer_opts o = small(task_classifier(), 6);

    (void)state;
    o.micro_batch = 8;
    same_curve(o, HTH_GPU_F32, 1e-3);
}

static void lm_with_transformers_matches_the_cpu(void **state)
{
    struct hth_trainer_opts o = small(task_lm(), 3);

    (void)state;
    o.model.expert_kind = "transformer";
    o.optim.schedule.lr = 1e-2f;
    o.micro_batch = 2;
    same_curve(o, HTH_GPU_F32, 1e-3);
}

static void bf16_matches_the_cpu_within_its_precision(void **state)
{
    struct hth_trainer_opts o = small(task_classifier(), 12);

    (void)state;
    o.model.expert_kind = "nop";
    o.micro_batch = 8;
    same_curve(o, HTH_GPU_BF16, 3e-2);
}

/* A run that was stopped and resumed gives the losses of one that was not stopped, and the CPU can
 * resume its file, too. */
static void checkpoint_resumes_exactly_on_card_and_cpu(void **state)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_trainer_opts o = small(task_classifier(), 8);
    const struct hth_backend *card = &device.tables[HTH_GPU_F32];
    double whole[8];

    (void)state;
    o.model.expert_kind = "nop";
    o.micro_batch = 8;
    open_world(f);
    run(f, o, card);
    memcpy(whole, f->loss, sizeof(whole));
    o.checkpoint_path = "run/trunk.safetensors";
    o.updates_max = 4;
    run(f, o, card);
    o.resume = true;
    o.updates_max = 6;
    run(f, o, card);
    assert_memory_equal(f->loss, whole, 6 * sizeof(double));
    o.updates_max = 8;
    run(f, o, hth_backend_ref());
    for (int i = 6; i < 8; i++)
        assert_close(f->loss[i], whole[i], 1e-5, 0);
    hth_world_free(f->world);
    hth_free(f);
}

/* hth_model_flat_take and _give, which averaging and checkpoints use: a buffer as plain memory, and
 * back. */
static void flat_buffers_are_copied_from_and_to_the_card(void **state)
{
    struct hth_trainer_opts o = small(task_lm(), 1);
    const struct hth_backend *be[2] = {hth_backend_ref(), &device.tables[HTH_GPU_F32]};
    float *values[2];
    size_t n = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct hth_model *m;
        float *flat;

        assert_ok(hth_model_new(be[i], &o.model, &m));
        n = hth_params_flat_len(m->params);
        values[i] = hth_new_array(float, n);
        for (enum hth_part part = HTH_PART_VALUE; part <= HTH_PART_STATE1; part++) {
            assert_ok(hth_model_flat_take(m, part, &flat));
            for (size_t k = 0; k < n; k++)
                flat[k] = part == HTH_PART_VALUE ? 2 * flat[k] : flat[k] + (float)part;
            assert_ok(hth_model_flat_give(m, part, flat, part != HTH_PART_GRAD));
        }
        for (enum hth_part part = HTH_PART_VALUE; part <= HTH_PART_STATE1; part++) {
            assert_ok(hth_params_export(m->exec, m->params, part, 0, n, values[i]));
            /* A copy that was not written is dropped; on the CPU the buffer itself is written. */
            if (part != HTH_PART_VALUE && !(part == HTH_PART_GRAD && i == 0))
                assert_true(values[i][n - 1] == (part == HTH_PART_GRAD ? 0 : (float)part));
        }
        assert_ok(hth_params_export(m->exec, m->params, HTH_PART_VALUE, 0, n, values[i]));
        hth_model_free(m);
    }
    assert_memory_equal(values[0], values[1], n * sizeof(float));
    hth_free(values[0]);
    hth_free(values[1]);
}

/* Cards have no kernels for masks and their like: said before anything is made. */
static void dense_models_name_the_other_back_end(void **state)
{
    struct hth_trainer_opts o = task_lm();
    const struct hth_backend *card = &device.tables[HTH_GPU_F32];
    char why[HTH_MODEL_WHY_MAX];
    struct hth_model *m;

    (void)state;
    assert_ok(hth_model_check(&o.model, card, why));
    o.model.dense = true;
    assert_ok(hth_model_check(&o.model, hth_backend_ref(), why));
    assert_err(HTH_E_UNSUPPORTED, hth_model_check(&o.model, card, why));
    assert_non_null(strstr(why, "--backend packed"));
    assert_err(HTH_E_UNSUPPORTED, hth_model_new(card, &o.model, &m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trunk_alone_matches_the_cpu),
        cmocka_unit_test(classifier_matches_the_cpu),
        cmocka_unit_test(lm_with_transformers_matches_the_cpu),
        cmocka_unit_test(bf16_matches_the_cpu_within_its_precision),
        cmocka_unit_test(checkpoint_resumes_exactly_on_card_and_cpu),
        cmocka_unit_test(flat_buffers_are_copied_from_and_to_the_card),
        cmocka_unit_test(dense_models_name_the_other_back_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
