/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h: back ends that come as files, loaded when somebody asks for their kind of device.
 *
 * The program has no CUDA in it: `hearth-cuda.so` is looked for in the folders that the app names,
 * in their order, the first time a name such as "cuda" or "cuda:1" is given to hth_backend_choose
 * or devices are listed. A missing file, driver, library or card is an answer like others:
 * E_NO_DEVICE or E_UNSUPPORTED and one line that says why; the CPU's back ends work all the same.
 *
 * A plug-in is believed only when its ABI number and the sizes of the shared structs are those of
 * this build: they change together, so program and plug-in come from one build. It is never
 * unloaded: a driver leaves threads behind.
 *
 * Back ends live as long as the process. Any thread, but for hth_plugins_search.
 */
#ifndef HTH_KERNELS_PLUGIN_H
#define HTH_KERNELS_PLUGIN_H

#include "core/limits.h"
#include "kernels/backend.h"

#define HTH_PLUGIN_FILE "hearth-cuda.so"
#define HTH_DEVICES_MAX HTH_CARDS_MAX
#define HTH_FOLDERS_MAX 8

/* A device that was found, or (index < 0) a kind of which there is none. */
struct hth_device_info {
    char kind[8]; /* "cuda" */
    int index;
    char name[96];
    char driver[32]; /* "" where there is none */
    uint64_t memory_bytes;
    bool usable;
    char why[200]; /* of one that is not used */
};

/* Where to look; copied. Called before the first use; later calls change nothing. At most
 * HTH_FOLDERS_MAX folders, the others are left out; NULL and "" are skipped. */
void hth_plugins_search(const char *const *folders, size_t count);

/* How much of a card's memory is used, at most; 0 (as made): what is free. Of cards that are opened
 * later. */
void hth_plugins_limit(uint64_t bytes);

/* The folder where a card's libraries (cuBLAS) are, and nowhere else; NULL or "" (as made): where
 * the system's loader looks, then in the toolkit's usual folder. Copied. Called before the first
 * use; later calls change nothing. */
void hth_plugins_libraries(const char *folder);

/* Every device of every kind; a kind without any takes one entry that says why. Fills at most `max`
 * entries and returns how many. */
size_t hth_devices_list(struct hth_device_info *out, size_t max);

/* How many experts are in a card's memory at the same time, of so many parameters each: values,
 * gradients and `states` moments in fp32, with `bf16` another copy of the values, each of them in
 * whole pages of 2 MiB, and HTH_DEVICE_RESERVE left to the driver, the GEMM library and batches (on
 * a card of less than twice that, half). A host may have more experts than that: they come and
 * go. */
#define HTH_DEVICE_RESERVE ((uint64_t)1536 << 20)
uint64_t hth_device_weights_bytes(uint64_t memory_bytes);
uint64_t hth_device_expert_bytes(uint64_t parameters, uint32_t states, bool bf16);

/* "cuda" (the first), "cuda:0" ... "cuda:15". AUTO: bf16 where the card multiplies it natively.
 * `why` gets one line when it fails. Errors: E_NO_DEVICE (bad name, no plug-in, no such card),
 * E_UNSUPPORTED (a type that the card lacks, a library that is missing), E_DEVICE (it does not
 * answer). */
enum hth_err hth_plugin_backend(const char *name, enum hth_matmul compute,
                                const struct hth_backend **out, char *why,
                                size_t why_size) HTH_MUST;
/* Whether the name is that of a plug-in's device, whatever stands after "cuda". */
bool hth_plugin_knows(const char *name);

#endif
