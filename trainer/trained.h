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
 * by them, fill it. The file is not trusted: every number and tensor is checked, and `why` (which
 * may be NULL) says in words what is wrong with it.
 *
 * Loop thread at the start of a program, or any job.
 */
#ifndef HTH_TRAINER_TRAINED_H
#define HTH_TRAINER_TRAINED_H

#include "core/base.h"
#include "core/env.h"
#include "data/why.h"

struct hth_model;
struct hth_trained;

/* Self-description of a trunk's file, or of a published model's (model_file.h). Texts are borrowed
 * from it. */
struct hth_model_about {
    const char *run;            /* its name; NULL: not said */
    const char *run_text;       /* its run file; NULL: not said */
    const char *data, *licence; /* of the samples behind the weights; NULL: unknown */
    uint64_t schema;            /* hth_model_schema */
    uint64_t seed;              /* only of a trunk's file */
    uint64_t updates, samples;  /* made by then */
    bool experts;               /* false: trained with every row on the residual path */
};

/* Reads a trunk's file. Errors: those of reading a file (E_NO_FILE without a `why`), E_CORRUPT. */
enum hth_err hth_trained_open(struct hth_env *env, const char *path, struct hth_why *why,
                              struct hth_trained **out) HTH_MUST;
/* NULL is fine. */
void hth_trained_free(struct hth_trained *trained);
const struct hth_model_about *hth_trained_about(const struct hth_trained *trained);
/* The file's bytes, as long as `trained`. */
const struct hth_blob *hth_trained_bytes(const struct hth_trained *trained);
/* Whether it is a trunk of this model and seed. Errors: E_WRONG_RUN. */
enum hth_err hth_trained_fits(const struct hth_trained *trained, const struct hth_model *model,
                              struct hth_why *why) HTH_MUST;
/* Copies its values to the model, without the optimiser's states. Errors: E_WRONG_RUN, E_CORRUPT,
 * E_NO_MEMORY. After an error the model's values are not valid. */
enum hth_err hth_trained_fill(const struct hth_trained *trained, struct hth_model *model,
                              struct hth_why *why) HTH_MUST;

#endif
