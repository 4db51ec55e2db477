/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/helper.h"

#include "collab/heads.h"
#include "collab/line.h"
#include "core/mem.h"

#include <string.h>

#define AGAIN_US  (20 * HTH_US_PER_MS)
#define LOST_US   (200 * HTH_US_PER_MS) /* until another one is asked */
#define ANSWER_US (3 * HTH_US_PER_S)    /* a READY is answered by then */

/* One may end while the next begins, and one hold on to a member that is lost. */
enum { ROUNDS = 4 };

struct helped {
    struct hth_roll_helper *helper;
    struct hth_reduce_round *round; /* NULL: free */
};

struct hth_roll_helper {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_collab_opts opts;
    hth_fn *on_round;
    void *arg;
    struct hth_heads *heads;
    struct hth_timer *timer;
    struct hth_rpc_call *call; /* its READY; NULL: none is out */
    struct hth_roll_peer to;   /* whom that was sent to, or is next; family 0: nobody is known */
    struct helped helped[ROUNDS];
    bool rests;
    struct hth_roll_helper_stats stats;
};

/* ---- a round ------------------------------------------------------------------------------ */

static void on_reduced(void *arg, const struct hth_reduce_result *result)
{
    struct helped *a = arg;
    struct hth_averager_stats *stats = &a->helper->stats.averages;
    a->round = NULL;
    hth_line_counts(stats, result);
    hth_line_ends(stats, result->err, result->took_us);
    a->helper->on_round(a->helper->arg);
}

/* Reduces as a GO says, if it names this helper. */
static enum hth_err help(struct hth_roll_helper *h, struct hth_ready_reply *go)
{
    static struct hth_cells cells;
    static struct hth_line line;
    struct hth_reduce_opts o = hth_line_opts(h->opts.count, h->opts.spans, h->opts.span_count);
    struct hth_roll_group group;
    uint32_t i = 0;
    hth_line_group(h->env->crypto, &h->env->self, go, &group);
    if (group.self < group.count || group.self == group.count + group.helpers)
        return HTH_OK;
    while (i < ROUNDS && h->helped[i].round != NULL)
        i++;
    if (i == ROUNDS)
        return HTH_E_BUSY;
    hth_cells_place(h->env->crypto, &group.head, group.peer, group.count, &h->opts.shape, &cells);
    hth_line_fill(&group, &cells, hth_line_of_helper(&cells, group.self - group.count), 0, NULL,
                  &line);
    o.group = group.id;
    o.members = line.member;
    o.member_count = line.count;
    o.self = line.self;
    o.done = on_reduced;
    o.arg = &h->helped[i];
    HTH_TRY(hth_reduce_start(h->opts.reducer, &o, &h->helped[i].round));
    hth_line_begins(&h->stats.averages, &group);
    return HTH_OK;
}

/* ---- READY -------------------------------------------------------------------------------- */

static void again(struct hth_roll_helper *h, int64_t after_us)
{
    if (h->call == NULL && !h->rests)
        hth_timer_set(h->env, h->timer, after_us);
}

/* Another one who says that it calls, and at least knows who does. */
static void ask_another(struct hth_roll_helper *h)
{
    struct hth_head_note note;
    struct hth_roll_peer next = {.life = 0};
    if (hth_heads_next(h->heads, &note, &next.id) && !hth_head_is_none(&note.head)) {
        next.addr = note.addr;
        h->to = next;
    }
    again(h, LOST_US);
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct hth_roll_helper *h = arg;
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
    h->stats.averages.failed += err != HTH_OK && err != HTH_E_DUPLICATE;
    if (reply.kind == HTH_READY_MOVE)
        h->to = reply.peer[0];
    again(h, reply.kind == HTH_READY_GO || reply.kind == HTH_READY_WAIT ? 0 : AGAIN_US);
}

static void on_timer(void *arg)
{
    struct hth_roll_helper *h = arg;
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    const struct hth_ready_msg ready = {
        .brings = {.grain = 1},
        .first = HTH_ROLL_PROTOCOL,
        .last = HTH_ROLL_PROTOCOL,
        .helps = true,
        .up_kbit = (uint32_t)HTH_MIN(h->opts.bandwidth / 1e3, (double)UINT32_MAX),
        .addr = h->opts.addr};
    struct hth_rpc_call_opts opts = {.method = HTH_ROLL_METHOD_READY, .timeout_us = ANSWER_US};
    struct hth_rpc_target target = {h->to.id, h->to.addr};
    if (h->call != NULL || h->rests || h->to.addr.family == 0)
        return;
    opts.body.payload = bytes;
    opts.body.payload_len = hth_ready_write(&ready, bytes);
    if (hth_rpc_call(h->rpc, &target, &opts, on_answer, h, &h->call) != HTH_OK)
        ask_another(h);
}

static void on_head(void *arg, const struct hth_head_note *note, const struct hth_peer_id *by)
{
    struct hth_roll_helper *h = arg;
    if (hth_head_is_none(&note->head) || note->addr.family == 0)
        return;
    h->stats.step = note->step;
    if (h->to.addr.family != 0)
        return;
    h->to = (struct hth_roll_peer){.id = *by, .addr = note->addr};
    again(h, 0);
}

/* ---- life --------------------------------------------------------------------------------- */

enum hth_err hth_roll_helper_new(struct hth_env *env, struct hth_rpc *rpc,
                                 const struct hth_collab_opts *opts, hth_fn *on_round, void *arg,
                                 struct hth_roll_helper **out)
{
    *out = NULL;
    if (opts->addr.family == 0 || opts->count == 0)
        return HTH_E_CONFIG;
    struct hth_roll_helper *h = hth_new(struct hth_roll_helper);
    h->env = env;
    h->rpc = rpc;
    h->opts = *opts;
    h->on_round = on_round;
    h->arg = arg;
    for (uint32_t i = 0; i < ROUNDS; i++)
        h->helped[i].helper = h;
    h->timer = hth_timer_new(env, on_timer, h);
    enum hth_err err =
        hth_heads_new(env, opts->dht, opts->network, opts->schema, on_head, h, &h->heads);
    if (err != HTH_OK) {
        hth_roll_helper_free(h);
        return err;
    }
    *out = h;
    return HTH_OK;
}

void hth_roll_helper_free(struct hth_roll_helper *h)
{
    if (h == NULL)
        return;
    for (uint32_t i = 0; i < ROUNDS; i++)
        if (h->helped[i].round != NULL)
            hth_reduce_cancel(h->helped[i].round);
    if (h->call != NULL)
        hth_rpc_cancel(h->call);
    hth_heads_free(h->heads);
    hth_timer_free(h->env, h->timer);
    hth_free(h);
}

void hth_roll_helper_rest(struct hth_roll_helper *h)
{
    h->rests = true;
    if (h->call != NULL)
        hth_rpc_cancel(h->call);
    h->call = NULL;
}

void hth_roll_helper_stats(const struct hth_roll_helper *h, struct hth_roll_helper_stats *out)
{
    *out = h->stats;
}
