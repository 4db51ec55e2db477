/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.c: case D: 10 million normals to the form they have on the wire, and back, on one
 * thread. fp32 rows are sent from where they lie; the figure of "none" is that of two plain copies.
 * bf16 and int8 (blocks of 64) have no counterpart in hivemind.
 */
#include "benchmarks/twin.h"
#include "core/mem.h"
#include "core/tensor.h"
#include "experts/rows.h"

#include <math.h>

#define D      1000u
#define ROWS   10000u
#define FLOATS (ROWS * D)

struct codec {
    const char *name;
    enum hth_dtype dtype;
    double hivemind; /* ms */
    double mse_max;
};

static const struct codec codecs[] = {
    {"none", HTH_F32, 15.5, 0},
    {"fp16", HTH_F16, 15.4, 5e-6},
    {"bf16", HTH_BF16, 0, 5e-6},
    {"int8", HTH_I8, 0, 1e-4},
};

static enum hth_err check(const float *got, const float *want, double mse_max)
{
    double sum = 0;
    for (size_t i = 0; i < FLOATS; i++) {
        double diff = (double)got[i] - (double)want[i];
        sum += diff * diff;
    }
    return sum / FLOATS <= mse_max ? HTH_OK : HTH_E_BUG;
}

static enum hth_err measure(struct hth_bench *b, const struct hth_bench_twin_case *c,
                            const struct codec *codec, float *const buf[3])
{
    struct hth_bench_twin_case named = *c;
    struct hth_bench_samples samples;
    bool warm = false;
    hth_bench_begin(&samples);
    while (hth_bench_more(b, &samples, 9)) {
        int64_t start_ns = hth_bench_now_ns(NULL);
        hth_rows_from_f32(buf[0], codec->dtype, ROWS, D, (uint8_t *)(void *)buf[1]);
        hth_rows_to_f32((const uint8_t *)(const void *)buf[1], codec->dtype, ROWS, D, buf[2]);
        double ms = (double)(hth_bench_now_ns(NULL) - start_ns) / 1e6;
        if (warm)
            hth_bench_add(&samples, ms);
        warm = true;
    }
    HTH_TRY(check(buf[2], buf[0], codec->mse_max));
    named.hivemind = codec->hivemind;
    hth_bench_twin_emit(b, &named, codec->name, &samples);
    return HTH_OK;
}

enum hth_err hth_bench_twin_codec(struct hth_bench *b, const struct hth_bench_twin_case *c)
{
    float *buf[3] = {NULL, NULL, NULL};
    enum hth_err err = HTH_OK;
    for (size_t i = 0; i < HTH_ARRAY_LEN(buf); i++) {
        buf[i] = hth_try_aligned(FLOATS * sizeof(float));
        err = buf[i] == NULL ? HTH_E_NO_MEMORY : err;
    }
    if (err == HTH_OK)
        hth_bench_normals(7348, 0, buf[0], FLOATS);
    for (size_t i = 0; i < HTH_ARRAY_LEN(codecs) && err == HTH_OK; i++)
        err = measure(b, c, &codecs[i], buf);
    for (size_t i = 0; i < HTH_ARRAY_LEN(buf); i++)
        hth_aligned_free(buf[i]);
    return err;
}
