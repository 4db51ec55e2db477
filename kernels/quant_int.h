/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant_int.h: the loops behind quant.h as a table, one per instruction set.
 *
 * Every table gives the same bits: largest magnitudes are integer maxima, everything else is one
 * correctly rounded operation after the other, and contraction is off in these files. Callers check
 * lengths; pointers to bytes have any alignment.
 */
#ifndef HTH_KERNELS_QUANT_INT_H
#define HTH_KERNELS_QUANT_INT_H

#include "kernels/quant.h"

/* Bits of a float without its sign: from these on it is infinite or NaN, or too large for int8. */
#define HTH_BITS_INFINITE  0x7f800000u
#define HTH_BITS_INT8_END  0x7f000000u /* 2^127 */
#define HTH_SCALE_INT8_END 0x7c00u     /* 2^121 as bf16: 128 times a lower scale is finite */

/* A table that finds the code of a dynamic book nearest to q in [0, 1]. `cell` is indexed by the
 * bits of q from 2^-23 on without their low 16. A cell holds in its upper bits the code number of
 * its lowest q, counted from that of 0, and in its lower 17 bits the last q (low 16 bits) with this
 * number; there is never more than one step in a cell. */
#define HTH_DYNAMIC_CELL_FIRST (104u << 7)
#define HTH_DYNAMIC_CELLS      (23 * 128 + 1)
struct hth_dynamic {
    float book[256];
    uint32_t zero; /* number of the code that stands for 0: 127, or 0 without signs */
    uint32_t cell[HTH_DYNAMIC_CELLS];
};

typedef double hth_pair __attribute__((vector_size(16)));

/* Mean and step of uniform8, and sum and count of the values in each bucket. */
struct hth_uniform {
    float mean, inv;
    hth_pair bucket[4][256]; /* sum and count */
};

/* y = v, or y += alpha * v with `add`. */
struct hth_quant_out {
    float *y;
    float alpha;
    bool add;
};

struct hth_quantops {
    const char *isa;
    /* Bits of the largest magnitude. */
    uint32_t (*max_bits)(size_t n, const void *x); /* n floats at any address */
    /* The same of n 16-bit numbers. */
    uint32_t (*max_bits16)(size_t n, const uint8_t *x);
    void (*f32_decode)(size_t n, const uint8_t *in, struct hth_quant_out o);
    /* These encoders return the bits of the largest magnitude. */
    uint32_t (*f16_encode)(size_t n, const float *x, uint8_t *out);
    void (*f16_decode)(size_t n, const uint8_t *in, struct hth_quant_out o);
    uint32_t (*bf16_encode)(size_t n, const float *x, uint8_t *out);
    void (*bf16_decode)(size_t n, const uint8_t *in, struct hth_quant_out o);
    uint32_t (*int8_encode)(size_t n, const float *x, uint8_t *codes, uint8_t *scales);
    void (*int8_decode)(size_t n, const uint8_t *codes, const uint8_t *scales,
                        struct hth_quant_out o);
    /* One block, m its largest magnitude, above 0. */
    void (*dynamic_encode)(const struct hth_dynamic *d, size_t n, const float *x, float m,
                           uint8_t *codes);
    /* book[code] * m */
    void (*book_decode)(const float *book, size_t n, const uint8_t *codes, float m,
                        struct hth_quant_out o);
    double (*sum)(size_t n, const float *x);
    double (*spread)(size_t n, const float *x, float mean); /* of (x - mean)^2 */
    void (*uniform_encode)(size_t n, const float *x, struct hth_uniform *u, uint8_t *codes);
};

extern const struct hth_quantops hth_quantops_generic, hth_quantops_avx2, hth_quantops_avx512;

/* The widest table for a CPU of that instruction set (isa.h), NULL for this one; NULL when this CPU
 * can't run it. */
const struct hth_quantops *hth_quantops_find(const char *isa);

/* quant.h's functions with the loops of one table, for tests. */
enum hth_err hth_quant_encode_with(const struct hth_quantops *q, enum hth_quant_format format,
                                   const float *x, size_t count, void *out) HTH_MUST;
enum hth_err hth_quant_decode_with(const struct hth_quantops *q, enum hth_quant_format format,
                                   const void *in, size_t bytes, size_t count,
                                   struct hth_quant_out o) HTH_MUST;

#endif
