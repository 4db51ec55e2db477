/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw_eval.c: hearth draw --eval: what a picture model is measured by.
 *
 *   bits_train, bits_held   bits per code of pictures whose captions are given
 *   bits_shuffled           the same of held-out ones, each with another's caption
 *   r1_train, r1_held       fraction of drawings whose nearest real picture, by squared error among
 *                           all of the set, has the caption that was drawn from
 *   tone                    of held-out captions with a skin tone: fraction whose nearest picture
 *                           has that tone
 *
 *   load (io lane) -> bits of three sets of samples -> drawings of two -> report
 */
#include "app/draw.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bar.h"
#include "cli/json.h"
#include "core/mem.h"
#include "data/set.h"
#include "trainer/data.h"
#include "kernels/ops.h"

#define BATCH HTH_DRAW_EVAL_BATCH
#define TONE  "skin tone"

/* One sample of the set; of the training part the first copies, too. */
struct real {
    char *caption;
    int32_t *ids; /* [text], then [codes] */
    uint8_t *rgb;
};

struct part {
    struct real *real;
    uint32_t count;
    uint32_t *chosen; /* samples that are measured, evenly spread */
    uint32_t chosen_count;
};

enum { BITS_TRAIN, BITS_HELD, BITS_SHUFFLED, R1_TRAIN, R1_HELD, PHASES };

struct hth_draw_eval {
    struct hth_drawing *d;
    struct hth_job job;
    struct hth_why why;
    enum hth_err err;
    struct part part[HTH_SET_PARTS];
    uint32_t phase, next, count; /* samples of the phase that are done; of the batch */
    struct hth_infer_loss loss[R1_TRAIN];
    uint32_t right[PHASES], tones, tones_right;
    struct hth_bar bar;
};

static const char *const names[PHASES] = {"bits_train", "bits_held", "bits_shuffled", "r1_train",
                                          "r1_held"};

static struct part *part_of(struct hth_draw_eval *e)
{
    bool train = e->phase == BITS_TRAIN || e->phase == R1_TRAIN;
    return &e->part[train ? HTH_SET_TRAIN : HTH_SET_TEST];
}

static const struct real *chosen(struct hth_draw_eval *e, uint32_t i)
{
    const struct part *p = part_of(e);
    return &p->real[p->chosen[i % p->chosen_count]];
}

/* ---- the set ------------------------------------------------------------------------------- */

static enum hth_err load_one(struct hth_draw_eval *e, struct real *r)
{
    const struct hth_model_opts *m = &e->d->use.model.model;
    uint32_t codes = m->height * m->width, side = hth_opened_side(&e->d->use.model);
    struct hth_sample s;
    HTH_TRY(hth_set_next(e->d->use.model.set, &s, &e->why));
    r->caption = hth_asprintf("%.*s", (int)s.text_len, s.text != NULL ? s.text : "");
    r->ids = hth_new_array(int32_t, m->text + codes);
    r->rgb = hth_new_array(uint8_t, (size_t)side * side * 3);
    (void)hth_opened_caption(&e->d->use.model, r->caption, r->ids);
    for (uint32_t i = 0; i < codes; i++)
        r->ids[m->text + i] = s.codes[i];
    return hth_opened_paint(&e->d->use.model, r->ids + m->text, r->rgb);
}

static void choose(struct part *p, uint32_t most)
{
    p->chosen_count = HTH_MIN(p->count, most);
    p->chosen = hth_new_array(uint32_t, HTH_MAX(p->chosen_count, 1u));
    for (uint32_t i = 0; i < p->chosen_count; i++)
        p->chosen[i] = (uint32_t)((uint64_t)i * p->count / p->chosen_count);
}

static enum hth_err load_part(struct hth_draw_eval *e, enum hth_set_part part)
{
    struct part *p = &e->part[part];
    uint32_t count = (uint32_t)hth_set_manifest(e->d->use.model.set)->samples[part];
    p->real = hth_try_calloc(count + 1, sizeof(*p->real));
    if (p->real == NULL)
        return HTH_E_NO_MEMORY;
    if (count > 0)
        HTH_TRY(hth_set_seek(e->d->use.model.set, part, 0, &e->why));
    for (; p->count < count; p->count++)
        HTH_TRY(load_one(e, &p->real[p->count]));
    choose(p, e->d->samples);
    return HTH_OK;
}

static enum hth_err check_set(struct hth_draw_eval *e)
{
    const struct hth_manifest *m = hth_set_manifest(e->d->use.model.set);
    uint32_t height = e->d->use.model.model.height;
    if (m->kind == HTH_SET_CODES && m->side / m->patch == height &&
        m->book.count == e->d->use.model.paint.book.codes)
        return HTH_OK;
    return hth_blame(&e->why, HTH_E_CONFIG,
                     "%s: its samples are not %u x %u codes of the model's code book",
                     e->d->use.model.run->data.path, height, height);
}

static void load_run(struct hth_job *job)
{
    struct hth_draw_eval *e = HTH_CONTAINER(job, struct hth_draw_eval, job);
    e->err = check_set(e);
    if (e->err == HTH_OK)
        e->err = load_part(e, HTH_SET_TRAIN);
    if (e->err == HTH_OK)
        e->err = load_part(e, HTH_SET_TEST);
}

/* ---- bits ---------------------------------------------------------------------------------- */

static void go_on(struct hth_draw_eval *e);

static void fail(struct hth_draw_eval *e, enum hth_err err)
{
    hth_bar_end(&e->bar);
    hth_use_fail(&e->d->use, err, e->why.text);
}

static void counted(void *arg, enum hth_err err)
{
    struct hth_draw_eval *e = arg;
    if (err != HTH_OK) {
        fail(e, err);
        return;
    }
    struct hth_infer_loss loss = hth_infer_loss(e->d->use.infer, 1);
    e->loss[e->phase].sum += loss.sum;
    e->loss[e->phase].counted += loss.counted;
    e->next += e->count;
    go_on(e);
}

static enum hth_err count_bits(struct hth_draw_eval *e)
{
    const struct hth_model_opts *m = &e->d->use.model.model;
    struct hth_infer_batch b = hth_infer_batch(e->d->use.infer);
    uint32_t other = e->phase == BITS_SHUFFLED ? part_of(e)->chosen_count / 2 : 0;
    for (uint32_t i = 0; i < e->count; i++) {
        int32_t *tokens = b.tokens + (size_t)i * m->seq_len;
        int32_t *labels = b.labels + (size_t)i * m->seq_len;
        memcpy(tokens, chosen(e, e->next + i)->ids, m->seq_len * sizeof(*tokens));
        memcpy(tokens, chosen(e, e->next + i + other)->ids, m->text * sizeof(*tokens));
        for (uint32_t k = 0; k < m->seq_len; k++)
            labels[k] = k + 1 < m->text ? HTH_LABEL_NONE : chosen(e, e->next + i)->ids[k + 1];
    }
    return hth_infer_whole(e->d->use.infer, e->count, counted, e);
}

/* ---- drawings ------------------------------------------------------------------------------ */

static uint64_t squares(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < n;) {
        uint32_t some = 0; /* of a stretch that fits 32 bits */
        for (size_t end = HTH_MIN(n, at + 4096); at < end; at++)
            some += (uint32_t)((a[at] - b[at]) * (a[at] - b[at]));
        sum += some;
    }
    return sum;
}

static const struct real *nearest(const struct hth_draw_eval *e, const uint8_t *rgb)
{
    size_t bytes =
        (size_t)hth_opened_side(&e->d->use.model) * hth_opened_side(&e->d->use.model) * 3;
    const struct real *best = NULL;
    uint64_t least = UINT64_MAX;
    for (int p = 0; p < HTH_SET_PARTS; p++)
        for (uint32_t i = 0; i < e->part[p].count; i++) {
            uint64_t off = squares(rgb, e->part[p].real[i].rgb, bytes);
            if (off < least) {
                least = off;
                best = &e->part[p].real[i];
            }
        }
    return best;
}

/* The words in front of "skin tone", back to a comma or colon: "medium-dark "; length 0: none. */
static size_t tone_of(const char *caption, const char **at)
{
    const char *end = strstr(caption, TONE), *from = end;
    if (end == NULL)
        return 0;
    while (from > caption && from[-1] != ',' && from[-1] != ':')
        from--;
    while (*from == ' ')
        from++;
    *at = from;
    return (size_t)(end - from);
}

static void judge(struct hth_draw_eval *e, const struct real *want, const struct real *got)
{
    const char *a, *b;
    size_t la = tone_of(want->caption, &a), lb = tone_of(got->caption, &b);
    e->right[e->phase] += strcmp(want->caption, got->caption) == 0;
    if (e->phase != R1_HELD || la == 0)
        return;
    e->tones++;
    e->tones_right += la == lb && memcmp(a, b, la) == 0;
}

/* The drawing of a caption that counts: the best of its tries. */
static uint32_t best_try(const struct hth_draw_eval *e, uint32_t i, uint32_t tries)
{
    uint32_t best = i * tries;
    for (uint32_t k = best + 1; tries > 1 && k < (i + 1) * tries; k++)
        if (hth_draw_score(e->d->draw, k) > hth_draw_score(e->d->draw, best))
            best = k;
    return best;
}

static void drawn(void *arg, enum hth_err err)
{
    struct hth_draw_eval *e = arg;
    uint32_t side = hth_opened_side(&e->d->use.model), tries = e->d->opts.score ? e->d->count : 1;
    uint8_t *rgb = hth_new_array(uint8_t, (size_t)side * side * 3);
    for (uint32_t i = 0; err == HTH_OK && i < e->count; i++) {
        err = hth_opened_paint(&e->d->use.model, hth_draw_codes(e->d->draw, best_try(e, i, tries)),
                               rgb);
        if (err == HTH_OK)
            judge(e, chosen(e, e->next + i), nearest(e, rgb));
    }
    hth_free(rgb);
    hth_draw_free(e->d->draw);
    e->d->draw = NULL;
    if (err != HTH_OK) {
        fail(e, err);
        return;
    }
    e->next += e->count;
    go_on(e);
}

static enum hth_err draw(struct hth_draw_eval *e)
{
    const struct hth_model_opts *m = &e->d->use.model.model;
    uint32_t tries = e->d->opts.score ? e->d->count : 1;
    e->count = HTH_MAX(HTH_MIN(e->count, BATCH / tries), 1u);
    int32_t *ids = hth_new_array(int32_t, (size_t)e->count * tries * m->text);
    for (uint32_t i = 0; i < e->count * tries; i++)
        memcpy(ids + (size_t)i * m->text, chosen(e, e->next + i / tries)->ids,
               m->text * sizeof(*ids));
    struct hth_draw_opts opts = e->d->opts;
    opts.on_done = drawn;
    opts.arg = e;
    opts.sample.seed += e->next;
    enum hth_err err =
        hth_draw_new(e->d->use.env, e->d->use.infer, ids, e->count * tries, &opts, &e->d->draw);
    hth_free(ids);
    return err;
}

/* ---- the report ---------------------------------------------------------------------------- */

static double figure(struct hth_draw_eval *e, uint32_t phase)
{
    e->phase = phase;
    if (phase < R1_TRAIN)
        return e->loss[phase].sum / (double)e->loss[phase].counted / log(2);
    return e->right[phase] / (double)part_of(e)->chosen_count;
}

static void report(struct hth_draw_eval *e)
{
    json_t *o = json_object();
    hth_bar_end(&e->bar);
    for (uint32_t i = 0; i < PHASES; i++)
        hth_json_real(o, names[i], figure(e, i));
    double tone = e->tones_right / (double)e->tones; /* NAN, so null, without any */
    hth_json_real(o, "tone", tone);
    if (e->d->use.flags.json) {
        hth_use_print_json_take(o);
    } else {
        json_decref(o);
        hth_say("bits per code: %.3f of training, %.3f held out, %.3f of those with another's "
                "caption",
                figure(e, BITS_TRAIN), figure(e, BITS_HELD), figure(e, BITS_SHUFFLED));
        hth_say("the nearest real picture has the caption: %.1f %% of training, %.1f %% held out",
                100 * figure(e, R1_TRAIN), 100 * figure(e, R1_HELD));
        if (e->tones > 0)
            hth_say("right tones of skin: %u of %u held out", e->tones_right, e->tones);
    }
    hth_use_stop(&e->d->use, HTH_EXIT_OK);
}

static void go_on(struct hth_draw_eval *e)
{
    uint32_t all = 0, done = 0;
    while (e->phase < PHASES && e->next == part_of(e)->chosen_count) {
        e->phase++;
        e->next = 0;
    }
    if (e->phase == PHASES) {
        report(e);
        return;
    }
    for (uint32_t i = 0; i < PHASES; i++) {
        bool train = i == BITS_TRAIN || i == R1_TRAIN;
        uint32_t n = e->part[train ? HTH_SET_TRAIN : HTH_SET_TEST].chosen_count;
        all += n;
        done += i < e->phase ? n : i == e->phase ? e->next : 0;
    }
    hth_bar_at(&e->bar, done, all);
    e->count = HTH_MIN(part_of(e)->chosen_count - e->next, (uint32_t)BATCH);
    enum hth_err err = e->phase < R1_TRAIN ? count_bits(e) : draw(e);
    if (err != HTH_OK)
        fail(e, err);
}

static void loaded(struct hth_job *job, enum hth_err err)
{
    struct hth_draw_eval *e = HTH_CONTAINER(job, struct hth_draw_eval, job);
    if (err == HTH_OK)
        err = e->err;
    if (err != HTH_OK)
        fail(e, err);
    else
        go_on(e);
}

void hth_draw_eval_start(struct hth_drawing *d)
{
    struct hth_draw_eval *e = hth_new(struct hth_draw_eval);
    d->evaluation = e;
    e->d = d;
    e->job.lane = HTH_LANE_IO;
    e->job.run = load_run;
    e->job.done = loaded;
    hth_bar_begin(&e->bar, "evaluating");
    enum hth_err err = hth_job_submit(d->use.env, &e->job);
    if (err != HTH_OK)
        fail(e, err);
}

void hth_draw_eval_free(struct hth_draw_eval *e)
{
    if (e == NULL)
        return;
    for (int p = 0; p < HTH_SET_PARTS; p++) {
        for (uint32_t i = 0; i <= e->part[p].count && e->part[p].real != NULL; i++) {
            hth_free(e->part[p].real[i].caption);
            hth_free(e->part[p].real[i].ids);
            hth_free(e->part[p].real[i].rgb);
        }
        hth_free(e->part[p].real);
        hth_free(e->part[p].chosen);
    }
    hth_free(e);
}
