/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_flags.h: the command line of `hearth train`. What contradicts itself, or what the run file
 * says, ends the program with a sentence and HTH_EXIT_USAGE, before anything is opened.
 *
 * One thread, at the start.
 */
#ifndef HTH_APP_TRAIN_FLAGS_H
#define HTH_APP_TRAIN_FLAGS_H

#include "cli/cli.h"
#include "cli/device.h"
#include "cli/runfile.h"

#include <argp.h>

/* Text is borrowed from argv. 0 stands for "the run file's" where nothing else is said. */
struct hth_train_flags {
    struct hth_cli_net net;
    struct hth_cli_log log;
    struct hth_device device;
    const char *run_path, *data_path, *metrics_path; /* NULL: not given */
    uint64_t peer_seed;                              /* 0: from the key */
    uint32_t steps, flights, rows;
    uint64_t target; /* samples of a shared batch */
    double up_mbit;  /* 0: not given */
    int averaging;   /* enum hth_run_averaging_mode; -1: the run file's */
    bool local, without_experts, resume, bootstrap, client;
};
#define HTH_TRAIN_FLAGS_INIT                                                                       \
    {                                                                                              \
        .averaging = -1                                                                            \
    }

/* Its input is a struct hth_train_flags. */
extern const struct argp hth_train_argp;

/* Puts into the run what was given: flags win over the file; their own limits are the run file's.
 * Errors: E_USAGE, said: flags that make no sense with this run. */
enum hth_err hth_train_flags_apply(const struct hth_train_flags *flags,
                                   struct hth_runfile *run) HTH_MUST;

#endif
