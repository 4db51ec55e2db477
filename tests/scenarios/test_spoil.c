/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_spoil.c: what peers with bad gradients do to an expert, with the bounds on senders and
 * without, and that a roll-back undoes it.
 */
#include "scenarios/spoil.h"
#include "support/suite.h"

static struct hth_spoil_report run(enum hth_spoil_kind kind, uint32_t attackers, bool unbounded)
{
    struct hth_spoil_opts o = HTH_SPOIL_OPTS_INIT;
    struct hth_spoil_report r;

    o.kind = kind;
    o.attackers = attackers;
    o.unbounded = unbounded;
    o.canary = !unbounded;
    o.back_updates = unbounded ? 200 : 0;
    assert_ok(hth_sim_spoil(&o, &r));
    assert_true(r.calm < 0.25 * r.begin);
    assert_int_equal(r.pauses, 0);
    return r;
}

/* With gradients of the usual size 64 keys, with 4 rows for each honest one, are a quarter of the
 * pull. */
TEST(worst_gradients_cost_nothing)
{
    struct hth_spoil_report calm = run(HTH_SPOIL_NONE, 0, false);

    (void)state;
    assert_true(run(HTH_SPOIL_SHOVE, 1, false).end < 1.05 * calm.end);
    assert_true(run(HTH_SPOIL_SHOVE, 64, false).end < 1.05 * calm.end);
    assert_true(run(HTH_SPOIL_CREEP, 64, false).end < 1.25 * calm.end);
}

TEST(without_bounds_the_expert_is_spoilt_until_it_goes_back)
{
    struct hth_spoil_report r = run(HTH_SPOIL_SHOVE, 64, true);

    (void)state;
    assert_true(r.end > 10 * r.begin);
    assert_true(r.back < 1.05 * r.calm);
}

/* Of five senders, too, where one is the attackers'. It takes a minute of 5 steps a second, not
 * ten. Without a pause the losses are 137 and 3e8. */
TEST(canary_pauses_an_expert_that_learns_wrongly)
{
    static const struct {
        const char *expert;
        uint32_t honest;
        double end_max;
    } cases[] = {{"ffn", 8, 20}, {"transformer", 4, 1e4}};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_spoil_opts o = HTH_SPOIL_OPTS_INIT;
        struct hth_spoil_report r;
        o.kind = HTH_SPOIL_SHOVE;
        o.unbounded = o.canary = true;
        o.minutes = 3;
        o.expert = cases[i].expert;
        o.honest = cases[i].honest;
        assert_ok(hth_sim_spoil(&o, &r));
        assert_int_equal(r.pauses, 1);
        assert_true(r.end < cases[i].end_max);
    }
}
