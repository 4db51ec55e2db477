/* SPDX-License-Identifier: Apache-2.0 */
/* isa.c: finds the CPU's instruction sets. */
#include "kernels/isa.h"

#include <string.h>

const char *hth_isa_name(size_t i)
{
    static const char *const names[] = {"generic", "avx2", "avx512", "avx512bf16"};
    return i < sizeof(names) / sizeof(names[0]) ? names[i] : NULL;
}

#ifdef __x86_64__
#include <cpuid.h>

static bool has_avx2(void)
{
    unsigned a, b, c = 0, d;
    /* The compilers' test lacks F16C. It checks that the system saves the registers. */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool runs_vectors(const char *name)
{
    if (strcmp(name, "avx2") == 0)
        return has_avx2();
    if (strcmp(name, "avx512") == 0)
        return has_avx512();
    return strcmp(name, "avx512bf16") == 0 && has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#else
static bool runs_vectors(const char *name)
{
    (void)name;
    return false;
}
#endif

bool hth_isa_runs(const char *name)
{
    return strcmp(name, "generic") == 0 || runs_vectors(name);
}
