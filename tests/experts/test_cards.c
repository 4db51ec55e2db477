/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cards.c: a host with two cards on the real loop with real threads: the other card's answers
 * while one driver blocks a call, loses its card, or has work at the end of the server.
 *
 * A card here is the reference back end behind copies, with a wait in its sync. So the numbers are
 * known, and ThreadSanitizer works (it can't follow the shim's fibres).
 */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/mem.h"
#include "experts/swarm.h"
#include "kernels/backend_int.h"
#include "net/net.h"
#include "support/suite.h"

#define D     16
#define ROWS  4 /* of each expert in a call */
#define CARDS 2
#define EACH  3 /* experts of a card */
#define N     (ROWS * EACH)
#define CALLS 24

/* ---- cards --------------------------------------------------------------------------------- */

static struct {
    struct hth_backend table;
    pthread_mutex_t lock;
    pthread_cond_t thawed;
    bool frozen, lost;
    bool keeps_weights; /* a download of weights does not return */
    uint32_t in_driver; /* calls that the driver blocks */
    pthread_t thread[4];
    uint32_t threads;
} card[CARDS];

static int card_of(const struct hth_backend *be)
{
    return be == &card[0].table ? 0 : 1;
}

static void note_thread(int c)
{
    for (uint32_t i = 0; i < card[c].threads; i++) {
        if (pthread_equal(card[c].thread[i], pthread_self()))
            return;
    }
    HTH_ASSERT(card[c].threads < HTH_ARRAY_LEN(card[c].thread));
    card[c].thread[card[c].threads++] = pthread_self();
}

static enum hth_err card_sync(struct hth_exec *ex)
{
    int c = card_of(ex->be);
    pthread_mutex_lock(&card[c].lock);
    note_thread(c);
    card[c].in_driver++;
    while (card[c].frozen)
        pthread_cond_wait(&card[c].thawed, &card[c].lock);
    card[c].in_driver--;
    enum hth_err err = card[c].lost ? HTH_E_DEVICE : HTH_OK;
    pthread_mutex_unlock(&card[c].lock);
    return err;
}

/* A download of more bytes than the rows of a call is one of weights. */
static enum hth_err card_download(struct hth_exec *ex, void *to, const void *from, size_t bytes)
{
    int c = card_of(ex->be);
    memcpy(to, from, bytes);
    if (bytes <= N * D * sizeof(float))
        return HTH_OK;
    pthread_mutex_lock(&card[c].lock);
    card[c].in_driver++;
    while (card[c].keeps_weights)
        pthread_cond_wait(&card[c].thawed, &card[c].lock);
    card[c].in_driver--;
    pthread_mutex_unlock(&card[c].lock);
    return HTH_OK;
}

static enum hth_err card_copy(struct hth_exec *ex, void *to, const void *from, size_t bytes)
{
    (void)ex;
    memcpy(to, from, bytes);
    return HTH_OK;
}

static void set_card(int c, bool frozen, bool lost)
{
    pthread_mutex_lock(&card[c].lock);
    card[c].frozen = frozen;
    card[c].lost = lost;
    card[c].keeps_weights = false;
    pthread_cond_broadcast(&card[c].thawed);
    pthread_mutex_unlock(&card[c].lock);
}

static uint32_t kept(int c)
{
    pthread_mutex_lock(&card[c].lock);
    uint32_t n = card[c].in_driver;
    pthread_mutex_unlock(&card[c].lock);
    return n;
}

static void make_cards(void)
{
    for (int c = 0; c < CARDS; c++) {
        card[c].table = *hth_backend_ref();
        card[c].table.caps &= ~HTH_CAP_HOST_MEMORY;
        card[c].table.card = (uint32_t)c + 1;
        card[c].table.exec_sync = card_sync;
        card[c].table.upload = card_copy;
        card[c].table.download = card_download;
        card[c].frozen = card[c].lost = card[c].keeps_weights = false;
        card[c].threads = 0;
        pthread_mutex_init(&card[c].lock, NULL);
        pthread_cond_init(&card[c].thawed, NULL);
    }
}

/* ---- a host and its caller ----------------------------------------------------------------- */

static struct {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_addr addr;
    pthread_t thread;
} serving, calling;

static struct hth_server *server;
static struct hth_expert_client *client;
static struct hth_timer *poll;
static uint32_t loaded, calls[CARDS], good[CARDS], bad[CARDS];
static float want[CARDS][N * D];
static struct hth_tensor x;

static struct hth_expert_opts opts_of(uint32_t i, const struct hth_backend *backend)
{
    struct swarm_host h = host_init();

    h.expert.shape = (struct hth_expert_shape){.d = D, .inner = 2 * D};
    h.expert.uid = uid_of(i);
    h.expert.backend = backend;
    return h.expert;
}

static void on_expert(void *arg, const struct hth_uid *uid, enum hth_err err, bool restored)
{
    (void)arg;
    (void)uid;
    (void)restored;
    HTH_ASSERT(err == HTH_OK);
    if (++loaded == CARDS * EACH)
        hth_net_stop(serving.env);
}

static void make_rows(void)
{
    float *rows = normals(1, N * D);

    x = (struct hth_tensor){.dtype = HTH_F32, .ndim = 2, .dim = {N, D}};
    x.blob = hth_blob_try_new(N * D * sizeof(float));
    assert_non_null(x.blob);
    memcpy(x.blob->data, rows, N * D * sizeof(float));
    for (uint32_t i = 0; i < CARDS * EACH; i++) {
        struct hth_expert_opts o = opts_of(i, hth_backend_ref());
        size_t at = (size_t)(i / CARDS) * ROWS * D;
        struct reference r;
        reference_start(&r, &o);
        reference_forward(&r, ROWS, rows + at, want[i % CARDS] + at);
        reference_stop(&r);
    }
    hth_aligned_free(rows);
}

static void *run_loop(void *arg)
{
    HTH_ASSERT(hth_net_run(arg) == HTH_OK);
    return NULL;
}

/* `dir`: of checkpoints, written after each update; NULL: none. */
static void start_with(const char *dir)
{
    struct hth_net_opts nopts = HTH_NET_OPTS_INIT;
    struct hth_rpc_opts ropts = HTH_RPC_OPTS_INIT;
    struct hth_server_opts sopts = HTH_SERVER_OPTS_INIT;
    struct hth_expert_client_opts copts = HTH_EXPERT_CLIENT_OPTS_INIT;
    struct hth_addr any = {.family = 4, .ip = {127, 0, 0, 1}};

    make_cards();
    make_rows();
    memset(calls, 0, sizeof(calls));
    memset(good, 0, sizeof(good));
    memset(bad, 0, sizeof(bad));
    loaded = 0;
    nopts.compute_threads = 1; /* two cards, and one thread for the rest */
    ropts.network = "test";
    ropts.timeout_min_us = 20 * HTH_US_PER_S;
    assert_ok(hth_net_new(&nopts, &calling.env));
    assert_ok(hth_rpc_new(calling.env, &ropts, &calling.rpc));
    assert_ok(hth_expert_client_new(calling.env, calling.rpc, &copts, &client));
    ropts.listen = &any;
    assert_ok(hth_net_new(&nopts, &serving.env));
    assert_ok(hth_rpc_new(serving.env, &ropts, &serving.rpc));
    hth_rpc_addr(serving.rpc, &serving.addr);
    sopts.on_expert = on_expert;
    sopts.job_flops_min = 1; /* a job for each expert that has rows */
    sopts.job_us_min = 0;
    sopts.checkpoint_dir = dir;
    sopts.checkpoint_period_us = 10 * HTH_US_PER_MS;
    sopts.step_rows = 1;
    assert_ok(hth_server_new(serving.env, serving.rpc, &sopts, &server));
    for (uint32_t i = 0; i < CARDS * EACH; i++) {
        struct hth_expert_opts o = opts_of(i, &card[i % CARDS].table);
        assert_ok(hth_server_add(server, &o));
    }
    assert_ok(hth_net_run(serving.env)); /* until all experts are loaded */
    assert_int_equal(pthread_create(&serving.thread, NULL, run_loop, serving.env), 0);
}

static void start_all(void)
{
    start_with(NULL);
}

static void stop_calling(void)
{
    hth_expert_client_free(client);
    hth_rpc_free(calling.rpc);
    hth_net_free(calling.env);
}

static void stop_serving(void)
{
    hth_server_free(server);
    hth_rpc_free(serving.rpc);
    hth_net_free(serving.env);
    hth_blob_unref(x.blob);
}

static void stop_all(void)
{
    hth_timer_free(calling.env, poll);
    stop_calling();
    hth_net_stop(serving.env);
    assert_int_equal(pthread_join(serving.thread, NULL), 0);
    hth_net_jobs_end(serving.env);
    stop_serving();
}

static void on_batch(void *arg, struct hth_expert_batch *batch)
{
    int c = *(const int *)arg;
    float out[N * D];
    uint8_t ok[N];

    if (hth_expert_batch_ok_count(batch) == N) {
        good[c]++;
        assert_int_equal(hth_expert_batch_unpack(batch, out, D, ok), 0);
        assert_memory_equal(out, want[c], sizeof(out));
    } else {
        bad[c]++;
        for (uint32_t i = 0; i < N; i++)
            assert_err(HTH_E_DEVICE, hth_expert_batch_verdicts(batch)[i]);
    }
    hth_expert_batch_free(batch);
}

static void on_backward(void *arg, struct hth_expert_batch *batch)
{
    int c = *(const int *)arg;
    assert_int_equal(hth_expert_batch_ok_count(batch), N);
    good[c]++;
    hth_expert_batch_free(batch);
}

/* All experts of one card, a few rows each. */
static void call_card_with(int c, bool backward)
{
    static const int name[CARDS] = {0, 1};
    struct hth_expert_target target[EACH];
    struct hth_expert_pair pairs[N];
    struct hth_expert_call call = {.layer = "ffn0",
                                   .ndim = 1,
                                   .x = x,
                                   .targets = target,
                                   .targets_count = EACH,
                                   .pairs = pairs,
                                   .pairs_count = N};
    struct hth_expert_batch *b;

    for (uint32_t i = 0; i < EACH; i++)
        target[i] = (struct hth_expert_target){
            .coord = {i * CARDS + (uint32_t)c}, .host = serving.env->self, .addr = serving.addr};
    for (uint32_t i = 0; i < N; i++)
        pairs[i] = (struct hth_expert_pair){i, i / ROWS};
    calls[c]++;
    if (backward)
        call.dy = x;
    assert_ok(hth_experts_call(client, &call, backward ? on_backward : on_batch,
                               (void *)(uintptr_t)&name[c], &b));
}

static void call_card(int c)
{
    call_card_with(c, false);
}

static bool (*until)(void);

static void look(void *arg)
{
    (void)arg;
    if (until())
        hth_net_stop(calling.env);
    else
        hth_timer_set(calling.env, poll, 200);
}

static void run_until(bool (*condition)(void))
{
    until = condition;
    if (poll == NULL)
        poll = hth_timer_new(calling.env, look, NULL);
    hth_timer_set(calling.env, poll, 0);
    assert_ok(hth_net_run(calling.env));
}

static bool first_is_stuck(void)
{
    return kept(0) == HTH_CARD_WORKERS;
}

static bool second_answered(void)
{
    return good[1] == calls[1];
}

static bool all_have_verdicts(void)
{
    return good[0] + bad[0] == calls[0] && good[1] + bad[1] == calls[1];
}

/* ---- tests --------------------------------------------------------------------------------- */

/* Both workers of one card are in a call that does not return, and more work waits for it. The
 * other card answers. When the calls return, everything is answered. */
TEST(other_card_answers_beside_a_frozen_one)
{
    (void)state;
    poll = NULL;
    start_all();
    set_card(0, true, false);
    for (int i = 0; i < 4; i++)
        call_card(0);
    run_until(first_is_stuck);
    for (int i = 0; i < CALLS; i++)
        call_card(1);
    run_until(second_answered);
    assert_int_equal(good[0] + bad[0], 0);
    set_card(0, false, false);
    run_until(all_have_verdicts);
    assert_int_equal(bad[0] + bad[1], 0);
    for (int c = 0; c < CARDS; c++) {
        assert_in_range(card[c].threads, 1, HTH_CARD_WORKERS);
        assert_false(pthread_equal(card[c].thread[0], card[1 - c].thread[0]));
    }
    stop_all();
}

/* A card whose calls all fail costs only its own experts' rows. */
TEST(lost_card_fails_its_own_experts_only)
{
    (void)state;
    poll = NULL;
    start_all();
    set_card(0, false, true);
    for (int i = 0; i < CALLS; i++)
        call_card(i % CARDS);
    run_until(all_have_verdicts);
    assert_int_equal(bad[0], CALLS / CARDS);
    assert_int_equal(good[1], CALLS / CARDS);
    stop_all();
}

static void *thaw_all(void *arg)
{
    for (int c = 0; c < CARDS; c++)
        set_card(c, false, false);
    return arg;
}

/* The server is freed while both cards are in the driver and requests wait: the end waits for the
 * running calls, and all memory is freed. */
TEST(end_waits_for_running_work)
{
    pthread_t thread;
    (void)state;
    poll = NULL;
    start_all();
    for (int c = 0; c < CARDS; c++)
        set_card(c, true, false);
    for (int i = 0; i < CALLS; i++)
        call_card(i % CARDS);
    run_until(first_is_stuck);
    hth_net_stop(serving.env);
    assert_int_equal(pthread_join(serving.thread, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, thaw_all, NULL), 0);
    hth_net_jobs_end(serving.env);
    assert_int_equal(pthread_join(thread, NULL), 0);
    stop_serving();
    hth_timer_free(calling.env, poll);
    stop_calling();
}

static char saved_in[] = "/tmp/hearth-cards-XXXXXX";
static int64_t saved_until_us;

/* Counts the checkpoints in the folder; removes them if `away`. */
static uint32_t saved(bool away)
{
    char path[512];
    uint32_t found = 0;
    const struct dirent *entry;
    DIR *dir = opendir(saved_in);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        size_t len = strlen(entry->d_name);
        found += len > 12 && strcmp(entry->d_name + len - 12, ".safetensors") == 0;
        snprintf(path, sizeof(path), "%s/%s", saved_in, entry->d_name);
        if (away && entry->d_name[0] != '.')
            unlink(path);
    }
    closedir(dir);
    return found;
}

static bool first_keeps_weights(void)
{
    return good[0] == calls[0] && kept(0) == 1;
}

static bool second_is_saved(void)
{
    return saved(false) == EACH || hth_now_us(calling.env) > saved_until_us;
}

/* One card blocks the download of its weights: the other card's experts are saved. */
TEST(other_cards_experts_are_saved_beside_a_frozen_one)
{
    (void)state;
    poll = NULL;
    assert_non_null(mkdtemp(saved_in));
    start_with(saved_in);
    pthread_mutex_lock(&card[0].lock);
    card[0].keeps_weights = true;
    pthread_mutex_unlock(&card[0].lock);
    call_card_with(0, true);
    run_until(first_keeps_weights);
    call_card_with(1, true);
    saved_until_us = hth_now_us(calling.env) + 20 * HTH_US_PER_S;
    run_until(second_is_saved);
    assert_int_equal(saved(false), EACH);
    assert_int_equal(kept(0), 1);
    set_card(0, false, false);
    stop_all();
    saved(true);
    assert_int_equal(rmdir(saved_in), 0);
}
