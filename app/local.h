/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h: the hearth processes of this machine's user, for `hearth status`: to ask through them
 * without --join, and to mark them in its table.
 *
 * The lock file of a state folder (net/lock.h) names the process and, in a second line, where to
 * dial it on this machine and its peer id. Folders below the root of the default ones are found by
 * walking; one that --dir names is found through ROOT/.elsewhere/PROCESS, a link that the process
 * makes. (A file of remembered peers has addresses, too, but nobody knows whether they live.)
 *
 * Main thread, at start.
 */
#ifndef HTH_APP_LOCAL_H
#define HTH_APP_LOCAL_H

#include "monitor/gather.h"

struct hth_lock;

#define HTH_LOCAL_MAX 32

/* Finds at most HTH_LOCAL_MAX of them; returns their number. `dir`: one more state folder to look
 * into, or NULL. */
size_t hth_local_find(const char *dir, struct hth_gather_own out[HTH_LOCAL_MAX]);
/* Writes the second line: how to dial this process on this machine. */
void hth_local_note(struct hth_lock *lock, const struct hth_addr *addr,
                    const struct hth_peer_id *id);
/* Makes this process findable in a folder outside of the root, until hth_local_leave. A failure
 * only hides it from status, so none is reported. */
void hth_local_enter(const char *dir);
void hth_local_leave(void);

#endif
