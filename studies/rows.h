/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h: studies that run a fixed table of cases with many seeds, spread over threads, and judge
 * each run by what the design promises.
 *
 *     struct hth_rows rows = {.count = ..., .report_bytes = sizeof(struct my_report), ...};
 *     return hth_rows_verb(&rows, &argp, argc, argv);
 *
 * The verb prints a line for each row, over all its seeds, and exits with HTH_EXIT_FAILURE if a run
 * broke a promise. Flags: --seeds, --seed, --row, --every, --threads, --json.
 */
#ifndef HTH_STUDIES_ROWS_H
#define HTH_STUDIES_ROWS_H

#include "core/base.h"
#include "studies/tools.h"

#include <argp.h>

struct hth_rows;

/* Of one row, over its seeds. */
struct hth_rows_sum {
    uint32_t seeds;     /* runs that were done */
    const char *broken; /* the first promise that was not kept, or error; NULL: none */
    uint64_t seed;      /* which shows it */
};

struct hth_rows {
    uint32_t count;
    size_t report_bytes;
    /* One run. Called from several threads; the report depends on row and seed alone. */
    enum hth_err (*run)(uint32_t row, uint64_t seed, void *report);
    /* The first promise that a report breaks, in words; NULL: it keeps all. */
    const char *(*broken)(uint32_t row, const void *report);
    /* Prints a row; UINT32_MAX: the head of the table, which JSON has not. */
    void (*print)(const struct hth_rows *rows, uint32_t row, const struct hth_rows_sum *sum);
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
/* The report of a row's run number i < seeds; NULL: it was not done, or failed. */
const void *hth_rows_report(const struct hth_rows *rows, uint32_t row, uint32_t i);

#endif
