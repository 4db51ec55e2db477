/* SPDX-License-Identifier: Apache-2.0 */
/*
 * news.h: the lines by which a host tells its owner how it goes.
 *
 *   first trainer: 4f3a9c0d12 from 10.0.0.7
 *   1 min: 12,480 rows for 3 trainers, wait 4 ms, saved 12 s ago       each minute with rows
 *   no trainer for 10 min: ...                                         once for each such pause
 *   served 3.2 h: 1,203,200 rows, 1.3 GB, 5 trainers                   at the end
 *
 * Plain memory and the caller's clock: any thread, and virtual time in tests.
 */
#ifndef HTH_APP_NEWS_H
#define HTH_APP_NEWS_H

#include "experts/server.h"

#define HTH_NEWS_TEXT_MAX 480

/* Zero before the first turn. */
struct hth_news {
    bool begun, quiet_said;
    int64_t began_us, minute_us; /* the first turn, and the last minute's end */
    int64_t served_us;           /* the last turn with new rows, or the first turn */
    uint64_t callers, rows;      /* told so far */
    uint64_t rows_seen;          /* at the last turn */
};

struct hth_news_now {
    int64_t now_us, wall_us;
    struct hth_server_stats stats;
    uint64_t bytes;      /* moved on the wire, both ways */
    const char *address; /* where others dial this host */
    bool unreachable;    /* as others say */
};

/* Call it every few seconds once experts are served. Returns out, or NULL: nothing to tell. */
const char *hth_news_turn(struct hth_news *news, const struct hth_news_now *now,
                          char out[HTH_NEWS_TEXT_MAX]);
const char *hth_news_end(struct hth_news *news, const struct hth_news_now *now,
                         char out[HTH_NEWS_TEXT_MAX]);

#endif
