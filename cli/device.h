/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h: where a process computes, and in which type: the flags, the run file's word, and the
 * environment's, put together in one place for every verb that computes.
 *
 * The flag --compute goes before the run file's `compute`. HEARTH_ISA (generic, avx2, avx512,
 * avx512bf16) holds the packed kernels and the number formats to one instruction set, for tests and
 * comparisons; empty is as if it were not set.
 *
 * --device cuda (the first card), cuda:N, or cpu; a host takes several: cuda:0,cuda:1. Cards are
 * looked for by a plug-in, in the folders of HEARTH_PLUGINS (':' between them), then beside the
 * program, then in the library folder; cuBLAS in the folder HEARTH_CUBLAS alone, if that is set. A
 * card that is asked for and can't be used costs one line that says why, and the CPU computes.
 * --device-memory 6GiB is the most that is taken of each card, which then also serves others: a
 * desktop, or another host.
 */
#ifndef HTH_CLI_DEVICE_H
#define HTH_CLI_DEVICE_H

#include "core/base.h"
#include "kernels/backend.h"

struct hth_device {
    const char *backend; /* NULL: auto */
    const char *compute; /* NULL: not said */
    const char *device;  /* NULL: cpu */
    bool memory;         /* --device-memory was given */
};

/* --backend, --compute, --device and --device-memory; its input is a struct hth_device. */
extern const struct argp hth_device_argp;

/* `otherwise` counts where the flag says nothing. Says on stderr what is wrong, and what to do.
 * Errors: E_NO_DEVICE, E_UNSUPPORTED. */
enum hth_err hth_device_choose(const struct hth_device *flags, enum hth_matmul otherwise,
                               const struct hth_backend **out) HTH_MUST;
/* The same for a host, whose experts are dealt out to all of several cards: at least one back end.
 * Cards that can't be used cost a line each; the CPU computes where none is left. */
#define HTH_DEVICE_CARDS_MAX 16
struct hth_device_set {
    const struct hth_backend *backend[HTH_DEVICE_CARDS_MAX];
    size_t count;
};
enum hth_err hth_device_choose_all(const struct hth_device *flags, enum hth_matmul otherwise,
                                   struct hth_device_set *out) HTH_MUST;
/* Says where plug-ins are: before devices are listed or chosen. */
void hth_device_plugins(void);
/* HEARTH_ISA; NULL where it is not set. */
const char *hth_device_isa(void);
/* "packed, avx512bf16, bf16": for reports. */
const char *hth_device_text(const struct hth_backend *backend, char out[64]);

#endif
