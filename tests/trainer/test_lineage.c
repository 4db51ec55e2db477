/* SPDX-License-Identifier: Apache-2.0 */
/* Who notices that a run has split, and who yields: the votes of small crowds, written out. */
#include "core/mem.h"
#include "core/rng.h"
#include "support/test.h"
#include "trainer/lineage.h"

#define E         HTH_LINEAGE_EVERY
#define VOICES(n) (&(struct hth_lineage_voices){.said = m, .count = (n), .known = (n)})

/* Steps up to `to`, all with the same averages but from `split` on (0: never). */
static struct hth_lineage walk(uint64_t to, uint64_t split, uint64_t other)
{
    struct hth_lineage l;

    hth_lineage_init(&l, 0);
    for (uint64_t step = 1; step <= to; step++)
        hth_lineage_add(&l, step, split > 0 && step >= split ? other : 7);
    return l;
}

static struct hth_roster_marks said(const struct hth_lineage *l)
{
    struct hth_roster_marks m;

    hth_lineage_say(l, &m);
    return m;
}

static void equal_steps_give_equal_digests(void **state)
{
    struct hth_lineage a = walk(10 * E, 0, 0), b = walk(10 * E, 0, 0);

    (void)state;
    assert_memory_equal(&a, &b, sizeof(a));
    assert_int_equal(said(&a).step, 10 * E);
    for (uint32_t i = 0; i < HTH_ROSTER_MARKS; i++)
        assert_true(said(&a).mark[i] == hth_lineage_at(&a, (10 - i) * E));
    assert_true(hth_lineage_at(&a, 10 * E) != 0);
    assert_true(hth_lineage_at(&a, (11 - HTH_LINEAGE_KEPT) * E) != 0);
    assert_int_equal(hth_lineage_at(&a, (10 - HTH_LINEAGE_KEPT) * E), 0);
    assert_int_equal(hth_lineage_at(&a, 11 * E), 0);
    assert_int_equal(hth_lineage_at(&a, 10 * E - 1), 0);
    /* One other average, and nothing is the same ever after, also when later ones are. */
    b = walk(10 * E, 9 * E, 8);
    assert_true(hth_lineage_at(&a, 8 * E) == hth_lineage_at(&b, 8 * E));
    assert_true(hth_lineage_at(&a, 9 * E) != hth_lineage_at(&b, 9 * E));
    hth_lineage_add(&a, 10 * E + 1, 3);
    hth_lineage_add(&b, 10 * E + 1, 3);
    assert_true(a.digest != b.digest);
}

/* Ours are `mine` voices, theirs `others` of one other kind and `third` of a third. */
static bool outvoted(uint32_t mine, uint32_t others, uint32_t third, uint32_t silent,
                     struct hth_mark *winner)
{
    struct hth_lineage ours = walk(10 * E, 0, 0), b = walk(10 * E, 9 * E, 1);
    struct hth_lineage c = walk(10 * E, 9 * E, 2);
    struct hth_roster_marks m[32] = {{0}};
    uint32_t n = 0;

    for (uint32_t i = 0; i < mine; i++)
        m[n++] = said(&ours);
    for (uint32_t i = 0; i < others; i++)
        m[n++] = said(&b);
    for (uint32_t i = 0; i < third; i++)
        m[n++] = said(&c);
    for (uint32_t i = 0; i < silent; i++)
        m[n++] = (struct hth_roster_marks){.step = 9 * E};
    m[n++] = (struct hth_roster_marks){.step = 8 * E, .mark = {5}}; /* dead */
    return hth_lineage_is_outvoted(&ours, VOICES(n), winner);
}

static void majority_of_digests_wins(void **state)
{
    struct hth_lineage a = walk(10 * E, 0, 0), b = walk(10 * E, 9 * E, 1);
    struct hth_roster_marks m[2];
    struct hth_mark w;

    (void)state;
    assert_false(outvoted(1, 0, 0, 0, &w));
    assert_false(outvoted(3, 2, 0, 0, &w));
    assert_true(outvoted(2, 3, 0, 0, &w));
    assert_int_equal(w.step, 10 * E);
    assert_true(w.mark == hth_lineage_at(&b, 10 * E));
    /* The most, not the majority. */
    assert_true(outvoted(2, 3, 2, 0, &w));
    assert_false(outvoted(3, 2, 2, 0, &w));
    /* Those who say nothing could turn it. */
    assert_true(outvoted(1, 3, 0, 1, &w));
    assert_false(outvoted(1, 3, 0, 2, &w));
    assert_false(outvoted(1, 1, 0, 1, &w));
    /* As many: one of the two yields, and it is the one with the smaller mark. */
    m[0] = said(&a);
    m[1] = said(&b);
    assert_true(hth_lineage_is_outvoted(&a, VOICES(2), &w) !=
                hth_lineage_is_outvoted(&b, VOICES(2), &w));
    assert_true(w.mark == HTH_MAX(m[0].mark[0], m[1].mark[0]));
}

/* Keys that only write notes may be as many as they like: they choose no mark, but have a voice for
 * one that somebody shows who spoke. */
static void records_of_strangers_choose_no_digest(void **state)
{
    struct hth_lineage a = walk(10 * E, 0, 0), b = walk(10 * E, 9 * E, 1);
    struct hth_roster_marks m[8] = {said(&a), said(&a), said(&b), said(&b), said(&b)};
    struct hth_lineage_voices v = {.said = m, .count = 8, .known = 3};
    struct hth_mark w;

    (void)state;
    for (int i = 5; i < 8; i++)
        m[i] = (struct hth_roster_marks){.step = 10 * E, .mark = {UINT64_MAX - 1}};
    assert_true(hth_lineage_is_outvoted(&a, &v, &w)); /* three for b, one of whom spoke */
    assert_true(w.mark == hth_lineage_at(&b, 10 * E));
    assert_false(hth_lineage_is_outvoted(&b, &v, &w));
    v.known = 2;
    assert_false(hth_lineage_is_outvoted(&a, &v, &w)); /* nobody who spoke shows theirs */
    v.known = 8;
    assert_true(hth_lineage_is_outvoted(&a, &v, &w) && w.mark == UINT64_MAX - 1);
    /* Nor does it take over their line who has forgotten its own. */
    hth_lineage_forget(&a, 9 * E);
    hth_lineage_is_alike(&a, 9 * E);
    for (uint64_t step = 9 * E + 1; step <= 10 * E; step++)
        hth_lineage_add(&a, step, 1);
    v.known = 3;
    m[0] = said(&a);
    m[1] = said(&b);
    assert_true(hth_lineage_adopt(&a, 10 * E, &v));
    assert_true(a.digest == b.digest);
}

/* Crowds with marks drawn from a few, or all different, against counting by hand; a full roster of
 * different ones is counted as soon as asked. */
static void votes_match_counting_by_hand(void **state)
{
    struct hth_roster_marks *m = hth_new_array(struct hth_roster_marks, HTH_AVG_ROSTER_MAX);
    struct hth_rng rng;

    (void)state;
    hth_rng_init(&rng, 3);
    for (int round = 0; round < 400; round++) {
        uint32_t n = round == 0 ? HTH_AVG_ROSTER_MAX : 1 + (uint32_t)hth_rng_below(&rng, 40);
        uint64_t kinds = round == 0 ? UINT32_MAX : 1 + hth_rng_below(&rng, 5), best = 0;
        struct hth_lineage l = walk(10 * E, 0, 0);
        uint32_t most = 0, next = 0;
        struct hth_mark w;

        l.kept[10 % HTH_LINEAGE_KEPT] = 1;
        for (uint32_t i = 0; i < n; i++)
            m[i] = (struct hth_roster_marks){.step = 10 * E,
                                             .mark = {i == 0 ? 1 : 1 + hth_rng_below(&rng, kinds)}};
        for (uint32_t i = 0; i < n; i++) {
            uint32_t votes = 0;

            for (uint32_t k = 0; k < n; k++)
                votes += m[k].mark[0] == m[i].mark[0];
            if (votes > most || (votes == most && m[i].mark[0] > best)) {
                most = votes;
                best = m[i].mark[0];
            }
        }
        assert_int_equal(hth_lineage_is_outvoted(&l, VOICES(n), &w), best != 1);
        assert_true(w.step == 10 * E && w.mark == best);
        /* With as many silent ones as the winner is ahead by, nothing is decided. */
        for (uint32_t i = 0; i < n; i++) {
            uint32_t votes = 0;

            for (uint32_t k = 0; k < n; k++)
                votes += m[k].mark[0] == m[i].mark[0];
            next = m[i].mark[0] != best ? HTH_MAX(next, votes) : next;
        }
        for (uint32_t k = 0; k < most - next && n < HTH_AVG_ROSTER_MAX; k++)
            m[n++] = (struct hth_roster_marks){.step = 9 * E};
        if (most > next && round > 0) {
            assert_false(hth_lineage_is_outvoted(&l, VOICES(n), &w));
            assert_int_equal(hth_lineage_is_outvoted(&l, VOICES(n - 1), &w), best != 1);
        }
    }
    hth_free(m);
}

/* Who is steps behind or ahead is compared where both were. */
static void trainers_at_other_steps_are_compared_at_common_milestones(void **state)
{
    struct hth_lineage ours = walk(10 * E + 1, 0, 0), behind = walk(9 * E, 8 * E, 1);
    struct hth_lineage ahead = walk(11 * E + 2, 8 * E, 1), far = walk(40 * E, 8 * E, 1);
    struct hth_roster_marks m[3] = {said(&behind), said(&ahead), said(&ours)};
    struct hth_mark w;

    (void)state;
    assert_true(hth_lineage_is_outvoted(&ours, VOICES(3), &w));
    assert_true(w.step == 9 * E && w.mark == hth_lineage_at(&ahead, w.step));
    assert_true(hth_lineage_may_be(&m[1], &w));
    assert_false(hth_lineage_may_be(&(struct hth_roster_marks){.step = w.step - E}, &w));
    assert_false(hth_lineage_may_be(&(struct hth_roster_marks){.step = w.step}, &w)); /* no mark */
    assert_true(hth_lineage_may_be(&(struct hth_roster_marks){.step = w.step + E}, &w));
    m[0] = said(&ours);
    assert_false(hth_lineage_may_be(&m[0], &w));
    /* What is out of sight is no voice. */
    m[0] = m[1] = said(&far);
    assert_false(hth_lineage_is_outvoted(&ours, VOICES(3), &w));
    assert_true(hth_lineage_may_be(&m[0], &w));
}

/* Goes on from a file: knows nothing of the past, and does not vote on it. */
static void resumed_trainer_votes_only_on_later_milestones(void **state)
{
    struct hth_lineage a = walk(10 * E, 0, 0), b;
    struct hth_roster_marks m[2] = {said(&a), said(&a)};
    struct hth_mark w;

    (void)state;
    hth_lineage_init(&b, 10 * E);
    assert_false(hth_lineage_is_outvoted(&b, VOICES(2), &w));
    assert_int_equal(said(&b).mark[0], 0);
    hth_lineage_init(&b, 10 * E + 1);
    for (uint64_t step = 10 * E + 2; step <= 11 * E; step++)
        hth_lineage_add(&b, step, 7);
    assert_true(hth_lineage_at(&b, 11 * E) != 0);
    assert_int_equal(hth_lineage_at(&b, 10 * E), 0);
}

/* Took over the number of a step; an average of parameters at 8 E + 2 made it like the others. */
static void forgotten_history_is_adopted_from_the_others(void **state)
{
    struct hth_lineage a = walk(10 * E + 1, 0, 0), b = walk(10 * E, 9 * E, 1), c;
    struct hth_roster_marks m[3] = {said(&a), said(&a), said(&b)};
    struct hth_mark w;

    (void)state;
    hth_lineage_forget(&c, 7 * E + 1);
    for (uint64_t step = 7 * E + 2; step <= 10 * E + 1; step++) {
        hth_lineage_add(&c, step, 7);
        assert_false(hth_lineage_adopt(&c, step, VOICES(3))); /* not alike yet */
        assert_false(hth_lineage_is_outvoted(&c, VOICES(3), &w));
        assert_int_equal(said(&c).step, 0);
    }
    hth_lineage_is_alike(&c, 10 * E + 1);
    assert_false(hth_lineage_adopt(&c, 10 * E + 1, VOICES(3))); /* what they show is from before */
    hth_lineage_is_alike(&c, 8 * E + 2);
    m[1].step -=
        E; /* has not spoken of the last one, where it could turn the vote: of that before */
    memmove(&m[1].mark[0], &m[1].mark[1], (HTH_ROSTER_MARKS - 1) * sizeof(m[1].mark[0]));
    assert_true(hth_lineage_adopt(&c, 10 * E + 1, VOICES(3)));
    assert_true(c.digest == a.digest);
    assert_true(hth_lineage_at(&c, 10 * E) == hth_lineage_at(&a, 10 * E));
    assert_true(hth_lineage_at(&c, 9 * E) == hth_lineage_at(&a, 9 * E));
    assert_int_equal(hth_lineage_at(&c, 8 * E), 0);
    /* Nobody has a line: two that wait begin the same one. */
    hth_lineage_forget(&b, 8 * E + 2);
    hth_lineage_forget(&c, 8 * E + 3);
    hth_lineage_is_alike(&b, 8 * E + 3);
    hth_lineage_is_alike(&c, 8 * E + 3);
    for (uint64_t step = 8 * E + 4; step <= 9 * E + 1; step++) {
        hth_lineage_add(&b, step, 7);
        hth_lineage_add(&c, step, 7);
    }
    m[0] = said(&b);
    m[1] = said(&c);
    assert_true(hth_lineage_adopt(&b, 9 * E + 1, VOICES(2)));
    assert_true(hth_lineage_adopt(&c, 9 * E + 1, VOICES(2)));
    assert_true(b.digest == c.digest && b.digest != 0);
}

/* Steps are short, and the others' notes late: their line is waited for. (It began one of its own
 * once, was the only one to show a mark of that milestone, and a tie made all take its state.) */
static void forgotten_history_waits_for_late_records(void **state)
{
    struct hth_lineage a = walk(12 * E, 0, 0), early = walk(8 * E, 0, 0), c;
    struct hth_roster_marks m[3] = {{.step = 0}, said(&early), said(&early)};

    (void)state;
    hth_lineage_forget(&c, 11 * E);
    hth_lineage_is_alike(&c, 11 * E);
    for (uint64_t step = 11 * E + 1; step <= 12 * E; step++)
        hth_lineage_add(&c, step, 7);
    assert_false(hth_lineage_adopt(&c, 12 * E, VOICES(3)));
    m[2] = said(&a);
    assert_true(hth_lineage_adopt(&c, 12 * E, VOICES(3)));
    assert_true(c.digest == a.digest);
}

/* Who shows what at the latest milestone that another one shows: no vote, only a count. */
static void standing_counts_equal_and_other_digests(void **state)
{
    struct hth_lineage ours = walk(10 * E, 0, 0), b = walk(10 * E, 10 * E, 1);
    struct hth_lineage c = walk(10 * E, 9 * E, 2), late = walk(9 * E, 0, 0);
    struct hth_roster_marks m[8] = {said(&ours)};
    struct hth_lineage_standing s;

    (void)state;
    hth_lineage_stands(&ours, m, 1, &s);
    assert_int_equal(s.step, 0); /* alone */
    m[1] = said(&late);
    m[2] = (struct hth_roster_marks){.step = 0};
    hth_lineage_stands(&ours, m, 3, &s);
    assert_true(s.step == 9 * E && s.alike == 1 && s.unlike == 0);
    assert_true(s.mark == hth_lineage_at(&ours, 9 * E));
    m[3] = m[4] = said(&b);
    m[5] = said(&c);
    m[6] = said(&ours);
    hth_lineage_stands(&ours, m, 7, &s); /* the largest other line, not all that differ */
    assert_true(s.step == 10 * E && s.alike == 1 && s.unlike == 2);
    ours = walk(9 * E + HTH_LINEAGE_KEPT * E - 1, 0, 0);
    hth_lineage_stands(&ours, m, 2, &s); /* the other's note is a while old */
    assert_true(s.step == 9 * E && s.alike == 1 && s.unlike == 0);
    ours = walk(9 * E + HTH_LINEAGE_KEPT * E, 0, 0);
    hth_lineage_stands(&ours, m, 2, &s);
    assert_int_equal(s.step, 0);
    hth_lineage_forget(&ours, 10 * E); /* says nothing itself */
    hth_lineage_stands(&ours, m, 7, &s);
    assert_int_equal(s.step, 0);
}

static void lineage_bytes_round_trip_and_are_checked(void **state)
{
    struct hth_lineage a = walk(10 * E + 3, 0, 0), b;
    uint8_t bytes[HTH_LINEAGE_BYTES];
    struct hth_writer w;
    struct hth_reader r;

    (void)state;
    hth_writer_init(&w, bytes, sizeof(bytes));
    hth_lineage_write(&a, &w);
    assert_ok(w.err);
    assert_int_equal(w.pos, sizeof(bytes));
    hth_reader_init(&r, bytes, sizeof(bytes));
    assert_ok(hth_lineage_read(&r, 10 * E + 3, &b));
    assert_memory_equal(&a, &b, sizeof(a));
    for (size_t len = 0; len < sizeof(bytes); len++) {
        hth_reader_init(&r, bytes, len);
        assert_err(HTH_E_TRUNCATED, hth_lineage_read(&r, 10 * E + 3, &b));
    }
    hth_reader_init(&r, bytes, sizeof(bytes));
    assert_err(HTH_E_RANGE, hth_lineage_read(&r, 11 * E, &b));
    for (size_t at = 8; at < 24; at++) { /* of another step, or more than there is room for */
        bytes[at] ^= 0x80;
        hth_reader_init(&r, bytes, sizeof(bytes));
        assert_err(HTH_E_RANGE, hth_lineage_read(&r, 10 * E + 3, &b));
        bytes[at] ^= 0x80;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_steps_give_equal_digests),
        cmocka_unit_test(majority_of_digests_wins),
        cmocka_unit_test(records_of_strangers_choose_no_digest),
        cmocka_unit_test(votes_match_counting_by_hand),
        cmocka_unit_test(trainers_at_other_steps_are_compared_at_common_milestones),
        cmocka_unit_test(resumed_trainer_votes_only_on_later_milestones),
        cmocka_unit_test(forgotten_history_is_adopted_from_the_others),
        cmocka_unit_test(forgotten_history_waits_for_late_records),
        cmocka_unit_test(standing_counts_equal_and_other_digests),
        cmocka_unit_test(lineage_bytes_round_trip_and_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
