/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.h: included by every test: cmocka with the headers it needs, and comparisons of numbers that
 * print both values.
 */
#ifndef HTH_TESTS_SUPPORT_TEST_H
#define HTH_TESTS_SUPPORT_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/base.h"

/* ThreadSanitizer finds races, and a case of one thread has none: under it only cases with threads
 * run. */
#ifdef __SANITIZE_THREAD__
#define HTH_TEST_ONLY_THREADS 1
#else
#define HTH_TEST_ONLY_THREADS 0
#endif

/* Sanitizers find faults of memory and of threads, which the first of many like cases show; the
 * normal build runs them all. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HTH_TEST_FEW 1
#else
#define HTH_TEST_FEW 0
#endif

#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        enum hth_err hth_e = (expr);                                                               \
        if (hth_e != HTH_OK)                                                                       \
            fail_msg("%s gave %s (%s)", #expr, hth_err_name(hth_e), hth_err_text(hth_e));          \
    } while (0)

#define assert_err(want, expr)                                                                     \
    do {                                                                                           \
        enum hth_err hth_e = (expr);                                                               \
        if (hth_e != (want))                                                                       \
            fail_msg("%s gave %s, not %s", #expr, hth_err_name(hth_e), hth_err_name(want));        \
    } while (0)

/* |a - b| <= atol + rtol * |b| */
#define assert_close(a, b, rtol, atol)                                                             \
    do {                                                                                           \
        double hth_a = (double)(a), hth_b = (double)(b);                                           \
        if (!(fabs(hth_a - hth_b) <= (atol) + (rtol)*fabs(hth_b)))                                 \
            fail_msg("%s = %.9g, %s = %.9g", #a, hth_a, #b, hth_b);                                \
    } while (0)

/* ||a - b|| / ||b||, in double; infinite when either holds a NaN. */
static inline double hth_test_rel_l2(const float *a, const double *b, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - b[i];
        diff += d * d;
        norm += b[i] * b[i];
    }
    if (!isfinite(diff) || !isfinite(norm))
        return INFINITY;
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

#endif
