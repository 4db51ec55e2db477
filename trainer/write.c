/* SPDX-License-Identifier: Apache-2.0 */
/* write.c: see write.h. */
#include "trainer/write.h"

#include <string.h>

#include "core/mem.h"

struct hth_write {
    struct hth_env *env;
    struct hth_infer *infer;
    struct hth_write_opts opts;
    struct hth_timer *timer; /* starts it outside the call */
    int32_t *text;
    size_t count, prompt;
    uint64_t start; /* of the context */
};

uint64_t hth_write_start_of(uint64_t n, uint32_t context)
{
    uint64_t half = context - context / 2;

    return n <= context ? 0 : half * ((n - context + half - 1) / half);
}

static void grown(void *arg, enum hth_err err);

/* Gives the model what it has not seen of its context. */
static void go_on(struct hth_write *w)
{
    uint64_t start = hth_write_start_of(w->count, hth_infer_positions(w->infer)), from;
    enum hth_err err = HTH_OK;

    if (start != w->start)
        err = hth_infer_begin(w->infer, 1);
    w->start = start;
    from = start + hth_infer_grown(w->infer);
    if (err == HTH_OK)
        err = hth_infer_grow(w->infer, w->text + from, (uint32_t)(w->count - from), grown, w);
    if (err != HTH_OK)
        w->opts.on_done(w->opts.arg, err);
}

static void begin(void *arg)
{
    go_on(arg);
}

static void grown(void *arg, enum hth_err err)
{
    struct hth_write *w = arg;
    uint32_t token = 0;

    if (err == HTH_OK)
        err = hth_sample(&w->opts.sample, hth_infer_next(w->infer, 0), hth_infer_choices(w->infer),
                         0, (uint32_t)w->count, &token);
    if (err != HTH_OK) {
        w->opts.on_done(w->opts.arg, err);
        return;
    }
    w->text[w->count++] = (int32_t)token;
    w->opts.on_token(w->opts.arg, (int32_t)token);
    if (w->count == w->prompt + w->opts.tokens)
        w->opts.on_done(w->opts.arg, HTH_OK);
    else
        go_on(w);
}

enum hth_err hth_write_new(struct hth_env *env, struct hth_infer *infer, const int32_t *prompt,
                           size_t count, const struct hth_write_opts *opts, struct hth_write **out)
{
    struct hth_write *w;

    *out = NULL;
    if (count == 0 || opts->tokens == 0)
        return HTH_E_CONFIG;
    if (count > UINT32_MAX - opts->tokens)
        return HTH_E_TOO_LARGE;
    HTH_TRY(hth_sample_check(&opts->sample));
    for (size_t i = 0; i < count; i++)
        if (prompt[i] < 0 || (uint32_t)prompt[i] >= hth_infer_choices(infer))
            return HTH_E_RANGE;
    HTH_TRY(hth_infer_begin(infer, 1));
    w = hth_new(struct hth_write);
    w->env = env;
    w->infer = infer;
    w->opts = *opts;
    w->prompt = w->count = count;
    w->text = hth_try_calloc(count + opts->tokens, sizeof(*w->text));
    if (w->text == NULL) {
        hth_free(w);
        return HTH_E_NO_MEMORY;
    }
    memcpy(w->text, prompt, count * sizeof(*prompt));
    w->timer = hth_timer_new(env, begin, w);
    hth_timer_set(env, w->timer, 0);
    *out = w;
    return HTH_OK;
}

void hth_write_free(struct hth_write *w)
{
    if (w == NULL)
        return;
    hth_timer_free(w->env, w->timer);
    hth_free(w->text);
    hth_free(w);
}
