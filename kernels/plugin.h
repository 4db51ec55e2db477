/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h: back ends in files of their own, loaded when their kind of device is first needed.
 *
 * The program is not linked with CUDA. The first hth_backend_choose with a name such as "cuda" or
 * "cuda:1", or the first list of devices, searches `hearth-cuda.so` in the folders that the app
 * names, in their order. A missing file, driver, library or card is no fault of the program:
 * E_NO_DEVICE or E_UNSUPPORTED and one line with the reason; the CPU's back ends work without it.
 *
 * A plug-in is accepted only when its ABI number and the sizes of the shared structs are those of
 * this build: they change together, so program and plug-in come from one build. It is never
 * unloaded: a driver leaves threads behind.
 *
 * Back ends live as long as the process. Any thread, except for the three setters, which come
 * before the first use.
 */
#ifndef HTH_KERNELS_PLUGIN_H
#define HTH_KERNELS_PLUGIN_H

#include "core/limits.h"
#include "kernels/backend.h"

#define HTH_PLUGIN_FILE "hearth-cuda.so"
#define HTH_DEVICES_MAX HTH_CARDS_MAX
#define HTH_FOLDERS_MAX 8

/* A device, or (index < 0) a kind without any device. */
struct hth_device_info {
    char kind[8]; /* "cuda" */
    int index;
    char name[96];
    char driver[32]; /* "" where there is none */
    uint64_t memory_bytes;
    bool usable;
    char why[200]; /* the reason, if not usable */
};

/* Sets the folders to search; copied. Call it before the first use; later calls change nothing. At
 * most HTH_FOLDERS_MAX folders, more are ignored; NULL and "" are skipped. */
void hth_plugins_search(const char *const *folders, size_t count);

/* Limits the memory used of each card that is opened later; 0, the default: all that is free. */
void hth_plugins_limit(uint64_t bytes);

/* Sets the one folder to search for a card's libraries (cuBLAS); NULL or "", the default: the
 * folders of the system's loader, then the toolkit's usual folder. Copied. Call it before the first
 * use; later calls change nothing. */
void hth_plugins_libraries(const char *folder);

/* Every device of every kind; a kind without any has one entry with the reason. Fills at most `max`
 * entries and returns their number. */
size_t hth_devices_list(struct hth_device_info *out, size_t max);

/* The memory of a card that weights may use, and the part of it that one expert needs while it is
 * there: values, gradients and `states` moments in fp32, with `bf16` another copy of the values,
 * each in whole pages of 2 MiB. HTH_DEVICE_RESERVE is left to the driver, the GEMM library and
 * batches (on a card of less than twice that, half). A host may have more experts than fit: they
 * are evicted and fetched. */
#define HTH_DEVICE_RESERVE ((uint64_t)1536 << 20)
uint64_t hth_device_weights_bytes(uint64_t memory_bytes);
uint64_t hth_device_expert_bytes(uint64_t parameters, uint32_t states, bool bf16);

/* "cuda" (the first), "cuda:0" ... "cuda:15". AUTO: bf16 where the card multiplies it natively.
 * `why` gets the reason of a failure. Errors: E_NO_DEVICE (bad name, no plug-in, no such card),
 * E_UNSUPPORTED (a type that the card lacks, a library that is missing), E_DEVICE (the card does
 * not answer). */
enum hth_err hth_plugin_backend(const char *name, enum hth_matmul compute,
                                const struct hth_backend **out, char *why,
                                size_t why_size) HTH_MUST;
/* True if the name begins with that of a plug-in's device, "cuda". */
bool hth_plugin_knows(const char *name);

#endif
