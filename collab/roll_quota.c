/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/roll_int.h"

#include "core/limits.h"

#include <string.h>

#define STRANGERS_ONE_IN 20
#define TRUST_ONE_IN     40 /* of the time, and */
#define TRUST_MAX        (250 * HTH_US_PER_MS)
#define COMING_US        HTH_US_PER_S /* to fetch a head */
#define VOTE_LATER       4            /* 1/4 */
#define PLAN_MAX         (2 * HTH_ROLL_MEMBERS_MAX)

static struct mate *me(const struct hth_roll_call *roll)
{
    return &roll->mate[roll_me(roll)];
}

static uint32_t base_of(const struct hth_brings *brings)
{
    return brings->samples + brings->air; /* each at most HTH_ROLL_SAMPLES_MAX */
}

/* Nothing is in the air, and no other micro-batch fits into the quota. */
static bool is_done(const struct mate *mate)
{
    const struct hth_brings *b = &mate->brings;
    return b->air == 0 &&
           (b->each_us == HTH_BRINGS_NO_MORE || (uint64_t)b->samples + b->grain > mate->quota);
}

/* ---- as a member ---------------------------------------------------------------------------- */

uint32_t hth_roll_quota(const struct hth_roll_call *roll)
{
    const struct hth_choice *c = roll->choice;
    if (c->tip == HTH_LINK_NONE || c->phase == HTH_CHOICE_ROUND || c->leave == HTH_CHOICE_LEFT)
        return 0;
    return me(roll)->quota;
}

bool roll_is_done(const struct hth_roll_call *roll)
{
    return is_done(me(roll));
}

void roll_brings(struct hth_roll_call *roll, uint16_t member, const struct hth_brings *brings,
                 bool first)
{
    struct mate *mate = &roll->mate[member];
    int64_t now = hth_now_us(roll->env);
    bool landed = brings->samples > mate->brings.samples;
    mate->brings = *brings;
    mate->said_us = now;
    if (brings->each_us > 0 && brings->each_us != HTH_BRINGS_NO_MORE)
        mate->each_us = brings->each_us;
    if (first || landed)
        mate->lands_us = now + brings->lands_us + (brings->air > 0 ? 0 : mate->each_us);
    mate->stalled = mate->stalled && !landed;
    mate->quota = HTH_MAX(mate->quota, base_of(brings));
}

int64_t roll_rtt_us(const struct hth_roll_call *roll, uint16_t member)
{
    struct hth_rpc_peer_info info;
    const struct hth_peer_id *id = hth_chain_id(roll->chain, member);
    return hth_rpc_peer_info(roll->rpc, id, &info) == HTH_OK ? info.rtt_us : 0;
}

struct hth_brings roll_brings_now(const struct hth_roll_call *roll)
{
    struct hth_brings b = me(roll)->brings;
    b.lands_us = HTH_MAX(b.lands_us - (hth_now_us(roll->env) - me(roll)->said_us), 0);
    if (roll->choice->leave == HTH_CHOICE_LEFT)
        b.each_us = HTH_BRINGS_NO_MORE;
    return b;
}

void hth_roll_bring(struct hth_roll_call *roll, const struct hth_brings *brings)
{
    struct hth_brings b = *brings;
    b.samples = HTH_MIN(b.samples, HTH_ROLL_SAMPLES_MAX);
    b.air = HTH_MIN(b.air, HTH_ROLL_SAMPLES_MAX);
    b.grain = HTH_MAX(HTH_MIN(b.grain, HTH_AVG_GRAIN_MAX), 1u);
    b.lands_us = HTH_MIN(HTH_MAX(b.lands_us, 0), UINT32_MAX);
    roll->choice->samples = b.samples;
    roll_brings(roll, roll_me(roll), &b, false);
    if (roll->first)
        me(roll)->quota = HTH_MAX(base_of(&b), b.grain);
    roll->more = true;
    hth_timer_set(roll->env, roll->timer, 0);
}

void roll_take_quota(struct hth_roll_call *roll, uint32_t quota)
{
    uint32_t before = me(roll)->quota;
    roll->first = false;
    me(roll)->quota = HTH_MAX(quota, base_of(&me(roll)->brings));
    if (me(roll)->quota > before)
        roll->ops.more(roll->arg);
}

/* Of the last rolls, up to the tip, those that have a member: who misses a step stays known. */
static void count_deeds(struct hth_roll_call *roll)
{
    uint32_t at = roll->choice->tip;
    for (uint32_t i = 0; i < roll->mates_max; i++)
        roll->mate[i].deeds = 0;
    for (uint32_t k = hth_chain_opts(roll->chain)->window; k > 0 && at != HTH_LINK_NONE; k--) {
        const struct hth_chain_link *link = hth_chain_at(roll->chain, at);
        for (uint32_t i = 0; i < link->count; i++) {
            struct mate *mate = &roll->mate[link->roll[i].member];
            mate->deeds += link->roll[i].marks & HTH_ROLL_IN && link->step >= mate->deeds_from;
        }
        at = link->prev;
    }
}

void roll_begin_quota(struct hth_roll_call *roll, bool known, uint32_t quota)
{
    struct hth_brings *b = &me(roll)->brings;
    for (uint32_t i = 0; i < roll->mates_max; i++)
        roll->mate[i].stalled = false;
    count_deeds(roll);
    roll->first = !known && me(roll)->each_us == 0;
    me(roll)->quota = HTH_MAX(base_of(b), known ? quota : roll->first ? b->grain : 0);
    roll_brings(roll, roll_me(roll), b, true);
}

/* ---- a caller's plan ------------------------------------------------------------------------ */

/* Those that a caller plans with: READY on its tip (here), or due and not lost, or on their way. */
struct plan {
    uint32_t n;
    bool missing; /* somebody who is due is not here */
    uint16_t member[PLAN_MAX];
    bool here[PLAN_MAX];
    bool counts[PLAN_MAX]; /* what it will bring */
    struct hth_brings in[PLAN_MAX];
    uint32_t quota[PLAN_MAX];
};

static bool is_here(const struct hth_choice *c, uint16_t member)
{
    for (uint32_t i = 0; i < c->seats; i++)
        if (c->seat[i].member == member)
            return c->seat[i].head == c->tip;
    return false;
}

/* It votes once more, and nobody waits for that. */
static bool has_left(const struct hth_roll_call *roll, uint16_t member)
{
    const struct hth_roll *entry = hth_chain_entry(roll->chain, roll->choice->tip, member);
    return entry != NULL && entry->marks & HTH_ROLL_LEFT;
}

/* Micro-batches that a member begins before it can hear of a lower quota count as in the air. */
static void commit(struct hth_brings *b, const struct mate *mate)
{
    int64_t each = HTH_MAX(b->each_us, 1), left_us = mate->rtt_us - b->lands_us;
    int64_t room = ((int64_t)HTH_MAX(mate->quota, mate->told) - base_of(b)) / b->grain;
    if (b->each_us == HTH_BRINGS_NO_MORE || left_us < 0 || room <= 0)
        return;
    int64_t more = HTH_MIN(room, left_us / each + 1);
    b->air += (uint32_t)more * b->grain;
    b->lands_us += more * each;
}

/* One that keeps to its quota begins the next micro-batch when one has landed; one that is done
 * begins when it hears of more. */
static struct hth_brings expected(const struct hth_roll_call *roll, uint16_t member, bool here)
{
    const struct mate *mate = &roll->mate[member];
    struct hth_brings b = {.grain = HTH_MAX(mate->brings.grain, 1u), .each_us = mate->each_us};
    if (!here)
        return b;
    b = mate->brings;
    if (b.each_us != HTH_BRINGS_NO_MORE)
        b.each_us = mate->each_us;
    b.lands_us -= hth_now_us(roll->env) - mate->said_us;
    if (is_done(mate))
        b.lands_us = mate->rtt_us;
    else if (member != roll_me(roll))
        commit(&b, mate);
    return b;
}

/* A member counts that has half as many deeds as any other here. */
static void tell_strangers(const struct hth_roll_call *roll, const uint16_t *member, uint32_t n,
                           bool *counts)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = HTH_MAX(most, roll->mate[member[i]].deeds);
    for (uint32_t i = 0; i < n; i++)
        counts[i] = 2 * roll->mate[member[i]].deeds >= most;
}

/* It was in the last round, or READY with an older head, and fetches this one. */
static bool is_coming(const struct hth_roll_call *roll, uint16_t member)
{
    int64_t at = roll->mate[member].coming_us;
    const struct hth_roll *entry = hth_chain_entry(roll->chain, roll->choice->tip, member);
    return (at != 0 && hth_now_us(roll->env) - at < COMING_US) ||
           (entry != NULL && entry->marks & HTH_ROLL_IN && !(entry->marks & HTH_ROLL_LEFT));
}

bool roll_comes_soon(const struct hth_roll_call *roll, uint32_t head)
{
    uint64_t step = hth_chain_at(roll->chain, roll->choice->tip)->step;
    uint64_t lacks = step - HTH_MIN(hth_chain_at(roll->chain, head)->step, step);
    return lacks <= 1 ||
           (roll->step_us > 0 && lacks <= (uint64_t)(roll->opts.silence_us / roll->step_us));
}

/* Whether a member that has brought nothing is left out of the list, because others like it cost
 * the rounds too much. */
static bool is_held_back(struct hth_roll_call *roll, uint16_t member);

/* Those READY on the tip that a list may have: of members that were in no roll yet half a line, or
 * as many as were in the last roll. A line does without those that bring nothing, and its marks
 * tell who they are; a grid with lines of them fails. In each ballot it is others' turn. */
static void mark_here(struct hth_roll_call *roll)
{
    const struct hth_choice *c = roll->choice;
    uint32_t room = HTH_MAX(hth_chain_at(roll->chain, c->tip)->count, HTH_ROLL_LINE_MAX / 2);
    uint32_t first = 0;
    uint32_t begin = (c->tip + c->ballot.n) * room % hth_chain_members(roll->chain);
    while (first < c->seats && c->seat[first].member < begin)
        first++;
    for (uint32_t i = 0; i < c->seats; i++) {
        const struct hth_ready *seat = &c->seat[(first + i) % c->seats];
        bool known = seat->member == c->me || roll->mate[seat->member].known ||
                     hth_choice_is_due(c, seat->member);
        if (seat->head != c->tip || is_held_back(roll, seat->member) || (!known && room == 0))
            continue;
        room -= !known;
        hth_members_put(roll->here, seat->member);
    }
}

/* Marks those that a plan may have: any number of keys is passed over quickly. */
static void mark(struct hth_roll_call *roll)
{
    const struct hth_choice *c = roll->choice;
    size_t bytes = (roll->mates_max + 63) / 64 * sizeof(uint64_t);
    memset(roll->here, 0, bytes);
    memset(roll->due, 0, bytes);
    struct hth_voters voters = hth_chain_voters(roll->chain, hth_chain_base(roll->chain, c->tip));
    const struct hth_chain_link *tip = hth_chain_at(roll->chain, c->tip);
    mark_here(roll);
    for (uint32_t i = 0; i < voters.count; i++)
        hth_members_put(roll->due, voters.member[i]);
    for (uint32_t i = 0; i < tip->count; i++)
        if (tip->roll[i].marks & HTH_ROLL_IN)
            hth_members_put(roll->due, tip->roll[i].member);
}

static void fill(struct hth_roll_call *roll, struct plan *p)
{
    mark(roll);
    p->n = 0;
    p->missing = false;
    for (uint16_t i = 0; i < hth_chain_members(roll->chain) && p->n < PLAN_MAX; i++) {
        bool here = hth_members_has(roll->here, i), due = hth_members_has(roll->due, i);
        if ((!here && !due && roll->mate[i].coming_us == 0) || roll->mate[i].lost ||
            is_held_back(roll, i))
            continue;
        due = due && !here && !has_left(roll, i);
        if (!here && !due && !is_coming(roll, i))
            continue;
        p->member[p->n] = i;
        p->here[p->n] = here;
        p->in[p->n++] = expected(roll, i, here);
        p->missing |= due && !roll->mate[i].stalled;
    }
    tell_strangers(roll, p->member, p->n, p->counts);
    for (uint32_t i = 0; i < p->n; i++)
        p->counts[i] &= !roll->mate[p->member[i]].stalled;
}

/* Of those that do not count what has landed counts, and no more. */
static void without(const struct hth_brings *in, const bool *counts, uint32_t n,
                    struct hth_brings *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = in[i];
        if (!counts[i]) {
            out[i].air = 0;
            out[i].each_us = HTH_BRINGS_NO_MORE;
        }
    }
}

/* How long a member has had nothing to show, or will have. */
static int64_t late_us(const struct hth_roll_call *roll, uint16_t member, bool here)
{
    const struct mate *mate = &roll->mate[member];
    int64_t now = hth_now_us(roll->env);
    if (!here)
        return now - roll->since_us;
    if (is_done(mate))
        return 0;
    int64_t left = mate->brings.air > 0 ? mate->said_us + mate->brings.lands_us - now : 0;
    return HTH_MAX(left, now - mate->lands_us);
}

/* In which the fastest of those that count would land another micro-batch. */
static int64_t another_us(const struct plan *p)
{
    int64_t least = INT64_MAX;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->counts[i] && p->in[i].each_us > 0 && p->in[i].each_us != HTH_BRINGS_NO_MORE)
            least = HTH_MIN(least, HTH_MAX(p->in[i].lands_us, 0) + p->in[i].each_us);
    return least == INT64_MAX ? 0 : least;
}

static void find_stalled(struct hth_roll_call *roll, struct plan *p)
{
    struct hth_brings in[PLAN_MAX];
    bool prompt[PLAN_MAX], all = true;
    for (uint32_t i = 0; i < p->n; i++) {
        bool late = late_us(roll, p->member[i], p->here[i]) > roll->opts.window_us;
        prompt[i] = p->counts[i] && !late;
        all &= prompt[i] || !p->counts[i];
    }
    without(p->in, prompt, p->n, in);
    if (all || !hth_quota(in, p->n, roll->opts.target, p->quota))
        return;
    int64_t part_us = hth_quota_closes_us(in, p->n, p->quota);
    int64_t limit = roll->opts.window_us + HTH_MAX(part_us, another_us(p));
    for (uint32_t i = 0; i < p->n; i++) {
        struct mate *mate = &roll->mate[p->member[i]];
        if (prompt[i] || !p->counts[i] || late_us(roll, p->member[i], p->here[i]) <= limit)
            continue;
        p->counts[i] = false;
        mate->stalled = true;
        mate->deeds = 0;
        mate->deeds_from = hth_chain_at(roll->chain, roll->choice->tip)->step + 2;
    }
}

/* Strangers bring what lands until the others could be done with them, the others all of it. */
static void plan_for(const struct hth_brings *in, const bool *counts, uint32_t n, uint64_t target,
                     uint32_t *quota)
{
    uint32_t with[PLAN_MAX];
    struct hth_brings sure[PLAN_MAX];
    bool late = false, reached = hth_quota(in, n, target, with);
    without(in, counts, n, sure);
    reached |= hth_quota(sure, n, target, quota);
    int64_t end_us = hth_quota_closes_us(sure, n, quota);
    for (uint32_t i = 0; i < n; i++) {
        if (counts[i] || in[i].air == 0 || in[i].lands_us <= end_us)
            continue;
        sure[i].samples = 0; /* it would be late for the round */
        late = true;
    }
    reached |= late && hth_quota(sure, n, target, quota);
    (void)reached; /* else quotas are what there is, and nobody goes */
    for (uint32_t i = 0; i < n; i++)
        if (!counts[i])
            quota[i] = with[i];
}

/* Samples that a member can bring within the quota that it has. */
static uint32_t fits(const struct hth_roll_call *roll, const struct plan *p, uint32_t i)
{
    const struct hth_brings *b = &p->in[i];
    uint32_t base = base_of(b), quota = roll->mate[p->member[i]].quota;
    if (!p->counts[i] || !p->here[i])
        return b->samples;
    if (b->each_us == HTH_BRINGS_NO_MORE || quota < base)
        return base;
    return base + (quota - base) / b->grain * b->grain;
}

/* When those that count have brought so much. */
static int64_t closes_us(const struct plan *p, const uint32_t *quota)
{
    struct hth_brings in[PLAN_MAX];
    uint32_t sure[PLAN_MAX];
    without(p->in, p->counts, p->n, in);
    for (uint32_t i = 0; i < p->n; i++)
        sure[i] = p->counts[i] ? quota[i] : 0;
    return hth_quota_closes_us(in, p->n, sure);
}

static bool has_quota(const void *ctx, uint16_t member)
{
    const struct plan *p = ctx;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->member[i] == member)
            return p->quota[i] > 0;
    return false;
}

/* A member without samples is in no round. The caller has to be in it, and a quorum; and all those
 * that make a micro-batch in no more than a quarter more than the time of a step. */
static void add_votes(const struct hth_roll_call *roll, uint32_t base, int64_t spent_us,
                      struct plan *p)
{
    int64_t step_us = spent_us + closes_us(p, p->quota);
    bool quorum = hth_chain_quorum(roll->chain, base, has_quota, p);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct hth_brings *b = &p->in[i];
        bool fast = b->each_us <= step_us + step_us / VOTE_LATER;
        if (p->quota[i] == 0 && b->each_us != HTH_BRINGS_NO_MORE &&
            (fast || !quorum || p->member[i] == roll_me(roll)))
            p->quota[i] = b->grain;
    }
}

/* Whether the quotas that members have are as good as the new ones: what is known of the others is
 * as old as the difference. */
static bool keep_quotas(const struct hth_roll_call *roll, const struct plan *p)
{
    uint32_t has[PLAN_MAX], grain = 1;
    uint64_t sum = 0, planned = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        has[i] = fits(roll, p, i);
        sum += has[i];
        planned += p->quota[i];
        grain = HTH_MAX(grain, p->in[i].grain);
    }
    return sum >= roll->opts.target && sum < HTH_MAX(roll->opts.target + grain, planned + 1) &&
           closes_us(p, has) <= closes_us(p, p->quota) + SAY_US;
}

/* `keep`: of those that have a quota. Others get one micro-batch then. */
static void set_quotas(struct hth_roll_call *roll, const struct plan *p, bool keep)
{
    for (uint32_t i = 0; i < p->n; i++) {
        struct mate *mate = &roll->mate[p->member[i]];
        bool done = is_done(mate);
        if (!p->here[i] || (keep && mate->quota > 0))
            continue;
        uint32_t quota = keep ? HTH_MIN(p->quota[i], p->in[i].grain) : p->quota[i];
        mate->quota = HTH_MAX(mate->stalled ? 0 : quota, base_of(&mate->brings));
        if (done && !is_done(mate)) /* it begins */
            mate->lands_us = hth_now_us(roll->env) + mate->each_us;
    }
}

/* It is done, and knows it: one that goes by a larger quota may have begun another micro-batch,
 * which would be late for the round. */
static bool has_ended(const struct hth_roll_call *roll, uint16_t member)
{
    struct mate mate = roll->mate[member];
    if (member != roll_me(roll))
        mate.quota = HTH_MAX(mate.quota, mate.told);
    return is_done(&mate);
}

static enum roll_awaits awaited(const struct hth_roll_call *roll, const struct plan *p)
{
    enum roll_awaits awaits = ROLL_AWAITS_NONE;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct mate *mate = &roll->mate[p->member[i]];
        if (mate->stalled || (p->here[i] && has_ended(roll, p->member[i])))
            continue;
        if (p->counts[i])
            return ROLL_AWAITS_MEMBERS;
        if (p->here[i] || is_coming(roll, p->member[i]))
            awaits = ROLL_AWAITS_STRANGERS;
    }
    return awaits;
}

/* Whether this member calls the ballot that it is in. */
static bool is_calling(const struct hth_roll_call *roll)
{
    const struct hth_choice *c = roll->choice;
    struct hth_ballot now = hth_choice_now(c);
    return c->phase == HTH_CHOICE_WAIT && hth_choice_caller(roll->chain, &now) == c->me &&
           c->ballot.base == now.base && c->ballot.step == now.step && c->ballot.n == now.n &&
           !c->gone_out && is_here(c, c->me) && hth_choice_may_call(c, roll->hears);
}

bool roll_plan(struct hth_roll_call *roll)
{
    struct plan p;
    roll->awaits = ROLL_AWAITS_MEMBERS;
    roll->missing = false;
    if (!is_calling(roll))
        return false;
    uint32_t before = me(roll)->quota;
    fill(roll, &p);
    find_stalled(roll, &p);
    plan_for(p.in, p.counts, p.n, roll->opts.target, p.quota);
    int64_t spent_us = hth_now_us(roll->env) - roll->since_us;
    add_votes(roll, hth_chain_base(roll->chain, roll->choice->tip), spent_us, &p);
    /* The first READYs of a ballot come one after the other. */
    bool early = p.missing && spent_us < roll->opts.silence_us;
    set_quotas(roll, &p, early || keep_quotas(roll, &p));
    for (uint32_t i = 0; i < p.n; i++) {
        const struct mate *mate = &roll->mate[p.member[i]];
        if (mate->quota != mate->told)
            roll_release_wait(roll, p.member[i]);
    }
    roll->awaits = awaited(roll, &p);
    roll->missing = p.missing;
    roll->first &= me(roll)->quota == before;
    if (me(roll)->quota > before)
        roll->ops.more(roll->arg);
    return true;
}

void roll_plan_next(const struct hth_roll_call *roll, struct hth_ready_reply *go,
                    const struct hth_roll *list)
{
    struct plan p = {.n = go->count};
    for (uint32_t i = 0; i < p.n; i++) {
        const struct mate *mate = &roll->mate[list[i].member];
        p.member[i] = list[i].member;
        p.in[i] = (struct hth_brings){.grain = mate->brings.grain, .each_us = mate->each_us};
    }
    tell_strangers(roll, p.member, p.n, p.counts);
    plan_for(p.in, p.counts, p.n, roll->opts.target, p.quota);
    add_votes(roll, roll->go.head, 0, &p); /* whose voters choose what follows */
    for (uint32_t i = 0; i < p.n; i++)
        go->peer[i].next = p.quota[i];
}

/* ---- GO ------------------------------------------------------------------------------------ */

/* Samples of a list, as this caller's table has them. */
static uint64_t samples_here(struct hth_roll_call *roll)
{
    const struct hth_choice *c = roll->choice;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->seats; i++)
        if (hth_members_has(roll->here, c->seat[i].member))
            sum += c->seat[i].samples;
    return sum;
}

bool roll_is_full(struct hth_roll_call *roll)
{
    int64_t now = hth_now_us(roll->env);
    /* Nobody enters a round with nothing to bring, nor does the caller. */
    bool enough = roll->choice->samples > 0 && samples_here(roll) >= roll->opts.target;
    bool strangers = enough && roll->awaits == ROLL_AWAITS_STRANGERS;
    if (!enough || roll->awaits == ROLL_AWAITS_MEMBERS)
        roll->strangers_since_us = 0;
    else if (strangers && roll->strangers_since_us == 0)
        roll->strangers_since_us = now; /* also when they are lost meanwhile: it was for them */
    return enough && (roll->awaits == ROLL_AWAITS_NONE ||
                      (strangers && now >= roll_strangers_until_us(roll)));
}

/* Of those that are not due, one that computes would be late for the round: what it has landed is
 * brought in the next step, unless it is needed. */
void roll_leave_out(struct hth_roll_call *roll)
{
    struct hth_choice *c = roll->choice;
    uint64_t sum = samples_here(roll);
    for (uint32_t i = c->seats; i-- > 0;) {
        const struct hth_ready seat = c->seat[i];
        bool here = hth_members_has(roll->here, seat.member);
        bool late = here && seat.member != c->me && !hth_choice_is_due(c, seat.member) &&
                    !has_ended(roll, seat.member) && sum - seat.samples >= roll->opts.target;
        if (seat.samples == 0 || (here && !late))
            continue;
        sum -= late ? seat.samples : 0;
        hth_choice_drop(c, seat.member);
    }
}

bool roll_has_samples(const struct hth_roll_call *roll, uint16_t member)
{
    const struct hth_choice *c = roll->choice;
    for (uint32_t i = 0; i < c->seats; i++)
        if (c->seat[i].member == member)
            return c->seat[i].head == c->tip && c->seat[i].samples > 0;
    return false;
}

bool roll_is_idle(struct hth_roll_call *roll)
{
    return roll->choice->samples == 0 && roll->awaits != ROLL_AWAITS_MEMBERS &&
           samples_here(roll) >= roll->opts.target;
}

int64_t roll_strangers_until_us(const struct hth_roll_call *roll)
{
    return roll->strangers_since_us + (roll->patience_us < 0 ? 0 : roll->opts.silence_us);
}

void roll_settle(struct hth_roll_call *roll)
{
    int64_t now = hth_now_us(roll->env);
    int64_t waited = roll->strangers_since_us != 0 ? now - roll->strangers_since_us : 0;
    roll->step_us = now - roll->since_us;
    int64_t left = roll->patience_us + roll->step_us / STRANGERS_ONE_IN - waited;
    roll->patience_us = HTH_MIN(left, roll->opts.silence_us);
}

/* ---- rounds with strangers ------------------------------------------------------------------ */

static int64_t left_us(const struct hth_roll_call *roll, const struct trust *t)
{
    return HTH_MIN(t->us + (hth_now_us(roll->env) - t->at_us) / TRUST_ONE_IN, TRUST_MAX);
}

/* Keys are free, so all that were in no roll yet are trusted together. */
static struct trust *trust_in(struct hth_roll_call *roll, uint16_t member)
{
    bool known = member != HTH_MEMBER_NONE && roll->mate[member].known;
    return known ? &roll->mate[member].trust : &roll->trust;
}

static bool is_held_back(struct hth_roll_call *roll, uint16_t member)
{
    return member != roll_me(roll) && left_us(roll, trust_in(roll, member)) < 0 &&
           !hth_choice_is_due(roll->choice, member);
}

void roll_settle_round(struct hth_roll_call *roll, const uint16_t *marks)
{
    int64_t now = hth_now_us(roll->env), cost_us = now - roll->round_us;
    if (marks == NULL) /* it may have failed for another reason */
        cost_us = HTH_MIN(cost_us, 2 * TRUST_MAX);
    for (uint32_t i = 0; i < roll->list.count; i++) {
        const struct hth_roll_peer *p = &roll->list.peer[i];
        uint16_t member = hth_chain_known(roll->chain, &p->id, p->life);
        bool in = marks != NULL && marks[i] & HTH_ROLL_IN;
        /* If it failed, one that was in rolls may have wanted it as much as this member. */
        struct trust *t = trust_in(roll, member);
        if (!p->rests || in || (marks == NULL && t != &roll->trust))
            continue;
        bool nothing = marks != NULL && marks[i] == 0;
        int64_t its_us = nothing ? HTH_MIN(cost_us, 4 * TRUST_MAX) : cost_us;
        int64_t owed_us = t == &roll->trust ? INT64_MAX : nothing ? TRUST_MAX : 2 * TRUST_MAX;
        if (t->at_us != now) /* once for all of them */
            *t = (struct trust){HTH_MAX(left_us(roll, t) - its_us, -owed_us), now};
    }
}
