/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_resident.c: eviction and prefetch (kernels/cuda/resident.h), over a driver that is as late
 * as it may be: work given to a stream runs when a thread waits for it, or at random, so a copy or
 * a wait that is missing or in the wrong order shows in the bytes.
 */
#include <stdlib.h>

#include "core/mem.h"
#include "kernels/cuda/resident.h"
#include "kernels/shim_control.h"
#include "support/suite.h"

#define PAGE ((size_t)2 << 20) /* the pool rounds larger sizes to it */
#define SAID 64                /* bytes of an item that the tests compare */

/* ---- a late driver ------------------------------------------------------------------------- */

enum op_kind { COPY, ZERO, RECORD, WAIT, KERNEL };

struct item_box;

struct op {
    enum op_kind kind;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    struct event *event;
    uint64_t record;       /* RECORD, WAIT: which one of the event's */
    uint8_t before, after; /* KERNEL: expected old value, new value */
};

struct stream {
    struct op op[4096];
    uint32_t head, tail;
    struct stream *next;
};

struct event {
    uint64_t recorded, done;
    struct stream *stream; /* of the last record */
};

static struct {
    struct stream *streams;
    size_t card, taken;
    uint64_t random;
    long fail_at; /* the n-th call from now fails; 0: none */
    bool no_pinned;
    uint32_t made, gone;
    struct hth_resident *watched; /* its lock must be free during slow driver calls */
    void (*meanwhile)(void);      /* runs during such a call */
} late;

static void takes_time(void)
{
    void (*meanwhile)(void) = late.meanwhile;
    if (late.watched == NULL)
        return;
    assert_false(atomic_flag_test_and_set(&late.watched->busy));
    atomic_flag_clear(&late.watched->busy);
    late.meanwhile = NULL; /* once */
    if (meanwhile != NULL)
        meanwhile();
}

static bool fails(void)
{
    return late.fail_at > 0 && --late.fail_at == 0;
}

static uint32_t draw(uint32_t below)
{
    late.random = late.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(late.random >> 33) % below;
}

static void run_until(struct stream *s, uint32_t end);

static void run_op(struct op *op)
{
    switch (op->kind) {
    case COPY:
        memcpy(op->to, op->from, op->bytes);
        break;
    case ZERO:
        memset(op->to, 0, op->bytes);
        break;
    case RECORD:
        op->event->done = op->record;
        break;
    case WAIT:
        while (op->event->done < op->record)
            run_until(op->event->stream, op->event->stream->head + 1);
        break;
    case KERNEL:
        for (size_t i = 0; i < SAID; i++) {
            if (op->to[i] != op->before)
                fail_msg("byte %zu is %u, not %u", i, op->to[i], op->before);
        }
        memset(op->to, op->after, SAID);
        break;
    }
}

static void run_until(struct stream *s, uint32_t end)
{
    while (s->head < end && s->head < s->tail) {
        struct op *op = &s->op[s->head % HTH_ARRAY_LEN(s->op)];
        run_op(op);
        s->head++;
    }
}

static void by_chance(void)
{
    for (struct stream *s = late.streams; s != NULL; s = s->next) {
        if (draw(4) == 0)
            run_until(s, s->head + draw(3));
    }
}

static int give(void *stream, struct op op)
{
    struct stream *s = stream;
    if (fails())
        return 7;
    assert_true(s->tail - s->head < HTH_ARRAY_LEN(s->op));
    s->op[s->tail++ % HTH_ARRAY_LEN(s->op)] = op;
    by_chance();
    return 0;
}

static int late_mem_alloc(void **p, size_t bytes)
{
    if (fails() || bytes > late.card - late.taken)
        return 2;
    uint8_t *block =
        malloc(SAID + SAID); /* a block of any size has this many bytes here, and its size */
    memcpy(block, &bytes, sizeof(bytes));
    *p = block + SAID;
    memset(*p, 0xa5, SAID);
    late.taken += bytes;
    late.made++;
    return 0;
}

static int late_mem_free(void *p)
{
    size_t bytes;
    memcpy(&bytes, (uint8_t *)p - SAID, sizeof(bytes));
    free((uint8_t *)p - SAID);
    late.taken -= bytes;
    late.gone++;
    return 0;
}

static int late_host_alloc(void **p, size_t bytes)
{
    (void)bytes;
    takes_time();
    if (fails() || late.no_pinned)
        return 2;
    *p = malloc(SAID);
    late.made++;
    return 0;
}

static int late_host_free(void *p)
{
    free(p);
    late.gone++;
    return 0;
}

static int late_stream_new(void **out)
{
    if (fails())
        return 3;
    struct stream *s = calloc(1, sizeof(*s));
    s->next = late.streams;
    late.streams = s;
    late.made++;
    *out = s;
    return 0;
}

static void late_stream_free(void *stream)
{
    struct stream **at = &late.streams, *s = stream;
    run_until(s, s->tail);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s);
    late.gone++;
}

static int late_stream_sync(void *stream)
{
    if (late.watched != NULL && stream == late.watched->queue)
        takes_time();
    run_until(stream, ((struct stream *)stream)->tail);
    return 0;
}

static int late_event_new(void **event)
{
    if (fails())
        return 3;
    *event = calloc(1, sizeof(struct event));
    late.made++;
    return 0;
}

static void late_event_free(void *event)
{
    free(event);
    late.gone++;
}

static int late_event_record(void *event, void *stream)
{
    struct event *e = event;
    int err = give(stream, (struct op){.kind = RECORD, .event = e, .record = e->recorded + 1});
    if (err == 0) {
        e->recorded++;
        e->stream = stream;
    }
    return err;
}

static int late_event_sync(void *event)
{
    struct event *e = event;
    if (fails())
        return 3;
    run_op(&(struct op){.kind = WAIT, .event = e, .record = e->recorded});
    return 0;
}

static int late_stream_wait(void *stream, void *event)
{
    struct event *e = event;
    return give(stream, (struct op){.kind = WAIT, .event = e, .record = e->recorded});
}

static int late_copy(void *to, const void *from, size_t bytes, void *stream)
{
    (void)bytes;
    return give(stream, (struct op){.kind = COPY, .to = to, .from = from, .bytes = SAID});
}

static int late_zero(void *to, size_t bytes, void *stream)
{
    (void)bytes;
    return give(stream, (struct op){.kind = ZERO, .to = to, .bytes = SAID});
}

/* ---- a card of a few pages, and items of a page -------------------------------------------- */

struct item_box {
    struct hth_item item;
    uint8_t said; /* its bytes, after all work given so far */
    bool matters;
    uint32_t moves;
};

static bool box_matters(const struct hth_item *item)
{
    return ((const struct item_box *)item->owner)->matters;
}

static void box_moved(struct hth_item *item)
{
    ((struct item_box *)item->owner)->moves++;
}

static struct hth_gpu gpu;
static struct hth_pool pool;
static struct hth_resident res;
static struct item_box box[32];
static void *stream;

static void open_card(size_t pages, uint64_t seed)
{
    gpu = hth_gpu_shim;
    gpu.mem_alloc = late_mem_alloc;
    gpu.mem_free = late_mem_free;
    gpu.host_alloc = late_host_alloc;
    gpu.host_free = late_host_free;
    gpu.stream_new = late_stream_new;
    gpu.stream_free = late_stream_free;
    gpu.stream_sync = late_stream_sync;
    gpu.stream_wait = late_stream_wait;
    gpu.event_new = late_event_new;
    gpu.event_free = late_event_free;
    gpu.event_record = late_event_record;
    gpu.event_sync = late_event_sync;
    gpu.copy_in = gpu.copy_out = late_copy;
    gpu.zero = late_zero;
    memset(&late, 0, sizeof(late));
    memset(box, 0, sizeof(box));
    late.card = pages * PAGE;
    late.random = seed;
    hth_pool_init(&pool, &gpu, 0);
    assert_ok(hth_resident_init(&res, &gpu, &pool, late.card));
    res.matters = box_matters;
    res.moved = box_moved;
    assert_int_equal(gpu.stream_new(&stream), 0);
    late.watched = &res;
}

static void close_card(uint32_t items)
{
    (void)gpu.stream_sync(stream);
    for (uint32_t i = 0; i < items; i++)
        hth_resident_remove(&res, &box[i].item);
    gpu.stream_free(stream);
    assert_int_equal(res.used, 0);
    assert_int_equal(res.held, 0);
    hth_resident_clear(&res);
    assert_int_equal(pool.used, 0);
    hth_pool_clear(&pool);
    assert_int_equal(late.made, late.gone);
}

static enum hth_err add_of(uint32_t i, size_t pages)
{
    box[i].item.owner = &box[i];
    box[i].matters = true;
    return hth_resident_add(&res, &box[i].item, pages * PAGE, pages * PAGE);
}

static enum hth_err add(uint32_t i)
{
    return add_of(i, 1);
}

/* Works on a held item: expects its last value, writes a new one. */
static void work(uint32_t i, bool write, void *on)
{
    uint8_t before = box[i].said;
    long fail_at = late.fail_at;
    late.fail_at = 0; /* this call does not fail */
    if (write)
        box[i].said = (uint8_t)(before * 5 + i + 1);
    assert_int_equal(give(on, (struct op){.kind = KERNEL,
                                          .to = box[i].item.at,
                                          .before = before,
                                          .after = box[i].said}),
                     0);
    late.fail_at = fail_at;
}

static void add_all(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(add(i));
        work(i, true, stream);
        (void)gpu.stream_sync(stream);
        hth_resident_release(&res, &box[i].item, true);
    }
}

/* One use; true if the item was on the card. */
static bool use(uint32_t i, bool write)
{
    struct hth_item *item = &box[i].item;
    bool here = item->at != NULL;
    assert_ok(hth_resident_hold(&res, &item, 1, stream));
    work(i, write, stream);
    (void)gpu.stream_sync(stream);
    hth_resident_release(&res, item, write);
    return here;
}

/* ---- tests --------------------------------------------------------------------------------- */

/* Three contexts hold up to three of twenty items each, on a card for ten, and release them at
 * their syncs: every kernel finds the bytes of the previous one. */
static void traffic(uint64_t seed)
{
    enum { ITEMS = 20, CONTEXTS = 3, MOST = 3 };
    void *on[CONTEXTS];
    uint32_t held[CONTEXTS][MOST], count[CONTEXTS] = {0}, wrote[CONTEXTS] = {0};
    bool writing[ITEMS] = {false};
    uint32_t users[ITEMS] = {0};
    open_card(10, seed);
    add_all(ITEMS);
    for (int c = 0; c < CONTEXTS; c++)
        assert_int_equal(gpu.stream_new(&on[c]), 0);
    for (int turn = 0; turn < 1500; turn++) {
        uint32_t c = draw(CONTEXTS), i = draw(3) > 0 ? draw(6) : draw(ITEMS);
        bool write = draw(2) == 0;
        struct hth_item *item = &box[i].item;
        if (count[c] == MOST || draw(4) == 0) {
            (void)gpu.stream_sync(on[c]);
            for (; count[c] > 0; wrote[c] >>= 1) {
                uint32_t k = held[c][--count[c]];
                hth_resident_release(&res, &box[k].item, wrote[c] & 1);
                users[k]--;
                writing[k] = writing[k] && !(wrote[c] & 1);
            }
        } else if (!writing[i] && !(write && users[i] > 0)) {
            assert_ok(hth_resident_hold(&res, &item, 1, on[c]));
            work(i, write, on[c]);
            held[c][count[c]++] = i;
            wrote[c] = wrote[c] << 1 | write;
            users[i]++;
            writing[i] = write;
        } else {
            struct hth_item *other = &box[draw(ITEMS)].item;
            hth_resident_ahead(&res, &other, 1);
        }
        assert_true(res.used <= res.budget);
    }
    for (int c = 0; c < CONTEXTS; c++) {
        (void)gpu.stream_sync(on[c]);
        gpu.stream_free(on[c]);
    }
    for (uint32_t c = 0; c < CONTEXTS; c++) {
        for (; count[c] > 0; wrote[c] >>= 1)
            hth_resident_release(&res, &box[held[c][--count[c]]].item, wrote[c] & 1);
    }
    for (uint32_t i = 0; i < ITEMS; i++)
        (void)use(i, false);
    assert_true(res.stats.evictions > 100 && res.stats.hits > 100);
    close_card(ITEMS);
}

TEST(bytes_survive_eviction)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++)
        traffic(seed);
}

/* A round robin over one item more than fits keeps all but a few. "Least recently used" would move
 * each, always. */
TEST(round_robin_does_not_thrash)
{
    enum { ITEMS = 11, ROUNDS = 40 };
    uint32_t hits = 0;
    (void)state;
    open_card(ITEMS - 1, 5);
    add_all(ITEMS);
    for (uint32_t r = 0; r < ROUNDS; r++) {
        for (uint32_t i = 0; i < ITEMS; i++)
            hits += use(i, r % 2 == 0);
    }
    if (hits < ROUNDS * ITEMS * 3 / 4)
        fail_msg("only %u of %d uses found their item", hits, ROUNDS * ITEMS);
    close_card(ITEMS);
}

/* Three of twenty items get most of the work and are never evicted; then three others, which
 * replace them. */
TEST(most_used_items_stay)
{
    enum { ITEMS = 20, HOT = 3 };
    (void)state;
    open_card(5, 6);
    add_all(ITEMS);
    for (uint32_t phase = 0; phase < 2; phase++) {
        uint32_t hot = phase * 7, misses = 0;
        for (uint32_t turn = 0; turn < 3000; turn++) {
            bool likes = turn % 4 != 3;
            uint32_t i = likes ? hot + turn % 4 : draw(ITEMS);
            bool here = use(i, false);
            misses += likes && !here && turn >= 2000;
        }
        if (misses > 0)
            fail_msg("favourites %u were away %u times", hot, misses);
    }
    close_card(ITEMS);
}

TEST(held_items_are_not_evicted)
{
    struct hth_item *two[2], *third = &box[2].item, *fourth = &box[3].item;
    (void)state;
    open_card(3, 7);
    add_all(4);
    two[0] = &box[0].item;
    two[1] = &box[1].item;
    assert_ok(hth_resident_hold(&res, two, 2, stream));
    assert_ok(hth_resident_hold(&res, &third, 1, stream));
    assert_true(hth_resident_is_held(&res));
    assert_err(HTH_E_NO_MEMORY, hth_resident_hold(&res, &fourth, 1, stream));
    hth_resident_ahead(&res, &fourth, 1);
    assert_null(fourth->at);
    assert_false(hth_resident_make_room(&res, PAGE));
    hth_resident_release(&res, third, false);
    /* All or nothing: the fourth fits, but not with the third, which is asked for, too. */
    struct hth_item *both[2] = {third, fourth};
    assert_err(HTH_E_NO_MEMORY, hth_resident_hold(&res, both, 2, stream));
    assert_int_equal(third->holds, 0);
    assert_int_equal(fourth->holds, 0);
    assert_ok(hth_resident_hold(&res, &fourth, 1, stream));
    assert_null(third->at);
    assert_true(two[0]->at != NULL && two[1]->at != NULL);
    (void)gpu.stream_sync(stream);
    hth_resident_release(&res, two[0], false);
    hth_resident_release(&res, two[1], false);
    hth_resident_release(&res, fourth, false);
    assert_false(hth_resident_is_held(&res));
    close_card(4);
}

/* An item that was only read is evicted without a copy. A logically zero item is evicted first and
 * fetched, both without a copy. */
TEST(clean_items_leave_without_a_copy)
{
    (void)state;
    open_card(2, 8);
    add_all(3);
    for (int i = 0; i < 9; i++)
        (void)use((uint32_t)i % 3, false);
    uint64_t out = res.stats.bytes_out;
    assert_int_equal(out, 2 * PAGE); /* once, when they were new; the third was never evicted */
    for (int i = 0; i < 30; i++)
        (void)use((uint32_t)i % 3, false);
    assert_int_equal(res.stats.bytes_out, out);
    (void)use(0, true);
    (void)use(0, true);
    (void)use(1, true);
    box[1].matters = false; /* as after a step: its gradients are zero */
    box[1].said = 0;
    uint64_t in = res.stats.bytes_in;
    (void)use(2, false);
    assert_null(box[1].item.at); /* although item 0 has as few uses */
    assert_int_equal(res.stats.bytes_out, out);
    assert_int_equal(res.stats.bytes_in, in + PAGE);
    (void)use(1, false); /* zeros */
    assert_int_equal(res.stats.bytes_in, in + PAGE);
    box[1].matters = true;
    (void)use(1, true);
    close_card(3);
}

TEST(prefetched_items_are_protected)
{
    struct hth_item *next = &box[3].item;
    (void)state;
    open_card(3, 9);
    add_all(5);
    for (int i = 0; i < 20; i++)
        (void)use((uint32_t)i % 3, false);
    hth_resident_ahead(&res, &next, 1);
    assert_non_null(next->at);
    uint64_t loads = res.stats.loads;
    (void)use(4, false); /* another item is evicted, although it is older and used more */
    assert_int_equal(res.stats.loads, loads + 1);
    assert_true(use(3, false));
    close_card(5);
}

/* A prefetched item that is not used soon loses its protection. */
TEST(unused_prefetch_loses_protection)
{
    struct hth_item *two[2] = {&box[3].item, &box[4].item};
    uint32_t hits = 0;
    (void)state;
    open_card(4, 13);
    add_all(5);
    hth_resident_ahead(&res, two, 2);
    assert_true(two[0]->at != NULL && two[1]->at != NULL);
    for (uint32_t i = 0; i < 300; i++)
        hits += use(i % 3, false) && i >= 200;
    assert_int_equal(hits, 100);
    close_card(5);
}

/* ---- other threads during a wait ------------------------------------------------------------ */

static void *stream2;
static uint32_t wanted_by_other;

static void other_uses(void)
{
    struct hth_item *item = &box[wanted_by_other].item;
    uint32_t giving = res.giving;
    res.giving = 0; /* it would wait for the waiting thread, which is the same here */
    enum hth_err err = hth_resident_hold(&res, &item, 1, stream2);
    res.giving = giving;
    if (err != HTH_OK)
        return;
    work(wanted_by_other, true, stream2);
    (void)gpu.stream_sync(stream2);
    hth_resident_release(&res, item, true);
    wanted_by_other = UINT32_MAX; /* the item was on the card */
}

/* Small and large items alternate on a card for three pages: each needs memory of another size, so
 * blocks return to the pool, and the thread that waits for that releases the lock. Meanwhile
 * another thread uses an item: another one, or the one being brought. */
TEST(lock_is_free_during_waits)
{
    uint32_t came = 0;
    (void)state;
    open_card(3, 14);
    assert_int_equal(gpu.stream_new(&stream2), 0);
    for (uint32_t i = 0; i < 6; i++) {
        assert_ok(add_of(i, i % 2 + 1));
        work(i, true, stream);
        (void)gpu.stream_sync(stream);
        hth_resident_release(&res, &box[i].item, true);
    }
    for (uint32_t turn = 0; turn < 1500; turn++) {
        wanted_by_other = draw(6);
        late.meanwhile = other_uses;
        (void)use(draw(6), draw(2) == 0);
        late.meanwhile = NULL;
        came += wanted_by_other == UINT32_MAX;
        assert_true(res.used <= res.budget && res.giving == 0);
    }
    assert_true(came > 50);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(box[i].item.asked, 0);
    (void)gpu.stream_sync(stream2);
    gpu.stream_free(stream2);
    close_card(6);
}

/* Without pinned memory, ordinary memory serves. */
TEST(ordinary_memory_replaces_pinned)
{
    (void)state;
    open_card(2, 10);
    late.no_pinned = true;
    add_all(3);
    for (int i = 0; i < 12; i++)
        (void)use((uint32_t)i % 3, true);
    assert_int_equal(res.stats.unpinned, 2);
    close_card(3);
}

/* Weights are evicted for other memory of the card, and fetched when there is room. */
TEST(weights_make_room_for_other_memory)
{
    (void)state;
    open_card(4, 11);
    add_all(4);
    assert_null(hth_pool_take(&pool, PAGE));
    assert_true(hth_resident_make_room(&res, PAGE));
    void *theirs = hth_pool_take(&pool, PAGE);
    assert_non_null(theirs);
    memset(theirs, 0x11, SAID); /* at once: no copy uses this memory any longer */
    for (int i = 0; i < 8; i++) /* the budget allows four, the card has three */
        (void)use((uint32_t)i % 4, true);
    assert_true(res.used <= 3 * PAGE);
    assert_true(hth_pool_give(&pool, theirs));
    close_card(4);
    open_card(4, 12);
    res.budget = PAGE / 2;
    assert_err(HTH_E_NO_MEMORY, add(0)); /* never fits */
    close_card(0);
}

/* Each call of the driver fails once: an error or none, never a wrong byte or a leak. */
TEST(every_driver_failure_is_clean)
{
    uint32_t seen = 0;
    (void)state;
    for (long n = 1; n < 200; n++) {
        uint32_t added = 0;
        enum hth_err err = HTH_OK;
        open_card(3, (uint64_t)n);
        add_all(3);
        late.fail_at = n;
        for (added = 3; added < 6 && (err = add(added)) == HTH_OK; added++) {
            work(added, true, stream);
            (void)gpu.stream_sync(stream);
            hth_resident_release(&res, &box[added].item, true);
        }
        for (uint32_t i = 0; i < 12 && late.fail_at > 0; i++) {
            struct hth_item *item = &box[i % added].item;
            err = hth_resident_hold(&res, &item, 1, stream);
            if (err != HTH_OK)
                break;
            (void)gpu.stream_sync(stream);
            hth_resident_release(&res, item, true);
        }
        bool over = late.fail_at > 0;
        late.fail_at = 0;
        seen += err != HTH_OK;
        for (uint32_t i = 0; i < added; i++)
            (void)use(i, true); /* all have their bytes */
        close_card(added);
        if (over)
            break;
        assert_true(n < 199);
    }
    assert_true(seen > 5);
}
