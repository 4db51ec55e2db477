/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_grid.c: shapes against their definition by brute force; exact means on full
 * grids; names equal bytes made elsewhere, and differ where anything differs; the averager of a
 * trainer that is alone.
 */
#include "averaging/match.h"
#include "core/mem.h"
#include "core/rng.h"
#include "net/crypto.h"
#include "support/suite.h"

#include <stdlib.h>

static struct hth_avg_shape shape_of(const char *text)
{
    struct hth_avg_shape shape;
    assert_ok(hth_avg_shape_parse(text, &shape));
    return shape;
}

TEST(test_shape_text)
{
    static const struct {
        const char *text;
        enum hth_err err;
    } bad[] = {
        {"", HTH_E_MALFORMED},
        {"x", HTH_E_MALFORMED},
        {"4x", HTH_E_MALFORMED},
        {"x4", HTH_E_MALFORMED},
        {"4X4", HTH_E_MALFORMED},
        {"4x4 ", HTH_E_MALFORMED},
        {"04", HTH_E_MALFORMED},
        {"-4", HTH_E_MALFORMED},
        {"4.4", HTH_E_MALFORMED},
        {"0", HTH_E_RANGE},
        {"4x0", HTH_E_RANGE},
        {"16777217", HTH_E_RANGE},
        {"4096x4097", HTH_E_RANGE},
        {"4096x4096x2", HTH_E_RANGE},
        {"2x99999999999999", HTH_E_RANGE},
        {"2x2x2x2x2x2x2x2x2", HTH_E_TOO_LARGE},
    };
    static const char *good[] = {"1",         "16",       "32x32",     "5x4x4", "2x2x2x2x2x2x2x2",
                                 "4096x4096", "16777216", "1x16777216"};
    char text[HTH_AVG_SHAPE_TEXT_MAX];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(good); i++) {
        struct hth_avg_shape shape = shape_of(good[i]);
        assert_string_equal(hth_avg_shape_text(&shape, text), good[i]);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        struct hth_avg_shape shape = shape_of("3");
        assert_err(bad[i].err, hth_avg_shape_parse(bad[i].text, &shape));
        assert_int_equal(shape.dims, 0);
    }
}

TEST(test_shape_golden)
{
    static const struct {
        uint32_t population, group_max;
        const char *text;
    } golden[] = {
        {17, 16, "5x4"},
        {13, 3, "3x2x2"},
        {4096, 16, "16x16x16"},
        {0, 0, "1"},
        {16777216, 4096, "4096x4096"},
        {UINT32_MAX, 2, "8x8x8x8x8x8x8x8"},
    };
    char text[HTH_AVG_SHAPE_TEXT_MAX];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(golden); i++) {
        struct hth_avg_shape shape = hth_avg_shape_for(golden[i].population, golden[i].group_max);
        assert_ok(hth_avg_shape_check(&shape));
        assert_string_equal(hth_avg_shape_text(&shape, text), golden[i].text);
    }
}

/* Shapes out of records obey the parser's limits. */
TEST(test_shape_check)
{
    static const struct {
        struct hth_avg_shape shape;
        enum hth_err err;
    } cases[] = {{{2, {4, 4}}, HTH_OK},
                 {{2, {4, 4, 1}}, HTH_E_RANGE},
                 {{2, {4, 0}}, HTH_E_RANGE},
                 {{0, {0}}, HTH_E_RANGE},
                 {{HTH_AVG_DIMS_MAX + 1, {1, 1, 1, 1, 1, 1, 1, 1}}, HTH_E_TOO_LARGE},
                 {{2, {4096, 4096}}, HTH_OK},
                 {{2, {4096, 4097}}, HTH_E_RANGE},
                 {{2, {UINT32_MAX, UINT32_MAX}}, HTH_E_RANGE}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_err(cases[i].err, hth_avg_shape_check(&cases[i].shape));
}

/* The definition in grid.h, by trying all products of equal sizes and sizes one larger. */
static uint32_t cells_by_definition(uint32_t n, uint32_t group_max, uint32_t dims)
{
    uint64_t above = UINT64_MAX, below = 0;
    for (uint64_t k = 1; k <= group_max; k++)
        for (uint32_t high = 0; high < dims && (high == 0 || k < group_max); high++) {
            uint64_t cells = 1;
            for (uint32_t i = 0; i < dims; i++)
                cells *= i < high ? k + 1 : k;
            if (cells >= n && cells < above)
                above = cells;
            if (cells < n && cells > below)
                below = cells;
        }
    return (uint32_t)((double)n / (double)above < HTH_AVG_FILL_MIN ? below : above);
}

TEST(test_shape_definition)
{
    (void)state;
    for (uint32_t group_max = 2; group_max <= 40; group_max += group_max < 9 ? 1 : 7)
        for (uint32_t n = 1; n <= 1200 && n <= group_max * group_max * group_max; n++) {
            uint32_t dims = 1, low = UINT32_MAX, high = 0;
            for (uint32_t reach = group_max; reach < n; reach *= group_max)
                dims++;
            struct hth_avg_shape shape = hth_avg_shape_for(n, group_max);
            assert_int_equal(hth_avg_cells(&shape), cells_by_definition(n, group_max, dims));
            for (uint32_t i = 0; i < shape.dims; i++) {
                low = HTH_MIN(low, shape.size[i]);
                high = HTH_MAX(high, shape.size[i]);
            }
            assert_true(high <= group_max && high - low <= 1);
            assert_true(hth_avg_fill(&shape, n) >= HTH_AVG_FILL_MIN);
            assert_true(group_max < 3 || hth_avg_fill(&shape, n) <= 1.125);
            assert_true(hth_avg_shape_suits(&shape, n, group_max));
        }
}

/* A shape stays while its fill is in the band and its axes are such as others might propose; the
 * one for a population always suits it. */
TEST(test_suits)
{
    static const struct {
        const char *shape;
        uint32_t population, group_max;
        bool suits;
    } cases[] = {{"32x32", 768, 32, true},     {"32x32", 767, 32, false},
                 {"32x32", 1331, 32, true},    {"32x32", 1332, 32, false},
                 {"32x32", 1024, 31, false},   {"8x8x16", 1024, 32, true},
                 {"8x4x8x4", 1024, 32, false}, {"20", 20, 16, false}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_avg_shape shape = shape_of(cases[i].shape);
        assert_true(hth_avg_shape_suits(&shape, cases[i].population, cases[i].group_max) ==
                    cases[i].suits);
    }
    struct hth_avg_shape only = hth_avg_shape_for(23, 2); /* there is no better one */
    assert_true(hth_avg_fill(&only, 23) > HTH_AVG_FILL_MAX);
}

TEST(test_cells)
{
    struct hth_avg_shape shape = shape_of("5x4x3");
    struct hth_avg_cell cell;
    uint32_t count[60] = {0};
    char text[HTH_AVG_SHAPE_TEXT_MAX];
    (void)state;
    cell = hth_avg_cell_of_rank(&shape, 0);
    assert_string_equal(hth_avg_cell_text(&shape, &cell, text), "0.0.0");
    cell = hth_avg_cell_of_rank(&shape, 59);
    assert_string_equal(hth_avg_cell_text(&shape, &cell, text), "4.3.2");
    cell = hth_avg_cell_of_rank(&shape, 60 * 7 + 4);
    assert_string_equal(hth_avg_cell_text(&shape, &cell, text), "0.1.1");
    cell.at[2] = 3;
    assert_err(HTH_E_RANGE, hth_avg_cell_check(&shape, &cell));
    cell.at[2] = 0;
    cell.at[3] = 1;
    assert_err(HTH_E_RANGE, hth_avg_cell_check(&shape, &cell));
    for (uint32_t i = 0; i < 6000; i++) {
        struct hth_peer_id id = {.b = {(uint8_t)i, (uint8_t)(i >> 8)}};
        cell = hth_avg_cell_drawn(&shape, &id);
        assert_ok(hth_avg_cell_check(&shape, &cell));
        count[(cell.at[0] * 4 + cell.at[1]) * 3 + cell.at[2]]++;
    }
    for (uint32_t i = 0; i < 60; i++) {
        assert_in_range(count[i], 60, 140); /* four standard deviations about 100 */
    }
}

/* The cells of a grid by number. */
static uint32_t number_of(const struct hth_avg_shape *shape, const struct hth_avg_cell *cell)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < shape->dims; i++)
        n = n * shape->size[i] + cell->at[i];
    return n;
}

/* Every line of every axis has a cell that is set. */
static bool is_in_all_lines(const struct hth_avg_shape *shape, const bool *set)
{
    for (uint32_t rank = 0; rank < hth_avg_cells(shape); rank++)
        for (uint32_t axis = 0; axis < shape->dims; axis++) {
            struct hth_avg_cell cell = hth_avg_cell_of_rank(shape, rank);
            bool any = false;

            for (cell.at[axis] = 0; cell.at[axis] < shape->size[axis]; cell.at[axis]++)
                any |= set[number_of(shape, &cell)];
            if (!any)
                return false;
        }
    return true;
}

TEST(test_across)
{
    static const char *const texts[] = {"7", "2x2", "5x4", "4x5", "3x3x3", "4x2x3", "2x2x2x2"};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(texts); k++) {
        struct hth_avg_shape shape = shape_of(texts[k]);
        uint32_t cells = (uint32_t)hth_avg_cells(&shape), least = shape.size[0];
        bool set[64] = {false};

        for (uint32_t i = 1; i < shape.dims; i++)
            least = HTH_MIN(least, shape.size[i]);
        for (uint32_t rank = 0; rank < 2 * cells; rank++) {
            struct hth_avg_cell cell = hth_avg_cell_across(&shape, rank);

            assert_ok(hth_avg_cell_check(&shape, &cell));
            assert_int_equal(set[number_of(&shape, &cell)], rank >= cells); /* each once */
            set[number_of(&shape, &cell)] = true;
            assert_int_equal(is_in_all_lines(&shape, set), rank + 1 >= cells / least);
        }
    }
}

/* ---- rounds -------------------------------------------------------------------------------- */

#define PEERS_MAX 256

struct crowd {
    struct hth_avg_shape shape;
    uint32_t peers;
    struct hth_avg_cell cell[PEERS_MAX];
    double value[PEERS_MAX];
};

/* Every line of the round takes its mean, and deals out its cells with `deals`. */
static void run_round(struct crowd *c, uint32_t round, bool deals)
{
    uint32_t axis = hth_avg_axis(&c->shape, round);
    bool done[PEERS_MAX] = {false};
    struct hth_avg_line mine = {.shape = c->shape, .round = round}, other = mine;

    for (uint32_t p = 0; p < c->peers; p++) {
        uint32_t line[PEERS_MAX], count = 0;
        double sum = 0;

        mine.cell = c->cell[p];
        for (uint32_t q = 0; q < c->peers && !done[p]; q++) {
            other.cell = c->cell[q];
            if (!hth_avg_line_eq(&mine, &other))
                continue;
            assert_false(done[q]);
            line[count++] = q;
            sum += c->value[q];
        }
        for (uint32_t i = 0; i < count; i++) {
            done[line[i]] = true;
            c->value[line[i]] = sum / count;
            if (deals)
                c->cell[line[i]].at[axis] = (line[0] + i) % c->shape.size[axis];
        }
    }
}

/* By rank d rounds give the exact mean from any first round on, where all layers of the first axis
 * are full, whether there are fewer of them than cells or more. Others agree soon, and so do those
 * whose cells are drawn at first, and dealt out by each group then. */
TEST(test_rounds)
{
    static const struct {
        const char *shape;
        uint32_t peers, rounds; /* 0: exact */
        bool drawn;
    } cases[] = {{"7", 7, 0, false},        {"4x4", 16, 0, false},    {"3x3x3", 27, 0, false},
                 {"2x2x2x2", 16, 0, false}, {"5x4x4", 80, 0, false},  {"16x16", 256, 0, false},
                 {"1x6", 6, 0, false},      {"4x4", 12, 0, false},    {"4x4", 20, 0, false},
                 {"8x8", 40, 0, false},     {"4x4x4", 50, 24, false}, {"3x3", 8, 14, false},
                 {"8x8", 83, 8, false},     {"8x8", 64, 6, true},     {"6x6x6", 216, 9, true}};
    static struct crowd c;
    struct hth_rng rng;

    (void)state;
    hth_rng_init(&rng, 20);
    for (size_t s = 0; s < HTH_ARRAY_LEN(cases); s++)
        for (uint32_t first = 0; first < 3; first++) {
            uint32_t rounds;
            double mean = 0;

            c = (struct crowd){.shape = shape_of(cases[s].shape), .peers = cases[s].peers};
            rounds = cases[s].rounds > 0 ? cases[s].rounds : c.shape.dims;
            for (uint32_t p = 0; p < c.peers; p++) {
                const struct hth_peer_id id = {.b = {(uint8_t)p}};

                c.value[p] = hth_rng_normal(&rng);
                c.cell[p] = cases[s].drawn ? hth_avg_cell_drawn(&c.shape, &id)
                                           : hth_avg_cell_of_rank(&c.shape, p);
                mean += c.value[p] / c.peers;
            }
            for (uint32_t r = first; r < first + rounds; r++)
                run_round(&c, r, cases[s].drawn);
            for (uint32_t p = 1; p < c.peers; p++)
                assert_close(c.value[p], c.value[0], 0, cases[s].rounds > 0 ? 1e-4 : 1e-14);
            assert_true(cases[s].rounds > 0 || fabs(c.value[0] - mean) < 1e-14);
        }
}

/* ---- names --------------------------------------------------------------------------------- */

static struct hth_avg_line golden_line(void)
{
    struct hth_avg_line line = {
        .round = 1000003, /* axis 1 */
        .shape = {.dims = 3, .size = {5, 4, 4}},
        .cell = {.at = {3, 2, 1}},
    };
    return line;
}

static void members(struct hth_avg_member *out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        char text[24];
        struct hth_hash hash;
        int len = snprintf(text, sizeof(text), "member %u", i);

        hth_crypto_openssl()->hash(text, (size_t)len, &hash);
        out[i] = (struct hth_avg_member){
            .addr = {.family = 4, .ip = {10, 0, 0, 1}, .port = 9}, .weight = 1 + i, .nonce = i};
        memcpy(out[i].id.b, hash.b, sizeof(hash.b));
    }
}

static enum hth_err group_of(const struct hth_avg_line *line, uint64_t schema,
                             const struct hth_avg_member *m, uint32_t count,
                             struct hth_avg_group **out)
{
    static struct hth_join_reply list;
    uint8_t data[HTH_JOIN_REPLY_BYTES_MAX];

    list.reason = HTH_AVG_OK;
    list.count = count;
    memcpy(list.member, m, count * sizeof(*m));
    return hth_avg_group_new(hth_crypto_openssl(), &m[count - 1].id, line, schema, data,
                             hth_join_reply_write(&list, data), &list, out);
}

/* Axis, axes, sizes, and the cell without the round's own axis. */
TEST(test_golden_key)
{
    static const uint8_t golden_key[] = {1, 3, 5, 0, 0, 0, 4, 0, 0, 0, 4,
                                         0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0};
    struct hth_avg_line line = golden_line();
    uint8_t key[HTH_AVG_LINE_KEY_MAX];

    (void)state;
    for (line.cell.at[1] = 0; line.cell.at[1] < 4; line.cell.at[1]++) {
        assert_int_equal(hth_avg_line_key(&line, key), sizeof(golden_key));
        assert_memory_equal(key, golden_key, sizeof(golden_key));
    }
}

/* A group has all of a list, in an order that its bytes draw; whatever differs makes another. */
TEST(test_groups)
{
    struct hth_avg_line line = golden_line(), others[4];
    struct hth_avg_member good[5], m[5];
    struct hth_avg_group *g[13];

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(others); i++)
        others[i] = line;
    others[0].round++;
    others[1].shape.size[0]++;
    others[2].cell.at[0]++;
    others[3].cell.at[2]++;
    members(good, 5);
    for (uint32_t i = 0; i < HTH_ARRAY_LEN(g); i++) {
        const struct hth_avg_line *l = i < HTH_ARRAY_LEN(others) ? &others[i] : &line;
        uint32_t count = i == 11 ? 4 : 5, found = 0;

        assert_true(l == &line || !hth_avg_line_eq(&line, l));
        memcpy(m, good, sizeof(m));
        m[2].bandwidth += i == 4;
        m[2].weight += i == 5;
        m[2].nonce += i == 6;
        m[2].addr.port += i == 7;
        m[2].addr.ip[3] += i == 8;
        m[2].mode += i == 9 ? HTH_AVG_CLIENT : 0;
        assert_ok(group_of(l, i == 10 ? 1 : 0xabcdef, m, count, &g[i]));
        for (uint32_t k = 0; k < i; k++)
            assert_memory_not_equal(&g[k]->id, &g[i]->id, sizeof(g[i]->id));
        for (uint32_t k = 0; k < count * count; k++)
            found += hth_peer_id_eq(&g[i]->member[k / count].id, &m[k % count].id);
        assert_int_equal(found, count);
        assert_true(hth_peer_id_eq(&g[i]->member[g[i]->self].id, &m[count - 1].id));
    }
    for (uint32_t i = 0; i < HTH_ARRAY_LEN(g); i++)
        hth_free(g[i]);
}

TEST(test_group_limits)
{
    static struct hth_avg_member m[HTH_AVG_MEMBERS_MAX];
    struct hth_avg_line line = golden_line();
    struct hth_avg_group *g;

    (void)state;
    members(m, HTH_ARRAY_LEN(m));
    line.shape = (struct hth_avg_shape){.dims = 8, .size = {2, 2, 2, 2, 2, 2, 2, 2}};
    line.cell = (struct hth_avg_cell){.at = {1, 1, 1, 1, 1, 1, 1, 1}};
    assert_ok(group_of(&line, 1, m, HTH_AVG_MEMBERS_MAX, &g)); /* the largest of the longest line */
    hth_free(g);
    m[0].mode = m[1].mode = HTH_AVG_HELPER;
    assert_err(HTH_E_RANGE, group_of(&line, 1, m, 3, &g));
    m[3] = m[200];
    assert_err(HTH_E_DUPLICATE, group_of(&line, 1, m, HTH_AVG_MEMBERS_MAX, &g));
}

/* ---- alone --------------------------------------------------------------------------------- */

TEST(test_alone)
{
    struct hth_averager a = {.ops = NULL};
    struct hth_averager_stats stats = {.rounds = 1};
    const struct hth_avg_offer offer = {.count = 4, .weight = 32};

    (void)state;
    assert_ok(hth_averager_start(&a, NULL, NULL));
    assert_err(HTH_E_NOT_FOUND, hth_averager_ready(&a));
    assert_err(HTH_E_NOT_FOUND, hth_averager_offer(&a, &offer));
    hth_averager_stats(&a, &stats);
    assert_int_equal(stats.rounds, 0);
    hth_averager_stop(&a);
    hth_averager_free(&a);
}
