/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_fetch.c: a peer with an invite alone gets the run file from the first peer that has the
 * right one, and names each other answer.
 */
#include "cli/run_fetch.h"

#include "cli/config.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

#define PORT    4000
#define HOLDERS 5
#define OWNER   "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* The same run twice, and two others: another seed, another owner. */
static const char right[] = "# of ana\nrun: demo\nseed: 1\nadmission: {owner: " OWNER "}\n";
static const char with_path[] =
    "run: demo\nseed: 1\ndata: {path: /etc/passwd}\nadmission: {owner: " OWNER "}\n";
static const char other_seed[] = "run: demo\nseed: 2\nadmission: {owner: " OWNER "}\n";
static const char no_owner[] = "run: demo\nseed: 1\n";
static const char damaged[] = "run: demo\n\"see\\e[31med\": 1\n";

static struct {
    struct hth_world *world;
    struct hth_rpc *holder[HOLDERS];
    struct hth_blob *blob[HOLDERS];
    struct hth_addr addr[HOLDERS];
    size_t count, known;
    struct hth_env *env;
    struct hth_invite invite;
    struct hth_run_fetch *fetch;
    struct hth_runfile *got;
    enum hth_err err[16];
    size_t refused;
} fx;

static enum hth_err judge(const char *text, struct hth_runfile **out)
{
    char error[HTH_RUNFILE_ERROR_MAX];
    return hth_run_judge(fx.env->crypto, &fx.invite, "x", (const uint8_t *)text, strlen(text), out,
                         error);
}

static int setup(void **state)
{
    (void)state;
    struct hth_runfile *run;
    struct hth_closed_run closed;
    char error[HTH_RUNFILE_ERROR_MAX];
    memset(&fx, 0, sizeof(fx));
    fx.world = hth_world_new(3, NULL);
    fx.env = hth_node_env(hth_world_node(fx.world, "asker", NULL));
    assert_ok(hth_runfile_parse("x", (const uint8_t *)right, strlen(right), &run, error));
    assert_true(hth_config_closed(run, fx.env->crypto, &fx.invite.run_file, &closed));
    fx.invite.owner = closed.owner;
    hth_runfile_free(run);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hth_run_fetch_free(fx.fetch);
    hth_runfile_free(fx.got);
    for (size_t i = 0; i < fx.count; i++) {
        hth_rpc_free(fx.holder[i]);
        hth_blob_unref(fx.blob[i]);
    }
    hth_world_free(fx.world);
    return 0;
}

/* A peer that gives these bytes; NULL: it has no run file. */
static void add_holder(const void *data, size_t len)
{
    char name[2] = {(char)('a' + fx.count), '\0'};
    struct hth_node *node = hth_world_node(fx.world, name, NULL);
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    size_t i = fx.count++;
    fx.addr[i] = hth_node_addr(node, PORT);
    opts.network = "demo";
    opts.listen = &fx.addr[i];
    assert_ok(hth_rpc_new(hth_node_env(node), &opts, &fx.holder[i]));
    if (data == NULL)
        return;
    fx.blob[i] = hth_blob_copy(data, len);
    hth_rpc_serve(fx.holder[i], HTH_METHOD_RUN, hth_run_give, fx.blob[i]);
}

static size_t addrs(void *arg, struct hth_addr out[HTH_RUN_FETCH_ADDRS_MAX])
{
    (void)arg;
    memcpy(out, fx.addr, sizeof(fx.addr));
    return fx.known;
}

static void refused(void *arg, const struct hth_addr *addr, enum hth_err err, const char *why)
{
    (void)arg, (void)addr;
    assert_true(strlen(why) > 3);
    assert_null(strchr(why, '\033'));
    assert_true(fx.refused < HTH_ARRAY_LEN(fx.err));
    fx.err[fx.refused++] = err;
}

static void done(void *arg, struct hth_runfile *run)
{
    (void)arg;
    assert_null(fx.got);
    fx.got = run;
}

static void fetch(void)
{
    const struct hth_run_fetch_opts opts = {
        .network = "demo", .invite = &fx.invite, .addrs = addrs, .refused = refused, .done = done};
    assert_ok(hth_run_fetch_new(fx.env, &opts, &fx.fetch));
    hth_world_run_for(fx.world, 5 * HTH_US_PER_S);
}

TEST_WITH(wrong_files_are_named_and_the_next_peer_asked, setup, teardown)
{
    static uint8_t large[HTH_RUNFILE_BYTES_MAX + 1];
    (void)state;
    memset(large, '#', sizeof(large));
    add_holder(NULL, 0);
    add_holder(other_seed, strlen(other_seed));
    add_holder(damaged, strlen(damaged));
    add_holder(large, sizeof(large));
    add_holder(right, strlen(right));
    fx.known = fx.count;
    fetch();
    assert_non_null(fx.got);
    assert_string_equal(fx.got->text, right);
    assert_int_equal(fx.refused, 4);
    assert_err(HTH_E_NO_SUCH_METHOD, fx.err[0]);
    assert_err(HTH_E_PASS_OTHER_RUN, fx.err[1]);
    assert_err(HTH_E_CONFIG, fx.err[2]);
    assert_err(HTH_E_TOO_LARGE, fx.err[3]);
}

/* A file of the largest size passes, and peers that are heard of later are asked. */
TEST_WITH(later_peers_are_asked, setup, teardown)
{
    static uint8_t full[HTH_RUNFILE_BYTES_MAX];
    (void)state;
    memset(full, ' ', sizeof(full));
    memcpy(full, right, strlen(right));
    full[sizeof(full) - 1] = '\n';
    add_holder(NULL, 0);
    add_holder(full, sizeof(full));
    fx.known = 1;
    fetch();
    assert_null(fx.got);
    assert_true(fx.refused > 1);
    fx.known = 2;
    hth_world_run_for(fx.world, 5 * HTH_US_PER_S);
    assert_non_null(fx.got);
}

TEST_WITH(files_of_other_runs_are_told_apart, setup, teardown)
{
    (void)state;
    struct hth_runfile *run = NULL;
    assert_ok(judge(right, &run));
    hth_runfile_free(run);
    assert_ok(judge(with_path, &run));
    assert_null(run->data.path); /* a peer does not choose what this machine reads */
    hth_runfile_free(run);
    assert_err(HTH_E_PASS_OTHER_RUN, judge(other_seed, &run));
    assert_err(HTH_E_PASS_OTHER_RUN, judge(no_owner, &run));
    fx.invite.owner.b[0] ^= 1;
    assert_err(HTH_E_PASS_OTHER_RUN, judge(right, &run));
    assert_err(HTH_E_CONFIG, judge(damaged, &run));
    assert_null(run);
}
