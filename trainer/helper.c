/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/helper.h"

#include "averaging/codec.h"
#include "averaging/roster.h"
#include "collab/cells.h"
#include "collab/heads.h"
#include "core/mem.h"
#include "kernels/params.h"
#include "trainer/trainer_int.h"

#define AGAIN_US  (250 * HTH_US_PER_MS) /* after a matching that found no group, or no caller */
#define ANSWER_US (3 * HTH_US_PER_S)    /* a READY is answered by then */
#define READY_US  (20 * HTH_US_PER_MS)  /* until it is READY with whom it was sent to */

/* One may end while the next begins, and one hold on to a member that is lost. */
enum { ROUNDS = 4 };

struct helped {
    struct hth_helper *helper;
    struct hth_reduce_round *round; /* NULL: free */
};

struct hth_helper {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_roster *roster;
    struct hth_averager *averager;
    struct hth_model *model;
    struct hth_settings settings;
    uint32_t parts; /* buffers in an offer of parameters: values and states */
    struct hth_avg_span *spans;
    uint32_t span_count;
    struct hth_timer *timer;
    bool out; /* an offer is with the averager */
    bool resting;

    /* Of shared batches. */
    bool batch;
    struct hth_collab_opts run;
    struct hth_heads *heads;
    struct hth_rpc_call *call; /* its READY; NULL: none is out */
    struct hth_roll_peer to;   /* whom that was sent to, or is next; family 0: nobody is known */
    struct helped helped[ROUNDS];
    struct hth_averager_stats averages;
};

static void again(struct hth_helper *h, int64_t after_us)
{
    if (h->call == NULL && !h->resting)
        hth_timer_set(h->env, h->timer, after_us);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static void offer(struct hth_helper *h)
{
    const struct hth_avg_offer offer = {
        .count = h->parts * hth_params_flat_len(hth_model_params(h->model)),
        .schema = hth_settings_schema(&h->settings, HTH_TICKET_PARAMS),
        .spans = h->spans,
        .span_count = h->span_count,
    };

    h->out = h->out || hth_averager_offer(h->averager, &offer) == HTH_OK;
    if (!h->out)
        again(h, AGAIN_US);
}

static void on_round(void *arg, const struct hth_avg_result *r)
{
    struct hth_helper *h = arg;

    h->out = false;
    hth_share_tell_round(h->roster, &r->round, 0, 0);
    again(h, r->err == HTH_OK ? 0 : AGAIN_US);
}

/* ---- shared batches: a round ----------------------------------------------------------------- */

static void on_reduced(void *arg, const struct hth_reduce_result *result)
{
    struct helped *a = arg;
    struct hth_averager_stats *stats = &a->helper->averages;

    a->round = NULL;
    hth_line_counts(stats, result);
    hth_line_ends(stats, result->err, result->took_us);
    hth_share_tell_round(a->helper->roster, &stats->last, 0, 0);
}

/* Reduces as a GO says, if it names this helper. */
static enum hth_err help(struct hth_helper *h, struct hth_ready_reply *go)
{
    static struct hth_cells cells;
    static struct hth_line line;
    struct hth_reduce_opts o = hth_line_opts(h->run.count, h->spans, h->span_count);
    struct hth_roll_group group;
    uint32_t i = 0;

    hth_line_group(h->env->crypto, &h->env->self, go, &group);
    if (group.self < group.count || group.self == group.count + group.helpers)
        return HTH_OK;
    while (i < ROUNDS && h->helped[i].round != NULL)
        i++;
    if (i == ROUNDS)
        return HTH_E_BUSY;
    hth_cells_place(h->env->crypto, &group.head, group.peer, group.count, &h->run.shape, &cells);
    hth_line_fill(&group, &cells, hth_line_of_helper(&cells, group.self - group.count), 0, NULL,
                  &line);
    o.group = group.id;
    o.members = line.member;
    o.member_count = line.count;
    o.self = line.self;
    o.done = on_reduced;
    o.arg = &h->helped[i];
    HTH_TRY(hth_reduce_start(h->run.reducer, &o, &h->helped[i].round));
    hth_line_begins(&h->averages, &group);
    return HTH_OK;
}

/* ---- shared batches: READY ------------------------------------------------------------------- */

/* Another one who says that it calls, and at least knows who does. */
static void ask_another(struct hth_helper *h)
{
    struct hth_roll_peer next;

    if (hth_heads_next(h->heads, &next) && next.addr.family != 0)
        h->to = next;
    again(h, AGAIN_US);
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct hth_helper *h = arg;
    static struct hth_ready_reply reply;
    enum hth_err err = result->err;

    h->call = NULL;
    if (err == HTH_OK)
        err = hth_ready_reply_read(result->payload, result->payload_len, &reply);
    if (err != HTH_OK) {
        ask_another(h);
        return;
    }
    if (reply.kind == HTH_READY_GO)
        err = help(h, &reply);
    h->averages.failed += err != HTH_OK && err != HTH_E_DUPLICATE;
    if (reply.kind == HTH_READY_MOVE && reply.peer[0].addr.family == 0) {
        ask_another(h); /* that caller can't be dialled */
        return;
    }
    if (reply.kind == HTH_READY_MOVE)
        h->to = reply.peer[0];
    again(h, reply.kind == HTH_READY_GO || reply.kind == HTH_READY_WAIT ? 0 : READY_US);
}

static void send_ready(struct hth_helper *h)
{
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    const struct hth_ready_msg ready = {
        .brings = {.grain = 1},
        .first = HTH_ROLL_PROTOCOL,
        .last = HTH_ROLL_PROTOCOL,
        .helps = true,
        .up_kbit = (uint32_t)HTH_MIN(h->run.bandwidth / 1e3, (double)UINT32_MAX),
        .addr = h->run.addr};
    struct hth_rpc_call_opts opts = {.method = HTH_ROLL_METHOD_READY, .timeout_us = ANSWER_US};
    struct hth_rpc_target target = {h->to.id, h->to.addr};

    if (h->call != NULL || h->to.addr.family == 0)
        return;
    opts.body.payload = bytes;
    opts.body.payload_len = hth_ready_write(&ready, bytes);
    if (hth_rpc_call(h->rpc, &target, &opts, on_answer, h, &h->call) != HTH_OK)
        ask_another(h);
}

static void on_head(void *arg, const struct hth_head_note *note, const struct hth_peer_id *by)
{
    struct hth_helper *h = arg;

    if (hth_head_is_none(&note->head) || note->addr.family == 0)
        return;
    hth_roster_set_progress(h->roster, note->step, 0, 0);
    if (h->to.addr.family != 0)
        return;
    h->to = (struct hth_roll_peer){.id = *by, .addr = note->addr};
    again(h, 0);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void on_timer(void *arg)
{
    struct hth_helper *h = arg;

    if (h->resting)
        return;
    if (h->batch)
        send_ready(h);
    else
        offer(h);
}

static enum hth_err start_batch(struct hth_helper *h, const struct hth_share_opts *share)
{
    const struct hth_collab_opts *o = &h->run;

    h->run = hth_share_collab(h->model, &h->settings, share, h->spans, h->span_count);
    for (uint32_t i = 0; i < ROUNDS; i++)
        h->helped[i].helper = h;
    if (o->addr.family == 0)
        return HTH_E_CONFIG;
    return hth_heads_new(h->env, o->dht, o->network, o->schema, on_head, h, &h->heads);
}

enum hth_err hth_helper_new(struct hth_env *env, const struct hth_helper_opts *opts,
                            struct hth_helper **out)
{
    const struct hth_share_opts *share = &opts->share;
    struct hth_helper *h;
    enum hth_err err;

    *out = NULL;
    h = hth_new(struct hth_helper);
    h->env = env;
    h->rpc = opts->rpc;
    h->roster = share->roster;
    h->averager = opts->averager;
    h->batch = share->mode == HTH_SHARE_BATCH;
    HTH_GOTO(fail, hth_model_new(NULL, &opts->model, &h->model));
    h->parts = hth_share_parts(h->model, share->states && !h->batch);
    HTH_GOTO(fail, hth_share_spans(h->model, share->format, h->parts, &h->spans, &h->span_count));
    hth_settings_of(h->model, &opts->optim, share, &h->settings);
    hth_settings_set(h->roster, &h->settings, HTH_TICKET_PARAMS);
    HTH_GOTO(fail, hth_averager_start(h->averager, on_round, h));
    h->timer = hth_timer_new(env, on_timer, h);
    if (h->batch)
        HTH_GOTO(fail, start_batch(h, share));
    else
        hth_timer_set(env, h->timer, 0);
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
    hth_helper_quiesce(h);
    for (uint32_t i = 0; i < ROUNDS; i++)
        if (h->helped[i].round != NULL)
            hth_reduce_cancel(h->helped[i].round);
    hth_heads_free(h->heads);
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
    if (h->call != NULL)
        hth_rpc_cancel(h->call);
    h->call = NULL;
}

void hth_helper_rounds(const struct hth_helper *h, struct hth_averager_stats *out)
{
    if (h->batch)
        *out = h->averages;
    else
        hth_averager_stats(h->averager, out);
}
