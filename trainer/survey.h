/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survey.h: runs a trained model over a data set, batch by batch: its loss, and what it says of
 * each sample.
 *
 * Samples come in the order of the options; with the test set of a run (cli/config.h) that is the
 * order of its files, and the loss is that of the trainer's evaluation of as many samples.
 *
 * Loop thread only. It borrows infer, whose only user it is until it is freed.
 */
#ifndef HTH_TRAINER_SURVEY_H
#define HTH_TRAINER_SURVEY_H

#include "trainer/infer.h"

struct hth_survey;

struct hth_survey_opts {
    struct hth_data_opts data;
    uint64_t samples; /* 0: all */
    /* Samples first .. first + count - 1 are done; their labels, and infer has their logits. */
    void (*on_batch)(void *arg, uint64_t first, uint32_t count, const int32_t *labels);
    /* Once: all are done, or an error ended it. The caller may free. */
    void (*on_done)(void *arg, enum hth_err err);
    void *arg;
};

/* Opens the data; call it at the start of a program. Callbacks never run inside this call. Errors:
 * those of hth_data_open, E_CONFIG (data of another shape than the model's). */
enum hth_err hth_survey_new(struct hth_env *env, struct hth_infer *infer,
                            const struct hth_survey_opts *opts, struct hth_survey **out) HTH_MUST;
/* NULL is fine. While it runs, end the jobs and free infer first. */
void hth_survey_free(struct hth_survey *survey);
/* Samples that it will see. */
uint64_t hth_survey_samples(const struct hth_survey *survey);
/* Why the data could not be read on; "": it could. */
const char *hth_survey_why(const struct hth_survey *survey);

struct hth_survey_result {
    uint64_t samples;
    double loss; /* of model.h, in nats */
    struct hth_infer_loss of[HTH_INFER_VOCABULARIES_MAX];
};
void hth_survey_result(const struct hth_survey *survey, struct hth_survey_result *out);

#endif
