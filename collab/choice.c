/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/choice.h"

#include <stdlib.h>
#include <string.h>

size_t hth_choice_size(uint16_t capacity)
{
    return sizeof(struct hth_choice) + capacity * sizeof(struct hth_ready);
}

static void clear_table(struct hth_choice *c, struct hth_ballot ballot)
{
    c->ballot = ballot;
    c->gone_out = 0;
    c->seats = 0;
    memset(c->seat, 0, c->capacity * sizeof(c->seat[0]));
}

void hth_choice_init(struct hth_choice *c, const struct hth_chain *chain, uint16_t me,
                     uint16_t capacity)
{
    memset(c, 0, hth_choice_size(capacity));
    c->chain = chain;
    c->me = me;
    c->tip = c->accepted = c->refused = HTH_LINK_NONE;
    c->batch = 1;
    c->capacity = capacity;
    clear_table(c, (struct hth_ballot){.base = HTH_LINK_NONE});
}

struct hth_ballot hth_choice_of(const struct hth_chain *chain, uint32_t link, uint32_t n)
{
    return (struct hth_ballot){hth_chain_at(chain, link)->step, hth_chain_base(chain, link), n};
}

static bool is_same(const struct hth_ballot *a, const struct hth_ballot *b)
{
    return a->base == b->base && a->step == b->step;
}

struct hth_ballot hth_choice_now(const struct hth_choice *c)
{
    if (c->tip == HTH_LINK_NONE)
        return (struct hth_ballot){.base = HTH_LINK_NONE};
    return hth_choice_of(c->chain, c->tip, c->promised);
}

uint16_t hth_choice_caller(const struct hth_chain *chain, const struct hth_ballot *ballot)
{
    struct hth_voters voters = hth_chain_voters(chain, ballot->base);
    return voters.count == 0 ? HTH_MEMBER_NONE : voters.member[ballot->n % voters.callers];
}

/* Ballots grow by one with each caller that fails: nobody who counts is so far ahead. */
static bool is_far(const struct hth_choice *c, const struct hth_ballot *ballot, uint32_t most)
{
    struct hth_ballot now = hth_choice_now(c);
    uint32_t from = is_same(&now, ballot) ? c->promised : 0;
    return ballot->n > from && ballot->n - from > most;
}

static uint16_t caller_now(const struct hth_choice *c)
{
    struct hth_ballot now = hth_choice_now(c);
    return hth_choice_caller(c->chain, &now);
}

static bool may_call(const struct hth_choice *c)
{
    struct hth_voters voters = hth_chain_voters(c->chain, hth_chain_base(c->chain, c->tip));
    for (uint32_t i = 0; i < voters.callers; i++)
        if (voters.member[i] == c->me)
            return true;
    return false;
}

/* ---- who is READY ---------------------------------------------------------------------------- */

static int by_member(const void *a, const void *b)
{
    return (int)((const struct hth_ready *)a)->member - (int)((const struct hth_ready *)b)->member;
}

static const struct hth_ready *seat_of(const struct hth_choice *c, uint16_t member)
{
    struct hth_ready key = {.member = member};
    return bsearch(&key, c->seat, c->seats, sizeof(key), by_member);
}

static bool is_seated(const void *ctx, uint16_t member)
{
    return seat_of(ctx, member) != NULL;
}

/* Whether the table has a voter. Only voters' READYs say in which ballot it is. */
static bool has_voter(const struct hth_choice *c)
{
    for (uint32_t i = 0; i < c->seats; i++)
        if (hth_chain_votes(c->chain, c->ballot.base, c->seat[i].member))
            return true;
    return false;
}

struct holders {
    const struct hth_choice *c;
    uint32_t head;
};

/* A member without samples has nothing to bring to the round. */
static bool is_holder(const void *ctx, uint16_t member)
{
    const struct holders *of = ctx;
    const struct hth_ready *seat = seat_of(of->c, member);
    return seat != NULL && seat->head == of->head && seat->samples > 0;
}

static struct hth_ready *take_seat(struct hth_choice *c, uint16_t member)
{
    uint32_t at = 0;
    while (at < c->seats && c->seat[at].member < member)
        at++;
    if (at < c->seats && c->seat[at].member == member)
        return &c->seat[at];
    if (c->seats == c->capacity)
        return NULL;
    memmove(&c->seat[at + 1], &c->seat[at], (c->seats - at) * sizeof(c->seat[0]));
    c->seats++;
    return &c->seat[at];
}

/* ---- what a member does -------------------------------------------------------------------- */

/* Whether the table is of a choice that this link has passed: an older one, or one of a chain that
 * it is better than. */
static bool is_passed(const struct hth_choice *c, const struct hth_ballot *now, uint32_t link)
{
    const struct hth_ballot *table = &c->ballot;
    if (table->base == HTH_LINK_NONE || is_same(table, now))
        return false;
    return table->step < now->step || !hth_chain_has(c->chain, table->base) ||
           hth_chain_better(c->chain, link, table->base);
}

bool hth_choice_take(struct hth_choice *c, uint32_t link)
{
    struct hth_ballot before = hth_choice_now(c), after = hth_choice_of(c->chain, link, 0);
    if (!is_same(&before, &after)) {
        c->promised = c->accepted_n = 0;
        c->accepted = HTH_LINK_NONE;
        if (hth_chain_at(c->chain, link)->prev != c->refused)
            c->refused = HTH_LINK_NONE; /* whatever was made there, it was passed */
        c->yields_n = 2 * hth_chain_voters(c->chain, after.base).callers;
    }
    if (is_passed(c, &after, link))
        clear_table(c, (struct hth_ballot){.base = HTH_LINK_NONE});
    else if (!is_same(&c->ballot, &after))
        hth_choice_drop(c, c->me); /* it holds that head no more */
    c->tip = link;
    c->phase = HTH_CHOICE_READY;
    bool used = hth_chain_used(c->chain, link, c->me, c->batch);
    c->batch += used;
    return used;
}

void hth_choice_lose(struct hth_choice *c)
{
    c->tip = c->accepted = c->refused = HTH_LINK_NONE;
    c->promised = c->accepted_n = 0;
    c->phase = HTH_CHOICE_FETCH;
    clear_table(c, (struct hth_ballot){.base = HTH_LINK_NONE});
}

void hth_choice_fail(struct hth_choice *c)
{
    c->promised++;
    c->phase = HTH_CHOICE_READY;
}

void hth_choice_refuse(struct hth_choice *c)
{
    HTH_ASSERT(c->phase == HTH_CHOICE_ROUND);
    c->refused = c->tip;
    c->refused_n = c->promised;
    c->yields_n = c->promised + 2 * hth_chain_voters(c->chain, hth_choice_now(c).base).callers;
    hth_choice_fail(c);
}

bool hth_choice_refuses(const struct hth_choice *c, uint32_t link)
{
    const struct hth_chain_link *at = hth_chain_at(c->chain, link);
    return c->refused != HTH_LINK_NONE && at->prev == c->refused && at->ballot <= c->refused_n;
}

static bool may_yield(const struct hth_choice *c)
{
    return c->refused != HTH_LINK_NONE && c->promised > c->yields_n;
}

bool hth_choice_shuns(const struct hth_choice *c, uint32_t link)
{
    return c->phase == HTH_CHOICE_WAIT && hth_choice_refuses(c, link) && !may_yield(c);
}

bool hth_choice_prefers(const struct hth_choice *c, uint32_t link)
{
    return hth_chain_better(c->chain, link, c->tip) && !hth_choice_refuses(c, link);
}

void hth_choice_again(struct hth_choice *c)
{
    HTH_ASSERT(c->phase == HTH_CHOICE_WAIT);
    c->phase = HTH_CHOICE_READY;
}

/* The table need not be kept: who has sent a ballot's GO has promised a later one since. */
struct hth_vote hth_choice_vote(const struct hth_choice *c)
{
    HTH_ASSERT(c->phase != HTH_CHOICE_ROUND);
    return (struct hth_vote){c->tip, c->promised, c->accepted, c->accepted_n, c->batch};
}

void hth_choice_resume(struct hth_choice *c, const struct hth_vote *vote)
{
    HTH_ASSERT(c->tip == HTH_LINK_NONE && vote->tip != HTH_LINK_NONE);
    c->tip = vote->tip;
    c->promised = vote->promised;
    c->accepted = vote->accepted;
    c->accepted_n = vote->accepted_n;
    c->batch = vote->batch;
    c->phase = HTH_CHOICE_READY;
}

void hth_choice_leave(struct hth_choice *c)
{
    if (c->leave == HTH_CHOICE_STAYS)
        c->leave = HTH_CHOICE_LEAVES;
}

uint16_t hth_choice_ready(struct hth_choice *c, struct hth_ready *out)
{
    HTH_ASSERT(c->phase == HTH_CHOICE_READY);
    bool is_first = hth_chain_at(c->chain, c->tip)->kind == HTH_LINK_GENESIS;
    if (c->leave == HTH_CHOICE_LEAVES && !is_first &&
        !hth_chain_votes(c->chain, hth_chain_base(c->chain, c->tip), c->me))
        c->leave = HTH_CHOICE_LEFT;
    c->phase = HTH_CHOICE_WAIT;
    *out = (struct hth_ready){.member = c->me,
                              .ballot = hth_choice_now(c),
                              .head = c->tip,
                              .accepted = c->accepted,
                              .accepted_n = c->accepted_n,
                              .batch = c->batch,
                              .samples = c->samples,
                              .leaves = c->leave != HTH_CHOICE_STAYS};
    return caller_now(c);
}

/* ---- messages ----------------------------------------------------------------------------- */

/* Members without a vote may fill the table, and keep no voter out. */
static void make_room(struct hth_choice *c)
{
    uint32_t at = 0;
    while (c->seats == c->capacity && at < c->seats)
        if (hth_chain_votes(c->chain, c->ballot.base, c->seat[at].member))
            at++;
        else
            hth_choice_drop(c, c->seat[at].member);
}

enum hth_choice_answer hth_choice_hear_ready(struct hth_choice *c, uint16_t from,
                                             const struct hth_ready *ready)
{
    struct hth_ballot now = hth_choice_now(c);
    if (hth_choice_caller(c->chain, &ready->ballot) != c->me)
        return HTH_CHOICE_NOT_ME;
    if (c->tip != HTH_LINK_NONE && !is_same(&now, &ready->ballot) &&
        !hth_choice_prefers(c, ready->head))
        return HTH_CHOICE_BEHIND;
    bool same = is_same(&c->ballot, &ready->ballot);
    bool votes = hth_chain_votes(c->chain, ready->ballot.base, from);
    bool led = same && (c->gone_out || has_voter(c));
    if (is_far(c, &ready->ballot, HTH_BALLOT_JUMP) ||
        (led && !votes && ready->ballot.n > c->ballot.n))
        return HTH_CHOICE_FAR;
    if (same && c->ballot.n > ready->ballot.n && (led || !votes))
        return HTH_CHOICE_LATER;
    if (!same || c->ballot.n != ready->ballot.n)
        clear_table(c, ready->ballot);
    bool calls = from == c->me && ready->ballot.n > 0 && !is_seated(c, from);
    if (votes && !is_seated(c, from))
        make_room(c);
    struct hth_ready *seat = take_seat(c, from);
    if (seat == NULL)
        return HTH_CHOICE_NOT_ME;
    *seat = *ready;
    seat->member = from;
    return calls ? HTH_CHOICE_CALLS : HTH_CHOICE_TAKEN;
}

void hth_choice_drop(struct hth_choice *c, uint16_t member)
{
    const struct hth_ready *seat = seat_of(c, member);
    if (seat == NULL)
        return;
    size_t at = (size_t)(seat - c->seat);
    c->seats--;
    memmove(&c->seat[at], &c->seat[at + 1], (c->seats - at) * sizeof(c->seat[0]));
    memset(&c->seat[c->seats], 0, sizeof(c->seat[0]));
}

bool hth_choice_hear_call(struct hth_choice *c, const struct hth_ballot *ballot)
{
    struct hth_ballot now = hth_choice_now(c);
    if (c->phase != HTH_CHOICE_WAIT || !is_same(&now, ballot) || ballot->n <= c->promised ||
        is_far(c, ballot, HTH_CALL_JUMP))
        return false;
    c->promised = ballot->n;
    c->phase = HTH_CHOICE_READY;
    return true;
}

static void enter(struct hth_choice *c, uint32_t head, uint32_t n)
{
    c->promised = c->accepted_n = n;
    c->accepted = head;
    c->phase = HTH_CHOICE_ROUND;
}

bool hth_choice_hear_go(struct hth_choice *c, uint32_t head, uint32_t n)
{
    if (c->phase != HTH_CHOICE_WAIT || c->tip != head || n < c->promised)
        return false;
    enter(c, head, n);
    return true;
}

bool hth_choice_is_due(const struct hth_choice *c, uint16_t member)
{
    const struct hth_roll *entry = hth_chain_entry(c->chain, c->tip, member);
    return hth_chain_votes(c->chain, hth_chain_base(c->chain, c->tip), member) ||
           (entry != NULL && entry->marks & HTH_ROLL_IN);
}

static bool hears_quorum(const struct hth_choice *c, const uint64_t *hears)
{
    return hth_chain_quorum(c->chain, hth_chain_base(c->chain, c->tip), hth_members_has, hears);
}

bool hth_choice_may_call(const struct hth_choice *c, const uint64_t *hears)
{
    return c->tip != HTH_LINK_NONE &&
           (hth_chain_opts(c->chain)->eventual || hears_quorum(c, hears));
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* A later ballot whose caller it hears; 0: there is none. */
static uint32_t next_ballot(const struct hth_choice *c, const uint64_t *hears)
{
    struct hth_ballot next = hth_choice_now(c);
    uint32_t callers = hth_chain_voters(c->chain, next.base).callers;
    for (uint32_t i = 0; i < callers; i++) {
        next.n++;
        uint16_t caller = hth_choice_caller(c->chain, &next);
        if (caller == c->me || hth_members_has(hears, caller))
            return next.n;
    }
    return 0;
}

static uint32_t count_voters(const struct hth_choice *c, uint32_t head)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->seats; i++)
        n +=
            c->seat[i].head == head && hth_chain_votes(c->chain, c->ballot.base, c->seat[i].member);
    return n;
}

static bool is_smaller(const struct hth_choice *c, uint32_t a, uint32_t b)
{
    return memcmp(hth_chain_head(c->chain, a), hth_chain_head(c->chain, b),
                  sizeof(struct hth_hash)) < 0;
}

/* The head that voters accepted in the latest ballot; else the one that most hold, then the smaller
 * one; none without voters. */
static uint32_t best_head(const struct hth_choice *c)
{
    uint32_t best = HTH_LINK_NONE, latest = 0, most = 0;
    for (uint32_t i = 0; i < c->seats; i++) {
        const struct hth_ready *seat = &c->seat[i];
        if (seat->accepted != HTH_LINK_NONE &&
            hth_chain_votes(c->chain, c->ballot.base, seat->member) &&
            (best == HTH_LINK_NONE || seat->accepted_n > latest)) {
            best = seat->accepted;
            latest = seat->accepted_n;
        }
    }
    if (best != HTH_LINK_NONE)
        return best;
    for (uint32_t i = 0; i < c->seats; i++) {
        uint32_t head = c->seat[i].head;
        if (i > 0 && head == c->seat[i - 1].head) /* it was counted */
            continue;
        uint32_t n = count_voters(c, head);
        if (n > most || (n > 0 && n == most && is_smaller(c, head, best))) {
            most = n;
            best = head;
        }
    }
    return best;
}

static bool seats_are_quorum(const struct hth_choice *c)
{
    return hth_chain_quorum(c->chain, c->ballot.base, is_seated, c);
}

uint32_t hth_choice_pick(const struct hth_choice *c, enum hth_choice_time time)
{
    bool forks = time >= HTH_CHOICE_ALONE && hth_chain_opts(c->chain)->eventual;
    bool open = c->ballot.base != HTH_LINK_NONE && (forks || seats_are_quorum(c));
    return open ? best_head(c) : HTH_LINK_NONE;
}

/* Whether it is this member's to send the ballot's GO, on top of its tip. */
static bool may_go(const struct hth_choice *c, bool fork)
{
    struct hth_ballot now = hth_choice_now(c);
    if (c->gone_out || !is_same(&now, &c->ballot) || now.n != c->ballot.n ||
        caller_now(c) != c->me || !is_seated(c, c->me) || best_head(c) != c->tip)
        return false;
    struct holders of = {c, c->tip};
    return fork ||
           (seats_are_quorum(c) && hth_chain_quorum(c->chain, c->ballot.base, is_holder, &of));
}

/* Whether a voter who is heard is not READY on this head yet. */
static bool awaits_voter(const struct hth_choice *c, const uint64_t *hears)
{
    struct hth_voters voters = hth_chain_voters(c->chain, c->ballot.base);
    struct holders of = {c, c->tip};
    for (uint32_t i = 0; i < voters.count; i++) {
        uint16_t voter = voters.member[i];
        const struct hth_roll *entry = hth_chain_entry(c->chain, c->tip, voter);
        bool leaves = entry != NULL && entry->marks & HTH_ROLL_LEFT;
        if (voter != c->me && !leaves && hth_members_has(hears, voter) && !is_holder(&of, voter))
            return true;
    }
    return false;
}

unsigned hth_choice_open(const struct hth_choice *c, const uint64_t *hears,
                         enum hth_choice_time time)
{
    if (c->phase != HTH_CHOICE_WAIT)
        return 0;
    unsigned open = 0;
    bool forks = hth_chain_opts(c->chain)->eventual;
    struct hth_ballot now = hth_choice_now(c);
    uint16_t caller = caller_now(c);
    bool lost = caller != c->me && (caller == HTH_MEMBER_NONE || !hth_members_has(hears, caller));
    if (lost && next_ballot(c, hears) > 0)
        open |= HTH_CHOICE_PASS;
    if (is_same(&now, &c->ballot) && c->ballot.n > c->promised && (lost || seats_are_quorum(c)))
        open |= HTH_CHOICE_OVER;
    if (may_go(c, false))
        open |= HTH_CHOICE_GO;
    if (may_yield(c) && time >= HTH_CHOICE_SILENT)
        open |= HTH_CHOICE_YIELD;
    bool calls = time >= (hears_quorum(c, hears) ? HTH_CHOICE_SILENT : HTH_CHOICE_ALONE);
    if (calls && may_call(c) && hth_choice_may_call(c, hears))
        open |= HTH_CHOICE_CALL;
    /* Others in the tip's roll may hold another link, which nobody who lives can prove here. */
    if (time >= HTH_CHOICE_ALONE && forks && may_go(c, true) && !awaits_voter(c, hears))
        open |= HTH_CHOICE_FORK;
    return open;
}

void hth_choice_make(struct hth_choice *c, enum hth_choice_move move, const uint64_t *hears,
                     struct hth_choice_go *go)
{
    struct hth_ballot now = hth_choice_now(c);
    switch (move) {
    case HTH_CHOICE_PASS:
        c->promised = next_ballot(c, hears);
        break;
    case HTH_CHOICE_OVER:
        c->promised = c->ballot.n;
        break;
    case HTH_CHOICE_YIELD:
        c->refused = HTH_LINK_NONE;
        break;
    case HTH_CHOICE_CALL:
        if (is_same(&now, &c->ballot))
            c->promised = HTH_MAX(c->promised, c->ballot.n);
        do
            c->promised++;
        while (caller_now(c) != c->me);
        break;
    case HTH_CHOICE_GO:
    case HTH_CHOICE_FORK:
        *go = (struct hth_choice_go){c->tip, c->ballot.n, move == HTH_CHOICE_FORK};
        c->gone_out = 1;
        enter(c, go->head, go->n);
        return;
    }
    c->phase = HTH_CHOICE_READY;
}

/* ---- a round's lists and links --------------------------------------------------------------- */

uint32_t hth_choice_list(const struct hth_choice *c, uint32_t head, struct hth_roll *roll)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->seats; i++) {
        const struct hth_ready *seat = &c->seat[i];
        if (seat->head == head && seat->samples > 0)
            roll[n++] = (struct hth_roll){.member = seat->member,
                                          .marks = seat->leaves ? HTH_ROLL_LEFT : 0,
                                          .batch = seat->batch,
                                          .samples = seat->samples};
    }
    return n;
}

bool hth_choice_link(const struct hth_chain *chain, const struct hth_choice_go *go,
                     struct hth_roll *roll, uint32_t count, struct hth_chain_link *link)
{
    const unsigned stays = HTH_ROLL_IN | HTH_ROLL_LEFT | HTH_ROLL_CLIENT;
    uint32_t kept = 0, in = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool whole = roll[i].marks & HTH_ROLL_IN;
        if (!(roll[i].marks & (HTH_ROLL_IN | HTH_ROLL_PART)))
            continue;
        roll[kept] = roll[i];
        roll[kept++].marks = whole ? roll[i].marks & stays : HTH_ROLL_PART;
        in += whole;
    }
    *link = (struct hth_chain_link){.step = hth_chain_at(chain, go->head)->step + 1,
                                    .prev = go->head,
                                    .ballot = go->n,
                                    .roll = roll,
                                    .count = kept};
    bool enough = hth_chain_enough(chain, link);
    link->kind = enough ? HTH_LINK_STEP : HTH_LINK_FORK;
    return enough || (go->fork && in > 0);
}
