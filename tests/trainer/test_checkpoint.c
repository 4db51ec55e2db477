/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint.c: the trunk's file: other runs, damage, forgeries and older versions. */
#include "core/mem.h"
#include "experts/safetensors.h"
#include "support/test.h"
#include "trainer/task.h"

#include <stdlib.h>

/* Experts with rate 0 have no state of their own, so that the trunk's file is the whole run. */
static struct hth_trainer_opts frozen_experts(void)
{
    struct hth_trainer_opts o = task_classifier();

    o.local_optim.schedule.lr = 0;
    o.data.shuffle_rows = 64;
    return o;
}

/* Trains a little and returns the checkpoint file. */
static uint8_t *some_checkpoint(struct task *f, struct hth_trainer_opts *o, size_t *len)
{
    const uint8_t *bytes;
    uint8_t *copy;

    o->local = true;
    o->checkpoint_path = "trunk";
    task_run(f, *o);
    bytes = hth_node_disk_get(f->node, "trunk", len);
    assert_non_null(bytes);
    copy = hth_calloc(1, *len);
    memcpy(copy, bytes, *len);
    o->resume = true;
    return copy;
}

static void damaged_and_other_checkpoints_are_refused(void **state)
{
    struct task *f = *state;
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
    struct task *f = *state;
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
    task_put_down(f, task_make(f, o));
    put_forged(f, r, &(struct forged){.key = "hearth.updates", .text = "281474976710656"});
    task_put_down(f, task_make(f, o));
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
    struct task *f = *state;
    struct hth_trainer_opts o = frozen_experts();
    struct hth_train_stats now, old;
    struct hth_st_reader *r;
    struct hth_trainer *t;
    size_t len;

    o.updates_max = 2;
    uint8_t *copy = some_checkpoint(f, &o, &len);
    assert_ok(hth_st_open(copy, len, &r));
    t = task_make(f, o);
    hth_trainer_stats(t, &now);
    task_put_down(f, t);
    put_forged(f, r, &(struct forged){.old = true});
    t = task_make(f, o);
    hth_trainer_stats(t, &old);
    task_put_down(f, t);
    assert_true(now.loss_ema > 0 && old.loss_ema == now.loss_ema);
    assert_int_equal(old.updates, now.updates);
    /* A mean of version 2 is none of version 1. */
    put_forged(f, r, &(struct forged){.key = "hearth.format"});
    assert_err(HTH_E_CORRUPT, hth_trainer_new(f->env, &o, &t));
    hth_st_close(r);
    hth_free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TASK_TEST(damaged_and_other_checkpoints_are_refused),
        TASK_TEST(forged_checkpoints_are_refused_with_a_reason),
        TASK_TEST(older_checkpoints_load_with_their_means),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
