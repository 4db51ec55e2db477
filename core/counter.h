/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counter.h: a sum that any thread adds to. A thread that sees an addition also sees everything
 * written before it; so the thread that drops the last reference to a blob may free it.
 *
 * An atomic addition waits until all earlier stores are in the cache. In a simulated world, which
 * adds many hundred thousand times, that costs more than the additions themselves. So while the
 * process has one thread it is an ordinary addition; glibc clears __libc_single_threaded before a
 * second thread can run.
 */
#ifndef HTH_CORE_COUNTER_H
#define HTH_CORE_COUNTER_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define HTH_COUNTER_ALONE ((bool)__libc_single_threaded)
#endif
#endif
#ifndef HTH_COUNTER_ALONE
#define HTH_COUNTER_ALONE false
#endif

/* Returns the new sum. */
static inline int64_t hth_counter_add(int64_t *sum, int64_t n)
{
    if (!HTH_COUNTER_ALONE)
        return __atomic_add_fetch(sum, n, __ATOMIC_ACQ_REL);
    int64_t after = __atomic_load_n(sum, __ATOMIC_RELAXED) + n;
    __atomic_store_n(sum, after, __ATOMIC_RELAXED);
    return after;
}

#endif
