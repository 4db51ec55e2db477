/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_model_file.c: a model's file has the weights of its checkpoints, a checkpoint made of it
 * gives the same test result, and a file's faults are named.
 */
#include "core/mem.h"
#include "support/suite.h"
#include "trainer/model_file.h"
#include "trainer/task.h"

#include <stdlib.h>

#define UPDATES 5
#define EXPERTS 8 /* 2 layers of 2 x 2 */
#define PATH    "run/trunk.safetensors"

struct fixture {
    struct task *task;
    struct hth_trainer_opts opts;
    struct hth_model_file_part parts[1 + EXPERTS];
};

static struct hth_blob *disk(struct fixture *f, const char *path)
{
    size_t len;
    const uint8_t *bytes = hth_node_disk_get(f->task->node, path, &len);

    assert_non_null(bytes);
    return hth_blob_copy(bytes, len);
}

static int setup(void **state)
{
    struct fixture *f = hth_new(struct fixture);

    task_setup((void **)&f->task);
    f->opts = task_classifier();
    f->opts.local = true;
    f->opts.run = "toy";
    f->opts.run_text = "run: toy\n";
    f->opts.checkpoint_path = PATH;
    f->opts.experts_dir = "run/experts";
    f->opts.updates_max = UPDATES;
    f->opts.checkpoint_every = UPDATES;
    f->opts.eval_every = 1000;
    f->opts.eval_samples_last = UINT64_MAX;
    task_run(f->task, f->opts);
    f->parts[0] = (struct hth_model_file_part){PATH, NULL, disk(f, PATH)};
    for (uint32_t i = 0; i < EXPERTS; i++) {
        char *uid = hth_asprintf("ffn%u.%u.%u", i / 4, i / 2 % 2, i % 2);
        char *path = hth_asprintf("run/experts/%s.safetensors", uid);
        f->parts[1 + i] = (struct hth_model_file_part){path, uid, disk(f, path)};
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < HTH_ARRAY_LEN(f->parts); i++) {
        hth_blob_unref((struct hth_blob *)f->parts[i].bytes);
        if (i > 0) {
            hth_free((char *)f->parts[i].file);
            hth_free((char *)f->parts[i].uid);
        }
    }
    task_teardown((void **)&f->task);
    hth_free(f);
    return 0;
}

static struct hth_model_about about_of(struct fixture *f, struct hth_st_reader **trunk)
{
    struct hth_model_about about;

    assert_ok(hth_st_open(f->parts[0].bytes->data, f->parts[0].bytes->size, trunk));
    assert_ok(hth_model_file_about(PATH, *trunk, &about, NULL));
    return about;
}

static struct hth_blob *make(struct fixture *f, size_t parts, enum hth_dtype dtype)
{
    struct hth_st_reader *trunk;
    struct hth_model_about about = about_of(f, &trunk);
    struct hth_why why = {""};
    struct hth_blob *out;

    assert_ok(hth_model_file_make(f->parts, parts, &about, dtype, &out, &why));
    assert_string_equal(why.text, "");
    hth_st_close(trunk);
    return out;
}

static float from_bf16(const uint8_t *at)
{
    uint8_t bytes[4] = {0, 0, at[0], at[1]};
    float x;

    memcpy(&x, bytes, sizeof(x));
    return x;
}

/* Half a unit in the last of bf16's 8 places. */
static void assert_rounded(const uint8_t *half, const uint8_t *full)
{
    float x, y = from_bf16(half);
    int exponent;

    memcpy(&x, full, sizeof(x));
    frexpf(x, &exponent);
    assert_true(x == 0 ? y == 0 : fabsf(x - y) <= ldexpf(1, exponent - 9));
}

TEST_WITH(a_file_has_the_weights_and_no_moments, setup, teardown)
{
    struct fixture *f = *state;
    static const enum hth_dtype dtypes[] = {HTH_F32, HTH_BF16};

    for (size_t d = 0; d < HTH_ARRAY_LEN(dtypes); d++) {
        struct hth_blob *bytes = make(f, 1 + EXPERTS, dtypes[d]);
        struct hth_st_reader *r, *part;
        size_t seen = 0, at = 0;
        char text[HTH_UID_TEXT_MAX];
        assert_ok(hth_model_file_open("m", bytes, &r, NULL));
        for (size_t i = 0; i < HTH_ARRAY_LEN(f->parts); i++) {
            const char *uid = f->parts[i].uid;
            if (uid != NULL) {
                assert_true(hth_model_file_next(r, &at, text));
                assert_string_equal(text, uid);
            }
            assert_ok(hth_st_open(f->parts[i].bytes->data, f->parts[i].bytes->size, &part));
            /* Weights end in .weight or .bias, moments in .m or .v. */
            for (size_t k = 0; k < hth_st_count(part); k++) {
                const struct hth_st_entry *want = hth_st_at(part, k), *got;
                size_t len = strlen(want->name);
                char *name = uid == NULL ? hth_strdup(want->name)
                                         : hth_asprintf("experts/%s/%s", uid, want->name);
                got = hth_st_find(r, name);
                hth_free(name);
                if (want->name[len - 2] == '.') {
                    assert_null(got);
                    continue;
                }
                seen++;
                assert_non_null(got);
                assert_int_equal(got->dtype, dtypes[d]);
                assert_memory_equal(got->dim, want->dim, sizeof(want->dim));
                for (uint64_t n = 0; dtypes[d] == HTH_BF16 && n < want->bytes / 4; n++)
                    assert_rounded((const uint8_t *)got->data + 2 * n,
                                   (const uint8_t *)want->data + 4 * n);
                if (dtypes[d] == HTH_F32)
                    assert_memory_equal(got->data, want->data, want->bytes);
            }
            hth_st_close(part);
        }
        assert_int_equal(seen, hth_st_count(r));
        assert_false(hth_model_file_next(r, &at, text));
        hth_st_close(r);
        hth_blob_unref(bytes);
    }
}

static struct hth_expert *expert_of(struct fixture *f, const char *uid)
{
    struct hth_expert_opts opts = HTH_EXPERT_OPTS_INIT;
    struct hth_expert *expert;

    assert_ok(hth_uid_parse(uid, strlen(uid), &opts.uid));
    opts.shape.d = f->opts.model.d;
    opts.optim = f->opts.local_optim.optim;
    opts.backend = hth_backend_ref();
    opts.run_seed = 77; /* other numbers than it gets */
    opts.run = "toy";
    assert_ok(hth_expert_new(&opts, &expert));
    return expert;
}

TEST_WITH(checkpoints_of_a_file_give_the_same_test, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_blob *bytes = make(f, 1 + EXPERTS, HTH_F32), *trunk;
    double loss = f->task->eval.loss;
    struct hth_model_about about;
    struct hth_why why = {""};
    struct hth_st_reader *r;

    assert_ok(hth_model_file_open("m", bytes, &r, NULL));
    assert_ok(hth_model_file_about("m", r, &about, NULL));
    assert_int_equal(about.updates, UPDATES);
    assert_int_equal(about.samples, (uint64_t)UPDATES * f->opts.micro_batch);
    assert_true(about.experts);
    assert_string_equal(about.run_text, "run: toy\n");
    assert_ok(hth_model_file_trunk(r, &f->opts.model, &about, &trunk, &why));
    hth_node_disk_put(f->task->node, "again/trunk.safetensors", trunk->data, trunk->size);
    hth_blob_unref(trunk);
    for (size_t i = 1; i < HTH_ARRAY_LEN(f->parts); i++) {
        struct hth_expert *expert = expert_of(f, f->parts[i].uid);
        char *path = hth_expert_path("again/experts", expert);
        struct hth_blob *one;
        assert_ok(hth_model_file_expert(r, expert, &one, &why));
        hth_node_disk_put(f->task->node, path, one->data, one->size);
        hth_blob_unref(one);
        hth_free(path);
        hth_expert_free(expert);
    }
    hth_st_close(r);
    hth_blob_unref(bytes);
    f->opts.checkpoint_path = "again/trunk.safetensors";
    f->opts.experts_dir = "again/experts";
    f->opts.resume = true;
    task_run(f->task, f->opts);
    assert_true(f->task->evaluated && f->task->eval.loss == loss);
    f->opts.updates_max = 2 * UPDATES; /* and training goes on */
    task_run(f->task, f->opts);
}

/* A file whose tensor `name` has another type, shape or number. */
static struct hth_blob *spoil(const struct hth_blob *good, const char *name, int how)
{
    struct hth_st_writer *w = hth_st_writer_new();
    static float nan_at[4096];
    struct hth_st_reader *r;
    struct hth_blob *out;

    nan_at[5] = NAN;
    assert_ok(hth_st_open(good->data, good->size, &r));
    hth_st_add_meta(w, "hearth.format", hth_st_meta(r, "hearth.format"));
    for (size_t i = 0; i < hth_st_count(r); i++) {
        const struct hth_st_entry *e = hth_st_at(r, i);
        uint64_t swapped[2] = {e->dim[1], e->dim[0]};
        if (strcmp(e->name, name) != 0)
            hth_st_add(w, e->name, e->dtype, e->ndim, e->dim, e->data);
        else if (how == 1)
            hth_st_add(w, e->name, e->dtype, e->ndim, swapped, e->data);
        else if (how == 2)
            hth_st_add(w, e->name, e->dtype, e->ndim, e->dim, nan_at);
    }
    assert_ok(hth_st_writer_finish(w, &out));
    hth_st_writer_free(w);
    hth_st_close(r);
    return out;
}

TEST_WITH(faults_of_a_file_are_named, setup, teardown)
{
    static const struct {
        const char *name;
        int how; /* 0: the tensor is missing */
        enum hth_err err;
        const char *why;
    } cases[] = {
        {"norm.weight", 0, HTH_E_CORRUPT, "it has no tensor 'norm.weight'"},
        {"input.weight", 0, HTH_E_CORRUPT, "it has no tensor 'input.weight'"},
        {"layers.1.gate.weight", 1, HTH_E_CORRUPT,
         "'layers.1.gate.weight' is not F32 or BF16 of shape [16, 4]"},
        {"input.weight", 2, HTH_E_CORRUPT, "'input.weight' holds NaN or infinity"},
        {"experts/ffn1.0.1/norm.bias", 0, HTH_E_CORRUPT,
         "it has no tensor 'experts/ffn1.0.1/norm.bias'"},
        {"experts/ffn1.0.1/layers.0.weight", 2, HTH_E_CORRUPT, "holds NaN or infinity"},
    };
    struct fixture *f = *state;
    struct hth_blob *good = make(f, 1 + EXPERTS, HTH_F32), *out;
    struct hth_st_reader *r, *trunk;
    struct hth_model_about about = about_of(f, &trunk);

    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_blob *bad = spoil(good, cases[i].name, cases[i].how);
        struct hth_why why = {""};
        assert_ok(hth_model_file_open("m", bad, &r, &why));
        if (strncmp(cases[i].name, "experts/", 8) == 0) {
            struct hth_expert *expert = expert_of(f, "ffn1.0.1");
            assert_err(cases[i].err, hth_model_file_expert(r, expert, &out, &why));
            hth_expert_free(expert);
        } else {
            assert_err(cases[i].err, hth_model_file_trunk(r, &f->opts.model, &about, &out, &why));
        }
        assert_null(out);
        if (strstr(why.text, cases[i].why) == NULL)
            fail_msg("'%s', not '%s'", why.text, cases[i].why);
        hth_st_close(r);
        hth_blob_unref(bad);
    }
    hth_st_close(trunk);
    hth_blob_unref(good);
}

TEST_WITH(files_that_are_no_checkpoints_are_named, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_model_file_part wrong = {"x", "ffn1.1.1", f->parts[1].bytes}, first = f->parts[0];
    struct hth_model_file_part cut[] = {first, wrong}, other[] = {{"x", NULL, f->parts[1].bytes}};
    struct hth_why why = {""};
    struct hth_st_reader *trunk, *r;
    struct hth_model_about about = about_of(f, &trunk);
    struct hth_blob *out, part = *first.bytes;

    assert_err(HTH_E_WRONG_RUN, hth_model_file_make(cut, 2, &about, HTH_F32, &out, &why));
    assert_string_equal(why.text, "x: it is no checkpoint of ffn1.1.1");
    why.text[0] = '\0';
    assert_err(HTH_E_WRONG_RUN, hth_model_file_make(other, 1, &about, HTH_F32, &out, &why));
    assert_string_equal(why.text, "x: it is no checkpoint of a trainer");
    why.text[0] = '\0';
    part.size -= 3;
    cut[0].bytes = &part;
    assert_err(HTH_E_TRUNCATED, hth_model_file_make(cut, 1, &about, HTH_F32, &out, &why));
    assert_non_null(strstr(why.text, PATH ": the data ends too early"));
    why.text[0] = '\0';
    assert_err(HTH_E_CORRUPT, hth_model_file_open("m", first.bytes, &r, &why));
    assert_string_equal(why.text, "m: it is not a model that hearth export wrote");
    assert_null(r);
    hth_st_close(trunk);
}
