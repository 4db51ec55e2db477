/* SPDX-License-Identifier: Apache-2.0 */
/* Cells of a round: each member has one, and each line one of each line of the axis before. */
#include "support/test.h"

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

static void shapes_follow_the_count(void **state)
{
    static const struct {
        uint32_t count;
        const char *asked, *shape;
    } cases[] = {
        {1, NULL, "1"},          {64, NULL, "64"},       {65, NULL, "8x8"},   {100, NULL, "10x10"},
        {256, NULL, "16x16"},    {20, "5x4", "5x4"},     {18, "5x4", "4x4"},  {16, "5x4", "4x4"},
        {31, "5x4", "7x4"},      {7, "5x4", "7"},        {4, "5x4", "4"},     {1, "5x4", "1"},
        {27, "3x3x3", "3x3x3"},  {20, "3x3x3", "2x3x3"}, {9, "3x3x3", "3x3"}, {2, "3x3x3", "2"},
        {8, "2x1x4", "2x4"},     {8, "1x1", "8"},        {70, "16", "8x8"},   {256, "4x2", "16x16"},
        {200, "2x100", "14x14"}, {20, "32x32", "20"},    {128, "2x48", "2x48"},
        {129, "2x48", "11x11"},
    };
    (void)state;
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

static void all_members_have_cells(void **state)
{
    static const char *const shapes[] = {NULL, "5x4", "3x3x3", "6x6", "2x2x2x2x2", "64x4", "2x48"};
    (void)state;
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
static void lines_cover_all(void **state)
{
    (void)state;
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
static void lines_can_be_dialled(void **state)
{
    (void)state;
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
static void heads_mix(void **state)
{
    uint32_t was[64], same = 0;
    (void)state;
    place(64, "8x8", 0, 1);
    memcpy(was, cells.cell, sizeof(was));
    place(64, "8x8", 0, 1);
    assert_memory_equal(cells.cell, was, sizeof(was));
    place(64, "8x8", 0, 2);
    for (uint32_t i = 0; i < 64; i++)
        same += cells.cell[i] == was[i];
    assert_true(same < 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_follow_the_count),
        cmocka_unit_test(all_members_have_cells),
        cmocka_unit_test(lines_cover_all),
        cmocka_unit_test(lines_can_be_dialled),
        cmocka_unit_test(heads_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
