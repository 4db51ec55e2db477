/* SPDX-License-Identifier: Apache-2.0 */
/* quant.c: number formats: lengths, checks, code books; the loops are in quant_template.h. */
#include "kernels/quant.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "core/limits.h"
#include "kernels/isa.h"
#include "kernels/quant_int.h"

/* -- formats ------------------------------------------------------------------------------- */

static const char *const names[] = {
    [HTH_QUANT_F32] = "fp32",          [HTH_QUANT_F16] = "fp16",
    [HTH_QUANT_BF16] = "bf16",         [HTH_QUANT_INT8] = "int8",
    [HTH_QUANT_DYNAMIC8] = "dynamic8", [HTH_QUANT_DYNAMIC8U] = "dynamic8u",
    [HTH_QUANT_UNIFORM8] = "uniform8",
};

#define BOOK_BYTES (256 * sizeof(float))

static bool known(enum hth_quant_format format)
{
    return format >= HTH_QUANT_F32 && format <= HTH_QUANT_UNIFORM8;
}

const char *hth_quant_name(enum hth_quant_format format)
{
    return known(format) ? names[format] : "?";
}

enum hth_err hth_quant_by_name(const char *name, enum hth_quant_format *out)
{
    for (uint32_t i = HTH_QUANT_F32; i < HTH_ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum hth_quant_format)i;
            return HTH_OK;
        }
    }
    return HTH_E_NOT_FOUND;
}

static size_t blocks(size_t count, size_t block)
{
    return count / block + (count % block != 0);
}

size_t hth_quant_bytes(enum hth_quant_format format, size_t count)
{
    if (count > HTH_PARAMS_FLOATS_MAX)
        return 0;
    switch (format) {
    case HTH_QUANT_F32:
        return 4 * count;
    case HTH_QUANT_F16:
    case HTH_QUANT_BF16:
        return 2 * count;
    case HTH_QUANT_INT8:
        return count + 2 * blocks(count, HTH_QUANT_INT8_BLOCK);
    case HTH_QUANT_DYNAMIC8:
    case HTH_QUANT_DYNAMIC8U:
        return count + 4 * blocks(count, HTH_QUANT_DYNAMIC_BLOCK);
    case HTH_QUANT_UNIFORM8:
        return count > 0 ? count + BOOK_BYTES : 0;
    }
    return 0;
}

/* -- tables -------------------------------------------------------------------------------- */

const struct hth_quantops *hth_quantops_find(const char *isa)
{
    if (isa != NULL && !hth_isa_runs(isa))
        return NULL;
#ifdef __x86_64__
    bool any = isa == NULL || strcmp(isa, "amxbf16") == 0;
    if ((any || strncmp(isa, "avx512", 6) == 0) && hth_isa_runs("avx512"))
        return &hth_quantops_avx512;
    if ((any || strcmp(isa, "avx2") == 0) && hth_isa_runs("avx2"))
        return &hth_quantops_avx2;
#endif
    return &hth_quantops_generic;
}

static const struct hth_quantops *_Atomic chosen;

/* The best table for this CPU, found once. Threads that race here write the same value. */
static const struct hth_quantops *best(void)
{
    const struct hth_quantops *q = chosen;
    if (q == NULL)
        chosen = q = hth_quantops_find(NULL);
    return q;
}

enum hth_err hth_quant_hold(const char *isa)
{
    const struct hth_quantops *q = hth_quantops_find(isa);
    if (q == NULL)
        return HTH_E_UNSUPPORTED;
    chosen = q;
    return HTH_OK;
}

const char *hth_quant_isa(void)
{
    return best()->isa;
}

/* -- dynamic code books -------------------------------------------------------------------- */

static struct hth_dynamic dynamic_signed, dynamic_unsigned;

/* The codes above 0 in rising order: 2^(i + extra) middles for each decade, and 1. */
static uint32_t dynamic_positive(uint32_t extra, float *out)
{
    static const double decade[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
    uint32_t n = 0;
    for (uint32_t i = 0; i < 7; i++) {
        uint32_t parts = 1u << (i + extra);
        for (uint32_t k = 0; k < parts; k++) {
            double middle = 0.1 + 0.9 * ((double)k + 0.5) / (double)parts;
            out[n++] = (float)(middle * decade[i]);
        }
    }
    out[n++] = 1.0f;
    return n;
}

static uint32_t float_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof(b));
    return b;
}

/* The last float that is at least as near to `low` as to `high`. */
static uint32_t last_bits(float low, float high)
{
    double middle = 0.5 * ((double)low + (double)high);
    float f = (float)middle;
    return (double)f > middle ? float_bits(f) - 1 : float_bits(f);
}

static void dynamic_init(struct hth_dynamic *d, bool is_unsigned)
{
    float up[256];
    uint32_t n = dynamic_positive(is_unsigned ? 1 : 0, up);
    d->zero = is_unsigned ? 0 : n - 1;
    for (uint32_t i = 0; i < n; i++) {
        d->book[d->zero + 1 + i] = up[i];
        if (i < d->zero)
            d->book[d->zero - 1 - i] = -up[i];
    }
    uint32_t step = 0; /* codes above 0 that the cell's lowest q reaches */
    for (uint32_t k = 0; k < HTH_DYNAMIC_CELLS; k++) {
        uint32_t first = k > 0 ? (HTH_DYNAMIC_CELL_FIRST + k) << 16 : 0;
        uint32_t end = (HTH_DYNAMIC_CELL_FIRST + k + 1) << 16;
        while (step < n && last_bits(d->book[d->zero + step], up[step]) < first)
            step++;
        uint32_t last = step < n ? last_bits(d->book[d->zero + step], up[step]) : UINT32_MAX;
        d->cell[k] = step << 17 | (last < end ? last & 0xffffu : 0x1ffffu);
    }
}

/* Runs before main, so that no thread waits or locks. */
__attribute__((constructor)) static void dynamic_init_both(void)
{
    dynamic_init(&dynamic_signed, false);
    dynamic_init(&dynamic_unsigned, true);
}

static const struct hth_dynamic *dynamic_of(enum hth_quant_format format)
{
    return format == HTH_QUANT_DYNAMIC8U ? &dynamic_unsigned : &dynamic_signed;
}

const float *hth_quant_dynamic_book(bool is_unsigned)
{
    return is_unsigned ? dynamic_unsigned.book : dynamic_signed.book;
}

/* -- encode -------------------------------------------------------------------------------- */

static enum hth_err finite(uint32_t bits)
{
    return bits < HTH_BITS_INFINITE ? HTH_OK : HTH_E_NOT_FINITE;
}

static enum hth_err dynamic_encode(const struct hth_quantops *q, enum hth_quant_format format,
                                   const float *x, size_t count, uint8_t *out)
{
    const struct hth_dynamic *d = dynamic_of(format);
    uint8_t *maxima = out + count;
    for (size_t at = 0; at < count; at += HTH_QUANT_DYNAMIC_BLOCK, maxima += 4) {
        size_t n = HTH_MIN(count - at, (size_t)HTH_QUANT_DYNAMIC_BLOCK);
        uint32_t top = q->max_bits(n, x + at);
        HTH_TRY(finite(top));
        for (size_t i = 0; format == HTH_QUANT_DYNAMIC8U && i < n; i++) {
            if (x[at + i] < 0)
                return HTH_E_RANGE;
        }
        float m;
        memcpy(&m, &top, sizeof(m));
        memcpy(maxima, &top, sizeof(top));
        if (top == 0)
            memset(out + at, (int)d->zero, n);
        else
            q->dynamic_encode(d, n, x + at, m, out + at);
    }
    return HTH_OK;
}

static enum hth_err uniform_encode(const struct hth_quantops *q, const float *x, size_t count,
                                   uint8_t *out)
{
    struct hth_uniform u = {0};
    float book[256];
    if (count == 0)
        return HTH_OK;
    double sum = q->sum(count, x);
    if (!isfinite(sum))
        return HTH_E_NOT_FINITE;
    u.mean = (float)(sum / (double)count);
    double sigma = count > 1 ? sqrt(q->spread(count, x, u.mean) / (double)(count - 1)) : 0;
    double step = sigma * (6.0 / 256.0);
    u.inv = step >= 0x1p-126 ? (float)(1.0 / step) : 0;
    q->uniform_encode(count, x, &u, out + BOOK_BYTES);
    for (size_t c = 0; c < 256; c++) {
        hth_pair p = (u.bucket[0][c] + u.bucket[1][c]) + (u.bucket[2][c] + u.bucket[3][c]);
        book[c] = p[1] > 0 ? (float)(p[0] / p[1]) : u.mean;
    }
    memcpy(out, book, sizeof(book));
    return HTH_OK;
}

enum hth_err hth_quant_encode_with(const struct hth_quantops *q, enum hth_quant_format format,
                                   const float *x, size_t count, void *out)
{
    if (!known(format))
        return HTH_E_UNSUPPORTED;
    if (count > HTH_PARAMS_FLOATS_MAX)
        return HTH_E_TOO_LARGE;
    switch (format) {
    case HTH_QUANT_F32:
        if (count > 0)
            memcpy(out, x, count * sizeof(float));
        return finite(q->max_bits(count, x));
    case HTH_QUANT_F16:
        return finite(q->f16_encode(count, x, out));
    case HTH_QUANT_BF16:
        return finite(q->bf16_encode(count, x, out));
    case HTH_QUANT_INT8:
        return q->int8_encode(count, x, out, (uint8_t *)out + count) < HTH_BITS_INT8_END
                   ? HTH_OK
                   : HTH_E_NOT_FINITE;
    case HTH_QUANT_DYNAMIC8:
    case HTH_QUANT_DYNAMIC8U:
        return dynamic_encode(q, format, x, count, out);
    case HTH_QUANT_UNIFORM8:
        return uniform_encode(q, x, count, out);
    }
    return HTH_E_UNSUPPORTED;
}

enum hth_err hth_quant_encode(enum hth_quant_format format, const float *x, size_t count, void *out)
{
    return hth_quant_encode_with(best(), format, x, count, out);
}

/* -- decode -------------------------------------------------------------------------------- */

/* The largest of 32-bit numbers at any address, as unsigned: a sign makes it large. */
static uint32_t max_word(const uint8_t *p, size_t count)
{
    uint32_t m = 0, w;
    for (size_t i = 0; i < count; i++) {
        memcpy(&w, p + 4 * i, sizeof(w));
        m = w > m ? w : m;
    }
    return m;
}

static uint32_t max_half(const uint8_t *p, size_t count)
{
    uint16_t m = 0, w;
    for (size_t i = 0; i < count; i++) {
        memcpy(&w, p + 2 * i, sizeof(w));
        m = w > m ? w : m;
    }
    return m;
}

/* True if nothing in the bytes can make a value infinite. */
static bool decodable(const struct hth_quantops *q, enum hth_quant_format format, const uint8_t *in,
                      size_t count)
{
    switch (format) {
    case HTH_QUANT_F32:
        return q->max_bits(count, in) < HTH_BITS_INFINITE;
    case HTH_QUANT_F16:
        return q->max_bits16(count, in) < 0x7c00u;
    case HTH_QUANT_BF16:
        return q->max_bits16(count, in) < 0x7f80u;
    case HTH_QUANT_INT8:
        return max_half(in + count, blocks(count, HTH_QUANT_INT8_BLOCK)) < HTH_SCALE_INT8_END;
    case HTH_QUANT_DYNAMIC8:
    case HTH_QUANT_DYNAMIC8U:
        return max_word(in + count, blocks(count, HTH_QUANT_DYNAMIC_BLOCK)) < HTH_BITS_INFINITE;
    case HTH_QUANT_UNIFORM8:
        return count == 0 || q->max_bits(256, in) < HTH_BITS_INFINITE;
    }
    return false;
}

static void dynamic_decode(const struct hth_quantops *q, enum hth_quant_format format,
                           const uint8_t *in, size_t count, struct hth_quant_out o)
{
    const uint8_t *maxima = in + count;
    for (size_t at = 0; at < count; at += HTH_QUANT_DYNAMIC_BLOCK, maxima += 4) {
        size_t n = HTH_MIN(count - at, (size_t)HTH_QUANT_DYNAMIC_BLOCK);
        struct hth_quant_out part = {o.y + at, o.alpha, o.add};
        float m;
        memcpy(&m, maxima, sizeof(m));
        q->book_decode(dynamic_of(format)->book, n, in + at, m, part);
    }
}

enum hth_err hth_quant_decode_with(const struct hth_quantops *q, enum hth_quant_format format,
                                   const void *in, size_t bytes, size_t count,
                                   struct hth_quant_out o)
{
    const uint8_t *b = in;
    float book[256];
    if (!known(format))
        return HTH_E_UNSUPPORTED;
    if (count > HTH_PARAMS_FLOATS_MAX)
        return HTH_E_TOO_LARGE;
    size_t want = hth_quant_bytes(format, count);
    if (bytes != want)
        return bytes < want ? HTH_E_TRUNCATED : HTH_E_MALFORMED;
    if (!decodable(q, format, b, count))
        return HTH_E_NOT_FINITE;
    if (count == 0)
        return HTH_OK;
    switch (format) {
    case HTH_QUANT_F32:
        q->f32_decode(count, b, o);
        break;
    case HTH_QUANT_F16:
        q->f16_decode(count, b, o);
        break;
    case HTH_QUANT_BF16:
        q->bf16_decode(count, b, o);
        break;
    case HTH_QUANT_INT8:
        q->int8_decode(count, b, b + count, o);
        break;
    case HTH_QUANT_DYNAMIC8:
    case HTH_QUANT_DYNAMIC8U:
        dynamic_decode(q, format, b, count, o);
        break;
    case HTH_QUANT_UNIFORM8:
        memcpy(book, b, sizeof(book));
        q->book_decode(book, count, b + BOOK_BYTES, 1.0f, o);
        break;
    }
    return HTH_OK;
}

enum hth_err hth_quant_decode(enum hth_quant_format format, const void *in, size_t bytes,
                              size_t count, float *y)
{
    return hth_quant_decode_with(best(), format, in, bytes, count, (struct hth_quant_out){.y = y});
}

enum hth_err hth_quant_decode_add(enum hth_quant_format format, const void *in, size_t bytes,
                                  size_t count, float alpha, float *y)
{
    return hth_quant_decode_with(best(), format, in, bytes, count,
                                 (struct hth_quant_out){.y = y, .alpha = alpha, .add = true});
}

/* -- with a team --------------------------------------------------------------------------- */

/* A helper pays from this many numbers on. */
#define PART_NUMBERS ((size_t)1 << 16)

struct int8_work {
    const float *x; /* to encode; NULL: decode */
    float *y;
    uint8_t *codes, *scales; /* read-only when decoding */
    size_t count;
    uint32_t parts;
    atomic_bool bad;
};

static void int8_part(void *arg, uint32_t part)
{
    struct int8_work *w = arg;
    size_t all = blocks(w->count, HTH_QUANT_INT8_BLOCK);
    size_t block = all * part / w->parts, end = all * (part + 1) / w->parts;
    size_t first = block * HTH_QUANT_INT8_BLOCK;
    size_t n = HTH_MIN(end * HTH_QUANT_INT8_BLOCK, w->count) - first;
    uint8_t *codes = w->codes + first, *scales = w->scales + 2 * block;
    if (w->x == NULL)
        best()->int8_decode(n, codes, scales, (struct hth_quant_out){.y = w->y + first});
    else if (best()->int8_encode(n, w->x + first, codes, scales) >= HTH_BITS_INT8_END)
        w->bad = true;
}

/* False: helpers would not pay, or there are none. */
static bool int8_run(struct hth_team *team, struct int8_work *w)
{
    size_t width = hth_team_width(team), parts = w->count / PART_NUMBERS;
    if (width == 1 || parts < 2)
        return false;
    w->parts = (uint32_t)HTH_MIN(parts, 4 * width);
    hth_team_run(team, w->parts, int8_part, w);
    return true;
}

enum hth_err hth_quant_encode_team(struct hth_team *team, enum hth_quant_format format,
                                   const float *x, size_t count, void *out)
{
    struct int8_work w = {
        .x = x, .codes = out, .scales = (uint8_t *)out + count, .count = count, .bad = false};
    if (format != HTH_QUANT_INT8 || count > HTH_PARAMS_FLOATS_MAX || !int8_run(team, &w))
        return hth_quant_encode(format, x, count, out);
    return w.bad ? HTH_E_NOT_FINITE : HTH_OK;
}

enum hth_err hth_quant_decode_team(struct hth_team *team, enum hth_quant_format format,
                                   const void *in, size_t bytes, size_t count, float *y)
{
    struct int8_work w = {.y = y,
                          .codes = (uint8_t *)(uintptr_t)in,
                          .scales = (uint8_t *)(uintptr_t)in + count,
                          .count = count};
    bool right = format == HTH_QUANT_INT8 && bytes == hth_quant_bytes(format, count);
    if (right && decodable(best(), format, in, count) && int8_run(team, &w))
        return HTH_OK;
    return hth_quant_decode(format, in, bytes, count, y);
}
