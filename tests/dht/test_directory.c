/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_directory.c: announcers and directories over the simulated DHT, and the view compared with
 * brute force.
 */
#include "dht/directory.h"

#include <stdlib.h>

#include "core/mem.h"
#include "dht/board.h"
#include "dht/listing.h"
#include "sim/world.h"
#include "support/suite.h"

#define S         HTH_US_PER_S
#define HOSTS_MAX 8

static const struct hth_layer_shape FFN = {.kind = "ffn", .d = 256, .block_rows = 1};

struct host {
    struct hth_node *node;
    struct hth_announcer *ann;
    struct hth_peer_id id;
    uint32_t *experts; /* experts it serves in layer 0 */
    size_t count;
    bool silent; /* crashed */
};

static struct {
    struct hth_world *world;
    struct hth_node *trainer;
    struct hth_directory *dir;
    struct hth_grid grid;
    uint32_t layer;
    struct host host[HOSTS_MAX];
    int changes;
} fx;

static void boot_host(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct host *h = arg;
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    struct hth_expert_list list = {h->experts, h->count};
    opts.network = "net";
    opts.role = HTH_ROLE_HOST;
    opts.info.addr_count = 1;
    opts.info.addr[0] = hth_node_addr(h->node, 4000);
    opts.info.rows_per_s = 1000;
    memcpy(opts.info.version, "0.1.0", 6);
    h->id = env->self;
    assert_ok(hth_announcer_new(env, dht, &opts, &h->ann));
    if (h->count > 0)
        assert_ok(hth_announcer_set_layer(h->ann, &fx.grid, &FFN, &list));
}

static void halt_host(struct hth_env *env, void *arg)
{
    struct host *h = arg;
    (void)env;
    hth_announcer_free(h->ann);
    h->ann = NULL;
}

static void on_change(void *arg)
{
    (void)arg;
    fx.changes++;
}

static void start_with(const char *grid, uint64_t seed, bool prove)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_directory_opts dir = HTH_DIRECTORY_OPTS_INIT;
    memset(&fx, 0, sizeof(fx));
    assert_ok(hth_grid_parse(grid, strlen(grid), &fx.grid));
    fx.world = hth_world_new(seed, &opts);
    fx.trainer = hth_world_node(fx.world, "trainer", NULL);
    dir.network = "net";
    dir.prove = prove;
    assert_ok(hth_directory_new(hth_node_env(fx.trainer), hth_node_dht(fx.trainer), &dir, &fx.dir));
    assert_ok(hth_directory_open_layer(fx.dir, &fx.grid, &FFN, &fx.layer));
    hth_directory_on_change(fx.dir, on_change, NULL);
}

static void start(const char *grid, uint64_t seed)
{
    start_with(grid, seed, false);
}

static void stop(void)
{
    struct hth_open_counts open;
    hth_directory_free(fx.dir);
    for (size_t i = 0; i < HOSTS_MAX; i++)
        halt_host(NULL, &fx.host[i]);
    hth_world_open(fx.world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(fx.world);
    for (size_t i = 0; i < HOSTS_MAX; i++)
        hth_free(fx.host[i].experts);
}

/* Gives host i these experts, which it then owns, and boots it if it is new. */
static void serve(size_t i, uint32_t *experts, size_t count)
{
    struct host *h = &fx.host[i];
    hth_free(h->experts);
    h->experts = experts;
    h->count = count;
    if (h->node == NULL) {
        h->node = hth_world_node(fx.world, "host", NULL);
        boot_host(hth_node_env(h->node), hth_node_dht(h->node), h);
        return;
    }
    struct hth_expert_list list = {experts, count};
    assert_ok(hth_announcer_set_layer(h->ann, &fx.grid, &FFN, &list));
}

static uint32_t *range(uint32_t first, uint32_t count)
{
    uint32_t *out = hth_new_array(uint32_t, count + 1);
    for (uint32_t i = 0; i < count; i++)
        out[i] = first + i;
    return out;
}

static void random_set(struct hth_rng *rng, double density, uint32_t **out, size_t *count)
{
    uint32_t size = hth_grid_size(&fx.grid);
    *out = hth_new_array(uint32_t, size + 1);
    *count = 0;
    for (uint32_t e = 0; e < size; e++)
        if (hth_rng_chance(rng, density))
            (*out)[(*count)++] = e;
}

static int cmp_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static bool serves(const struct host *h, uint32_t e)
{
    if (h->silent || h->ann == NULL)
        return false;
    return bsearch(&e, h->experts, h->count, sizeof(e), cmp_u32) != NULL;
}

/* The view is a correct tree of exactly these experts. */
static void check_tree(const struct hth_grid_view *v, const bool *live)
{
    uint32_t size = hth_grid_size(&fx.grid), n = 0;
    for (uint32_t e = 0; e < size; e++) {
        assert_int_equal(hth_grid_view_is_live(v, e), live[e]);
        if (!live[e])
            continue;
        assert_int_equal(v->expert[n], e);
        n++;
    }
    assert_int_equal(v->live_count, n);
    assert_int_equal(v->count[v->ndim - 1], n);
    /* Walking down from every root node meets every expert once, in order. */
    uint32_t seen = 0;
    for (uint32_t a = 0; a < v->count[0]; a++) {
        uint32_t c[3] = {v->coord[0][a], 0, 0};
        assert_true(a == 0 || v->coord[0][a] > v->coord[0][a - 1]);
        if (v->ndim == 1) {
            assert_int_equal(v->expert[seen++], hth_grid_index(&fx.grid, c));
            continue;
        }
        assert_true(v->start[0][a] < v->start[0][a + 1]); /* no prefix without children */
        for (uint32_t b = v->start[0][a]; b < v->start[0][a + 1]; b++) {
            c[1] = v->coord[1][b];
            assert_true(b == v->start[0][a] || c[1] > v->coord[1][b - 1]);
            if (v->ndim == 2) {
                assert_int_equal(v->expert[seen++], hth_grid_index(&fx.grid, c));
                continue;
            }
            assert_true(v->start[1][b] < v->start[1][b + 1]);
            for (uint32_t d = v->start[1][b]; d < v->start[1][b + 1]; d++) {
                c[2] = v->coord[2][d];
                assert_int_equal(v->expert[seen++], hth_grid_index(&fx.grid, c));
            }
        }
    }
    assert_int_equal(seen, n);
    for (uint32_t l = 0; l + 1 < v->ndim; l++)
        assert_int_equal(v->start[l][v->count[l]], v->count[l + 1]);
}

/* Compares the directory with the experts that the hosts serve. */
static void check_all(void)
{
    uint32_t size = hth_grid_size(&fx.grid);
    bool *live = hth_new_array(bool, size);
    struct hth_host_ref refs[HOSTS_MAX];
    for (uint32_t e = 0; e < size; e++) {
        size_t want = 0, got = hth_directory_hosts_of(fx.dir, fx.layer, e, refs, HOSTS_MAX);
        for (size_t i = 0; i < HOSTS_MAX; i++) {
            bool found = false;
            for (size_t k = 0; k < got; k++)
                found = found || hth_peer_id_eq(&refs[k].id, &fx.host[i].id);
            if (found != serves(&fx.host[i], e))
                fail_msg("expert %u host %zu: in directory %d", e, i, found);
            want += found;
        }
        assert_int_equal(got, want);
        live[e] = want > 0;
    }
    check_tree(hth_directory_view(fx.dir, fx.layer), live);
    hth_free(live);
}

TEST(view_of_any_set_is_a_correct_tree)
{
    static const char *const GRIDS[] = {"a.1",      "a.64",     "a.130",      "a.1.1",
                                        "a.7.13",   "a.64.64",  "a.1.1.1",    "a.3.5.7",
                                        "a.16.1.9", "a.1.40.3", "a.20.20.20", "a.2.64.64"};
    struct hth_rng rng;
    (void)state;
    hth_rng_init(&rng, 3);
    for (size_t g = 0; g < HTH_ARRAY_LEN(GRIDS); g++) {
        for (int round = 0; round < 8; round++) {
            struct hth_grid_view *v;
            uint32_t *set;
            size_t count;
            assert_ok(hth_grid_parse(GRIDS[g], strlen(GRIDS[g]), &fx.grid));
            random_set(&rng, round == 0 ? 0 : round == 1 ? 1 : hth_rng_unit(&rng), &set, &count);
            bool *live = hth_new_array(bool, hth_grid_size(&fx.grid));
            for (size_t i = 0; i < count; i++)
                live[set[i]] = true;
            if (count > 0)
                set[count++] = set[0]; /* a repeat */
            hth_rng_shuffle(&rng, set, count, sizeof(*set));
            assert_ok(hth_grid_view_new(&fx.grid, set, count, &v));
            check_tree(v, live);
            hth_grid_view_unref(v);
            hth_free(live);
            hth_free(set);
        }
    }
    struct hth_grid_view *v;
    uint32_t outside = hth_grid_size(&fx.grid);
    assert_err(HTH_E_RANGE, hth_grid_view_new(&fx.grid, &outside, 1, &v));
    assert_null(v);
    for (long n = 1;; n++) {
        hth_mem_fail_at(n);
        enum hth_err err = hth_grid_view_new(&fx.grid, &(uint32_t){5}, 1, &v);
        hth_mem_fail_at(0);
        if (err == HTH_OK)
            break;
        assert_err(HTH_E_NO_MEMORY, err);
    }
    hth_grid_view_unref(v);
}

TEST(host_is_found_and_expires)
{
    struct hth_host_status st;
    (void)state;
    start("ffn0.16.16", 1);
    hth_world_run_for(fx.world, 3 * S);
    serve(0, range(0, 64), 64);
    hth_world_run_for(fx.world, 1 * S);
    check_all();
    assert_true(fx.changes > 0);
    assert_true(hth_directory_host_find(fx.dir, &fx.host[0].id, &st));
    assert_int_equal(st.experts, 64);
    assert_int_equal(st.layers, 1);
    assert_int_equal(st.info.addr[0].port, 4000);
    assert_string_equal(st.info.version, "0.1.0");
    assert_close(st.ref.rows_per_s, 1000, 0, 0);
    hth_world_run_for(fx.world, 300 * S);
    check_all();
    /* Renewals do not change views. */
    uint64_t generation = hth_directory_generation(fx.dir, fx.layer);
    hth_world_run_for(fx.world, 300 * S);
    assert_int_equal(hth_directory_generation(fx.dir, fx.layer), generation);
    /* The rest of its life is the newest record's. */
    assert_true(hth_directory_host_find(fx.dir, &fx.host[0].id, &st));
    assert_in_range(st.left_us, 60 * S - st.age_us - S, 60 * S - st.age_us + S);
    assert_in_range(st.age_us, 0, 21 * S);
    /* A silent crash: the host leaves at most 60 s after its last record. */
    halt_host(NULL, &fx.host[0]);
    fx.host[0].silent = true;
    hth_world_run_for(fx.world, 61 * S);
    check_all();
    assert_false(hth_directory_host_at(fx.dir, 0, &st));
    stop();
}

static void done_flag(void *arg)
{
    ++*(int *)arg;
}

TEST(withdrawn_host_leaves_at_once)
{
    int done = 0;
    (void)state;
    start("ffn0.16.16", 2);
    serve(0, range(0, 64), 64);
    serve(1, range(32, 64), 64);
    hth_world_run_for(fx.world, 2 * S);
    check_all();
    hth_announcer_withdraw(fx.host[0].ann, done_flag, &done);
    fx.host[0].silent = true;
    hth_world_run_for(fx.world, 1 * S);
    assert_int_equal(done, 1);
    check_all();
    /* It stays away, although the DHT keeps copies of its records. */
    halt_host(NULL, &fx.host[0]);
    hth_world_run_for(fx.world, 30 * S);
    check_all();
    stop();
}

TEST(dead_mark_hides_host_until_record_or_timeout)
{
    struct hth_directory_stats s;
    struct hth_host_ref ref;
    (void)state;
    start("ffn0.16.16", 4);
    serve(0, range(0, 64), 64);
    serve(1, range(32, 64), 64);
    hth_world_run_for(fx.world, 2 * S);
    struct hth_grid_view *before = hth_grid_view_ref(hth_directory_view(fx.dir, fx.layer));
    assert_int_equal(before->live_count, 96);
    hth_directory_mark_dead(fx.dir, &fx.host[0].id, 8 * S);
    struct hth_grid_view *after = hth_directory_view(fx.dir, fx.layer);
    assert_int_equal(after->live_count, 64);
    assert_true(after->generation > before->generation);
    assert_ptr_not_equal(before, after);
    assert_int_equal(before->live_count, 96); /* a snapshot never changes */
    assert_true(hth_grid_view_is_live(before, 0));
    hth_grid_view_unref(before);
    assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, 0, &ref, 1), 0);
    assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, 40, &ref, 1), 1);
    assert_true(hth_peer_id_eq(&ref.id, &fx.host[1].id));
    hth_directory_stats(fx.dir, &s);
    assert_int_equal(s.hosts_dead, 1);
    hth_world_run_for(fx.world, 7 * S);
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 64);
    hth_world_run_for(fx.world, 2 * S);
    check_all();
    /* A record newer than the mark lifts it. */
    hth_directory_mark_dead(fx.dir, &fx.host[0].id, 1000 * S);
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 64);
    hth_world_run_for(fx.world, 25 * S);
    check_all();
    /* An answer lifts it, too. */
    hth_directory_mark_dead(fx.dir, &fx.host[0].id, 1000 * S);
    hth_directory_mark_alive(fx.dir, &fx.host[0].id);
    check_all();
    /* Unknown ids are ignored. */
    struct hth_peer_id nobody = {{1, 2, 3}};
    hth_directory_mark_dead(fx.dir, &nobody, 0);
    stop();
}

/* Refuting drops one expert of one host, at the edge of a run or inside it, until the host's next
 * record, be it only a renewal. */
TEST(refuted_claim_returns_with_the_next_record)
{
    static const uint32_t refuted[] = {8, 11, 9, 10, 3};
    struct hth_host_ref ref[2];
    (void)state;
    start("ffn0.4.4", 4);
    serve(0, range(8, 4), 4);
    serve(1, range(3, 6), 6);
    hth_world_run_for(fx.world, 2 * S);
    for (size_t i = 0; i < HTH_ARRAY_LEN(refuted); i++) {
        bool is_there = refuted[i] != 3;
        assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, refuted[i], ref, 2),
                         refuted[i] == 8 ? 2 : 1);
        assert_int_equal(hth_directory_refute(fx.dir, &fx.host[0].id, fx.layer, refuted[i]),
                         is_there);
        assert_false(hth_directory_refute(fx.dir, &fx.host[0].id, fx.layer, refuted[i]));
    }
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 6);
    assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, 8, ref, 2), 1);
    assert_int_equal(hth_directory_host_experts(fx.dir, &fx.host[0].id, fx.layer, NULL, 0), 0);
    hth_world_run_for(fx.world, 10 * S);
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 6);
    hth_world_run_for(fx.world, 20 * S); /* records are renewed after a third of 60 s */
    check_all();
    stop();
}

/* Records take a second to arrive here, and the host is marked dead every 10 ms: each record was
 * issued before the newest mark when it arrives, renewals as well as changes. */
TEST(only_record_issued_after_mark_lifts_it)
{
    struct hth_link far = {.latency_us = S / 2};
    struct hth_directory_stats before, after;
    (void)state;
    start("ffn0.16.16", 4);
    hth_world_set_link(fx.world, &far);
    serve(0, range(0, 64), 64);
    hth_world_run_for(fx.world, 10 * S);
    check_all();
    for (int round = 0; round < 2; round++) {
        hth_directory_stats(fx.dir, &before);
        if (round == 1)
            serve(0, range(8, 64), 64);
        for (int i = 0; i < (round == 0 ? 2500 : 500); i++) {
            hth_directory_mark_dead(fx.dir, &fx.host[0].id, 1000 * S);
            hth_world_run_for(fx.world, S / 100);
            assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 0);
        }
        hth_directory_stats(fx.dir, &after);
        assert_true(after.records_accepted > before.records_accepted);
        hth_world_run_for(fx.world, 25 * S); /* the next renewal, and its delay */
        check_all();
    }
    stop();
}

/* A host leaves a layer, its clock steps back, and it serves the layer again: the DHT still has the
 * goodbye, and the new records must have higher sequences. */
TEST(layer_returns_after_clock_stepped_back)
{
    (void)state;
    start("ffn0.16.16", 5);
    hth_world_run_for(fx.world, 60 * S);
    serve(0, range(0, 64), 64);
    hth_world_run_for(fx.world, 2 * S);
    serve(0, range(0, 0), 0);
    hth_world_run_for(fx.world, 2 * S);
    check_all();
    hth_node_wall_step(fx.host[0].node, -20 * S);
    serve(0, range(7, 9), 9);
    hth_world_run_for(fx.world, 1 * S);
    check_all();
    stop();
}

TEST(changes_replace_earlier_records)
{
    (void)state;
    start("ffn0.16.16", 5);
    serve(0, range(0, 64), 64);
    hth_world_run_for(fx.world, 2 * S);
    serve(0, range(32, 64), 64);
    hth_world_run_for(fx.world, 1 * S);
    check_all();
    serve(0, range(0, 0), 0);
    hth_world_run_for(fx.world, 1 * S);
    check_all();
    /* Leaves and returns within one turn of the loop. */
    serve(0, range(7, 9), 9);
    serve(0, range(0, 0), 0);
    serve(0, range(7, 9), 9);
    hth_world_run_for(fx.world, 1 * S);
    check_all();
    stop();
}

/* Sets of all sizes: one record, several parts, and a layer that is cut into prefixes. */
TEST(large_lists_take_several_records)
{
    struct hth_rng rng;
    struct hth_announcer_stats s;
    (void)state;
    hth_rng_init(&rng, 9);
    start("ffn0.4.64.64", 6);
    uint32_t *set;
    size_t count;
    random_set(&rng, 0.004, &set, &count);
    serve(0, set, count);
    random_set(&rng, 0.03, &set, &count);
    serve(1, set, count);
    random_set(&rng, 0.5, &set, &count);
    serve(2, set, count);
    serve(3, range(0, 16384), 16384);
    hth_world_run_for(fx.world, 5 * S);
    check_all();
    hth_announcer_stats(fx.host[0].ann, &s);
    assert_int_equal(s.records, 2); /* the layer's and the beacon */
    hth_announcer_stats(fx.host[2].ann, &s);
    assert_true(s.records >= 10); /* root, two parts of each of 4 prefixes, beacon */
    for (size_t i = 0; i < 4; i++) {
        hth_announcer_stats(fx.host[i].ann, &s);
        assert_true(s.bytes_max <= HTH_RECORD_AIM_BYTES);
    }
    /* From cut to whole and back; other hosts are not affected. */
    serve(2, range(100, 50), 50);
    hth_world_run_for(fx.world, 5 * S);
    check_all();
    random_set(&rng, 0.4, &set, &count);
    serve(2, set, count);
    hth_world_run_for(fx.world, 5 * S);
    check_all();
    hth_world_run_for(fx.world, 200 * S);
    check_all();
    stop();
}

TEST(largest_host_fits_in_records)
{
    struct hth_rng rng;
    struct hth_announcer_stats s;
    (void)state;
    hth_rng_init(&rng, 10);
    start("ffn0.65536", 7);
    uint32_t *set;
    size_t count;
    random_set(&rng, 0.5, &set, &count);
    serve(0, set, count);
    hth_world_run_for(fx.world, 5 * S);
    struct hth_grid_view *v = hth_directory_view(fx.dir, fx.layer);
    assert_int_equal(v->live_count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(v->expert[i], fx.host[0].experts[i]);
    hth_announcer_stats(fx.host[0].ann, &s);
    assert_true(s.bytes_max <= HTH_DHT_VALUE_BYTES_MAX);
    struct hth_expert_list too_many = {fx.host[0].experts, HTH_ANNOUNCE_EXPERTS_MAX + 1};
    assert_err(HTH_E_BUDGET, hth_announcer_set_layer(fx.host[0].ann, &fx.grid, &FFN, &too_many));
    stop();
}

/* The property: after churn the directory equals the truth. */
TEST(directory_is_right_after_churn)
{
    (void)state;
    for (uint64_t seed = 20; seed < 24; seed++) {
        struct hth_rng rng;
        struct hth_dht_params params = HTH_DHT_PARAMS_INIT;
        hth_rng_init(&rng, seed);
        start(seed % 2 ? "ffn0.8.4.8" : "ffn0.16.16", seed);
        params.partial = 0.1;
        params.lost_put = 0.1;
        params.repeat = 0.2;
        hth_world_set_dht(fx.world, &params);
        for (int step = 0; step < 60; step++) {
            size_t i = hth_rng_below(&rng, HOSTS_MAX);
            struct host *h = &fx.host[i];
            uint32_t *set;
            size_t count;
            if (h->node != NULL && h->ann != NULL && hth_rng_chance(&rng, 0.2)) {
                halt_host(NULL, h); /* as by SIGKILL: its records stay in the DHT */
                h->silent = true;
            } else if (h->silent) {
                h->silent = false;
                boot_host(hth_node_env(h->node), hth_node_dht(h->node), h);
            } else {
                random_set(&rng, 0.3, &set, &count);
                serve(i, set, count);
            }
            if (h->node != NULL && hth_rng_chance(&rng, 0.2))
                hth_directory_mark_dead(fx.dir, &h->id, 5 * S);
            hth_world_run_for(fx.world, (int64_t)hth_rng_below(&rng, 10 * S));
        }
        hth_world_set_dht(fx.world, &(struct hth_dht_params)HTH_DHT_PARAMS_INIT);
        hth_world_run_for(fx.world, 130 * S);
        check_all();
        stop();
    }
}

TEST(wrong_shapes_stay_out)
{
    struct hth_directory_stats s;
    struct hth_layer_shape other = {.kind = "ffn", .d = 512, .block_rows = 1};
    uint32_t ids[1] = {3};
    struct hth_expert_list list = {ids, 1};
    (void)state;
    start("ffn0.16.16", 8);
    serve(0, range(0, 4), 4);
    serve(1, range(0, 0), 0);
    assert_ok(hth_announcer_set_layer(fx.host[1].ann, &fx.grid, &other, &list));
    hth_world_run_for(fx.world, 2 * S);
    hth_directory_stats(fx.dir, &s);
    assert_int_equal(s.hosts, 1);
    assert_true(s.records_bad_shape >= 1);
    check_all();
    /* Opening it again gives the same layer, or an error for another grid or shape. */
    uint32_t layer;
    struct hth_grid grid;
    assert_ok(hth_directory_open_layer(fx.dir, &fx.grid, &FFN, &layer));
    assert_int_equal(layer, fx.layer);
    assert_err(HTH_E_CONFIG, hth_directory_open_layer(fx.dir, &fx.grid, &other, &layer));
    assert_ok(hth_grid_parse("ffn0.16.8", 9, &grid));
    assert_err(HTH_E_CONFIG, hth_directory_open_layer(fx.dir, &grid, &FFN, &layer));
    assert_err(HTH_E_CONFIG, hth_announcer_set_layer(fx.host[0].ann, &grid, &FFN, &list));
    uint32_t unordered[2] = {5, 5};
    list = (struct hth_expert_list){unordered, 2};
    assert_err(HTH_E_CONFIG, hth_announcer_set_layer(fx.host[0].ann, &fx.grid, &FFN, &list));
    uint32_t outside[1] = {256};
    list = (struct hth_expert_list){outside, 1};
    assert_err(HTH_E_CONFIG, hth_announcer_set_layer(fx.host[0].ann, &fx.grid, &FFN, &list));
    for (uint32_t i = 1; i < HTH_DIR_LAYERS_MAX; i++) {
        char name[32];
        snprintf(name, sizeof(name), "l%u.2", i);
        assert_ok(hth_grid_parse(name, strlen(name), &grid));
        assert_ok(hth_directory_open_layer(fx.dir, &grid, NULL, &layer));
        assert_int_equal(layer, i);
    }
    assert_ok(hth_grid_parse("more.2", 6, &grid));
    assert_err(HTH_E_BUDGET, hth_directory_open_layer(fx.dir, &grid, NULL, &layer));
    stop();
}

static char logged[4096];
static size_t logged_lines;

static void keep_line(void *arg, const char *line, size_t len)
{
    size_t at = strlen(logged);
    (void)arg;
    logged_lines++;
    if (at + len < sizeof(logged))
        memcpy(logged + at, line, len);
}

/* A trainer names all of them in one line; so does a host, which opens layers without a shape. */
TEST(hosts_with_another_run_file_are_named_in_one_line)
{
    struct hth_layer_shape wide = {.kind = "ffn", .d = 512, .block_rows = 1};
    char differ[HTH_DIR_DIFFER_MAX];
    struct hth_grid mine, other;
    struct hth_expert_list list;
    (void)state;
    for (int shape = 0; shape < 2; shape++) {
        start("ffn0.16.16", 8);
        memset(logged, 0, sizeof(logged));
        logged_lines = 0;
        struct hth_log *log = &hth_node_env(fx.trainer)->log;
        memset(log->level, HTH_WARN, sizeof(log->level));
        log->sink = keep_line;
        mine = fx.grid;
        assert_ok(hth_grid_parse("ffn0.4.4", 8, &other));
        assert_int_equal(hth_directory_others(fx.dir, differ), 0);
        for (size_t i = 0; i < 3; i++) {
            serve(i, range(0, i == 0 ? 4 : 0), i == 0 ? 4 : 0);
            uint32_t *ids = range(1, 2);
            list = (struct hth_expert_list){ids, 2};
            if (i > 0)
                assert_ok(hth_announcer_set_layer(fx.host[i].ann, shape == 0 ? &other : &mine,
                                                  shape == 0 ? &FFN : &wide, &list));
            hth_free(ids);
        }
        hth_world_run_for(fx.world, 300 * S); /* many renewals */
        assert_int_equal(logged_lines, 1);
        assert_non_null(strstr(logged, shape == 0
                                           ? "2 hosts serve run 'net' with another run file: grid "
                                             "4x4, yours 16x16;"
                                           : "2 hosts serve run 'net' with another run file: width "
                                             "512, yours 256;"));
        assert_int_equal(hth_directory_others(fx.dir, differ), 2);
        halt_host(NULL, &fx.host[1]);
        hth_world_run_for(fx.world, 130 * S);
        assert_int_equal(hth_directory_others(fx.dir, differ), 1);
        stop();
    }
}

TEST(least_loaded_host_comes_first)
{
    struct hth_host_ref refs[2];
    (void)state;
    start("ffn0.16.16", 12);
    serve(0, range(0, 16), 16);
    serve(1, range(0, 16), 16);
    hth_world_run_for(fx.world, 2 * S);
    for (size_t i = 0; i < 2; i++) {
        hth_announcer_set_load(fx.host[i].ann, 500, 900);
        hth_announcer_set_load(fx.host[1 - i].ann, 0, 900);
        hth_world_run_for(fx.world, 2 * S);
        assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, 3, refs, 2), 2);
        assert_true(hth_peer_id_eq(&refs[1].id, &fx.host[i].id));
        assert_int_equal(refs[1].queue_ms, 500);
        assert_int_not_equal(refs[0].slot, refs[1].slot);
        assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, 3, refs, 1), 1);
        assert_true(hth_peer_id_eq(&refs[0].id, &fx.host[1 - i].id));
    }
    stop();
}

TEST(free_experts_are_picked_as_one_run)
{
    uint32_t out[256];
    (void)state;
    start("ffn0.16.16", 13);
    serve(0, range(16, 64), 64);
    serve(1, range(100, 100), 100);
    hth_world_run_for(fx.world, 2 * S);
    for (int round = 0; round < 50; round++) {
        size_t n = hth_directory_pick_free(fx.dir, fx.layer, 16, out);
        assert_int_equal(n, 16);
        for (size_t i = 0; i < n; i++) {
            assert_true(out[i] < 16 || (out[i] >= 80 && out[i] < 100) || out[i] >= 200);
            assert_true(i == 0 || out[i] == out[i - 1] + 1); /* one run */
        }
    }
    assert_int_equal(hth_directory_pick_free(fx.dir, fx.layer, 256, out), 92);
    for (size_t i = 1; i < 92; i++)
        assert_true(out[i] > out[i - 1]);
    assert_int_equal(hth_directory_host_experts(fx.dir, &fx.host[1].id, fx.layer, out, 256), 100);
    assert_int_equal(out[0], 100);
    assert_int_equal(out[99], 199);
    stop();
}

TEST(reading_views_sends_nothing)
{
    struct hth_directory_stats before, after;
    struct hth_host_ref refs[4];
    (void)state;
    start("ffn0.1024.1024", 14);
    struct hth_host_info info = {.addr_count = 1};
    for (uint32_t i = 0; i < 64; i++) {
        struct hth_peer_id id = {{(uint8_t)i, 1}};
        uint32_t *set = range(i * 16384, 16384);
        struct hth_expert_list list = {set, 16384};
        assert_ok(hth_directory_load(fx.dir, fx.layer, &id, &info, &list, 100 * S));
        hth_free(set);
    }
    hth_directory_stats(fx.dir, &before);
    struct hth_grid_view *v = hth_directory_view(fx.dir, fx.layer);
    assert_int_equal(v->live_count, 1u << 20);
    assert_int_equal(v->count[0], 1024);
    for (uint32_t e = 0; e < 1u << 20; e += 1000)
        assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, e, refs, 4), 1);
    hth_directory_stats(fx.dir, &after);
    assert_int_equal(before.dht_requests, after.dht_requests);
    assert_int_equal(after.hosts, 64);
    hth_world_run_for(fx.world, 101 * S);
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 0);
    stop();
}

/* While a host rearranges its records two of them may name an expert. */
TEST(a_host_with_two_records_is_found_once)
{
    struct hth_host_info info = {.addr_count = 1};
    struct hth_peer_id id = {{9}}, other = {{8}};
    struct hth_host_ref refs[8];
    uint32_t *some = range(0, 8);
    struct hth_expert_list list = {some, 8};
    (void)state;
    start("ffn0.4.4", 15);
    assert_ok(hth_directory_load(fx.dir, fx.layer, &id, &info, &list, 10 * S));
    list.count = 4;
    assert_ok(hth_directory_load(fx.dir, fx.layer, &id, &info, &list, 20 * S));
    assert_ok(hth_directory_load(fx.dir, fx.layer, &other, &info, &list, 20 * S));
    for (uint32_t e = 0; e < 8; e++)
        assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, e, refs, 8), e < 4 ? 2 : 1);
    hth_world_run_for(fx.world, 11 * S);
    for (uint32_t e = 0; e < 8; e++)
        assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, e, refs, 8), e < 4 ? 2 : 0);
    hth_free(some);
    stop();
}

TEST(loading_is_bounded)
{
    struct hth_host_info info = {.addr_count = 1};
    uint32_t *all;
    (void)state;
    start("ffn0.4096.4096", 15);
    all = range(0, HTH_ANNOUNCE_EXPERTS_MAX + 1);
    struct hth_expert_list list = {all, HTH_ANNOUNCE_EXPERTS_MAX + 1};
    struct hth_peer_id id = {{9}};
    assert_err(HTH_E_BUDGET, hth_directory_load(fx.dir, fx.layer, &id, &info, &list, S));
    list.count--;
    for (uint32_t i = 0; i < HTH_DIR_POSTINGS_MAX / HTH_ANNOUNCE_EXPERTS_MAX; i++) {
        id.b[1] = (uint8_t)i;
        assert_ok(hth_directory_load(fx.dir, fx.layer, &id, &info, &list, 10 * S));
    }
    id.b[0] = 10;
    assert_err(HTH_E_BUDGET, hth_directory_load(fx.dir, fx.layer, &id, &info, &list, S));
    struct hth_host_ref refs[100];
    assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, 0, refs, 100), HTH_DIR_REPLICAS_MAX);
    all[0] = all[1];
    list.count = 2;
    assert_err(HTH_E_RANGE, hth_directory_load(fx.dir, fx.layer, &id, &info, &list, S));
    hth_free(all);
    stop();
}

/* Hosts that are down take nobody's place, however many claim an expert. */
TEST(hosts_that_are_down_count_in_no_limit)
{
    struct hth_host_info info = {.addr_count = 1, .addr = {{.family = 4, .port = 1}}};
    uint32_t e[] = {0, 1};
    struct hth_expert_list list = {e, 2};
    struct hth_host_ref refs[8];
    struct hth_peer_id id = {{1}};

    (void)state;
    start_with("ffn0.4.4", 21, true);
    for (uint32_t i = 0; i < 200; i++) {
        id.b[1] = (uint8_t)i;
        assert_ok(hth_directory_load(fx.dir, fx.layer, &id, &info, &list, 10 * S));
        assert_true(hth_directory_needs(fx.dir, &id));
    }
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 0);
    for (uint32_t i = 0; i < 2 * HTH_DIR_PROVED_MAX; i += 2) {
        id.b[1] = (uint8_t)(3 + 11 * i);
        hth_directory_prove(fx.dir, &id, &info.addr[0]);
        assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, 1, refs, 8), i / 2 + 1);
    }
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 2);
    id.b[1] = 0;
    assert_false(hth_directory_needs(fx.dir, &id)); /* there are enough */
    for (uint32_t i = 0; i < 2 * HTH_DIR_PROVED_MAX; i += 2) {
        assert_int_equal(hth_directory_hosts_of(fx.dir, fx.layer, 0, refs, 8),
                         HTH_DIR_PROVED_MAX - i / 2);
        id.b[1] = (uint8_t)(3 + 11 * i);
        hth_directory_mark_dead(fx.dir, &id, 8 * S);
    }
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 0);
    stop();
}

/* A proof is that a key answers at an address: not at another one. */
TEST(proofs_are_of_addresses)
{
    struct hth_host_info info = {.addr_count = 1, .addr = {{.family = 4, .port = 1}}};
    uint32_t e = 3;
    struct hth_expert_list list = {&e, 1};
    struct hth_addr other = {.family = 4, .port = 2};
    struct hth_peer_id id = {{1}};

    (void)state;
    start_with("ffn0.4.4", 22, true);
    assert_ok(hth_directory_load(fx.dir, fx.layer, &id, &info, &list, 10 * S));
    hth_directory_mark_alive(fx.dir, &id);
    hth_directory_prove(fx.dir, &id, &other);
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 0);
    hth_directory_prove(fx.dir, &id, &info.addr[0]);
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 1);
    hth_world_run_for(fx.world, S);
    assert_ok(hth_directory_load(fx.dir, fx.layer, &id, &info, &list, 10 * S));
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 1);
    info.addr[0] = other;
    hth_world_run_for(fx.world, S);
    assert_ok(hth_directory_load(fx.dir, fx.layer, &id, &info, &list, 10 * S));
    assert_int_equal(hth_directory_view(fx.dir, fx.layer)->live_count, 0);
    assert_true(hth_directory_needs(fx.dir, &id));
    stop();
}

/* A root record that names more first coordinates than a directory watches. */
static enum hth_err fill_firsts(void *arg, struct hth_writer *w)
{
    struct hth_listing l = {.flags = HTH_LISTING_FIRSTS, .grid = fx.grid, .shape = FFN};
    uint32_t *all = range(0, HTH_DIR_BRANCHES_MAX + 1);
    size_t taken;
    enum hth_err err = hth_listing_write_head(w, &l);
    if (err == HTH_OK)
        err = hth_listing_write_set(w, all, *(const size_t *)arg, 500, &taken);
    hth_free(all);
    return err;
}

TEST(branches_are_bounded)
{
    struct hth_directory_stats s;
    struct hth_topic topic;
    struct hth_publisher *publisher;
    size_t count = HTH_DIR_BRANCHES_MAX;
    (void)state;
    start("ffn0.2048.16", 17);
    struct hth_node *node = hth_world_node(fx.world, "greedy", NULL);
    hth_topic_init(&topic, hth_node_env(node)->crypto, "net", HTH_RECORD_ROOT, "ffn0.", 5);
    assert_ok(hth_publisher_new(hth_node_env(node), hth_node_dht(node), &topic, NULL, fill_firsts,
                                &count, &publisher));
    hth_world_run_for(fx.world, 2 * S);
    hth_directory_stats(fx.dir, &s);
    assert_int_equal(s.boards, 1 + HTH_DIR_BRANCHES_MAX);
    /* One more is refused as a whole, and the earlier record stays valid. */
    count++;
    hth_publisher_update(publisher, 0);
    hth_world_run_for(fx.world, 2 * S);
    hth_directory_stats(fx.dir, &s);
    assert_int_equal(s.boards, 1 + HTH_DIR_BRANCHES_MAX);
    hth_publisher_goodbye(publisher, NULL, NULL);
    hth_world_run_for(fx.world, 2 * S);
    hth_directory_stats(fx.dir, &s);
    assert_int_equal(s.boards, 1);
    assert_int_equal(s.hosts, 0);
    hth_publisher_free(publisher);
    stop();
}

TEST(hosts_and_layers_are_bounded)
{
    struct hth_host_info info = {.addr_count = 1};
    struct hth_directory_stats s;
    uint32_t expert = 7;
    struct hth_expert_list list = {&expert, 1};
    struct hth_peer_id id = {{0}};
    struct hth_grid grid;
    (void)state;
    start("ffn0.16.16", 18);
    for (uint32_t i = 0; i < HTH_DIR_HOSTS_MAX; i++) {
        id.b[0] = (uint8_t)i;
        id.b[1] = (uint8_t)(i >> 8);
        assert_ok(hth_directory_load(fx.dir, fx.layer, &id, &info, &list, S));
    }
    id.b[2] = 1;
    assert_err(HTH_E_BUDGET, hth_directory_load(fx.dir, fx.layer, &id, &info, &list, S));
    hth_directory_stats(fx.dir, &s);
    assert_int_equal(s.hosts, HTH_DIR_HOSTS_MAX);
    serve(0, range(0, 0), 0);
    for (uint32_t i = 1; i <= HTH_ANNOUNCE_LAYERS_MAX; i++) {
        char name[32];
        snprintf(name, sizeof(name), "l%u.16", i);
        assert_ok(hth_grid_parse(name, strlen(name), &grid));
        assert_ok(hth_announcer_set_layer(fx.host[0].ann, &grid, &FFN, &list));
    }
    assert_ok(hth_grid_parse("more.16", 7, &grid));
    assert_err(HTH_E_BUDGET, hth_announcer_set_layer(fx.host[0].ann, &grid, &FFN, &list));
    stop();
}

TEST(empty_ask_is_remembered)
{
    struct hth_directory_stats s;
    (void)state;
    start("ffn0.16.16", 16);
    assert_ok(hth_directory_ask(fx.dir, fx.layer));
    hth_world_run_for(fx.world, 1 * S);
    assert_err(HTH_E_NOT_FOUND, hth_directory_ask(fx.dir, fx.layer));
    hth_directory_stats(fx.dir, &s);
    assert_int_equal(s.negative_hits, 1);
    stop();
}
