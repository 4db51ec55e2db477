/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handing out a state in the simulator: from several donors, while some of them die, freeze, lie or
 * go on to another step; and what the messages may say.
 */
#include "averaging/handout.h"

static void test_from_several(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;
    struct hth_state_donor_stats s;
    uint64_t parts = 0;

    (void)state;
    setup_world(&f, 1, false);
    for (int i = 0; i < 4; i++)
        add(&f, 12, 5, false);
    add(&f, 3, 6, false); /* old, and not asked */
    o = fetch_opts(&f);
    start(&f, &o);
    finish(&f, 10 * S);
    check_values(&f, &f.peer[0]);
    assert_int_equal(f.result.donors, 4);
    assert_int_equal(f.result.donors_lost, 0);
    assert_int_equal(f.result.bytes, BYTES);
    for (int i = 0; i < 4; i++) {
        hth_state_donor_stats(f.peer[i].donor, &s);
        assert_true(s.parts >= 5);
        assert_int_equal(s.snapshots, 1);
        parts += s.parts;
    }
    assert_int_equal(parts, 76);
    assert_int_equal(f.peer[4].wanted, 0);
    /* What nobody asks for any more is let go, and asked anew when somebody comes. */
    hth_world_run_for(f.world, 25 * S);
    hth_state_donor_stats(f.peer[0].donor, &s);
    assert_int_equal(s.held, 0);
    tear_down(&f);
}

/* Donors with other bytes at the same step: the root with more of them is taken, and only
 * theirs. */
static void test_majority_of_roots(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 2, false);
    add(&f, 12, 5, false);
    add(&f, 12, 6, false);
    add(&f, 12, 6, false);
    o = fetch_opts(&f);
    start(&f, &o);
    finish(&f, 10 * S);
    check_values(&f, &f.peer[1]);
    assert_int_equal(f.result.donors, 2);
    tear_down(&f);
}

/* Those not asked at the start help as soon as they announce the same root. */
static void test_announced_donors_help(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 3, false);
    for (int i = 0; i < 3; i++)
        add(&f, 12, 5, false);
    o = fetch_opts(&f);
    o.donors = 3;
    start(&f, &o);
    finish(&f, 10 * S);
    hth_blob_unref(f.values);
    f.values = NULL;
    f.done = false;
    o.donors = 1; /* asks one, and finds the others' announcements */
    assert_ok(hth_state_fetch_new(f.newcomer->env, f.newcomer->rpc, hth_node_dht(f.newcomer->node),
                                  f.newcomer->roster, &o, &f.fetch));
    finish(&f, 10 * S);
    check_values(&f, &f.peer[0]);
    assert_int_equal(f.result.donors, 3);
    tear_down(&f);
}

/* Who says a step and serves no state does not count from when it was asked; the others do. */
static void test_who_has_none_is_doubted(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 4, false);
    add(&f, 12, 5, false);
    add(&f, 13, 5, false);
    hth_state_donor_free(f.peer[1].donor);
    f.peer[1].donor = NULL;
    o = fetch_opts(&f);
    start(&f, &o);
    finish(&f, 10 * S);
    check_values(&f, &f.peer[0]);
    assert_false(hth_roster_find(f.newcomer->roster, &f.peer[0].env->self)->doubted);
    assert_true(hth_roster_find(f.newcomer->roster, &f.peer[1].env->self)->doubted);
    tear_down(&f);
}

/* ---- clients that dial ----------------------------------------------------------------------- */

static uint32_t heard; /* of all newcomers: HERE */

static void count_here(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    heard++;
    hth_rpc_reply(req, NULL);
}

static void reach_for(struct handout *f, struct handout_peer *client, int64_t us)
{
    for (int64_t t = 0; t < us; t += 50 * MS) {
        hth_state_donor_reach(client->donor, client->roster);
        hth_world_run_for(f->world, 50 * MS);
    }
}

/* Anybody can say that it needs a state. */
static void test_dials_are_bounded(void **state)
{
    enum { MANY = 3 * HTH_STATE_DIALS_MAX };
    struct handout f;
    struct handout_peer *client;

    (void)state;
    setup_world(&f, 5, true);
    client = add_client(&f, 12, 5);
    for (uint32_t i = 0; i < MANY; i++)
        hth_rpc_serve(add(&f, 0, 0, true)->rpc, HTH_STATE_METHOD_HERE, count_here, NULL);
    hth_world_run_for(f.world, 2 * S);
    heard = 0;
    reach_for(&f, client, HTH_STATE_DIAL_US - 50 * MS);
    assert_int_equal(heard, HTH_STATE_DIALS_MAX);
    reach_for(&f, client, 2 * S);
    assert_in_range(heard, HTH_STATE_DIALS_MAX + 7, HTH_STATE_DIALS_MAX + 10);
    reach_for(&f, client, MANY * HTH_STATE_DIAL_US); /* all have had their turn, and none two */
    assert_int_equal(heard, MANY);
    tear_down(&f);
}

/* Some say that they are clients with a state, and dial nobody. */
static void test_others_take_their_turn(void **state)
{
    enum { SILENT = HTH_STATE_REACH + 4 };
    struct handout f;
    struct handout_peer *client;

    (void)state;
    setup_world(&f, 6, true);
    client = add_client(&f, 12, 5);
    for (uint32_t i = 0; i < SILENT; i++)
        add_client(&f, 12, 5);
    heard = 0;
    for (uint32_t i = 0; i < HTH_STATE_DIALS_MAX; i++)
        hth_rpc_serve(add(&f, 0, 0, true)->rpc, HTH_STATE_METHOD_HERE, count_here, NULL);
    hth_world_run_for(f.world, 2 * S);
    reach_for(&f, client, 1 * S);
    assert_in_range(heard, 1, HTH_STATE_DIALS_MAX - 1);
    reach_for(&f, client, 300 * S);
    assert_int_equal(heard, HTH_STATE_DIALS_MAX);
    tear_down(&f);
}

static uint32_t busy;

static void on_here_answered(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    busy += r->err == HTH_E_BUSY;
    assert_true(r->err == HTH_OK || r->err == HTH_E_BUSY);
}

/* Anybody can say HERE. */
static void test_here_is_bounded(void **state)
{
    const struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_HERE, .timeout_us = S};
    struct hth_rpc_target target;
    struct handout f;
    struct hth_state_fetch_opts o;
    struct handout_peer *client;

    (void)state;
    setup_world(&f, 7, false);
    client = add_client(&f, 12, 5);
    client->silent = true; /* the fetcher goes on */
    o = fetch_opts(&f);
    start(&f, &o);
    target = target_of(f.newcomer);
    busy = 0;
    assert_ok(hth_rpc_call(client->rpc, &target, &call, on_here_answered, NULL, NULL));
    hth_world_run_for(f.world, S);
    assert_int_equal(client->wanted, 1); /* it was heard, and asked */
    for (uint32_t round = 1; round <= 2; round++) {
        for (int i = 0; i < 3; i++)
            assert_ok(hth_rpc_call(client->rpc, &target, &call, on_here_answered, NULL, NULL));
        hth_world_run_for(f.world, 50 * MS + HTH_STATE_HERE_US);
        assert_int_equal(busy, 2 * round);
    }
    tear_down(&f);
}

/* ---- donors that fail ------------------------------------------------------------------------ */

enum how { KILLED, POWER_LOST, BLACK_HOLE };

static void fail_donor(struct handout *f, struct handout_peer *p, enum how how)
{
    if (how == BLACK_HOLE) {
        hth_world_block(f->world, p->node, f->newcomer->node, true);
        hth_world_block(f->world, f->newcomer->node, p->node, true);
    } else {
        hth_node_crash(p->node, how == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
    }
}

static void check_donor_fails(enum how how, uint32_t donors, int64_t within_us)
{
    struct handout f;
    struct hth_state_fetch_opts o;
    int64_t failed_us;

    setup_world(&f, 10 + how, false);
    for (uint32_t i = 0; i < donors; i++)
        add(&f, 12, 5, false);
    o = fetch_opts(&f);
    o.parts_in_flight = 1;
    start(&f, &o);
    assert_true(hth_world_run_until_true(f.world, part_way, &f, 20 * S));
    assert_false(f.done);
    fail_donor(&f, &f.peer[0], how);
    failed_us = hth_world_now_us(f.world);
    finish(&f, 30 * S);
    check_values(&f, &f.peer[1]);
    assert_int_equal(f.result.donors_lost, 1);
    assert_true(f.result.parts_again >= 1);
    /* Only what was in flight to the dead one came again. */
    assert_true(f.result.bytes <= BYTES + 2 * HTH_STATE_PART_BYTES_MIN);
    assert_true(hth_world_now_us(f.world) - failed_us < within_us);
    tear_down(&f);
}

static void test_donor_killed(void **state)
{
    (void)state;
    check_donor_fails(KILLED, 3, 2 * S);
}

static void test_donor_without_power(void **state)
{
    (void)state;
    check_donor_fails(POWER_LOST, 3, 3 * S);
}

static void test_donor_in_a_black_hole(void **state)
{
    (void)state;
    check_donor_fails(BLACK_HOLE, 3, 3 * S);
}

/* The only donor of its root dies: the next best state is fetched from the start. */
static void test_last_donor_dies(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 20, false);
    add(&f, 12, 5, false);
    add(&f, 11, 6, false);
    o = fetch_opts(&f);
    o.parts_in_flight = 1;
    start(&f, &o);
    assert_true(hth_world_run_until_true(f.world, part_way, &f, 20 * S));
    fail_donor(&f, &f.peer[0], KILLED);
    finish(&f, 40 * S);
    check_values(&f, &f.peer[1]);
    assert_true(f.news >= 3);
    tear_down(&f);
}

/* All fail for a while; when one comes back with the same root, only the missing parts are
 * asked. */
static void test_resumed(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 21, false);
    add(&f, 12, 5, false);
    o = fetch_opts(&f);
    o.parts_in_flight = 1;
    start(&f, &o);
    assert_true(hth_world_run_until_true(f.world, part_way, &f, 20 * S));
    fail_donor(&f, &f.peer[0], BLACK_HOLE);
    hth_world_run_for(f.world, 5 * S);
    assert_false(f.done);
    hth_world_heal(f.world);
    finish(&f, 60 * S);
    check_values(&f, &f.peer[0]);
    assert_true(f.result.bytes <= BYTES + 4 * HTH_STATE_PART_BYTES_MIN);
    tear_down(&f);
}

/* Describes truly, and spoils every part. */
static void spoil(void *arg, struct hth_rpc_request *req)
{
    struct handout_peer *p = arg;
    struct hth_hash root;
    uint32_t index;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    struct hth_tensor t = {.dtype = HTH_U8, .ndim = 1};
    const struct hth_rpc_body body = {.tensors = &t, .tensor_count = 1};
    size_t first;

    assert_ok(hth_state_part_open(payload, len, &root, &index));
    first = (size_t)index * HTH_STATE_PART_BYTES_MIN;
    t.dim[0] = HTH_MIN((size_t)HTH_STATE_PART_BYTES_MIN, BYTES - first);
    assert_ok(hth_env_blob_new(p->env, t.dim[0], NULL, &t.blob));
    memcpy(t.blob->data, p->values->data + first, t.dim[0]);
    if (p->lies++ % 2 == 0)
        t.blob->data[t.dim[0] / 2] ^= 1;
    else
        t.dim[0]--; /* or sends too little */
    hth_rpc_reply(req, &body);
    hth_blob_unref(t.blob);
}

static void test_liar(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 22, false);
    for (int i = 0; i < 3; i++)
        add(&f, 12, 5, false);
    hth_rpc_serve(f.peer[1].rpc, HTH_STATE_METHOD_PART, spoil, &f.peer[1]);
    o = fetch_opts(&f);
    start(&f, &o);
    finish(&f, 10 * S);
    check_values(&f, &f.peer[0]);
    assert_true(f.peer[1].lies >= 1);
    assert_true(f.result.donors_lost >= 1);
    assert_int_equal(f.result.donors, 2);
    tear_down(&f);
}

static void test_only_a_liar(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 23, false);
    add(&f, 12, 5, false);
    hth_rpc_serve(f.peer[0].rpc, HTH_STATE_METHOD_PART, spoil, &f.peer[0]);
    o = fetch_opts(&f);
    start(&f, &o);
    hth_world_run_for(f.world, 30 * S);
    assert_false(f.done);
    assert_true(f.peer[0].lies < 200); /* it is left alone in between */
    tear_down(&f);
}

/* A donor goes on to the next step while it is fetched from: the snapshot stays. */
static void test_snapshot_stays_while_fetched(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;
    struct hth_blob *first;

    (void)state;
    setup_world(&f, 24, false);
    add(&f, 12, 5, false);
    o = fetch_opts(&f);
    o.parts_in_flight = 1;
    start(&f, &o);
    assert_true(hth_world_run_until_true(f.world, part_way, &f, 20 * S));
    first = f.peer[0].values;
    f.peer[0].values = make_values(f.peer[0].env, BYTES, 77);
    f.peer[0].step = 13;
    finish(&f, 20 * S);
    assert_int_equal(f.result.step, 12);
    assert_memory_equal(f.values->data, first->data, BYTES);
    hth_blob_unref(first);
    /* Later the new one is given. */
    hth_world_run_for(f.world, 5 * S);
    hth_blob_unref(f.values);
    f.done = false;
    assert_ok(hth_state_fetch_new(f.newcomer->env, f.newcomer->rpc, hth_node_dht(f.newcomer->node),
                                  f.newcomer->roster, &o, &f.fetch));
    finish(&f, 20 * S);
    check_values(&f, &f.peer[0]);
    tear_down(&f);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void test_nobody_and_nobody_able(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 30, false);
    o = fetch_opts(&f);
    start(&f, &o);
    hth_world_run_for(f.world, 2 * S);
    assert_non_null(strstr(f.last_news, "no trainer"));
    add(&f, 12, 5, false)->declines = true;
    hth_world_run_for(f.world, 5 * S);
    assert_false(f.done);
    assert_true(f.peer[1].wanted > 1);
    assert_non_null(strstr(f.last_news, "left out"));
    f.peer[1].declines = false;
    finish(&f, 20 * S);
    check_values(&f, &f.peer[1]);
    tear_down(&f);
}

/* A state of other tensors, another size or too old a step is refused; also when its peer's roster
 * note promised better. */
static void test_other_states_are_refused(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    for (int c = 0; c < 3; c++) {
        setup_world(&f, 31, false);
        add(&f, 12, 5, false);
        o = fetch_opts(&f);
        if (c == 0)
            o.bytes = BYTES + 1;
        else
            o.step_min = 12, f.peer[0].step = 11, f.peer[0].claims = c == 1 ? 12 : 0;
        start(&f, &o);
        hth_world_run_for(f.world, 10 * S);
        assert_false(f.done);
        assert_int_equal(f.peer[0].wanted > 0, c < 2); /* it knows where it stands */
        assert_non_null(strstr(f.last_news, "left out"));
        tear_down(&f);
    }
}

/* Who says that it is far ahead and is not, or does not answer, keeps nobody from the state. */
static void test_a_step_that_nobody_can_show(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    for (int c = 0; c < 2; c++) {
        setup_world(&f, 32, false);
        add(&f, 12, 5, false);
        add(&f, 1000000, 6, false);
        f.peer[1].step = 11; /* what it has */
        f.peer[1].claims = 1000000;
        f.peer[1].silent = c == 1;
        o = fetch_opts(&f);
        o.step_min = 12;
        start(&f, &o);
        finish(&f, 20 * S);
        assert_int_equal(f.result.step, 12);
        check_values(&f, &f.peer[0]);
        tear_down(&f);
    }
}

/* A step that nobody else is near is not taken where there are others, though it is shown, and
 * whoever says it is named, as are those whose state came. */
static void test_a_step_alone(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 33, false);
    add(&f, 12, 5, false);
    add(&f, 1000000, 6, false);
    add(&f, 12, 5, false);
    o = fetch_opts(&f);
    start(&f, &o);
    finish(&f, 10 * S);
    check_values(&f, &f.peer[0]);
    assert_int_equal(f.said_by.count, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_false(hth_peer_id_eq(&f.said_by.id[i], &f.peer[1].env->self));
    assert_int_equal(f.unshown.count, 1);
    assert_true(hth_peer_id_eq(&f.unshown.id[0], &f.peer[1].env->self));
    assert_int_equal(f.peer[1].wanted, 0);
    tear_down(&f);
}

/* Where each steps by itself the fastest is ahead of all others, and is no liar for that. */
static void test_who_is_faster_is_believed(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 35, false);
    add(&f, 100, 5, false);
    add(&f, 160, 6, false);
    add(&f, 110, 7, false);
    o = fetch_opts(&f);
    o.near = 64;
    start(&f, &o);
    finish(&f, 10 * S);
    assert_int_equal(f.result.step, 160);
    check_values(&f, &f.peer[1]);
    assert_int_equal(f.unshown.count, 0);
    tear_down(&f);
}

/* The only one who has a state, however far ahead. And with another, who says that it is as far,
 * and does not answer: that one is named. */
static void test_who_shows_it_is_believed(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    for (uint32_t c = 0; c < 2; c++) {
        setup_world(&f, 34, false);
        add(&f, c == 0 ? 1000000 : 12, 5, false);
        for (uint32_t i = 0; i < 2 * c; i++)
            add(&f, 1000000, 6, false)->silent = true;
        o = fetch_opts(&f);
        start(&f, &o);
        finish(&f, 10 * S);
        check_values(&f, &f.peer[0]);
        assert_true(f.result.took_us < 3 * S); /* a second of it until the others were asked */
        assert_int_equal(f.said_by.count, 1);
        assert_int_equal(f.unshown.count, 2 * c);
        tear_down(&f);
    }
}

static void refused(void *arg, const struct hth_rpc_result *r)
{
    *(enum hth_err *)arg = r->err;
}

static enum hth_err call(struct handout *f, uint16_t method, const void *payload, size_t len)
{
    const struct hth_rpc_target target = target_of(&f->peer[0]);
    const struct hth_rpc_call_opts o = {
        .method = method, .body = {.payload = payload, .payload_len = len}, .timeout_us = 5 * S};
    enum hth_err err = HTH_E_BUG;

    assert_ok(hth_rpc_call(f->newcomer->rpc, &target, &o, refused, &err, NULL));
    hth_world_run_for(f->world, 10 * S);
    return err;
}

static void test_bad_requests(void **state)
{
    struct handout f;
    const struct hth_hash root = {{1}};
    const struct hth_state_describe other = {.schema = SCHEMA + 1}, any = {.schema = SCHEMA},
                                    gone = {.schema = SCHEMA, .has_root = true, .root = {{1}}};
    uint8_t p[HTH_STATE_REQUEST_MAX];

    (void)state;
    setup_world(&f, 32, false);
    add(&f, 12, 5, false);
    f.newcomer = add(&f, 0, 0, true);
    assert_err(HTH_E_MALFORMED, call(&f, HTH_STATE_METHOD_DESCRIBE, "\xff\xff", 2));
    assert_err(HTH_E_MALFORMED, call(&f, HTH_STATE_METHOD_PART, "\xff\xff", 2));
    assert_err(HTH_E_MALFORMED, call(&f, HTH_STATE_METHOD_PART, "", 0));
    assert_err(HTH_E_BAD_SHAPE,
               call(&f, HTH_STATE_METHOD_DESCRIBE, p, hth_state_describe_pack(&other, p)));
    assert_err(HTH_E_NOT_FOUND,
               call(&f, HTH_STATE_METHOD_DESCRIBE, p, hth_state_describe_pack(&gone, p)));
    assert_err(HTH_E_NOT_FOUND,
               call(&f, HTH_STATE_METHOD_PART, p, hth_state_part_pack(&root, 0, p)));
    assert_ok(call(&f, HTH_STATE_METHOD_DESCRIBE, p, hth_state_describe_pack(&any, p)));
    tear_down(&f);
}

static void test_waiters_are_bounded(void **state)
{
    struct handout f;
    uint8_t p[HTH_STATE_REQUEST_MAX];
    enum hth_err err[HTH_STATE_WAITERS_MAX + 2];
    struct hth_rpc_call_opts o = {.method = HTH_STATE_METHOD_DESCRIBE, .timeout_us = 60 * S};
    const struct hth_state_describe any = {.schema = SCHEMA};

    (void)state;
    setup_world(&f, 33, false);
    add(&f, 12, 5, false)->silent = true;
    o.body.payload = p;
    o.body.payload_len = hth_state_describe_pack(&any, p);
    for (int i = 0; i < HTH_STATE_WAITERS_MAX + 2; i++) {
        const struct hth_rpc_target target = target_of(&f.peer[0]);
        const struct handout_peer *from =
            i == 1 ? &f.peer[1] : add(&f, 0, 0, true); /* one asks twice */

        err[i] = HTH_E_BUG;
        assert_ok(hth_rpc_call(from->rpc, &target, &o, refused, &err[i], NULL));
        hth_world_run_for(f.world, S / 4);
    }
    for (int i = 1; i <= HTH_STATE_WAITERS_MAX; i++)
        assert_err(HTH_E_BUG, err[i]);
    assert_err(HTH_E_DUPLICATE, err[0]);
    assert_err(HTH_E_BUSY, err[HTH_STATE_WAITERS_MAX + 1]);
    assert_int_equal(f.peer[0].wanted, 1);
    assert_ok(hth_state_donor_give(f.peer[0].donor, 12, NULL, 0, f.peer[0].values));
    assert_err(HTH_E_AGAIN, hth_state_donor_give(f.peer[0].donor, 12, NULL, 0, f.peer[0].values));
    hth_world_run_for(f.world, 2 * S);
    for (int i = 1; i <= HTH_STATE_WAITERS_MAX; i++)
        assert_ok(err[i]);
    tear_down(&f);
}

/* More that could give than are kept in mind: those that failed make room for others. */
static void test_donors_in_mind_are_bounded(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;
    struct hth_state_fetch *none;
    uint32_t asked = 0;

    (void)state;
    setup_world(&f, 36, false);
    for (uint32_t i = 0; i < HTH_STATE_DONORS_MAX + 6; i++)
        add(&f, 12, 5, false)->declines = true;
    o = fetch_opts(&f);
    o.donors = HTH_STATE_DONORS_MAX;
    start(&f, &o);
    hth_world_run_for(f.world, 20 * S);
    assert_false(f.done);
    for (uint32_t i = 0; i < HTH_STATE_DONORS_MAX + 6; i++) {
        asked += f.peer[i].wanted > 0;
        f.peer[i].declines = false;
    }
    assert_true(asked >= HTH_STATE_DONORS_MAX);
    finish(&f, 20 * S);
    check_values(&f, &f.peer[0]);
    assert_true(f.result.donors <= HTH_STATE_DONORS_MAX);
    o.donors = HTH_STATE_DONORS_MAX + 1;
    assert_err(HTH_E_CONFIG,
               hth_state_fetch_new(f.newcomer->env, f.newcomer->rpc, hth_node_dht(f.newcomer->node),
                                   f.newcomer->roster, &o, &none));
    o = fetch_opts(&f);
    o.bytes = HTH_STATE_BYTES_MAX + 1;
    assert_err(HTH_E_CONFIG,
               hth_state_fetch_new(f.newcomer->env, f.newcomer->rpc, hth_node_dht(f.newcomer->node),
                                   f.newcomer->roster, &o, &none));
    tear_down(&f);
}

static void test_ghosts(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 34, true);
    for (int i = 0; i < 3; i++)
        add(&f, 12, 5, false);
    o = fetch_opts(&f);
    start(&f, &o);
    finish(&f, 10 * S);
    assert_int_equal(f.values->size, BYTES);
    assert_int_equal(f.result.step, 12);
    tear_down(&f);
}

struct probe {
    struct hth_job job;
    struct hth_env *env;
    struct hth_timer *timer;
    bool waits;
    int64_t at_us, longest_us;
};

static void nothing(struct hth_job *job)
{
    (void)job;
}

static void on_probed(struct hth_job *job, enum hth_err err)
{
    struct probe *p = HTH_CONTAINER(job, struct probe, job);

    assert_ok(err);
    p->waits = false;
    p->longest_us = HTH_MAX(p->longest_us, hth_now_us(p->env) - p->at_us);
}

static void on_probe(void *arg)
{
    struct probe *p = arg;

    hth_timer_set(p->env, p->timer, MS);
    if (p->waits)
        return;
    p->waits = true;
    p->at_us = hth_now_us(p->env);
    p->job = (struct hth_job){.lane = HTH_LANE_COMPUTE, .run = nothing, .done = on_probed};
    assert_ok(hth_job_submit(p->env, &p->job));
}

/* A state of 1 GiB takes the only worker 0.3 s; who averages meanwhile does not wait for that. */
static void test_averages_go_on(void **state)
{
    struct handout f;
    const struct hth_state_describe any = {.schema = SCHEMA};
    struct probe probe = {.waits = false};
    uint8_t p[HTH_STATE_REQUEST_MAX];
    struct handout_peer *donor;

    (void)state;
    setup_world(&f, 37, true);
    donor = add(&f, 12, 5, false);
    hth_blob_unref(donor->values);
    donor->values = make_values(donor->env, 1u << 30, 5);
    f.newcomer = add(&f, 0, 0, true);
    probe.env = donor->env;
    probe.timer = hth_timer_new(donor->env, on_probe, &probe);
    hth_timer_set(donor->env, probe.timer, 0);
    assert_ok(call(&f, HTH_STATE_METHOD_DESCRIBE, p, hth_state_describe_pack(&any, p)));
    assert_in_range(probe.longest_us, MS, 5 * MS);
    hth_timer_free(donor->env, probe.timer);
    tear_down(&f);
}

/* Freed at any moment, with jobs and calls under way. */
static void test_freed_at_any_moment(void **state)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    for (int64_t ms = 1; ms < 900; ms += 53) {
        setup_world(&f, 35, false);
        add(&f, 12, 5, false);
        add(&f, 12, 5, false);
        o = fetch_opts(&f);
        start(&f, &o);
        hth_world_run_for(f.world, ms * MS);
        if (ms % 2)
            halt(NULL, &f.peer[0]);
        tear_down(&f);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static void test_descriptions(void **state)
{
    const struct hth_crypto *c = hth_sim_crypto();
    struct hth_state_desc d, got;
    struct hth_hash root;
    uint8_t *bytes;
    size_t len;

    (void)state;
    assert_int_equal(hth_state_part_bytes(1), 4096);
    assert_int_equal(hth_state_part_bytes(256 * 4096 + 1), 8192);
    assert_int_equal(hth_state_part_bytes(HTH_STATE_BYTES_MAX), HTH_STATE_PART_BYTES_MAX);
    assert_ok(hth_state_desc_init(&d, 1, 2, "abc", 3, 10000));
    assert_int_equal(d.parts, 3);
    assert_int_equal(hth_state_part_len(&d, 2), 10000 - 8192);
    memset(d.hashes, 7, 3 * sizeof(*d.hashes));
    hth_state_desc_seal(&d, c);
    hth_state_desc_pack(&d, &bytes, &len);
    assert_ok(hth_state_desc_open(bytes, len, c, &got));
    assert_memory_equal(&got.root, &d.root, sizeof(d.root));
    assert_memory_equal(got.meta, "abc", 3);
    hth_state_desc_clear(&got);
    /* The root stands for everything. */
    root = d.root;
    d.step++;
    hth_state_desc_seal(&d, c);
    assert_memory_not_equal(&root, &d.root, sizeof(root));
    d.step--;
    d.hashes[2].b[31] ^= 1;
    hth_state_desc_seal(&d, c);
    assert_memory_not_equal(&root, &d.root, sizeof(root));
    hth_free(bytes);
    hth_state_desc_clear(&d);
}

static enum hth_err reopen(const struct hth_state_desc *d)
{
    struct hth_state_desc got;
    uint8_t *bytes;
    size_t len;
    enum hth_err err;

    hth_state_desc_pack(d, &bytes, &len);
    err = hth_state_desc_open(bytes, len, hth_sim_crypto(), &got);
    hth_state_desc_clear(&got);
    hth_free(bytes);
    return err;
}

static void test_limits_of_descriptions(void **state)
{
    struct hth_state_desc d, bad;

    (void)state;
    assert_err(HTH_E_RANGE, hth_state_desc_init(&d, 1, 2, NULL, 0, 0));
    assert_err(HTH_E_TOO_LARGE, hth_state_desc_init(&d, 1, 2, NULL, 0, HTH_STATE_BYTES_MAX + 1));
    assert_err(HTH_E_TOO_LARGE, hth_state_desc_init(&d, 1, 2, "x", HTH_STATE_META_MAX + 1, 5));
    assert_ok(hth_state_desc_init(&d, 1, 2, NULL, 0, HTH_STATE_BYTES_MAX));
    assert_int_equal(d.parts, HTH_STATE_PARTS_MAX);
    assert_ok(reopen(&d));
#define REFUSED(err, field, value)                                                                 \
    do {                                                                                           \
        bad = d;                                                                                   \
        bad.field = value;                                                                         \
        assert_err(err, reopen(&bad));                                                             \
    } while (0)
    REFUSED(HTH_E_RANGE, step, HTH_AVG_STEP_MAX + 1);
    REFUSED(HTH_E_RANGE, bytes, 0);
    REFUSED(HTH_E_RANGE, part_bytes, 0);
    REFUSED(HTH_E_RANGE, part_bytes, HTH_STATE_PART_BYTES_MIN / 2);
    REFUSED(HTH_E_RANGE, part_bytes, HTH_STATE_PART_BYTES_MAX - 1);
    REFUSED(HTH_E_TOO_LARGE, part_bytes, 2ull * HTH_STATE_PART_BYTES_MAX);
    REFUSED(HTH_E_TOO_LARGE, bytes, HTH_STATE_BYTES_MAX + 1);
    REFUSED(HTH_E_TOO_LARGE, part_bytes, HTH_STATE_PART_BYTES_MAX / 2);
    REFUSED(HTH_E_MALFORMED, parts, HTH_STATE_PARTS_MAX - 1);
#undef REFUSED
    hth_state_desc_clear(&d);
}

static void test_announcements(void **state)
{
    struct hth_state_ad ad = {.addr = {.family = 4, .port = 3}, .schema = 1, .step = 2, .bytes = 3},
                        got;
    uint8_t bytes[256];
    struct hth_writer w;

    (void)state;
    hth_writer_init(&w, bytes, sizeof(bytes));
    assert_ok(hth_state_ad_write(&ad, &w));
    assert_ok(hth_state_ad_read(bytes, w.pos, &got));
    assert_int_equal(got.bytes, 3);
    for (size_t len = 0; len < w.pos; len++)
        assert_err(HTH_E_TRUNCATED, hth_state_ad_read(bytes, len, &got));
    assert_err(HTH_E_MALFORMED, hth_state_ad_read(bytes, w.pos + 1, &got));
    bytes[1] = 7; /* no such address */
    assert_err(HTH_E_RANGE, hth_state_ad_read(bytes, w.pos, &got));
    bytes[0] = 9;
    assert_err(HTH_E_VERSION, hth_state_ad_read(bytes, w.pos, &got));
    ad.bytes = HTH_STATE_BYTES_MAX + 1;
    hth_writer_init(&w, bytes, sizeof(bytes));
    assert_ok(hth_state_ad_write(&ad, &w));
    assert_err(HTH_E_RANGE, hth_state_ad_read(bytes, w.pos, &got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_several),
        cmocka_unit_test(test_majority_of_roots),
        cmocka_unit_test(test_announced_donors_help),
        cmocka_unit_test(test_who_has_none_is_doubted),
        cmocka_unit_test(test_dials_are_bounded),
        cmocka_unit_test(test_others_take_their_turn),
        cmocka_unit_test(test_here_is_bounded),
        cmocka_unit_test(test_donor_killed),
        cmocka_unit_test(test_donor_without_power),
        cmocka_unit_test(test_donor_in_a_black_hole),
        cmocka_unit_test(test_last_donor_dies),
        cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_liar),
        cmocka_unit_test(test_only_a_liar),
        cmocka_unit_test(test_snapshot_stays_while_fetched),
        cmocka_unit_test(test_nobody_and_nobody_able),
        cmocka_unit_test(test_other_states_are_refused),
        cmocka_unit_test(test_a_step_that_nobody_can_show),
        cmocka_unit_test(test_a_step_alone),
        cmocka_unit_test(test_who_is_faster_is_believed),
        cmocka_unit_test(test_who_shows_it_is_believed),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_waiters_are_bounded),
        cmocka_unit_test(test_donors_in_mind_are_bounded),
        cmocka_unit_test(test_ghosts),
        cmocka_unit_test(test_averages_go_on),
        cmocka_unit_test(test_freed_at_any_moment),
        cmocka_unit_test(test_descriptions),
        cmocka_unit_test(test_limits_of_descriptions),
        cmocka_unit_test(test_announcements),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
