/* SPDX-License-Identifier: Apache-2.0 */
/*
 * use.h: a trained model for the verbs that use one: write, predict, eval.
 *
 *   hth_use_load    reads the folder of --dir: the trunk, and from it the run file
 *   ... the verb judges whether it can use such a model ...
 *   hth_use_open    the device, with --join the network, the model with its experts
 *   hth_use_run     calls on_ready once experts answer, then runs until hth_use_stop
 *   hth_use_close
 *
 * Nothing is written to the folder, and its trainer may be running. Errors are printed, with what
 * to do. Main thread.
 */
#ifndef HTH_APP_USE_H
#define HTH_APP_USE_H

#include "app/peer.h"
#include "cli/config.h"
#include "cli/device.h"
#include "trainer/infer.h"

struct hth_directory;

struct hth_use_flags {
    struct hth_cli_net net;
    struct hth_cli_log log;
    struct hth_device_flags device;
};
/* Its input is a struct hth_use_flags. */
extern const struct argp hth_use_argp;

struct hth_use {
    struct hth_use_flags flags;
    struct hth_trained *trained;
    struct hth_runfile *run;
    struct hth_model_opts model;
    const struct hth_backend *backend;
    struct hth_peer peer;
    struct hth_infer *infer;
    hth_fn *on_close; /* frees what the verb made, once the model is gone; or NULL */
    void *arg;        /* of both callbacks */
    /* private */
    char *path; /* of the trunk's file */
    struct hth_directory *directory;
    struct hth_timer *timer;
    hth_fn *on_ready;
    int64_t since_us, first_us; /* waiting for experts; when the first were seen */
    bool opened, said;
};

/* All these return an exit code. */
int hth_use_load(struct hth_use *use);
/* `rows`: the most of one call (trainer/infer.h). */
int hth_use_open(struct hth_use *use, const char *verb, uint32_t rows);
int hth_use_run(struct hth_use *use, hth_fn *on_ready);

void hth_use_stop(struct hth_use *use, int code);
/* Ends with an error of the model's computation. */
void hth_use_fail(struct hth_use *use, enum hth_err err);
void hth_use_close(struct hth_use *use);

#endif
