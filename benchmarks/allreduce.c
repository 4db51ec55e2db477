/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allreduce.c: hearth bench allreduce: times the average of n processes' vectors, beside plain
 * sockets as a floor and OpenMPI. One row per (n, bytes, format). The sides take turns, so that a
 * disturbance of the machine meets all of them.
 */
#define _XOPEN_SOURCE 700
#include "benchmarks/bench.h"
#include "benchmarks/child.h"
#include "benchmarks/reduce.h"
#include "cli/json.h"
#include "core/ident.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES_MAX 4096
#define AIM_S          1.0 /* duration of one sample of rounds */
#define ROUNDS_MAX     2000u
#define TRIES_MAX      5
/* The largest rounds take minutes where the machine swaps. */
#define ANSWER_US (600 * HTH_US_PER_S)

struct process {
    struct hth_bench_child child;
    char id[2 * HTH_HASH_LEN + 1];
    unsigned port, floor_port;
};

struct allreduce_crew {
    struct process p[HTH_BENCH_MEMBERS_MAX];
    uint32_t n;
};

struct allreduce_figure {
    uint32_t n;
    uint64_t bytes;
    const char *format;
    double error_max;
};

/* The measured combinations: every n with every size and every format. */
static const uint32_t sizes_n[] = {2, 4, 8};
static const uint64_t sizes_bytes[] = {4u << 10, 4u << 20, 64u << 20};
static const struct allreduce_figure formats[] = {{.format = "fp32", .error_max = 1e-6},
                                                  {.format = "fp16", .error_max = 2e-3},
                                                  {.format = "bf16", .error_max = 1e-2},
                                                  {.format = "int8", .error_max = 3e-2}};

struct own_flags {
    bool as_member;
    uint32_t only_n;
    uint64_t only_bytes;
    const char *only_format, *mpi;
};

/* ---- processes ----------------------------------------------------------------------------- */

static enum hth_err receive_line(struct process *p, char line[LINE_BYTES_MAX])
{
    if (!hth_bench_child_hear(&p->child, line, LINE_BYTES_MAX, ANSWER_US))
        return HTH_E_CLOSED;
    if (strncmp(line, "failed", 6) != 0)
        return HTH_OK;
    hth_cli_say_error("a member %s", line);
    return HTH_E_IO;
}

static void crew_end(struct allreduce_crew *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        hth_bench_child_end(&c->p[i].child);
    c->n = 0;
}

static enum hth_err crew_start(struct allreduce_crew *c, uint32_t n, bool plain)
{
    const char *argv[] = {"/proc/self/exe",         "bench", "allreduce", "--as-member",
                          plain ? "--plain" : NULL, NULL};
    char line[LINE_BYTES_MAX];
    memset(c, 0, sizeof(*c));
    while (c->n < n)
        if (!hth_bench_child_start(&c->p[c->n++].child, argv, NULL))
            return HTH_E_IO;
    char *list = hth_strdup("");
    enum hth_err err = HTH_OK;
    for (uint32_t i = 0; i < n && err == HTH_OK; i++) {
        struct process *p = &c->p[i];
        err = receive_line(p, line);
        if (err == HTH_OK && sscanf(line, "hello %64s %u %u", p->id, &p->port, &p->floor_port) != 3)
            err = HTH_E_MALFORMED;
        char *longer = hth_asprintf("%s %s:%u:%u", list, p->id, p->port, p->floor_port);
        hth_free(list);
        list = longer;
    }
    for (uint32_t i = 0; i < n && err == HTH_OK; i++) {
        char *group = hth_asprintf("group %u %u%s\n", i, n, list);
        (void)hth_bench_child_say(&c->p[i].child, group); /* a failure shows on reading */
        hth_free(group);
    }
    for (uint32_t i = 0; i < n && err == HTH_OK; i++)
        err = receive_line(&c->p[i], line);
    hth_free(list);
    return err;
}

/* Sends one line to all members, then reads the answer of each. */
static enum hth_err ask_all(struct allreduce_crew *c, const char *line,
                            char answer[][LINE_BYTES_MAX])
{
    char one[LINE_BYTES_MAX];
    for (uint32_t i = 0; i < c->n; i++)
        (void)hth_bench_child_say(&c->p[i].child, line);
    for (uint32_t i = 0; i < c->n; i++)
        HTH_TRY(receive_line(&c->p[i], answer != NULL ? answer[i] : one));
    return HTH_OK;
}

/* One round: time of the slowest member, compute time and bytes sent of all members. */
struct took {
    double seconds, cpu_seconds;
    uint64_t bytes;
};

static enum hth_err time_once(struct allreduce_crew *c, const char *what, uint32_t rounds,
                              struct took *out)
{
    static char answer[HTH_BENCH_MEMBERS_MAX][LINE_BYTES_MAX];
    char *line = hth_asprintf("%s %u\n", what, rounds);
    enum hth_err err = ask_all(c, line, answer);
    hth_free(line);
    HTH_TRY(err);
    unsigned all_dropped = 0;
    *out = (struct took){0};
    for (uint32_t i = 0; i < c->n; i++) {
        int64_t ns, cpu;
        uint64_t bytes;
        unsigned dropped;
        if (sscanf(answer[i], "done %" SCNd64 " %" SCNd64 " %" SCNu64 " %u", &ns, &cpu,
                   &bytes, &dropped) != 4)
            return HTH_E_MALFORMED;
        all_dropped += dropped;
        out->seconds = HTH_MAX(out->seconds, (double)ns * 1e-9 / rounds);
        out->cpu_seconds += (double)cpu * 1e-9 / rounds;
        out->bytes += bytes;
    }
    return all_dropped == 0 ? HTH_OK : HTH_E_AGAIN;
}

/* Times rounds; repeats them a few times if members were dropped, because a busy machine can keep a
 * member from running that long. */
static enum hth_err timed(struct allreduce_crew *c, const char *what, uint32_t rounds,
                          struct took *out)
{
    enum hth_err err = HTH_E_AGAIN;
    for (int i = 0; i < TRIES_MAX && err == HTH_E_AGAIN; i++)
        err = time_once(c, what, rounds, out);
    if (err == HTH_E_AGAIN)
        hth_cli_say_error("members were dropped from rounds, because this machine is too busy; try "
                          "again when it is idle");
    return err;
}

/* ---- OpenMPI ------------------------------------------------------------------------------- */

/* Seconds of one MPI_Allreduce over TCP, mean of the slowest rank; 0: OpenMPI is missing. */
static double openmpi(const char *program, uint32_t n, uint64_t bytes, uint32_t rounds)
{
    double seconds = 0;
    char line[256];
    if (program == NULL || access(program, X_OK) != 0)
        return 0;
    char *command = hth_asprintf(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe "
        "--mca btl tcp,self -n %u %s %" PRIu64 " %u 2>/dev/null",
        n, program, bytes, rounds);
    FILE *f = popen(command, "r");
    hth_free(command);
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        double value;
        if (sscanf(line, "seconds %lf", &value) == 1)
            seconds = value;
    }
    if (f != NULL)
        pclose(f);
    static bool said;
    if (seconds == 0 && !said)
        hth_cli_say_error("OpenMPI is not measured: mpirun with %s gave no time", program);
    said |= seconds == 0;
    return seconds;
}

/* Prints why the OpenMPI column is missing. */
static void say_without_openmpi(const char *program)
{
    if (program == NULL || access(program, X_OK) != 0)
        hth_cli_say_error(
            "OpenMPI is not measured: there is no %s; build it with OpenMPI installed "
            "(Debian: libopenmpi-dev), or give --mpi PROGRAM",
            program != NULL ? program : "bench_mpi_allreduce");
}

/* The program in the build tree: build/app/hearth finds build/benchmarks/bench_mpi_allreduce. */
static char *mpi_program(void)
{
    char path[1024];
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (len <= 0)
        return NULL;
    path[len] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return NULL;
        *slash = '\0';
    }
    return hth_asprintf("%s/benchmarks/bench_mpi_allreduce", path);
}

/* ---- one figure ---------------------------------------------------------------------------- */

static enum hth_err verify(struct hth_bench *b, struct allreduce_crew *c,
                           const struct allreduce_figure *f)
{
    static char answer[HTH_BENCH_MEMBERS_MAX][LINE_BYTES_MAX];
    struct took took;
    double error;
    char *line = hth_asprintf("prepare %" PRIu64 " %s %" PRIu64 "\n", f->bytes, f->format, b->seed);
    enum hth_err err = ask_all(c, line, NULL);
    hth_free(line);
    HTH_TRY(err);
    HTH_TRY(timed(c, "rounds", 1, &took));
    HTH_TRY(ask_all(c, "check\n", answer));
    for (uint32_t i = 0; i < c->n; i++) {
        if (sscanf(answer[i], "error %lf", &error) != 1 || !(error <= f->error_max)) {
            hth_cli_say_error("n %u, %s: the result is wrong: %s", f->n, f->format, answer[i]);
            return HTH_E_CORRUPT;
        }
    }
    return HTH_OK;
}

struct allreduce_samples {
    struct hth_bench_samples seconds, cpu, floor, floor_cpu, mpi;
};

static void emit(struct hth_bench *b, const struct allreduce_figure *f,
                 const struct allreduce_samples *s, const struct took *last)
{
    double seconds = hth_bench_median(&s->seconds), least = hth_bench_median(&s->floor);
    json_t *row = json_object();
    hth_json_count(row, "n", f->n);
    hth_json_count(row, "bytes", f->bytes);
    hth_json_text(row, "format", f->format);
    hth_json_real(row, "seconds", hth_bench_round(seconds));
    hth_json_count(row, "wire_bytes", last->bytes);
    hth_json_real(row, "gb_per_s", hth_bench_round((double)f->bytes / seconds / 1e9));
    hth_json_real(row, "spread", hth_bench_spread(&s->seconds));
    hth_json_real(row, "cpu_seconds", hth_bench_round(hth_bench_median(&s->cpu)));
    hth_json_real(row, "floor_seconds", hth_bench_round(least));
    hth_json_real(row, "floor_ratio", hth_bench_round(seconds / least));
    hth_json_real(row, "floor_cpu_seconds", hth_bench_round(hth_bench_median(&s->floor_cpu)));
    hth_json_flag(row, "tls", !b->plain);
    if (s->mpi.count > 0) {
        double theirs = hth_bench_median(&s->mpi);
        hth_json_real(row, "openmpi_seconds", hth_bench_round(theirs));
        hth_json_real(row, "openmpi_ratio", hth_bench_round(seconds / theirs));
    }
    hth_bench_row_take(b, row);
}

static enum hth_err measure(struct hth_bench *b, struct allreduce_crew *c,
                            const struct allreduce_figure *f, const char *mpi)
{
    static struct allreduce_samples samples;
    struct took ours, plain;
    HTH_TRY(verify(b, c, f));
    HTH_TRY(timed(c, "rounds", 2, &ours));
    double aim_s = b->budget_us > 0 ? HTH_MIN(AIM_S, (double)b->budget_us / 1e6) : AIM_S;
    uint32_t rounds = (uint32_t)HTH_MAX(HTH_MIN(aim_s / ours.seconds, (double)ROUNDS_MAX), 3.0);
    hth_bench_begin(&samples.seconds);
    hth_bench_begin(&samples.cpu);
    hth_bench_begin(&samples.floor);
    hth_bench_begin(&samples.floor_cpu);
    hth_bench_begin(&samples.mpi);
    while (hth_bench_more(b, &samples.seconds, 5)) {
        HTH_TRY(timed(c, "rounds", rounds, &ours));
        /* Each member sent 1 / n of these bytes, in equal pieces to each other member. */
        char *what = hth_asprintf("floor %" PRIu64, ours.bytes / f->n / (f->n - 1));
        enum hth_err err = timed(c, what, rounds, &plain);
        hth_free(what);
        HTH_TRY(err);
        hth_bench_add(&samples.seconds, ours.seconds);
        hth_bench_add(&samples.cpu, ours.cpu_seconds);
        hth_bench_add(&samples.floor, plain.seconds);
        hth_bench_add(&samples.floor_cpu, plain.cpu_seconds);
        double mpi_s = openmpi(mpi, f->n, f->bytes, rounds);
        if (mpi_s > 0)
            hth_bench_add(&samples.mpi, mpi_s);
    }
    emit(b, f, &samples, &ours);
    return HTH_OK;
}

static enum hth_err measure_all(struct hth_bench *b, const struct own_flags *own)
{
    char *mpi = own->mpi != NULL ? hth_strdup(own->mpi) : mpi_program();
    enum hth_err err = HTH_OK;
    say_without_openmpi(mpi);
    for (size_t i = 0; i < HTH_ARRAY_LEN(sizes_n) && err == HTH_OK; i++) {
        struct allreduce_crew crew = {.n = 0};
        if (own->only_n != 0 && own->only_n != sizes_n[i])
            continue;
        err = crew_start(&crew, sizes_n[i], b->plain);
        for (size_t k = 0; k < HTH_ARRAY_LEN(sizes_bytes) * HTH_ARRAY_LEN(formats); k++) {
            struct allreduce_figure f = formats[k % HTH_ARRAY_LEN(formats)];
            f.n = sizes_n[i];
            f.bytes = sizes_bytes[k / HTH_ARRAY_LEN(formats)];
            bool wanted = (own->only_bytes == 0 || own->only_bytes == f.bytes) &&
                          (own->only_format == NULL || strcmp(own->only_format, f.format) == 0);
            if (wanted && err == HTH_OK)
                err = measure(b, &crew, &f, mpi);
        }
        crew_end(&crew);
    }
    hth_free(mpi);
    return err;
}

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_MEMBER = 0x6100, KEY_N, KEY_BYTES, KEY_FORMAT, KEY_MPI };

static bool is_n(uint32_t n)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(sizes_n); i++)
        if (sizes_n[i] == n)
            return true;
    return false;
}

static bool is_bytes(uint64_t bytes)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(sizes_bytes); i++)
        if (sizes_bytes[i] == bytes)
            return true;
    return false;
}

static bool is_format(const char *name)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(formats); i++)
        if (strcmp(formats[i].format, name) == 0)
            return true;
    return false;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct own_flags *own = state->input;
    switch (key) {
    case KEY_MEMBER:
        own->as_member = true;
        return 0;
    case KEY_N:
        own->only_n = (uint32_t)hth_cli_number(state, "--n", arg, 2, 8);
        if (!is_n(own->only_n))
            argp_error(state, "--n '%s': expected 2, 4 or 8", arg);
        return 0;
    case KEY_BYTES:
        if (hth_cli_parse_size(arg, &own->only_bytes) != HTH_OK || !is_bytes(own->only_bytes))
            argp_error(state, "--bytes '%s': expected 4KiB, 4MiB or 64MiB", arg);
        return 0;
    case KEY_FORMAT:
        own->only_format = arg;
        if (!is_format(arg))
            argp_error(state, "--format '%s': expected fp32, fp16, bf16 or int8", arg);
        return 0;
    case KEY_MPI:
        own->mpi = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int hth_bench_allreduce_main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"as-member", KEY_MEMBER, NULL, OPTION_HIDDEN, "One of the processes", 0},
        {"n", KEY_N, "N", 0, "Measure only 2, 4 or 8 processes (default: all)", 0},
        {"bytes", KEY_BYTES, "SIZE", 0,
         "Measure only vectors of 4KiB, 4MiB or 64MiB (default: all)", 0},
        {"format", KEY_FORMAT, "NAME", 0, "Measure only fp32, fp16, bf16 or int8 (default: all)",
         0},
        {"mpi", KEY_MPI, "PROGRAM", 0, "Path of bench_mpi_allreduce (default: beside this program)",
         0},
        {0}};
    static const struct argp own_argp = {.options = options, .parser = parse};
    struct own_flags own = {0};
    struct hth_bench b;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--as-member") == 0)
            return hth_bench_member_main(i + 1 < argc && strcmp(argv[i + 1], "--plain") == 0);
    }
    int code = hth_bench_open(&b, argc, argv,
                              "Time the mean of the vectors of n processes on this machine, beside "
                              "the same bytes through plain sockets and OpenMPI's MPI_Allreduce.",
                              &own_argp, &own);
    if (code != HTH_EXIT_OK)
        return code;
    return hth_bench_finish(&b, "measuring the reduction", measure_all(&b, &own));
}
