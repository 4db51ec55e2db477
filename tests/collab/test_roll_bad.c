/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_roll_bad.c: what a peer can send that breaks the rules. Three honest members step in the
 * simulated world; a fourth node speaks to them by hand. Each case names the error that the liar
 * gets, or that is logged about it, and the others' steps go on as without it.
 */
#include "collab/fold.h"
#include "collab/roll_line.h"
#include "core/mem.h"
#include "support/suite.h"

enum { HONEST = 3, NODES = HONEST + 1, LOG_MAX = 1 << 20 };

/* The liar, and the line that it is in. */
struct liar {
    struct line *line;
    struct mate *mate; /* of the line; the liar is the last one */
    const struct bad *bad;
    struct hth_timer *timer;
    uint32_t sent, answered;
    enum hth_err err;      /* of the last refusal that named one */
    struct hth_chain *own; /* the liar's */
    uint32_t head;         /* in it */
    uint32_t serial;
    uint8_t forged[2048]; /* the run and a link */
    size_t forged_len;
    uint32_t twin[2]; /* links of one ballot, in the liar's chain */
    size_t log_len;
    char log[LOG_MAX];
};

struct bad {
    const char *what;
    bool votes;
    void (*send)(struct liar *l);                               /* each 50 ms */
    void (*links)(struct liar *l, struct hth_rpc_request *req); /* answers LINKS */
    void (*ready)(struct liar *l, struct hth_rpc_request *req); /* answers READY */
    enum hth_err err;                                           /* that the liar gets; OK: none */
    const char *log;                                            /* NULL: nothing is said */
    uint32_t how;
};

/* ---- the liar ----------------------------------------------------------------------------- */

static struct mate *liar_of(struct liar *l)
{
    return &l->mate[HONEST];
}

static void on_links(void *arg, struct hth_rpc_request *req)
{
    struct liar *l = arg;
    l->answered++;
    if (l->bad != NULL && l->bad->links != NULL)
        l->bad->links(l, req);
    else
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, NULL);
}

static void on_ready(void *arg, struct hth_rpc_request *req)
{
    struct liar *l = arg;
    l->answered++;
    if (l->bad != NULL && l->bad->ready != NULL)
        l->bad->ready(l, req);
    else
        hth_rpc_ignore(req);
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct liar *l = arg;
    if (result->err != HTH_OK && (l->err == HTH_OK || result->err == l->bad->err))
        l->err = result->err;
}

static void send(struct liar *l, uint32_t to, uint16_t method, const uint8_t *bytes, size_t len)
{
    struct hth_rpc_call_opts o = {.method = method, .timeout_us = S};
    struct hth_rpc_target target = {l->mate[to].env->self, hth_node_addr(l->mate[to].node, PORT)};
    o.body = (struct hth_rpc_body){.payload = bytes, .payload_len = len};
    assert_ok(hth_rpc_call(liar_of(l)->rpc, &target, &o, on_answer, l, NULL));
    l->sent++;
}

/* The ballot of a member, and the next one after `beyond` that it calls. */
static struct hth_roll_ballot ballot_of(struct liar *l, uint32_t to, uint32_t beyond)
{
    const struct mate *m = &l->mate[to];
    const struct hth_choice *c = hth_roll_choice(m->roll);
    struct hth_ballot now = hth_choice_now(c);
    now.n += beyond;
    for (uint32_t k = 0; k < NODES && hth_choice_caller(m->chain, &now) != c->me; k++)
        now.n += now.n == UINT32_MAX ? 0 : 1;
    return (struct hth_roll_ballot){now.step, *hth_chain_head(m->chain, now.base), now.n};
}

static struct hth_sig sign(struct liar *l, const struct hth_chain *chain, uint32_t link)
{
    struct hth_sig sig;
    uint16_t self = hth_chain_known(chain, &liar_of(l)->env->self, 1);
    if (self == HTH_MEMBER_NONE)
        return (struct hth_sig){.life = 1};
    hth_proof_sign(chain, link, self, true, &liar_of(l)->env->secret, &sig);
    return sig;
}

static struct hth_ready_msg ready_of(struct liar *l, uint32_t to, uint32_t beyond)
{
    const struct mate *m = &l->mate[to];
    return (struct hth_ready_msg){
        .ballot = ballot_of(l, to, beyond),
        .head = *hth_chain_head(m->chain, hth_roll_choice(m->roll)->tip),
        .life = 1,
        .batch = 1,
        .brings = {.samples = 1, .grain = 1, .each_us = HTH_BRINGS_NO_MORE},
        .first = 1,
        .last = 1,
        .addr = hth_node_addr(liar_of(l)->node, PORT),
        .is_signed = true,
        .sig = sign(l, m->chain, hth_roll_choice(m->roll)->tip)};
}

static void send_ready(struct liar *l, uint32_t to, const struct hth_ready_msg *msg)
{
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    size_t len = hth_ready_write(msg, bytes);
    send(l, to, HTH_ROLL_METHOD_READY, bytes, len);
}

/* Of a READY. */
enum ready_how {
    A_BIT,
    NO_SIG,
    WRONG_SIG,
    ANOTHERS_SIG, /* taken from a link */
    LAST_BALLOT,
    A_TURN_AHEAD,
    FALSE_VOTE, /* a head that is no candidate, said to be accepted in the latest ballot */
};

static void bad_ready(struct liar *l)
{
    static const uint32_t beyond[] = {
        [LAST_BALLOT] = UINT32_MAX - 1000, [A_TURN_AHEAD] = HONEST, [FALSE_VOTE] = 0};
    enum ready_how how = (enum ready_how)l->bad->how;
    for (uint32_t i = 0; i < HONEST; i++) {
        const struct hth_chain *chain = l->mate[i].chain;
        struct hth_ready_msg msg = ready_of(l, i, beyond[how]);
        uint32_t tip = hth_roll_choice(l->mate[i].roll)->tip, old = tip;
        const struct hth_held *held = hth_chain_held(chain, tip);
        uint8_t bytes[HTH_ROLL_BYTES_MAX];
        for (uint32_t k = 0; k < 2 && hth_chain_at(chain, old)->prev != HTH_LINK_NONE; k++)
            old = hth_chain_at(chain, old)->prev;
        msg.is_signed = how != NO_SIG;
        msg.sig.sig[20] ^= how == WRONG_SIG ? 4 : 0;
        if (how == ANOTHERS_SIG && held->sigs > 0)
            msg.sig = held->sig[0].sig;
        if (how == FALSE_VOTE && old == tip)
            return;
        if (how == FALSE_VOTE) {
            msg.accepted = *hth_chain_head(chain, old);
            msg.accepted_n = msg.ballot.n;
        }
        size_t len = hth_ready_write(&msg, bytes);
        bytes[1] |= how == A_BIT ? 0x80 : 0;
        send(l, i, HTH_ROLL_METHOD_READY, bytes, len);
    }
}

/* So far ahead. */
static void bad_call(struct liar *l)
{
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    for (uint32_t i = 0; i < HONEST; i++) {
        const struct mate *m = &l->mate[i];
        const struct hth_choice *c = hth_roll_choice(m->roll);
        struct hth_ballot now = hth_choice_now(c);
        struct hth_voters v = hth_chain_voters(m->chain, now.base);
        now.n += l->bad->how;
        for (uint32_t k = 0; k < v.callers; k++) {
            uint16_t caller = hth_choice_caller(m->chain, &now);
            if (hth_peer_id_eq(hth_chain_id(m->chain, caller), &liar_of(l)->env->self))
                break;
            now.n++;
        }
        struct hth_roll_ballot ballot = {now.step, *hth_chain_head(m->chain, now.base), now.n};
        size_t len = hth_call_write(&ballot, bytes);
        send(l, i, HTH_ROLL_METHOD_CALL, bytes, len);
    }
}

/* ---- answers to READY: the liar is the first caller */

static struct hth_ready_reply go_for(struct liar *l, const struct hth_ready_msg *ready)
{
    struct hth_ready_reply go = {
        .kind = HTH_READY_GO, .head = ready->head, .n = ready->ballot.n, .protocol = 1};
    for (uint32_t i = 0; i < HONEST; i++)
        go.peer[go.count++] = (struct hth_roll_peer){.id = l->mate[i].env->self,
                                                     .life = 1,
                                                     .batch = 1,
                                                     .samples = GRAIN,
                                                     .addr = hth_node_addr(l->mate[i].node, PORT)};
    return go;
}

static void answer(struct hth_rpc_request *req, const struct hth_ready_reply *reply)
{
    static uint8_t bytes[HTH_ROLL_BYTES_MAX];
    struct hth_rpc_body body = {.payload = bytes};
    body.payload_len = hth_ready_reply_write(reply, bytes);
    hth_rpc_reply(req, &body);
}

static struct hth_ready_reply read_ready(struct liar *l, struct hth_rpc_request *req)
{
    struct hth_ready_msg ready;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    assert_ok(hth_ready_read(bytes, len, &ready));
    return go_for(l, &ready);
}

/* Of an answer. */
enum answer_how { NEXT_BALLOT, LATEST_BALLOT, ANOTHERS_BATCH, PROTOCOL, FORK, LATER, NOISE };

static void bad_answer(struct liar *l, struct hth_rpc_request *req)
{
    enum answer_how how = (enum answer_how)l->bad->how;
    struct hth_ready_reply go = read_ready(l, req);
    const struct hth_rpc_body noise = {.payload = "\xff\xff\xff", .payload_len = 3};
    go.n = how == LATEST_BALLOT ? UINT32_MAX : go.n + (how == NEXT_BALLOT);
    for (uint32_t i = 0; i < go.count; i++)
        go.peer[i].batch = how == ANOTHERS_BATCH ? 7 : 1;
    go.protocol += how == PROTOCOL;
    go.fork = how == FORK;
    if (how == LATER)
        go = (struct hth_ready_reply){.kind = HTH_READY_LATER, .n = UINT32_MAX};
    if (how == NOISE)
        hth_rpc_reply(req, &noise);
    else
        answer(req, &go);
}

/* ---- answers to LINKS: a READY on an unknown head makes the others ask */

static void ready_on_an_unknown_head(struct liar *l)
{
    struct hth_ready_msg msg = ready_of(l, 0, 0);
    memcpy(msg.head.b, &l->serial, sizeof(l->serial));
    send_ready(l, 0, &msg);
    l->serial++;
}

/* Another chain, of strangers without samples; `keep`: it goes on from call to call. */
static void add_links(struct liar *l, uint32_t count, bool keep)
{
    struct hth_roll roll = {.marks = HTH_ROLL_IN};
    struct hth_chain_link link = {.prev = l->head, .roll = &roll, .count = 1};
    if (!keep || link.prev == HTH_LINK_NONE) {
        struct hth_peer_id id = {{1}};
        memcpy(id.b + 1, &l->serial, sizeof(l->serial));
        hth_chain_free(l->own);
        struct hth_chain_opts o = {
            .crypto = liar_of(l)->env->crypto, .window = 16, .links_max = 4096, .members_max = 8};
        l->own = hth_chain_new(&o);
        assert_ok(hth_chain_member(l->own, &id, 1, &roll.member));
        link = (struct hth_chain_link){.step = HTH_FOLD_STEPS - 4,
                                       .prev = HTH_LINK_NONE,
                                       .kind = HTH_LINK_GENESIS,
                                       .roll = &roll,
                                       .count = 1};
        assert_ok(hth_chain_add(l->own, &link, &l->head));
    }
    for (uint32_t i = 0; i < count; i++) {
        link = (struct hth_chain_link){.step = hth_chain_at(l->own, l->head)->step + 1,
                                       .prev = l->head,
                                       .roll = &roll,
                                       .count = 1};
        assert_ok(hth_chain_add(l->own, &link, &l->head));
    }
}

static void begin_links(struct hth_writer *w, uint8_t *bytes, size_t room, uint32_t count)
{
    hth_writer_init(w, bytes, room);
    hth_write_u64(w, 1); /* life */
    hth_write_u8(w, 0);
    hth_write_u64(w, 0);
    hth_write_u16(w, (uint16_t)count);
}

/* Without signatures, a fold and places. */
static void end_links(struct hth_writer *w, struct hth_rpc_request *req)
{
    hth_write_u32(w, 0);
    hth_write_u16(w, 0);
    assert_ok(w->err);
    struct hth_rpc_body body = {.payload = w->data, .payload_len = w->pos};
    hth_rpc_reply(req, &body);
}

static void reply_links(struct liar *l, struct hth_rpc_request *req, uint32_t first, uint32_t count)
{
    static uint8_t bytes[64 << 10];
    struct hth_writer w;
    begin_links(&w, bytes, sizeof(bytes), count);
    for (uint32_t i = 0; i < count; i++)
        hth_chain_write(l->own, first + i, &w);
    end_links(&w, req);
}

static void links_that_do_not_descend(struct liar *l, struct hth_rpc_request *req)
{
    add_links(l, 8, false);
    reply_links(l, req, 4, 4);
}

/* A step on top of the others' tip, whose roll are strangers. */
static void roll_of_strangers(struct liar *l, struct hth_rpc_request *req)
{
    const struct mate *m = &l->mate[0];
    uint32_t tip = hth_roll_choice(m->roll)->tip;
    static uint8_t bytes[4096];
    struct hth_writer w;
    begin_links(&w, bytes, sizeof(bytes), 1);
    hth_write_u64(&w, hth_chain_at(m->chain, tip)->step + 1);
    hth_write_bytes(&w, hth_chain_head(m->chain, tip), HTH_HASH_LEN);
    hth_write_u32(&w, 1);
    hth_write_u32(&w, 0);
    hth_write_u8(&w, HTH_LINK_STEP);
    hth_write_bytes(&w, hth_chain_head(m->chain, tip), HTH_HASH_LEN);
    hth_write_u32(&w, 40);
    for (uint8_t i = 0; i < 40; i++) {
        struct hth_peer_id id = {{i, 9}};
        memcpy(id.b + 2, &l->serial, sizeof(l->serial));
        hth_write_bytes(&w, &id, sizeof(id));
        hth_write_u64(&w, 1);
        hth_write_u16(&w, HTH_ROLL_IN);
        hth_write_u32(&w, 1);
        hth_write_u32(&w, 1);
    }
    hth_write_u16(&w, 0);
    end_links(&w, req);
}

/* The others' last link again, as a step on top of it: none of those that it names signed it. */
static void ready_on_a_forged_step(struct liar *l)
{
    struct hth_ready_msg msg = ready_of(l, 0, 0);
    const struct mate *m = &l->mate[0];
    uint32_t tip = hth_roll_choice(m->roll)->tip;
    struct hth_writer w;
    hth_writer_init(&w, l->forged, sizeof(l->forged));
    hth_write_bytes(&w, &hth_chain_opts(m->chain)->run, HTH_HASH_LEN);
    uint8_t *link = l->forged + w.pos;
    hth_chain_write(m->chain, tip, &w);
    assert_ok(w.err);
    hth_store_u64le(link, hth_chain_at(m->chain, tip)->step + 1);
    memcpy(link + 8, hth_chain_head(m->chain, tip), HTH_HASH_LEN);
    link[8 + 32 + 4 + 4] = HTH_LINK_STEP;
    l->forged_len = w.pos;
    m->env->crypto->hash(l->forged, w.pos, &msg.head);
    send_ready(l, 0, &msg);
}

static void the_forged_step(struct liar *l, struct hth_rpc_request *req)
{
    static uint8_t bytes[4096];
    struct hth_writer w;
    begin_links(&w, bytes, sizeof(bytes), 1);
    hth_write_bytes(&w, l->forged + HTH_HASH_LEN, l->forged_len - HTH_HASH_LEN);
    end_links(&w, req);
}

static void links_without_end(struct liar *l, struct hth_rpc_request *req)
{
    uint32_t first = l->head == HTH_LINK_NONE ? 0 : l->head + 1;
    add_links(l, l->head == HTH_LINK_NONE ? 15 : 16, true);
    reply_links(l, req, first, 16);
}

static void links_again_and_again(struct liar *l, struct hth_rpc_request *req)
{
    if (l->own == NULL)
        add_links(l, 15, true);
    reply_links(l, req, 0, 16);
}

/* Each time another chain of few links. */
static void ready_on_another_chain(struct liar *l)
{
    struct hth_ready_msg msg = ready_of(l, 0, 0);
    if (++l->serial % 4 != 0)
        return; /* until the last one was fetched */
    add_links(l, 13, false);
    msg.head = *hth_chain_head(l->own, l->head);
    send_ready(l, 0, &msg);
}

static void its_chain(struct liar *l, struct hth_rpc_request *req)
{
    struct hth_links_msg msg;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    assert_ok(hth_links_read(bytes, len, &msg));
    if (l->own != NULL && memcmp(&msg.head, hth_chain_head(l->own, l->head), HTH_HASH_LEN) == 0)
        reply_links(l, req, 0, 14);
    else
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, NULL);
}

/* A chain of its own whose genesis and steps name the others, with more samples than theirs. */
static void ready_on_a_forged_chain(struct liar *l)
{
    struct hth_ready_msg msg = ready_of(l, 0, 0);
    struct hth_roll roll[HONEST];
    struct hth_chain_opts o = *hth_chain_opts(l->mate[0].chain);
    struct hth_chain_link link = {.prev = HTH_LINK_NONE,
                                  .protocol = 1,
                                  .kind = HTH_LINK_GENESIS,
                                  .roll = roll,
                                  .count = HONEST};
    hth_chain_free(l->own);
    l->own = hth_chain_new(&o);
    memcpy(link.mean.b, &l->serial, sizeof(l->serial));
    l->serial++;
    for (uint32_t i = 0; i < HONEST; i++) {
        roll[i] = (struct hth_roll){.marks = HTH_ROLL_IN, .samples = 1u << 30};
        assert_ok(hth_chain_member(l->own, &l->mate[i].env->self, 1, &roll[i].member));
    }
    for (uint32_t i = 0; i < 14; i++) {
        assert_ok(hth_chain_add(l->own, &link, &l->head));
        link.kind = HTH_LINK_STEP;
        link.prev = l->head;
        link.step++;
    }
    msg.head = *hth_chain_head(l->own, l->head);
    send_ready(l, 0, &msg);
}

static void the_forged_chain(struct liar *l, struct hth_rpc_request *req)
{
    reply_links(l, req, 0, 14);
}

/* Signs the others' first link, and one of its own of the same ballot, as made by it. */
static void ready_on_two_links_of_a_ballot(struct liar *l)
{
    const struct mate *m = &l->mate[0];
    uint32_t link = hth_roll_choice(m->roll)->tip;
    if (l->own == NULL && m->step != 1)
        return;
    if (l->own == NULL) {
        static uint8_t bytes[4096];
        struct hth_writer w;
        struct hth_reader r;
        l->own = line_chain(l->line, liar_of(l)->env->crypto, &l->head);
        hth_writer_init(&w, bytes, sizeof(bytes));
        hth_chain_write(m->chain, link, &w);
        hth_reader_init(&r, bytes, w.pos);
        assert_ok(hth_chain_read(l->own, &r, NULL, &l->twin[0]));
        struct hth_chain_link twin = *hth_chain_at(l->own, l->twin[0]);
        twin.mean.b[7] ^= 1;
        assert_ok(hth_chain_add(l->own, &twin, &l->twin[1]));
    }
    struct hth_ready_msg msg = ready_of(l, 0, 0);
    uint32_t head = l->twin[l->serial++ & 1];
    msg.ballot = (struct hth_roll_ballot){1, *hth_chain_head(l->own, 0), 0};
    msg.head = *hth_chain_head(l->own, head);
    msg.sig = sign(l, l->own, head);
    send_ready(l, 0, &msg);
}

static void the_other_link(struct liar *l, struct hth_rpc_request *req)
{
    if (l->own != NULL)
        reply_links(l, req, l->twin[1], 1);
    else
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, NULL);
}

/* ---- the world ---------------------------------------------------------------------------- */

static void tick(void *arg)
{
    struct liar *l = arg;
    if (l->bad != NULL && l->bad->send != NULL)
        l->bad->send(l);
    hth_timer_set(liar_of(l)->env, l->timer, 50 * MS);
}

static void on_log(void *arg, const char *line, size_t len)
{
    struct liar *l = arg;
    len = HTH_MIN(len, sizeof(l->log) - 1 - l->log_len);
    memcpy(l->log + l->log_len, line, len);
    l->log_len += len;
    l->log[l->log_len] = 0;
}

static struct liar *start(uint64_t seed, const struct bad *bad)
{
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct liar *l = hth_new(struct liar);
    wo.log_level = HTH_WARN;
    wo.log_sink = on_log;
    wo.log_arg = l;
    l->line = line_new(seed, &wo, bad->votes ? NODES : HONEST);
    l->mate = l->line->mate;
    l->line->target = 2 * GRAIN;
    l->line->links_max = 1280;
    l->line->members_max = 512;
    l->mate[HONEST].by_hand = true;
    l->bad = bad;
    l->head = HTH_LINK_NONE;
    /* A line of the log is not said more than ten times a second, of all worlds. */
    static uint32_t starts;
    hth_world_run_for(l->line->world, 30 * S * ++starts);
    for (uint32_t i = 0; i < NODES; i++)
        line_add(l->line);
    while (liar_of(l)->rpc == NULL)
        hth_world_run_for(l->line->world, 1);
    hth_rpc_serve(liar_of(l)->rpc, HTH_ROLL_METHOD_LINKS, on_links, l);
    hth_rpc_serve(liar_of(l)->rpc, HTH_ROLL_METHOD_READY, on_ready, l);
    hth_world_run_for(l->line->world, MS);
    l->timer = hth_timer_new(liar_of(l)->env, tick, l);
    hth_timer_set(liar_of(l)->env, l->timer, 50 * MS);
    return l;
}

static void stop(struct liar *l)
{
    hth_timer_free(liar_of(l)->env, l->timer);
    line_stop(l->line);
    hth_chain_free(l->own);
    hth_free(l);
}

/* Whether the liar calls the first ballot. */
static bool liar_calls(struct liar *l)
{
    struct hth_ballot now = hth_choice_now(hth_roll_choice(l->mate[0].roll));
    uint16_t caller = hth_choice_caller(l->mate[0].chain, &now);
    return hth_peer_id_eq(hth_chain_id(l->mate[0].chain, caller), &liar_of(l)->env->self);
}

/* ---- what is promised --------------------------------------------------------------------- */

/* Its own last links are kept, and no connection has ended. */
static void check(struct liar *l, uint64_t least)
{
    for (uint32_t i = 0; i < HONEST; i++) {
        const struct mate *m = &l->mate[i];
        const struct hth_choice *c = hth_roll_choice(m->roll);
        struct hth_rpc_stats stats;
        uint32_t link = c->tip, kept = 0;
        assert_true(m->step >= least);
        for (; link != HTH_LINK_NONE; kept++)
            link = hth_chain_at(m->chain, link)->prev;
        assert_true(kept >= HTH_MIN(m->step, 128));
        assert_true(c->promised < 1u << 20);
        assert_true(m->rounds <= m->step + 2);
        assert_true(hth_chain_members(m->chain) < 400);
        hth_rpc_stats(m->rpc, &stats);
        assert_int_equal(stats.peers_dropped, 0);
    }
}

#define GO_IS_BAD "a GO that is not its to send: "

static const struct bad cases[] = {
    {.what = "nothing"},
    {"READY with a bit beyond the flags", false, bad_ready, NULL, NULL, HTH_E_MALFORMED,
     "a bad READY: E_MALFORMED", A_BIT},
    {"READY at the last ballot", false, bad_ready, NULL, NULL, HTH_E_RANGE, NULL, LAST_BALLOT},
    {"READY a turn ahead", false, bad_ready, NULL, NULL, HTH_OK, NULL, A_TURN_AHEAD},
    {"READY at the last ballot, of a voter", true, bad_ready, NULL, NULL, HTH_E_RANGE, NULL,
     LAST_BALLOT},
    {"READY with a false vote", false, bad_ready, NULL, NULL, HTH_E_MALFORMED,
     "a bad READY: E_MALFORMED", FALSE_VOTE},
    {"READY without a signature", true, bad_ready, NULL, NULL, HTH_E_BAD_SIGNATURE,
     "a bad READY: E_BAD_SIGNATURE", NO_SIG},
    {"READY with a wrong signature", true, bad_ready, NULL, NULL, HTH_E_BAD_SIGNATURE,
     "a bad READY: E_BAD_SIGNATURE", WRONG_SIG},
    {"READY with another's signature", true, bad_ready, NULL, NULL, HTH_E_BAD_SIGNATURE,
     "a bad READY: E_BAD_SIGNATURE", ANOTHERS_SIG},
    {"READY on two links of a ballot", true, ready_on_two_links_of_a_ballot, the_other_link, NULL,
     HTH_E_PROTOCOL, "equivocation: ", 0},
    {"CALL as a stranger", false, bad_call, NULL, NULL, HTH_E_PROTOCOL, NULL, 1},
    {"CALL far ahead", true, bad_call, NULL, NULL, HTH_E_RANGE,
     "a CALL of a ballot far ahead: E_RANGE", UINT32_MAX / 2},
    {"GO of another's ballot", true, NULL, NULL, bad_answer, HTH_OK, GO_IS_BAD "E_PROTOCOL",
     NEXT_BALLOT},
    {"GO of the last ballot", true, NULL, NULL, bad_answer, HTH_OK, GO_IS_BAD "E_PROTOCOL",
     LATEST_BALLOT},
    {"GO with another's batch", true, NULL, NULL, bad_answer, HTH_OK, GO_IS_BAD "E_PROTOCOL",
     ANOTHERS_BATCH},
    {"GO with a fork", true, NULL, NULL, bad_answer, HTH_OK, GO_IS_BAD "E_REFUSED", FORK},
    {"GO of a protocol that is not spoken", true, NULL, NULL, bad_answer, HTH_OK,
     GO_IS_BAD "E_VERSION", PROTOCOL},
    {"LATER than all", true, NULL, NULL, bad_answer, HTH_OK, "a LATER ballot far ahead: E_RANGE",
     LATER},
    {"noise for an answer", true, NULL, NULL, bad_answer, HTH_OK,
     "a bad answer to READY: E_MALFORMED", NOISE},
    {"links that do not descend", false, ready_on_an_unknown_head, links_that_do_not_descend, NULL,
     HTH_E_AGAIN, "bad links: E_NOT_FOUND", 0},
    {"a roll of strangers", false, ready_on_an_unknown_head, roll_of_strangers, NULL, HTH_E_AGAIN,
     "bad links: E_STALE", 0},
    {"a forged step", false, ready_on_a_forged_step, the_forged_step, NULL, HTH_E_AGAIN, NULL, 0},
    {"a forged chain with more samples", false, ready_on_a_forged_chain, the_forged_chain, NULL,
     HTH_E_AGAIN, NULL, 0},
    {"links without end", false, ready_on_an_unknown_head, links_without_end, NULL, HTH_E_AGAIN,
     "links without end: E_TOO_LARGE", 0},
    {"links again and again", false, ready_on_an_unknown_head, links_again_and_again, NULL,
     HTH_E_AGAIN, "links that lead no farther: E_PROTOCOL", 0},
    {"many chains", false, ready_on_another_chain, its_chain, NULL, HTH_E_AGAIN,
     "links of a worse chain, for which there is no room: E_TOO_LARGE", 0},
};

TEST(a_liar_has_the_loss)
{
    uint64_t alone = 0;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        const struct bad *bad = &cases[k];
        uint64_t seed = 0;
        struct liar *l = start(seed, bad);
        while (bad->ready != NULL && !liar_calls(l)) {
            stop(l);
            l = start(++seed, bad);
        }
        /* As long as a liar votes it is waited for. */
        hth_world_run_for(l->line->world, 6 * S);
        uint64_t first = l->mate[0].step;
        assert_true(first >= 2);
        hth_world_run_for(l->line->world, 15 * S);
        uint64_t steps = l->mate[0].step - first;
        printf("%s: %llu steps, then %llu; %u sent, %u answered, %s\n", bad->what,
               (unsigned long long)first, (unsigned long long)steps, l->sent, l->answered,
               hth_err_name(l->err));
        if (k == 0)
            alone = steps;
        check(l, first + alone * 92 / 100);
        assert_true(bad->err == HTH_OK || l->err == bad->err);
        assert_int_equal(l->line->astray, 0);
        const char *said = bad->log != NULL ? strstr(l->log, bad->log) : NULL;
        if (bad->log != NULL && said == NULL)
            fail_msg("no line says \"%s\":\n%s", bad->log, l->log);
        if (bad->links == the_other_link) /* once */
            assert_null(strstr(said + 1, bad->log));
        stop(l);
    }
}

/* A caller that sends two GOs in one ballot, to READYs of one member: the first one counts. */
static void two_gos(struct liar *l, struct hth_rpc_request *req)
{
    static struct hth_rpc_request *held;
    struct hth_ready_reply go;
    if (held == NULL || hth_rpc_is_canceled(held) ||
        !hth_peer_id_eq(hth_rpc_peer(held), hth_rpc_peer(req))) {
        if (held != NULL)
            hth_rpc_refuse(held, HTH_E_AGAIN, 0, NULL);
        held = req;
        return;
    }
    go = read_ready(l, held);
    answer(held, &go);
    go.count--;
    answer(req, &go);
    held = NULL;
}

TEST(the_second_go_is_not_heard)
{
    static const struct bad bad = {.votes = true, .ready = two_gos};
    uint64_t seed = 0;
    struct liar *l = start(seed, &bad);
    while (!liar_calls(l)) {
        stop(l);
        l = start(++seed, &bad);
    }
    hth_world_run_for(l->line->world, 15 * S);
    check(l, 100);
    stop(l);
}
