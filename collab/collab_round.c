/* SPDX-License-Identifier: Apache-2.0 */
/* collab_round.c: from a GO to its link: the batch is taken, reduced and hashed. */
#include "averaging/shares.h"
#include "collab/collab_int.h"
#include "core/blob.h"
#include "core/mem.h"

#include <string.h>

#define ROUND_US   (30 * HTH_US_PER_S)
#define THIN_BIT_S 2e6 /* a slower line is no line to train over */

void collab_drop_round(struct hth_collab *c)
{
    if (c->reduce != NULL)
        hth_reduce_cancel(c->reduce);
    if (c->digest != NULL)
        c->digest->collab = NULL;
    hth_blob_unref(c->average);
    c->reduce = NULL;
    c->digest = NULL;
    c->average = NULL;
}

static void fail(struct hth_collab *c, enum hth_err err)
{
    HTH_LOG(c->env, HTH_INFO, HTH_SUB_AVG, "step %llu: its round failed: %s",
            (unsigned long long)c->group.step, hth_err_text(err));
    c->stats.failed++;
    collab_drop_round(c);
    hth_roll_averaged(c->roll, err, NULL, NULL);
}

static void on_digest(struct hth_collab *c, enum hth_err err, const struct hth_hash *digest)
{
    if (err != HTH_OK) {
        fail(c, err);
        return;
    }
    c->stats.rounds++;
    c->stats.averaged_us = hth_now_us(c->env) - c->go_us;
    hth_roll_averaged(c->roll, HTH_OK, c->marks, digest);
    hth_blob_unref(c->average); /* the round's mean, if it made no link */
    c->average = NULL;
}

/* All that have all parts see alike who is missing in which. */
static void mark(struct hth_collab *c, const struct hth_reduce_result *r)
{
    for (uint32_t i = 0; i < r->members; i++) {
        uint32_t missing = r->fates[i].parts_missing;
        c->marks[i] = missing == 0         ? HTH_ROLL_IN
                      : missing < r->parts ? HTH_ROLL_PART
                                           : 0;
    }
}

static void on_reduced(void *arg, const struct hth_reduce_result *r)
{
    struct hth_collab *c = arg;
    enum hth_err err = r->err;
    c->reduce = NULL;
    if (err == HTH_OK && r->parts_kept > 0)
        err = HTH_E_UNREACHABLE; /* a reducer was lost: others may have its parts */
    if (err == HTH_OK && r->average == NULL)
        err = HTH_E_BUG;
    if (err != HTH_OK) {
        fail(c, err);
        return;
    }
    mark(c, r);
    c->average = hth_blob_ref(r->average);
    collab_hash(c, c->average, on_digest);
}

/* Groups on thin lines take twice what they need at best. A member that is lost, silent, or slower
 * than the others is given up long before. */
static int64_t round_us(const struct hth_collab *c)
{
    double bits = 2.0 * 8 * sizeof(float) * (double)c->opts.count;
    return HTH_MAX(ROUND_US, (int64_t)(2 * bits / THIN_BIT_S * HTH_US_PER_S));
}

/* A client reduces nothing. */
static enum hth_err reduce(struct hth_collab *c, struct hth_blob *values)
{
    const struct hth_roll_group *g = &c->group;
    struct hth_reduce_member members[HTH_ROLL_LINE_MAX];
    struct hth_reduce_opts o = {.group = g->id,
                                .members = members,
                                .member_count = g->count,
                                .self = g->self,
                                .values = values,
                                .count = c->opts.count,
                                .spans = c->spans,
                                .span_count = c->opts.span_count,
                                .same = true,
                                .share_max = HTH_AVG_SHARE_MAX,
                                .timeout_us = HTH_MIN(round_us(c), HTH_AVG_REDUCE_TIMEOUT_MAX_US),
                                .done = on_reduced,
                                .arg = c};
    for (uint32_t i = 0; i < g->count; i++)
        members[i] = (struct hth_reduce_member){.id = g->peer[i].id,
                                                .addr = g->peer[i].addr,
                                                .bandwidth = g->peer[i].addr.family != 0,
                                                .weight = g->peer[i].samples};
    return hth_reduce_start(c->opts.reducer, &o, &c->reduce);
}

void hth_collab_taken(struct hth_collab *c, enum hth_err err, struct hth_blob *values,
                      uint64_t samples)
{
    HTH_ASSERT(c->asked == ASK_TAKE);
    c->asked = ASK_COUNT;
    if (c->frozen)
        return;
    if (err == HTH_OK && samples < c->group.peer[c->group.self].samples)
        err = HTH_E_STALE; /* a state was adopted since it was READY */
    if (err == HTH_OK)
        err = reduce(c, values);
    if (err != HTH_OK)
        fail(c, err);
}

void collab_on_average(void *arg, const struct hth_roll_group *group)
{
    struct hth_collab *c = arg;
    c->group = *group;
    c->go_us = hth_now_us(c->env);
    collab_ask(c, ASK_TAKE);
}

void collab_on_tip(void *arg, uint32_t link, bool used)
{
    struct hth_collab *c = arg;
    if (used)
        c->ops.used(c->arg);
    if (collab_all_leave(c, link))
        hth_roll_freeze(c->roll, link);
    if (c->average == NULL)
        return; /* it was fetched */
    c->stats.forks += hth_chain_at(c->chain, link)->kind == HTH_LINK_FORK;
    hth_means_put(c->means, hth_chain_head(c->chain, link), hth_chain_at(c->chain, link)->step,
                  c->average);
    c->mean = c->average;
    c->average = NULL;
    c->to = link;
    c->by_arrive = false;
    collab_ask(c, ASK_STEP);
}
