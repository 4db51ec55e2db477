/* SPDX-License-Identifier: Apache-2.0 */
/* news.c: one line at most for each turn; see news.h. */
#include "app/news.h"

#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#define MINUTE_US (60 * HTH_US_PER_S)
#define QUIET_US  (10 * MINUTE_US)

static uint64_t rows_of(const struct hth_server_stats *s)
{
    return s->rows_forward + s->rows_backward;
}

static const char *tell_first(const struct hth_server_caller *first, char out[HTH_NEWS_TEXT_MAX])
{
    char id[HTH_PEER_SHORT_LEN], addr[HTH_ADDR_TEXT_MAX];
    char *port = strrchr(hth_addr_text(&first->from, addr), ':');
    if (port != NULL)
        *port = '\0'; /* of its end of the connection: it says nothing */
    snprintf(out, HTH_NEWS_TEXT_MAX, "first trainer: %s from %s", hth_peer_id_short(&first->id, id),
             addr);
    return out;
}

static const char *tell_minute(const struct hth_news_now *now, uint64_t rows,
                               char out[HTH_NEWS_TEXT_MAX])
{
    const struct hth_server_stats *s = &now->stats;
    char count[32], saved[64] = "not saved yet", span[16];
    if (s->saved_us > 0)
        snprintf(saved, sizeof(saved), "saved %s ago",
                 hth_cli_span_text(now->wall_us - s->saved_us, span));
    snprintf(out, HTH_NEWS_TEXT_MAX, "1 min: %s rows for %u trainer%s, wait %.0f ms, %s",
             hth_cli_count_text(rows, count), s->callers_now, s->callers_now == 1 ? "" : "s",
             s->queue_ms_mean, saved);
    return out;
}

static const char *tell_quiet(const struct hth_news_now *now, char out[HTH_NEWS_TEXT_MAX])
{
    if (now->unreachable) {
        snprintf(out, HTH_NEWS_TEXT_MAX,
                 "no trainer for 10 min: others can't reach %s: forward its port, TCP and UDP",
                 now->address);
        return out;
    }
    snprintf(out, HTH_NEWS_TEXT_MAX,
             "no trainer for 10 min: look whether one trains this run with the same run file, and "
             "whether others reach %s, TCP and UDP: on another machine, `hearth status --join %s` "
             "shows both",
             now->address, now->address);
    return out;
}

const char *hth_news_turn(struct hth_news *n, const struct hth_news_now *now,
                          char out[HTH_NEWS_TEXT_MAX])
{
    uint64_t rows = rows_of(&now->stats);
    if (!n->begun) {
        n->begun = true;
        n->began_us = n->minute_us = n->served_us = now->now_us;
    }
    if (rows != n->rows_seen) {
        n->served_us = now->now_us;
        n->quiet_said = false;
    }
    n->rows_seen = rows;
    if (n->callers == 0 && now->stats.callers > 0) {
        n->callers = now->stats.callers;
        n->minute_us = now->now_us;
        return tell_first(&now->stats.first_caller, out);
    }
    if (now->now_us - n->minute_us >= MINUTE_US) {
        uint64_t fresh = rows - n->rows;
        n->minute_us += (now->now_us - n->minute_us) / MINUTE_US * MINUTE_US;
        n->rows = rows;
        if (fresh > 0)
            return tell_minute(now, fresh, out);
    }
    if (now->now_us - n->served_us < QUIET_US || n->quiet_said)
        return NULL;
    n->quiet_said = true;
    return tell_quiet(now, out);
}

const char *hth_news_end(struct hth_news *n, const struct hth_news_now *now,
                         char out[HTH_NEWS_TEXT_MAX])
{
    char span[16], rows[32], bytes[16], trainers[32];
    uint64_t callers = now->stats.callers;
    snprintf(out, HTH_NEWS_TEXT_MAX, "served %s: %s rows, %s, %s trainer%s",
             hth_cli_span_text(n->begun ? now->now_us - n->began_us : 0, span),
             hth_cli_count_text(rows_of(&now->stats), rows),
             hth_cli_bytes_text((double)now->bytes, bytes), hth_cli_count_text(callers, trainers),
             callers == 1 ? "" : "s");
    return out;
}
