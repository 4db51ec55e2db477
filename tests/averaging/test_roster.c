/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_roster.c: who is counted, exactly and sampled; one shape for all; cells; clocks; and which
 * notes count.
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

static enum hth_err fill_note(void *arg, struct hth_writer *w)
{
    return hth_roster_note_write(arg, w);
}

static uint32_t population(const struct swarm *s, uint32_t i)
{
    return hth_roster_population(s->roster[i], NULL);
}

static void add_many(struct swarm *s, uint32_t count, const struct hth_roster_opts *o)
{
    for (uint32_t i = 0; i < count; i++)
        add(s, o);
}

/* Publishes a note that is made up. */
static struct hth_publisher *publish(struct swarm *s, struct hth_roster_note *note, uint8_t part,
                                     struct hth_node *node)
{
    const struct hth_publisher_opts opts = {.part = part, .life_us = 20 * S};
    struct hth_publisher *p;
    struct hth_topic topic;

    (void)s;
    hth_topic_init(&topic, hth_node_env(node)->crypto, "net", HTH_RECORD_PROGRESS, "roster", 6);
    assert_ok(hth_publisher_new(hth_node_env(node), hth_node_dht(node), &topic, &opts, fill_note,
                                note, &p));
    return p;
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

static void done_leaving(void *arg)
{
    *(bool *)arg = true;
}

/* A newcomer with a state is counted at once, though its last note is but a moment old. One in
 * doubt does not count for a minute. One that has not come in yet says nothing, and reads. */
static void test_who_counts(void **state)
{
    struct hth_roster_opts o = defaults(), newcomer = defaults(), silent = defaults();
    const struct hth_peer_id *id;
    bool done = false;
    struct swarm s;

    (void)state;
    newcomer.flags = HTH_ROSTER_BOOTSTRAPPING;
    silent.silent = true;
    swarm_init(&s, 2, 4);
    add(&s, &o);
    add(&s, &newcomer);
    add(&s, &silent);
    hth_world_run_for(s.world, 5 * S);
    hth_roster_set_progress(s.roster[1], 7, 0, 0);
    hth_world_run_for(s.world, S / 50); /* the note is put */
    assert_int_equal(population(&s, 0), 1);
    assert_int_equal(population(&s, 2), 2);
    hth_roster_set_flags(s.roster[1], 0);
    hth_world_run_for(s.world, S / 5);
    assert_int_equal(population(&s, 0), 2);
    hth_roster_speak(s.roster[2]);
    hth_world_run_for(s.world, 2 * S);
    assert_int_equal(population(&s, 0), 3);
    id = &hth_node_env(s.node[1])->self;
    hth_roster_doubt(s.roster[0], id);
    hth_roster_doubt(s.roster[0], id); /* once is enough */
    assert_int_equal(population(&s, 0), 2);
    hth_world_run_for(s.world, 59 * S);
    assert_int_equal(population(&s, 0), 2);
    hth_world_run_for(s.world, 2 * S);
    assert_int_equal(population(&s, 0), 3);
    hth_roster_leave(add(&s, &o), done_leaving, &done); /* before a word */
    assert_false(done);
    hth_world_run_for(s.world, 1 * S);
    assert_true(done);
    hth_roster_doubt(s.roster[0], &hth_node_env(s.node[3])->self); /* not there any more */
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

static void check_one_shape(const struct swarm *s, uint32_t n)
{
    const struct hth_avg_shape *first = hth_roster_shape(s->roster[0]);

    assert_true(first->dims > 0);
    for (uint32_t i = 0; i < n; i++)
        assert_true(hth_avg_shape_eq(hth_roster_shape(s->roster[i]), first));
    assert_true(hth_avg_fill(first, n) >= HTH_AVG_FILL_MIN);
    assert_true(hth_avg_fill(first, n) <= HTH_AVG_FILL_MAX);
}

static uint64_t proposed(const struct swarm *s, uint32_t n)
{
    struct hth_roster_stats stats;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        hth_roster_stats(s->roster[i], &stats);
        sum += stats.proposed;
    }
    return sum;
}

/* Whoever holds a shape says its cell in the same note, asked for it or not; by rank, so that all
 * cells are taken. */
static void check_full(const struct swarm *s)
{
    uint8_t taken[16] = {0};

    for (uint32_t i = 0; i < 16; i++) {
        const struct hth_roster_peer *p =
            hth_roster_find(s->roster[i > 0 ? 0 : 1], &hth_node_env(s->node[i])->self);
        struct hth_avg_cell cell;

        assert_non_null(p);
        assert_ok(hth_roster_cell(s->roster[i], &cell));
        assert_memory_equal(&cell, &p->note.cell, sizeof(cell));
        taken[4 * cell.at[0] + cell.at[1]]++;
    }
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(taken[i], 1);
}

/* The grid follows the population, and a population that stays keeps it. Many that come at once
 * propose, and one shape stays. */
static void test_one_shape(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    uint64_t before;

    (void)state;
    o.group_max = 4;
    swarm_init(&s, 6, 64);
    add_many(&s, 16, &o);
    hth_world_run_for(s.world, 8 * S);
    check_one_shape(&s, 16);
    check_full(&s);
    add_many(&s, 24, &o);
    hth_world_run_for(s.world, 20 * S);
    check_one_shape(&s, 40);
    for (int i = 40; i < 64; i++) {
        add(&s, &o);
        hth_world_run_for(s.world, S / 4);
    }
    hth_world_run_for(s.world, 10 * S);
    check_one_shape(&s, 64);
    for (uint32_t i = 30; i < 64; i++)
        hth_roster_leave(s.roster[i], NULL, NULL);
    hth_world_run_for(s.world, 15 * S);
    check_one_shape(&s, 30);
    before = proposed(&s, 30);
    hth_world_run_for(s.world, 100 * S);
    check_one_shape(&s, 30);
    assert_int_equal(proposed(&s, 30), before);
    swarm_clear(&s);
}

static void doubt_third(const struct swarm *s)
{
    for (uint32_t i = 0; i < 2; i++)
        hth_roster_doubt(s->roster[i], &hth_node_env(s->node[2])->self);
}

/* Two see a third, and again not, in the moment in which they change their grid for it. They do not
 * swap it for ever. */
static void test_two_do_not_swap(void **state)
{
    struct hth_roster_opts o = defaults();

    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct swarm s;
        uint64_t before;

        swarm_init(&s, seed, 3);
        add_many(&s, 3, &o);
        hth_world_run_for(s.world, 8 * S);
        doubt_third(&s);
        hth_world_run_for(s.world, 50 * S);
        check_one_shape(&s, 2); /* of two; then the doubt is over */
        while (hth_roster_shape(s.roster[0])->size[0] + hth_roster_shape(s.roster[1])->size[0] < 5)
            hth_world_run_for(s.world, S / 50);
        doubt_third(&s);
        hth_world_run_for(s.world, 12 * S);
        check_one_shape(&s, 2);
        before = proposed(&s, 2);
        hth_world_run_for(s.world, 12 * S);
        assert_int_equal(proposed(&s, 2), before);
        swarm_clear(&s);
    }
}

/* What one key says moves nobody: a grid that suits nobody, or another one that does. As many keys
 * as there are peers do not move them into one that does not suit. */
static void test_made_up_shapes(void **state)
{
    static const char *const texts[] = {"8x8x8x8", "50x50", "3x4", "3x4"};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(texts); k++) {
        uint32_t count = k == 3 ? 5 : 1;
        struct hth_roster_note note = {.addr = {.family = 4, .port = 1}, .schema = 7};
        struct hth_publisher *p[5];
        struct hth_avg_shape before;
        struct swarm s;
        struct hth_roster_opts o = defaults();

        o.group_max = 4;
        swarm_init(&s, 16, 12);
        add_many(&s, 12, &o);
        hth_world_run_for(s.world, 8 * S);
        check_one_shape(&s, 12);
        before = *hth_roster_shape(s.roster[0]);
        assert_ok(hth_avg_shape_parse(texts[k], &note.shape));
        note.flags = 0;
        for (uint32_t i = 0; i < count; i++)
            p[i] = publish(&s, &note, 0, hth_world_node(s.world, "liar", NULL));
        hth_world_run_for(s.world, 2 * S);
        for (uint32_t i = 0; i < 12 && count == 1; i++)
            assert_true(hth_avg_shape_eq(hth_roster_shape(s.roster[i]), &before));
        for (uint32_t i = 0; i < count; i++)
            hth_publisher_free(p[i]);
        hth_world_run_for(s.world, 40 * S);
        check_one_shape(&s, 12);
        swarm_clear(&s);
    }
}

static void test_given_shapes_and_cells(void **state)
{
    struct hth_avg_cell to = {{3, 2}}, cell;
    const struct hth_roster_peer *p;
    struct swarm s;
    struct hth_roster_opts o = defaults();

    (void)state;
    assert_ok(hth_avg_shape_parse("4x4", &o.shape));
    swarm_init(&s, 9, 16);
    add_many(&s, 16, &o);
    hth_world_run_for(s.world, 5 * S);
    check_full(&s);
    /* A move is kept and told; one in another shape is refused. */
    assert_ok(hth_roster_set_cell(s.roster[0], &o.shape, &to));
    hth_roster_set_round(s.roster[0], 41);
    to.at[1] = 4;
    assert_err(HTH_E_STALE, hth_roster_set_cell(s.roster[0], &o.shape, &to));
    to.at[1] = 0;
    o.shape.size[1] = 5;
    assert_err(HTH_E_STALE, hth_roster_set_cell(s.roster[0], &o.shape, &to));
    hth_world_run_for(s.world, 2 * S);
    p = hth_roster_find(s.roster[1], &hth_node_env(s.node[0])->self);
    assert_int_equal(p->note.cell.at[0], 3);
    assert_int_equal(p->note.cell.at[1], 2);
    assert_int_equal(p->note.round, 41);
    swarm_clear(&s);
    o.has_cell = true;
    o.cell = (struct hth_avg_cell){{1, 2}};
    swarm_init(&s, 10, 1);
    add(&s, &o);
    assert_ok(hth_roster_cell(s.roster[0], &cell));
    assert_memory_equal(&cell, &o.cell, sizeof(cell));
    swarm_clear(&s);
}

/* Steady progress within a step is not told; a step or another speed is, in a bounded way. */
static void test_progress_is_told_seldom(void **state)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_roster_stats before, after;

    (void)state;
    swarm_init(&s, 12, 2);
    add_many(&s, 2, &o);
    hth_roster_set_progress(s.roster[0], 1, 100, 100);
    hth_world_run_for(s.world, 2 * S);
    hth_roster_stats(s.roster[0], &before);
    for (uint64_t i = 1; i <= 50; i++) {
        hth_roster_set_progress(s.roster[0], 1, 300 + 10 * i, 100);
        hth_world_run_for(s.world, S / 10);
    }
    hth_roster_stats(s.roster[0], &after);
    assert_true(after.puts - before.puts <= 1);
    for (uint64_t i = 1; i <= 100; i++) {
        hth_roster_set_progress(s.roster[0], 1 + i, i, i % 2 ? 10 : 1000);
        hth_world_run_for(s.world, S / 100);
    }
    hth_world_run_for(s.world, S);
    hth_roster_stats(s.roster[0], &before);
    assert_in_range(before.puts - after.puts, 2, 5);
    assert_int_equal(hth_roster_at(s.roster[1], 0)->note.step, 101);
    assert_int_equal(hth_roster_at(s.roster[1], 0)->note.samples, 100);
    swarm_clear(&s);
}

/* ---- clocks and limits ----------------------------------------------------------------------- */

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
    assert_true(stats.refused > 0);
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

/* No more than HTH_AVG_ROSTER_MAX notes of strangers are kept; of each the first part, as anybody
 * can sign others. */
static void test_notes_believed_are_bounded(void **state)
{
    enum { STRANGERS = HTH_AVG_ROSTER_MAX + 50 };
    static struct hth_publisher *note[STRANGERS];
    struct hth_roster_note made_up = {.addr = {.family = 4, .port = 1}, .schema = 7};
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_roster_stats stats;
    struct hth_node *n;

    (void)state;
    o.watch_only = true; /* its own note takes no place */
    swarm_init(&s, 14, 1);
    add(&s, &o);
    n = hth_world_node(s.world, "stranger", NULL);
    for (uint8_t i = 0; i < 2; i++)
        note[i] = publish(&s, &made_up, i, n);
    hth_world_run_for(s.world, 5 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, 1);
    hth_publisher_free(note[1]);
    hth_world_run_for(s.world, 25 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, 1);
    for (uint32_t i = 1; i < STRANGERS; i++)
        note[i] = publish(&s, &made_up, 0, hth_world_node(s.world, "stranger", NULL));
    hth_world_run_for(s.world, 5 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, HTH_AVG_ROSTER_MAX);
    assert_true(stats.refused >= STRANGERS - HTH_AVG_ROSTER_MAX);
    for (uint32_t i = 0; i < STRANGERS; i++)
        hth_publisher_free(note[i]);
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
    REFUSED(shape.dims, HTH_AVG_DIMS_MAX + 1);
    REFUSED(has_cell, true);
#undef REFUSED
    swarm_clear(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_count),
        cmocka_unit_test(test_who_counts),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_sampled_1024),
        cmocka_unit_test(test_level_falls),
        cmocka_unit_test(test_one_shape),
        cmocka_unit_test(test_two_do_not_swap),
        cmocka_unit_test(test_made_up_shapes),
        cmocka_unit_test(test_given_shapes_and_cells),
        cmocka_unit_test(test_progress_is_told_seldom),
        cmocka_unit_test(test_clock_skew),
        cmocka_unit_test(test_notes_believed_are_bounded),
        cmocka_unit_test(test_options),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
