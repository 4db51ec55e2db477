/* SPDX-License-Identifier: Apache-2.0 */
/* test_many.c: many blocks in one call, over teams of any width: the bits of calls alone. */
#include "support/team.h"
#include "support/test.h"

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/blocks.h"

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
    b->rows = (number * 5 + 1) % (ROWS + 1); /* one of the entries has none */
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
        memset(b->y, 0x7f, sizeof(b->y)); /* a number nobody computes */
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
        fail_msg("%u rows in a team of %u: other bits", b->rows, width);
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

static void the_bits_of_calls_alone(void **state)
{
    const struct hth_backend *be;
    (void)state;
    many_on(hth_backend_ref());
    assert_ok(hth_backend_by_name("auto", &be));
    many_on(be);
}

/* One entry's mistake is its own; the answer names the first one's. */
static void mistakes(void **state)
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
        assert_int_equal(((uint8_t *)box[i].y)[0], 0x7f); /* nothing was begun */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_of_calls_alone),
        cmocka_unit_test(mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
