/* SPDX-License-Identifier: Apache-2.0 */
/* match_lead.c: what a look does while nobody smaller is known: it waits, and begins groups. */
#include <string.h>

#include "averaging/match_int.h"
#include "core/mem.h"

/* ---- followers ------------------------------------------------------------------------------ */

static void let_go(struct match_looker *l)
{
    l->joined = false;
    if (!l->declared && !l->struck)
        hth_look_forget(l->look, l);
}

/* It did not come back. Nobody waits for it any more, unless it is heard again. */
static void lose(struct match_looker *l)
{
    struct hth_look *look = l->look;

    l->struck = true;
    if (look->opts.deaf != NULL)
        look->opts.deaf(look->opts.arg, &l->id);
    let_go(l);
}

/* Answers what is held, with what `reply` says. */
static void answer(struct match_looker *l, const struct hth_join_reply *reply)
{
    struct hth_rpc_request *req = l->held;

    l->held = NULL;
    hth_match_answer(l->look->match, req, reply);
}

static void answer_reason(struct match_looker *l, enum hth_avg_reason reason)
{
    struct hth_join_reply reply = {.reason = reason};

    answer(l, &reply);
}

/* It took its JOIN back, or left, or its connection was lost. */
static void on_cancel(void *arg)
{
    struct match_looker *l = arg;
    struct hth_look *look = l->look;
    struct hth_rpc_request *req = l->held;

    l->held = NULL;
    hth_rpc_refuse(req, HTH_E_CANCELED, 0, NULL);
    let_go(l);
    hth_look_poke(look);
}

void hth_lead_turn_away(struct match_looker *l)
{
    if (l->held != NULL)
        answer_reason(l, HTH_AVG_FULL);
}

void hth_lead_dismiss(struct hth_look *look, const struct match_looker *to,
                      enum hth_avg_reason reason)
{
    struct hth_join_reply reply = {.reason = reason};

    if (to != NULL && to->record != NULL) {
        reply.record = to->record;
        reply.record_len = to->record_len;
    }
    for (uint32_t i = look->count; i-- > 0;) {
        struct match_looker *l = look->lookers[i];
        if (l->held != NULL)
            answer(l, &reply);
        if (l->joined)
            let_go(l);
    }
}

/* HTH_AVG_WAIT: it can be our follower. */
static enum hth_avg_reason judge(struct hth_look *look, const struct hth_join_msg *join,
                                 struct match_looker **out)
{
    struct match_looker *l;

    *out = NULL;
    if (hth_peer_id_eq(&join->self.id, &look->match->env->self))
        return HTH_AVG_MALFORMED;
    if (!hth_avg_mode_reduces(look->opts.mode) ||
        hth_look_precedes_us(look, join->self.mode, &join->self.id))
        return HTH_AVG_NOT_SMALLER;
    l = hth_look_get(look, &join->self.id, join->self.mode);
    if (l == NULL)
        return HTH_AVG_FULL;
    *out = l;
    return l->struck && l->struck_here ? HTH_AVG_STRUCK_OFF : HTH_AVG_WAIT;
}

static void hold(struct hth_look *look, struct match_looker *l, struct hth_rpc_request *req,
                 const struct hth_join_msg *join)
{
    int64_t now_us = hth_now_us(look->match->env);

    if (l->held != NULL) { /* it asked twice: the newer one counts */
        hth_rpc_on_cancel(l->held, NULL, NULL);
        answer_reason(l, HTH_AVG_WAIT);
    }
    if (!l->joined)
        l->joined_us = now_us;
    l->struck = false; /* it lives after all */
    l->joined = true;
    l->held = req;
    l->until_us = now_us + look->match->opts.hold_us;
    l->left_us = now_us + (int64_t)join->left_ms * HTH_US_PER_MS;
    l->self = join->self;
    hth_rpc_on_cancel(req, on_cancel, l);
    hth_look_poke(look);
}

void hth_lead_join(struct hth_look *look, struct hth_rpc_request *req,
                   const struct hth_join_msg *join)
{
    struct match_looker *l, *leader;
    enum hth_avg_reason reason = judge(look, join, &l);
    struct hth_join_reply reply = {.reason = reason};

    leader = hth_look_leader(look);
    if (reason == HTH_AVG_WAIT && leader == NULL) {
        hold(look, l, req, join);
        return;
    }
    if (reason == HTH_AVG_WAIT) {
        reply.reason = HTH_AVG_NOT_LEADER;
        reply.record = leader->record;
        reply.record_len = leader->record_len;
    }
    hth_match_answer(look->match, req, &reply);
    if (l != NULL && !l->joined)
        let_go(l);
}

/* ---- who is there ---------------------------------------------------------------------------- */

struct census {
    uint32_t contributors, trainers; /* among this peer and its followers */
    int64_t last_us;                 /* when the last of them had come */
    int64_t deadline_us;             /* the earliest of their windows */
    /* Until when somebody is waited for, and those who only may come; INT64_MIN: nobody. */
    int64_t pending_us, maybe_us;
    bool due_known;
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

/* Until when a looker that has not joined is waited for. Those who followed somebody that died find
 * that out a little later than we; who has no connection to us needs the time to make one. */
static int64_t patience(const struct hth_look *look, const struct match_looker *l)
{
    int64_t us = HTH_MAX(hth_match_patience_us(look->match), hth_look_silence_us(look, &l->id));

    return HTH_MAX(l->seen_us, look->since_us) + us;
}

static void count_lookers(struct hth_look *look, struct census *c, int64_t now_us)
{
    for (uint32_t i = 0; i < look->count; i++) {
        const struct match_looker *l = look->lookers[i];

        if (l->struck)
            continue;
        if (!l->joined) {
            wait_until(&c->pending_us, patience(look, l), now_us);
            continue;
        }
        count_member(c, l->self.mode); /* as it joined, whatever it declares since */
        c->last_us = HTH_MAX(c->last_us, l->joined_us);
        c->deadline_us = HTH_MIN(c->deadline_us, l->left_us);
    }
}

static void count_due(struct hth_look *look, struct census *c, int64_t now_us)
{
    struct hth_match_due due[HTH_AVG_MEMBERS_MAX];
    uint32_t count = UINT32_MAX;

    if (look->opts.due != NULL)
        count = look->opts.due(look->opts.arg, due, HTH_AVG_MEMBERS_MAX);
    c->due_known = count != UINT32_MAX;
    for (uint32_t i = 0; c->due_known && i < HTH_MIN(count, (uint32_t)HTH_AVG_MEMBERS_MAX); i++) {
        const struct match_looker *l = hth_look_find(look, &due[i].id);

        if (l == NULL || (l->struck && !l->struck_here))
            wait_until(due[i].maybe ? &c->maybe_us : &c->pending_us, due[i].until_us, now_us);
    }
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

static uint32_t gather(struct hth_look *look, struct hth_avg_member *members,
                       struct match_looker **from)
{
    uint32_t count = 1;

    members[0] = hth_look_self(look);
    members[0].id = look->match->env->self;
    from[0] = NULL;
    for (uint32_t i = 0; i < look->count; i++) {
        struct match_looker *l = look->lookers[i];

        if (l->struck ||
            !l->joined) /* between two JOINs too: the next is answered with the group */
            continue;
        members[count] = l->self;
        from[count++] = l;
    }
    return count;
}

/* Deals the members to the groups, in turn, which spreads every mode over all of them; to[i] ==
 * groups: there is no room. Clients come after trainers, and of them there may be too many for few
 * of those. Helpers have the room that is left, and there are no more of them than average: peers
 * that cost nothing to make do not push out anybody who brings values, nor have most of the
 * shares. */
static uint32_t deal(const struct hth_avg_member *members, uint32_t count, uint32_t groups,
                     uint32_t contributors, uint32_t *to)
{
    uint32_t dealt[2] = {0}, in = 0;

    contributors = HTH_MIN(contributors, groups * HTH_AVG_MEMBERS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        bool brings = hth_avg_mode_brings(members[i].mode);
        uint32_t k = dealt[brings]++, g = k % groups;
        uint32_t most = hth_avg_group_size(contributors, groups, g);

        if (!brings)
            most = HTH_MIN(most, HTH_AVG_MEMBERS_MAX - most);
        to[i] = k / groups < most ? g : groups;
        in += to[i] < groups;
    }
    return in;
}

static void begin_one(struct hth_look *look, struct hth_avg_group *group,
                      struct match_looker **from, const uint32_t *to, uint32_t came, uint32_t index)
{
    struct hth_join_reply reply = {.reason = HTH_AVG_OK,
                                   .members = group->member,
                                   .count = group->count,
                                   .match_us = look->result.match_us};

    hth_match_remember(look->match, group, look->result.match_us);
    for (uint32_t i = 0; i < came; i++)
        if (to[i] == index && from[i] != NULL && from[i]->held != NULL)
            answer(from[i], &reply);
}

static void begin(struct hth_look *look, const struct census *c)
{
    uint32_t room = 1 + look->count;
    struct hth_avg_member *members = hth_new_array(struct hth_avg_member, room);
    struct hth_avg_member *dealt = hth_new_array(struct hth_avg_member, room);
    struct match_looker **from = hth_new_array(struct match_looker *, room);
    uint32_t *to = hth_new_array(uint32_t, room);
    uint32_t came = gather(look, members, from), groups = groups_of(look, c);
    uint32_t in = deal(members, came, groups, c->contributors, to);
    struct hth_avg_group *own = NULL;
    enum hth_err err = HTH_OK;

    look->result.match_us = hth_now_us(look->match->env) - c->last_us;
    for (uint32_t g = 0; g < groups && err == HTH_OK; g++) {
        struct hth_avg_group *group;
        uint32_t n = 0;
        for (uint32_t i = 0; i < came; i++)
            if (to[i] == g)
                dealt[n++] = members[i];
        err = hth_match_group(look, dealt, n, &group);
        if (err != HTH_OK)
            break;
        begin_one(look, group, from, to, came, g);
        if (g == 0)
            own = group;
        else
            hth_free(group);
    }
    hth_lead_dismiss(look, NULL, in < came ? HTH_AVG_FULL : HTH_AVG_BEGUN);
    look->result.led = err == HTH_OK;
    look->match->stats.led += err == HTH_OK ? groups : 0;
    hth_look_end(look, err, err == HTH_OK ? HTH_AVG_OK : HTH_AVG_FAILED, own);
    hth_free(to);
    hth_free(from);
    hth_free(dealt);
    hth_free(members);
}

/* ---- the turn ------------------------------------------------------------------------------- */

static int64_t hold_turn(struct hth_look *look)
{
    int64_t now_us = hth_now_us(look->match->env), next_us = INT64_MAX;

    for (uint32_t i = look->count; i-- > 0;) {
        struct match_looker *l = look->lookers[i];
        if (!l->joined)
            continue;
        if (l->held == NULL && l->until_us <= now_us) {
            lose(l);
            continue;
        }
        if (l->held != NULL && l->until_us <= now_us) {
            answer_reason(l, HTH_AVG_WAIT);
            l->until_us = now_us + hth_look_silence_us(look, &l->id);
        }
        next_us = HTH_MIN(next_us, l->until_us);
    }
    return next_us;
}

static void end_without(struct hth_look *look, const struct census *c)
{
    enum hth_avg_reason reason = c->contributors > 1 ? HTH_AVG_TOO_FEW : HTH_AVG_ALONE;

    if (reason == HTH_AVG_ALONE && look->last_refusal != HTH_AVG_OK)
        reason = look->last_refusal;
    hth_lead_dismiss(look, NULL, HTH_AVG_NOT_LOOKING);
    hth_look_end(look, HTH_E_TIMEOUT, reason, NULL);
}

int64_t hth_lead_turn(struct hth_look *look)
{
    int64_t now_us = hth_now_us(look->match->env), next_us = hold_turn(look);
    int64_t end_us = hth_look_until(look), patience_us = hth_match_patience_us(look->match);
    struct census c = {.last_us = look->made_us,
                       .deadline_us = end_us,
                       .pending_us = INT64_MIN,
                       .maybe_us = INT64_MIN};
    bool enough, full, complete;

    count_member(&c, look->opts.mode);
    count_lookers(look, &c, now_us);
    count_due(look, &c, now_us);
    c.deadline_us = HTH_MAX(c.deadline_us, look->since_us + patience_us);
    enough = hth_avg_mode_reduces(look->opts.mode) && c.contributors >= look->opts.group_min;
    full = c.contributors >= look->opts.group_full;
    if (!full)
        c.pending_us = HTH_MAX(c.pending_us, c.maybe_us);
    complete = c.pending_us == INT64_MIN && (c.due_known || full);
    if (enough && (complete || now_us >= c.deadline_us)) {
        begin(look, &c);
        return now_us;
    }
    if (complete) /* a moment for those whose notes are on their way */
        end_us = HTH_MIN(end_us, HTH_MAX(look->made_us + patience_us,
                                         look->since_us + look->match->opts.hold_us));
    if (now_us >= end_us) {
        end_without(look, &c);
        return now_us;
    }
    if (c.pending_us != INT64_MIN)
        next_us = HTH_MIN(next_us, c.pending_us);
    if (enough)
        next_us = HTH_MIN(next_us, c.deadline_us);
    return HTH_MIN(next_us, end_us);
}
