/* SPDX-License-Identifier: Apache-2.0 */
#include "studies/learn.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <zlib.h>

#include "cli/cli.h"
#include "core/mem.h"
#include "kernels/backend.h"

#define FASHION_DIR "/usr/share/datasets/fashion-mnist"
#define FILE_MAX    (256u << 20)
#define FEATURES    784
#define CLASSES     10
#define LN2         0.69314718055994530942

static const struct hth_study_column learn_params[HTH_LEARN_PARAMS] = {
    {"delay_ms", "mean delay of a call (ms)", 0},
    {NULL, NULL, 0}, /* HTH_LEARN_FAIL: defined by the verb */
    {"experts", "experts of a layer (1: dense)", 0},
    {"flights", "micro-batches in the air", 0},
    {"trainers", "trainers", 0},
    {"grace_s", "grace (s)", 2},
    {"lr", "learning rate of the trunk", 5},
    {"updates", "updates", 0},
    {"seen", "samples", 0},
    {"time_s", "virtual time (s)", 0},
    {"stale", "staleness (updates)", 0}};
static const struct hth_study_column learn_metrics[HTH_LEARN_METRICS] = {
    {"loss", "test loss (nats)", 3},
    {"right_pct", "test set right (%)", 1},
    {"bits_per_byte", "bits per byte", 3},
    {"samples_per_s", "samples/s (virtual)", 1},
    {"useful_per_s", "useful samples/s (virtual)", 1},
    {"answered_pct", "answers that arrived (%)", 1},
    {"short_pct", "rows with fewer than k answers (%)", 1},
    {"empty_pct", "rows with no answer (%)", 2},
    {"wasted_pct", "work that no expert learned from (%)", 1},
    {"staleness", "mean staleness (updates)", 1},
    {"used", "how evenly experts are used (1: all alike)", 3},
    {"busiest", "rows of the busiest expert to the mean", 2},
    {"deaths", "crashes of hosts", 0},
    {"share_pct", "updates (%)", 1}};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_UPDATES = 0x6400, KEY_DATA, KEY_TEXT, KEY_BACKEND, KEY_QUICK, KEY_HOSTS };

static const struct argp_option options[] = {
    {"updates", KEY_UPDATES, "N", 0, "Updates of a run, of all trainers together (default 2500)",
     0},
    {"hosts", KEY_HOSTS, "N", 0, "Expert hosts (default 8; storm: 10)", 0},
    {"data", KEY_DATA, "DIR", 0, "Fashion-MNIST's files (default " FASHION_DIR ")", 0},
    {"text", KEY_TEXT, "FILE", 0,
     "Text for the language model (default: none, without the part lm)", 0},
    {"backend", KEY_BACKEND, "NAME", 0,
     "Arithmetic: packed (default; figures repeat on machines with the same instructions) or ref "
     "(everywhere)",
     0},
    {"quick", KEY_QUICK, NULL, 0, "A twentieth of the updates and two seeds, as a quick check", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_learn_study *s = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &s->flags;
        break;
    case KEY_UPDATES:
        s->base.updates = (uint32_t)hth_cli_number(state, "--updates", arg, 64, 10000000);
        break;
    case KEY_HOSTS:
        s->base.hosts = (uint32_t)hth_cli_number(state, "--hosts", arg, 1, 1000);
        break;
    case KEY_DATA:
        s->folder = arg;
        break;
    case KEY_TEXT:
        s->text = arg;
        break;
    case KEY_BACKEND:
        s->backend = arg;
        break;
    case KEY_QUICK:
        s->quick = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- data ----------------------------------------------------------------------------------- */

/* Load a file, plain or gzip: zlib reads both. */
static enum hth_err load(struct hth_learn_study *s, size_t slot, const char *path,
                         struct hth_learn_file *out)
{
    size_t room = 1u << 20, len = 0;
    gzFile f = gzopen(path, "rb");
    int got = 0;
    if (f == NULL) {
        hth_cli_say_error("%s: %s", path, strerror(errno));
        return HTH_E_NO_FILE;
    }
    s->files[slot] = hth_new_array(uint8_t, room);
    while ((got = gzread(f, s->files[slot] + len, (unsigned)(room - len))) > 0) {
        len += (size_t)got;
        if (len == room && room < FILE_MAX)
            s->files[slot] = hth_realloc(s->files[slot], room *= 2, 1);
    }
    gzclose(f);
    if (got < 0 || len == room) {
        hth_cli_say_error("%s: %s", path, got < 0 ? "damaged" : "too large");
        return got < 0 ? HTH_E_CORRUPT : HTH_E_TOO_LARGE;
    }
    *out = (struct hth_learn_file){s->files[slot], len};
    return HTH_OK;
}

static enum hth_err load_all(struct hth_learn_study *s)
{
    static const char *const names[] = {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
                                        "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"};
    struct hth_learn_file *const to[] = {&s->data.images, &s->data.labels, &s->data.test_images,
                                         &s->data.test_labels};
    enum hth_err err = hth_backend_by_name(s->backend, &s->base.backend);
    if (err != HTH_OK) {
        hth_cli_say_error("--backend '%s': %s; expected packed, packed-bf16, blas or ref",
                          s->backend, hth_err_text(err));
        return err == HTH_E_NO_DEVICE ? HTH_E_USAGE : err;
    }
    for (size_t i = 0; err == HTH_OK && i < HTH_ARRAY_LEN(names); i++) {
        char *path = hth_asprintf("%s/%s", s->folder, names[i]);
        err = load(s, i, path, to[i]);
        hth_free(path);
    }
    if (err != HTH_OK) {
        hth_cli_say_error("install dataset-fashion-mnist, or give --data DIR");
        return err;
    }
    if (s->text != NULL)
        HTH_TRY(load(s, HTH_ARRAY_LEN(names), s->text, &s->data.text));
    s->data.features = FEATURES;
    s->data.classes = CLASSES;
    s->base.data = &s->data;
    if (s->base.updates == 0)
        s->base.updates = s->quick ? 160 : 2500;
    if (s->flags.seeds == 0)
        s->flags.seeds = s->quick ? 2 : 5;
    if (s->quick)
        s->base.eval_samples = s->base.eval_samples_last = 128;
    return HTH_OK;
}

/* ---- points -------------------------------------------------------------------------------- */

struct hth_learn_opts hth_learn_at(const struct hth_learn_study *s, double delay_ms,
                                   uint32_t experts)
{
    struct hth_learn_opts o = s->base;
    o.delay_ms = delay_ms;
    o.experts = experts;
    o.flights = delay_ms < 50 ? 4 : delay_ms < 500 ? 16 : 32;
    o.grace_us = HTH_MAX(500 * HTH_US_PER_MS, (int64_t)(4000 * delay_ms));
    if (experts == 1) {
        o.k = 1;
        o.d *= 2;
    }
    return o;
}

void hth_learn_group(struct hth_learn_study *s, const struct hth_learn_opts *o)
{
    HTH_ASSERT(s->setup_count < HTH_LEARN_SETUPS_MAX);
    s->setups[s->setup_count++] = *o;
    s->first = s->point_count;
}

struct hth_study_point *hth_learn_add(struct hth_learn_study *s, const char *part,
                                      const char *series, double fail)
{
    HTH_ASSERT(s->point_count < HTH_LEARN_POINTS_MAX && s->setup_count > 0);
    const struct hth_learn_opts *o = &s->setups[s->setup_count - 1];
    struct hth_study_point *p = &s->points[s->point_count++];
    *p = (struct hth_study_point){
        .part = part,
        .series = series,
        .setup = o,
        .param = {o->delay_ms, 100 * fail, o->experts, o->flights, o->trainers,
                  (double)o->grace_us / 1e6, (double)o->lr, NAN, NAN, NAN, NAN},
    };
    s->points[s->first].group = s->point_count - s->first;
    return p;
}

void hth_learn_add_curves(struct hth_learn_study *s, const char *part, const char *series,
                          double fail)
{
    static const double times[] = {5,   10,  15,  20,   30,   50,   75,   100,  150,  200,
                                   300, 500, 750, 1000, 1500, 2000, 2500, 3000, 4000, 5000};
    const struct hth_learn_opts *o = &s->setups[s->setup_count - 1];
    for (uint32_t i = 1; i <= o->evals; i++) {
        struct hth_study_point *p = hth_learn_add(s, part, series, fail);
        p->param[HTH_LEARN_UPDATES] = (double)o->updates * i / o->evals;
        p->param[HTH_LEARN_SEEN] = p->param[HTH_LEARN_UPDATES] * o->micro_batch;
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(times); i++)
        hth_learn_add(s, part, series, fail)->param[HTH_LEARN_TIME_S] = times[i];
}

void hth_learn_add_histogram(struct hth_learn_study *s, const char *part, const char *series,
                             double fail)
{
    for (uint32_t i = 0; i < HTH_LEARN_STALE_MAX; i++)
        hth_learn_add(s, part, series, fail)->param[HTH_LEARN_STALE] =
            (i + 0.5) * HTH_LEARN_STALE_WIDTH;
}

/* ---- running ------------------------------------------------------------------------------- */

static void put_eval(const struct hth_learn_opts *o, double loss, double right, double *values)
{
    values[HTH_LEARN_LOSS] = loss;
    values[HTH_LEARN_RIGHT] = 100 * right;
    values[HTH_LEARN_BITS] = o->lm ? loss / LN2 : NAN;
}

static void put_end(const struct hth_learn_opts *o, const struct hth_learn_report *r,
                    double *values)
{
    const struct hth_learn_eval *last = &r->eval[r->evals - 1];
    put_eval(o, last->loss, last->accuracy, values);
    values[HTH_LEARN_SAMPLES_PER_S] = r->samples_per_s;
    values[HTH_LEARN_USEFUL_PER_S] = r->samples_per_s * r->learned * (1 - r->dropped);
    values[HTH_LEARN_ANSWERED] = 100 * r->answered;
    values[HTH_LEARN_SHORT] = 100 * r->short_rows;
    values[HTH_LEARN_EMPTY] = 100 * r->empty_rows;
    values[HTH_LEARN_WASTED] = 100 * (1 - r->learned * (1 - r->dropped));
    values[HTH_LEARN_STALENESS] = r->staleness;
    values[HTH_LEARN_USED] = r->used;
    values[HTH_LEARN_BUSIEST] = r->busiest;
    values[HTH_LEARN_DEATHS] = (double)r->deaths;
}

/* Interpolate at a number of updates or seconds between two evaluations. Evaluations may come late:
 * a long one delays the next. Nothing before the first or after the last. */
static void put_between(const struct hth_learn_opts *o, const struct hth_learn_report *r,
                        bool by_time, double at, double *values)
{
    for (uint32_t i = 1; i < r->evals; i++) {
        const struct hth_learn_eval *a = &r->eval[i - 1], *b = &r->eval[i];
        double from = by_time ? a->at_s : a->updates, to = by_time ? b->at_s : b->updates;
        double f = (at - from) / (to - from);
        if (f >= 0 && f <= 1) {
            put_eval(o, a->loss + f * (b->loss - a->loss),
                     a->accuracy + f * (b->accuracy - a->accuracy), values);
            return;
        }
    }
}

static void put(const struct hth_study_point *p, const struct hth_learn_report *r, double *values)
{
    const struct hth_learn_opts *o = p->setup;
    double updates = p->param[HTH_LEARN_UPDATES];
    for (size_t m = 0; m < HTH_LEARN_METRICS; m++)
        values[m] = NAN;
    if (isfinite(p->param[HTH_LEARN_STALE])) {
        size_t bucket = (size_t)(p->param[HTH_LEARN_STALE] / HTH_LEARN_STALE_WIDTH);
        values[HTH_LEARN_SHARE] = 100 * r->stale[bucket];
    } else if (isfinite(p->param[HTH_LEARN_TIME_S])) {
        put_between(o, r, true, p->param[HTH_LEARN_TIME_S], values);
    } else if (isfinite(updates)) {
        put_between(o, r, false, updates, values);
    } else if (r->evals > 0) {
        put_end(o, r, values);
    }
}

static enum hth_err run(void *arg, const struct hth_study_point *first, uint64_t seed,
                        const struct hth_study_watch *watch, double *values)
{
    struct hth_learn_opts o = *(const struct hth_learn_opts *)first->setup;
    struct hth_learn_report *r = hth_new(struct hth_learn_report);
    size_t count = HTH_MAX(first->group, (size_t)1);
    (void)arg;
    o.seed = seed;
    o.on_event = watch->event;
    o.arg = watch->arg;
    enum hth_err err = hth_sim_learn(&o, r);
    for (size_t i = 0; err == HTH_OK && i < count; i++)
        put(&first[i], r, values + i * HTH_LEARN_METRICS);
    hth_free(r);
    return err;
}

static int run_study(struct hth_learn_study *s, const struct hth_learn_verb *verb)
{
    struct hth_study study = verb->study;
    struct hth_study_column params[HTH_LEARN_PARAMS];
    enum hth_err err = load_all(s);
    if (err != HTH_OK)
        return hth_exit_of(err);
    verb->add_points(s);
    memcpy(params, learn_params, sizeof(params));
    params[HTH_LEARN_FAIL] = verb->fail;
    study.params = params;
    study.metrics = learn_metrics;
    study.points = s->points;
    study.param_count = HTH_LEARN_PARAMS;
    study.metric_count = HTH_LEARN_METRICS;
    study.point_count = s->point_count;
    study.run = run;
    return hth_exit_of(hth_study_run(&study, &s->flags));
}

int hth_learn_verb(const struct hth_learn_verb *verb, int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_study_argp, 0, NULL, 0}, {0}};
    const struct argp argp = {
        .options = options, .parser = parse, .children = children, .doc = verb->doc};
    struct hth_learn_study *s = hth_new(struct hth_learn_study);
    s->flags = (struct hth_study_flags)HTH_STUDY_FLAGS_INIT;
    s->flags.seeds = 0; /* later the number of seeds stays as given */
    s->base = (struct hth_learn_opts)HTH_LEARN_OPTS_INIT;
    s->base.updates = 0;
    s->base.hosts = verb->hosts;
    s->folder = FASHION_DIR;
    s->backend = "packed";
    char *command = hth_study_command(argc, argv);
    s->flags.command = command;
    int code = HTH_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, s) == 0)
        code = run_study(s, verb);
    hth_free(command);
    for (size_t i = 0; i < HTH_ARRAY_LEN(s->files); i++)
        hth_free(s->files[i]);
    hth_free(s);
    return code;
}
