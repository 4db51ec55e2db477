/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_many.c: many blocks in one call, many rows and large images, over teams of any width: the
 * bits are those of a single thread.
 */
#include "support/team.h"

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/blocks.h"
#include "support/suite.h"

#define DIM     24
#define HIDDEN  40
#define ENTRIES 9
#define ROWS    13

struct entry_box {
    struct hth_params *p;
    struct hth_ffn f;
    uint32_t rows;
    float x[ROWS * DIM], dy[ROWS * DIM];
    float y[ROWS * DIM], dx[ROWS * DIM];             /* of the call for many */
    float y_alone[ROWS * DIM], dx_alone[ROWS * DIM]; /* of calls alone */
    float *grad_alone;
    void *saved;
};

static struct hth_view view(float *data, uint32_t rows)
{
    return hth_view_f32(data, rows, DIM, DIM);
}

static void box_open(struct entry_box *b, const struct hth_backend *be, uint32_t number)
{
    struct hth_ffn_options shape = {.dim = DIM, .hidden = HIDDEN};
    struct hth_seal_options seal = {.seed = 3, .stream = number};
    memset(b, 0, sizeof(*b));
    assert_ok(hth_params_new(be, &b->p));
    assert_ok(hth_ffn_declare(b->p, &shape, &b->f));
    assert_ok(hth_params_seal(b->p, &seal));
    b->rows = (number * 5 + 1) % (ROWS + 1); /* one entry has no rows */
    b->saved = hth_backend_alloc(be, hth_ffn_saved_bytes(&b->f, ROWS));
    for (uint32_t i = 0; i < ROWS * DIM; i++) {
        b->x[i] = (float)(int32_t)(hth_mix64(number * 7919 + i) >> 40) * 0x1p-23f - 1.0f;
        b->dy[i] = (float)(int32_t)(hth_mix64(number * 104729 + i) >> 40) * 0x1p-23f - 1.0f;
    }
}

static void box_alone(struct entry_box *b, struct hth_exec *ex)
{
    size_t bytes = hth_params_flat_len(b->p) * sizeof(float);
    hth_params_zero_grads(b->p);
    assert_ok(hth_ffn_forward(ex, &b->f, view(b->x, b->rows), view(b->y_alone, b->rows), b->saved));
    assert_ok(hth_ffn_backward(ex, &b->f, view(b->x, b->rows), b->saved, view(b->dy, b->rows),
                               view(b->dx_alone, b->rows)));
    assert_ok(hth_exec_sync(ex));
    b->grad_alone = hth_calloc(1, bytes);
    memcpy(b->grad_alone, hth_params_flat(b->p, HTH_PART_GRAD), bytes);
}

static void box_close(struct entry_box *b, const struct hth_backend *be)
{
    hth_backend_free(be, b->saved);
    hth_params_free(b->p);
    hth_free(b->grad_alone);
}

static void boxes_to_entries(struct entry_box *box, struct hth_ffn_entry *entries)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        struct entry_box *b = &box[i];
        memset(b->y, 0x7f, sizeof(b->y)); /* a value that no operation computes */
        memset(b->dx, 0x7f, sizeof(b->dx));
        hth_params_zero_grads(b->p);
        entries[i] = (struct hth_ffn_entry){.ffn = &b->f,
                                            .x = view(b->x, b->rows),
                                            .y = view(b->y, b->rows),
                                            .saved = b->saved,
                                            .dy = view(b->dy, b->rows),
                                            .dx = view(b->dx, b->rows)};
    }
}

static void same_as_alone(struct entry_box *b, uint32_t width)
{
    size_t bytes = (size_t)b->rows * DIM * sizeof(float);
    if (memcmp(b->y, b->y_alone, bytes) != 0 || memcmp(b->dx, b->dx_alone, bytes) != 0 ||
        memcmp(hth_params_flat(b->p, HTH_PART_GRAD), b->grad_alone,
               hth_params_flat_len(b->p) * sizeof(float)) != 0)
        fail_msg("%u rows in a team of %u: bits differ", b->rows, width);
}

static void many_on(const struct hth_backend *be)
{
    static struct entry_box box[ENTRIES];
    struct hth_ffn_entry entries[ENTRIES];
    struct hth_exec *ex;
    for (uint32_t i = 0; i < ENTRIES; i++)
        box_open(&box[i], be, i);
    assert_ok(hth_exec_new(be, hth_ffn_scratch_bytes(be, &box[0].f, ROWS), &ex));
    for (uint32_t i = 0; i < ENTRIES; i++)
        box_alone(&box[i], ex);
    for (uint32_t width = 1; width <= 4; width++) {
        struct test_team team = TEST_TEAM(width);
        hth_exec_set_team(ex, &team.team);
        assert_ok(hth_exec_reserve(ex, hth_ffn_many_scratch_bytes(ex, &box[0].f, ROWS, ENTRIES)));
        boxes_to_entries(box, entries);
        assert_ok(hth_ffn_forward_many(ex, entries, ENTRIES));
        assert_ok(hth_ffn_backward_many(ex, entries, ENTRIES));
        assert_ok(hth_exec_sync(ex));
        assert_true(width == 1 || team.runs >= 2);
        for (uint32_t i = 0; i < ENTRIES; i++)
            same_as_alone(&box[i], width);
    }
    hth_exec_set_team(ex, NULL);
    assert_ok(hth_ffn_forward_many(ex, entries, 0));
    hth_exec_free(ex);
    for (uint32_t i = 0; i < ENTRIES; i++)
        box_close(&box[i], be);
}

TEST(many_gives_the_bits_of_single_calls)
{
    const struct hth_backend *be;
    (void)state;
    many_on(hth_backend_ref());
    assert_ok(hth_backend_by_name("auto", &be));
    many_on(be);
}

/* A bad entry fails alone; the call returns the first one's error. */
TEST(bad_entries_fail_alone)
{
    static struct entry_box box[ENTRIES];
    struct hth_ffn_entry entries[ENTRIES];
    const struct hth_backend *be = hth_backend_ref();
    struct test_team team = TEST_TEAM(3);
    struct hth_exec *ex;
    (void)state;
    for (uint32_t i = 0; i < ENTRIES; i++)
        box_open(&box[i], be, i);
    assert_ok(hth_exec_new(be, hth_ffn_scratch_bytes(be, &box[0].f, ROWS), &ex));
    for (uint32_t i = 0; i < ENTRIES; i++)
        box_alone(&box[i], ex);
    boxes_to_entries(box, entries);
    hth_exec_set_team(ex, &team.team);
    assert_err(HTH_E_NO_MEMORY, hth_ffn_forward_many(ex, entries, ENTRIES));
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(((uint8_t *)box[i].y)[0], 0x7f); /* nothing was computed */

    assert_ok(hth_exec_reserve(ex, hth_ffn_many_scratch_bytes(ex, &box[0].f, ROWS, ENTRIES)));
    entries[4].y.cols--;
    assert_err(HTH_E_BAD_SHAPE, hth_ffn_forward_many(ex, entries, ENTRIES));
    entries[4].y.cols++;
    assert_ok(hth_ffn_forward(ex, entries[4].ffn, entries[4].x, entries[4].y, box[4].saved));
    assert_ok(hth_ffn_backward_many(ex, entries, ENTRIES)); /* the others were computed */
    for (uint32_t i = 0; i < ENTRIES; i++)
        same_as_alone(&box[i], 3);

    struct hth_ffn other = box[5].f;
    other.hidden++;
    entries[5].ffn = &other;
    assert_err(HTH_E_BAD_SHAPE, hth_ffn_forward_many(ex, entries, ENTRIES));
    hth_exec_free(ex);
    for (uint32_t i = 0; i < ENTRIES; i++)
        box_close(&box[i], be);
}

/* -- rows and images ----------------------------------------------------------------------- */

#define TALL    700
#define WIDE    301
#define NUMBERS ((size_t)TALL * WIDE)

/* Hashes all operations by rows, and a layer whose images are not built yet. */
static uint64_t rows_hash(const struct hth_backend *be, struct hth_team *team, const float *in)
{
    struct hth_params *p;
    struct hth_weight *gamma, *beta, *w;
    struct hth_exec *ex;
    struct hth_xent_result loss;
    struct hth_param_spec vector = {
        .name = "gamma", .rows = 1, .cols = WIDE, .init = HTH_INIT_UNIFORM};
    struct hth_param_spec matrix = {
        .name = "w", .rows = WIDE, .cols = 2 * WIDE, .init = HTH_INIT_UNIFORM};
    struct hth_seal_options seal = {.seed = 5};
    int32_t labels[TALL];
    float *all = hth_calloc(10 * NUMBERS, sizeof(float)), *at = all;
    assert_ok(hth_params_new(be, &p));
    assert_ok(hth_params_add(p, &vector, &gamma));
    vector.name = "beta";
    assert_ok(hth_params_add(p, &vector, &beta));
    assert_ok(hth_params_add(p, &matrix, &w));
    assert_ok(hth_params_seal(p, &seal));
    assert_ok(hth_exec_new(be, hth_linear_scratch(be, WIDE, 2 * WIDE), &ex));
    hth_exec_set_team(ex, team);
    struct hth_view x = hth_view_f32((float *)(uintptr_t)in, TALL, WIDE, WIDE), y[10];
    for (int i = 0; i < 8; i++, at += NUMBERS)
        y[i] = hth_view_f32(at, TALL, WIDE, WIDE);
    struct hth_view wide = hth_view_f32(at, TALL, 2 * WIDE, 2 * WIDE);
    for (int32_t r = 0; r < TALL; r++)
        labels[r] = r % 9 == 4 ? HTH_LABEL_NONE : r % WIDE;
    struct hth_layernorm norm = {.gamma = gamma, .beta = beta, .eps = 1e-5f};
    assert_ok(hth_layernorm_forward(ex, &norm, x, y[0], HTH_VIEW_NONE));
    assert_ok(hth_softmax_forward(ex, x, y[1]));
    assert_ok(hth_softmax_backward(ex, y[1], x, y[2]));
    assert_ok(hth_act_forward(ex, HTH_ACT_GELU, x, y[3]));
    assert_ok(hth_act_backward(ex, HTH_ACT_GELU, x, y[0], y[4]));
    assert_ok(hth_xent(ex, x, hth_view_i32(labels, TALL), 0.5f, y[5], &loss));
    struct hth_linear lin = {.w = w};
    struct hth_linear_back back = {.w = w};
    assert_ok(hth_linear_forward(ex, &lin, x, wide));
    assert_ok(hth_linear_backward_data(ex, &back, wide, y[6]));
    assert_ok(hth_exec_sync(ex));
    assert_int_equal(loss.counted, TALL - (TALL + 4) / 9);
    uint64_t hash = hth_hash64(all, 10 * NUMBERS * sizeof(float), 0);
    hash = hth_hash64(&loss.loss_sum, sizeof(loss.loss_sum), hash + loss.correct);
    hth_exec_free(ex);
    hth_params_free(p);
    hth_free(all);
    return hash;
}

TEST(team_changes_no_bit_of_rows_and_images)
{
    (void)state;
    const struct hth_backend *backends[] = {hth_backend_ref(), NULL};
    float *in = hth_calloc(NUMBERS, sizeof(float));
    assert_ok(hth_backend_choose(&(struct hth_backend_choice){.name = "packed"}, &backends[1]));
    for (size_t i = 0; i < NUMBERS; i++)
        in[i] = (float)(int32_t)(hth_mix64(i) >> 40) * 0x1p-22f - 2.0f;
    for (size_t k = 0; k < HTH_ARRAY_LEN(backends); k++) {
        uint64_t want = rows_hash(backends[k], NULL, in);
        for (uint32_t width = 1; width <= 4; width++) {
            struct test_team team = TEST_TEAM(width);
            assert_true(rows_hash(backends[k], &team.team, in) == want);
            assert_true(width == 1 || team.runs >= 6); /* each operation asked for help */
        }
    }
    hth_free(in);
}
