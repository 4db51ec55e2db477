/* SPDX-License-Identifier: Apache-2.0 */
/*
 * use.h: a trained model for the verbs that use one: write, fill, draw, predict, eval.
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
#include "app/side.h"
#include "cli/config.h"
#include "cli/device.h"
#include "trainer/infer.h"

struct hth_directory;
struct hth_set;
struct hth_words;

struct hth_use_flags {
    struct hth_cli_net net;
    struct hth_cli_log log;
    struct hth_device_flags device;
    const char *data;       /* a data set in place of the run file's; NULL: none was given */
    const char *checkpoint; /* "last", "best" or a step (trainer/saved.h) */
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
    char *path, *folder;     /* of the trunk's file; the folder it lies in */
    struct hth_set *set;     /* the run file's or command line's, of the same ids; or NULL */
    struct hth_side side;    /* where tokens have a meaning (app/side.h) */
    struct hth_words *words; /* of them; NULL: tokens are bytes, or there are none */
    hth_fn *on_close;        /* frees what the verb made, once the model is gone; or NULL */
    void *arg;               /* of both callbacks */
    /* private */
    struct hth_config_data data;
    float mean, std; /* of pixels, as the run file's data has them */
    struct hth_directory *directory;
    struct hth_timer *timer;
    hth_fn *on_ready;
    int64_t since_us, first_us; /* waiting for experts; when the first were seen */
    bool opened, said;
};

/* All these return an exit code. */

/* `data` goes before that of the flags; or NULL. */
int hth_use_load(struct hth_use *use, const char *data);
/* `rows`: the most of one call (trainer/infer.h). */
int hth_use_open(struct hth_use *use, const char *verb, uint32_t rows);
int hth_use_run(struct hth_use *use, hth_fn *on_ready);

/* "a classifier", "a masked lm"; and the verb for such a model. */
const char *hth_use_kind(const struct hth_use *use);
const char *hth_use_verb(const struct hth_use *use);
/* Whether a text may be shorter than the context, as experts are chosen row by row. Prints. */
enum hth_err hth_use_check_rows(const struct hth_use *use);
/* Whether `set` is there, for a verb that needs samples, or the model's data is no set. Prints. */
int hth_use_check_set(const struct hth_use *use);
/* The data, whose strings are borrowed; its held-out part, or that of training. */
void hth_use_data(struct hth_use *use, bool held_out, struct hth_data_opts *out);
/* Notes rows that found no expert. */
void hth_use_say_lost(const struct hth_use *use);
void hth_use_stop(struct hth_use *use, int code);
/* Ends with an error; `why` says more, or is "". */
void hth_use_fail(struct hth_use *use, enum hth_err err, const char *why);
/* ... of opening the data. */
void hth_use_no_data(struct hth_use *use, enum hth_err err);
void hth_use_close(struct hth_use *use);

#endif
