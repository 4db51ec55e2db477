/* SPDX-License-Identifier: Apache-2.0 */
/* isa.c: finds the CPU's instruction sets. */
#include "kernels/isa.h"

#include <string.h>

#include "kernels/amx.h"

const char *hth_isa_name(size_t i)
{
    static const char *const names[] = {"generic", "avx2", "avx512", "avx512bf16", "amxbf16"};
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
    if (strcmp(name, "amxbf16") == 0)
        return hth_amx_ask() == HTH_AMX_RUNS;
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

const char *hth_isa_why_not(const char *name)
{
    if (hth_isa_runs(name))
        return NULL;
    if (strcmp(name, "amxbf16") == 0 && hth_amx_ask() == HTH_AMX_NO_PERMISSION)
        return "not offered: the processor has AMX tiles, but the kernel does not let this process "
               "use them (Linux before 5.16, a container, seccomp or a virtual machine)";
    return "not offered: this processor lacks the instructions";
}
