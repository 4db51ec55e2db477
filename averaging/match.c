/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match.c: the own look, and the table of those who joined this peer as their host.
 *
 * All happens in on_turn: every BEAT, and at once when somebody joined, left, answered, or the
 * roster changed.
 */
#include "averaging/match.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rpc/rpc.h"

#define BEAT_US    (100 * HTH_US_PER_MS)
#define SILENCE_US (350 * HTH_US_PER_MS) /* and two round trips */
#define FAR_US     (2 * HTH_US_PER_S)    /* no round trip is believed longer; an answer's way */
#define DIAL_US    (1 * HTH_US_PER_S)
#define NOTE_US    (500 * HTH_US_PER_MS) /* so old are notes of peers when they are seen */

/* One who joined us. */
struct joiner {
    struct hth_match *match;
    struct hth_join_msg said;
    uint64_t key, place;         /* of the line, and its own in the line's order */
    struct hth_rpc_request *req; /* NULL: this peer */
    int64_t since_us, end_us;    /* when it came, and the end of its window */
};

struct look {
    hth_look_done_fn *done;
    void *arg;
    uint64_t key;
    struct hth_join_msg says;
    int64_t made_us, end_us, asked_us;
    struct hth_peer_id host;                        /* zero: none */
    struct hth_rpc_call *call;                      /* NULL: the host is this peer, or none */
    struct hth_peer_id passed[HTH_AVG_MEMBERS_MAX]; /* hosts of no use */
    uint32_t passed_count;
    enum hth_avg_reason refusal; /* the last */
};

struct hth_match {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_roster *roster;
    uint32_t group_min;
    struct hth_timer *timer;
    int64_t turn_us;   /* when it was to run */
    int64_t ping_us;   /* when those waited for are pinged again */
    struct look *look; /* NULL: none */
    struct joiner **joiners;
    uint32_t count, capacity;
    bool version_said; /* it spoke of another version */
    struct hth_match_stats stats;
};

/* ---- time and silence ------------------------------------------------------------------------ */

static void turn_in(struct hth_match *m, int64_t us)
{
    m->turn_us = hth_now_us(m->env) + us;
    hth_timer_set(m->env, m->timer, us);
}

void hth_match_nudge(struct hth_match *m)
{
    turn_in(m, 0);
}

/* It can't be dialled, or not a byte came from it since then, though it is pinged. */
static bool is_silent(const struct hth_match *m, const struct hth_peer_id *id, int64_t since_us)
{
    struct hth_rpc_peer_info info;
    int64_t us = SILENCE_US + hth_rpc_late_us(m->rpc);

    (void)!hth_rpc_peer_info(m->rpc, id, &info);
    us += 2 * HTH_MIN(info.rtt_us, FAR_US) + (info.connected ? 0 : DIAL_US);
    if (hth_now_us(m->env) >= m->ping_us)
        hth_rpc_nudge(m->rpc, id);
    return info.retry_in_us > 0 || hth_now_us(m->env) - HTH_MAX(info.received_us, since_us) > us;
}

static void on_greeted(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    (void)r;
}

/* One of a line: it is dialled if need be, and lost once it is silent. */
static bool is_heard(struct hth_match *m, const struct hth_roster_peer *p, int64_t since_us)
{
    const struct hth_rpc_target target = {p->id, p->note.addr};
    const struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_JOIN,
                                           .timeout_us = HTH_AVG_WINDOW_MAX_US};
    struct hth_rpc_peer_info info;

    (void)!hth_rpc_peer_info(m->rpc, &p->id, &info);
    if (!info.connected && !info.dialing && info.waiting == 0 && target.addr.family != 0)
        (void)!hth_rpc_call(m->rpc, &target, &call, on_greeted, NULL, NULL);
    if (!is_silent(m, &p->id, since_us))
        return true;
    hth_roster_lost(m->roster, &p->id);
    return false;
}

/* ---- the roster ------------------------------------------------------------------------------ */

bool hth_match_in_line(const struct hth_roster_note *note, const struct hth_avg_line *line)
{
    const struct hth_avg_line theirs = {line->round, note->shape, note->cell};

    return hth_avg_shape_eq(&theirs.shape, &line->shape) && hth_avg_line_eq(&theirs, line);
}

static uint64_t key_of(const struct hth_join_msg *join)
{
    uint8_t key[HTH_AVG_LINE_KEY_MAX];

    return hth_hash64(key, hth_avg_line_key(&join->line, key), join->schema);
}

static uint64_t place_of(const struct hth_peer_id *id, uint64_t key)
{
    return hth_hash64(id->b, sizeof(id->b), key);
}

/* ---- the look -------------------------------------------------------------------------------- */

static void end_look(struct hth_match *m, enum hth_avg_reason reason, struct hth_avg_group *group)
{
    struct look *l = m->look;
    int64_t waited_us = hth_now_us(m->env) - l->made_us;
    hth_look_done_fn *done = l->done;
    void *arg = l->arg;

    hth_match_stop(m);
    done(arg, reason, group, waited_us);
}

/* We are in it, with what we said of ourselves. */
static bool is_as_we_said(const struct look *l, const struct hth_avg_group *group)
{
    const struct hth_avg_member *own = &group->member[group->self], *self = &l->says.self;

    return group->self < group->count && own->nonce == self->nonce && own->weight == self->weight &&
           own->mode == self->mode && own->bandwidth == self->bandwidth;
}

/* The host's last word. Returns why the look goes on without it; OK: the look has ended. */
static enum hth_avg_reason take(struct hth_match *m, const uint8_t *data, size_t len)
{
    struct look *l = m->look;
    struct hth_join_reply reply;
    struct hth_avg_group *group = NULL;
    enum hth_err err = hth_join_reply_read(data, len, &reply);

    if (err == HTH_OK && reply.reason == HTH_AVG_OK)
        err = hth_avg_group_new(m->env->crypto, &m->env->self, &l->says.line, l->says.schema, data,
                                len, &reply, &group);
    if (err != HTH_OK)
        return HTH_AVG_MALFORMED;
    if (group != NULL && !is_as_we_said(l, group)) {
        hth_free(group);
        return HTH_AVG_LEFT_OUT;
    }
    if (group == NULL && reply.reason != HTH_AVG_FULL && reply.reason != HTH_AVG_ALONE &&
        reply.reason != HTH_AVG_TOO_FEW)
        return reply.reason;
    end_look(m, reply.reason, group);
    return HTH_AVG_OK;
}

static void drop(struct joiner *j);
static struct joiner *find(const struct hth_match *m, const struct hth_peer_id *id);

/* Without a word; the host is asked no more. */
static void leave(struct hth_match *m)
{
    struct look *l = m->look;
    struct joiner *own = find(m, &m->env->self);

    if (l->call != NULL)
        hth_rpc_cancel(l->call);
    l->call = NULL;
    if (own != NULL)
        drop(own);
    memset(&l->host, 0, sizeof(l->host));
}

static void pass(struct hth_match *m, enum hth_avg_reason reason)
{
    struct look *l = m->look;
    bool lied = reason == HTH_AVG_MALFORMED || reason == HTH_AVG_LEFT_OUT;
    char text[HTH_PEER_SHORT_LEN];

    HTH_LOG(m->env, HTH_DEBUG, HTH_SUB_AVG, "look: %s is no host (%s)",
            hth_peer_id_short(&l->host, text), hth_avg_reason_name(reason));
    l->refusal = reason;
    if (l->passed_count < HTH_AVG_MEMBERS_MAX)
        l->passed[l->passed_count++] = l->host;
    if (lied)
        hth_roster_doubt(m->roster, &l->host);
    if (reason == HTH_AVG_NO_HOST)
        hth_roster_lost(m->roster, &l->host);
    leave(m);
    hth_match_nudge(m);
}

static void hear(struct hth_match *m, const uint8_t *data, size_t len)
{
    enum hth_avg_reason reason = take(m, data, len);

    if (reason != HTH_AVG_OK)
        pass(m, reason);
}

static void on_answer(void *arg, const struct hth_rpc_result *r)
{
    struct hth_match *m = arg;

    m->look->call = NULL;
    if (r->err == HTH_OK)
        hear(m, r->payload, r->payload_len);
    else
        pass(m, r->err == HTH_E_DRAINING  ? HTH_AVG_DRAINING
                : r->err == HTH_E_TIMEOUT ? HTH_AVG_LEFT_OUT
                                          : HTH_AVG_NO_HOST);
}

static void add(struct hth_match *m, const struct hth_join_msg *join, struct hth_rpc_request *req,
                int64_t end_us);

static void join(struct hth_match *m, const struct hth_rpc_target *host)
{
    struct look *l = m->look;
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_JOIN,
                                     .timeout_us = l->end_us + FAR_US - hth_now_us(m->env)};
    uint8_t bytes[HTH_JOIN_BYTES_MAX];

    l->host = host->peer;
    l->asked_us = hth_now_us(m->env);
    if (hth_peer_id_eq(&host->peer, &m->env->self)) {
        add(m, &l->says, NULL, l->end_us);
        return;
    }
    m->stats.joins_out++;
    call.body.payload = bytes;
    call.body.payload_len = hth_join_write(&l->says, bytes);
    if (hth_rpc_call(m->rpc, host, &call, on_answer, m, &l->call) != HTH_OK) {
        l->call = NULL;
        pass(m, HTH_AVG_NO_HOST);
    }
}

static bool is_passed(const struct look *l, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < l->passed_count; i++)
        if (hth_peer_id_eq(&l->passed[i], id))
            return true;
    return false;
}

/* Those of our line are dialled, before it is full of values, and known to be lost all at once. */
static void greet_line(struct hth_match *m)
{
    const struct hth_roster_peer *p;

    for (uint32_t i = 0; (p = hth_roster_at(m->roster, i)) != NULL; i++)
        if (hth_roster_meets(m->roster, p) && p->note.addr.family != 0 &&
            hth_match_in_line(&p->note, &m->look->says.line))
            (void)is_heard(m, p, m->look->made_us);
}

/* Zero: nobody. */
static struct hth_rpc_target first_host(const struct hth_match *m)
{
    const struct look *l = m->look;
    struct hth_rpc_target host = {.peer = {{0}}};
    uint64_t least = UINT64_MAX;
    const struct hth_roster_peer *p;

    if (hth_roster_speaks(m->roster) && hth_roster_self(m->roster)->addr.family != 0) {
        host.peer = m->env->self;
        least = place_of(&host.peer, l->key);
    }
    for (uint32_t i = 0; (p = hth_roster_at(m->roster, i)) != NULL; i++) {
        uint64_t place = place_of(&p->id, l->key);

        if (place >= least || !hth_roster_meets(m->roster, p) || p->note.addr.family == 0 ||
            hth_roster_doubts(m->roster, p) || is_passed(l, &p->id))
            continue;
        least = place;
        host = (struct hth_rpc_target){p->id, p->note.addr};
    }
    return host;
}

static void look_turn(struct hth_match *m)
{
    struct look *l = m->look;
    struct hth_rpc_target host;

    if (l->call != NULL && is_silent(m, &l->host, l->asked_us))
        pass(m, HTH_AVG_NO_HOST);
    if (hth_now_us(m->env) >= l->end_us) { /* the host is about to answer, if there is one */
        if (hth_peer_id_is_zero(&l->host))
            end_look(m, l->refusal != HTH_AVG_OK ? l->refusal : HTH_AVG_ALONE, NULL);
        return;
    }
    greet_line(m);
    host = first_host(m);
    if (hth_peer_id_eq(&host.peer, &l->host))
        return;
    leave(m);
    if (!hth_peer_id_is_zero(&host.peer))
        join(m, &host);
}

/* ---- the table ------------------------------------------------------------------------------- */

static struct joiner *find(const struct hth_match *m, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (hth_peer_id_eq(&m->joiners[i]->said.self.id, id))
            return m->joiners[i];
    return NULL;
}

static void on_left(void *arg)
{
    drop(arg);
}

static void add(struct hth_match *m, const struct hth_join_msg *join, struct hth_rpc_request *req,
                int64_t end_us)
{
    struct joiner *j = hth_new(struct joiner);

    if (m->count == m->capacity) {
        m->capacity = HTH_MAX(2 * m->capacity, 16u);
        m->joiners = hth_realloc(m->joiners, m->capacity, sizeof(struct joiner *));
    }
    m->joiners[m->count++] = j;
    j->match = m;
    j->said = *join;
    j->key = key_of(join);
    j->place = place_of(&join->self.id, j->key);
    j->req = req;
    j->since_us = hth_now_us(m->env);
    j->end_us = HTH_MIN(end_us, j->since_us + HTH_AVG_WINDOW_MAX_US);
    if (req != NULL)
        hth_rpc_on_cancel(req, on_left, j);
    hth_match_nudge(m);
}

/* It is not of the table any more. Returns what it asked, to be answered. */
static struct hth_rpc_request *release(struct joiner *j)
{
    struct hth_match *m = j->match;
    struct hth_rpc_request *req = j->req;
    uint32_t i = 0;

    while (m->joiners[i] != j)
        i++;
    m->joiners[i] = m->joiners[--m->count];
    if (req != NULL)
        hth_rpc_on_cancel(req, NULL, NULL);
    hth_free(j);
    hth_match_nudge(m);
    return req;
}

static void drop(struct joiner *j)
{
    struct hth_rpc_request *req = release(j);

    if (req != NULL)
        hth_rpc_refuse(req, HTH_E_CANCELED, 0, NULL);
}

/* `req` NULL: this peer. */
static void send(struct hth_match *m, struct hth_rpc_request *req, const uint8_t *data, size_t len)
{
    if (req != NULL)
        hth_rpc_reply(req, &(struct hth_rpc_body){.payload = data, .payload_len = len});
    else
        hear(m, data, len);
}

static void refuse(struct hth_match *m, struct hth_rpc_request *req, enum hth_avg_reason reason)
{
    uint8_t bytes[HTH_JOIN_REPLY_BYTES_MAX];

    send(m, req, bytes, hth_join_reply_write(&(struct hth_join_reply){.reason = reason}, bytes));
}

static enum hth_avg_reason judge(struct hth_match *m, const struct hth_peer_id *id,
                                 enum hth_err err)
{
    char text[HTH_PEER_SHORT_LEN];

    if (err == HTH_OK && !hth_peer_id_eq(id, &m->env->self))
        return m->count < HTH_AVG_LOOKERS_MAX ? HTH_AVG_OK : HTH_AVG_FULL;
    if (err != HTH_E_VERSION)
        return err == HTH_E_RANGE ? HTH_AVG_RANGE : HTH_AVG_MALFORMED;
    if (!m->version_said) /* once: it would be said in each of its lines */
        HTH_LOG(m->env, HTH_WARN, HTH_SUB_AVG,
                "%s has a program that averages otherwise: it and this one never average; update "
                "all trainers and helpers of the run",
                hth_peer_id_short(id, text));
    m->version_said = true;
    return HTH_AVG_OTHER_VERSION;
}

/* A second one of the same peer is in place of the first. */
static void on_join(void *arg, struct hth_rpc_request *req)
{
    struct hth_match *m = arg;
    struct hth_join_msg join;
    struct joiner *j = find(m, hth_rpc_peer(req));
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_join_read(payload, len, &join);
    enum hth_avg_reason reason;

    if (len == 0) { /* it only wants a connection */
        hth_rpc_reply(req, NULL);
        return;
    }
    if (j != NULL && j->req != NULL)
        drop(j);
    join.self.id = *hth_rpc_peer(req);
    reason = judge(m, &join.self.id, err);
    if (reason != HTH_AVG_OK)
        refuse(m, req, reason);
    else
        add(m, &join, req, hth_rpc_deadline_us(req) - FAR_US);
}

/* ---- a line begins --------------------------------------------------------------------------- */

/* Those of one line who are here. */
struct census {
    struct joiner *in[HTH_AVG_LOOKERS_MAX + 1]; /* this peer, too */
    uint32_t count, contributors;
    int64_t first_us, last_us; /* when the first and the last of them came */
    int64_t deadline_us;       /* the earliest window of those who average */
};

/* Line by line, each in the order in which they have places. */
static int by_place(const void *a, const void *b)
{
    const struct joiner *x = *(const struct joiner *const *)a,
                        *y = *(const struct joiner *const *)b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->said.self.mode != y->said.self.mode)
        return x->said.self.mode < y->said.self.mode ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Clients come after trainers, and of them there may be too many. Helpers have the room that is
 * left, and there are no more of them than average: peers that cost nothing to make do not push out
 * anybody who brings values, nor have most of the shares. */
static void begin(struct hth_match *m, struct census *c)
{
    uint32_t most = HTH_MIN(c->contributors, HTH_AVG_MEMBERS_MAX / 2u), in = 0;
    uint32_t room[2] = {most, most}; /* for those who only reduce, and for the others */
    struct hth_join_reply list = {.reason = HTH_AVG_OK};
    uint8_t bytes[HTH_JOIN_REPLY_BYTES_MAX];
    struct joiner *own = NULL;
    size_t len;

    for (uint32_t i = 0; i < c->count; i++) {
        uint32_t *left = &room[hth_avg_mode_brings(c->in[i]->said.self.mode)];

        if (*left == 0) {
            refuse(m, release(c->in[i]), HTH_AVG_FULL);
            continue;
        }
        (*left)--;
        list.member[list.count++] = c->in[i]->said.self;
        c->in[in++] = c->in[i];
    }
    len = hth_join_reply_write(&list, bytes);
    for (uint32_t i = 0; i < in; i++) {
        if (c->in[i]->req != NULL)
            send(m, release(c->in[i]), bytes, len);
        else
            own = c->in[i];
    }
    if (own != NULL) /* last: its values would hold up the others' answers */
        send(m, release(own), bytes, len);
    m->stats.led++;
}

/* That peer of the line is not here and waited for. If it is a round behind it may be about to end
 * that; of others the note may be old. */
static bool is_due(const struct hth_match *m, const struct census *c, const struct hth_peer_id *id,
                   const struct hth_roster_note *note)
{
    const struct hth_avg_line *line = &c->in[0]->said.line;
    const struct joiner *j = find(m, id);
    int32_t ahead = hth_match_ahead(note->round, line->round);

    return (j == NULL || j->key != c->in[0]->key) && hth_match_in_line(note, line) &&
           (ahead == 0 || ahead == -1 || hth_now_us(m->env) < c->first_us + NOTE_US);
}

/* Somebody is due who has neither joined nor fallen silent. */
static bool is_awaited(struct hth_match *m, const struct census *c)
{
    const struct hth_avg_line *line = &c->in[0]->said.line;
    const struct hth_roster_note *self = hth_roster_self(m->roster);
    const struct hth_roster_peer *p;
    bool all, awaited;

    (void)hth_roster_population(m->roster, &all);
    if (!all) /* and one more may be about to come */
        return c->contributors < line->shape.size[hth_avg_axis(&line->shape, line->round)] ||
               hth_now_us(m->env) < c->last_us + BEAT_US;
    awaited = (self->flags & HTH_ROSTER_BOOTSTRAPPING) == 0 && is_due(m, c, &m->env->self, self);
    for (uint32_t i = 0; (p = hth_roster_at(m->roster, i)) != NULL; i++) {
        if (hth_roster_meets(m->roster, p) && is_due(m, c, &p->id, &p->note))
            awaited |= is_heard(m, p, c->first_us);
    }
    return awaited;
}

static void take_census(struct joiner *const *in, uint32_t count, struct census *c)
{
    *c = (struct census){.count = count, .first_us = INT64_MAX, .deadline_us = INT64_MAX};
    for (uint32_t i = 0; i < count; i++) {
        const struct joiner *j = c->in[i] = in[i];

        c->first_us = HTH_MIN(c->first_us, j->since_us);
        c->last_us = HTH_MAX(c->last_us, j->since_us);
        if (hth_avg_mode_brings(j->said.self.mode)) {
            c->contributors++;
            c->deadline_us = HTH_MIN(c->deadline_us, j->end_us);
        }
    }
}

static void line_turn(struct hth_match *m, struct joiner *const *in, uint32_t count)
{
    int64_t now_us = hth_now_us(m->env);
    struct census c;
    bool awaited;

    take_census(in, count, &c);
    awaited = is_awaited(m, &c);
    if (c.contributors >= m->group_min && (now_us >= c.deadline_us || !awaited)) {
        begin(m, &c);
        return;
    }
    for (uint32_t i = 0; i < c.count; i++)
        if (now_us >= c.in[i]->end_us || (!awaited && now_us >= c.first_us + NOTE_US))
            refuse(m, release(c.in[i]), c.contributors > 1 ? HTH_AVG_TOO_FEW : HTH_AVG_ALONE);
}

/* The silent leave; then each line has its turn, the last one first: who leaves is replaced by one
 * behind it. */
static void table_turn(struct hth_match *m)
{
    for (uint32_t i = m->count; i-- > 0;) {
        struct joiner *j = m->joiners[i];

        if (j->req != NULL && is_silent(m, &j->said.self.id, j->since_us)) {
            hth_roster_lost(m->roster, &j->said.self.id);
            drop(j);
        }
    }
    if (m->count > 0)
        qsort(m->joiners, m->count, sizeof(struct joiner *), by_place);
    for (uint32_t end = m->count, at = end; end > 0; end = at) {
        while (at > 0 && m->joiners[at - 1]->key == m->joiners[end - 1]->key)
            at--;
        line_turn(m, &m->joiners[at], end - at);
    }
}

static void on_turn(void *arg)
{
    struct hth_match *m = arg;

    hth_rpc_observe_late(m->rpc, m->turn_us);
    m->turn_us = INT64_MAX;
    if (m->look != NULL)
        look_turn(m);
    table_turn(m);
    if (hth_now_us(m->env) >= m->ping_us)
        m->ping_us = hth_now_us(m->env) + BEAT_US;
    if (m->turn_us == INT64_MAX && (m->look != NULL || m->count > 0))
        turn_in(m, BEAT_US);
}

/* ---- life ----------------------------------------------------------------------------------- */

void hth_match_look(struct hth_match *m, const struct hth_avg_line *line,
                    const struct hth_avg_member *self, int64_t window_us, hth_look_done_fn *done,
                    void *arg)
{
    const struct hth_roster_note *note = hth_roster_self(m->roster);
    struct look *l = hth_new(struct look);

    HTH_ASSERT(m->look == NULL);
    m->look = l;
    l->done = done;
    l->arg = arg;
    l->says = (struct hth_join_msg){*line, note->schema, *self};
    l->says.self.id = m->env->self;
    l->says.self.nonce = hth_rng_u64(&m->env->rng);
    if (hth_avg_mode_reduces(self->mode))
        l->says.self.addr = note->addr;
    l->key = key_of(&l->says);
    l->made_us = hth_now_us(m->env);
    l->end_us = l->made_us + window_us;
    hth_match_nudge(m);
}

void hth_match_stop(struct hth_match *m)
{
    if (m->look == NULL)
        return;
    leave(m);
    hth_free(m->look);
    m->look = NULL;
}

struct hth_match *hth_match_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_roster *roster,
                                uint32_t group_min)
{
    struct hth_match *m = hth_new(struct hth_match);

    m->env = env;
    m->rpc = rpc;
    m->roster = roster;
    m->group_min = group_min;
    m->timer = hth_timer_new(env, on_turn, m);
    hth_rpc_serve(rpc, HTH_MATCH_METHOD_JOIN, on_join, m);
    return m;
}

void hth_match_free(struct hth_match *m)
{
    if (m == NULL)
        return;
    hth_rpc_serve(m->rpc, HTH_MATCH_METHOD_JOIN, NULL, NULL);
    hth_match_stop(m);
    while (m->count > 0)
        drop(m->joiners[0]);
    hth_free(m->joiners);
    hth_timer_free(m->env, m->timer);
    hth_free(m);
}

void hth_match_stats(const struct hth_match *m, struct hth_match_stats *out)
{
    *out = m->stats;
    out->looks_now = m->look != NULL;
    for (uint32_t i = 0; i < m->count; i++)
        out->followers_now += m->joiners[i]->req != NULL;
}
