/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab_round.c: from a GO to its link: the batch is taken, reduced and hashed. On a grid
 * collab_grid.c goes on with the mean of the first axis.
 */
#include "collab/collab_int.h"
#include "collab/line.h"
#include "core/blob.h"
#include "core/mem.h"

#include <string.h>

static void on_digest(struct hth_collab *c, enum hth_err err, const struct hth_hash *digest);

void collab_drop_round(struct hth_collab *c)
{
    if (c->reduce != NULL)
        hth_reduce_cancel(c->reduce);
    if (c->digest != NULL && c->digest->done == on_digest) {
        c->digest->collab = NULL;
        c->digest = NULL;
    }
    collab_grid_drop(c);
    hth_blob_unref(c->average);
    c->reduce = NULL;
    c->average = NULL;
}

static void fail(struct hth_collab *c, enum hth_err err)
{
    HTH_LOG(c->env, HTH_INFO, HTH_SUB_AVG, "step %llu: its round failed: %s",
            (unsigned long long)c->group.step, hth_err_text(err));
    hth_line_ends(&c->stats.averages, err, hth_now_us(c->env) - c->go_us);
    collab_drop_round(c);
    hth_roll_averaged(c->roll, err, NULL, NULL);
}

static void on_digest(struct hth_collab *c, enum hth_err err, const struct hth_hash *digest)
{
    if (err != HTH_OK) {
        fail(c, err);
        return;
    }
    c->stats.averaged_us = hth_now_us(c->env) - c->go_us;
    hth_line_ends(&c->stats.averages, HTH_OK, c->stats.averaged_us);
    hth_roll_averaged(c->roll, HTH_OK, c->marks, digest);
    hth_blob_unref(c->average); /* the round's mean, if it made no link */
    c->average = NULL;
}

/* The k-th member of the own line of the first axis; with k beyond the last, the list's count. */
static uint32_t own_line(const struct hth_collab *c, uint32_t k)
{
    uint32_t cell = c->cells.cell[c->group.self];
    if (k < c->cells.shape.size[0])
        cell = hth_cells_on_line(&c->cells, cell, 0, k);
    bool is_member = k < c->cells.shape.size[0] && cell < c->cells.count; /* no hole */
    return is_member ? c->cells.member[cell] : c->group.count;
}

/* All that have all parts see alike who is missing in which. */
static void mark(struct hth_collab *c, const struct hth_reduce_result *r)
{
    memset(c->marks, 0, sizeof(c->marks));
    for (uint32_t i = 0; i < c->line_members; i++) {
        uint32_t missing = r->fates[i].parts_missing;
        c->marks[own_line(c, i)] = missing == 0         ? HTH_ROLL_IN
                                   : missing < r->parts ? HTH_ROLL_PART
                                                        : 0;
    }
}

enum hth_err collab_reduced(const struct hth_reduce_result *r)
{
    if (r->err == HTH_OK && r->parts_kept > 0)
        return HTH_E_UNREACHABLE; /* a reducer was lost: others may have its parts */
    return r->err == HTH_OK && r->average == NULL ? HTH_E_BUG : r->err;
}

void collab_averaged(struct hth_collab *c, enum hth_err err)
{
    if (err == HTH_OK)
        collab_hash(c, c->average, on_digest);
    else
        fail(c, err);
}

static void on_reduced(void *arg, const struct hth_reduce_result *r)
{
    struct hth_collab *c = arg;
    enum hth_err err = collab_reduced(r);
    bool far = false;
    c->reduce = NULL;
    hth_line_counts(&c->stats.averages, r);
    for (uint32_t i = 0; i < r->members; i++) { /* helpers come last */
        if (i < c->line_members && r->fates[i].as_reducer != HTH_REDUCE_DROP_NONE)
            hth_roll_slow(c->roll, &c->group.peer[own_line(c, i)].id);
        if (i < c->line_members && own_line(c, i) != c->group.self &&
            r->fates[i].as_sender == HTH_REDUCE_DROP_NOT_FINITE)
            hth_roll_doubt(c->roll, &c->group.peer[own_line(c, i)].id, HTH_E_NOT_FINITE, "values");
        far |= r->fates[i].as_reducer == HTH_REDUCE_DROP_FAR;
    }
    if (err == HTH_OK) {
        mark(c, r);
        c->average = hth_blob_ref(r->average);
    }
    if (c->grid != NULL)
        collab_grid_next(c);
    else
        collab_averaged(c, far ? HTH_E_NORM : err);
}

/* In the own line of the first axis. */
static enum hth_err reduce(struct hth_collab *c, struct hth_blob *values)
{
    const struct hth_roll_group *g = &c->group;
    struct hth_reduce_member members[HTH_LINE_MAX];
    struct hth_reduce_opts o = hth_line_opts(c->opts.count, c->spans, c->opts.span_count);
    uint32_t line = hth_cells_on_line(&c->cells, c->cells.cell[g->self], 0, 0);
    o.group = hth_line_name(c->env->crypto, g, &c->cells, line);
    o.members = members;
    o.member_count = hth_line_fill(g, &c->cells, line, members, &c->line_members);
    for (uint32_t i = 0; i < c->line_members; i++)
        if (hth_peer_id_eq(&members[i].id, &c->env->self))
            o.self = i;
    o.values = values;
    o.far = c->opts.far;
    o.done = on_reduced;
    o.arg = c;
    return hth_reduce_start(c->opts.reducer, &o, &c->reduce);
}

void hth_collab_taken(struct hth_collab *c, enum hth_err err, struct hth_blob *values,
                      uint64_t samples)
{
    HTH_ASSERT(c->asked == ASK_TAKE);
    c->asked = ASK_COUNT;
    if (c->frozen) {
        collab_ask_next(c);
        return;
    }
    if (err == HTH_OK && samples < c->group.peer[c->group.self].samples)
        err = HTH_E_STALE; /* a state was adopted since it was READY */
    if (err == HTH_OK)
        err = reduce(c, values);
    if (err != HTH_OK)
        fail(c, err);
    collab_ask_next(c);
}

void collab_on_average(void *arg, const struct hth_roll_group *group)
{
    struct hth_collab *c = arg;
    c->group = *group;
    c->go_us = hth_now_us(c->env);
    hth_cells_place(c->env->crypto, &group->head, group->peer, group->count, &c->opts.shape,
                    &c->cells);
    for (uint32_t i = 0; i < group->count; i++)
        hth_rpc_lives(c->rpc, &group->peer[i].id); /* each was READY; after a cut dials may rest */
    c->stats.shape = c->cells.shape;
    hth_line_begins(&c->stats.averages, group);
    if (c->cells.shape.dims > 1)
        collab_grid_begin(c);
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
    collab_keep(c, link, c->average);
    c->mean = c->average;
    c->average = NULL;
    c->to = link;
    c->by_arrive = false;
    collab_ask(c, ASK_STEP);
}
