/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_line.c: how fast parts get to a reducer and back: what decides whether packing them pays
 * where the operator has not said how fast the line is.
 *
 *     rate = bytes of parts that were answered / time in which any were under way
 *
 * That is the slower of the two lines, or less when the reducer waits for others; then this node
 * has time to pack. All pairs of a round share this node's line and its workers, so it is the sum
 * over all reducers that is held against what packing is worth; and a quarter of that, for a
 * machine that is short of processor time looks like one on a slow line, and packing would not
 * help it.
 */
#include "averaging/reduce_int.h"

#define SURE      4            /* lines have to be so many times slower than said ones */
#define BYTES_MIN (256u << 10) /* less tells of round trips, not of lines */

static struct line *find(struct hth_reducer *red, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < HTH_MIN(red->line_count, LINES_MAX); i++) {
        if (hth_peer_id_eq(&red->lines[i].id, id))
            return &red->lines[i];
    }
    return NULL;
}

void line_begin(struct hth_reduce_round *r)
{
    for (uint32_t k = 0; k < r->reducer_count; k++) {
        struct member *m = &r->members[r->reducers[k]];
        const struct line *known = find(r->reducer, &m->is.id);
        m->line_bytes_per_s = known != NULL ? known->bytes_per_s : 0;
    }
}

void line_sent(struct hth_reduce_round *r, struct member *m, uint32_t bytes)
{
    if (m->in_flight_bytes == 0)
        m->line_since_us = hth_now_us(r->reducer->env);
    m->in_flight_bytes += bytes;
}

void line_answered(struct hth_reduce_round *r, struct member *m, uint32_t bytes)
{
    struct hth_reducer *red = r->reducer;
    int64_t now = hth_now_us(red->env);
    m->line_busy_us += now - m->line_since_us;
    m->line_since_us = now;
    m->line_bytes += bytes;
    if (m->line_bytes < BYTES_MIN || m->line_busy_us <= 0)
        return;
    m->line_bytes_per_s = (double)m->line_bytes * HTH_US_PER_S / (double)m->line_busy_us;
    struct line *known = find(red, &m->is.id);
    if (known == NULL)
        known = &red->lines[red->line_count++ % LINES_MAX];
    *known = (struct line){m->is.id, m->line_bytes_per_s};
}

bool line_packs(const struct hth_reduce_round *r, const struct member *m,
                enum hth_quant_format format)
{
    double said = r->reducer->opts.link_bytes_per_s;
    return hth_codec_packs(format, said > 0 ? said : SURE * m->line_bytes_per_s * r->reducer_count);
}
