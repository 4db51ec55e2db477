/* SPDX-License-Identifier: Apache-2.0 */
/* Differences between the points of a study, seed by seed: --against; see study.h. */
#include "cli/cli.h"
#include "core/mem.h"
#include "studies/study.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONDITIONS_MAX 3
#define NONE           SIZE_MAX

struct condition {
    size_t param;
    double value;
};

struct against {
    const struct hth_study *study;
    const double *values; /* [point][seed][metric] */
    uint64_t seeds;
    struct condition condition[CONDITIONS_MAX];
    size_t count;
    size_t *reference; /* [condition][point]; NONE: it has none, or is one */
};

static enum hth_err refuse(const struct hth_study *s, const char *against, const char *why)
{
    hth_cli_say_error("sim %s: --against '%s': %s, please, such as %s=1", s->name, against, why,
                      s->params[0].name);
    return HTH_E_USAGE;
}

static enum hth_err read_conditions(const struct hth_study *s, const char *text, struct against *a)
{
    const char *at = text;
    char *end;
    do {
        struct condition *c = &a->condition[a->count];
        if (a->count++ == CONDITIONS_MAX)
            return refuse(s, text, "at most three parameters");
        c->param = hth_study_param(s, at);
        if (c->param == s->param_count)
            return refuse(s, text, "a parameter, = and one number for each");
        at = strchr(at, '=') + 1;
        c->value = strtod(at, &end);
        if (end == at || !isfinite(c->value) || (*end != ',' && *end != '\0'))
            return refuse(s, text, "a parameter, = and one number for each");
        at = end + 1;
    } while (*end == ',');
    for (size_t i = 0; i < a->count; i++)
        for (size_t k = 0; k < i; k++)
            if (a->condition[i].param == a->condition[k].param)
                return refuse(s, text, "each parameter once");
    return HTH_OK;
}

/* Whether two points of a part differ in that parameter alone. */
static bool are_alike(const struct hth_study *s, size_t a, size_t b, size_t but)
{
    if (strcmp(s->points[a].part, s->points[b].part) != 0)
        return false;
    for (size_t k = 0; k < s->param_count; k++)
        if (k != but && !hth_study_same_number(s->points[a].param[k], s->points[b].param[k]))
            return false;
    return true;
}

/* Of several (a part may have refused calls beside lost ones) the one of the same series. */
static size_t find_reference(const struct hth_study *s, const struct condition *c, size_t point)
{
    size_t found = NONE;
    if (hth_study_is_near(s->points[point].param[c->param], c->value))
        return NONE;
    for (size_t i = 0; i < s->point_count; i++) {
        if (!hth_study_is_near(s->points[i].param[c->param], c->value) ||
            !are_alike(s, i, point, c->param))
            continue;
        if (strcmp(s->points[i].series, s->points[point].series) == 0)
            return i;
        if (found == NONE)
            found = i;
    }
    return found;
}

static bool has_difference(const struct against *a, size_t point, size_t from)
{
    if (from == a->count)
        return true;
    size_t reference = a->reference[from * a->study->point_count + point];
    return reference != NONE && has_difference(a, point, from + 1) &&
           has_difference(a, reference, from + 1);
}

/* What the conditions from `from` on leave of a number: itself less that of its reference, each
 * after the conditions that follow. */
static double difference(const struct against *a, size_t point, size_t from, size_t offset)
{
    size_t row = a->seeds * a->study->metric_count;
    if (from == a->count)
        return a->values[point * row + offset];
    size_t reference = a->reference[from * a->study->point_count + point];
    return difference(a, point, from + 1, offset) - difference(a, reference, from + 1, offset);
}

static enum hth_err prepare(const struct hth_study *s, const char *text, struct against *a)
{
    bool any = false;
    *a = (struct against){.study = s};
    HTH_TRY(read_conditions(s, text, a));
    a->reference = hth_new_array(size_t, a->count * s->point_count);
    for (size_t i = 0; i < a->count * s->point_count; i++)
        a->reference[i] = find_reference(s, &a->condition[i / s->point_count], i % s->point_count);
    for (size_t p = 0; p < s->point_count && !any; p++)
        any = has_difference(a, p, 0);
    if (any)
        return HTH_OK;
    hth_free(a->reference);
    hth_cli_say_error("sim %s: --against '%s': of the points that were asked for none has such a "
                      "one beside it that differs in nothing else",
                      s->name, text);
    return HTH_E_USAGE;
}

enum hth_err hth_study_check_against(const struct hth_study *s, const char *text)
{
    struct against a;
    HTH_TRY(prepare(s, text, &a));
    hth_free(a.reference);
    return HTH_OK;
}

enum hth_err hth_study_differences(const struct hth_study *s, const char *text,
                                   const double *values, uint64_t seeds, struct hth_study_mean *out)
{
    struct against a;
    HTH_TRY(prepare(s, text, &a));
    double *by_seed = hth_new_array(double, seeds);
    a.values = values;
    a.seeds = seeds;
    for (size_t i = 0; i < s->point_count * s->metric_count; i++) {
        size_t point = i / s->metric_count, metric = i % s->metric_count;
        bool has = has_difference(&a, point, 0);
        for (uint64_t seed = 0; seed < seeds; seed++)
            by_seed[seed] = has ? difference(&a, point, 0, seed * s->metric_count + metric) : NAN;
        out[i] = hth_study_mean_of(by_seed, seeds, 1);
    }
    hth_free(by_seed);
    hth_free(a.reference);
    return HTH_OK;
}
