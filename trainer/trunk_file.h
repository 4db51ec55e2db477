/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trunk_file.h (internal): parts of reading files of weights that checkpoint.c, trained.c and
 * model_file.c share. All fail with E_CORRUPT, and `why` says what of the file is wrong.
 */
#ifndef HTH_TRAINER_TRUNK_FILE_H
#define HTH_TRAINER_TRUNK_FILE_H

#include "experts/safetensors.h"
#include "kernels/params.h"
#include "trainer/trained.h"

#define HTH_TRUNK_NAME_BYTES     160
#define HTH_TRUNK_FILE_BYTES_MAX (UINT64_C(1) << 40)

enum hth_err hth_trunk_number(const struct hth_st_reader *r, const char *key, uint64_t max,
                              uint64_t *out, struct hth_why *why) HTH_MUST;
/* All but the seed. */
enum hth_err hth_trunk_about(const struct hth_st_reader *r, struct hth_model_about *out,
                             struct hth_why *why) HTH_MUST;
/* Copies a tensor with the shape of `w`, F32 or BF16; every number is finite. */
enum hth_err hth_trunk_tensor(const struct hth_st_reader *r, const char *name,
                              const struct hth_weight *w, float *out, struct hth_why *why) HTH_MUST;
/* Copies all tensors of `params`, whose names have the prefix in the file, to a flat buffer. */
enum hth_err hth_trunk_tensors(const struct hth_st_reader *r, const char *prefix,
                               struct hth_params *params, float *flat,
                               struct hth_why *why) HTH_MUST;
const struct hth_st_reader *hth_trained_reader(const struct hth_trained *trained);

#endif
