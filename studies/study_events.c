/* SPDX-License-Identifier: Apache-2.0 */
/* events.csv of a study: who was born and who died in the first run of each group; see study.h. */
#include "core/mem.h"
#include "studies/events.h"
#include "studies/study.h"
#include "studies/study_gaps.h"
#include "studies/tools.h"

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

/* A run is the same every time: it is not kept while many are under way. */
enum hth_err hth_study_write_events(const struct hth_study *s, const struct hth_study_flags *flags)
{
    struct events e = {.file = hth_events_begin(flags->out, "run")};
    const struct hth_study_watch watch = {on_event, &e};
    if (e.file == NULL)
        return HTH_E_IO;
    for (size_t i = 0, count; i < s->point_count; i += count) {
        count = HTH_MAX(s->points[i].group, (size_t)1);
        double *values = hth_new_array(double, count * s->metric_count);
        char *name = hth_study_point_name(s, hth_study_first_chosen(s, &s->points[i], flags));
        e.run = name;
        /* One that fails has been named; its events until then are what is asked for. */
        (void)s->run(s->arg, &s->points[i], flags->seed, &watch, values);
        hth_free(name);
        hth_free(values);
    }
    return hth_events_end(e.file, flags->out);
}
