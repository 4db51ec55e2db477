/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of a trainer with experts in its own process: trunk and experts come back together,
 * to the bit; other runs, damage, forgeries and older versions; when one is written, and which file
 * stays.
 */
#include "core/mem.h"
#include "experts/safetensors.h"
#include "experts/store.h"
#include "kernels/backend_int.h"
#include "support/suite.h"
#include "trainer/task.h"

#include <stdlib.h>

#define TRUNK   "run/trunk.safetensors"
#define EXPERTS "run/experts"
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
    o.checkpoint_path = TRUNK;
    o.experts_dir = EXPERTS;
    o.checkpoint_every = SAVED;
    o.eval_every = 1000;
    o.eval_samples_last = UINT64_MAX;
    return o;
}

/* Trains up to that many updates; returns the loss of the test at the end. */
static double train_to(struct task *f, struct hth_trainer_opts o, uint64_t updates)
{
    o.updates_max = updates;
    memset(f->loss, 0, sizeof(f->loss));
    task_run(f, o);
    return f->eval.loss;
}

static void check_refused(struct task *f, struct hth_trainer_opts o, enum hth_err err,
                          const char *says)
{
    struct hth_why why = {""};
    struct hth_trainer *t;
    enum hth_err got;

    o.why = &why;
    got = hth_trainer_new(f->env, &o, &t);
    if (got != err || strstr(why.text, says) == NULL)
        fail_msg("%s, '%s', not '%s'", hth_err_name(got), why.text, says);
}

/* ---- resuming -------------------------------------------------------------------------------- */

/* A run that ended at a checkpoint and was resumed equals one that went on after it. The test at
 * the end is of what was saved, with the step that saving takes. */
TASK_TEST(resume_is_exact)
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
    o = options();
    test = train_to(f, o, SAVED + 3);
    o.resume = true;
    assert_true(train_to(f, o, SAVED + 3) == test);
}

/* The text has a pattern of few bytes: from 8 bits to less than one byte's entropy. */
TASK_TEST(dense_models_learn_and_resume)
{
    struct task *f = *state, *g;
    struct hth_trainer_opts o = task_lm();

    o.model.dense = o.model.tied = true;
    o.model.layers = 6;
    o.model.layer_scale = 0.5f;
    o.model.share = 2;
    o.checkpoint_path = TRUNK;
    o.eval_every = 20;
    train_to(f, o, 60);
    assert_int_equal(f->stats.rows_mixed, 0);
    assert_true(f->loss[0] > 4.5 && f->loss[59] < 0.6 * f->loss[0]);
    assert_true(f->eval.bits_per_code == 0);
    task_setup((void **)&g);
    train_to(g, o, 30);
    assert_memory_equal(g->loss, f->loss, 30 * sizeof(double));
    o.resume = true;
    train_to(g, o, 60);
    assert_memory_equal(g->loss + 30, f->loss + 30, 30 * sizeof(double));
    assert_true(g->eval.loss == f->eval.loss);
    task_teardown((void **)&g);
}

/* A trunk is resumed beside its own experts or not at all; a control's and a run's never replace
 * each other, nor do those of runs with other names. A file without a name is of any. */
TASK_TEST(another_runs_files_are_refused)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options(), control = o, other;

    control.without_experts = true;
    control.checkpoint_path = "control";
    train_to(f, o, SAVED);
    train_to(f, control, SAVED);
    o.resume = control.resume = true;
    train_to(f, control, SAVED + 1);
    other = o;
    other.checkpoint_path = "control";
    check_refused(f, other, HTH_E_WRONG_RUN, "it was trained without experts");
    other = control;
    other.checkpoint_path = TRUNK;
    check_refused(f, other, HTH_E_WRONG_RUN, "it was trained with experts");
    other = o;
    other.model.d = 32;
    check_refused(f, other, HTH_E_WRONG_RUN, "");
    o.run = "first";
    train_to(f, o, SAVED + 1);
    o.run = "second";
    check_refused(f, o, HTH_E_WRONG_RUN, "it is of another run than 'second'");
    other = o;
    other.checkpoint_path = "no trunk";
    check_refused(f, other, HTH_E_WRONG_RUN, "expert ffn0.0.0 can't be loaded from " EXPERTS ": ");
    o.run = "first";
    hth_node_disk_put(f->node, EXPERTS "/ffn0.1.0.safetensors", "torn", 4);
    check_refused(f, o, HTH_E_CORRUPT, "expert ffn0.1.0 can't be loaded from " EXPERTS ": ");
    o.experts_dir = "elsewhere";
    check_refused(f, o, HTH_E_NO_FILE,
                  "expert ffn0.0.0 can't be loaded from elsewhere: no such file");
    o.checkpoint_path = "no trunk"; /* then there is nothing to resume, and all begin */
    train_to(f, o, SAVED);
}

/* ---- files that lie -------------------------------------------------------------------------- */

/* Trains a little and returns the checkpoint file. */
static uint8_t *some_checkpoint(struct task *f, struct hth_trainer_opts *o, size_t *len)
{
    const uint8_t *bytes;
    uint8_t *copy;

    *o = task_classifier();
    o->local_optim.schedule.lr = 0; /* the trunk's file is the whole run */
    o->local = true;
    o->model.d = 32; /* no tensor is square */
    o->updates_max = 2;
    o->checkpoint_path = "trunk";
    task_run(f, *o);
    bytes = hth_node_disk_get(f->node, "trunk", len);
    assert_non_null(bytes);
    copy = hth_calloc(1, *len);
    memcpy(copy, bytes, *len);
    o->resume = true;
    return copy;
}

/* The change that makes a file forged. */
struct forged {
    const char *key, *text; /* of the metadata; text NULL: without that key */
    const char *tensor;     /* NULL: none is changed */
    bool turned;            /* rows and columns swapped */
    const float *first;     /* its first element */
    bool old;               /* as version 1 wrote it */
};

/* Writes the file with that change and a valid digest, as a forger would. */
static void put_forged(struct task *f, const struct hth_st_reader *r, const struct forged *o)
{
    static const char *const keys[] = {"hearth.format",      "hearth.kind",    "hearth.schema",
                                       "hearth.seed",        "hearth.updates", "hearth.launched",
                                       "hearth.samples",     "hearth.steps",   "hearth.loss_ema",
                                       "hearth.accuracy_ema"};
    struct hth_st_writer *w = hth_st_writer_new();
    struct hth_blob *bytes;
    void *changed = NULL;

    for (size_t i = 0; i < HTH_ARRAY_LEN(keys); i++) {
        const char *text = hth_st_meta(r, keys[i]);
        bool mean = strstr(keys[i], "_ema") != NULL;
        char bits[24];
        if (o->old && mean) {
            double value = strtod(text, NULL);
            uint64_t u;
            memcpy(&u, &value, sizeof(u));
            snprintf(bits, sizeof(bits), "%llu", (unsigned long long)u);
            text = bits;
        }
        if (o->old && i == 0)
            continue;
        if (o->key != NULL && strcmp(keys[i], o->key) == 0)
            text = o->text;
        if (text != NULL)
            hth_st_add_meta(w, keys[i], text);
    }
    for (size_t i = 0; i < hth_st_count(r); i++) {
        const struct hth_st_entry *e = hth_st_at(r, i);
        bool it = o->tensor != NULL && strcmp(e->name, o->tensor) == 0;
        uint64_t dim[2] = {e->dim[it && o->turned], e->dim[!(it && o->turned)]};
        if (it) {
            changed = hth_calloc(1, e->bytes);
            memcpy(changed, e->data, e->bytes);
            if (o->first != NULL)
                memcpy(changed, o->first, sizeof(*o->first));
        }
        hth_st_add(w, e->name, e->dtype, e->ndim, dim, it ? changed : e->data);
    }
    assert_ok(hth_st_writer_finish(w, &bytes));
    hth_st_writer_free(w);
    hth_free(changed);
    hth_node_disk_put(f->node, "trunk", bytes->data, bytes->size);
    hth_blob_unref(bytes);
}

/* A file without a digest, or with one of another program, may hold anything: content that can't be
 * trained on is refused, and `why` says what is wrong. */
TASK_TEST(forged_checkpoints_are_refused_with_a_reason)
{
    static const float nan = NAN, inf = INFINITY, below = -1;
    static const struct {
        struct forged forged;
        const char *why;
    } cases[] = {
        {{.key = "hearth.kind", .text = "expert"}, "it is not a trainer's checkpoint"},
        {{.key = "hearth.updates"}, "it has no number 'hearth.updates'"},
        {{.key = "hearth.updates", .text = "18446744073709551615"}, "its 'hearth.updates' is 1844"},
        {{.key = "hearth.updates", .text = "281474976710657"}, "the limit is 281474976710656"},
        {{.key = "hearth.launched", .text = "140737488355328"}, "its 'hearth.launched' is 1407"},
        {{.key = "hearth.samples", .text = "9223372036854775808"}, "its 'hearth.samples' is 9223"},
        {{.key = "hearth.steps", .text = "281474976710657"}, "its 'hearth.steps' is 2814"},
        {{.key = "hearth.steps", .text = "-1"}, "it has no number 'hearth.steps'"},
        {{.key = "hearth.loss_ema", .text = "nan"}, "'hearth.loss_ema' is not finite"},
        {{.key = "hearth.loss_ema", .text = "1.5x"}, "it has no number 'hearth.loss_ema'"},
        {{.key = "hearth.loss_ema"}, "it has no number 'hearth.loss_ema'"},
        {{.key = "hearth.seed", .text = "77"}, "its seed is 77, and the run file's is"},
        {{.key = "hearth.schema", .text = "77"}, "it is of another model than the run file's"},
        {{.tensor = "input.weight", .turned = true},
         "'input.weight' is not F32 or BF16 of shape ["},
        {{.tensor = "input.weight", .first = &nan}, "'input.weight' holds NaN or infinity"},
        {{.tensor = "input.weight.m", .first = &inf}, "'input.weight.m' holds NaN or infinity"},
        {{.tensor = "input.weight.v", .first = &inf}, "'input.weight.v' holds NaN or infinity"},
        {{.tensor = "input.weight.v", .first = &below}, "'input.weight.v' holds negative squares"},
    };
    struct task *f = *state;
    struct hth_trainer_opts o;
    struct hth_st_reader *r;
    size_t len;
    uint8_t *copy = some_checkpoint(f, &o, &len);

    assert_ok(hth_st_open(copy, len, &r));
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        put_forged(f, r, &cases[i].forged);
        bool other = strstr(cases[i].why, "the run file's") != NULL;
        check_refused(f, o, other ? HTH_E_WRONG_RUN : HTH_E_CORRUPT, cases[i].why);
    }
    /* Negative first moments are valid, and so are numbers at a bound. */
    put_forged(f, r, &(struct forged){.tensor = "input.weight.m", .first = &below});
    task_put_down(f, task_make(f, o));
    put_forged(f, r, &(struct forged){.key = "hearth.updates", .text = "281474976710656"});
    task_put_down(f, task_make(f, o));
    hth_st_close(r);
    hth_node_disk_put(f->node, "trunk", copy, len - 1); /* cut, */
    check_refused(f, o, HTH_E_CORRUPT, "");
    copy[len - 5] ^= 4; /* changed, */
    hth_node_disk_put(f->node, "trunk", copy, len);
    check_refused(f, o, HTH_E_CORRUPT, "");
    copy[len - 5] ^= 4;
    for (size_t i = 0; i + 5 < len; i++) /* numbers of a width that hearth does not read */
        if (memcmp(copy + i, "\"F32\"", 5) == 0)
            memcpy(copy + i, "\"F64\"", 5);
    hth_node_disk_put(f->node, "trunk", copy, len);
    check_refused(f, o, HTH_E_CORRUPT, "it holds tensors of a type that hearth does not read");
    hth_free(copy);
}

/* Files of version 1 have no format, and the bits of their means as whole numbers. */
TASK_TEST(older_checkpoints_load_with_their_means)
{
    struct task *f = *state;
    struct hth_trainer_opts o;
    struct hth_train_stats stats[2];
    struct hth_st_reader *r;
    size_t len;
    uint8_t *copy = some_checkpoint(f, &o, &len);

    assert_ok(hth_st_open(copy, len, &r));
    for (int old = 0; old < 2; old++) {
        put_forged(f, r, &(struct forged){.old = old});
        struct hth_trainer *t = task_make(f, o);
        hth_trainer_stats(t, &stats[old]);
        task_put_down(f, t);
    }
    assert_true(stats[0].loss_ema > 0 && stats[1].loss_ema == stats[0].loss_ema);
    assert_int_equal(stats[1].updates, stats[0].updates);
    /* A mean of version 2 is none of version 1. */
    put_forged(f, r, &(struct forged){.key = "hearth.format"});
    check_refused(f, o, HTH_E_CORRUPT, "");
    hth_st_close(r);
    hth_free(copy);
}

/* ---- which files are written ----------------------------------------------------------------- */

static void set_disk(struct task *f, uint64_t bytes_max, enum hth_err save_err)
{
    struct hth_device device = HTH_DEVICE_INIT;

    if (bytes_max > 0)
        device.disk_bytes_max = bytes_max;
    hth_node_set_device(f->node, &device);
    f->save_err = save_err;
}

TASK_TEST(full_disk_is_told)
{
    struct task *f = *state;

    set_disk(f, 100, HTH_E_DISK_FULL);
    train_to(f, options(), SAVED);
    assert_in_range(f->stats.unsaved_since_us, 1, hth_wall_us(f->env));
    set_disk(f, 0, HTH_OK);
    train_to(f, options(), SAVED);
    assert_int_equal(f->stats.unsaved_since_us, 0);
}

/* hth_trainer_stop saves also if an earlier save failed, as the disk may have room again. */
TASK_TEST(stop_saves_a_checkpoint)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options();
    struct hth_trainer *t;
    size_t len;

    o.flights = 3;
    o.checkpoint_every = 20;
    set_disk(f, 100, HTH_E_DISK_FULL);
    t = task_make(f, o);
    hth_trainer_start(t);
    task_until(f, &f->saved);
    uint64_t failed_at = f->stats.updates;
    while (f->stats.updates == failed_at)
        hth_world_run_for(f->world, HTH_US_PER_MS / 10);
    set_disk(f, 0, HTH_OK);
    task_stop(f, t);
    hth_trainer_stats(t, &f->stats);
    assert_int_equal(f->stats.flights, 0);
    assert_in_range(f->stats.updates, 20, 59);
    assert_int_equal(f->stats.checkpoints, 1);
    assert_int_equal(f->stats.unsaved_since_us, 0);
    assert_false(f->done);
    assert_non_null(hth_node_disk_get(f->node, TRUNK, &len));
    task_put_down(f, t);
}

/* Also a trainer that is not told to resume keeps the longer run's file; its own earlier
 * checkpoints are replaced. */
TASK_TEST(longer_checkpoint_is_kept)
{
    struct task *f = *state;
    struct hth_trainer_opts o = options();
    const uint8_t *kept;
    size_t len;

    train_to(f, o, UPDATES);
    kept = hth_node_disk_get(f->node, TRUNK, &len);
    struct hth_blob *longer = hth_blob_copy(kept, len);
    train_to(f, o, 20);
    kept = hth_node_disk_get(f->node, TRUNK "-40", &len);
    assert_non_null(kept);
    assert_int_equal(len, longer->size);
    assert_memory_equal(kept, longer->data, len);
    assert_null(hth_node_disk_get(f->node, TRUNK "-15", &len));
    o.checkpoint_every = 0;
    train_to(f, o, 30); /* saves once, longer than what is there: it replaces it */
    assert_null(hth_node_disk_get(f->node, TRUNK "-20", &len));
    hth_blob_unref(longer);
}

/* ---- an end by an error ---------------------------------------------------------------------- */

#define AT 30 /* updates before it */

enum trouble { PARAMETERS, DEVICE, DATA };

static struct {
    enum trouble trouble;
    enum hth_err save_err; /* of checkpoints from then on */
    bool broken;           /* the device */
    struct hth_trainer *trainer;
    enum hth_err (*true_step)(struct hth_exec *ex, struct hth_weight *w, const struct hth_step *s);
} fails;

static enum hth_err step(struct hth_exec *ex, struct hth_weight *w, const struct hth_step *s)
{
    return fails.broken ? HTH_E_DEVICE : fails.true_step(ex, w, s);
}

static void begin_to_fail(struct task *f)
{
    if (f->stats.updates < AT)
        return;
    f->saved = false;
    f->save_err = fails.save_err;
    fails.broken = fails.trouble == DEVICE;
    if (fails.trouble == DATA)
        memset(f->files.labels + 8, 77, TASK_ITEMS);
    if (fails.trouble == PARAMETERS) {
        task_values(fails.trainer)[0] = NAN;
        hth_params_touched(task_params(fails.trainer));
    }
}

/* The number of updates in the file. */
static uint64_t saved(const struct task *f)
{
    size_t len;
    const uint8_t *bytes = hth_node_disk_get(f->node, TRUNK, &len);
    struct hth_st_reader *r;
    uint64_t updates;

    assert_non_null(bytes);
    assert_ok(hth_st_open(bytes, len, &r));
    assert_ok(hth_st_meta_u64(r, "hearth.updates", &updates));
    hth_st_close(r);
    return updates;
}

/* The earlier file stays if the parameters may be the cause or have half of a step; otherwise a new
 * one is written. */
TEST(an_error_spoils_no_checkpoint)
{
    static const struct {
        enum trouble trouble;
        uint32_t every;
        enum hth_err err, save_err;
        bool tries; /* to save after it */
        uint64_t saved;
    } cases[] = {{PARAMETERS, 20, HTH_E_NOT_FINITE, HTH_OK, false, 20},
                 {PARAMETERS, 15, HTH_E_NOT_FINITE, HTH_E_NOT_FINITE, true, 15},
                 {DEVICE, 20, HTH_E_DEVICE, HTH_OK, false, 20},
                 {DATA, 20, HTH_E_CORRUPT, HTH_OK, true, AT}};
    struct hth_backend backend = *hth_backend_ref();

    fails.true_step = backend.step;
    backend.step = step;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_trainer_opts o = task_classifier();
        struct task *f;

        task_setup((void **)&f);
        fails.trouble = cases[i].trouble;
        fails.save_err = cases[i].save_err;
        fails.broken = false;
        f->on_update = begin_to_fail;
        o.backend = &backend;
        o.updates_max = 200;
        o.checkpoint_path = TRUNK;
        o.checkpoint_every = cases[i].every;
        fails.trainer = task_make(f, o);
        task_end(f, fails.trainer, cases[i].err);
        assert_int_equal(f->stats.updates, AT);
        task_stop(f, fails.trainer);
        assert_int_equal(f->saved, cases[i].tries);
        assert_int_equal(saved(f), cases[i].saved);
        task_put_down(f, fails.trainer);
        task_teardown((void **)&f);
    }
}
