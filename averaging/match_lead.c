/* SPDX-License-Identifier: Apache-2.0 */
/* match_lead.c: what a look does while nobody smaller is known: it waits, and begins groups. */
#include <string.h>

#include "averaging/match_int.h"
#include "core/mem.h"

/* ---- followers ------------------------------------------------------------------------------ */

static void let_go(struct match_looker *l)
{
    l->joined = false;
    l->ready = false;
    if (!l->declared && !l->struck)
        hth_look_forget(l->look, l);
}

/* It did not come back. Nobody waits for it any more, unless it is heard again. */
static void lose(struct match_looker *l)
{
    struct hth_look *look = l->look;

    l->struck = true;
    l->early = false;
    if (look->opts.deaf != NULL && l->mode != HTH_AVG_OBSERVER)
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
    if (l->ready)
        let_go(l);
    else /* perhaps to say that it is */
        l->until_us = hth_now_us(look->match->env) + hth_look_silence_us(look, &l->id);
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
    struct hth_match *m = look->match;
    struct match_looker *l;

    *out = NULL;
    if (hth_peer_id_eq(&join->self.id, &m->env->self))
        return HTH_AVG_MALFORMED;
    if (!hth_avg_mode_reduces(look->opts.mode) ||
        hth_look_precedes_us(look, join->self.mode, &join->self.id)) {
        hth_look_doubt(look, &join->self.id);
        return HTH_AVG_NOT_SMALLER;
    }
    if (hth_look_excludes(look, &join->self.id))
        return HTH_AVG_STRUCK_OFF;
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
    if (join->ready && !l->ready)
        l->ready_us = now_us;
    l->struck = l->early = false; /* it lives after all */
    l->joined = true;
    l->ready = join->ready;
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
    struct hth_match *m = look->match;
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
    hth_match_answer(m, req, &reply);
    if (l != NULL && !l->joined)
        let_go(l);
}

/* ---- who is there ---------------------------------------------------------------------------- */

/* For whom the longest, and why. */
struct waiting {
    int64_t until_us; /* INT64_MIN: nobody */
    struct hth_peer_id id;
    const char *why;
};

struct census {
    uint32_t members, contributors; /* this peer and its ready followers */
    uint32_t trainers;
    int64_t last_us;        /* when the last of them had come */
    int64_t deadline_us;    /* the earliest of their windows */
    struct waiting pending; /* for somebody */
    struct waiting maybe;   /* for those who only may come */
    int64_t ask_us;         /* somebody who is waited for is to be asked then */
    bool due_known;
};

static void count_member(struct census *c, enum hth_avg_mode mode)
{
    c->members++;
    c->contributors += hth_avg_mode_brings(mode);
    c->trainers += mode == HTH_AVG_TRAINER;
}

static void wait_for(struct waiting *w, const struct hth_peer_id *id, int64_t until_us,
                     int64_t now_us, const char *why)
{
    if (until_us > now_us && until_us > w->until_us)
        *w = (struct waiting){until_us, *id, why};
}

/* Until when a looker that has not joined is waited for. Those who followed somebody that died find
 * that out a little later than we; who has no connection to us needs the time to make one. Who is
 * being asked whether it lives may be dead: somebody can stand in for it then. */
static int64_t patience(const struct hth_look *look, const struct match_looker *l)
{
    const struct hth_match_opts *o = &look->match->opts;
    int64_t since_us = HTH_MAX(l->seen_us, look->since_us), until_us;
    int64_t wait_us =
        HTH_MAX(hth_match_patience_us(look->match), hth_look_silence_us(look, &l->id));

    if (!hth_look_connected(look, &l->id))
        wait_us = HTH_MAX(wait_us, hth_match_dial_us(look->match));
    wait_us += hth_rpc_late_us(look->match->rpc);
    until_us = HTH_MAX(since_us + wait_us, look->lost_us + o->hold_us);
    return until_us > hth_now_us(look->match->env) ? until_us : hth_look_asked_until(look, &l->id);
}

/* Who observes is in as soon as it is known to: all that a list says of it is who it is, and when
 * it asks for the group that has begun meanwhile costs nobody anything. */
static bool is_in(const struct match_looker *l)
{
    if (l->mode == HTH_AVG_OBSERVER)
        return !l->struck && (l->joined || (l->declared && !hth_look_excludes(l->look, &l->id)));
    return !l->struck && l->joined && l->ready;
}

/* Followers that are ready, and lookers that may become such. Nobody waits for who observes. */
static void count_lookers(struct hth_look *look, struct census *c, int64_t now_us)
{
    for (uint32_t i = 0; i < look->count; i++) {
        const struct match_looker *l = look->lookers[i];
        if (l->struck)
            continue;
        if (!l->joined && hth_look_excludes(look, &l->id))
            continue;
        if (l->mode == HTH_AVG_OBSERVER) {
            if (is_in(l))
                count_member(c, l->mode);
        } else if (!l->joined) {
            wait_for(&c->pending, &l->id, patience(look, l), now_us, "it declared");
        } else if (!l->ready) {
            wait_for(&c->pending, &l->id, l->left_us, now_us, "it is not ready");
        } else { /* between two JOINs too: its next one is answered with the group */
            count_member(c, l->self.mode); /* as it joined, whatever it declares since */
            c->last_us = HTH_MAX(c->last_us, l->ready_us);
            c->deadline_us = HTH_MIN(c->deadline_us, l->left_us);
        }
    }
}

/* Who declared joins a few round trips later, if it lives. */
static int64_t ask_declared(struct hth_look *look, const struct match_looker *l,
                            const struct hth_match_due *due)
{
    int64_t at_us = l->seen_us + look->match->opts.hold_us;

    return hth_now_us(look->match->env) < at_us ? at_us : hth_look_ask(look, due);
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

        if (l != NULL && !l->struck && !l->joined)
            c->ask_us = HTH_MIN(c->ask_us, ask_declared(look, l, &due[i]));
        if (l != NULL && !(l->struck && l->early))
            continue;
        wait_for(due[i].maybe ? &c->maybe : &c->pending, &due[i].id, due[i].until_us, now_us,
                 due[i].proxy_at > 0 ? "it stands in" : "it is due");
        if (due[i].until_us > now_us)
            c->ask_us = HTH_MIN(c->ask_us, hth_look_ask(look, &due[i]));
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
    struct hth_match *m = look->match;
    uint32_t count = 1;

    members[0] = (struct hth_avg_member){.id = m->env->self,
                                         .addr = m->opts.addr,
                                         .mode = look->opts.mode,
                                         .bandwidth = look->opts.bandwidth,
                                         .weight = look->opts.weight,
                                         .step = look->opts.step,
                                         .origin = look->opts.origin,
                                         .at = hth_look_at(look),
                                         .others = look->opts.others,
                                         .nonce = look->nonce};
    from[0] = NULL;
    for (uint32_t i = 0; i < look->count; i++) {
        struct match_looker *l = look->lookers[i];
        if (!is_in(l))
            continue;
        members[count] = l->self;
        if (l->mode == HTH_AVG_OBSERVER)
            members[count] = (struct hth_avg_member){.id = l->id, .mode = l->mode};
        from[count++] = l;
    }
    return count;
}

/* Deals the members to the groups, in turn, which spreads every mode over all of them; to[i] ==
 * groups: there is no room. Clients come after trainers, and of them there may be too many for few
 * of those. Who brings nothing has the room that is left, helpers first, and there are no more that
 * reduce than average, and half as many that observe: peers that cost nothing to make do not push
 * out anybody who brings values, nor have most of the shares, nor make the others send much
 * more. */
static uint32_t deal(const struct hth_avg_member *members, uint32_t count, uint32_t groups,
                     uint32_t contributors, uint32_t *to)
{
    uint32_t dealt[HTH_AVG_OBSERVER + 1] = {0}, all_helpers = 0, in = 0;

    for (uint32_t i = 0; i < count; i++) /* who joined as one and declared more may come last */
        all_helpers += members[i].mode == HTH_AVG_HELPER;
    contributors = HTH_MIN(contributors, groups * HTH_AVG_MEMBERS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        bool brings = hth_avg_mode_brings(members[i].mode);
        uint32_t k = dealt[brings ? HTH_AVG_TRAINER : members[i].mode]++, g = k % groups;
        uint32_t most = hth_avg_group_size(contributors, groups, g);
        uint32_t left = HTH_AVG_MEMBERS_MAX - most, helpers = HTH_MIN(most, left);

        if (members[i].mode == HTH_AVG_HELPER)
            most = helpers;
        helpers = HTH_MIN(helpers, hth_avg_group_size(all_helpers, groups, g));
        if (members[i].mode == HTH_AVG_OBSERVER)
            most = HTH_MIN(hth_match_observers_max(most), left - helpers);
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
    uint32_t room =
        1 + look->count; /* who is excluded no more since they were counted is in, too */
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
    int64_t busy_us = hth_rpc_late_us(look->match->rpc);

    for (uint32_t i = look->count; i-- > 0;) {
        struct match_looker *l = look->lookers[i];
        if (!l->joined)
            continue;
        if (l->held == NULL && l->until_us + busy_us <= now_us) {
            lose(l);
            continue;
        }
        if (l->held != NULL && l->until_us <= now_us) {
            answer_reason(l, HTH_AVG_WAIT);
            l->until_us = now_us + hth_look_silence_us(look, &l->id);
        }
        next_us = HTH_MIN(next_us, l->until_us + (l->held == NULL ? busy_us : 0));
    }
    return next_us;
}

static bool is_silent(const struct hth_look *look, const struct hth_peer_id *id)
{
    const struct hth_match *m = look->match;
    struct hth_rpc_peer_info info;

    return hth_rpc_peer_info(m->rpc, id, &info) != HTH_OK ||
           hth_now_us(m->env) - info.received_us > m->opts.hold_us + hth_look_silence_us(look, id);
}

/* Who declared, did not join as long as it was waited for, and does not speak elsewhere, is not
 * there. */
static void miss_the_declared(const struct hth_look *look)
{
    for (uint32_t i = 0; i < look->count && look->opts.deaf != NULL; i++) {
        const struct match_looker *l = look->lookers[i];

        if (l->declared && !l->joined && !l->struck && l->mode != HTH_AVG_OBSERVER &&
            is_silent(look, &l->id))
            look->opts.deaf(look->opts.arg, &l->id);
    }
}

static void end_without(struct hth_look *look, const struct census *c)
{
    enum hth_avg_reason reason = c->contributors > 1 ? HTH_AVG_TOO_FEW : HTH_AVG_ALONE;

    if (!look->opts.ready)
        reason = HTH_AVG_NOT_READY;
    else
        miss_the_declared(look);
    if (reason == HTH_AVG_ALONE && look->last_refusal != HTH_AVG_OK)
        reason = look->last_refusal;
    hth_lead_dismiss(look, NULL,
                     reason == HTH_AVG_NOT_READY ? HTH_AVG_NOT_READY : HTH_AVG_NOT_LOOKING);
    hth_look_end(look, HTH_E_TIMEOUT, reason, NULL);
}

/* Whoever holds up a group is named in the log. */
static void note_waiting(struct hth_look *look, const struct waiting *w)
{
    char text[HTH_PEER_SHORT_LEN];

    if (w->until_us == INT64_MIN || hth_peer_id_eq(&w->id, &look->waits_for))
        return;
    look->waits_for = w->id;
    HTH_LOG(look->match->env, HTH_DEBUG, HTH_SUB_AVG,
            "look in round %llu waits for %s: %s, %lld ms at most",
            (unsigned long long)look->opts.line.round, hth_peer_id_short(&w->id, text), w->why,
            (long long)((w->until_us - hth_now_us(look->match->env)) / HTH_US_PER_MS));
}

/* Who was lost and lives may be dialled anew just now, to be told. */
static bool is_bereft(const struct hth_look *look)
{
    for (uint32_t i = 0; i < HTH_AVG_TELL_MAX; i++)
        if (look->telling[i].call != NULL)
            return false;
    return look->opts.bereft != NULL && look->opts.bereft(look->opts.arg);
}

int64_t hth_lead_turn(struct hth_look *look)
{
    int64_t now_us = hth_now_us(look->match->env), next_us = hold_turn(look);
    int64_t end_us = hth_look_until(look), soon_us,
            patience_us = hth_match_patience_us(look->match);
    struct census c = {.last_us = look->ready_us,
                       .deadline_us = end_us,
                       .pending = {.until_us = INT64_MIN},
                       .maybe = {.until_us = INT64_MIN},
                       .ask_us = INT64_MAX};
    bool enough, full, complete;

    count_member(&c, look->opts.mode);
    count_lookers(look, &c, now_us);
    count_due(look, &c, now_us);
    c.deadline_us = HTH_MAX(c.deadline_us, look->since_us + patience_us);
    enough = look->opts.ready && hth_avg_mode_reduces(look->opts.mode) &&
             c.contributors >= look->opts.group_min;
    full = c.contributors >= look->opts.group_full;
    if (!full && c.maybe.until_us > c.pending.until_us)
        c.pending = c.maybe;
    complete = c.pending.until_us == INT64_MIN && (c.due_known || full);
    note_waiting(look, &c.pending);
    if (enough && (complete || now_us >= c.deadline_us)) {
        begin(look, &c);
        return now_us;
    }
    /* Nobody is known who could still come: a moment for those whose notes are on their way. */
    soon_us = HTH_MAX(look->ready_us + patience_us, look->since_us + look->match->opts.hold_us);
    if (complete && is_bereft(look))
        soon_us = now_us;
    if (look->opts.ready && complete)
        end_us = HTH_MIN(end_us, soon_us);
    if (now_us >= end_us) {
        end_without(look, &c);
        return now_us;
    }
    if (c.pending.until_us != INT64_MIN)
        next_us = HTH_MIN(next_us, c.pending.until_us);
    next_us = HTH_MIN(next_us, c.ask_us);
    if (enough)
        next_us = HTH_MIN(next_us, c.deadline_us);
    return HTH_MIN(next_us, end_us);
}
