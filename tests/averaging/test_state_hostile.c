/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What strangers do to a donor, over and over and as fast as it answers: none of it keeps a
 * newcomer from the run's state for long.
 */
#include "averaging/handout.h"
#include "support/suite.h"

#define STEP_US (50 * MS) /* of the donor */

/* What a rogue asks for. */
enum rogue_kind {
    FAR_AHEAD, /* a step that nobody has */
    EACH_STEP, /* the step that the donor has just made */
    HOLDS,     /* the first part of what it was described, always again */
};

struct rogue {
    struct handout_peer *peer, *victim;
    enum rogue_kind kind;
    struct hth_hash root;
    bool has_root, ends;
    uint64_t asked;
};

static void ask(struct rogue *r);

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct rogue *r = arg;
    struct hth_state_desc desc;

    if (r->has_root && result->err != HTH_OK)
        r->has_root = false;
    else if (!r->has_root && result->err == HTH_OK) {
        assert_ok(hth_state_desc_open(result->payload, result->payload_len, SCHEMA, &desc));
        hth_state_desc_seal(&desc, hth_sim_crypto());
        r->root = desc.name;
        r->has_root = r->kind == HOLDS;
        hth_state_desc_clear(&desc);
    }
    ask(r);
}

static void ask(struct rogue *r)
{
    const struct hth_rpc_target target = target_of(r->victim);
    const struct hth_state_ask ask = {.schema = SCHEMA,
                                      .named = r->has_root,
                                      .name = r->root,
                                      .step_min = r->kind == FAR_AHEAD   ? UINT64_MAX
                                                  : r->kind == EACH_STEP ? r->victim->step
                                                                         : 0};
    uint8_t payload[HTH_STATE_ASK_MAX];
    struct hth_rpc_call_opts call = {.timeout_us = 5 * S};

    if (r->ends)
        return;
    r->asked++;
    call.method = r->has_root ? HTH_STATE_METHOD_PART : HTH_STATE_METHOD_DESCRIBE;
    call.body.payload = payload;
    call.body.payload_len = hth_state_ask_pack(&ask, payload);
    assert_ok(hth_rpc_call(r->peer->rpc, &target, &call, on_answer, r, NULL));
}

static void rogue_comes(struct rogue *r, struct handout *f, enum rogue_kind kind)
{
    *r = (struct rogue){.peer = add(f, 0, 0, true), .victim = &f->peer[0], .kind = kind};
    ask(r);
}

static void rogues_go(struct handout *f, struct rogue *r, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        r[i].ends = true;
    hth_world_run_for(f->world, 6 * S);
}

/* The donor steps while time goes by. Returns how long it took; `us` if the state did not come. */
static int64_t train(struct handout *f, int64_t us)
{
    int64_t begin = hth_world_now_us(f->world);

    while (!f->done && hth_world_now_us(f->world) - begin < us) {
        hth_world_run_for(f->world, STEP_US);
        f->peer[0].step++;
    }
    return hth_world_now_us(f->world) - begin;
}

/* A newcomer on a slow line is done as soon as without the rogue, and the donor
 * does not spend its time on snapshots. */
static void check_fetch_beside(enum rogue_kind kind, bool trains)
{
    struct handout f;
    struct rogue rogue[1];
    struct hth_state_fetch_opts o;
    struct hth_state_donor_stats s;
    int64_t took_us;

    setup_world(&f, 1, false);
    add(&f, 12, 5, false);
    rogue_comes(&rogue[0], &f, kind);
    o = fetch_opts(&f);
    start_slowly(&f, &o);
    if (trains) {
        took_us = train(&f, 60 * S);
    } else {
        took_us = -hth_world_now_us(f.world);
        finish(&f, 60 * S);
        took_us += hth_world_now_us(f.world);
    }
    assert_true(f.done);
    assert_true(took_us < 4 * S); /* 3.2 s alone */
    assert_int_equal(f.result.bytes, BYTES);
    assert_memory_equal(f.values->data, f.peer[0].values->data, BYTES);
    assert_true(rogue[0].asked > 50);
    hth_state_donor_stats(f.peer[0].donor, &s);
    assert_true(s.snapshots <= 1 + (uint64_t)(trains ? 4 * (took_us + 2 * S) / S : 0));
    rogues_go(&f, rogue, 1);
    tear_down(&f);
}

TEST(requests_for_a_step_that_nobody_has)
{
    check_fetch_beside(FAR_AHEAD, false);
    check_fetch_beside(FAR_AHEAD, true);
}

TEST(requests_for_every_step)
{
    check_fetch_beside(EACH_STEP, true);
}

/* Newcomers who need the last step get it beside those who keep a snapshot by fetching it for ever,
 * when it has been kept for long enough. */
static void check_last_step_beside(uint32_t rogues, int64_t within_us)
{
    struct handout f;
    struct rogue rogue[3];
    struct hth_state_fetch_opts o;
    int64_t took_us;

    setup_world(&f, 2, false);
    add(&f, 12, 5, false);
    for (uint32_t i = 0; i < rogues; i++) {
        rogue_comes(&rogue[i], &f, HOLDS);
        train(&f, 4 * S); /* the next one is described a younger one */
    }
    for (int i = 0; i < 2; i++) {
        train(&f, 2 * S);
        o = fetch_opts(&f);
        o.step_min = f.peer[0].step;
        start(&f, &o);
        took_us = train(&f, 60 * S);
        assert_true(f.done);
        assert_true(took_us < within_us);
        assert_true(f.result.step >= o.step_min);
        f.done = false;
    }
    rogues_go(&f, rogue, rogues);
    tear_down(&f);
}

TEST(snapshots_kept_by_rogues)
{
    check_last_step_beside(0, 2 * S);
    check_last_step_beside(1, 8 * S);
    check_last_step_beside(3, 8 * S);
}

static void want_from_budget(void *arg)
{
    struct handout_peer *p = arg;
    struct hth_blob *b;

    p->wanted++;
    assert_ok(hth_env_blob_new(p->env, BYTES, &p->budget, &b));
    memset(b->data, (int)p->wanted, BYTES);
    assert_ok(hth_state_donor_give(p->donor, p->step, NULL, 0, b));
    hth_blob_unref(b);
}

/* Nobody who holds on to what it asked for holds the owner's copy of everything. */
TEST(owners_copy_goes_back)
{
    struct handout f;
    struct rogue rogue[1];
    struct hth_state_donor_stats s;

    setup_world(&f, 3, false);
    add(&f, 12, 5, false);
    hth_budget_init(&f.peer[0].budget, BYTES, NULL); /* one at a time */
    f.peer[0].want = want_from_budget;
    rogue_comes(&rogue[0], &f, EACH_STEP);
    train(&f, 5 * S);
    hth_state_donor_stats(f.peer[0].donor, &s);
    assert_in_range(s.snapshots, 3, 4 * 5 + 1); /* a hundred steps went by */
    rogues_go(&f, rogue, 1);
    assert_int_equal(hth_budget_used(&f.peer[0].budget), 0);
    tear_down(&f);
}

/* Snapshots that take long are made less often. */
TEST(slow_snapshots_are_rare)
{
    struct handout f;
    struct rogue rogue[1];
    uint32_t given = 0;

    setup_world(&f, 4, false);
    add(&f, 12, 5, false)->silent = true;
    rogue_comes(&rogue[0], &f, EACH_STEP);
    for (int i = 0; i < 20; i++) { /* it takes up to a second */
        train(&f, S);
        given += hth_state_donor_give(f.peer[0].donor, f.peer[0].step, NULL, 0, f.peer[0].values) ==
                 HTH_OK;
    }
    assert_in_range(given, 3, 8);
    rogues_go(&f, rogue, 1);
    tear_down(&f);
}
