/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/chain.h"

#include "core/map.h"
#include "core/mem.h"

#include <stdlib.h>

/* Steps for which voters of equal weight keep their order. */
#define EPOCH_STEPS 64

#define LINK_BYTES  (8 + 32 + 4 + 4 + 1 + 32 + 4 + 2)
#define ROLL_BYTES  (32 + 8 + 2 + 4 + 4)
#define BYTES_MAX(members)                                                                         \
    (sizeof(struct hth_hash) + LINK_BYTES + (size_t)(members)*ROLL_BYTES) /* behind the run */

struct member {
    struct hth_peer_id id;
    uint64_t life;
    uint16_t number;
};

#define MEMBER_KEY_BYTES (sizeof(struct hth_peer_id) + sizeof(uint64_t))
_Static_assert(offsetof(struct member, life) == sizeof(struct hth_peer_id),
               "id and life are the key");

struct held {
    struct hth_hash head;
    struct hth_chain_link link;
    struct hth_voter *voters;
    uint32_t voters_count;
    uint32_t weight;
    uint32_t first; /* of its chain */
    uint32_t epoch; /* the link whose head the draws of voters come from */
    uint64_t samples;
};

struct hth_chain {
    struct hth_chain_opts opts;
    struct held *links;
    uint32_t count;
    struct member *members;
    uint32_t members_count;
    struct hth_roll *rolls;
    struct hth_voter *voters; /* as many as rolls */
    uint32_t rolls_count;
    uint8_t *bytes; /* of the link that is hashed */
    const struct member **sorted;
    struct member *read; /* of the link that is read */
    struct hth_map *by_head, *by_member;
};

struct hth_chain *hth_chain_new(const struct hth_chain_opts *opts)
{
    HTH_ASSERT(opts->window > 0 && opts->links_max > 0 && opts->members_max <= HTH_MEMBER_NONE);
    struct hth_chain *chain = hth_calloc(1, sizeof(*chain));
    chain->opts = *opts;
    chain->links = hth_calloc(opts->links_max, sizeof(*chain->links));
    chain->members = hth_calloc(opts->members_max, sizeof(*chain->members));
    chain->rolls = hth_calloc(opts->rolls_max, sizeof(*chain->rolls));
    chain->voters = hth_calloc(opts->rolls_max, sizeof(*chain->voters));
    chain->bytes = hth_calloc(BYTES_MAX(opts->members_max), 1);
    chain->read = hth_calloc(opts->members_max, sizeof(*chain->read));
    chain->sorted = hth_calloc(opts->members_max, sizeof(*chain->sorted));
    chain->by_head = hth_map_new_held(offsetof(struct held, head), sizeof(struct hth_hash));
    chain->by_member = hth_map_new_held(offsetof(struct member, id), MEMBER_KEY_BYTES);
    return chain;
}

void hth_chain_free(struct hth_chain *chain)
{
    if (chain == NULL)
        return;
    hth_map_free(chain->by_member);
    hth_map_free(chain->by_head);
    hth_free(chain->read);
    hth_free(chain->sorted);
    hth_free(chain->bytes);
    hth_free(chain->voters);
    hth_free(chain->rolls);
    hth_free(chain->members);
    hth_free(chain->links);
    hth_free(chain);
}

/* ---- members ------------------------------------------------------------------------------ */

enum hth_err hth_chain_member(struct hth_chain *chain, const struct hth_peer_id *id, uint64_t life,
                              uint16_t *out)
{
    struct member key = {.id = *id, .life = life};
    const struct member *known = hth_map_get(chain->by_member, &key, MEMBER_KEY_BYTES);
    *out = HTH_MEMBER_NONE;
    if (known == NULL) {
        if (chain->members_count == chain->opts.members_max)
            return HTH_E_TOO_LARGE;
        struct member *added = &chain->members[chain->members_count];
        key.number = (uint16_t)chain->members_count++;
        *added = key;
        hth_map_put(chain->by_member, added, MEMBER_KEY_BYTES, added);
        known = added;
    }
    *out = known->number;
    return HTH_OK;
}

/* Takes the numbers back that were given since there were `count`. */
static void forget_members(struct hth_chain *chain, uint32_t count)
{
    while (chain->members_count > count)
        hth_map_del(chain->by_member, &chain->members[--chain->members_count], MEMBER_KEY_BYTES);
}

uint32_t hth_chain_members(const struct hth_chain *chain)
{
    return chain->members_count;
}

uint32_t hth_chain_members_max(const struct hth_chain *chain)
{
    return chain->opts.members_max;
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

bool hth_chain_forks(const struct hth_chain *chain)
{
    return chain->opts.eventual;
}

const struct hth_chain_link *hth_chain_at(const struct hth_chain *chain, uint32_t link)
{
    HTH_ASSERT(link < chain->count);
    return &chain->links[link].link;
}

const struct hth_hash *hth_chain_head(const struct hth_chain *chain, uint32_t link)
{
    HTH_ASSERT(link < chain->count);
    return &chain->links[link].head;
}

uint32_t hth_chain_find(const struct hth_chain *chain, const struct hth_hash *head)
{
    const struct held *found = hth_map_get(chain->by_head, head, sizeof(*head));
    return found == NULL ? HTH_LINK_NONE : (uint32_t)(found - chain->links);
}

struct hth_voters hth_chain_voters(const struct hth_chain *chain, uint32_t link)
{
    HTH_ASSERT(link < chain->count);
    const struct held *held = &chain->links[link];
    return (struct hth_voters){
        .order = held->voters, .count = held->voters_count, .weight = held->weight};
}

uint32_t hth_chain_base(const struct hth_chain *chain, uint32_t link)
{
    const struct hth_chain_link *at = hth_chain_at(chain, link);
    return at->kind == HTH_LINK_STEP ? at->prev : link;
}

uint64_t hth_chain_samples(const struct hth_chain *chain, uint32_t link)
{
    HTH_ASSERT(link < chain->count);
    return chain->links[link].samples;
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
    for (; link != HTH_LINK_NONE; link = chain->links[link].link.prev) {
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
    struct hth_voter voter;
    uint64_t draw;
};

static int by_weight(const void *a, const void *b)
{
    const struct lot *x = a, *y = b;
    if (x->voter.weight != y->voter.weight)
        return x->voter.weight > y->voter.weight ? -1 : 1;
    if (x->draw != y->draw)
        return x->draw < y->draw ? -1 : 1;
    return (int)x->voter.member - (int)y->voter.member;
}

/* A hash that nobody can foresee before the epoch's link is made. */
static uint64_t draw_of(const struct hth_chain *chain, const struct held *held, uint16_t member)
{
    uint8_t bytes[sizeof(struct hth_hash) + MEMBER_KEY_BYTES];
    struct hth_hash hash;
    memcpy(bytes, &chain->links[held->epoch].head, sizeof(struct hth_hash));
    memcpy(bytes + sizeof(struct hth_hash), &chain->members[member], MEMBER_KEY_BYTES);
    chain->opts.crypto->hash(bytes, sizeof(bytes), &hash);
    return hth_load_u64le(hash.b);
}

static uint16_t weight_of(const struct hth_chain *chain, uint32_t link, uint16_t member)
{
    uint16_t in = 0;
    for (uint32_t k = 0; k < chain->opts.window && link != HTH_LINK_NONE; k++) {
        in += is_in(hth_chain_entry(chain, link, member));
        link = chain->links[link].link.prev;
    }
    return in;
}

static void find_voters(struct hth_chain *chain, uint32_t number)
{
    struct held *held = &chain->links[number];
    const struct hth_chain_link *link = &held->link;
    bool all_leave = true; /* then nobody does: the last ones keep their votes */
    for (uint32_t i = 0; i < link->count; i++)
        all_leave &= !is_in(&link->roll[i]) || link->roll[i].marks & HTH_ROLL_LEFT;
    struct lot *lots = hth_calloc(link->count, sizeof(*lots));
    for (uint32_t i = 0; i < link->count; i++) {
        const struct hth_roll *entry = &link->roll[i];
        if (!is_in(entry) || (entry->marks & HTH_ROLL_LEFT && !all_leave))
            continue;
        lots[held->voters_count++] =
            (struct lot){.voter = {entry->member, weight_of(chain, number, entry->member)},
                         .draw = draw_of(chain, held, entry->member)};
    }
    qsort(lots, held->voters_count, sizeof(*lots), by_weight);
    for (uint32_t i = 0; i < held->voters_count; i++) {
        held->voters[i] = lots[i].voter;
        held->weight += lots[i].voter.weight;
    }
    hth_free(lots);
}

bool hth_chain_quorum(const struct hth_chain *chain, uint32_t link, hth_member_test *has,
                      const void *ctx)
{
    struct hth_voters voters = hth_chain_voters(chain, link);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < voters.count; i++)
        if (has(ctx, voters.order[i].member))
            sum += voters.order[i].weight;
    return 2 * sum > voters.weight ||
           (voters.weight > 0 && 2 * sum == voters.weight && has(ctx, voters.order[0].member));
}

/* ---- taking links up
 * ------------------------------------------------------------------------------ */

static int by_identity(const void *a, const void *b)
{
    const struct member *x = *(const struct member *const *)a,
                        *y = *(const struct member *const *)b;
    int order = hth_peer_id_cmp(&x->id, &y->id);
    return order != 0 ? order : x->life < y->life ? -1 : x->life > y->life;
}

/* `link` has its roll in the store, ascending by member. */
static void write_link(const struct hth_chain *chain, const struct hth_chain_link *link,
                       struct hth_writer *w)
{
    static const struct hth_hash none;
    hth_write_u64(w, link->step);
    hth_write_bytes(w, link->prev == HTH_LINK_NONE ? &none : &chain->links[link->prev].head,
                    sizeof(none));
    hth_write_u32(w, link->protocol);
    hth_write_u32(w, link->ballot);
    hth_write_u8(w, (uint8_t)link->kind);
    hth_write_bytes(w, &link->mean, sizeof(link->mean));
    hth_write_u32(w, link->count);
    for (uint32_t i = 0; i < link->count; i++)
        chain->sorted[i] = &chain->members[link->roll[i].member];
    qsort(chain->sorted, link->count, sizeof(*chain->sorted), by_identity);
    for (uint32_t i = 0; i < link->count; i++) {
        const struct hth_roll *entry = find_entry(link, chain->sorted[i]->number);
        hth_write_bytes(w, &chain->sorted[i]->id, sizeof(chain->sorted[i]->id));
        hth_write_u64(w, chain->sorted[i]->life);
        hth_write_u16(w, entry->marks);
        hth_write_u32(w, entry->batch);
        hth_write_u32(w, entry->samples);
    }
    hth_write_u16(w, 0); /* length of the extension */
}

void hth_chain_write(const struct hth_chain *chain, uint32_t link, struct hth_writer *w)
{
    write_link(chain, hth_chain_at(chain, link), w);
}

static struct hth_hash hash_link(const struct hth_chain *chain, const struct hth_chain_link *link)
{
    struct hth_writer w;
    struct hth_hash head;
    hth_writer_init(&w, chain->bytes, BYTES_MAX(link->count));
    hth_write_bytes(&w, &chain->opts.run, sizeof(chain->opts.run));
    write_link(chain, link, &w);
    HTH_ASSERT(w.err == HTH_OK);
    chain->opts.crypto->hash(chain->bytes, w.pos, &head);
    return head;
}

static bool marks_are_good(uint16_t marks)
{
    return marks == HTH_ROLL_IN || marks == HTH_ROLL_PART ||
           marks == (HTH_ROLL_IN | HTH_ROLL_LEFT);
}

/* Checks all that needs no other link. `roll` is ascending by member. */
static enum hth_err check_form(const struct hth_chain *chain, const struct hth_chain_link *link,
                               const struct hth_roll *roll)
{
    bool somebody = false;
    for (uint32_t i = 0; i < link->count; i++) {
        if (roll[i].member >= chain->members_count || !marks_are_good(roll[i].marks) ||
            (i > 0 && roll[i].member == roll[i - 1].member))
            return HTH_E_MALFORMED;
        somebody |= is_in(&roll[i]);
    }
    bool is_first = link->prev == HTH_LINK_NONE;
    if (!somebody || (link->kind == HTH_LINK_GENESIS) != is_first)
        return HTH_E_MALFORMED;
    if (is_first)
        return HTH_OK;
    if (link->prev >= chain->count)
        return HTH_E_NOT_FOUND;
    return link->step == chain->links[link->prev].link.step + 1 ? HTH_OK : HTH_E_MALFORMED;
}

static bool brought(const void *ctx, uint16_t member)
{
    return is_in(find_entry(ctx, member));
}

static enum hth_err check_quorum(const struct hth_chain *chain, const struct hth_chain_link *link)
{
    if (link->kind == HTH_LINK_GENESIS)
        return HTH_OK;
    if (link->kind == HTH_LINK_FORK && !chain->opts.eventual)
        return HTH_E_REFUSED;
    bool enough = hth_chain_quorum(chain, hth_chain_base(chain, link->prev), brought, link);
    return enough == (link->kind == HTH_LINK_STEP) ? HTH_OK : HTH_E_STALE;
}

enum hth_err hth_chain_add(struct hth_chain *chain, const struct hth_chain_link *link,
                           uint32_t *out)
{
    *out = HTH_LINK_NONE;
    if (link->count > chain->opts.rolls_max - chain->rolls_count ||
        link->count > chain->opts.members_max || chain->count == chain->opts.links_max)
        return HTH_E_TOO_LARGE;
    struct hth_roll *roll = &chain->rolls[chain->rolls_count];
    memcpy(roll, link->roll, link->count * sizeof(*roll));
    qsort(roll, link->count, sizeof(*roll), by_number);
    HTH_TRY(check_form(chain, link, roll));
    struct held *held = &chain->links[chain->count];
    *held = (struct held){.link = *link, .voters = &chain->voters[chain->rolls_count]};
    held->link.roll = roll;
    HTH_TRY(check_quorum(chain, &held->link));
    held->head = hash_link(chain, &held->link);
    *out = hth_chain_find(chain, &held->head);
    if (*out != HTH_LINK_NONE)
        return HTH_OK;
    *out = chain->count++;
    chain->rolls_count += link->count;
    hth_map_put(chain->by_head, &held->head, sizeof(held->head), held);
    const struct held *before = link->prev == HTH_LINK_NONE ? NULL : &chain->links[link->prev];
    held->first = before == NULL ? *out : before->first;
    held->samples = before == NULL ? 0 : before->samples;
    bool begins = link->kind != HTH_LINK_STEP || link->step % EPOCH_STEPS == 0;
    held->epoch = begins ? *out : before->epoch;
    for (uint32_t i = 0; i < link->count; i++)
        if (is_in(&roll[i]))
            held->samples += roll[i].samples;
    find_voters(chain, *out);
    return HTH_OK;
}

/* Reads the members of a roll into chain->read, and their entries. */
static enum hth_err read_roll(struct hth_chain *chain, struct hth_reader *r, uint32_t count,
                              struct hth_roll *roll)
{
    for (uint32_t i = 0; i < count; i++) {
        struct member *m = &chain->read[i], *before = m - 1;
        hth_read_bytes(r, &m->id, sizeof(m->id));
        m->life = hth_read_u64(r);
        roll[i].marks = hth_read_u16(r);
        roll[i].batch = hth_read_u32(r);
        roll[i].samples = hth_read_u32(r);
        if (i > 0 &&
            by_identity(&(const struct member *){before}, &(const struct member *){m}) >= 0)
            return HTH_E_MALFORMED;
    }
    return HTH_OK;
}

/* Gives the members numbers; those that have none get the next ones, or none is added. */
static enum hth_err number_members(struct hth_chain *chain, struct hth_roll *roll, uint32_t count)
{
    uint32_t before = chain->members_count;
    for (uint32_t i = 0; i < count; i++) {
        enum hth_err err =
            hth_chain_member(chain, &chain->read[i].id, chain->read[i].life, &roll[i].member);
        if (err == HTH_OK)
            continue;
        forget_members(chain, before);
        return err;
    }
    return HTH_OK;
}

enum hth_err hth_chain_read(struct hth_chain *chain, struct hth_reader *r, uint32_t *out)
{
    static const struct hth_hash none;
    struct hth_chain_link link = {.step = hth_read_u64(r)};
    struct hth_hash before;
    *out = HTH_LINK_NONE;
    hth_read_bytes(r, &before, sizeof(before));
    link.protocol = hth_read_u32(r);
    link.ballot = hth_read_u32(r);
    uint8_t kind = hth_read_u8(r);
    hth_read_bytes(r, &link.mean, sizeof(link.mean));
    link.count = hth_read_u32(r);
    HTH_TRY(r->err);
    if (link.count > chain->opts.members_max)
        return HTH_E_TOO_LARGE;
    struct hth_roll *roll = hth_calloc(link.count + 1, sizeof(*roll));
    enum hth_err err;
    HTH_GOTO(out, read_roll(chain, r, link.count, roll));
    uint16_t extension = hth_read_u16(r);
    HTH_GOTO(out, r->err);
    HTH_GOTO(out, extension == 0 ? HTH_OK : HTH_E_VERSION);
    HTH_GOTO(out, kind <= HTH_LINK_GENESIS ? HTH_OK : HTH_E_MALFORMED);
    link.kind = (enum hth_link_kind)kind;
    bool is_first = memcmp(&before, &none, sizeof(none)) == 0;
    link.prev = is_first ? HTH_LINK_NONE : hth_chain_find(chain, &before);
    HTH_GOTO(out, !is_first && link.prev == HTH_LINK_NONE ? HTH_E_NOT_FOUND : HTH_OK);
    uint32_t members = chain->members_count;
    HTH_GOTO(out, number_members(chain, roll, link.count));
    link.roll = roll;
    err = hth_chain_add(chain, &link, out);
    if (err != HTH_OK)
        forget_members(chain, members);
out:
    hth_free(roll);
    return err;
}

/* ---- which chain remains
 * ---------------------------------------------------------------------------- */

/* Whether a link is another, or follows from it without a fork between them. */
static bool follows(const struct hth_chain *chain, uint32_t link, uint32_t from)
{
    uint64_t step = chain->links[from].link.step;
    while (link != from) {
        const struct hth_chain_link *at = &chain->links[link].link;
        if (at->kind != HTH_LINK_STEP || at->step <= step)
            return false;
        link = at->prev;
    }
    return true;
}

bool hth_chain_better(const struct hth_chain *chain, uint32_t a, uint32_t b)
{
    if (a == b)
        return false;
    const struct held *x = &chain->links[a], *y = &chain->links[b];
    if (follows(chain, a, hth_chain_base(chain, b)))
        return x->link.step > y->link.step;
    if (follows(chain, b, hth_chain_base(chain, a)))
        return false;
    if (!chain->opts.eventual && x->first == y->first)
        return false;
    x = &chain->links[hth_chain_base(chain, a)];
    y = &chain->links[hth_chain_base(chain, b)];
    if (x->samples != y->samples)
        return x->samples > y->samples;
    return memcmp(&x->head, &y->head, sizeof(x->head)) < 0;
}
