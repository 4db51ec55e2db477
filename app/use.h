/* SPDX-License-Identifier: Apache-2.0 */
/*
 * use.h: what write, fill, draw, predict and eval share: flags, and the way from a folder to a
 * model that answers.
 *
 *   hth_use_main   reads the folder of --dir (app/opened.h); the verb judges whether it can use
 *                  such a model; opens its data, with --join the network, and the model; calls
 *                  `start` once experts answer, and runs until hth_use_stop
 *
 * Errors are printed, with what to do. Main thread.
 */
#ifndef HTH_APP_USE_H
#define HTH_APP_USE_H

#include "app/opened.h"
#include "app/peer.h"
#include "cli/device.h"
#include "cli/json.h"
#include "trainer/sample.h"
#include "trainer/survey.h"

struct hth_directory;

struct hth_use_flags {
    struct hth_cli_net net;
    struct hth_cli_log log;
    struct hth_device_flags device;
    const char *checkpoint, *data; /* of struct hth_opened_opts */
    bool json, train;
};
/* Groups of options. The input is a struct hth_use_flags: */
extern const struct argp hth_use_argp;         /* of all verbs */
extern const struct argp hth_use_data_argp;    /* --data, of those that take a text */
extern const struct argp hth_use_samples_argp; /* [DATA] and --train, of those that take samples */
/* ... and a struct hth_sample_opts. */
extern const struct argp hth_use_sample_argp;
/* A number of a flag; calls argp_error if it is none. */
float hth_use_real(const struct argp_state *state, const char *flag, const char *arg);

/* `arg` is hth_use_main's. */
struct hth_use_verb {
    const char *name;
    enum hth_err (*judge)(void *arg);  /* the model that was read; prints; or NULL */
    uint32_t (*rows)(const void *arg); /* the most of one call (trainer/infer.h) */
    hth_fn *start;                     /* leads to hth_use_stop */
    hth_fn *clear;                     /* frees what start made, once the model is gone; or NULL */
};

struct hth_use {
    struct hth_use_flags flags;
    struct hth_opened model;
    struct hth_env *env;
    struct hth_infer *infer;
    struct hth_survey *survey;
    /* private */
    const struct hth_use_verb *verb;
    void *arg;
    struct hth_peer peer;
    struct hth_directory *directory;
    struct hth_timer *timer;
    int64_t since_us, first_us; /* waiting for experts; when the first were seen */
    bool opened, said;
};

/* Returns an exit code. `use` holds the flags. */
int hth_use_main(struct hth_use *use, const struct hth_use_verb *verb, void *arg);

/* For `judge`: prints that "only a picture model draws", and which verb fits. Returns E_CONFIG. */
enum hth_err hth_use_refuse(const struct hth_use *use, const char *only);
/* For `judge`: prints what hth_opened_check_rows says. */
enum hth_err hth_use_check_rows(const struct hth_use *use);
/* Whether there are samples of the model's ids; else prints and stops. */
bool hth_use_has_samples(struct hth_use *use);
/* Runs over the samples (trainer/survey.h) that the flags name: `opts` has all but the data. An
 * error is printed, and stops. */
void hth_use_survey(struct hth_use *use, struct hth_survey_opts *opts);
/* Prints one line; drops the reference. */
void hth_use_print_json_take(json_t *object);
/* Notes rows that found no expert, and ends. */
void hth_use_stop(struct hth_use *use, int code);
/* Ends with an error; `why` says more, or is "". */
void hth_use_fail(struct hth_use *use, enum hth_err err, const char *why);

#endif
