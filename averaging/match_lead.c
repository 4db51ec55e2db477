/* SPDX-License-Identifier: Apache-2.0 */
/* match_lead.c: what a look does while nobody smaller is known: it waits, and begins its group. */
#include <stdlib.h>

#include "averaging/match_int.h"
#include "core/mem.h"

/* ---- who is there ---------------------------------------------------------------------------- */

struct census {
    uint32_t contributors; /* among this peer and its followers */
    int64_t last_us;       /* when the last of them had come */
    int64_t deadline_us;   /* the earliest of their windows */
    int64_t pending_us;    /* until when somebody is waited for; INT64_MIN: nobody */
    bool all_known;
    int64_t next_us; /* when a follower is given up */
};

static void wait_until(struct census *c, int64_t until_us, int64_t now_us)
{
    if (until_us > now_us)
        c->pending_us = HTH_MAX(c->pending_us, until_us);
}

/* Until when a looker that has not joined is waited for. Those who followed a peer that died find
 * that out a little later than we; one without a connection to us needs the time to make one. */
static int64_t patience(const struct hth_look *look, const struct match_looker *l)
{
    int64_t us = HTH_MAX(hth_look_patience_us(look), hth_look_silence_us(look, &l->self.id));

    return HTH_MAX(l->since_us, look->since_us) + us;
}

/* A follower that missed its beat is not waited for any more, unless it is heard again. */
static void count_lookers(struct hth_look *look, struct census *c, int64_t now_us)
{
    for (uint32_t i = 0; i < look->count; i++) {
        struct match_looker *l = look->lookers[i];
        int64_t silent_us =
            l->heard_us + HTH_MATCH_BEAT_US + hth_look_silence_us(look, &l->self.id);

        if (l->state == MATCH_FOLLOWS && now_us >= silent_us)
            hth_look_strike(l, true);
        if (l->state == MATCH_LOOKS)
            wait_until(c, patience(look, l), now_us);
        if (l->state != MATCH_FOLLOWS)
            continue;
        c->contributors += hth_avg_mode_brings(l->self.mode);
        c->last_us = HTH_MAX(c->last_us, l->since_us);
        c->deadline_us = HTH_MIN(c->deadline_us, l->left_us);
        c->next_us = HTH_MIN(c->next_us, silent_us);
    }
}

static void count_due(struct hth_look *look, struct census *c, int64_t now_us)
{
    struct hth_match_peer due[HTH_AVG_MEMBERS_MAX];
    int64_t least_us = look->made_us + hth_look_patience_us(look);
    uint32_t count = look->opts.peers(look->opts.arg, due, HTH_AVG_MEMBERS_MAX, &c->all_known);

    for (uint32_t i = 0; c->all_known && i < count; i++) {
        const struct match_looker *l = hth_look_find(look, &due[i].id);

        if (l == NULL || l->state == MATCH_EXPECTED)
            wait_until(c, due[i].due ? look->end_us : least_us, now_us);
    }
}

/* ---- beginning ------------------------------------------------------------------------------- */

static int by_order(const void *a, const void *b)
{
    const struct match_looker *const *x = a, *const *y = b;

    return hth_look_order((*x)->self.mode, &(*x)->mark, (*y)->self.mode, &(*y)->mark);
}

static void on_sent(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    (void)r;
}

/* The last word to a follower. One that does not hear it is missed in its group. */
static void send(struct hth_look *look, const struct match_looker *to,
                 const struct hth_join_reply *reply)
{
    struct hth_match *m = look->match;
    const struct hth_rpc_target target = {.peer = to->self.id};
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_BEGIN};
    uint8_t *bytes = hth_join_reply_pack(reply, &call.body.payload_len);

    call.body.payload = bytes;
    call.timeout_us = hth_look_silence_us(look, &to->self.id);
    (void)!hth_rpc_call(m->rpc, &target, &call, on_sent, NULL, NULL);
    hth_free(bytes);
}

/* Clients come after trainers, and of them there may be too many. Helpers have the room that is
 * left, and there are no more of them than average: peers that cost nothing to make do not push out
 * anybody who brings values, nor have most of the shares. */
static void begin(struct hth_look *look, const struct census *c)
{
    const struct hth_join_reply full = {.reason = HTH_AVG_FULL};
    struct match_looker **from = hth_new_array(struct match_looker *, look->count + 1);
    struct hth_avg_member members[HTH_AVG_MEMBERS_MAX] = {look->self};
    uint32_t most = HTH_MIN(c->contributors, HTH_AVG_MEMBERS_MAX / 2u), came = 0, in = 0;
    uint32_t room[2] = {most, most}; /* for those who only reduce, and for the others */
    struct hth_join_reply list = {.reason = HTH_AVG_OK, .members = members, .count = 1};
    struct hth_avg_group *group;

    room[hth_avg_mode_brings(look->opts.mode)]--;
    for (uint32_t i = 0; i < look->count; i++)
        if (look->lookers[i]->state == MATCH_FOLLOWS)
            from[came++] = look->lookers[i];
    qsort(from, came, sizeof(*from), by_order);
    for (uint32_t i = 0; i < came; i++) {
        struct match_looker *l = from[i];
        uint32_t *left = &room[hth_avg_mode_brings(l->self.mode)];

        if (*left == 0) {
            send(look, l, &full);
            continue;
        }
        (*left)--;
        members[list.count++] = l->self;
        from[in++] = l;
    }
    list.match_us = look->result.match_us = hth_now_us(look->match->env) - c->last_us;
    for (uint32_t i = 0; i < in; i++)
        send(look, from[i], &list);
    hth_free(from);
    look->match->stats.led++;
    if (hth_match_group(look, members, list.count, &group) == HTH_OK)
        hth_look_end(look, HTH_AVG_OK, group);
    else
        hth_look_end(look, HTH_AVG_FAILED, NULL);
}

/* ---- the turn ------------------------------------------------------------------------------- */

static void end_without(struct hth_look *look, const struct census *c)
{
    enum hth_avg_reason reason = c->contributors > 1 ? HTH_AVG_TOO_FEW : HTH_AVG_ALONE;

    if (reason == HTH_AVG_ALONE && look->last_refusal != HTH_AVG_OK)
        reason = look->last_refusal;
    hth_look_end(look, reason, NULL);
}

int64_t hth_lead_turn(struct hth_look *look)
{
    int64_t now_us = hth_now_us(look->match->env), end_us = look->end_us;
    int64_t patience_us = hth_look_patience_us(look);
    struct census c = {.contributors = hth_avg_mode_brings(look->opts.mode),
                       .last_us = look->made_us,
                       .deadline_us = end_us,
                       .pending_us = INT64_MIN,
                       .next_us = INT64_MAX};
    bool enough, complete;

    count_lookers(look, &c, now_us);
    count_due(look, &c, now_us);
    c.deadline_us = HTH_MIN(HTH_MAX(c.deadline_us, look->since_us + patience_us), end_us);
    enough = hth_avg_mode_reduces(look->opts.mode) && c.contributors >= look->opts.group_min;
    complete =
        c.pending_us == INT64_MIN && (c.all_known || c.contributors >= look->opts.group_full);
    if (enough && (complete || now_us >= c.deadline_us)) {
        begin(look, &c);
        return now_us;
    }
    if (complete) /* a moment for those whose word is on its way */
        end_us = HTH_MIN(end_us,
                         HTH_MAX(look->made_us + patience_us, look->since_us + HTH_MATCH_BEAT_US));
    if (now_us >= end_us) {
        end_without(look, &c);
        return now_us;
    }
    end_us = HTH_MIN(c.next_us, end_us);
    if (c.pending_us != INT64_MIN)
        end_us = HTH_MIN(end_us, c.pending_us);
    return enough ? HTH_MIN(end_us, c.deadline_us) : end_us;
}
