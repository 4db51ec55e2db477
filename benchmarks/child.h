/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h: a child process that answers lines: another program's side of a benchmark.
 *
 * It works only while it is asked to, so the two sides never share a core. It leads a process group
 * of its own, which ends with it.
 */
#ifndef HTH_BENCHMARKS_CHILD_H
#define HTH_BENCHMARKS_CHILD_H

#include "core/base.h"

#include <sys/types.h>

struct hth_bench_child {
    pid_t pid;
    int to, from;
    bool dead; /* it ended, or did not answer in time */
};

/* Starts argv (NULL at its end; argv[0] is looked up in the path). Its standard error goes to the
 * file `log`. False: it could not be started; end it all the same. */
bool hth_bench_child_start(struct hth_bench_child *c, const char *const *argv, const char *log);
/* False: it is dead. */
bool hth_bench_child_say(struct hth_bench_child *c, const char *line);
/* One line without its end, cut at `size`. False at the end of its output, or when no byte came for
 * limit_us; the child is dead then, and `line` holds what came. */
bool hth_bench_child_hear(struct hth_bench_child *c, char *line, size_t size, int64_t limit_us);
/* Closes its input, gives it a moment to end by itself, then kills its group. */
void hth_bench_child_end(struct hth_bench_child *c);

#endif
