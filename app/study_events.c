/* SPDX-License-Identifier: Apache-2.0 */
/* events.csv of a study: who was born and who died in the first run of each group; see study.h. */
#include "app/study.h"

#include "app/events.h"
#include "app/sim.h"
#include "core/mem.h"

#include <math.h>
#include <string.h>

struct events {
    FILE *file;
    const char *run;
};

static void on_event(void *arg, int64_t now_us, const char *node, const char *event,
                     uint64_t detail)
{
    const struct events *e = arg;
    char text[24];
    if (strcmp(event, "crash") == 0) {
        hth_events_row(e->file, e->run, now_us, node, event,
                       detail == HTH_CRASH_SILENT ? "silent" : "told");
    } else if (strcmp(event, "boot") == 0) {
        snprintf(text, sizeof(text), "life %llu", (unsigned long long)detail);
        hth_events_row(e->file, e->run, now_us, node, event, text);
    }
}

/* A group may begin with points of parts that nobody asked for and no file shows. */
static const struct hth_study_point *first_shown(const struct hth_study *s,
                                                 const struct hth_study_point *group, size_t count,
                                                 const struct hth_study_flags *flags)
{
    for (size_t i = 0; i < count; i++)
        if (hth_study_is_chosen(s, &group[i], 1, flags))
            return &group[i];
    return group;
}

/* "storm: all three, delay_ms 1000, strength_pct 100", as in config.json. Heap string. */
static char *name_of(const struct hth_study *s, const struct hth_study_point *p)
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

/* A run is the same every time: it is not kept while many are under way. */
enum hth_err hth_study_write_events(const struct hth_study *s, const struct hth_study_flags *flags)
{
    struct events e = {.file = hth_events_begin(flags->out, "run")};
    const struct hth_study_watch watch = {on_event, &e};
    enum hth_err err = HTH_OK;
    if (e.file == NULL)
        return HTH_E_IO;
    for (size_t i = 0, count; i < s->point_count && err == HTH_OK; i += count) {
        count = HTH_MAX(s->points[i].group, (size_t)1);
        double *values = hth_new_array(double, count * s->metric_count);
        char *name = name_of(s, first_shown(s, &s->points[i], count, flags));
        e.run = name;
        err = s->run(s->arg, &s->points[i], flags->seed, &watch, values);
        hth_free(name);
        hth_free(values);
    }
    enum hth_err end = hth_events_end(e.file);
    return err != HTH_OK ? err : end;
}
