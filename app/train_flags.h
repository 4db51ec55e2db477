/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_flags.h: the command line of `hearth train`. Options that contradict each other or the run
 * file end the program with a message and HTH_EXIT_USAGE, before anything is opened.
 *
 * One thread, at the start.
 */
#ifndef HTH_APP_TRAIN_FLAGS_H
#define HTH_APP_TRAIN_FLAGS_H

#include "app/back.h"
#include "cli/cli.h"
#include "cli/device.h"
#include "cli/runfile.h"

#include <argp.h>

/* Strings are borrowed from argv. 0 means the run file's value unless a comment says otherwise. */
struct hth_train_flags {
    struct hth_cli_net net;
    struct hth_cli_log log;
    struct hth_device_flags device;
    struct hth_back_flags back;
    const char *run_path, *data_path, *metrics_path, *tensorboard_dir; /* NULL: not given */
    uint64_t peer_seed;                                                /* 0: from the key */
    uint32_t steps, flights, rows;
    uint32_t keep;   /* checkpoints, besides the best */
    uint64_t target; /* samples in a shared batch */
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

/* Overrides values of the run file by the flags that are given. Errors: E_USAGE, printed, for flags
 * that have no effect in this run. */
enum hth_err hth_train_flags_apply(const struct hth_train_flags *flags,
                                   struct hth_runfile *run) HTH_MUST;

#endif
