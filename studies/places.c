/* SPDX-License-Identifier: Apache-2.0 */
/* places.c: hearth sim places: hosts that start together share the places of a run. */
#include "cli/cli.h"
#include "cli/json.h"
#include "core/mem.h"
#include "scenarios/places.h"
#include "studies/questions.h"
#include "studies/tools.h"

#include <math.h>
#include <stdio.h>

static const uint32_t host_counts[] = {2, 3, 5, 8, 14, 25, 40};
static const char *const starts[] = {"at once", "uniform", "one by one"};

struct places {
    uint32_t seeds;
    bool json;
    struct hth_sim_places_opts opts; /* of the runs under way */
    struct hth_sim_places_row *rows; /* by seed */
    enum hth_err err;
};

enum { KEY_SEEDS = 0x5000, KEY_JSON };

static const struct argp_option options[] = {
    {"seeds", KEY_SEEDS, "N", 0, "Runs of each row (default 100)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object per row", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct places *p = state->input;
    switch (key) {
    case KEY_SEEDS:
        p->seeds = (uint32_t)hth_cli_number(state, "--seeds", arg, 1, 1000000);
        break;
    case KEY_JSON:
        p->json = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static enum hth_err no_local(void *arg, void **local)
{
    (void)arg;
    *local = NULL;
    return HTH_OK;
}

static void free_nothing(void *local)
{
    (void)local;
}

static void run_seed(void *arg, void *local, uint64_t index)
{
    struct places *p = arg;
    struct hth_sim_places_opts opts = p->opts;
    (void)local;
    opts.seed = index + 1;
    enum hth_err err = hth_sim_places(&opts, &p->rows[index]);
    if (err != HTH_OK)
        __atomic_store_n(&p->err, err, __ATOMIC_RELAXED);
}

/* The worst of all seeds; s is NaN if one of them is. */
static struct hth_sim_places_row worst(const struct places *p)
{
    struct hth_sim_places_row w = p->rows[0];
    for (uint32_t i = 1; i < p->seeds; i++) {
        w.served = fmin(w.served, p->rows[i].served);
        w.twice = HTH_MAX(w.twice, p->rows[i].twice);
        w.s = isnan(w.s) || isnan(p->rows[i].s) ? NAN : fmax(w.s, p->rows[i].s);
    }
    return w;
}

static void print_row(const struct places *p, const struct hth_sim_places_row *row)
{
    if (p->json) {
        json_t *o = json_object();
        hth_json_count(o, "hosts", p->opts.hosts);
        hth_json_text(o, "start", starts[p->opts.start]);
        hth_json_real(o, "served", row->served);
        hth_json_count(o, "twice", row->twice);
        hth_json_real(o, "s", row->s);
        hth_json_print_take(stdout, o);
        putchar('\n');
    } else {
        printf("%6u  %-10s %8.1f %% %6u %8.1f s\n", p->opts.hosts, starts[p->opts.start],
               100 * row->served, row->twice, row->s);
    }
    fflush(stdout);
}

/* Prints a row for each number of hosts and each way to start. */
static int run_all(struct places *p)
{
    const struct hth_sim_work work = {no_local, run_seed, free_nothing, p};
    bool good = true;
    for (size_t i = 0; i < HTH_ARRAY_LEN(host_counts) * HTH_ARRAY_LEN(starts); i++) {
        p->opts.hosts = host_counts[i / HTH_ARRAY_LEN(starts)];
        p->opts.start = (enum hth_places_start)(i % HTH_ARRAY_LEN(starts));
        enum hth_err err = hth_sim_spread(&work, p->seeds, hth_sim_threads(0));
        err = err != HTH_OK ? err : p->err;
        if (err != HTH_OK) {
            hth_cli_say_error("sim places: %s", hth_err_text(err));
            return hth_exit_of(err);
        }
        const struct hth_sim_places_row row = worst(p);
        print_row(p, &row);
        good = good && !isnan(row.s);
    }
    return good ? HTH_EXIT_OK : HTH_EXIT_FAILURE;
}

int hth_sim_places_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Do hosts that start within ten seconds share the places of a run, exactly as many "
               "as there are? Rows: the least share of places served and the most served twice "
               "30 virtual seconds after the first start, and the longest time until each place "
               "had one host, over all seeds. Fails unless all are served once within that time.",
    };
    struct places p = {.seeds = 100};
    if (argp_parse(&argp, argc, argv, 0, NULL, &p) != 0)
        return HTH_EXIT_USAGE;
    if (!p.json)
        printf("%6s  %-10s %10s %6s %10s\n", "hosts", "start", "served", "twice", "complete");
    p.rows = hth_new_array(struct hth_sim_places_row, p.seeds);
    int code = run_all(&p);
    hth_free(p.rows);
    return code;
}
