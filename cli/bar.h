/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bar.h: the progress line of work whose size is known: a bar, the rate, and the time left.
 *
 *     packing pictures  [########............]  1,203 of 3,655  512/s  5 s left
 *
 * It appears after a second, then four times a second; where no line can stand (cli/say.h), every
 * 30 seconds.
 *
 * Main thread.
 */
#ifndef HTH_CLI_BAR_H
#define HTH_CLI_BAR_H

#include "core/base.h"

struct hth_bar {
    const char *what; /* borrowed */
    int64_t begun_us, next_us;
};

void hth_bar_begin(struct hth_bar *bar, const char *what);
void hth_bar_at(struct hth_bar *bar, uint64_t done, uint64_t total);
void hth_bar_end(struct hth_bar *bar);

/* The line's text, for `done` of `total` after a time. Returns out. */
const char *hth_bar_text(const char *what, uint64_t done, uint64_t total, int64_t spent_us,
                         char out[160]);

#endif
