/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h: measures every kernel of a back end beside its floor, to check a card. It also runs on
 * the CPU, so that the arithmetic of the table is tested without a card.
 *
 * Two rates are measured first, in the same process on the same device: bytes read and written per
 * second by a plain copy, and operations per second of the best of a few large products. On a card
 * these are the faster of the driver's copy and our own, and the library's product of operands in
 * the card's memory, or a linear layer if that is faster. The floor of a line is the time of its
 * bytes or operations at these rates:
 *
 *   floor_us = bytes / bytes_per_s * 1e6        for operations that move memory
 *   floor_us = flops / flops_per_s * 1e6        for operations that multiply
 *
 * Times are medians of `repeats` runs. A device with events is timed by them, which excludes the
 * host's launches of work that is queued behind other work; others are timed by `clock_us`. Each
 * operation first runs on a small batch and is compared with the CPU; its line has the difference.
 * A line that could not be measured has its error and no numbers.
 */
#ifndef HTH_BENCHMARKS_KERNELS_DEVICE_H
#define HTH_BENCHMARKS_KERNELS_DEVICE_H

#include "core/base.h"
#include "kernels/backend.h"

struct hth_bench_rates {
    double bytes_per_s, flops_per_s;
};

struct hth_bench_line {
    const char *op;
    uint32_t dim, rows; /* rows is 0 for a flat vector or weights */
    enum hth_err err;
    double us;           /* median; 0 if there is an error */
    double flops, bytes; /* per run; one of them is 0 */
    double floor_us;
    double check_error; /* relative 2-norm to the CPU; negative: not compared */
};

struct hth_bench_device_options {
    const struct hth_backend *backend;
    const uint32_t *dims, *rows; /* FFN blocks of every width with every number of rows */
    size_t dim_count, row_count;
    uint32_t blocks, block_rows; /* size of the group of small blocks; 0: 64 of 32 rows */
    uint32_t repeats;            /* 0: 11 */
    size_t copy_bytes;           /* of the plain copy; 0: 256 MiB */
    int64_t (*clock_us)(void *arg);
    void *clock_arg;
    void (*on_rates)(void *arg, const struct hth_bench_rates *rates);
    void (*on_line)(void *arg, const struct hth_bench_line *line);
    void *arg;
};

/* Errors: E_CONFIG (no clock, nothing to measure), E_NO_MEMORY, E_DEVICE (the rates could not be
 * measured). An error of one line is in that line. */
enum hth_err hth_bench_device(const struct hth_bench_device_options *options) HTH_MUST;

/* The equation above; 0 if the rate is not known. */
double hth_bench_floor_us(double flops, double bytes, const struct hth_bench_rates *rates);
/* floor / time: 1 is the optimum; 0 if there is no time. */
double hth_bench_fraction(const struct hth_bench_line *line);
/* The median; sorts the samples. */
double hth_bench_middle(double *us, uint32_t count);

#endif
