/* SPDX-License-Identifier: Apache-2.0 */
/* bar.c: a bar, a rate, and the time left. */
#include "cli/bar.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

#define CELLS       20
#define FIRST_US    (1 * HTH_US_PER_S)
#define STANDING_US (HTH_US_PER_S / 4)
#define LINES_US    (30 * HTH_US_PER_S)

static int64_t clock_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * HTH_US_PER_S + now.tv_nsec / 1000;
}

const char *hth_bar_text(const char *what, uint64_t done, uint64_t total, int64_t spent_us,
                         char out[160])
{
    char cells[CELLS + 1], now[32], all[32], rate[32], left[16];
    double per_s = spent_us > 0 ? (double)done * 1e6 / (double)spent_us : 0;
    double left_us = per_s > 0 ? (double)(total - done) / per_s * 1e6 : 0;
    size_t full = total > 0 ? (size_t)((double)done / (double)total * CELLS) : 0;

    memset(cells, '.', CELLS);
    memset(cells, '#', HTH_MIN(full, (size_t)CELLS));
    cells[CELLS] = '\0';
    snprintf(out, 160, "%s  [%s]  %s of %s  %s/s  %s left", what, cells,
             hth_cli_count_text(done, now), hth_cli_count_text(total, all),
             hth_cli_count_text((uint64_t)(per_s + 0.5), rate),
             hth_cli_span_text((int64_t)HTH_MIN(left_us, 1e18), left));
    return out;
}

void hth_bar_begin(struct hth_bar *bar, const char *what)
{
    bar->what = what;
    bar->begun_us = clock_us();
    bar->next_us = bar->begun_us + FIRST_US;
}

void hth_bar_at(struct hth_bar *bar, uint64_t done, uint64_t total)
{
    int64_t now_us = clock_us();
    char text[160];

    if (now_us < bar->next_us || done > total)
        return;
    hth_say_progress("%s", hth_bar_text(bar->what, done, total, now_us - bar->begun_us, text));
    bar->next_us = now_us + (hth_say_stands() ? STANDING_US : LINES_US);
}

void hth_bar_end(struct hth_bar *bar)
{
    (void)bar;
    hth_say_progress_end();
}
