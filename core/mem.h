/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.h: allocation in two policies.
 *
 * Small things of known size (structs, short strings) use hth_new and friends, which never return
 * NULL: a program without a few hundred bytes cannot continue. Sizes that a peer, a file or a
 * person chose use the `try` forms, which return NULL, after their limit and budget were checked.
 *
 * Tests can make the n-th `try` allocation fail (hth_mem_fail_at) to walk every cleanup path.
 */
#ifndef HTH_CORE_MEM_H
#define HTH_CORE_MEM_H

#include "core/base.h"

/* Zeroed; aborts with a message when memory is gone. */
void *hth_calloc(size_t count, size_t size) __attribute__((malloc, returns_nonnull));
void *hth_realloc(void *old, size_t count, size_t size) __attribute__((returns_nonnull));
char *hth_strdup(const char *s) __attribute__((malloc, returns_nonnull));
char *hth_asprintf(const char *fmt, ...) HTH_PRINTF(1, 2) __attribute__((returns_nonnull));
void hth_free(void *p);

/* Zeroed; NULL when memory is gone or count * size overflows. */
void *hth_try_calloc(size_t count, size_t size) HTH_MUST;
void *hth_try_realloc(void *old, size_t count, size_t size) HTH_MUST;
/* Not zeroed; NULL when memory is gone. */
void *hth_try_alloc(size_t bytes) HTH_MUST;
/* 64-byte aligned (above 2 MiB: 2 MiB aligned with huge pages advised), not zeroed; NULL when
 * memory is gone. Free with hth_aligned_free. */
void *hth_try_aligned(size_t bytes) HTH_MUST;
void hth_aligned_free(void *p);
/* The same for short-lived blocks, such as the bodies of messages. Freed large ones are kept, at
 * most HTH_BLOCKS_BYTES_MAX bytes: fresh zeroed pages from the kernel cost more than everything
 * else that happens to a message. Any thread; `bytes` must be the same in both calls. */
void *hth_try_block(size_t bytes) HTH_MUST;
void hth_block_free(void *p, size_t bytes);

/* Makes small blocks of the calling thread come from a hoard: an address range of their own,
 * without headers, on huge pages. It suits a thread that allocates and frees millions of them, such
 * as a simulation's. Any thread may free them, and they return to the hoard. The process keeps the
 * memory until it ends. The first call must precede other threads. */
void hth_mem_hoard(bool on);
/* Bytes that all hoards have taken. */
size_t hth_mem_hoard_bytes(void);

#define hth_new(type)              ((type *)hth_calloc(1, sizeof(type)))
#define hth_new_array(type, count) ((type *)hth_calloc((count), sizeof(type)))

/* For torture tests: the n-th `try` allocation after this call fails (1 = the next); 0 switches
 * that off. Not thread safe. */
void hth_mem_fail_at(long n);
/* `try` allocations made since the last hth_mem_fail_at. */
long hth_mem_try_count(void);

#endif
