/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_file.h: the weights of a trained model in one safetensors file, for people who did not
 * train it: what `hearth export` writes and `hearth import` reads.
 *
 *     NAME                the trunk's tensors, named as in its checkpoint
 *     experts/UID/NAME    those of each expert that is there, such as experts/ffn0.1.3/norm.weight
 *     metadata            hearth.format = "hearth-model-1", hearth.kind = "model", and those of the
 *                         trunk's checkpoint that say which model it is (struct hth_model_about)
 *
 * All are F32, or all BF16. The optimiser's moments stay behind. Experts are optional one by one: a
 * model works with those it has, as a run does.
 *
 * Files of both kinds may come from anybody: names, types, shapes and numbers are checked before
 * they are used, and `why` says which tensor of which file is wrong. Pure functions over memory,
 * any thread; readers are those of experts/safetensors.h.
 */
#ifndef HTH_TRAINER_MODEL_FILE_H
#define HTH_TRAINER_MODEL_FILE_H

#include "core/blob.h"
#include "data/why.h"
#include "experts/safetensors.h"
#include "experts/store.h"
#include "trainer/model.h"
#include "trainer/trained.h"

#define HTH_MODEL_FILE           "model.safetensors"
#define HTH_MODEL_FILE_BYTES_MAX (UINT64_C(1) << 40)

/* Self-description of a model's file; `file` is its name in error texts. Errors: E_CORRUPT
 * (something is missing). */
enum hth_err hth_model_file_about(const char *file, const struct hth_st_reader *reader,
                                  struct hth_model_about *out, struct hth_why *why) HTH_MUST;

/* ---- making -------------------------------------------------------------------------------- */

struct hth_model_file_part {
    const char *file;             /* its name in error texts */
    const char *uid;              /* of an expert; NULL: the trunk */
    const struct hth_blob *bytes; /* a checkpoint */
};
/* From a trunk's checkpoint (parts[0]) and checkpoints of experts. Errors: those of hth_st_open,
 * E_WRONG_RUN (a file of another expert), E_UNSUPPORTED (a tensor that is not F32), E_TOO_LARGE. */
enum hth_err hth_model_file_make(const struct hth_model_file_part *parts, size_t count,
                                 const struct hth_model_about *about, enum hth_dtype dtype,
                                 struct hth_blob **out, struct hth_why *why) HTH_MUST;

/* ---- reading ------------------------------------------------------------------------------- */

/* Opens the bytes, which must stay, of a file with that name. Errors: those of hth_st_open,
 * E_CORRUPT (not such a file). */
enum hth_err hth_model_file_open(const char *file, const struct hth_blob *bytes,
                                 struct hth_st_reader **out, struct hth_why *why) HTH_MUST;
/* The first expert at or behind tensor *at of the file, which becomes the one behind its last;
 * false: there is none. A text too long for a uid is cut. */
bool hth_model_file_next(const struct hth_st_reader *model, size_t *at, char uid[HTH_UID_TEXT_MAX]);

/* A trunk's checkpoint with these weights and moments of 0, of a model with these options. Errors:
 * E_CONFIG, E_CORRUPT (a tensor is missing, of another shape or not finite), E_NO_MEMORY. A schema
 * of 0 becomes that of the options. */
enum hth_err hth_model_file_trunk(const struct hth_st_reader *model,
                                  const struct hth_model_opts *opts,
                                  const struct hth_model_about *about, struct hth_blob **out,
                                  struct hth_why *why) HTH_MUST;
/* The same of an expert, which is new and gets the weights. Its back end computes here. */
enum hth_err hth_model_file_expert(const struct hth_st_reader *model, struct hth_expert *expert,
                                   struct hth_blob **out, struct hth_why *why) HTH_MUST;

#endif
