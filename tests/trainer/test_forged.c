/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Somebody says a step far ahead, and it is not true: what that does to a run in step, and to a
 * newcomer that comes at the same time.
 */
#include "averaging/roster.h"
#include "averaging/state.h"
#include "averaging/state_msg.h"
#include "core/mem.h"
#include "rpc/rpc.h"
#include "support/test.h"
#include "trainer/crew.h"
#include "trainer/lineage.h"

#define S HTH_US_PER_S

/* Batches of 60 by micro-batches of 6, each of which takes 50 ms. */
static struct crew_scene *fixture_new(uint64_t seed, uint32_t members, uint64_t every)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);

    o.trainer.updates_max = 40;
    o.trainer.share.target = 60;
    o.trainer.share.every = every;
    o.members = members;
    o.device = &crew_slow;
    return crew_scene_new(seed, &o);
}

enum lie { NOBODY_THERE, NO_PARTS, NO_SENSE, OTHER_VERSION, NOT_FINITE, BELOW_ZERO, LIES };

static struct liar {
    enum lie lie;
    struct hth_rpc *rpc;
    struct hth_roster *roster;
    struct hth_state_desc desc;
    float *values; /* the state that it says it has */
} liar;

static void halt_liar(struct hth_env *env, void *arg)
{
    (void)env;
    (void)arg;
    hth_roster_free(liar.roster);
    hth_rpc_free(liar.rpc);
    hth_state_desc_clear(&liar.desc);
    hth_free(liar.values);
    memset(&liar, 0, sizeof(liar));
}

static void on_describe(void *arg, struct hth_rpc_request *req)
{
    struct hth_rpc_body body = {0};
    uint8_t *bytes;

    (void)arg;
    hth_state_desc_pack(&liar.desc, &bytes, &body.payload_len);
    body.payload = bytes;
    hth_rpc_reply(req, &body);
    hth_free(bytes);
}

static void on_part(void *arg, struct hth_rpc_request *req)
{
    struct hth_tensor part = {.dtype = HTH_U8, .ndim = 1};
    struct hth_rpc_body body = {.tensors = &part, .tensor_count = 1};
    struct hth_hash root;
    struct hth_env *env = arg;
    uint32_t index;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);

    if (liar.lie == NO_PARTS) {
        hth_rpc_ignore(req);
        return;
    }
    assert_ok(hth_state_part_open(payload, len, &root, &index));
    part.dim[0] = hth_state_part_len(&liar.desc, index);
    assert_ok(hth_env_blob_new(env, part.dim[0], NULL, &part.blob));
    memcpy(part.blob->data, (const uint8_t *)liar.values + index * liar.desc.part_bytes,
           part.dim[0]);
    hth_rpc_reply(req, &body);
    hth_blob_unref(part.blob);
}

/* As run_state.c has it. */
static size_t counters(size_t floats, uint32_t slots, uint8_t *out, size_t size)
{
    struct hth_lineage lineage;
    struct hth_writer w;

    hth_lineage_init(&lineage, HTH_AVG_STEP_MAX);
    hth_writer_init(&w, out, size);
    hth_write_u32(&w, liar.lie == OTHER_VERSION ? 3 : 2);
    hth_write_u32(&w, slots);
    hth_write_u64(&w, floats);
    for (int i = 0; i < 3; i++)
        hth_write_u64(&w, HTH_AVG_STEP_MAX);
    hth_lineage_write(&lineage, &w);
    return w.pos;
}

/* A state of zeros without the counters that belong to one; or with them, and one number of the
 * last squares is none. */
static void describe(struct crew_scene *f, struct hth_env *env)
{
    struct hth_params *p = hth_model_params(hth_trainer_model(hth_crew_trainer(f->crew, 0)));
    uint32_t slots = hth_params_state_slots(p);
    size_t floats = hth_params_flat_len(p), count = (1 + slots) * floats, len = 0;
    uint8_t meta[HTH_STATE_META_MAX];

    liar.values = hth_new_array(float, count);
    if (liar.lie != NO_SENSE)
        len = counters(floats, slots, meta, sizeof(meta));
    liar.values[count - 1] = liar.lie == NOT_FINITE ? NAN : liar.lie == BELOW_ZERO ? -1 : 0;
    assert_ok(hth_state_desc_init(&liar.desc, hth_roster_self(liar.roster)->schema,
                                  HTH_AVG_STEP_MAX, meta, len, count * sizeof(float)));
    for (uint32_t i = 0; i < liar.desc.parts; i++)
        env->crypto->hash((const uint8_t *)liar.values + i * liar.desc.part_bytes,
                          hth_state_part_len(&liar.desc, i), &liar.desc.hashes[i]);
    hth_state_desc_seal(&liar.desc, env->crypto);
}

/* It comes to the swarm, and says the last step that can be said. */
static void liar_comes(struct crew_scene *f, enum lie lie)
{
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    struct hth_roster_opts roster = HTH_ROSTER_OPTS_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_addr addr;
    struct hth_env *env;
    struct hth_node *n;

    node.halt = halt_liar;
    n = hth_world_node(f->world, "liar", &node);
    env = hth_node_env(n);
    addr = hth_node_addr(n, 4000);
    liar.lie = lie;
    rpc.network = roster.network = "crew";
    roster.schema = hth_roster_self(hth_crew_roster(f->crew, 0))->schema;
    roster.addr = addr;
    roster.slot_us = 0;
    assert_ok(hth_roster_new(env, hth_node_dht(n), &roster, &liar.roster));
    if (lie != NOBODY_THERE) {
        rpc.listen = &addr;
        assert_ok(hth_rpc_new(env, &rpc, &liar.rpc));
        describe(f, env);
        hth_rpc_serve(liar.rpc, HTH_STATE_METHOD_DESCRIBE, on_describe, env);
        hth_rpc_serve(liar.rpc, HTH_STATE_METHOD_PART, on_part, env);
    }
    hth_roster_set_progress(liar.roster, HTH_AVG_STEP_MAX, 0, 0);
}

/* It is not there; or says what its state is and never gives it; or gives one that means nothing,
 * or can't be trained on. There are so few others that it is a quarter of all. One alone looks for
 * that state, does not get it, and goes on; of two nobody believes it. */
static void check_forged_step(uint32_t trainers, enum lie lie)
{
    struct crew_scene *f = fixture_new(13, trainers, 0);
    int64_t at;

    crew_scene_run(f, 0, 10, 300 * S);
    liar_comes(f, lie);
    at = hth_world_now_us(f->world);
    assert_true(hth_world_run_until_true(f->world, hth_crew_all_done, f->crew, 1000 * S));
    assert_ok(hth_crew_err(f->crew));
    at = hth_world_now_us(f->world) - at;
    for (uint32_t i = 0; i < trainers; i++)
        assert_int_equal(f->stats[i].updates, 40);
    print_message("%u and one who lies: 30 more steps after %.1f s\n", trainers, (double)at / 1e6);
    assert_true(at < (trainers > 1 ? 30 : lie == NO_PARTS ? 90 : 60) * S);
    crew_scene_free(f);
}

static void forged_step_delays_the_run_only_briefly(void **state)
{
    (void)state;
    for (enum lie lie = NOBODY_THERE; lie < LIES; lie++)
        for (uint32_t trainers = 1; trainers <= 3; trainers++)
            check_forged_step(trainers, lie);
}

/* A peer claims other parameters at the trainer's own step: as many as there are other peers, and
 * by the larger mark. If it only publishes records, it is not asked; if it spoke, it is asked,
 * shows nothing, and is doubted. */
static void check_forged_marks(bool spoke)
{
    struct crew_scene *f = fixture_new(13, 1, 0);
    struct hth_roster_marks marks = {.step = 8, .mark = {UINT64_MAX - 1, UINT64_MAX - 1}};
    const struct hth_roster_peer *p;
    struct hth_roster *r;
    int64_t at;

    crew_scene_run(f, 0, 10, 300 * S);
    liar_comes(f, NOBODY_THERE);
    r = hth_crew_roster(f->crew, 0);
    hth_roster_set_marks(liar.roster, &marks);
    hth_roster_set_progress(liar.roster, 10, 0, 0);
    at = hth_world_now_us(f->world);
    for (int i = 0; spoke && i < 1000; i++) {
        hth_world_run_for(f->world, HTH_US_PER_MS);
        p = hth_roster_at(r, 0);
        if (p != NULL && p->spoke_us == 0)
            hth_roster_heard(r, &p->id, 0);
    }
    assert_true(hth_world_run_until_true(f->world, hth_crew_all_done, f->crew, 1000 * S));
    at = hth_world_now_us(f->world) - at;
    print_message("one and who says other parameters%s: 30 more steps after %.1f s\n",
                  spoke ? " and spoke" : "", (double)at / 1e6);
    assert_ok(hth_crew_err(f->crew));
    assert_int_equal(f->stats[0].share.yields, spoke);
    assert_true(at < (spoke ? 60 : 30) * S);
    crew_scene_free(f);
}

static void forged_history_does_not_win_a_vote(void **state)
{
    (void)state;
    check_forged_marks(false);
    check_forged_marks(true);
}

/* ---- newcomers ------------------------------------------------------------------------------- */

/* Nobody is at a newcomer's step, so it can't tell by its own who lies. */
static void check_newcomer(uint32_t trainers, enum lie lie, uint64_t every, int64_t within_us)
{
    struct crew_scene *f = fixture_new(17, trainers, every);
    uint32_t late;
    int64_t at;

    crew_scene_run(f, 0, 10, 300 * S);
    liar_comes(f, lie);
    hth_world_run_for(f->world, S); /* its note is there */
    late = hth_crew_join(f->crew);
    at = hth_world_now_us(f->world);
    crew_scene_run(f, late, 1, 200 * S);
    at = hth_world_now_us(f->world) - at;
    print_message("a newcomer to %u and one who lies (%d), every %u: its first step after %.1f s\n",
                  trainers, (int)lie, (unsigned)every, (double)at / 1e6);
    assert_true(f->stats[late].updates > 10);
    assert_true(f->stats[late].updates <= 40);
    assert_true(at < within_us);
    crew_scene_free(f);
}

static void newcomer_gets_in_beside_a_liar(void **state)
{
    (void)state;
    for (enum lie lie = NOBODY_THERE; lie < LIES; lie++)
        for (uint32_t trainers = 2; trainers <= 4; trainers += 2)
            for (uint64_t every = 0; every <= 20; every += 20)
                check_newcomer(trainers, lie, every, 8 * S);
}

/* The only one who has the state looks for the liar's first. */
static void newcomer_finds_the_only_donor_beside_a_liar(void **state)
{
    (void)state;
    for (enum lie lie = NOBODY_THERE; lie < LIES; lie++)
        check_newcomer(1, lie, 20, (lie == NOBODY_THERE ? 25 : lie == NO_PARTS ? 60 : 8) * S);
}

/* All trainers with the run's state are gone. A liar that shows no state does not keep a newcomer
 * from beginning; a state of another version of the program may be that of a run. */
static void check_nobody_else(enum lie lie)
{
    struct crew_scene *f = fixture_new(19, 1, 0);
    uint32_t late;

    crew_scene_run(f, 0, 10, 300 * S);
    liar_comes(f, lie);
    hth_node_crash(hth_crew_node(f->crew, 0), HTH_CRASH_RESET);
    hth_world_run_for(f->world, 30 * S);
    late = hth_crew_join(f->crew);
    hth_world_run_for(f->world, 60 * S);
    assert_err(lie == OTHER_VERSION ? HTH_E_VERSION : HTH_OK, hth_crew_err(f->crew));
    assert_int_equal(f->stats[late].share.catch_ups, 0);
    assert_true((f->stats[late].updates > 0) == (lie != OTHER_VERSION));
    crew_scene_free(f);
}

static void liar_does_not_keep_a_newcomer_from_beginning(void **state)
{
    (void)state;
    for (enum lie lie = NO_SENSE; lie < LIES; lie++)
        check_nobody_else(lie);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forged_step_delays_the_run_only_briefly),
        cmocka_unit_test(forged_history_does_not_win_a_vote),
        cmocka_unit_test(newcomer_gets_in_beside_a_liar),
        cmocka_unit_test(newcomer_finds_the_only_donor_beside_a_liar),
        cmocka_unit_test(liar_does_not_keep_a_newcomer_from_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
