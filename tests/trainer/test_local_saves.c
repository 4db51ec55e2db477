/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of a trainer with experts in its own process: the experts are saved and come back
 * with the trunk, to the bit, and a longer run's file is never lost.
 */
#include <string.h>

#include "core/mem.h"
#include "experts/store.h"
#include "support/test.h"
#include "trainer/task.h"

#define UPDATES 40
#define SAVED   15

/* Gradients wait for their step at each checkpoint. */
static struct hth_trainer_opts options(void)
{
    struct hth_trainer_opts o = task_classifier();

    o.local = true;
    o.local_step_rows = 100;
    o.model.noise_std = 0.1f;
    o.data.shuffle_rows = 64;
    o.optim.schedule = (struct hth_schedule){HTH_SCHEDULE_COSINE, 3e-3f, 1e-4f, 5, UPDATES};
    o.checkpoint_path = "run/trunk.safetensors";
    o.experts_dir = "run/experts";
    o.checkpoint_every = SAVED;
    o.eval_every = 1000;
    o.eval_samples_last = UINT64_MAX;
    return o;
}

/* Trains up to that many updates; returns the loss of the test at the end. */
static double train_to(struct task *f, struct hth_trainer_opts o, uint64_t updates)
{
    struct hth_trainer *t;

    o.updates_max = updates;
    memset(f->loss, 0, sizeof(f->loss));
    t = task_make(f, o);
    hth_trainer_start(t);
    task_until(f, &f->done);
    assert_ok(f->err);
    hth_trainer_stats(t, &f->stats);
    task_put_down(f, t);
    return f->eval.loss;
}

/* A run that ended at a checkpoint and was resumed equals one that went on after it, as the experts
 * come back with the trunk. */
static void resume_brings_local_experts_back(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options();
    double whole[UPDATES], whole_test = train_to(f, o, UPDATES), test;

    memcpy(whole, f->loss, sizeof(whole));
    o.checkpoint_path = "again/trunk.safetensors";
    o.experts_dir = "again/experts";
    test = train_to(f, o, SAVED);
    assert_memory_equal(whole, f->loss, SAVED * sizeof(double));
    o.resume = true;
    assert_true(train_to(f, o, SAVED) == test);
    assert_true(train_to(f, o, UPDATES) == whole_test);
    assert_memory_equal(whole + SAVED, f->loss + SAVED, (UPDATES - SAVED) * sizeof(double));
}

/* The test at the end is of what was saved, with the step that saving takes. */
static void resume_repeats_the_test_at_the_end(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options();
    double test = train_to(f, o, SAVED + 3);

    o.resume = true;
    assert_true(train_to(f, o, SAVED + 3) == test);
}

/* A trunk is never resumed beside experts that are new or not its own. */
static void resume_without_its_experts_is_refused(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options();
    struct hth_why why;
    struct hth_trainer *t;

    train_to(f, o, SAVED);
    o.resume = true;
    o.why = &why;
    hth_node_disk_put(f->node, "run/experts/ffn0.1.0.safetensors", "torn", 4);
    assert_err(HTH_E_CORRUPT, hth_trainer_new(f->env, &o, &t));
    assert_non_null(strstr(why.text, "expert ffn0.1.0 can't be loaded from run/experts: "));
    o.experts_dir = "elsewhere";
    assert_err(HTH_E_NO_FILE, hth_trainer_new(f->env, &o, &t));
    assert_non_null(
        strstr(why.text, "expert ffn0.0.0 can't be loaded from elsewhere: no such file"));
    o.checkpoint_path = "no trunk"; /* then there is nothing to resume, and all begin */
    train_to(f, o, SAVED);
}

/* A control's trunk and a run's never replace each other. */
static void control_and_run_are_told_apart(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options(), control = o;
    struct hth_why why;
    struct hth_trainer *t;

    control.without_experts = true;
    control.checkpoint_path = "control";
    train_to(f, o, SAVED);
    train_to(f, control, SAVED);
    o.resume = control.resume = true;
    train_to(f, control, SAVED + 1);
    o.why = control.why = &why;
    o.checkpoint_path = "control";
    assert_err(HTH_E_WRONG_RUN, hth_trainer_new(f->env, &o, &t));
    assert_string_equal(why.text, "it was trained without experts");
    control.checkpoint_path = "run/trunk.safetensors";
    assert_err(HTH_E_WRONG_RUN, hth_trainer_new(f->env, &control, &t));
    assert_string_equal(why.text, "it was trained with experts");
}

/* Runs of another name often have the same shapes and seed. A file without a name is of any. */
static void another_runs_checkpoint_is_refused(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options();
    struct hth_why why;
    struct hth_trainer *t;

    train_to(f, o, SAVED);
    o.resume = true;
    o.why = &why;
    o.run = "first";
    train_to(f, o, SAVED + 1);
    o.run = "second";
    assert_err(HTH_E_WRONG_RUN, hth_trainer_new(f->env, &o, &t));
    assert_string_equal(why.text, "it is of another run than 'second'");
    o.checkpoint_path = "no trunk";
    assert_err(HTH_E_WRONG_RUN, hth_trainer_new(f->env, &o, &t));
    assert_non_null(strstr(why.text, "expert ffn0.0.0 can't be loaded from run/experts: "));
}

static void full_disk_is_told(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options();
    struct hth_device full = HTH_DEVICE_INIT, roomy = HTH_DEVICE_INIT;

    full.disk_bytes_max = 100;
    hth_node_set_device(f->node, &full);
    f->save_err = HTH_E_DISK_FULL;
    train_to(f, o, SAVED);
    assert_in_range(f->stats.unsaved_since_us, 1, hth_wall_us(f->env));
    hth_node_set_device(f->node, &roomy);
    f->save_err = HTH_OK;
    train_to(f, o, SAVED);
    assert_int_equal(f->stats.unsaved_since_us, 0);
}

/* Also a trainer that is not told to resume keeps the longer run's file; its own earlier
 * checkpoints are replaced. */
static void longer_checkpoint_is_kept(void **state)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options();
    uint8_t *longer;
    const uint8_t *kept;
    size_t len, kept_len;

    train_to(f, o, UPDATES);
    kept = hth_node_disk_get(f->node, "run/trunk.safetensors", &len);
    assert_non_null(kept);
    longer = hth_calloc(1, len);
    memcpy(longer, kept, len);
    train_to(f, o, 20);
    kept = hth_node_disk_get(f->node, "run/trunk.safetensors-40", &kept_len);
    assert_non_null(kept);
    assert_int_equal(kept_len, len);
    assert_memory_equal(kept, longer, len);
    assert_null(hth_node_disk_get(f->node, "run/trunk.safetensors-15", &len));
    o.checkpoint_every = 0;
    train_to(f, o, 30); /* saves once, longer than what is there: it replaces it */
    assert_null(hth_node_disk_get(f->node, "run/trunk.safetensors-20", &len));
    hth_free(longer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TASK_TEST(resume_brings_local_experts_back),
        TASK_TEST(resume_repeats_the_test_at_the_end),
        TASK_TEST(resume_without_its_experts_is_refused),
        TASK_TEST(control_and_run_are_told_apart),
        TASK_TEST(another_runs_checkpoint_is_refused),
        TASK_TEST(full_disk_is_told),
        TASK_TEST(longer_checkpoint_is_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
