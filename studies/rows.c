/* SPDX-License-Identifier: Apache-2.0 */
#include "studies/rows.h"

#include "cli/cli.h"
#include "core/mem.h"

enum { KEY_SEEDS = 0x5000, KEY_SEED, KEY_ROW, KEY_EVERY, KEY_THREADS, KEY_JSON };

struct hth_rows_result {
    enum hth_err err;
    bool done;
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
                            rows->reports + index * rows->report_bytes);
    result->done = true;
    hth_sim_progress_say(&rows->progress, "row %u of %u", row, rows->count);
}

const void *hth_rows_report(const struct hth_rows *rows, uint32_t row, uint32_t i)
{
    uint64_t index = (uint64_t)row * rows->seeds + i;
    const struct hth_rows_result *result = &rows->results[index];
    return result->done && result->err == HTH_OK ? rows->reports + index * rows->report_bytes
                                                 : NULL;
}

static struct hth_rows_sum sum_of(const struct hth_rows *rows, uint32_t row)
{
    struct hth_rows_sum sum = {.seeds = 0};
    for (uint32_t i = 0; i < rows->seeds; i++) {
        const struct hth_rows_result *result = &rows->results[(uint64_t)row * rows->seeds + i];
        const void *report = hth_rows_report(rows, row, i);
        if (!result->done)
            continue;
        sum.seeds++;
        const char *broken = report == NULL ? hth_err_text(result->err) : rows->broken(row, report);
        if (broken != NULL && sum.broken == NULL) {
            sum.broken = broken;
            sum.seed = rows->seed + i;
        }
    }
    return sum;
}

/* Returns how many rows broke a promise. */
static uint32_t print(const struct hth_rows *rows)
{
    uint32_t broken = 0;
    if (!rows->json)
        rows->print(rows, UINT32_MAX, NULL);
    for (uint32_t row = 0; row < rows->count; row++) {
        const struct hth_rows_sum sum = sum_of(rows, row);
        if (sum.seeds == 0)
            continue;
        broken += sum.broken != NULL;
        rows->print(rows, row, &sum);
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
