/* SPDX-License-Identifier: Apache-2.0 */
#include "studies/rows.h"

#include "cli/cli.h"
#include "cli/json.h"
#include "core/mem.h"
#include "core/rng.h"

#include <math.h>

enum { KEY_SEEDS = 0x5000, KEY_SEED, KEY_ROW, KEY_EVERY, KEY_THREADS, KEY_JSON };

struct hth_rows_result {
    enum hth_err err;
    bool done;
    uint64_t hash;
};

/* A row over its seeds. */
struct sum {
    uint32_t seeds;     /* runs that were done */
    const char *broken; /* NULL: nothing */
    uint64_t seed;      /* which shows it */
    uint64_t hash;
    struct hth_cell cell[HTH_ROWS_COLUMNS_MAX];
};

static const struct argp_option options[] = {
    {"seeds", KEY_SEEDS, "N", 0, "Runs of each row (default 1)", 0},
    {"seed", KEY_SEED, "N", 0, "The first one's seed (default 1)", 0},
    {"row", KEY_ROW, "N", 0, "Only this row of the table", 0},
    {"every", KEY_EVERY, "N", 0, "Only every Nth row (default 1)", 0},
    {"threads", KEY_THREADS, "N", 0, "Runs at the same time (default: the cores)", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object per row", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_rows *rows = state->input;
    switch (key) {
    case KEY_SEEDS:
        rows->seeds = (uint32_t)hth_cli_number(state, "--seeds", arg, 1, 1000);
        break;
    case KEY_SEED:
        rows->seed = hth_cli_number(state, "--seed", arg, 1, UINT32_MAX);
        break;
    case KEY_ROW:
        rows->only = 1 + (uint32_t)hth_cli_number(state, "--row", arg, 0, rows->count - 1);
        break;
    case KEY_EVERY:
        rows->every = (uint32_t)hth_cli_number(state, "--every", arg, 1, rows->count);
        break;
    case KEY_THREADS:
        rows->threads = (uint32_t)hth_cli_number(state, "--threads", arg, 1, 256);
        break;
    case KEY_JSON:
        rows->json = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

const struct argp hth_rows_argp = {.options = options, .parser = parse};

/* ---- runs ---------------------------------------------------------------------------------- */

static enum hth_err open_local(void *arg, void **local)
{
    *local = arg;
    return HTH_OK;
}

static void close_local(void *local)
{
    (void)local;
}

static bool is_asked(const struct hth_rows *rows, uint32_t row)
{
    return (rows->only == 0 || rows->only == row + 1) && row % rows->every == 0 &&
           (rows->is_asked == NULL || rows->is_asked(rows->arg, row));
}

static void run(void *arg, void *local, uint64_t index)
{
    struct hth_rows *rows = arg;
    uint32_t row = (uint32_t)(index / rows->seeds);
    struct hth_rows_result *result = &rows->results[index];
    (void)local;
    if (!is_asked(rows, row))
        return;
    result->err = rows->run(row, rows->seed + index % rows->seeds,
                            rows->reports + index * rows->report_bytes, &result->hash);
    result->done = true;
    hth_sim_progress_say(&rows->progress, "row %u of %u", row, rows->count);
}

/* ---- tables -------------------------------------------------------------------------------- */

static void add_report(const struct hth_rows *rows, uint32_t row, const void *report, bool first,
                       struct hth_cell *sum)
{
    struct hth_cell cell[HTH_ROWS_COLUMNS_MAX] = {{.number = 0}};
    rows->fill(row, report, cell);
    for (uint32_t i = 0; i < rows->column_count; i++) {
        double *all = &sum[i].number, one = cell[i].number;
        enum hth_over_seeds over = first ? HTH_SAME : rows->columns[i].over;
        if (over == HTH_SAME)
            sum[i] = cell[i];
        else
            *all = over == HTH_SUM      ? *all + one
                   : over == HTH_MAX_OF ? fmax(*all, one)
                                        : fmin(*all, one);
    }
}

static struct sum sum_of(const struct hth_rows *rows, uint32_t row)
{
    struct sum sum = {.seeds = 0};
    bool first = true;
    for (uint32_t i = 0; i < rows->seeds; i++) {
        uint64_t index = (uint64_t)row * rows->seeds + i;
        const struct hth_rows_result *result = &rows->results[index];
        const void *report = rows->reports + index * rows->report_bytes;
        if (!result->done)
            continue;
        sum.seeds++;
        bool good = result->err == HTH_OK;
        const char *broken = good ? rows->broken(row, report) : hth_err_text(result->err);
        if (broken != NULL && sum.broken == NULL) {
            sum.broken = broken;
            sum.seed = rows->seed + i;
        }
        if (!good)
            continue;
        add_report(rows, row, report, first, sum.cell);
        sum.hash = hth_hash64(&result->hash, sizeof(result->hash), sum.hash);
        first = false;
    }
    return sum;
}

static void print_json(const struct hth_rows *rows, const struct sum *sum)
{
    json_t *out = json_object();
    char hash[17];
    for (uint32_t i = 0; i < rows->column_count; i++) {
        const struct hth_column *c = &rows->columns[i];
        const struct hth_cell *cell = &sum->cell[i];
        if (c->digits == HTH_ROWS_TEXT)
            hth_json_text(out, c->key, cell->text);
        else if (c->digits == 0)
            hth_json_count(out, c->key, (uint64_t)cell->number);
        else
            hth_json_real(out, c->key, cell->number);
    }
    hth_json_count(out, "seeds", sum->seeds);
    hth_json_text(out, "broken", sum->broken);
    if (sum->broken != NULL)
        hth_json_count(out, "seed", sum->seed);
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)sum->hash);
    hth_json_text(out, "hash", hash);
    hth_json_print_take(stdout, out);
    putchar('\n');
}

/* NULL: the head. */
static void print_line(const struct hth_rows *rows, uint32_t row, const struct sum *sum)
{
    if (sum == NULL)
        printf("%4s", "row");
    else
        printf("%4u", row);
    for (uint32_t i = 0; i < rows->column_count; i++) {
        const struct hth_column *c = &rows->columns[i];
        bool text = c->digits == HTH_ROWS_TEXT;
        if (c->head != NULL && (sum == NULL || text))
            printf(text ? " %-*s" : " %*s", c->width, sum == NULL ? c->head : sum->cell[i].text);
        else if (c->head != NULL)
            printf(" %*.*f", c->width, c->digits, sum->cell[i].number);
    }
    if (sum != NULL && sum->broken != NULL)
        printf("  %s (seed %llu)", sum->broken, (unsigned long long)sum->seed);
    putchar('\n');
}

/* Returns how many rows broke a promise. */
static uint32_t print(const struct hth_rows *rows)
{
    uint32_t broken = 0;
    if (!rows->json)
        print_line(rows, 0, NULL);
    for (uint32_t row = 0; row < rows->count; row++) {
        const struct sum sum = sum_of(rows, row);
        if (sum.seeds == 0)
            continue;
        broken += sum.broken != NULL;
        if (rows->json)
            print_json(rows, &sum);
        else
            print_line(rows, row, &sum);
    }
    return broken;
}

int hth_rows_verb(struct hth_rows *rows, const struct argp *argp, int argc, char **argv)
{
    rows->seeds = rows->every = 1;
    rows->seed = 1;
    if (argp_parse(argp, argc, argv, 0, NULL, rows) != 0)
        return HTH_EXIT_USAGE;
    const struct hth_sim_work work = {open_local, run, close_local, rows};
    uint64_t runs = (uint64_t)rows->count * rows->seeds;
    rows->results = hth_new_array(struct hth_rows_result, runs);
    rows->reports = hth_calloc(runs, rows->report_bytes);
    hth_sim_heed_interrupts();
    hth_sim_progress_begin(&rows->progress);
    enum hth_err err = hth_sim_spread(&work, runs, hth_sim_threads(rows->threads));
    hth_sim_progress_wipe(&rows->progress);
    uint32_t broken = err == HTH_OK ? print(rows) : 0;
    hth_free(rows->results);
    hth_free(rows->reports);
    return err != HTH_OK ? hth_exit_of(err) : broken > 0 ? HTH_EXIT_FAILURE : HTH_EXIT_OK;
}
