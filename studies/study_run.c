/* SPDX-License-Identifier: Apache-2.0 */
/* study_run.c: runs a study and reports its results; see study.h. */
#include "cli/cli.h"
#include "core/mem.h"
#include "studies/events.h"
#include "studies/study.h"
#include "studies/study_write.h"
#include "studies/tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VALUES_MAX (16u << 20)
#define SEEDS_MAX  100000

/* ---- flags --------------------------------------------------------------------------------- */

enum {
    KEY_SEED = 0x6000,
    KEY_SEEDS,
    KEY_THREADS,
    KEY_JSON,
    KEY_OUT,
    KEY_ONLY,
    KEY_WHERE,
    KEY_AGAINST,
    KEY_EVENTS
};

static const struct argp_option options[] = {
    {"seed", KEY_SEED, "N", 0, "The first seed (default 1)", 1},
    {"seeds", KEY_SEEDS, "N", 0, "Repetitions, with consecutive seeds (default 5)", 1},
    {"only", KEY_ONLY, "PART,...", 0, "Run only these parts of the study", 1},
    {"where", KEY_WHERE, "NAME=A,B,...", 0,
     "Only points at which a parameter (a column of the table) has one of these values; all "
     "conditions must hold if given more than once",
     1},
    {"against", KEY_AGAINST, "NAME=A,...", 0,
     "Also the differences, seed by seed, to the points that have this value and are alike "
     "otherwise; with several values differences of differences",
     1},
    {"threads", KEY_THREADS, "N", 0, "Runs at the same time (default: number of cores)", 1},
    {"json", KEY_JSON, NULL, 0, "One JSON object for each row", 1},
    {"out", KEY_OUT, "DIR", 0, "Also write data, pictures and a report there", 1},
    {"events", KEY_EVENTS, NULL, 0,
     "With --out: also events.csv, the starts and crashes of nodes with the first seed", 1},
    {0},
};

/* Add a --where: all of them must hold. */
static void take_where(struct argp_state *state, struct hth_study_flags *f, const char *arg)
{
    size_t len = strlen(f->where_text);
    size_t more = (size_t)snprintf(f->where_text + len, sizeof(f->where_text) - len, "%s%s",
                                   len > 0 ? ";" : "", arg);
    if (more >= sizeof(f->where_text) - len)
        argp_error(state, "--where '%s': all conditions together are too long", arg);
    f->where = f->where_text;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_study_flags *f = state->input;
    switch (key) {
    case KEY_SEED:
        f->seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX - SEEDS_MAX);
        break;
    case KEY_SEEDS:
        f->seeds = hth_cli_number(state, "--seeds", arg, 1, SEEDS_MAX);
        break;
    case KEY_THREADS:
        f->threads = (uint32_t)hth_cli_number(state, "--threads", arg, 1, 256);
        break;
    case KEY_JSON:
        f->json = true;
        break;
    case KEY_OUT:
        f->out = arg;
        break;
    case KEY_ONLY:
        f->only = arg;
        break;
    case KEY_WHERE:
        take_where(state, f, arg);
        break;
    case KEY_AGAINST:
        f->against = arg;
        break;
    case KEY_EVENTS:
        f->events = true;
        break;
    case ARGP_KEY_END:
        if (f->events && f->out == NULL)
            argp_error(state, "--events: needs --out DIR");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

const struct argp hth_study_argp = {.options = options, .parser = parse};

/* Return how many arguments from this one on change no number. */
static int silent_args(const char *arg)
{
    static const char *const with_value[] = {"--out", "--threads"};
    if (strcmp(arg, "--json") == 0 || strcmp(arg, "--no-wall") == 0)
        return 1;
    for (size_t i = 0; i < HTH_ARRAY_LEN(with_value); i++) {
        size_t len = strlen(with_value[i]);
        if (strncmp(arg, with_value[i], len) == 0 && (arg[len] == '=' || arg[len] == '\0'))
            return arg[len] == '=' ? 1 : 2;
    }
    return 0;
}

char *hth_study_command(int argc, char **argv)
{
    char *text = hth_strdup(argv[0]);
    for (int i = 1; i < argc; i++) {
        int skip = silent_args(argv[i]);
        if (skip > 0) {
            i += skip - 1;
            continue;
        }
        char *longer = hth_asprintf("%s %s", text, argv[i]);
        hth_free(text);
        text = longer;
    }
    return text;
}

/* ---- running ------------------------------------------------------------------------------- */

struct runs {
    const struct hth_study *study;
    const struct hth_study_flags *flags;
    double *values; /* [point][seed][metric] */
    size_t *groups; /* first points */
    size_t group_count;
    enum hth_err *errs;   /* [group][seed]; E_CANCELED: not run */
    uint64_t done, total; /* done: atomic */
    struct hth_sim_progress progress;
};

static enum hth_err open_worker(void *arg, void **local)
{
    (void)arg;
    *local = NULL;
    return HTH_OK;
}

static void close_worker(void *local)
{
    (void)local;
}

static void show_progress(struct runs *r)
{
    uint64_t done = __atomic_add_fetch(&r->done, 1, __ATOMIC_RELAXED);
    hth_sim_progress_say(&r->progress, "%llu of %llu runs, about %.0f s left",
                         (unsigned long long)done, (unsigned long long)r->total,
                         hth_sim_progress_left_s(&r->progress, done, r->total));
}

static size_t group_size(const struct hth_study_point *first)
{
    return HTH_MAX(first->group, (size_t)1);
}

/* Run one group with one seed: all groups with the first seed, then all with the next. Cheap and
 * expensive points alternate, so the estimate of the remaining time is good. */
static void run_one(void *arg, void *local, uint64_t index)
{
    static const struct hth_study_watch unwatched = {NULL, NULL};
    struct runs *r = arg;
    const struct hth_study *s = r->study;
    uint64_t group = index % r->group_count, seed = index / r->group_count;
    const struct hth_study_point *first = &s->points[r->groups[group]];
    size_t count = group_size(first), metrics = s->metric_count;
    double *values = hth_new_array(double, count *metrics);
    (void)local;
    r->errs[group * r->flags->seeds + seed] =
        s->run(s->arg, first, r->flags->seed + seed, &unwatched, values);
    for (size_t i = 0; i < count; i++)
        memcpy(r->values + ((r->groups[group] + i) * r->flags->seeds + seed) * metrics,
               values + i * metrics, metrics * sizeof(*values));
    hth_free(values);
    show_progress(r);
}

/* ---- gaps ----------------------------------------------------------------------------------- */

static enum hth_err err_of(const struct runs *r, size_t group, uint64_t seed)
{
    return r->errs[group * r->flags->seeds + seed];
}

static bool seed_is_complete(const struct runs *r, uint64_t seed)
{
    size_t group = 0;
    while (group < r->group_count && err_of(r, group, seed) != HTH_E_CANCELED)
        group++;
    return group == r->group_count;
}

/* Set the numbers of a failed or undone run to NaN. */
static void forget(struct runs *r, size_t group, uint64_t seed)
{
    const struct hth_study *s = r->study;
    size_t first = r->groups[group];
    for (size_t i = 0; i < group_size(&s->points[first]) * s->metric_count; i++)
        r->values[((first + i / s->metric_count) * r->flags->seeds + seed) * s->metric_count +
                  i % s->metric_count] = NAN;
}

static void find_gaps(struct runs *r, struct hth_study_failure *failures,
                      struct hth_study_gaps *out)
{
    const struct hth_study *s = r->study;
    *out = (struct hth_study_gaps){
        .failures = failures, .runs_asked = r->total, .seeds_asked = r->flags->seeds};
    for (uint64_t seed = 0; seed < r->flags->seeds; seed++)
        out->seeds += seed_is_complete(r, seed);
    for (size_t group = 0; group < r->group_count; group++)
        for (uint64_t seed = 0; seed < r->flags->seeds; seed++) {
            enum hth_err err = err_of(r, group, seed);
            out->runs += err != HTH_E_CANCELED;
            bool counts = out->seeds == 0 || seed_is_complete(r, seed);
            if (err != HTH_OK || !counts)
                forget(r, group, seed);
            if (err == HTH_OK || err == HTH_E_CANCELED || !counts)
                continue;
            failures[out->failure_count++] = (struct hth_study_failure){
                hth_study_first_chosen(s, &s->points[r->groups[group]], r->flags),
                r->flags->seed + seed, err};
        }
    out->interrupted = out->runs < out->runs_asked;
}

/* Return whether all requested numbers are there. */
static enum hth_err verdict(const struct hth_study *s)
{
    const struct hth_study_gaps *g = s->gaps;
    if (g->interrupted)
        return HTH_E_CANCELED;
    return g->failure_count > 0 ? HTH_E_TRUNCATED : HTH_OK;
}

/* Report that nothing was measured: there is nothing to show. */
static enum hth_err say_failure(const struct hth_study *s)
{
    const struct hth_study_failure *f = &s->gaps->failures[0];
    char *name = hth_study_point_name(s, f->point);
    hth_cli_say_error("sim %s: all %llu runs failed; %s, seed %llu: %s", s->name,
                      (unsigned long long)s->gaps->runs, name, (unsigned long long)f->seed,
                      hth_study_why(f->err));
    hth_free(name);
    return f->err;
}

static enum hth_err run_all(struct runs *r)
{
    struct hth_sim_work work = {open_worker, run_one, close_worker, r};
    for (uint64_t i = 0; i < r->total; i++)
        r->errs[i] = HTH_E_CANCELED;
    hth_sim_progress_begin(&r->progress);
    enum hth_err err = hth_sim_spread(&work, r->total, hth_sim_threads(r->flags->threads));
    hth_sim_progress_wipe(&r->progress);
    return err;
}

static void take_means(const struct runs *r, struct hth_study_mean *means)
{
    const struct hth_study *s = r->study;
    for (size_t p = 0; p < s->point_count; p++)
        for (size_t m = 0; m < s->metric_count; m++)
            means[p * s->metric_count + m] =
                hth_study_mean_of(r->values + p * r->flags->seeds * s->metric_count + m,
                                  r->flags->seeds, s->metric_count);
}

/* ---- events.csv of the first seed ----------------------------------------------------------- */

struct study_events {
    FILE *file;
    const char *run;
};

static void on_event(void *arg, int64_t now_us, const char *node, const char *event,
                     uint64_t detail)
{
    const struct study_events *e = arg;
    char text[24];
    if (strcmp(event, "crash") == 0) {
        hth_events_row(e->file, e->run, now_us, node, event,
                       detail == HTH_CRASH_SILENT ? "silent" : "told");
    } else if (strcmp(event, "boot") == 0) {
        snprintf(text, sizeof(text), "life %llu", (unsigned long long)detail);
        hth_events_row(e->file, e->run, now_us, node, event, text);
    }
}

/* Run the first seed again for its events: a run is the same every time, so the many runs need not
 * keep them. */
static enum hth_err write_events(const struct hth_study *s, const struct hth_study_flags *flags)
{
    struct study_events e = {.file = hth_events_begin(flags->out, "run")};
    const struct hth_study_watch watch = {on_event, &e};
    if (e.file == NULL)
        return HTH_E_IO;
    for (size_t i = 0, count; i < s->point_count; i += count) {
        count = HTH_MAX(s->points[i].group, (size_t)1);
        double *values = hth_new_array(double, count * s->metric_count);
        char *name = hth_study_point_name(s, hth_study_first_chosen(s, &s->points[i], flags));
        e.run = name;
        /* A failure was reported already; its events up to it are the ones wanted. */
        (void)s->run(s->arg, &s->points[i], flags->seed, &watch, values);
        hth_free(name);
        hth_free(values);
    }
    return hth_events_end(e.file, flags->out);
}

/* ---- the whole ----------------------------------------------------------------------------- */

static enum hth_err show(const struct hth_study *s, const struct hth_study_flags *flags,
                         const struct hth_study_mean *means,
                         const struct hth_study_mean *differences)
{
    if (flags->json || !flags->quiet)
        hth_study_print(s, flags, means, differences);
    return flags->out != NULL ? hth_study_write(s, flags, means, differences) : HTH_OK;
}

/* Copy the means of the points that were asked for; NULL for NULL. */
static struct hth_study_mean *choose(const struct hth_study *s, const struct hth_study_flags *flags,
                                     const struct hth_study_mean *means)
{
    size_t count = 0;
    if (means == NULL)
        return NULL;
    struct hth_study_mean *theirs =
        hth_new_array(struct hth_study_mean, s->point_count * s->metric_count);
    for (size_t i = 0; i < s->point_count; i++)
        if (hth_study_is_chosen(s, &s->points[i], 1, flags))
            memcpy(theirs + count++ * s->metric_count, means + i * s->metric_count,
                   s->metric_count * sizeof(*means));
    return theirs;
}

/* Show the points that were asked for: a group may have measured others, too. */
static enum hth_err show_chosen(const struct hth_study *s, const struct hth_study_flags *flags,
                                const struct hth_study_mean *means,
                                const struct hth_study_mean *differences)
{
    struct hth_study shown = *s;
    struct hth_study_point *points = hth_new_array(struct hth_study_point, s->point_count);
    struct hth_study_mean *their_means = choose(s, flags, means);
    struct hth_study_mean *their_differences = choose(s, flags, differences);
    shown.points = points;
    shown.point_count = 0;
    for (size_t i = 0; i < s->point_count; i++)
        if (hth_study_is_chosen(s, &s->points[i], 1, flags))
            points[shown.point_count++] = s->points[i];
    enum hth_err err = show(&shown, flags, their_means, their_differences);
    hth_free(points);
    hth_free(their_means);
    hth_free(their_differences);
    return err;
}

static enum hth_err compare_and_show(const struct runs *r, const struct hth_study *s,
                                     const struct hth_study_mean *means)
{
    const struct hth_study_flags *flags = r->flags;
    struct hth_study_flags shown = *flags;
    shown.seeds = s->gaps->interrupted ? HTH_MAX(s->gaps->seeds, (uint64_t)1) : flags->seeds;
    struct hth_study_mean *differences = NULL;
    enum hth_err err = HTH_OK;
    if (flags->against != NULL) {
        differences = hth_new_array(struct hth_study_mean, s->point_count * s->metric_count);
        err = hth_study_differences(s, flags->against, r->values, flags->seeds, differences);
    }
    if (err == HTH_OK)
        err = show_chosen(s, &shown, means, differences);
    hth_free(differences);
    return err;
}

static enum hth_err show_runs(struct runs *r)
{
    struct hth_study s = *r->study;
    struct hth_study_failure *failures = hth_new_array(struct hth_study_failure, r->total);
    struct hth_study_gaps gaps;
    find_gaps(r, failures, &gaps);
    s.gaps = &gaps;
    if (gaps.failure_count == gaps.runs && gaps.runs > 0) {
        enum hth_err err = say_failure(&s);
        hth_free(failures);
        return err;
    }
    struct hth_study_mean *means =
        hth_new_array(struct hth_study_mean, s.point_count * s.metric_count);
    take_means(r, means);
    enum hth_err err = compare_and_show(r, &s, means);
    if (err == HTH_OK && r->flags->out != NULL)
        err = hth_study_write_runs(&s, r->flags, r->values);
    if (err == HTH_OK)
        err = verdict(&s);
    hth_free(means);
    hth_free(failures);
    return err;
}

static enum hth_err run_chosen(const struct hth_study *s, const struct hth_study_flags *flags)
{
    struct runs r = {.study = s, .flags = flags};
    enum hth_err err = HTH_E_TOO_LARGE;
    if (s->point_count * flags->seeds * s->metric_count > VALUES_MAX) {
        hth_cli_say_error("sim %s: too many runs: choose fewer --seeds", s->name);
        return err;
    }
    r.groups = hth_new_array(size_t, s->point_count);
    for (size_t i = 0; i < s->point_count; i += group_size(&s->points[i]))
        r.groups[r.group_count++] = i;
    r.total = r.group_count * flags->seeds;
    r.values = hth_new_array(double, s->point_count * flags->seeds * s->metric_count);
    r.errs = hth_new_array(enum hth_err, r.total);
    err = run_all(&r);
    if (err == HTH_OK)
        err = show_runs(&r);
    hth_free(r.values);
    hth_free(r.errs);
    hth_free(r.groups);
    return err;
}

enum hth_err hth_study_run(const struct hth_study *study, const struct hth_study_flags *flags)
{
    struct hth_study chosen = *study;
    HTH_ASSERT(study->param_count <= HTH_STUDY_PARAMS_MAX);
    HTH_ASSERT(study->metric_count <= HTH_STUDY_METRICS_MAX);
    hth_sim_heed_interrupts();
    HTH_TRY(hth_study_check_choice(study, flags));
    if (flags->out != NULL)
        HTH_TRY(hth_sim_check_out(flags->out));
    struct hth_study_point *points = hth_new_array(struct hth_study_point, study->point_count);
    struct hth_study_panel *panels = hth_new_array(struct hth_study_panel, study->panel_count);
    chosen.point_count = chosen.panel_count = 0;
    for (size_t i = 0; i < study->point_count; i += group_size(&study->points[i])) {
        size_t count = group_size(&study->points[i]);
        if (!hth_study_is_chosen(study, &study->points[i], count, flags))
            continue;
        memcpy(points + chosen.point_count, study->points + i, count * sizeof(*points));
        chosen.point_count += count;
    }
    chosen.points = points;
    chosen.panels = panels;
    for (size_t i = 0; i < study->panel_count; i++)
        if (hth_study_has_part(&chosen, study->panels[i].part))
            panels[chosen.panel_count++] = study->panels[i];
    enum hth_err err =
        flags->against != NULL ? hth_study_check_against(&chosen, flags->against) : HTH_OK;
    if (err == HTH_OK)
        err = run_chosen(&chosen, flags);
    if ((err == HTH_OK || err == HTH_E_TRUNCATED) && flags->events) {
        enum hth_err end = write_events(&chosen, flags);
        err = end != HTH_OK ? end : err;
    }
    hth_free(points);
    hth_free(panels);
    return err;
}
