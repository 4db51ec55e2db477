/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/roll_int.h"
#include "core/mem.h"

#include <string.h>

/* One fetch has at most so many: those of an answer and what was added meanwhile. */
#define FETCH_LINKS_MAX 256
/* Of the addresses behind the links. */
#define ADDRS_BYTES (2 + HTH_ROLL_MEMBERS_MAX * (32 + 19))

/* ---- links and states of other heads ------------------------------------------------------ */

static void fetch_links(struct hth_roll_call *roll);

/* A peer whose links were bad is asked for none for a while. */
static bool is_shunned(const struct hth_roll_call *roll, const struct hth_peer_id *peer)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(roll->shunned); i++)
        if (roll->shunned[i].until_us > hth_now_us(roll->env) &&
            hth_peer_id_eq(&roll->shunned[i].peer, peer))
            return true;
    return false;
}

static void shun(struct hth_roll_call *roll, enum hth_err err, const char *what)
{
    struct roll_shunned *least = &roll->shunned[0];
    for (size_t i = 1; i < HTH_ARRAY_LEN(roll->shunned); i++)
        if (roll->shunned[i].until_us < least->until_us)
            least = &roll->shunned[i];
    *least = (struct roll_shunned){roll->from.id, hth_now_us(roll->env) + SHUN_US};
    roll_blame(roll, &roll->from.id, err, what);
}

static void begin_links(struct hth_roll_call *roll)
{
    roll->fetched = 0;
    if (!is_shunned(roll, &roll->from.id))
        fetch_links(roll);
}

/* Unless it is among them; where there is no room it is left out. */
static void add_holder(struct hth_holders *h, const struct hth_roll_peer *peer)
{
    uint32_t at = 0;
    while (at < h->count && !hth_peer_id_eq(&h->peer[at].peer, &peer->id))
        at++;
    if (at == h->count && h->count < HTH_ROLL_LINE_MAX)
        h->peer[h->count++] = (struct hth_rpc_target){peer->id, peer->addr};
}

/* Members that were in the link's round hold it, too: who named it may die. */
static void add_holders(const struct hth_roll_call *roll, uint32_t link, struct hth_holders *out)
{
    const struct hth_chain_link *at = hth_chain_at(roll->chain, link);
    for (uint32_t i = 0; i < at->count; i++) {
        const struct mate *mate = &roll->mate[at->roll[i].member];
        const struct hth_roll_peer peer = roll_peer(roll, at->roll[i].member);
        if (at->roll[i].marks & HTH_ROLL_IN && !mate->lost && peer.addr.family != 0 &&
            !hth_peer_id_eq(&peer.id, &roll->env->self)) /* nor an older process of its own */
            add_holder(out, &peer);
    }
}

/* Nothing is lost if it leaves a genesis without samples, unless it refused a step on it. */
static bool holds_nothing(const struct hth_roll_call *roll)
{
    uint32_t tip = roll->choice->tip;
    return hth_chain_at(roll->chain, tip)->kind == HTH_LINK_GENESIS &&
           hth_chain_samples(roll->chain, tip) == 0 && roll->choice->refused == HTH_LINK_NONE;
}

static bool is_better(const struct hth_roll_call *roll, uint32_t link)
{
    const struct hth_choice *c = roll->choice;
    if (c->tip == HTH_LINK_NONE)
        return hth_proof_stands(roll->chain, link);
    if (hth_choice_refuses(c, link) && !hth_proof_proves(roll->chain, link, link))
        return false;
    /* The founder, whose signature proves the first step, may be gone: it may never be proven. */
    return hth_chain_better(roll->chain, link, c->tip) ||
           (holds_nothing(roll) && hth_chain_claims(roll->chain, link, c->tip) &&
            hth_proof_stands(roll->chain, link));
}

/* The wanted head's links are here: its state is fetched if it is worth it. */
static void want_state(struct hth_roll_call *roll, uint32_t link, struct hth_holders *holders)
{
    struct hth_choice *c = roll->choice;
    uint32_t pick = hth_choice_pick(c, roll_waited(roll));
    bool better = is_better(roll, link);
    struct hth_ballot now = hth_choice_now(c);
    if (!roll_speaks(roll, link)) {
        if (better && roll->unspoken == 0)
            roll->unspoken_us = hth_now_us(roll->env);
        if (better)
            roll->unspoken = hth_chain_at(roll->chain, link)->protocol;
        return;
    }
    /* MOVE: a candidate of the same choice, which its caller picked. Without its caller's word a
     * member stays: two that hear of each other's heads would change places again and again. */
    const struct hth_hash *head = hth_chain_head(roll->chain, link);
    bool other = c->tip != HTH_LINK_NONE && memcmp(head, &roll->moved, sizeof(roll->moved)) == 0 &&
                 hth_chain_base(roll->chain, link) == now.base &&
                 hth_chain_at(roll->chain, link)->step == now.step;
    bool moves = !hth_choice_refuses(c, link) && (other || link == pick);
    if (roll->fetching || c->phase == HTH_CHOICE_ROUND || link == c->tip || !(better || moves))
        return;
    add_holders(roll, link, holders);
    roll->fetching = true;
    roll->wanted = roll_head(roll, link);
    roll->ops.fetch(roll->arg, &roll->wanted, holders);
}

/* Whether a head would be better if it were proven: then signatures are asked for, now and then. */
static bool lacks_proof(struct hth_roll_call *roll, uint32_t link)
{
    uint32_t tip = roll->choice->tip;
    int64_t now = hth_now_us(roll->env);
    bool claims = tip == HTH_LINK_NONE || hth_chain_claims(roll->chain, link, tip);
    if (now - roll->doubted_us < ASK_US || !claims || is_better(roll, link))
        return false;
    roll->doubted_us = now;
    return true;
}

void roll_want(struct hth_roll_call *roll, const struct hth_hash *head,
               const struct hth_roll_peer *holders, uint32_t count)
{
    uint32_t link = hth_chain_find(roll->chain, head);
    struct hth_holders good = {.count = 0};
    for (uint32_t i = 0; i < count; i++)
        if (!roll_is_doubted(roll, &holders[i].id) &&
            !hth_peer_id_eq(&holders[i].id, &roll->env->self))
            add_holder(&good, &holders[i]);
    if (good.count == 0 || roll->frozen)
        return;
    if (link != HTH_LINK_NONE && !lacks_proof(roll, link)) {
        want_state(roll, link, &good);
    } else if (roll->links == NULL) {
        roll->wanted = *head;
        roll->from = (struct hth_roll_peer){.id = good.peer[0].peer, .addr = good.peer[0].addr};
        begin_links(roll);
    }
}

/* A member that answers lives, in the life that it says; others of that peer are gone. A refusal
 * says nothing: it may be a newcomer's. */
static void note_answer(struct hth_roll_call *roll, const struct hth_rpc_result *result,
                        uint64_t life)
{
    if (result->err != HTH_OK && result->remote)
        return;
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (i != roll_me(roll) && hth_peer_id_eq(hth_chain_id(roll->chain, i), &roll->from.id))
            roll_set_heard(roll, i,
                           result->err == HTH_OK && hth_chain_life(roll->chain, i) == life);
}

/* Links of chains that are worse than its own, of which anybody can make any number, must not push
 * those out. At most half of the store is theirs, and each step makes room for two. E_TOO_LARGE:
 * there is none. They are let go. */
static enum hth_err bound_guests(struct hth_roll_call *roll, uint32_t before)
{
    struct hth_choice *c = roll->choice;
    uint32_t count = hth_chain_count(roll->chain), added = count - before;
    if (added == 0 || c->tip == HTH_LINK_NONE || hth_chain_better(roll->chain, count - 1, c->tip))
        return HTH_OK;
    if (roll->guests + added <= hth_chain_room(roll->chain, count - 1) / 2) {
        roll->guests += added;
        return HTH_OK;
    }
    hth_chain_drop(roll->chain, before);
    roll->read = HTH_LINK_NONE;
    return HTH_E_TOO_LARGE;
}

/* Where the members of the last roll are reached, as far as the other knows. */
static enum hth_err read_addrs(struct hth_roll_call *roll, struct hth_wire *io)
{
    struct hth_roll_peer peer[HTH_ROLL_MEMBERS_MAX];
    uint32_t count = 0;
    hth_wire_places(io, peer, &count, HTH_ROLL_MEMBERS_MAX);
    for (uint32_t i = 0; i < count && io->err == HTH_OK; i++)
        roll_meet_at(roll, &peer[i]);
    return hth_wire_end(io);
}

/* An answer's links. Bad ones are the sender's loss. */
static enum hth_err take_links(struct hth_roll_call *roll, struct hth_wire *io, uint32_t *got)
{
    uint32_t before = hth_chain_count(roll->chain), last = roll->read;
    const char *what = "bad links";
    struct hth_links links = {.link = {hth_chain_find(roll->chain, &roll->wanted)}};
    enum hth_err err = hth_links_get(roll->chain, io, HTH_LINKS_MAX, &links);
    *got = links.count;
    if (*got > 0)
        roll->read = links.link[*got];
    roll_meet(roll);
    for (uint32_t k = 0; k <= *got; k++)
        roll_note_twins(roll, links.link[k]);
    if (err == HTH_OK)
        err = read_addrs(roll, io);
    enum hth_err room = bound_guests(roll, before);
    if (err == HTH_OK && room != HTH_OK) {
        err = room;
        what = "links of a worse chain, for which there is no room";
    }
    if (err == HTH_OK && *got > 0 && roll->read == last) {
        err = HTH_E_PROTOCOL;
        what = "links that lead no farther";
    }
    roll->fetched += *got;
    if (err == HTH_OK && roll->fetched > FETCH_LINKS_MAX) {
        err = HTH_E_TOO_LARGE;
        what = "links without end";
    }
    if (err != HTH_OK)
        shun(roll, err, what);
    return err;
}

/* A member whose head will be let go for the links to come begins anew. */
static void leave_behind(struct hth_roll_call *roll)
{
    struct hth_choice *c = roll->choice;
    if (c->tip != HTH_LINK_NONE && c->phase != HTH_CHOICE_ROUND &&
        hth_chain_room(roll->chain, c->tip) < ROOM_MIN)
        hth_choice_lose(c);
}

/* Asked for any head by a newcomer that knows no link of it, it showed none. */
static bool has_none(const struct hth_roll_call *roll, const struct hth_rpc_result *result,
                     uint32_t got)
{
    bool knew = roll->read != HTH_LINK_NONE && hth_chain_has(roll->chain, roll->read);
    return result->err == HTH_E_NOT_FOUND || result->err == HTH_E_VERSION ||
           (result->err == HTH_OK && roll->choice->tip == HTH_LINK_NONE && got == 0 && !knew);
}

/* Its round failed just now: members of other lines may have made its link. */
static bool has_failed(const struct hth_roll_call *roll)
{
    return roll->failed_on != HTH_LINK_NONE && roll->failed_on == roll->choice->tip &&
           hth_now_us(roll->env) - roll->failed_us < ASK_US;
}

static void on_links_answer(void *arg, const struct hth_rpc_result *result)
{
    struct hth_roll_call *roll = arg;
    struct hth_wire io = hth_wire_of(result->payload, result->payload_len);
    uint32_t link = HTH_LINK_NONE, got = 0;
    enum hth_err err = result->err;
    roll->links = NULL;
    uint64_t life = hth_read_u64(&io.r);
    if (result->err == HTH_OK) {
        leave_behind(roll);
        err = take_links(roll, &io, &got);
    }
    bool good = result->err != HTH_OK || err == HTH_OK;
    /* One that was read in a round is wanted once that has failed. */
    if (got > 0 || (has_failed(roll) && roll->read != HTH_LINK_NONE &&
                    hth_chain_has(roll->chain, roll->read) && is_better(roll, roll->read)))
        link = roll->read;
    note_answer(roll, result, life);
    bool any = hth_head_is_none(&roll->wanted);
    if ((!good || (any && has_none(roll, result, got))) && roll->ops.no_head != NULL)
        roll->ops.no_head(roll->arg, &roll->from.id, err);
    if (!any)
        link = hth_chain_find(roll->chain, &roll->wanted);
    if (good && link != HTH_LINK_NONE && got < HTH_LINKS_MAX)
        roll_want(roll, hth_chain_head(roll->chain, link), &roll->from, 1);
    else if (good && got > 0)
        fetch_links(roll); /* there may be more */
    roll_pump(roll);
}

/* Asks for the links up to the wanted head, after the heads that are held here. */
static void fetch_links(struct hth_roll_call *roll)
{
    struct hth_links_msg msg = {.head = roll->wanted};
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    uint32_t link = roll->choice->tip;
    msg.held[msg.count++] = roll_head(roll, link);
    if (roll->read != HTH_LINK_NONE && hth_chain_has(roll->chain, roll->read))
        msg.held[msg.count++] = roll_head(roll, roll->read);
    /* From the tip back, in steps that double: the other finds a link that both have. */
    for (uint32_t back = 1; link != HTH_LINK_NONE && msg.count < HTH_ROLL_HELD_MAX; back *= 2) {
        msg.held[msg.count++] = roll_head(roll, link);
        for (uint32_t i = 0; i < back && link != HTH_LINK_NONE; i++)
            link = hth_chain_at(roll->chain, link)->prev;
    }
    struct hth_rpc_call_opts opts = {.method = HTH_ROLL_METHOD_LINKS,
                                     .timeout_us = roll->opts.hold_us + roll->opts.silence_us};
    opts.body.payload = bytes;
    opts.body.payload_len = hth_links_write(&msg, bytes);
    struct hth_rpc_target target = {roll->from.id, roll->from.addr};
    if (hth_rpc_call(roll->rpc, &target, &opts, on_links_answer, roll, &roll->links) != HTH_OK)
        roll->links = NULL;
}

static bool is_held(const struct hth_links_msg *msg, const struct hth_hash *head)
{
    for (uint32_t i = 0; i < msg->count; i++)
        if (memcmp(&msg->held[i], head, sizeof(*head)) == 0)
            return true;
    return false;
}

/* Links that the other has not, up to the one that it wants. */
static void find_gap(const struct hth_roll_call *roll, const struct hth_links_msg *msg,
                     uint32_t link, struct hth_links *out)
{
    const struct hth_chain *chain = roll->chain;
    uint32_t begin = HTH_LINK_NONE, k = link;
    *out = (struct hth_links){.link = {link}};
    for (uint32_t n = 0; n < HTH_LINKS_MAX && k != HTH_LINK_NONE; n++) {
        if (is_held(msg, hth_chain_head(chain, k)))
            break;
        begin = k;
        k = hth_chain_at(chain, k)->prev;
    }
    if (begin == HTH_LINK_NONE)
        return;
    /* Farther back than so many links nobody has one that another lacks, but a newcomer. */
    bool near = (k != HTH_LINK_NONE && is_held(msg, hth_chain_head(chain, k))) ||
                hth_chain_at(chain, begin)->kind == HTH_LINK_GENESIS;
    hth_links_path(chain, near ? begin : hth_chain_anchor(chain, link), link, out);
    out->anchored = !near;
}

static void write_addrs(const struct hth_roll_call *roll, struct hth_wire *io)
{
    struct hth_roll_peer peer[HTH_ROLL_MEMBERS_MAX];
    uint32_t tip = roll->choice->tip, count = 0;
    const struct hth_chain_link *link =
        tip == HTH_LINK_NONE ? NULL : hth_chain_at(roll->chain, tip);
    for (; link != NULL && count < HTH_MIN(link->count, HTH_ROLL_MEMBERS_MAX); count++)
        peer[count] = roll_peer(roll, link->roll[count].member);
    hth_wire_places(io, peer, &count, HTH_ROLL_MEMBERS_MAX);
}

/* A peer that asks says which head it holds: if it is not known here it may be better. The others
 * that it names are of links that it has read, and whose state may be gone. A client can only be
 * asked over the connection that it has used. */
static void hear_held(struct hth_roll_call *roll, const struct hth_peer_id *by,
                      const struct hth_links_msg *msg)
{
    const struct hth_roll_peer holder = {.id = *by};
    if (msg->count > 0 && !hth_head_is_none(&msg->held[0]) &&
        hth_chain_find(roll->chain, &msg->held[0]) == HTH_LINK_NONE)
        roll_want(roll, &msg->held[0], &holder, 1);
}

void hth_roll_greet(struct hth_roll_call *roll, const struct hth_roll_peer *peer)
{
    if (roll->links != NULL || roll->fetching || roll->frozen)
        return;
    roll->wanted = (struct hth_hash){{0}};
    roll->from = *peer;
    begin_links(roll);
}

void roll_on_links(void *arg, struct hth_rpc_request *req)
{
    struct hth_roll_call *roll = arg;
    struct hth_links_msg msg;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    enum hth_err err = hth_links_read(bytes, len, &msg);
    uint32_t link = err != HTH_OK                 ? HTH_LINK_NONE
                    : hth_head_is_none(&msg.head) ? roll->choice->tip
                                                  : hth_chain_find(roll->chain, &msg.head);
    if (err == HTH_OK)
        hear_held(roll, hth_rpc_peer(req), &msg);
    if (link == HTH_LINK_NONE) {
        hth_rpc_refuse(req, err == HTH_OK ? HTH_E_NOT_FOUND : err, 0, "LINKS");
        return;
    }
    struct hth_links links;
    find_gap(roll, &msg, link, &links);
    size_t end = HTH_FRAME_META_BYTES_MAX / 2 - ADDRS_BYTES;
    size_t room = end + HTH_LINKS_MORE_MAX + ADDRS_BYTES;
    _Static_assert(HTH_FRAME_META_BYTES_MAX / 2 + HTH_LINKS_MORE_MAX + 256 <
                       HTH_FRAME_META_BYTES_MAX,
                   "an answer fits into a frame");
    uint8_t *out = hth_calloc(1, room);
    struct hth_wire io = hth_wire_into(out, room);
    hth_write_u64(&io.w, roll->opts.life);
    hth_links_put(roll->chain, &links, end, &io);
    write_addrs(roll, &io);
    const struct hth_rpc_body body = {.payload = out, .payload_len = io.w.pos};
    hth_rpc_reply(req, &body);
    hth_free(out);
}

/* Whether a member is asked now. Soon after a round failed; else where steps may count there that
 * this one missed: it waits for it in vain, or it does not average with it. */
static bool is_asked(const struct hth_roll_call *roll, uint16_t member)
{
    const struct hth_choice *c = roll->choice;
    int64_t now = hth_now_us(roll->env);
    const struct hth_roll *entry =
        c->tip == HTH_LINK_NONE ? NULL : hth_chain_entry(roll->chain, c->tip, member);
    bool waits = c->phase == HTH_CHOICE_WAIT && now - roll->since_us >= ASK_US;
    bool together = entry != NULL && entry->marks & HTH_ROLL_IN;
    bool soon = has_failed(roll) && !roll->mate[member].lost && c->phase != HTH_CHOICE_ROUND;
    return member != roll_me(roll) && roll->mate[member].addr.family != 0 &&
           (soon || (now - roll->asked_us >= ASK_US && (waits || !together)));
}

int64_t roll_ask_at(const struct hth_roll_call *roll)
{
    return roll->asked_us + (has_failed(roll) ? SAY_US : ASK_US);
}

/* Asks one member after the other which head it holds. */
void roll_ask(struct hth_roll_call *roll)
{
    uint32_t members = hth_chain_members(roll->chain);
    int64_t now = hth_now_us(roll->env);
    if (roll->links != NULL || roll->fetching || now < roll_ask_at(roll))
        return;
    for (uint32_t k = 0; k < members; k++) {
        roll->asked = (uint16_t)((roll->asked + 1u) % members);
        if (!is_asked(roll, roll->asked))
            continue;
        roll->asked_us = now;
        roll->wanted = (struct hth_hash){{0}};
        roll->from = roll_peer(roll, roll->asked);
        begin_links(roll);
        return;
    }
}
