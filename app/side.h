/* SPDX-License-Identifier: Apache-2.0 */
/*
 * side.h: the words and the code book that the ids of a trained model come from.
 *
 * They lie in the data set it learnt from, or beside the trunk of a model that came from elsewhere
 * (hearth import). A model's schema covers their hash: others are noticed, never used.
 *
 * Main thread; it blocks on the disk.
 */
#ifndef HTH_APP_SIDE_H
#define HTH_APP_SIDE_H

#include "cli/runfile.h"
#include "core/env.h"
#include "data/why.h"

struct hth_set;

/* Files, as they are; NULL: there is none. */
struct hth_side {
    struct hth_blob *words, *book;
};

/* Whether ids of this run have a meaning that only words say. */
bool hth_side_needed(const struct hth_runfile *run);
/* Whether a folder is a data set that hearth data made. */
bool hth_is_set(const char *dir);
/* Errors: those of hth_set_side_file. After an error *out is empty. */
enum hth_err hth_side_of_set(struct hth_set *set, struct hth_side *out,
                             struct hth_why *why) HTH_MUST;
/* Of a model's folder; empty where it has none. Errors: those of reading files. */
enum hth_err hth_side_of_folder(struct hth_env *env, const char *dir, struct hth_side *out,
                                struct hth_why *why) HTH_MUST;
bool hth_side_is_empty(const struct hth_side *side);
/* hth_data_hash of both. */
uint64_t hth_side_hash(struct hth_env *env, const struct hth_side *side);
/* All zero is fine. */
void hth_side_clear(struct hth_side *side);

#endif
