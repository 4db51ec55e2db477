/* SPDX-License-Identifier: Apache-2.0 */
/*
 * terminal.h: the terminal of `hearth watch`: whole frames on standard output, keys from standard
 * input, and all as it was at the end.
 *
 * Keys come one by one, without Enter and unseen; Ctrl-C still interrupts, Ctrl-Z does nothing. The
 * frames have the other of a terminal's two screens, so that the shell's lines come back. Messages
 * on standard error would stand in the middle of a frame: they are dropped while frames are shown,
 * unless standard error goes elsewhere.
 *
 * Main thread; one terminal in a process. Writing waits for a terminal that is slow.
 */
#ifndef HTH_APP_TERMINAL_H
#define HTH_APP_TERMINAL_H

#include "core/base.h"

/* Whether frames can be shown: standard output is a terminal that moves its cursor. */
bool hth_terminal_there(void);
/* Of UTF-8, by LC_ALL, LC_CTYPE, LANG; colours, unless NO_COLOR forbids them. */
bool hth_terminal_utf8(void);
bool hth_terminal_colors(void);
/* False, and 0: it does not tell. */
bool hth_terminal_size(unsigned *columns, unsigned *rows);

void hth_terminal_begin(void);
/* Restores all; at exit, too. Does nothing unless begun. */
void hth_terminal_end(void);
/* Shows lines of hth_screen_frame. */
void hth_terminal_show(const char *frame);
/* The next key that was typed; false: none was. `escape`: it ends a sequence (screen.h). */
bool hth_terminal_key(char *key, bool *escape);

#endif
