/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen.h: a run on a terminal: draws a run.json (run_json.h) as a frame of text.
 *
 *      fashion                                      training, 2026-11-27 09:00 UTC
 *      step 1,290 of 2,000, 64.5 %, 1.9 h left
 *      loss 0.4897   test loss 0.5123, 83.1 % right, at step 1,000
 *      55.1 samples/s, 137 rows/s   trainers 3, hosts 4, helpers 1
 *      -- loss against steps ----------------- -- experts: 28 of 32 served, 4 missing --
 *         1.8 \                                ffn0 15/16   ffn1 13/16
 *              '-.__                           1111         1111
 *         0.49      '''--.....__               1121         1111
 *             129                1,290         111X         XX1X
 *      -- peers ----------------------------------------------------------------------
 *      -- events ---------------------------------------------------------------------
 *
 * A frame is plain characters and, with `color`, the colours and attributes of ECMA-48, which every
 * terminal knows; it moves no cursor, so that it is the same text in a test. No library of screens
 * is used: what there is to draw is one page, and the untrusted texts in it must be cut and made
 * inert cell by cell in any case. Each character of them that is not printable ASCII becomes '?'.
 *
 * Any thread.
 */
#ifndef HTH_MONITOR_SCREEN_H
#define HTH_MONITOR_SCREEN_H

#include <jansson.h>
#include <stdbool.h>

#define HTH_SCREEN_COLUMNS_MIN 40
#define HTH_SCREEN_ROWS_MIN    12
#define HTH_SCREEN_MAX         1000 /* columns, rows; a larger terminal is used in part */

enum hth_screen_view {
    HTH_SCREEN_ALL,
    HTH_SCREEN_LOSS,
    HTH_SCREEN_EXPERTS,
    HTH_SCREEN_PEERS,
    HTH_SCREEN_EVENTS,
    HTH_SCREEN_KEYS,
};

struct hth_screen {
    unsigned columns, rows;
    bool color;
    bool utf8; /* curves have eight dots in a character; else one */
    enum hth_screen_view view;
    unsigned against; /* of the loss: 0 steps, 1 samples, 2 time */
    unsigned scroll;  /* lines of the view that are above the frame */
};

/* Exactly `rows` lines of at most `columns` characters, with a newline after each but the last.
 * Below the least size it says so instead. *scroll is lowered to what there is to scroll. Free the
 * frame with hth_free. */
char *hth_screen_frame(const json_t *run, struct hth_screen *screen);
/* Carries out a key. False: it ends the watching. Keys are bytes as a terminal sends them; of a
 * sequence (ESC [ A) the last byte, with `escape`. */
bool hth_screen_key(struct hth_screen *screen, char key, bool escape);
/* The run in one line, without its newline. Free it with hth_free. */
char *hth_screen_line(const json_t *run);

#endif
