/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_means.c: what a member keeps of the last means, what readers may hold, and a mean that is
 * fetched from holders that lie or fall silent. Deaths and ghosts are in test_arrive.c.
 */
#include "collab/nodes.h"
#include "core/mem.h"
#include "net/crypto.h"

enum { PEERS_MAX = 8, VALUES = 5 * 16 * HTH_MEAN_BLOCK + 1000 };
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
    struct hth_blob *mean; /* of step 1 */
    bool done;
    enum hth_err err;
    struct hth_blob *got;
    struct hth_peer_id giver;
    char log[4096];
};

/* ---- the world ------------------------------------------------------------------------------- */

static void on_log(void *arg, const char *line, size_t len)
{
    struct fixture *f = arg;
    size_t used = strlen(f->log);
    snprintf(f->log + used, sizeof(f->log) - used, "%.*s", (int)len, line);
}

static struct peer *add(struct fixture *f)
{
    struct peer *p = &f->peer[f->count];
    char name[16];
    snprintf(name, sizeof(name), "p%u", f->count++);
    p->node = hth_world_node(f->world, name, NULL);
    p->env = hth_node_env(p->node);
    p->rpc = make_rpc(p->env, p->node, NULL, NULL);
    p->means = hth_means_new(p->env, p->rpc, NULL);
    return p;
}

/* With one peer. */
static struct fixture *setup(uint32_t window_bytes)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct fixture *f = hth_new(struct fixture);
    opts.window_bytes = window_bytes;
    opts.log_level = HTH_INFO;
    opts.log_sink = on_log;
    opts.log_arg = f;
    f->world = hth_world_new(1, &opts);
    add(f);
    f->mean = make_mean(f->peer[0].env, VALUES, 5);
    ((float *)(void *)f->mean->data)[7] = NAN; /* bits are taken as they are */
    return f;
}

static void tear_down(struct fixture *f)
{
    hth_mean_fetch_free(f->fetch);
    for (uint32_t i = 0; i < f->count; i++) {
        hth_means_free(f->peer[i].means);
        hth_rpc_free(f->peer[i].rpc);
    }
    end_world(f->world);
    for (uint32_t i = 0; i < f->count; i++)
        hth_blob_unref(f->peer[i].mean);
    hth_blob_unref(f->mean);
    hth_blob_unref(f->got);
    hth_free(f);
}

static struct hth_hash head_of(uint64_t step)
{
    struct hth_hash head = {{(uint8_t)step, (uint8_t)(step >> 8), 77}};
    return head;
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
static struct peer *add_holder(struct fixture *f, enum kind kind)
{
    struct peer *p = add(f);
    p->kind = kind;
    p->mean = hth_blob_copy(f->mean->data, f->mean->size);
    if (kind == HONEST)
        put(p, 1, p->mean);
    if (kind == LIES)
        p->mean->data[MEAN_BYTES - 1] ^= 1;
    if (kind != HONEST && kind != GONE)
        hth_rpc_serve(p->rpc, HTH_MEAN_METHOD, on_rogue, p);
    return p;
}

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
    struct hth_mean_fetch_opts o = {.head = head_of(1),
                                    .digest = digest_of(f->mean->data, VALUES),
                                    .values = VALUES,
                                    .holders = holders,
                                    .done = on_done,
                                    .arg = f};
    for (uint32_t i = 1; i < f->count; i++)
        holders[o.count++] = peer_of(f->peer[i].node);
    return o;
}

static bool is_done(void *arg)
{
    return ((struct fixture *)arg)->done;
}

/* Returns how long it took. */
static int64_t fetch(struct fixture *f, enum hth_err want)
{
    struct hth_roll_peer holders[PEERS_MAX] = {{.life = 0}};
    struct hth_mean_fetch_opts o = fetch_opts(f, holders);
    int64_t begin = hth_world_now_us(f->world);
    f->done = false;
    hth_blob_unref(f->got);
    f->got = NULL;
    assert_ok(hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
    assert_true(hth_world_run_until_true(f->world, is_done, f, 100 * S));
    assert_err(want, f->err);
    if (want == HTH_OK)
        assert_memory_equal(f->got->data, f->mean->data, MEAN_BYTES);
    return hth_world_now_us(f->world) - begin;
}

/* ---- digests --------------------------------------------------------------------------------- */

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
    static float values[10000];
    for (int i = 0; i < 10000; i++)
        values[i] = (float)i;
    for (size_t i = 0; i < HTH_ARRAY_LEN(golden); i++) {
        struct hth_hash digest;
        char hex[2 * HTH_HASH_LEN + 1];
        hth_mean_digest(hth_crypto_openssl(), values, golden[i].values, &digest);
        hth_hex(digest.b, HTH_HASH_LEN, hex);
        assert_string_equal(hex, golden[i].hex);
    }
}

/* ---- keeping --------------------------------------------------------------------------------- */

/* From one step to another, each so long after the one before; then those from `first` on are
 * kept. */
struct steps {
    uint64_t keep_from; /* 0: as before */
    uint64_t from, to;
    int64_t after_us;
    uint64_t first;
    uint32_t kept;
};

static void take_steps(struct fixture *f, const struct steps *s)
{
    struct peer *p = &f->peer[0];
    struct hth_means_stats stats;
    if (s->keep_from > 0)
        hth_means_keep_from(p->means, s->keep_from);
    for (uint64_t at = s->from; at <= s->to; at++) {
        struct hth_blob *mean = make_mean(p->env, 100, at);
        hth_world_run_for(f->world, s->after_us);
        put(p, at, mean);
        hth_blob_unref(mean);
    }
    hth_means_stats(p->means, &stats);
    assert_int_equal(stats.kept, s->kept);
    assert_int_equal(stats.first, s->first);
}

static void the_last_means_are_kept(void **state)
{
    static const struct steps cases[] = {
        {0, 1, 1, 2 * S, 1, 1},
        {0, 2, 5, 2 * S, 5, 1},                   /* the last one alone, after a second, */
        {0, 6, 30, 100 * MS, 21, 10},             /* and those that are newer, */
        {0, 31, 100, 5 * MS, 69, HTH_MEANS_MAX},  /* so many at most */
        {100, 101, 101, 2 * S, 101, 1},           /* since a snapshot: */
        {100, 102, 119, 2 * S, 101, 19},          /* as long as it lasts, */
        {109, 120, 119, 0, 110, 10},              /* or the next one, */
        {0, 120, 160, 2 * S, 129, HTH_MEANS_MAX}, /* so many at most */
        {UINT64_MAX, 161, 160, 0, 160, 1},
        {160, 161, 168, 2 * S, 161, 8}, /* another branch's go, */
        {0, 166, 166, 2 * S, 161, 6},
        {0, 167, 167, 2 * S, 161, 7},
        {0, 169, 169, 2 * S, 169, 1}, /* and those before a gap */
    };
    struct fixture *f = setup(4 << 20);
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        take_steps(f, &cases[i]);
    tear_down(f);
}

static void kept_means_draw_on_the_budget(void **state)
{
    (void)state;
    struct fixture *f = setup(4 << 20);
    struct peer *p = &f->peer[0];
    struct hth_budget budget;
    hth_budget_init(&budget, 3 * 400 + 399, NULL);
    hth_means_free(p->means);
    p->means = hth_means_new(p->env, p->rpc, &budget);
    hth_means_keep_from(p->means, 0);
    for (uint64_t at = 1; at <= 10; at++) {
        struct steps s = {0, at, at, 2 * S, at <= 4 ? 1 : at - 3, (uint32_t)HTH_MIN(at, 4)};
        take_steps(f, &s);
        assert_int_equal(hth_budget_used(&budget), HTH_MIN(at - 1, 3) * 400);
    }
    budget.limit_bytes = 0; /* none but the last has room */
    take_steps(f, &(struct steps){0, 11, 12, 2 * S, 12, 1});
    assert_int_equal(hth_budget_used(&budget), 0);
    tear_down(f);
}

/* ---- serving --------------------------------------------------------------------------------- */

struct verdict {
    uint32_t count, ok;
    enum hth_err last;
};

static void on_verdict(void *arg, const struct hth_rpc_result *r)
{
    struct verdict *v = arg;
    v->count++;
    v->ok += r->err == HTH_OK;
    v->last = r->err;
}

static void ask(struct peer *by, struct peer *whom, uint64_t step, uint64_t first, uint32_t values,
                size_t len, struct verdict *v)
{
    struct hth_roll_peer to = peer_of(whom->node);
    struct hth_rpc_target target = {to.id, to.addr};
    const struct hth_mean_msg msg = {head_of(step), first, values};
    uint8_t bytes[HTH_MEAN_MSG_BYTES + 1] = {0};
    struct hth_rpc_call_opts call = {.method = HTH_MEAN_METHOD,
                                     .timeout_us = 100 * S,
                                     .body = {.payload = bytes, .payload_len = len}};
    hth_mean_msg_write(&msg, bytes);
    assert_ok(hth_rpc_call(by->rpc, &target, &call, on_verdict, v, NULL));
}

static void requests_are_checked(void **state)
{
    enum { B = HTH_MEAN_BLOCK, LEN = HTH_MEAN_MSG_BYTES, MOST = HTH_MEAN_BYTES_MAX / 4 };
    static const struct {
        uint64_t step, first;
        uint32_t values;
        size_t len;
        enum hth_err want;
    } cases[] = {
        {1, 0, 1, LEN, HTH_OK},
        {1, 0, VALUES, LEN, HTH_OK},
        {1, 80 * B, 1000, LEN, HTH_OK},
        {1, 80 * B, 1001, LEN, HTH_E_RANGE},
        {1, 0, VALUES + 1, LEN, HTH_E_RANGE},
        {1, 81 * B, 1, LEN, HTH_E_RANGE},
        {1, UINT64_MAX - B + 1, B, LEN, HTH_E_RANGE},
        {1, 0, 0, LEN, HTH_E_RANGE},
        {2, 0, 1, LEN, HTH_E_NOT_FOUND}, /* a head that nobody made */
        {1, 1, 1, LEN, HTH_E_MALFORMED},
        {1, 0, 1, LEN + 1, HTH_E_MALFORMED},
        {1, 0, 1, LEN - 1, HTH_E_TRUNCATED},
        {1, 0, 1, 0, HTH_E_TRUNCATED},
        {1, 0, MOST + 1, LEN, HTH_E_TOO_LARGE},
        {1, 0, UINT32_MAX, LEN, HTH_E_TOO_LARGE},
    };
    struct fixture *f = setup(4 << 20);
    struct peer *holder = add_holder(f, HONEST);
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct verdict v = {0};
        ask(&f->peer[0], holder, cases[i].step, cases[i].first, cases[i].values, cases[i].len, &v);
        hth_world_run_for(f->world, S);
        assert_int_equal(v.count, 1);
        assert_err(cases[i].want, v.last);
    }
    uint8_t bytes[LEN];
    struct hth_mean_msg msg = {.values = 1}, got;
    hth_mean_msg_write(&msg, bytes);
    bytes[0]++;
    assert_err(HTH_E_VERSION, hth_mean_msg_read(bytes, LEN, &got));
    tear_down(f);
}

/* Peers that ask for means and do not read them. */
static void readers_are_bounded(void **state)
{
    (void)state;
    struct fixture *f = setup(64 << 10);
    struct hth_means_stats stats;
    struct verdict v = {0};
    struct peer *holder = &f->peer[0], *reader[4];
    for (int i = 0; i < 4; i++)
        reader[i] = add(f);
    put(holder, 1, f->mean);
    for (int i = 0; i < 4; i++)
        ask(reader[i], holder, 1, 0, HTH_MEAN_BLOCK * 8, HTH_MEAN_MSG_BYTES, &v);
    hth_world_run_for(f->world, S);
    assert_int_equal(v.ok, 4);
    hth_means_stats(holder->means, &stats);
    assert_int_equal(stats.reads, 0); /* all were read */
    /* One more than it may have under way; some of its first are read into its window. */
    for (uint64_t i = 0; i < 3; i++) {
        for (int k = 0; k < HTH_MEAN_READS_MAX + 4; k++)
            ask(reader[i], holder, 1, 0, HTH_MEAN_BLOCK * 8, HTH_MEAN_MSG_BYTES, &v);
        hth_world_run_for(f->world, 10 * MS + 5);
        hth_node_stall(reader[i]->node, 100 * S);
        hth_world_run_for(f->world, S);
        hth_means_stats(holder->means, &stats);
        assert_in_range(stats.reads, (i + 1) * (HTH_MEAN_READS_MAX - 2),
                        (i + 1) * HTH_MEAN_READS_MAX);
        assert_true(stats.refused >= (i + 1) * 2);
        assert_int_equal(stats.stale, 0);
    }
    /* Their mean goes: the first is cut off, and the others may stay. */
    uint32_t before = stats.reads;
    take_steps(f, &(struct steps){1, 2, HTH_MEANS_MAX + 1, MS, 2, HTH_MEANS_MAX});
    hth_means_stats(holder->means, &stats);
    assert_in_range(stats.stale, 1, HTH_MEAN_STALE_MAX);
    assert_in_range(stats.reads, stats.stale, stats.stale + 2); /* segments under way */
    assert_true(stats.reads < before);
    assert_non_null(strstr(f->log, "does not read the means"));
    struct verdict other = {0}; /* served meanwhile */
    ask(reader[3], holder, 5, 0, 100, HTH_MEAN_MSG_BYTES, &other);
    hth_world_run_for(f->world, S);
    assert_int_equal(other.ok, 1);
    hth_world_run_for(f->world, 200 * S); /* all are gone at last */
    hth_means_stats(holder->means, &stats);
    assert_int_equal(stats.reads, 0);
    tear_down(f);
}

/* ---- fetching -------------------------------------------------------------------------------- */

/* A holder that is no good costs its time at most, and is named; the next one's mean is taken.
 * Where all are like it, its error is told. */
static void the_next_holder_is_asked(void **state)
{
    (void)state;
    static const struct {
        enum kind kind;
        int64_t within_us;
        const char *log;
        enum hth_err alone;
    } cases[] = {
        {GONE, 600 * MS, "not kept here", HTH_E_NOT_FOUND},
        {SILENT, 4 * S, "no answer", HTH_E_TIMEOUT}, /* on its second turn */
        {LIES, S, "not those that the link's digest is of", HTH_E_PROTOCOL},
        {SHORT, 600 * MS, "shape", HTH_E_BAD_SHAPE},
        {LONG, 600 * MS, "shape", HTH_E_BAD_SHAPE},
        {BYTES, 600 * MS, "shape", HTH_E_BAD_SHAPE},
        {EMPTY, 600 * MS, "shape", HTH_E_BAD_SHAPE},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct fixture *f = setup(4 << 20);
        char id[HTH_PEER_SHORT_LEN], line[64];
        struct peer *bad = add_holder(f, cases[i].kind);
        fetch(f, cases[i].alone);
        bad->asked = 0;
        struct peer *good = add_holder(f, HONEST);
        int64_t took_us = fetch(f, HTH_OK);
        if (took_us > cases[i].within_us)
            fail_msg("case %zu took %lld us", i, (long long)took_us);
        snprintf(line, sizeof(line), "peer %s is left out", hth_peer_id_short(&bad->env->self, id));
        assert_non_null(strstr(f->log, line));
        assert_non_null(strstr(f->log, cases[i].log));
        assert_true(hth_peer_id_eq(&f->giver, &good->env->self));
        assert_int_equal(bad->asked > HTH_MEAN_ASKS, cases[i].kind == LIES);
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
    struct fixture *f = setup(4 << 20);
    struct peer *holder = add_holder(f, HONEST), *quick = add_holder(f, HONEST);
    assert_true(fetch(f, HTH_OK) < 500 * MS);
    hth_node_set_device(holder->node, &slow);
    assert_in_range(fetch(f, HTH_OK), 500 * MS, 1200 * MS);
    hth_node_crash(quick->node, HTH_CRASH_RESET);
    quick->rpc = NULL;
    quick->means = NULL;
    assert_in_range(fetch(f, HTH_OK), 10 * S, 30 * S); /* behind replies to what was given up */
    tear_down(f);
}

static void options_are_checked(void **state)
{
    static const struct {
        uint64_t values;
        uint32_t count;
        int64_t budget; /* below 0: none */
        long fails_at;  /* that allocation */
        enum hth_err want;
    } cases[] = {
        {0, 1, -1, 0, HTH_E_CONFIG},
        {HTH_PARAMS_FLOATS_MAX + 1, 1, -1, 0, HTH_E_CONFIG},
        {VALUES, 0, -1, 0, HTH_E_CONFIG},
        {VALUES, HTH_ROLL_LINE_MAX + 1, -1, 0, HTH_E_CONFIG},
        {VALUES, 1, MEAN_BYTES - 1, 0, HTH_E_BUDGET},
        {VALUES, 1, -1, 1, HTH_E_NO_MEMORY},
        {VALUES, 1, -1, 2, HTH_E_NO_MEMORY},
    };
    struct fixture *f = setup(4 << 20);
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_roll_peer holders[HTH_ROLL_LINE_MAX + 1] = {{.life = 0}};
        struct hth_mean_fetch_opts o = fetch_opts(f, holders);
        struct hth_budget budget;
        hth_budget_init(&budget, cases[i].budget, NULL);
        o.budget = cases[i].budget < 0 ? NULL : &budget;
        o.values = cases[i].values;
        o.count = cases[i].count;
        hth_mem_fail_at(cases[i].fails_at);
        assert_err(cases[i].want, hth_mean_fetch_new(f->peer[0].means, &o, &f->fetch));
        hth_mem_fail_at(0);
        assert_null(f->fetch);
    }
    tear_down(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_golden),
        cmocka_unit_test(the_last_means_are_kept),
        cmocka_unit_test(kept_means_draw_on_the_budget),
        cmocka_unit_test(requests_are_checked),
        cmocka_unit_test(readers_are_bounded),
        cmocka_unit_test(the_next_holder_is_asked),
        cmocka_unit_test(slow_holders_go_last),
        cmocka_unit_test(options_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
