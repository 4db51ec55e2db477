/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h: where arithmetic runs.
 *
 * A back end is a table of operations for one kind of device: `ref` (plain loops, bit-reproducible
 * on any x86-64, the arbiter of the others), `packed` (our own kernels over weights that are kept
 * packed: packed.h) and `blas` (OpenBLAS, loaded at run time, one thread per call). A CUDA plug-in
 * fits the same table. Everything above kernels/ calls the operations through ops.h, blocks.h and
 * optim.h and never sees the table.
 *
 * The *compute type* belongs to the back end: `packed` multiplies fp32 numbers, `packed-bf16`
 * rounds the operands of matrix products to bf16 and sums in fp32. Views, values, gradients and
 * states are fp32 with both. A trunk and its experts may sit on different back ends of one process.
 *
 * An *execution context* (hth_exec) is one caller's state on a back end: its scratch memory and, on
 * a device, its stream. One thread uses it at a time; any number of contexts run side by side.
 * Scratch is sized ahead (blocks.h and ops.h have the queries), so that no step allocates; an
 * operation that finds too little returns E_NO_MEMORY and writes nothing. On a device, operations
 * return at once: hth_exec_sync makes results valid and returns errors. On a CPU it has nothing to
 * do, but callers call it there, too.
 *
 * A *view* says where a matrix of activations lies: plain, passed by value, borrowed. Its data is
 * memory of the back end: on the CPU any pointer will do, and rows that start on 64 bytes are
 * faster.
 *
 * The bit rule: each row of an operation that works by rows (all but those that reduce over rows,
 * such as weight gradients) gets the same bits in any batch. The rule holds per back end
 * on one machine; between back ends only tolerances hold.
 */
#ifndef HTH_KERNELS_BACKEND_H
#define HTH_KERNELS_BACKEND_H

#include "core/base.h"
#include "core/team.h"
#include "core/tensor.h"

struct hth_backend;
struct hth_exec;

/* Capabilities of a back end. */
#define HTH_CAP_HOST_MEMORY   1u /* its memory is plain memory of this process */
#define HTH_CAP_REPRODUCIBLE  2u /* the same bits on every machine of this architecture */
#define HTH_CAP_ROW_INVARIANT 4u /* the bit rule above holds */
#define HTH_CAP_DENSE         8u /* masks (mask.h), GEGLU, layer scale, tied outputs */

/* A matrix of `rows` x `cols` elements; row r starts at data + r * ld elements (ld >= cols). */
struct hth_view {
    void *data;
    enum hth_dtype dtype;
    uint32_t rows, cols, ld;
};

static inline struct hth_view hth_view_f32(float *data, uint32_t rows, uint32_t cols, uint32_t ld)
{
    return (struct hth_view){data, HTH_F32, rows, cols, ld};
}

static inline struct hth_view hth_view_i32(int32_t *data, uint32_t rows)
{
    return (struct hth_view){data, HTH_I32, rows, 1, 1};
}

/* No view: for the optional views of an operation. */
#define HTH_VIEW_NONE ((struct hth_view){NULL, HTH_F32, 0, 0, 0})

/* A leading dimension for `cols` floats that starts every row on 64 bytes and is no multiple of
 * 4 KiB, where the rows of a tile would fall into the same few cache sets. */
uint32_t hth_ld_f32(uint32_t cols);

/* -- back ends ----------------------------------------------------------------------------- */

struct hth_blas_options {
    const char *library;   /* NULL: libopenblas.so.0 */
    const char *core_type; /* NULL: the fastest of OpenBLAS's core types that keeps the bit rule */
};
#define HTH_BLAS_OPTIONS_INIT ((struct hth_blas_options){0})

/* The reference back end; every build has it. */
const struct hth_backend *hth_backend_ref(void);

/* Loads OpenBLAS once per process; later calls give the same back end and ignore the options. It
 * sets OPENBLAS_NUM_THREADS=1 and OPENBLAS_CORETYPE in the environment before loading, because
 * OpenBLAS reads them while it is loaded: call it before other threads that use the environment
 * run. It uses a core type only after a self-check: rows of batches of 1 to 61, bit for bit.
 * Errors: E_UNSUPPORTED (no library, or no core type that keeps the bit rule); hth_backend_list
 * has the reason. Safe to call from several threads. */
enum hth_err hth_backend_blas(const struct hth_blas_options *options,
                              const struct hth_backend **out) HTH_MUST;

/* The type to which operands of matrix products are rounded; sums are always fp32. */
enum hth_matmul {
    HTH_MATMUL_AUTO, /* bf16 where the CPU has an instruction for it, else fp32: programs ask
                      * cli/quicker.h, which measures whether that is quicker */
    HTH_MATMUL_F32,
    HTH_MATMUL_BF16,
    HTH_MATMUL_TF32, /* of cards: fp32 with 10 bits of mantissa */
};

struct hth_packed_options {
    /* A name of kernels/isa.h; NULL: the best of this CPU. For tests: kernels/ does not read the
     * environment; a caller with a variable (HEARTH_ISA) passes its value. */
    const char *isa;
    enum hth_matmul compute;
};
#define HTH_PACKED_OPTIONS_INIT ((struct hth_packed_options){.compute = HTH_MATMUL_F32})

/* The packed kernels of one instruction set. bf16 needs "amxbf16" or "avx512bf16";
 * "generic" computes it, slowly, only when named here; each rounds differently within the sum. AMX
 * is asked for here: call it before threads start (kernels/amx.h). Errors: E_UNSUPPORTED (this CPU
 * lacks the instructions, or the set lacks the type), E_NO_DEVICE (no such set). Safe to call from
 * several threads. */
enum hth_err hth_backend_packed(const struct hth_packed_options *options,
                                const struct hth_backend **out) HTH_MUST;

/* Every packed back end that this CPU runs, bf16 in plain C included: for tests and measurements.
 * Returns their number. */
#define HTH_PACKED_MAX 8
size_t hth_backend_packed_all(const struct hth_backend *out[HTH_PACKED_MAX]);

struct hth_backend_choice {
    const char *name; /* NULL or "auto": the fastest CPU back end that works; "packed", "blas",
                       * "ref"; "cuda", "cuda:1": a card (plugin.h) */
    enum hth_matmul compute;
    const char *isa; /* of "packed"; NULL: the best */
};
/* The back end of a run file or command line. "packed-bf16" is short for "packed" with
 * HTH_MATMUL_BF16. Errors: E_NO_DEVICE (no such name), E_UNSUPPORTED (bf16 from a back end or CPU
 * that does not do it), and those of the back end. */
enum hth_err hth_backend_choose(const struct hth_backend_choice *choice,
                                const struct hth_backend **out) HTH_MUST;

/* The same with HTH_MATMUL_F32 (but for "packed-bf16"), which every back end can. */
enum hth_err hth_backend_by_name(const char *name, const struct hth_backend **out) HTH_MUST;

struct hth_backend_info {
    const char *name;
    bool usable;
    char detail[160]; /* the library and core type, or the reason why it is not usable */
};

/* All back ends of this build, usable or not; loads their libraries to find out. Fills at most
 * `max` entries and returns their number. */
size_t hth_backend_list(struct hth_backend_info *out, size_t max);

const char *hth_backend_name(const struct hth_backend *be);
/* The number of contexts that can usefully work side by side: two on a card, one that computes and
 * one whose copies run meanwhile; UINT32_MAX on the CPU, where the threads are the limit. */
uint32_t hth_backend_jobs(const struct hth_backend *be);
/* The number of the card that computes, the same for all back ends of one card; its jobs belong to
 * that card's lane (core/env.h). -1: the CPU. */
int hth_backend_card(const struct hth_backend *be);
/* The number of rows to which a batch is best padded with zeros; `unit` rows belong together (a
 * sequence; else 1). A card has few sizes, four between a number and its double up to 512 rows and
 * multiples of 64 above, so that calls repeat and their recorded graphs are reused. The CPU pads
 * nothing. */
uint32_t hth_backend_padded(const struct hth_backend *be, uint32_t rows, uint32_t unit);
/* HTH_CAP_ bits. */
uint32_t hth_backend_caps(const struct hth_backend *be);
/* Never HTH_MATMUL_AUTO. */
enum hth_matmul hth_backend_compute(const struct hth_backend *be);
/* "fp32", "bf16", "tf32" or "auto": the spelling of run files and flags. */
const char *hth_matmul_name(enum hth_matmul compute);
/* The type for a matrix that is only an operand of products: HTH_BF16 where products round their
 * operands to it (half the memory, and no bit of a product changes), else HTH_F32. */
enum hth_dtype hth_backend_operand(const struct hth_backend *be);
/* The instruction set of a packed back end; "" for others. */
const char *hth_backend_isa(const struct hth_backend *be);

/* -- memory -------------------------------------------------------------------------------- */

/* 64-byte aligned (large ones in huge pages), not zeroed. NULL when memory is gone. */
void *hth_backend_alloc(const struct hth_backend *be, size_t bytes) HTH_MUST;
void hth_backend_free(const struct hth_backend *be, void *p);

/* -- execution contexts -------------------------------------------------------------------- */

/* Errors: E_NO_MEMORY. */
enum hth_err hth_exec_new(const struct hth_backend *be, size_t scratch_bytes,
                          struct hth_exec **out) HTH_MUST;
void hth_exec_free(struct hth_exec *ex);
const struct hth_backend *hth_exec_backend(const struct hth_exec *ex);

/* The team that helps inside this context's operations; borrowed; NULL, the default: none. Results
 * do not depend on it. */
void hth_exec_set_team(struct hth_exec *ex, struct hth_team *team);

/* Grows the scratch to at least that many bytes; between steps only. Errors: E_NO_MEMORY. */
enum hth_err hth_exec_reserve(struct hth_exec *ex, size_t scratch_bytes) HTH_MUST;

/* Waits for all operations of this context. Errors: the first since the last sync. */
enum hth_err hth_exec_sync(struct hth_exec *ex) HTH_MUST;

/* The device's clock: puts the first or the last stamp into the context's stream; after a sync,
 * stamped_us returns the time between the two. Errors: E_UNSUPPORTED (this back end has no clock:
 * the caller uses its own), E_DEVICE. */
enum hth_err hth_exec_stamp(struct hth_exec *ex, bool last) HTH_MUST;
enum hth_err hth_exec_stamped_us(struct hth_exec *ex, double *us) HTH_MUST;

/* Scratch is a stack: take returns bytes (64-byte aligned; NULL when too few are left), and release
 * gives back all bytes taken since a mark. */
void *hth_exec_take(struct hth_exec *ex, size_t bytes) HTH_MUST;
size_t hth_exec_mark(const struct hth_exec *ex);
void hth_exec_release(struct hth_exec *ex, size_t mark);
/* The bytes that a take of `bytes` uses up, alignment included. */
size_t hth_exec_cost(size_t bytes);

/* Calls fn(sub, arg, i) for every i < count, over the context's team. sub is a context like this
 * one with at least `scratch_bytes` of scratch and the same team, so that idle threads can help
 * inside the last calls. The calls are independent: they may run in any order and side by side. All
 * are made, even after an error; the function returns the error of the lowest i that failed. The
 * context's own scratch must have hth_exec_each_bytes left: else E_NO_MEMORY, and no call. */
typedef enum hth_err hth_exec_fn(struct hth_exec *sub, void *arg, uint32_t i);
enum hth_err hth_exec_each(struct hth_exec *ex, uint32_t count, size_t scratch_bytes,
                           hth_exec_fn *fn, void *arg) HTH_MUST;
size_t hth_exec_each_bytes(const struct hth_exec *ex, uint32_t count, size_t scratch_bytes);

/* Copies between this process's memory and the back end's, in the order of the context's
 * operations. */
enum hth_err hth_exec_upload(struct hth_exec *ex, void *device, const void *host,
                             size_t bytes) HTH_MUST;
enum hth_err hth_exec_download(struct hth_exec *ex, void *host, const void *device,
                               size_t bytes) HTH_MUST;

#endif
