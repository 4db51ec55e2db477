/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that stay: which do, under which name they are found, and lists that lie. */
#include "core/mem.h"
#include "experts/safetensors.h"
#include "support/suite.h"
#include "trainer/saved.h"
#include "trainer/task.h"
#include "trainer/trained.h"

static bool exists(struct task *f, const char *path)
{
    size_t size;

    return hth_node_disk_get(f->node, path, &size) != NULL;
}

static const char *at(uint64_t step, const char *name, char out[64])
{
    snprintf(out, 64, "dir/kept/%llu/%s", (unsigned long long)step, name);
    return out;
}

TASK_TEST(the_last_ones_and_the_best_stay)
{
    struct task *f = *state;
    static const char *const experts[] = {"ffn0.0.0.safetensors"};
    static const struct {
        uint64_t step;
        double loss; /* 0: not evaluated */
        const char *left;
        uint64_t best;
    } steps[] = {
        {10, 3.0, "10", 10},    {20, 0, "10 20", 10},    {30, 2.0, "20 30", 30},
        {40, 2.5, "30 40", 30}, {50, 0, "30 40 50", 30}, {60, 2.0, "30 50 60", 30},
        {70, 1.0, "60 70", 70}, {80, NAN, "70 80", 70},  {75, 0, "70 75", 70},
        {70, 0, "70", 0},       {90, 0, "70 90", 0},
    };
    struct hth_saved kept = {.count = 0}, read;
    char path[64], left[256];

    for (size_t i = 0; i < HTH_ARRAY_LEN(steps); i++) {
        hth_node_disk_put(f->node, at(steps[i].step, "trunk.safetensors", path), "1", 1);
        hth_node_disk_put(f->node, at(steps[i].step, "experts/ffn0.0.0.safetensors", path), "1", 1);
        assert_ok(hth_saved_add(f->env, "dir", &kept, steps[i].step, 2, experts, 1));
        if (steps[i].loss != 0)
            assert_ok(hth_saved_judge(f->env, "dir", &kept, steps[i].step, steps[i].loss));
        assert_ok(hth_saved_judge(f->env, "dir", &kept, 1000, 0.1)); /* of no checkpoint */
        assert_ok(hth_saved_read(f->env, "dir", &read));
        left[0] = '\0';
        for (uint32_t k = 0; k < read.count; k++) {
            snprintf(left + strlen(left), 24, "%s%llu", k > 0 ? " " : "",
                     (unsigned long long)read.step[k]);
            assert_true(exists(f, at(read.step[k], "trunk.safetensors", path)));
        }
        assert_int_equal(read.best, kept.best);
        if (steps[i].step == 30 || steps[i].step == 70)
            continue; /* judged after others were dropped: the next step shows it */
        assert_string_equal(left, steps[i].left);
        assert_int_equal(read.best, steps[i].best);
    }
    for (uint64_t s = 10; s < 90; s += 10)
        assert_true(exists(f, at(s, "experts/ffn0.0.0.safetensors", path)) == (s == 70));
}

TASK_TEST(checkpoints_are_found_by_name)
{
    struct task *f = *state;
    static const struct {
        const char *which, *folder, *why;
        enum hth_err err;
    } cases[] = {
        {"last", "dir", NULL, HTH_OK},
        {"best", "dir/kept/20", NULL, HTH_OK},
        {"30", "dir/kept/30", NULL, HTH_OK},
        {"35", "dir", NULL, HTH_OK},
        {"10", NULL, "no checkpoint '10'; there are: last (35), best (20), 20, 30",
         HTH_E_NOT_FOUND},
        {"first", NULL, "'first': expected last, best or a step", HTH_E_USAGE},
        {"-1", NULL, "'-1': expected last, best or a step", HTH_E_USAGE},
        {"", NULL, "'': expected last, best or a step", HTH_E_USAGE},
    };
    struct hth_saved kept = {.count = 0};
    struct hth_why why = {""};
    char *folder;

    assert_err(HTH_E_NOT_FOUND, hth_saved_find(f->env, "dir", "best", 35, &why, &folder));
    assert_string_equal(why.text,
                        "no checkpoint 'best'; there are: last (35); train --keep N keeps more");
    assert_ok(hth_saved_add(f->env, "dir", &kept, 20, 2, NULL, 0));
    assert_ok(hth_saved_judge(f->env, "dir", &kept, 20, 1.5));
    assert_ok(hth_saved_add(f->env, "dir", &kept, 30, 2, NULL, 0));
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        why = (struct hth_why){""};
        assert_err(cases[i].err, hth_saved_find(f->env, "dir", cases[i].which, 35, &why, &folder));
        if (cases[i].err == HTH_OK)
            assert_string_equal(folder, cases[i].folder);
        else
            assert_string_equal(why.text, cases[i].why);
        hth_free(folder);
    }
}

TASK_TEST(lists_that_lie_are_refused)
{
    struct task *f = *state;
    static const struct {
        const char *steps, *best, *loss;
        bool good;
    } cases[] = {
        {"1 2", "2", "0.5", true},
        {"", NULL, NULL, true},
        {NULL, NULL, NULL, false},
        {"2 1", NULL, NULL, false},
        {"1 1", NULL, NULL, false},
        {"1  2", NULL, NULL, false},
        {"1,2", NULL, NULL, false},
        {"-1", NULL, NULL, false},
        {"1 2", "3", "0.5", false},
        {"1 2", "2", "nan", false},
        {"1 2", "2", NULL, false},
        {"1 2", "x", "1", false},
        {"99999999999999999999", NULL, NULL, false},
    };
    struct hth_saved kept;

    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_st_writer *w = hth_st_writer_new();
        struct hth_blob *bytes;

        hth_st_add_meta(w, "hearth.kind", "kept");
        if (cases[i].steps != NULL)
            hth_st_add_meta(w, "hearth.steps", cases[i].steps);
        if (cases[i].best != NULL)
            hth_st_add_meta(w, "hearth.best", cases[i].best);
        if (cases[i].loss != NULL)
            hth_st_add_meta(w, "hearth.best_loss", cases[i].loss);
        assert_ok(hth_st_writer_finish(w, &bytes));
        hth_st_writer_free(w);
        hth_node_disk_put(f->node, "dir/kept/kept.safetensors", bytes->data, bytes->size);
        hth_blob_unref(bytes);
        if (hth_saved_read(f->env, "dir", &kept) != (cases[i].good ? HTH_OK : HTH_E_CORRUPT))
            fail_msg("list %zu", i);
    }
}

/* ---- a trainer ------------------------------------------------------------------------------- */

static uint64_t step[16];
static double loss[16];
static uint32_t evals;

static void on_eval(struct task *f)
{
    assert_true(evals < HTH_ARRAY_LEN(step));
    step[evals] = f->eval.updates;
    loss[evals++] = f->eval.loss;
}

/* At this rate the loss jumps up and down: the best is not the last. */
TASK_TEST(a_trainer_keeps_what_it_evaluated)
{
    struct task *f = *state;
    struct hth_trainer_opts o = task_classifier();
    struct hth_trainer *t;
    struct hth_trained *trained;
    struct hth_saved kept;
    uint32_t best = 0;
    char path[64];

    o.updates_max = 20;
    o.flights = 1;
    o.eval_every = 4;
    o.has_eval_data = true;
    o.eval_data = o.data;
    o.eval_samples = o.eval_samples_last = 64;
    o.optim.schedule.lr = 3;
    o.checkpoint_path = "dir/trunk.safetensors";
    o.checkpoint_every = 3;
    o.experts_dir = "dir/experts";
    o.keep = 2;
    f->on_eval = on_eval;
    t = task_make(f, o);
    hth_trainer_start(t);
    task_until(f, &f->done);
    assert_ok(f->err);
    task_stop(f, t);
    task_put_down(f, t);
    assert_int_equal(evals, 5);
    for (uint32_t i = 1; i < evals; i++)
        best = loss[i] < loss[best] ? i : best;
    assert_ok(hth_saved_read(f->env, "dir", &kept));
    assert_int_equal(kept.best, step[best]);
    assert_true(kept.loss == loss[best]);
    assert_true(kept.best < 18); /* else the test shows nothing */
    assert_int_equal(kept.count, 3);
    assert_int_equal(kept.step[0], kept.best);
    assert_int_equal(kept.step[2], 20);
    for (uint32_t i = 0; i < kept.count; i++) {
        assert_ok(
            hth_trained_open(f->env, at(kept.step[i], "trunk.safetensors", path), NULL, &trained));
        assert_int_equal(hth_trained_about(trained)->updates, kept.step[i]);
        hth_trained_free(trained);
        assert_true(exists(f, at(kept.step[i], "experts/ffn1.1.1.safetensors", path)));
    }
    assert_false(exists(f, at(3, "trunk.safetensors", path)));
}
