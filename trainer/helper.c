/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/helper.h"

#include "averaging/codec.h"
#include "averaging/roster.h"
#include "collab/helper.h"
#include "core/mem.h"
#include "kernels/params.h"
#include "trainer/trainer_int.h"

#define AGAIN_US (250 * HTH_US_PER_MS) /* after a matching that found no group */

struct hth_helper {
    struct hth_env *env;
    struct hth_roster *roster;
    struct hth_averager *averager;
    struct hth_share_opts share;
    struct hth_roll_helper *roll; /* of shared batches; NULL: of parameters */
    struct hth_model *model;
    struct hth_settings settings;
    uint32_t parts; /* buffers in an offer of parameters: values and states */
    struct hth_avg_span *spans;
    uint32_t span_count;
    struct hth_timer *timer;
    bool out; /* an offer is with the averager */
    bool resting;
};

/* ---- parameters ------------------------------------------------------------------------------ */

static void on_timer(void *arg)
{
    struct hth_helper *h = arg;
    const struct hth_avg_offer offer = {
        .count = h->parts * hth_params_flat_len(hth_model_params(h->model)),
        .schema = hth_settings_schema(&h->settings, HTH_TICKET_PARAMS),
        .spans = h->spans,
        .span_count = h->span_count,
    };

    if (h->resting || h->out)
        return;
    h->out = hth_averager_offer(h->averager, &offer) == HTH_OK;
    if (!h->out)
        hth_timer_set(h->env, h->timer, AGAIN_US);
}

static void on_round(void *arg, const struct hth_avg_result *r)
{
    struct hth_helper *h = arg;

    h->out = false;
    hth_share_tell_round(h->roster, &r->round, 0, 0);
    hth_timer_set(h->env, h->timer, r->err == HTH_OK ? 0 : AGAIN_US);
}

/* ---- shared batches -------------------------------------------------------------------------- */

static void on_roll_round(void *arg)
{
    struct hth_helper *h = arg;
    struct hth_roll_helper_stats stats;

    hth_roll_helper_stats(h->roll, &stats);
    hth_roster_set_progress(h->roster, stats.step, 0, 0);
    hth_share_tell_round(h->roster, &stats.averages.last, 0, 0);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_helper_new(struct hth_env *env, const struct hth_helper_opts *opts,
                            struct hth_helper **out)
{
    struct hth_helper *h;
    enum hth_err err;

    *out = NULL;
    h = hth_new(struct hth_helper);
    h->env = env;
    h->roster = opts->share.roster;
    h->averager = opts->averager;
    h->share = opts->share;
    HTH_GOTO(fail, hth_model_new(NULL, &opts->model, &h->model));
    h->parts = hth_share_parts(h->model, h->share.states && h->share.mode == HTH_SHARE_LOCAL);
    HTH_GOTO(fail, hth_share_spans(h->model, h->share.format, h->parts, &h->spans, &h->span_count));
    hth_settings_of(h->model, &opts->optim, &h->share, &h->settings);
    hth_settings_set(h->roster, &h->settings, HTH_TICKET_PARAMS);
    HTH_GOTO(fail, hth_averager_start(h->averager, on_round, h));
    h->timer = hth_timer_new(env, on_timer, h);
    if (h->share.mode == HTH_SHARE_BATCH) {
        struct hth_collab_opts run =
            hth_share_collab(h->model, &h->settings, &h->share, h->spans, h->span_count);

        HTH_GOTO(fail, hth_roll_helper_new(env, opts->rpc, &run, on_roll_round, h, &h->roll));
    } else {
        hth_timer_set(env, h->timer, 0);
    }
    *out = h;
    return HTH_OK;
fail:
    hth_helper_free(h);
    return err;
}

void hth_helper_free(struct hth_helper *h)
{
    if (h == NULL)
        return;
    hth_roll_helper_free(h->roll);
    hth_averager_stop(h->averager);
    if (h->timer != NULL)
        hth_timer_free(h->env, h->timer);
    hth_model_free(h->model);
    hth_free(h->spans);
    hth_free(h);
}

void hth_helper_quiesce(struct hth_helper *h)
{
    h->resting = true;
    if (h->roll != NULL)
        hth_roll_helper_rest(h->roll);
}

void hth_helper_rounds(const struct hth_helper *h, struct hth_averager_stats *out)
{
    struct hth_roll_helper_stats roll;

    if (h->roll == NULL) {
        hth_averager_stats(h->averager, out);
        return;
    }
    hth_roll_helper_stats(h->roll, &roll);
    *out = roll.averages;
}
