/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h: one process per folder, enforced by a lock in the kernel.
 *
 * Two processes in one state folder have one key between them and overwrite each other's
 * checkpoints. So each takes the lock of a file there (flock) and keeps it until it ends. The
 * kernel releases the lock with the process, crashed or not; a file that is left behind means
 * nothing. The file names its last holder, for the message of a second process. It is never
 * removed, because a third process might hold the lock of a file without a name.
 *
 * If the file cannot be written, or the file system has no locks, there is no lock and no refusal:
 * *out is NULL.
 */
#ifndef HTH_NET_LOCK_H
#define HTH_NET_LOCK_H

#include "core/base.h"
#include "core/err.h"

#define HTH_LOCK_HOLDER_MAX 64
#define HTH_LOCK_NOTE_MAX   192

struct hth_lock;

/* `who` and the process's id are written for others. Errors: E_BUSY, and `holder` names the holder
 * ("" if unknown); E_IO (not a file, or a symbolic link), E_NO_FILE (no folder can be made there),
 * E_DISK_FULL. */
enum hth_err hth_lock_take(const char *path, const char *who, struct hth_lock **out,
                           char holder[HTH_LOCK_HOLDER_MAX]) HTH_MUST;
/* Writes one line below the holder's, for programs; NULL is fine. Replaces an earlier one. */
void hth_lock_note(struct hth_lock *lock, const char *note);
/* Reads the holder's process id and note without a look at the lock itself: to test it would be to
 * take it, and a process that starts in that moment would be refused. So the file may be left
 * behind. Errors: E_NO_FILE, E_IO; E_MALFORMED (another program's file, or no note). */
enum hth_err hth_lock_read(const char *path, long *pid, char note[HTH_LOCK_NOTE_MAX]) HTH_MUST;
/* NULL is fine. */
void hth_lock_free(struct hth_lock *lock);

#endif
