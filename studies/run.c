/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c: hearth sim run: one seed of a scenario file, or some; hearth sim hunt: many, in processes
 * of their own, so that a crash counts as a failure of its seed.
 */
#include "cli/cli.h"
#include "core/limits.h"
#include "core/mem.h"
#include "scenarios/file.h"
#include "studies/events.h"
#include "studies/load.h"
#include "studies/questions.h"
#include "studies/tools.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOBS_MAX  64
#define SEEDS_MAX UINT64_C(1000000000)

struct request {
    const char *scenario; /* as given on the command line */
    const char *trace;    /* CSV, or NULL */
    uint64_t seed, seeds; /* the first seed and their number; 0: until the time is over */
    double minutes;       /* limit of hunt; 0: none */
    uint32_t jobs;
    bool no_wall, events;
    const char *out; /* NULL: print events */
    FILE *to;        /* events.csv */
    struct hth_loaded_scenario loaded;
    struct hth_avail avail;
};

enum {
    KEY_SEED = 0x5400,
    KEY_SEEDS,
    KEY_TRACE,
    KEY_EVENTS,
    KEY_NO_WALL,
    KEY_MINUTES,
    KEY_JOBS,
    KEY_FROM,
    KEY_OUT
};

static const struct argp_option run_options[] = {
    {"seed", KEY_SEED, "N", 0, "Everything random follows from it (default 1)", 0},
    {"seeds", KEY_SEEDS, "N", 0, "That many seeds, from --seed on (default 1)", 0},
    {"trace", KEY_TRACE, "FILE", 0,
     "Sessions of the nodes: CSV of peer,on,off (s),up,down (bytes/s),speed", 0},
    {"events", KEY_EVENTS, NULL, 0, "Print every event: time, node, kind, detail", 0},
    {"out", KEY_OUT, "DIR", 0, "With --events: write them to DIR/events.csv instead", 0},
    {"no-wall", KEY_NO_WALL, NULL, 0, "Leave wall time out, so that two runs print the same", 0},
    {0},
};
static const struct argp_option hunt_options[] = {
    {"minutes", KEY_MINUTES, "M", 0, "Stop after that many minutes of wall time (default 10)", 0},
    {"seeds", KEY_SEEDS, "N", 0, "Stop after that many seeds", 0},
    {"from", KEY_FROM, "N", 0, "The first seed (default 1)", 0},
    {"jobs", KEY_JOBS, "N", 0, "Processes at the same time (default: number of cores)", 0},
    {"trace", KEY_TRACE, "FILE", 0,
     "Sessions of the nodes: CSV of peer,on,off (s),up,down (bytes/s),speed", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct request *r = state->input;
    switch (key) {
    case KEY_SEED:
        r->seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX / 2);
        break;
    case KEY_FROM:
        r->seed = hth_cli_number(state, "--from", arg, 0, UINT64_MAX / 2);
        break;
    case KEY_SEEDS:
        r->seeds = hth_cli_number(state, "--seeds", arg, 1, SEEDS_MAX);
        break;
    case KEY_JOBS:
        r->jobs = (uint32_t)hth_cli_number(state, "--jobs", arg, 1, JOBS_MAX);
        break;
    case KEY_MINUTES:
        r->minutes = strtod(arg, NULL);
        if (!(r->minutes > 0 && r->minutes < 1e6))
            argp_error(state, "--minutes '%s': expected a number above 0, such as 10", arg);
        break;
    case KEY_TRACE:
        r->trace = arg;
        break;
    case KEY_EVENTS:
        r->events = true;
        break;
    case KEY_OUT:
        r->out = arg;
        break;
    case KEY_NO_WALL:
        r->no_wall = true;
        break;
    case ARGP_KEY_END:
        if (r->out != NULL && !r->events)
            argp_error(state, "--out: needs --events");
        break;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_usage(state);
        r->scenario = arg;
        break;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which scenario? A file, or the name of one in scenarios/files");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- files --------------------------------------------------------------------------------- */

static int load(struct request *r)
{
    char error[HTH_SCENARIO_ERROR_MAX];
    size_t len;
    int code = hth_scenario_load(r->scenario, NULL, NULL, &r->loaded);
    if (code != HTH_EXIT_OK || r->trace == NULL)
        return code;
    uint8_t *data = hth_scenario_slurp(r->trace, HTH_AVAIL_BYTES_MAX, &len);
    if (data == NULL)
        return HTH_EXIT_CONFIG;
    enum hth_err err = hth_avail_parse(data, len, &r->avail, error);
    hth_free(data);
    if (err != HTH_OK)
        hth_cli_say_error("%s: %s", r->trace, error);
    return err != HTH_OK ? HTH_EXIT_CONFIG : HTH_EXIT_OK;
}

static void unload(struct request *r)
{
    hth_scenario_unload(&r->loaded);
    hth_avail_clear(&r->avail);
}

/* ---- one seed ------------------------------------------------------------------------------ */

/* The state of one seed's run. */
struct seed_events {
    FILE *to; /* events.csv; NULL: print them */
    uint64_t seed;
};

static void print_event(void *arg, int64_t now_us, const char *node, const char *event,
                        uint64_t detail)
{
    const struct seed_events *events = arg;
    char seed[24], text[24];
    if (events->to != NULL) {
        snprintf(seed, sizeof(seed), "%" PRIu64, events->seed);
        snprintf(text, sizeof(text), "%" PRIx64, detail);
        hth_events_row(events->to, seed, now_us, node, event, text);
        return;
    }
    printf("%12" PRId64 " %-10s %-10s %" PRIx64 "\n", now_us, node, event, detail);
}

static void say_again(const struct request *r, uint64_t seed, char out[256])
{
    snprintf(out, 256, "hearth sim run %.100s --seed %" PRIu64 "%s%.80s", r->scenario, seed,
             r->trace != NULL ? " --trace " : "", r->trace != NULL ? r->trace : "");
}

/* Run a seed and write its line. Returns whether it passed. */
static bool run_seed(const struct request *r, uint64_t seed, bool wall,
                     char line[HTH_SCENARIO_LINE_MAX])
{
    struct hth_scenario_opts opts = {.log_level = HTH_ERROR};
    struct seed_events events = {.to = r->to, .seed = seed};
    struct hth_scenario_report report;
    struct hth_plan plan;
    char again[256], text[HTH_SCENARIO_TEXT_MAX];
    opts.trace = r->trace != NULL ? &r->avail : NULL;
    opts.on_event = r->events ? print_event : NULL;
    opts.arg = &events;
    hth_scenario_draw(r->loaded.file, seed, &plan);
    if (r->seeds == 1)
        fputs(hth_plan_text(&plan, text), stdout);
    int64_t begin_us = hth_sim_clock_us();
    enum hth_err err = hth_scenario_run(&plan, &opts, &report);
    if (err != HTH_OK) {
        snprintf(line, HTH_SCENARIO_LINE_MAX, "FAIL seed=%" PRIu64 " why=\"%s\"", seed,
                 hth_err_text(err));
        return false;
    }
    say_again(r, seed, again);
    hth_scenario_line(&report, again, wall ? hth_sim_clock_us() - begin_us : 0, line);
    return report.pass;
}

static int run_seeds(struct request *r)
{
    char line[HTH_SCENARIO_LINE_MAX];
    int code = HTH_EXIT_OK;
    if (r->out != NULL) {
        r->to = hth_events_begin(r->out, "seed");
        if (r->to == NULL)
            return hth_exit_of(HTH_E_IO);
    }
    for (uint64_t i = 0; i < r->seeds; i++) {
        if (!run_seed(r, r->seed + i, !r->no_wall, line))
            code = HTH_EXIT_FAILURE;
        puts(line);
        fflush(stdout);
    }
    if (r->to != NULL && hth_events_end(r->to, r->out) != HTH_OK)
        code = hth_exit_of(HTH_E_IO);
    return code;
}

int hth_sim_run_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = run_options,
        .parser = parse,
        .args_doc = "SCENARIO",
        .doc =
            "Runs a scenario file: draws a world and its faults from the seed, runs it, ends the "
            "faults, and judges whether the swarm recovered.",
    };
    struct request r = {.seed = 1, .seeds = 1};
    if (argp_parse(&argp, argc, argv, 0, NULL, &r) != 0)
        return HTH_EXIT_USAGE;
    int code = load(&r);
    if (code == HTH_EXIT_OK)
        code = run_seeds(&r);
    unload(&r);
    return code;
}

/* ---- hunting ------------------------------------------------------------------------------- */

/* A message of a child to its parent, in one write, which a pipe keeps whole. */
struct message {
    uint32_t child;
    bool begins; /* the seed begins; otherwise it has ended */
    bool passed;
    uint64_t seed;
    char line[HTH_SCENARIO_LINE_MAX];
};

struct hunt {
    const struct request *r;
    struct hth_sim_progress progress;
    int64_t end_us;
    pid_t pid[JOBS_MAX];
    uint64_t next[JOBS_MAX]; /* index of the child's next seed */
    uint64_t doing[JOBS_MAX];
    bool active[JOBS_MAX]; /* the child is at work on `doing` */
    bool interrupted;
    uint64_t done, failed;
    uint64_t first_failed;
};

static bool tell(int fd, const struct message *m)
{
    return write(fd, m, sizeof(*m)) == (ssize_t)sizeof(*m);
}

/* Run every jobs-th seed until there are no more or the time is over. */
static void child_main(const struct hunt *h, uint32_t child, int fd)
{
    const struct request *r = h->r;
    struct message m = {.child = child};
    for (uint64_t i = h->next[child]; r->seeds == 0 || i < r->seeds; i += r->jobs) {
        if (hth_sim_clock_us() >= h->end_us)
            return;
        m.seed = r->seed + i;
        m.begins = true;
        if (!tell(fd, &m))
            return;
        m.begins = false;
        m.passed = run_seed(r, m.seed, false, m.line);
        if (!tell(fd, &m))
            return;
    }
}

static void note_failure(struct hunt *h, uint64_t seed, const char *line)
{
    if (h->failed++ == 0 || seed < h->first_failed)
        h->first_failed = seed;
    hth_sim_progress_wipe(&h->progress);
    printf("%s\n", line);
    fflush(stdout);
}

static void take_message(struct hunt *h, const struct message *m)
{
    h->active[m->child] = m->begins;
    h->doing[m->child] = m->seed;
    if (m->begins)
        return;
    h->done++;
    if (!m->passed)
        note_failure(h, m->seed, m->line);
    double seconds = (double)(hth_sim_clock_us() - h->progress.begun_us) / 1e6;
    double left = (double)(h->end_us - hth_sim_clock_us()) / 1e6;
    if (h->r->seeds > 0)
        left = HTH_MIN(left, hth_sim_progress_left_s(&h->progress, h->done, h->r->seeds));
    hth_sim_progress_say(&h->progress,
                         "%" PRIu64 " seeds, %" PRIu64 " failed, %.1f a second, %.0f s left",
                         h->done, h->failed, (double)h->done / seconds, left);
}

/* Collect a child. If a signal ended it, its seed has failed, and its later seeds are still to
 * do. */
static bool reap(struct hunt *h, uint32_t child)
{
    char line[HTH_SCENARIO_LINE_MAX], again[256];
    int status = 0;
    while (waitpid(h->pid[child], &status, 0) < 0 && errno == EINTR)
        continue;
    bool given_up = h->interrupted && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    if (!h->active[child] || given_up)
        return false;
    h->active[child] = false;
    h->done++;
    say_again(h->r, h->doing[child], again);
    snprintf(line, sizeof(line),
             "FAIL scenario=%.63s seed=%" PRIu64 " why=\"%s %d\" again=\"%.255s\"",
             h->r->loaded.file->name, h->doing[child],
             WIFSIGNALED(status) ? "ended by signal" : "ended with code",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), again);
    note_failure(h, h->doing[child], line);
    h->next[child] = h->doing[child] - h->r->seed + h->r->jobs;
    return !h->interrupted;
}

/* Give up the seeds under way: waiting for them would delay the interrupt. */
static void heed_interrupt(struct hunt *h)
{
    if (!hth_sim_interrupted() || h->interrupted)
        return;
    h->interrupted = true;
    for (uint32_t c = 0; c < h->r->jobs; c++)
        if (h->pid[c] > 0)
            kill(h->pid[c], SIGTERM);
}

/* Wait for the next message with the signals of `mask`. An interrupt since the last call ends the
 * wait at once, and need not wait for a seed to end. */
static ssize_t next_message(int fd, const sigset_t *mask, struct message *m)
{
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    if (pselect(fd + 1, &readable, NULL, NULL, NULL, mask) < 0)
        return -1;
    return read(fd, m, sizeof(*m));
}

/* Fork the children and read their messages until the last has ended. Returns whether some must be
 * forked again. */
static bool hunt_round(struct hunt *h, const bool *fork_it)
{
    sigset_t interrupt, usual;
    struct message m;
    bool more = false;
    int fd[2];
    if (pipe(fd) != 0)
        return false;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    fflush(stdout);
    for (uint32_t c = 0; c < h->r->jobs; c++) {
        h->pid[c] = fork_it[c] ? fork() : -1;
        if (fork_it[c] && h->pid[c] < 0)
            hth_cli_say_error("sim hunt: no process for every %uth seed: %s", h->r->jobs,
                              strerror(errno));
        if (h->pid[c] == 0) {
            signal(SIGINT, SIG_IGN); /* the parent ends its children */
            close(fd[0]);
            child_main(h, c, fd[1]);
            _exit(0);
        }
    }
    close(fd[1]);
    sigprocmask(SIG_BLOCK, &interrupt, &usual);
    for (ssize_t n; (n = next_message(fd[0], &usual, &m)) != 0;) {
        if (n == (ssize_t)sizeof(m) && m.child < h->r->jobs)
            take_message(h, &m);
        else if (n < 0 && errno != EINTR)
            break;
        heed_interrupt(h);
    }
    sigprocmask(SIG_SETMASK, &usual, NULL);
    close(fd[0]);
    for (uint32_t c = 0; c < h->r->jobs; c++)
        more |= h->pid[c] > 0 && reap(h, c);
    return more;
}

static int hunt_all(struct hunt *h)
{
    bool fork_it[JOBS_MAX];
    for (uint32_t c = 0; c < h->r->jobs; c++) {
        h->next[c] = c;
        fork_it[c] = true;
    }
    for (bool more = true; more;) {
        uint64_t before[JOBS_MAX];
        memcpy(before, h->next, sizeof(before));
        more = hunt_round(h, fork_it);
        for (uint32_t c = 0; c < h->r->jobs; c++)
            fork_it[c] = h->next[c] != before[c];
    }
    /* A process that could not be made, or was killed between two seeds, leaves its seeds
     * undone. */
    bool whole = h->r->seeds == 0 || h->done == h->r->seeds || hth_sim_clock_us() >= h->end_us;
    bool good = h->failed == 0 && h->done > 0 && whole;
    double seconds = (double)(hth_sim_clock_us() - h->progress.begun_us) / 1e6;
    printf("%s hunt scenario=%s seeds=%" PRIu64 " failed=%" PRIu64 " wall_s=%.1f per_s=%.2f",
           good ? "PASS" : "FAIL", h->r->loaded.file->name, h->done, h->failed, seconds,
           (double)h->done / seconds);
    if (h->failed > 0)
        printf(" first=%" PRIu64, h->first_failed);
    if (!whole)
        printf(" missing=%" PRIu64, h->r->seeds - h->done);
    puts(h->interrupted ? " interrupted=1" : "");
    if (h->interrupted && h->failed == 0)
        return HTH_EXIT_INTERRUPTED;
    return good ? HTH_EXIT_OK : HTH_EXIT_FAILURE;
}

int hth_sim_hunt_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = hunt_options,
        .parser = parse,
        .args_doc = "SCENARIO",
        .doc = "Runs seed after seed of a scenario and prints those that fail, each with the "
               "command that repeats it. Seeds worth keeping belong in "
               "tests/scenarios/seeds.txt.",
    };
    struct request r = {.seed = 1, .jobs = hth_sim_threads(0)};
    struct hunt h = {.r = &r};
    if (argp_parse(&argp, argc, argv, 0, NULL, &r) != 0)
        return HTH_EXIT_USAGE;
    r.jobs = HTH_MIN(r.jobs, (uint32_t)JOBS_MAX);
    if (r.minutes == 0 && r.seeds == 0)
        r.minutes = 10;
    int code = load(&r);
    if (code == HTH_EXIT_OK) {
        hth_sim_heed_interrupts();
        hth_sim_progress_begin(&h.progress);
        h.end_us = r.minutes > 0 ? h.progress.begun_us + (int64_t)(r.minutes * 60e6) : INT64_MAX;
        code = hunt_all(&h);
        hth_sim_progress_wipe(&h.progress);
    }
    unload(&r);
    return code;
}
