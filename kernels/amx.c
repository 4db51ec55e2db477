/* SPDX-License-Identifier: Apache-2.0 */
/* amx.c: asks the processor and then the kernel for the tiles of AMX. */
#define _GNU_SOURCE /* syscall */
#include "kernels/amx.h"

#include <stdatomic.h>

#include "kernels/isa.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REQUEST_STATE 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_DATA     18     /* the state's number; 17 is the configuration */
#define LEAF7_BF16    (1u << 22)
#define LEAF7_TILE    (1u << 24)

static bool has_tiles(void)
{
    unsigned a, b, c, d = 0;
    return hth_isa_runs("avx512bf16") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (d & LEAF7_TILE) != 0 && (d & LEAF7_BF16) != 0;
}

/* True if the system saves both states. It saves some, because AVX-512 runs. */
static bool saves_tiles(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> (TILE_DATA - 1) & 3) == 3;
}

static enum hth_amx ask(void)
{
    if (!has_tiles())
        return HTH_AMX_NO_HARDWARE;
    return saves_tiles() && syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0
               ? HTH_AMX_RUNS
               : HTH_AMX_NO_PERMISSION;
}
#else
static enum hth_amx ask(void)
{
    return HTH_AMX_NO_HARDWARE;
}
#endif

/* Threads that race here ask the same and get the same answer. */
enum hth_amx hth_amx_ask(void)
{
    static atomic_int known; /* the answer + 1 */
    int answer = atomic_load(&known);
    if (answer == 0) {
        answer = (int)ask() + 1;
        atomic_store(&known, answer);
    }
    return (enum hth_amx)(answer - 1);
}
