/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_weigh.c: what a member's weight counts for. Nobody proves the samples behind its values,
 * so with `clip` a weight counts for at most GROWTH times the most that it counted for before,
 * which fades from round to round; and of a member without such rounds for the lower median of the
 * group's, unless all are new.
 *
 * It is the reducer's own memory, and others reduce by theirs: the whole group holds what one
 * reducer makes of a part. Where several groups shall hold the same bits (`fixed`), weights are
 * sums over the first axis, and count as they are.
 */
#include "averaging/reduce_int.h"

#define GROWTH 2.0
#define FADES  (31.0 / 32) /* so that a large batch now and then counts in full */

static struct reduce_history *find(struct hth_reducer *red, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < HTH_MIN(red->history_count, HISTORIES_MAX); i++)
        if (hth_peer_id_eq(&red->histories[i].id, id))
            return &red->histories[i];
    return NULL;
}

static double lower_median(const struct hth_reduce_round *r)
{
    double sorted[HTH_AVG_MEMBERS_MAX];
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->is.member_count; i++)
        if (r->members[i].is.weight > 0)
            sorted[n++] = r->members[i].is.weight;
    return hth_reduce_rank(sorted, n, (n - 1) / 2);
}

static void remember(struct hth_reducer *red, const struct hth_peer_id *id, double weight)
{
    struct reduce_history *h = find(red, id);

    if (h == NULL) {
        h = &red->histories[red->history_count++ % HISTORIES_MAX];
        *h = (struct reduce_history){.id = *id};
    }
    h->most = HTH_MAX(weight, h->most * FADES);
}

void weigh_members(struct hth_reduce_round *r)
{
    struct hth_reducer *red = r->reducer;
    double median = lower_median(r);
    bool all_new = true;

    for (uint32_t i = 0; i < r->is.member_count; i++) {
        r->members[i].counts = r->members[i].is.weight;
        all_new = all_new && find(red, &r->members[i].is.id) == NULL;
    }
    if (red->opts.clip == 0 || r->is.fixed)
        return;
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        struct reduce_member_state *m = &r->members[i];
        const struct reduce_history *h = find(red, &m->is.id);
        double most = h != NULL ? GROWTH * h->most : median;

        if (m->is.weight == 0)
            continue;
        if (!all_new)
            m->counts = HTH_MIN(m->is.weight, most);
        remember(red, &m->is.id, HTH_MIN(m->is.weight, most));
    }
}
