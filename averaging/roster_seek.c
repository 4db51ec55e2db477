/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roster_seek.c: after a cut.
 *
 * Notes that were put while the network was cut reached one side of it, and each side goes on with
 * the other's old ones until they are renewed, which is rounds later. Who could not meet those who
 * should have come may be such a one: it asks the DHT for their notes and puts its own again. A few
 * times, as it does not know when the cut ends; and the DHT pays for each: so the pauses of those
 * that were in vain double from one look that fails to the next. A stranger who is due and never
 * comes could have it asked for ever else.
 */
#include "averaging/roster_int.h"

#define SEEK_US     (400 * HTH_US_PER_MS) /* about as often as notes may be put anyhow */
#define SEEK_MAX_US (4 * SEEK_US)
#define SEEKS       12

void hth_roster_seek(struct hth_roster *r)
{
    if (r->seek_at_us != 0 || r->opts.watch_only || r->leaving)
        return;
    r->seeks = 0;
    r->seek_pause_us = HTH_MAX(HTH_MIN(2 * r->seek_pause_us, SEEK_MAX_US), SEEK_US);
    r->seek_at_us = hth_now_us(r->env) + r->seek_pause_us;
    hth_roster_tick_at(r, r->seek_at_us);
}

void hth_roster_sought(struct hth_roster *r)
{
    r->seek_at_us = r->seek_pause_us = 0;
}

void hth_roster_adjust_seek(struct hth_roster *r)
{
    int64_t now_us = hth_now_us(r->env);

    if (r->seek_at_us == 0)
        return;
    if (now_us >= r->seek_at_us) {
        (void)!hth_board_ask(r->board); /* one may be under way, or the last was empty */
        hth_roster_say(r);
        r->stats.seeks++;
        r->seek_at_us = ++r->seeks < SEEKS ? now_us + r->seek_pause_us : 0;
    }
    if (r->seek_at_us != 0)
        hth_roster_tick_at(r, r->seek_at_us);
}
