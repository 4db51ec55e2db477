/* SPDX-License-Identifier: Apache-2.0 */
/* averaging_out.c: files of `hearth sim averaging --out DIR`. */
#include "cli/cli.h"
#include "core/mem.h"
#include "studies/averaging.h"
#include "studies/events.h"
#include "studies/report.h"
#include "studies/study.h"
#include "studies/study_write.h"
#include "studies/tools.h"

#include <math.h>

/* ---- data ---------------------------------------------------------------------------------- */

static void write_world(FILE *f, const struct hth_average_opts *o)
{
    fprintf(f,
            ",\"dim\":%u,\"latency_us\":%lld,\"jitter_us\":%lld,\"loss\":%.9g,"
            "\"line_bytes_per_s\":%.9g,\"pause_us\":%lld,\"mend_us\":%lld",
            o->dim, (long long)o->link.latency_us, (long long)o->link.jitter_us, o->link.loss,
            o->line_bytes_per_s, (long long)o->pause_us, (long long)o->heal_us);
}

static enum hth_err write_config(const struct hth_avg_request *r)
{
    const struct hth_avg_study *s = r->studies;
    FILE *f = hth_sim_create(r->out, "config.json");
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    if (f == NULL)
        return HTH_E_IO;
    hth_study_config_begin(f, "averaging", r->command);
    fprintf(f, ",\n\"seed\":%llu,\"rounds\":%u,\"cap\":%u,\"columns\":%u,\n\"runs\":[\n",
            (unsigned long long)s->opts.base.seed, s->opts.base.rounds, s->opts.base.cap,
            HTH_PURE_COLUMNS);
    for (size_t i = 0; i < r->count; i++, s++) {
        const struct hth_pure_opts *o = &s->opts.base;
        fprintf(f,
                "{\"run\":%zu,\"model\":\"%s\",\"method\":\"%s\",\"peers\":%u,\"grid\":\"%s\","
                "\"failure\":\"%s\",\"p_fail\":%.9g,\"hold\":%u,\"seeds\":%llu",
                i, hth_avg_study_model(s), hth_avg_study_method(s), o->peers,
                hth_avg_shape_text(&o->shape, grid), hth_pure_failure_name(o->failure), o->p_fail,
                o->hold, (unsigned long long)s->seeds);
        if (s->protocol)
            write_world(f, &s->opts);
        fprintf(f, "}%s\n", i + 1 < r->count ? "," : "");
    }
    fputs("]}\n", f);
    return hth_sim_finish(f, r->out, "config.json");
}

/* "pure,moshpit,1024,32x32,absent,0.005," */
static void write_key(FILE *f, const struct hth_avg_study *s)
{
    const struct hth_pure_opts *o = &s->opts.base;
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    fprintf(f, "%s,%s,%u,%s,%s,%.9g,", hth_avg_study_model(s), hth_avg_study_method(s), o->peers,
            hth_avg_shape_text(&o->shape, grid), hth_pure_failure_name(o->failure), o->p_fail);
}

/* Write the means; a list that a model lacks is left empty. */
static enum hth_err write_metrics(const struct hth_avg_request *r)
{
    FILE *f = hth_sim_create(r->out, "metrics.csv");
    if (f == NULL)
        return HTH_E_IO;
    fputs("model,method,peers,grid,failure,p_fail,round", f);
    for (int m = 0; m < HTH_AVERAGE_METRICS; m++) {
        const char *name = hth_avg_metric_name((enum hth_average_metric)m);
        fprintf(f, ",%s,%s_se", name, name);
    }
    fputc('\n', f);
    for (size_t i = 0; i < r->count; i++)
        for (uint32_t t = 0; t < r->studies[i].opts.base.rounds; t++) {
            const struct hth_avg_study *s = &r->studies[i];
            write_key(f, s);
            fprintf(f, "%u", t + 1);
            for (size_t m = 0; m < HTH_AVERAGE_METRICS; m++)
                for (int se = 0; se < 2; se++)
                    hth_study_csv_number(
                        f,
                        m < s->lists ? (se ? s->se : s->mean)[m * s->opts.base.rounds + t] : NAN);
            fputc('\n', f);
        }
    return hth_sim_finish(f, r->out, "metrics.csv");
}

static enum hth_err write_rounds(const struct hth_avg_request *r)
{
    static const char *const names[2] = {"1e-4", "1e-9"};
    FILE *f = hth_sim_create(r->out, "rounds.csv");
    if (f == NULL)
        return HTH_E_IO;
    fputs("model,method,peers,grid,failure,p_fail,variance,rounds,rounds_se,unreached\n", f);
    for (size_t i = 0; i < r->count; i++)
        for (int k = 0; k < 2; k++) {
            const struct hth_avg_study *s = &r->studies[i];
            size_t at = hth_avg_study_at(s, HTH_PURE_REACHED + k);
            write_key(f, s);
            fputs(names[k], f);
            hth_study_csv_number(f, s->mean[at]);
            hth_study_csv_number(f, s->se[at]);
            hth_study_csv_number(f, s->mean[hth_avg_study_at(s, HTH_PURE_UNREACHED + k)]);
            fputc('\n', f);
        }
    return hth_sim_finish(f, r->out, "rounds.csv");
}

/* ---- events -------------------------------------------------------------------------------- */

struct averaging_events {
    FILE *file;
    size_t run;
};

static void on_event(void *arg, int64_t now_us, const char *node, const char *event,
                     const char *detail)
{
    const struct averaging_events *e = arg;
    char name[24];
    snprintf(name, sizeof(name), "%zu", e->run);
    hth_events_row(e->file, name, now_us, node, event, detail);
}

/* Run the first seed of each protocol once more: a run is the same every time. */
static enum hth_err write_events(const struct hth_avg_request *r)
{
    struct averaging_events e = {.file = hth_events_begin(r->out, "run")};
    enum hth_err err = HTH_OK;
    if (e.file == NULL)
        return HTH_E_IO;
    for (; e.run < r->count && err == HTH_OK; e.run++) {
        struct hth_average_opts o = r->studies[e.run].opts;
        struct hth_average_report report;
        if (!r->studies[e.run].protocol)
            continue;
        double *row = hth_new_array(double, hth_average_row_len(&o));
        o.on_event = on_event;
        o.arg = &e;
        err = hth_sim_average(&o, 0, row, &report);
        hth_free(row);
    }
    enum hth_err end = hth_events_end(e.file, r->out);
    return err != HTH_OK ? err : end;
}

/* ---- the whole ----------------------------------------------------------------------------- */

static const char *about(const struct hth_avg_request *r)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->studies[i].protocol)
            return "Peers average their vectors in rounds in which some of them fail. "
                   "pure: vectors and failures only, without a network. protocol: the production "
                   "averager on real vectors in a simulated world; every peer begins each round at "
                   "the same instant, and seconds are virtual, until the last one has its average. "
                   "mse: mean squared distance to the true mean of all peers; variance: among the "
                   "peers; bytes: received by a peer, headers and matchmaking included; rounds: "
                   "until the variance is below the value in front; unreached: the share that did "
                   "not reach it before counting stopped. Columns that end in _se are standard "
                   "errors.";
    return "Peers average their vectors in rounds in which some of them fail. Vectors "
           "and failures only, without a network. mse: mean squared distance to the true mean; "
           "variance: among the peers; rounds: until the variance is below the value in front; "
           "unreached: the share of the seeds that did not reach it in time. Columns "
           "that end in _se are standard errors.";
}

static enum hth_err write_report(const struct hth_avg_request *r, const char *picture)
{
    char *svg = hth_asprintf("%s.svg", picture);
    FILE *f = hth_report_begin(r->out, "How fast peers agree", r->command, about(r));
    if (f != NULL) {
        hth_report_picture(f, r->out, svg);
        hth_report_csv(f, r->out, "rounds.csv");
        if (r->picture != HTH_AVG_TABLE)
            hth_report_csv(f, r->out, "metrics.csv");
    }
    hth_free(svg);
    return f == NULL ? HTH_E_IO : hth_report_end(f, r->out);
}

enum hth_err hth_avg_study_write(const struct hth_avg_request *r)
{
    HTH_TRY(hth_sim_forget(r->out));
    HTH_TRY(write_config(r));
    HTH_TRY(write_metrics(r));
    HTH_TRY(write_rounds(r));
    if (r->events)
        HTH_TRY(write_events(r));
    FILE *f = hth_sim_create(r->out, "plot.gp");
    if (f == NULL)
        return HTH_E_IO;
    const char *picture =
        r->picture == HTH_AVG_SWEEP ? hth_avg_draw_sweep(f, r) : hth_avg_draw(f, r);
    HTH_TRY(hth_sim_finish(f, r->out, "plot.gp"));
    hth_sim_draw(r->out, "plot.gp"); /* the data are complete without a picture */
    return write_report(r, picture);
}
