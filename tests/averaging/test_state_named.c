/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_state_named.c: a state from holders that its owner names and judges, without roster or DHT.
 */
#include "averaging/handout.h"

struct owner {
    uint64_t least; /* older steps are refused with `err` */
    enum hth_err err;
    uint32_t asked;
};

static enum hth_err judge(void *arg, const struct hth_rpc_target *donor, const uint8_t *given,
                          size_t len)
{
    struct owner *o = ((struct handout *)arg)->owner;
    uint64_t step;

    assert_int_equal(len, sizeof(step));
    assert_int_equal(donor->addr.port, PORT);
    memcpy(&step, given, sizeof(step));
    o->asked++;
    return step < o->least ? o->err : HTH_OK;
}

static void start_named(struct handout *f, struct hth_state_fetch_opts *o,
                        struct hth_rpc_target *holders)
{
    uint32_t count = f->count;

    f->newcomer = add(f, 0, 0, true);
    for (uint32_t i = 0; i < count; i++)
        holders[i] = target_of(&f->peer[i]);
    o->network = NULL;
    o->holders = holders;
    o->holders_count = count;
    o->judge = judge;
    assert_ok(hth_state_fetch_new(f->newcomer->env, f->newcomer->rpc, NULL, NULL, o, &f->fetch));
}

static void named_holders_are_asked(void **state)
{
    static const struct {
        enum hth_err err;
        uint32_t left; /* peers that may still give one */
    } cases[] = {{HTH_OK, 3}, {HTH_E_AGAIN, 3}, {HTH_E_STALE, 3}, {HTH_E_MALFORMED, 1}};
    struct hth_rpc_target holders[3];

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct owner owner = {.least = 12, .err = cases[i].err};
        struct hth_state_progress progress;
        struct handout f;
        struct hth_state_fetch_opts o;

        setup_world(&f, 40, false);
        f.owner = &owner;
        add(&f, 9, 5, false);
        add(&f, 11, 5, false);
        add(&f, 10, 5, false)->silent = true; /* for now */
        o = fetch_opts(&f);
        start_named(&f, &o, holders);
        hth_world_run_for(f.world, 200 * MS);
        hth_state_fetch_progress(f.fetch, &progress);
        assert_int_equal(progress.left, cases[i].left);
        if (cases[i].err == HTH_OK) { /* the highest step */
            finish(&f, 2 * S);
            check_values(&f, &f.peer[1]);
            tear_down(&f);
            continue;
        }
        assert_int_equal(progress.step, 0);
        hth_world_run_for(f.world, 600 * MS);
        f.peer[2].step = 13;
        assert_ok(hth_state_donor_give(f.peer[2].donor, 13, &f.peer[2].step, sizeof(uint64_t),
                                       f.peer[2].values));
        finish(&f, 2 * S);
        check_values(&f, &f.peer[2]);
        assert_int_equal(owner.asked > 3, cases[i].left == 3);
        tear_down(&f);
    }
}

/* A snapshot that is being made counts, too. */
static void the_oldest_snapshot_is_told(void **state)
{
    struct owner owner = {.least = 0};
    struct hth_rpc_target holder;
    struct handout f;
    struct hth_state_fetch_opts o;
    struct hth_state_donor_stats s;

    (void)state;
    setup_world(&f, 41, false);
    f.owner = &owner;
    add(&f, 12, 5, false)->silent = true;
    hth_state_donor_stats(f.peer[0].donor, &s);
    assert_int_equal(s.oldest, UINT64_MAX);
    o = fetch_opts(&f);
    start_named(&f, &o, &holder);
    hth_world_run_for(f.world, S);
    assert_ok(hth_state_donor_give(f.peer[0].donor, 12, &f.peer[0].step, sizeof(uint64_t),
                                   f.peer[0].values));
    hth_state_donor_stats(f.peer[0].donor, &s);
    assert_int_equal(s.held, 0);
    assert_int_equal(s.oldest, 12);
    finish(&f, 10 * S);
    hth_state_donor_stats(f.peer[0].donor, &s);
    assert_int_equal(s.held, 1);
    assert_int_equal(s.oldest, 12);
    hth_world_run_for(f.world, 25 * S);
    hth_state_donor_stats(f.peer[0].donor, &s);
    assert_int_equal(s.oldest, UINT64_MAX);
    tear_down(&f);
}

/* A part takes longer than the time that a whole line has for one; many are in flight. */
static void a_slow_line_of_its_own(void **state)
{
    struct owner owner = {.least = 0};
    struct hth_rpc_target holders[4];
    struct hth_device slow = HTH_DEVICE_INIT;
    struct handout f;
    struct hth_state_fetch_opts o;

    (void)state;
    setup_world(&f, 42, false);
    f.owner = &owner;
    for (int i = 0; i < 4; i++)
        add(&f, 12, 5, false);
    o = fetch_opts(&f);
    o.parts_in_flight = 8;
    start_named(&f, &o, holders);
    slow.down_bytes_per_s = 130e3; /* 32 parts in a second, the first 8 in a quarter */
    hth_node_set_device(f.newcomer->node, &slow);
    finish(&f, 10 * S);
    check_values(&f, &f.peer[0]);
    assert_int_equal(f.result.donors_lost, 0);
    assert_int_equal(f.result.bytes, BYTES);
    tear_down(&f);
}

static void named_holders_are_bounded(void **state)
{
    struct owner owner = {.least = 0};
    struct hth_rpc_target holders[HTH_STATE_DONORS_MAX + 1] = {{.addr = {.family = 0}}};
    struct handout f;
    struct hth_state_fetch_opts o;
    struct hth_state_fetch *none;

    (void)state;
    setup_world(&f, 43, false);
    f.owner = &owner;
    add(&f, 12, 5, false);
    o = fetch_opts(&f);
    start_named(&f, &o, holders);
    o.holders_count = 0;
    assert_err(HTH_E_CONFIG,
               hth_state_fetch_new(f.newcomer->env, f.newcomer->rpc, NULL, NULL, &o, &none));
    o.holders_count = HTH_STATE_DONORS_MAX + 1;
    assert_err(HTH_E_CONFIG,
               hth_state_fetch_new(f.newcomer->env, f.newcomer->rpc, NULL, NULL, &o, &none));
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_holders_are_asked),
        cmocka_unit_test(the_oldest_snapshot_is_told),
        cmocka_unit_test(a_slow_line_of_its_own),
        cmocka_unit_test(named_holders_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
