/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h: chooses the device and the type in which a verb computes, by its options, the run file
 * and the environment.
 *
 * --compute overrides the run file's `compute`. `auto` is the type that is quicker on this
 * processor (cli/quicker.h), and one line says which and why. HEARTH_ISA (generic, avx2, avx512,
 * avx512bf16, amxbf16) restricts the packed kernels and the number formats to one instruction set,
 * for tests and comparisons; an empty value counts as not set.
 *
 * --device is cuda (the first card), cuda:N, or cpu; a host accepts several: cuda:0,cuda:1. The
 * plug-in that finds cards is searched in the folders of HEARTH_PLUGINS (':' between them), then
 * beside the program, then in the library folder. cuBLAS is searched in the folder HEARTH_CUBLAS
 * alone, if that is set. If a requested card can't be used, one line says why and the CPU computes.
 * --device-memory 6GiB bounds the memory used of each card, so that a desktop or another host can
 * share it.
 *
 * Main thread, at the start.
 */
#ifndef HTH_CLI_DEVICE_H
#define HTH_CLI_DEVICE_H

#include "core/base.h"
#include "kernels/backend.h"

struct hth_device_flags {
    const char *backend; /* NULL: auto */
    const char *compute; /* NULL: not given */
    const char *device;  /* NULL: cpu */
    bool memory;         /* --device-memory was given */
};

/* --backend, --compute, --device and --device-memory; its input is a struct hth_device_flags. */
extern const struct argp hth_device_argp;

/* `otherwise` is the type without --compute. Prints what is wrong and what to do. Errors:
 * E_NO_DEVICE, E_UNSUPPORTED. */
enum hth_err hth_device_choose(const struct hth_device_flags *flags, enum hth_matmul otherwise,
                               const struct hth_backend **out) HTH_MUST;
/* The same for a host, which deals its experts out to several cards. Prints a line for each card
 * that can't be used. Gives at least one back end: the CPU's if no card is left. */
#define HTH_DEVICE_CARDS_MAX 16
struct hth_device_set {
    const struct hth_backend *backend[HTH_DEVICE_CARDS_MAX];
    size_t count;
};
enum hth_err hth_device_choose_all(const struct hth_device_flags *flags, enum hth_matmul otherwise,
                                   struct hth_device_set *out) HTH_MUST;
/* Sets the folders of plug-ins. Call it before devices are listed or chosen. */
void hth_device_plugins(void);
/* HEARTH_ISA; NULL if it is not set or empty. */
const char *hth_device_isa(void);
/* "packed, avx512bf16, bf16": for reports. */
const char *hth_device_text(const struct hth_backend *backend, char out[64]);

#endif
