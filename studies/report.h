/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h: report.html, one page that holds its text, pictures and tables and needs no other file.
 * One thread.
 */
#ifndef HTH_STUDIES_REPORT_H
#define HTH_STUDIES_REPORT_H

#include "core/base.h"

#include <stdio.h>

/* Open DIR/report.html and write its head. Returns NULL after an error, which is reported. */
FILE *hth_report_begin(const char *dir, const char *title, const char *command, const char *about);
/* Write the picture DIR/svg itself, not a link to it; or a sentence where there is none. */
void hth_report_picture(FILE *report, const char *dir, const char *svg);
/* Write DIR/csv as a table. */
void hth_report_csv(FILE *report, const char *dir, const char *csv);
/* Write text with &, <, > and quotes escaped. */
void hth_report_text(FILE *report, const char *text);
/* End and close it. Errors, reported: E_IO. */
enum hth_err hth_report_end(FILE *report, const char *dir) HTH_MUST;

#endif
