/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint.c: the trunk's file: other runs, damage, forgeries and older versions. */
#include "core/mem.h"
#include "experts/safetensors.h"
#include "support/test.h"
#include "trainer/lineage.h"
#include "trainer/task.h"

#include <stdlib.h>

struct fixture {
    struct hth_world *world;
    struct hth_node *node;
    struct hth_env *env;
    struct task_files files;
    bool done;
};

static int setup(void **state)
{
    struct fixture *f = hth_new(struct fixture);

    f->world = task_world(&f->files, &f->node);
    f->env = hth_node_env(f->node);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct hth_open_counts open;

    hth_node_open(f->node, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(f->world);
    hth_free(f);
    return 0;
}

static void on_done(void *arg, enum hth_err err)
{
    struct fixture *f = arg;

    assert_ok(err);
    f->done = true;
}

static bool flag(void *arg)
{
    return *(bool *)arg;
}

static struct hth_trainer *make(struct fixture *f, struct hth_trainer_opts o)
{
    struct hth_trainer *t;

    o.on = (struct hth_train_callbacks){.on_done = on_done, .arg = f};
    assert_ok(hth_trainer_new(f->env, &o, &t));
    f->done = false;
    return t;
}

/* Frees the trainer and lets a job end that the environment has. */
static void put_down(struct fixture *f, struct hth_trainer *t)
{
    hth_trainer_free(t);
    hth_world_run_for(f->world, HTH_US_PER_S);
}

/* Experts with rate 0 have no state of their own, so that the trunk's file is the whole run. */
static struct hth_trainer_opts frozen_experts(void)
{
    struct hth_trainer_opts o = task_classifier();

    o.local_optim.schedule.lr = 0;
    o.data.shuffle_rows = 64;
    return o;
}

/* Trains a little and returns the checkpoint file. */
static uint8_t *some_checkpoint(struct fixture *f, struct hth_trainer_opts *o, size_t *len)
{
    struct hth_trainer *t;
    const uint8_t *bytes;
    uint8_t *copy;

    o->local = true;
    o->checkpoint_path = "trunk";
    t = make(f, *o);
    hth_trainer_start(t);
    assert_true(hth_world_run_until_true(f->world, flag, &f->done, 1000 * HTH_US_PER_S));
    put_down(f, t);
    bytes = hth_node_disk_get(f->node, "trunk", len);
    assert_non_null(bytes);
    copy = hth_calloc(1, *len);
    memcpy(copy, bytes, *len);
    o->resume = true;
    return copy;
}

static void damaged_and_other_checkpoints_are_refused(void **state)
{
    struct fixture *f = *state;
    struct hth_trainer_opts o = frozen_experts();
    struct hth_trainer *t;
    uint8_t *copy;
    size_t len;

    o.updates_max = 2;
    copy = some_checkpoint(f, &o, &len);
    o.model.d = 32; /* another model */
    assert_err(HTH_E_WRONG_RUN, hth_trainer_new(f->env, &o, &t));
    o.model.d = 16;
    o.model.seed++;
    assert_err(HTH_E_WRONG_RUN, hth_trainer_new(f->env, &o, &t));
    o.model.seed--;
    hth_node_disk_put(f->node, "trunk", copy, len - 1);
    assert_err(HTH_E_CORRUPT, hth_trainer_new(f->env, &o, &t));
    copy[len - 5] ^= 4;
    hth_node_disk_put(f->node, "trunk", copy, len);
    assert_err(HTH_E_CORRUPT, hth_trainer_new(f->env, &o, &t));
    hth_free(copy);
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
static void put_forged(struct fixture *f, const struct hth_st_reader *r, const struct forged *o)
{
    static const char *const keys[] = {"hearth.format",       "hearth.kind",    "hearth.schema",
                                       "hearth.seed",         "hearth.updates", "hearth.launched",
                                       "hearth.samples",      "hearth.steps",   "hearth.loss_ema",
                                       "hearth.accuracy_ema", "hearth.lineage"};
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
static void forged_checkpoints_are_refused_with_a_reason(void **state)
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
    struct fixture *f = *state;
    struct hth_trainer_opts o = frozen_experts();
    struct hth_why why;
    struct hth_st_reader *r;
    struct hth_trainer *t;
    size_t len;

    o.updates_max = 2;
    o.model.d = 32; /* no tensor is square */
    uint8_t *copy = some_checkpoint(f, &o, &len);
    assert_ok(hth_st_open(copy, len, &r));
    o.why = &why;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        enum hth_err err;
        put_forged(f, r, &cases[i].forged);
        err = hth_trainer_new(f->env, &o, &t);
        if ((err != HTH_E_CORRUPT && err != HTH_E_WRONG_RUN) ||
            strstr(why.text, cases[i].why) == NULL)
            fail_msg("case %zu: %s, '%s'", i, hth_err_name(err), why.text);
    }
    /* Negative first moments are valid, and so are numbers at a bound. */
    put_forged(f, r, &(struct forged){.tensor = "input.weight.m", .first = &below});
    put_down(f, make(f, o));
    put_forged(f, r, &(struct forged){.key = "hearth.updates", .text = "281474976710656"});
    put_down(f, make(f, o));
    assert_string_equal(why.text, "");
    hth_st_close(r);
    for (size_t i = 0; i + 5 < len; i++) /* numbers of a width that hearth does not read */
        if (memcmp(copy + i, "\"F32\"", 5) == 0)
            memcpy(copy + i, "\"F64\"", 5);
    hth_node_disk_put(f->node, "trunk", copy, len);
    assert_err(HTH_E_CORRUPT, hth_trainer_new(f->env, &o, &t));
    assert_string_equal(why.text, "it holds tensors of a type that hearth does not read");
    hth_free(copy);
}

/* Files of version 1 have no format, and the bits of their means as whole numbers. */
static void older_checkpoints_load_with_their_means(void **state)
{
    struct fixture *f = *state;
    struct hth_trainer_opts o = frozen_experts();
    struct hth_train_stats now, old;
    struct hth_st_reader *r;
    struct hth_trainer *t;
    size_t len;

    o.updates_max = 2;
    uint8_t *copy = some_checkpoint(f, &o, &len);
    assert_ok(hth_st_open(copy, len, &r));
    t = make(f, o);
    hth_trainer_stats(t, &now);
    put_down(f, t);
    put_forged(f, r, &(struct forged){.old = true});
    t = make(f, o);
    hth_trainer_stats(t, &old);
    put_down(f, t);
    assert_true(now.loss_ema > 0 && old.loss_ema == now.loss_ema);
    assert_int_equal(old.updates, now.updates);
    /* A mean of version 2 is none of version 1. */
    put_forged(f, r, &(struct forged){.key = "hearth.format"});
    assert_err(HTH_E_CORRUPT, hth_trainer_new(f->env, &o, &t));
    hth_st_close(r);
    hth_free(copy);
}

/* A file without a lineage is accepted, one with a malformed lineage is refused. */
static void malformed_lineages_are_refused(void **state)
{
    struct fixture *f = *state;
    struct hth_trainer_opts o = frozen_experts();
    char good[2 * HTH_LINEAGE_BYTES + 1], bad[sizeof(good) + 1];
    static const struct {
        size_t at;
        char c;
    } edits[] = {{0, 'x'},                /* no digit */
                 {sizeof(good) - 2, 0},   /* shorter */
                 {sizeof(good) - 1, '0'}, /* longer */
                 {2 * 8, '1'},            /* begins after its end */
                 {2 * 16, '1'}};          /* ends after the step of the file */
    struct hth_st_reader *r;
    struct hth_trainer *t;
    uint8_t *copy;
    size_t len;

    o.share.mode = HTH_SHARE_BATCH;
    o.share.target = 32;
    o.updates_max = 6;
    copy = some_checkpoint(f, &o, &len);
    assert_ok(hth_st_open(copy, len, &r));
    assert_non_null(hth_st_meta(r, "hearth.lineage"));
    assert_int_equal(strlen(hth_st_meta(r, "hearth.lineage")), sizeof(good) - 1);
    memcpy(good, hth_st_meta(r, "hearth.lineage"), sizeof(good));

    put_forged(f, r, &(struct forged){.key = "hearth.lineage"});
    t = make(f, o);
    put_down(f, t);
    for (size_t i = 0; i < HTH_ARRAY_LEN(edits); i++) {
        memcpy(bad, good, sizeof(good));
        bad[sizeof(good)] = 0;
        assert_true(bad[edits[i].at] != edits[i].c);
        bad[edits[i].at] = edits[i].c;
        put_forged(f, r, &(struct forged){.key = "hearth.lineage", .text = bad});
        assert_err(HTH_E_CORRUPT, hth_trainer_new(f->env, &o, &t));
    }
    put_forged(f, r, &(struct forged){.key = NULL});
    t = make(f, o);
    put_down(f, t);
    hth_st_close(r);
    hth_free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(damaged_and_other_checkpoints_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(forged_checkpoints_are_refused_with_a_reason, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(older_checkpoints_load_with_their_means, setup, teardown),
        cmocka_unit_test_setup_teardown(malformed_lineages_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
