/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_notes.c: trainers of one run beside keys that only write notes: with a step or a round that
 * nobody can have reached, with a grid that suits nobody, or with parameters of their own. One key
 * ends nothing and holds nobody up for long, nor do as many keys as there are trainers.
 */
#include "averaging/match.h"
#include "averaging/roster.h"
#include "core/mem.h"
#include "dht/board.h"
#include "rpc/rpc.h"
#include "scenarios/fleet.h"
#include "support/suite.h"

#define S        HTH_US_PER_S
#define WINDOW_S 3 /* of a look */

/* ---- who writes notes ------------------------------------------------------------------------ */

enum lie { PRESENCE, AHEAD, STEP, ROUND, GRID, SAMPLES, SPEED };

struct writer {
    struct hth_malice_place place;
    struct hth_roster *roster; /* what it reads; it says nothing there */
    struct hth_rpc *rpc;       /* where it answers that it is not looking; NULL: it does not */
    struct hth_match *match;
    struct hth_topic topic;
    struct hth_publisher *note;
    struct hth_roster_note text;
    struct hth_timer *timer;
    int64_t since_us;
    uint32_t index; /* of the writers of its world */
};

/* The lie of all writers of a world: its kind, whether it has an address, whether the writer
 * answers, and when the writers leave. */
static enum lie what;
static uint64_t number;
static bool no_address, listens;
static int comes_s = 3;
static double leaves_s;
static uint32_t group;        /* trainers of a line at most; 0: as many as usual */
static uint32_t written;      /* writers so far */
static uint64_t target = 128; /* samples of a step */

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    const struct writer *n = arg;

    return hth_roster_note_write(&n->text, w);
}

/* As the first trainer that it sees, but for the lie; that it is there is one, too. */
static void invent(struct writer *n, const struct hth_roster_note *like)
{
    n->text = *like;
    if (like->shape.dims > 1) /* each in a cell of its own */
        n->text.cell = hth_avg_cell_of_rank(&like->shape, n->index);
    n->text.addr = no_address ? (struct hth_addr){0} : n->place.addr;
    n->text.samples = 10;
    n->text.samples_per_s = 100;
    if (what == AHEAD)
        n->text.step = like->step + number;
    if (what == STEP)
        n->text.step = number;
    if (what == SAMPLES)
        n->text.samples = number;
    if (what == SPEED)
        n->text.samples_per_s = HTH_AVG_RATE_MAX;
    if (what == ROUND)
        n->text.round = (uint32_t)number;
    if (what == GRID && like->shape.dims > 0) {
        n->text.shape = (struct hth_avg_shape){8, {8, 8, 8, 8, 8, 8, 8, 8}};
        n->text.cell = (struct hth_avg_cell){{0}};
    }
}

static void on_timer(void *arg)
{
    struct writer *n = arg;
    int64_t since_us = hth_now_us(n->place.env) - n->since_us;
    const struct hth_roster_peer *p = NULL;

    hth_timer_set(n->place.env, n->timer, 100 * HTH_US_PER_MS);
    if ((double)since_us > leaves_s * 1e6) {
        hth_publisher_free(n->note);
        n->note = NULL;
        return;
    }
    for (uint32_t i = 0; (p = hth_roster_at(n->roster, i)) != NULL; i++)
        if (p->note.schema != 0 && p->note.samples_per_s != 100 &&
            p->note.samples_per_s < HTH_AVG_RATE_MAX &&
            (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) == 0)
            break;
    if (p == NULL || since_us < comes_s * S)
        return;
    invent(n, &p->note);
    if (n->note == NULL) {
        const struct hth_publisher_opts o = {.life_us = 20 * S};

        assert_ok(hth_publisher_new(n->place.env, n->place.dht, &n->topic, &o, fill, n, &n->note));
    } else {
        hth_publisher_update(n->note, 0);
    }
}

static void listen(struct writer *n)
{
    struct hth_rpc_opts o = HTH_RPC_OPTS_INIT;
    struct hth_match_opts m = {.addr = n->place.addr};

    o.network = n->place.network;
    o.listen = &n->place.addr;
    assert_ok(hth_rpc_new(n->place.env, &o, &n->rpc));
    n->match = hth_match_new(n->place.env, n->rpc, &m);
}

static enum hth_err start(const struct hth_malice_place *place, void **self)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;
    struct writer *n = hth_new(struct writer);

    n->place = *place;
    n->index = written++;
    n->since_us = hth_now_us(place->env);
    o.network = place->network;
    o.silent = true;
    assert_ok(hth_roster_new(place->env, place->dht, &o, &n->roster));
    hth_topic_init(&n->topic, place->env->crypto, place->network, HTH_RECORD_PROGRESS, "roster", 6);
    n->timer = hth_timer_new(place->env, on_timer, n);
    hth_timer_set(place->env, n->timer, 0);
    if (listens)
        listen(n);
    *self = n;
    return HTH_OK;
}

static void stop(void *self)
{
    struct writer *n = self;

    hth_match_free(n->match);
    hth_rpc_free(n->rpc);
    hth_publisher_free(n->note);
    hth_roster_free(n->roster);
    hth_timer_free(n->place.env, n->timer);
    hth_free(n);
}

/* ---- a run beside them ----------------------------------------------------------------------- */

struct play {
    struct hth_world *world;
    struct hth_fleet *fleet;
    struct hth_fleet_malice malice;
    uint64_t updates, rounds;
};

static void play_new(struct play *p, uint64_t seed, enum hth_share_mode mode, uint32_t trainers,
                     uint32_t writers)
{
    static const struct hth_malice kind = {
        .name = "writer", .in_averages = true, .splits = true, .start = start, .stop = stop};
    struct hth_fleet_opts o = HTH_FLEET_OPTS_INIT;
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;

    *p = (struct play){.malice = {&kind, writers}};
    o.hosts = o.copies = 2;
    o.trainers = trainers;
    o.mode = mode;
    o.target = target;
    o.clip = 1.5;
    o.group = group;
    o.checkpoint_us = 0;
    o.malice = &p->malice;
    o.malice_count = writers > 0;
    w.ghost = true;
    written = 0;
    p->world = hth_world_new(seed, &w);
    assert_ok(hth_fleet_new(p->world, &o, &p->fleet));
}

/* Run for those seconds and count. */
static void go_on(struct play *p, int seconds, uint64_t *updates, uint64_t *rounds)
{
    struct hth_fleet_stats stats;

    hth_world_run_for(p->world, seconds * S);
    hth_fleet_stats(p->fleet, &stats);
    assert_string_equal(hth_fleet_why(p->fleet), "");
    *updates = stats.updates - p->updates;
    *rounds = stats.rounds - p->rounds;
    p->updates = stats.updates;
    p->rounds = stats.rounds;
}

static void play_free(struct play *p)
{
    hth_world_free(p->world);
    hth_fleet_free(p->fleet);
}

/* Between 10 and 25 s, with the writers, and the 15 s after that, when they have left at 25 s. */
static void live(uint64_t seed, enum hth_share_mode mode, uint32_t trainers, uint32_t writers,
                 uint64_t with[2], uint64_t after[2])
{
    uint64_t begin[2];
    struct play p;

    leaves_s = 25;
    play_new(&p, seed, mode, trainers, writers);
    go_on(&p, 10, &begin[0], &begin[1]);
    go_on(&p, 15, &with[0], &with[1]);
    go_on(&p, 15, &after[0], &after[1]);
    print_message("seed %llu, %u trainers, %u beside them, %s: %llu updates, %llu rounds; then "
                  "%llu, %llu\n",
                  (unsigned long long)seed, trainers, writers,
                  mode == HTH_SHARE_BATCH ? "batch" : "local", (unsigned long long)with[0],
                  (unsigned long long)with[1], (unsigned long long)after[0],
                  (unsigned long long)after[1]);
    play_free(&p);
}

/* The same trainers alone, the rates of which the others should nearly have: of those in batch mode
 * the updates, of others the rounds. */
static uint64_t alone(enum hth_share_mode mode, uint32_t trainers)
{
    static uint64_t known[2][5];
    bool batch = mode == HTH_SHARE_BATCH;
    uint64_t with[2], after[2], *of = &known[batch][trainers];

    if (*of == 0) {
        live(4, mode, trainers, 0, with, after);
        *of = with[batch ? 0 : 1];
    }
    return *of;
}

TEST(false_step_does_not_stop_a_run)
{
    uint64_t with[2], after[2], usual = alone(HTH_SHARE_BATCH, 4);

    (void)state;
    what = STEP;
    number = HTH_AVG_STEP_MAX;
    for (uint64_t seed = 4; seed < 8; seed++) {
        live(seed, HTH_SHARE_BATCH, 4, 1, with, after);
        assert_true(with[0] > usual * 3 / 4 && after[0] > usual * 3 / 4);
    }
    /* As many as there are trainers hold them up, and end nothing. */
    live(4, HTH_SHARE_BATCH, 4, 4, with, after);
    assert_true(with[0] > usual / 8 && after[0] > usual * 3 / 4);
}

/* Nobody listens where such words come from, and they soon count for nothing. */
TEST(false_samples_do_not_stop_a_run)
{
    uint64_t with[2], after[2], usual = alone(HTH_SHARE_BATCH, 4);

    (void)state;
    number = HTH_AVG_SAMPLES_MAX;
    for (what = SAMPLES; what <= SPEED; what++) {
        live(4, HTH_SHARE_BATCH, 4, 1, with, after);
        assert_true(with[0] > usual * 9 / 10 && after[0] > usual * 9 / 10);
    }
}

/* Updates and rounds in each of so many minutes, from when the keys come. */
static void minutes(uint64_t seed, enum hth_share_mode mode, uint32_t trainers, uint32_t writers,
                    int count, uint64_t *updates, uint64_t *rounds)
{
    uint64_t begin[2];
    struct play p;

    leaves_s = 1000;
    play_new(&p, seed, mode, trainers, writers);
    go_on(&p, comes_s, &begin[0], &begin[1]);
    for (int i = 0; i < count; i++)
        go_on(&p, 60, &updates[i], &rounds[i]);
    play_free(&p);
}

/* Updates, or rounds, in each of two minutes. */
static void two_minutes(enum hth_share_mode mode, uint32_t trainers, uint32_t writers,
                        uint64_t out[2])
{
    uint64_t updates[2], rounds[2];

    minutes(4, mode, trainers, writers, 2, updates, rounds);
    memcpy(out, mode == HTH_SHARE_BATCH ? updates : rounds, sizeof(updates));
}

/* A key that never answers claims that a trainer takes part, or is a few steps ahead. Small runs,
 * in which it is a quarter or a half of all, lose some seconds of the first minute. */
static void check_few(enum hth_share_mode mode, uint32_t trainers, const uint64_t usual[2],
                      double most_s, double lost_s[2])
{
    uint64_t with[2];

    two_minutes(mode, trainers, 1, with);
    for (int i = 0; i < 2; i++) {
        double lost = 60 * (1 - (double)with[i] / (double)usual[i]);

        lost_s[i] = HTH_MAX(lost_s[i], lost);
        assert_true(lost < most_s);
    }
}

/* A key that answers claims endless samples and never joins a group: the trainers wait for it once,
 * and its samples do not count. Of two trainers the other one is asked for as long as a quorum
 * needs it. */
TEST(absent_member_is_awaited_once)
{
    static const enum lie lies[] = {PRESENCE, AHEAD, SPEED};

    (void)state;
    listens = true;
    for (uint32_t trainers = 1; trainers <= 4; trainers *= 2) {
        double lost_s[2] = {0};
        uint64_t usual[2];

        two_minutes(HTH_SHARE_BATCH, trainers, 0, usual);
        for (size_t i = 0; i < HTH_ARRAY_LEN(lies); i++) {
            what = lies[i];
            number = 3;
            check_few(HTH_SHARE_BATCH, trainers, usual, trainers == 1 ? 20 : 4, lost_s);
            assert_true(lost_s[1] < 5); /* when the doubt ends, one window */
        }
        print_message("%u trainers and one absent member: at most %.1f s of the first minute, "
                      "%.1f of the next\n",
                      trainers, lost_s[0], lost_s[1]);
    }
    listens = false;
}

TEST(false_round_does_not_end_a_run)
{
    static const uint64_t rounds[] = {1u << 30, UINT32_MAX};
    static const uint32_t trainers[] = {2, 4};
    uint64_t with[2], after[2];

    (void)state;
    what = ROUND;
    for (int j = 0; j < 2; j++) {
        uint64_t usual = alone(HTH_SHARE_LOCAL, trainers[j]);

        for (int i = 0; i < 2; i++) {
            number = rounds[i];
            live(4, HTH_SHARE_LOCAL, trainers[j], 1, with, after);
            assert_true(with[1] > usual * 3 / 4 && after[1] > usual * 3 / 4);
            live(4, HTH_SHARE_LOCAL, trainers[j], trainers[j], with, after);
            assert_true(with[1] > usual / 2 && after[1] > usual * 3 / 4);
        }
    }
}

TEST(false_grid_does_not_move_a_run)
{
    uint64_t with[2], after[2], rounds = alone(HTH_SHARE_LOCAL, 4);
    uint64_t updates = alone(HTH_SHARE_BATCH, 4);

    (void)state;
    what = GRID;
    live(4, HTH_SHARE_LOCAL, 4, 1, with, after);
    assert_true(with[1] > rounds * 3 / 4 && after[1] > rounds * 3 / 4);
    live(4, HTH_SHARE_BATCH, 4, 1, with, after);
    assert_true(with[0] > updates * 3 / 4 && after[0] > updates * 3 / 4);
    /* As many as there are trainers end it while they are there, and no longer. */
    live(4, HTH_SHARE_LOCAL, 4, 4, with, after);
    assert_true(after[1] > rounds / 2);
}
