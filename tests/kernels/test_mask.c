/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mask.c: the pairs of a mask, counted in its bands, against the rule and against a published
 * table; and the bits of masked attention. The table of cases has its numbers.
 */
#include "core/limits.h"
#include "core/mem.h"
#include "core/rng.h"
#include "kernels/backend_int.h"
#include "kernels/blas.h"
#include "kernels/ops.h"
#include "support/suite.h"
#include "support/team.h"

/* -- pairs --------------------------------------------------------------------------------- */

/* The rule, written without bands. Query and key are positions. */
static bool sees(const struct hth_mask *m, uint32_t q, uint32_t k)
{
    if (m->kind == HTH_MASK_NONE)
        return true;
    if (k > q || k < m->text || m->kind == HTH_MASK_FULL)
        return k <= q;
    uint32_t i = q - m->text, j = k - m->text, w = m->width, half = m->window / 2;
    uint32_t down = i / w - j / w, left = i % w, right = j % w;
    if (m->kind == HTH_MASK_CONV)
        return down <= half && right + half >= left && right <= left + half;
    return m->kind == HTH_MASK_ROW ? down == 0 : left == right;
}

struct pairs {
    uint64_t text, picture, local; /* of text queries, of others, and of those without text keys */
};

/* Counts the pairs in the bands of a sequence; each must be one of the rule's, and none twice. */
static struct pairs pairs_in_bands(const struct hth_mask *m, uint32_t seq, uint32_t most,
                                   uint32_t unpadded, uint8_t *pair)
{
    struct pairs n = {0};
    float *scores = hth_calloc(seq, sizeof(float));
    memset(pair, 0, (size_t)seq * seq);
    for (uint32_t first = 0, end; first < seq; first = end) {
        struct hth_band b = hth_mask_band(m, seq, first, most);
        end = b.end;
        assert_true(b.first == first && end > first && end - first <= most && end <= seq);
        for (uint32_t q = first; q < end; q++) {
            uint32_t at = hth_mask_place(m, seq, q);
            memset(scores, 0, seq * sizeof(float));
            uint32_t count = hth_mask_row(m, &b, q, unpadded, scores);
            assert_true(count <= b.text + b.to - b.from && b.text + b.to - b.from <= seq);
            for (uint32_t i = 0; i < count; i++) {
                uint32_t k = i < b.text ? i : hth_mask_place(m, seq, b.from + i - b.text);
                if (scores[i] != 0)
                    continue;
                assert_int_equal(pair[(size_t)at * seq + k]++, 0);
                n.text += at < m->text;
                n.picture += at >= m->text;
                n.local += at >= m->text && k >= m->text;
            }
        }
    }
    hth_free(scores);
    return n;
}

static void bands_hold_the_rule_s_pairs(const struct hth_mask *m, uint32_t seq, uint32_t most,
                                        uint32_t unpadded)
{
    uint8_t *pair = hth_calloc((size_t)seq * seq, 1);
    (void)pairs_in_bands(m, seq, most, unpadded, pair);
    for (uint32_t q = 0; q < seq; q++) {
        for (uint32_t k = 0; k < seq; k++) {
            bool want = sees(m, q, k) && (k < unpadded || k >= m->text);
            if (pair[(size_t)q * seq + k] != want)
                fail_msg("%s, text %u of %u, %u x %u, window %u, %u positions: %u to %u is %d",
                         hth_mask_name(m->kind), unpadded, m->text, m->height, m->width, m->window,
                         seq, q, k, !want);
        }
    }
    hth_free(pair);
}

TEST(bands_have_the_pairs_of_the_rule)
{
    static const uint32_t sizes[][4] = {
        {1, 4, 4, 5}, {3, 6, 10, 3}, {2, 3, 2, 1}, {5, 1, 9, 7}, {4, 9, 1, 7}, {7, 0, 0, 1},
    };
    (void)state;
    for (size_t s = 0; s < HTH_ARRAY_LEN(sizes); s++) {
        for (int kind = 0; kind < HTH_MASK_KINDS; kind++) {
            struct hth_mask m = {(enum hth_mask_kind)kind, sizes[s][0], sizes[s][1], sizes[s][2],
                                 sizes[s][3]};
            for (uint32_t seq = 1; seq <= hth_mask_positions(&m); seq++) {
                bands_hold_the_rule_s_pairs(&m, seq, 64, m.text);
                bands_hold_the_rule_s_pairs(&m, seq, 3, 1 + seq % m.text);
            }
        }
    }
}

TEST(pairs_are_those_of_the_published_table)
{
    /* T, H, W, w; pairs of text queries, of ROW, COLUMN, CONV, its local ones, FULL in all. */
    static const uint32_t rows[][10] = {
        {257, 32, 32, 5, 33153, 280064, 280064, 275538, 12370, 821121},
        {17, 8, 8, 5, 153, 1376, 1376, 1698, 610, 3321},
        {17, 8, 8, 3, 153, 1376, 1376, 1362, 274, 3321},
        {9, 6, 10, 3, 45, 870, 750, 794, 254, 2415},
        {33, 12, 12, 11, 561, 5688, 5688, 10026, 5274, 15753},
        {1, 4, 4, 5, 1, 56, 56, 122, 106, 153},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(rows); i++) {
        const uint32_t *r = rows[i];
        uint32_t seq = r[0] + r[1] * r[2];
        uint8_t *pair = hth_calloc((size_t)seq * seq, 1);
        struct pairs n[HTH_MASK_KINDS];
        for (int kind = 0; kind < HTH_MASK_KINDS; kind++) {
            struct hth_mask m = {(enum hth_mask_kind)kind, r[0], r[1], r[2], r[3]};
            n[kind] = pairs_in_bands(&m, seq, 64, m.text, pair);
        }
        assert_int_equal(n[HTH_MASK_ROW].text, r[4]);
        assert_int_equal(n[HTH_MASK_ROW].picture, r[5]);
        assert_int_equal(n[HTH_MASK_COLUMN].picture, r[6]);
        assert_int_equal(n[HTH_MASK_CONV].picture, r[7]);
        assert_int_equal(n[HTH_MASK_CONV].local, r[8]);
        assert_int_equal(n[HTH_MASK_FULL].text + n[HTH_MASK_FULL].picture, r[9]);
        assert_int_equal(n[HTH_MASK_NONE].text + n[HTH_MASK_NONE].picture, (uint64_t)seq * seq);
        hth_free(pair);
    }
}

TEST(contradictory_masks_are_refused)
{
    static const struct {
        struct hth_mask mask;
        enum hth_err err;
    } masks[] = {
        {{HTH_MASK_CONV, 4, 3, 3, 5}, HTH_OK},
        {{HTH_MASK_NONE, 4, 0, 0, 0}, HTH_OK},
        {{HTH_MASK_FULL, HTH_SEQ_MAX - 6, 2, 3, 0}, HTH_OK},
        {{HTH_MASK_FULL, HTH_SEQ_MAX - 5, 2, 3, 0}, HTH_E_TOO_LARGE},
        {{HTH_MASK_ROW, 1, 65536, 65536, 0}, HTH_E_TOO_LARGE},
        {{HTH_MASK_ROW, 0, 3, 3, 0}, HTH_E_CONFIG},
        {{HTH_MASK_ROW, 4, 3, 0, 0}, HTH_E_CONFIG},
        {{HTH_MASK_CONV, 4, 3, 3, 4}, HTH_E_CONFIG},
        {{HTH_MASK_CONV, 4, 3, 3, 0}, HTH_E_CONFIG},
        {{HTH_MASK_KINDS, 4, 3, 3, 5}, HTH_E_CONFIG},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(masks); i++)
        assert_err(masks[i].err, hth_mask_check(&masks[i].mask));
    assert_string_equal(hth_mask_name(HTH_MASK_COLUMN), "column");
    assert_null(hth_mask_name(HTH_MASK_KINDS));
}

/* -- bits ---------------------------------------------------------------------------------- */

enum { HEADS = 3, HEAD = 10, D = HEADS * HEAD, SEQUENCES = 3 };

/* Forward and backward of some sequences: outputs in the caller's memory. */
struct attended {
    struct hth_attention att;
    uint32_t rows;
    float *qkv, *dout, *out, *lse, *dqkv;
    int32_t lengths[SEQUENCES];
};

static struct attended attended_new(const struct hth_mask *m, uint32_t seq, uint32_t sequences)
{
    struct attended a = {.att = {.seq = seq, .heads = HEADS, .mask = m}, .rows = sequences * seq};
    a.qkv = hth_calloc((size_t)a.rows * (8 * D + HEADS), sizeof(float));
    a.dout = a.qkv + (size_t)a.rows * 3 * D;
    a.out = a.dout + (size_t)a.rows * D;
    a.dqkv = a.out + (size_t)a.rows * D;
    a.lse = a.dqkv + (size_t)a.rows * 3 * D;
    for (size_t i = 0; i < (size_t)a.rows * 4 * D; i++)
        a.qkv[i] = (float)(int32_t)(hth_mix64(i + 1) >> 40) * 0x1p-23f - 1.0f;
    for (uint32_t i = 0; i < sequences; i++)
        a.lengths[i] = 1 + (int32_t)((m->text + i) / 2) % (int32_t)m->text;
    return a;
}

static void attend(const struct hth_backend *be, struct attended *a, struct hth_team *team)
{
    struct hth_exec *ex;
    struct hth_view qkv = hth_view_f32(a->qkv, a->rows, 3 * D, 3 * D);
    struct hth_attention_saved saved = {qkv, hth_view_f32(a->out, a->rows, D, D),
                                        hth_view_f32(a->lse, a->rows, HEADS, HEADS)};
    a->att.unpadded = hth_view_i32(a->lengths, a->rows / a->att.seq);
    assert_ok(hth_exec_new(be, hth_attention_scratch(be, a->att.seq, HEAD), &ex));
    hth_exec_set_team(ex, team);
    assert_ok(hth_attention_forward(ex, &a->att, qkv, saved.out, saved.lse));
    assert_ok(hth_attention_backward(ex, &a->att, &saved, hth_view_f32(a->dout, a->rows, D, D),
                                     hth_view_f32(a->dqkv, a->rows, 3 * D, 3 * D)));
    hth_exec_free(ex);
}

static void attend_causal(const struct hth_backend *be, struct attended *a)
{
    struct hth_exec *ex;
    assert_ok(hth_exec_new(be, hth_attention_scratch(be, a->att.seq, HEAD), &ex));
    assert_ok(hth_attention_forward(ex, &a->att, hth_view_f32(a->qkv, a->rows, 3 * D, 3 * D),
                                    hth_view_f32(a->out, a->rows, D, D), HTH_VIEW_NONE));
    hth_exec_free(ex);
}

static size_t backends_of(const struct hth_backend **out)
{
    size_t count = hth_backend_packed_all(out);
    out[count++] = hth_backend_ref();
    assert_ok(hth_test_blas(&out[count]));
    return count + 1;
}

static const struct hth_mask kinds[] = {
    {HTH_MASK_FULL, 9, 12, 11, 0}, {HTH_MASK_ROW, 9, 12, 11, 0},  {HTH_MASK_COLUMN, 9, 12, 11, 0},
    {HTH_MASK_CONV, 9, 12, 11, 5}, {HTH_MASK_NONE, 9, 12, 11, 0},
};

TEST(threads_and_neighbours_change_no_bit)
{
    const struct hth_backend *be[HTH_PACKED_MAX + 2];
    size_t count = backends_of(be);
    (void)state;
    for (size_t k = 0; k < count * HTH_ARRAY_LEN(kinds); k++) {
        const struct hth_mask *m = &kinds[k % HTH_ARRAY_LEN(kinds)];
        const struct hth_backend *on = be[k / HTH_ARRAY_LEN(kinds)];
        uint32_t seq = hth_mask_positions(m) - 1;
        struct test_team two = TEST_TEAM(2);
        struct attended all = attended_new(m, seq, SEQUENCES), same = attended_new(m, seq, 1);
        struct attended helped = attended_new(m, seq, SEQUENCES);
        attend(on, &all, NULL);
        attend(on, &helped, &two.team);
        assert_true(two.runs > 0);
        size_t floats = (size_t)all.rows * (8 * D + HEADS);
        assert_memory_equal(helped.qkv, all.qkv, floats * sizeof(float));
        size_t last = (size_t)(SEQUENCES - 1) * seq;
        memcpy(same.qkv, all.qkv + last * 3 * D, (size_t)seq * 3 * D * sizeof(float));
        memcpy(same.dout, all.dout + last * D, (size_t)seq * D * sizeof(float));
        same.lengths[0] = all.lengths[SEQUENCES - 1];
        attend(on, &same, NULL);
        assert_memory_equal(same.out, all.out + last * D, (size_t)seq * D * sizeof(float));
        assert_memory_equal(same.dqkv, all.dqkv + last * 3 * D,
                            (size_t)seq * 3 * D * sizeof(float));
        hth_free(all.qkv);
        hth_free(same.qkv);
        hth_free(helped.qkv);
    }
}

/* Drawing relies on it: a beginning does not depend on what follows. */
TEST(a_prefix_has_the_bits_of_the_whole_sequence)
{
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(kinds) - 1; k++) { /* NONE sees what follows */
        uint32_t seq = hth_mask_positions(&kinds[k]);
        struct attended whole = attended_new(&kinds[k], seq, 1);
        attend(hth_backend_ref(), &whole, NULL);
        for (uint32_t part = 1; part < seq; part += 17) {
            struct attended p = attended_new(&kinds[k], part, 1);
            memcpy(p.qkv, whole.qkv, (size_t)part * 3 * D * sizeof(float));
            attend(hth_backend_ref(), &p, NULL);
            assert_memory_equal(p.out, whole.out, (size_t)part * D * sizeof(float));
            hth_free(p.qkv);
        }
        hth_free(whole.qkv);
    }
}

/* Padding is a key for nobody: no number of it reaches another row. */
TEST(padding_reaches_no_other_row)
{
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(kinds); k++) {
        uint32_t seq = hth_mask_positions(&kinds[k]), text = kinds[k].text;
        struct attended a = attended_new(&kinds[k], seq, 1), b = attended_new(&kinds[k], seq, 1);
        uint32_t first = (uint32_t)a.lengths[0];
        assert_true(first < text);
        for (size_t i = (size_t)first * 3 * D; i < (size_t)text * 3 * D; i++)
            b.qkv[i] = 100 - b.qkv[i];
        attend(hth_backend_ref(), &a, NULL);
        attend(hth_backend_ref(), &b, NULL);
        for (uint32_t r = 0; r < seq; r++) {
            if (r < first || r >= text)
                assert_memory_equal(a.out + r * D, b.out + r * D, D * sizeof(float));
            for (uint32_t c = D; c < 3 * D && r >= first && r < text; c++)
                assert_true(a.dqkv[r * 3 * D + c] == 0);
        }
        hth_free(a.qkv);
        hth_free(b.qkv);
    }
}

/* -- sequences that grow ------------------------------------------------------------------- */

/* Row by row, with the first rows at once as a prompt's, and two sequences side by side. */
static void grow(const struct hth_backend *be, struct attended *a, uint32_t prompt,
                 struct hth_team *team)
{
    uint32_t seq = a->att.seq, sequences = a->rows / seq;
    float *kept = hth_calloc((size_t)a->rows * 2 * D, sizeof(float));
    float *rows = hth_calloc((size_t)a->rows * 4 * D, sizeof(float));
    float *out = rows + (size_t)a->rows * 3 * D;
    struct hth_attention_kept k = {hth_view_f32(kept, a->rows, 2 * D, 2 * D), seq, 0};
    struct hth_attention att = a->att;
    struct hth_exec *ex;
    if (att.mask != NULL)
        att.unpadded = hth_view_i32(a->lengths, sequences);
    assert_ok(hth_exec_new(be, hth_attention_scratch(be, seq, HEAD), &ex));
    hth_exec_set_team(ex, team);
    for (; k.at < seq; k.at += att.seq) {
        att.seq = k.at == 0 ? prompt : 1;
        for (uint32_t s = 0; s < sequences; s++)
            memcpy(rows + (size_t)s * att.seq * 3 * D, a->qkv + ((size_t)s * seq + k.at) * 3 * D,
                   (size_t)att.seq * 3 * D * sizeof(float));
        assert_ok(hth_attention_grow(ex, &att, &k,
                                     hth_view_f32(rows, sequences * att.seq, 3 * D, 3 * D),
                                     hth_view_f32(out, sequences * att.seq, D, D)));
        for (uint32_t s = 0; s < sequences; s++)
            memcpy(a->out + ((size_t)s * seq + k.at) * D, out + (size_t)s * att.seq * D,
                   (size_t)att.seq * D * sizeof(float));
    }
    hth_exec_free(ex);
    hth_free(kept);
    hth_free(rows);
}

TEST(a_sequence_that_grows_is_the_whole_one)
{
    const struct hth_backend *be[HTH_PACKED_MAX + 2];
    size_t count = backends_of(be);
    const struct hth_rope_picture size = {9, 12, 11, HEAD};
    (void)state;
    for (size_t k = 0; k < count * HTH_ARRAY_LEN(kinds); k++) {
        const struct hth_mask *m = &kinds[k % HTH_ARRAY_LEN(kinds)];
        const struct hth_backend *on = be[k / HTH_ARRAY_LEN(kinds)];
        bool causal = m->kind == HTH_MASK_NONE; /* in its place, no mask at all */
        struct test_team two = TEST_TEAM(2);
        struct attended whole = attended_new(m, hth_mask_positions(m) - 1, 2);
        struct attended grown = attended_new(m, hth_mask_positions(m) - 1, 2);
        struct hth_rope *rope = NULL;
        if (k % 2 == 0)
            assert_ok(hth_rope_new_picture(on, &size, &rope));
        whole.att.rope = grown.att.rope = rope;
        if (causal) {
            whole.att.mask = grown.att.mask = NULL;
            attend_causal(on, &whole);
        } else {
            attend(on, &whole, NULL);
        }
        grow(on, &grown, 1 + (uint32_t)k % 30, k % 3 == 0 ? &two.team : NULL);
        for (size_t i = 0; i < (size_t)whole.rows * D; i++)
            if ((hth_backend_caps(on) & HTH_CAP_REPRODUCIBLE) != 0
                    ? memcmp(&grown.out[i], &whole.out[i], sizeof(float)) != 0
                    : !(fabsf(grown.out[i] - whole.out[i]) <= 1e-5f))
                fail_msg("%s, %s, row %zu: %g, whole %g", hth_backend_name(on),
                         hth_mask_name(m->kind), i / D, (double)grown.out[i], (double)whole.out[i]);
        hth_rope_free(rope);
        hth_free(whole.qkv);
        hth_free(grown.qkv);
    }
}

TEST(growth_beyond_its_places_is_refused)
{
    struct hth_mask m = {HTH_MASK_ROW, 4, 2, 3, 0}, none = {HTH_MASK_NONE, 10, 0, 0, 0};
    float rows[2 * 3 * D] = {0}, kept[2 * 10 * 2 * D] = {0}, out[2 * D];
    const struct {
        const struct hth_mask *mask;
        uint32_t positions, at, seq;
        enum hth_err err;
    } cases[] = {
        {&m, 10, 9, 1, HTH_OK},
        {&m, 10, 10, 1, HTH_E_BAD_SHAPE},
        {&m, 10, 9, 2, HTH_E_BAD_SHAPE},
        {&m, 10, UINT32_MAX, 2, HTH_E_BAD_SHAPE},
        {&m, 11, 0, 1, HTH_E_BAD_SHAPE},
        {NULL, 10, 0, 2, HTH_OK},
        {NULL, 10, 0, 0, HTH_E_BAD_SHAPE},
        {&none, 10, 0, 1, HTH_E_UNSUPPORTED},
    };
    struct hth_exec *ex;
    (void)state;
    assert_ok(
        hth_exec_new(hth_backend_ref(), hth_attention_scratch(hth_backend_ref(), 11, HEAD), &ex));
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        const struct hth_attention att = {
            .seq = cases[i].seq, .heads = HEADS, .mask = cases[i].mask};
        const struct hth_attention_kept k = {hth_view_f32(kept, cases[i].positions, 2 * D, 2 * D),
                                             cases[i].positions, cases[i].at};
        uint32_t n = HTH_MAX(cases[i].seq, 1u);
        assert_err(cases[i].err,
                   hth_attention_grow(ex, &att, &k, hth_view_f32(rows, n, 3 * D, 3 * D),
                                      hth_view_f32(out, n, D, D)));
    }
    hth_exec_free(ex);
}

/* -- rotary positions of a picture --------------------------------------------------------- */

/* Angles to 6 digits; 0 for pairs that do not turn. */
TEST(picture_s_angles_are_the_golden_ones)
{
    static const struct {
        uint32_t position;
        double angle[16];
    } golden[] = {
        {3, {3, .475468, .075357, .011943, .001893}},
        {17 + 2 * 8 + 5,
         {17, 2.694318, .427021, .067678, .010726, 3, 1.194322, .475468, .189287, .075357, 6,
          2.388643, .950936, .378574, .150713}},
    };
    const struct hth_rope_picture size = {.text = 17, .height = 8, .width = 8, .head_dim = 32};
    struct hth_rope *rope;
    (void)state;
    assert_ok(hth_rope_new_picture(hth_backend_ref(), &size, &rope));
    assert_int_equal(rope->seq_max, 17 + 64);
    for (size_t i = 0; i < HTH_ARRAY_LEN(golden); i++) {
        for (size_t k = 0; k < 16; k++) {
            size_t at = golden[i].position * 16 + k;
            double got = atan2((double)rope->sines[at], (double)rope->cosines[at]);
            double off = remainder(got - golden[i].angle[k], 2 * 3.14159265358979324);
            if (!(fabs(off) <= 6e-7)) /* half a digit, and rounding to float */
                fail_msg("position %u, pair %zu: off by %g", golden[i].position, k, off);
        }
    }
    hth_rope_free(rope);
}

TEST(pictures_without_axes_are_refused)
{
    static const struct {
        struct hth_rope_picture size;
        enum hth_err err;
    } cases[] = {
        {{0, 8, 8, 32}, HTH_E_CONFIG},
        {{17, 0, 8, 32}, HTH_E_CONFIG},
        {{17, 8, 0, 32}, HTH_E_CONFIG},
        {{17, 8, 8, 4}, HTH_E_CONFIG},
        {{17, 8, 8, 31}, HTH_E_CONFIG},
        {{17, 8, 8, HTH_HEAD_DIM_MAX + 2}, HTH_E_TOO_LARGE},
        {{1, HTH_SEQ_MAX, 1, 32}, HTH_E_TOO_LARGE},
    };
    struct hth_rope *rope;
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_err(cases[i].err, hth_rope_new_picture(hth_backend_ref(), &cases[i].size, &rope));
}
