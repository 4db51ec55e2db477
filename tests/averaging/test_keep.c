/* SPDX-License-Identifier: Apache-2.0 */
/* The snapshots of a donor: which one makes room, and for whom one is kept. */
#include "averaging/state_keep.h"
#include "sim/world.h"
#include "support/test.h"

#define S     HTH_US_PER_S
#define MS    HTH_US_PER_MS
#define BYTES (1000 * 1000) /* a slow line takes a second */
#define HOLD  (11 * S)
#define PAUSE (2 * S + 4096)

struct fixture {
    struct hth_world *world;
    struct hth_env *env;
    struct hth_keep keep;
};

static void set_up(struct fixture *f)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;

    memset(f, 0, sizeof(*f));
    f->world = hth_world_new(1, &opts);
    f->env = hth_node_env(hth_world_node(f->world, "donor", &node));
}

static void tear_down(struct fixture *f)
{
    hth_keep_clear(&f->keep);
    assert_null(f->keep.newest);
    hth_world_free(f->world);
}

static struct hth_peer_id peer(uint8_t which)
{
    return (struct hth_peer_id){.b = {which}};
}

static struct hth_snapshot *make(struct fixture *f, uint8_t root, int64_t now_us)
{
    struct hth_snapshot *s;

    assert_ok(hth_snapshot_new(f->env, 1, root, NULL, 0, BYTES, &s));
    assert_int_equal(s->desc.part_bytes, 4096);
    s->desc.root.b[0] = root;
    hth_keep_take(&f->keep, s, now_us);
    return s;
}

static void ask(struct fixture *f, struct hth_snapshot *s, uint8_t by, int64_t now_us)
{
    const struct hth_peer_id id = peer(by);

    hth_keep_asked(&f->keep, s, &id, now_us);
}

static bool is_held(const struct fixture *f, uint8_t root)
{
    const struct hth_hash hash = {.b = {root}};

    return hth_keep_find(&f->keep, &hash) != NULL;
}

/* The elder goes, if nobody fetches it; else the newest; else none. */
static void test_room(void **state)
{
    struct fixture f;
    struct hth_snapshot *s[6];

    (void)state;
    set_up(&f);
    assert_true(hth_keep_make_room(&f.keep, false, 0));
    s[1] = make(&f, 1, 0);
    assert_true(hth_keep_make_room(&f.keep, false, 0));
    assert_true(is_held(&f, 1));
    make(&f, 2, 0);
    assert_true(hth_keep_make_room(&f.keep, false, 0));
    assert_false(is_held(&f, 1));
    s[3] = make(&f, 3, 0);
    ask(&f, f.keep.elder, 7, 0);
    assert_true(hth_keep_make_room(&f.keep, false, PAUSE));
    assert_true(is_held(&f, 2) && !is_held(&f, 3));
    assert_int_equal(f.keep.newest->desc.step, 2);
    s[4] = make(&f, 4, PAUSE);
    ask(&f, f.keep.elder, 7, PAUSE);
    ask(&f, s[4], 8, PAUSE);
    assert_false(hth_keep_make_room(&f.keep, false, 2 * PAUSE));
    assert_true(is_held(&f, 2) && is_held(&f, 4));
    /* Long not asked for. */
    assert_true(hth_keep_make_room(&f.keep, false, 2 * PAUSE + 1));
    assert_true(!is_held(&f, 2) && is_held(&f, 4));
    tear_down(&f);
}

/* However often it is asked for, it is kept for as long as a slow line takes, and no longer. */
static void test_no_longer_than_a_slow_line(void **state)
{
    struct fixture f;
    struct hth_snapshot *a, *b;
    int64_t now;

    (void)state;
    set_up(&f);
    a = make(&f, 1, 0);
    b = make(&f, 2, S);
    for (now = S; now <= HOLD; now += S) {
        ask(&f, a, 1, now);
        ask(&f, b, 2, now);
        assert_false(hth_keep_make_room(&f.keep, false, now));
    }
    assert_true(hth_keep_make_room(&f.keep, false, HOLD + 1));
    assert_true(!is_held(&f, 1) && is_held(&f, 2));
    tear_down(&f);
}

/* Where two are fetched and somebody needs a third, the newest stays for the time of a fast line;
 * the elder has its own. */
static void test_who_holds_both(void **state)
{
    const int64_t fast = 10 * S + 50 * MS;
    struct fixture f;
    struct hth_snapshot *a, *b;

    (void)state;
    set_up(&f);
    a = make(&f, 1, 0);
    b = make(&f, 2, 500 * MS);
    for (int64_t now = S; now <= 500 * MS + fast; now += fast / 20) {
        ask(&f, a, 1, now);
        ask(&f, b, 2, now);
        assert_false(hth_keep_make_room(&f.keep, true, now));
    }
    ask(&f, a, 1, 500 * MS + fast);
    ask(&f, b, 2, 500 * MS + fast);
    assert_false(hth_keep_make_room(&f.keep, true, 500 * MS + fast));
    assert_false(hth_keep_make_room(&f.keep, false, 500 * MS + fast + 1));
    assert_true(hth_keep_make_room(&f.keep, true, 500 * MS + fast + 1));
    assert_true(is_held(&f, 1) && !is_held(&f, 2));
    tear_down(&f);
}

/* Who asks for both has the last of them kept only. */
static void test_a_peer_fetches_one(void **state)
{
    struct fixture f;
    struct hth_snapshot *a, *b;

    (void)state;
    set_up(&f);
    a = make(&f, 1, 0);
    b = make(&f, 2, 0);
    for (int i = 0; i < 5; i++) {
        ask(&f, b, 1, S);
        ask(&f, a, 1, S);
    }
    assert_true(hth_keep_make_room(&f.keep, false, S));
    assert_true(is_held(&f, 1) && !is_held(&f, 2));
    assert_int_equal(f.keep.fetchers, 1);
    tear_down(&f);
}

/* One more than are kept in mind: the place of who asked least lately is taken. */
static void test_fetchers_are_bounded(void **state)
{
    struct fixture f;
    struct hth_snapshot *a, *b;

    (void)state;
    set_up(&f);
    a = make(&f, 1, 0);
    b = make(&f, 2, 0);
    ask(&f, b, 0, 0);
    ask(&f, a, 1, 1);
    for (uint8_t i = 2; i < HTH_STATE_FETCHERS_MAX; i++)
        ask(&f, b, i, i);
    ask(&f, b, 0, S); /* so that the only one of `a` is the oldest */
    assert_int_equal(f.keep.fetchers, HTH_STATE_FETCHERS_MAX);
    assert_false(hth_keep_make_room(&f.keep, false, S));
    ask(&f, b, HTH_STATE_FETCHERS_MAX, S);
    assert_int_equal(f.keep.fetchers, HTH_STATE_FETCHERS_MAX);
    assert_true(hth_keep_make_room(&f.keep, false, S));
    assert_true(!is_held(&f, 1) && is_held(&f, 2));
    tear_down(&f);
}

static void test_what_nobody_asks_for_goes(void **state)
{
    struct fixture f;
    struct hth_snapshot *a;

    (void)state;
    set_up(&f);
    a = make(&f, 1, 0);
    make(&f, 2, 0);
    ask(&f, a, 1, 5 * S);
    hth_keep_tidy(&f.keep, 20 * S, 20 * S);
    assert_true(is_held(&f, 1) && is_held(&f, 2));
    hth_keep_tidy(&f.keep, 20 * S, 20 * S + 1);
    assert_true(is_held(&f, 1) && !is_held(&f, 2));
    hth_keep_tidy(&f.keep, 20 * S, 25 * S + 1);
    assert_null(f.keep.newest);
    tear_down(&f);
}

/* Whoever holds a part holds no more than that. */
static void test_parts_are_blobs(void **state)
{
    struct fixture f;
    struct hth_snapshot *s;
    struct hth_blob *part;

    (void)state;
    set_up(&f);
    s = make(&f, 1, 0);
    assert_int_equal(s->desc.parts, 245);
    assert_int_equal(s->parts[0]->size, 4096);
    assert_int_equal(s->parts[244]->size, BYTES - 244 * 4096);
    part = hth_blob_ref(s->parts[3]);
    hth_keep_clear(&f.keep);
    memset(part->data, 1, part->size);
    hth_blob_unref(part);
    assert_err(HTH_E_RANGE, hth_snapshot_new(f.env, 1, 2, NULL, 0, 0, &s));
    assert_null(s);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_no_longer_than_a_slow_line),
        cmocka_unit_test(test_who_holds_both),
        cmocka_unit_test(test_a_peer_fetches_one),
        cmocka_unit_test(test_fetchers_are_bounded),
        cmocka_unit_test(test_what_nobody_asks_for_goes),
        cmocka_unit_test(test_parts_are_blobs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
