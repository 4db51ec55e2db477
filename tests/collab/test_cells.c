/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cells of a round: each member has one, and each line one of each line of the axis before. All
 * that have a GO make the same line of it: members, helpers, and what each reduces.
 */
#include "support/suite.h"

#include "collab/cells.h"
#include "net/crypto.h"

static struct hth_roll_peer peer[HTH_ROLL_MEMBERS_MAX];
static struct hth_cells cells;

/* Every `client`-th member can't be dialled; 0: all can. */
static const char *place(uint32_t count, const char *asked, uint32_t client, uint8_t head)
{
    static char text[HTH_AVG_SHAPE_TEXT_MAX];
    struct hth_avg_shape shape = {.dims = 0};
    const struct hth_hash hash = {{head}};
    for (uint32_t i = 0; i < count; i++) {
        peer[i] = (struct hth_roll_peer){.id = {{(uint8_t)i, 3}}, .addr = {.family = 4}};
        if (client > 0 && i % client == 0)
            peer[i].addr.family = 0;
    }
    if (asked != NULL)
        assert_ok(hth_avg_shape_parse(asked, &shape));
    hth_cells_place(hth_crypto_openssl(), &hash, peer, count, &shape, &cells);
    return hth_avg_shape_text(&cells.shape, text);
}

TEST(shapes_follow_the_count)
{
    static const struct {
        uint32_t count;
        const char *asked, *shape;
    } cases[] = {
        {1, NULL, "1"},         {64, NULL, "64"},       {65, NULL, "8x8"},
        {100, NULL, "10x10"},   {256, NULL, "16x16"},   {20, "5x4", "5x4"},
        {18, "5x4", "4x4"},     {16, "5x4", "4x4"},     {31, "5x4", "7x4"},
        {7, "5x4", "7"},        {4, "5x4", "4"},        {1, "5x4", "1"},
        {27, "3x3x3", "3x3x3"}, {20, "3x3x3", "2x3x3"}, {9, "3x3x3", "3x3"},
        {2, "3x3x3", "2"},      {8, "2x1x4", "2x4"},    {8, "1x1", "8"},
        {70, "16", "8x8"},      {256, "4x2", "16x16"},  {200, "2x100", "14x14"},
        {20, "32x32", "20"},    {128, "2x48", "2x48"},  {129, "2x48", "11x11"},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_string_equal(place(cases[i].count, cases[i].asked, 0, 1), cases[i].shape);
}

/* Each member has a cell, and each cell a member of its own. */
static void check(uint32_t count)
{
    uint32_t layer = cells.cells / cells.shape.size[0];
    assert_true(cells.cells <= count && count - cells.cells < layer);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(cells.cell[i] < cells.cells);
        assert_true(cells.member[cells.cell[i]] == i || cells.member[cells.cell[i]] < count);
        if (i < cells.cells)
            assert_int_equal(cells.cell[cells.member[i]], i);
    }
}

/* A line has a member of each of its cells, then twins, and no member twice. All members of its
 * cells are on it. */
static void check_line(uint32_t cell, uint32_t axis)
{
    bool stands[HTH_ROLL_MEMBERS_MAX] = {false};
    uint16_t line[HTH_ROLL_LINE_MAX], other[HTH_ROLL_LINE_MAX];
    uint32_t n = hth_cells_line(&cells, cell, axis, line), on_cells = 0;
    assert_true(n <= HTH_ROLL_LINE_MAX && n >= cells.shape.size[axis]);
    assert_true(n <= cells.shape.size[axis] + (axis == 0 ? 1 : cells.shape.size[axis]));
    for (uint32_t k = 0; k < n; k++) {
        assert_false(stands[line[k]]);
        stands[line[k]] = true;
        bool first = cells.member[cells.cell[line[k]]] == line[k];
        assert_int_equal(first, k < cells.shape.size[axis]);
        on_cells += first;
        assert_int_equal(hth_cells_line(&cells, cells.cell[line[k]], axis, other), n);
        assert_memory_equal(line, other, n * sizeof(*line));
    }
    assert_true(stands[cells.member[cell]]);
    assert_int_equal(on_cells, cells.shape.size[axis]);
}

TEST(all_members_have_cells)
{
    static const char *const shapes[] = {NULL, "5x4", "3x3x3", "6x6", "2x2x2x2x2", "64x4", "2x48"};
    for (uint32_t count = 1; count <= HTH_ROLL_MEMBERS_MAX; count += count < 70 ? 1 : 31)
        for (size_t i = 0; i < HTH_ARRAY_LEN(shapes); i++) {
            place(count, shapes[i], 3, (uint8_t)count);
            check(count);
            for (uint32_t cell = 0; cell < cells.cells; cell++)
                for (uint32_t axis = 0; axis < cells.shape.dims; axis++)
                    check_line(cell, axis);
        }
}

/* Of the members' values each is once in what a line brings together. */
TEST(lines_cover_all)
{
    place(23, "3x3x3", 0, 4);
    assert_int_equal(cells.cells, 18);
    for (uint32_t cell = 0; cell < cells.cells; cell++)
        for (uint32_t axis = 1; axis < 3; axis++) {
            uint16_t line[HTH_ROLL_LINE_MAX];
            uint32_t covered = 0, expected = 0;
            (void)hth_cells_line(&cells, cell, axis, line);
            for (uint32_t m = 0; m < 23; m++) {
                for (uint32_t k = 0; k < 3; k++)
                    covered += hth_cells_covers(&cells, cells.cell[line[k]], axis, m);
                expected += axis == 2 || hth_cells_covers(&cells, cell, axis + 1, m);
            }
            assert_int_equal(covered, expected);
            assert_true(axis < 2 || covered == 23);
        }
}

/* As long as enough of them can be dialled, each line has one that can. */
TEST(lines_can_be_dialled)
{
    for (uint8_t head = 0; head < 50; head++) {
        place(36, "6x6", 2, head);
        for (uint32_t cell = 0; cell < cells.cells; cell++)
            for (uint32_t axis = 0; axis < 2; axis++) {
                uint16_t line[HTH_ROLL_LINE_MAX];
                uint32_t n = hth_cells_line(&cells, cell, axis, line);
                bool any = false;
                for (uint32_t k = 0; k < n; k++)
                    any |= peer[line[k]].addr.family != 0;
                assert_true(any);
            }
    }
}

/* Two heads, two arrangements: who meets whom cannot be chosen. */
TEST(heads_mix)
{
    uint32_t was[64], same = 0;
    place(64, "8x8", 0, 1);
    memcpy(was, cells.cell, sizeof(was));
    place(64, "8x8", 0, 1);
    assert_memory_equal(cells.cell, was, sizeof(was));
    place(64, "8x8", 0, 2);
    for (uint32_t i = 0; i < 64; i++)
        same += cells.cell[i] == was[i];
    assert_true(same < 8);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static struct hth_roll_peer member(uint8_t id, uint32_t kbit, bool rests, bool client)
{
    return (struct hth_roll_peer){.id = {{id}},
                                  .samples = id,
                                  .up_kbit = kbit,
                                  .rests = rests,
                                  .addr = {.family = client ? 0 : 4, .port = client ? 0 : 1}};
}

static void fill(struct hth_ready_reply *go, const struct hth_avg_shape *shape,
                 struct hth_roll_group *group)
{
    static const struct hth_avg_shape none;
    const struct hth_peer_id self = {{2}};
    hth_line_group(hth_crypto_openssl(), &self, go, group);
    hth_cells_place(hth_crypto_openssl(), &group->head, group->peer, group->count,
                    shape ? shape : &none, &cells);
}

/* Bandwidths of members and helpers, in kbit/s, as said and as counted; 0 of the latter: reduces
 * nothing. */
TEST(bandwidths_are_counted)
{
    enum { CLIENT = 1, RESTS = 2 };
    static const struct {
        uint32_t said[4], how[4], helper;
        double counts[5]; /* kbit/s */
    } cases[] = {
        {{0, 0, 0, 0}, {0}, 0, {1e-3, 1e-3, 1e-3, 1e-3, 1e-3}},
        {{100, 0, 300, 200}, {0}, 0, {100, 200, 300, 200, 200}},
        {{100, 0, 300, 200}, {0, CLIENT, RESTS}, 900, {100, 0, 0, 200, 900}},
        {{100, 50, 50, 50}, {RESTS, RESTS, CLIENT, RESTS}, 0, {100, 50, 0, 50, 50}},
        {{0, 0, 0, 0}, {CLIENT, CLIENT, CLIENT, CLIENT}, 70, {0, 0, 0, 0, 70}},
    };
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        static struct hth_ready_reply go;
        struct hth_roll_group group;
        struct hth_line line;
        const struct hth_reduce_member *m = line.member;
        go = (struct hth_ready_reply){.kind = HTH_READY_GO, .count = 4, .helpers = 1};
        for (uint8_t i = 0; i < 4; i++)
            go.peer[3 - i] =
                member(i + 1, cases[k].said[i], cases[k].how[i] & RESTS, cases[k].how[i] & CLIENT);
        go.helper[0] = member(9, cases[k].helper, false, false);
        fill(&go, NULL, &group);
        assert_int_equal(group.self, 1);
        hth_line_fill(&group, &cells, 0, 0, NULL, &line);
        assert_int_equal(line.count, 5);
        assert_int_equal(line.members, 4);
        for (uint32_t i = 0; i < 5; i++) {
            uint32_t at = i == 4 ? 4 : m[i].id.b[0] - 1u;
            assert_true(m[i].bandwidth == cases[k].counts[at] * 1e3);
            assert_true(m[i].weight == (i == 4 ? 0 : m[i].id.b[0]));
        }
    }
}

/* Each helper of a grid is in one line. */
TEST(helpers_are_dealt_out)
{
    static struct hth_ready_reply go;
    const struct hth_avg_shape shape = {.dims = 2, .size = {3, 2}};
    struct hth_roll_group group;
    struct hth_line line;
    go = (struct hth_ready_reply){.kind = HTH_READY_GO, .count = 5, .helpers = 3};
    for (uint8_t i = 0; i < 5; i++)
        go.peer[i] = member(i + 1, 0, false, false);
    for (uint8_t i = 0; i < 3; i++)
        go.helper[i] = member(20 + i, 0, false, false);
    fill(&go, &shape, &group);
    for (uint32_t cell = 0; cell < 2; cell++) {
        hth_line_fill(&group, &cells, cell, 0, NULL, &line);
        assert_int_equal(line.members, cell == 0 ? 3 : 2);
        assert_int_equal(line.count - line.members, cell == 0 ? 2 : 1);
        for (uint32_t i = line.members; i < line.count; i++)
            assert_int_equal(hth_line_of_helper(&cells, line.member[i].id.b[0] - 20u), cell);
    }
}

/* Members that claim the most that a READY may say have weights that a reducer takes, and eight of
 * them are more than 2^32 together. */
TEST(largest_claims_have_weights)
{
    static struct hth_ready_reply go;
    const struct hth_avg_shape shape = {.dims = 2, .size = {8, 2}};
    struct hth_roll_group group;
    struct hth_line line;
    uint16_t marks[16];
    go = (struct hth_ready_reply){.kind = HTH_READY_GO, .count = 16};
    for (uint8_t i = 0; i < 16; i++) {
        go.peer[i] = member(i + 1, 0, false, false);
        go.peer[i].samples = HTH_ROLL_SAMPLES_MAX;
        marks[i] = HTH_ROLL_IN;
    }
    fill(&go, &shape, &group);
    for (uint32_t cell = 0; cell < 16; cell++) {
        assert_true(hth_line_samples(&group, &cells, cell, 1, marks) ==
                    8ull * HTH_ROLL_SAMPLES_MAX);
        hth_line_fill(&group, &cells, cell, 0, NULL, &line);
        assert_int_equal(line.count, 8);
        for (uint32_t k = 0; k < line.count; k++)
            assert_in_range(line.member[k].weight, HTH_ROLL_SAMPLES_MAX, HTH_AVG_WEIGHT_MAX);
    }
}

/* Along a later axis cells count for the samples that they cover, without those that are missing;
 * twins only hear, and cells without a mean are left out. */
TEST(rows_weigh_what_they_cover)
{
    static struct hth_ready_reply go;
    const struct hth_avg_shape shape = {.dims = 2, .size = {2, 3}};
    struct hth_roll_group group;
    struct hth_line line;
    uint16_t marks[8];
    go = (struct hth_ready_reply){.kind = HTH_READY_GO, .count = 8, .helpers = 1};
    for (uint8_t i = 0; i < 8; i++)
        go.peer[i] = member(i + 1, 100, false, i == 3);
    fill(&go, &shape, &group); /* two twins, in lines 0 and 1 of the first axis */
    for (uint32_t row = 0; row < 2; row++) {
        uint32_t cell = row * 3, all = 0;
        for (uint32_t i = 0; i < 8; i++) {
            marks[i] = cells.cell[i] % 3 == 2 ? 0 : i == 6 ? HTH_ROLL_PART : HTH_ROLL_IN;
            all += marks[i] != 0 ? group.peer[i].samples : 0;
        }
        hth_line_fill(&group, &cells, cell, 1, marks, &line);
        assert_int_equal(line.count, 3);
        assert_int_equal(line.members, 3);
        for (uint32_t k = 0; k < 3; k++) {
            const struct hth_reduce_member *m = &line.member[k];
            double samples = 0;
            for (uint32_t i = 0; i < 8 && k < 2; i++)
                samples += cells.cell[i] % 3 == k ? group.peer[i].samples : 0;
            assert_int_equal(hth_cells_is_twin(&cells, line.of[k]), k == 2);
            assert_true(m->weight == samples / all);
            assert_true(m->bandwidth == (k < 2 && m->addr.family != 0 ? 1e5 : 0));
        }
    }
}
