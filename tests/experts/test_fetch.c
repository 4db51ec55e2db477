/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fetch.c: weights come whole from the hosts that have them, from a replica when a host dies,
 * and not at all from nobody, or where they are too large; and a host gives one expert at a time to
 * whoever asks.
 */
#include "core/mem.h"
#include "experts/fetch.h"
#include "experts/message.h"
#include "experts/safetensors.h"
#include "experts/swarm.h"
#include "support/suite.h"

#define S       HTH_US_PER_S
#define EXPERTS 6 /* of the grid */

struct fixture {
    struct hth_world *world;
    struct swarm_host host[2];
    struct swarm_caller caller;
    struct hth_grid grid;
    struct hth_directory *directory;
    struct hth_fetch *fetch;
    enum hth_err err[EXPERTS];
    struct hth_blob *bytes[EXPERTS];
    uint32_t ended;
    bool done;
};

static int setup(void **state)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_directory_opts opts = HTH_DIRECTORY_OPTS_INIT;
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    const uint32_t size = EXPERTS;

    world.device.disk_latency_us = S / 2; /* copies are under way for a while */
    f->world = hth_world_new(4, &world);
    assert_ok(hth_grid_init(&f->grid, "ffn0", 1, &size));
    caller_start(&f->caller, f->world, "caller", NULL);
    opts.network = "test";
    assert_ok(hth_directory_new(f->caller.env, hth_node_dht(f->caller.node), &opts, &f->directory));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    hth_fetch_free(f->fetch);
    for (uint32_t i = 0; i < EXPERTS; i++)
        hth_blob_unref(f->bytes[i]);
    hth_directory_free(f->directory);
    caller_stop(&f->caller);
    hth_world_free(f->world);
    hth_free(f);
    return 0;
}

/* Host i serves `count` experts from `first` on, and the directory says so for a time. */
static void serve_for(struct fixture *f, int i, uint32_t first, uint32_t count, int64_t life_us)
{
    struct swarm_host *h = &f->host[i];
    struct hth_host_info info = {.addr_count = 1};
    uint32_t index[EXPERTS], layer;
    const struct hth_expert_list list = {index, count};

    *h = host_init();
    h->layer_first = first;
    h->layer_count = count;
    host_start(h, f->world, i == 0 ? "host0" : "host1");
    hth_world_run_for(f->world, 10 * S);
    for (uint32_t k = 0; k < count; k++)
        index[k] = first + k;
    info.addr[0] = hth_node_addr(h->node, PORT);
    assert_ok(hth_directory_open_layer(f->directory, &f->grid, NULL, &layer));
    assert_ok(hth_directory_load(f->directory, layer, &hth_node_env(h->node)->self, &info, &list,
                                 life_us));
}

static void serve(struct fixture *f, int i, uint32_t first, uint32_t count)
{
    serve_for(f, i, first, count, 600 * S);
}

static void on_expert_take(void *arg, const struct hth_uid *uid, enum hth_err err,
                           struct hth_blob *bytes)
{
    struct fixture *f = arg;

    assert_string_equal(uid->name, "ffn0");
    assert_in_range(uid->coord[0], 0, EXPERTS - 1);
    assert_true((err == HTH_OK) == (bytes != NULL));
    f->err[uid->coord[0]] = err;
    f->bytes[uid->coord[0]] = bytes;
    f->ended++;
}

static void on_done(void *arg)
{
    struct fixture *f = arg;

    assert_int_equal(f->ended, EXPERTS);
    f->done = true;
}

static bool is_done(void *arg)
{
    return ((struct fixture *)arg)->done;
}

static bool some_came(void *arg)
{
    return ((struct fixture *)arg)->ended > 0;
}

static void begin_with(struct fixture *f, struct hth_rpc *rpc)
{
    const struct hth_fetch_opts opts = {.grids = &f->grid,
                                        .grid_count = 1,
                                        .patience_us = 10 * S,
                                        .on_expert_take = on_expert_take,
                                        .on_done = on_done,
                                        .arg = f,
                                        .done_arg = f};

    assert_ok(hth_fetch_new(f->caller.env, rpc, f->directory, &opts, &f->fetch));
}

static void begin(struct fixture *f)
{
    begin_with(f, f->caller.rpc);
}

/* The file has the values of the expert, in fp32, and no moments. */
static void assert_file_of(const struct hth_blob *bytes, const struct hth_expert *expert)
{
    struct hth_params *p = hth_expert_params((struct hth_expert *)expert);
    struct hth_st_reader *r;

    assert_ok(hth_st_open(bytes->data, bytes->size, &r));
    assert_string_equal(hth_st_meta(r, "hearth.uid"), hth_expert_uid_text(expert));
    assert_int_equal(hth_st_count(r), hth_params_count(p));
    for (uint32_t i = 0; i < hth_params_count(p); i++) {
        struct hth_weight *w = hth_params_at(p, i);
        const struct hth_st_entry *e = hth_st_find(r, hth_weight_name(w));
        assert_non_null(e);
        assert_int_equal(e->dtype, HTH_F32);
        assert_int_equal(e->bytes, 4ull * hth_weight_rows(w) * hth_weight_cols(w));
        assert_memory_equal(e->data, hth_params_flat(p, HTH_PART_VALUE) + hth_weight_offset(w),
                            e->bytes);
    }
    hth_st_close(r);
}

TEST_WITH(weights_come_from_all_hosts, setup, teardown)
{
    struct fixture *f = *state;

    serve(f, 0, 0, 2);
    serve(f, 1, 2, 3);
    begin(f);
    assert_true(hth_world_run_until_true(f->world, is_done, f, 60 * S));
    for (uint32_t i = 0; i < EXPERTS - 1; i++) {
        assert_ok(f->err[i]);
        assert_file_of(f->bytes[i],
                       i < 2 ? host_expert(&f->host[0], i) : host_expert(&f->host[1], i - 2));
    }
    assert_int_equal(f->err[EXPERTS - 1], HTH_E_NOT_FOUND); /* nobody has it */
}

TEST_WITH(a_replica_gives_what_a_dead_host_had, setup, teardown)
{
    struct fixture *f = *state;

    serve(f, 0, 0, EXPERTS);
    serve(f, 1, 0, EXPERTS);
    begin(f);
    assert_true(hth_world_run_until_true(f->world, some_came, f, 60 * S));
    hth_node_crash(f->host[0].node, HTH_CRASH_RESET);
    assert_true(hth_world_run_until_true(f->world, is_done, f, 600 * S));
    for (uint32_t i = 0; i < EXPERTS; i++) {
        assert_ok(f->err[i]);
        assert_file_of(f->bytes[i], host_expert(&f->host[1], i));
    }
}

/* It is asked before the directory knows that it left. */
TEST_WITH(a_host_that_left_is_none, setup, teardown)
{
    struct fixture *f = *state;

    serve_for(f, 0, 0, EXPERTS, 5 * S);
    hth_node_crash(f->host[0].node, HTH_CRASH_RESET);
    begin(f);
    assert_true(hth_world_run_until_true(f->world, is_done, f, 60 * S));
    for (uint32_t i = 0; i < EXPERTS; i++)
        assert_int_equal(f->err[i], HTH_E_NOT_FOUND);
}

TEST_WITH(a_host_that_is_lost_is_the_error, setup, teardown)
{
    struct fixture *f = *state;

    serve(f, 0, 0, 1);
    hth_node_crash(f->host[0].node, HTH_CRASH_RESET);
    begin(f);
    assert_true(hth_world_run_until_true(f->world, is_done, f, 60 * S));
    assert_int_equal(f->err[0], HTH_E_REFUSED);
    assert_int_equal(f->err[1], HTH_E_NOT_FOUND);
}

/* Files of more than a reply takes are asked for once each. */
TEST_WITH(large_weights_are_given_up_at_once, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    struct hth_rpc *rpc;

    serve(f, 0, 0, EXPERTS);
    opts.network = "test";
    opts.body_bytes_max = 1024;
    assert_ok(hth_rpc_new(f->caller.env, &opts, &rpc));
    begin_with(f, rpc);
    assert_true(hth_world_run_until_true(f->world, is_done, f, 9 * S)); /* below its patience */
    for (uint32_t i = 0; i < EXPERTS; i++)
        assert_int_equal(f->err[i], HTH_E_TOO_LARGE);
    hth_fetch_free(f->fetch);
    f->fetch = NULL;
    hth_rpc_free(rpc);
}

TEST_WITH(a_fetch_that_is_freed_leaves_nothing, setup, teardown)
{
    struct fixture *f = *state;

    serve(f, 0, 0, EXPERTS);
    begin(f);
    assert_true(hth_world_run_until_true(f->world, some_came, f, 60 * S));
    hth_fetch_free(f->fetch);
    f->fetch = NULL;
    hth_world_run_for(f->world, 60 * S);
    assert_false(f->done);
}

/* ---- requests of strangers ----------------------------------------------------------------- */

static void call(struct fixture *f, const void *payload, size_t len, struct answer *out)
{
    struct hth_rpc_call_opts opts = {.method = HTH_METHOD_EXPERT_WEIGHTS, .timeout_us = 30 * S};
    const struct hth_rpc_target target = host_target(&f->host[0]);

    *out = (struct answer){0};
    opts.body.payload = payload;
    opts.body.payload_len = len;
    assert_ok(hth_rpc_call(f->caller.rpc, &target, &opts, on_answer, out, NULL));
}

TEST_WITH(requests_that_cannot_be_met_are_refused, setup, teardown)
{
    static const struct {
        const char *bytes;
        size_t len;
        enum hth_err err;
    } cases[] = {
        {"\xff\xff", 2, HTH_E_MALFORMED},
        {"", 0, HTH_E_MALFORMED},
        {"\x0a\x03"
         "f.f",
         5, HTH_E_MALFORMED},
        {"\x0a\x06"
         "ffn0.5",
         8, HTH_E_NO_SUCH_EXPERT},
        {"\x0a\x06"
         "ffn1.0",
         8, HTH_E_NO_SUCH_EXPERT},
    };
    struct fixture *f = *state;
    struct answer out, first;

    serve(f, 0, 0, 2);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        call(f, cases[i].bytes, cases[i].len, &out);
        assert_true(hth_world_run_until_true(f->world, answered, &out, 60 * S));
        assert_int_equal(out.err, cases[i].err);
        answer_clear(&out);
    }
    /* Two at once: the second comes while the first is copied. */
    call(f,
         "\x0a\x06"
         "ffn0.0",
         8, &first);
    call(f,
         "\x0a\x06"
         "ffn0.1",
         8, &out);
    assert_true(hth_world_run_until_true(f->world, answered, &first, 60 * S));
    assert_true(hth_world_run_until_true(f->world, answered, &out, 60 * S));
    assert_ok(first.err);
    assert_int_equal(first.tensors, 1);
    assert_int_equal(out.err, HTH_E_BUSY);
    assert_true(out.retry_after_us > 0);
    answer_clear(&first);
    answer_clear(&out);
}

TEST_WITH(a_server_that_ends_drops_its_copy, setup, teardown)
{
    struct fixture *f = *state;
    struct answer out, first;

    serve(f, 0, 0, 1);
    call(f,
         "\x0a\x06"
         "ffn0.0",
         8, &first);
    call(f,
         "\x0a\x06"
         "ffn0.0",
         8, &out);
    assert_true(hth_world_run_until_true(f->world, answered, &out, 60 * S));
    assert_int_equal(out.err, HTH_E_BUSY); /* so the first one is being copied */
    hth_node_crash(f->host[0].node, HTH_CRASH_RESET);
    assert_true(hth_world_run_until_true(f->world, answered, &first, 120 * S));
    assert_int_not_equal(first.err, HTH_OK);
    answer_clear(&first);
    answer_clear(&out);
}
