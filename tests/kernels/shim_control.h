/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shim_control.h: the shim as tests see it (C and C++): its driver table, whose device memory is
 * an arena of this process that can be closed to everybody but kernels and copies.
 */
#ifndef HTH_TESTS_KERNELS_SHIM_CONTROL_H
#define HTH_TESTS_KERNELS_SHIM_CONTROL_H

#include "kernels/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct hth_gpu hth_gpu_shim;

/* Of the order in which blocks and warps run. */
void hth_shim_seed(uint64_t seed);
/* What was wrong with the launch that failed last. */
const char *hth_shim_failure(void);

/* The barriers of the kernels' source that were reached so far, numbered as they were reached
 * first, with their file and line, and how often a thread came there. */
uint32_t hth_shim_barriers(void);
const char *hth_shim_barrier_name(uint32_t barrier);
uint64_t hth_shim_barrier_reached(uint32_t barrier);
/* Threads run past that one from now on; -1: past none. */
void hth_shim_leave_out(int barrier);

/* On: device memory is unreadable outside of kernels and copies; who touches it gets SIGSEGV. */
void hth_shim_guard(bool on);
/* Whether the matrix products do bias and GELU themselves; else the back end's own kernels do. */
void hth_shim_fuse(bool on);
/* Whether TF32 cuts its operands off (as made: it rounds them to the nearest, as cards do). */
void hth_shim_cut(bool on);
/* Whether the library has products for many blocks at once; how many it was asked for so far. */
void hth_shim_batch(bool on);
uint32_t hth_shim_many(void);
/* Recordings: what is given to a stream while one is made is kept instead; `drop` frees `arg`. */
bool hth_shim_recording(void);
void hth_shim_record(int (*run)(void *arg), void *arg, void (*drop)(void *arg));
/* Whether recordings end well (as made: yes), and how often graphs were launched. */
void hth_shim_graphs(bool on);
uint32_t hth_shim_graph_launches(void);
/* Called around kernels. */
void hth_shim_memory(bool open);

#ifdef __cplusplus
}
#endif

#endif
