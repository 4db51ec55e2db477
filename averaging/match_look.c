/* SPDX-License-Identifier: Apache-2.0 */
/* match_look.c: a look's life, and the order of those seen. */
#include <string.h>

#include "averaging/match_int.h"
#include "core/mem.h"

#define TAKEOVERS_MAX 4 /* that may make a look longer than its window */
#define DIAL_RTTS     4 /* TCP, TLS and HELLO, and the answer */

/* ---- the order ------------------------------------------------------------------------------ */

static int order(enum hth_avg_mode mode_a, const struct hth_hash *mark_a,
                 const struct hth_peer_id *id_a, enum hth_avg_mode mode_b,
                 const struct hth_hash *mark_b, const struct hth_peer_id *id_b)
{
    int c;

    if (mode_a != mode_b)
        return mode_a < mode_b ? -1 : 1;
    c = memcmp(mark_a->b, mark_b->b, sizeof(mark_a->b));
    return c != 0 ? c : hth_peer_id_cmp(id_a, id_b);
}

static bool precedes_us(const struct hth_look *look, const struct match_looker *l)
{
    return order(l->mode, &l->mark, &l->id, look->opts.mode, &look->mark, &look->match->env->self) <
           0;
}

static void mark_of(const struct hth_look *look, const struct hth_peer_id *id,
                    struct hth_hash *mark)
{
    hth_avg_mark(look->match->env->crypto, look->key, look->key_len, id, mark);
}

bool hth_look_precedes_us(const struct hth_look *look, enum hth_avg_mode mode,
                          const struct hth_peer_id *id)
{
    struct hth_hash mark;

    mark_of(look, id, &mark);
    return order(mode, &mark, id, look->opts.mode, &look->mark, &look->match->env->self) < 0;
}

struct match_looker *hth_look_find(const struct hth_look *look, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < look->count; i++)
        if (hth_peer_id_eq(&look->lookers[i]->id, id))
            return look->lookers[i];
    return NULL;
}

struct hth_avg_member hth_look_self(const struct hth_look *look)
{
    struct hth_avg_member self = {.mode = look->opts.mode,
                                  .bandwidth = look->opts.bandwidth,
                                  .weight = look->opts.weight,
                                  .nonce = look->nonce};

    if (hth_avg_mode_reduces(self.mode))
        self.addr = look->match->opts.addr;
    return self;
}

static void take_out(struct hth_look *look, const struct match_looker *l)
{
    uint32_t i = 0;

    while (look->lookers[i] != l)
        i++;
    memmove(&look->lookers[i], &look->lookers[i + 1],
            (look->count - i - 1) * sizeof(look->lookers[0]));
    look->count--;
}

static void put_in(struct hth_look *look, struct match_looker *l)
{
    uint32_t i = look->count;

    if (look->count == look->capacity) {
        look->capacity = HTH_MAX(2 * look->capacity, 16u);
        look->lookers = hth_realloc(look->lookers, look->capacity, sizeof(look->lookers[0]));
    }
    while (i > 0 && order(l->mode, &l->mark, &l->id, look->lookers[i - 1]->mode,
                          &look->lookers[i - 1]->mark, &look->lookers[i - 1]->id) < 0)
        i--;
    memmove(&look->lookers[i + 1], &look->lookers[i], (look->count - i) * sizeof(look->lookers[0]));
    look->lookers[i] = l;
    look->count++;
}

/* Helpers do not fill the table, and the flood of them does not keep out who came later: the first
 * in the order stay, which follows from the round and their keys. */
static bool make_room(struct hth_look *look, const struct hth_hash *mark,
                      const struct hth_peer_id *id)
{
    struct match_looker *last = NULL;
    uint32_t helpers = 0;

    for (uint32_t i = 0; i < look->count; i++) {
        if (look->lookers[i]->mode != HTH_AVG_HELPER)
            continue;
        last = look->lookers[i];
        helpers++;
    }
    if (helpers < HTH_AVG_HELPERS_MAX)
        return true;
    if (order(HTH_AVG_HELPER, mark, id, HTH_AVG_HELPER, &last->mark, &last->id) > 0)
        return false;
    hth_lead_turn_away(last);
    hth_look_forget(look, last);
    return true;
}

struct match_looker *hth_look_get(struct hth_look *look, const struct hth_peer_id *id,
                                  enum hth_avg_mode mode)
{
    struct match_looker *l = hth_look_find(look, id);
    struct hth_hash mark;

    if (l != NULL && l->mode == mode)
        return l;
    mark_of(look, id, &mark);
    if (!hth_avg_mode_brings(mode) && !make_room(look, &mark, id)) {
        if (l != NULL) { /* what it was, it says itself that it is not any more */
            hth_lead_turn_away(l);
            hth_look_forget(look, l);
        }
        return NULL;
    }
    if (l == NULL && look->count >= HTH_AVG_LOOKERS_MAX)
        return NULL;
    if (l != NULL) {
        take_out(look, l);
    } else {
        l = hth_new(struct match_looker);
        l->look = look;
        l->id = *id;
        l->seen_us = hth_now_us(look->match->env);
        l->mark = mark;
    }
    l->mode = mode;
    put_in(look, l);
    return l;
}

void hth_look_forget(struct hth_look *look, struct match_looker *l)
{
    take_out(look, l);
    hth_free(l->record);
    hth_free(l);
}

int64_t hth_match_patience_us(const struct hth_match *m)
{
    return HTH_MAX(m->opts.patience_us, HTH_MIN(2 * m->usual_rtt_us, m->opts.far_us));
}

int64_t hth_look_silence_us(const struct hth_look *look, const struct hth_peer_id *id)
{
    const struct hth_match *m = look->match;
    const struct hth_match_opts *o = &m->opts;
    struct hth_rpc_peer_info info;
    int64_t us = o->silence_us;
    bool known = hth_rpc_peer_info(m->rpc, id, &info) == HTH_OK;

    if (known)
        us = HTH_MAX(us, HTH_MIN(2 * info.rtt_us, o->far_us));
    if (!known || !info.connected)
        us += HTH_MAX(o->dial_us, HTH_MIN(DIAL_RTTS * m->usual_rtt_us, o->far_us));
    return us + hth_rpc_late_us(m->rpc);
}

struct match_looker *hth_look_leader(struct hth_look *look)
{
    for (uint32_t i = 0; i < look->count; i++) {
        struct match_looker *l = look->lookers[i];

        if (l->declared && !l->struck && hth_avg_mode_reduces(l->mode))
            return precedes_us(look, l) ? l : NULL;
    }
    return NULL;
}

void hth_look_strike(struct hth_look *look, struct match_looker *l, bool here)
{
    char text[HTH_PEER_SHORT_LEN];

    HTH_LOG(look->match->env, HTH_DEBUG, HTH_SUB_AVG, "look: %s is struck off (%s)",
            hth_peer_id_short(&l->id, text),
            here ? "found out here" : hth_avg_reason_name(look->last_refusal));
    l->struck = true;
    l->struck_here = here;
    if (here && look->opts.deaf != NULL)
        look->opts.deaf(look->opts.arg, &l->id);
}

void hth_look_spoke(struct hth_look *look, const struct hth_peer_id *id)
{
    struct match_looker *l = hth_look_find(look, id);

    if (l == NULL || l->struck_here)
        return;
    l->struck = false;
    hth_look_poke(look);
}

/* ---- declarations --------------------------------------------------------------------------- */

static void keep_record(struct match_looker *l, const struct hth_record *rec)
{
    /* The payload lies in the record's bytes: the whole of them can be handed on. */
    l->record_len = rec->payload_len + HTH_RECORD_OVERHEAD_BYTES;
    hth_free(l->record);
    l->record = hth_calloc(1, l->record_len);
    memcpy(l->record, rec->payload - HTH_RECORD_HEAD_BYTES, l->record_len);
}

static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_look *look = arg;
    struct hth_declare d;
    struct match_looker *l;

    (void)user;
    HTH_TRY(hth_declare_read(rec->payload, rec->payload_len, &d));
    if (hth_peer_id_eq(&rec->owner_id, &look->match->env->self))
        return HTH_OK;
    if (d.schema != look->opts.schema) {
        look->last_refusal = HTH_AVG_OTHER_SCHEMA;
        return HTH_OK;
    }
    l = hth_look_get(look, &rec->owner_id, d.mode);
    if (l == NULL)
        return HTH_E_BUDGET;
    if (l->struck && !l->struck_here && rec->seq > l->seq)
        l->struck = false;
    l->declared = true;
    l->seq = rec->seq;
    l->addr = d.addr;
    keep_record(l, rec);
    hth_look_poke(look);
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    struct hth_look *look = arg;
    struct match_looker *l = hth_look_find(look, owner);

    (void)part;
    (void)user;
    if (l == NULL)
        return;
    l->declared = false;
    if (!l->joined && !l->struck)
        hth_look_forget(look, l);
    hth_look_poke(look);
}

/* In each of its lines: once is enough. */
static void another_version(struct hth_look *look, const struct hth_record *rec)
{
    char text[HTH_PEER_SHORT_LEN];

    look->last_refusal = HTH_AVG_OTHER_VERSION;
    if (!look->match->version_said)
        HTH_LOG(look->match->env, HTH_WARN, HTH_SUB_AVG,
                "%s has a program that averages otherwise: it and this one never average; update "
                "all trainers and helpers of the run",
                hth_peer_id_short(&rec->owner_id, text));
    look->match->version_said = true;
}

static void on_refused(void *arg, enum hth_err err, const struct hth_record *rec)
{
    struct hth_look *look = arg;
    char text[200];

    look->match->stats.notes_refused++;
    if (err == HTH_E_CLOCK_SKEW)
        look->last_refusal = HTH_AVG_CLOCK_SKEW;
    else if (err == HTH_E_VERSION)
        another_version(look, rec);
    HTH_LOG(look->match->env, HTH_DEBUG, HTH_SUB_AVG, "look: a declaration was refused: %s",
            hth_record_explain(err, rec, hth_wall_us(look->match->env), text));
}

enum hth_err hth_look_declaration(const struct hth_look *look, struct hth_writer *w)
{
    struct hth_declare d = {.mode = look->opts.mode, .schema = look->opts.schema};

    if (hth_avg_mode_reduces(d.mode))
        d.addr = look->match->opts.addr;
    hth_declare_write(&d, w);
    return w->err;
}

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    return hth_look_declaration(arg, w);
}

/* A note is renewed at a third of its life: so long that none is while we look. */
int64_t hth_look_life_us(const struct hth_look *look)
{
    int64_t life_us = 4 * look->opts.window_us;

    life_us = HTH_MAX(life_us, 4 * HTH_US_PER_S);
    return HTH_MIN(life_us, (int64_t)HTH_RECORD_LIFE_MAX_US);
}

/* A key in the DHT costs dozens of datagrams, and is of no use any more a moment later. */
static enum hth_err go_public(struct hth_look *look)
{
    struct hth_match *m = look->match;
    struct hth_publisher_opts note = HTH_PUBLISHER_OPTS_INIT;

    look->public_us = INT64_MAX;
    m->stats.boards++;
    note.life_us = hth_look_life_us(look);
    HTH_TRY(hth_publisher_new(m->env, m->dht, &look->topic, &note, fill, look, &look->note));
    return hth_board_watch(look->board);
}

/* Those who may come were all told, as far as the caller knows them. */
static bool is_line_known(const struct hth_look *look)
{
    struct hth_match_due due[HTH_AVG_MEMBERS_MAX];

    return look->opts.due != NULL &&
           look->opts.due(look->opts.arg, due, HTH_AVG_MEMBERS_MAX) != UINT32_MAX;
}

static enum hth_err declare(struct hth_look *look)
{
    static const struct hth_board_ops ops = {
        .on_record = on_record, .on_gone = on_gone, .on_refused = on_refused};
    struct hth_match *m = look->match;
    struct hth_board_opts board = HTH_BOARD_OPTS_INIT;
    bool all_told;

    board.records_max = HTH_AVG_LOOKERS_MAX;
    board.cache = m->cache;
    board.unwatched = true;
    hth_topic_init(&look->topic, m->env->crypto, m->network, HTH_RECORD_DECLARE, look->key,
                   look->key_len);
    HTH_TRY(hth_board_new(m->env, m->dht, &look->topic, &board, &ops, look, &look->board));
    HTH_TRY(hth_look_tell(look, &all_told));
    if (!all_told || !is_line_known(look))
        return go_public(look);
    look->public_us = hth_now_us(m->env) + m->opts.board_us;
    return HTH_OK;
}

/* ---- the turn ------------------------------------------------------------------------------- */

static void turn_in(struct hth_look *look, int64_t us)
{
    look->turn_us = HTH_MIN(look->turn_us, hth_now_us(look->match->env) + us);
    hth_timer_set(look->match->env, look->timer, us);
}

void hth_look_poke(struct hth_look *look)
{
    turn_in(look, 0);
}

void hth_look_end(struct hth_look *look, enum hth_err err, enum hth_avg_reason reason,
                  struct hth_avg_group *group)
{
    if (look->done) {
        hth_free(group);
        return;
    }
    look->done = true;
    look->result.err = err;
    look->result.reason = reason;
    look->result.group = group;
    look->result.wait_us = hth_now_us(look->match->env) - look->made_us;
    hth_look_poke(look);
}

static void look_free(struct hth_look *look)
{
    struct hth_match *m = look->match;

    hth_look_drop_call(&look->call);
    for (uint32_t i = 0; i < HTH_AVG_TELL_MAX; i++)
        hth_look_drop_call(&look->telling[i].call);
    hth_lead_dismiss(look, NULL, HTH_AVG_NOT_LOOKING);
    /* No goodbye: nobody looks at this key for long. */
    hth_publisher_free(look->note);
    hth_board_free(look->board);
    while (look->count > 0)
        hth_look_forget(look, look->lookers[look->count - 1]);
    hth_free(look->lookers);
    hth_free(look->own);
    hth_timer_free(m->env, look->timer);
    if (m->look == look)
        m->look = NULL;
    hth_free(look);
}

static void finish(struct hth_look *look)
{
    struct hth_match *m = look->match;
    struct hth_look_result result = look->result;
    hth_look_done_fn *done = look->opts.done;
    void *arg = look->opts.arg;

    if (result.err == HTH_OK)
        m->stats.begun++;
    else if (result.reason == HTH_AVG_ALONE)
        m->stats.alone++;
    HTH_LOG(m->env, HTH_DEBUG, HTH_SUB_AVG, "look in round %llu ends: %s, %u members, %lld us",
            (unsigned long long)look->opts.line.round, hth_avg_reason_name(result.reason),
            result.group != NULL ? result.group->count : 0, (long long)result.wait_us);
    look_free(look);
    done(arg, &result);
}

int64_t hth_look_until(const struct hth_look *look)
{
    int64_t patience_us = look->match->opts.patience_us;
    int64_t until_us = HTH_MAX(look->end_us, look->since_us + patience_us);

    return HTH_MIN(until_us, look->end_us + TAKEOVERS_MAX * patience_us);
}

static void note_leader(struct hth_look *look, const struct match_looker *leader)
{
    const struct hth_peer_id *id = leader != NULL ? &leader->id : &look->match->env->self;

    if (hth_peer_id_eq(id, &look->leader))
        return;
    look->leader = *id;
    look->since_us = hth_now_us(look->match->env);
}

static void go_public_in_time(struct hth_look *look)
{
    enum hth_err err = HTH_OK;

    if (!look->done && hth_now_us(look->match->env) >= look->public_us)
        err = go_public(look);
    if (err != HTH_OK)
        HTH_LOG(look->match->env, HTH_WARN, HTH_SUB_AVG, "a look can't be made public: %s",
                hth_err_text(err));
}

static void on_turn(void *arg)
{
    struct hth_look *look = arg;
    int64_t now_us = hth_now_us(look->match->env), next_us = now_us, last_us;
    struct match_looker *leader = hth_look_leader(look);

    go_public_in_time(look);
    hth_rpc_observe_late(look->match->rpc, look->turn_us);
    look->turn_us = INT64_MAX;
    note_leader(look, leader);
    last_us = hth_look_until(look) + look->match->opts.silence_us +
              hth_rpc_late_us(look->match->rpc); /* a BEGIN may be here, and not be read yet */
    if (!look->done && leader != NULL) {
        hth_lead_dismiss(look, leader, HTH_AVG_NOT_LEADER);
        next_us = HTH_MIN(hth_look_follow(look, leader), last_us);
        if (now_us >= last_us)
            hth_look_end(look, HTH_E_TIMEOUT,
                         look->last_refusal != HTH_AVG_OK ? look->last_refusal : HTH_AVG_NO_LEADER,
                         NULL);
    } else if (!look->done) {
        hth_look_drop_call(&look->call);
        next_us = hth_lead_turn(look);
    }
    if (look->done)
        finish(look);
    else
        turn_in(look, HTH_MIN(next_us, look->public_us) - now_us);
}

/* ---- life ----------------------------------------------------------------------------------- */

static enum hth_err check(const struct hth_match *m, const struct hth_look_opts *o)
{
    if (o->mode > HTH_AVG_CLIENT || (hth_avg_mode_reduces(o->mode) && m->opts.addr.family == 0))
        return HTH_E_CONFIG;
    if (hth_avg_shape_check(&o->line.shape) != HTH_OK ||
        hth_avg_cell_check(&o->line.shape, &o->line.cell) != HTH_OK)
        return HTH_E_CONFIG;
    if (o->group_min == 0 || o->group_full < o->group_min || o->group_max < o->group_full ||
        o->group_max > HTH_AVG_MEMBERS_MAX / 2 || o->done == NULL)
        return HTH_E_CONFIG;
    if (o->window_us <= 0 || o->window_us > HTH_AVG_WINDOW_MAX_US)
        return HTH_E_CONFIG;
    if (hth_avg_mode_brings(o->mode) && !(o->weight > 0 && o->weight <= HTH_AVG_WEIGHT_MAX))
        return HTH_E_CONFIG;
    return HTH_OK;
}

enum hth_err hth_look_new(struct hth_match *m, const struct hth_look_opts *opts,
                          struct hth_look **out)
{
    struct hth_look *look;
    enum hth_err err;

    *out = NULL;
    HTH_TRY(check(m, opts));
    if (m->look != NULL)
        return HTH_E_BUSY;
    look = hth_new(struct hth_look);
    look->match = m;
    look->opts = *opts;
    look->nonce = hth_rng_u64(&m->env->rng);
    look->key_len = hth_avg_line_key(&opts->line, look->key);
    mark_of(look, &m->env->self, &look->mark);
    look->timer = hth_timer_new(m->env, on_turn, look);
    look->turn_us = INT64_MAX;
    look->made_us = look->since_us = hth_now_us(m->env);
    look->end_us = look->made_us + opts->window_us;
    err = declare(look);
    if (err != HTH_OK) {
        look_free(look);
        return err;
    }
    m->look = look;
    m->stats.looks++;
    hth_look_poke(look);
    *out = look;
    return HTH_OK;
}

void hth_look_cancel(struct hth_look *look)
{
    hth_free(look->result.group);
    look_free(look);
}
