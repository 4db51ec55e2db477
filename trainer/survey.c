/* SPDX-License-Identifier: Apache-2.0 */
/* survey.c: see survey.h. read (io lane) -> compute (infer.h) -> read .. */
#include "trainer/survey.h"

#include "core/mem.h"
#include "trainer/queue.h"

struct hth_survey {
    struct hth_env *env;
    struct hth_infer *infer;
    struct hth_survey_opts opts;
    struct hth_data *data;
    struct hth_queue io;
    struct hth_work read;
    uint64_t next, total;
    uint32_t batch, most; /* samples of this batch, and at most */
    enum hth_err err;     /* of the job */
    struct hth_survey_result result;
};

static void computed(void *arg, enum hth_err err);

static void read_run(struct hth_work *work)
{
    struct hth_survey *s = HTH_CONTAINER(work, struct hth_survey, read);
    struct hth_infer_batch b = hth_infer_batch(s->infer);

    s->err = hth_data_read(s->data, s->next, s->batch, b.x, b.tokens, b.labels);
}

static void read_done(struct hth_work *work, enum hth_err err)
{
    struct hth_survey *s = HTH_CONTAINER(work, struct hth_survey, read);

    if (err == HTH_OK)
        err = s->err;
    if (err == HTH_OK)
        err = hth_infer_whole(s->infer, s->batch, computed, s);
    if (err != HTH_OK)
        s->opts.on_done(s->opts.arg, err);
}

static void go_on(struct hth_survey *s)
{
    s->batch = (uint32_t)HTH_MIN((uint64_t)s->most, s->total - s->next);
    s->read.run = read_run;
    s->read.done = read_done;
    hth_queue_push(&s->io, &s->read);
}

static void computed(void *arg, enum hth_err err)
{
    struct hth_survey *s = arg;

    if (err != HTH_OK) {
        s->opts.on_done(s->opts.arg, err);
        return;
    }
    for (uint32_t i = 0; i < hth_infer_vocabularies(s->infer); i++) {
        struct hth_infer_loss loss = hth_infer_loss(s->infer, i);

        s->result.of[i].sum += loss.sum;
        s->result.of[i].counted += loss.counted;
        s->result.of[i].correct += loss.correct;
    }
    s->opts.on_batch(s->opts.arg, s->next, s->batch, hth_infer_batch(s->infer).labels);
    s->next += s->batch;
    if (s->next < s->total)
        go_on(s);
    else
        s->opts.on_done(s->opts.arg, HTH_OK);
}

enum hth_err hth_survey_new(struct hth_env *env, struct hth_infer *infer,
                            const struct hth_survey_opts *opts, struct hth_survey **out)
{
    struct hth_survey *s = hth_new(struct hth_survey);
    struct hth_data_info info;
    enum hth_err err;

    *out = NULL;
    s->env = env;
    s->infer = infer;
    s->opts = *opts;
    s->most = HTH_MAX(hth_infer_rows(infer) / hth_infer_positions(infer), 1u);
    hth_queue_init(&s->io, env, HTH_LANE_IO);
    HTH_GOTO(fail, hth_data_open(env, &opts->data, &s->data));
    hth_data_info(s->data, &info);
    s->total = opts->samples > 0 ? HTH_MIN(opts->samples, info.samples) : info.samples;
    err = hth_model_takes(hth_infer_model(infer), &opts->data, &info) ? HTH_OK : HTH_E_CONFIG;
    if (err != HTH_OK)
        goto fail;
    go_on(s);
    *out = s;
    return HTH_OK;
fail:
    hth_survey_free(s);
    return err;
}

void hth_survey_free(struct hth_survey *s)
{
    if (s == NULL)
        return;
    HTH_ASSERT(s->io.running == NULL);
    (void)hth_queue_close(&s->io, NULL, NULL);
    hth_data_free(s->data);
    hth_free(s);
}

uint64_t hth_survey_samples(const struct hth_survey *s)
{
    return s->total;
}

const char *hth_survey_why(const struct hth_survey *s)
{
    return hth_data_why(s->data);
}

void hth_survey_result(const struct hth_survey *s, struct hth_survey_result *out)
{
    *out = s->result;
    out->samples = s->next;
    out->loss = hth_infer_mean(s->infer, s->result.of);
}
