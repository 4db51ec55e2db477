/* SPDX-License-Identifier: Apache-2.0 */
/* Which points of a study were asked for: --only and --where; see study.h. */
#include "cli/cli.h"
#include "studies/study.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEAR 1e-6 /* of a value: learning rates are floats */

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

/* The condition behind the one that begins there; NULL: there is none. */
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

/* "models, staleness": each part once, in order. */
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

/* Numbers with commas between, up to the end of a condition. */
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

/* Whether a parameter has no condition before this one. */
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
            hth_cli_say_error("sim %s: --where for %s twice: all its values in one, please, such "
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
            hth_cli_say_error("sim %s: --only '%s': no part '%.*s' here; there are %s (--help "
                              "says what they need)",
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
    hth_cli_say_error("sim %s: --where '%s': no point has such a value", s->name, flags->where);
    return HTH_E_USAGE;
}
