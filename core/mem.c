/* SPDX-License-Identifier: Apache-2.0 */
/* mem.c: see mem.h for the two policies. */
#define _DEFAULT_SOURCE
#include "core/mem.h"

#include "core/limits.h"

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
    fprintf(stderr, "hearth: out of memory: %zu bytes could not be allocated; the process stops\n",
            bytes);
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

/* The blocks of hoards lie in one address range that is cut into spans, each for blocks of one
 * size. So a block needs no header: its address gives its size. Freeing it writes only its first
 * word, which points to the next free block of its class.
 *
 *     region      [ 48 48 48 48 .. | 640 640 640 .. | 48 48 48 48 .. | not used yet ...
 *     span_class  [ 2              | 21             | 2              | ...
 *
 * Sizes are steps of 16 up to 256, then of 64, and of 256 above 1024; blocks whose size is a
 * multiple of 64 begin with a cache line. */
#define REGION_BYTES  ((size_t)16 << 30) /* address space: unused pages cost no memory */
#define SPAN_BYTES    ((size_t)16384)
#define HOARD_BYTES   4096 /* larger blocks come from malloc */
#define HOARD_CLASSES (16 + 12 + 12)

struct hoard {
    bool on;
    struct shelf {
        void *free;        /* a list */
        uint8_t *at, *end; /* of a span, not used yet */
    } shelf[HOARD_CLASSES];
};

static _Thread_local struct hoard hoard;
static uint8_t *region; /* NULL: no thread hoards */
static uint8_t *span_class;
static size_t region_used;
/* Blocks freed by threads that do not hoard: lists, changed atomically. */
static void *returned[HOARD_CLASSES];

static uint32_t class_of(size_t bytes)
{
    if (bytes <= 256)
        return bytes > 0 ? (uint32_t)(bytes - 1) / 16 : 0;
    return bytes <= 1024 ? 16 + (uint32_t)(bytes - 257) / 64 : 28 + (uint32_t)(bytes - 1025) / 256;
}

static size_t class_bytes(uint32_t c)
{
    return c < 16 ? 16 * (c + 1) : c < 28 ? 256 + 64 * (c - 15) : 1024 + 256 * (c - 27);
}

static void region_make(void)
{
    /* The table of classes follows the region. */
    const size_t all = REGION_BYTES + HUGE_PAGE_BYTES + REGION_BYTES / SPAN_BYTES;
    uint8_t *p =
        mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return;
    p += -(uintptr_t)p % HUGE_PAGE_BYTES;
    (void)madvise(p, REGION_BYTES, MADV_HUGEPAGE);
    span_class = p + REGION_BYTES;
    region = p;
}

void hth_mem_hoard(bool on)
{
#ifdef KEEP_NO_BLOCKS
    on = false; /* a kept block would hide a use after free */
#endif
    if (on && region == NULL)
        region_make();
    hoard.on = on && region != NULL;
}

size_t hth_mem_hoard_bytes(void)
{
    return HTH_MIN(__atomic_load_n(&region_used, __ATOMIC_RELAXED), REGION_BYTES);
}

/* A zeroed block for a class whose shelf is empty; pages from the kernel are zero already. NULL: no
 * memory. */
static __attribute__((noinline)) void *shelf_refill(struct shelf *s, uint32_t class)
{
    size_t size = class_bytes(class);
    void *p = NULL;
    if (__atomic_load_n(&returned[class], __ATOMIC_RELAXED) != NULL)
        p = __atomic_exchange_n(&returned[class], NULL, __ATOMIC_ACQUIRE);
    if (p != NULL) {
        memcpy(&s->free, p, sizeof(void *));
        return memset(p, 0, size);
    }
    if (s->at == s->end) {
        size_t at = __atomic_fetch_add(&region_used, SPAN_BYTES, __ATOMIC_RELAXED);
        if (at >= REGION_BYTES)
            return calloc(1, size);
        span_class[at / SPAN_BYTES] = (uint8_t) class;
        s->at = region + at;
        s->end = s->at + SPAN_BYTES / size * size;
    }
    p = s->at;
    s->at += size;
    return p;
}

static struct shelf *shelf_of(size_t bytes)
{
    return &hoard.shelf[class_of(bytes)];
}

/* NULL: the shelf is empty. */
static void *shelf_take(struct shelf *s)
{
    void *p = s->free;
    if (p != NULL)
        memcpy(&s->free, p, sizeof(void *));
    return p;
}

/* Not zeroed. */
static void *take(size_t bytes)
{
    if (!hoard.on || bytes > HOARD_BYTES)
        return malloc(bytes);
    struct shelf *s = shelf_of(bytes);
    void *p = shelf_take(s);
    return p != NULL ? p : shelf_refill(s, (uint32_t)(s - hoard.shelf));
}

static bool is_hoarded(const void *p)
{
    return region != NULL && (uintptr_t)p - (uintptr_t)region < REGION_BYTES;
}

static uint32_t class_at(const void *p)
{
    return span_class[((uintptr_t)p - (uintptr_t)region) / SPAN_BYTES];
}

static void give(void *p)
{
    if (!is_hoarded(p)) {
        free(p);
        return;
    }
    uint32_t class = class_at(p);
    if (hoard.on) {
        memcpy(p, &hoard.shelf[class].free, sizeof(void *));
        hoard.shelf[class].free = p;
        return;
    }
    void *first = __atomic_load_n(&returned[class], __ATOMIC_RELAXED);
    do {
        memcpy(p, &first, sizeof(void *));
    } while (!__atomic_compare_exchange_n(&returned[class], &first, p, true, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED));
}

static void *zeroed(size_t count, size_t size)
{
    size_t bytes;
    void *p;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes == 0 ||
        bytes > (hoard.on ? HOARD_BYTES : SMALL_BYTES))
        return calloc(count > 0 ? count : 1, size > 0 ? size : 1);
    if (hoard.on) {
        struct shelf *s = shelf_of(bytes);
        p = shelf_take(s);
        if (p == NULL)
            return shelf_refill(s, (uint32_t)(s - hoard.shelf));
    } else {
        /* glibc's malloc uses its cache of small freed blocks; its calloc does not. */
        p = malloc(bytes);
        __asm__ volatile("" : "+r"(p)); /* keeps the compiler from making it a calloc */
        if (p == NULL)
            return NULL;
    }
    return memset(p, 0, bytes);
}

/* NULL: no memory, and `old` is unchanged. */
static void *resized(void *old, size_t bytes)
{
    bytes = bytes > 0 ? bytes : 1;
    if (old == NULL)
        return take(bytes);
    if (!is_hoarded(old))
        return realloc(old, bytes);
    size_t had = class_bytes(class_at(old));
    if (bytes <= had)
        return old;
    void *p = take(bytes);
    if (p != NULL) {
        memcpy(p, old, had);
        give(old);
    }
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
    give(p);
}

void *hth_try_calloc(size_t count, size_t size)
{
    if (injected_failure())
        return NULL;
    return zeroed(count, size);
}

void *hth_try_alloc(size_t bytes)
{
    return injected_failure() ? NULL : take(bytes);
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
    /* Huge pages take 11-26 % off the time of small batches over large weights; if the kernel
     * refuses, only that gain is lost. */
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

/* ---- short-lived blocks -------------------------------------------------------------------- */

/* Size classes have four steps per power of two, so at most a fifth of a block is unused, and
 * untouched pages cost nothing. An atomic exchange takes a block out of a slot, and a compare and
 * swap puts one in: the thread that took the pointer owns the block, so no lock is needed. */
#define BLOCK_SHIFT_MIN 16
#define BLOCK_SHIFT_MAX 27
#define BLOCK_CLASSES   ((BLOCK_SHIFT_MAX - BLOCK_SHIFT_MIN) * 4)
#define BLOCK_SLOTS     64 /* a round of averaging in large groups frees this many at once */

static void *block_slot[BLOCK_CLASSES][BLOCK_SLOTS];
static size_t block_bytes_kept;

/* The class whose blocks hold that many bytes, and its block size; -1: such blocks are not kept. */
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
        if (__atomic_load_n(&block_slot[class][i], __ATOMIC_RELAXED) == NULL)
            continue;
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
