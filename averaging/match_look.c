/* SPDX-License-Identifier: Apache-2.0 */
/* match_look.c: a look: the lookers it knows, what it asks them, as leader too, and its end. */
#include <stdlib.h>
#include <string.h>

#include "averaging/match_int.h"
#include "core/mem.h"

#define DIAL_US     (1 * HTH_US_PER_S) /* for a handshake, ... */
#define DIAL_RTTS   4                  /* ... or TCP, TLS and HELLO, and the answer */
#define STRIKES_MAX 8

/* ---- lookers -------------------------------------------------------------------------------- */

static int order_of(enum hth_avg_mode mode_a, const struct hth_hash *mark_a,
                    enum hth_avg_mode mode_b, const struct hth_hash *mark_b)
{
    if (mode_a != mode_b)
        return mode_a < mode_b ? -1 : 1;
    return memcmp(mark_a->b, mark_b->b, sizeof(mark_a->b));
}

bool hth_look_precedes_us(const struct hth_look *look, const struct match_looker *l)
{
    return order_of(l->self.mode, &l->mark, look->self.mode, &look->mark) < 0;
}

struct match_looker *hth_look_find(const struct hth_look *look, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < look->count; i++)
        if (hth_peer_id_eq(&look->lookers[i]->self.id, id))
            return look->lookers[i];
    return NULL;
}

/* Helpers cost nothing to make: they do not fill the table. */
static bool has_room(const struct hth_look *look, enum hth_avg_mode mode)
{
    uint32_t helpers = 0;

    for (uint32_t i = 0; i < look->count; i++)
        helpers += look->lookers[i]->self.mode == HTH_AVG_HELPER;
    return look->count < HTH_AVG_LOOKERS_MAX &&
           (mode != HTH_AVG_HELPER || helpers < HTH_AVG_HELPERS_MAX);
}

static struct match_looker *get(struct hth_look *look, const struct hth_avg_member *m)
{
    struct match_looker *l = hth_look_find(look, &m->id);

    if ((l == NULL || l->self.mode != m->mode) && !has_room(look, m->mode))
        return NULL;
    if (l != NULL)
        return l;
    if (look->count == look->capacity) {
        look->capacity = HTH_MAX(2 * look->capacity, 16u);
        look->lookers = hth_realloc(look->lookers, look->capacity, sizeof(look->lookers[0]));
    }
    l = look->lookers[look->count++] = hth_new(struct match_looker);
    l->look = look;
    l->self = *m;
    hth_avg_mark(look->match->env->crypto, look->key, look->key_len, &m->id, &l->mark);
    return l;
}

void hth_look_set(struct match_looker *l, enum match_state state)
{
    if (l->state != state)
        l->since_us = hth_now_us(l->look->match->env);
    l->state = state;
    hth_look_poke(l->look);
}

struct match_looker *hth_look_hear(struct hth_look *look, const struct hth_avg_member *m)
{
    struct match_looker *l = get(look, m);

    if (l == NULL)
        return NULL;
    l->self = *m;
    l->heard_us = hth_now_us(look->match->env);
    if (l->state == MATCH_EXPECTED || (l->state == MATCH_GONE && l->strikes <= STRIKES_MAX))
        hth_look_set(l, MATCH_LOOKS);
    return l;
}

static int64_t patience_us(const struct hth_look *look)
{
    return HTH_MATCH_BEAT_US + HTH_MATCH_SILENCE_US + hth_match_far_us(look->match);
}

static int64_t silence_us(const struct hth_look *look, const struct hth_peer_id *id)
{
    const struct hth_match *m = look->match;
    struct hth_rpc_peer_info info;
    int64_t us = HTH_MATCH_SILENCE_US;
    bool known = hth_rpc_peer_info(m->rpc, id, &info) == HTH_OK;

    if (known)
        us = HTH_MAX(us, HTH_MIN(2 * info.rtt_us, HTH_MATCH_FAR_US));
    if (!known || !info.connected)
        us += HTH_MAX(DIAL_US, HTH_MIN(DIAL_RTTS * m->usual_rtt_us, HTH_MATCH_FAR_US));
    return us + hth_rpc_late_us(m->rpc);
}

struct match_looker *hth_look_leader(const struct hth_look *look)
{
    struct match_looker *first = NULL;

    for (uint32_t i = 0; i < look->count; i++) {
        struct match_looker *l = look->lookers[i];
        bool looks = l->state == MATCH_LOOKS || l->state == MATCH_FOLLOWS;

        if (looks && hth_avg_mode_reduces(l->self.mode) && hth_look_precedes_us(look, l) &&
            (first == NULL || order_of(l->self.mode, &l->mark, first->self.mode, &first->mark) < 0))
            first = l;
    }
    return first;
}

static void strike(struct match_looker *l, bool deaf)
{
    struct hth_look *look = l->look;
    char text[HTH_PEER_SHORT_LEN];

    HTH_LOG(look->match->env, HTH_DEBUG, HTH_SUB_AVG, "look: %s is struck off (%s)",
            hth_peer_id_short(&l->self.id, text),
            deaf ? "silent" : hth_avg_reason_name(look->last_refusal));
    hth_look_set(l, MATCH_GONE);
    l->strikes += 2; /* who follows another that we gave up gets one */
    if (deaf)
        look->opts.deaf(look->opts.arg, &l->self.id);
}

static void remember(struct hth_match *m, const struct hth_avg_group *group)
{
    size_t bytes = sizeof(*group) + group->count * sizeof(group->member[0]);

    hth_free(m->begun);
    m->begun = hth_calloc(1, bytes);
    memcpy(m->begun, group, bytes);
}

static void end_look(struct hth_look *look, enum hth_avg_reason reason, struct hth_avg_group *group)
{
    if (look->done) {
        hth_free(group);
        return;
    }
    look->done = true;
    look->result.reason = reason;
    look->result.group = group;
    look->result.wait_us = hth_now_us(look->match->env) - look->made_us;
    if (group != NULL)
        remember(look->match, group);
    hth_look_poke(look);
}

/* ---- saying that we look --------------------------------------------------------------------- */

static size_t pack_join(const struct hth_look *look, bool follows,
                        uint8_t bytes[HTH_JOIN_BYTES_MAX])
{
    struct hth_env *env = look->match->env;
    int64_t left_us = HTH_MAX(look->end_us - hth_now_us(env), (int64_t)0);
    const struct hth_join_msg join = {.line = look->opts.line,
                                      .schema = look->opts.schema,
                                      .self = look->self,
                                      .wall_us = hth_wall_us(env),
                                      .left_ms = (uint32_t)(left_us / HTH_US_PER_MS),
                                      .version = HTH_MATCH_VERSION,
                                      .follows = follows};

    look->match->stats.joins_out++;
    return hth_join_msg_pack(&join, bytes);
}

/* Smoothed as TCP does it; the first counts whole. */
static void note_rtt(struct hth_match *m, const struct hth_peer_id *id)
{
    struct hth_rpc_peer_info info;

    if (hth_rpc_peer_info(m->rpc, id, &info) == HTH_OK && info.rtt_us > 0)
        m->usual_rtt_us += (info.rtt_us - m->usual_rtt_us) / (m->usual_rtt_us > 0 ? 8 : 1);
}

static void on_answer(void *arg, const struct hth_rpc_result *r);

static void drop_call(struct match_looker *l)
{
    if (l->call != NULL)
        hth_rpc_cancel(l->call);
    l->call = NULL;
}

/* In place of one that it has not answered. */
static void send_join(struct match_looker *l, bool follow)
{
    struct hth_look *look = l->look;
    struct hth_match *m = look->match;
    const struct hth_rpc_target target = {.peer = l->self.id, .addr = l->self.addr};
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_JOIN};
    uint8_t bytes[HTH_JOIN_BYTES_MAX];

    drop_call(l);
    l->follow = follow;
    l->told = true;
    note_rtt(m, &l->self.id);
    call.timeout_us = silence_us(look, &l->self.id) + (follow ? 0 : HTH_MATCH_BEAT_US);
    call.body.payload = bytes;
    call.body.payload_len = pack_join(look, follow, bytes);
    if (hth_rpc_call(m->rpc, &target, &call, on_answer, l, &l->call) != HTH_OK)
        l->call = NULL;
}

/* One that may be in our line, as its own word will say; once. */
static void tell(struct hth_look *look, const struct hth_peer_id *id, const struct hth_addr *addr)
{
    struct match_looker *l = get(look, &(struct hth_avg_member){.id = *id, .addr = *addr});

    if (l != NULL && l->state == MATCH_EXPECTED && !l->told)
        send_join(l, false);
}

/* ---- following ------------------------------------------------------------------------------- */

/* We are in it, with what we said of ourselves. */
static bool is_as_we_said(const struct hth_look *look, const struct hth_avg_group *group)
{
    const struct hth_avg_member *own = &group->member[group->self], *self = &look->self;

    return group->self < group->count && own->nonce == self->nonce && own->weight == self->weight &&
           own->mode == self->mode && own->bandwidth == self->bandwidth;
}

static bool take_begin(struct match_looker *from, const struct hth_join_reply *reply)
{
    struct hth_look *look = from->look;
    struct hth_avg_group *group;

    if (hth_match_group(look, reply->members, reply->count, &group) != HTH_OK)
        return false;
    if (!is_as_we_said(look, group)) {
        hth_free(group);
        return false;
    }
    look->result.match_us = reply->match_us;
    if (look->lost != NULL && look->lost != from)
        look->result.lost = look->lost->self.id;
    end_look(look, HTH_AVG_OK, group);
    return true;
}

bool hth_look_take(struct match_looker *from, const struct hth_join_reply *reply)
{
    struct hth_look *look = from->look;
    bool good = true;

    hth_look_poke(look);
    switch (reply->reason) {
    case HTH_AVG_WAIT:
        look->last_refusal = HTH_AVG_OK; /* of the peer that was asked before */
        return true;
    case HTH_AVG_OK:
        good = take_begin(from, reply);
        if (good)
            return true;
        look->last_refusal = HTH_AVG_LEFT_OUT;
        break;
    case HTH_AVG_NOT_LEADER: /* that one may have died, which `from` finds out */
        if (!hth_peer_id_eq(&reply->members[0].id, &look->self.id))
            tell(look, &reply->members[0].id, &reply->members[0].addr);
        if (++from->strikes <= STRIKES_MAX)
            return true;
        break;
    default:
        look->last_refusal = reply->reason;
    }
    strike(from, false);
    return good;
}

/* Nothing came in time, or a refusal of the endpoint. */
static void take_error(struct match_looker *l, const struct hth_rpc_result *r)
{
    if (l->follow)
        l->look->last_refusal = r->err == HTH_E_DRAINING ? HTH_AVG_DRAINING : HTH_AVG_NO_LEADER;
    else if (r->remote || l->state == MATCH_FOLLOWS)
        return;
    strike(l, true);
}

static void on_answer(void *arg, const struct hth_rpc_result *r)
{
    struct match_looker *l = arg;
    struct hth_look *look = l->look;
    struct hth_join_reply reply;

    l->call = NULL;
    hth_look_poke(look);
    if (r->err != HTH_OK) {
        take_error(l, r);
        return;
    }
    if (hth_join_reply_open(r->payload, r->payload_len, &reply) != HTH_OK)
        reply.reason = HTH_AVG_MALFORMED;
    if (reply.reason == HTH_AVG_WAIT && hth_peer_id_eq(&reply.members[0].id, &l->self.id))
        (void)hth_look_hear(look, &reply.members[0]);
    if (!look->done && (l->follow || (look->lost != NULL && reply.reason == HTH_AVG_OK)))
        (void)hth_look_take(l, &reply);
    hth_join_reply_close(&reply);
}

/* Asks the leader, unless it is being asked. Returns when to look again. */
static int64_t follow(struct hth_look *look, struct match_looker *l)
{
    int64_t now_us = hth_now_us(look->match->env);

    if (l->call != NULL && l->follow)
        return INT64_MAX;
    if (now_us < look->beat_us)
        return look->beat_us;
    look->beat_us = now_us + HTH_MATCH_BEAT_US;
    send_join(l, true);
    return look->beat_us;
}

static void turn_in(struct hth_look *look, int64_t us)
{
    look->turn_us = HTH_MIN(look->turn_us, hth_now_us(look->match->env) + us);
    hth_timer_set(look->match->env, look->timer, us);
}

void hth_look_poke(struct hth_look *look)
{
    turn_in(look, 0);
}

/* ---- leading: who is there ------------------------------------------------------------------- */

/* As the owner says. */
struct match_due {
    struct hth_match_peer peer[HTH_AVG_MEMBERS_MAX];
    uint32_t count;
    bool all; /* of the run are known */
};

struct census {
    uint32_t contributors; /* among this peer and its followers */
    int64_t last_us;       /* when the last of them had come */
    int64_t deadline_us;   /* the earliest of their windows */
    int64_t pending_us;    /* until when somebody is waited for; INT64_MIN: nobody */
    int64_t next_us;       /* when a follower is given up */
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
    int64_t us = HTH_MAX(patience_us(look), silence_us(look, &l->self.id));

    return HTH_MAX(l->since_us, look->since_us) + us;
}

/* A follower that missed its beat is not waited for any more, unless it is heard again. */
static void count_lookers(struct hth_look *look, struct census *c, int64_t now_us)
{
    for (uint32_t i = 0; i < look->count; i++) {
        struct match_looker *l = look->lookers[i];
        int64_t silent_us = l->heard_us + HTH_MATCH_BEAT_US + silence_us(look, &l->self.id);

        if (l->state == MATCH_FOLLOWS && now_us >= silent_us)
            strike(l, true);
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

static void count_due(struct hth_look *look, const struct match_due *due, struct census *c,
                      int64_t now_us)
{
    int64_t least_us = look->made_us + patience_us(look);

    for (uint32_t i = 0; due->all && i < due->count; i++) {
        const struct match_looker *l = hth_look_find(look, &due->peer[i].id);

        if (l == NULL || l->state == MATCH_EXPECTED)
            wait_until(c, due->peer[i].due ? look->end_us : least_us, now_us);
    }
}

/* ---- leading: the group ---------------------------------------------------------------------- */

static int by_order(const void *a, const void *b)
{
    const struct match_looker *const *x = a, *const *y = b;

    return order_of((*x)->self.mode, &(*x)->mark, (*y)->self.mode, &(*y)->mark);
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
    call.timeout_us = silence_us(look, &to->self.id);
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
        end_look(look, HTH_AVG_OK, group);
    else
        end_look(look, HTH_AVG_FAILED, NULL);
}

/* ---- leading: the turn ----------------------------------------------------------------------- */

static void end_without(struct hth_look *look, const struct census *c)
{
    enum hth_avg_reason reason = c->contributors > 1 ? HTH_AVG_TOO_FEW : HTH_AVG_ALONE;

    if (reason == HTH_AVG_ALONE && look->last_refusal != HTH_AVG_OK)
        reason = look->last_refusal;
    end_look(look, reason, NULL);
}

static int64_t lead_turn(struct hth_look *look, const struct match_due *due)
{
    int64_t now_us = hth_now_us(look->match->env), end_us = look->end_us;
    int64_t least_us = patience_us(look);
    struct census c = {.contributors = hth_avg_mode_brings(look->opts.mode),
                       .last_us = look->made_us,
                       .deadline_us = end_us,
                       .pending_us = INT64_MIN,
                       .next_us = INT64_MAX};
    bool enough, complete;

    count_lookers(look, &c, now_us);
    count_due(look, due, &c, now_us);
    c.deadline_us = HTH_MIN(HTH_MAX(c.deadline_us, look->since_us + least_us), end_us);
    enough = hth_avg_mode_reduces(look->opts.mode) && c.contributors >= look->opts.group_min;
    complete = c.pending_us == INT64_MIN && (due->all || c.contributors >= look->opts.group_full);
    if (enough && (complete || now_us >= c.deadline_us)) {
        begin(look, &c);
        return now_us;
    }
    if (complete) /* a moment for those whose word is on its way */
        end_us =
            HTH_MIN(end_us, HTH_MAX(look->made_us + least_us, look->since_us + HTH_MATCH_BEAT_US));
    if (now_us >= end_us) {
        end_without(look, &c);
        return now_us;
    }
    end_us = HTH_MIN(c.next_us, end_us);
    if (c.pending_us != INT64_MIN)
        end_us = HTH_MIN(end_us, c.pending_us);
    return enough ? HTH_MIN(end_us, c.deadline_us) : end_us;
}

/* ---- the turn -------------------------------------------------------------------------------- */

static void look_free(struct hth_look *look)
{
    struct hth_match *m = look->match;

    while (look->count > 0) {
        drop_call(look->lookers[--look->count]);
        hth_free(look->lookers[look->count]);
    }
    hth_free(look->lookers);
    hth_timer_free(m->env, look->timer);
    if (m->look == look)
        m->look = NULL;
    hth_free(look);
}

static void finish(struct hth_look *look)
{
    struct hth_look_result result = look->result;
    hth_look_done_fn *done = look->opts.done;
    void *arg = look->opts.arg;

    HTH_LOG(look->match->env, HTH_DEBUG, HTH_SUB_AVG,
            "look in round %llu ends: %s, %u members, %lld us",
            (unsigned long long)look->opts.line.round, hth_avg_reason_name(result.reason),
            result.group != NULL ? result.group->count : 0, (long long)result.wait_us);
    look_free(look);
    done(arg, &result);
}

/* The others of a leader that was lost may have heard it begin. */
static void note_leader(struct hth_look *look, struct match_looker *leader)
{
    if (leader == look->leader)
        return;
    if (look->leader != NULL && look->leader->state == MATCH_GONE)
        look->lost = look->leader;
    look->leader = leader;
    look->beat_us = 0;
    look->since_us = hth_now_us(look->match->env);
    for (uint32_t i = 0; look->lost != NULL && leader == NULL && i < look->count; i++)
        if (look->lookers[i]->state == MATCH_LOOKS)
            send_join(look->lookers[i], false);
}

/* A follower's followers hear from it at their next beat whom it follows. */
static int64_t follow_turn(struct hth_look *look, struct match_looker *leader, int64_t now_us)
{
    int64_t last_us = look->end_us + HTH_MATCH_SILENCE_US +
                      hth_rpc_late_us(look->match->rpc); /* a BEGIN may be here, and not be read */
    int64_t next_us = HTH_MIN(follow(look, leader), last_us);

    for (uint32_t i = 0; i < look->count; i++)
        if (look->lookers[i]->state == MATCH_FOLLOWS)
            look->lookers[i]->state = MATCH_LOOKS;
    if (now_us >= last_us)
        end_look(look, look->last_refusal != HTH_AVG_OK ? look->last_refusal : HTH_AVG_NO_LEADER,
                 NULL);
    return next_us;
}

static void on_turn(void *arg)
{
    struct hth_look *look = arg;
    int64_t now_us = hth_now_us(look->match->env), next_us = now_us;
    struct match_looker *leader = hth_look_leader(look);
    struct match_due due;

    hth_rpc_observe_late(look->match->rpc, look->turn_us);
    look->turn_us = INT64_MAX;
    note_leader(look, leader);
    if (!look->done) {
        due.count = look->opts.peers(look->opts.arg, due.peer, HTH_AVG_MEMBERS_MAX, &due.all);
        for (uint32_t i = 0; i < due.count; i++)
            tell(look, &due.peer[i].id, &due.peer[i].addr);
        next_us = leader != NULL ? follow_turn(look, leader, now_us) : lead_turn(look, &due);
    }
    if (look->done)
        finish(look);
    else
        turn_in(look, next_us - now_us);
}

/* ---- life ----------------------------------------------------------------------------------- */

struct hth_look *hth_look_new(struct hth_match *m, const struct hth_look_opts *opts)
{
    struct hth_look *look = hth_new(struct hth_look);

    HTH_ASSERT(m->look == NULL);
    look->match = m;
    look->opts = *opts;
    look->self = (struct hth_avg_member){.id = m->env->self,
                                         .mode = opts->mode,
                                         .bandwidth = opts->bandwidth,
                                         .weight = opts->weight,
                                         .nonce = hth_rng_u64(&m->env->rng)};
    if (hth_avg_mode_reduces(opts->mode))
        look->self.addr = m->opts.addr;
    look->key_len = hth_avg_line_key(&opts->line, look->key);
    hth_avg_mark(m->env->crypto, look->key, look->key_len, &look->self.id, &look->mark);
    look->timer = hth_timer_new(m->env, on_turn, look);
    look->turn_us = INT64_MAX;
    look->made_us = look->since_us = hth_now_us(m->env);
    look->end_us = look->made_us + opts->window_us;
    m->look = look;
    hth_look_poke(look);
    return look;
}

void hth_look_cancel(struct hth_look *look)
{
    hth_free(look->result.group);
    look_free(look);
}
