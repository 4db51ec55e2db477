/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_python.c: tools/python/hearth_model.py gives the logits of hearth, for every kind of model,
 * from the export alone. The models have random weights, so that no tensor's part in a result is
 * small.
 */
#include "cli/config.h"
#include "core/mem.h"
#include "integration/place.h"
#include "kernels/ops.h"
#include "net/net.h"
#include "support/suite.h"
#include "trainer/infer.h"
#include "trainer/model_file.h"

#include <stdlib.h>
#include <sys/stat.h>

#define SAMPLES   3
#define TOLERANCE 1e-4
/* Runs that Python, found in the path; its exit code. */
#define PYTHON(p, python, ...)                                                                     \
    proc_wait(place_start_program(                                                                 \
        p, "/bin/sh", "python",                                                                    \
        (const char *const[]){"-c", "exec \"$0\" \"$@\"", python, __VA_ARGS__, NULL}))

struct fixture {
    struct place *place;
    const char *python;
    struct hth_env *env;
    uint64_t random;
    enum hth_err err; /* of the last call */
};

static const struct {
    const char *name, *model, *data;
} cases[] = {
    {"classifier", "kind: classifier, dim: 24, layers: 2, grid: [3, 4], top_k: 3", "fashion-mnist"},
    {"nop", "kind: classifier, dim: 16, layers: 1, grid: [5], top_k: 2, expert: nop",
     "fashion-mnist"},
    {"lm", "kind: lm, dim: 32, heads: 4, layers: 2, context: 12, grid: [2, 3], top_k: 2", "text"},
    {"lm-transformer",
     "kind: lm, dim: 32, heads: 2, layers: 2, context: 10, grid: [2, 2, 2], top_k: 2, "
     "expert: transformer",
     "text"},
    {"lm-shared",
     "kind: lm, dim: 32, heads: 4, layers: 5, context: 9, grid: [2, 2], top_k: 2, share: 2, "
     "layer_scale: 0.5, tied: true, vocab: 300",
     "set"},
    {"lm-dense",
     "kind: lm, dim: 24, heads: 2, layers: 4, context: 12, expert: none, share: 2, share_last: "
     "true, tied: true, embed_dim: 8, layer_scale: 0.3",
     "text"},
    {"lm-masked",
     "kind: lm, dim: 24, heads: 2, layers: 2, context: 12, expert: none, objective: masked",
     "text"},
    {"picture",
     "kind: picture, dim: 48, heads: 3, layers: 5, text: 7, height: 4, width: 4, codes: 40, "
     "masks: [row, column, full], last_mask: conv, window: 3, share: 2, layer_scale: 0.4, "
     "expert: none, vocab: 300",
     "set"},
    {"picture-ffn",
     "kind: picture, dim: 32, heads: 2, layers: 3, text: 5, height: 3, width: 3, codes: 16, "
     "masks: [column, conv], grid: [2, 3], top_k: 2, vocab: 260, embed_dim: 8",
     "set"},
};

/* ---- random numbers ------------------------------------------------------------------------ */

static double draw(struct fixture *f) /* 0 .. 1 */
{
    f->random = f->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(f->random >> 40) / 0x1p24;
}

static void shake(struct fixture *f, struct hth_params *p)
{
    float *values = hth_params_flat(p, HTH_PART_VALUE);

    for (uint32_t i = 0; i < hth_params_count(p); i++) {
        const struct hth_weight *w = hth_params_at(p, i);
        size_t count = (size_t)hth_weight_rows(w) * hth_weight_cols(w);
        for (size_t k = 0; k < count; k++)
            values[hth_weight_offset(w) + k] += (float)(0.4 * draw(f) - 0.2);
    }
    hth_params_touched(p);
}

/* ---- the folder of a trainer --------------------------------------------------------------- */

static void put(struct fixture *f, const char *name, const struct hth_blob *bytes)
{
    place_write(f->place, name, bytes->data, bytes->size);
}

static void put_experts(struct fixture *f, const struct hth_runfile *run,
                        const struct hth_model_opts *opts)
{
    for (uint32_t s = 0; s < hth_model_sets(opts) && !opts->dense; s++) {
        struct hth_grid grid;
        assert_ok(hth_config_grid(run, s, &grid));
        for (uint32_t i = 0; i < hth_grid_size(&grid); i++) {
            struct hth_expert_opts o;
            struct hth_expert *expert;
            struct hth_blob *bytes;
            hth_config_expert(run, &o);
            o.backend = hth_backend_ref();
            o.uid.ncoord = grid.ndim;
            memcpy(o.uid.name, grid.name, sizeof(o.uid.name));
            hth_grid_coords(&grid, i, o.uid.coord);
            assert_ok(hth_expert_new(&o, &expert));
            assert_ok(hth_expert_init(expert));
            if (hth_expert_params(expert) != NULL) {
                shake(f, hth_expert_params(expert));
                assert_ok(hth_expert_snapshot(expert, &bytes));
                put(f, place_text(f->place, "experts/%s.safetensors", hth_expert_uid_text(expert)),
                    bytes);
                hth_blob_unref(bytes);
            }
            hth_expert_free(expert);
        }
    }
}

/* A model's file in memory, which becomes the checkpoint. */
static struct hth_blob *random_model(struct fixture *f, const struct hth_model_opts *opts)
{
    struct hth_st_writer *w = hth_st_writer_new();
    struct hth_model *m;
    struct hth_blob *out;

    assert_ok(hth_model_new(NULL, opts, &m));
    struct hth_params *p = hth_model_params(m);
    shake(f, p);
    hth_st_add_meta(w, "hearth.format", "hearth-model-1");
    for (uint32_t i = 0; i < hth_params_count(p); i++) {
        struct hth_weight *weight = hth_params_at(p, i);
        const uint64_t dim[2] = {hth_weight_rows(weight), hth_weight_cols(weight)};
        hth_st_add(w, hth_weight_name(weight), HTH_F32, 2, dim,
                   hth_params_flat(p, HTH_PART_VALUE) + hth_weight_offset(weight));
    }
    assert_ok(hth_st_writer_finish(w, &out));
    hth_st_writer_free(w);
    hth_model_free(m);
    return out;
}

static void put_trainer(struct fixture *f, const struct hth_runfile *run,
                        const struct hth_model_opts *opts)
{
    const struct hth_model_about about = {
        .run = run->run, .run_text = run->text, .updates = 3, .samples = 9, .experts = true};
    struct hth_blob *model = random_model(f, opts), *trunk;
    struct hth_st_reader *r;

    assert_ok(hth_model_file_open("model", model, &r, NULL));
    assert_ok(hth_model_file_trunk(r, opts, &about, &trunk, NULL));
    put(f, "trunk.safetensors", trunk);
    put_experts(f, run, opts);
    hth_st_close(r);
    hth_blob_unref(trunk);
    hth_blob_unref(model);
}

/* ---- .npy ---------------------------------------------------------------------------------- */

static void write_npy(struct fixture *f, const char *name, const char *dtype, uint32_t columns,
                      const void *data)
{
    uint8_t *file = hth_calloc(128 + (size_t)SAMPLES * columns, 4);
    int len = snprintf((char *)file + 10, 118,
                       "{'descr': '%s', 'fortran_order': False, 'shape': (%d, %u), }", dtype,
                       SAMPLES, columns);

    assert_in_range(len, 1, 116);
    memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10); /* a header of 118 bytes */
    memset(file + 10 + len, ' ', 117 - (size_t)len);
    file[127] = '\n';
    memcpy(file + 128, data, (size_t)4 * SAMPLES * columns);
    place_write(f->place, name, file, 128 + (size_t)4 * SAMPLES * columns);
    hth_free(file);
}

/* The numbers of a file, which must be that many. */
static float *read_npy(struct fixture *f, const char *name, size_t count)
{
    size_t len;
    char *file = place_read(place_path(f->place, name), &len);
    assert_non_null(file);
    size_t head = 10 + (size_t)(uint8_t)file[8] + 256 * (size_t)(uint8_t)file[9];
    assert_int_equal(len, head + 4 * count);
    assert_non_null(strstr(file + 10, "'<f4'"));
    float *out = hth_calloc(count, sizeof(*out));
    memcpy(out, file + head, 4 * count);
    free(file);
    return out;
}

/* ---- both sides ---------------------------------------------------------------------------- */

static void on_logits(void *arg, enum hth_err err)
{
    struct fixture *f = arg;

    f->err = err;
    hth_net_stop(f->env);
}

static struct hth_infer *open_model(struct fixture *f, const struct hth_runfile *run,
                                    const struct hth_model_opts *opts)
{
    struct hth_infer_opts o = HTH_INFER_OPTS_INIT;
    struct hth_trained *trained;
    struct hth_infer *infer;
    struct hth_why why = {""};

    assert_ok(hth_trained_open(f->env, place_path(f->place, "trunk.safetensors"), &why, &trained));
    o.model = *opts;
    o.trained = trained;
    o.rows = SAMPLES * opts->seq_len;
    o.local = true;
    o.experts_dir = place_path(f->place, "experts");
    o.run = run->run;
    o.why = &why;
    hth_config_optim(&run->experts.optimizer, &o.local_optim);
    if (hth_infer_new(f->env, &o, &infer) != HTH_OK)
        fail_msg("%s", why.text);
    hth_trained_free(trained);
    return infer;
}

/* Random samples, for hearth and for IN.npy. The second text of a picture is padded. */
static void draw_samples(struct fixture *f, const struct hth_model_opts *o,
                         struct hth_infer_batch batch)
{
    uint32_t columns = o->kind == HTH_MODEL_CLASSIFIER ? o->features : o->seq_len;
    float *pixels = hth_calloc((size_t)SAMPLES * columns, sizeof(*pixels));
    const struct hth_data_opts norm = HTH_DATA_OPTS_INIT;

    for (uint32_t i = 0; i < SAMPLES * columns; i++) {
        uint32_t at = i % columns;
        bool is_code = o->kind == HTH_MODEL_PICTURE && at >= o->text;
        uint32_t ids = is_code ? o->codes : o->classes + (o->objective == HTH_MASKED);
        pixels[i] = (float)(uint32_t)(draw(f) * 256);
        if (o->kind == HTH_MODEL_CLASSIFIER)
            batch.x[i] = (pixels[i] / 255 - norm.mean) / norm.std;
        else
            batch.tokens[i] = (int32_t)(draw(f) * ids);
        if (o->kind == HTH_MODEL_PICTURE && i / columns == 1 && at >= 3 && !is_code)
            batch.tokens[i] = 0;
    }
    for (uint32_t i = 0; i < SAMPLES * o->seq_len; i++)
        batch.labels[i] = HTH_LABEL_NONE;
    if (o->kind == HTH_MODEL_CLASSIFIER)
        write_npy(f, "in.npy", "<f4", columns, pixels);
    else
        write_npy(f, "in.npy", "<i4", columns, batch.tokens);
    hth_free(pixels);
}

static void compare(struct fixture *f, const struct hth_infer *infer, uint32_t i, uint32_t rows,
                    uint32_t classes, const char *what)
{
    float *got = read_npy(f, i == 0 ? "out.npy" : "codes.npy", (size_t)rows * classes);
    double most = 0;

    for (uint32_t r = 0; r < rows; r++) {
        const float *want = hth_infer_logits(infer, i, r);
        for (uint32_t c = 0; c < classes; c++) {
            double apart = fabs((double)got[(size_t)r * classes + c] - (double)want[c]);
            most = apart > most || isnan(apart) ? apart : most;
            if (!(apart <= TOLERANCE * fmax(1, fabs((double)want[c]))))
                fail_msg("%s: vocabulary %u, row %u, logit %u: %.7g, hearth has %.7g", what, i, r,
                         c, (double)got[(size_t)r * classes + c], (double)want[c]);
        }
    }
    print_message("%s: %u logits, at most %.1e apart\n", what, rows * classes, most);
    hth_free(got);
}

static void check(struct fixture *f, size_t n)
{
    struct place *p = f->place;
    char text[1024], error[HTH_RUNFILE_ERROR_MAX];
    struct hth_runfile *run;
    struct hth_model_opts o;

    snprintf(text, sizeof(text), "run: %s\nseed: 5\nmodel: {%s}\ndata: {kind: %s, path: x}\n",
             cases[n].name, cases[n].model, cases[n].data);
    if (hth_runfile_parse("run", (uint8_t *)text, strlen(text), &run, error) != HTH_OK)
        fail_msg("%s", error);
    hth_config_model(run, &o);
    put_trainer(f, run, &o);
    struct hth_infer *infer = open_model(f, run, &o);
    draw_samples(f, &o, hth_infer_batch(infer));
    assert_ok(hth_infer_whole(infer, SAMPLES, on_logits, f));
    assert_ok(hth_net_run(f->env));
    assert_ok(f->err);

    assert_int_equal(RUN(p, "export", "export", "--dir", p->root, "--out", place_path(p, "model")),
                     0);
    assert_int_equal(PYTHON(p, f->python, HTH_TEST_SOURCES "/tools/python/hearth_model.py",
                            place_path(p, "model"), place_path(p, "in.npy"),
                            place_path(p, "out.npy"), place_path(p, "codes.npy")),
                     0);
    if (o.kind == HTH_MODEL_PICTURE) {
        compare(f, infer, 0, SAMPLES * (o.text - 1), o.classes, cases[n].name);
        compare(f, infer, 1, SAMPLES * o.height * o.width, o.codes, cases[n].name);
    } else {
        compare(f, infer, 0, SAMPLES * o.seq_len, o.classes + (o.objective == HTH_MASKED),
                cases[n].name);
    }
    hth_infer_free(infer);
    hth_runfile_free(run);
}

/* A Python with numpy: tools/setup installs Debian's, which another one may hide. */
static const char *find_python(struct place *p)
{
    static const char *const names[] = {"python3", "/usr/bin/python3"};

    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++)
        if (PYTHON(p, names[i], "-c", "import numpy") == 0)
            return names[i];
    return NULL;
}

PLACE_TEST(python_gives_the_same_logits)
{
    struct fixture f = {.place = *state, .random = 11};
    struct hth_net_opts net = HTH_NET_OPTS_INIT;

    f.python = find_python(f.place);
    if (f.python == NULL)
        fail_msg("no Python with numpy: tools/setup installs it");
    assert_ok(hth_net_new(&net, &f.env));
    assert_int_equal(mkdir(place_path(f.place, "experts"), 0700), 0);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i += HTH_TEST_FEW ? 3 : 1)
        check(&f, i);
    hth_net_free(f.env);
    place_end(f.place);
}
