/* SPDX-License-Identifier: Apache-2.0 */
/* All that have a GO make the same line of it: members, helpers, and what each reduces. */
#include "support/test.h"

#include "collab/line.h"
#include "net/crypto.h"

static const struct hth_crypto *crypto;

static struct hth_roll_peer peer(uint8_t id, uint32_t kbit, bool rests, bool client)
{
    return (struct hth_roll_peer){.id = {{id}},
                                  .samples = id,
                                  .up_kbit = kbit,
                                  .rests = rests,
                                  .addr = {.family = client ? 0 : 4, .port = client ? 0 : 1}};
}

static void fill(struct hth_ready_reply *go, const struct hth_avg_shape *shape,
                 struct hth_roll_group *group, struct hth_cells *cells)
{
    static const struct hth_avg_shape none;
    const struct hth_peer_id self = {{2}};
    hth_line_group(crypto, &self, go, group);
    hth_cells_place(crypto, &group->head, group->peer, group->count, shape ? shape : &none, cells);
}

/* Bandwidths of members and helpers, in kbit/s, as said and as counted; 0 of the latter: reduces
 * nothing. */
static void bandwidths_are_counted(void **state)
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
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        static struct hth_ready_reply go;
        static struct hth_cells cells;
        struct hth_roll_group group;
        struct hth_line line;
        const struct hth_reduce_member *m = line.member;
        go = (struct hth_ready_reply){.kind = HTH_READY_GO, .count = 4, .helpers = 1};
        for (uint8_t i = 0; i < 4; i++)
            go.peer[3 - i] = peer(i + 1, cases[k].said[i], cases[k].how[i] & RESTS,
                                  cases[k].how[i] & CLIENT);
        go.helper[0] = peer(9, cases[k].helper, false, false);
        fill(&go, NULL, &group, &cells);
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
static void helpers_are_dealt_out(void **state)
{
    static struct hth_ready_reply go;
    static struct hth_cells cells;
    const struct hth_avg_shape shape = {.dims = 2, .size = {3, 2}};
    struct hth_roll_group group;
    struct hth_line line;
    (void)state;
    go = (struct hth_ready_reply){.kind = HTH_READY_GO, .count = 5, .helpers = 3};
    for (uint8_t i = 0; i < 5; i++)
        go.peer[i] = peer(i + 1, 0, false, false);
    for (uint8_t i = 0; i < 3; i++)
        go.helper[i] = peer(20 + i, 0, false, false);
    fill(&go, &shape, &group, &cells);
    for (uint32_t cell = 0; cell < 2; cell++) {
        hth_line_fill(&group, &cells, cell, 0, NULL, &line);
        assert_int_equal(line.members, cell == 0 ? 3 : 2);
        assert_int_equal(line.count - line.members, cell == 0 ? 2 : 1);
        for (uint32_t i = line.members; i < line.count; i++)
            assert_int_equal(hth_line_of_helper(&cells, line.member[i].id.b[0] - 20u), cell);
    }
}

/* Along a later axis cells count for the samples that they cover, without those that are missing;
 * twins only hear, and cells without a mean are left out. */
static void rows_weigh_what_they_cover(void **state)
{
    static struct hth_ready_reply go;
    static struct hth_cells cells;
    const struct hth_avg_shape shape = {.dims = 2, .size = {2, 3}};
    struct hth_roll_group group;
    struct hth_line line;
    uint16_t marks[8];
    (void)state;
    go = (struct hth_ready_reply){.kind = HTH_READY_GO, .count = 8, .helpers = 1};
    for (uint8_t i = 0; i < 8; i++)
        go.peer[i] = peer(i + 1, 100, false, i == 3);
    fill(&go, &shape, &group, &cells); /* two twins, in lines 0 and 1 of the first axis */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bandwidths_are_counted),
        cmocka_unit_test(helpers_are_dealt_out),
        cmocka_unit_test(rows_weigh_what_they_cover),
    };
    crypto = hth_crypto_openssl();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
