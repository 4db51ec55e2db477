/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.h: puts a run's page (site.h) and run.json where people find them: on HTTP servers
 * (net/http.h), and into a folder for any static server.
 *
 *     /  /page.js  /page.css  /icon.svg  /run.json  /now.json  /events  /drawings.png
 *
 * Texts are made and compressed once for each view, by a job, and all readers share the bytes. The
 * folder gets the same files but the events, each replaced as a whole, every 30 s and when hosts
 * came or died; its page asks for run.json again instead of listening to events.
 *
 * Loop thread.
 */
#ifndef HTH_MONITOR_PUBLISH_H
#define HTH_MONITOR_PUBLISH_H

#include "monitor/run_json.h"

#define HTH_PUBLISH_SERVERS_MAX 2
#define HTH_PUBLISH_EXPORT_US   (30 * HTH_US_PER_S)

struct hth_http;
struct hth_publish;

struct hth_publish_opts {
    struct hth_http *http[HTH_PUBLISH_SERVERS_MAX]; /* NULL: none; they outlive it */
    const char *dir;                                /* NULL: no folder; borrowed */
};

struct hth_publish *hth_publish_new(struct hth_env *env, const struct hth_publish_opts *opts);
/* NULL is fine. */
void hth_publish_free(struct hth_publish *p);
/* Shows this picture soon. One that comes while the last one is still made is left out. */
void hth_publish_show(struct hth_publish *p, const struct hth_run_now *now);
/* Why the folder can't be written; HTH_OK: it can. */
enum hth_err hth_publish_err(const struct hth_publish *p);

#endif
