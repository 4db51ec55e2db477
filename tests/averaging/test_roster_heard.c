/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the roster makes of a word that a peer spoke over its own connection: it lives while its
 * notes are late, and its step is the one it said.
 */
#include "averaging/roster.h"
#include "core/mem.h"
#include "dht/board.h"
#include "sim/world.h"
#include "support/test.h"

#define S     HTH_US_PER_S
#define PEERS 3

struct swarm {
    struct hth_world *world;
    struct hth_node *node[PEERS];
    struct hth_roster *roster[PEERS];
};

static const struct hth_peer_id *id_of(struct swarm *s, uint32_t i)
{
    return &hth_node_env(s->node[i])->self;
}

static const struct hth_roster_peer *seen_by_first(struct swarm *s, uint32_t i)
{
    return hth_roster_find(s->roster[0], id_of(s, i));
}

static void start(struct swarm *s, uint64_t seed)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;

    o.network = "net";
    o.schema = 7;
    o.addr.family = 4;
    s->world = hth_world_new(seed, NULL);
    for (uint32_t i = 0; i < PEERS; i++) {
        char name[8];

        snprintf(name, sizeof(name), "n%u", i);
        s->node[i] = hth_world_node(s->world, name, NULL);
        assert_ok(
            hth_roster_new(hth_node_env(s->node[i]), hth_node_dht(s->node[i]), &o, &s->roster[i]));
    }
    hth_world_run_for(s->world, 5 * S);
    assert_int_equal(hth_roster_population(s->roster[0], NULL), PEERS);
}

static void stop(struct swarm *s)
{
    struct hth_open_counts open;

    for (uint32_t i = 0; i < PEERS; i++)
        hth_roster_free(s->roster[i]);
    hth_world_open(s->world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(s->world);
}

static void end(struct swarm *s, uint32_t i)
{
    hth_roster_free(s->roster[i]);
    s->roster[i] = NULL;
}

/* The first hears the second speak, once a second. */
static void listen(struct swarm *s, int seconds)
{
    for (int i = 0; i < seconds; i++) {
        hth_world_run_for(s->world, S);
        hth_roster_heard(s->roster[0], id_of(s, 1), 0);
    }
}

static void who_speaks_stays(void **state)
{
    struct hth_roster_batch b;
    struct swarm s;

    (void)state;
    start(&s, 1);
    hth_roster_set_progress(s.roster[1], 5, 40, 30);
    hth_world_run_for(s.world, 2 * S);
    end(&s, 1); /* no note comes any more */
    listen(&s, 60);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    assert_int_equal(hth_roster_population(s.roster[2], NULL), 2); /* who does not hear it */
    hth_roster_batch(s.roster[0], 6, 1000, &b);
    assert_close(b.samples_per_s, 30, 1e-6, 0); /* it is taken to go on */
    /* For a note's life after its last word, and if it was missed, not even so long. */
    hth_world_run_for(s.world, 18 * S);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    hth_world_run_for(s.world, 4 * S);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    assert_null(seen_by_first(&s, 1));
    stop(&s);
}

static void who_is_missed_and_speaks(void **state)
{
    struct swarm s;

    (void)state;
    start(&s, 2);
    end(&s, 1);
    listen(&s, 30);
    hth_roster_miss(s.roster[0], id_of(&s, 1));
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    hth_roster_heard(s.roster[0], id_of(&s, 1), 0);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    stop(&s);
}

/* Who never spoke, and is not there, is nobody until it speaks, however often its note is renewed;
 * who did speak may come back. */
static void who_never_spoke_and_is_deaf(void **state)
{
    struct swarm s;

    (void)state;
    start(&s, 6);
    listen(&s, 1);
    hth_roster_deaf(s.roster[0], id_of(&s, 1));
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    hth_roster_deaf(s.roster[0], id_of(&s, 2));
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    hth_world_run_for(s.world, 30 * S);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    hth_roster_heard(s.roster[0], id_of(&s, 2), 0);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    /* What it said was not true is another matter. */
    hth_roster_doubt(s.roster[0], id_of(&s, 2));
    hth_roster_heard(s.roster[0], id_of(&s, 2), 0);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    stop(&s);
}

/* Who is asked for in vain, and has not spoken yet, comes back with its first word. */
static void who_was_only_late(void **state)
{
    struct swarm s;

    (void)state;
    start(&s, 7);
    listen(&s, 1);
    hth_roster_doubt_mute(s.roster[0], true); /* of whom nobody was doubted before */
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    hth_roster_doubt_mute(s.roster[0], false);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
    hth_roster_heard(s.roster[0], id_of(&s, 2), 0);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    hth_roster_doubt_mute(s.roster[0], false);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    stop(&s);
}

/* What it says is found false later, or while it is mute: to speak does not make that good. */
static void who_was_mute_and_lies(void **state)
{
    (void)state;
    for (int later = 0; later < 2; later++) {
        struct swarm s;

        start(&s, 8);
        hth_roster_deaf(s.roster[0], id_of(&s, 1));
        hth_world_run_for(s.world, later ? 61 * S : S);
        assert_int_equal(hth_roster_population(s.roster[0], NULL), later ? 3 : 2);
        hth_roster_doubt(s.roster[0], id_of(&s, 1));
        assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
        listen(&s, 110);
        assert_int_equal(hth_roster_population(s.roster[0], NULL), 2);
        listen(&s, 11);
        assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
        stop(&s);
    }
}

/* On a grid those of other lines speak to others: what was thought of silence in one line is over,
 * what was thought of a lie is not. */
static void of_a_line_that_became_a_grid(void **state)
{
    enum { MORE = 30 };
    struct hth_roster *more[MORE];
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;
    struct hth_roster_batch b;
    struct hth_node *node;
    struct swarm s;

    (void)state;
    start(&s, 9);
    assert_int_equal(hth_roster_shape(s.roster[0], NULL)->dims, 1);
    hth_roster_set_progress(s.roster[1], 5, 40, 30);
    hth_roster_set_progress(s.roster[2], 5, 40, 30);
    hth_world_run_for(s.world, 2 * S);
    o.network = "net";
    o.schema = 7;
    for (uint32_t i = 0; i < MORE; i++) {
        o.addr = (struct hth_addr){.family = 4};
        node = hth_world_node(s.world, "more", NULL);
        assert_ok(hth_roster_new(hth_node_env(node), hth_node_dht(node), &o, &more[i]));
        if (i == 0)
            hth_roster_doubt(s.roster[0], id_of(&s, 2));
    }
    hth_world_run_for(s.world, S);
    hth_roster_deaf(s.roster[0], id_of(&s, 1));
    hth_roster_apart(s.roster[0], id_of(&s, 1));
    assert_int_equal(hth_roster_population(s.roster[0], NULL), PEERS + MORE - 2);
    for (int i = 0; i < 40 && hth_roster_shape(s.roster[0], NULL)->dims == 1; i++)
        hth_world_run_for(s.world, S / 2);
    assert_int_equal(hth_roster_shape(s.roster[0], NULL)->dims, 2);
    hth_world_run_for(s.world, S);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), PEERS + MORE - 1);
    hth_roster_batch(s.roster[0], 5, 1000, &b);
    assert_close(b.samples_per_s, 30, 1e-6, 0);
    hth_roster_deaf(s.roster[0], id_of(&s, 1));
    hth_roster_doubt_mute(s.roster[0], false);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), PEERS + MORE - 1);
    for (uint32_t i = 0; i < MORE; i++)
        hth_roster_free(more[i]);
    stop(&s);
}

static void average(struct swarm *s, uint32_t heads, int times)
{
    for (int i = 0; i < times; i++) {
        hth_world_run_for(s->world, 3 * S);
        hth_roster_met(s->roster[0], heads);
    }
}

/* Notes say that they are three. Who averages alone for long enough counts one more than come, so
 * that one who comes counts at once, until all have come; and no more than there are. */
static void averages_tell_how_many_come(void **state)
{
    struct swarm s;

    (void)state;
    start(&s, 10);
    assert_int_equal(hth_roster_present(s.roster[0]), PEERS);
    average(&s, 1, 4);
    assert_int_equal(hth_roster_present(s.roster[0]), PEERS); /* they may be late */
    assert_true(hth_roster_all_come(s.roster[0]));
    average(&s, 1, 1);
    assert_int_equal(hth_roster_present(s.roster[0]), 2);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), PEERS);
    average(&s, 2, 1);
    assert_int_equal(hth_roster_present(s.roster[0]), 3);
    assert_false(hth_roster_all_come(s.roster[0]));
    hth_roster_apart(s.roster[0], id_of(&s, 1)); /* who came was another one */
    assert_true(hth_roster_all_come(s.roster[0]));
    average(&s, 1, 4);
    assert_int_equal(hth_roster_present(s.roster[0]), 3); /* the count before is not over */
    hth_roster_heard(s.roster[0], id_of(&s, 1), 0);
    assert_false(hth_roster_all_come(s.roster[0]));
    average(&s, 1, 4);
    assert_int_equal(hth_roster_present(s.roster[0]), 2);
    average(&s, 3, 1);
    assert_int_equal(hth_roster_present(s.roster[0]), 3);
    assert_true(hth_roster_all_come(s.roster[0]));
    average(&s, 8, 1);
    assert_int_equal(hth_roster_present(s.roster[0]), PEERS);
    stop(&s);
}

/* Its note comes back: it is one and the same. */
static void a_late_note(void **state)
{
    struct hth_dht_params lost = HTH_DHT_PARAMS_INIT, calm = lost;
    struct hth_roster_stats stats;
    struct swarm s;

    (void)state;
    start(&s, 3);
    lost.lost_put = lost.partial = 1;
    hth_world_set_dht(s.world, &lost);
    listen(&s, 60);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 2); /* the third is not heard */
    hth_world_set_dht(s.world, &calm);
    hth_world_run_for(s.world, 40 * S);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), 3);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, 2);
    end(&s, 1); /* its words were long ago: its note's life counts */
    hth_world_run_for(s.world, 24 * S);
    assert_null(seen_by_first(&s, 1));
    stop(&s);
}

static void a_goodbye_counts(void **state)
{
    struct swarm s;

    (void)state;
    start(&s, 4);
    listen(&s, 10);
    hth_roster_leave(s.roster[1], NULL, NULL);
    hth_world_run_for(s.world, S);
    assert_null(seen_by_first(&s, 1));
    hth_roster_heard(s.roster[0], id_of(&s, 1), 9); /* of whom there is no note */
    assert_null(seen_by_first(&s, 1));
    stop(&s);
}

static void the_later_step_counts(void **state)
{
    struct hth_roster_batch b;
    struct swarm s;

    (void)state;
    start(&s, 5);
    hth_roster_set_progress(s.roster[0], 5, 0, 10);
    hth_roster_set_progress(s.roster[1], 5, 40, 30);
    hth_world_run_for(s.world, 2 * S);
    hth_roster_heard(s.roster[0], id_of(&s, 1), 7);
    hth_roster_heard(s.roster[0], id_of(&s, 1), 6); /* of a look that came first */
    assert_int_equal(seen_by_first(&s, 1)->step, 7);
    assert_int_equal(seen_by_first(&s, 1)->note.step, 5);
    hth_roster_batch(s.roster[0], 5, 1000, &b);
    assert_int_equal(b.step_max, 7);
    assert_int_equal(b.ahead, 1);
    assert_close(b.samples_said, 0, 0, 1e-9); /* they were for another step */
    /* When we are there too, it is taken to have begun with us. */
    hth_roster_set_progress(s.roster[0], 7, 0, 10);
    hth_world_run_for(s.world, S / 10);
    hth_roster_batch(s.roster[0], 7, 1000, &b);
    assert_int_equal(b.ahead + b.behind, 1); /* the third, who never said */
    assert_close(b.samples, 3, 1e-6, 0);
    /* A note of the step before is older than the word; one that is much younger is not. */
    hth_roster_set_progress(s.roster[1], 6, 0, 30);
    hth_world_run_for(s.world, S);
    assert_int_equal(seen_by_first(&s, 1)->note.step, 6);
    assert_int_equal(seen_by_first(&s, 1)->step, 7);
    hth_world_run_for(s.world, 5 * S);
    hth_roster_set_progress(s.roster[1], 2, 0, 30);
    hth_world_run_for(s.world, S);
    assert_int_equal(seen_by_first(&s, 1)->step, 2);
    hth_roster_heard(s.roster[0], id_of(&s, 1), UINT64_MAX);
    assert_int_equal(seen_by_first(&s, 1)->step, HTH_AVG_STEP_MAX);
    stop(&s);
}

/* Who takes up a state of an earlier step than it was at, and speaks all the time. */
static void who_goes_back_is_there(void **state)
{
    struct swarm s;

    (void)state;
    start(&s, 5);
    hth_roster_set_progress(s.roster[1], 9, 0, 30);
    hth_world_run_for(s.world, 2 * S);
    hth_roster_heard(s.roster[0], id_of(&s, 1), 9);
    hth_roster_set_flags(s.roster[1], HTH_ROSTER_BOOTSTRAPPING);
    hth_world_run_for(s.world, S);
    hth_roster_heard(s.roster[0], id_of(&s, 1), 0);
    assert_int_equal(seen_by_first(&s, 1)->step, 9);
    hth_roster_set_flags(s.roster[1], 0);
    hth_roster_set_progress(s.roster[1], 5, 0, 30);
    hth_world_run_for(s.world, S);
    assert_int_equal(seen_by_first(&s, 1)->step, 5);
    stop(&s);
}

static enum hth_err fill_stranger(void *arg, struct hth_writer *w)
{
    struct hth_roster_note note = {.addr = {.family = 4, .port = 1}, .schema = 7};

    (void)arg;
    return hth_roster_note_write(&note, w);
}

/* As many as are believed let their notes go by and speak, and as many others come: those who are
 * kept without a note make room. */
static void kept_ones_are_bounded(void **state)
{
    enum { STRANGERS = 2 * HTH_AVG_ROSTER_MAX };
    static struct hth_publisher *note[STRANGERS];
    static struct hth_node *node[STRANGERS];
    struct hth_publisher_opts opts = HTH_PUBLISHER_OPTS_INIT;
    struct hth_roster_stats stats;
    struct hth_topic topic;
    uint32_t seen[2] = {0};
    struct swarm s;

    (void)state;
    start(&s, 6);
    end(&s, 1);
    end(&s, 2);
    hth_world_run_for(s.world, 30 * S);
    hth_topic_init(&topic, hth_node_env(s.node[0])->crypto, "net", HTH_RECORD_PROGRESS, "roster",
                   6);
    opts.life_us = 5 * S;
    for (uint32_t i = 0; i < STRANGERS; i++) {
        if (i == HTH_AVG_ROSTER_MAX) {
            hth_world_run_for(s.world, 3 * S);
            for (uint32_t k = 0; k < i; k++) {
                hth_roster_heard(s.roster[0], &hth_node_env(node[k])->self, 0);
                hth_publisher_free(note[k]);
            }
            hth_world_run_for(s.world, 10 * S);
            hth_roster_stats(s.roster[0], &stats);
            assert_int_equal(stats.seen, HTH_AVG_ROSTER_MAX - 1); /* and its own */
        }
        node[i] = hth_world_node(s.world, "stranger", NULL);
        assert_ok(hth_publisher_new(hth_node_env(node[i]), hth_node_dht(node[i]), &topic, &opts,
                                    fill_stranger, NULL, &note[i]));
    }
    hth_world_run_for(s.world, 4 * S);
    hth_roster_stats(s.roster[0], &stats);
    assert_int_equal(stats.seen, HTH_AVG_ROSTER_MAX);
    for (uint32_t i = 0; i < STRANGERS; i++)
        seen[i >= HTH_AVG_ROSTER_MAX] +=
            hth_roster_find(s.roster[0], &hth_node_env(node[i])->self) != NULL;
    assert_int_equal(seen[0], 1);
    assert_int_equal(seen[1], HTH_AVG_ROSTER_MAX - 1);
    for (uint32_t i = HTH_AVG_ROSTER_MAX; i < STRANGERS; i++)
        hth_publisher_free(note[i]);
    stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_speaks_stays),
        cmocka_unit_test(who_is_missed_and_speaks),
        cmocka_unit_test(who_never_spoke_and_is_deaf),
        cmocka_unit_test(who_was_only_late),
        cmocka_unit_test(who_was_mute_and_lies),
        cmocka_unit_test(of_a_line_that_became_a_grid),
        cmocka_unit_test(averages_tell_how_many_come),
        cmocka_unit_test(a_late_note),
        cmocka_unit_test(a_goodbye_counts),
        cmocka_unit_test(the_later_step_counts),
        cmocka_unit_test(who_goes_back_is_there),
        cmocka_unit_test(kept_ones_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
