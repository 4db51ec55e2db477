/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_file.h: the run file of a verb that takes part in a run: read from --run, or, with an invite
 * and no --run, taken from the run's peers (cli/run_fetch.h). A file so taken is kept in --dir, or
 * in the run's folder among the state folders, as run-HASH.yaml, and read from there at the next
 * start.
 *
 * Main thread; blocks until a peer has given the file.
 */
#ifndef HTH_APP_RUN_FILE_H
#define HTH_APP_RUN_FILE_H

#include "cli/cli.h"

struct hth_runfile;

/* path NULL: none was given, and net has an invite. With --own it closes the file first. Returns
 * HTH_EXIT_OK, or the code to exit with after printing what failed; free *out with
 * hth_runfile_free. */
int hth_run_file_open(const char *path, struct hth_cli_net *net, const struct hth_cli_log *log,
                      struct hth_runfile **out);
/* Calls argp_error unless there is a run file or an invite. */
void hth_run_file_need(const struct argp_state *state, const char *path,
                       const struct hth_cli_net *net);

#endif
