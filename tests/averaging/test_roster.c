/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_roster.c: who is counted, exactly and sampled; one shape for all; cells; clocks; and which
 * notes count.
 */
#include "averaging/roster.h"

#include "core/mem.h"
#include "dht/board.h"
#include "sim/world.h"
#include "support/suite.h"

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
    o.addr.port = 1;
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
    uint8_t bytes[HTH_ROSTER_NOTE_BYTES_MAX];

    hth_write_bytes(w, bytes, hth_roster_note_write(arg, bytes));
    return w->err;
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
static struct hth_publisher *publish(struct hth_roster_note *note, uint8_t part,
                                     struct hth_node *node)
{
    const struct hth_publisher_opts opts = {.part = part, .life_us = 20 * S};
    struct hth_publisher *p;
    struct hth_topic topic;

    hth_topic_init(&topic, hth_node_env(node)->crypto, "net", HTH_RECORD_PROGRESS, "roster", 6);
    assert_ok(hth_publisher_new(hth_node_env(node), hth_node_dht(node), &topic, &opts, fill_note,
                                note, &p));
    return p;
}

/* ---- counting -------------------------------------------------------------------------------- */

TEST(test_exact_count)
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
    onlooker.silent = true;
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

/* A newcomer with a state is counted at once, though its last note is but a moment old. One that
 * has not come in yet says nothing, and reads. A lost peer counts on; it is lost until its note is
 * renewed. A doubt lasts for a minute. */
TEST(test_who_counts)
{
    struct hth_roster_opts o = defaults(), newcomer = defaults(), silent = defaults();
    const struct hth_roster_peer *p;
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
    assert_int_equal(population(&s, 2), 1);
    hth_roster_set_flags(s.roster[1], 0);
    hth_world_run_for(s.world, S / 5);
    assert_int_equal(population(&s, 0), 2);
    hth_roster_speak(s.roster[2]);
    hth_world_run_for(s.world, 2 * S);
    assert_int_equal(population(&s, 0), 3);
    p = hth_roster_find(s.roster[0], &hth_node_env(s.node[1])->self);
    hth_roster_lost(s.roster[0], &p->id);
    assert_true(p->lost);
    assert_int_equal(population(&s, 0), 3);
    hth_roster_set_progress(s.roster[1], 8, 0, 0);
    hth_world_run_for(s.world, S);
    assert_false(p->lost);
    hth_roster_doubt(s.roster[0], &p->id);
    hth_world_run_for(s.world, 59 * S);
    assert_true(hth_roster_doubts(s.roster[0], p));
    hth_world_run_for(s.world, 2 * S);
    assert_false(hth_roster_doubts(s.roster[0], p));
    hth_roster_leave(add(&s, &o), done_leaving, &done); /* before a word */
    assert_false(done);
    hth_world_run_for(s.world, 1 * S);
    assert_true(done);
    hth_roster_doubt(s.roster[0], &hth_node_env(s.node[3])->self); /* not there any more */
    hth_roster_lost(s.roster[0], &hth_node_env(s.node[3])->self);
    swarm_clear(&s);
}

/* Hundreds: each reader's board stays small and its estimate near. Most of them go: those who are
 * left speak more, until all do. */
TEST(test_sampled)
{
    enum { PEERS = 400 };
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_roster_stats stats;
    double sum = 0;
    bool exact;

    (void)state;
    swarm_init(&s, 5, PEERS);
    add_many(&s, PEERS, &o);
    hth_world_run_for(s.world, 8 * S);
    for (uint32_t i = 0; i < PEERS; i++) {
        uint32_t n = hth_roster_population(s.roster[i], &exact);

        hth_roster_stats(s.roster[i], &stats);
        assert_false(exact);
        assert_true(stats.seen <= 2 * HTH_AVG_ROSTER_HIGH && stats.level >= 2);
        assert_close(n, PEERS, 0.25, 0);
        sum += n;
    }
    assert_close(sum / PEERS, PEERS, 0.25, 0);
    for (uint32_t i = 30; i < PEERS; i++)
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
    const struct hth_avg_shape *first = &hth_roster_self(s->roster[0])->shape;

    assert_true(first->dims > 0);
    for (uint32_t i = 0; i < n; i++)
        assert_true(hth_avg_shape_eq(&hth_roster_self(s->roster[i])->shape, first));
    assert_true(hth_avg_fill(first, n) >= HTH_AVG_FILL_MIN);
    assert_true(hth_avg_fill(first, n) <= HTH_AVG_FILL_MAX);
}

/* A peer that holds a shape says its cell in the same note; by rank: all cells are taken. */
static void check_full(const struct swarm *s)
{
    uint8_t taken[16] = {0};

    for (uint32_t i = 0; i < s->count; i++) {
        const struct hth_roster_peer *p =
            hth_roster_find(s->roster[s->count - 2], &hth_node_env(s->node[i])->self);
        const struct hth_roster_note *n;

        if (s->roster[i] == NULL)
            continue;
        n = hth_roster_self(s->roster[i]);
        assert_true(i == s->count - 2 || memcmp(&n->cell, &p->note.cell, sizeof(n->cell)) == 0);
        taken[4 * n->cell.at[0] + n->cell.at[1]]++;
    }
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(taken[i], 1);
}

/* The grid follows the population, and a population that stays keeps it. Many that come at once
 * propose, and one shape stays. */
TEST(test_one_shape)
{
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_avg_shape before;

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
    before = hth_roster_self(s.roster[0])->shape;
    hth_world_run_for(s.world, 30 * S);
    check_one_shape(&s, 30);
    assert_true(hth_avg_shape_eq(&hth_roster_self(s.roster[0])->shape, &before));
    swarm_clear(&s);
}

/* What one key says moves nobody: a grid that suits nobody, or another one that does. As many keys
 * as there are peers do not move them into one that does not suit. */
TEST(test_made_up_shapes)
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
        before = hth_roster_self(s.roster[0])->shape;
        assert_ok(hth_avg_shape_parse(texts[k], &note.shape));
        note.flags = 0;
        for (uint32_t i = 0; i < count; i++)
            p[i] = publish(&note, 0, hth_world_node(s.world, "liar", NULL));
        hth_world_run_for(s.world, 2 * S);
        for (uint32_t i = 0; i < 12 && count == 1; i++)
            assert_true(hth_avg_shape_eq(&hth_roster_self(s.roster[i])->shape, &before));
        for (uint32_t i = 0; i < count; i++)
            hth_publisher_free(p[i]);
        hth_world_run_for(s.world, 40 * S);
        check_one_shape(&s, 12);
        swarm_clear(&s);
    }
}

/* The grid is full again as soon as who went and who came is known. Cells that are given stay. */
TEST(test_cells)
{
    struct hth_roster_opts o = defaults();
    struct swarm s;

    (void)state;
    assert_ok(hth_avg_shape_parse("4x4", &o.shape));
    swarm_init(&s, 9, 24);
    add_many(&s, 16, &o);
    hth_world_run_for(s.world, 5 * S);
    check_full(&s);
    for (uint32_t i = 0; i < 5; i++) {
        hth_roster_leave(s.roster[i], NULL, NULL);
        hth_world_run_for(s.world, S);
        hth_roster_free(s.roster[i]);
        s.roster[i] = NULL;
        add(&s, &o);
        hth_world_run_for(s.world, 2 * S);
        check_full(&s);
    }
    swarm_clear(&s);
    o.has_cell = true;
    o.cell = (struct hth_avg_cell){{1, 2}};
    swarm_init(&s, 10, 2);
    add_many(&s, 2, &o);
    hth_world_run_for(s.world, 5 * S);
    hth_roster_set_round(s.roster[0], 41);
    hth_world_run_for(s.world, S);
    assert_int_equal(hth_roster_at(s.roster[1], 0)->note.cell.at[1], 2);
    assert_int_equal(hth_roster_at(s.roster[1], 0)->note.round, 41);
    swarm_clear(&s);
}

/* Steady progress within a step is not told; a step or another speed is, in a bounded way. */
TEST(test_progress_is_told_seldom)
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

TEST(test_clock_skew)
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
TEST(test_notes_believed_are_bounded)
{
    enum { STRANGERS = HTH_AVG_ROSTER_MAX + 50 };
    static struct hth_publisher *note[STRANGERS];
    struct hth_roster_note made_up = {.addr = {.family = 4, .port = 1}, .schema = 7};
    struct swarm s;
    struct hth_roster_opts o = defaults();
    struct hth_roster_stats stats;
    struct hth_node *n;

    (void)state;
    o.silent = true; /* its own note takes no place */
    swarm_init(&s, 14, 1);
    add(&s, &o);
    n = hth_world_node(s.world, "stranger", NULL);
    for (uint8_t i = 0; i < 2; i++)
        note[i] = publish(&made_up, i, n);
    hth_world_run_for(s.world, 5 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, 1);
    hth_publisher_free(note[1]);
    hth_world_run_for(s.world, 25 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, 1);
    for (uint32_t i = 1; i < STRANGERS; i++)
        note[i] = publish(&made_up, 0, hth_world_node(s.world, "stranger", NULL));
    hth_world_run_for(s.world, 5 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, HTH_AVG_ROSTER_MAX);
    assert_true(stats.refused >= STRANGERS - HTH_AVG_ROSTER_MAX);
    for (uint32_t i = 0; i < STRANGERS; i++)
        hth_publisher_free(note[i]);
    swarm_clear(&s);
}

TEST(test_options)
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
    REFUSED(publish_min_us, -1);
    REFUSED(group_max, 1);
    REFUSED(shape.dims, HTH_AVG_DIMS_MAX + 1);
    REFUSED(has_cell, true);
#undef REFUSED
    swarm_clear(&s);
}

/* ---- bytes of notes -------------------------------------------------------------------------- */

static struct hth_roster_note good_note(void)
{
    struct hth_roster_note n = {.addr = {.family = 4, .ip = {10, 1, 2, 3}, .port = 9},
                                .flags = HTH_ROSTER_CLIENT,
                                .schema = 77,
                                .step = 12,
                                .samples = 13,
                                .samples_per_s = 14.5,
                                .round = 15,
                                .shape = {.dims = 2, .size = {3, 4}},
                                .cell = {{2, 3}},
                                .last = {.group = 1,
                                         .members = 2,
                                         .drops = 1,
                                         .bytes = 3,
                                         .change = 0.5,
                                         .norm = 4,
                                         .weight_fraction = 0.5},
                                .settings = {31, 32, 33, 34, 35}};

    return n;
}

static enum hth_err round_trip(const struct hth_roster_note *n, struct hth_roster_note *out)
{
    uint8_t bytes[HTH_ROSTER_NOTE_BYTES_MAX];

    return hth_roster_note_read(bytes, hth_roster_note_write(n, bytes), out);
}

TEST(test_notes_there_and_back)
{
    struct hth_roster_note n = good_note(), got;
    uint8_t bytes[HTH_ROSTER_NOTE_BYTES_MAX];
    size_t size = hth_roster_note_write(&n, bytes);

    (void)state;
    assert_ok(round_trip(&n, &got));
    assert_true(hth_addr_eq(&n.addr, &got.addr));
    assert_int_equal(got.samples, 13);
    assert_close(got.samples_per_s, 14.5, 0, 0);
    assert_int_equal(got.cell.at[1], 3);
    assert_int_equal(got.last.bytes, 3);
    assert_close(got.last.norm, 4, 0, 0);
    assert_close(got.last.weight_fraction, 0.5, 0, 0);
    assert_memory_equal(&got.settings, &n.settings, sizeof(n.settings));
    for (size_t len = 0; len < size; len++)
        assert_err(HTH_E_TRUNCATED, hth_roster_note_read(bytes, len, &got));
    assert_err(HTH_E_MALFORMED, hth_roster_note_read(bytes, size + 1, &got));
    bytes[0]++;
    assert_err(HTH_E_VERSION, hth_roster_note_read(bytes, size, &got));
}

TEST(test_limits_of_notes)
{
    struct hth_roster_note n, got;

    (void)state;
#define REFUSED(err, field, value)                                                                 \
    do {                                                                                           \
        n = good_note();                                                                           \
        n.field = value;                                                                           \
        assert_err(err, round_trip(&n, &got));                                                     \
    } while (0)
    REFUSED(HTH_E_MALFORMED, flags, HTH_ROSTER_FLAGS + 1);
    REFUSED(HTH_E_MALFORMED, addr.family, 5);
    REFUSED(HTH_E_RANGE, step, HTH_AVG_STEP_MAX + 1);
    REFUSED(HTH_E_RANGE, samples, HTH_AVG_SAMPLES_MAX + 1);
    REFUSED(HTH_E_RANGE, samples_per_s, 1.001 * HTH_AVG_RATE_MAX);
    REFUSED(HTH_E_RANGE, samples_per_s, -1);
    REFUSED(HTH_E_RANGE, samples_per_s, NAN);
    REFUSED(HTH_E_RANGE, shape.size[1], 0);
    REFUSED(HTH_E_RANGE, shape.size[1], HTH_AVG_CELLS_MAX);
    REFUSED(HTH_E_RANGE, cell.at[0], 3);
    REFUSED(HTH_E_RANGE, last.members, HTH_AVG_MEMBERS_MAX + 1);
    REFUSED(HTH_E_RANGE, last.drops, HTH_AVG_MEMBERS_MAX + 1);
    REFUSED(HTH_E_RANGE, last.change, -1);
    REFUSED(HTH_E_RANGE, last.change, NAN);
    REFUSED(HTH_E_RANGE, last.norm, INFINITY);
    REFUSED(HTH_E_RANGE, last.weight_fraction, -0.1);
    REFUSED(HTH_E_RANGE, last.weight_fraction, 1.01);
    REFUSED(HTH_E_RANGE, last.weight_fraction, NAN);
#undef REFUSED
    n = good_note();
    n.step = HTH_AVG_STEP_MAX;
    n.samples = HTH_AVG_SAMPLES_MAX;
    n.samples_per_s = HTH_AVG_RATE_MAX;
    assert_ok(round_trip(&n, &got));
}
