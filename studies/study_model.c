/* SPDX-License-Identifier: Apache-2.0 */
/* study_model.c: statistics, choices, differences and gaps of a study; see study_model.h. */
#include "studies/study_model.h"

#include "cli/cli.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEAR           1e-6 /* relative tolerance: learning rates are floats */
#define CONDITIONS_MAX 3
#define NONE           SIZE_MAX

/* ---- statistics ---------------------------------------------------------------------------- */

/* Return the 97.5 % point of Student's t; beyond 30 degrees of freedom by its expansion in 1 / df,
 * which is exact to four digits there. */
static double student(uint64_t df)
{
    static const double t[] = {12.706, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060,
                               2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199,
                               2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639,
                               2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423};
    const double z = 1.959964, n = (double)df;
    if (df <= HTH_ARRAY_LEN(t))
        return t[df - 1];
    return z + (z * z * z + z) / (4 * n) + (5 * pow(z, 5) + 16 * z * z * z + 3 * z) / (96 * n * n);
}

double hth_study_half(double se, uint64_t count)
{
    return count > 1 ? student(count - 1) * se : NAN;
}

struct hth_study_mean hth_study_mean_of(const double *values, size_t count, size_t stride)
{
    struct hth_study_mean m = {NAN, NAN, NAN, 0};
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++)
        if (isfinite(values[i * stride])) {
            sum += values[i * stride];
            m.count++;
        }
    if (m.count == 0)
        return m;
    m.mean = sum / (double)m.count;
    if (m.count == 1)
        return m;
    for (size_t i = 0; i < count; i++)
        if (isfinite(values[i * stride]))
            squares += (values[i * stride] - m.mean) * (values[i * stride] - m.mean);
    m.se = sqrt(squares / (double)(m.count - 1) / (double)m.count);
    m.half = hth_study_half(m.se, m.count);
    return m;
}

/* ---- what a table shows -------------------------------------------------------------------- */

static bool same_part(const struct hth_study *s, size_t a, size_t b)
{
    return strcmp(s->points[a].part, s->points[b].part) == 0;
}

bool hth_study_begins_part(const struct hth_study *s, size_t point)
{
    size_t before = 0;
    while (!same_part(s, before, point))
        before++;
    return before == point;
}

bool hth_study_same_number(double a, double b)
{
    return a == b || (!isfinite(a) && !isfinite(b));
}

void hth_study_find_shown(const struct hth_study *s, const struct hth_study_mean *means,
                          size_t first, struct hth_study_shown *out)
{
    const double *param = s->points[first].param;
    *out = (struct hth_study_shown){.param = {false}};
    for (size_t k = 0; k < s->param_count; k++)
        out->fixed[k] = isfinite(param[k]);
    for (size_t i = first; i < s->point_count; i++) {
        if (!same_part(s, i, first))
            continue;
        for (size_t k = 0; k < s->param_count; k++)
            out->param[k] =
                out->param[k] || !hth_study_same_number(s->points[i].param[k], param[k]);
        for (size_t k = 0; k < s->metric_count; k++)
            out->metric[k] = out->metric[k] || means[i * s->metric_count + k].count > 0;
    }
    for (size_t k = 0; k < s->param_count; k++)
        out->fixed[k] = out->fixed[k] && !out->param[k];
}

bool hth_study_has_metric(const struct hth_study *s, const struct hth_study_mean *means)
{
    for (size_t k = 0; k < s->metric_count; k++)
        if (means[k].count > 0)
            return true;
    return false;
}

bool hth_study_has_table(const struct hth_study *s, const struct hth_study_mean *means,
                         size_t first)
{
    for (size_t i = first; i < s->point_count; i++)
        if (same_part(s, i, first) && hth_study_has_metric(s, means + i * s->metric_count))
            return true;
    return false;
}

/* ---- which points were asked for: --only, --where ------------------------------------------- */

static bool names(const char *list, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, len) == 0 && (at[len] == ',' || at[len] == '\0'))
            return true;
    }
    return false;
}

static bool is_part(const struct hth_study *s, const char *word, size_t len)
{
    for (size_t i = 0; i < s->point_count; i++)
        if (strlen(s->points[i].part) == len && memcmp(s->points[i].part, word, len) == 0)
            return true;
    return false;
}

size_t hth_study_param(const struct hth_study *s, const char *text)
{
    size_t len = strcspn(text, "="), k = 0;
    while (k < s->param_count && (text[len] != '=' || strlen(s->params[k].name) != len ||
                                  memcmp(s->params[k].name, text, len) != 0))
        k++;
    return k;
}

bool hth_study_is_near(double param, double asked)
{
    return fabs(param - asked) <= NEAR * fabs(asked);
}

/* Return the condition after the one that begins there, or NULL. */
static const char *next_condition(const char *where)
{
    const char *end = strchr(where, ';');
    return end != NULL ? end + 1 : NULL;
}

static bool holds(const struct hth_study *s, const struct hth_study_point *p, const char *condition)
{
    size_t k = hth_study_param(s, condition);
    const char *at = strchr(condition, '=');
    for (char *end; at != NULL && k < s->param_count; at = *end == ',' ? end : NULL) {
        if (hth_study_is_near(p->param[k], strtod(at + 1, &end)))
            return true;
    }
    return false;
}

static bool is_where(const struct hth_study *s, const struct hth_study_point *p, const char *where)
{
    while (where != NULL && holds(s, p, where))
        where = next_condition(where);
    return where == NULL;
}

bool hth_study_is_chosen(const struct hth_study *s, const struct hth_study_point *points,
                         size_t count, const struct hth_study_flags *flags)
{
    for (size_t i = 0; i < count; i++)
        if ((flags->only == NULL || names(flags->only, points[i].part)) &&
            (flags->where == NULL || is_where(s, &points[i], flags->where)))
            return true;
    return false;
}

const struct hth_study_point *hth_study_first_chosen(const struct hth_study *s,
                                                     const struct hth_study_point *group,
                                                     const struct hth_study_flags *flags)
{
    for (size_t i = 0; i < HTH_MAX(group->group, (size_t)1); i++)
        if (hth_study_is_chosen(s, &group[i], 1, flags))
            return &group[i];
    return group;
}

bool hth_study_has_part(const struct hth_study *s, const char *part)
{
    return is_part(s, part, strlen(part));
}

/* Return "models, staleness": each part once, in order. */
static const char *parts_text(const struct hth_study *s, char *out, size_t max)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < s->point_count && at < max; i++) {
        size_t before = 0;
        while (strcmp(s->points[before].part, s->points[i].part) != 0)
            before++;
        if (before == i)
            at +=
                (size_t)snprintf(out + at, max - at, "%s%s", i > 0 ? ", " : "", s->points[i].part);
    }
    return out;
}

/* Whether the text is numbers separated by commas, up to the end of a condition. */
static bool is_list(const char *text)
{
    char *end = NULL;
    do {
        double value = strtod(text, &end);
        if (end == text || !isfinite(value))
            return false;
        text = end + 1;
    } while (*end == ',');
    return *end == '\0' || *end == ';';
}

/* Whether no earlier condition has this parameter. */
static bool is_first_of(const struct hth_study *s, const char *where, const char *condition)
{
    size_t k = hth_study_param(s, condition);
    while (where != condition && hth_study_param(s, where) != k)
        where = next_condition(where);
    return where == condition;
}

static enum hth_err check_where(const struct hth_study *s, const char *where)
{
    char params[512] = "";
    for (size_t k = 0, at = 0; k < s->param_count && at < sizeof(params); k++)
        at += (size_t)snprintf(params + at, sizeof(params) - at, "%s%s", k > 0 ? ", " : "",
                               s->params[k].name);
    for (const char *at = where; at != NULL; at = next_condition(at)) {
        size_t k = hth_study_param(s, at);
        if (k == s->param_count || !is_list(strchr(at, '=') + 1)) {
            hth_cli_say_error("sim %s: --where '%s': a parameter, = and numbers, please, such as "
                              "%s=1,2; there are %s",
                              s->name, at, s->params[0].name, params);
            return HTH_E_USAGE;
        }
        if (!is_first_of(s, where, at)) {
            hth_cli_say_error("sim %s: --where for %s twice: give all its values at once, such "
                              "as %s=1,2",
                              s->name, s->params[k].name, s->params[k].name);
            return HTH_E_USAGE;
        }
    }
    return HTH_OK;
}

static enum hth_err check_only(const struct hth_study *s, const char *only)
{
    for (const char *word = only; word != NULL;) {
        size_t len = strcspn(word, ",");
        if (!is_part(s, word, len)) {
            char parts[256];
            hth_cli_say_error("sim %s: --only '%s': no part '%.*s' here; expected one of: %s "
                              "(--help says what they need)",
                              s->name, only, (int)len, word, parts_text(s, parts, sizeof(parts)));
            return HTH_E_USAGE;
        }
        word = word[len] == ',' ? word + len + 1 : NULL;
    }
    return HTH_OK;
}

enum hth_err hth_study_check_choice(const struct hth_study *s, const struct hth_study_flags *flags)
{
    HTH_TRY(check_only(s, flags->only));
    if (flags->where != NULL)
        HTH_TRY(check_where(s, flags->where));
    if (hth_study_is_chosen(s, s->points, s->point_count, flags))
        return HTH_OK;
    hth_cli_say_error("sim %s: --where '%s': expected a value that a point has; none has that one",
                      s->name, flags->where);
    return HTH_E_USAGE;
}

/* ---- differences, seed by seed: --against --------------------------------------------------- */

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
    size_t *reference; /* [condition][point]; NONE: the point has no reference, or is one */
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

/* Find the reference of a point. Of several (a part may have refused calls beside lost ones) take
 * the one of the same series. */
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

/* Apply the conditions from `from` on to a number: subtract that of the reference, each after the
 * conditions that follow. */
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

/* ---- gaps ----------------------------------------------------------------------------------- */

char *hth_study_point_name(const struct hth_study *s, const struct hth_study_point *p)
{
    char *text = hth_asprintf("%s: %s", p->part, p->series);
    for (size_t k = 0; k < s->param_count; k++) {
        if (!isfinite(p->param[k]))
            continue;
        char *longer = hth_asprintf("%s, %s %g", text, s->params[k].name, p->param[k]);
        hth_free(text);
        text = longer;
    }
    return text;
}

const char *hth_study_why(enum hth_err err)
{
    /* A simulated run never waits in real time, so a timeout is one of virtual time. */
    return err == HTH_E_TIMEOUT ? "no progress within its limit of virtual time"
                                : hth_err_text(err);
}

char *hth_study_interrupted_text(const struct hth_study_gaps *g)
{
    return g->seeds > 0
               ? hth_asprintf("interrupted after %llu of %llu runs; shown are %llu of %llu seeds",
                              (unsigned long long)g->runs, (unsigned long long)g->runs_asked,
                              (unsigned long long)g->seeds, (unsigned long long)g->seeds_asked)
               : hth_asprintf("interrupted after %llu of %llu runs; not even one of %llu seeds is "
                              "complete, and only points that were run are shown",
                              (unsigned long long)g->runs, (unsigned long long)g->runs_asked,
                              (unsigned long long)g->seeds_asked);
}
