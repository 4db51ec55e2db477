/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_line.c: how fast parts get to a reducer and back: what decides whether packing them pays
 * where the operator has not said how fast the line is.
 *
 * When a part is answered all that was under way to that reducer when it left, itself included, has
 * gone over this node's line out and the reducer's line in, which keep their order. So as long as
 * what is under way waits for lines,
 *
 *     rate = bytes under way when it left / time until its answer
 *
 * is what both move at least, and the largest of these is what counts; those of earlier rounds by
 * half in each that follows. It is too much where parts had arrived when this one left, and waited
 * for other senders or for their answers' way back: then packing is left away where it would have
 * paid. On a slow line every part says the truth but for that. Where machines are short of
 * processor time most parts look slow and some do not, and packing, which takes still more of that
 * time, is no help. A reducer that waits for others looks slow as well; then this node has time to
 * pack.
 *
 * Where this node's own timers come late it is short of processor time itself, and packs nothing
 * whatever the lines look like.
 *
 * All pairs of a round share this node's line and its workers, so it is the sum over all reducers
 * that is held against what packing is worth; and a quarter of that, for where no part was lucky
 * nobody knows.
 */
#include "averaging/reduce_int.h"

#define SURE      4            /* lines have to be so many times slower than said ones */
#define BYTES_MIN (256u << 10) /* fewer of a round tell of round trips, not of lines */
#define LATE_US   (5 * HTH_US_PER_MS)

static struct reduce_link *find(struct hth_reducer *red, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < HTH_MIN(red->line_count, LINES_MAX); i++) {
        if (hth_peer_id_eq(&red->lines[i].id, id))
            return &red->lines[i];
    }
    return NULL;
}

void line_sent(struct hth_reduce_round *r, struct reduce_sent *s)
{
    struct reduce_member_state *m = &r->members[s->to];
    m->line_out_bytes += s->bytes;
    s->line_out_bytes = m->line_out_bytes;
    s->sent_us = hth_now_us(r->reducer->env);
}

void line_answered(struct hth_reduce_round *r, const struct reduce_sent *s)
{
    struct hth_reducer *red = r->reducer;
    struct reduce_member_state *m = &r->members[s->to];
    int64_t took_us = HTH_MAX(hth_now_us(red->env) - s->sent_us, (int64_t)1);
    double rate = (double)s->line_out_bytes * HTH_US_PER_S / (double)took_us;
    if (r->values == NULL) /* nothing left this node */
        return;
    m->line_best = HTH_MAX(m->line_best, rate);
    m->line_bytes += s->bytes;
    if (m->line_bytes < BYTES_MIN)
        return;
    struct reduce_link *known = find(red, &m->is.id);
    if (known == NULL) {
        known = &red->lines[red->line_count++ % LINES_MAX];
        *known = (struct reduce_link){.id = m->is.id};
    }
    if (!m->line_known)
        known->bytes_per_s /= 2;
    m->line_known = true;
    known->bytes_per_s = HTH_MAX(known->bytes_per_s, m->line_best);
}

/* Of its line, as far as it is known; else 0. */
static double rate_of(const struct hth_reduce_round *r, const struct reduce_member_state *m)
{
    const struct reduce_link *known = find(r->reducer, &m->is.id);
    return known != NULL ? known->bytes_per_s : 0;
}

bool line_packs(const struct hth_reduce_round *r, const struct reduce_member_state *m,
                enum hth_quant_format format)
{
    double said = r->reducer->opts.link_bytes_per_s;
    if (said == 0 && r->reducer->late_us > LATE_US)
        return false;
    return hth_codec_packs(format, said > 0 ? said : SURE * rate_of(r, m) * r->reducer_count);
}
