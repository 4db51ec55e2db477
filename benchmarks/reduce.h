/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * reduce.h: the protocol between the processes of `hearth bench allreduce`, and the floor.
 *
 * The parent starts n copies of this program with --as-member, each a process with its own key,
 * endpoint, reducer and one compute thread, and exchanges lines with them over pipes:
 *
 *     parent sends                              member answers
 *     (nothing)                                 hello ID PORT FLOOR_PORT
 *     group SELF N ID:PORT:FLOOR_PORT ...       ok, connected to all
 *     prepare BYTES FORMAT SEED                 ready
 *                  rounds N                              done NS CPU_NS BYTES DROPPED LONGEST_NS
 *                  check                                 error RELATIVE
 *                  floor BYTES N                         done NS CPU_NS 0 0 0
 *     and ends with its input.
 *
 * `rounds N` is one round that is not counted, in which the members meet, and N that are, one after
 * the other without a word from outside; NS is the time of those N, CPU_NS what the
 * process computed meanwhile, LONGEST_NS the longest of them. The floor moves as many bytes between
 * each two members through plain TCP sockets, all at once, out of one vector and into another,
 * without arithmetic, encryption or frames.
 */
/* clang-format on */
#ifndef HTH_BENCHMARKS_REDUCE_H
#define HTH_BENCHMARKS_REDUCE_H

#include "core/base.h"

#define HTH_BENCH_MEMBERS_MAX 16

/* ---- one member ---------------------------------------------------------------------------- */

/* Returns an exit code. */
int hth_bench_member_main(bool plain);

/* ---- the floor ----------------------------------------------------------------------------- */

struct hth_bench_floor;

/* Listens on loopback; *port is the one. Errors: E_IO. */
enum hth_err hth_bench_floor_new(struct hth_bench_floor **out, uint16_t *port) HTH_MUST;
/* Connects all to all: dials those before `self`, accepts those behind. Errors: E_IO. */
enum hth_err hth_bench_floor_join(struct hth_bench_floor *f, uint32_t self, uint32_t n,
                                  const uint16_t *ports) HTH_MUST;
/* `bytes` to each of the others and as many from each. Errors: E_IO, E_NO_MEMORY. */
enum hth_err hth_bench_floor_run(struct hth_bench_floor *f, uint64_t bytes) HTH_MUST;
void hth_bench_floor_free(struct hth_bench_floor *f);

#endif
