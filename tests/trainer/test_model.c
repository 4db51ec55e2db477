/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_model.c: loss and gradients of whole trunks, against the equations of trainer/model.h in
 * double and central differences along one direction per tensor. A direction touches every element
 * of its tensor; so a set of weights that layers share is right only if its gradient is the sum
 * over them.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "dht/directory.h"
#include "kernels/twin64.h"
#include "support/suite.h"
#include "trainer/pass.h"

#include <stdlib.h>

#define SAMPLES 3
#define SEED    5

struct world {
    struct hth_model_opts o;
    struct hth_model *m;
    struct hth_pass *p;
    double *values; /* like the flat buffer */
};

/* ---- the equations --------------------------------------------------------------------------- */

static const double *find(const struct world *w, const char *prefix, const char *name)
{
    char full[96];
    snprintf(full, sizeof(full), "%s%s", prefix, name);
    const struct hth_weight *weight = hth_params_find(w->m->params, full);
    return weight != NULL ? w->values + hth_weight_offset(weight) : NULL;
}

static bool sees(const struct hth_model_opts *o, uint32_t l, int unpadded, int q, int k)
{
    int t = (int)o->text, width = (int)o->width;
    if (o->kind == HTH_MODEL_LM)
        return o->objective == HTH_MASKED || k <= q;
    if (k > q || (k >= unpadded && k < t))
        return false;
    if (k < t)
        return true;
    int down = (q - t) / width - (k - t) / width, right = (q - t) % width - (k - t) % width;
    if (o->mask[l] == HTH_MASK_ROW)
        return down == 0;
    if (o->mask[l] == HTH_MASK_COLUMN)
        return right == 0;
    return o->mask[l] == HTH_MASK_FULL ||
           (down <= (int)o->window / 2 && abs(right) <= (int)o->window / 2);
}

/* Rotary angles of run files: one axis, or text and two sides of a picture. */
static void fill_angles(const struct hth_model_opts *o, double *angle)
{
    uint32_t half = o->d / o->heads / 2, third = half / 3;
    for (uint32_t row = 0; row < o->seq_len; row++)
        for (uint32_t i = 0; i < half; i++) {
            double *a = &angle[row * half + i];
            bool picture = o->kind == HTH_MODEL_PICTURE, code = picture && row >= o->text;
            double x = code ? (row - o->text) % o->width + 1 : 0;
            double y = code ? (row - o->text) / o->width + 1 : 0, t = code ? o->text : row;
            if (!picture)
                *a = t * pow(10000, -(double)i / half);
            else if (i < third)
                *a = t * pow(10000, -(double)i / third);
            else
                *a = i < 2 * third   ? y * pow(100, -(double)(i - third) / third)
                     : i < 3 * third ? x * pow(100, -(double)(i - 2 * third) / third)
                                     : 0;
        }
}

static double *doubles(size_t n)
{
    return hth_new_array(double, n);
}

static void norm(const struct world *w, const char *prefix, const char *name, const double *x,
                 double *y)
{
    char gamma[64], beta[64];
    snprintf(gamma, sizeof(gamma), "%s.weight", name);
    snprintf(beta, sizeof(beta), "%s.bias", name);
    struct twin_norm n = {
        .x = x, .gamma = find(w, prefix, gamma), .beta = find(w, prefix, beta), .eps = 1e-5};
    twin_layernorm(w->p->rows, w->o.d, &n, y);
}

/* x += scale * (in W + b) */
static void add_product(const struct world *w, const double *scale, const double *in, size_t k,
                        const double *weight, const double *bias, double *x)
{
    size_t rows = w->p->rows, d = w->o.d;
    double *y = doubles(rows * d);
    twin_linear((struct twin_dims){rows, k, d}, in, weight, bias, y);
    for (size_t i = 0; i < rows * d; i++)
        x[i] += (scale != NULL ? scale[i % d] : 1) * y[i];
    hth_free(y);
}

static void attention(const struct world *w, uint32_t l, const char *set, const char *own,
                      double *x)
{
    const struct hth_model_opts *o = &w->o;
    size_t rows = w->p->rows, d = o->d, seq = o->seq_len;
    double *h = doubles(rows * d), *qkv = doubles(rows * 3 * d), *att = doubles(rows * d);
    double *angle = doubles(seq * d / o->heads / 2);
    unsigned char *mask = hth_new_array(unsigned char, SAMPLES *seq *seq);
    for (size_t i = 0; i < SAMPLES * seq * seq; i++)
        mask[i] = sees(o, l, w->p->unpadded != NULL ? w->p->unpadded[i / seq / seq] : 0,
                       (int)(i / seq % seq), (int)(i % seq));
    fill_angles(o, angle);
    norm(w, own, "attn_norm", x, h);
    twin_linear((struct twin_dims){rows, d, 3 * d}, h, find(w, set, "attn.qkv.weight"),
                find(w, set, "attn.qkv.bias"), qkv);
    struct twin_attention t = {
        .batch = SAMPLES, .seq = seq, .heads = o->heads, .dim = d, .angle = angle, .sees = mask};
    twin_attention(&t, qkv, att);
    add_product(w, find(w, own, "attn_scale"), att, d, find(w, set, "attn.out.weight"),
                find(w, set, "attn.out.bias"), x);
    hth_free(h);
    hth_free(qkv);
    hth_free(att);
    hth_free(angle);
    hth_free(mask);
}

static void feed_forward(const struct world *w, const char *set, const char *own, double *x)
{
    size_t rows = w->p->rows, d = w->o.d;
    double *h = doubles(rows * d), *wide = doubles(rows * 8 * d), *gated = doubles(rows * 4 * d);
    norm(w, own, "norm", x, h);
    twin_linear((struct twin_dims){rows, d, 8 * d}, h, find(w, set, "ffn.0.weight"),
                find(w, set, "ffn.0.bias"), wide);
    twin_geglu(rows, 4 * d, wide, gated);
    add_product(w, find(w, own, "ffn_scale"), gated, 4 * d, find(w, set, "ffn.2.weight"),
                find(w, set, "ffn.2.bias"), x);
    hth_free(h);
    hth_free(wide);
    hth_free(gated);
}

/* Row `id` of the effective embedding: E, or A P. */
static void embedding_row(const struct world *w, const char *name, uint32_t id, double *out)
{
    uint32_t d = w->o.d, e = w->o.embed_dim;
    const double *table = find(w, "", name), *factor = find(w, "", "embedding.factor");
    for (uint32_t c = 0; c < d; c++) {
        out[c] = e == 0 ? table[id * d + c] : 0;
        for (uint32_t j = 0; j < e; j++)
            out[c] += table[id * e + j] * factor[j * d + c];
    }
}

static bool is_code_input(const struct hth_model_opts *o, uint32_t row)
{
    return o->kind == HTH_MODEL_PICTURE && row % o->seq_len >= o->text;
}

static const char *table_of(const struct hth_model_opts *o, bool codes)
{
    if (o->kind == HTH_MODEL_LM)
        return "embedding.weight";
    return codes ? "codes.weight" : "words.weight";
}

/* The cross-entropy of one row of h. */
static double row_loss(const struct world *w, const double *h, bool codes, uint32_t count,
                       int32_t label)
{
    const struct hth_model_opts *o = &w->o;
    const double *out = find(w, "", "output.weight");
    const double *bias = find(w, "",
                              o->kind == HTH_MODEL_LM ? "output.bias"
                              : codes                 ? "codes.bias"
                                                      : "words.bias");
    double *logits = doubles(count), *e = doubles(o->d), loss;
    for (uint32_t i = 0; i < count; i++) {
        logits[i] = bias[i];
        if (out == NULL)
            embedding_row(w, table_of(o, codes), i, e);
        for (uint32_t c = 0; c < o->d; c++)
            logits[i] += h[c] * (out != NULL ? out[c * count + i] : e[c]);
    }
    loss = twin_xent(1, count, logits, &label, NULL);
    hth_free(logits);
    hth_free(e);
    return loss;
}

static double loss_of(const struct world *w, const double *x)
{
    const struct hth_model_opts *o = &w->o;
    double *h = doubles((size_t)w->p->rows * o->d), sum[2] = {0}, n[2] = {0};
    norm(w, "", "norm", x, h);
    for (uint32_t row = 0; row < w->p->rows; row++) {
        bool codes = o->kind == HTH_MODEL_PICTURE && row % o->seq_len + 1 >= o->text;
        uint32_t count = codes ? o->codes : o->classes + (o->objective == HTH_MASKED);
        if (w->p->labels[row] == HTH_LABEL_NONE)
            continue;
        sum[codes] += row_loss(w, h + (size_t)row * o->d, codes, count, w->p->labels[row]);
        n[codes]++;
    }
    hth_free(h);
    if (o->kind == HTH_MODEL_LM)
        return sum[0] / n[0];
    return (sum[0] / n[0] + (double)o->image_weight * sum[1] / n[1]) /
           (1 + (double)o->image_weight);
}

static double reference(const struct world *w)
{
    const struct hth_model_opts *o = &w->o;
    double *x = doubles((size_t)w->p->rows * o->d);
    for (uint32_t row = 0; row < w->p->rows; row++)
        embedding_row(w, table_of(o, is_code_input(o, row)), (uint32_t)w->p->tokens[row],
                      x + (size_t)row * o->d);
    for (uint32_t l = 0; l < o->layers; l++) {
        char set[32], own[32];
        uint32_t last = l + 1 == o->layers && !o->share_last;
        snprintf(own, sizeof(own), "layers.%u.", l);
        snprintf(set, sizeof(set), o->share > 0 ? "sets.%u." : "layers.%u.",
                 o->share == 0 ? l
                 : last        ? o->share
                               : l % o->share);
        attention(w, l, set, own, x);
        if (o->dense)
            feed_forward(w, set, own, x);
    }
    double loss = loss_of(w, x);
    hth_free(x);
    return loss;
}

/* ---- trunks ---------------------------------------------------------------------------------- */

/* Tokens, labels and padding, all drawn; values of weights far from their beginning, so that biases
 * and norms matter. */
static void fill(struct world *w)
{
    const struct hth_model_opts *o = &w->o;
    struct hth_params *params = w->m->params;
    float *flat = hth_params_flat(params, HTH_PART_VALUE);
    struct hth_rng rng;
    hth_rng_init(&rng, SEED);
    for (uint32_t i = 0; i < hth_params_count(params); i++) {
        const struct hth_weight *t = hth_params_at(params, i);
        size_t n = (size_t)hth_weight_rows(t) * hth_weight_cols(t);
        for (size_t e = 0; e < n; e++)
            flat[hth_weight_offset(t) + e] += (float)(hth_rng_unit(&rng) - 0.5) * 0.6f;
    }
    hth_params_touched(params);
    w->values = doubles(hth_params_flat_len(params));
    for (size_t i = 0; i < hth_params_flat_len(params); i++)
        w->values[i] = (double)flat[i];
    for (uint32_t row = 0; row < w->p->rows; row++) {
        uint32_t at = row % o->seq_len, padding = row / o->seq_len; /* 0, 1, 2 */
        bool codes = o->kind == HTH_MODEL_PICTURE;
        uint32_t ids = is_code_input(o, row) ? o->codes : o->classes;
        w->p->tokens[row] = (int32_t)(1 + hth_rng_below(&rng, ids - 1));
        ids = codes && at + 1 >= o->text ? o->codes : o->classes;
        w->p->labels[row] = (int32_t)hth_rng_below(&rng, ids);
        if (codes && at < o->text && at + padding >= o->text)
            w->p->tokens[row] = 0;
        if (codes && at + 1 < o->text && at + 1 + padding >= o->text)
            w->p->labels[row] = HTH_LABEL_NONE;
    }
}

static void open_world(struct world *w, const struct hth_model_opts *o)
{
    memset(w, 0, sizeof(*w));
    w->o = *o;
    assert_ok(hth_model_new(NULL, o, &w->m));
    assert_ok(hth_pass_new(w->m, SAMPLES, &w->p));
    w->p->train = true;
    fill(w);
}

static void close_world(struct world *w)
{
    hth_pass_free(w->p);
    hth_model_free(w->m);
    hth_free(w->values);
}

/* Forward, loss and backward; no expert answers, so that every row takes the residual path. */
static void run(struct world *w)
{
    struct hth_pass *p = w->p;
    uint32_t n = w->o.layers;
    if (w->o.dense) {
        assert_ok(hth_pass_dense(p));
        return;
    }
    for (uint32_t l = 0; l < n; l++) {
        const struct hth_grid *grid = hth_model_grid(w->m, hth_model_set(&w->o, l));
        assert_ok(
            hth_blob_new_budget((size_t)p->rows * w->o.d * sizeof(float), NULL, &p->layer[l].h));
        assert_ok(hth_grid_view_new(grid, NULL, 0, &p->layer[l].view));
        assert_ok(hth_pass_forward(p, l));
    }
    assert_ok(hth_pass_head(p));
    for (uint32_t l = n; l-- > 0;)
        assert_ok(hth_pass_backward(p, l));
}

static struct hth_model_opts picture(void)
{
    struct hth_model_opts o = HTH_MODEL_OPTS_INIT;
    o.kind = HTH_MODEL_PICTURE;
    o.d = 16;
    o.heads = 2;
    o.layers = 5;
    o.features = 0;
    o.classes = 9;
    o.codes = 11;
    o.text = 4;
    o.height = 3;
    o.width = 4;
    o.window = 3;
    o.seq_len = 4 + 12 - 1;
    o.dense = true;
    o.mask[0] = HTH_MASK_ROW;
    o.mask[1] = HTH_MASK_COLUMN;
    o.mask[4] = HTH_MASK_CONV;
    o.balance = 0;
    o.seed = SEED;
    return o;
}

static struct hth_model_opts lm(void)
{
    struct hth_model_opts o = picture();
    o.kind = HTH_MODEL_LM;
    o.seq_len = 20;
    memset(o.mask, 0, sizeof(o.mask));
    return o;
}

static const struct {
    bool lm, experts, share_last, tied, masked, begin_alone;
    uint32_t share, embed_dim;
    float layer_scale;
} cases[] = {
    {.share = 2, .layer_scale = 0.3f}, /* the paper's form */
    {.share = 5, .share_last = true, .embed_dim = 5},
    {.experts = true, .share = 2, .layer_scale = 0.3f},
    {.experts = true, .begin_alone = true}, /* of the text: it has no labels */
    /* ALBERT's form */
    {.lm = true, .masked = true, .share = 1, .share_last = true, .tied = true, .embed_dim = 5},
    {.lm = true, .layer_scale = 0.2f},
    {.lm = true, .experts = true, .share = 3, .tied = true},
};
#define BEGIN_ALONE 3

static struct hth_model_opts nth_case(size_t i)
{
    struct hth_model_opts o = cases[i].lm ? lm() : picture();
    o.dense = !cases[i].experts;
    o.share = cases[i].share;
    o.share_last = cases[i].share_last;
    o.tied = cases[i].tied;
    o.embed_dim = cases[i].embed_dim;
    o.layer_scale = cases[i].layer_scale;
    if (cases[i].masked)
        o.objective = HTH_MASKED;
    if (cases[i].begin_alone) {
        o.text = 1;
        o.seq_len = 12;
    }
    return o;
}

TEST(losses_are_those_of_the_equations)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_model_opts o = nth_case(i);
        struct world w;
        if (cases[i].begin_alone)
            continue;
        open_world(&w, &o);
        run(&w);
        assert_close(hth_pass_loss(w.p), reference(&w), 1e-5, 0);
        close_world(&w);
    }
}

/* The derivative along `dir` of one tensor, by central differences. */
static double slope(struct world *w, size_t first, const double *dir, size_t n)
{
    const double step = 1e-5;
    double up, down;
    for (size_t i = 0; i < n; i++)
        w->values[first + i] += step * dir[i];
    up = reference(w);
    for (size_t i = 0; i < n; i++)
        w->values[first + i] -= 2 * step * dir[i];
    down = reference(w);
    for (size_t i = 0; i < n; i++)
        w->values[first + i] += step * dir[i];
    return (up - down) / (2 * step);
}

static void check_tensor(struct world *w, const struct hth_weight *t, struct hth_rng *rng)
{
    size_t n = (size_t)hth_weight_rows(t) * hth_weight_cols(t), first = hth_weight_offset(t);
    double *dir = doubles(n), got = 0, size = 0, want;
    for (size_t i = 0; i < n; i++) {
        dir[i] = hth_rng_unit(rng) - 0.5;
        got += dir[i] * (double)w->p->grads[first + i];
        size += fabs(dir[i] * (double)w->p->grads[first + i]);
    }
    want = slope(w, first, dir, n);
    if (!(fabs(got - want) <= 1e-5 * size + 1e-7))
        fail_msg("%s: slope %.9g, gradient %.9g", hth_weight_name(t), want, got);
    hth_free(dir);
}

TEST(gradients_are_central_differences)
{
    struct hth_rng rng;
    hth_rng_init(&rng, SEED);
    for (size_t i = 0; i < (HTH_TEST_FEW ? 3 : HTH_ARRAY_LEN(cases)); i++) {
        struct hth_model_opts o = nth_case(i);
        struct world w;
        uint64_t parameters;
        if (cases[i].begin_alone)
            continue;
        open_world(&w, &o);
        run(&w);
        assert_ok(hth_model_count(&o, &parameters)); /* shared ones are there, and travel, once */
        assert_in_range(hth_params_flat_len(w.m->params), parameters, /* and padding */
                        parameters + 16 * hth_params_count(w.m->params));
        for (uint32_t t = 0; t < hth_params_count(w.m->params); t++)
            check_tensor(&w, hth_params_at(w.m->params, t), &rng);
        close_world(&w);
    }
}

/* A text of its begin alone has no labels; the codes still have. */
TEST(picture_without_text_learns)
{
    struct hth_model_opts o = nth_case(BEGIN_ALONE);
    struct world w;
    open_world(&w, &o);
    run(&w);
    assert_int_equal(w.p->xent[HTH_IDS_TEXT].counted, 0);
    assert_int_equal(w.p->xent[HTH_IDS_CODES].counted, w.p->rows);
    assert_true(hth_pass_loss(w.p) > 0);
    close_world(&w);
}

/* ---- masked tokens --------------------------------------------------------------------------- */

TEST(tokens_are_masked_as_bert_does)
{
    struct hth_model_opts o = lm();
    struct world w;
    double chosen = 0, masks = 0, same = 0, rows = 0;
    o.objective = HTH_MASKED;
    o.classes = 1000;
    o.layers = 1;
    open_world(&w, &o);
    for (w.p->step = 0; w.p->step < 200; w.p->step++) {
        int32_t before[SAMPLES * 20], again[SAMPLES * 20];
        for (uint32_t i = 0; i < w.p->rows; i++) {
            before[i] = w.p->tokens[i] = (int32_t)(i + w.p->step) % 1000;
            w.p->labels[i] = i == 7 ? HTH_LABEL_NONE : 1;
        }
        assert_ok(hth_pass_forward(w.p, 0));
        assert_int_equal(w.p->labels[7], HTH_LABEL_NONE); /* padding is no word to guess */
        for (uint32_t i = 0; i < w.p->rows; i++) {
            bool hidden = w.p->labels[i] != HTH_LABEL_NONE;
            assert_true(hidden ? w.p->labels[i] == before[i] : w.p->tokens[i] == before[i]);
            rows += i != 7;
            chosen += hidden;
            masks += hidden && w.p->tokens[i] == 1000;
            same += hidden && w.p->tokens[i] == before[i];
        }
        memcpy(again, w.p->tokens, sizeof(again));
        for (uint32_t i = 0; i < w.p->rows; i++) {
            w.p->tokens[i] = before[i];
            w.p->labels[i] = i == 7 ? HTH_LABEL_NONE : 1;
        }
        assert_ok(hth_pass_forward(w.p, 0));
        assert_memory_equal(again, w.p->tokens, sizeof(again));
    }
    assert_close(chosen / rows, 0.15, 0, 0.015); /* four deviations of 11,800 draws */
    assert_close(masks / chosen, 0.8, 0, 0.04);
    assert_close(same / chosen, 0.1, 0, 0.03);
    close_world(&w);
}

/* ---- schema ---------------------------------------------------------------------------------- */

static uint64_t schema_of(const struct hth_model_opts *o)
{
    struct hth_model *m;
    assert_ok(hth_model_new(NULL, o, &m));
    uint64_t schema = hth_model_schema(m);
    hth_model_free(m);
    return schema;
}

TEST(two_kinds_of_run_have_two_schemas)
{
    struct hth_model_opts o[16];
    uint64_t schema[16];
    size_t n = 0;
#define OTHER(base, change)                                                                        \
    do {                                                                                           \
        o[n] = base;                                                                               \
        o[n].change;                                                                               \
        schema[n] = schema_of(&o[n]);                                                              \
        n++;                                                                                       \
    } while (0)
    OTHER(picture(), seed = 9);
    OTHER(picture(), share = 2);
    OTHER(picture(), share = 4);
    OTHER(picture(), mask[2] = HTH_MASK_ROW);
    OTHER(picture(), window = 5);
    OTHER(picture(), layer_scale = 0.1f);
    OTHER(picture(), image_weight = 6);
    OTHER(picture(), data_hash = 1);
    OTHER(picture(), dense = false);
    OTHER(lm(), seed = 9);
    OTHER(lm(), tied = true);
    OTHER(lm(), objective = HTH_MASKED);
    OTHER(lm(), share = 4);
    o[n] = o[n - 1];
    o[n].share_last = true;
    schema[n] = schema_of(&o[n]);
    n++;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(schema[i] != schema[j]);
    o[0].seed = 10; /* the run's seed is compared besides (trainer/settings.c) */
    assert_true(schema_of(&o[0]) == schema[0]);
}
