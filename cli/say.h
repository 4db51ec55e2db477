/* SPDX-License-Identifier: Apache-2.0 */
/*
 * say.h: everything that a program in a swarm prints: lines for people, errors, log lines, and the
 * progress line of a terminal.
 *
 *   hth_say           standard output   a result: "serving 8 experts"
 *   hth_say_note      standard error    news on the way to it: "waiting for experts"
 *   hth_cli_say_error standard error    "hearth: ...": what went wrong, and what to do
 *   hth_say_log       standard error    the sink of a log
 *   hth_say_progress  standard error    replaces itself
 *
 * This file alone knows whether a progress line stands on the terminal. It removes it before any
 * other line and puts it back below, and cuts it to the terminal's width, as a line that wraps
 * could not be removed. With hth_say_json each line is a JSON object, like those of the log
 * (core/log.h), and nothing else is printed.
 *
 * Texts have no newline at their end. Any thread, but for hth_say_json and hth_say_node, which
 * belong to the start. A line that can't be written is lost; main checks standard output at exit.
 */
#ifndef HTH_CLI_SAY_H
#define HTH_CLI_SAY_H

#include "core/base.h"

void hth_say_json(bool on);
/* The `node` of JSON lines; copied. */
void hth_say_node(const char *name);

void hth_say(const char *fmt, ...) HTH_PRINTF(1, 2);
void hth_say_note(const char *fmt, ...) HTH_PRINTF(1, 2);
void hth_cli_say_error(const char *fmt, ...) HTH_PRINTF(1, 2);
/* For hth_log.sink: a whole line with its newline, formatted already. */
void hth_say_log(void *arg, const char *line, size_t len);

/* Whether a progress line can stand: standard error is a terminal, and lines are text. If not,
 * hth_say_progress is hth_say_note, so call it less often. */
bool hth_say_stands(void);
void hth_say_progress(const char *fmt, ...) HTH_PRINTF(1, 2);
/* Removes the standing line. */
void hth_say_progress_end(void);

#endif
