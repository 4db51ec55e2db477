/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h: a child process that answers lines, for another program's side of a benchmark.
 *
 * The child works only on request, so the two sides never share a core. It leads a process group of
 * its own, which ends with it, and with us however we end: a shell in the group, the keeper, reads
 * from a pipe that only we hold, and kills the group when that is closed.
 *
 * One thread; calls block.
 */
#ifndef HTH_BENCHMARKS_CHILD_H
#define HTH_BENCHMARKS_CHILD_H

#include "core/base.h"

#include <sys/types.h>

struct hth_bench_child {
    pid_t pid, keeper;
    int to, from, hold;
    bool dead; /* the child exited, or did not answer in time */
};

/* Starts argv (NULL at its end; argv[0] is searched in PATH). Its standard error goes to the file
 * `log`; NULL: to ours. False: it could not be started. End the child in both cases. */
bool hth_bench_child_start(struct hth_bench_child *c, const char *const *argv, const char *log);
/* Sends a line. False: the child is dead. */
bool hth_bench_child_say(struct hth_bench_child *c, const char *line);
/* Reads one line, without its newline and cut at `size`. False at the end of the output, or after
 * limit_us without a byte; the child is dead then, and `line` holds the bytes received. */
bool hth_bench_child_hear(struct hth_bench_child *c, char *line, size_t size, int64_t limit_us);
/* Closes the child's input, waits a moment for it to exit, then kills its process group. */
void hth_bench_child_end(struct hth_bench_child *c);

#endif
