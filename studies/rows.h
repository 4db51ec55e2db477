/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h: studies that run a fixed table of cases with many seeds, spread over threads, and judge
 * each run by what the design promises.
 *
 *     struct hth_rows rows = {.count = ..., .report_bytes = sizeof(struct my_report), ...};
 *     return hth_rows_verb(&rows, &argp, argc, argv);
 *
 * The verb prints a line for each row, over all its seeds, and exits with HTH_EXIT_FAILURE if a run
 * broke a promise. Flags: --seeds, --seed, --row, --every, --threads, --json. With --json one
 * object per row: a member for each column, and
 *   {"seeds", "broken", "seed", "hash"}
 * "broken" says the first promise that was not kept, or the error of a run, with the seed that
 * shows it; it is null, and there is no seed, where all were kept. "hash" covers the events of all
 * seeds.
 */
#ifndef HTH_STUDIES_ROWS_H
#define HTH_STUDIES_ROWS_H

#include "core/base.h"
#include "studies/tools.h"

#include <argp.h>

struct hth_rows;

enum { HTH_ROWS_COLUMNS_MAX = 12, HTH_ROWS_TEXT = -1 };

/* The runs of a row, in one value. */
enum hth_over_seeds { HTH_SAME, HTH_SUM, HTH_MAX_OF, HTH_MIN_OF };

struct hth_column {
    const char *key;  /* in JSON */
    const char *head; /* of the table; NULL: not in it */
    int width;
    int digits; /* of a real; 0: a count; HTH_ROWS_TEXT */
    enum hth_over_seeds over;
};
struct hth_cell {
    double number; /* INFINITY: null in JSON */
    char text[16];
};

struct hth_rows {
    uint32_t count;
    size_t report_bytes;
    /* One run. Called from several threads; the report depends on row and seed alone. *hash is that
     * of the world's events. */
    enum hth_err (*run)(uint32_t row, uint64_t seed, void *report, uint64_t *hash);
    /* The first promise that a report breaks, in words; NULL: it keeps all. */
    const char *(*broken)(uint32_t row, const void *report);
    const struct hth_column *columns;
    uint32_t column_count;
    /* A cell of each column, of one run. */
    void (*fill)(uint32_t row, const void *report, struct hth_cell *cells);
    /* Whether flags of the study's own leave a row in; NULL: they do. */
    bool (*is_asked)(const void *arg, uint32_t row);
    void *arg;

    /* The flags. */
    uint32_t seeds, threads, every, only; /* 0: default; only: the row's number from 1 on */
    uint64_t seed;
    bool json;

    /* Private. */
    struct hth_rows_result *results;
    uint8_t *reports;
    struct hth_sim_progress progress;
};

/* The flags: an argp child whose input is the struct. */
extern const struct argp hth_rows_argp;

/* Parses the flags, runs the rows that were asked for, and prints them. Returns the exit code. The
 * input of `argp`, the study's own parser, is `rows`. */
int hth_rows_verb(struct hth_rows *rows, const struct argp *argp, int argc, char **argv);

#endif
