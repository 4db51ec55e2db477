/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda.c: a trainer whose trunk is on a card: the CUDA back end with its kernels on the shim,
 * the card's memory closed to all code but kernels and copies. Its curves are those of the
 * CPU, and its checkpoints continue to the bit, on the card and across.
 */
#include "core/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/shim_control.h"
#include "support/suite.h"
#include "trainer/pass.h"
#include "trainer/task.h"

static struct hth_cu_device device;

static int setup(void **state)
{
    char why[200];
    if (hth_cu_device_open(&device, &hth_gpu_shim, 0, 0, why, sizeof(why)) != HTH_OK)
        return -1;
    hth_shim_guard(true);
    return task_setup(state);
}

static int teardown(void **state)
{
    task_teardown(state);
    hth_shim_guard(false);
    assert_int_equal(device.pool.used, 0);
    hth_cu_device_close(&device);
    return 0;
}

#define CARD_TEST(name) TEST_WITH(name, setup, teardown)

/* Runs the task on the card and on the CPU: each loss is within the tolerance, and the loss
 * falls. */
static void same_curve(struct task *f, struct hth_trainer_opts o, enum hth_gpu_type type,
                       double tolerance)
{
    double want[TASK_UPDATES_MAX], want_eval;

    o.eval_every = o.updates_max;
    o.eval_samples = o.micro_batch;
    o.backend = hth_backend_ref();
    task_run(f, o);
    memcpy(want, f->loss, sizeof(want));
    want_eval = f->eval.loss;
    o.backend = &device.tables[type];
    task_run(f, o);
    for (uint64_t i = 0; i < o.updates_max; i++) {
        if (!(fabs(f->loss[i] - want[i]) <= tolerance * want[i]))
            fail_msg("update %u: loss %.9g on the card, %.9g on the CPU", (unsigned)i + 1,
                     f->loss[i], want[i]);
    }
    assert_close(f->eval.loss, want_eval, tolerance, 0);
    assert_true(o.updates_max < 10 || want[o.updates_max - 1] < 0.9 * want[0]);
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

CARD_TEST(classifier_matches_the_cpu)
{
    struct hth_trainer_opts o = small(task_classifier(), 6);

    o.micro_batch = 8;
    same_curve(*state, o, HTH_GPU_F32, 1e-3);
}

CARD_TEST(lm_with_transformers_matches_the_cpu)
{
    struct hth_trainer_opts o = small(task_lm(), 3);

    o.model.expert_kind = "transformer";
    o.optim.schedule.lr = 1e-2f;
    o.micro_batch = 2;
    same_curve(*state, o, HTH_GPU_F32, 1e-3);
}

CARD_TEST(bf16_matches_the_cpu_within_its_precision)
{
    struct hth_trainer_opts o = small(task_classifier(), 12);

    o.model.expert_kind = "nop";
    o.micro_batch = 8;
    same_curve(*state, o, HTH_GPU_BF16, 3e-2);
}

/* A run that was stopped and resumed gives the losses of one that was not stopped, and the CPU can
 * resume its file, too. */
CARD_TEST(checkpoint_resumes_exactly_on_card_and_cpu)
{
    struct task *f = *state;
    struct hth_trainer_opts o = small(task_classifier(), 8);
    double whole[8];

    o.model.expert_kind = "nop";
    o.micro_batch = 8;
    o.backend = &device.tables[HTH_GPU_F32];
    task_run(f, o);
    memcpy(whole, f->loss, sizeof(whole));
    o.checkpoint_path = "run/trunk.safetensors";
    o.updates_max = 4;
    task_run(f, o);
    o.resume = true;
    o.updates_max = 6;
    task_run(f, o);
    assert_memory_equal(f->loss, whole, 6 * sizeof(double));
    o.updates_max = 8;
    o.backend = hth_backend_ref();
    task_run(f, o);
    for (int i = 6; i < 8; i++)
        assert_close(f->loss[i], whole[i], 1e-5, 0);
}

/* hth_model_flat_take and _give, which averaging and checkpoints use: a buffer as plain memory, and
 * back. */
CARD_TEST(flat_buffers_are_copied_from_and_to_the_card)
{
    struct hth_trainer_opts o = small(task_lm(), 1);
    const struct hth_backend *be[2] = {hth_backend_ref(), &device.tables[HTH_GPU_F32]};
    float *values[2];
    size_t n = 0;

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
CARD_TEST(dense_models_name_the_other_back_end)
{
    struct hth_trainer_opts o = task_lm();
    const struct hth_backend *card = &device.tables[HTH_GPU_F32];
    char why[HTH_MODEL_WHY_MAX];
    struct hth_model *m;

    assert_ok(hth_model_check(&o.model, card, why));
    o.model.dense = true;
    assert_ok(hth_model_check(&o.model, hth_backend_ref(), why));
    assert_err(HTH_E_UNSUPPORTED, hth_model_check(&o.model, card, why));
    assert_non_null(strstr(why, "--backend packed"));
    assert_err(HTH_E_UNSUPPORTED, hth_model_new(card, &o.model, &m));
}
