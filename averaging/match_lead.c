/* SPDX-License-Identifier: Apache-2.0 */
/* match_lead.c: what a look does while nobody smaller is known: it waits, and begins groups. */
#include <stdlib.h>

#include "averaging/match_int.h"
#include "core/mem.h"

/* ---- who is there ---------------------------------------------------------------------------- */

struct census {
    uint32_t contributors, trainers; /* among this peer and its followers */
    int64_t last_us;                 /* when the last of them had come */
    int64_t deadline_us;             /* the earliest of their windows */
    /* Until when somebody is waited for, and those who only may come; INT64_MIN: nobody. */
    int64_t pending_us, maybe_us;
    bool all_known;
    int64_t next_us; /* when a follower is given up */
};

static void count_member(struct census *c, enum hth_avg_mode mode)
{
    c->contributors += hth_avg_mode_brings(mode);
    c->trainers += mode == HTH_AVG_TRAINER;
}

static void wait_until(int64_t *us, int64_t until_us, int64_t now_us)
{
    if (until_us > now_us)
        *us = HTH_MAX(*us, until_us);
}

/* Until when a looker that has not joined is waited for. Those who followed a peer that died find
 * that out a little later than we; one without a connection to us needs the time to make one. */
static int64_t patience(const struct hth_look *look, const struct match_looker *l)
{
    int64_t us =
        HTH_MAX(hth_match_patience_us(look->match), hth_look_silence_us(look, &l->self.id));

    return HTH_MAX(l->seen_us, look->since_us) + us;
}

/* A follower that missed its beat is not waited for any more, unless it is heard again. */
static bool is_silent(struct hth_look *look, struct match_looker *l, struct census *c)
{
    int64_t us = look->match->opts.beat_us + hth_look_silence_us(look, &l->self.id);

    if (hth_now_us(look->match->env) >= l->heard_us + us)
        return true;
    c->next_us = HTH_MIN(c->next_us, l->heard_us + us);
    return false;
}

static void count_lookers(struct hth_look *look, struct census *c, int64_t now_us)
{
    for (uint32_t i = 0; i < look->count; i++) {
        struct match_looker *l = look->lookers[i];

        if (l->joined && is_silent(look, l, c))
            hth_look_strike(look, l, true);
        if (l->struck)
            continue;
        if (!l->joined) {
            wait_until(&c->pending_us, patience(look, l), now_us);
            continue;
        }
        count_member(c, l->self.mode);
        c->last_us = HTH_MAX(c->last_us, l->joined_us);
        c->deadline_us = HTH_MIN(c->deadline_us, l->left_us);
    }
}

static void count_due(struct hth_look *look, struct census *c, int64_t now_us)
{
    struct hth_match_peer due[HTH_AVG_MEMBERS_MAX];
    uint32_t count = 0;

    if (look->opts.peers != NULL)
        count = look->opts.peers(look->opts.arg, due, HTH_AVG_MEMBERS_MAX, &c->all_known);
    for (uint32_t i = 0; c->all_known && i < count; i++)
        if (hth_look_find(look, &due[i].id) == NULL)
            wait_until(due[i].maybe ? &c->maybe_us : &c->pending_us, due[i].until_us, now_us);
}

/* ---- beginning ------------------------------------------------------------------------------- */

/* Those who bring nothing make no group too large. */
static uint32_t groups_of(const struct hth_look *look, const struct census *c)
{
    uint32_t groups = hth_avg_groups(c->contributors, look->opts.group_max);

    groups = HTH_MIN(groups, HTH_MAX(c->trainers, 1u));
    while (groups > 1 && c->contributors / groups < look->opts.group_min)
        groups--;
    return groups;
}

static int by_order(const void *a, const void *b)
{
    const struct match_looker *const *x = a, *const *y = b;

    return hth_look_order((*x)->self.mode, &(*x)->mark, (*y)->self.mode, &(*y)->mark);
}

/* This peer, and its followers by their order. */
static uint32_t gather(struct hth_look *look, struct hth_avg_member *members)
{
    struct match_looker **from = hth_new_array(struct match_looker *, look->count + 1);
    uint32_t count = 0;

    for (uint32_t i = 0; i < look->count; i++)
        if (look->lookers[i]->joined)
            from[count++] = look->lookers[i];
    qsort(from, count, sizeof(*from), by_order);
    members[0] = look->self;
    for (uint32_t i = 0; i < count; i++)
        members[1 + i] = from[i]->self;
    hth_free(from);
    return 1 + count;
}

/* Deals the members to the groups, in turn, which spreads every mode over all of them; to[i] ==
 * groups: there is no room. Clients come after trainers, and of them there may be too many for few
 * of those. Helpers have the room that is left, and there are no more of them than average: peers
 * that cost nothing to make do not push out anybody who brings values, nor have most of the
 * shares. */
static void deal(const struct hth_avg_member *members, uint32_t count, uint32_t groups,
                 uint32_t contributors, uint32_t *to)
{
    uint32_t dealt[2] = {0};

    contributors = HTH_MIN(contributors, groups * HTH_AVG_MEMBERS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        bool brings = hth_avg_mode_brings(members[i].mode);
        uint32_t k = dealt[brings]++, g = k % groups;
        uint32_t most = hth_avg_group_size(contributors, groups, g);

        if (!brings)
            most = HTH_MIN(most, HTH_AVG_MEMBERS_MAX - most);
        to[i] = k / groups < most ? g : groups;
    }
}

static void on_sent(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    (void)r;
}

/* The last word to a follower. One that does not hear it is missed in its group. */
static void send(struct hth_look *look, const struct hth_avg_member *to,
                 const struct hth_join_reply *reply)
{
    struct hth_match *m = look->match;
    const struct hth_rpc_target target = {.peer = to->id};
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_BEGIN};
    uint8_t *bytes = hth_join_reply_pack(reply, &call.body.payload_len);

    call.body.payload = bytes;
    call.timeout_us = hth_look_silence_us(look, &to->id);
    (void)!hth_rpc_call(m->rpc, &target, &call, on_sent, NULL, NULL);
    hth_free(bytes);
}

/* Tells those that were dealt to `index` what is in the reply. */
static void send_dealt(struct hth_look *look, const struct hth_avg_member *members, uint32_t count,
                       const uint32_t *to, uint32_t index, const struct hth_join_reply *reply)
{
    for (uint32_t i = 1; i < count; i++)
        if (to[i] == index)
            send(look, &members[i], reply);
}

static void begin(struct hth_look *look, const struct census *c)
{
    uint32_t room = 1 + look->count;
    struct hth_avg_member *members = hth_new_array(struct hth_avg_member, room);
    struct hth_avg_member *dealt = hth_new_array(struct hth_avg_member, room);
    uint32_t *to = hth_new_array(uint32_t, room);
    uint32_t came = gather(look, members), groups = groups_of(look, c);
    struct hth_join_reply reply = {.reason = HTH_AVG_OK, .members = dealt};
    struct hth_avg_group *own = NULL;
    enum hth_err err = HTH_OK;

    deal(members, came, groups, c->contributors, to);
    reply.match_us = look->result.match_us = hth_now_us(look->match->env) - c->last_us;
    for (uint32_t g = groups; g-- > 0;) {
        reply.count = 0;
        for (uint32_t i = 0; i < came; i++)
            if (to[i] == g)
                dealt[reply.count++] = members[i];
        send_dealt(look, members, came, to, g, &reply);
    }
    err = hth_match_group(look, dealt, reply.count, &own); /* the first is ours */
    reply = (struct hth_join_reply){.reason = HTH_AVG_FULL};
    send_dealt(look, members, came, to, groups, &reply);
    look->result.led = err == HTH_OK;
    look->match->stats.led += groups;
    hth_look_end(look, err, err == HTH_OK ? HTH_AVG_OK : HTH_AVG_FAILED, own);
    hth_free(to);
    hth_free(dealt);
    hth_free(members);
}

/* ---- the turn ------------------------------------------------------------------------------- */

static void end_without(struct hth_look *look, const struct census *c)
{
    enum hth_avg_reason reason = c->contributors > 1 ? HTH_AVG_TOO_FEW : HTH_AVG_ALONE;

    if (reason == HTH_AVG_ALONE && look->last_refusal != HTH_AVG_OK)
        reason = look->last_refusal;
    hth_look_end(look, HTH_E_TIMEOUT, reason, NULL);
}

int64_t hth_lead_turn(struct hth_look *look)
{
    int64_t now_us = hth_now_us(look->match->env), next_us, end_us = look->end_us;
    int64_t patience_us = hth_match_patience_us(look->match);
    struct census c = {.last_us = look->made_us,
                       .deadline_us = end_us,
                       .pending_us = INT64_MIN,
                       .maybe_us = INT64_MIN,
                       .next_us = INT64_MAX};
    bool enough, full, complete;

    count_member(&c, look->opts.mode);
    count_lookers(look, &c, now_us);
    count_due(look, &c, now_us);
    c.deadline_us = HTH_MIN(HTH_MAX(c.deadline_us, look->since_us + patience_us), end_us);
    enough = hth_avg_mode_reduces(look->opts.mode) && c.contributors >= look->opts.group_min;
    full = c.contributors >= look->opts.group_full;
    if (!full)
        c.pending_us = HTH_MAX(c.pending_us, c.maybe_us);
    complete = c.pending_us == INT64_MIN && (c.all_known || full);
    if (enough && (complete || now_us >= c.deadline_us)) {
        begin(look, &c);
        return now_us;
    }
    if (complete) /* a moment for those whose word is on its way */
        end_us = HTH_MIN(end_us, HTH_MAX(look->made_us + patience_us,
                                         look->since_us + look->match->opts.beat_us));
    if (now_us >= end_us) {
        end_without(look, &c);
        return now_us;
    }
    next_us = HTH_MIN(c.next_us, end_us);
    if (c.pending_us != INT64_MIN)
        next_us = HTH_MIN(next_us, c.pending_us);
    return enough ? HTH_MIN(next_us, c.deadline_us) : next_us;
}
