/* SPDX-License-Identifier: Apache-2.0 */
/* averaging_plan.c: from the flags of `hearth sim averaging` to configurations; see averaging.h. */
#include "cli/cli.h"
#include "core/mem.h"
#include "studies/averaging.h"

#include <string.h>

static void add_study(struct hth_avg_ask *a, const struct hth_average_opts *opts, bool protocol)
{
    struct hth_avg_request *r = &a->request;
    struct hth_avg_study *s = &a->studies[r->count];
    HTH_ASSERT(r->count < HTH_AVG_STUDIES_MAX);
    *s = (struct hth_avg_study){.protocol = protocol,
                                .panel = a->panel,
                                .place = a->place,
                                .opts = *opts,
                                .seeds = a->seeds};
    if (a->seeds == 0)
        s->seeds = protocol ? 5 : 200;
    r->count++;
}

/* Add protocol studies. */
static void add_protocols(struct hth_avg_ask *a, const struct hth_average_opts *opts)
{
    struct hth_average_opts o = *opts;
    o.base.method = HTH_PURE_MOSHPIT;
    if (a->methods[HTH_PURE_MOSHPIT])
        add_study(a, &o, true);
    o.base.method = HTH_PURE_ALLREDUCE;
    o.base.shape = (struct hth_avg_shape){.dims = 1, .size = {o.base.peers}};
    if (a->methods[HTH_PURE_ALLREDUCE])
        add_study(a, &o, true);
}

static void add_methods(struct hth_avg_ask *a, const struct hth_average_opts *opts)
{
    for (int m = 0; m < HTH_PURE_METHODS && a->models[HTH_AVG_PURE]; m++) {
        struct hth_average_opts o = *opts;
        o.base.method = (enum hth_pure_method)m;
        if (a->methods[m])
            add_study(a, &o, false);
    }
    if (a->models[HTH_AVG_PROTOCOL])
        add_protocols(a, opts);
}

static void add_failures(struct hth_avg_ask *a, const struct hth_average_opts *opts)
{
    for (int f = 0; f < HTH_PURE_FAILURES; f++) {
        struct hth_average_opts o = *opts;
        o.base.failure = (enum hth_pure_failure)f;
        if (a->failures[f])
            add_methods(a, &o);
    }
}

struct population {
    uint32_t peers;
    struct hth_avg_shape shape;
};

static void add_grid(struct hth_avg_ask *a, const struct population *populations, size_t count,
                     const double *p_fails, size_t p_count)
{
    for (a->panel = 0; a->panel < count; a->panel++)
        for (a->place = 0; a->place < p_count; a->place++) {
            struct hth_average_opts o = a->opts;
            o.base.peers = populations[a->panel].peers;
            o.base.shape = populations[a->panel].shape;
            o.base.p_fail = p_fails[a->place];
            add_failures(a, &o);
        }
}

/* Pair --peers and --grid where each peer has a cell. With one pair only, each method checks
 * whether it can use it. */
static size_t pair_up(const struct hth_avg_ask *a,
                      struct population out[HTH_AVG_LIST_MAX * HTH_AVG_LIST_MAX])
{
    size_t count = 0;
    for (size_t n = 0; n < a->peers_count; n++)
        for (size_t g = 0; g < a->grid_count; g++)
            if (a->peers_count * a->grid_count == 1 || a->peers[n] <= hth_avg_cells(&a->grids[g]))
                out[count++] = (struct population){a->peers[n], a->grids[g]};
    return count;
}

static size_t count_set(const bool *chosen, int count)
{
    size_t set = 0;
    for (int i = 0; i < count; i++)
        set += chosen[i];
    return set;
}

static enum hth_err add_sweep(struct hth_avg_ask *a)
{
    struct population pairs[HTH_AVG_LIST_MAX * HTH_AVG_LIST_MAX];
    size_t count = pair_up(a, pairs);
    size_t each =
        count_set(a->methods, HTH_PURE_METHODS) * count_set(a->failures, HTH_PURE_FAILURES);
    if (count == 0) {
        hth_cli_say_error("sim averaging: no --grid has a cell for each of the --peers");
        return HTH_E_USAGE;
    }
    if (2 * each * count * a->p_count > HTH_AVG_STUDIES_MAX) {
        hth_cli_say_error("sim averaging: too many combinations: choose shorter lists");
        return HTH_E_USAGE;
    }
    if (count * a->p_count > 1)
        a->request.picture = HTH_AVG_SWEEP;
    add_grid(a, pairs, count, a->p_fails, a->p_count);
    return HTH_OK;
}

enum hth_err hth_avg_plan(struct hth_avg_ask *a)
{
    static const struct population tabled[] = {{512, {2, {32, 32}}},
                                               {768, {2, {32, 32}}},
                                               {900, {2, {32, 32}}},
                                               {1024, {2, {32, 32}}},
                                               {512, {3, {8, 8, 8}}}};
    static const struct population compared[] = {
        {64, {2, {8, 8}}}, {256, {2, {16, 16}}}, {1024, {2, {32, 32}}}};
    static const double table_p[] = {0, 0.001, 0.005, 0.01}, compare_p[] = {0, 0.005, 0.01, 0.05};
    bool *m = a->methods;
    if (a->table) {
        memset(m, 1, sizeof(a->methods));
        if (a->request.golden) /* published figures lack it */
            m[HTH_PURE_PUSHSUM] = false;
        a->request.picture = HTH_AVG_TABLE;
        add_grid(a, tabled, HTH_ARRAY_LEN(tabled), table_p, HTH_ARRAY_LEN(table_p));
        return HTH_OK;
    }
    if (!a->has_methods || a->compare)
        memset(m, 0, sizeof(a->methods));
    if (a->compare) {
        a->models[HTH_AVG_PURE] = a->models[HTH_AVG_PROTOCOL] = true;
        a->request.picture = HTH_AVG_COMPARE;
    }
    if (!a->has_methods || a->compare)
        m[HTH_PURE_MOSHPIT] = true;
    if (!a->compare)
        return add_sweep(a);
    add_grid(a, compared, HTH_ARRAY_LEN(compared), compare_p, HTH_ARRAY_LEN(compare_p));
    return HTH_OK;
}
