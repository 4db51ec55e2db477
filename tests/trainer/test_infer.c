/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trained model in use: rows that grow against whole samples bit by bit, a survey with the loss
 * of the trainer's evaluation, the context that begins anew, sampling, and folders that do not fit.
 */
#include "core/mem.h"
#include "experts/safetensors.h"
#include "kernels/ops.h"
#include "support/suite.h"
#include "trainer/draw.h"
#include "trainer/infer.h"
#include "trainer/sample.h"
#include "trainer/survey.h"
#include "trainer/task.h"
#include "trainer/write.h"

#define TRUNK   "dir/trunk.safetensors"
#define EXPERTS "dir/experts"

static struct hth_why why;
static int32_t written[64];
static uint32_t written_count;

static enum hth_err wait(struct task *f)
{
    task_until(f, &f->done);
    f->done = false;
    return f->err;
}

/* Trains a little, so that no expert is like another; leaves the folder and the test loss. */
static struct hth_trainer_opts train(struct task *f, struct hth_trainer_opts o)
{
    o.local = true;
    o.updates_max = 6;
    o.eval_every = 6;
    o.has_eval_data = true;
    o.eval_data = o.data;
    o.eval_samples = o.eval_samples_last = o.micro_batch;
    o.checkpoint_path = TRUNK;
    o.experts_dir = EXPERTS;
    o.run = "task";
    task_run(f, o);
    f->done = false;
    return o;
}

static enum hth_err load(struct task *f, const struct hth_trainer_opts *o, struct hth_infer **out)
{
    struct hth_infer_opts opts = HTH_INFER_OPTS_INIT;
    struct hth_trained *trained;
    enum hth_err err;

    why = (struct hth_why){""};
    *out = NULL;
    HTH_TRY(hth_trained_open(f->env, TRUNK, &why, &trained));
    opts.model = o->model;
    opts.trained = trained;
    opts.rows = o->micro_batch * o->model.seq_len;
    opts.local = true;
    opts.experts_dir = EXPERTS;
    opts.local_optim = o->local_optim;
    opts.run = o->run;
    opts.why = &why;
    err = hth_infer_new(f->env, &opts, out);
    hth_trained_free(trained);
    return err;
}

static void put_down(struct task *f, struct hth_infer *infer)
{
    hth_infer_free(infer);
    hth_world_run_for(f->world, HTH_US_PER_S);
}

/* ---- whole samples --------------------------------------------------------------------------- */

static void on_batch(void *arg, uint64_t first, uint32_t count, const int32_t *labels)
{
    assert_int_equal(first, written_count);
    written_count += count;
    assert_true(labels[0] >= 0);
}

/* In batches of another size than the trainer's. */
TASK_TEST(a_survey_has_the_loss_of_the_evaluation)
{
    struct task *f = *state;
    const struct hth_trainer_opts tasks[] = {task_classifier(), task_lm()};

    for (size_t i = 0; i < HTH_ARRAY_LEN(tasks); i++) {
        struct hth_trainer_opts o = train(f, tasks[i]);
        struct hth_survey_opts so = {.data = o.eval_data,
                                     .samples = o.micro_batch,
                                     .on_batch = on_batch,
                                     .on_done = task_done,
                                     .arg = f};
        struct hth_infer *infer;
        struct hth_survey *survey;
        struct hth_survey_result r;
        struct hth_infer_stats stats;

        o.micro_batch = o.micro_batch * 3 / 8;
        assert_ok(load(f, &o, &infer));
        written_count = 0;
        assert_ok(hth_survey_new(f->env, infer, &so, &survey));
        assert_ok(wait(f));
        hth_survey_result(survey, &r);
        assert_int_equal(r.samples, so.samples);
        assert_int_equal(written_count, so.samples);
        assert_int_equal(hth_survey_samples(survey), so.samples);
        assert_int_equal(r.of[0].counted, so.samples * o.model.seq_len);
        assert_close(r.loss, f->eval.loss, 1e-12, 0); /* sums in another order */
        assert_true((double)r.of[0].correct / (double)r.of[0].counted == f->eval.accuracy);
        hth_infer_stats(infer, &stats);
        assert_int_equal(stats.calls, 3);
        assert_int_equal(stats.units, r.of[0].counted * o.model.layers);
        assert_int_equal(stats.units_without_expert, 0);
        assert_err(HTH_E_TOO_LARGE, hth_infer_whole(infer, o.micro_batch + 1, task_done, f));
        hth_survey_free(survey);
        so.data = tasks[1 - i].eval_data;
        assert_err(HTH_E_CONFIG, hth_survey_new(f->env, infer, &so, &survey));
        put_down(f, infer);
    }
}

/* ---- growth ---------------------------------------------------------------------------------- */

/* Logits of row `row` of a whole sample that begins with these tokens. */
static const float *whole(struct task *f, struct hth_infer *infer, const int32_t *tokens,
                          uint32_t count, uint32_t row)
{
    const struct hth_model_opts *m = hth_infer_model(infer);
    struct hth_infer_batch b = hth_infer_batch(infer);

    for (uint32_t i = 0; i < m->seq_len; i++) {
        b.tokens[i] = i < count ? tokens[i] : 0;
        b.labels[i] = HTH_LABEL_NONE;
    }
    assert_ok(hth_infer_whole(infer, 1, task_done, f));
    assert_ok(wait(f));
    return hth_infer_logits(infer, 0, row);
}

TASK_TEST(rows_that_grow_have_the_bits_of_whole_samples)
{
    struct task *f = *state;
    struct hth_trainer_opts o = train(f, task_lm());
    struct hth_infer *infer, *other;
    int32_t text[2][64], step[2 * 64];
    uint32_t context = o.model.seq_len, counts[] = {3, 1, 1, 2, 1};
    size_t bytes = o.model.classes * sizeof(float);

    assert_ok(load(f, &o, &infer));
    assert_ok(load(f, &o, &other));
    assert_true(context >= 8 && context <= 64);
    for (uint32_t i = 0; i < 2 * context; i++)
        text[i / context][i % context] = f->files.text[i * 7];
    assert_ok(hth_infer_begin(infer, 2));
    for (uint32_t n = 0, k = 0; n < context; k++) {
        uint32_t count = k < HTH_ARRAY_LEN(counts) ? counts[k] : 1;

        for (uint32_t s = 0; s < 2; s++)
            memcpy(step + s * count, text[s] + n, count * sizeof(*step));
        assert_ok(hth_infer_grow(infer, step, count, task_done, f));
        assert_ok(wait(f));
        n += count;
        assert_int_equal(hth_infer_grown(infer), n);
        for (uint32_t s = 0; s < 2; s++)
            assert_memory_equal(whole(f, other, text[s], n, n - 1), hth_infer_next(infer, s),
                                bytes);
    }
    assert_err(HTH_E_TOO_LARGE, hth_infer_grow(infer, step, 1, task_done, f));
    step[0] = 256;
    assert_ok(hth_infer_begin(infer, 1));
    assert_err(HTH_E_RANGE, hth_infer_grow(infer, step, 1, task_done, f));
    put_down(f, infer);
    put_down(f, other);
}

static void on_token(void *arg, int32_t token)
{
    written[written_count++] = token;
}

/* Beyond the context, too, where it begins anew with its last half. */
TASK_TEST(writing_is_what_whole_samples_say)
{
    struct task *f = *state;
    struct hth_trainer_opts o = train(f, task_lm());
    struct hth_write_opts w = {.tokens = 40, .on_token = on_token, .on_done = task_done, .arg = f};
    uint32_t context = o.model.seq_len, halves = 0;
    struct hth_infer *infer;
    struct hth_write *write;
    int32_t text[64 + 40];

    w.sample = (struct hth_sample_opts){.temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .seed = 7};
    assert_ok(load(f, &o, &infer));
    for (uint32_t prompt = 3; prompt <= 60; prompt += 57) {
        for (uint32_t i = 0; i < prompt; i++)
            text[i] = f->files.text[i];
        written_count = 0;
        assert_ok(hth_write_new(f->env, infer, text, prompt, &w, &write));
        assert_ok(wait(f));
        hth_write_free(write);
        assert_int_equal(written_count, w.tokens);
        for (uint32_t i = 0, n = prompt; i < w.tokens; i++, n++) {
            uint32_t start = 0, token;

            while (n - start > context) /* drop all but half, until it fits */
                start += context - context / 2;
            assert_int_equal(start, hth_write_start_of(n, context));
            halves += start > 0;
            assert_ok(hth_sample(&w.sample, whole(f, infer, text + start, n - start, n - start - 1),
                                 256, 0, n, &token));
            assert_int_equal(written[i], token);
            text[n] = written[i];
        }
    }
    assert_true(halves > 0);
    assert_err(HTH_E_CONFIG, hth_write_new(f->env, infer, text, 0, &w, &write));
    text[0] = -1;
    assert_err(HTH_E_RANGE, hth_write_new(f->env, infer, text, 1, &w, &write));
    put_down(f, infer);
}

TASK_TEST(models_that_look_ahead_do_not_grow)
{
    struct task *f = *state;
    struct hth_trainer_opts o = train(f, task_classifier());
    struct hth_infer *infer;

    assert_ok(load(f, &o, &infer));
    assert_err(HTH_E_UNSUPPORTED, hth_infer_begin(infer, 1));
    put_down(f, infer);
    o = task_lm();
    o.model.expert_kind = "transformer";
    o = train(f, o);
    assert_ok(load(f, &o, &infer));
    assert_err(HTH_E_UNSUPPORTED, hth_infer_begin(infer, 1));
    put_down(f, infer);
}

/* ---- drawing --------------------------------------------------------------------------------- */

enum { TEXT = 5, SIDE_H = 3, SIDE_W = 4, CODES = SIDE_H * SIDE_W, PICTURES = 4 };

/* All masks; experts without weights, so that no file of theirs is needed, or feed-forwards. */
static struct hth_model_opts picture_opts(bool dense)
{
    struct hth_model_opts o = HTH_MODEL_OPTS_INIT;

    o.kind = HTH_MODEL_PICTURE;
    o.d = 24;
    o.layers = 4;
    o.heads = 2;
    o.classes = 300;
    o.text = TEXT;
    o.height = SIDE_H;
    o.width = SIDE_W;
    o.codes = 16;
    o.window = 3;
    o.seq_len = TEXT + CODES - 1;
    o.features = 0;
    o.dense = dense;
    o.expert_kind = dense ? "none" : "nop";
    o.tied = true;
    o.layer_scale = 0.5f;
    for (uint32_t l = 0; l < 4; l++)
        o.mask[l] = (enum hth_mask_kind)l;
    o.seed = 5;
    return o;
}

/* A trunk's file with the values that the seed draws, larger, so that codes differ. */
static void write_trunk(struct task *f, const struct hth_model_opts *o)
{
    struct hth_st_writer *w = hth_st_writer_new();
    struct hth_model *m;
    struct hth_params *params;
    struct hth_blob *bytes;

    assert_ok(hth_model_new(NULL, o, &m));
    params = hth_model_params(m);
    hth_st_add_meta(w, "hearth.kind", "trunk");
    hth_st_add_meta_u64(w, "hearth.schema", hth_model_schema(m));
    hth_st_add_meta_u64(w, "hearth.seed", o->seed);
    hth_st_add_meta_u64(w, "hearth.updates", 1);
    hth_st_add_meta_u64(w, "hearth.samples", 1);
    for (uint32_t i = 0; i < hth_params_count(params); i++) {
        const struct hth_weight *t = hth_params_at(params, i);
        float *values = hth_params_flat(params, HTH_PART_VALUE) + hth_weight_offset(t);
        uint64_t dim[2] = {hth_weight_rows(t), hth_weight_cols(t)};

        for (size_t k = 0; k < dim[0] * dim[1]; k++)
            values[k] *= 4;
        hth_st_add(w, hth_weight_name(t), HTH_F32, 2, dim, values);
    }
    assert_ok(hth_st_writer_finish(w, &bytes));
    hth_node_disk_put(f->node, TRUNK, bytes->data, bytes->size);
    hth_blob_unref(bytes);
    hth_st_writer_free(w);
    hth_model_free(m);
}

/* A text that is not whole. */
static enum hth_err grow_one(struct task *f, struct hth_infer *infer)
{
    const int32_t one = 1;

    assert_ok(hth_infer_begin(infer, 1));
    return hth_infer_grow(infer, &one, 1, task_done, f);
}

static double log_p(const float *logits, int32_t code)
{
    double sum = 0;

    for (uint32_t i = 0; i < 16; i++)
        sum += exp((double)logits[i]);
    return (double)logits[code] - log(sum);
}

/* Logits of all codes of these pictures, by a call over whole samples. */
static void whole_pictures(struct task *f, struct hth_infer *infer, const struct hth_draw *draw,
                           const int32_t *captions)
{
    struct hth_infer_batch b = hth_infer_batch(infer);
    uint32_t seq = TEXT + CODES - 1;

    for (uint32_t n = 0; n < PICTURES; n++) {
        memcpy(b.tokens + n * seq, captions + n * TEXT, TEXT * sizeof(*captions));
        memcpy(b.tokens + n * seq + TEXT, hth_draw_codes(draw, n), (CODES - 1) * sizeof(int32_t));
    }
    for (uint32_t i = 0; i < PICTURES * seq; i++)
        b.labels[i] = HTH_LABEL_NONE;
    assert_ok(hth_infer_whole(infer, PICTURES, task_done, f));
    assert_ok(wait(f));
}

TASK_TEST(drawings_are_what_whole_samples_say)
{
    struct task *f = *state;
    static const int32_t captions[PICTURES][TEXT] = {
        {1, 260, 270, 0, 0}, {1, 299, 4, 90, 261}, {1, 0, 0, 0, 0}, {1, 260, 270, 0, 0}};
    static const int32_t empty[PICTURES][TEXT] = {{1}, {1}, {1}, {1}};
    struct hth_draw_opts o = {.on_done = task_done, .arg = f, .score = true};

    o.sample =
        (struct hth_sample_opts){.temperature = 0.9f, .top_k = 12, .top_p = 0.95f, .seed = 3};
    for (int kind = 0; kind < 4; kind++) {
        struct hth_trainer_opts t = task_lm();
        struct hth_infer *infer;
        struct hth_draw *draw;
        double with[PICTURES] = {0}, without[PICTURES] = {0};
        uint32_t kinds = 0;

        t.model = picture_opts(kind % 2 == 0);
        t.micro_batch = 2 * PICTURES;
        o.guide = kind < 2 ? 1.0f : 1.5f;
        write_trunk(f, &t.model);
        assert_ok(load(f, &t, &infer));
        assert_true(hth_draw_rows(&t.model, PICTURES, true) <= hth_infer_rows(infer));
        assert_ok(hth_draw_new(f->env, infer, captions[0], PICTURES, &o, &draw));
        assert_ok(wait(f));
        float un[PICTURES * CODES][16];
        whole_pictures(f, infer, draw, empty[0]);
        memcpy(un, hth_infer_logits(infer, 1, 0), sizeof(un));
        whole_pictures(f, infer, draw, captions[0]);
        for (uint32_t i = 0; i < PICTURES * CODES; i++) {
            const float *co = hth_infer_logits(infer, 1, i);
            int32_t code = hth_draw_codes(draw, i / CODES)[i % CODES];
            float from[16];
            uint32_t token;

            for (uint32_t k = 0; k < 16; k++)
                from[k] = o.guide == 1 ? co[k] : un[i][k] + o.guide * (co[k] - un[i][k]);
            assert_ok(hth_sample(&o.sample, from, 16, i / CODES, i % CODES, &token));
            assert_int_equal(token, code);
            with[i / CODES] += log_p(co, code);
            without[i / CODES] += log_p(un[i], code);
            kinds |= 1u << code;
        }
        assert_true(__builtin_popcount(kinds) > 4);
        for (uint32_t n = 0; n < PICTURES; n++) {
            assert_close(hth_draw_likelihood(draw, n), with[n], 1e-9, 0);
            assert_close(hth_draw_score(draw, n), with[n] - without[n], 0, 1e-9);
        }
        hth_draw_free(draw);
        assert_err(HTH_E_BAD_SHAPE, grow_one(f, infer));
        put_down(f, infer);
    }
}

/* ---- what does not fit ----------------------------------------------------------------------- */

TASK_TEST(another_s_folder_is_refused)
{
    struct task *f = *state;
    struct hth_trainer_opts o = train(f, task_lm()), p;
    struct hth_infer *infer;

    p = o;
    p.model.layers++;
    assert_err(HTH_E_WRONG_RUN, load(f, &p, &infer));
    assert_string_equal(why.text, "it is of another model than the run file's");
    p = o;
    p.model.seed++;
    assert_err(HTH_E_WRONG_RUN, load(f, &p, &infer));
    p = o;
    p.run = "other";
    assert_err(HTH_E_WRONG_RUN, load(f, &p, &infer));
    assert_ok(hth_file_remove(f->env, EXPERTS "/ffn0.1.0.safetensors"));
    assert_err(HTH_E_NO_FILE, load(f, &o, &infer));
    assert_non_null(strstr(why.text, "ffn0.1.0"));
    assert_ok(hth_file_remove(f->env, TRUNK));
    assert_err(HTH_E_NO_FILE, load(f, &o, &infer));
}

/* ---- sampling -------------------------------------------------------------------------------- */

TEST(sampling_keeps_to_its_probabilities)
{
    enum { N = 5, DRAWS = 20000 };
    const float logits[N] = {1.0f, 2.0f, 0.5f, 2.0f, -1.0f};
    static const struct {
        float temperature, top_p;
        uint32_t top_k;
        double p[N]; /* exp(l / T), 0 where it is cut */
    } cases[] = {
        {1, 1, 0, {2.718282, 7.389056, 1.648721, 7.389056, 0.367879}},
        {0.5f, 1, 0, {7.389056, 54.59815, 2.718282, 54.59815, 0.135335}},
        {1, 1, 2, {0, 7.389056, 0, 7.389056, 0}},
        {1, 1, 1, {0, 1, 0, 0, 0}},                         /* equals: the lower index */
        {1, 0.8f, 0, {2.718282, 7.389056, 0, 7.389056, 0}}, /* 0.757 and 0.896 */
        {1, 0.1f, 0, {0, 1, 0, 0, 0}},
        {0, 1, 0, {0, 1, 0, 0, 0}},
    };
    uint32_t token, again;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_sample_opts o = {cases[i].temperature, cases[i].top_k, cases[i].top_p, 3};
        uint32_t seen[N] = {0};
        double sum = 0;

        assert_ok(hth_sample_check(&o));
        for (uint32_t d = 0; d < DRAWS; d++) {
            assert_ok(hth_sample(&o, logits, N, d % 7, d, &token));
            seen[token]++;
        }
        assert_ok(hth_sample(&o, logits, N, (DRAWS - 1) % 7, DRAWS - 1, &again));
        assert_int_equal(again, token);
        for (uint32_t j = 0; j < N; j++)
            sum += cases[i].p[j];
        for (uint32_t j = 0; j < N; j++) {
            double p = cases[i].p[j] / sum, off = seen[j] / (double)DRAWS - p;

            if (!(fabs(off) <= 5 * sqrt(p * (1 - p) / DRAWS)))
                fail_msg("case %zu, token %u: %u of %d, p %.4f", i, j, seen[j], DRAWS, p);
        }
    }
}

TEST(senseless_sampling_is_refused)
{
    const struct hth_sample_opts bad[] = {
        {-1, 0, 1, 0}, {NAN, 0, 1, 0},  {INFINITY, 0, 1, 0},
        {1, 0, 0, 0},  {1, 0, 1.5f, 0}, {1, 0, NAN, 0},
    };
    const float logits[] = {0, NAN, 1}, far[] = {0, INFINITY};
    struct hth_sample_opts o = HTH_SAMPLE_OPTS_INIT;
    uint32_t token;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_CONFIG, hth_sample_check(&bad[i]));
    assert_err(HTH_E_NOT_FINITE, hth_sample(&o, logits, 3, 0, 0, &token));
    assert_err(HTH_E_NOT_FINITE, hth_sample(&o, far, 2, 0, 0, &token));
}
