/* SPDX-License-Identifier: Apache-2.0 */
/* report.c: writes report.html, a page that needs no other file; see report.h. */
#define _DEFAULT_SOURCE /* strsep */
#include "studies/report.h"

#include "cli/cli.h"
#include "core/mem.h"
#include "studies/study.h"
#include "studies/tools.h"

#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (64u << 20) /* limit of a picture or a table */

static const char style[] =
    "<style>\nbody { font: 15px/1.5 sans-serif; margin: 2em auto; max-width: 80em; "
    "padding: 0 1em; color: #222; }\n"
    "pre { background: #f4f4f4; padding: .6em 1em; overflow-x: auto; }\n"
    "figure { margin: 1em 0; }\nsvg { max-width: 100%; height: auto; }\n"
    "table { display: block; overflow-x: auto; margin: 1em 0; border-collapse: collapse; "
    "font-size: 13px; }\n"
    "td, th { padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: right; "
    "font-weight: normal; }\n"
    "th:first-child { text-align: left; white-space: nowrap; }\n"
    "tr:first-child th { font-weight: bold; vertical-align: bottom; }\n</style>\n";

void hth_report_text(FILE *f, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", f);
            break;
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc(*text, f);
        }
    }
}

FILE *hth_report_begin(const char *dir, const char *title, const char *command, const char *about)
{
    FILE *f = hth_sim_create(dir, "report.html");
    if (f == NULL)
        return NULL;
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>", f);
    hth_report_text(f, title);
    fprintf(f, "</title>\n%s</head>\n<body>\n<h1>", style);
    hth_report_text(f, title);
    fputs("</h1>\n<p>", f);
    hth_report_text(f, about);
    fputs("</p>\n<pre>", f);
    hth_report_text(f, command);
    fputs("</pre>\n", f);
    return f;
}

/* Read a whole text file into the heap; NULL if there is none or it is too large. */
static char *read_text(const char *dir, const char *name)
{
    char *path = hth_asprintf("%s/%s", dir, name), *text = NULL;
    FILE *file = fopen(path, "r");
    long size = -1;
    hth_free(path);
    if (file == NULL)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0)
        size = ftell(file);
    if (size >= 0 && size <= (long)FILE_BYTES_MAX && fseek(file, 0, SEEK_SET) == 0)
        text = hth_try_calloc((size_t)size + 1, 1);
    if (text != NULL && fread(text, 1, (size_t)size, file) != (size_t)size) {
        hth_free(text);
        text = NULL;
    }
    fclose(file);
    return text;
}

void hth_report_picture(FILE *f, const char *dir, const char *svg)
{
    char *text = read_text(dir, svg);
    /* Skip the XML declaration and document type, which are invalid inside HTML. */
    const char *from = text == NULL ? NULL : strstr(text, "<svg");
    if (from == NULL)
        fputs("<p>There is no picture: gnuplot was missing.</p>\n", f);
    else
        fprintf(f, "<figure>\n%s\n</figure>\n", from);
    hth_free(text);
}

static void csv_row(FILE *f, char *row, const char *tag)
{
    fputs("<tr>", f);
    for (char *cell; (cell = strsep(&row, ",")) != NULL;) {
        char *end = cell;
        double value = strtod(cell, &end);
        fprintf(f, "<%s>", tag);
        if (end != cell && *end == '\0')
            fprintf(f, "%.5g", value);
        else
            hth_report_text(f, cell);
        fprintf(f, "</%s>", tag);
    }
    fputs("</tr>\n", f);
}

void hth_report_csv(FILE *f, const char *dir, const char *csv)
{
    char *text = read_text(dir, csv), *rest = text;
    const char *tag = "th";
    if (text == NULL)
        return;
    fputs("<table>\n", f);
    for (char *row; (row = strsep(&rest, "\n")) != NULL; tag = "td")
        if (*row != '\0')
            csv_row(f, row, tag);
    fputs("</table>\n", f);
    hth_free(text);
}

enum hth_err hth_report_end(FILE *f, const char *dir)
{
    fputs("</body>\n</html>\n", f);
    return hth_sim_finish(f, dir, "report.html");
}
