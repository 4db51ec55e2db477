/* SPDX-License-Identifier: Apache-2.0 */
#include "world_int.h"

#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world world_now;
struct hth_chain *world_chain;
const char *world_violation;
static bool amnesia; /* planted: a life that begins anew has the votes of the one before */

static bool has(int set, int i)
{
    return set >> i & 1;
}
static int count(int set)
{
    return __builtin_popcount((unsigned)set);
}
static struct hth_choice *choice(struct state *s, int m)
{
    return &s->m[m].u.c;
}
static const struct hth_choice *at(const struct state *s, int m)
{
    return &s->m[m].u.c;
}
static const struct hth_chain_link *link_of(uint32_t link)
{
    return hth_chain_at(world_chain, link);
}

/* ---- the text of chain.h, once more ------------------------------------------------------- */

static int roll_of(uint32_t link, unsigned marks)
{
    const struct hth_chain_link *l = link_of(link);
    int set = 0;
    for (uint32_t i = 0; i < l->count; i++)
        set |= (l->roll[i].marks & marks ? 1 : 0) << l->roll[i].member;
    return set;
}

static uint32_t base_of(uint32_t link)
{
    return link_of(link)->kind == HTH_LINK_STEP ? link_of(link)->prev : link;
}

static int rolls(uint32_t link, int i)
{
    int in = roll_of(link, HTH_ROLL_IN), left = roll_of(link, HTH_ROLL_LEFT), w = 0;
    if (!has(in & ~left ? in & ~left : in, i))
        return 0;
    for (int k = 0; k < WINDOW && link != HTH_LINK_NONE; k++, link = link_of(link)->prev)
        w += has(roll_of(link, HTH_ROLL_IN), i);
    return w;
}

static int voters_of(uint32_t base)
{
    int set = 0, most = 0;
    for (int i = 0; i < NM; i++)
        most = HTH_MAX(most, rolls(base, i));
    for (int i = 0; i < NM; i++)
        set |= (rolls(base, i) > 0 && 2 * rolls(base, i) >= most) << i;
    return set;
}

/* Whether a set holds more than half, or just half with the first voter. */
static bool is_quorum(int set, uint32_t base)
{
    int all = count(voters_of(base)), sum = count(voters_of(base) & set);
    struct hth_voters v = hth_chain_voters(world_chain, base);
    return 2 * sum > all || (all > 0 && 2 * sum == all && has(set, v.member[0]));
}

/* ---- who hears whom ----------------------------------------------------------------------- */

static bool exists(const struct state *s, int a)
{
    return s->m[a].up == RUNS || s->m[a].up == FROZEN;
}
static bool reach(const struct state *s, int a, int b)
{
    return s->m[a].up == RUNS && s->m[b].up == RUNS && !has(s->cut[a], b);
}
static bool has_line(const struct state *s, int a, int b)
{
    return !has(s->cut[a], b) && exists(s, b);
}
static uint64_t heard(const struct state *s, int m)
{
    uint64_t set = 0;
    for (int i = 0; i < NM; i++)
        if (i == m || reach(s, m, i))
            hth_members_put(&set, (uint16_t)i);
    return set;
}
static bool same_choice(struct hth_ballot a, struct hth_ballot b)
{
    return a.base == b.base && a.step == b.step;
}
static bool at_end(const struct state *s, int m)
{
    uint32_t tip = at(s, m)->tip;
    return tip != HTH_LINK_NONE && link_of(tip)->step >= (uint64_t)world_now.steps;
}
static bool waits(const struct state *s, int m)
{
    return at(s, m)->phase == HTH_CHOICE_WAIT && !at_end(s, m);
}

/* ---- rounds: who brings values, who takes the mean, who reduces --------------------------- */

static const int column[] = {0x05, 0x0A}, row[] = {0x03, 0x0C};

static struct round *find(struct state *s, uint32_t head, uint32_t n)
{
    for (uint32_t i = 0; i < s->rounds; i++)
        if (s->r[i].head == head && s->r[i].n == n)
            return &s->r[i];
    return NULL;
}
static struct round *round_of(struct state *s, int m)
{
    const struct hth_choice *c = at(s, m);
    return c->phase == HTH_CHOICE_ROUND ? find(s, c->tip, c->promised) : NULL;
}
static bool is_in(const struct state *s, int m, const struct round *r)
{
    const struct hth_choice *c = at(s, m);
    return exists(s, m) && c->phase == HTH_CHOICE_ROUND && c->tip == r->head && c->promised == r->n;
}
static bool may_come(const struct state *s, int m, const struct round *r)
{
    return is_in(s, m, r) || (exists(s, m) && s->m[m].go.head == r->head && s->m[m].go.n == r->n);
}
static int lines_of(void)
{
    return world_now.grid ? 4 : world_now.shares;
}
static int takers(const struct round *r, int k)
{
    return !world_now.grid ? r->list : r->list & (k < 2 ? column[k] : row[k - 2]);
}
static int bringers(const struct round *r, int k)
{
    int who = takers(r, k), cells = who;
    for (int c = 0; world_now.grid && k >= 2 && cells && c < 2; c++)
        if (!(cells & column[c]))
            who |= r->list & column[c];
    return who;
}
static int reducer(const struct round *r, int k)
{
    int t = takers(r, k), skip = world_now.grid || !t ? 0 : (k + (int)r->n) % count(t);
    for (int i = 0; i < NM; i++)
        if (has(t, i) && skip-- == 0)
            return i;
    return -1;
}
static void give(int m, struct round *r, int k)
{
    r->gave[k] |= (uint8_t)(1 << m);
    if (world_now.grid && k >= 2)
        r->value[k] |= r->closed[m & 1]; /* equal means of one column count once */
}
static bool may_close(struct state *s, int m, int k, bool wait)
{
    const struct round *r = round_of(s, m);
    if (r == NULL || reducer(r, k) != m || r->closed[k] || !r->gave[k])
        return false;
    for (int i = 0; i < NM; i++)
        if (wait && has(bringers(r, k) & ~r->gave[k], i) && reach(s, m, i) && may_come(s, i, r))
            return false;
    return true;
}
static bool serves(struct state *s, int m)
{
    for (uint32_t i = 0; i < s->rounds; i++)
        for (int k = 0; k < lines_of(); k++)
            for (int j = 0; j < NM; j++)
                if (reducer(&s->r[i], k) == m && is_in(s, j, &s->r[i]) && reach(s, m, j))
                    return true;
    return false;
}

/* ---- what members do ---------------------------------------------------------------------- */

static void send_call(struct state *s, int from)
{
    uint64_t hears = heard(s, from);
    if (!hth_choice_may_call(at(s, from), &hears))
        return;
    for (int x = 0; x < NM; x++) {
        struct member *y = &s->m[x];
        struct hth_ballot now = hth_choice_now(at(s, from));
        if (x == from || !has_line(s, from, x) || y->u.c.tip == HTH_LINK_NONE)
            continue;
        if (!same_choice(y->call.ballot, now) || y->call.ballot.n < now.n)
            y->call = (struct call){now, (uint64_t)from};
    }
}

static void send_ready(struct state *s, int m)
{
    struct hth_ready ready;
    int to = hth_choice_ready(choice(s, m), &ready);
    if (at_end(s, m) || to == HTH_MEMBER_NONE || (to != m && !has_line(s, m, to)))
        return;
    struct hth_choice *y = choice(s, to);
    switch (hth_choice_hear_ready(y, (uint16_t)m, &ready)) {
    case HTH_CHOICE_CALLS:
        send_call(s, m);
        break;
    case HTH_CHOICE_LATER:
        if (reach(s, m, to))
            hth_choice_hear_call(choice(s, m), &y->ballot);
        break;
    default:
        break;
    }
}

static void begin(struct state *s, int m, struct round *r)
{
    int k = world_now.grid ? m & 1 : 0;
    s->m[m].got = 0;
    r->batch[m] = (uint8_t)at(s, m)->batch;
    if (m == reducer(r, k) || reach(s, m, reducer(r, k)))
        give(m, r, k);
}

/* Whether the member would refuse this GO for ever. */
static bool refuses(const struct member *y, const struct go *go)
{
    struct member copy = *y;
    copy.u.c.phase = HTH_CHOICE_WAIT;
    return !hth_choice_hear_go(&copy.u.c, go->head, go->n);
}

static void post_go(struct member *y, struct go go)
{
    if (!refuses(y, &go))
        y->go = go;
}

static void send_go(struct state *s, int m, enum hth_choice_move move)
{
    struct hth_choice_go go;
    struct hth_roll list[NM];
    uint64_t hears = heard(s, m);
    hth_choice_make(choice(s, m), move, &hears, &go);
    struct round r = {.head = go.head, .n = go.n, .fork = go.fork};
    uint32_t n = hth_choice_list(at(s, m), go.head, list);
    for (uint32_t i = 0; i < n; i++) {
        r.list |= (uint8_t)(1 << list[i].member);
        r.leave |= (uint8_t)((list[i].marks & HTH_ROLL_LEFT ? 1 : 0) << list[i].member);
    }
    if (s->rounds == ROUNDS) {
        world_violation = "bound of rounds";
        return;
    }
    s->r[s->rounds++] = r;
    for (int x = 0; x < NM; x++)
        if (x != m && has(r.list, x) && has_line(s, m, x))
            post_go(&s->m[x], (struct go){go.head, go.n, (uint32_t)m});
    begin(s, m, &s->r[s->rounds - 1]);
}

static bool brought(const struct hth_roll *entry)
{
    return entry->marks & (HTH_ROLL_IN | HTH_ROLL_PART);
}

/* S2 and S5 of a link that was made from these values. */
static void check_link(uint32_t link, const struct hth_chain_link *made)
{
    const struct hth_chain_link *l = link_of(link);
    if (memcmp(&l->mean, &made->mean, sizeof(l->mean)) != 0)
        world_violation = "S5: one head, different bits";
    for (uint32_t a = l->prev; a != HTH_LINK_NONE; a = link_of(a)->prev)
        for (uint32_t i = 0; i < l->count; i++) {
            const struct hth_roll *e = hth_chain_entry(world_chain, a, l->roll[i].member);
            if (e != NULL && e->batch == l->roll[i].batch && brought(e) && brought(&l->roll[i]))
                world_violation = "S2: a batch counts twice";
        }
}

/* S6 of a link on top of a head. */
static void check_refusals(const struct state *s, uint32_t head)
{
    int set = 0;
    for (int i = 0; i < NM; i++)
        set |= (exists(s, i) && hth_choice_refuses(at(s, i), head)) << i;
    if (is_quorum(set, base_of(head)))
        world_violation = "S6: a step on a link that a quorum refuses";
}

/* S6 of a member that yields: without another fault no quorum could go on without the link. */
static void check_yield(const struct state *s, int m)
{
    uint32_t head = at(s, m)->refused;
    int set = 0;
    for (int i = 0; i < NM; i++)
        set |= (at(s, i)->tip == head && at(s, i)->refused == head) << i;
    if (s->faults == 1 && is_quorum(set, head) && is_quorum(set, base_of(head)))
        world_violation = "S6: a member of a quorum that refuses a link yields";
}

/* All means of its lines are here. */
static void finish(struct state *s, int m, const struct round *r)
{
    if (has(r->refuse, m)) {
        hth_choice_refuse(choice(s, m));
        return;
    }
    int all = 0xFF, any = 0;
    for (int k = 0; k < world_now.shares; k++) {
        all &= r->closed[k];
        any |= r->closed[k];
    }
    if (world_now.grid)
        all = any = r->value[2 + (m >> 1)];
    struct hth_roll roll[NM];
    uint32_t n = 0, made;
    for (int i = 0; i < NM; i++)
        if (has(any | r->list, i))
            roll[n++] =
                (struct hth_roll){.member = (uint16_t)i,
                                  .marks = (uint16_t)((has(all, i)   ? HTH_ROLL_IN
                                                       : has(any, i) ? HTH_ROLL_PART
                                                                     : 0) |
                                                      (has(r->leave, i) ? HTH_ROLL_LEFT : 0)),
                                  .batch = r->batch[i],
                                  .samples = 1};
    struct hth_choice_go go = {r->head, r->n, r->fork};
    struct hth_chain_link link;
    if (!hth_choice_link(world_chain, &go, roll, n, &link)) {
        hth_choice_fail(choice(s, m));
        return;
    }
    memcpy(link.mean.b, world_now.grid ? &r->value[2 + (m >> 1)] : r->closed,
           world_now.grid ? 1 : (size_t)world_now.shares);
    if (hth_chain_add(world_chain, &link, &made) != HTH_OK) {
        world_violation = "a link is refused by its makers";
        return;
    }
    check_link(made, &link);
    if (link.kind == HTH_LINK_STEP)
        check_refusals(s, r->head);
    uint32_t *went_on = &s->went_on[link.step - 1];
    if (link.kind == HTH_LINK_STEP && !world_now.eventual && !world_now.genesis) {
        if (*went_on != HTH_LINK_NONE && *went_on != r->head)
            world_violation = "S1: two links of one step both go on";
        *went_on = r->head;
    }
    hth_choice_take(choice(s, m), made);
}

/* ---- events ---------------------------------------------------------------------------------- */

#define NAME(kind) #kind,
static const char *const names[] = {EVENTS(NAME)};

static void add(struct events *out, enum kind kind, int m, int x)
{
    HTH_ASSERT(out->n < HTH_ARRAY_LEN(out->e));
    out->e[out->n++] = (struct event){(uint8_t)kind, (uint8_t)m, (uint8_t)x};
}

static unsigned open_to(const struct state *s, int m, enum hth_choice_time time)
{
    uint64_t hears = heard(s, m);
    return s->m[m].up == RUNS && waits(s, m) ? hth_choice_open(at(s, m), &hears, time) : 0;
}

/* Whether a caller hears one who is due, and not READY on its head yet. */
static bool awaits(const struct state *s, int m)
{
    const struct hth_choice *c = at(s, m);
    int ready = 1 << m | roll_of(c->tip, HTH_ROLL_LEFT);
    for (uint32_t i = 0; i < c->seats; i++)
        ready |= (c->seat[i].head == c->tip) << c->seat[i].member;
    return (voters_of(base_of(c->tip)) | roll_of(c->tip, HTH_ROLL_IN)) & (int)heard(s, m) & ~ready;
}

/* Where the member's caller has its READY, and wants another head: who of them can hand it out. */
static void list_moves(struct state *s, int m, struct events *out)
{
    struct hth_ballot now = hth_choice_now(at(s, m));
    int to = hth_choice_caller(world_chain, &now);
    const struct hth_choice *y = to == HTH_MEMBER_NONE ? NULL : at(s, to);
    if (y == NULL || (to != m && !reach(s, m, to)) || !same_choice(y->ballot, now) ||
        y->ballot.n != now.n)
        return;
    uint32_t pick = hth_choice_pick(y, HTH_CHOICE_ALONE);
    bool seated = false;
    for (uint32_t i = 0; i < y->seats; i++)
        seated |= y->seat[i].member == m;
    if (!seated || pick == HTH_LINK_NONE || pick == at(s, m)->tip ||
        hth_choice_refuses(at(s, m), pick))
        return;
    for (int i = 0; i < NM; i++)
        if (i != m && reach(s, m, i) && at(s, i)->tip == pick) {
            add(out, MOVE, m, i);
            return;
        }
}

static void list_round(struct state *s, int m, struct events *out)
{
    const struct round *r = round_of(s, m);
    for (int k = 0; r != NULL && k < lines_of(); k++) {
        int red = reducer(r, k);
        if (red < 0)
            continue;
        bool there = red == m || reach(s, m, red);
        bool early = world_now.grid && k >= 2 && !has((int)s->m[m].got, m & 1);
        if (has(bringers(r, k) & ~r->gave[k], m) && !r->closed[k] && there && !early)
            add(out, GIVE, m, k);
        if (may_close(s, m, k, true))
            add(out, CLOSE, m, k);
        if (!has(takers(r, k), m) || has((int)s->m[m].got, k))
            continue;
        if (r->closed[k] && there)
            add(out, GET, m, k);
        else if (!there || (red != m && !r->closed[k] && !may_come(s, red, r)))
            add(out, FAIL, m, k);
    }
}

static void list_member(struct state *s, int m, struct events *out)
{
    struct member *x = &s->m[m];
    struct hth_choice *c = &x->u.c;
    if (x->up == CRASHED && amnesia && c->tip != HTH_LINK_NONE)
        add(out, RESTART, m, 0);
    if (x->up == FROZEN)
        add(out, THAW, m, 0);
    if (x->go.head != HTH_LINK_NONE && exists(s, m) && !has_line(s, m, (int)x->go.from))
        add(out, DROPGO, m, 0);
    if (x->call.ballot.base != HTH_LINK_NONE && exists(s, m) && !has_line(s, m, (int)x->call.from))
        add(out, DROPCALL, m, 0);
    if (x->up != RUNS)
        return;
    if (x->go.head != HTH_LINK_NONE)
        add(out, ONGO, m, 0);
    if (x->call.ballot.base != HTH_LINK_NONE && c->phase != HTH_CHOICE_ROUND)
        add(out, ONCALL, m, 0);
    for (int i = 0; i < NM; i++)
        if (c->phase != HTH_CHOICE_ROUND && i != m && reach(s, m, i) &&
            at(s, i)->tip != HTH_LINK_NONE &&
            (c->tip == HTH_LINK_NONE || hth_choice_prefers(c, at(s, i)->tip)))
            add(out, LEARN, m, i);
    if (c->leave == HTH_CHOICE_LEFT && !serves(s, m))
        add(out, EXIT, m, 0);
    if (waits(s, m)) {
        struct hth_ballot now = hth_choice_now(c);
        int to = hth_choice_caller(world_chain, &now);
        if (to != HTH_MEMBER_NONE && to != m && reach(s, m, to) &&
            at(s, to)->tip != HTH_LINK_NONE && hth_choice_shuns(c, at(s, to)->tip))
            add(out, PASSBY, m, to);
        unsigned open = open_to(s, m, HTH_CHOICE_NOW);
        list_moves(s, m, out);
        if (open & HTH_CHOICE_PASS)
            add(out, PASS, m, 0);
        if (open & HTH_CHOICE_OVER)
            add(out, OVER, m, 0);
        if (open & HTH_CHOICE_GO && !awaits(s, m))
            add(out, GO, m, 0);
    }
    list_round(s, m, out);
}

/* Before anybody else has taken the GO: who refuses shows only once all means are there. */
static void list_spoils(struct state *s, int m, struct events *out)
{
    const struct round *r = round_of(s, m);
    for (int i = 0; r != NULL && i < NM; i++)
        if (i != m && is_in(s, i, r))
            return;
    for (int set = 1; r != NULL && count(r->list) > 1 && !r->refuse && set <= r->list; set++)
        if ((set & r->list) == set)
            add(out, SPOIL, m, set);
}

static void list_faults(struct state *s, bool cut, struct events *out)
{
    int all = world_now.members + world_now.newcomers;
    for (int m = 0; m < all; m++) {
        struct hth_choice *c = choice(s, m);
        if (s->m[m].up != RUNS)
            continue;
        if (world_now.kinds & WORLD_CRASH)
            add(out, CRASH, m, 0);
        if (world_now.kinds & WORLD_FREEZE)
            add(out, FREEZE, m, 0);
        for (int i = m + 1; world_now.kinds & WORLD_CUT && i < all; i++)
            if (reach(s, m, i))
                add(out, CUT, m, i);
        if (world_now.kinds & WORLD_LEAVE && c->leave == HTH_CHOICE_STAYS &&
            c->tip != HTH_LINK_NONE)
            add(out, LEAVE, m, 0);
        if (world_now.kinds & WORLD_REFUSE)
            list_spoils(s, m, out);
        if (!(world_now.kinds & WORLD_SUSPECT))
            continue;
        struct hth_ballot now = hth_choice_now(c);
        if (waits(s, m) && hth_choice_caller(world_chain, &now) != m)
            add(out, SUSPECT, m, 0);
        if (open_to(s, m, HTH_CHOICE_NOW) & HTH_CHOICE_GO && awaits(s, m))
            add(out, RASHGO, m, 0);
        for (int k = 0; k < lines_of(); k++)
            if (may_close(s, m, k, false) && !may_close(s, m, k, true))
                add(out, RASHCLOSE, m, k);
    }
    for (int p = 1; world_now.kinds & WORLD_PART && !cut && p < 1 << (all - 1); p++)
        add(out, PART, 0, p);
}

void world_events(struct state *s, struct events *out)
{
    /* The order in which windows end. Before a fork a member calls only if it hears a quorum. */
    static const struct {
        enum hth_choice_time time;
        enum hth_choice_move move;
        enum kind kind;
    } late[] = {{HTH_CHOICE_NOW, HTH_CHOICE_GO, LATEGO},
                {HTH_CHOICE_SILENT, HTH_CHOICE_YIELD, YIELD},
                {HTH_CHOICE_SILENT, HTH_CHOICE_CALL, LATECALL},
                {HTH_CHOICE_ALONE, HTH_CHOICE_FORK, FORK},
                {HTH_CHOICE_ALONE, HTH_CHOICE_CALL, LATECALL}};
    bool cut = false;
    out->n = 0;
    for (int m = 0; m < NM; m++) {
        list_member(s, m, out);
        cut |= s->cut[m] != 0;
    }
    for (int i = 0; i < NM; i++)
        if (at(s, i)->promised > BALLOTS) /* no further, where only links count */
            out->n = 0;
    bool quiet = out->n == 0;
    if (cut)
        add(out, HEAL, 0, 0); /* a cut may heal, and need not */
    size_t idle = out->n;
    for (size_t k = 0; quiet && out->n == idle && k < HTH_ARRAY_LEN(late); k++) {
        uint32_t least = UINT32_MAX; /* nobody goes on while another does nothing that it could */
        for (int m = 0; m < NM; m++)
            if (open_to(s, m, late[k].time) & late[k].move)
                least = HTH_MIN(least, at(s, m)->promised);
        for (int m = 0; m < NM; m++)
            if (open_to(s, m, late[k].time) & late[k].move && at(s, m)->promised <= least + AHEAD)
                add(out, late[k].kind, m, 0);
    }
    if ((int)s->faults < world_now.faults)
        list_faults(s, cut, out);
}

static void clear_table(struct hth_choice *c, bool sent)
{
    struct hth_ballot none = {.base = HTH_LINK_NONE};
    c->ballot = sent ? c->ballot : none;
    c->gone_out = sent;
    c->seats = 0;
    memset(c->seat, 0, NM * sizeof(c->seat[0]));
}

static const struct go no_go = {.head = HTH_LINK_NONE};
static const struct call no_call = {.ballot = {.base = HTH_LINK_NONE}};

/* Makes the same everywhere what nobody can see any more. */
static void forget_member(struct state *s, int i)
{
    struct member *y = &s->m[i];
    struct hth_choice *c = &y->u.c;
    struct hth_ballot now = hth_choice_now(c);
    if ((y->up == CRASHED && !amnesia) || y->up == GONE) {
        uint32_t up = y->up, tip = c->tip;
        *y = (struct member){.up = up, .go = no_go, .call = no_call};
        hth_choice_init(c, world_chain, (uint16_t)i, NM);
        c->samples = 1;
        c->tip = tip;
        return;
    }
    if (y->go.head != HTH_LINK_NONE && refuses(y, &y->go))
        y->go = no_go;
    if (!same_choice(y->call.ballot, now) || y->call.ballot.n <= c->promised || at_end(s, i))
        y->call = no_call;
    if (at_end(s, i)) {
        c->promised = c->accepted_n = 0;
        c->accepted = c->refused = HTH_LINK_NONE;
    }
    if (c->refused == HTH_LINK_NONE)
        c->refused_n = c->yields_n = 0;
    if (c->phase != HTH_CHOICE_ROUND)
        y->got = 0;
    if (c->ballot.base != HTH_LINK_NONE && c->tip != HTH_LINK_NONE &&
        (at_end(s, i) || (!same_choice(c->ballot, now) && c->ballot.step <= now.step)))
        clear_table(c, false);
    if (c->gone_out)
        clear_table(c, true);
}

static int by_ballot(const void *a, const void *b)
{
    const struct round *x = a, *y = b;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    return x->n < y->n ? -1 : x->n > y->n;
}

static void forget(struct state *s)
{
    for (int i = 0; i < NM; i++)
        forget_member(s, i);
    uint32_t keep = 0;
    for (uint32_t i = 0; i < s->rounds; i++)
        for (int j = 0; j < NM; j++)
            if (may_come(s, j, &s->r[i])) {
                s->r[keep++] = s->r[i];
                break;
            }
    for (; s->rounds > keep; s->rounds--)
        s->r[s->rounds - 1] = (struct round){0};
    qsort(s->r, keep, sizeof(s->r[0]), by_ballot);
}

static void make_move(struct state *s, int m, enum kind kind)
{
    static const enum hth_choice_move moves[] = {[PASS] = HTH_CHOICE_PASS,
                                                 [OVER] = HTH_CHOICE_OVER,
                                                 [YIELD] = HTH_CHOICE_YIELD,
                                                 [LATECALL] = HTH_CHOICE_CALL};
    uint64_t hears = heard(s, m);
    if (kind == YIELD)
        check_yield(s, m);
    hth_choice_make(choice(s, m), moves[kind], &hears, NULL);
}

static void learn(struct state *s, int m, int from)
{
    if ((world_now.eventual || world_now.genesis) && ++s->m[m].moves > MOVES)
        world_violation = "S3: bound of moves";
    hth_choice_take(choice(s, m), at(s, from)->tip);
}

static void cut_off(struct state *s, int part)
{
    for (int a = 0; a < NM; a++)
        for (int b = 0; b < NM; b++)
            if (has(part, a) != has(part, b))
                s->cut[a] |= (uint8_t)(1 << b);
}

/* Faults, and what follows from them. */
static void fail(struct state *s, struct event e)
{
    int m = e.m, x = e.x;
    struct member *y = &s->m[m];
    struct hth_choice *c = &y->u.c;
    switch ((enum kind)e.kind) {
    case HEAL:
        memset(s->cut, 0, sizeof(s->cut));
        break;
    case THAW:
        y->up = RUNS;
        break;
    case EXIT:
        y->up = GONE;
        break;
    case RESTART: {
        uint32_t tip = c->tip, batch = c->batch;
        hth_choice_init(c, world_chain, (uint16_t)m, NM);
        c->samples = 1;
        c->batch = batch;
        hth_choice_take(c, tip);
        y->up = RUNS;
        break;
    }
    case CRASH:
        y->up = CRASHED;
        break;
    case FREEZE:
        y->up = FROZEN;
        break;
    case CUT:
        s->cut[m] |= (uint8_t)(1 << x);
        s->cut[x] |= (uint8_t)(1 << m);
        break;
    case PART:
        cut_off(s, x);
        break;
    case SPOIL:
        round_of(s, m)->refuse = (uint8_t)x;
        break;
    case LEAVE:
        hth_choice_leave(c);
        break;
    default:
        HTH_ASSERT(!"an event");
    }
}

/* Members that have to be READY say so; again, when they are told of a later ballot. */
static void settle(struct state *s)
{
    for (int i = 0; i < NM; i++) {
        for (int k = 0; k < 3 && s->m[i].up == RUNS && at(s, i)->phase == HTH_CHOICE_READY; k++)
            send_ready(s, i);
        if (at(s, i)->promised > BALLOTS && !world_now.links && world_violation == NULL)
            world_violation = "S3: bound of ballots";
    }
    forget(s);
}

void world_apply(struct state *s, struct event e)
{
    int m = e.m, x = e.x;
    struct member *y = &s->m[m];
    struct hth_choice *c = &y->u.c;
    struct round *r = round_of(s, m);
    s->faults += e.kind >= CRASH;
    switch ((enum kind)e.kind) {
    case ONGO:
        r = find(s, y->go.head, y->go.n);
        if (r != NULL && !at_end(s, m) && hth_choice_hear_go(c, y->go.head, y->go.n))
            begin(s, m, r);
        y->go = no_go;
        break;
    case ONCALL:
        if (!at_end(s, m))
            hth_choice_hear_call(c, &y->call.ballot);
        y->call = no_call;
        break;
    case GET:
        y->got |= 1u << x;
        for (int k = 0; r != NULL && k < lines_of(); k++)
            if (has(takers(r, k), m) && !has((int)y->got, k))
                r = NULL;
        if (r != NULL)
            finish(s, m, r);
        break;
    case GIVE:
        give(m, r, x);
        break;
    case CLOSE:
    case RASHCLOSE:
        r->closed[x] = r->gave[x];
        break;
    case FAIL:
    case PASSBY:
    case SUSPECT:
        hth_choice_fail(c);
        break;
    case MOVE:
        hth_choice_take(c, at(s, x)->tip);
        break;
    case LEARN:
        learn(s, m, x);
        break;
    case PASS:
    case OVER:
    case YIELD:
    case LATECALL:
        make_move(s, m, (enum kind)e.kind);
        break;
    case GO:
    case LATEGO:
    case RASHGO:
        send_go(s, m, HTH_CHOICE_GO);
        break;
    case FORK:
        send_go(s, m, HTH_CHOICE_FORK);
        break;
    case DROPGO:
        y->go = no_go;
        break;
    case DROPCALL:
        y->call = no_call;
        break;
    default:
        fail(s, e);
    }
    settle(s);
}

/* ---- nothing can happen any more: is it good? ------------------------------------------------ */

static int hears(const struct state *s, int i)
{
    return (int)heard(s, i);
}

/* Whether a member must have got to the end, where the voters that live are `lost` no quorum. */
static bool must_end(const struct state *s, int i, bool lost, uint32_t top, bool cut)
{
    uint32_t tip = at(s, i)->tip;
    bool can = !lost || link_of(top)->step >= (uint64_t)world_now.steps, closed = true;
    for (int j = 0; j < NM; j++) /* closed: those that it hears hear the same */
        closed &= !has(hears(s, i), j) || hears(s, j) == hears(s, i);
    if (tip != HTH_LINK_NONE && world_now.eventual)
        can = (hears(s, i) & voters_of(base_of(tip))) != 0; /* without a vote nobody forks */
    else if (cut)
        can = tip != HTH_LINK_NONE && is_quorum(hears(s, i), base_of(tip));
    return can && (!cut || closed);
}

void world_judge(const struct state *s)
{
    uint32_t top = HTH_LINK_NONE;
    int live = 0, cut = 0;
    for (int i = 0; i < NM; i++) {
        uint32_t tip = at(s, i)->tip;
        live |= (s->m[i].up == RUNS) << i;
        cut |= s->cut[i];
        if (s->m[i].up == RUNS && tip != HTH_LINK_NONE &&
            (top == HTH_LINK_NONE || link_of(tip)->step > link_of(top)->step))
            top = tip;
    }
    if (top == HTH_LINK_NONE)
        return;
    bool lost = !world_now.eventual && !is_quorum(live, base_of(top));
    for (int i = 0; i < NM; i++) {
        if (!has(live, i) || !must_end(s, i, lost, top, cut != 0))
            continue;
        uint32_t tip = at(s, i)->tip;
        if (!at_end(s, i))
            world_violation = "S3: stands still";
        else if (!cut && base_of(tip) != base_of(top) && link_of(tip)->prev != link_of(top)->prev)
            world_violation = world_now.eventual || world_now.genesis ? "S4: two chains are left"
                                                                      : "S3: two chains are left";
    }
}

/* ---- the first state, and traces ------------------------------------------------------------- */

static void make_chain(void)
{
    struct hth_chain_opts opts = {.crypto = hth_sim_crypto(),
                                  .run = {{(uint8_t)world_now.seed}},
                                  .window = WINDOW,
                                  .eventual = world_now.eventual,
                                  .links_max = 1 << 16,
                                  .members_max = NM};
    world_chain = hth_chain_new(&opts);
    struct hth_peer_id id = {{0}};
    uint16_t number;
    for (int i = 0; i < NM; i++) {
        id.b[0] = (uint8_t)i;
        enum hth_err err = hth_chain_member(world_chain, &id, 1, &number);
        HTH_ASSERT(err == HTH_OK && number == i);
        hth_chain_keep(world_chain, number);
    }
    /* Another life is another member, for which there is no room. */
    amnesia = hth_chain_member(world_chain, &id, 2, &number) == HTH_OK;
}

struct state world_begin(const struct world *w)
{
    struct state s;
    world_now = *w;
    world_violation = NULL;
    make_chain();
    memset(&s, 0, sizeof(s));
    memset(s.went_on, 0xFF, sizeof(s.went_on));
    for (int i = 0; i < NM; i++) {
        s.m[i].up = i < world_now.members + world_now.newcomers ? RUNS : CRASHED;
        s.m[i].go = no_go;
        s.m[i].call = no_call;
        hth_choice_init(choice(&s, i), world_chain, (uint16_t)i, NM);
        choice(&s, i)->samples = 1;
        if (i >= world_now.members)
            continue;
        struct hth_roll roll[NM];
        struct hth_chain_link link = {
            .prev = HTH_LINK_NONE, .kind = HTH_LINK_GENESIS, .roll = roll};
        link.ballot = world_now.genesis && i >= 2;
        for (int j = 0; j < world_now.members; j++)
            if (!world_now.genesis || has(row[link.ballot], j))
                roll[link.count++] = (struct hth_roll){(uint16_t)j, HTH_ROLL_IN, 0, 1};
        uint32_t genesis;
        enum hth_err err = hth_chain_add(world_chain, &link, &genesis);
        HTH_ASSERT(err == HTH_OK);
        hth_choice_take(choice(&s, i), genesis);
    }
    world_apply(&s, (struct event){world_now.genesis ? PART : HEAL, 0, 0x03});
    s.faults = 0;
    return s;
}

void world_end(void)
{
    hth_chain_free(world_chain);
}

static void print_chain(uint32_t link)
{
    const struct hth_chain_link *l = link_of(link);
    if (l->prev != HTH_LINK_NONE)
        print_chain(l->prev);
    fprintf(stderr, " %llu:", (unsigned long long)l->step);
    for (int i = 0; i < NM; i++)
        if (has(roll_of(link, HTH_ROLL_IN), i))
            fputc('A' + i, stderr);
    fprintf(stderr, "%s'%u", l->kind == HTH_LINK_FORK ? "f" : "", l->ballot);
}

void world_print(const struct state *before, struct event e, const struct state *after)
{
    const struct hth_choice *was = at(before, e.m), *is = at(after, e.m);
    fprintf(stderr, "    %c %s %d", 'A' + e.m, names[e.kind], e.x);
    if (is->tip != was->tip) {
        fputs("   holds", stderr);
        print_chain(is->tip);
    } else if (is->promised != was->promised) {
        fprintf(stderr, "   ballot %u", is->promised);
    }
    fputc('\n', stderr);
}
