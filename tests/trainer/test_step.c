/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer's decisions on the average of a shared batch: one trainer, an averager that answers as
 * the test says, and other trainers that exist only as roster records.
 */
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S      HTH_US_PER_S
#define MS     HTH_US_PER_MS
#define OTHERS 4
#define EACH   12 /* samples that each of the others publishes */
#define TARGET 60
#define MOST   48 /* samples of the trainer at most */

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    struct hth_crew_opts opts;
    struct hth_roster *other[OTHERS + 1];
    struct hth_averager averager;
    hth_avg_round_fn *fn;
    void *arg;
    bool waits; /* the trainer waits for an answer */
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

/* Waits for the trainer's next offer; returns its samples. */
static double next_offer(struct fixture *f)
{
    assert_true(hth_world_run_until_true(f->world, does_wait, f, 10 * S));
    return f->offer.weight;
}

/* A result that the trainer steps on; a test changes some of it. */
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

/* Removes all others but the last `left`. */
static void leave(struct fixture *f, uint32_t left)
{
    for (uint32_t i = 0; i < OTHERS - left; i++)
        hth_roster_leave(f->other[i], NULL, NULL);
    assert_true(has_population(f, left + 1));
}

/* The others have taken the step before `step`, too, and gather for it. */
static void others_are_at(struct fixture *f, uint64_t step)
{
    for (uint32_t i = 0; i < OTHERS; i++)
        hth_roster_set_progress(f->other[i], step, EACH, 0);
}

/* The others have spoken to this trainer and may do so again: a trainer insists only once on a
 * quorum of peers that never did. */
static void others_spoke(struct fixture *f)
{
    struct hth_roster *r = hth_crew_roster(f->crew, 0);

    for (uint32_t i = 0; hth_roster_at(r, i) != NULL; i++)
        hth_roster_heard(r, &hth_roster_at(r, i)->id, 0);
}

/* ---- the quorum ------------------------------------------------------------------------------ */

static const char *const grids[] = {"8", "3x3"};

/* A quorum is more than half of the trainers, whatever samples they have or publish. */
static void quorum_counts_trainers_not_samples(void **state)
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

/* A quorum of 1 needs all trainers that there are. */
static void quorum_of_1_needs_all(void **state)
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

/* Trainers that left since the batch was taken are not waited for, and those that came since do not
 * count. */
static void quorum_ignores_trainers_that_left(void **state)
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

/* Records prove nothing: after ten seconds without a quorum of those with records a trainer steps
 * with those that came. Each step begins its own ten seconds. */
static void quorum_is_waived_after_ten_seconds(void **state)
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

/* A few trainers try with the samples that they have, then gather up to the target, in the first
 * lines, where the others may come. */
static void few_trainers_gather_up_to_the_target(void **state)
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

/* Time spent gathering does not count as time in which the others could have come. */
static void gathering_does_not_use_up_the_patience(void **state)
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

/* The average of a step that the others have passed is one of a few trainers, whatever weight it
 * has. */
static void average_of_a_passed_step_is_refused(void **state)
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

/* A group with a third of the target: each trainer gathers three times as many samples and meets
 * the others in separate lines. The averaged samples do not decide this, as members may have been
 * dropped. */
static void short_average_gathers_the_rest(void **state)
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

    /* A trainer that fails at this point meets in the first lines again, ... */
    answer_late(f);
    next_offer(f);
    assert_int_equal(f->offer.kind, kind);
    /* ... and the group has no more samples than in its last average: it steps. */
    r = good(f);
    r.weight_met = TARGET / 3.0;
    answer(f, &r);
    assert_int_equal(stats(f).short_of, 1);
    assert_int_equal(stats(f).steps_shared, 1);
    /* The next step begins like this one. */
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

/* Even if a single sample is missing, the next offer has more samples than the last: the group
 * would otherwise find the same once more, and step on it. */
static void each_offer_has_more_samples_than_the_last(void **state)
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

/* The step needs a group that met the target, even if not all its samples were averaged. */
static void target_is_met_by_the_group(void **state)
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

/* If the target is missed again and again, they step after a limited number of attempts. */
static void short_averages_end_after_some_attempts(void **state)
{
    struct fixture *f = begin(8, "8");
    uint64_t turns = 0;
    uint32_t kind = 0;

    (void)state;
    for (double met = 40; stats(f).steps_shared == 0; met++) {
        struct hth_avg_result r;

        assert_true(next_offer(f) <= MOST);
        assert_true(turns < 2 || f->offer.kind == kind); /* all trainers that continue meet */
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

/* Retries come soon at first, then later and later, a second apart at most, and the record
 * publishes the time. */
static void retries_back_off_to_one_second(void **state)
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

/* Vector parts with this peer's own values are no average: the trainer takes an average without
 * such parts as long as it can expect one. */
static void average_with_kept_parts_is_retried(void **state)
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

/* The trainer ignores the result of another offer than the one that is out. */
static void stale_results_are_ignored(void **state)
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
    f->fn(f->arg, &r); /* the same result again */
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
        cmocka_unit_test(quorum_counts_trainers_not_samples),
        cmocka_unit_test(quorum_of_1_needs_all),
        cmocka_unit_test(quorum_ignores_trainers_that_left),
        cmocka_unit_test(quorum_is_waived_after_ten_seconds),
        cmocka_unit_test(few_trainers_gather_up_to_the_target),
        cmocka_unit_test(gathering_does_not_use_up_the_patience),
        cmocka_unit_test(average_of_a_passed_step_is_refused),
        cmocka_unit_test(short_average_gathers_the_rest),
        cmocka_unit_test(each_offer_has_more_samples_than_the_last),
        cmocka_unit_test(target_is_met_by_the_group),
        cmocka_unit_test(short_averages_end_after_some_attempts),
        cmocka_unit_test(retries_back_off_to_one_second),
        cmocka_unit_test(average_with_kept_parts_is_retried),
        cmocka_unit_test(stale_results_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
