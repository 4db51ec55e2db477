/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_roll_bad.c: what a peer can send that breaks the rules. Three honest members step in the
 * simulated world; a fourth node speaks to them by hand. Each case names the error that the liar
 * gets, or that is logged about it, and the others' steps go on as without it.
 */
#include "support/test.h"

#include "collab/roll.h"
#include "core/mem.h"
#include "sim/world.h"

enum { HONEST = 3, NODES = HONEST + 1, SAMPLES = 8, LOG_MAX = 1 << 20 };
#define BATCH_US   (30 * HTH_US_PER_MS)
#define AVERAGE_US (10 * HTH_US_PER_MS)

struct line;

struct mate {
    struct line *line;
    uint32_t index;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_chain *chain;
    struct hth_roll_call *roll;
    struct hth_timer *batch, *average, *fetch;
    struct hth_hash fetching;
    struct hth_roll_group group;
    uint32_t rounds;
    uint64_t step;
};

struct line {
    struct hth_world *world;
    struct mate mate[NODES];
    uint32_t founders; /* NODES: the liar votes */
    const struct bad *bad;
    struct hth_timer *timer; /* of the liar */
    uint32_t sent, answered;
    enum hth_err err;      /* of the last refusal that named one */
    struct hth_chain *own; /* the liar's */
    uint32_t head;         /* in it */
    uint32_t serial;
    uint32_t astray; /* states of no honest member that one of them wanted */
    uint8_t forged[2048]; /* the run and a link */
    size_t forged_len;
    uint32_t twin[2]; /* links of one ballot, in the liar's chain */
    size_t log_len;
    char log[LOG_MAX];
};

struct bad {
    const char *what;
    bool votes;
    void (*send)(struct line *l);                               /* each 50 ms */
    void (*links)(struct line *l, struct hth_rpc_request *req); /* answers LINKS */
    void (*ready)(struct line *l, struct hth_rpc_request *req); /* answers READY */
    enum hth_err err;                                           /* that the liar gets; OK: none */
    const char *log;                                            /* NULL: nothing is said */
};

/* ---- honest members ----------------------------------------------------------------------- */

static struct mate *liar(struct line *l)
{
    return &l->mate[HONEST];
}

static void say(struct mate *m, uint32_t samples)
{
    struct hth_brings brings = {samples, samples == 0 ? SAMPLES : 0, SAMPLES,
                                samples == 0 ? BATCH_US : 0,
                                samples == 0 ? BATCH_US : HTH_BRINGS_NO_MORE};
    hth_roll_bring(m->roll, &brings);
}

static void on_batch(void *arg)
{
    say(arg, SAMPLES);
}

static void start_average(void *arg, const struct hth_roll_group *group)
{
    struct mate *m = arg;
    m->group = *group;
    m->rounds++;
    hth_timer_set(m->env, m->average, AVERAGE_US);
}

static void on_average(void *arg)
{
    struct mate *m = arg;
    uint16_t marks[HTH_ROLL_MEMBERS_MAX] = {0};
    struct hth_hash mean = {{1}};
    for (uint32_t i = 0; i < m->group.count; i++)
        if (!hth_peer_id_eq(&m->group.peer[i].id, &liar(m->line)->env->self))
            marks[i] = HTH_ROLL_IN;
    hth_roll_averaged(m->roll, HTH_OK, marks, &mean);
}

static void start_fetch(void *arg, const struct hth_hash *head, const struct hth_roll_peer *holders,
                        uint32_t count)
{
    struct mate *m = arg;
    (void)holders;
    (void)count;
    m->fetching = *head;
    hth_timer_set(m->env, m->fetch, AVERAGE_US);
}

/* Nobody has the liar's states. */
static void on_fetch(void *arg)
{
    struct mate *m = arg;
    bool found = false;
    for (uint32_t i = 0; i < HONEST; i++) {
        const struct mate *other = &m->line->mate[i];
        uint32_t tip = hth_roll_choice(other->roll)->tip;
        for (uint32_t k = 0; k < 8 && tip != HTH_LINK_NONE; k++) {
            found |= memcmp(hth_chain_head(other->chain, tip), &m->fetching,
                            sizeof(m->fetching)) == 0;
            tip = hth_chain_at(other->chain, tip)->prev;
        }
    }
    m->line->astray += !found;
    hth_roll_fetched(m->roll, found ? hth_chain_find(m->chain, &m->fetching) : HTH_LINK_NONE);
}

static void on_tip(void *arg, uint32_t link, bool used)
{
    struct mate *m = arg;
    m->step = hth_chain_at(m->chain, link)->step;
    if (used) {
        hth_timer_set(m->env, m->batch, BATCH_US);
        say(m, 0);
    }
}

static void more(void *arg)
{
    (void)arg;
}

static struct hth_chain *make_chain(struct line *l, const struct hth_crypto *crypto, uint32_t *at)
{
    struct hth_chain_opts o = {.crypto = crypto,
                               .window = 8,
                               .links_max = 1280,
                               .members_max = 512,
                               .rolls_max = 1280 * 8};
    struct hth_roll roll[NODES];
    struct hth_chain_link genesis = {.prev = HTH_LINK_NONE,
                                     .protocol = 1,
                                     .kind = HTH_LINK_GENESIS,
                                     .roll = roll,
                                     .count = l->founders};
    struct hth_chain *chain = hth_chain_new(&o);
    for (uint32_t i = 0; i < l->founders; i++) {
        roll[i] = (struct hth_roll){.marks = HTH_ROLL_IN};
        assert_ok(hth_chain_member(chain, &l->mate[i].env->self, 1, &roll[i].member));
    }
    assert_ok(hth_chain_add(chain, &genesis, at));
    return chain;
}

static void begin(struct mate *m)
{
    static const struct hth_roll_ops ops = {start_average, start_fetch, on_tip, more, NULL};
    struct hth_roll_opts opts = HTH_ROLL_OPTS_INIT;
    struct line *l = m->line;
    uint32_t genesis;
    m->chain = make_chain(l, m->env->crypto, &genesis);
    m->batch = hth_timer_new(m->env, on_batch, m);
    m->average = hth_timer_new(m->env, on_average, m);
    m->fetch = hth_timer_new(m->env, on_fetch, m);
    opts.addr = hth_node_addr(m->node, 4000);
    opts.life = 1;
    opts.target = 2 * SAMPLES;
    assert_ok(hth_roll_new(m->env, m->rpc, m->chain, &opts, &ops, m, &m->roll));
    for (uint32_t i = 0; i < NODES; i++) {
        struct hth_roll_peer peer = {.id = l->mate[i].env->self,
                                     .addr = hth_node_addr(l->mate[i].node, 4000)};
        hth_roll_meet(m->roll, &peer);
    }
    say(m, 0);
    hth_roll_hold(m->roll, genesis);
    hth_timer_set(m->env, m->batch, BATCH_US);
}

/* ---- the liar ----------------------------------------------------------------------------- */

static void on_links(void *arg, struct hth_rpc_request *req)
{
    struct line *l = arg;
    l->answered++;
    if (l->bad != NULL && l->bad->links != NULL)
        l->bad->links(l, req);
    else
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, NULL);
}

static void on_ready(void *arg, struct hth_rpc_request *req)
{
    struct line *l = arg;
    l->answered++;
    if (l->bad != NULL && l->bad->ready != NULL)
        l->bad->ready(l, req);
    else
        hth_rpc_ignore(req);
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct line *l = arg;
    if (result->err != HTH_OK && (l->err == HTH_OK || result->err == l->bad->err))
        l->err = result->err;
}

static void send(struct line *l, uint32_t to, uint16_t method, const uint8_t *bytes, size_t len)
{
    struct hth_rpc_call_opts o = {.method = method, .timeout_us = HTH_US_PER_S};
    struct hth_rpc_target target = {l->mate[to].env->self, hth_node_addr(l->mate[to].node, 4000)};
    o.body = (struct hth_rpc_body){.payload = bytes, .payload_len = len};
    assert_ok(hth_rpc_call(liar(l)->rpc, &target, &o, on_answer, l, NULL));
    l->sent++;
}

/* The ballot of a member, and the next one after `beyond` that it calls. */
static struct hth_roll_ballot ballot_of(struct line *l, uint32_t to, uint32_t beyond)
{
    const struct mate *m = &l->mate[to];
    const struct hth_choice *c = hth_roll_choice(m->roll);
    struct hth_ballot now = hth_choice_now(c);
    now.n += beyond;
    for (uint32_t k = 0; k < NODES && hth_choice_caller(m->chain, &now) != c->me; k++)
        now.n += now.n == UINT32_MAX ? 0 : 1;
    return (struct hth_roll_ballot){now.step, *hth_chain_head(m->chain, now.base), now.n};
}

static struct hth_sig sign(struct line *l, const struct hth_chain *chain, uint32_t link)
{
    struct hth_sig sig;
    uint16_t self = hth_chain_known(chain, &liar(l)->env->self, 1);
    if (self == HTH_MEMBER_NONE)
        return (struct hth_sig){.life = 1};
    hth_proof_sign(chain, link, self, true, &liar(l)->env->secret, &sig);
    return sig;
}

static struct hth_ready_msg ready_of(struct line *l, uint32_t to, uint32_t beyond)
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
        .addr = hth_node_addr(liar(l)->node, 4000),
        .is_signed = true,
        .sig = sign(l, m->chain, hth_roll_choice(m->roll)->tip)};
}

static void send_ready(struct line *l, uint32_t to, const struct hth_ready_msg *msg)
{
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    size_t len = hth_ready_write(msg, bytes);
    send(l, to, HTH_ROLL_METHOD_READY, bytes, len);
}

static void ready_with_absurd_samples(struct line *l)
{
    struct hth_ready_msg msg = ready_of(l, 0, 0);
    msg.brings.samples = HTH_ROLL_SAMPLES_MAX + 1;
    send_ready(l, 0, &msg);
}

static void ready_with_a_bit_beyond(struct line *l)
{
    struct hth_ready_msg msg = ready_of(l, 0, 0);
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    size_t len = hth_ready_write(&msg, bytes);
    bytes[1] |= 0x80;
    send(l, 0, HTH_ROLL_METHOD_READY, bytes, len);
}

/* Of a voter, as long as the genesis is the tip. */
static void ready_without_a_signature(struct line *l)
{
    for (uint32_t i = 0; i < HONEST; i++) {
        struct hth_ready_msg msg = ready_of(l, i, 0);
        msg.is_signed = false;
        send_ready(l, i, &msg);
    }
}

static void ready_with_a_bit_of_the_signature_wrong(struct line *l)
{
    for (uint32_t i = 0; i < HONEST; i++) {
        struct hth_ready_msg msg = ready_of(l, i, 0);
        msg.sig.sig[20] ^= 4;
        send_ready(l, i, &msg);
    }
}

/* A signature of another member, taken from a link. */
static void ready_with_anothers_signature(struct line *l)
{
    for (uint32_t i = 0; i < HONEST; i++) {
        struct hth_ready_msg msg = ready_of(l, i, 0);
        uint32_t tip = hth_roll_choice(l->mate[i].roll)->tip;
        const struct hth_link_sigs *sigs = hth_chain_sigs(l->mate[i].chain, tip);
        if (sigs->count > 0)
            msg.sig = sigs->sig[0].sig;
        send_ready(l, i, &msg);
    }
}

static void ready_at_the_last_ballot(struct line *l)
{
    for (uint32_t i = 0; i < HONEST; i++) {
        struct hth_ready_msg msg = ready_of(l, i, UINT32_MAX - 1000);
        send_ready(l, i, &msg);
    }
}

static void ready_a_turn_ahead(struct line *l)
{
    for (uint32_t i = 0; i < HONEST; i++) {
        struct hth_ready_msg msg = ready_of(l, i, HONEST);
        send_ready(l, i, &msg);
    }
}

/* A head that is no candidate, said to be accepted in the latest ballot. */
static void ready_with_a_false_vote(struct line *l)
{
    for (uint32_t i = 0; i < HONEST; i++) {
        struct hth_ready_msg msg = ready_of(l, i, 0);
        uint32_t tip = hth_roll_choice(l->mate[i].roll)->tip;
        for (uint32_t k = 0; k < 2 && hth_chain_at(l->mate[i].chain, tip)->prev != HTH_LINK_NONE;
             k++)
            tip = hth_chain_at(l->mate[i].chain, tip)->prev;
        if (tip == hth_roll_choice(l->mate[i].roll)->tip)
            return;
        msg.accepted = *hth_chain_head(l->mate[i].chain, tip);
        msg.accepted_n = msg.ballot.n;
        send_ready(l, i, &msg);
    }
}

static void send_call(struct line *l, uint32_t beyond)
{
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    for (uint32_t i = 0; i < HONEST; i++) {
        const struct mate *m = &l->mate[i];
        const struct hth_choice *c = hth_roll_choice(m->roll);
        struct hth_ballot now = hth_choice_now(c);
        struct hth_voters v = hth_chain_voters(m->chain, now.base);
        now.n += beyond;
        for (uint32_t k = 0; k < v.callers; k++) {
            uint16_t caller = hth_choice_caller(m->chain, &now);
            if (hth_peer_id_eq(hth_chain_id(m->chain, caller), &liar(l)->env->self))
                break;
            now.n++;
        }
        struct hth_roll_ballot ballot = {now.step, *hth_chain_head(m->chain, now.base), now.n};
        size_t len = hth_call_write(&ballot, bytes);
        send(l, i, HTH_ROLL_METHOD_CALL, bytes, len);
    }
}

static void call_as_a_stranger(struct line *l)
{
    send_call(l, 1);
}

static void call_far_ahead(struct line *l)
{
    send_call(l, UINT32_MAX / 2);
}

/* ---- answers to READY: the liar is the first caller */

static struct hth_ready_reply go_for(struct line *l, const struct hth_ready_msg *ready)
{
    struct hth_ready_reply go = {
        .kind = HTH_READY_GO, .head = ready->head, .n = ready->ballot.n, .protocol = 1};
    for (uint32_t i = 0; i < HONEST; i++)
        go.peer[go.count++] =
            (struct hth_roll_peer){.id = l->mate[i].env->self,
                                   .life = 1,
                                   .batch = 1,
                                   .samples = SAMPLES,
                                   .addr = hth_node_addr(l->mate[i].node, 4000)};
    return go;
}

static void answer(struct hth_rpc_request *req, const struct hth_ready_reply *reply)
{
    static uint8_t bytes[HTH_ROLL_BYTES_MAX];
    struct hth_rpc_body body = {.payload = bytes};
    body.payload_len = hth_ready_reply_write(reply, bytes);
    hth_rpc_reply(req, &body);
}

static struct hth_ready_reply read_ready(struct line *l, struct hth_rpc_request *req)
{
    struct hth_ready_msg ready;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    assert_ok(hth_ready_read(bytes, len, &ready));
    return go_for(l, &ready);
}

static void go_of_anothers_ballot(struct line *l, struct hth_rpc_request *req)
{
    struct hth_ready_reply go = read_ready(l, req);
    go.n++;
    answer(req, &go);
}

static void go_of_the_last_ballot(struct line *l, struct hth_rpc_request *req)
{
    struct hth_ready_reply go = read_ready(l, req);
    go.n = UINT32_MAX;
    answer(req, &go);
}

static void go_with_anothers_batch(struct line *l, struct hth_rpc_request *req)
{
    struct hth_ready_reply go = read_ready(l, req);
    for (uint32_t i = 0; i < go.count; i++)
        go.peer[i].batch = 7;
    answer(req, &go);
}

static void go_of_another_protocol(struct line *l, struct hth_rpc_request *req)
{
    struct hth_ready_reply go = read_ready(l, req);
    go.protocol = 2;
    answer(req, &go);
}

static void go_with_a_fork(struct line *l, struct hth_rpc_request *req)
{
    struct hth_ready_reply go = read_ready(l, req);
    go.fork = true;
    answer(req, &go);
}

static void later_than_all(struct line *l, struct hth_rpc_request *req)
{
    struct hth_ready_reply later = {.kind = HTH_READY_LATER, .n = UINT32_MAX};
    (void)l;
    answer(req, &later);
}

static void answer_of_noise(struct line *l, struct hth_rpc_request *req)
{
    struct hth_rpc_body body = {.payload = "\xff\xff\xff", .payload_len = 3};
    (void)l;
    hth_rpc_reply(req, &body);
}

/* ---- answers to LINKS: a READY on an unknown head makes the others ask */

static void ready_on_an_unknown_head(struct line *l)
{
    struct hth_ready_msg msg = ready_of(l, 0, 0);
    memcpy(msg.head.b, &l->serial, sizeof(l->serial));
    send_ready(l, 0, &msg);
    l->serial++;
}

/* Another chain, of strangers without samples; `keep`: it goes on from call to call. */
static void add_links(struct line *l, uint32_t count, bool keep)
{
    struct hth_roll roll = {.marks = HTH_ROLL_IN};
    struct hth_chain_link link = {.prev = l->head, .roll = &roll, .count = 1};
    if (!keep || link.prev == HTH_LINK_NONE) {
        struct hth_peer_id id = {{1}};
        memcpy(id.b + 1, &l->serial, sizeof(l->serial));
        hth_chain_free(l->own);
        struct hth_chain_opts o = {.crypto = liar(l)->env->crypto,
                                   .window = 8,
                                   .links_max = 4096,
                                   .members_max = 8,
                                   .rolls_max = 4096};
        l->own = hth_chain_new(&o);
        assert_ok(hth_chain_member(l->own, &id, 1, &roll.member));
        link = (struct hth_chain_link){
            .prev = HTH_LINK_NONE, .kind = HTH_LINK_GENESIS, .roll = &roll, .count = 1};
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

static void reply_links(struct line *l, struct hth_rpc_request *req, uint32_t first, uint32_t count,
                        size_t spoil)
{
    static uint8_t bytes[64 << 10];
    struct hth_writer w;
    hth_writer_init(&w, bytes, sizeof(bytes));
    hth_write_u64(&w, 1);
    hth_write_u8(&w, 0);
    hth_write_u64(&w, 0);
    hth_write_u16(&w, (uint16_t)count);
    for (uint32_t i = 0; i < count; i++)
        hth_chain_write(l->own, first + i, &w);
    hth_write_u16(&w, 0);
    assert_ok(w.err);
    if (spoil > 0)
        bytes[spoil] ^= 0x40;
    struct hth_rpc_body body = {.payload = bytes, .payload_len = w.pos};
    hth_rpc_reply(req, &body);
}

static void links_that_do_not_descend(struct line *l, struct hth_rpc_request *req)
{
    add_links(l, 8, false);
    reply_links(l, req, 4, 4, 0);
}

static void links_with_bits_beyond(struct line *l, struct hth_rpc_request *req)
{
    add_links(l, 1, false);
    /* the marks of the first link's one entry */
    reply_links(l, req, 0, 2, 8 + 1 + 8 + 2 + 8 + 32 + 4 + 4 + 1 + 32 + 4 + 32 + 8);
}

/* A step on top of the others' tip, whose roll are strangers. */
static void roll_of_strangers(struct line *l, struct hth_rpc_request *req)
{
    const struct mate *m = &l->mate[0];
    uint32_t tip = hth_roll_choice(m->roll)->tip;
    static uint8_t bytes[4096];
    struct hth_writer w;
    hth_writer_init(&w, bytes, sizeof(bytes));
    hth_write_u64(&w, 1);
    hth_write_u8(&w, 0);
    hth_write_u64(&w, 0);
    hth_write_u16(&w, 1);
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
    hth_write_u16(&w, 0);
    assert_ok(w.err);
    struct hth_rpc_body body = {.payload = bytes, .payload_len = w.pos};
    hth_rpc_reply(req, &body);
}

/* The others' last link again, as a step on top of it: none of those that it names signed it. */
static void ready_on_a_forged_step(struct line *l)
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

static void the_forged_step(struct line *l, struct hth_rpc_request *req)
{
    static uint8_t bytes[4096];
    struct hth_writer w;
    hth_writer_init(&w, bytes, sizeof(bytes));
    hth_write_u64(&w, 1);
    hth_write_u8(&w, 0);
    hth_write_u64(&w, 0);
    hth_write_u16(&w, 1);
    hth_write_bytes(&w, l->forged + HTH_HASH_LEN, l->forged_len - HTH_HASH_LEN);
    hth_write_u16(&w, 0);
    struct hth_rpc_body body = {.payload = bytes, .payload_len = w.pos};
    hth_rpc_reply(req, &body);
}

static void links_without_end(struct line *l, struct hth_rpc_request *req)
{
    uint32_t first = l->head == HTH_LINK_NONE ? 0 : l->head + 1;
    add_links(l, l->head == HTH_LINK_NONE ? 15 : 16, true);
    reply_links(l, req, first, 16, 0);
}

static void links_again_and_again(struct line *l, struct hth_rpc_request *req)
{
    if (l->own == NULL)
        add_links(l, 15, true);
    reply_links(l, req, 0, 16, 0);
}

/* Each time another chain of few links. */
static void ready_on_another_chain(struct line *l)
{
    struct hth_ready_msg msg = ready_of(l, 0, 0);
    if (++l->serial % 4 != 0)
        return; /* until the last one was fetched */
    add_links(l, 13, false);
    msg.head = *hth_chain_head(l->own, l->head);
    send_ready(l, 0, &msg);
}

static void its_chain(struct line *l, struct hth_rpc_request *req)
{
    struct hth_links_msg msg;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    assert_ok(hth_links_read(bytes, len, &msg));
    if (l->own != NULL && memcmp(&msg.head, hth_chain_head(l->own, l->head), HTH_HASH_LEN) == 0)
        reply_links(l, req, 0, 14, 0);
    else
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, NULL);
}

/* A chain of its own whose genesis and steps name the others, with more samples than theirs. */
static void ready_on_a_forged_chain(struct line *l)
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

static void the_forged_chain(struct line *l, struct hth_rpc_request *req)
{
    reply_links(l, req, 0, 14, 0);
}

/* Signs the others' first link, and one of its own of the same ballot, as made by it. */
static void ready_on_two_links_of_a_ballot(struct line *l)
{
    const struct mate *m = &l->mate[0];
    uint32_t link = hth_roll_choice(m->roll)->tip;
    if (l->own == NULL && m->step != 1)
        return;
    if (l->own == NULL) {
        static uint8_t bytes[4096];
        struct hth_writer w;
        struct hth_reader r;
        l->own = make_chain(l, liar(l)->env->crypto, &l->head);
        hth_writer_init(&w, bytes, sizeof(bytes));
        hth_chain_write(m->chain, link, &w);
        hth_reader_init(&r, bytes, w.pos);
        assert_ok(hth_chain_read(l->own, &r, &l->twin[0]));
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

static void the_other_link(struct line *l, struct hth_rpc_request *req)
{
    if (l->own != NULL)
        reply_links(l, req, l->twin[1], 1, 0);
    else
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, NULL);
}

/* ---- the world ---------------------------------------------------------------------------- */

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct mate *m = arg;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_addr addr = hth_node_addr(m->node, 4000);
    (void)dht;
    m->env = env;
    rpc.network = "run";
    rpc.listen = &addr;
    assert_ok(hth_rpc_new(env, &rpc, &m->rpc));
}

static void halt(struct hth_env *env, void *arg)
{
    struct mate *m = arg;
    struct line *l = m->line;
    hth_roll_free(m->roll);
    hth_timer_free(env, m->batch);
    hth_timer_free(env, m->average);
    hth_timer_free(env, m->fetch);
    if (m == liar(l))
        hth_timer_free(env, l->timer);
    hth_chain_free(m->chain);
    hth_rpc_free(m->rpc);
}

static void tick(void *arg)
{
    struct line *l = arg;
    if (l->bad != NULL && l->bad->send != NULL)
        l->bad->send(l);
    hth_timer_set(liar(l)->env, l->timer, 50 * HTH_US_PER_MS);
}

static void on_log(void *arg, const char *line, size_t len)
{
    struct line *l = arg;
    len = HTH_MIN(len, sizeof(l->log) - 1 - l->log_len);
    memcpy(l->log + l->log_len, line, len);
    l->log_len += len;
    l->log[l->log_len] = 0;
}

static struct line *start(uint64_t seed, const struct bad *bad)
{
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct line *l = hth_new(struct line);
    wo.log_level = HTH_WARN;
    wo.log_sink = on_log;
    wo.log_arg = l;
    l->world = hth_world_new(seed, &wo);
    /* A line of the log is not said more than ten times a second, of all worlds. */
    static uint32_t starts;
    hth_world_run_for(l->world, 30 * HTH_US_PER_S * ++starts);
    l->founders = bad != NULL && bad->votes ? NODES : HONEST;
    l->bad = bad;
    l->head = HTH_LINK_NONE;
    for (uint32_t i = 0; i < NODES; i++) {
        struct hth_node_opts o = HTH_NODE_OPTS_INIT;
        struct mate *m = &l->mate[i];
        o.boot = boot;
        o.halt = halt;
        o.arg = m;
        m->line = l;
        m->index = i;
        m->node = hth_world_node(l->world, (const char *[]){"a", "b", "c", "liar"}[i], &o);
        m->env = hth_node_env(m->node);
        hth_world_run_for(l->world, HTH_US_PER_MS);
    }
    hth_rpc_serve(liar(l)->rpc, HTH_ROLL_METHOD_LINKS, on_links, l);
    hth_rpc_serve(liar(l)->rpc, HTH_ROLL_METHOD_READY, on_ready, l);
    for (uint32_t i = 0; i < HONEST; i++)
        begin(&l->mate[i]);
    l->timer = hth_timer_new(liar(l)->env, tick, l);
    hth_timer_set(liar(l)->env, l->timer, 50 * HTH_US_PER_MS);
    return l;
}

static void stop(struct line *l)
{
    struct hth_open_counts leaks;
    for (uint32_t i = 0; i < NODES; i++)
        hth_node_crash(l->mate[i].node, HTH_CRASH_RESET);
    hth_world_leaks(l->world, &leaks);
    assert_int_equal(hth_open_total(&leaks), 0);
    hth_world_free(l->world);
    hth_chain_free(l->own);
    hth_free(l);
}

/* Whether the liar calls the first ballot. */
static bool liar_calls(struct line *l)
{
    struct hth_ballot now = hth_choice_now(hth_roll_choice(l->mate[0].roll));
    uint16_t caller = hth_choice_caller(l->mate[0].chain, &now);
    return hth_peer_id_eq(hth_chain_id(l->mate[0].chain, caller), &liar(l)->env->self);
}

/* ---- what is promised --------------------------------------------------------------------- */

/* Its own last links are kept, and no connection has ended. */
static void check(struct line *l, uint64_t least)
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

static const struct bad cases[] = {
    {.what = "nothing"},
    {"READY with absurd samples", false, ready_with_absurd_samples, NULL, NULL,
     HTH_E_MALFORMED, "a bad READY: E_MALFORMED"},
    {"READY with a bit beyond the flags", false, ready_with_a_bit_beyond, NULL, NULL,
     HTH_E_MALFORMED, "a bad READY: E_MALFORMED"},
    {"READY at the last ballot", false, ready_at_the_last_ballot, NULL, NULL, HTH_E_RANGE,
     NULL},
    {"READY a turn ahead", false, ready_a_turn_ahead, NULL, NULL, HTH_OK, NULL},
    {"READY at the last ballot, of a voter", true, ready_at_the_last_ballot, NULL, NULL,
     HTH_E_RANGE, NULL},
    {"READY with a false vote", false, ready_with_a_false_vote, NULL, NULL, HTH_E_MALFORMED,
     "a bad READY: E_MALFORMED"},
    {"READY without a signature", true, ready_without_a_signature, NULL, NULL,
     HTH_E_BAD_SIGNATURE, "a bad READY: E_BAD_SIGNATURE"},
    {"READY with a wrong signature", true, ready_with_a_bit_of_the_signature_wrong, NULL, NULL,
     HTH_E_BAD_SIGNATURE, "a bad READY: E_BAD_SIGNATURE"},
    {"READY with another's signature", true, ready_with_anothers_signature, NULL, NULL,
     HTH_E_BAD_SIGNATURE, "a bad READY: E_BAD_SIGNATURE"},
    {"READY on two links of a ballot", true, ready_on_two_links_of_a_ballot, the_other_link,
     NULL, HTH_E_PROTOCOL, "equivocation: "},
    {"CALL as a stranger", false, call_as_a_stranger, NULL, NULL, HTH_E_PROTOCOL, NULL},
    {"CALL far ahead", true, call_far_ahead, NULL, NULL, HTH_E_RANGE,
     "a CALL of a ballot far ahead: E_RANGE"},
    {"GO of another's ballot", true, NULL, NULL, go_of_anothers_ballot, HTH_OK,
     "a GO that is not its to send: E_PROTOCOL"},
    {"GO of the last ballot", true, NULL, NULL, go_of_the_last_ballot, HTH_OK,
     "a GO that is not its to send: E_PROTOCOL"},
    {"GO with another's batch", true, NULL, NULL, go_with_anothers_batch, HTH_OK,
     "a GO that is not its to send: E_PROTOCOL"},
    {"GO with a fork", true, NULL, NULL, go_with_a_fork, HTH_OK,
     "a GO that is not its to send: E_REFUSED"},
    {"GO of a protocol that is not spoken", true, NULL, NULL, go_of_another_protocol, HTH_OK,
     "a GO that is not its to send: E_VERSION"},
    {"LATER than all", true, NULL, NULL, later_than_all, HTH_OK,
     "a LATER ballot far ahead: E_RANGE"},
    {"noise for an answer", true, NULL, NULL, answer_of_noise, HTH_OK,
     "a bad answer to READY: E_MALFORMED"},
    {"links that do not descend", false, ready_on_an_unknown_head, links_that_do_not_descend,
     NULL, HTH_E_AGAIN, "bad links: E_NOT_FOUND"},
    {"links with bits beyond the marks", false, ready_on_an_unknown_head,
     links_with_bits_beyond, NULL, HTH_E_AGAIN, "bad links: E_MALFORMED"},
    {"a roll of strangers", false, ready_on_an_unknown_head, roll_of_strangers, NULL,
     HTH_E_AGAIN, "bad links: E_STALE"},
    {"a forged step", false, ready_on_a_forged_step, the_forged_step, NULL, HTH_E_AGAIN, NULL},
    {"a forged chain with more samples", false, ready_on_a_forged_chain, the_forged_chain,
     NULL, HTH_E_AGAIN, NULL},
    {"links without end", false, ready_on_an_unknown_head, links_without_end, NULL,
     HTH_E_AGAIN, "links without end: E_TOO_LARGE"},
    {"links again and again", false, ready_on_an_unknown_head, links_again_and_again, NULL,
     HTH_E_AGAIN, "links that lead no farther: E_PROTOCOL"},
    {"many chains", false, ready_on_another_chain, its_chain, NULL, HTH_E_AGAIN,
     "links of a worse chain, for which there is no room: E_TOO_LARGE"},
};

static void a_liar_has_the_loss(void **state)
{
    (void)state;
    uint64_t alone = 0;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        const struct bad *bad = &cases[k];
        uint64_t seed = 0;
        struct line *l = start(seed, bad);
        while (bad->ready != NULL && !liar_calls(l)) {
            stop(l);
            l = start(++seed, bad);
        }
        /* As long as a liar votes it is waited for. */
        hth_world_run_for(l->world, 6 * HTH_US_PER_S);
        uint64_t first = l->mate[0].step;
        assert_true(first >= 2);
        hth_world_run_for(l->world, 15 * HTH_US_PER_S);
        uint64_t steps = l->mate[0].step - first;
        printf("%s: %llu steps, then %llu; %u sent, %u answered, %s\n", bad->what,
               (unsigned long long)first, (unsigned long long)steps, l->sent, l->answered,
               hth_err_name(l->err));
        if (k == 0)
            alone = steps;
        check(l, first + alone * 92 / 100);
        assert_true(bad->err == HTH_OK || l->err == bad->err);
        assert_int_equal(l->astray, 0);
        const char *said = bad->log != NULL ? strstr(l->log, bad->log) : NULL;
        if (bad->log != NULL && said == NULL)
            fail_msg("no line says \"%s\":\n%s", bad->log, l->log);
        if (bad->links == the_other_link) /* once */
            assert_null(strstr(said + 1, bad->log));
        stop(l);
    }
}

/* A caller that sends two GOs in one ballot, to READYs of one member: the first one counts. */
static void two_gos(struct line *l, struct hth_rpc_request *req)
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

static void the_second_go_is_not_heard(void **state)
{
    (void)state;
    static const struct bad bad = {.votes = true, .ready = two_gos};
    uint64_t seed = 0;
    struct line *l = start(seed, &bad);
    while (!liar_calls(l)) {
        stop(l);
        l = start(++seed, &bad);
    }
    hth_world_run_for(l->world, 15 * HTH_US_PER_S);
    check(l, 100);
    stop(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_liar_has_the_loss),
        cmocka_unit_test(the_second_go_is_not_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
