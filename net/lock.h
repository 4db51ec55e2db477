/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h: one process per folder, told by a lock that the kernel holds for it.
 *
 * Two processes in one state folder have one key between them and overwrite each other's
 * checkpoints. So each takes the lock of a file there (flock) and keeps it until it ends, however
 * it ends: the kernel lets go of it with the process, and a file that is left means nothing. The
 * file says who took it last, for the message of the one that comes second; it is never removed,
 * because a third process might hold the lock of a file that has lost its name.
 *
 * Where the file can't be written, or the file system knows no locks, there is none and nothing is
 * refused: *out is NULL.
 */
#ifndef HTH_NET_LOCK_H
#define HTH_NET_LOCK_H

#include "core/base.h"
#include "core/err.h"

#define HTH_LOCK_HOLDER_MAX 64

struct hth_lock;

/* `who` is told to others, with the process's id. Errors: E_BUSY, and `holder` says who has it (""
 * if that is not known); E_IO (not a file, or a symbolic link), E_NO_FILE (no folder can be made
 * there), E_DISK_FULL. */
enum hth_err hth_lock_take(const char *path, const char *who, struct hth_lock **out,
                           char holder[HTH_LOCK_HOLDER_MAX]) HTH_MUST;
/* NULL is fine. */
void hth_lock_free(struct hth_lock *lock);

#endif
