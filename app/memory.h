/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h: how much memory this process may use: the least of the machine's, of its control
 * groups' limits (v1 and v2, those of all parents), and of what RLIMIT_AS leaves beside the address
 * space in use. A container or a service has less than its machine, and is killed when it takes
 * more.
 *
 * Main thread, at the start.
 */
#ifndef HTH_APP_MEMORY_H
#define HTH_APP_MEMORY_H

#include "core/base.h"

/* Bytes; 0: nothing says. */
int64_t hth_memory_bytes(void);

/* The same of files below `root` ("" for the real ones): /proc/self/cgroup and /sys/fs/cgroup. */
int64_t hth_memory_cgroup_bytes(const char *root);

#endif
