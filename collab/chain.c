/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/chain.h"

#include "collab/fold.h"
#include "collab/proof.h"
#include "core/map.h"
#include "core/mem.h"

#include <stdlib.h>

struct member {
    struct hth_peer_id id;
    uint64_t life;
    uint16_t number;
    uint32_t links; /* in whose rolls it is; and one for hth_chain_keep */
    uint32_t born;  /* 0: the number is free */
};

#define MEMBER_KEY_BYTES (sizeof(struct hth_peer_id) + sizeof(uint64_t))
_Static_assert(offsetof(struct member, life) == sizeof(struct hth_peer_id),
               "id and life are the key");

struct hth_chain {
    struct hth_chain_opts opts;
    struct hth_held *links; /* a ring: number modulo links_max */
    uint32_t count;         /* of all that ever were */
    uint32_t oldest;        /* that is kept */
    struct member *members;
    uint32_t members_count;
    uint32_t born;
    struct hth_map *by_head, *by_member;
};

struct hth_chain *hth_chain_new(const struct hth_chain_opts *opts)
{
    HTH_ASSERT(opts->window > 0 && opts->links_max > 0 && opts->members_max <= HTH_MEMBERS_MAX);
    struct hth_chain *chain = hth_calloc(1, sizeof(*chain));
    chain->opts = *opts;
    chain->links = hth_calloc(opts->links_max, sizeof(*chain->links));
    chain->members = hth_calloc(opts->members_max, sizeof(*chain->members));
    chain->by_head = hth_map_new_held(offsetof(struct hth_held, head), sizeof(struct hth_hash));
    chain->by_member = hth_map_new_held(offsetof(struct member, id), MEMBER_KEY_BYTES);
    return chain;
}

void hth_chain_free(struct hth_chain *chain)
{
    if (chain == NULL)
        return;
    hth_chain_drop(chain, 0);
    hth_map_free(chain->by_member);
    hth_map_free(chain->by_head);
    hth_free(chain->members);
    hth_free(chain->links);
    hth_free(chain);
}

/* ---- members ------------------------------------------------------------------------------ */

static void free_number(struct hth_chain *chain, struct member *m)
{
    hth_map_del(chain->by_member, m, MEMBER_KEY_BYTES);
    *m = (struct member){.number = m->number};
}

/* A process that took part in no step makes room for a later one of the same peer. */
static struct member *take_number(struct hth_chain *chain, const struct hth_peer_id *id)
{
    struct member *found = NULL;
    for (uint32_t i = 0; i < chain->members_count; i++) {
        struct member *m = &chain->members[i];
        if (m->born != 0 && m->links == 0 && hth_peer_id_eq(&m->id, id))
            free_number(chain, m);
        found = found == NULL && m->born == 0 ? m : found;
    }
    if (found == NULL && chain->members_count < chain->opts.members_max) {
        found = &chain->members[chain->members_count];
        found->number = (uint16_t)chain->members_count++;
    }
    return found;
}

uint16_t hth_chain_known(const struct hth_chain *chain, const struct hth_peer_id *id, uint64_t life)
{
    const struct member wanted = {.life = life, .id = *id};
    const struct member *m = hth_map_get(chain->by_member, &wanted, MEMBER_KEY_BYTES);
    return m != NULL ? m->number : HTH_MEMBER_NONE;
}

enum hth_err hth_chain_member(struct hth_chain *chain, const struct hth_peer_id *id, uint64_t life,
                              uint16_t *out)
{
    struct member key = {.id = *id, .life = life};
    struct member *m = hth_map_get(chain->by_member, &key, MEMBER_KEY_BYTES);
    *out = HTH_MEMBER_NONE;
    if (m == NULL) {
        m = take_number(chain, id);
        if (m == NULL)
            return HTH_E_TOO_LARGE;
        key.number = m->number;
        key.born = ++chain->born;
        *m = key;
        hth_map_put(chain->by_member, m, MEMBER_KEY_BYTES, m);
    }
    *out = m->number;
    return HTH_OK;
}

void hth_chain_keep(struct hth_chain *chain, uint16_t member)
{
    chain->members[member].links++;
}

uint32_t hth_chain_born(const struct hth_chain *chain, uint16_t member)
{
    return chain->members[member].born;
}

void hth_chain_sweep(struct hth_chain *chain, hth_member_test *keeps, const void *ctx)
{
    for (uint32_t i = 0; i < chain->members_count; i++) {
        struct member *m = &chain->members[i];
        if (m->born != 0 && m->links == 0 && !keeps(ctx, m->number))
            free_number(chain, m);
    }
}

/* Takes the numbers back that were given since then. */
static void forget_members(struct hth_chain *chain, uint32_t born)
{
    for (uint32_t i = 0; i < chain->members_count; i++)
        if (chain->members[i].born > born)
            free_number(chain, &chain->members[i]);
}

uint32_t hth_chain_members(const struct hth_chain *chain)
{
    return chain->members_count;
}

uint64_t hth_chain_life(const struct hth_chain *chain, uint16_t member)
{
    return chain->members[member].life;
}

const struct hth_peer_id *hth_chain_id(const struct hth_chain *chain, uint16_t member)
{
    return &chain->members[member].id;
}

/* ---- one link ----------------------------------------------------------------------------- */

uint32_t hth_chain_count(const struct hth_chain *chain)
{
    return chain->count;
}

bool hth_chain_has(const struct hth_chain *chain, uint32_t link)
{
    return link >= chain->oldest && link < chain->count;
}

uint32_t hth_chain_room(const struct hth_chain *chain, uint32_t link)
{
    uint32_t since = chain->count - link;
    return since < chain->opts.links_max ? chain->opts.links_max - since : 0;
}

struct hth_held *hth_chain_held(const struct hth_chain *chain, uint32_t link)
{
    HTH_ASSERT(hth_chain_has(chain, link));
    return &chain->links[link % chain->opts.links_max];
}

const struct hth_chain_link *hth_chain_at(const struct hth_chain *chain, uint32_t link)
{
    return &hth_chain_held(chain, link)->link;
}

const struct hth_hash *hth_chain_head(const struct hth_chain *chain, uint32_t link)
{
    return &hth_chain_held(chain, link)->head;
}

uint32_t hth_chain_find(const struct hth_chain *chain, const struct hth_hash *head)
{
    const struct hth_held *found = hth_map_get(chain->by_head, head, sizeof(*head));
    return found != NULL ? found->number : HTH_LINK_NONE;
}

const struct hth_chain_opts *hth_chain_opts(const struct hth_chain *chain)
{
    return &chain->opts;
}

bool hth_chain_judges(const struct hth_chain *chain, uint32_t link)
{
    return hth_chain_held(chain, link)->known >= chain->opts.window;
}

void hth_chain_trust(struct hth_chain *chain, uint32_t link)
{
    for (; link != HTH_LINK_NONE && !hth_chain_held(chain, link)->trusted;
         link = hth_chain_at(chain, link)->prev)
        hth_chain_held(chain, link)->trusted = true;
}

struct hth_voters hth_chain_voters(const struct hth_chain *chain, uint32_t link)
{
    return hth_chain_held(chain, link)->voters;
}

uint32_t hth_chain_base(const struct hth_chain *chain, uint32_t link)
{
    const struct hth_chain_link *at = hth_chain_at(chain, link);
    return at->kind == HTH_LINK_STEP && at->prev != HTH_LINK_NONE ? at->prev : link;
}

uint64_t hth_chain_samples(const struct hth_chain *chain, uint32_t link)
{
    return hth_chain_held(chain, link)->samples;
}

static int by_number(const void *a, const void *b)
{
    return (int)((const struct hth_roll *)a)->member - (int)((const struct hth_roll *)b)->member;
}

static const struct hth_roll *find_entry(const struct hth_chain_link *link, uint16_t member)
{
    struct hth_roll key = {.member = member};
    return bsearch(&key, link->roll, link->count, sizeof(key), by_number);
}

const struct hth_roll *hth_chain_entry(const struct hth_chain *chain, uint32_t link,
                                       uint16_t member)
{
    return find_entry(hth_chain_at(chain, link), member);
}

bool hth_chain_used(const struct hth_chain *chain, uint32_t link, uint16_t member, uint32_t batch)
{
    for (; link != HTH_LINK_NONE; link = hth_chain_at(chain, link)->prev) {
        const struct hth_roll *entry = hth_chain_entry(chain, link, member);
        if (entry != NULL && entry->batch == batch && entry->marks & (HTH_ROLL_IN | HTH_ROLL_PART))
            return true;
    }
    return false;
}

/* ---- votes -------------------------------------------------------------------------------- */

static bool is_in(const struct hth_roll *entry)
{
    return entry != NULL && entry->marks & HTH_ROLL_IN;
}

struct lot {
    uint16_t member, rolls;
    bool client;
    uint64_t draw;
};

static int by_lot(const void *a, const void *b)
{
    const struct lot *x = a, *y = b;
    if (x->client != y->client)
        return x->client ? 1 : -1;
    if (x->draw != y->draw)
        return x->draw < y->draw ? -1 : 1;
    return (int)x->member - (int)y->member;
}

/* A hash that nobody can foresee before the epoch's link is made. */
static uint64_t draw_of(const struct hth_chain *chain, const struct hth_held *held, uint16_t member)
{
    uint8_t bytes[sizeof(struct hth_hash) + MEMBER_KEY_BYTES];
    struct hth_hash hash;
    memcpy(bytes, &held->epoch, sizeof(struct hth_hash));
    memcpy(bytes + sizeof(struct hth_hash), &chain->members[member], MEMBER_KEY_BYTES);
    chain->opts.crypto->hash(bytes, sizeof(bytes), &hash);
    return hth_load_u64le(hash.b);
}

static uint16_t rolls_of(const struct hth_chain *chain, uint32_t link, uint16_t member)
{
    uint16_t in = 0;
    for (uint32_t k = 0; k < chain->opts.window && link != HTH_LINK_NONE; k++) {
        in += is_in(hth_chain_entry(chain, link, member));
        link = hth_chain_at(chain, link)->prev;
    }
    return in;
}

static void find_voters(const struct hth_chain *chain, struct hth_held *held)
{
    const struct hth_chain_link *link = &held->link;
    struct hth_voters *voters = &held->voters;
    bool all_leave = true; /* then nobody does: the last ones keep their votes */
    uint32_t count = 0;
    uint16_t most = 0;
    for (uint32_t i = 0; i < link->count; i++)
        all_leave &= !is_in(&link->roll[i]) || link->roll[i].marks & HTH_ROLL_LEFT;
    struct lot *lots = hth_calloc(link->count, sizeof(*lots));
    for (uint32_t i = 0; i < link->count; i++) {
        const struct hth_roll *entry = &link->roll[i];
        if (!is_in(entry) || (entry->marks & HTH_ROLL_LEFT && !all_leave))
            continue;
        lots[count] = (struct lot){.member = entry->member,
                                   .rolls = rolls_of(chain, held->number, entry->member),
                                   .client = entry->marks & HTH_ROLL_CLIENT,
                                   .draw = draw_of(chain, held, entry->member)};
        most = HTH_MAX(most, lots[count].rolls);
        count++;
    }
    qsort(lots, count, sizeof(*lots), by_lot);
    for (uint32_t i = 0; i < count; i++) {
        if (2 * lots[i].rolls < most)
            continue;
        voters->member[voters->count++] = lots[i].member;
        voters->callers += !lots[i].client;
    }
    if (voters->callers == 0)
        voters->callers = voters->count;
    hth_free(lots);
}

bool hth_chain_votes(const struct hth_chain *chain, uint32_t link, uint16_t member)
{
    struct hth_voters voters = hth_chain_voters(chain, link);
    for (uint32_t i = 0; i < voters.count; i++)
        if (voters.member[i] == member)
            return true;
    return false;
}

bool hth_chain_quorum(const struct hth_chain *chain, uint32_t link, hth_member_test *has,
                      const void *ctx)
{
    struct hth_voters voters = hth_chain_voters(chain, link);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < voters.count; i++)
        sum += has(ctx, voters.member[i]);
    return 2 * sum > voters.count || (2 * sum == voters.count && has(ctx, voters.member[0]));
}

/* ---- taking links up ------------------------------------------------------------------------- */

static int by_identity(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int order = hth_peer_id_cmp(&x->id, &y->id);
    return order != 0 ? order : x->life < y->life ? -1 : x->life > y->life;
}

static void describe_link(struct hth_wire *io, struct hth_held *held)
{
    struct hth_chain_link *link = &held->link;
    hth_wire_u64(io, &link->step);
    hth_wire_bytes(io, &held->before, sizeof(held->before));
    hth_wire_u32(io, &link->protocol);
    hth_wire_u32(io, &link->ballot);
    link->kind = (enum hth_link_kind)hth_wire_kind(io, (uint8_t)link->kind, HTH_LINK_GENESIS);
    hth_wire_bytes(io, &link->mean, sizeof(link->mean));
    hth_wire_count(io, &link->count, HTH_ROLL_MEMBERS_MAX);
}

static void describe_entry(struct hth_wire *io, struct member *member, struct hth_roll *entry)
{
    hth_wire_bytes(io, &member->id, sizeof(member->id));
    hth_wire_u64(io, &member->life);
    hth_wire_u16(io, &entry->marks);
    hth_wire_u32(io, &entry->batch);
    hth_wire_u32(io, &entry->samples);
}

static void describe_fold(struct hth_wire *io, struct hth_hash *fold)
{
    uint16_t len = hth_head_is_none(fold) ? 0 : sizeof(*fold);
    hth_wire_u16(io, &len);
    hth_wire_expect(io, len == 0 || len == sizeof(*fold), HTH_E_VERSION);
    if (len == sizeof(*fold))
        hth_wire_bytes(io, fold, sizeof(*fold));
    hth_wire_check(io, len == 0 || !hth_head_is_none(fold));
}

static void write_link(const struct hth_chain *chain, const struct hth_held *held,
                       struct hth_writer *w)
{
    struct hth_held copy = *held;
    struct hth_wire io = {.w = *w};
    struct member sorted[HTH_ROLL_MEMBERS_MAX];
    for (uint32_t i = 0; i < copy.link.count; i++)
        sorted[i] = chain->members[copy.roll[i].member];
    qsort(sorted, copy.link.count, sizeof(sorted[0]), by_identity);
    describe_link(&io, &copy);
    for (uint32_t i = 0; i < copy.link.count; i++) {
        struct hth_roll entry = *find_entry(&copy.link, sorted[i].number);
        describe_entry(&io, &sorted[i], &entry);
    }
    describe_fold(&io, &copy.fold);
    *w = io.w;
}

void hth_chain_write(const struct hth_chain *chain, uint32_t link, struct hth_writer *w)
{
    write_link(chain, hth_chain_held(chain, link), w);
}

static struct hth_hash hash_link(const struct hth_chain *chain, const struct hth_held *held)
{
    uint8_t bytes[256 + 64 * HTH_ROLL_MEMBERS_MAX]; /* more than a link has */
    struct hth_writer w;
    struct hth_hash head;
    hth_writer_init(&w, bytes, sizeof(bytes));
    hth_write_bytes(&w, &chain->opts.run, sizeof(chain->opts.run));
    write_link(chain, held, &w);
    HTH_ASSERT(w.err == HTH_OK);
    chain->opts.crypto->hash(bytes, w.pos, &head);
    return head;
}

static bool marks_are_good(uint16_t marks)
{
    unsigned more = marks & (HTH_ROLL_LEFT | HTH_ROLL_CLIENT);
    return marks == HTH_ROLL_PART || marks == (HTH_ROLL_IN | more);
}

/* Checks all but the quorum. The roll is ascending by member. */
static enum hth_err check_form(const struct hth_chain *chain, const struct hth_held *held)
{
    const struct hth_chain_link *link = &held->link;
    const struct hth_roll *roll = held->roll;
    bool somebody = false;
    for (uint32_t i = 0; i < link->count; i++) {
        if (roll[i].member >= chain->members_count || chain->members[roll[i].member].born == 0 ||
            !marks_are_good(roll[i].marks) || (i > 0 && roll[i].member == roll[i - 1].member))
            return HTH_E_MALFORMED;
        somebody |= is_in(&roll[i]);
    }
    bool is_first = hth_head_is_none(&held->before);
    bool follows =
        link->prev == HTH_LINK_NONE || link->step == hth_chain_at(chain, link->prev)->step + 1;
    bool good = somebody && follows && (link->kind == HTH_LINK_GENESIS) == is_first;
    return good ? HTH_OK : HTH_E_MALFORMED;
}

static bool brought(const void *ctx, uint16_t member)
{
    const struct hth_chain_link *link = ctx;
    for (uint32_t i = 0; i < link->count; i++)
        if (link->roll[i].member == member)
            return link->roll[i].marks & HTH_ROLL_IN;
    return false;
}

bool hth_chain_enough(const struct hth_chain *chain, const struct hth_chain_link *link)
{
    return hth_chain_quorum(chain, hth_chain_base(chain, link->prev), brought, link);
}

/* Behind an anchor the first voters are not known. */
static enum hth_err check_quorum(const struct hth_chain *chain, const struct hth_chain_link *link)
{
    if (link->kind == HTH_LINK_FORK && !chain->opts.eventual)
        return HTH_E_REFUSED;
    if (link->prev == HTH_LINK_NONE || !hth_chain_judges(chain, hth_chain_base(chain, link->prev)))
        return HTH_OK;
    return hth_chain_enough(chain, link) == (link->kind == HTH_LINK_STEP) ? HTH_OK : HTH_E_STALE;
}

/* The roll in a memory of its own, with room for the voters behind it. */
static void copy_roll(struct hth_held *held)
{
    uint32_t count = held->link.count;
    held->roll = hth_calloc(count + 1, sizeof(*held->roll) + sizeof(*held->voters.member));
    memcpy(held->roll, held->link.roll, count * sizeof(*held->roll));
    qsort(held->roll, count, sizeof(*held->roll), by_number);
    held->voters.member = (uint16_t *)(held->roll + count + 1);
    held->link.roll = held->roll;
}

static void count_in_links(struct hth_chain *chain, const struct hth_held *held, bool in)
{
    for (uint32_t i = 0; i < held->link.count; i++)
        chain->members[held->roll[i].member].links += in ? 1u : UINT32_MAX;
}

static void forget_link(struct hth_chain *chain, uint32_t number)
{
    struct hth_held *old = hth_chain_held(chain, number);
    hth_map_del(chain->by_head, &old->head, sizeof(old->head));
    count_in_links(chain, old, false);
    hth_free(old->sig);
    hth_free(old->table);
    hth_free(old->roll);
    *old = (struct hth_held){.roll = NULL};
}

void hth_chain_drop(struct hth_chain *chain, uint32_t count)
{
    for (; chain->count > HTH_MAX(count, chain->oldest); chain->count--)
        forget_link(chain, chain->count - 1);
}

/* The oldest link makes room. */
static void let_go(struct hth_chain *chain)
{
    uint32_t number = chain->oldest;
    forget_link(chain, number);
    chain->oldest++;
    for (uint32_t i = chain->oldest; i < chain->count; i++)
        if (hth_chain_held(chain, i)->link.prev == number)
            hth_chain_held(chain, i)->link.prev = HTH_LINK_NONE;
}

static void place(struct hth_chain *chain, struct hth_held *held, uint64_t samples)
{
    const struct hth_chain_link *link = &held->link;
    const struct hth_held *before =
        link->prev == HTH_LINK_NONE ? NULL : hth_chain_held(chain, link->prev);
    bool begins = link->kind != HTH_LINK_STEP || link->step % HTH_FOLD_STEPS == 0 || before == NULL;
    held->number = chain->count;
    held->known = link->kind == HTH_LINK_GENESIS ? chain->opts.window
                  : before == NULL               ? 0
                                                 : HTH_MIN(before->known + 1, chain->opts.window);
    held->samples = held->samples_before = before == NULL ? samples : before->samples;
    held->epoch = begins ? held->head : before->epoch;
    for (uint32_t i = 0; i < link->count; i++)
        if (is_in(&held->roll[i]))
            held->samples += held->roll[i].samples;
    if (held->number - chain->oldest == chain->opts.links_max)
        let_go(chain);
    if (link->prev != HTH_LINK_NONE && !hth_chain_has(chain, link->prev))
        held->link.prev = HTH_LINK_NONE;
    struct hth_held *at = &chain->links[held->number % chain->opts.links_max];
    *at = *held;
    chain->count++;
    count_in_links(chain, at, true);
    hth_map_put(chain->by_head, &at->head, sizeof(at->head), at);
    find_voters(chain, at);
}

/* A link that is made here names the fold that those before it give, if that is known. One that was
 * read (`reads`) may name none, and no other. */
static enum hth_err check_fold(const struct hth_chain *chain, struct hth_held *held, bool reads)
{
    bool names = !hth_head_is_none(&held->fold);
    bool due = held->link.step % HTH_FOLD_STEPS == 0 && !hth_head_is_none(&held->before);
    if (names && !due)
        return HTH_E_MALFORMED;
    if (!due || held->link.prev == HTH_LINK_NONE || (reads && !names))
        return HTH_OK;
    held->table = hth_fold_upto(chain, held->link.prev);
    if (held->table == NULL)
        return HTH_OK;
    struct hth_hash fold = hth_fold_hash(chain->opts.crypto, held->table);
    if (reads && memcmp(&fold, &held->fold, sizeof(fold)) != 0)
        return HTH_E_BAD_FOLD;
    held->fold = fold;
    return HTH_OK;
}

/* Of a link that has a link before it and is none after an anchor, `samples` are of no use. */
static enum hth_err add(struct hth_chain *chain, struct hth_held *held, bool reads,
                        uint64_t samples, uint32_t *out)
{
    enum hth_err err;
    *out = HTH_LINK_NONE;
    if (held->link.count > HTH_ROLL_MEMBERS_MAX || chain->count == HTH_LINK_NONE - 1)
        return HTH_E_TOO_LARGE;
    copy_roll(held);
    HTH_GOTO(out, check_form(chain, held));
    HTH_GOTO(out, check_quorum(chain, &held->link));
    HTH_GOTO(out, check_fold(chain, held, reads));
    held->head = hash_link(chain, held);
    *out = hth_chain_find(chain, &held->head);
    if (*out == HTH_LINK_NONE) {
        *out = chain->count;
        place(chain, held, samples);
        return HTH_OK;
    }
out:
    hth_free(held->table);
    hth_free(held->roll);
    return err;
}

enum hth_err hth_chain_add(struct hth_chain *chain, const struct hth_chain_link *link,
                           uint32_t *out)
{
    struct hth_held held = {.link = *link};
    *out = HTH_LINK_NONE;
    if (link->prev != HTH_LINK_NONE && !hth_chain_has(chain, link->prev))
        return HTH_E_NOT_FOUND;
    if (link->prev != HTH_LINK_NONE)
        held.before = *hth_chain_head(chain, link->prev);
    HTH_TRY(add(chain, &held, false, 0, out));
    hth_chain_trust(chain, *out);
    return HTH_OK;
}

uint32_t hth_chain_anchor(const struct hth_chain *chain, uint32_t link)
{
    const struct hth_held *base = hth_chain_held(chain, hth_chain_base(chain, link));
    link = hth_chain_base(chain, link);
    while (memcmp(&hth_chain_held(chain, link)->head, &base->epoch, sizeof(base->epoch)) != 0 &&
           hth_chain_at(chain, link)->prev != HTH_LINK_NONE)
        link = hth_chain_at(chain, link)->prev;
    for (uint32_t i = 0; i < chain->opts.window; i++)
        if (hth_chain_at(chain, link)->prev != HTH_LINK_NONE)
            link = hth_chain_at(chain, link)->prev;
    return link;
}

enum hth_err hth_chain_read(struct hth_chain *chain, struct hth_reader *r, const uint64_t *anchor,
                            uint32_t *out)
{
    struct hth_wire io = {.reads = true, .r = *r};
    struct hth_held held = {.roll = NULL};
    struct member member[HTH_ROLL_MEMBERS_MAX];
    struct hth_roll roll[HTH_ROLL_MEMBERS_MAX];
    uint32_t born = chain->born;
    *out = HTH_LINK_NONE;
    describe_link(&io, &held);
    for (uint32_t i = 0; i < held.link.count; i++) {
        describe_entry(&io, &member[i], &roll[i]);
        hth_wire_check(&io, i == 0 || by_identity(&member[i - 1], &member[i]) < 0);
    }
    describe_fold(&io, &held.fold);
    *r = io.r;
    HTH_TRY(io.err);
    bool is_first = hth_head_is_none(&held.before);
    held.link.prev = is_first ? HTH_LINK_NONE : hth_chain_find(chain, &held.before);
    held.link.roll = roll;
    bool known = is_first || anchor != NULL || held.link.prev != HTH_LINK_NONE;
    enum hth_err err = known ? HTH_OK : HTH_E_NOT_FOUND;
    for (uint32_t i = 0; i < held.link.count && err == HTH_OK; i++)
        err = hth_chain_member(chain, &member[i].id, member[i].life, &roll[i].member);
    if (err == HTH_OK)
        err = add(chain, &held, true, is_first || anchor == NULL ? 0 : *anchor, out);
    if (err != HTH_OK)
        forget_members(chain, born);
    return err;
}

/* ---- which chain remains --------------------------------------------------------------------- */

/* Whether a link is another, or follows from it without a fork between them. */
static bool follows(const struct hth_chain *chain, uint32_t link, uint32_t from)
{
    uint64_t step = hth_chain_at(chain, from)->step;
    while (link != from) {
        const struct hth_chain_link *at = hth_chain_at(chain, link);
        if (at->kind != HTH_LINK_STEP || at->step <= step || at->prev == HTH_LINK_NONE)
            return false;
        link = at->prev;
    }
    return true;
}

/* The last link that both chains have, or HTH_LINK_NONE. */
static uint32_t find_common(const struct hth_chain *chain, uint32_t a, uint32_t b)
{
    while (a != b && a != HTH_LINK_NONE && b != HTH_LINK_NONE) {
        const struct hth_chain_link *x = hth_chain_at(chain, a), *y = hth_chain_at(chain, b);
        bool later = x->step >= y->step, earlier = x->step <= y->step;
        a = later ? x->prev : a;
        b = earlier ? y->prev : b;
    }
    return a == b ? a : HTH_LINK_NONE;
}

static bool is_better(const struct hth_chain *chain, uint32_t a, uint32_t b, bool claimed)
{
    if (a == b)
        return false;
    const struct hth_held *x = hth_chain_held(chain, a), *y = hth_chain_held(chain, b);
    uint32_t base_a = hth_chain_base(chain, a), base_b = hth_chain_base(chain, b);
    if (follows(chain, a, base_b))
        return x->link.step > y->link.step && (claimed || hth_proof_backs(chain, a, base_b));
    uint32_t common = find_common(chain, base_a, base_b);
    if (follows(chain, b, base_a) || (!chain->opts.eventual && common != HTH_LINK_NONE))
        return false;
    uint64_t begin = common == HTH_LINK_NONE ? 0 : hth_chain_samples(chain, common);
    uint64_t own, other = hth_chain_samples(chain, base_a) - begin;
    hth_proof_samples(chain, b, common, &own);
    if (other < own)
        return false;
    bool all = claimed || hth_proof_samples(chain, a, common, &other);
    if (other != own || !all)
        return other > own;
    return memcmp(hth_chain_head(chain, base_a), hth_chain_head(chain, base_b), sizeof(x->head)) <
           0;
}

bool hth_chain_better(const struct hth_chain *chain, uint32_t a, uint32_t b)
{
    return is_better(chain, a, b, false);
}

bool hth_chain_claims(const struct hth_chain *chain, uint32_t a, uint32_t b)
{
    return is_better(chain, a, b, true);
}
