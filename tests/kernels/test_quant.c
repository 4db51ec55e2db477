/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_quant.c: number formats on every table that this CPU runs: known sizes, books and errors, a
 * double twin of each format, the same bytes from every table, hostile bytes, guard pages.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/limits.h"
#include "core/mem.h"
#include "core/rng.h"
#include "kernels/isa.h"
#include "kernels/quant_int.h"
#include "support/suite.h"
#include "support/team.h"

static const struct hth_quantops *tables[8];
static size_t table_count;

static const enum hth_quant_format formats[] = {
    HTH_QUANT_F32,      HTH_QUANT_F16,       HTH_QUANT_BF16,    HTH_QUANT_INT8,
    HTH_QUANT_DYNAMIC8, HTH_QUANT_DYNAMIC8U, HTH_QUANT_UNIFORM8};

static int setup(void **state)
{
    const char *isa;
    (void)state;
    for (size_t i = 0; (isa = hth_isa_name(i)) != NULL; i++) {
        const struct hth_quantops *q = hth_quantops_find(isa);
        assert_true(table_count < HTH_ARRAY_LEN(tables));
        if (q != NULL && (table_count == 0 || tables[table_count - 1] != q))
            tables[table_count++] = q;
    }
    return table_count > 0 ? 0 : -1;
}

/* N(0, 1) by Box and Muller, in double. */
static void normal(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t a = hth_mix64(seed * 1000003 + 2 * i), b = hth_mix64(seed * 1000003 + 2 * i + 1);
        double u = ((double)(a >> 11) + 1) * 0x1p-53, v = (double)(b >> 11) * 0x1p-53;
        x[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
}

static void encode(const struct hth_quantops *q, enum hth_quant_format f, const float *x, size_t n,
                   void *out)
{
    enum hth_err err = hth_quant_encode_with(q, f, x, n, out);
    if (err != HTH_OK)
        fail_msg("%s on %s: %s", hth_quant_name(f), q->isa, hth_err_name(err));
}

static void decode(const struct hth_quantops *q, enum hth_quant_format f, const void *in, size_t n,
                   float *y)
{
    struct hth_quant_out o = {.y = y};
    enum hth_err err = hth_quant_decode_with(q, f, in, hth_quant_bytes(f, n), n, o);
    if (err != HTH_OK)
        fail_msg("%s on %s: %s", hth_quant_name(f), q->isa, hth_err_name(err));
}

/* -- sizes, names, books ------------------------------------------------------------------- */

TEST(sizes_match_the_documentation)
{
    static const struct {
        enum hth_quant_format format;
        const char *name;
        size_t bytes[5]; /* for 0, 1, 64, 65 and 4097 values */
    } want[] = {
        {HTH_QUANT_F32, "fp32", {0, 4, 256, 260, 16388}},
        {HTH_QUANT_F16, "fp16", {0, 2, 128, 130, 8194}},
        {HTH_QUANT_BF16, "bf16", {0, 2, 128, 130, 8194}},
        {HTH_QUANT_INT8, "int8", {0, 3, 66, 69, 4097 + 130}},
        {HTH_QUANT_DYNAMIC8, "dynamic8", {0, 5, 68, 69, 4105}},
        {HTH_QUANT_DYNAMIC8U, "dynamic8u", {0, 5, 68, 69, 4105}},
        {HTH_QUANT_UNIFORM8, "uniform8", {0, 1025, 1088, 1089, 5121}},
    };
    static const size_t counts[] = {0, 1, 64, 65, 4097};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(want); i++) {
        enum hth_quant_format f = (enum hth_quant_format)0;
        assert_string_equal(hth_quant_name(want[i].format), want[i].name);
        assert_ok(hth_quant_by_name(want[i].name, &f));
        assert_int_equal(f, want[i].format);
        for (size_t k = 0; k < 5; k++)
            assert_int_equal(hth_quant_bytes(f, counts[k]), want[i].bytes[k]);
        assert_int_equal(hth_quant_bytes(f, HTH_PARAMS_FLOATS_MAX + 1), 0);
        assert_err(HTH_E_TOO_LARGE, hth_quant_encode(f, NULL, HTH_PARAMS_FLOATS_MAX + 1, NULL));
        assert_err(HTH_E_TOO_LARGE, hth_quant_decode(f, NULL, 0, HTH_PARAMS_FLOATS_MAX + 1, NULL));
        assert_ok(hth_quant_encode(f, NULL, 0, NULL));
        assert_ok(hth_quant_decode(f, NULL, 0, 0, NULL));
    }
    enum hth_quant_format f = HTH_QUANT_F32;
    assert_err(HTH_E_NOT_FOUND, hth_quant_by_name("int9", &f));
    for (int bad = 0; bad < 100; bad += bad == 0 ? 8 : 1) {
        f = (enum hth_quant_format)bad;
        assert_string_equal(hth_quant_name(f), "?");
        assert_int_equal(hth_quant_bytes(f, 64), 0);
        assert_err(HTH_E_UNSUPPORTED, hth_quant_encode(f, NULL, 0, NULL));
        assert_err(HTH_E_UNSUPPORTED, hth_quant_decode(f, NULL, 0, 0, NULL));
    }
}

/* The figures of the published code. */
TEST(books_match_the_published_code)
{
    (void)state;
    const float *s = hth_quant_dynamic_book(false), *u = hth_quant_dynamic_book(true);
    double sum = 0, sum_u = 0;
    for (int i = 0; i < 256; i++) {
        sum += (double)s[i];
        sum_u += (double)u[i];
        assert_true(i == 0 || (s[i] > s[i - 1] && u[i] > u[i - 1]));
    }
    assert_close(s[0], -0.992969, 0, 5e-7);
    assert_true(s[127] == 0 && u[0] == 0 && s[255] == 1 && u[255] == 1);
    assert_close(s[128], 5.5e-7, 1e-6, 0);
    assert_close(s[254], 0.992969, 0, 5e-7);
    assert_close(u[1], 3.25e-7, 1e-6, 0);
    assert_close(u[254], 0.996484, 0, 5e-7);
    assert_close(sum, 1.0, 1e-6, 0);
    assert_close(sum_u, 75.10526, 0, 5e-6);
}

/* -- twins --------------------------------------------------------------------------------- */

static double nearest_even(double x)
{
    double f = floor(x), d = x - f;
    if (d > 0.5 || (d == 0.5 && fmod(f, 2) != 0))
        return f + 1;
    return f;
}

/* The smallest bf16 that is not below x >= 0. */
static float bf16_up(float x)
{
    uint32_t b;
    memcpy(&b, &x, 4);
    if (b & 0xffffu)
        b = (b | 0xffffu) + 1;
    memcpy(&x, &b, 4);
    return x;
}

static void int8_twin(const float *x, size_t n, uint8_t *out)
{
    for (size_t at = 0; at < n; at += 64) {
        float m = 0, inv = 0, scale = 0;
        size_t end = HTH_MIN(n, at + 64);
        for (size_t i = at; i < end; i++)
            m = fmaxf(m, fabsf(x[i]));
        if (m >= 0x1p-119f) {
            scale = bf16_up(m / 127.0f);
            inv = 1.0f / scale;
        }
        for (size_t i = at; i < end; i++) {
            volatile float product = x[i] * inv;
            out[i] = (uint8_t)(int8_t)nearest_even((double)product);
        }
        uint32_t bits;
        memcpy(&bits, &scale, 4);
        out[n + at / 64 * 2] = (uint8_t)(bits >> 16);
        out[n + at / 64 * 2 + 1] = (uint8_t)(bits >> 24);
    }
}

/* Searches the whole book. */
static void dynamic_twin(bool is_unsigned, const float *x, size_t n, uint8_t *out)
{
    const float *book = hth_quant_dynamic_book(is_unsigned);
    for (size_t at = 0; at < n; at += 4096) {
        float m = 0;
        size_t end = HTH_MIN(n, at + 4096);
        for (size_t i = at; i < end; i++)
            m = fmaxf(m, fabsf(x[i]));
        memcpy(out + n + at / 4096 * 4, &m, 4);
        for (size_t i = at; i < end; i++) {
            volatile float q = m > 0 ? x[i] / m : 0;
            int best = is_unsigned ? 0 : 127;
            for (int c = 0; c < 256; c++) {
                double d = fabs((double)q - (double)book[c]);
                double e = fabs((double)q - (double)book[best]);
                if (d < e || (d == e && fabsf(book[c]) < fabsf(book[best])))
                    best = c;
            }
            out[i] = (uint8_t)best;
        }
    }
}

static void uniform_twin(const float *x, size_t n, uint8_t *out)
{
    double mean = 0, spread = 0, sum[256] = {0}, count[256] = {0};
    for (size_t i = 0; i < n; i++)
        mean += (double)x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        spread += pow((double)x[i] - mean, 2);
    double step = n > 1 ? 6 * sqrt(spread / (double)(n - 1)) / 256 : 0;
    for (size_t i = 0; i < n; i++) {
        double c = step > 0 ? nearest_even(((double)x[i] - mean) / step) : 0;
        c = fmin(127, fmax(-128, c)) + 128;
        out[1024 + i] = (uint8_t)c;
        sum[(int)c] += (double)x[i];
        count[(int)c] += 1;
    }
    for (int c = 0; c < 256; c++) {
        float v = (float)(count[c] > 0 ? sum[c] / count[c] : mean);
        memcpy(out + 4 * c, &v, 4);
    }
}

/* Numbers of all sizes: normal, tiny, subnormal, zero blocks, powers of two, ties. */
static void awkward(float *x, size_t n, uint64_t seed)
{
    normal(x, n, seed);
    for (size_t i = 0; i < n; i++) {
        switch (hth_mix64(seed ^ (i / 70)) % 8) {
        case 0:
            x[i] = 0;
            break;
        case 1:
            x[i] *= 0x1p-130f;
            break;
        case 2:
            x[i] *= 0x1p-120f;
            break;
        case 3:
            x[i] *= 0x1p100f;
            break;
        case 4:
            x[i] = (float)(int)(i % 255) - 127.0f + ((i & 1) != 0 ? 0.5f : 0);
            break;
        case 5:
            x[i] = ldexpf(1, -(int)(i % 40)) * ((i & 1) != 0 ? -1.0f : 1.0f);
            break;
        default:
            break;
        }
    }
    if (n > 3)
        x[2] = -0.0f;
}

static const size_t lengths[] = {1,  2,  3,   7,   8,   9,   15,  16,   17,   31,   33,   63,
                                 64, 65, 127, 128, 129, 200, 255, 1000, 4095, 4096, 4097, 9001};

TEST(formats_match_their_twins)
{
    (void)state;
    for (size_t t = 0; t < table_count; t++) {
        for (size_t k = 0; k < HTH_ARRAY_LEN(lengths); k++) {
            size_t n = lengths[k];
            float *x = hth_new_array(float, n);
            uint8_t *got = hth_new_array(uint8_t, 6 * n + 2048), *want = got + 3 * n + 1024;
            awkward(x, n, k + 1);
            encode(tables[t], HTH_QUANT_INT8, x, n, got);
            int8_twin(x, n, want);
            assert_memory_equal(got, want, hth_quant_bytes(HTH_QUANT_INT8, n));
            encode(tables[t], HTH_QUANT_DYNAMIC8, x, n, got);
            dynamic_twin(false, x, n, want);
            assert_memory_equal(got, want, hth_quant_bytes(HTH_QUANT_DYNAMIC8, n));
            for (size_t i = 0; i < n; i++)
                x[i] = fabsf(x[i]);
            encode(tables[t], HTH_QUANT_DYNAMIC8U, x, n, got);
            dynamic_twin(true, x, n, want);
            assert_memory_equal(got, want, hth_quant_bytes(HTH_QUANT_DYNAMIC8U, n));
            hth_free(x);
            hth_free(got);
        }
    }
}

/* Around every step of the books, where a code changes, and between them. */
TEST(dynamic_codes_change_at_the_middles)
{
    enum { N = 4096 };
    static float x[N];
    static uint8_t got[N + 4], want[N + 4];
    (void)state;
    for (int is_unsigned = 0; is_unsigned < 2; is_unsigned++) {
        enum hth_quant_format f = is_unsigned ? HTH_QUANT_DYNAMIC8U : HTH_QUANT_DYNAMIC8;
        const float *book = hth_quant_dynamic_book(is_unsigned);
        size_t n = 0;
        x[n++] = 1;
        for (int c = 0; c < 255; c++) {
            float middle = 0.5f * book[c] + 0.5f * book[c + 1];
            float below = nextafterf(middle, -2), above = nextafterf(middle, 2);
            float five[] = {middle, below, above, nextafterf(below, -2), nextafterf(above, 2)};
            for (size_t i = 0; i < HTH_ARRAY_LEN(five); i++)
                x[n++] = is_unsigned ? fabsf(five[i]) : five[i];
        }
        for (; n < N; n++)
            x[n] = (is_unsigned ? 1.0f
                    : (n & 1)   ? 1.0f
                                : -1.0f) *
                   (float)exp2(-25.0 * (double)n / N) * 0.999f;
        dynamic_twin(is_unsigned, x, N, want);
        for (size_t t = 0; t < table_count; t++) {
            encode(tables[t], f, x, N, got);
            for (size_t i = 0; i < N; i++) {
                if (got[i] != want[i])
                    fail_msg("%s, %s: %a is code %u, not %u", hth_quant_name(f), tables[t]->isa,
                             (double)x[i], got[i], want[i]);
            }
        }
    }
}

TEST(uniform8_matches_its_twin)
{
    enum { N = 3001 };
    static float x[N], y[N];
    static uint8_t got[N + 1024], want[N + 1024];
    (void)state;
    normal(x, N, 5);
    for (size_t i = 0; i < N; i++)
        x[i] = x[i] * 0.25f + 3.0f;
    uniform_twin(x, N, want);
    for (size_t t = 0; t < table_count; t++) {
        encode(tables[t], HTH_QUANT_UNIFORM8, x, N, got);
        /* The twin's numbers before rounding are doubles, so one next to a step may differ. */
        int differ = 0;
        for (size_t i = 0; i < N; i++)
            differ += got[1024 + i] != want[1024 + i];
        assert_true(differ <= 2);
        for (size_t c = 0; c < 256; c++) {
            float a, b;
            memcpy(&a, got + 4 * c, 4);
            memcpy(&b, want + 4 * c, 4);
            assert_close(a, b, 1e-3, 0);
        }
        decode(tables[t], HTH_QUANT_UNIFORM8, got, N, y);
        for (size_t i = 0; i < N; i++) {
            float v;
            memcpy(&v, got + 4 * (size_t)got[1024 + i], 4);
            assert_true(y[i] == v);
        }
    }
    for (size_t i = 0; i < N; i++)
        x[i] = -7.25f;
    encode(tables[0], HTH_QUANT_UNIFORM8, x, N, got);
    decode(tables[0], HTH_QUANT_UNIFORM8, got, N, y);
    assert_memory_equal(x, y, sizeof(x)); /* without deviation: the mean */
}

/* -- values, errors ------------------------------------------------------------------------ */

TEST(known_bytes_decode_to_known_values)
{
    enum { N = 200 };
    static uint8_t bytes[N + 8];
    static float y[N], z[N];
    (void)state;
    for (size_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)(i * 37);
    const float scales[4] = {0.5f, 0x1p-126f, 0, 0x1.fep120f}, m = 3.5f;
    for (size_t b = 0; b < 4; b++)
        memcpy(bytes + N + 2 * b, (const uint8_t *)&scales[b] + 2, 2);
    for (size_t t = 0; t < table_count; t++) {
        decode(tables[t], HTH_QUANT_INT8, bytes, N, y);
        for (size_t i = 0; i < N; i++)
            assert_true(y[i] == (float)(int8_t)bytes[i] * scales[i / 64] && isfinite(y[i]));
        memcpy(z, y, sizeof(z));
        struct hth_quant_out o = {.y = z, .alpha = 0.3f, .add = true};
        assert_ok(hth_quant_decode_with(tables[t], HTH_QUANT_INT8, bytes, sizeof(bytes), N, o));
        for (size_t i = 0; i < N; i++) {
            volatile float product = 0.3f * y[i], sum = y[i] + product;
            assert_true(z[i] == sum);
        }
    }
    memcpy(bytes + N, &m, 4);
    for (size_t t = 0; t < table_count; t++) {
        decode(tables[t], HTH_QUANT_DYNAMIC8, bytes, N, y);
        for (size_t i = 0; i < N; i++)
            assert_true(y[i] == hth_quant_dynamic_book(false)[bytes[i]] * 3.5f);
        decode(tables[t], HTH_QUANT_DYNAMIC8U, bytes, N, y);
        for (size_t i = 0; i < N; i++)
            assert_true(y[i] == hth_quant_dynamic_book(true)[bytes[i]] * 3.5f);
    }
}

TEST(errors_on_normal_numbers_are_as_documented)
{
    static const struct {
        enum hth_quant_format format;
        double mean, max; /* of |x - x'| */
    } want[] = {{HTH_QUANT_F32, 0, 0},
                {HTH_QUANT_F16, 0.00014, 0.002},
                {HTH_QUANT_BF16, 0.00113, 0.016},
                {HTH_QUANT_INT8, 0.00514, 0.021},
                {HTH_QUANT_DYNAMIC8, 0.01005, 0.0370},
                {HTH_QUANT_UNIFORM8, 0.00644, 2.0}};
    size_t n = (size_t)1 << 20;
    float *x = hth_new_array(float, 2 * n), *y = x + n;
    uint8_t *bytes = hth_new_array(uint8_t, 4 * n);
    (void)state;
    normal(x, n, 11);
    for (size_t k = 0; k < HTH_ARRAY_LEN(want); k++) {
        enum hth_quant_format f = want[k].format;
        assert_ok(hth_quant_encode(f, x, n, bytes));
        assert_ok(hth_quant_decode(f, bytes, hth_quant_bytes(f, n), n, y));
        double sum = 0, max = 0;
        for (size_t i = 0; i < n; i++) {
            double e = fabs((double)x[i] - (double)y[i]);
            sum += e;
            max = hth_worse(max, e);
        }
        if (!(fabs(sum / (double)n - want[k].mean) <= 0.02 * want[k].mean + 1e-12 &&
              max <= want[k].max))
            fail_msg("%s: mean error %.6f, largest %.6f", hth_quant_name(f), sum / (double)n, max);
    }
    hth_free(x);
    hth_free(bytes);
}

/* Every table writes the same bytes and reads the same floats. */
TEST(tables_give_the_same_bytes)
{
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(lengths); k++) {
        size_t n = lengths[k];
        float *x = hth_new_array(float, 3 * n), *y = x + n, *z = y + n;
        uint8_t *a = hth_new_array(uint8_t, 8 * n + 2048), *b = a + 4 * n + 1024;
        for (size_t i = 0; i < HTH_ARRAY_LEN(formats); i++) {
            size_t bytes = hth_quant_bytes(formats[i], n);
            awkward(x, n, 100 + k);
            for (size_t j = 0; formats[i] == HTH_QUANT_DYNAMIC8U && j < n; j++)
                x[j] = fabsf(x[j]);
            encode(tables[0], formats[i], x, n, a);
            for (size_t t = 1; t < table_count; t++) {
                encode(tables[t], formats[i], x, n, b);
                if (memcmp(a, b, bytes) != 0)
                    fail_msg("%s, %zu values: %s's bytes differ", hth_quant_name(formats[i]), n,
                             tables[t]->isa);
                decode(tables[0], formats[i], a, n, y);
                decode(tables[t], formats[i], a, n, z);
                assert_memory_equal(y, z, n * sizeof(float));
                struct hth_quant_out o = {.y = y, .alpha = 0.7f, .add = true};
                assert_ok(hth_quant_decode_with(tables[0], formats[i], a, bytes, n, o));
                o.y = z;
                assert_ok(hth_quant_decode_with(tables[t], formats[i], a, bytes, n, o));
                assert_memory_equal(y, z, n * sizeof(float));
            }
        }
        hth_free(x);
        hth_free(a);
    }
}

/* Peers of other versions read these bytes: they never change. */
TEST(bytes_are_frozen)
{
    enum { N = 9001 };
    static float x[N];
    static uint8_t bytes[4 * N + 2048];
    uint64_t hash = 0;
    (void)state;
    for (size_t i = 0; i < N; i++) { /* no function of the C library: the same on any machine */
        float v = (float)(int32_t)(hth_mix64(i) >> 40) * 0x1p-23f - 1.0f;
        x[i] = v * v * v * (i % 700 == 0 ? 50.0f : 1.0f);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(formats); i++) {
        for (size_t j = 0; formats[i] == HTH_QUANT_DYNAMIC8U && j < N; j++)
            x[j] = fabsf(x[j]);
        encode(tables[0], formats[i], x, N, bytes);
        hash = hth_hash64(bytes, hth_quant_bytes(formats[i], N), hash);
    }
    if (hash != UINT64_C(0x0c7c2dc7a024fe8a))
        fail_msg("the formats' bytes differ: 0x%016llx", (unsigned long long)hash);
}

/* Numbers too large for 16 bits are clamped; none becomes infinite. */
TEST(too_large_numbers_are_clamped)
{
    static const float x[] = {65504, 65519, 65520, 1e30f,    -1e30f,   0x1.fep127f, 0x1.fffffep127f,
                              1,     -2,    1e-7f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f,  3.14159274f};
    static const float f16[] = {65504, 65504, 65504,    65504,    -65504, 65504,    65504,
                                1,     -2,    0x1p-23f, 0x1p-24f, 0,      0x1p-23f, 3.140625f};
    enum { N = HTH_ARRAY_LEN(x) };
    uint8_t bytes[2 * N];
    float y[N];
    (void)state;
    for (size_t t = 0; t < table_count; t++) {
        encode(tables[t], HTH_QUANT_F16, x, N, bytes);
        decode(tables[t], HTH_QUANT_F16, bytes, N, y);
        for (size_t i = 0; i < N; i++)
            assert_true(y[i] == f16[i]);
        encode(tables[t], HTH_QUANT_BF16, x, N, bytes);
        decode(tables[t], HTH_QUANT_BF16, bytes, N, y);
        for (size_t i = 0; i < N; i++)
            assert_close(y[i], x[i], 0x1p-8, 0);
        assert_true(y[6] == 0x1.fep127f);
    }
}

/* -- hostile input ------------------------------------------------------------------------- */

TEST(not_finite_is_refused)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    static float x[9001];
    static uint8_t out[4 * 9001];
    (void)state;
    for (size_t t = 0; t < table_count; t++) {
        for (size_t k = 0; k < HTH_ARRAY_LEN(lengths); k++) {
            size_t n = lengths[k];
            for (size_t i = 0; i < n; i++)
                x[i] = 1 + (float)i;
            for (size_t b = 0; b < HTH_ARRAY_LEN(bad); b++) {
                size_t at = hth_mix64(k * 4 + b) % n;
                float kept = x[at];
                x[at] = bad[b];
                for (size_t i = 0; i < HTH_ARRAY_LEN(formats); i++)
                    assert_err(HTH_E_NOT_FINITE,
                               hth_quant_encode_with(tables[t], formats[i], x, n, out));
                x[at] = kept;
            }
        }
        x[0] = 0x1p127f;
        assert_err(HTH_E_NOT_FINITE, hth_quant_encode_with(tables[t], HTH_QUANT_INT8, x, 3, out));
        x[0] = -0x1.fffffep126f;
        assert_ok(hth_quant_encode_with(tables[t], HTH_QUANT_INT8, x, 3, out));
        assert_err(HTH_E_RANGE, hth_quant_encode_with(tables[t], HTH_QUANT_DYNAMIC8U, x, 3, out));
    }
}

TEST(wrong_lengths_are_refused)
{
    enum { N = 100 };
    uint8_t bytes[4 * N + 2048] = {0};
    float y[N];
    (void)state;
    memset(y, 0x55, sizeof(y));
    for (size_t i = 0; i < HTH_ARRAY_LEN(formats); i++) {
        size_t want = hth_quant_bytes(formats[i], N);
        assert_err(HTH_E_TRUNCATED, hth_quant_decode(formats[i], bytes, want - 1, N, y));
        assert_err(HTH_E_TRUNCATED, hth_quant_decode(formats[i], bytes, 0, N, y));
        assert_err(HTH_E_MALFORMED, hth_quant_decode(formats[i], bytes, want + 1, N, y));
        assert_err(HTH_E_MALFORMED, hth_quant_decode_add(formats[i], bytes, SIZE_MAX, N, 1, y));
    }
    for (size_t i = 0; i < sizeof(y); i++)
        assert_int_equal(((uint8_t *)y)[i], 0x55);
}

/* Writes `size` bytes at `at` and expects a refusal that decoded nothing. */
static void refused(enum hth_quant_format f, size_t at, uint32_t bad, size_t size)
{
    enum { N = 4200 };
    static uint8_t bytes[4 * N + 2048];
    static float y[N], x[N], before[N];
    normal(x, N, 3);
    for (size_t i = 0; i < N; i++)
        x[i] = fabsf(x[i]);
    for (size_t t = 0; t < table_count; t++) {
        encode(tables[t], f, x, N, bytes);
        memcpy(bytes + at, &bad, size);
        memset(y, 0x33, sizeof(y));
        memcpy(before, y, sizeof(y));
        for (int add = 0; add < 2; add++) {
            struct hth_quant_out o = {.y = y, .alpha = 1, .add = add != 0};
            assert_err(HTH_E_NOT_FINITE,
                       hth_quant_decode_with(tables[t], f, bytes, hth_quant_bytes(f, N), N, o));
            assert_memory_equal(y, before, sizeof(y));
        }
    }
}

TEST(hostile_bytes_are_refused)
{
    enum { N = 4200 };
    (void)state;
    refused(HTH_QUANT_F32, 4 * 4199, 0x7f800000u, 4);
    refused(HTH_QUANT_F32, 0, 0xffc00000u, 4);
    refused(HTH_QUANT_F16, 2 * 4199, 0x7c00u, 2);
    refused(HTH_QUANT_F16, 6, 0xfe00u, 2);
    refused(HTH_QUANT_BF16, 2 * 4198, 0xff80u, 2);
    refused(HTH_QUANT_BF16, 2, 0x7fc0u, 2);
    refused(HTH_QUANT_INT8, N, 0x7c00u, 2); /* 2^121: too large */
    refused(HTH_QUANT_INT8, N + 2 * 65, 0x7f80u, 2);
    refused(HTH_QUANT_INT8, N + 2 * 3, 0x8000u, 2); /* below 0 */
    refused(HTH_QUANT_DYNAMIC8, N + 4, 0x7f800000u, 4);
    refused(HTH_QUANT_DYNAMIC8, N, 0xbf800000u, 4);
    refused(HTH_QUANT_DYNAMIC8U, N, 0x7fc00000u, 4);
    refused(HTH_QUANT_UNIFORM8, 4 * 255, 0xff800000u, 4);
}

/* -- guard pages, odd addresses ------------------------------------------------------------ */

/* `bytes` at the end of readable memory. */
struct guarded {
    uint8_t *map;
    size_t size;
    uint8_t *p;
};

static struct guarded guarded_new(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct guarded g = {.size = (bytes / page + 2) * page};
    g.map = mmap(NULL, g.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map + g.size - page, page, PROT_NONE), 0);
    g.p = g.map + g.size - page - bytes;
    return g;
}

static void guarded_free(struct guarded *g)
{
    munmap(g->map, g->size);
}

TEST(nothing_beyond_the_end_is_touched)
{
    (void)state;
    for (size_t n = 1; n < 300; n += n < 70 ? 1 : 37) {
        struct guarded x = guarded_new(4 * n), y = guarded_new(4 * n), p = guarded_new(4 * n);
        normal((float *)(void *)x.p, n, n);
        for (size_t i = 0; i < n; i++)
            ((float *)(void *)x.p)[i] = fabsf(((float *)(void *)x.p)[i]);
        for (size_t i = 0; i < HTH_ARRAY_LEN(formats); i++) {
            size_t bytes = hth_quant_bytes(formats[i], n);
            struct guarded b = guarded_new(bytes);
            for (size_t t = 0; t < table_count; t++) {
                encode(tables[t], formats[i], (float *)(void *)x.p, n, b.p);
                decode(tables[t], formats[i], b.p, n, (float *)(void *)y.p);
            }
            guarded_free(&b);
        }
        for (size_t t = 0; t < table_count; t++) {
            tables[t]->split(4, n, x.p, p.p);
            memset(y.p, 0, 4 * n);
            tables[t]->join(4, n, p.p, y.p);
            assert_memory_equal(x.p, y.p, 4 * n);
            tables[t]->split(2, 2 * n, x.p, p.p);
            tables[t]->join(2, 2 * n, p.p, y.p);
            assert_memory_equal(x.p, y.p, 4 * n);
        }
        guarded_free(&x);
        guarded_free(&y);
        guarded_free(&p);
    }
}

/* Bytes may start anywhere. */
TEST(any_alignment_works)
{
    enum { N = 333 };
    static float x[N], y[N], z[N];
    static uint8_t even[4 * N + 2048], odd[4 * N + 2049];
    (void)state;
    normal(x, N, 8);
    for (size_t i = 0; i < N; i++)
        x[i] = fabsf(x[i]);
    for (size_t i = 0; i < HTH_ARRAY_LEN(formats); i++) {
        for (size_t t = 0; t < table_count; t++) {
            encode(tables[t], formats[i], x, N, even);
            encode(tables[t], formats[i], x, N, odd + 1);
            assert_memory_equal(even, odd + 1, hth_quant_bytes(formats[i], N));
            decode(tables[t], formats[i], even, N, y);
            decode(tables[t], formats[i], odd + 1, N, z);
            assert_memory_equal(y, z, sizeof(y));
        }
    }
}

TEST(planes_survive_the_round_trip)
{
    static const uint8_t x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    static const uint8_t two[] = {1, 3, 5, 7, 9, 11, 2, 4, 6, 8, 10, 12};
    static const uint8_t four[] = {1, 5, 9, 2, 6, 10, 3, 7, 11, 4, 8, 12};
    uint8_t planes[12], back[12];
    (void)state;
    hth_planes_split(2, 6, x, planes);
    assert_memory_equal(planes, two, 12);
    hth_planes_join(2, 6, planes, back);
    assert_memory_equal(back, x, 12);
    hth_planes_split(4, 3, x, planes);
    assert_memory_equal(planes, four, 12);
    hth_planes_join(4, 3, planes, back);
    assert_memory_equal(back, x, 12);
}

/* With a team, blocks and scales are where they are without it; bad bytes are refused at any place,
 * and then nothing was decoded. */
TEST(team_changes_no_byte)
{
    static const size_t counts[] = {0, 1, 65536, 131071, 131072, 300001};
    enum { MOST = 300001 };
    struct test_team team = TEST_TEAM(3);
    float *x = hth_calloc(3 * MOST, sizeof(float)), *y = x + MOST, *want = y + MOST;
    uint8_t *bytes = hth_calloc(1, 4 * MOST), *plain = bytes + 2 * MOST;
    (void)state;
    normal(x, MOST, 5);
    for (size_t i = 0; i < HTH_ARRAY_LEN(counts); i++) {
        size_t n = counts[i], size = hth_quant_bytes(HTH_QUANT_INT8, n);
        uint32_t before = team.runs;
        assert_ok(hth_quant_encode(HTH_QUANT_INT8, x, n, plain));
        assert_ok(hth_quant_encode_team(&team.team, HTH_QUANT_INT8, x, n, bytes));
        assert_memory_equal(bytes, plain, size);
        assert_ok(hth_quant_decode(HTH_QUANT_INT8, plain, size, n, want));
        assert_ok(hth_quant_decode_team(&team.team, HTH_QUANT_INT8, bytes, size, n, y));
        assert_memory_equal(y, want, n * sizeof(float));
        assert_int_equal(team.runs - before, n >= 131072 ? 2 : 0);
    }
    size_t size = hth_quant_bytes(HTH_QUANT_INT8, MOST);
    for (size_t at = 0; at < MOST; at += MOST - 1) {
        float keep = x[at];
        x[at] = NAN;
        assert_err(HTH_E_NOT_FINITE,
                   hth_quant_encode_team(&team.team, HTH_QUANT_INT8, x, MOST, bytes));
        x[at] = keep;
        memcpy(bytes, plain, size);
        memcpy(bytes + MOST + at / HTH_QUANT_INT8_BLOCK * 2, &(uint16_t){0x7fc0}, 2);
        memset(y, 0, MOST * sizeof(float));
        assert_err(HTH_E_NOT_FINITE,
                   hth_quant_decode_team(&team.team, HTH_QUANT_INT8, bytes, size, MOST, y));
        for (size_t i = 0; i < MOST; i++)
            assert_true(y[i] == 0);
    }
    assert_err(HTH_E_TRUNCATED,
               hth_quant_decode_team(&team.team, HTH_QUANT_INT8, plain, size - 1, MOST, y));
    /* The caller alone computes the other formats. */
    uint32_t before = team.runs;
    assert_ok(hth_quant_encode_team(&team.team, HTH_QUANT_BF16, x, MOST, bytes));
    assert_ok(hth_quant_encode(HTH_QUANT_BF16, x, MOST, plain));
    assert_memory_equal(bytes, plain, 2 * MOST);
    assert_int_equal(team.runs, before);
    hth_free(bytes);
    hth_free(x);
}

/* hth_quant_hold selects one set's loops from then on; an unknown set leaves the choice
 * unchanged. */
TEST(hold_selects_a_table)
{
    const char *best = hth_quant_isa();
    float x[70];
    uint8_t want[80], got[80];
    size_t bytes = hth_quant_bytes(HTH_QUANT_INT8, HTH_ARRAY_LEN(x));
    (void)state;
    normal(x, HTH_ARRAY_LEN(x), 3);
    assert_string_equal(best, tables[table_count - 1]->isa);
    assert_ok(hth_quant_encode(HTH_QUANT_INT8, x, HTH_ARRAY_LEN(x), want));
    assert_ok(hth_quant_hold("generic"));
    assert_string_equal(hth_quant_isa(), "generic");
    assert_ok(hth_quant_encode(HTH_QUANT_INT8, x, HTH_ARRAY_LEN(x), got));
    assert_memory_equal(got, want, bytes);
    assert_err(HTH_E_UNSUPPORTED, hth_quant_hold("abacus"));
    assert_string_equal(hth_quant_isa(), "generic");
    assert_ok(hth_quant_hold(NULL));
    assert_string_equal(hth_quant_isa(), best);
}

SUITE_WITH(setup, NULL)
