/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_grid.c: trainers that share batches on grids of several axes. That their mean is the batch's
 * is in test_share.c.
 */
#include "averaging/grid.h"
#include "collab/collab_int.h"
#include "collab/roll_int.h"
#include "collab/row_msg.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S  HTH_US_PER_S
#define MS HTH_US_PER_MS
#ifndef DEATHS
#define DEATHS 8 /* of each kind */
#endif

static struct crew_scene *start(uint64_t seed, int64_t latency_us, uint32_t members,
                                uint32_t clients, const char *shape, enum hth_quant_format format,
                                double clip, const struct hth_device *device)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct hth_trainer_opts lm = task_lm();

    assert_ok(hth_avg_shape_parse(shape, &o.roster.shape));
    if (format != HTH_QUANT_F32) { /* it has matrices that are large enough for 8 bits */
        lm.local_optim.schedule.lr = 0;
        lm.model.balance = 0;
        lm.micro_batch = 6;
        lm.eval_every = 0;
        lm.share = o.trainer.share;
        o.trainer = lm;
    }
    o.trainer.share.format = format;
    o.trainer.share.target = 6 * (members - 2);
    o.trainer.flights = 1;
    o.trainer.updates_max = 1u << 30;
    o.reducer.clip = clip;
    o.members = members;
    o.clients = clients;
    o.edit = crew_own_rows;
    o.device = device;
    return crew_scene_near(seed, latency_us, &o);
}

static struct hth_collab *collab_of(struct crew_scene *s, uint32_t i)
{
    return (struct hth_collab *)(uintptr_t)hth_trainer_collab(hth_crew_trainer(s->crew, i));
}

static uint64_t step_of(struct crew_scene *s, uint32_t i)
{
    struct hth_collab_stats stats;

    hth_collab_stats(collab_of(s, i), &stats);
    return stats.step;
}

/* Rounds that failed, and means and states that were fetched. */
static uint64_t trouble(struct crew_scene *s)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < hth_crew_count(s->crew); i++) {
        struct hth_share_stats share = crew_stats(s->crew, i).share;

        sum += share.tries_failed + share.means + share.catch_ups;
    }
    return sum;
}

/* All come to one head at each step by themselves. */
static void check_calm(struct crew_scene *s, int64_t us, uint64_t steps)
{
    uint64_t before = trouble(s), from = step_of(s, 0);

    hth_world_run_for(s->world, us);
    assert_true(crew_same(s->world, s->crew, S) >= from + steps);
    assert_int_equal(trouble(s), before);
    assert_int_equal(crew_stats(s->crew, 0).share.members, hth_crew_count(s->crew));
    assert_int_equal(collab_of(s, 0)->cells.shape.dims, collab_of(s, 0)->opts.shape.dims);
}

static void all_rows_get_the_same_bits(void **state)
{
    static const struct {
        uint32_t members;
        const char *shape;
        enum hth_quant_format format;
        double clip;
        uint32_t clients;
    } cases[] = {
        {18, "5x4", HTH_QUANT_INT8, 0, 0},     {9, "3x3", HTH_QUANT_INT8, 3, 4},
        {8, "3x3", HTH_QUANT_F16, 3, 0},       {8, "3x3", HTH_QUANT_F32, 3, 0},
        {12, "3x4", HTH_QUANT_DYNAMIC8, 0, 0}, {11, "3x4", HTH_QUANT_UNIFORM8, 3, 0},
        {14, "3x3x2", HTH_QUANT_BF16, 0, 0},   {4, "4", HTH_QUANT_INT8, 0, 0},
    };

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k += HTH_TEST_FEW ? 3 : 1) {
        struct crew_scene *s = start(k + 1, 2 * MS, cases[k].members, cases[k].clients,
                                     cases[k].shape, cases[k].format, cases[k].clip, &crew_slow);

        hth_world_run_for(s->world, 3 * S);
        assert_int_equal(trouble(s), 0);
        check_calm(s, 2 * S, 3);
        crew_scene_free(s);
    }
}

/* Lines end one after the other, and messages wait behind values: nobody is lost for that. */
static void slow_lines_keep_all(void **state)
{
    struct hth_device thin = crew_slow;
    struct crew_scene *s;

    (void)state;
    thin.up_bytes_per_s = thin.down_bytes_per_s = 3e5;
    s = start(1, 20 * MS, 11, 0, "4x3", HTH_QUANT_INT8, 0, &thin);
    hth_world_run_for(s->world, 6 * S);
    print_message("%llu floats, %lld ms from GO to the mean\n",
                  (unsigned long long)collab_of(s, 0)->opts.count,
                  (long long)crew_stats(s->crew, 0).share.averaged_us / MS);
    check_calm(s, 10 * S, 6);
    crew_scene_free(s);
}

static bool averages(struct crew_scene *s, uint32_t i)
{
    struct hth_collab_stats stats;

    hth_collab_stats(collab_of(s, i), &stats);
    return stats.phase == HTH_COLLAB_AVERAGES;
}

/* The longest time from one step of a member to its next within that time. */
static int64_t longest_us(struct crew_scene *s, uint32_t i, int64_t within_us)
{
    int64_t end = hth_world_now_us(s->world) + within_us, last = 0, longest = 0;
    uint64_t step = step_of(s, i);

    while (hth_world_now_us(s->world) < end) {
        int64_t now = hth_world_now_us(s->world);

        if (step_of(s, i) > step) {
            longest = last != 0 ? HTH_MAX(longest, now - last) : 0;
            last = now;
            step = step_of(s, i);
        }
        hth_world_run_for(s->world, 5 * MS);
    }
    return longest;
}

/* One dies at any time of its round. Returns by how much a step was late. */
static int64_t late_after_death(uint64_t seed, enum hth_crash how)
{
    static const struct {
        uint32_t members;
        const char *shape;
    } grids[] = {{10, "4x3"}, {9, "3x3"}, {11, "2x2x3"}};
    size_t k = seed % HTH_ARRAY_LEN(grids);
    struct crew_scene *s =
        start(seed, 2 * MS, grids[k].members, 0, grids[k].shape, HTH_QUANT_F32, 0, &crew_slow);
    uint32_t victim = (uint32_t)(seed * 7 % grids[k].members), other = victim == 0;

    hth_world_run_for(s->world, 6 * S);
    int64_t usual_us = longest_us(s, other, 2 * S);
    while (!averages(s, victim))
        hth_world_run_for(s->world, MS / 4);
    hth_world_run_for(s->world, (int64_t)(seed * 3 % 37) * MS);
    hth_node_crash(hth_crew_node(s->crew, victim), how);
    int64_t late_us = longest_us(s, other, 3 * S) - usual_us;
    crew_same(s->world, s->crew, S);
    crew_scene_free(s);
    return late_us;
}

static void deaths_cost_little(void **state)
{
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    static const int64_t most_us[] = {300 * MS, 1500 * MS};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(how); k++) {
        int64_t worst_us = 0;

        for (uint64_t seed = 0; seed < (HTH_TEST_FEW ? 2 : DEATHS); seed++)
            worst_us = HTH_MAX(worst_us, late_after_death(seed, how[k]));
        print_message("%s deaths: a step is at most %lld ms late\n", k == 0 ? "loud" : "silent",
                      (long long)(worst_us / MS));
        assert_true(worst_us <= most_us[k]);
    }
}

/* Two have no way to each other. Where they meet in a line, its members have no mean, or another
 * one than other lines; all take the others' steps. */
static void a_pair_without_a_way(void **state)
{
    struct crew_scene *s = start(4, 2 * MS, 12, 0, "4x3", HTH_QUANT_F32, 0, &crew_slow);
    struct hth_node *a = hth_crew_node(s->crew, 3), *b = hth_crew_node(s->crew, 7);

    (void)state;
    hth_world_run_for(s->world, 6 * S);
    uint64_t before = step_of(s, 0);
    hth_world_block(s->world, a, b, true);
    hth_world_block(s->world, b, a, true);
    hth_world_run_for(s->world, 20 * S);
    uint64_t with = step_of(s, 0);
    hth_world_heal(s->world);
    hth_world_run_for(s->world, 30 * S); /* a state that nobody has is given up in 20 s */
    print_message("a broken pair: %llu steps in 20 s, then %llu in 30 s\n",
                  (unsigned long long)(with - before), (unsigned long long)(step_of(s, 0) - with));
    assert_true(with >= before + 10);
    assert_true(crew_same(s->world, s->crew, S) >= with + 40);
    crew_scene_free(s);
}

static void on_probe(void *arg, const struct hth_rpc_result *result)
{
    assert_true(result->remote);
    *(enum hth_err *)arg = result->err;
}

/* A member's ROWs that are not its own, or of no line here: refused, and nothing else happens. */
static void bad_rows_are_refused(void **state)
{
    enum { BYTES, GROUP, FIRST_AXIS, NO_AXIS, NO_CELL, COUNT, OTHERS, NOT_LED, LATE, CASES };
    static const enum hth_err expected[CASES] = {
        [BYTES] = HTH_E_TRUNCATED,    [GROUP] = HTH_E_AGAIN,      [FIRST_AXIS] = HTH_E_RANGE,
        [NO_AXIS] = HTH_E_RANGE,      [NO_CELL] = HTH_E_RANGE,    [COUNT] = HTH_E_RANGE,
        [OTHERS] = HTH_E_BAD_PEER_ID, [NOT_LED] = HTH_E_PROTOCOL, [LATE] = HTH_E_EXPIRED};
    struct crew_scene *s = start(3, 2 * MS, 12, 0, "4x3", HTH_QUANT_F32, 0, &crew_slow);
    enum hth_err got[CASES] = {HTH_OK};
    uint32_t from = 0;

    (void)state;
    hth_world_run_for(s->world, 6 * S);
    struct hth_collab *to = collab_of(s, 0);
    while (to->grid == NULL)
        hth_world_run_for(s->world, MS);
    const struct hth_cells *c = &to->cells;
    const struct hth_roll_group *group = &to->group;
    uint32_t own = c->cell[group->self];
    uint32_t cell = (hth_cells_on_line(c, own, 1, 0) + 3) % c->count; /* on the next line */
    while (!hth_peer_id_eq(&hth_node_env(hth_crew_node(s->crew, from))->self,
                           &group->peer[c->member[cell]].id))
        from++;
    for (uint32_t i = 0; i < CASES; i++) {
        struct hth_row_msg row = {.group = i == LATE    ? to->grid_ended
                                           : i == GROUP ? (struct hth_hash){{1}}
                                                        : group->id,
                                  .axis = i == FIRST_AXIS ? 0
                                          : i == NO_AXIS  ? 2
                                                          : 1,
                                  .cell = i == NO_CELL  ? c->cells
                                          : i == OTHERS ? own
                                                        : cell,
                                  .state = i == COUNT ? HTH_ROW_HAS : HTH_ROW_FAILED,
                                  .marks.count = c->count - 1};
        uint8_t bytes[HTH_ROW_BYTES_MAX];
        struct hth_rpc_call_opts opts = {.method = HTH_ROW_METHOD, .timeout_us = S};
        struct hth_rpc_target target = {to->env->self, to->opts.addr};
        opts.body.payload = bytes;
        opts.body.payload_len = hth_row_write(&row, bytes) - (i == BYTES);
        assert_ok(
            hth_rpc_call(hth_crew_rpc(s->crew, from), &target, &opts, on_probe, &got[i], NULL));
    }
    check_calm(s, S, 3);
    for (uint32_t i = 0; i < CASES; i++)
        assert_err(expected[i], got[i]);
    crew_scene_free(s);
}

static struct hth_collab *collab_when_up(struct crew_scene *s, uint32_t i)
{
    while (hth_crew_trainer(s->crew, i) == NULL)
        hth_world_run_for(s->world, 1);
    return collab_of(s, i);
}

static void speak(struct crew_scene *s, uint32_t i, uint32_t protocol)
{
    collab_when_up(s, i)->roll->opts.last_protocol = protocol;
}

/* The others go on to the next protocol while it is away. It says so, and ends; they do not. */
static void a_program_that_is_too_old_ends(void **state)
{
    struct crew_scene *s = start(1, 2 * MS, 4, 0, "4", HTH_QUANT_F32, 0, &crew_slow);

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        speak(s, i, i == 2 ? 1 : 2);
    for (uint32_t k = 0; k < 2; k++) {
        hth_world_run_for(s->world, 6 * S);
        const struct hth_collab *c = collab_of(s, 0);
        assert_int_equal(hth_chain_at(c->chain, hth_collab_choice(c)->tip)->protocol, k + 1);
        if (k == 0)
            hth_node_crash(hth_crew_node(s->crew, 2), HTH_CRASH_RESET);
    }
    hth_node_restart(hth_crew_node(s->crew, 2));
    hth_world_run_for(s->world, 55 * S);
    assert_ok(hth_crew_err(s->crew));
    hth_world_run_for(s->world, 10 * S);
    assert_err(HTH_E_VERSION, hth_crew_err(s->crew));
    uint64_t before = step_of(s, 0);
    hth_world_run_for(s->world, 2 * S);
    assert_true(step_of(s, 0) > before + 5);
    crew_scene_free(s);
}

static void refuse_version(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    hth_rpc_refuse(req, HTH_E_VERSION, 0, "LINKS");
}

/* Nor does one that can't read what they say, or the other way round, begin a run beside them; but
 * where strangers take part any of them may say that, and ends nobody. */
static void a_newcomer_of_another_version_begins_nothing(void **state)
{
    struct crew_scene *s = start(2, 2 * MS, 4, 0, "4", HTH_QUANT_F32, 0, &crew_slow);

    (void)state;
    hth_world_run_for(s->world, 6 * S);
    for (uint32_t i = 0; i < 4; i++)
        hth_rpc_serve(hth_crew_rpc(s->crew, i), HTH_ROLL_METHOD_LINKS, refuse_version, NULL);
    uint32_t open = hth_crew_join(s->crew);
    collab_when_up(s, open)->opts.strangers = true;
    hth_world_run_for(s->world, 5 * S);
    assert_ok(hth_crew_err(s->crew));
    assert_true(crew_stats(s->crew, open).updates > 0);
    hth_rpc_serve(hth_crew_rpc(s->crew, open), HTH_ROLL_METHOD_LINKS, refuse_version, NULL);
    uint32_t late = hth_crew_join(s->crew);
    hth_world_run_for(s->world, 30 * S);
    assert_err(HTH_E_VERSION, hth_crew_err(s->crew));
    assert_int_equal(crew_stats(s->crew, late).updates, 0);
    assert_true(step_of(s, 0) > 15);
    crew_scene_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_rows_get_the_same_bits),
        cmocka_unit_test(slow_lines_keep_all),
        cmocka_unit_test(deaths_cost_little),
        cmocka_unit_test(a_pair_without_a_way),
        cmocka_unit_test(bad_rows_are_refused),
        cmocka_unit_test(a_program_that_is_too_old_ends),
        cmocka_unit_test(a_newcomer_of_another_version_begins_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
