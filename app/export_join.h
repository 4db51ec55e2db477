/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_join.h: joins a swarm for the time that fetching its experts takes.
 *
 * Main thread; it blocks until all experts came or were given up.
 */
#ifndef HTH_APP_EXPORT_JOIN_H
#define HTH_APP_EXPORT_JOIN_H

#include "cli/cli.h"
#include "experts/fetch.h"

/* Fetches the experts of `fetch`, whose on_done is not used. Returns an exit code; prints errors of
 * joining, not those of single experts. Runs the loop of env. */
int hth_export_join(struct hth_env *env, const struct hth_cli_net *net, const char *network,
                    const struct hth_fetch_opts *fetch);

#endif
