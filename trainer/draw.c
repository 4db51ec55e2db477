/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw.c: see draw.h. Sequences n .. 2 n - 1, where there are any, are the same pictures without
 * captions.
 */
#include "trainer/draw.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "data/words.h"
#include "kernels/math64.h"

struct hth_draw {
    struct hth_env *env;
    struct hth_infer *infer;
    struct hth_draw_opts opts;
    struct hth_timer *timer; /* starts it outside the call */
    uint32_t pictures, sequences, codes, text, done;
    int32_t *captions; /* [sequences, text] */
    int32_t *code;     /* [pictures, codes] */
    int32_t *step;     /* [sequences] */
    float *guided;     /* [ids] */
    double *with, *without;
};

static void grown(void *arg, enum hth_err err);

uint32_t hth_draw_rows(const struct hth_model_opts *model, uint32_t pictures, bool twice)
{
    return pictures * (twice ? 2 : 1) * model->text;
}

static void begin(void *arg)
{
    struct hth_draw *d = arg;
    enum hth_err err = hth_infer_grow(d->infer, d->captions, d->text, grown, d);

    if (err != HTH_OK)
        d->opts.on_done(d->opts.arg, err);
}

static double log_p(const float *logits, uint32_t count, int32_t code)
{
    double top = (double)logits[0], sum = 0;

    for (uint32_t i = 1; i < count; i++)
        top = HTH_MAX(top, (double)logits[i]);
    for (uint32_t i = 0; i < count; i++)
        sum += hth_exp64((double)logits[i] - top);
    return (double)logits[code] - top - hth_log64(sum);
}

/* Draws the next code of a picture. */
static enum hth_err next_code(struct hth_draw *d, uint32_t n)
{
    uint32_t count = hth_infer_choices(d->infer), code;
    const float *with = hth_infer_next(d->infer, n), *from = with;
    const float *without =
        d->sequences > d->pictures ? hth_infer_next(d->infer, d->pictures + n) : NULL;

    if (d->opts.guide != 1) {
        for (uint32_t i = 0; i < count; i++)
            d->guided[i] = without[i] + d->opts.guide * (with[i] - without[i]);
        from = d->guided;
    }
    HTH_TRY(hth_sample(&d->opts.sample, from, count, n, d->done, &code));
    d->code[(size_t)n * d->codes + d->done] = (int32_t)code;
    d->step[n] = (int32_t)code;
    d->with[n] += log_p(with, count, (int32_t)code);
    if (without != NULL) {
        d->step[d->pictures + n] = (int32_t)code;
        d->without[n] += log_p(without, count, (int32_t)code);
    }
    return HTH_OK;
}

static void grown(void *arg, enum hth_err err)
{
    struct hth_draw *d = arg;

    for (uint32_t n = 0; err == HTH_OK && n < d->pictures; n++)
        err = next_code(d, n);
    d->done++;
    if (err == HTH_OK && d->done < d->codes) {
        err = hth_infer_grow(d->infer, d->step, 1, grown, d);
        if (err == HTH_OK)
            return;
    }
    d->opts.on_done(d->opts.arg, err);
}

static enum hth_err check(struct hth_infer *infer, const int32_t *captions, uint32_t pictures,
                          const struct hth_draw_opts *opts)
{
    const struct hth_model_opts *m = hth_infer_model(infer);

    if (pictures == 0 || !isfinite(opts->guide) || m->kind != HTH_MODEL_PICTURE)
        return HTH_E_CONFIG;
    HTH_TRY(hth_sample_check(&opts->sample));
    for (size_t i = 0; i < (size_t)pictures * m->text; i++)
        if (captions[i] < 0 || (uint32_t)captions[i] >= m->classes)
            return HTH_E_RANGE;
    return HTH_OK;
}

enum hth_err hth_draw_new(struct hth_env *env, struct hth_infer *infer, const int32_t *captions,
                          uint32_t pictures, const struct hth_draw_opts *opts,
                          struct hth_draw **out)
{
    const struct hth_model_opts *m = hth_infer_model(infer);
    uint32_t sequences = opts->score || opts->guide != 1 ? 2 * pictures : pictures;
    struct hth_draw *d;

    *out = NULL;
    HTH_TRY(check(infer, captions, pictures, opts));
    HTH_TRY(hth_infer_begin(infer, sequences));
    d = hth_new(struct hth_draw);
    d->env = env;
    d->infer = infer;
    d->opts = *opts;
    d->pictures = pictures;
    d->sequences = sequences;
    d->text = m->text;
    d->codes = m->height * m->width;
    d->captions = hth_new_array(int32_t, (size_t)sequences * d->text); /* HTH_ID_PAD */
    memcpy(d->captions, captions, (size_t)pictures * d->text * sizeof(*captions));
    for (uint32_t n = pictures; n < sequences; n++)
        d->captions[(size_t)n * d->text] = HTH_ID_BEGIN;
    d->code = hth_new_array(int32_t, (size_t)pictures * d->codes);
    d->step = hth_new_array(int32_t, sequences);
    d->guided = hth_new_array(float, hth_infer_choices(infer));
    d->with = hth_new_array(double, 2 * (size_t)pictures);
    d->without = d->with + pictures;
    d->timer = hth_timer_new(env, begin, d);
    hth_timer_set(env, d->timer, 0);
    *out = d;
    return HTH_OK;
}

void hth_draw_free(struct hth_draw *d)
{
    if (d == NULL)
        return;
    hth_timer_free(d->env, d->timer);
    hth_free(d->captions);
    hth_free(d->code);
    hth_free(d->step);
    hth_free(d->guided);
    hth_free(d->with);
    hth_free(d);
}

const int32_t *hth_draw_codes(const struct hth_draw *d, uint32_t picture)
{
    return d->code + (size_t)picture * d->codes;
}

double hth_draw_likelihood(const struct hth_draw *d, uint32_t picture)
{
    return d->with[picture];
}

double hth_draw_score(const struct hth_draw *d, uint32_t picture)
{
    return d->with[picture] - d->without[picture];
}
