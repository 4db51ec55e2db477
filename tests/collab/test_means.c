/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_means.c: what a member keeps of the last means, what readers may hold, and a mean that is
 * fetched from holders that lie, fall silent or die, in the simulated world.
 */
#include "support/test.h"

#include "collab/means.h"
#include "core/mem.h"
#include "net/crypto.h"
#include "sim/world.h"

#define S    HTH_US_PER_S
#define MS   HTH_US_PER_MS
#define PORT 4000

enum { PEERS_MAX = 40, VALUES = 5 * 16 * HTH_MEAN_BLOCK + 1000 };
#define MEAN_BYTES (VALUES * sizeof(float))

/* How a holder answers. */
enum kind {
    HONEST,
    GONE,   /* has let it go */
    SILENT, /* never */
    LIES,   /* one value is another */
    SHORT,
    LONG,
    BYTES, /* not of floats */
    EMPTY,
};

struct peer {
    struct fixture *fixture;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_means *means;
    struct hth_blob *mean; /* what a holder that is not honest gives */
    enum kind kind;
    uint32_t asked;
};

struct fixture {
    struct hth_world *world;
    struct peer peer[PEERS_MAX]; /* the first one fetches */
    uint32_t count;
    struct hth_mean_fetch *fetch;
    bool done;
    enum hth_err err;
    struct hth_blob *got;
    struct hth_peer_id giver;
    char log[4096];
};

/* ---- the world ------------------------------------------------------------------------------- */

static void halt(struct hth_env *env, void *arg)
{
    struct peer *p = arg;
    (void)env;
    if (p == &p->fixture->peer[0]) {
        hth_mean_fetch_free(p->fixture->fetch);
        p->fixture->fetch = NULL;
    }
    hth_means_free(p->means);
    hth_rpc_free(p->rpc);
    p->means = NULL;
    p->rpc = NULL;
}

static void on_log(void *arg, const char *line, size_t len)
{
    struct fixture *f = arg;
    size_t used = strlen(f->log);
    snprintf(f->log + used, sizeof(f->log) - used, "%.*s", (int)len, line);
}

static struct fixture *setup_window(bool ghost, uint32_t window_bytes)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct fixture *f = hth_new(struct fixture);
    opts.ghost = ghost;
    opts.window_bytes = window_bytes;
    opts.log_level = HTH_INFO;
    opts.log_sink = on_log;
    opts.log_arg = f;
    f->world = hth_world_new(1, &opts);
    return f;
}

static struct fixture *setup(bool ghost)
{
    return setup_window(ghost, 4 << 20);
}

static struct peer *add(struct fixture *f, enum kind kind, const struct hth_device *device)
{
    struct peer *p = &f->peer[f->count];
    struct hth_node_opts node = {.halt = halt, .arg = p, .device = device};
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    char name[16];
    snprintf(name, sizeof(name), "p%u", f->count++);
    p->fixture = f;
    p->kind = kind;
    p->node = hth_world_node(f->world, name, &node);
    p->env = hth_node_env(p->node);
    struct hth_addr addr = hth_node_addr(p->node, PORT);
    rpc.network = "run";
    rpc.listen = &addr;
    assert_ok(hth_rpc_new(p->env, &rpc, &p->rpc));
    p->means = hth_means_new(p->env, p->rpc, NULL);
    return p;
}

static void tear_down(struct fixture *f)
{
    struct hth_open_counts open;
    for (uint32_t i = 0; i < f->count; i++)
        halt(NULL, &f->peer[i]);
    hth_world_run_for(f->world, S); /* jobs end */
    hth_world_open(f->world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(f->world);
    for (uint32_t i = 0; i < f->count; i++)
        hth_blob_unref(f->peer[i].mean);
    hth_blob_unref(f->got);
    hth_free(f);
}

static struct hth_hash head_of(uint64_t step)
{
    struct hth_hash head = {{(uint8_t)step, (uint8_t)(step >> 8), 77}};
    return head;
}

static struct hth_blob *make_mean(struct hth_env *env, uint64_t count, uint64_t seed)
{
    struct hth_blob *b;
    assert_ok(hth_env_blob_new(env, count * sizeof(float), NULL, &b));
    for (uint64_t i = 0; b->data != NULL && i < count; i++)
        ((float *)(void *)b->data)[i] = (float)hth_mix64(seed * 1000003 + i) * 0x1p-64f;
    return b;
}

static struct hth_hash digest_of(const struct hth_blob *mean)
{
    struct hth_hash digest = {{0}};
    if (mean->data != NULL)
        hth_mean_digest(hth_sim_crypto(), (const float *)(const void *)mean->data,
                        mean->size / sizeof(float), &digest);
    return digest;
}

static void put(struct peer *p, uint64_t step, struct hth_blob *mean)
{
    struct hth_hash head = head_of(step);
    hth_means_put(p->means, &head, step, mean);
}

static void on_rogue(void *arg, struct hth_rpc_request *req)
{
    struct peer *p = arg;
    struct hth_mean_msg msg;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    assert_ok(hth_mean_msg_read(bytes, len, &msg));
    struct hth_tensor part = {.dtype = p->kind == BYTES ? HTH_U8 : HTH_F32,
                              .ndim = 1,
                              .dim = {msg.values},
                              .blob = p->mean,
                              .offset = msg.first * sizeof(float)};
    struct hth_rpc_body body = {.tensors = &part, .tensor_count = p->kind == EMPTY ? 0 : 1};
    p->asked++;
    if (p->kind == SILENT) {
        hth_rpc_ignore(req);
        return;
    }
    if (p->kind == SHORT)
        part.dim[0]--;
    if (p->kind == LONG) {
        part.dim[0]++;
        part.offset = 0;
    }
    hth_rpc_reply(req, &body);
}

/* A peer that has the mean of step 1, or so it seems. */
static struct peer *add_holder(struct fixture *f, enum kind kind, const struct hth_device *device)
{
    struct peer *p = add(f, kind, device);
    struct hth_blob *mean = make_mean(p->env, VALUES, 5);
    if (kind == HONEST)
        put(p, 1, mean);
    if (kind == LIES && mean->data != NULL)
        mean->data[MEAN_BYTES - 1] ^= 1;
    p->mean = mean;
    if (kind != HONEST && kind != GONE)
        hth_rpc_serve(p->rpc, HTH_MEAN_METHOD, on_rogue, p);
    return p;
}

/* ---- fetching -------------------------------------------------------------------------------- */

static void on_done(void *arg, enum hth_err err, struct hth_blob *mean,
                    const struct hth_peer_id *giver)
{
    struct fixture *f = arg;
    assert_false(f->done);
    f->done = true;
    f->err = err;
    assert_true((err == HTH_OK) == (mean != NULL) && (mean == NULL) == (giver == NULL));
    if (giver != NULL)
        f->giver = *giver;
    if (mean != NULL)
        f->got = hth_blob_ref(mean);
    hth_mean_fetch_free(f->fetch);
    f->fetch = NULL;
}

static struct hth_mean_fetch_opts fetch_opts(struct fixture *f, struct hth_roll_peer *holders)
{
    struct hth_mean_fetch_opts o = {
        .head = head_of(1), .values = VALUES, .holders = holders, .done = on_done, .arg = f};
    struct hth_blob *mean = make_mean(f->peer[0].env, VALUES, 5);
    o.digest = digest_of(mean);
    hth_blob_unref(mean);
    for (uint32_t i = 1; i < f->count; i++)
        holders[o.count++] = (struct hth_roll_peer){.id = f->peer[i].env->self,
                                                    .addr = hth_node_addr(f->peer[i].node, PORT)};
    return o;
}

static void start(struct fixture *f)
{
    struct hth_roll_peer holders[PEERS_MAX] = {{.life = 0}};
    struct hth_mean_fetch_opts o = fetch_opts(f, holders);
    f->done = false;
    hth_blob_unref(f->got);
    f->got = NULL;
    assert_ok(hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
}

static bool is_done(void *arg)
{
    return ((struct fixture *)arg)->done;
}

/* Returns how long it took. */
static int64_t fetch(struct fixture *f, enum hth_err want)
{
    int64_t begin = hth_world_now_us(f->world);
    start(f);
    assert_true(hth_world_run_until_true(f->world, is_done, f, 100 * S));
    assert_err(want, f->err);
    if (want == HTH_OK) {
        struct hth_roll_peer holders[PEERS_MAX] = {{.life = 0}};
        struct hth_hash got = digest_of(f->got), right = fetch_opts(f, holders).digest;
        assert_int_equal(f->got->size, MEAN_BYTES);
        assert_memory_equal(&got, &right, sizeof(got));
    }
    return hth_world_now_us(f->world) - begin;
}

/* ---- digests and requests -------------------------------------------------------------------- */

/* By Python's hashlib over struct.pack("<n>f", 0, 1, 2 ..). */
static void digests_are_golden(void **state)
{
    (void)state;
    static const struct {
        uint64_t values;
        const char *hex;
    } golden[] = {
        {0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {1, "8cb9012517c817fead650287d61bdd9c68803b6bf9c64133dcab3e65b5a50cb9"},
        {4096, "21f64fb22bfb4d0bebd611717a8a491bbb27abd8a9401ec55f5954a159cf433f"},
        {4097, "5dac4c1094bd798693f65adbb0e3ce9676ae3100ac672a361f1fb47d2bc2bd84"},
        {10000, "e833e04cdebbbc8328d45e157aeba87b52f33944048d88a9002a6fe5758de404"},
    };
    float *values = hth_calloc(10000, sizeof(*values));
    for (int i = 0; i < 10000; i++)
        values[i] = (float)i;
    for (size_t i = 0; i < HTH_ARRAY_LEN(golden); i++) {
        struct hth_hash digest;
        char hex[2 * HTH_HASH_LEN + 1];
        hth_mean_digest(hth_crypto_openssl(), values, golden[i].values, &digest);
        hth_hex(digest.b, HTH_HASH_LEN, hex);
        assert_string_equal(hex, golden[i].hex);
    }
    hth_free(values);
}

static void requests_are_checked(void **state)
{
    (void)state;
    const struct hth_mean_msg good = {
        .head = head_of(3), .first = 7 * HTH_MEAN_BLOCK, .values = HTH_MEAN_BYTES_MAX / 4};
    struct hth_mean_msg bad = good, got;
    uint8_t bytes[HTH_MEAN_MSG_BYTES + 1] = {0};
    hth_mean_msg_write(&good, bytes);
    assert_ok(hth_mean_msg_read(bytes, HTH_MEAN_MSG_BYTES, &got));
    assert_int_equal(got.first, good.first);
    assert_int_equal(got.values, good.values);
    assert_memory_equal(&got.head, &good.head, sizeof(got.head));
    for (size_t len = 0; len < HTH_MEAN_MSG_BYTES; len++)
        assert_err(HTH_E_TRUNCATED, hth_mean_msg_read(bytes, len, &got));
    assert_err(HTH_E_MALFORMED, hth_mean_msg_read(bytes, sizeof(bytes), &got));
    bytes[0]++;
    assert_err(HTH_E_VERSION, hth_mean_msg_read(bytes, HTH_MEAN_MSG_BYTES, &got));
    static const struct {
        uint64_t first;
        uint32_t values;
        enum hth_err want;
    } cases[] = {
        {1, 1, HTH_E_MALFORMED},
        {UINT64_MAX, 1, HTH_E_MALFORMED},
        {0, 0, HTH_E_RANGE},
        {0, HTH_MEAN_BYTES_MAX / 4 + 1, HTH_E_TOO_LARGE},
        {0, UINT32_MAX, HTH_E_TOO_LARGE},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        bad.first = cases[i].first;
        bad.values = cases[i].values;
        hth_mean_msg_write(&bad, bytes);
        assert_err(cases[i].want, hth_mean_msg_read(bytes, HTH_MEAN_MSG_BYTES, &got));
    }
}

/* ---- keeping --------------------------------------------------------------------------------- */

static void check_kept(struct peer *p, uint64_t first, uint32_t kept)
{
    struct hth_means_stats stats;
    hth_means_stats(p->means, &stats);
    assert_int_equal(stats.kept, kept);
    assert_int_equal(stats.first, first);
}

static void step(struct fixture *f, struct peer *p, uint64_t at, int64_t after_us)
{
    struct hth_blob *mean = make_mean(p->env, 100, at);
    hth_world_run_for(f->world, after_us);
    put(p, at, mean);
    hth_blob_unref(mean);
}

static void the_last_one_is_always_kept(void **state)
{
    (void)state;
    struct fixture *f = setup(false);
    struct peer *p = add(f, HONEST, NULL);
    for (uint64_t at = 1; at <= 5; at++) {
        step(f, p, at, 2 * S);
        check_kept(p, at, 1);
    }
    /* Quick steps are kept for a second. */
    for (uint64_t at = 6; at <= 30; at++)
        step(f, p, at, 100 * MS);
    check_kept(p, 21, 10);
    /* More than HTH_MEANS_MAX of them are not. */
    for (uint64_t at = 31; at <= 100; at++)
        step(f, p, at, 5 * MS);
    check_kept(p, 69, HTH_MEANS_MAX);
    tear_down(f);
}

/* Those after a snapshot stay while it does. */
static void means_since_a_snapshot_are_kept(void **state)
{
    (void)state;
    struct fixture *f = setup(false);
    struct peer *p = add(f, HONEST, NULL);
    step(f, p, 1, 0);
    hth_means_keep_from(p->means, 1);
    for (uint64_t at = 2; at <= 20; at++)
        step(f, p, at, 2 * S);
    check_kept(p, 2, 19);
    hth_means_keep_from(p->means, 10);
    check_kept(p, 11, 10);
    for (uint64_t at = 21; at <= 60; at++)
        step(f, p, at, 2 * S);
    check_kept(p, 29, HTH_MEANS_MAX);
    hth_means_keep_from(p->means, UINT64_MAX);
    check_kept(p, 60, 1);
    tear_down(f);
}

/* Another branch's means, and those before a gap, lead nowhere. */
static void means_lead_to_the_last(void **state)
{
    (void)state;
    struct fixture *f = setup(false);
    struct peer *p = add(f, HONEST, NULL);
    hth_means_keep_from(p->means, 0);
    for (uint64_t at = 1; at <= 8; at++)
        step(f, p, at, 2 * S);
    step(f, p, 6, 2 * S);
    check_kept(p, 1, 6);
    step(f, p, 7, 2 * S);
    check_kept(p, 1, 7);
    step(f, p, 9, 2 * S);
    check_kept(p, 9, 1);
    tear_down(f);
}

static void kept_means_draw_on_the_budget(void **state)
{
    (void)state;
    struct fixture *f = setup(false);
    struct peer *p = add(f, HONEST, NULL);
    struct hth_budget budget;
    hth_budget_init(&budget, 3 * 400 + 399, NULL);
    hth_means_free(p->means);
    p->means = hth_means_new(p->env, p->rpc, &budget);
    hth_means_keep_from(p->means, 0);
    for (uint64_t at = 1; at <= 10; at++) {
        step(f, p, at, 2 * S);
        check_kept(p, at <= 4 ? 1 : at - 3, at <= 4 ? (uint32_t)at : 4);
        assert_int_equal(hth_budget_used(&budget), HTH_MIN(at - 1, 3) * 400);
    }
    budget.limit_bytes = 0; /* none but the last has room */
    step(f, p, 11, 2 * S);
    check_kept(p, 11, 1);
    assert_int_equal(hth_budget_used(&budget), 0);
    step(f, p, 12, 2 * S);
    check_kept(p, 12, 1);
    tear_down(f);
    assert_int_equal(hth_budget_used(&budget), 0);
}

/* ---- serving --------------------------------------------------------------------------------- */

struct verdict {
    uint32_t count, ok, busy, closed;
    enum hth_err last;
};

static void on_verdict(void *arg, const struct hth_rpc_result *r)
{
    struct verdict *v = arg;
    v->count++;
    v->ok += r->err == HTH_OK;
    v->busy += r->err == HTH_E_BUSY;
    v->closed += r->err == HTH_E_CLOSED;
    v->last = r->err;
}

static void ask(struct peer *by, struct peer *whom, const struct hth_mean_msg *msg,
                struct verdict *v)
{
    struct hth_rpc_target target = {whom->env->self, hth_node_addr(whom->node, PORT)};
    uint8_t bytes[HTH_MEAN_MSG_BYTES];
    struct hth_rpc_call_opts call = {.method = HTH_MEAN_METHOD,
                                     .timeout_us = 100 * S,
                                     .body = {.payload = bytes, .payload_len = sizeof(bytes)}};
    hth_mean_msg_write(msg, bytes);
    assert_ok(hth_rpc_call(by->rpc, &target, &call, on_verdict, v, NULL));
}

static void requests_are_answered_in_range(void **state)
{
    (void)state;
    static const struct {
        uint64_t head, first;
        uint32_t values;
        enum hth_err want;
    } cases[] = {
        {1, 0, 1, HTH_OK},
        {1, 0, VALUES, HTH_OK},
        {1, 80 * HTH_MEAN_BLOCK, 1000, HTH_OK},
        {1, 80 * HTH_MEAN_BLOCK, 1001, HTH_E_RANGE},
        {1, 0, VALUES + 1, HTH_E_RANGE},
        {1, 81 * HTH_MEAN_BLOCK, 1, HTH_E_RANGE},
        {1, UINT64_MAX - HTH_MEAN_BLOCK + 1, HTH_MEAN_BLOCK, HTH_E_RANGE},
        {2, 0, 1, HTH_E_NOT_FOUND}, /* a head that nobody made */
        {1, 1, 1, HTH_E_MALFORMED},
        {1, 0, HTH_MEAN_BYTES_MAX / 4 + 1, HTH_E_TOO_LARGE},
    };
    struct fixture *f = setup(false);
    struct peer *p = add(f, HONEST, NULL), *holder = add_holder(f, HONEST, NULL);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct verdict v = {0};
        struct hth_mean_msg msg = {head_of(cases[i].head), cases[i].first, cases[i].values};
        ask(p, holder, &msg, &v);
        hth_world_run_for(f->world, S);
        assert_int_equal(v.count, 1);
        assert_err(cases[i].want, v.last);
    }
    tear_down(f);
}

/* Peers that ask for means and do not read them. */
static void readers_are_bounded(void **state)
{
    (void)state;
    struct fixture *f = setup_window(false, 64 << 10);
    struct hth_means_stats stats;
    struct verdict v = {0};
    struct hth_mean_msg msg = {.values = HTH_MEAN_BLOCK * 8};
    struct peer *holder = add(f, HONEST, NULL), *reader[4];
    for (int i = 0; i < 4; i++)
        reader[i] = add(f, HONEST, NULL);
    hth_means_keep_from(holder->means, 0);
    struct hth_blob *mean = make_mean(holder->env, VALUES, 1);
    put(holder, 1, mean);
    hth_blob_unref(mean);
    msg.head = head_of(1);
    for (int i = 0; i < 4; i++)
        ask(reader[i], holder, &msg, &v);
    hth_world_run_for(f->world, S);
    assert_int_equal(v.ok, 4);
    hth_means_stats(holder->means, &stats);
    assert_int_equal(stats.reads, 0); /* all were read */
    /* One more than it may have under way; some of its first are read into its window. */
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < HTH_MEAN_READS_MAX + 4; k++)
            ask(reader[i], holder, &msg, &v);
        hth_world_run_for(f->world, 10 * MS + 5);
        hth_node_stall(reader[i]->node, 100 * S);
        hth_world_run_for(f->world, S);
        hth_means_stats(holder->means, &stats);
        assert_in_range(stats.reads, (uint64_t)(i + 1) * (HTH_MEAN_READS_MAX - 2),
                        (uint64_t)(i + 1) * HTH_MEAN_READS_MAX);
        assert_true(stats.refused >= (uint64_t)(i + 1) * 2);
        assert_int_equal(stats.stale, 0);
    }
    /* Their mean goes: the first is cut off, and the others may stay. */
    uint32_t before = stats.reads;
    for (uint64_t at = 2; at <= HTH_MEANS_MAX + 1; at++)
        step(f, holder, at, MS);
    hth_means_stats(holder->means, &stats);
    assert_in_range(stats.stale, 1, HTH_MEAN_STALE_MAX);
    assert_in_range(stats.reads, stats.stale, stats.stale + 2); /* segments under way */
    assert_true(stats.reads < before);
    assert_non_null(strstr(f->log, "does not read the means"));
    /* Another one is served meanwhile. */
    struct verdict other = {0};
    msg = (struct hth_mean_msg){.head = head_of(5), .values = 100};
    ask(reader[3], holder, &msg, &other);
    hth_world_run_for(f->world, S);
    assert_int_equal(other.ok, 1);
    hth_world_run_for(f->world, 200 * S); /* all are gone at last */
    hth_means_stats(holder->means, &stats);
    assert_int_equal(stats.reads, 0);
    tear_down(f);
}

/* ---- fetching: what is promised -------------------------------------------------------- */

static void one_mean_is_one_means_bytes(void **state)
{
    (void)state;
    struct fixture *f = setup(false);
    struct hth_means_stats stats;
    add(f, HONEST, NULL);
    struct peer *holder = add_holder(f, HONEST, NULL);
    int64_t took_us = fetch(f, HTH_OK);
    printf("%zu bytes in %lld us\n", MEAN_BYTES, (long long)took_us);
    assert_true(took_us < 500 * MS);
    assert_int_equal(hth_means_fetched(f->peer[0].means), MEAN_BYTES);
    hth_means_stats(holder->means, &stats);
    assert_int_equal(stats.bytes, MEAN_BYTES);
    tear_down(f);
}

/* A holder that is no good costs its time at most; the next one's mean is taken. */
static void the_next_holder_is_asked(void **state)
{
    (void)state;
    static const struct {
        enum kind kind;
        int64_t within_us;
        const char *log;
    } cases[] = {
        {GONE, 600 * MS, "not kept here"},
        {SILENT, 4 * S, "no answer"},
        {LIES, S, "not those that the link's digest is of"},
        {SHORT, 600 * MS, "shape"},
        {LONG, 600 * MS, "shape"},
        {BYTES, 600 * MS, "shape"},
        {EMPTY, 600 * MS, "shape"},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct fixture *f = setup(false);
        char id[HTH_PEER_SHORT_LEN], line[64];
        add(f, HONEST, NULL);
        struct peer *bad = add_holder(f, cases[i].kind, NULL);
        add_holder(f, HONEST, NULL);
        int64_t took_us = fetch(f, HTH_OK);
        if (took_us > cases[i].within_us)
            fail_msg("case %zu took %lld us", i, (long long)took_us);
        snprintf(line, sizeof(line), "peer %s is left out", hth_peer_id_short(&bad->env->self, id));
        assert_non_null(strstr(f->log, line));
        assert_true(hth_peer_id_eq(&f->giver, &f->peer[2].env->self));
        assert_non_null(strstr(f->log, cases[i].log));
        assert_int_equal(bad->asked > HTH_MEAN_ASKS, cases[i].kind == LIES);
        tear_down(f);
    }
}

/* Once all were asked the last one's error is told. */
static void nobody_has_it(void **state)
{
    (void)state;
    static const struct {
        enum kind kind;
        enum hth_err want;
    } cases[] = {
        {GONE, HTH_E_NOT_FOUND},
        {SILENT, HTH_E_TIMEOUT}, /* on its second turn */
        {LIES, HTH_E_PROTOCOL},
        {SHORT, HTH_E_BAD_SHAPE},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct fixture *f = setup(false);
        add(f, HONEST, NULL);
        add_holder(f, cases[i].kind, NULL);
        add_holder(f, cases[i].kind, NULL);
        fetch(f, cases[i].want);
        tear_down(f);
    }
}

/* After quick means a slow holder is left for another one; where there is no other it has a second
 * turn. */
static void slow_holders_go_last(void **state)
{
    (void)state;
    struct hth_device slow = HTH_DEVICE_INIT;
    slow.up_bytes_per_s = 0.125e6; /* 1 Mbit/s: the mean takes 10.5 s */
    struct fixture *f = setup(false);
    add(f, HONEST, NULL);
    struct peer *holder = add_holder(f, HONEST, NULL), *quick = add_holder(f, HONEST, NULL);
    fetch(f, HTH_OK);
    hth_node_set_device(holder->node, &slow);
    int64_t took_us = fetch(f, HTH_OK);
    printf("a slow holder: %lld us\n", (long long)took_us);
    assert_in_range(took_us, 500 * MS, 1200 * MS);
    hth_node_crash(quick->node, HTH_CRASH_RESET);
    took_us = fetch(f, HTH_OK);
    printf("nobody else: %lld us\n", (long long)took_us);
    assert_in_range(took_us, 10 * S, 30 * S); /* behind replies to what was given up */
    tear_down(f);
}

static bool some_came(void *arg)
{
    struct fixture *f = arg;
    return hth_means_fetched(f->peer[0].means) > 0;
}

static void a_holder_dies(void **state)
{
    (void)state;
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    for (size_t i = 0; i < HTH_ARRAY_LEN(how); i++) {
        struct fixture *f = setup(false);
        add(f, HONEST, NULL);
        struct peer *first = add_holder(f, HONEST, NULL);
        add_holder(f, HONEST, NULL);
        int64_t begin = hth_world_now_us(f->world);
        start(f);
        assert_true(hth_world_run_until_true(f->world, some_came, f, S));
        hth_node_crash(first->node, how[i]);
        assert_true(hth_world_run_until_true(f->world, is_done, f, 10 * S));
        assert_ok(f->err);
        int64_t took_us = hth_world_now_us(f->world) - begin;
        printf("%s death: %lld us\n", i == 0 ? "loud" : "silent", (long long)took_us);
        assert_true(took_us < (i == 0 ? S : 4 * S));
        tear_down(f);
    }
}

/* The owner frees it whenever it likes. */
static void a_fetch_ends_anywhere(void **state)
{
    (void)state;
    for (int64_t us = 0; us < 300 * MS; us += 7 * MS) {
        struct fixture *f = setup(false);
        add(f, HONEST, NULL);
        add_holder(f, us % 2 ? LIES : HONEST, NULL);
        add_holder(f, HONEST, NULL);
        start(f);
        hth_world_run_for(f->world, us);
        tear_down(f);
    }
}

static void bits_are_taken_as_they_are(void **state)
{
    (void)state;
    struct fixture *f = setup(false);
    add(f, HONEST, NULL);
    struct peer *holder = add_holder(f, HONEST, NULL);
    struct hth_roll_peer holders[PEERS_MAX] = {{.life = 0}};
    struct hth_mean_fetch_opts o = fetch_opts(f, holders);
    struct hth_blob *mean = make_mean(holder->env, VALUES, 6);
    ((float *)(void *)mean->data)[7] = NAN;
    ((float *)(void *)mean->data)[8] = INFINITY;
    o.digest = digest_of(mean);
    put(holder, 1, mean);
    assert_ok(hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
    assert_true(hth_world_run_until_true(f->world, is_done, f, 10 * S));
    assert_ok(f->err);
    assert_memory_equal(f->got->data, mean->data, MEAN_BYTES);
    hth_blob_unref(mean);
    tear_down(f);
}

static void options_are_checked(void **state)
{
    (void)state;
    struct fixture *f = setup(false);
    struct hth_budget budget;
    add(f, HONEST, NULL);
    add_holder(f, HONEST, NULL);
    struct hth_roll_peer holders[HTH_ROLL_LINE_MAX + 1] = {{.life = 0}};
    struct hth_mean_fetch_opts good = fetch_opts(f, holders), o = good;
    o.values = 0;
    assert_err(HTH_E_CONFIG, hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
    o.values = HTH_PARAMS_FLOATS_MAX + 1;
    assert_err(HTH_E_CONFIG, hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
    o = good;
    o.count = 0;
    assert_err(HTH_E_CONFIG, hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
    o.count = HTH_ROLL_LINE_MAX + 1;
    assert_err(HTH_E_CONFIG, hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
    o = good;
    o.budget = &budget;
    hth_budget_init(&budget, MEAN_BYTES - 1, NULL);
    assert_err(HTH_E_BUDGET, hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
    o.budget = NULL;
    for (long n = 1; n <= 2; n++) {
        hth_mem_fail_at(n);
        assert_err(HTH_E_NO_MEMORY, hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
        hth_mem_fail_at(0);
    }
    assert_null(f->fetch);
    tear_down(f);
}

/* Any digest fits, and the same bytes move. */
static void ghosts_move(void **state)
{
    (void)state;
    struct fixture *f = setup(true);
    add(f, HONEST, NULL);
    add_holder(f, SHORT, NULL);
    struct peer *holder = add_holder(f, HONEST, NULL);
    struct hth_means_stats stats;
    fetch(f, HTH_OK);
    assert_null(f->got->data);
    hth_means_stats(holder->means, &stats);
    assert_int_equal(stats.bytes, MEAN_BYTES);
    tear_down(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_golden),
        cmocka_unit_test(requests_are_checked),
        cmocka_unit_test(the_last_one_is_always_kept),
        cmocka_unit_test(means_since_a_snapshot_are_kept),
        cmocka_unit_test(means_lead_to_the_last),
        cmocka_unit_test(kept_means_draw_on_the_budget),
        cmocka_unit_test(requests_are_answered_in_range),
        cmocka_unit_test(readers_are_bounded),
        cmocka_unit_test(one_mean_is_one_means_bytes),
        cmocka_unit_test(the_next_holder_is_asked),
        cmocka_unit_test(nobody_has_it),
        cmocka_unit_test(slow_holders_go_last),
        cmocka_unit_test(a_holder_dies),
        cmocka_unit_test(a_fetch_ends_anywhere),
        cmocka_unit_test(bits_are_taken_as_they_are),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(ghosts_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
