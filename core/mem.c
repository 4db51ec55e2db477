/* SPDX-License-Identifier: Apache-2.0 */
/* mem.c: see mem.h for the two policies. */
#define _DEFAULT_SOURCE
#include "core/mem.h"

#include "core/limits.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#define KEEP_NO_BLOCKS
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KEEP_NO_BLOCKS
#endif
#endif

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define SMALL_BYTES     1024

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

/* ---- hoards -------------------------------------------------------------------------------- */

/* Blocks by what malloc really gave, in steps of 16. The first word of each points to the next. */
static _Thread_local bool hoarding;
static _Thread_local void *hoard[SMALL_BYTES / 16 + 2];

void hth_mem_hoard(bool on)
{
#ifdef KEEP_NO_BLOCKS
    (void)on; /* a kept block would hide a use after free */
#else
    hoarding = on;
#endif
}

/* malloc gives 16 n + 8 bytes: the place of the smallest such size that holds them. */
static size_t hoard_place(size_t bytes)
{
    return bytes <= 24 ? 1 : (bytes + 7) / 16;
}

static void *small_alloc(size_t bytes)
{
    void **shelf = &hoard[hoard_place(bytes)];
    void *p = *shelf;
    if (!hoarding || p == NULL)
        return malloc(bytes);
    memcpy(shelf, p, sizeof(void *));
    return p;
}

static void small_free(void *p)
{
    size_t place = hoard_place(malloc_usable_size(p));
    if (place > hoard_place(SMALL_BYTES)) {
        free(p);
        return;
    }
    memcpy(p, &hoard[place], sizeof(void *));
    hoard[place] = p;
}

/* What is freed into a hoard must come out of it again, or it would grow for ever: whatever makes
 * or changes a small block goes by these. NULL: no memory, and `old` is as it was. */
static void *zeroed(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes == 0 || bytes > SMALL_BYTES)
        return calloc(count > 0 ? count : 1, size > 0 ? size : 1);
    /* glibc keeps a cache of small freed blocks that malloc looks into, but calloc does not. */
    void *p = small_alloc(bytes);
    __asm__ volatile("" : "+r"(p)); /* else the compiler makes it a calloc again */
    if (p != NULL)
        memset(p, 0, bytes);
    return p;
}

static void *resized(void *old, size_t bytes)
{
    bytes = bytes > 0 ? bytes : 1;
    if (!hoarding || bytes > SMALL_BYTES)
        return realloc(old, bytes);
    size_t had = old != NULL ? malloc_usable_size(old) : 0;
    if (old != NULL && bytes <= had && had <= SMALL_BYTES)
        return old;
    void *p = small_alloc(bytes);
    if (p == NULL || old == NULL)
        return p;
    memcpy(p, old, bytes < had ? bytes : had);
    small_free(old);
    return p;
}

/* ---- the two policies ---------------------------------------------------------------------- */

void *hth_calloc(size_t count, size_t size)
{
    void *p = zeroed(count, size);
    if (p == NULL)
        no_memory(count * size);
    return p;
}

void *hth_realloc(void *old, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        no_memory(SIZE_MAX);
    void *p = resized(old, bytes);
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
    if (hoarding && p != NULL)
        small_free(p);
    else
        free(p);
}

void *hth_try_calloc(size_t count, size_t size)
{
    if (injected_failure())
        return NULL;
    return zeroed(count, size);
}

void *hth_try_alloc(size_t bytes)
{
    if (injected_failure())
        return NULL;
    return bytes <= SMALL_BYTES ? small_alloc(bytes) : malloc(bytes);
}

void *hth_try_realloc(void *old, size_t count, size_t size)
{
    size_t bytes;
    if (injected_failure() || __builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return resized(old, bytes);
}

static void *aligned(size_t bytes)
{
    if (bytes > (size_t)PTRDIFF_MAX - HUGE_PAGE_BYTES)
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

void *hth_try_aligned(size_t bytes)
{
    return injected_failure() ? NULL : aligned(bytes);
}

void hth_aligned_free(void *p)
{
    free(p);
}

/* ---- blocks that come and go --------------------------------------------------------------- */

/*
 * Size classes have four steps per power of two, so at most a fifth of a block is not asked for,
 * and untouched pages of it cost nothing. A slot is claimed by an atomic exchange and filled by a
 * compare and swap: a block is owned by whoever took the pointer out, so there is nothing to lock.
 */
#define BLOCK_SHIFT_MIN 16
#define BLOCK_SHIFT_MAX 27
#define BLOCK_CLASSES   ((BLOCK_SHIFT_MAX - BLOCK_SHIFT_MIN) * 4)
#define BLOCK_SLOTS     16

static void *block_slot[BLOCK_CLASSES][BLOCK_SLOTS];
static size_t block_bytes_kept;

/* The class whose blocks hold that many bytes, and their size; -1 when such blocks are not kept. */
static int block_class(size_t bytes, size_t *size)
{
#ifdef KEEP_NO_BLOCKS
    /* A kept block would hide a use after free. */
    (void)bytes;
    (void)size;
    return -1;
#else
    if (bytes <= (size_t)1 << BLOCK_SHIFT_MIN || bytes > (size_t)1 << BLOCK_SHIFT_MAX)
        return -1;
    int shift = BLOCK_SHIFT_MIN;
    while (bytes > (size_t)2 << shift)
        shift++;
    size_t step = (size_t)1 << (shift - 2), base = (size_t)1 << shift;
    size_t steps = (bytes - base + step - 1) / step; /* 1 .. 4 */
    *size = base + steps * step;
    return (shift - BLOCK_SHIFT_MIN) * 4 + (int)steps - 1;
#endif
}

void *hth_try_block(size_t bytes)
{
    size_t size = bytes;
    int class = block_class(bytes, &size);
    if (class < 0)
        return hth_try_aligned(bytes);
    if (injected_failure())
        return NULL;
    for (int i = 0; i < BLOCK_SLOTS; i++) {
        void *p = __atomic_exchange_n(&block_slot[class][i], NULL, __ATOMIC_ACQUIRE);
        if (p != NULL) {
            __atomic_fetch_sub(&block_bytes_kept, size, __ATOMIC_RELAXED);
            return p;
        }
    }
    return aligned(size);
}

void hth_block_free(void *p, size_t bytes)
{
    size_t size = bytes;
    int class = block_class(bytes, &size);
    if (p == NULL || class < 0) {
        free(p);
        return;
    }
    if (__atomic_add_fetch(&block_bytes_kept, size, __ATOMIC_RELAXED) <= HTH_BLOCKS_BYTES_MAX) {
        for (int i = 0; i < BLOCK_SLOTS; i++) {
            void *none = NULL;
            if (__atomic_compare_exchange_n(&block_slot[class][i], &none, p, false,
                                            __ATOMIC_RELEASE, __ATOMIC_RELAXED))
                return;
        }
    }
    __atomic_fetch_sub(&block_bytes_kept, size, __ATOMIC_RELAXED);
    free(p);
}

/* ---- torture ------------------------------------------------------------------------------- */

void hth_mem_fail_at(long n)
{
    fail_at = n;
    try_count = 0;
}

long hth_mem_try_count(void)
{
    return try_count;
}
