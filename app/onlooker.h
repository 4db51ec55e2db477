/* SPDX-License-Identifier: Apache-2.0 */
/*
 * onlooker.h: the start of the verbs that look at a run and take no part in it: monitor, status and
 * watch. They share --run and the flags of the network. A run file names the run and its layers, so
 * that hosts with another file can't decide what is shown. Without --join they find the swarm
 * through the hearth processes of this machine (local.h).
 *
 *   argp_parse with hth_onlooker_argp as a child, hth_onlooker_open, hth_peer_run on `peer`,
 *   hth_onlooker_close
 *
 * Main thread.
 */
#ifndef HTH_APP_ONLOOKER_H
#define HTH_APP_ONLOOKER_H

#include "app/local.h"
#include "app/peer.h"

struct hth_runfile;

struct hth_onlooker {
    struct hth_cli_net net;
    struct hth_cli_log log;
    const char *run_path;                               /* NULL: none was given */
    struct hth_runfile *run;                            /* NULL: likewise */
    struct hth_beacon_layer layers[HTH_DIR_LAYERS_MAX]; /* of the run file */
    size_t layer_count;
    struct hth_gather_own own[HTH_LOCAL_MAX]; /* processes of this machine */
    size_t own_count;
    struct hth_peer peer;
    const char *network; /* the run to look at; NULL: the only one of the swarm */
    const char *name;    /* its name; NULL: likewise */
};

/* Its input is the onlooker. */
extern const struct argp hth_onlooker_argp;

/* Reads the run file and opens the peer; opts has what differs between verbs. Returns HTH_EXIT_OK,
 * or the code to exit with after printing what failed. Close it in both cases. */
int hth_onlooker_open(struct hth_onlooker *o, const struct hth_peer_opts *opts);
/* The verb's modules on the peer are freed before. */
void hth_onlooker_close(struct hth_onlooker *o);

#endif
