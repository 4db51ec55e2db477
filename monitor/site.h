/* SPDX-License-Identifier: Apache-2.0 */
/*
 * site.h: the files of a run's page.
 *
 *   index.html   hth_site_html: page/index.html, with the numbers of a run.json (run_json.h) as
 *                tables in its middle, which is what a browser without script shows
 *   page.js      Chart.js and page/page.js, which replaces the tables by the page and keeps it new
 *   page.css, icon.svg
 *
 * Links are relative: the files may lie below any address, beside run.json. index.html names the
 * content policy of net/http.h itself, so that a browser asks no other server, whoever serves it.
 * Texts of a run.json are untrusted: in the tables they are escaped, and control and direction
 * marks are replaced.
 *
 * All but index.html are fixed bytes, compressed when hearth is built.
 *
 * Any thread.
 */
#ifndef HTH_MONITOR_SITE_H
#define HTH_MONITOR_SITE_H

#include "core/base.h"

#include <jansson.h>

struct hth_site_file {
    const char *path;   /* "/page.js" */
    const char *type;   /* for Content-Type */
    const uint8_t *gz;  /* in gzip's format: Content-Encoding: gzip */
    size_t gz_len, len; /* of gz, and uncompressed */
};
#define HTH_SITE_FILES 3
const struct hth_site_file *hth_site_files(void); /* HTH_SITE_FILES of them */
/* The uncompressed bytes of a file; free with hth_free. */
char *hth_site_plain(const struct hth_site_file *file);

/* index.html; free with hth_free. `run` may be any JSON. `live`: the page listens to events, else
 * it reads run.json again every 30 s. */
char *hth_site_html(const json_t *run, bool live);

#endif
