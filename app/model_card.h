/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_card.h: what a published model says of itself: config.json for programs, README.md for
 * people. Heap strings; the same for the same model.
 */
#ifndef HTH_APP_MODEL_CARD_H
#define HTH_APP_MODEL_CARD_H

#include "cli/runfile.h"
#include "trainer/model_file.h"

struct hth_model_card {
    const struct hth_runfile *run;
    const struct hth_model_about *about;
    enum hth_dtype dtype;
    uint64_t parameters;           /* of trunk and experts, as written */
    uint32_t experts, experts_all; /* in the file; in the grid */
    bool words, book;              /* words.json and codebook.safetensors are there */
};

/* {"format", "run", "model": all keys of the run file's model section, "schema", "seed", "step",
 * "samples", "dtype", "parameters", "experts", "experts_all", "input", "data", "licence"}. */
char *hth_model_card_config(const struct hth_model_card *card);
char *hth_model_card_readme(const struct hth_model_card *card);

#endif
