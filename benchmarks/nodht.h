/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodht.h: a directory without a DHT, filled by hand, to measure a trainer's use of known experts.
 * The DHT table below it answers nothing and counts requests.
 */
#ifndef HTH_BENCHMARKS_NODHT_H
#define HTH_BENCHMARKS_NODHT_H

#include "benchmarks/bench.h"
#include "core/dht.h"
#include "dht/directory.h"

struct hth_bench_nodht {
    struct hth_dht dht;
    struct hth_env *env;
    struct hth_directory *directory;
    uint64_t asked;
};

/* Opens a directory of one layer with every expert of the grid: each of `hosts` hosts has a run of
 * consecutive experts. Errors: those of the directory. */
enum hth_err hth_bench_nodht_open(struct hth_bench_nodht *n, const struct hth_grid *grid,
                                  uint32_t hosts) HTH_MUST;
/* Zeroed memory is fine. */
void hth_bench_nodht_close(struct hth_bench_nodht *n);
/* Gets, puts and watches that reached the table, plus those that the directory counts itself. */
uint64_t hth_bench_nodht_requests(const struct hth_bench_nodht *n);

#endif
