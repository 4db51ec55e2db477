/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own.h: --own: a run that begins on this machine, of which this user is the owner.
 *
 *   before the run file is read   the owner's key is made if there is none, and named in the run
 *                                 file, which closes the run; this machine invites itself, and
 *                                 makes the invite for others
 *   once it listens               that invite gets its address, and is written into a file beside
 *                                 the owner's key, whose path is said; on a terminal its text, too
 *
 * Both invites are kept there for a year, so that a restart has the same ones. All verbs of this
 * user that are given that run file, and no invite, take this machine's. Main thread.
 */
#ifndef HTH_APP_OWN_H
#define HTH_APP_OWN_H

#include "cli/cli.h"

struct hth_peer;
struct hth_runfile;

/* Sets net->invite and net->share. Errors, printed: of the key, the run file, files. */
enum hth_err hth_own_begin(const char *run_path, struct hth_cli_net *net) HTH_MUST;
/* Where no invite was given and this user's key is the run's owner: sets net->invite. Errors,
 * printed, likewise. */
enum hth_err hth_own_enter(const char *run_path, const struct hth_runfile *run,
                           struct hth_cli_net *net) HTH_MUST;
/* For a peer that listens. */
void hth_own_say(const struct hth_cli_net *net, const struct hth_peer *peer);

#endif
