/* SPDX-License-Identifier: Apache-2.0 */
/* events_file.c: events as JSON, and back from a file. */
#include "cli/json.h"
#include "core/mem.h"
#include "monitor/events_int.h"
#include "monitor/inert.h"

#include <stdlib.h>
#include <string.h>

json_t *hth_event_list_json(const struct hth_event *event, uint32_t count)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_t *o = json_object();
        hth_json_count(o, "t", event[i].t);
        hth_json_text(o, "kind", hth_event_name(event[i].kind));
        hth_json_text(o, "peer", event[i].peer);
        hth_json_text(o, "text", event[i].text);
        json_array_append_new(all, o);
    }
    return all;
}

char *hth_events_write(const struct hth_events *e, const char *run)
{
    struct hth_event *list = hth_new_array(struct hth_event, HTH_EVENTS_MAX);
    json_t *o = json_object();
    hth_json_text(o, "run", run);
    hth_json_take(o, "events", hth_event_list_json(list, hth_events_list(e, list)));
    char *dumped = json_dumps(o, JSON_COMPACT), *text = hth_strdup(dumped != NULL ? dumped : "");
    free(dumped);
    json_decref(o);
    hth_free(list);
    return text;
}

/* ---- reading -------------------------------------------------------------------------------- */

static const char *text_of(const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));
    return text != NULL ? text : "";
}

/* False: it is no event. */
static bool read_event(const json_t *o, struct hth_event *out)
{
    json_int_t t = json_integer_value(json_object_get(o, "t"));
    int kind = HTH_EVENT_JOINED;
    while (kind <= HTH_EVENT_CHECKPOINT &&
           strcmp(text_of(o, "kind"), hth_event_name((enum hth_event_kind)kind)) != 0)
        kind++;
    if (t <= 0 || t > UINT32_MAX || kind > HTH_EVENT_CHECKPOINT)
        return false;
    out->t = (uint32_t)t;
    out->kind = (enum hth_event_kind)kind;
    hth_inert(text_of(o, "peer"), out->peer, sizeof(out->peer));
    hth_inert(text_of(o, "text"), out->text, sizeof(out->text));
    return true;
}

enum hth_err hth_events_read(struct hth_events *e, const char *run, const void *text, size_t len)
{
    json_t *o = json_loadb(text, len, 0, NULL), *list = json_object_get(o, "events");
    size_t count = json_array_size(list);
    enum hth_err err = !json_is_array(list)                  ? HTH_E_MALFORMED
                       : strcmp(text_of(o, "run"), run) != 0 ? HTH_E_WRONG_RUN
                                                             : HTH_OK;
    for (size_t i = count > HTH_EVENTS_MAX ? count - HTH_EVENTS_MAX : 0; err == HTH_OK && i < count;
         i++) {
        struct hth_event event;
        if (read_event(json_array_get(list, i), &event))
            *hth_events_next(e) = event;
    }
    json_decref(o);
    return err;
}
