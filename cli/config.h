/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h: turns a run file into the options of the modules. It is the only such place, so that a
 * host and a trainer of one run agree about every grid, width and rate.
 *
 * Any thread; hth_config_load reads a file and may block for a moment.
 */
#ifndef HTH_CLI_CONFIG_H
#define HTH_CLI_CONFIG_H

#include "admission/pass.h"
#include "cli/runfile.h"
#include "dht/announce.h"
#include "dht/uid.h"
#include "experts/server.h"
#include "experts/store.h"
#include "trainer/trainer.h"

#define HTH_LAYER_PREFIX "ffn"

/* Reads and checks a run file; free it with hth_runfile_free. Where a relative data.path leads to
 * nothing, it is the file of that name beside the run file, if there is one. Errors, printed:
 * E_CONFIG, E_NO_FILE, E_IO. */
enum hth_err hth_config_load(const char *path, struct hth_runfile **out) HTH_MUST;

/* Number of the run's grids of experts: one a layer, or a shared set of layers; 0: no experts. */
uint32_t hth_config_grids(const struct hth_runfile *run);
/* Grid i: ffn0, ffn1, ... Errors: E_RANGE (more experts than a grid holds). */
enum hth_err hth_config_grid(const struct hth_runfile *run, uint32_t i,
                             struct hth_grid *out) HTH_MUST;
/* Kind and width of the experts in every layer. */
struct hth_layer_shape hth_config_shape(const struct hth_runfile *run);

/* False: the run is open. Else what the run file says of a closed one; *run_file: the hash of its
 * canonical form. */
bool hth_config_closed(const struct hth_runfile *run, const struct hth_crypto *crypto,
                       struct hth_hash *run_file, struct hth_closed_run *out);

/* The run file's `compute`. */
enum hth_matmul hth_config_compute(const struct hth_runfile *run);
void hth_config_optim(const struct hth_run_optimizer *in, struct hth_train_optim *out);
void hth_config_model(const struct hth_runfile *run, struct hth_model_opts *out);
/* Options of a hosted expert, without its uid and back end. */
void hth_config_expert(const struct hth_runfile *run, struct hth_expert_opts *out);
/* The most samples of a micro-batch that `hearth train --rows` may ask for: hosts refuse gradients
 * of larger ones, because what a row weighs there grows with what its sender claims. */
uint32_t hth_config_rows_max(const struct hth_runfile *run);
void hth_config_server(const struct hth_runfile *run, struct hth_server_opts *out);

/* Paths of the data: owned here, borrowed by the options, like that of a set in the run file. */
struct hth_config_data {
    char *train_images, *train_labels, *test_images, *test_labels, *text;
};
/* Options of the training and the test set; `peer` seeds this trainer's order of the data. */
void hth_config_data(const struct hth_runfile *run, uint64_t peer, struct hth_config_data *paths,
                     struct hth_data_opts *train, struct hth_data_opts *test);
void hth_config_data_clear(struct hth_config_data *paths);

#endif
