/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab_grid.c: a round's axes after the first: from the mean of the own line to that of all.
 *
 * Along axis k the cells of a line each hold the mean of another part of the list, or nothing where
 * their line of the axis before failed. Before they average these, weighted by the samples behind
 * them, all must know which there are:
 *
 *     cell                               leader: the first cell whose member can be dialled
 *       | --- 76 ROW {works} ----------->|   held, at most HOLD_US
 *       | <-- WAIT ----------------------|
 *       | --- ROW {has, marks} --------->|   or {failed}
 *       | <-- BEGIN {has, marks} --------|   when that is known of all cells
 *       | <===== the all-reduce ========>|   of the cells that have a mean
 *
 * A ROW that is held tells each side that the other lives. All lines of an axis use the same rows
 * in the same order, so they come to the same bits (`fixed` of averaging/reduce.h). Where a line of
 * the first axis fails, it does so for all of its cells: the others go on without it. But a line
 * fails of which a cell is lost or silent, or failed on a later axis, or is missing in a part: it
 * would come to another mean than the lines beside it. A member without a mean fails the round,
 * and fetches it.
 *
 * A proxy takes part in the line of its hole, too, with what it holds itself.
 */
#include "collab/collab_int.h"
#include "collab/line.h"
#include "collab/row_msg.h"
#include "core/blob.h"
#include "core/mem.h"

#include <string.h>

#define HOLD_US (150 * HTH_US_PER_MS)
/* Silence that means lost. Messages wait behind values: in a round that takes long, half of its
 * time so far, ... */
#define SILENCE_US     (600 * HTH_US_PER_MS)
#define SILENCE_MAX_US (3 * HTH_US_PER_S)
#define ANSWER_RTTS    4                     /* ... and so many round trips, ... */
#define DIAL_US        HTH_US_PER_S          /* ... or this before the first */
#define AGAIN_US       (350 * HTH_US_PER_MS) /* for a leader to enter the round */
#define CLOSED_US      (100 * HTH_US_PER_MS) /* to be heard again after a connection was lost */
#define TICK_US        (50 * HTH_US_PER_MS)

/* A cell as its leader knows it. */
struct grid_row {
    enum hth_row_state state;
    int64_t heard_us;
    int64_t closed_us; /* its connection was lost; 0: it was not, or it was heard since */
    struct hth_rpc_request *held; /* its ROW; NULL: none is held */
    int64_t held_until_us;
};

/* A line in which this member stands, in its own cell or in a hole's. */
struct grid_line {
    struct collab_grid *grid;
    uint32_t axis, cell;
    uint32_t size, at; /* cells, and the own coordinate */
    uint32_t leader;   /* its coordinate */
    bool begun, over;
    struct hth_row_reply begin; /* as a leader, gathered here */
    struct grid_row *row;       /* size, of a leader; else NULL */
    struct hth_rpc_call *call;  /* else its ROW; NULL: none is out */
    int64_t again_us;           /* ROW is sent then; 0: an answer is awaited */
    uint32_t tries;             /* that failed one after the other */
    struct hth_reduce_round *reduce;
    struct hth_blob *average; /* NULL: it failed, or has none yet */
};

struct collab_grid {
    struct hth_collab *collab;
    uint32_t axis; /* under way; 0: the own line of the first one */
    struct hth_timer *timer;
    uint32_t lines;
    struct grid_line line[2 * HTH_AVG_DIMS_MAX]; /* ascending by axis, the own cell's first */
};

static uint32_t member_at(const struct grid_line *l, uint32_t k)
{
    const struct hth_cells *cells = &l->grid->collab->cells;
    return cells->member[hth_cells_on_line(cells, l->cell, l->axis, k)];
}

static const struct hth_roll_peer *peer_at(const struct grid_line *l, uint32_t k)
{
    return &l->grid->collab->group.peer[member_at(l, k)];
}

static bool leads(const struct grid_line *l)
{
    return l->row != NULL;
}

/* The own cell, as this line's leader is told it. */
static enum hth_row_state state_of(const struct grid_line *l)
{
    if (l->axis > l->grid->axis)
        return HTH_ROW_WORKS;
    return l->grid->collab->average != NULL ? HTH_ROW_HAS : HTH_ROW_FAILED;
}

/* ---- the end of lines, and of axes -------------------------------------------------------- */

static void begin_axis(struct collab_grid *g);

static void release(struct grid_line *l, struct grid_row *row)
{
    uint8_t bytes[HTH_ROW_BYTES_MAX];
    const struct hth_row_reply wait = {.kind = HTH_ROW_WAIT};
    struct hth_rpc_body body = {.payload = bytes};
    struct hth_rpc_request *req = row->held;
    row->held = NULL;
    if (req == NULL)
        return;
    if (l->over && !l->begun) {
        hth_rpc_refuse(req, HTH_E_UNREACHABLE, 0, "a member of this line is lost");
        return;
    }
    body.payload_len = hth_row_reply_write(l->begun ? &l->begin : &wait, bytes);
    hth_rpc_reply(req, &body);
}

static void release_all(struct grid_line *l)
{
    for (uint32_t k = 0; leads(l) && k < l->size; k++)
        release(l, &l->row[k]);
}

/* The axis has ended: the mean of the own line, or else of the hole's, goes on. */
static void end_axis(struct collab_grid *g)
{
    struct hth_collab *c = g->collab;
    bool found = false;
    hth_blob_unref(c->average);
    c->average = NULL;
    memset(c->marks, 0, sizeof(c->marks));
    for (uint32_t i = 0; i < g->lines; i++) {
        struct grid_line *l = &g->line[i];
        if (l->axis != g->axis || l->average == NULL)
            continue;
        if (found) {
            hth_blob_unref(l->average);
        } else {
            c->average = l->average;
            memcpy(c->marks, l->begin.marks.of, sizeof(c->marks));
        }
        found = true;
        l->average = NULL;
    }
    if (g->axis + 1 < c->cells.shape.dims) {
        begin_axis(g);
        return;
    }
    collab_grid_drop(c);
    collab_averaged(c, found ? HTH_OK : HTH_E_UNREACHABLE);
}

/* Another line of this axis may still be under way. */
static bool is_over(const struct collab_grid *g)
{
    for (uint32_t i = 0; i < g->lines; i++)
        if (g->line[i].axis == g->axis && !g->line[i].over)
            return false;
    return true;
}

static void end_line(struct grid_line *l, enum hth_err err)
{
    struct collab_grid *g = l->grid;
    if (err != HTH_OK)
        HTH_LOG(g->collab->env, HTH_INFO, HTH_SUB_AVG, "a line of axis %u failed: %s", l->axis,
                hth_err_text(err));
    l->over = true;
    l->again_us = 0;
    release_all(l);
    if (l->axis == g->axis && is_over(g))
        end_axis(g);
}

/* ---- the all-reduce of a line ------------------------------------------------------------- */

/* Samples behind what a cell brings. */
static uint64_t samples_at(const struct grid_line *l, uint32_t k)
{
    const struct hth_collab *c = l->grid->collab;
    uint32_t cell = hth_cells_on_line(&c->cells, l->cell, l->axis, k);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->group.count && l->begin.has >> k & 1; i++)
        if (l->begin.marks.of[i] != 0 && hth_cells_covers(&c->cells, cell, l->axis, i))
            sum += c->group.peer[i].samples;
    return sum;
}

/* A mean that is missing in a part is in the other lines' means all the same. */
static bool is_whole(const struct hth_reduce_result *r)
{
    for (uint32_t k = 0; k < r->members; k++)
        if (r->fates[k].parts_missing > 0)
            return false;
    return true;
}

static void on_reduced(void *arg, const struct hth_reduce_result *r)
{
    struct grid_line *l = arg;
    enum hth_err err = collab_reduced(r);
    uint32_t i = 0;
    l->reduce = NULL;
    for (uint32_t k = 0; k < l->size; k++)
        if (samples_at(l, k) > 0 && r->fates[i++].as_reducer != HTH_REDUCE_DROP_NONE)
            hth_roll_slow(l->grid->collab->roll, &peer_at(l, k)->id);
    hth_line_counts(&l->grid->collab->stats.averages, r);
    if (err == HTH_OK && !is_whole(r))
        err = HTH_E_UNREACHABLE;
    if (err == HTH_OK)
        l->average = hth_blob_ref(r->average);
    end_line(l, err);
}

/* Lines that begin unlike are other groups. */
static struct hth_hash name_of(const struct hth_collab *c, uint32_t axis, uint32_t cell,
                               const struct hth_row_reply *begin)
{
    struct hth_row_msg where = {
        .group = c->group.id, .axis = axis, .cell = hth_cells_on_line(&c->cells, cell, axis, 0)};
    uint8_t bytes[2 * HTH_ROW_BYTES_MAX];
    struct hth_hash name;
    size_t len = hth_row_write(&where, bytes);
    len += hth_row_reply_write(begin, bytes + len);
    c->env->crypto->hash(bytes, len, &name);
    return name;
}

static enum hth_err reduce(struct grid_line *l)
{
    struct hth_collab *c = l->grid->collab;
    struct hth_reduce_member members[HTH_ROLL_LINE_MAX];
    uint64_t all = 0;
    bool any = false; /* can reduce, and does not rest */
    for (uint32_t k = 0; k < l->size; k++) {
        uint64_t samples = samples_at(l, k);
        all += samples;
        any |= samples > 0 && hth_line_reduces(peer_at(l, k));
    }
    struct hth_reduce_opts o = hth_line_opts(c->opts.count, c->spans, c->opts.span_count);
    for (uint32_t k = 0; k < l->size; k++) {
        const struct hth_roll_peer *p = peer_at(l, k);
        uint64_t samples = samples_at(l, k);
        if (k == l->at)
            o.self = o.member_count;
        if (samples > 0)
            members[o.member_count++] = (struct hth_reduce_member){
                .id = p->id,
                .addr = p->addr,
                .bandwidth = any ? hth_line_reduces(p) : p->addr.family != 0,
                .weight = (double)samples / (double)all};
    }
    if ((samples_at(l, l->at) > 0) != (c->average != NULL))
        return HTH_E_PROTOCOL; /* it said something else */
    if (c->average == NULL)
        return HTH_E_UNREACHABLE;
    o.group = name_of(c, l->axis, l->cell, &l->begin);
    o.members = members;
    o.values = c->average;
    o.far = c->opts.far;
    o.fixed = true;
    o.done = on_reduced;
    o.arg = l;
    return hth_reduce_start(c->opts.reducer, &o, &l->reduce);
}

static void begin_line(struct grid_line *l)
{
    l->begun = true;
    release_all(l);
    enum hth_err err = reduce(l);
    if (err != HTH_OK)
        end_line(l, err);
}

/* A ROW is answered by then, and another one comes. */
static int64_t patience_us(const struct grid_line *l, const struct hth_peer_id *peer)
{
    const struct hth_collab *c = l->grid->collab;
    struct hth_rpc_peer_info info;
    int64_t limit = (hth_now_us(c->env) - c->go_us) / 2;
    limit = HTH_MIN(HTH_MAX(limit, SILENCE_US), SILENCE_MAX_US) + hth_rpc_late_us(c->rpc);
    bool known = hth_rpc_peer_info(c->rpc, peer, &info) == HTH_OK && info.rtt_us > 0;
    return HOLD_US + limit + (known ? ANSWER_RTTS * info.rtt_us : DIAL_US);
}

/* ---- ROW, as a leader --------------------------------------------------------------------- */

static bool is_lost(const struct grid_line *l, uint32_t k)
{
    const struct grid_row *row = &l->row[k];
    int64_t now = hth_now_us(l->grid->collab->env);
    bool closed = row->closed_us != 0 && now - row->closed_us >= CLOSED_US;
    return k != l->at && row->held == NULL &&
           (closed || now - row->heard_us > patience_us(l, &peer_at(l, k)->id));
}

/* The marks of the members behind a cell. */
static void take_marks(struct grid_line *l, uint32_t cell, const uint16_t *marks)
{
    const struct hth_cells *cells = &l->grid->collab->cells;
    for (uint32_t i = 0; i < cells->count; i++)
        if (hth_cells_covers(cells, cell, l->axis, i))
            l->begin.marks.of[i] = marks[i];
}

/* Once all cells are known the line begins; once its own is, and another one is lost, it fails. */
static void lead(struct grid_line *l)
{
    int64_t now = hth_now_us(l->grid->collab->env);
    bool known = true, lost = false;
    l->row[l->at].state = state_of(l);
    if (l->row[l->at].state == HTH_ROW_HAS)
        take_marks(l, l->cell, l->grid->collab->marks);
    l->begin.has = 0;
    for (uint32_t k = 0; k < l->size; k++) {
        struct grid_row *row = &l->row[k];
        if (row->held != NULL && row->held_until_us <= now)
            release(l, row);
        known &= row->state != HTH_ROW_WORKS;
        lost |= is_lost(l, k) || (row->state == HTH_ROW_FAILED && l->axis > 1);
        l->begin.has |= (uint64_t)(row->state == HTH_ROW_HAS) << k;
    }
    if (l->row[l->at].state == HTH_ROW_WORKS)
        return;
    if (lost || (known && l->begin.has == 0))
        end_line(l, HTH_E_UNREACHABLE);
    else if (known)
        begin_line(l);
}

static struct grid_line *line_of(struct collab_grid *g, const struct hth_row_msg *msg)
{
    const struct hth_cells *cells = &g->collab->cells;
    for (uint32_t i = 0; i < g->lines; i++) {
        struct grid_line *l = &g->line[i];
        if (l->axis == msg->axis && hth_cells_on_line(cells, l->cell, l->axis, 0) ==
                                        hth_cells_on_line(cells, msg->cell, l->axis, 0))
            return l;
    }
    return NULL;
}

/* The line that a ROW is for, which is led here. */
static enum hth_err check(struct hth_collab *c, const struct hth_row_msg *msg,
                          const struct hth_peer_id *from, struct grid_line **out)
{
    const struct hth_cells *cells = &c->cells;
    if (c->grid == NULL || memcmp(&msg->group, &c->group.id, sizeof(msg->group)) != 0)
        return memcmp(&msg->group, &c->grid_ended, sizeof(msg->group)) == 0 ? HTH_E_EXPIRED
                                                                            : HTH_E_AGAIN;
    if (msg->axis == 0 || msg->axis >= cells->shape.dims || msg->cell >= cells->cells ||
        (msg->state == HTH_ROW_HAS && msg->marks.count != cells->count))
        return HTH_E_RANGE;
    if (!hth_peer_id_eq(&c->group.peer[cells->member[msg->cell]].id, from))
        return HTH_E_BAD_PEER_ID;
    *out = line_of(c->grid, msg);
    return *out == NULL || !leads(*out) ? HTH_E_PROTOCOL : HTH_OK;
}

void collab_on_row(void *arg, struct hth_rpc_request *req)
{
    struct hth_collab *c = arg;
    struct hth_row_msg msg;
    struct grid_line *l = NULL;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    enum hth_err err = hth_row_read(bytes, len, &msg);
    if (err == HTH_OK)
        err = check(c, &msg, hth_rpc_peer(req), &l);
    if (err != HTH_OK) {
        hth_rpc_refuse(req, err, err == HTH_E_AGAIN ? TICK_US : 0, "ROW");
        return;
    }
    struct grid_row *row = &l->row[hth_cells_at(&c->cells, msg.cell, l->axis)];
    release(l, row); /* its older one */
    row->held = req;
    row->heard_us = hth_now_us(c->env);
    row->closed_us = 0;
    row->held_until_us = row->heard_us + HOLD_US;
    if (l->begun || l->over) {
        release(l, row);
        return;
    }
    if (row->state == HTH_ROW_WORKS) { /* the first word counts */
        row->state = msg.state;
        if (msg.state == HTH_ROW_HAS)
            take_marks(l, msg.cell, msg.marks.of);
    }
    lead(l);
}

void collab_grid_peer_lost(struct hth_collab *c, const struct hth_peer_id *peer)
{
    struct collab_grid *g = c->grid;
    for (uint32_t i = 0; g != NULL && i < g->lines; i++) {
        struct grid_line *l = &g->line[i];
        for (uint32_t k = 0; leads(l) && k < l->size; k++) {
            struct grid_row *row = &l->row[k];
            if (!hth_peer_id_eq(&peer_at(l, k)->id, peer))
                continue;
            release(l, row);
            row->closed_us = hth_now_us(c->env);
        }
    }
}

/* ---- ROW, as a member --------------------------------------------------------------------- */

static void send_row(struct grid_line *l);

static void take_begin(struct grid_line *l, const struct hth_row_reply *reply)
{
    const struct hth_collab *c = l->grid->collab;
    l->begin = *reply;
    if (l->axis != l->grid->axis || reply->marks.count != c->group.count)
        end_line(l, HTH_E_PROTOCOL);
    else
        begin_line(l);
}

/* A refusal ends the line, but where the leader has not entered the round yet. So does silence,
 * once the own cell is known. */
static void on_row_answer(void *arg, const struct hth_rpc_result *result)
{
    struct grid_line *l = arg;
    struct hth_row_reply reply;
    enum hth_err err = result->err;
    bool works = state_of(l) == HTH_ROW_WORKS;
    l->call = NULL;
    if (err == HTH_OK)
        err = hth_row_reply_read(result->payload, result->payload_len, &reply);
    if (err == HTH_OK && reply.kind == HTH_ROW_BEGIN) {
        take_begin(l, &reply);
        return;
    }
    l->tries = err == HTH_OK || works ? 0 : l->tries + 1;
    bool again = err == HTH_E_AGAIN || (!result->remote && err != HTH_E_TIMEOUT);
    if (err == HTH_OK)
        send_row(l);
    else if ((works && !result->remote) ||
             (again && l->tries * TICK_US <= (result->remote ? AGAIN_US : CLOSED_US)))
        l->again_us = hth_now_us(l->grid->collab->env) + TICK_US;
    else
        end_line(l, err);
}

static void send_row(struct grid_line *l)
{
    struct hth_collab *c = l->grid->collab;
    uint8_t bytes[HTH_ROW_BYTES_MAX];
    struct hth_row_msg msg = {
        .group = c->group.id, .axis = l->axis, .cell = l->cell, .state = state_of(l)};
    msg.marks.count = c->group.count;
    memcpy(msg.marks.of, c->marks, sizeof(msg.marks.of));
    struct hth_rpc_call_opts opts = {.method = HTH_ROW_METHOD};
    opts.body.payload = bytes;
    opts.body.payload_len = hth_row_write(&msg, bytes);
    const struct hth_roll_peer *leader = peer_at(l, l->leader);
    struct hth_rpc_target target = {leader->id, leader->addr};
    opts.timeout_us = patience_us(l, &leader->id);
    l->again_us = 0;
    if (hth_rpc_call(c->rpc, &target, &opts, on_row_answer, l, &l->call) != HTH_OK)
        l->again_us = hth_now_us(c->env) + TICK_US;
}

/* ---- the round ---------------------------------------------------------------------------- */

static void begin_axis(struct collab_grid *g)
{
    g->axis++;
    for (uint32_t i = 0; i < g->lines; i++) {
        struct grid_line *l = &g->line[i];
        if (l->axis != g->axis || l->over || leads(l))
            continue;
        if (l->call != NULL)
            hth_rpc_cancel(l->call);
        l->call = NULL;
        l->tries = 0;
        send_row(l);
    }
    if (is_over(g)) /* all failed before */
        end_axis(g);
    else
        hth_timer_set(g->collab->env, g->timer, 0); /* those that it leads */
}

void collab_grid_next(struct hth_collab *c)
{
    begin_axis(c->grid);
}

/* Its members hear that it lives, also those that have begun already. */
static void nudge(const struct grid_line *l)
{
    for (uint32_t k = 0; k < l->size; k++)
        if (k != l->at)
            hth_rpc_nudge(l->grid->collab->rpc, &peer_at(l, k)->id);
}

static void on_tick(void *arg)
{
    struct collab_grid *g = arg;
    struct hth_collab *c = g->collab;
    int64_t now = hth_now_us(c->env);
    hth_timer_set(c->env, g->timer, TICK_US);
    for (uint32_t i = 0; c->grid == g && i < g->lines; i++) {
        struct grid_line *l = &g->line[i];
        if (l->begun || l->over)
            continue;
        nudge(l);
        if (leads(l))
            lead(l);
        else if (l->again_us != 0 && l->again_us <= now)
            send_row(l);
    }
}

/* The first that can be dialled. */
static uint32_t leader_of(const struct grid_line *l)
{
    for (uint32_t k = 0; k < l->size; k++)
        if (peer_at(l, k)->addr.family != 0)
            return k;
    return 0;
}

static void add_line(struct collab_grid *g, uint32_t axis, uint32_t cell)
{
    const struct hth_cells *cells = &g->collab->cells;
    struct grid_line *l = &g->line[g->lines++];
    *l = (struct grid_line){.grid = g,
                            .axis = axis,
                            .cell = cell,
                            .size = cells->shape.size[axis],
                            .at = hth_cells_at(cells, cell, axis),
                            .begin.kind = HTH_ROW_BEGIN,
                            .begin.marks.count = cells->count};
    l->leader = leader_of(l);
    if (l->leader != l->at) {
        send_row(l);
        return;
    }
    l->row = hth_new_array(struct grid_row, l->size);
    for (uint32_t k = 0; k < l->size; k++)
        l->row[k].heard_us = hth_now_us(g->collab->env);
}

void collab_grid_begin(struct hth_collab *c)
{
    struct collab_grid *g = hth_new(struct collab_grid);
    uint32_t hole = hth_cells_hole_of(&c->cells, c->group.self);
    g->collab = c;
    g->timer = hth_timer_new(c->env, on_tick, g);
    c->grid = g;
    for (uint32_t axis = 1; axis < c->cells.shape.dims; axis++) {
        add_line(g, axis, c->cells.cell[c->group.self]);
        if (hole != HTH_CELL_NONE && hth_cells_line_counts(&c->cells, hole, axis))
            add_line(g, axis, hole);
    }
    hth_timer_set(c->env, g->timer, TICK_US);
}

void collab_grid_drop(struct hth_collab *c)
{
    struct collab_grid *g = c->grid;
    if (g == NULL)
        return;
    c->grid = NULL;
    c->grid_ended = c->group.id;
    for (uint32_t i = 0; i < g->lines; i++) {
        struct grid_line *l = &g->line[i];
        l->over = true;
        release_all(l);
        if (l->call != NULL)
            hth_rpc_cancel(l->call);
        if (l->reduce != NULL)
            hth_reduce_cancel(l->reduce);
        hth_blob_unref(l->average);
        hth_free(l->row);
    }
    hth_timer_free(c->env, g->timer);
    hth_free(g);
}
