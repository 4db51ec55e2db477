/* SPDX-License-Identifier: Apache-2.0 */
/* curve.c: reads a run's loss; see curve.h. */
#include "cli/curve.h"

#include "core/mem.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#define GAP_MAX_S 120.0

struct parsing {
    struct hth_curve *curve;
    double last_t; /* of the file's clock; NaN: none yet */
    double time_s; /* trained */
};

static void add(struct hth_curve_line *line, struct hth_curve_point point)
{
    if ((line->count & (line->count - 1)) == 0) /* full: sizes are powers of 2 */
        line->point =
            hth_realloc(line->point, line->count == 0 ? 1 : 2 * line->count, sizeof(point));
    line->point[line->count++] = point;
}

/* Drops what lies after that step, or at it. */
static void cut(struct hth_curve_line *line, double step, bool at_it)
{
    while (line->count > 0) {
        double last = line->point[line->count - 1].at[HTH_CURVE_STEPS];
        if (last < step || (!at_it && last == step))
            break;
        line->count--;
    }
}

static bool number(const json_t *line, const char *key, double *out)
{
    const json_t *value = json_object_get(line, key);

    *out = json_number_value(value);
    return json_is_number(value) && isfinite(*out) && *out >= 0;
}

static void pass_time(struct parsing *p, double t)
{
    double gap = t - p->last_t; /* NaN before the first line */

    if (gap > 0 && gap <= GAP_MAX_S)
        p->time_s += gap;
    p->last_t = t;
}

/* Whether the line has what its kind must have. */
static bool take(struct parsing *p, const json_t *line)
{
    const char *kind = json_string_value(json_object_get(line, "kind"));
    struct hth_curve_point point = {.at = {0}};
    double t, step;

    if (kind == NULL || !number(line, "t", &t) || !number(line, "step", &step))
        return false;
    if (strcmp(kind, "progress") == 0) {
        if (!number(line, "samples", &point.at[HTH_CURVE_SAMPLES]) ||
            !number(line, "loss", &point.loss))
            return false;
        pass_time(p, t);
        cut(&p->curve->train, step, true);
        cut(&p->curve->test, step, false);
    } else if (strcmp(kind, "eval") == 0) {
        if (!number(line, "loss", &point.loss))
            return false;
        pass_time(p, t);
        cut(&p->curve->test, step, true);
    } else {
        return true;
    }
    point.at[HTH_CURVE_STEPS] = step;
    point.at[HTH_CURVE_TIME] = p->time_s;
    if (point.loss > 0) /* 0: no update yet */
        add(kind[0] == 'p' ? &p->curve->train : &p->curve->test, point);
    return true;
}

/* Samples behind a step: on the straight line between the points of training around it. */
static double samples_at(const struct hth_curve_line *train, double step)
{
    struct hth_curve_point before = {.at = {0}}, after;

    for (size_t i = 0; i < train->count; i++) {
        after = train->point[i];
        if (after.at[HTH_CURVE_STEPS] >= step) {
            double part = (step - before.at[HTH_CURVE_STEPS]) /
                          (after.at[HTH_CURVE_STEPS] - before.at[HTH_CURVE_STEPS]);
            return before.at[HTH_CURVE_SAMPLES] +
                   part * (after.at[HTH_CURVE_SAMPLES] - before.at[HTH_CURVE_SAMPLES]);
        }
        before = after;
    }
    return before.at[HTH_CURVE_SAMPLES];
}

void hth_curve_parse(const uint8_t *bytes, size_t len, struct hth_curve *out)
{
    struct parsing p = {.curve = out, .last_t = NAN};

    *out = (struct hth_curve){0};
    for (size_t at = 0, next; at < len; at = next) {
        const uint8_t *end = memchr(bytes + at, '\n', len - at);
        size_t stop = end != NULL ? (size_t)(end - bytes) : len;
        json_t *line = json_loadb((const char *)bytes + at, stop - at, 0, NULL);
        out->lines_bad += stop > at && !take(&p, line);
        json_decref(line);
        next = stop + 1;
    }
    for (size_t i = 0; i < out->test.count; i++)
        out->test.point[i].at[HTH_CURVE_SAMPLES] =
            samples_at(&out->train, out->test.point[i].at[HTH_CURVE_STEPS]);
}

void hth_curve_clear(struct hth_curve *curve)
{
    hth_free(curve->train.point);
    hth_free(curve->test.point);
    *curve = (struct hth_curve){0};
}
