/* SPDX-License-Identifier: Apache-2.0 */
/* events.c: writes events.csv; see events.h. */
#include "studies/events.h"

#include "cli/cli.h"
#include "studies/tools.h"

#include <inttypes.h>
#include <string.h>

FILE *hth_events_begin(const char *dir, const char *first)
{
    FILE *f = hth_sim_create(dir, "events.csv");
    if (f != NULL)
        fprintf(f, "%s,time_s,node,event,detail\n", first);
    return f;
}

/* Write a field as in RFC 4180: quoted where a character would end it. */
static void write_field(FILE *f, const char *text)
{
    if (strpbrk(text, ",\"\n") == NULL) {
        fputs(text, f);
        return;
    }
    fputc('"', f);
    for (; *text != '\0'; text++)
        fprintf(f, "%s%c", *text == '"' ? "\"" : "", *text);
    fputc('"', f);
}

void hth_events_row(FILE *f, const char *first, int64_t now_us, const char *node, const char *event,
                    const char *detail)
{
    const char *const fields[] = {node, event, detail};
    write_field(f, first);
    fprintf(f, ",%" PRId64 ".%06" PRId64, now_us / HTH_US_PER_S, now_us % HTH_US_PER_S);
    for (size_t i = 0; i < HTH_ARRAY_LEN(fields); i++) {
        fputc(',', f);
        write_field(f, fields[i]);
    }
    fputc('\n', f);
}

enum hth_err hth_events_end(FILE *f, const char *dir)
{
    return hth_sim_finish(f, dir, "events.csv");
}
