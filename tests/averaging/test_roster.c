/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The roster in the simulator: who is counted, exactly and sampled; one shape for all; cells;
 * clocks; and whose notes count.
 */
#include "averaging/roster.h"

#include "core/mem.h"
#include "dht/board.h"
#include "sim/world.h"
#include "support/test.h"

#define S HTH_US_PER_S

struct swarm {
    struct hth_world *world;
    struct hth_roster **roster;
    struct hth_node **node;
    uint32_t count;
};

static struct hth_roster_opts defaults(void)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;

    o.network = "net";
    o.schema = 7;
    o.addr.family = 4;
    return o;
}

static void swarm_init(struct swarm *s, uint64_t seed, uint32_t max)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;

    memset(s, 0, sizeof(*s));
    s->world = hth_world_new(seed, &opts);
    s->roster = hth_new_array(struct hth_roster *, max);
    s->node = hth_new_array(struct hth_node *, max);
}

static struct hth_roster *add_skewed(struct swarm *s, const struct hth_roster_opts *o,
                                     int64_t skew_us)
{
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    char name[24];
    uint32_t i = s->count++;

    node.wall_skew_us = skew_us;
    snprintf(name, sizeof(name), "n%u", i);
    s->node[i] = hth_world_node(s->world, name, &node);
    assert_ok(hth_roster_new(hth_node_env(s->node[i]), hth_node_dht(s->node[i]), o, &s->roster[i]));
    return s->roster[i];
}

static struct hth_roster *add(struct swarm *s, const struct hth_roster_opts *o)
{
    return add_skewed(s, o, 0);
}

static void swarm_clear(struct swarm *s)
{
    struct hth_open_counts open;

    for (uint32_t i = 0; i < s->count; i++)
        hth_roster_free(s->roster[i]);
    hth_world_open(s->world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(s->world);
    hth_free(s->roster);
    hth_free(s->node);
}

/* ---- counting -------------------------------------------------------------------------------- */

static void test_exact_count(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults(), other = defaults(), helper = defaults(),
                           onlooker = defaults(), newcomer = defaults();
    struct hth_roster_stats stats;
    bool exact;

    (void)state;
    swarm_init(&s, 1, 70);
    other.schema = 8;
    helper.flags = HTH_ROSTER_HELPER;
    newcomer.flags = HTH_ROSTER_BOOTSTRAPPING;
    onlooker.watch_only = true;
    for (int i = 0; i < 60; i++)
        add(&s, &o);
    add(&s, &helper); /* brings nothing */
    add(&s, &other);
    add(&s, &newcomer);
    add(&s, &onlooker);
    hth_world_run_for(s.world, 5 * S);
    for (uint32_t i = 0; i < s.count; i++) {
        bool alone = i == 61;

        assert_int_equal(hth_roster_population(s.roster[i], &exact), alone ? 1 : 60);
        assert_true(exact);
        hth_roster_stats(s.roster[i], &stats);
        assert_int_equal(stats.seen, i == 63 ? 63 : 62);
        assert_int_equal(stats.level, 0);
        assert_int_equal(stats.other_schema, alone ? 62 : 1);
        assert_int_equal(stats.bootstrapping, alone || i == 62 ? 0 : 1);
    }
    /* One leaves, one dies: the first at once, the second when its note's life is over. */
    hth_roster_leave(s.roster[0], NULL, NULL);
    hth_world_run_for(s.world, 2 * S);
    assert_int_equal(hth_roster_population(s.roster[5], NULL), 59);
    hth_roster_free(s.roster[1]);
    s.roster[1] = NULL;
    hth_world_run_for(s.world, 10 * S);
    assert_int_equal(hth_roster_population(s.roster[5], NULL), 59);
    hth_world_run_for(s.world, 12 * S);
    assert_int_equal(hth_roster_population(s.roster[5], NULL), 58);
    swarm_clear(&s);
}

/* Who has a state is counted at once, though its last note is but a moment old. */
static void test_who_comes_in(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults(), newcomer = defaults();

    (void)state;
    newcomer.flags = HTH_ROSTER_BOOTSTRAPPING;
    swarm_init(&s, 2, 2);
    add(&s, &o);
    add(&s, &newcomer);
    hth_world_run_for(s.world, 5 * S);
    hth_roster_set_progress(s.roster[1], 7, 0, 0);
    hth_world_run_for(s.world, S / 50); /* the note is put */
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 1);
    hth_roster_set_flags(s.roster[1], 0);
    hth_world_run_for(s.world, S / 5);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    swarm_clear(&s);
}

/* A peer in doubt does not count for a minute, and the next time for two. */
static void test_doubts(void **state)
{
    const struct hth_peer_id *id;
    struct swarm s;
    struct hth_roster_opts o = defaults();

    (void)state;
    swarm_init(&s, 17, 3);
    for (int i = 0; i < 3; i++)
        add(&s, &o);
    hth_world_run_for(s.world, 5 * S);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    hth_roster_leave(s.roster[1], NULL, NULL);
    hth_world_run_for(s.world, 2 * S);
    id = &hth_node_env(s.node[2])->self;
    for (int64_t minutes = 1; minutes <= 4; minutes *= 2) {
        assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
        hth_roster_doubt(s.roster[0], id);
        hth_roster_doubt(s.roster[0], id); /* once is enough */
        assert_int_equal(hth_roster_population(s.roster[0], NULL), 1);
        hth_world_run_for(s.world, minutes * 60 * S - S);
        assert_int_equal(hth_roster_population(s.roster[0], NULL), 1);
        hth_world_run_for(s.world, 2 * S);
    }
    hth_roster_doubt(s.roster[0], &hth_node_env(s.node[1])->self); /* not there any more */
    swarm_clear(&s);
}

/* A lost peer counts on; it is lost until it speaks or its note is renewed. */
static void test_lost(void **state)
{
    const struct hth_avg_line line = {.round = 3, .shape = {.dims = 1, .size = {2}}};
    const struct hth_roster_peer *p;
    struct swarm s;
    struct hth_roster_opts o = defaults();

    (void)state;
    swarm_init(&s, 18, 2);
    add(&s, &o);
    add(&s, &o);
    hth_world_run_for(s.world, 5 * S);
    p = hth_roster_at(s.roster[0], 0);
    for (int renewed = 0; renewed < 2; renewed++) {
        hth_roster_lost(s.roster[0], &p->id);
        assert_true(p->lost);
        assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
        if (renewed == 0)
            hth_roster_heard(s.roster[0], &p->id, &line, 7, 0);
        else
            hth_roster_set_progress(s.roster[1], 1, 0, 0);
        hth_world_run_for(s.world, renewed * S);
        assert_false(p->lost);
        assert_int_equal(p->note.round, renewed == 0 ? 3 : 0); /* by its clock the note is newer */
    }
    hth_roster_free(s.roster[1]);
    s.roster[1] = NULL;
    hth_world_run_for(s.world, 25 * S);
    hth_roster_lost(s.roster[0], &hth_node_env(s.node[1])->self); /* not there any more */
    swarm_clear(&s);
}

/* Who has not come in yet says nothing, and reads all the same. */
static void test_silence(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults(), silent = defaults();

    (void)state;
    silent.silent = true;
    swarm_init(&s, 1, 2);
    add(&s, &o);
    add(&s, &silent);
    hth_world_run_for(s.world, 5 * S);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 1);
    assert_int_equal(hth_roster_population(s.roster[1], NULL), 2);
    hth_roster_speak(s.roster[1]);
    hth_world_run_for(s.world, 2 * S);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    swarm_clear(&s);
}

static void done_leaving(void *arg)
{
    *(bool *)arg = true;
}

static void test_leaving_before_a_word(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    bool done = false;

    (void)state;
    swarm_init(&s, 1, 1);
    hth_roster_leave(add(&s, &o), done_leaving, &done);
    assert_false(done);
    hth_world_run_for(s.world, 1 * S);
    assert_true(done);
    swarm_clear(&s);
}

/* Thousands: each reader's board stays small and its estimate near. */
static void check_sampled(uint32_t n, uint64_t seed)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    uint32_t posts = 0, seen_max = 0;
    double worst = 0, sum = 0;

    swarm_init(&s, seed, n);
    for (uint32_t i = 0; i < n; i++)
        add(&s, &o);
    hth_world_run_for(s.world, 8 * S);
    for (uint32_t i = 0; i < n; i++) {
        struct hth_roster_stats stats;
        bool exact;
        uint32_t population = hth_roster_population(s.roster[i], &exact);

        hth_roster_stats(s.roster[i], &stats);
        assert_false(exact);
        seen_max = HTH_MAX(seen_max, stats.seen);
        posts += stats.puts > 0;
        worst = hth_worse(worst, fabs((double)population / n - 1));
        sum += population;
    }
    assert_true(worst <= 0.25);
    assert_close(sum / n, n, 0.25, 0);
    assert_true(seen_max <= 2 * HTH_AVG_ROSTER_HIGH);
    assert_true(posts < n / 2);
    swarm_clear(&s);
}

static void test_sampled_1024(void **state)
{
    (void)state;
    check_sampled(1024, 3);
}

/* Most of them go: those who are left speak more, until all do. */
static void test_level_falls(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_roster_stats stats;
    bool exact;

    (void)state;
    swarm_init(&s, 5, 400);
    for (int i = 0; i < 400; i++)
        add(&s, &o);
    hth_world_run_for(s.world, 10 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_true(stats.level >= 2);
    for (uint32_t i = 30; i < 400; i++)
        hth_roster_leave(s.roster[i], NULL, NULL);
    hth_world_run_for(s.world, 40 * S);
    for (uint32_t i = 0; i < 30; i++) {
        assert_int_equal(hth_roster_population(s.roster[i], &exact), 30);
        assert_true(exact);
    }
    swarm_clear(&s);
}

/* ---- shapes and cells ------------------------------------------------------------------------ */

static void check_one_shape(struct swarm *s, uint32_t n, uint32_t *generation)
{
    const struct hth_avg_shape *first = hth_roster_shape(s->roster[0], generation);

    assert_true(*generation > 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t g;

        assert_true(hth_avg_shape_eq(hth_roster_shape(s->roster[i], &g), first));
        assert_int_equal(g, *generation);
    }
    assert_true(hth_avg_fill(first, n) >= HTH_AVG_FILL_MIN);
    assert_true(hth_avg_fill(first, n) <= HTH_AVG_FILL_MAX);
}

static void test_one_shape(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    uint32_t g1, g2, g3;

    (void)state;
    o.group_max = 4;
    swarm_init(&s, 6, 64);
    for (int i = 0; i < 16; i++)
        add(&s, &o);
    hth_world_run_for(s.world, 8 * S);
    check_one_shape(&s, 16, &g1);
    assert_int_equal(hth_roster_shape(s.roster[0], NULL)->dims, 2);
    for (int i = 16; i < 64; i++) {
        add(&s, &o);
        hth_world_run_for(s.world, S / 4);
    }
    hth_world_run_for(s.world, 10 * S);
    check_one_shape(&s, 64, &g2);
    assert_true(g2 > g1);
    for (uint32_t i = 30; i < 64; i++)
        hth_roster_leave(s.roster[i], NULL, NULL);
    hth_world_run_for(s.world, 15 * S);
    check_one_shape(&s, 30, &g3);
    assert_true(g3 > g2);
    /* A population that stays within the bounds keeps its grid. */
    hth_world_run_for(s.world, 100 * S);
    check_one_shape(&s, 30, &g1);
    assert_int_equal(g1, g3);
    swarm_clear(&s);
}

/* Two halves that could not hear each other come to the same generation with different shapes. */
static void test_shapes_of_a_partition_merge(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    uint32_t g;

    (void)state;
    o.group_max = 4;
    swarm_init(&s, 8, 20);
    for (int i = 0; i < 8; i++)
        add(&s, &o);
    hth_world_run_for(s.world, 8 * S);
    for (int i = 8; i < 20; i++) {
        struct hth_roster_opts own = o;

        add(&s, &own);
    }
    /* All of them at once: many propose, and one stays. */
    hth_world_run_for(s.world, 20 * S);
    check_one_shape(&s, 20, &g);
    swarm_clear(&s);
}

static uint32_t generation_of(const struct swarm *s, uint32_t i)
{
    uint32_t g;

    (void)hth_roster_shape(s->roster[i], &g);
    return g;
}

static void doubt_third(struct swarm *s)
{
    for (uint32_t i = 0; i < 2; i++)
        hth_roster_doubt(s->roster[i], &hth_node_env(s->node[2])->self);
}

/* With short steps, so that a note waits for the one before. */
static void run_steps(struct swarm *s, int steps)
{
    for (int k = 0; k < steps; k++) {
        for (uint32_t i = 0; i < 2; i++)
            hth_roster_set_progress(s->roster[i], hth_roster_self(s->roster[i])->step + 1, 0, 10);
        hth_world_run_for(s->world, S / 50);
    }
}

/* Two see a third, and again not, in the moment in which they change their grid for it: one knows
 * of the other that it holds the old one, which would do for two. They do not swap it for ever. */
static void test_two_do_not_swap(void **state)
{
    struct hth_roster_opts o = defaults();

    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct swarm s;
        uint32_t g;

        swarm_init(&s, seed, 3);
        for (int i = 0; i < 3; i++)
            add(&s, &o);
        hth_world_run_for(s.world, 8 * S);
        doubt_third(&s);
        hth_world_run_for(s.world, 50 * S);
        check_one_shape(&s, 2, &g); /* of two; then the doubt is over */
        while (generation_of(&s, 0) == g || generation_of(&s, 1) == g)
            run_steps(&s, 1);
        doubt_third(&s);
        run_steps(&s, 600);
        check_one_shape(&s, 2, &g);
        run_steps(&s, 600);
        assert_int_equal(generation_of(&s, 0), g);
        swarm_clear(&s);
    }
}

static void test_order_of_generations(void **state)
{
    (void)state;
    assert_true(hth_roster_is_later(1, 0));
    assert_false(hth_roster_is_later(0, 1));
    assert_false(hth_roster_is_later(0, UINT32_MAX));
    assert_false(hth_roster_is_later(7, 7));
    assert_true(hth_roster_is_later(8, 7));
    assert_true(hth_roster_is_later(UINT32_MAX, UINT32_MAX - 1));
    assert_true(hth_roster_is_later(1, UINT32_MAX));
    assert_false(hth_roster_is_later(UINT32_MAX, 1));
    for (uint64_t a = 1; a <= UINT32_MAX; a += 98765431) /* of two that differ one is later */
        for (uint64_t b = a + 1; b <= UINT32_MAX; b += 87654329)
            assert_true(hth_roster_is_later((uint32_t)a, (uint32_t)b) !=
                        hth_roster_is_later((uint32_t)b, (uint32_t)a));
    assert_true(hth_roster_is_later(1u + (1u << 31), 1) != hth_roster_is_later(1, 1u + (1u << 31)));
}

static enum hth_err fill_generation(void *arg, struct hth_writer *w)
{
    const struct hth_roster_note *grid = arg;
    struct hth_roster_note note = {.addr = {.family = 4, .port = 1},
                                   .schema = 7,
                                   .generation = grid->generation,
                                   .shape = grid->shape};

    return hth_roster_note_write(&note, w);
}

/* Somebody says a grid of the latest generation that there is. One that fits nobody moves nobody;
 * one that does is followed, and the next one comes after it. */
static void test_latest_generation(void **state)
{
    struct hth_publisher_opts opts = HTH_PUBLISHER_OPTS_INIT;
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_topic topic;
    struct hth_node *node;
    struct hth_publisher *note;
    struct hth_roster_note forged = {.shape = {.dims = 2, .size = {50, 50}}};
    uint32_t g, before;

    (void)state;
    o.group_max = 4;
    swarm_init(&s, 16, 12);
    for (int i = 0; i < 12; i++)
        add(&s, &o);
    hth_world_run_for(s.world, 8 * S);
    check_one_shape(&s, 12, &before);
    forged.generation = before + (1u << 31) - 1;
    node = hth_world_node(s.world, "liar", NULL);
    hth_topic_init(&topic, hth_node_env(node)->crypto, "net", HTH_RECORD_PROGRESS, "roster", 6);
    opts.life_us = 20 * S;
    assert_ok(hth_publisher_new(hth_node_env(node), hth_node_dht(node), &topic, &opts,
                                fill_generation, &forged, &note));
    hth_world_run_for(s.world, 15 * S);
    check_one_shape(&s, 12, &g);
    assert_int_equal(g, before);
    forged.shape = *hth_roster_shape(s.roster[0], NULL);
    hth_publisher_update(note, 0);
    hth_world_run_for(s.world, S);
    check_one_shape(&s, 12, &g);
    assert_int_equal(g, forged.generation);
    /* From here the highest number there is lies behind. */
    forged.generation = before + 7;
    hth_publisher_update(note, 0);
    hth_world_run_for(s.world, S);
    check_one_shape(&s, 12, &before);
    assert_int_equal(before, g);
    hth_publisher_free(note);
    for (int i = 4; i < 12; i++) {
        hth_roster_free(s.roster[i]);
        s.roster[i] = NULL;
    }
    hth_world_run_for(s.world, 40 * S);
    check_one_shape(&s, 4, &g);
    assert_in_range(g, before + 1, before + 5);
    swarm_clear(&s);
}

/* Who says that it follows a shape says its cell in the same note, asked for it or not. */
static void test_cells_come_with_the_shape(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    uint8_t taken[16] = {0};

    (void)state;
    o.group_max = 4;
    swarm_init(&s, 19, 16);
    for (int i = 0; i < 16; i++)
        add(&s, &o);
    hth_world_run_for(s.world, 8 * S);
    for (int i = 0; i < 16; i++) {
        const struct hth_roster_peer *p =
            hth_roster_find(s.roster[i > 0 ? 0 : 1], &hth_node_env(s.node[i])->self);
        struct hth_avg_cell cell;

        assert_non_null(p);
        assert_int_equal(p->note.generation, 1);
        assert_ok(hth_roster_cell(s.roster[i], &cell));
        assert_memory_equal(&cell, &p->note.cell, sizeof(cell));
        taken[4 * cell.at[0] + cell.at[1]]++;
    }
    for (int i = 0; i < 16; i++)
        assert_int_equal(taken[i], 1);
    swarm_clear(&s);
}

static void test_cells_fill_the_grid(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    uint8_t taken[16] = {0};

    (void)state;
    assert_ok(hth_avg_shape_parse("4x4", &o.shape));
    swarm_init(&s, 9, 16);
    for (int i = 0; i < 16; i++)
        add(&s, &o);
    hth_world_run_for(s.world, 3 * S);
    for (int i = 0; i < 16; i++) {
        struct hth_avg_cell cell;

        assert_ok(hth_roster_cell(s.roster[i], &cell));
        taken[4 * cell.at[0] + cell.at[1]]++;
    }
    for (int i = 0; i < 16; i++)
        assert_int_equal(taken[i], 1);
    /* A move is kept and told; one of an older generation is refused. */
    struct hth_avg_cell to = {{3, 2}};
    assert_ok(hth_roster_set_cell(s.roster[0], 1, &to));
    assert_err(HTH_E_STALE, hth_roster_set_cell(s.roster[0], 2, &to));
    to.at[1] = 4;
    assert_err(HTH_E_STALE, hth_roster_set_cell(s.roster[0], 1, &to));
    hth_world_run_for(s.world, 2 * S);
    const struct hth_roster_peer *p = hth_roster_find(s.roster[1], &hth_node_env(s.node[0])->self);
    assert_non_null(p);
    assert_int_equal(p->note.cell.at[0], 3);
    assert_int_equal(p->note.cell.at[1], 2);
    swarm_clear(&s);
}

static void test_given_cells_and_rounds(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_avg_cell cell;

    (void)state;
    assert_ok(hth_avg_shape_parse("2x3", &o.shape));
    o.has_cell = true;
    o.cell = (struct hth_avg_cell){{1, 2}};
    swarm_init(&s, 10, 2);
    add(&s, &o);
    add(&s, &o);
    assert_ok(hth_roster_cell(s.roster[0], &cell));
    assert_int_equal(cell.at[1], 2);
    hth_roster_set_round(s.roster[0], 41);
    hth_world_run_for(s.world, 3 * S);
    assert_int_equal(hth_roster_self(s.roster[0])->round, 41);
    assert_int_equal(hth_roster_at(s.roster[1], 0)->note.round, 41);
    swarm_clear(&s);
}

/* Steady progress is told now and then, and estimated in between. */
static void test_progress_is_told_seldom(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_roster_stats before, after;
    const struct hth_roster_note *said;

    (void)state;
    swarm_init(&s, 12, 2);
    add(&s, &o);
    add(&s, &o);
    hth_roster_set_progress(s.roster[0], 1, 100, 100);
    hth_world_run_for(s.world, 2 * S);
    hth_roster_stats(s.roster[0], &before);
    for (uint64_t i = 1; i <= 100; i++) {
        hth_roster_set_progress(s.roster[0], 1, 300 + 10 * i, 100);
        hth_world_run_for(s.world, S / 10);
    }
    hth_roster_stats(s.roster[0], &after);
    assert_true(after.puts - before.puts <= 4);
    /* A speed that changed is told; a storm of changes is bounded. */
    for (uint64_t i = 1; i <= 100; i++) {
        hth_roster_set_progress(s.roster[0], 1 + i, i, i % 2 ? 10 : 1000);
        hth_world_run_for(s.world, S / 100);
    }
    hth_world_run_for(s.world, S);
    hth_roster_stats(s.roster[0], &before);
    assert_true(before.puts - after.puts <= 5);
    said = &hth_roster_at(s.roster[1], 0)->note;
    assert_int_equal(said->step, 101);
    assert_int_equal(said->samples, 100);
    swarm_clear(&s);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static void test_clock_skew(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_roster_stats stats;

    (void)state;
    swarm_init(&s, 13, 3);
    add(&s, &o);
    add_skewed(&s, &o, 2900 * HTH_US_PER_MS);
    hth_roster_set_progress(s.roster[1], 1, 0, 100);
    hth_world_run_for(s.world, 10 * S);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    assert_int_equal(hth_roster_population(s.roster[1], NULL), 2);
    add_skewed(&s, &o, 3300 * HTH_US_PER_MS); /* 3.1 s and the time that a note needs */
    hth_world_run_for(s.world, 3 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    assert_true(stats.refused_skew > 0);
    assert_non_null(strstr(stats.refusal, "clock"));
    /* It goes, and a minute later that is no news. */
    hth_roster_free(s.roster[2]);
    s.roster[2] = NULL;
    hth_world_run_for(s.world, 50 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_string_not_equal(stats.refusal, "");
    hth_world_run_for(s.world, 40 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_string_equal(stats.refusal, "");
    swarm_clear(&s);
}

/* ---- whose notes count ---------------------------------------------------------------------- */

static enum hth_err fill_stranger(void *arg, struct hth_writer *w)
{
    struct hth_roster_note note = {.addr = {.family = 4, .port = 1}, .schema = 7};

    (void)arg;
    return hth_roster_note_write(&note, w);
}

/* A swarm of strangers' notes: no more than HTH_AVG_ROSTER_MAX are kept. */
static void test_notes_believed_are_bounded(void **state)
{
    enum { STRANGERS = HTH_AVG_ROSTER_MAX + 50 };
    static struct hth_publisher *note[STRANGERS];
    struct hth_publisher_opts opts = HTH_PUBLISHER_OPTS_INIT;
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_roster_stats stats;
    struct hth_topic topic;

    (void)state;
    swarm_init(&s, 14, 1);
    add(&s, &o);
    hth_topic_init(&topic, hth_node_env(s.node[0])->crypto, "net", HTH_RECORD_PROGRESS, "roster",
                   6);
    opts.life_us = 20 * S;
    for (uint32_t i = 0; i < STRANGERS; i++) {
        struct hth_node *n = hth_world_node(s.world, "stranger", NULL);

        assert_ok(hth_publisher_new(hth_node_env(n), hth_node_dht(n), &topic, &opts, fill_stranger,
                                    NULL, &note[i]));
    }
    hth_world_run_for(s.world, 5 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, HTH_AVG_ROSTER_MAX);
    assert_true(stats.refused >= STRANGERS - HTH_AVG_ROSTER_MAX);
    for (uint32_t i = 0; i < STRANGERS; i++)
        hth_publisher_free(note[i]);
    swarm_clear(&s);
}

/* Two notes of one peer, as anybody can sign them: the first part is its note, others are none. */
static void test_one_note_of_each(void **state)
{
    struct hth_publisher_opts opts = HTH_PUBLISHER_OPTS_INIT;
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_roster_stats stats;
    struct hth_topic topic;
    struct hth_publisher *note[2];
    struct hth_node *n;

    (void)state;
    swarm_init(&s, 16, 1);
    add(&s, &o);
    hth_topic_init(&topic, hth_node_env(s.node[0])->crypto, "net", HTH_RECORD_PROGRESS, "roster",
                   6);
    opts.life_us = 5 * S;
    n = hth_world_node(s.world, "stranger", NULL);
    for (uint8_t i = 0; i < 2; i++) {
        opts.part = i;
        assert_ok(hth_publisher_new(hth_node_env(n), hth_node_dht(n), &topic, &opts, fill_stranger,
                                    NULL, &note[i]));
    }
    hth_world_run_for(s.world, 5 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, 1);
    for (uint32_t i = 2; i-- > 0;) {
        hth_publisher_free(note[i]);
        hth_world_run_for(s.world, 15 * S);
        hth_roster_stats(s.roster[0], &stats);
        assert_int_equal(stats.seen, i);
    }
    swarm_clear(&s);
}

static void test_options(void **state)
{
    struct swarm s;
    struct hth_roster_opts o;
    struct hth_roster *r;
    struct hth_node *node;

    (void)state;
    swarm_init(&s, 15, 1);
    node = hth_world_node(s.world, "x", NULL);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        o = defaults();                                                                            \
        o.field = value;                                                                           \
        assert_err(HTH_E_CONFIG, hth_roster_new(hth_node_env(node), hth_node_dht(node), &o, &r));  \
    } while (0)
    REFUSED(network, "not a name");
    REFUSED(network, NULL);
    REFUSED(life_us, 1);
    REFUSED(life_us, HTH_RECORD_LIFE_MAX_US + 1);
    REFUSED(patience_us, 0);
    REFUSED(group_max, 1);
    REFUSED(bandwidth, NAN);
    REFUSED(shape.dims, HTH_AVG_DIMS_MAX + 1);
    REFUSED(has_cell, true);
#undef REFUSED
    swarm_clear(&s);
}

/* With an argument only the large one, which is a test of its own for ctest. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_count),
        cmocka_unit_test(test_who_comes_in),
        cmocka_unit_test(test_doubts),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_leaving_before_a_word),
        cmocka_unit_test(test_sampled_1024),
        cmocka_unit_test(test_level_falls),
        cmocka_unit_test(test_one_shape),
        cmocka_unit_test(test_shapes_of_a_partition_merge),
        cmocka_unit_test(test_two_do_not_swap),
        cmocka_unit_test(test_order_of_generations),
        cmocka_unit_test(test_latest_generation),
        cmocka_unit_test(test_cells_come_with_the_shape),
        cmocka_unit_test(test_cells_fill_the_grid),
        cmocka_unit_test(test_given_cells_and_rounds),
        cmocka_unit_test(test_progress_is_told_seldom),
        cmocka_unit_test(test_clock_skew),
        cmocka_unit_test(test_notes_believed_are_bounded),
        cmocka_unit_test(test_one_note_of_each),
        cmocka_unit_test(test_options),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
