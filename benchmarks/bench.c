/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c: hearth bench: the table of questions, their options, and the printing of rows. */
#define _DEFAULT_SOURCE /* getloadavg */
#include "benchmarks/bench.h"

#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BUDGET_US (8 * HTH_US_PER_S)

static const struct hth_question questions[] = {
    {"allreduce", hth_bench_allreduce_main, "about 3 min",
     "the mean of n processes' vectors, beside OpenMPI"},
    {"expert", hth_bench_expert_main, "about 5 min",
     "rows/s of one hosted expert, beside the bare kernel"},
    {"gate", hth_bench_gate_main, "about 2 s", "beam search over a warm directory"},
    {"kernels", hth_bench_kernels_main, "about 5 min",
     "bare kernels, beside the core's peak and PyTorch"},
    {"monitor", hth_bench_monitor_main, "about 4 min",
     "a run's page: memory, bytes, a thousand readers, cost to the run"},
    {"peers", hth_bench_peers_main, "about 1 h",
     "hivemind's own work, by hivemind and by hearth in turns"},
    {"picture", hth_bench_picture_main, "about 1 min",
     "masks of picture models, and a training step beside PyTorch"},
    {"profile", hth_bench_profile_main, "about 2 min",
     "a profile of this machine for simulations; also --profile"},
    {"step", hth_bench_step_main, "about 15 s",
     "one mixture-of-experts layer: requests, bytes, time"},
    {"tls", hth_bench_tls_main, "about 10 s", "bytes/s of one stream, with TLS and without"},
};

/* ---- the verb ------------------------------------------------------------------------------ */

int hth_verb_bench(int argc, char **argv)
{
    static char profile[] = "profile";
    static const char examples[] = "  hearth bench kernels --rows 8,512\n"
                                   "  hearth bench peers --case A5 --json\n";
    if (argc > 1 && strcmp(argv[1], "--profile") == 0)
        argv[1] = profile;
    return hth_cli_ask(questions, HTH_ARRAY_LEN(questions), examples, argc, argv);
}

/* ---- shared options ------------------------------------------------------------------------ */

enum { KEY_JSON = 0x5000, KEY_PLAIN, KEY_WIRE, KEY_REPEATS, KEY_THREADS, KEY_SEED, KEY_BUDGET };

static const struct argp_option options[] = {
    {"json", KEY_JSON, NULL, 0, "Print one JSON object per row", 1},
    {"plain", KEY_PLAIN, NULL, 0, "Measure without TLS, to see its cost", 1},
    {"wire", KEY_WIRE, "TYPE", 0,
     "Type of rows on the wire: fp32, bf16, fp16, int8, or auto for the type of a run", 1},
    {"repeats", KEY_REPEATS, "N", 0, "Repeats of each figure, of which the median is printed", 1},
    {"runs", 0, NULL, OPTION_ALIAS, NULL, 1},
    {"budget", KEY_BUDGET, "TIME", 0, "Stop repeating a figure after this (default 8s)", 1},
    {"threads", KEY_THREADS, "N", 0, "Compute threads of the hosts (default: one per core)", 1},
    {"seed", KEY_SEED, "N", 0, "Seed of weights and inputs", 1},
    {0},
};

static const struct {
    const char *name;
    enum hth_dtype type;
} wires[] = {
    {"auto", 0}, {"fp32", HTH_F32}, {"bf16", HTH_BF16}, {"fp16", HTH_F16}, {"int8", HTH_I8}};

static bool parse_wire(const char *name, enum hth_dtype *out)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(wires); i++) {
        if (strcmp(wires[i].name, name) == 0) {
            *out = wires[i].type;
            return true;
        }
    }
    return false;
}

const char *hth_bench_wire_name(const struct hth_bench *b)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(wires); i++) {
        if (wires[i].type == b->wire)
            return wires[i].name;
    }
    return NULL;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_bench *b = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &b->log;
        state->child_inputs[1] = &b->device;
        break;
    case KEY_JSON:
        b->json = true;
        break;
    case KEY_PLAIN:
        b->plain = true;
        break;
    case KEY_WIRE:
        if (!parse_wire(arg, &b->wire))
            argp_error(state, "--wire '%s': expected fp32, bf16, fp16, int8 or auto", arg);
        break;
    case KEY_REPEATS:
        b->repeats = (uint32_t)hth_cli_number(state, "--repeats", arg, 1, HTH_BENCH_REPEATS_MAX);
        break;
    case KEY_BUDGET:
        if (hth_cli_parse_time(arg, &b->budget_us) != HTH_OK)
            argp_error(state, "--budget '%s': expected a time such as 500ms or 5s", arg);
        break;
    case KEY_THREADS:
        b->threads = (uint32_t)hth_cli_number(state, "--threads", arg, 1, 256);
        break;
    case KEY_SEED:
        b->seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s': this benchmark takes only options", arg);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_child shared_children[] = {
    {&hth_cli_log_argp, 0, NULL, 0}, {&hth_device_argp, 0, NULL, 0}, {0}};
const struct argp hth_bench_argp = {
    .options = options, .parser = parse, .children = shared_children};

struct inputs {
    struct hth_bench *bench;
    void *own;
};

static error_t parse_top(int key, char *arg, struct argp_state *state)
{
    struct inputs *in = state->input;
    (void)arg;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = in->bench;
    state->child_inputs[1] = in->own;
    return 0;
}

/* ---- the machine --------------------------------------------------------------------------- */

uint32_t hth_bench_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

uint32_t hth_bench_threads(const struct hth_bench *b)
{
    return b->threads > 0 ? b->threads : hth_bench_cores();
}

void hth_bench_cpu(char *out, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, size, "unknown processor");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(out, size, "%s", colon + 2);
        break;
    }
    if (f != NULL)
        fclose(f);
}

static void say_machine(const struct hth_bench *b)
{
    char model[128], device[64];
    double load[1] = {0};
    struct hth_backend_info info[8];
    size_t count = hth_backend_list(info, HTH_ARRAY_LEN(info));
    const char *detail = ""; /* the library's name; packed kernels have none */
    hth_bench_cpu(model, sizeof(model));
    for (size_t i = 0; i < count; i++) {
        if (strcmp(info[i].name, hth_backend_name(b->backend)) == 0 &&
            hth_backend_isa(b->backend)[0] == '\0')
            detail = info[i].detail;
    }
    if (getloadavg(load, 1) != 1)
        load[0] = 0;
    fprintf(stderr, "machine: %s, %u cores, load %.1f; back end %s%s%s%s; streams: %s\n", model,
            hth_bench_cores(), load[0], hth_device_text(b->backend, device),
            detail[0] != '\0' ? " (" : "", detail, detail[0] != '\0' ? ")" : "",
            b->plain ? "plain" : "TLS 1.3");
}

/* The type that train.wire: auto sends (cli/runfile.c:hth_runfile_wire). */
static enum hth_dtype wire_auto(const struct hth_bench *b)
{
    const char *compute = b->device.compute;
    return compute != NULL && strcmp(compute, "fp32") == 0 ? HTH_F32 : HTH_BF16;
}

int hth_bench_open(struct hth_bench *b, int argc, char **argv, const char *doc,
                   const struct argp *own, void *input)
{
    struct argp_child children[] = {{&hth_bench_argp, 0, NULL, 0}, {own, 0, NULL, 0}, {0}};
    struct argp top = {.parser = parse_top, .children = children, .doc = doc};
    struct inputs in = {b, input};
    *b = (struct hth_bench){
        .seed = 1, .log = {.spec = "warn"}, .may_be_card = b->may_be_card, .wire = b->wire};
    if (argp_parse(&top, argc, argv, 0, NULL, &in) != 0)
        return HTH_EXIT_USAGE;
    if (b->wire == 0)
        b->wire = wire_auto(b);
    if (b->device.device != NULL && strcmp(b->device.device, "cpu") != 0) {
        if (b->may_be_card)
            return HTH_EXIT_OK;
        hth_cli_say_error("this benchmark measures the CPU; for a card use 'hearth bench kernels "
                          "--device cuda'");
        return HTH_EXIT_USAGE;
    }
    if (hth_device_choose(&b->device, HTH_MATMUL_AUTO, &b->backend) != HTH_OK)
        return HTH_EXIT_DEVICE;
    say_machine(b);
    return HTH_EXIT_OK;
}

void hth_bench_close(struct hth_bench *b)
{
    hth_free(b->head);
    b->head = NULL;
}

int hth_bench_finish(struct hth_bench *b, const char *what, enum hth_err err)
{
    hth_bench_close(b);
    if (err == HTH_OK)
        return HTH_EXIT_OK;
    hth_cli_say_error("%s: %s", what, hth_err_text(err));
    return hth_exit_of(err);
}

/* ---- rows ---------------------------------------------------------------------------------- */

static int width_of(const char *name)
{
    return (int)HTH_MAX(strlen(name) + 2, (size_t)12);
}

/* Prints the table's head, again whenever the names change. */
static void print_head(struct hth_bench *b, json_t *row)
{
    const char *key;
    json_t *value;
    char *head = hth_strdup("");
    json_object_foreach(row, key, value)
    {
        char *longer = hth_asprintf("%s%*s", head, width_of(key), key);
        hth_free(head);
        head = longer;
    }
    if (b->head == NULL || strcmp(b->head, head) != 0)
        printf("%s%s\n", b->head == NULL ? "" : "\n", head);
    hth_free(b->head);
    b->head = head;
}

static void print_cell(const char *key, const json_t *value)
{
    int width = width_of(key) - 1; /* a space separates long words */
    if (json_is_string(value))
        printf(" %*s", width, json_string_value(value));
    else if (json_is_integer(value))
        printf(" %*lld", width, (long long)json_integer_value(value));
    else if (json_is_real(value))
        printf(" %*.6g", width, json_real_value(value));
    else
        printf(" %*s", width, json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "-");
}

void hth_bench_row_take(struct hth_bench *b, json_t *row)
{
    const char *key;
    json_t *value;
    HTH_ASSERT(row != NULL);
    if (b->json) {
        json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    } else {
        print_head(b, row);
        json_object_foreach(row, key, value) print_cell(key, value);
    }
    putchar('\n');
    fflush(stdout);
    json_decref(row);
}

/* ---- time and samples ---------------------------------------------------------------------- */

int64_t hth_bench_now_ns(void *arg)
{
    struct timespec now;
    (void)arg;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int64_t hth_bench_now_us(void *arg)
{
    return hth_bench_now_ns(arg) / 1000;
}

void hth_bench_begin(struct hth_bench_samples *s)
{
    s->count = 0;
    s->start_us = hth_bench_now_us(NULL);
}

bool hth_bench_more(const struct hth_bench *b, const struct hth_bench_samples *s, uint32_t usual)
{
    uint32_t want = b->repeats > 0 ? b->repeats : usual;
    if (s->count == 0)
        return true;
    int64_t budget_us = b->budget_us > 0 ? b->budget_us : BUDGET_US;
    return s->count < want && hth_bench_now_us(NULL) - s->start_us < budget_us;
}

void hth_bench_add(struct hth_bench_samples *s, double value)
{
    HTH_ASSERT(s->count < HTH_BENCH_REPEATS_MAX);
    uint32_t at = s->count++;
    for (; at > 0 && s->value[at - 1] > value; at--)
        s->value[at] = s->value[at - 1];
    s->value[at] = value;
}

double hth_bench_median(const struct hth_bench_samples *s)
{
    uint32_t n = s->count;
    return n == 0 ? 0 : (s->value[(n - 1) / 2] + s->value[n / 2]) / 2;
}

double hth_bench_spread(const struct hth_bench_samples *s)
{
    double median = hth_bench_median(s);
    return median > 0 ? hth_bench_round((s->value[s->count - 1] - s->value[0]) / median) : 0;
}

double hth_bench_round(double value)
{
    if (!isfinite(value) || value == 0)
        return value;
    double scale = pow(10, 3 - floor(log10(fabs(value))));
    return round(value * scale) / scale;
}

/* ---- random inputs ------------------------------------------------------------------------- */

void hth_bench_normals(uint64_t seed, uint32_t stream, float *out, size_t count)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (size_t i = 0; i < count; i += 4) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), stream, 0, 0x62656e63u};
        float normal[4];
        hth_philox_normal(counter, key, normal);
        memcpy(out + i, normal, HTH_MIN(count - i, (size_t)4) * sizeof(float));
    }
}

double hth_bench_distance(const float *a, const float *b, size_t count)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)a[i] - (double)b[i];
        diff += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    if (!isfinite(diff) || !isfinite(norm))
        return INFINITY;
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}
