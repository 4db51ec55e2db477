/* SPDX-License-Identifier: Apache-2.0 */
#include "world_int.h"

#include "core/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATES_MAX (30u << 20)

/* ---- the search ------------------------------------------------------------------------------ */

enum { WORDS = sizeof(struct state) / 8 };

/* Of ten million states two have one hash once in 400,000 searches. Four lanes, so that the
 * multiplications overlap. */
static uint64_t key_of(const struct state *s)
{
    uint64_t word[WORDS], lane[4] = {0};
    memcpy(word, s, sizeof(word));
    for (size_t i = 0; i < WORDS; i++)
        lane[i % 4] = hth_mix64(lane[i % 4] ^ word[i]);
    return hth_hash64(lane, sizeof(lane), 0) | 1;
}

/* All states so far, by hash, and how each came about. */
static struct {
    uint64_t *slot; /* 0: empty */
    size_t slots, count;
    struct from {
        uint32_t parent;
        struct event e;
    } * from;
} known;

static void known_grow(size_t slots)
{
    uint64_t *old = known.slot;
    size_t n = known.slots;
    known.slot = calloc(slots, sizeof(*known.slot));
    known.from = realloc(known.from, slots * sizeof(*known.from));
    HTH_ASSERT(known.slot != NULL && known.from != NULL);
    known.slots = slots;
    for (size_t i = 0; i < n; i++) {
        size_t at_slot = old[i] & (slots - 1);
        while (old[i] != 0 && known.slot[at_slot] != 0)
            at_slot = (at_slot + 1) & (slots - 1);
        if (old[i] != 0)
            known.slot[at_slot] = old[i];
    }
    free(old);
}

static bool known_add(uint64_t key, uint32_t parent, struct event e)
{
    if (known.count * 2 >= known.slots)
        known_grow(known.slots * 2);
    size_t i = key & (known.slots - 1);
    for (; known.slot[i] != 0; i = (i + 1) & (known.slots - 1))
        if (known.slot[i] == key)
            return false;
    known.slot[i] = key;
    known.from[known.count++] = (struct from){parent, e};
    return true;
}

/* A queue of states as runs of words that differ from the first state. */
struct queue {
    uint64_t *words;
    size_t count, capacity, taken;
};

static struct state first;

static void queue_put(struct queue *q, const struct state *s, uint32_t number)
{
    if (q->capacity - q->count < 2 * WORDS + 2) {
        q->capacity = 2 * q->capacity + 4 * WORDS;
        q->words = realloc(q->words, q->capacity * 8);
        HTH_ASSERT(q->words != NULL);
    }
    uint64_t word[WORDS], base[WORDS];
    memcpy(word, s, sizeof(word));
    memcpy(base, &first, sizeof(base));
    size_t head = q->count++, n = 0;
    for (size_t i = 0, runs_from; i < WORDS;) {
        while (i < WORDS && word[i] == base[i])
            i++;
        runs_from = i;
        size_t run = q->count++;
        while (i < WORDS && word[i] != base[i])
            q->words[q->count++] = word[i++];
        q->words[run] = runs_from << 32 | (i - runs_from);
        n++;
    }
    q->words[head] = (uint64_t)number << 32 | n;
}

static bool queue_take(struct queue *q, struct state *s, uint32_t *number)
{
    if (q->taken == q->count)
        return false;
    uint64_t word[WORDS], head = q->words[q->taken++];
    memcpy(word, &first, sizeof(word));
    for (uint32_t n = (uint32_t)head; n > 0; n--) {
        uint64_t run = q->words[q->taken++], len = run & UINT32_MAX;
        memcpy(&word[run >> 32], &q->words[q->taken], len * 8);
        q->taken += len;
    }
    memcpy(s, word, sizeof(*s));
    *number = (uint32_t)(head >> 32);
    return true;
}

static void show_trace(uint32_t number, struct event last)
{
    struct event path[1024];
    size_t n = 0;
    for (path[n++] = last; number != 0 && n < HTH_ARRAY_LEN(path);
         number = known.from[number].parent)
        path[n++] = known.from[number].e;
    struct state s = first;
    while (n-- > 0) {
        struct state before = s;
        world_apply(&s, path[n]);
        world_print(&before, path[n], &s);
    }
}

/* Nothing happens but what need not. */
static bool is_end(const struct events *events)
{
    for (size_t i = 0; i < events->n; i++)
        if (events->e[i].kind != HEAL && events->e[i].kind < CRASH)
            return false;
    return true;
}

/* Tries all that can happen next; false: a world_violation, by `*last`. */
static bool expand(struct state *s, uint32_t number, struct queue *next, struct world_found *found,
                   struct event *last)
{
    static struct events events;
    static struct state to[HTH_ARRAY_LEN(events.e)];
    static uint64_t key[HTH_ARRAY_LEN(events.e)];
    world_events(s, &events);
    if (is_end(&events)) {
        found->ends++;
        if (!world_now.links)
            world_judge(s);
        *last = (struct event){HEAL, 0, 0};
        if (world_violation != NULL)
            return false;
    }
    for (size_t i = 0; i < events.n; i++) {
        to[i] = *s;
        *last = events.e[i];
        world_apply(&to[i], *last);
        if (world_violation != NULL)
            return false;
        key[i] = key_of(&to[i]);
        __builtin_prefetch(&known.slot[key[i] & (known.slots - 1)]); /* the search waits for it */
    }
    for (size_t i = 0; i < events.n; i++)
        if (known_add(key[i], number, events.e[i]))
            queue_put(next, &to[i], (uint32_t)known.count - 1);
    return true;
}

struct world_found world_search(const struct world *w, bool show)
{
    struct world_found found = {.why = ""};
    struct queue level = {0}, next = {0};
    struct state s;
    struct event last;
    uint32_t number = 0;
    known.slots = 0;
    known.count = 0;
    known_grow(1 << 16);
    first = world_begin(w);
    known_add(key_of(&first), 0, (struct event){HEAL, 0, 0});
    queue_put(&level, &first, 0);
    bool clean = true;
    while (clean && level.count > 0) {
        while (clean && queue_take(&level, &s, &number))
            clean = expand(&s, number, &next, &found, &last);
        struct queue done = level;
        level = next;
        next = done;
        next.count = next.taken = 0;
        HTH_ASSERT(known.count < STATES_MAX);
    }
    found.states = known.count;
    if (!clean) {
        snprintf(found.why, sizeof(found.why), "%s", world_violation);
        if (show)
            show_trace(number, last);
    }
    free(level.words);
    free(next.words);
    free(known.slot);
    free(known.from);
    memset(&known, 0, sizeof(known));
    world_end();
    return found;
}
