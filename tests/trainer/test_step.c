/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trainer does with the average of a shared batch: one trainer, an averager that answers as
 * the test says, and others of whom there is nothing but notes.
 */
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S      HTH_US_PER_S
#define MS     HTH_US_PER_MS
#define OTHERS 4
#define EACH   12 /* samples that each of the others says */
#define TARGET 60
#define MOST   48 /* that the trainer brings */

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    struct hth_crew_opts opts;
    struct hth_roster *other[OTHERS + 1];
    struct hth_averager averager;
    hth_avg_round_fn *fn;
    void *arg;
    bool waits; /* the trainer, for an answer */
    struct hth_avg_offer offer;
    struct hth_blob *values; /* offered */
    int64_t at_us;
};

/* ---- the averager ---------------------------------------------------------------------------- */

static enum hth_err start(void *self, hth_avg_round_fn *fn, void *arg)
{
    struct fixture *f = self;

    f->fn = fn;
    f->arg = arg;
    return HTH_OK;
}

static enum hth_err ready(void *self, enum hth_avg_reason *reason)
{
    (void)self;
    *reason = HTH_AVG_NOBODY;
    return HTH_E_NOT_FOUND; /* for parameters */
}

static enum hth_err offer(void *self, const struct hth_avg_offer *o)
{
    struct fixture *f = self;

    assert_false(f->waits);
    hth_blob_unref(f->values);
    f->values = hth_blob_ref(o->values);
    f->offer = *o;
    f->at_us = hth_world_now_us(f->world);
    f->waits = true;
    return HTH_OK;
}

static enum hth_err prepare(void *self, const struct hth_avg_offer *o, int64_t ready_in_us)
{
    (void)self;
    (void)o;
    (void)ready_in_us;
    return HTH_OK;
}

static void stop(void *self)
{
    (void)self;
}

static void averager_stats(const void *self, struct hth_averager_stats *out)
{
    (void)self;
    memset(out, 0, sizeof(*out));
}

static const struct hth_averager_ops ops = {.name = "scripted",
                                            .start = start,
                                            .ready = ready,
                                            .offer = offer,
                                            .prepare = prepare,
                                            .stop = stop,
                                            .stats = averager_stats,
                                            .free = stop};

/* ---- the trainer and the others -------------------------------------------------------------- */

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    struct fixture *f = arg;

    (void)i;
    f->averager = (struct hth_averager){&ops, f};
    t->averager = &f->averager;
}

static void other_comes(struct fixture *f, uint32_t i)
{
    const struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;
    struct hth_node *n;
    char name[16];

    snprintf(name, sizeof(name), "other%u", i);
    n = hth_world_node(f->world, name, &node);
    o.network = "crew";
    o.schema = hth_roster_self(hth_crew_roster(f->crew, 0))->schema;
    o.addr = hth_node_addr(n, 4000);
    o.slot_us = 0;
    o.publish_min_us = 10 * MS;
    assert_ok(hth_roster_new(hth_node_env(n), hth_node_dht(n), &o, &f->other[i]));
    hth_roster_set_progress(f->other[i], 0, EACH, 0);
}

static struct fixture *begin_with(uint64_t seed, const char *grid, double quorum)
{
    struct fixture *f = hth_new(struct fixture);

    f->world = crew_world(seed, &f->files);
    f->opts = crew_opts(HTH_SHARE_BATCH);
    f->opts.trainer.share.target = TARGET;
    f->opts.trainer.share.step_samples_max = MOST;
    f->opts.trainer.share.quorum = quorum;
    f->opts.members = 1;
    f->opts.device = &crew_slow;
    f->opts.edit = edit;
    f->opts.arg = f;
    assert_ok(hth_avg_shape_parse(grid, &f->opts.roster.shape));
    f->crew = hth_crew_new(f->world, &f->opts);
    hth_world_run_for(f->world, MS);
    assert_ok(hth_crew_err(f->crew));
    for (uint32_t i = 0; i < OTHERS; i++)
        other_comes(f, i);
    return f;
}

static struct fixture *begin(uint64_t seed, const char *grid)
{
    return begin_with(seed, grid, 0.5);
}

static void end(struct fixture *f)
{
    for (uint32_t i = 0; i <= OTHERS; i++)
        hth_roster_free(f->other[i]);
    hth_node_crash(hth_crew_node(f->crew, 0), HTH_CRASH_RESET);
    hth_blob_unref(f->values);
    crew_end(f->world, f->crew);
    hth_free(f);
}

static struct hth_share_stats stats(const struct fixture *f)
{
    struct hth_train_stats s;

    hth_trainer_stats(hth_crew_trainer(f->crew, 0), &s);
    return s.share;
}

static bool does_wait(void *arg)
{
    return ((const struct fixture *)arg)->waits;
}

/* Its samples. */
static double next_offer(struct fixture *f)
{
    assert_true(hth_world_run_until_true(f->world, does_wait, f, 10 * S));
    return f->offer.weight;
}

/* Good, and enough, but for what is changed. */
static struct hth_avg_result good(const struct fixture *f)
{
    return (struct hth_avg_result){.ticket = f->offer.ticket,
                                   .reason = HTH_AVG_OK,
                                   .values = f->values,
                                   .average = f->values,
                                   .weight = TARGET,
                                   .weight_met = TARGET,
                                   .origin = 1,
                                   .members = OTHERS + 1,
                                   .heads = OTHERS + 1};
}

static void answer(struct fixture *f, const struct hth_avg_result *r)
{
    f->waits = false;
    f->fn(f->arg, r);
}

static void answer_of(struct fixture *f, uint32_t heads, double weight)
{
    struct hth_avg_result r = good(f);

    r.heads = heads;
    r.weight = weight;
    answer(f, &r);
}

static void answer_late(struct fixture *f)
{
    const struct hth_avg_result r = {.ticket = f->offer.ticket,
                                     .err = HTH_E_TIMEOUT,
                                     .reason = HTH_AVG_LATE,
                                     .values = f->values};

    answer(f, &r);
}

static bool has_population(struct fixture *f, uint32_t n)
{
    for (int i = 0; i < 50; i++) {
        hth_world_run_for(f->world, 100 * MS);
        if (hth_roster_population(hth_crew_roster(f->crew, 0), NULL) == n)
            return true;
    }
    return false;
}

/* The others but the last so many are gone. */
static void leave(struct fixture *f, uint32_t left)
{
    for (uint32_t i = 0; i < OTHERS - left; i++)
        hth_roster_leave(f->other[i], NULL, NULL);
    assert_true(has_population(f, left + 1));
}

/* They have taken the step, too, and gather for the next one. */
static void others_are_at(struct fixture *f, uint64_t step)
{
    for (uint32_t i = 0; i < OTHERS; i++)
        hth_roster_set_progress(f->other[i], step, EACH, 0);
}

/* They were there before, and may be again: of who never spoke a quorum is asked but once. */
static void others_spoke(struct fixture *f)
{
    struct hth_roster *r = hth_crew_roster(f->crew, 0);

    for (uint32_t i = 0; hth_roster_at(r, i) != NULL; i++)
        hth_roster_heard(r, &hth_roster_at(r, i)->id, 0);
}

/* ---- the quorum ------------------------------------------------------------------------------ */

static const char *const grids[] = {"8", "3x3"};

/* More than half of the heads, whatever samples they bring, and whatever is said of samples. */
static void test_quorum_of_heads(void **state)
{
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(grids); i++) {
        struct fixture *f = begin(1, grids[i]);

        for (uint32_t k = 0; k < OTHERS; k++)
            hth_roster_set_progress(f->other[k], 0, k * TARGET, 0);
        next_offer(f);
        answer_of(f, 2, OTHERS * TARGET);
        assert_int_equal(stats(f).below_quorum, 1);
        next_offer(f);
        answer_of(f, 3, 1);
        assert_int_equal(stats(f).below_quorum, 1);
        assert_int_equal(stats(f).steps_shared, 1);
        assert_int_equal(stats(f).tries_failed, 0);
        end(f);
    }
}

/* A quorum of 1 is all: as many as there are, and not one less. */
static void test_quorum_of_all(void **state)
{
    struct fixture *f = begin_with(1, "8", 1);

    (void)state;
    next_offer(f);
    answer_of(f, OTHERS, TARGET);
    assert_int_equal(stats(f).below_quorum, 1);
    next_offer(f);
    answer_of(f, OTHERS + 1, TARGET);
    assert_int_equal(stats(f).below_quorum, 1);
    assert_int_equal(stats(f).steps_shared, 1);
    end(f);
}

/* Who has left since the batch was taken is not waited for, and who came since changes nothing. */
static void test_quorum_of_who_is_there(void **state)
{
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(grids); i++) {
        struct fixture *f = begin(3, grids[i]);

        next_offer(f);
        leave(f, 3);
        answer_of(f, 2, TARGET); /* two of four are not more than half */
        assert_int_equal(stats(f).below_quorum, 1);
        next_offer(f);
        leave(f, 2);
        answer_of(f, 2, TARGET);
        assert_int_equal(stats(f).below_quorum, 1);
        assert_int_equal(stats(f).steps_shared, 1);
        end(f);

        f = begin(4, grids[i]);
        next_offer(f);
        other_comes(f, OTHERS);
        assert_true(has_population(f, OTHERS + 2));
        answer_of(f, 3, TARGET);
        assert_int_equal(stats(f).steps_shared, 1);
        end(f);
    }
}

/* Notes are only words: who has missed the quorum of them for ten seconds steps with those who
 * came; in each step anew. */
static void test_quorum_has_an_end(void **state)
{
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(grids); i++) {
        struct fixture *f = begin(9, grids[i]);

        for (uint64_t step = 0; step < 2; step++) {
            int64_t since_us;

            others_are_at(f, step);
            next_offer(f);
            others_spoke(f);
            for (since_us = hth_world_now_us(f->world);;) {
                answer_of(f, 2, 1);
                if (stats(f).steps_shared > step)
                    break;
                next_offer(f);
            }
            assert_in_range(hth_world_now_us(f->world) - since_us, 10 * S, 15 * S);
        }
        end(f);
    }
}

/* A few try with what they have, and then gather what the target wants, in the first lines, where
 * the others may come. */
static void test_a_few_gather_on(void **state)
{
    struct fixture *f = begin(10, "8");
    struct hth_avg_result r;
    uint32_t kind;

    (void)state;
    for (int i = 0; i < 4; i++) {
        next_offer(f);
        kind = f->offer.kind;
        assert_int_equal(stats(f).short_of, 0);
        r = good(f);
        r.heads = 2;
        r.weight_met = r.weight = TARGET / 3.0;
        answer(f, &r);
    }
    assert_int_equal(stats(f).below_quorum, 4);
    assert_int_equal(stats(f).short_of, 1);
    next_offer(f);
    assert_int_equal(f->offer.kind, kind);
    end(f);
}

/* Time in which it gathers on is none in which others could have come. */
static void test_gathering_is_no_patience(void **state)
{
    struct fixture *f = begin(16, "8");
    struct hth_device slow = crew_slow;
    struct hth_avg_result r;
    int64_t from_us;

    (void)state;
    for (int i = 0; i < 4; i++) {
        next_offer(f);
        r = good(f);
        r.heads = 2;
        r.weight_met = r.weight = TARGET / 3.0;
        answer(f, &r);
    }
    assert_int_equal(stats(f).short_of, 1);
    slow.job_overhead_us = 2 * S;
    hth_node_set_device(hth_crew_node(f->crew, 0), &slow);
    from_us = hth_world_now_us(f->world);
    assert_true(hth_world_run_until_true(f->world, does_wait, f, 200 * S));
    assert_true(hth_world_now_us(f->world) - from_us > 10 * S);
    answer_of(f, 2, 1);
    assert_int_equal(stats(f).below_quorum, 5);
    assert_int_equal(stats(f).steps_shared, 0);
    end(f);
}

/* The average of a step that the others left behind is of a few, however much it says. */
static void test_others_are_past_it(void **state)
{
    struct fixture *f = begin(5, "8");

    (void)state;
    next_offer(f);
    others_are_at(f, 2);
    hth_world_run_for(f->world, S);
    answer_of(f, OTHERS + 1, TARGET);
    assert_int_equal(stats(f).steps_shared, 0);
    assert_int_equal(stats(f).tries_failed, 1);
    end(f);
}

/* ---- short of the target --------------------------------------------------------------------- */

/* A group that brought a third of the target: everybody brings three times as much, and meets the
 * others in lines of their own. What is averaged in the end does not decide it: members may have
 * been dropped. */
static void test_gathers_the_rest(void **state)
{
    struct fixture *f = begin(6, "8");
    double first = next_offer(f), next;
    uint32_t kind = f->offer.kind, other_kind;
    struct hth_avg_result r = good(f);

    (void)state;
    r.weight_met = TARGET / 3.0;
    answer(f, &r);
    assert_int_equal(stats(f).short_of, 1);
    next = next_offer(f);
    assert_in_range(next, HTH_MIN(3 * first, MOST), HTH_MIN(3 * first + 5, MOST));
    assert_true(next > first);
    other_kind = f->offer.kind;
    assert_true(other_kind != kind);
    assert_int_equal(stats(f).steps_shared, 0);

    /* Whoever fails now meets in the first lines again, ... */
    answer_late(f);
    next_offer(f);
    assert_int_equal(f->offer.kind, kind);
    /* ... and nobody brought more than the last time: that has to do. */
    r = good(f);
    r.weight_met = TARGET / 3.0;
    answer(f, &r);
    assert_int_equal(stats(f).short_of, 1);
    assert_int_equal(stats(f).steps_shared, 1);
    /* The next step begins as this one did. */
    others_are_at(f, 1);
    assert_true(next_offer(f) < next);
    assert_int_equal(f->offer.kind, kind);
    r = good(f);
    r.weight_met = TARGET / 3.0;
    answer(f, &r);
    assert_int_equal(stats(f).short_of, 2);
    next_offer(f);
    assert_int_equal(f->offer.kind, other_kind);
    answer_of(f, OTHERS + 1, TARGET);
    others_are_at(f, 2);
    next_offer(f);
    assert_int_equal(f->offer.kind, kind);
    end(f);
}

/* However little is missing, the next offer is more than the last one was: the group would find the
 * same once more, and step on it. */
static void test_a_sample_is_missing(void **state)
{
    struct fixture *f = begin(15, "8");
    double first = next_offer(f);
    struct hth_avg_result r = good(f);

    (void)state;
    r.weight_met = TARGET - 1;
    answer(f, &r);
    assert_int_equal(stats(f).short_of, 1);
    assert_true(next_offer(f) > first);
    end(f);
}

/* A target that was met by the group is enough, also when not all of it was averaged. */
static void test_target_is_met_by_the_group(void **state)
{
    struct fixture *f = begin(7, "8");
    struct hth_avg_result r;

    (void)state;
    next_offer(f);
    r = good(f);
    r.weight = 45;
    answer(f, &r);
    assert_int_equal(stats(f).short_of, 0);
    assert_int_equal(stats(f).steps_shared, 1);
    hth_world_run_for(f->world, S);
    assert_true(stats(f).weight == 45);
    end(f);
}

/* Of the part of the target that is missing no sample comes alone: after so many turns they
 * step. */
static void test_short_again_and_again(void **state)
{
    struct fixture *f = begin(8, "8");
    uint64_t turns = 0;
    uint32_t kind = 0;

    (void)state;
    for (double met = 40; stats(f).steps_shared == 0; met++) {
        struct hth_avg_result r;

        assert_true(next_offer(f) <= MOST);
        assert_true(turns < 2 || f->offer.kind == kind); /* all who go on meet */
        kind = f->offer.kind;
        r = good(f);
        r.weight_met = met;
        answer(f, &r);
        assert_true(++turns < TARGET - 40);
    }
    assert_int_equal(stats(f).short_of, turns - 1);
    assert_in_range(turns, 4, 16);
    end(f);
}

/* ---- once more ------------------------------------------------------------------------------- */

/* Soon at first, later and later, a second at most; and the others can read when. */
static void test_tries_again(void **state)
{
    int64_t longest_us = 0;

    (void)state;
    for (uint64_t seed = 9; seed < 13; seed++) {
        struct fixture *f = begin(seed, "8");

        for (int turn = 0; turn < 2; turn++) {
            next_offer(f);
            for (int i = 1; i <= 8; i++) {
                int64_t from_us = hth_world_now_us(f->world), wait_us;
                const struct hth_roster_note *self = hth_roster_self(hth_crew_roster(f->crew, 0));

                answer_late(f);
                wait_us = self->ready_at_us - hth_wall_us(hth_node_env(hth_crew_node(f->crew, 0)));
                next_offer(f);
                assert_int_equal(f->at_us - from_us, wait_us);
                assert_in_range(wait_us, 50 * MS, 250 * MS * HTH_MIN(i, 4));
                longest_us = HTH_MAX(longest_us, wait_us);
            }
            assert_int_equal(stats(f).tries_failed, 8 * (turn + 1));
            answer_of(f, OTHERS + 1, TARGET);
            assert_int_equal(stats(f).steps_shared, turn + 1);
            others_are_at(f, 1);
        }
        end(f);
    }
    assert_true(longest_us > 800 * MS);
}

/* Parts that kept this peer's values are no average: it takes one without them, as long as there is
 * hope. */
static void test_parts_that_were_kept(void **state)
{
    struct fixture *f = begin(13, "8");

    (void)state;
    for (uint64_t i = 1; i <= 3; i++) {
        struct hth_avg_result r;

        next_offer(f);
        r = good(f);
        r.parts_kept = 1;
        answer(f, &r);
        assert_int_equal(stats(f).tries_failed, HTH_MIN(i, 2));
    }
    assert_int_equal(stats(f).steps_shared, 1);
    end(f);
}

/* The result of something else than what is offered now is passed over. */
static void test_results_of_before(void **state)
{
    struct fixture *f = begin(14, "8");
    struct hth_blob *old;
    struct hth_avg_result r;

    (void)state;
    next_offer(f);
    r = good(f);
    old = hth_blob_try_new(f->values->size);
    memset(old->data, 0, old->size);
    r.values = old;
    f->fn(f->arg, &r);
    r.err = HTH_E_TIMEOUT;
    f->fn(f->arg, &r);
    assert_int_equal(stats(f).steps_shared + stats(f).tries_failed, 0);
    r = good(f);
    r.average = NULL; /* nothing to step on */
    answer(f, &r);
    f->fn(f->arg, &r); /* the same once more */
    assert_int_equal(stats(f).tries_failed, 1);
    hth_blob_unref(old);
    old = hth_blob_try_new(8);
    next_offer(f);
    r = good(f);
    r.average = old; /* of other tensors */
    answer(f, &r);
    assert_int_equal(stats(f).tries_failed, 2);
    assert_int_equal(stats(f).steps_shared, 0);
    hth_blob_unref(old);
    end(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quorum_of_heads),
        cmocka_unit_test(test_quorum_of_all),
        cmocka_unit_test(test_quorum_of_who_is_there),
        cmocka_unit_test(test_quorum_has_an_end),
        cmocka_unit_test(test_a_few_gather_on),
        cmocka_unit_test(test_gathering_is_no_patience),
        cmocka_unit_test(test_others_are_past_it),
        cmocka_unit_test(test_gathers_the_rest),
        cmocka_unit_test(test_a_sample_is_missing),
        cmocka_unit_test(test_target_is_met_by_the_group),
        cmocka_unit_test(test_short_again_and_again),
        cmocka_unit_test(test_tries_again),
        cmocka_unit_test(test_parts_that_were_kept),
        cmocka_unit_test(test_results_of_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
