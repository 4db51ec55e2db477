/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.c: hearth bench kernels: times the bare kernels beside the core's peak.
 *
 * Each table of kernels and PyTorch take turns at every operation (timing.h), each timed by its own
 * processor time. All of it runs in a job of a real environment, whose idle workers are the
 * helpers.
 */
#include "benchmarks/bench.h"
#include "benchmarks/device.h"
#include "benchmarks/kernels/bench.h"
#include "benchmarks/timing.h"
#include "benchmarks/torch.h"
#include "cli/json.h"
#include "core/mem.h"
#include "kernels/isa.h"
#include "kernels/peak.h"
#include "kernels/quant.h"
#include "net/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX       16
#define TABLES_MAX     8
#define ROUNDS         12
#define BUDGET_US      (2 * HTH_US_PER_S) /* for all bursts of one line */
#define TORCH_SHORT_S  0.002              /* shorter runs of PyTorch are timed several at once */
#define BESIDE         2                  /* types on PyTorch's side */
#define ADAMW_ELEMENTS (UINT64_C(100) << 20)
#define INT8_ELEMENTS  (UINT64_C(32) << 20)

/* One set of kernels. */
struct kernel_table {
    const struct hth_backend *backend;
    const char *type, *isa;
};

struct kernels {
    struct hth_bench bench;
    struct hth_job job;
    struct hth_env *env;
    uint32_t d, rows[ROWS_MAX], rows_count;
    const char *ops, *isa, *type, *python;
    struct kernel_table table[TABLES_MAX];
    uint32_t tables;
    struct hth_bench_peaks peaks;
    struct hth_team *team;
    struct hth_bench_torch *torch;
    enum hth_err err;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_DIM = 0x5800, KEY_ROWS, KEY_OP, KEY_ISA, KEY_TYPE, KEY_PYTHON };

static const struct argp_option options[] = {
    {"d", KEY_DIM, "N", 0, "Width of a row (default 1024)", 0},
    {"dim", KEY_DIM, "N", OPTION_ALIAS, NULL, 0},
    {"rows", KEY_ROWS, "LIST", 0, "Rows in a batch (default 1,8,32,128,512,2048)", 0},
    {"op", KEY_OP, "LIST", 0, "Operations, such as ffn_forward,adamw (default: all)", 0},
    {"isa", KEY_ISA, "NAME", 0,
     "Instruction set (default: HEARTH_ISA, else all of this CPU except generic)", 0},
    {"type", KEY_TYPE, "NAME", 0, "fp32 or bf16, on a card also tf32 (default: all of them)", 0},
    {"python", KEY_PYTHON, "PROGRAM", 0,
     "Python with PyTorch; 'no' measures without (default: that of 'hearth bench peers', else "
     "python3)",
     0},
    {0},
};

static void parse_rows(struct kernels *k, const char *arg, struct argp_state *state)
{
    char *list = hth_strdup(arg), *rest = list, *word;
    k->rows_count = 0;
    while ((word = strtok_r(rest, ",", &rest)) != NULL) {
        if (k->rows_count == ROWS_MAX)
            argp_error(state, "--rows: at most %d numbers", ROWS_MAX);
        else
            k->rows[k->rows_count++] = (uint32_t)hth_cli_number(state, "--rows", word, 1, 65536);
    }
    hth_free(list);
    if (k->rows_count == 0)
        argp_error(state, "--rows '%s': expected numbers such as 8,512", arg);
}

/* Whether `word` is one of a list separated by commas. */
static bool listed(const char *list, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ','), at += at != NULL) {
        if (strncmp(at, word, len) == 0 && (at[len] == '\0' || at[len] == ','))
            return true;
    }
    return false;
}

static bool known_op(const char *word)
{
    for (int kind = 0; kind < HTH_BENCH_KINDS; kind++) {
        if (strcmp(word, hth_bench_kind_name((enum hth_bench_kind)kind)) == 0)
            return true;
    }
    return false;
}

static void check_ops(const char *arg, struct argp_state *state)
{
    char *list = hth_strdup(arg), *rest = list, *word = strtok_r(rest, ",", &rest);
    if (word == NULL)
        argp_error(state, "--op '%s': the names are those in the column op, such as %s", arg,
                   hth_bench_kind_name(HTH_BENCH_FFN_FORWARD));
    for (; word != NULL; word = strtok_r(rest, ",", &rest)) {
        if (!known_op(word))
            argp_error(state, "--op '%s': the names are those in the column op, such as %s", word,
                       hth_bench_kind_name(HTH_BENCH_FFN_FORWARD));
    }
    hth_free(list);
}

static void check_isa(const char *arg, struct argp_state *state)
{
    size_t i = 0;
    while (hth_isa_name(i) != NULL && strcmp(arg, hth_isa_name(i)) != 0)
        i++;
    if (hth_isa_name(i) == NULL)
        argp_error(state, "--isa '%s': expected generic, avx2, avx512, avx512bf16 or amxbf16", arg);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct kernels *k = state->input;
    switch (key) {
    case KEY_DIM:
        k->d = (uint32_t)hth_cli_number(state, "--d", arg, 1, 16384);
        break;
    case KEY_ROWS:
        parse_rows(k, arg, state);
        break;
    case KEY_OP:
        k->ops = arg;
        check_ops(arg, state);
        break;
    case KEY_ISA:
        k->isa = arg;
        check_isa(arg, state);
        break;
    case KEY_TYPE:
        k->type = arg;
        if (strcmp(arg, "fp32") != 0 && strcmp(arg, "bf16") != 0 && strcmp(arg, "tf32") != 0)
            argp_error(state, "--type '%s': expected fp32 or bf16, or tf32 on a card", arg);
        break;
    case KEY_PYTHON:
        k->python = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp argp = {.options = options, .parser = parse};

/* ---- the tables of kernels ----------------------------------------------------------------- */

static void add_table(struct kernels *k, const struct hth_backend *backend)
{
    enum hth_matmul compute = hth_backend_compute(backend);
    const char *isa =
        hth_backend_isa(backend)[0] != '\0' ? hth_backend_isa(backend) : hth_backend_name(backend);
    struct kernel_table t = {backend, hth_matmul_name(compute), isa};
    if ((k->type == NULL || strcmp(k->type, t.type) == 0) && k->tables < TABLES_MAX)
        k->table[k->tables++] = t;
}

static void find_packed(struct kernels *k)
{
    const struct hth_backend *packed[HTH_PACKED_MAX];
    size_t count = hth_backend_packed_all(packed);
    for (size_t i = 0; i < count; i++) {
        const char *isa = hth_backend_isa(packed[i]);
        bool plain = strcmp(isa, "generic") == 0;
        if (k->isa != NULL ? strcmp(k->isa, isa) != 0 : plain)
            continue;
        if (!plain || hth_backend_compute(packed[i]) == HTH_MATMUL_F32 || k->type != NULL)
            add_table(k, packed[i]); /* bf16 in plain C only with --isa generic */
    }
}

/* Finds the back end of --backend alone, else every set of packed kernels, and BLAS. */
static enum hth_err find_tables(struct kernels *k)
{
    const struct hth_backend *backend;
    if (k->bench.device.backend != NULL && k->isa == NULL) {
        add_table(k, k->bench.backend);
    } else {
        if (k->isa == NULL)
            k->isa = hth_device_isa();
        find_packed(k);
        if (k->isa == NULL && hth_backend_blas(NULL, &backend) == HTH_OK)
            add_table(k, backend);
    }
    if (k->tables > 0)
        return HTH_OK;
    const char *why = k->isa != NULL ? hth_isa_why_not(k->isa) : NULL;
    hth_cli_say_error("this CPU has no kernels for --isa %s --type %s%s%s",
                      k->isa != NULL ? k->isa : "auto", k->type != NULL ? k->type : "auto",
                      why != NULL ? ": " : "", why != NULL ? why : "");
    return HTH_E_UNSUPPORTED;
}

/* ---- PyTorch ------------------------------------------------------------------------------- */

/* One type's case on PyTorch's side. */
struct beside {
    const char *type;
    bool runs;
    double best_s; /* 0: not measured */
};

static void torch_turn(struct hth_bench_torch *torch, struct beside *b)
{
    double s = b->runs ? hth_bench_torch_go(torch, b->type, 2) : 0;
    while (s > 0 && s < TORCH_SHORT_S && (b->best_s == 0 || s < b->best_s)) {
        b->best_s = s;
        s = hth_bench_torch_go(torch, b->type, 8);
    }
    if (s > 0 && (b->best_s == 0 || s < b->best_s))
        b->best_s = s;
}

/* ---- reports ------------------------------------------------------------------------------- */

static json_t *number_or_null(double value)
{
    return value > 0 ? hth_json_number(hth_bench_round(value)) : json_null();
}

struct kernel_line {
    enum hth_bench_kind kind;
    const char *type, *isa;
    uint32_t d, rows;
    uint64_t elements; /* input numbers */
    double torch_s;
};

static struct kernel_line line_of(const struct kernels *k, enum hth_bench_kind kind, uint32_t rows)
{
    uint64_t flat = kind == HTH_BENCH_ADAMW ? ADAMW_ELEMENTS : INT8_ELEMENTS;
    return (struct kernel_line){.kind = kind,
                                .d = k->d,
                                .rows = rows,
                                .elements =
                                    hth_bench_kind_is_flat(kind) ? flat : (uint64_t)rows * k->d};
}

/* Names type and instruction set. Flat vectors are fp32 for every type of products, and have loops
 * of their own. */
static void name_line(struct kernel_line *l, const struct kernel_table *t)
{
    bool flat = hth_bench_kind_is_flat(l->kind);
    const char *isa = t->isa;
    if (l->kind == HTH_BENCH_QUANTIZE_INT8 || l->kind == HTH_BENCH_DEQUANTIZE_INT8)
        isa = hth_quant_isa();
    else if (flat && (strcmp(isa, "avx512bf16") == 0 || strcmp(isa, "amxbf16") == 0))
        isa = "avx512";
    l->isa = isa;
    l->type = flat ? "fp32" : t->type;
}

static void print_json(struct kernels *k, const struct kernel_line *l,
                       const struct hth_bench_timing *t, int many)
{
    double s = hth_bench_timing_best(t, many != 0), flops = hth_bench_case_flops(t->work);
    double peak = hth_bench_timing_peak(t, many != 0);
    bool multiplies = hth_bench_kind_multiplies(l->kind);
    json_t *row = json_object();
    json_object_set_new(row, "op", json_string(hth_bench_kind_name(l->kind)));
    json_object_set_new(row, "type", json_string(l->type));
    json_object_set_new(row, "isa", json_string(l->isa));
    json_object_set_new(row, "d", json_integer(l->d));
    json_object_set_new(row, "rows", json_integer(l->rows));
    json_object_set_new(row, "elements", json_integer((json_int_t)l->elements));
    json_object_set_new(row, "threads", json_integer(many ? hth_team_width(k->team) : 1));
    hth_json_real(row, "ms", hth_bench_round(s * 1e3));
    json_object_set_new(row, "gflops", number_or_null(multiplies ? flops / s * 1e-9 : 0));
    json_object_set_new(row, "peak_gflops", number_or_null(multiplies ? peak * 1e-9 : 0));
    json_object_set_new(row, "peak_fraction", number_or_null(multiplies ? flops / s / peak : 0));
    json_object_set_new(row, "gb_per_s", number_or_null(hth_bench_case_bytes(t->work) / s * 1e-9));
    json_object_set_new(row, "torch_ms", number_or_null(many ? 0 : l->torch_s * 1e3));
    hth_bench_row_take(&k->bench, row);
}

static void print_head(const struct kernels *k)
{
    char many[16] = "";
    if (k->team != NULL)
        snprintf(many, sizeof(many), "%u thr. ms", hth_team_width(k->team));
    printf("%-23s%-5s%-11s%5s%10s%9s%6s%11s%6s%10s%6s\n", "op", "type", "isa", "rows", "ms", "rate",
           "peak", many, "x", "torch ms", "x");
}

/* Prints "-" for a value that was not measured. */
static void print_cell(int width, int decimals, double value)
{
    if (value > 0)
        printf("%*.*f", width, decimals, value);
    else
        printf("%*s", width, "-");
}

static void print_human(const struct kernel_line *l, const struct hth_bench_timing *t)
{
    double s = hth_bench_timing_best(t, false), many_s = hth_bench_timing_best(t, true);
    double flops = hth_bench_case_flops(t->work);
    bool multiplies = hth_bench_kind_multiplies(l->kind);
    printf("%-23s%-5s%-11s%5u", hth_bench_kind_name(l->kind), l->type, l->isa, l->rows);
    print_cell(10, s < 0.01 ? 4 : 2, s * 1e3);
    print_cell(7, 1, (multiplies ? flops : hth_bench_case_bytes(t->work)) / s * 1e-9);
    printf("%2s", multiplies ? "GF" : "GB");
    if (multiplies)
        printf("%5.0f%%", 100 * flops / s / hth_bench_timing_peak(t, false));
    else
        printf("%6s", "");
    print_cell(11, many_s < 0.01 ? 4 : 2, many_s * 1e3);
    print_cell(6, 2, many_s > 0 ? s / many_s : 0);
    print_cell(10, 2, l->torch_s * 1e3);
    print_cell(6, 2, l->torch_s / s);
    putchar('\n');
    fflush(stdout);
}

static void report(struct kernels *k, const struct kernel_line *l, const struct hth_bench_timing *t)
{
    if (!k->bench.json) {
        print_human(l, t);
        return;
    }
    for (int many = 0; many < (k->team != NULL ? 2 : 1); many++)
        print_json(k, l, t, many);
}

/* ---- one line of the table ----------------------------------------------------------------- */

static enum hth_err make_case(const struct kernel_line *l, const struct hth_backend *backend,
                              struct hth_bench_timing *timing)
{
    const struct hth_bench_options o = {
        .backend = backend, .kind = l->kind, .dim = l->d, .rows = l->rows, .elements = l->elements};
    enum hth_err err = hth_bench_case_new(&o, &timing->work);
    if (err != HTH_OK)
        hth_cli_say_error("%s, %s, %s, %u rows: %s", hth_bench_kind_name(l->kind), l->type, l->isa,
                          (unsigned)l->rows,
                          err == HTH_E_BUG ? "differs from the computation in double"
                                           : hth_err_text(err));
    return err;
}

/* Finds the tables that differ in this operation. Of the tables that share their loops over flat
 * vectors, that is fp32 with the widest instructions. */
static void tables_of(const struct kernels *k, enum hth_bench_kind kind, uint32_t *first,
                      uint32_t *end)
{
    *first = 0;
    *end = k->tables;
    if (!hth_bench_kind_is_flat(kind))
        return;
    for (uint32_t i = 0; i < k->tables; i++) {
        if (hth_backend_isa(k->table[i].backend)[0] != '\0' &&
            hth_backend_compute(k->table[i].backend) == HTH_MATMUL_F32)
            *first = i;
    }
    *end = *first + 1;
}

/* Makes PyTorch's case of each type that a table has. */
static void torch_cases(struct kernels *k, const struct kernel_line *l, uint32_t first,
                        uint32_t end, struct beside of[BESIDE])
{
    bool flat = hth_bench_kind_is_flat(l->kind);
    for (uint32_t i = first; k->torch != NULL && i < end; i++) {
        struct beside *b = &of[!flat && strcmp(k->table[i].type, "bf16") == 0];
        if (!b->runs)
            b->runs =
                hth_bench_torch_case(k->torch, hth_bench_kind_name(l->kind), b->type,
                                     l->kind == HTH_BENCH_ADAMW ? l->elements : k->d, l->rows);
    }
}

/* Measures all tables in turns. */
static enum hth_err measure(struct kernels *k, enum hth_bench_kind kind, uint32_t rows)
{
    struct hth_bench_timing timing[TABLES_MAX] = {0};
    struct beside beside[BESIDE] = {{.type = "fp32"}, {.type = "bf16"}};
    uint32_t first, end;
    struct kernel_line l = line_of(k, kind, rows);
    struct hth_bench_samples rounds;
    enum hth_err err = HTH_OK;
    tables_of(k, kind, &first, &end);
    torch_cases(k, &l, first, end, beside);
    for (uint32_t i = first; i < end && err == HTH_OK; i++) {
        name_line(&l, &k->table[i]);
        err = make_case(&l, k->table[i].backend, &timing[i]);
    }
    hth_bench_begin(&rounds);
    while (err == HTH_OK && hth_bench_more(&k->bench, &rounds, ROUNDS)) {
        for (uint32_t i = first; i < end && err == HTH_OK; i++) {
            enum hth_matmul compute = hth_backend_compute(k->table[i].backend);
            err = hth_bench_turn(&k->peaks, hth_bench_peaks_best(&k->peaks, compute), &timing[i]);
        }
        for (int i = 0; i < BESIDE; i++)
            torch_turn(k->torch, &beside[i]);
        hth_bench_add(&rounds, 0);
    }
    for (uint32_t i = first; i < end; i++) {
        name_line(&l, &k->table[i]);
        l.torch_s = beside[strcmp(l.type, "bf16") == 0].best_s;
        if (err == HTH_OK)
            report(k, &l, &timing[i]);
        hth_bench_case_free(timing[i].work);
    }
    return err;
}

/* Prints the instructions that the rows are held against. */
static void say_peaks(const struct hth_bench_peaks *p)
{
    enum hth_peak fp32 = hth_bench_peaks_best(p, HTH_MATMUL_F32);
    enum hth_peak bf16 = hth_bench_peaks_best(p, HTH_MATMUL_BF16);
    fprintf(stderr, "peaks of one core: fp32 %.0f GFLOP/s (%s), bf16 %.0f (%s)\n",
            p->rate[fp32] * 1e-9, hth_peak_name(fp32), p->rate[bf16] * 1e-9, hth_peak_name(bf16));
}

static enum hth_err measure_all(struct kernels *k)
{
    hth_bench_peaks_init(&k->peaks, k->team);
    say_peaks(&k->peaks);
    if (!k->bench.json)
        print_head(k);
    for (int i = 0; i < HTH_BENCH_KINDS; i++) {
        enum hth_bench_kind kind = (enum hth_bench_kind)i;
        if (k->ops != NULL && !listed(k->ops, hth_bench_kind_name(kind)))
            continue;
        uint32_t count = hth_bench_kind_is_flat(kind) ? 1 : k->rows_count;
        for (uint32_t r = 0; r < count; r++)
            HTH_TRY(measure(k, kind, hth_bench_kind_is_flat(kind) ? 1 : k->rows[r]));
    }
    return HTH_OK;
}

/* ---- the verb ------------------------------------------------------------------------------ */

static void job_run(struct hth_job *job)
{
    struct kernels *k = HTH_CONTAINER(job, struct kernels, job);
    k->err = measure_all(k);
}

static void job_done(struct hth_job *job, enum hth_err err)
{
    struct kernels *k = HTH_CONTAINER(job, struct kernels, job);
    k->err = k->err == HTH_OK ? err : k->err;
    hth_net_stop(k->env);
}

static enum hth_err run(struct kernels *k)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    char why[160];
    if (k->python == NULL || strcmp(k->python, "no") != 0) {
        k->torch = hth_bench_torch_open(k->python, why);
        fprintf(stderr, "beside: %s\n", why);
    }
    opts.compute_threads = hth_bench_threads(&k->bench);
    HTH_TRY(hth_net_new(&opts, &k->env));
    k->team = hth_env_team(k->env);
    k->job = (struct hth_job){.lane = HTH_LANE_COMPUTE, .run = job_run, .done = job_done};
    enum hth_err err = hth_job_submit(k->env, &k->job);
    if (err == HTH_OK)
        err = hth_net_run(k->env);
    hth_net_free(k->env);
    hth_bench_torch_close(k->torch);
    return err == HTH_OK ? k->err : err;
}

/* Measures a card: with the shapes of experts, unless options give others. */
static int on_card(struct kernels *k)
{
    if (k->ops != NULL || k->isa != NULL || k->bench.device.backend != NULL) {
        hth_cli_say_error("--op, --isa and --backend choose among the CPU's kernels, and a card is "
                          "measured whole: leave them out, or --device");
        hth_bench_close(&k->bench);
        return HTH_EXIT_USAGE;
    }
    static const uint32_t dims[] = {1024, 2048, 4096}, rows[] = {2048, 8192};
    const struct hth_bench_card card = {
        .dims = k->d > 0 ? &k->d : dims,
        .dim_count = k->d > 0 ? 1 : HTH_ARRAY_LEN(dims),
        .rows = k->rows_count > 0 ? k->rows : rows,
        .row_count = k->rows_count > 0 ? k->rows_count : HTH_ARRAY_LEN(rows),
        .type = k->type,
        .python = k->python,
    };
    return hth_bench_card_run(&k->bench, &card);
}

int hth_bench_kernels_main(int argc, char **argv)
{
    struct kernels k = {.rows = {1, 8, 32, 128, 512, 2048}, .bench.may_be_card = true};
    int code = hth_bench_open(&k.bench, argc, argv, "Time the bare kernels beside the core's peak.",
                              &argp, &k);
    if (code != HTH_EXIT_OK)
        return code;
    if (hth_bench_on_card(&k.bench))
        return on_card(&k);
    if (find_tables(&k) != HTH_OK) {
        hth_bench_close(&k.bench);
        return hth_exit_of(HTH_E_UNSUPPORTED);
    }
    if (k.d == 0)
        k.d = 1024;
    if (k.rows_count == 0)
        k.rows_count = 6; /* of the default rows */
    if (k.bench.budget_us == 0)
        k.bench.budget_us = BUDGET_US;
    return hth_bench_finish(&k.bench, "measuring kernels", run(&k));
}
