/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_grid.c: trainers that share batches on grids of several axes. That their mean is the batch's
 * is in test_share.c.
 */
#include "averaging/grid.h"
#include "collab/collab_int.h"
#include "collab/cells.h"
#include "collab/roll_int.h"
#include "core/mem.h"
#include "support/suite.h"
#include "trainer/crew.h"

#ifndef DEATHS
#define DEATHS 8 /* of each kind */
#endif

static struct crew_scene *start(uint64_t seed, int64_t latency_us, uint32_t members,
                                uint32_t clients, const char *shape, enum hth_quant_format format,
                                double clip, const struct hth_device *device)
{
    struct hth_crew_opts o = crew_batch_opts(members, 6 * (members - 2));

    assert_ok(hth_avg_shape_parse(shape, &o.roster.shape));
    o.trainer.share.format = format;
    if (format != HTH_QUANT_F32)
        crew_use_lm(&o); /* it has matrices that are large enough for 8 bits */
    o.reducer.clip = clip;
    o.clients = clients;
    o.device = device;
    return crew_scene_near(seed, latency_us, &o);
}

static struct hth_collab *collab_of(struct crew_scene *s, uint32_t i)
{
    return (struct hth_collab *)(uintptr_t)crew_collab(s, i);
}

static uint64_t step_of(struct crew_scene *s, uint32_t i)
{
    return crew_collab_stats(s, i).step;
}

/* Rounds that failed, and means and states that were fetched. */
static uint64_t trouble(struct crew_scene *s)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < hth_crew_count(s->crew); i++) {
        struct hth_share_stats share = crew_stats(s, i).share;

        sum += share.run.averages.failed + share.run.means + share.catch_ups;
    }
    return sum;
}

/* All come to one head at each step by themselves. */
static void check_calm(struct crew_scene *s, int64_t us, uint64_t steps)
{
    uint64_t before = trouble(s), from = step_of(s, 0);

    hth_world_run_for(s->world, us);
    assert_true(crew_same(s, S) >= from + steps);
    assert_int_equal(trouble(s), before);
    assert_int_equal(crew_stats(s, 0).share.run.members, hth_crew_count(s->crew));
    assert_int_equal(crew_stats(s, 0).share.run.shape.dims, collab_of(s, 0)->opts.shape.dims);
}

TEST(all_rows_get_the_same_bits)
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
        {14, "2x3x2", HTH_QUANT_BF16, 0, 0},   {4, "4", HTH_QUANT_INT8, 0, 0},
    };

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
TEST(slow_lines_keep_all)
{
    struct hth_device thin = crew_slow;
    struct crew_scene *s;

    thin.up_bytes_per_s = thin.down_bytes_per_s = 3e5;
    s = start(1, 20 * MS, 11, 0, "4x3", HTH_QUANT_INT8, 0, &thin);
    hth_world_run_for(s->world, 12 * S); /* nobody is a stranger any more */
    print_message("%llu floats, %lld ms from GO to the mean\n",
                  (unsigned long long)collab_of(s, 0)->opts.count,
                  (long long)crew_stats(s, 0).share.run.averages.last.reduce_us / MS);
    check_calm(s, 10 * S, 6);
    crew_scene_free(s);
}

/* The longest time from now, or one step of a member, to its next within that time. */
static int64_t longest_us(struct crew_scene *s, uint32_t i, int64_t within_us)
{
    int64_t last = hth_world_now_us(s->world), end = last + within_us, longest = 0;
    uint64_t step = step_of(s, i);

    while (hth_world_now_us(s->world) < end) {
        int64_t now = hth_world_now_us(s->world);

        if (step_of(s, i) > step) {
            longest = HTH_MAX(longest, now - last);
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
    } grids[] = {{10, "4x3"}, {9, "3x3"}, {13, "2x2x3"}};
    size_t k = seed % HTH_ARRAY_LEN(grids);
    struct crew_scene *s =
        start(seed, 2 * MS, grids[k].members, 0, grids[k].shape, HTH_QUANT_F32, 0, &crew_slow);
    uint32_t victim = (uint32_t)(seed * 7 % grids[k].members), other = victim == 0;

    hth_world_run_for(s->world, 6 * S);
    int64_t usual_us = longest_us(s, other, 2 * S);
    while (crew_collab_stats(s, victim).phase != HTH_COLLAB_AVERAGES)
        hth_world_run_for(s->world, MS / 4);
    hth_world_run_for(s->world, (int64_t)(seed * 3 % 37) * MS);
    crew_crash(s, victim, how);
    int64_t late_us = longest_us(s, other, 3 * S) - usual_us;
    crew_same(s, S);
    crew_scene_free(s);
    return late_us;
}

TEST(deaths_cost_little)
{
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    static const int64_t most_us[] = {300 * MS, 1500 * MS};

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
TEST(a_pair_without_a_way)
{
    struct crew_scene *s = start(4, 2 * MS, 12, 0, "4x3", HTH_QUANT_F32, 0, &crew_slow);

    hth_world_run_for(s->world, 6 * S);
    uint64_t before = step_of(s, 0);
    crew_block(s, 3, 7);
    hth_world_run_for(s->world, 20 * S);
    uint64_t with = step_of(s, 0);
    hth_world_heal(s->world);
    hth_world_run_for(s->world, 30 * S); /* a state that nobody has is given up in 20 s */
    print_message("a broken pair: %llu steps in 20 s, then %llu in 30 s\n",
                  (unsigned long long)(with - before), (unsigned long long)(step_of(s, 0) - with));
    assert_true(with >= before + 10);
    assert_true(crew_same(s, S) >= with + 40);
    crew_scene_free(s);
}

static void on_probe(void *arg, const struct hth_rpc_result *result)
{
    assert_true(result->remote);
    *(enum hth_err *)arg = result->err;
}

/* ROWs of another line, of no line here, or of no sense: refused, and nothing else happens. */
TEST(bad_rows_are_refused)
{
    enum { BYTES, GROUP, FIRST_AXIS, NO_AXIS, COUNT, OTHERS, NOT_LED, LATE, CASES };
    static const enum hth_err expected[CASES] = {
        [BYTES] = HTH_E_TRUNCATED,  [GROUP] = HTH_E_AGAIN, [FIRST_AXIS] = HTH_E_RANGE,
        [NO_AXIS] = HTH_E_RANGE,    [COUNT] = HTH_E_RANGE, [OTHERS] = HTH_E_BAD_PEER_ID,
        [NOT_LED] = HTH_E_PROTOCOL, [LATE] = HTH_E_EXPIRED};
    struct crew_scene *s = start(3, 2 * MS, 12, 0, "4x3", HTH_QUANT_F32, 0, &crew_slow);
    enum hth_err got[CASES] = {HTH_OK};

    hth_world_run_for(s->world, 6 * S);
    while (crew_collab_stats(s, 0).phase != HTH_COLLAB_AVERAGES)
        hth_world_run_for(s->world, MS);
    struct hth_roll_call *roll = collab_of(s, 0)->roll;
    struct hth_roll_group group;
    struct hth_cells cells;
    const struct hth_peer_id *row[2];

    hth_line_group(collab_of(s, 0)->env->crypto, &collab_of(s, 0)->env->self, &roll->list, &group);
    hth_cells_place(collab_of(s, 0)->env->crypto, &group.head, group.peer, group.count,
                    &collab_of(s, 0)->opts.shape, &cells);
    for (uint32_t k = 0; k < 2; k++)
        row[k] = &group.peer[cells.member[3 + k]].id; /* its leader, and another one */
    for (uint32_t i = 0; i < CASES; i++) {
        struct hth_collab *to = NULL;
        uint32_t from = 0;

        for (uint32_t k = 0; k < 12; k++) {
            const struct hth_peer_id *self = &collab_of(s, k)->env->self;

            if (hth_peer_id_eq(self, row[i == NOT_LED]))
                to = collab_of(s, k);
            if (hth_peer_id_eq(self,
                               i == OTHERS ? &group.peer[cells.member[0]].id : row[i != NOT_LED]))
                from = k;
        }
        struct hth_row_msg msg = {.group = i == LATE    ? to->round_ended
                                           : i == GROUP ? (struct hth_hash){{1}}
                                                        : group.id,
                                  .axis = i == FIRST_AXIS ? 0
                                          : i == NO_AXIS  ? 2
                                                          : 1,
                                  .marks.count = i == COUNT ? 11 : 12};
        uint8_t bytes[HTH_ROW_BYTES_MAX];
        struct hth_rpc_call_opts opts = {.method = HTH_ROW_METHOD, .timeout_us = S};
        struct hth_rpc_target target = {to->env->self, to->opts.addr};
        opts.body.payload = bytes;
        opts.body.payload_len = hth_row_write(&msg, bytes) - (i == BYTES);
        assert_ok(
            hth_rpc_call(hth_crew_rpc(s->crew, from), &target, &opts, on_probe, &got[i], NULL));
    }
    check_calm(s, S, 3);
    for (uint32_t i = 0; i < CASES; i++)
        assert_err(expected[i], got[i]);
    crew_scene_free(s);
}

struct hoard {
    struct hth_rpc_request *req[16];
    uint32_t count;
};

static void hoard_row(void *arg, struct hth_rpc_request *req)
{
    struct hoard *h = arg;

    assert_true(h->count < HTH_ARRAY_LEN(h->req));
    h->req[h->count++] = req;
}

/* A leader that lives and answers no ROW of one round: all of its row go on in the next ones. */
TEST(a_leader_that_never_begins)
{
    struct crew_scene *s = start(6, 2 * MS, 9, 0, "3x3", HTH_QUANT_F32, 0, &crew_slow);
    struct hoard hoard = {.count = 0};

    hth_world_run_for(s->world, 6 * S);
    hth_rpc_serve(hth_crew_rpc(s->crew, 4), HTH_ROW_METHOD, hoard_row, &hoard);
    while (hoard.count < 2) /* of a row of three */
        hth_world_run_for(s->world, MS);
    hth_rpc_serve(hth_crew_rpc(s->crew, 4), HTH_ROW_METHOD, collab_on_row, collab_of(s, 4));
    uint64_t before = step_of(s, 4);
    hth_world_run_for(s->world, 45 * S); /* lines are reduced for at most 30 s */
    assert_true(crew_same(s, S) > before + 10);
    for (uint32_t i = 0; i < 9; i++)
        assert_true(step_of(s, i) > before + 10);
    while (hoard.count > 0)
        hth_rpc_refuse(hoard.req[--hoard.count], HTH_E_CANCELED, 0, NULL);
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
TEST(a_program_that_is_too_old_ends)
{
    struct crew_scene *s = start(1, 2 * MS, 4, 0, "4", HTH_QUANT_F32, 0, &crew_slow);

    for (uint32_t i = 0; i < 4; i++)
        speak(s, i, i == 2 ? 1 : 2);
    for (uint32_t k = 0; k < 2; k++) {
        hth_world_run_for(s->world, 6 * S);
        const struct hth_collab *c = collab_of(s, 0);
        assert_int_equal(hth_chain_at(c->chain, hth_collab_choice(c)->tip)->protocol, k + 1);
        if (k == 0)
            crew_crash(s, 2, HTH_CRASH_RESET);
    }
    crew_restart(s, 2);
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
    hth_rpc_refuse(req, HTH_E_VERSION, 0, "LINKS");
}

/* Nor does one that can't read what they say, or the other way round, begin a run beside them; but
 * where strangers take part any of them may say that, and ends nobody. */
TEST(a_newcomer_of_another_version_begins_nothing)
{
    struct crew_scene *s = start(2, 2 * MS, 4, 0, "4", HTH_QUANT_F32, 0, &crew_slow);

    hth_world_run_for(s->world, 6 * S);
    for (uint32_t i = 0; i < 4; i++)
        hth_rpc_serve(hth_crew_rpc(s->crew, i), HTH_ROLL_METHOD_LINKS, refuse_version, NULL);
    uint32_t open = hth_crew_join(s->crew);
    collab_when_up(s, open)->opts.strangers = true;
    hth_world_run_for(s->world, 5 * S);
    assert_ok(hth_crew_err(s->crew));
    assert_true(crew_stats(s, open).updates > 0);
    hth_rpc_serve(hth_crew_rpc(s->crew, open), HTH_ROLL_METHOD_LINKS, refuse_version, NULL);
    uint32_t late = hth_crew_join(s->crew);
    hth_world_run_for(s->world, 30 * S);
    assert_err(HTH_E_VERSION, hth_crew_err(s->crew));
    assert_int_equal(crew_stats(s, late).updates, 0);
    assert_true(step_of(s, 0) > 15);
    crew_scene_free(s);
}
