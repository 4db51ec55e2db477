/* SPDX-License-Identifier: Apache-2.0 */
/* averaging_run.c: runs the configurations of `hearth sim averaging`; see averaging.h. */
#include "core/mem.h"
#include "studies/averaging.h"
#include "studies/study.h"
#include "studies/study_model.h"
#include "studies/tools.h"

#define VALUES_MAX (64u << 20) /* limit of kept numbers: seeds times the length of a row */

const char *hth_avg_study_method(const struct hth_avg_study *s)
{
    return hth_pure_method_name(s->opts.base.method);
}

const char *hth_avg_study_model(const struct hth_avg_study *s)
{
    return s->protocol ? "protocol" : "pure";
}

size_t hth_avg_study_at(const struct hth_avg_study *s, int what)
{
    return s->lists * s->opts.base.rounds + (size_t)what;
}

double hth_avg_study_mean(const struct hth_avg_study *s, enum hth_average_metric m, uint32_t t)
{
    return s->mean[m * (size_t)s->opts.base.rounds + t];
}

const char *hth_avg_metric_name(enum hth_average_metric m)
{
    static const char *const names[] = {
#define HTH_METRIC_NAME(name, text, label) text,
        HTH_AVERAGE_METRIC_MAP(HTH_METRIC_NAME)
#undef HTH_METRIC_NAME
    };
    return (unsigned)m < HTH_AVERAGE_METRICS ? names[m] : "unknown";
}

void hth_avg_study_clear(struct hth_avg_study *s)
{
    hth_free(s->mean);
    hth_free(s->se);
    hth_free(s->half);
}

/* ---- seeds --------------------------------------------------------------------------------- */

struct seeds {
    const struct hth_avg_study *study;
    double *rows;
    enum hth_err *errs;
    size_t len;
    size_t index, count; /* index of the study and number of studies */
    struct hth_sim_progress *progress;
    uint64_t done; /* atomic */
};

static enum hth_err open_seeds(void *arg, void **local)
{
    const struct seeds *s = arg;
    struct hth_pure *pure = NULL;
    if (!s->study->protocol)
        HTH_TRY(hth_pure_new(&s->study->opts.base, &pure));
    *local = pure;
    return HTH_OK;
}

/* Show progress, as if the remaining studies take as long as the finished ones. */
static void say_progress(struct seeds *s)
{
    uint64_t done = __atomic_add_fetch(&s->done, 1, __ATOMIC_RELAXED), seeds = s->study->seeds;
    double left_s = hth_sim_progress_left_s(s->progress, s->index * seeds + done, s->count * seeds);
    hth_sim_progress_say(s->progress, "%zu of %zu: %llu of %llu seeds, about %.0f s left",
                         s->index + 1, s->count, (unsigned long long)done,
                         (unsigned long long)seeds, left_s);
}

static void run_seed(void *arg, void *local, uint64_t index)
{
    struct seeds *s = arg;
    struct hth_average_report report;
    double *row = s->rows + index * s->len;
    if (!s->study->protocol) {
        hth_pure_run(local, index, row);
        return;
    }
    s->errs[index] = hth_sim_average(&s->study->opts, index, row, &report);
    say_progress(s);
}

static void close_seeds(void *local)
{
    hth_pure_free(local);
}

static void sum_up(struct hth_avg_study *study, const struct seeds *s)
{
    study->mean = hth_new_array(double, s->len);
    study->se = hth_new_array(double, s->len);
    study->half = hth_new_array(double, s->len);
    for (size_t i = 0; i < s->len; i++) {
        struct hth_study_mean m = hth_study_mean_of(s->rows + i, study->seeds, s->len);
        study->mean[i] = m.mean;
        study->se[i] = m.se;
        study->half[i] = m.half;
    }
}

enum hth_err hth_avg_study_run(struct hth_avg_request *r, size_t index)
{
    struct hth_avg_study *study = &r->studies[index];
    struct seeds seeds = {
        .study = study, .index = index, .count = r->count, .progress = &r->progress};
    struct hth_sim_work work = {open_seeds, run_seed, close_seeds, &seeds};
    study->lists = study->protocol ? HTH_AVERAGE_METRICS : HTH_AVERAGE_VECTORS + 1;
    seeds.len = study->lists * study->opts.base.rounds + 4;
    if (study->seeds * seeds.len > VALUES_MAX)
        return HTH_E_TOO_LARGE;
    seeds.rows = hth_try_calloc(study->seeds * seeds.len, sizeof(double));
    seeds.errs = hth_try_calloc(study->seeds, sizeof(*seeds.errs));
    enum hth_err err = HTH_E_NO_MEMORY;
    if (seeds.rows != NULL && seeds.errs != NULL)
        err = hth_sim_spread(&work, study->seeds, hth_sim_threads(r->threads));
    for (uint64_t i = 0; i < study->seeds && err == HTH_OK; i++)
        err = seeds.errs[i];
    if (err == HTH_OK)
        sum_up(study, &seeds);
    hth_sim_progress_wipe(&r->progress);
    hth_free(seeds.rows);
    hth_free(seeds.errs);
    return err;
}
