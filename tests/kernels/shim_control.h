/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shim_control.h: the test's side of the shim (C and C++): its driver table, whose device memory is
 * an arena of this process that can be closed to all but kernels and copies.
 */
#ifndef HTH_TESTS_KERNELS_SHIM_CONTROL_H
#define HTH_TESTS_KERNELS_SHIM_CONTROL_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct hth_gpu hth_gpu_shim;

/* Sets the seed of the order in which blocks and warps run. */
void hth_shim_seed(uint64_t seed);
/* The reason of the last failed launch. */
const char *hth_shim_failure(void);

/* The number of barriers of the kernels' source that were reached so far, numbered in that order;
 * their file and line; and how often a thread reached them. */
uint32_t hth_shim_barriers(void);
const char *hth_shim_barrier_name(uint32_t barrier);
uint64_t hth_shim_barrier_reached(uint32_t barrier);
/* Makes threads run past that barrier; -1: past none. */
void hth_shim_leave_out(int barrier);

/* On: device memory is unreadable outside of kernels and copies; an access gets SIGSEGV. */
void hth_shim_guard(bool on);
/* Sets whether the matrix products compute bias and GELU; else the back end's own kernels do. */
void hth_shim_fuse(bool on);
/* Sets whether TF32 truncates its operands; by default it rounds to nearest, like cards. */
void hth_shim_cut(bool on);
/* Sets whether the library has products for many blocks at once; the number of such calls so
 * far. */
void hth_shim_batch(bool on);
uint32_t hth_shim_many(void);
/* Recordings: during one, work given to a stream is kept instead of run; `drop` frees `arg`. */
bool hth_shim_recording(void);
void hth_shim_record(int (*run)(void *arg), void *arg, void (*drop)(void *arg));
/* Sets whether recordings succeed (default: yes); the number of graph launches. */
void hth_shim_graphs(bool on);
uint32_t hth_shim_graph_launches(void);
/* Called around kernels. */
void hth_shim_memory(bool open);

#ifdef __cplusplus
}
#endif

#endif
