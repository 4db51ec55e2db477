/* SPDX-License-Identifier: Apache-2.0 */
/* test_store.c: kinds, the equation of the step, and the bits of checkpoints. */
#include "experts/swarm.h"

#include "core/limits.h"
#include "core/mem.h"
#include "experts/rows.h"
#include "experts/safetensors.h"
#include "support/suite.h"

#define D 16

/* ||a - b|| / ||b|| */
static double distance(const float *a, const float *b, size_t n)
{
    double diff = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        diff += pow((double)a[i] - b[i], 2);
        norm += pow(b[i], 2);
    }
    return sqrt(diff / norm);
}

static struct hth_expert_opts opts_of(const char *kind)
{
    struct swarm_host h = host_init();

    h.expert.kind = kind;
    h.expert.uid = uid_of(3);
    if (strcmp(kind, "transformer") == 0) {
        h.expert.shape.heads = 2;
        h.expert.shape.block_rows = 4;
    }
    return h.expert;
}

TEST(kinds_check_their_shapes)
{
    static const char *const kinds[] = {"ffn", "transformer", "nop"};
    struct hth_expert_shape s = {.d = 128};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++)
        assert_string_equal(hth_expert_kind_at(i)->name, kinds[i]);
    assert_null(hth_expert_kind_at(3));
    assert_null(hth_expert_kind_find("resnet"));
    assert_ok(hth_kind_ffn.shape(&s));
    assert_int_equal(s.inner, 512);
    assert_int_equal(s.block_rows, 1);
    assert_err(HTH_E_BAD_SHAPE, hth_kind_ffn.shape(&(struct hth_expert_shape){.d = 0}));
    assert_err(HTH_E_TOO_LARGE,
               hth_kind_ffn.shape(&(struct hth_expert_shape){.d = HTH_EXPERT_D_MAX + 1}));
    assert_err(HTH_E_TOO_LARGE, hth_kind_ffn.shape(&(struct hth_expert_shape){
                                    .d = 8, .inner = HTH_EXPERT_INNER_MAX + 1}));
    assert_err(HTH_E_TOO_LARGE, hth_kind_transformer.shape(&(struct hth_expert_shape){
                                    .d = 8, .block_rows = HTH_EXPERT_BLOCK_ROWS_MAX + 1}));
    assert_err(HTH_E_BAD_SHAPE,
               hth_kind_ffn.shape(&(struct hth_expert_shape){.d = 8, .block_rows = 2}));
    assert_err(HTH_E_BAD_SHAPE,
               hth_kind_transformer.shape(&(struct hth_expert_shape){.d = 10, .heads = 3}));
    assert_err(HTH_E_BAD_SHAPE,
               hth_kind_transformer.shape(&(struct hth_expert_shape){.d = 9, .heads = 3}));
}

TEST(options_are_checked)
{
    struct hth_expert_opts o = opts_of("ffn");
    struct hth_expert *e;

    (void)state;
    o.kind = "resnet";
    assert_err(HTH_E_CONFIG, hth_expert_new(&o, &e));
    o = opts_of("ffn");
    o.schedule.lr = -1;
    assert_err(HTH_E_CONFIG, hth_expert_new(&o, &e));
    o = opts_of("ffn");
    o.clip_norm = NAN;
    assert_err(HTH_E_CONFIG, hth_expert_new(&o, &e));
    o = opts_of("ffn");
    o.optim.beta1 = 1.5f;
    assert_err(HTH_E_CONFIG, hth_expert_new(&o, &e));
    o = opts_of("ffn");
    o.shape = (struct hth_expert_shape){.d = HTH_EXPERT_D_MAX, .inner = HTH_EXPERT_INNER_MAX};
    assert_err(HTH_E_TOO_LARGE, hth_expert_new(&o, &e));
}

TEST(weight_counts_match_the_parameters)
{
    static const char *const kinds[] = {"ffn", "transformer"};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++) {
        struct hth_expert_opts o = opts_of(kinds[i]);
        struct reference r;
        reference_start(&r, &o);
        assert_int_equal(hth_params_elements(hth_expert_params(r.expert)),
                         hth_expert_kind_of(r.expert)->weights(hth_expert_shape_of(r.expert)));
        reference_stop(&r);
    }
}

/* Replicas start equal; other experts and other runs differ. */
TEST(weights_follow_the_seed)
{
    struct hth_expert_opts o = opts_of("ffn"), other = o, run = o;
    struct reference a, b, c, d;

    (void)state;
    other.uid = uid_of(4);
    run.run_seed++;
    reference_start(&a, &o);
    reference_start(&b, &o);
    reference_start(&c, &other);
    reference_start(&d, &run);
    assert_true(experts_equal(a.expert, b.expert));
    assert_memory_not_equal(hth_params_flat(hth_expert_params(a.expert), HTH_PART_VALUE),
                            hth_params_flat(hth_expert_params(c.expert), HTH_PART_VALUE), 1024);
    assert_memory_not_equal(hth_params_flat(hth_expert_params(a.expert), HTH_PART_VALUE),
                            hth_params_flat(hth_expert_params(d.expert), HTH_PART_VALUE), 1024);
    reference_stop(&a);
    reference_stop(&b);
    reference_stop(&c);
    reference_stop(&d);
}

TEST(rows_must_be_whole_blocks)
{
    struct hth_expert_opts o = opts_of("transformer");
    float *x = normals(1, 8 * D);
    struct reference r;
    struct hth_view six = hth_view_f32(x, 6, D, D), wide = hth_view_f32(x, 4, D - 1, D);
    struct hth_view four = hth_view_f32(x, 4, D, D);

    (void)state;
    reference_start(&r, &o);
    assert_ok(hth_exec_reserve(r.ex, hth_expert_scratch_bytes(r.expert, 8, true)));
    assert_err(HTH_E_BAD_SHAPE, hth_expert_forward(r.expert, r.ex, six, six));
    assert_err(HTH_E_BAD_SHAPE, hth_expert_forward(r.expert, r.ex, wide, wide));
    assert_err(HTH_E_BAD_SHAPE, hth_expert_forward(r.expert, r.ex, four, six));
    assert_err(HTH_E_RANGE, hth_expert_backward(r.expert, r.ex, 0, four, four, four));
    reference_stop(&r);
    hth_aligned_free(x);
}

/* One request of 10 rows, 10 requests of one row, and requests with other micro-batches, whose
 * gradients are larger as their batches are smaller, all give the same step. */
TEST(step_does_not_depend_on_load)
{
    struct hth_expert_opts o = opts_of("ffn");
    float *x = normals(1, 10 * D), *dy = normals(2, 10 * D), dx[10 * D], scaled[D];
    struct reference whole, single, mixed;

    (void)state;
    reference_start(&whole, &o);
    reference_start(&single, &o);
    reference_start(&mixed, &o);
    reference_backward(&whole, 10, 64, x, dy, dx);
    assert_int_equal(hth_expert_pending_rows(whole.expert), 10);
    assert_ok(hth_expert_step(whole.expert, whole.ex));
    for (int i = 0; i < 10; i++) {
        uint32_t m = i % 2 == 0 ? 64 : 16;
        reference_backward(&single, 1, 64, x + i * D, dy + i * D, dx);
        for (int j = 0; j < D; j++)
            scaled[j] = dy[i * D + j] * 64.0f / (float)m;
        reference_backward(&mixed, 1, m, x + i * D, scaled, dx);
    }
    assert_ok(hth_expert_step(single.expert, single.ex));
    assert_ok(hth_expert_step(mixed.expert, mixed.ex));
    assert_int_equal(hth_expert_steps(mixed.expert), 1);
    assert_int_equal(hth_expert_pending_rows(mixed.expert), 0);
    for (int part = HTH_PART_VALUE; part <= HTH_PART_STATE1; part++) {
        size_t n = hth_params_flat_len(hth_expert_params(whole.expert));
        const float *want = hth_params_flat(hth_expert_params(whole.expert), (enum hth_part)part);
        if (part == HTH_PART_GRAD)
            continue;
        assert_true(distance(hth_params_flat(hth_expert_params(single.expert), (enum hth_part)part),
                             want, n) < 1e-5);
        assert_true(distance(hth_params_flat(hth_expert_params(mixed.expert), (enum hth_part)part),
                             want, n) < 1e-5);
    }
    reference_stop(&whole);
    reference_stop(&single);
    reference_stop(&mixed);
    hth_aligned_free(x);
    hth_aligned_free(dy);
}

/* A failed pass with another micro-batch counts for nothing. */
TEST(failed_pass_counts_for_nothing)
{
    struct hth_expert_opts o = opts_of("ffn");
    float *x = normals(1, 4 * D), *dy = normals(2, 4 * D), dx[4 * D];
    struct hth_view rows = hth_view_f32(x, 4, D, D), grads = hth_view_f32(dy, 4, D, D);
    struct reference a, b;
    struct hth_exec *narrow;
    size_t bytes;

    (void)state;
    reference_start(&a, &o);
    reference_start(&b, &o);
    assert_ok(hth_exec_new(o.backend, 0, &narrow));
    reference_backward(&a, 4, 64, x, dy, dx);
    reference_backward(&b, 4, 64, x, dy, dx);
    assert_err(HTH_E_NO_MEMORY,
               hth_expert_backward(a.expert, narrow, 16, rows, grads, hth_view_f32(dx, 4, D, D)));
    reference_backward(&a, 2, 64, x, dy, dx);
    reference_backward(&b, 2, 64, x, dy, dx);
    assert_int_equal(hth_expert_pending_rows(a.expert), 6);
    assert_ok(hth_expert_step(a.expert, a.ex));
    assert_ok(hth_expert_step(b.expert, b.ex));
    bytes = hth_params_flat_len(hth_expert_params(a.expert)) * sizeof(float);
    assert_memory_equal(hth_params_flat(hth_expert_params(a.expert), HTH_PART_STATE0),
                        hth_params_flat(hth_expert_params(b.expert), HTH_PART_STATE0), bytes);
    hth_exec_free(narrow);
    reference_stop(&a);
    reference_stop(&b);
    hth_aligned_free(x);
    hth_aligned_free(dy);
}

/* The back end of hosts: packed tables, where gradients of few rows stay products. Passes of
 * several sizes and micro-batches, a checkpoint between them and a clipped step agree with
 * `ref`. */
TEST(packed_tables_step_like_ref)
{
    const struct hth_backend *tables[HTH_PACKED_MAX];
    size_t count = hth_backend_packed_all(tables);
    static const uint32_t passes[][2] = {{3, 64}, {1, 64}, {7, 64}, {2, 16}, {30, 16}, {5, 16}};
    enum { WIDE = 64 };
    float *x = normals(1, 30 * WIDE), *dy = normals(2, 30 * WIDE), dx[30 * WIDE];

    (void)state;
    for (size_t k = 0; k < count; k++) {
        struct hth_expert_opts o = opts_of("ffn");
        double tolerance = hth_backend_compute(tables[k]) == HTH_MATMUL_BF16 ? 2e-2 : 1e-5;
        struct reference want, got;
        struct hth_blob *blob;
        float *a, *b;
        o.shape = (struct hth_expert_shape){.d = WIDE};
        o.optim = (struct hth_optim){.kind = HTH_OPTIM_SGD, .momentum = 0.5f};
        reference_start(&want, &o);
        o.backend = tables[k];
        reference_start(&got, &o);
        for (uint32_t step = 0; step < 2; step++) {
            /* The first step has all passes; the others two that stay products until the step. */
            for (size_t i = 0; i < (step == 0 ? HTH_ARRAY_LEN(passes) : 2); i++) {
                reference_backward(&want, passes[i][0], passes[i][1], x, dy, dx);
                reference_backward(&got, passes[i][0], passes[i][1], x, dy, dx);
                assert_ok(hth_expert_snapshot(got.expert, &blob));
                hth_blob_unref(blob);
            }
            assert_ok(hth_expert_step(want.expert, want.ex));
            assert_ok(hth_expert_step(got.expert, got.ex));
        }
        a = hth_params_flat(hth_expert_params(got.expert), HTH_PART_STATE0);
        b = hth_params_flat(hth_expert_params(want.expert), HTH_PART_STATE0);
        assert_true(distance(a, b, hth_params_flat_len(hth_expert_params(got.expert))) < tolerance);
        reference_stop(&want);
        reference_stop(&got);
    }
    hth_aligned_free(x);
    hth_aligned_free(dy);
}

/* With plain SGD the step is lr * (M / N) * g, clipped: checked against the gradient. */
TEST(sgd_step_follows_the_equation)
{
    struct hth_expert_opts o = opts_of("ffn");
    float *x = normals(1, 5 * D), *dy = normals(2, 5 * D), dx[5 * D];
    struct reference r;
    size_t n;
    double norm = 0, clip;
    float *before, *grad, *after;

    (void)state;
    o.optim = (struct hth_optim){.kind = HTH_OPTIM_SGD};
    o.schedule = (struct hth_schedule){
        .kind = HTH_SCHEDULE_LINEAR, .lr = 0.5f, .warmup_steps = 2, .total_steps = 10};
    o.clip_norm = 0.75f;
    reference_start(&r, &o);
    n = hth_params_flat_len(hth_expert_params(r.expert));
    before = hth_calloc(n, sizeof(float));
    grad = hth_calloc(n, sizeof(float));
    reference_backward(&r, 5, 40, x, dy, dx);
    after = hth_params_flat(hth_expert_params(r.expert), HTH_PART_VALUE);
    memcpy(before, after, n * sizeof(float));
    memcpy(grad, hth_params_flat(hth_expert_params(r.expert), HTH_PART_GRAD), n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        norm += pow(grad[i] * 8.0, 2);
    clip = fmin(1.0, 0.75 / (sqrt(norm) + 1e-6));
    assert_true(clip < 1);
    assert_close(hth_expert_lr(r.expert), 0.25, 1e-6, 0);
    assert_ok(hth_expert_step(r.expert, r.ex));
    for (size_t i = 0; i < n; i++)
        assert_close(after[i], before[i] - 0.25 * clip * 8.0 * grad[i], 1e-5, 1e-7);
    assert_close(hth_expert_lr(r.expert), 0.5, 1e-6, 0);
    hth_free(before);
    hth_free(grad);
    reference_stop(&r);
    hth_aligned_free(x);
    hth_aligned_free(dy);
}

TEST(infinite_gradient_is_dropped)
{
    struct hth_expert_opts o = opts_of("ffn");
    float *x = normals(1, D), dy[D] = {INFINITY}, dx[D];
    struct reference r, fresh;

    (void)state;
    reference_start(&r, &o);
    reference_start(&fresh, &o);
    reference_backward(&r, 1, 1, x, dy, dx);
    assert_err(HTH_E_NOT_FINITE, hth_expert_step(r.expert, r.ex));
    assert_true(experts_equal(r.expert, fresh.expert));
    assert_ok(hth_expert_step(r.expert, r.ex)); /* nothing is pending */
    assert_int_equal(hth_expert_steps(r.expert), 0);
    reference_stop(&r);
    reference_stop(&fresh);
    hth_aligned_free(x);
}

static void train_some(struct reference *r, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        float *x = normals(i, 8 * D), *dy = normals(100 + i, 8 * D), dx[8 * D];
        reference_backward(r, 8, 8, x, dy, dx);
        assert_ok(hth_expert_step(r->expert, r->ex));
        hth_aligned_free(x);
        hth_aligned_free(dy);
    }
}

/* Training across a save and a load equals training without a stop, bit for bit. */
TEST(checkpoint_continues_bit_for_bit)
{
    static const char *const kinds[] = {"ffn", "transformer"};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++) {
        struct hth_expert_opts o = opts_of(kinds[i]);
        struct reference a, b;
        struct hth_blob *blob;
        o.schedule.warmup_steps = 10;
        o.optim.weight_decay = 0.01f;
        reference_start(&a, &o);
        reference_start(&b, &o);
        train_some(&a, 0, 4);
        assert_ok(hth_expert_snapshot(a.expert, &blob));
        assert_ok(hth_expert_load_blob(b.expert, blob->data, blob->size));
        assert_int_equal(hth_expert_steps(b.expert), 4);
        assert_true(experts_equal(a.expert, b.expert));
        train_some(&a, 4, 8);
        train_some(&b, 4, 8);
        assert_true(experts_equal(a.expert, b.expert));
        hth_blob_unref(blob);
        reference_stop(&a);
        reference_stop(&b);
    }
}

static enum hth_err load_as(const struct hth_expert_opts *o, const struct hth_blob *blob,
                            size_t len)
{
    struct hth_expert *e;
    enum hth_err err;

    assert_ok(hth_expert_new(o, &e));
    err = hth_expert_load_blob(e, blob->data, len);
    if (err != HTH_OK)
        assert_null(hth_expert_params(e));
    hth_expert_free(e);
    return err;
}

TEST(unfit_checkpoints_are_refused)
{
    struct hth_expert_opts o = opts_of("ffn"), other;
    struct hth_rng rng;
    struct reference r;
    struct hth_blob *blob;

    (void)state;
    o.run = "first";
    reference_start(&r, &o);
    train_some(&r, 0, 1);
    assert_ok(hth_expert_snapshot(r.expert, &blob));
    assert_ok(load_as(&o, blob, blob->size));
    other = o;
    other.run = NULL; /* any */
    assert_ok(load_as(&other, blob, blob->size));
    other.run = "second";
    assert_err(HTH_E_WRONG_RUN, load_as(&other, blob, blob->size));
    other = o;
    other.uid = uid_of(9);
    assert_err(HTH_E_WRONG_RUN, load_as(&other, blob, blob->size));
    other = o;
    other.shape.inner = 64;
    assert_err(HTH_E_BAD_SHAPE, load_as(&other, blob, blob->size));
    other = o;
    other.kind = "transformer";
    assert_err(HTH_E_BAD_SHAPE, load_as(&other, blob, blob->size));
    other = o;
    other.optim.kind = HTH_OPTIM_ADAMW;
    assert_err(HTH_E_CONFIG, load_as(&other, blob, blob->size));
    hth_rng_init(&rng, 3);
    for (int i = 0; i < 200; i++) {
        size_t at = hth_rng_below(&rng, blob->size), bit = hth_rng_below(&rng, 8);
        assert_err(HTH_E_CORRUPT, load_as(&o, blob, hth_rng_below(&rng, blob->size)));
        blob->data[at] ^= (uint8_t)(1u << bit);
        assert_err(HTH_E_CORRUPT, load_as(&o, blob, blob->size));
        blob->data[at] ^= (uint8_t)(1u << bit);
    }
    hth_blob_unref(blob);
    reference_stop(&r);
}

/* A forged copy of the checkpoint: another number of steps, or another first element of a tensor,
 * with a valid digest. `old`: as version 1 wrote it. */
static struct hth_blob *forge(const struct hth_blob *blob, bool old, const char *steps,
                              const char *tensor, float first)
{
    static const char *const keys[] = {"hearth.format",     "hearth.uid",       "hearth.kind",
                                       "hearth.d",          "hearth.inner",     "hearth.heads",
                                       "hearth.block_rows", "hearth.optimizer", "hearth.steps"};
    struct hth_st_writer *w = hth_st_writer_new();
    struct hth_st_reader *r;
    struct hth_blob *out;
    float *changed = NULL;

    assert_ok(hth_st_open(blob->data, blob->size, &r));
    for (size_t i = 0; i < HTH_ARRAY_LEN(keys); i++) {
        const char *key = old ? keys[i] + strlen("hearth.") : keys[i];
        bool it = steps != NULL && strcmp(keys[i], "hearth.steps") == 0;
        bool version = old && i == 0;
        hth_st_add_meta(w, key, it ? steps : version ? "hearth-expert-1" : hth_st_meta(r, keys[i]));
    }
    for (size_t i = 0; i < hth_st_count(r); i++) {
        const struct hth_st_entry *e = hth_st_at(r, i);
        bool it = tensor != NULL && strcmp(e->name, tensor) == 0;
        if (it) {
            changed = hth_calloc(1, e->bytes);
            memcpy(changed, e->data, e->bytes);
            changed[0] = first;
        }
        hth_st_add(w, e->name, e->dtype, e->ndim, e->dim, it ? changed : e->data);
    }
    assert_true((tensor != NULL) == (changed != NULL));
    assert_ok(hth_st_writer_finish(w, &out));
    hth_st_writer_free(w);
    hth_st_close(r);
    hth_free(changed);
    return out;
}

/* A valid digest proves neither the origin of a file nor that its values are usable. */
TEST(forged_checkpoints_are_refused)
{
    struct hth_expert_opts o = opts_of("ffn");
    struct reference r;
    struct hth_blob *blob;
    char name[96], m[98], v[98];

    (void)state;
    reference_start(&r, &o);
    train_some(&r, 0, 1);
    assert_ok(hth_expert_snapshot(r.expert, &blob));
    snprintf(name, sizeof(name), "%s",
             hth_weight_name(hth_params_at(hth_expert_params(r.expert), 0)));
    snprintf(m, sizeof(m), "%s.m", name);
    snprintf(v, sizeof(v), "%s.v", name);
    const struct {
        const char *steps, *tensor;
        float first;
        enum hth_err err;
    } cases[] = {
        {NULL, NULL, 0, HTH_OK},
        {"281474976710656", NULL, 0, HTH_OK},
        {"281474976710657", NULL, 0, HTH_E_RANGE},
        {"18446744073709551615", NULL, 0, HTH_E_RANGE},
        {NULL, name, NAN, HTH_E_NOT_FINITE},
        {NULL, name, -INFINITY, HTH_E_NOT_FINITE},
        {NULL, m, INFINITY, HTH_E_NOT_FINITE},
        {NULL, m, -1, HTH_OK},
        {NULL, v, NAN, HTH_E_NOT_FINITE},
        {NULL, v, -1, HTH_E_RANGE},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        for (int old = 0; old < 2; old++) {
            struct hth_blob *other =
                forge(blob, old == 1, cases[i].steps, cases[i].tensor, cases[i].first);
            assert_int_equal(load_as(&o, other, other->size), cases[i].err);
            hth_blob_unref(other);
        }
    }
    hth_blob_unref(blob);
    reference_stop(&r);
}

static void train_huge(struct reference *r, float factor)
{
    float *x = normals(1, 8 * D), *dy = normals(2, 8 * D), dx[8 * D];

    for (size_t i = 0; i < (size_t)8 * D; i++)
        dy[i] *= factor;
    reference_backward(r, 8, 8, x, dy, dx);
    assert_ok(hth_expert_step(r->expert, r->ex));
    hth_aligned_free(x);
    hth_aligned_free(dy);
}

/* The largest difference of two experts' weights. */
static double weights_moved(struct hth_expert *a, struct hth_expert *b)
{
    struct hth_params *p = hth_expert_params(a), *q = hth_expert_params(b);
    const float *v = hth_params_flat(p, HTH_PART_VALUE), *w = hth_params_flat(q, HTH_PART_VALUE);
    double most = 0;

    for (size_t i = 0; i < hth_params_flat_len(p); i++)
        most = fmax(most, fabs((double)v[i] - w[i]));
    return most;
}

/* Moments of steps clipped to 1 are restored as they are. Those that one huge gradient left are
 * reset, and then the expert learns again. */
TEST(moments_beyond_the_clip_are_reset)
{
    static const enum hth_optim_kind kinds[] = {HTH_OPTIM_ADAM, HTH_OPTIM_ADAMW, HTH_OPTIM_LAMB};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++) {
        struct hth_expert_opts o = opts_of("ffn"), clipped;
        struct reference free_one, back;
        struct hth_blob *blob, *before, *after;
        o.optim.kind = kinds[i];
        o.clip_norm = 0;
        clipped = o;
        clipped.clip_norm = 1;
        reference_start(&free_one, &o);
        train_huge(&free_one, 1e14f);
        assert_ok(hth_expert_snapshot(free_one.expert, &blob));
        reference_start(&back, &o); /* without clipping they are restored */
        assert_ok(hth_expert_load_blob(back.expert, blob->data, blob->size));
        assert_false(hth_expert_moments_renewed(back.expert));
        assert_true(experts_equal(free_one.expert, back.expert));
        reference_stop(&back);
        reference_start(&back, &clipped);
        assert_ok(hth_expert_load_blob(back.expert, blob->data, blob->size));
        assert_true(hth_expert_moments_renewed(back.expert));
        assert_int_equal(hth_expert_steps(back.expert), 1);
        assert_true(weights_moved(back.expert, free_one.expert) == 0);
        train_huge(&back, 1e14f); /* clipped */
        assert_true(weights_moved(back.expert, free_one.expert) > 1e-6);
        assert_ok(hth_expert_snapshot(back.expert, &before));
        assert_ok(hth_expert_load_blob(back.expert, before->data, before->size));
        assert_false(hth_expert_moments_renewed(back.expert));
        assert_ok(hth_expert_snapshot(back.expert, &after));
        assert_int_equal(before->size, after->size);
        assert_memory_equal(before->data, after->data, before->size);
        hth_blob_unref(blob);
        hth_blob_unref(before);
        hth_blob_unref(after);
        reference_stop(&free_one);
        reference_stop(&back);
    }
}

TEST(all_halves_convert)
{
    static const float exact[] = {0, -0.0f, 1, -2, 0.5f, 65504, 6.103515625e-05f, 5.9604645e-08f};
    float back[HTH_ARRAY_LEN(exact)], special[3] = {INFINITY, -INFINITY, NAN};
    uint16_t half[HTH_ARRAY_LEN(exact)];
    struct hth_rng rng;

    (void)state;
    hth_rows_from_f32(exact, HTH_F16, 1, HTH_ARRAY_LEN(exact), half);
    hth_rows_to_f32(half, HTH_F16, 1, HTH_ARRAY_LEN(exact), back);
    assert_memory_equal(exact, back, sizeof(exact));
    hth_rows_from_f32(special, HTH_F16, 1, 3, half);
    hth_rows_to_f32(half, HTH_F16, 1, 3, back);
    assert_true(isinf(back[0]) && isinf(back[1]) && back[1] < 0 && isnan(back[2]));
    assert_false(hth_rows_finite(back, 3));
    hth_rng_init(&rng, 4);
    for (int i = 0; i < 20000; i++) {
        float v = (float)(hth_rng_normal(&rng) * pow(10, (double)hth_rng_below(&rng, 8) - 4)), r;
        uint16_t h;
        hth_rows_from_f32(&v, HTH_F16, 1, 1, &h);
        hth_rows_to_f32(&h, HTH_F16, 1, 1, &r);
        if (fabsf(v) < 65504)
            assert_close(r, v, 1.0 / 2048, 3e-8);
        hth_rows_from_f32(&v, HTH_BF16, 1, 1, &h);
        hth_rows_to_f32(&h, HTH_BF16, 1, 1, &r);
        assert_close(r, v, 1.0 / 256, 0);
    }
    for (uint32_t h = 0; h < 65536; h++) { /* every half survives the round trip */
        uint16_t in = (uint16_t)h, out;
        float v;
        hth_rows_to_f32(&in, HTH_F16, 1, 1, &v);
        hth_rows_from_f32(&v, HTH_F16, 1, 1, &out);
        if (!isnan(v))
            assert_int_equal(in, out);
    }
}

/* Long rows use other instructions than single numbers and must give the same bits. */
TEST(long_rows_convert_as_single_numbers)
{
    enum { COUNT = 1 << 16 };
    static float wide[COUNT], back[COUNT];
    static uint16_t half[COUNT];

    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits = i << 16 | (uint32_t)(hth_mix64(i) & 0xffff); /* all exponents, NaNs too */
        memcpy(&wide[i], &bits, sizeof(bits));
    }
    for (int type = 0; type < 2; type++) {
        enum hth_dtype dtype = type == 0 ? HTH_F16 : HTH_BF16;
        hth_rows_from_f32(wide, dtype, 1, COUNT, half);
        hth_rows_to_f32(half, dtype, 1, COUNT, back);
        for (uint32_t i = 0; i < COUNT; i++) {
            uint16_t h;
            float f;
            hth_rows_from_f32(&wide[i], dtype, 1, 1, &h);
            hth_rows_to_f32(&h, dtype, 1, 1, &f);
            assert_int_equal(h, half[i]);
            assert_memory_equal(&f, &back[i], sizeof(f));
        }
    }
    assert_false(hth_rows_finite(wide, COUNT));
    for (uint32_t i = 0; i < COUNT; i++)
        back[i] = (float)i;
    assert_true(hth_rows_finite(back, COUNT));
    back[COUNT - 1] = INFINITY;
    assert_false(hth_rows_finite(back, COUNT));
}

/* The expected format: a row is its codes, then a bf16 scale for each 64 of them. */
TEST(int8_rows_keep_their_bound)
{
    enum { ROWS = 40, D_MAX = 200 };
    static const uint32_t widths[] = {1, 63, 64, 65, 128, 130, 200};
    float x[ROWS * D_MAX], back[ROWS * D_MAX];
    uint8_t bytes[ROWS * (D_MAX + 8)];
    struct hth_rng rng;

    (void)state;
    hth_rng_init(&rng, 8);
    for (size_t k = 0; k < HTH_ARRAY_LEN(widths); k++) {
        uint32_t d = widths[k], blocks = (d + 63) / 64, row_bytes = d + 2 * blocks;
        struct hth_tensor t = hth_rows_tensor(HTH_I8, ROWS, d);
        assert_int_equal(hth_rows_bytes(HTH_I8, d), row_bytes);
        assert_int_equal(t.dim[1], row_bytes);
        assert_int_equal(hth_rows_width(&t), d);
        for (uint32_t i = 0; i < ROWS * d; i++) { /* magnitudes from 1e-10 to 1e10 */
            double size = pow(10, (double)(i / d) / 2 - 10);
            x[i] = (float)(hth_rng_normal(&rng) * size);
        }
        hth_rows_from_f32(x, HTH_I8, ROWS, d, bytes);
        hth_rows_to_f32(bytes, HTH_I8, ROWS, d, back);
        for (uint32_t b = 0; b < ROWS * blocks; b++) {
            uint32_t row = b / blocks, first = b % blocks * 64, end = HTH_MIN(first + 64, d);
            const uint8_t *at = bytes + row * row_bytes;
            uint32_t scale_bits = 0;
            float most = 0, scale;
            memcpy((uint8_t *)&scale_bits + 2, at + d + 2 * (b % blocks), 2);
            memcpy(&scale, &scale_bits, sizeof(scale));
            for (uint32_t j = first; j < end; j++)
                most = fmaxf(most, fabsf(x[row * d + j]));
            for (uint32_t j = first; j < end; j++) {
                assert_true(fabsf(back[row * d + j] - x[row * d + j]) <= most / 252);
                assert_true(back[row * d + j] == (float)(int8_t)at[j] * scale);
            }
        }
    }
}

/* The bytes of docs/protocol.md: 1/127 rounded up to bf16 is 2^-7 (1 + 2/128). */
TEST(int8_rows_match_the_documentation)
{
    static const float x[] = {1, -0.5f, 0.25f, 0, 0, 0};
    static const uint8_t want[] = {0x7e, 0xc1, 0x20, 0x02, 0x3c, 0, 0, 0, 0, 0};
    uint8_t bytes[sizeof(want)];

    (void)state;
    hth_rows_from_f32(x, HTH_I8, 2, 3, bytes);
    assert_memory_equal(bytes, want, sizeof(want));
}

/* Lengths that no row has, such as a scale without a code, are refused. */
TEST(int8_widths_without_a_row_are_refused)
{
    uint32_t next = 1;

    (void)state;
    for (uint64_t cols = 0; cols < 1000; cols++) {
        const struct hth_tensor t = {.dtype = HTH_I8, .ndim = 2, .dim = {1, cols}};
        if (cols == hth_rows_bytes(HTH_I8, next))
            assert_int_equal(hth_rows_width(&t), next++);
        else
            assert_int_equal(hth_rows_width(&t), 0);
    }
}

/* With a number that is not finite, or bytes that no encoder writes, the whole row is NaN; its
 * neighbours are intact. */
TEST(int8_rows_not_finite_become_nan)
{
    enum { W = 70, BYTES = W + 4 };
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    static const uint16_t scales[] = {0x7f80, 0x7fff, 0xff80, 0x8000, 0xbf80, 0x7f00, 0x7c00};
    float x[3 * W], back[3 * W];
    uint8_t bytes[3 * BYTES];

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(bad) + HTH_ARRAY_LEN(scales); k++) {
        for (uint32_t i = 0; i < 3 * W; i++)
            x[i] = (float)i;
        if (k < HTH_ARRAY_LEN(bad))
            x[W + 66] = bad[k];
        hth_rows_from_f32(x, HTH_I8, 3, W, bytes);
        if (k >= HTH_ARRAY_LEN(bad))
            memcpy(bytes + BYTES + W + 2, &scales[k - HTH_ARRAY_LEN(bad)], 2);
        hth_rows_to_f32(bytes, HTH_I8, 3, W, back);
        for (uint32_t i = 0; i < W; i++) {
            assert_true(isnan(back[W + i]));
            assert_close(back[i], (float)i, 0, 70.0 / 252);
            assert_close(back[2 * W + i], (float)(2 * W + i), 0, 210.0 / 252);
        }
        assert_false(hth_rows_finite(back, 3 * W));
    }
}
