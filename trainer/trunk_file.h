/* SPDX-License-Identifier: Apache-2.0 */
/* trunk_file.h (internal): what checkpoint.c and trained.c share about a trunk's file. */
#ifndef HTH_TRAINER_TRUNK_FILE_H
#define HTH_TRAINER_TRUNK_FILE_H

#include "experts/safetensors.h"
#include "kernels/params.h"
#include "trainer/trained.h"

#define HTH_TRUNK_NAME_BYTES     160
#define HTH_TRUNK_FILE_BYTES_MAX (UINT64_C(1) << 40)

/* Writes `why`, unless it is NULL, and returns err. */
HTH_PRINTF(3, 4) enum hth_err hth_trunk_refuse(char *why, enum hth_err err, const char *fmt, ...);
enum hth_err hth_trunk_number(const struct hth_st_reader *r, const char *key, uint64_t max,
                              uint64_t *out, char *why) HTH_MUST;
/* Copies a tensor with the shape of `w`; every number is finite. */
enum hth_err hth_trunk_tensor(const struct hth_st_reader *r, const char *name,
                              const struct hth_weight *w, float *out, char *why) HTH_MUST;
const struct hth_st_reader *hth_trained_reader(const struct hth_trained *trained);

#endif
