/* SPDX-License-Identifier: Apache-2.0 */
/*
 * monitor.h: the parts of `hearth bench monitor`.
 *
 *   monitor.c        the question: sizes, figures, the run with and without a monitor
 *   monitor_made.c   a process that serves the page of a made-up run, from answers like those of
 *                    500 peers, and 90 days of history on disk; its memory is the figure
 *   monitor_load.c   readers of a page from as many addresses, some of them slow
 *
 * Main thread; calls block.
 */
#ifndef HTH_BENCHMARKS_MONITOR_H
#define HTH_BENCHMARKS_MONITOR_H

#include "core/base.h"

struct hth_addr;

#define HTH_BENCH_MADE_EXPERTS 10000
#define HTH_BENCH_MADE_PEERS   500

/* Serves it on a loopback address, in turns of a second; prints "PORT" once everything is there,
 * and ends with its input. `dir`: for the history. Returns an exit code. */
int hth_bench_monitor_made(const char *dir);

struct hth_bench_readers {
    uint32_t readers, slow; /* slow ones among them */
    double seconds;
};

struct hth_bench_read {
    uint64_t answers, failed; /* of honest readers */
    double p50_ms, p99_ms;
};

/* Each honest reader asks for run.json, and then for now.json each second; a slow one sends a
 * request byte by byte, or does not read its answer. False: sockets could not be made. */
bool hth_bench_read(uint16_t port, const struct hth_bench_readers *how, struct hth_bench_read *out);
/* Opens so many connections that ask nothing; returns how many stay open, and closes them. */
uint32_t hth_bench_crowd(uint16_t port, uint32_t sockets, uint32_t *opened);
/* The body of one GET, as it travels compressed: its bytes; 0: no answer of status 200. */
size_t hth_bench_get(uint16_t port, const char *path);

/* Readers of a page in a browser: `count` connections that listen to events and ask for now.json
 * with each, until stopped. NULL: sockets could not be made. */
struct hth_bench_browsers;
struct hth_bench_browsers *hth_bench_browsers_new(uint16_t port, uint32_t count);
void hth_bench_browsers_free(struct hth_bench_browsers *b);

#endif
