/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trained.h: a trained model as its trainer saved it, for whoever uses it: writes, predicts, draws
 * or exports. Training itself resumes by trainer.h, through the same file.
 *
 *   DIR/trunk.safetensors            the trunk; its metadata holds the run file, so that the folder
 *                                    alone says what model it is
 *   DIR/experts/<uid>.safetensors    the experts, if they learnt in the trainer's process; else
 *                                    their hosts have them
 *
 * How to use it: open the file, parse its run file to model options (cli/config.h), make the model
 * by them, fill it. The file is not trusted: every number and tensor is checked, and `why` (of
 * HTH_TRAINER_WHY_MAX bytes, or NULL) says in words what is wrong with it.
 *
 * Loop thread at the start of a program, or any job.
 */
#ifndef HTH_TRAINER_TRAINED_H
#define HTH_TRAINER_TRAINED_H

#include "core/base.h"
#include "core/env.h"

struct hth_model;
struct hth_trained;

struct hth_trained_info {
    const char *run;      /* its name; NULL: not said */
    const char *run_text; /* its run file; NULL: not said */
    uint64_t schema, seed;
    uint64_t updates, samples;
    bool without_experts; /* trained with every row on the residual path */
};

/* Reads a trunk's file. Errors: those of reading a file (E_NO_FILE without a `why`), E_CORRUPT. */
enum hth_err hth_trained_open(struct hth_env *env, const char *path, char *why,
                              struct hth_trained **out) HTH_MUST;
/* NULL is fine. */
void hth_trained_free(struct hth_trained *trained);
/* Strings live as long as `trained`. */
const struct hth_trained_info *hth_trained_info(const struct hth_trained *trained);
/* Whether it is a trunk of this model and seed. Errors: E_WRONG_RUN. */
enum hth_err hth_trained_fits(const struct hth_trained *trained, const struct hth_model *model,
                              char *why) HTH_MUST;
/* Copies its values to the model, without the optimiser's states. Errors: E_WRONG_RUN, E_CORRUPT,
 * E_NO_MEMORY. After an error the model's values are not valid. */
enum hth_err hth_trained_fill(const struct hth_trained *trained, struct hth_model *model,
                              char *why) HTH_MUST;

#endif
