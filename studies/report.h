/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h: report.html, one page that needs no other file: text, pictures and tables are in it.
 * One thread.
 */
#ifndef HTH_STUDIES_REPORT_H
#define HTH_STUDIES_REPORT_H

#include "core/base.h"

#include <stdio.h>

/* Opens DIR/report.html and writes its head. NULL when that failed, which was said. */
FILE *hth_report_begin(const char *dir, const char *title, const char *command, const char *about);
/* The picture DIR/svg itself, not a link to it; a sentence where there is none. */
void hth_report_picture(FILE *report, const char *dir, const char *svg);
/* A table of DIR/csv. */
void hth_report_csv(FILE *report, const char *dir, const char *csv);
/* Text with &, <, > and quotes escaped. */
void hth_report_text(FILE *report, const char *text);
/* Ends and closes it. Errors: E_IO, said. */
enum hth_err hth_report_end(FILE *report, const char *dir) HTH_MUST;

#endif
