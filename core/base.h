/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.h: the few macros that every file may use.
 *
 * HTH_MUST marks a function whose result the caller must check. HTH_TRY and HTH_GOTO pass an error
 * on: the first returns it, the second stores it in `err` and jumps to the one cleanup label.
 * Asserts (HTH_ASSERT) stay on in release builds; they guard our own invariants. Bytes from a peer
 * or a file must never reach one unchecked.
 */
#ifndef HTH_CORE_BASE_H
#define HTH_CORE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_MUST               __attribute__((warn_unused_result))
#define HTH_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define HTH_NORETURN           __attribute__((noreturn))
#define HTH_COLD               __attribute__((cold))       /* seldom run, like its callers */
#define HTH_SELDOM(cond)       __builtin_expect((cond), 0) /* seldom true: out of the hot path */

#define HTH_ARRAY_LEN(a)       (sizeof(a) / sizeof((a)[0]))
#define HTH_MIN(a, b)          ((a) < (b) ? (a) : (b))
#define HTH_MAX(a, b)          ((a) > (b) ? (a) : (b))
/* The struct that embeds `member` at address `ptr`. */
#define HTH_CONTAINER(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* The larger of two; NaN when either is NaN. fmax and HTH_MAX would drop a NaN, and a measured
 * error must not vanish. */
static inline double hth_worse(double a, double b)
{
    return a != a || b <= a ? a : b;
}

#define HTH_US_PER_MS INT64_C(1000)
#define HTH_US_PER_S  INT64_C(1000000)

#define HTH_TRY(expr)                                                                              \
    do {                                                                                           \
        enum hth_err hth_try_err = (expr);                                                         \
        if (HTH_SELDOM(hth_try_err != HTH_OK))                                                     \
            return hth_try_err;                                                                    \
    } while (0)

#define HTH_GOTO(label, expr)                                                                      \
    do {                                                                                           \
        err = (expr);                                                                              \
        if (HTH_SELDOM(err != HTH_OK))                                                             \
            goto label;                                                                            \
    } while (0)

#define HTH_ASSERT(cond)                                                                           \
    do {                                                                                           \
        if (!(cond))                                                                               \
            hth_assert_fail(#cond, __FILE__, __LINE__, __func__);                                  \
    } while (0)

/* Prints the broken invariant on stderr and aborts. */
HTH_COLD HTH_NORETURN void hth_assert_fail(const char *cond, const char *file, int line,
                                           const char *func);

#include "core/err.h"

#endif
