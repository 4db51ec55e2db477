/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cards.c: two cards in one process, two threads each, over a driver table that knows which
 * card is current on which thread. Every call names memory, streams and events of the current card;
 * a card that is frozen in the driver, or lost, does not affect the other.
 *
 * Contexts, memory and copies only; no kernel runs, so ThreadSanitizer works (it can't follow the
 * shim's fibres).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/rng.h"
#include "kernels/cuda/device.h"
#include "kernels/shim_control.h"
#include "support/suite.h"

#define CARDS   2
#define WORKERS 2
#define ROUNDS  60
#define FLOATS  5000u
#define HEAD    ((size_t)64) /* in front of device memory: its card */

/* ---- a driver with two cards --------------------------------------------------------------- */

struct thing { /* a stream, an event, a library */
    int card;
};

static _Thread_local int current = -1;
static atomic_int wrong, made, gone;
static struct {
    pthread_mutex_t lock;
    pthread_cond_t thawed;
    bool frozen;
    int stuck; /* calls that wait */
    atomic_bool lost;
} card[CARDS];

/* Enters a call that names something of card `of`; it may block there. */
static int enter(int of)
{
    if (of < 0 || of != current) {
        atomic_fetch_add(&wrong, 1);
        return 1;
    }
    pthread_mutex_lock(&card[of].lock);
    card[of].stuck++;
    while (card[of].frozen)
        pthread_cond_wait(&card[of].thawed, &card[of].lock);
    card[of].stuck--;
    pthread_mutex_unlock(&card[of].lock);
    return atomic_load(&card[of].lost) ? 999 : 0;
}

static int card_of(const void *device)
{
    int of;
    memcpy(&of, (const uint8_t *)device - HEAD, sizeof(of));
    return of;
}

static int two_count(int *devices)
{
    *devices = CARDS;
    return 0;
}

static int two_use(int device)
{
    current = device;
    return 0;
}

static int two_mem_alloc(void **p, size_t bytes)
{
    int err = enter(current);
    if (err != 0)
        return err;
    uint8_t *block = aligned_alloc(HEAD, HEAD + (bytes + HEAD - 1) / HEAD * HEAD);
    HTH_ASSERT(block != NULL);
    memcpy(block, &current, sizeof(current));
    atomic_fetch_add(&made, 1);
    *p = block + HEAD;
    return 0;
}

/* Frees in any state of the card: closing must give everything back. */
static int two_mem_free(void *p)
{
    if (card_of(p) != current)
        atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&gone, 1);
    free((uint8_t *)p - HEAD);
    return 0;
}

static int two_thing_new(void **thing)
{
    struct thing *t = malloc(sizeof(*t));
    HTH_ASSERT(t != NULL);
    t->card = current;
    atomic_fetch_add(&made, 1);
    *thing = t;
    return 0;
}

static void two_thing_free(void *thing)
{
    if (((struct thing *)thing)->card != current)
        atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&gone, 1);
    free(thing);
}

static int two_blas_open(void **blas, char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    return two_thing_new(blas);
}

static int two_wait(void *thing)
{
    return enter(((struct thing *)thing)->card);
}

static int two_pair(void *a, void *b)
{
    if (((struct thing *)b)->card != ((struct thing *)a)->card)
        atomic_fetch_add(&wrong, 1);
    return two_wait(a);
}

static int two_device_sync(void)
{
    return enter(current);
}

static int two_copy(void *to, const void *from, const void *device, size_t bytes, void *stream)
{
    int err = two_wait(stream);
    if (card_of(device) != current)
        atomic_fetch_add(&wrong, 1);
    if (err == 0)
        memcpy(to, from, bytes);
    return err;
}

static int two_copy_in(void *device, const void *host, size_t bytes, void *stream)
{
    return two_copy(device, host, device, bytes, stream);
}

static int two_copy_out(void *host, const void *device, size_t bytes, void *stream)
{
    return two_copy(host, device, device, bytes, stream);
}

static int two_zero(void *device, size_t bytes, void *stream)
{
    int err = two_wait(stream);
    if (err == 0)
        memset(device, 0, bytes);
    return err;
}

/* Only functions without a card are the shim's: host memory, names. */
static struct hth_gpu two_cards(void)
{
    struct hth_gpu gpu = hth_gpu_shim;
    gpu.count = two_count;
    gpu.use = two_use;
    gpu.mem_alloc = two_mem_alloc;
    gpu.mem_free = two_mem_free;
    gpu.stream_new = gpu.event_new = gpu.timed_new = two_thing_new;
    gpu.stream_free = gpu.event_free = gpu.blas_close = two_thing_free;
    gpu.stream_sync = gpu.event_sync = two_wait;
    gpu.stream_wait = gpu.event_record = two_pair;
    gpu.device_sync = two_device_sync;
    gpu.copy_in = two_copy_in;
    gpu.copy_out = two_copy_out;
    gpu.zero = two_zero;
    gpu.blas_open = two_blas_open;
    return gpu;
}

static void set_card(int c, bool frozen, bool lost)
{
    pthread_mutex_lock(&card[c].lock);
    card[c].frozen = frozen;
    atomic_store(&card[c].lost, lost);
    pthread_cond_broadcast(&card[c].thawed);
    pthread_mutex_unlock(&card[c].lock);
}

static int stuck(int c)
{
    pthread_mutex_lock(&card[c].lock);
    int n = card[c].stuck;
    pthread_mutex_unlock(&card[c].lock);
    return n;
}

/* ---- workers ------------------------------------------------------------------------------- */

static struct hth_gpu gpu;
static struct hth_cu_device device[CARDS];

struct worker {
    pthread_t thread;
    int card;
    uint64_t seed;
    uint32_t good, failed;
};

/* Uploads rows and downloads them through the worker's context, some of them through memory that
 * others take, too. True if they are unchanged. */
static bool round_trip(struct worker *w, struct hth_exec *ex, float *there)
{
    static _Thread_local float up[FLOATS], down[FLOATS];
    for (uint32_t i = 0; i < FLOATS; i++)
        up[i] = (float)(hth_mix64(w->seed + i) >> 40);
    w->seed += FLOATS;
    memset(down, 0, sizeof(down));
    enum hth_err err = hth_exec_upload(ex, there, up, sizeof(up));
    if (err == HTH_OK)
        err = hth_exec_download(ex, down, there, sizeof(down));
    enum hth_err synced = hth_exec_sync(ex);
    if (err != HTH_OK || synced != HTH_OK)
        return false;
    HTH_ASSERT(memcmp(up, down, sizeof(up)) == 0);
    return true;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    const struct hth_backend *be = &device[w->card].tables[HTH_GPU_F32];
    for (int i = 0; i < ROUNDS; i++) {
        struct hth_exec *ex = NULL;
        float *there = hth_backend_alloc(be, FLOATS * sizeof(float));
        bool good = there != NULL && hth_exec_new(be, 0, &ex) == HTH_OK;
        for (int k = 0; k < 3 && good; k++)
            good = round_trip(w, ex, there);
        w->good += good;
        w->failed += !good;
        hth_exec_free(ex);
        hth_backend_free(be, there);
    }
    return NULL;
}

static void start(struct worker w[CARDS][WORKERS], int c)
{
    for (int i = 0; i < WORKERS; i++) {
        w[c][i] = (struct worker){.card = c, .seed = (uint64_t)(c * WORKERS + i) << 32};
        assert_int_equal(pthread_create(&w[c][i].thread, NULL, work, &w[c][i]), 0);
    }
}

/* The number of successful rounds of that card's threads. */
static uint32_t join(struct worker w[CARDS][WORKERS], int c)
{
    uint32_t good = 0;
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(w[c][i].thread, NULL), 0);
        assert_int_equal(w[c][i].good + w[c][i].failed, ROUNDS);
        good += w[c][i].good;
    }
    return good;
}

static int setup(void **state)
{
    char why[200];
    (void)state;
    gpu = two_cards();
    atomic_store(&wrong, 0);
    for (int c = 0; c < CARDS; c++) {
        pthread_mutex_init(&card[c].lock, NULL);
        pthread_cond_init(&card[c].thawed, NULL);
        set_card(c, false, false);
        if (hth_cu_device_open(&device[c], &gpu, c, 0, why, sizeof(why)) != HTH_OK)
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int c = 0; c < CARDS; c++) {
        assert_int_equal(device[c].pool.used, 0);
        assert_int_equal(hth_backend_card(&device[c].tables[0]), c);
        hth_cu_device_close(&device[c]);
        pthread_mutex_destroy(&card[c].lock);
        pthread_cond_destroy(&card[c].thawed);
    }
    assert_int_equal(atomic_load(&wrong), 0);
    assert_int_equal(atomic_load(&made), atomic_load(&gone));
    return 0;
}

TEST_WITH(two_cards_work_side_by_side, setup, teardown)
{
    struct worker w[CARDS][WORKERS];
    (void)state;
    start(w, 0);
    start(w, 1);
    assert_int_equal(join(w, 0), WORKERS * ROUNDS);
    assert_int_equal(join(w, 1), WORKERS * ROUNDS);
}

/* All threads of one card block in the driver: the other card's threads finish all their rounds. */
TEST_WITH(frozen_card_does_not_block_the_other, setup, teardown)
{
    struct worker w[CARDS][WORKERS];
    (void)state;
    set_card(0, true, false);
    start(w, 0);
    while (stuck(0) == 0)
        sched_yield();
    start(w, 1);
    assert_int_equal(join(w, 1), WORKERS * ROUNDS);
    assert_true(stuck(0) > 0);
    set_card(0, false, false);
    assert_int_equal(join(w, 0), WORKERS * ROUNDS);
}

/* All calls of one card start to fail during the work: its threads get errors, the other's none,
 * and all memory is given back. */
TEST_WITH(lost_card_fails_alone, setup, teardown)
{
    struct worker w[CARDS][WORKERS];
    (void)state;
    set_card(0, true, false);
    start(w, 0);
    start(w, 1);
    while (stuck(0) == 0)
        sched_yield();
    set_card(0, false, true);
    assert_int_equal(join(w, 0), 0);
    assert_int_equal(join(w, 1), WORKERS * ROUNDS);
}
