/* SPDX-License-Identifier: Apache-2.0 */
/*
 * malice_roll.c: a member of a run's roll call that lies (collab/collab.h).
 *
 *     collab --- take ----> the last mean, turned, as the values of many samples
 *            --- step ----> remembers the mean
 *            --- copy ----> junk, for a genesis or for a newcomer
 *            --- adopt ---> "done"
 *
 * All answers come from a timer, because none may come inside the question.
 */
#include "collab/collab.h"
#include "core/blob.h"
#include "core/mem.h"
#include "core/rng.h"
#include "scenarios/malice_int.h"
#include "trainer/trainer_int.h"

#include <string.h>

#define META_BYTES 40
/* Between two claims: a head that it fetched voids its batch. */
#define CLAIM_US (100 * HTH_US_PER_MS)
/* Of a round and of a step: alone on its own chain it would make any number of them in no time. */
#define WORK_US (20 * HTH_US_PER_MS)

enum asked { STEP, ADOPT, COPY, TAKE, QUESTIONS }; /* in the order of answers */

struct hth_malice_member {
    struct hth_env *env;
    struct hth_malice_member_opts opts;
    struct hth_collab_opts collab_opts;
    struct hth_collab *collab;
    struct hth_model *model;
    struct hth_avg_span *spans;
    struct hth_timer *timer;
    struct hth_rng rng;
    bool asked[QUESTIONS];
    struct hth_blob *last; /* mean */
};

static void tell(struct hth_malice_member *m)
{
    const struct hth_brings brings = {
        .samples = HTH_MALICE_SAMPLES, .grain = 1, .each_us = HTH_BRINGS_NO_MORE};

    hth_collab_brings(m->collab, &brings);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void answer_take(struct hth_malice_member *m)
{
    struct hth_blob *values = NULL;
    enum hth_err err =
        hth_env_blob_new(m->env, m->collab_opts.count * sizeof(float), NULL, &values);

    if (err == HTH_OK)
        hth_malice_fill(m->opts.seed, m->last, values);
    hth_collab_taken(m->collab, err, values, HTH_MALICE_SAMPLES);
    hth_blob_unref(values);
}

static void answer_copy(struct hth_malice_member *m)
{
    struct hth_blob *values = NULL;
    uint8_t meta[META_BYTES];
    enum hth_err err = hth_env_blob_new(m->env, m->collab_opts.state_bytes, NULL, &values);

    for (size_t i = 0; i < sizeof(meta); i++)
        meta[i] = (uint8_t)hth_rng_u64(&m->rng);
    if (err == HTH_OK)
        hth_malice_fill(m->opts.seed, NULL, values);
    hth_collab_copied(m->collab, err, values, meta, sizeof(meta));
    hth_blob_unref(values);
}

static bool is_asked(const struct hth_malice_member *m)
{
    return m->asked[STEP] || m->asked[ADOPT] || m->asked[COPY] || m->asked[TAKE];
}

static void answer(struct hth_malice_member *m, enum asked what)
{
    m->asked[what] = false;
    if (what == STEP)
        hth_collab_stepped(m->collab);
    else if (what == ADOPT)
        hth_collab_adopted(m->collab, HTH_OK);
    else if (what == COPY)
        answer_copy(m);
    else
        answer_take(m);
}

static void on_timer(void *arg)
{
    struct hth_malice_member *m = arg;

    if (m->collab == NULL)
        return; /* it could not come again */
    for (enum asked what = STEP; what < QUESTIONS; what++)
        if (m->asked[what])
            answer(m, what);
    tell(m);
    if (!is_asked(m))
        hth_timer_set(m->env, m->timer, CLAIM_US);
}

/* ---- questions ------------------------------------------------------------------------------- */

static void ask(struct hth_malice_member *m, enum asked what)
{
    if (!is_asked(m))
        hth_timer_set(m->env, m->timer, what == STEP || what == TAKE ? WORK_US : 0);
    m->asked[what] = true;
}

static void on_take(void *arg)
{
    ask(arg, TAKE);
}

static void on_used(void *arg)
{
    (void)arg; /* the next batch is as large at once */
}

static void on_step(void *arg, struct hth_blob *mean, uint64_t samples,
                    const struct hth_chain_link *link)
{
    struct hth_malice_member *m = arg;

    (void)samples;
    (void)link;
    hth_blob_unref(m->last);
    m->last = hth_blob_ref(mean);
    ask(m, STEP);
}

static void on_copy(void *arg)
{
    ask(arg, COPY);
}

static void on_adopt(void *arg, const struct hth_state_result *state, const uint8_t *meta,
                     size_t meta_len)
{
    (void)state;
    (void)meta;
    (void)meta_len;
    ask(arg, ADOPT);
}

static void on_more(void *arg)
{
    (void)arg; /* it computes nothing */
}

/* It lies to a run, and begins none unless it is told to. */
static bool may_begin(void *arg)
{
    (void)arg;
    return false;
}

/* ---- life ------------------------------------------------------------------------------------ */

static enum hth_err join(struct hth_malice_member *m)
{
    static const struct hth_collab_ops ops = {.take = on_take,
                                              .used = on_used,
                                              .step = on_step,
                                              .copy = on_copy,
                                              .adopt = on_adopt,
                                              .more = on_more,
                                              .may_begin = may_begin};

    memset(m->asked, 0, sizeof(m->asked));
    m->collab_opts.life = hth_rng_u64(&m->rng);
    HTH_TRY(hth_collab_new(m->env, m->opts.rpc, &m->collab_opts, &ops, m, &m->collab));
    tell(m);
    hth_collab_start(m->collab);
    return HTH_OK;
}

static enum hth_err make(struct hth_malice_member *m)
{
    const struct hth_trainer_opts *t = m->opts.place->trainer;
    struct hth_share_opts share = t->share;
    struct hth_settings settings;
    uint32_t span_count;

    share.network = m->opts.place->network;
    share.addr = m->opts.addr;
    share.bandwidth = 0;
    share.roster = m->opts.avg->roster;
    share.reducer = m->opts.avg->reducer;
    share.dht = m->opts.place->dht;
    share.bootstrap = m->opts.bootstrap;
    share.strangers = false;
    HTH_TRY(hth_model_new(t->backend, &t->model, &m->model));
    HTH_TRY(hth_share_spans(m->model, share.format, 1, &m->spans, &span_count));
    hth_settings_of(m->model, &t->optim, &share, &settings);
    hth_settings_set(share.roster, &settings, HTH_TICKET_PARAMS);
    m->collab_opts = hth_share_collab(m->model, &settings, &share, m->spans, span_count);
    m->collab_opts.samples = m->opts.samples;
    return join(m);
}

enum hth_err hth_malice_member_new(struct hth_env *env, const struct hth_malice_member_opts *opts,
                                   struct hth_malice_member **out)
{
    struct hth_malice_member *m = hth_new(struct hth_malice_member);

    m->env = env;
    m->opts = *opts;
    m->rng = hth_rng_split(&env->rng, "malice member", 0);
    m->timer = hth_timer_new(env, on_timer, m);
    enum hth_err err = make(m);
    if (err != HTH_OK) {
        hth_malice_member_free(m);
        m = NULL;
    }
    *out = m;
    return err;
}

void hth_malice_member_free(struct hth_malice_member *m)
{
    if (m == NULL)
        return;
    hth_collab_free(m->collab);
    hth_model_free(m->model);
    hth_free(m->spans);
    hth_blob_unref(m->last);
    hth_timer_free(m->env, m->timer);
    hth_free(m);
}

void hth_malice_member_again(struct hth_malice_member *m)
{
    hth_collab_free(m->collab);
    m->collab = NULL;
    if (join(m) != HTH_OK)
        HTH_LOG(m->env, HTH_WARN, HTH_SUB_AVG, "a malicious member can't join again");
}

void hth_malice_member_peer_lost(struct hth_malice_member *m, const struct hth_peer_id *peer)
{
    if (m->collab != NULL)
        hth_collab_peer_lost(m->collab, peer);
}
