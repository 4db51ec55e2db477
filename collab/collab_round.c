/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab_round.c: from a GO to its link: the batch is taken, reduced along each axis, and hashed.
 *
 * A list that is one line has one axis. On a grid (cells.h) the cells of a line along a later axis
 * each hold the mean of another part of the list, or nothing where their line of the axis before
 * failed. Before they average these, weighted by the samples behind them, all must know which there
 * are:
 *
 *     member                             leader: the first member that can be dialled
 *       | --- 76 ROW {marks} ----------->|   held; all 0: it has no mean
 *       | <-- ROW {marks} ---------------|   of all, when those of all cells are known
 *       | <===== the all-reduce ========>|   of the cells that have one; twins hear it
 *
 * All of a line show each other meanwhile that they live. A leader asks who brings nothing, by a
 * ROW of its own, whether it is in the round at all: one that is refuses that with E_PROTOCOL. All
 * lines of an axis use the same means in the same order, so they come to the same bits (`fixed` of
 * averaging/reduce.h). Where a line of the first axis fails, it does so for all of its cells: the
 * others go on without it. But a line fails of which a cell is lost or silent, or failed on a later
 * axis, or is missing in a part: it would come to another mean than the lines beside it. So does
 * one whose member or leader lives and says no word when every line of the axis before has ended.
 * A member without a mean fails the round, and fetches it.
 */
#include "collab/collab_int.h"
#include "collab/cells.h"
#include "core/blob.h"
#include "core/mem.h"

#include <string.h>

/* Silence that means lost; and a leader's time between two questions to one member. Messages wait
 * behind values: in a round that takes long, half of its time so far, ... */
#define SILENCE_US     (600 * HTH_US_PER_MS)
#define SILENCE_MAX_US (3 * HTH_US_PER_S)
#define SILENCE_RTTS   4 /* ... and so many round trips; as much again before the first */
#define TICK_US        (50 * HTH_US_PER_MS)

/* A member as the leader of its line knows it. */
struct round_row {
    struct round_line *line;
    bool known;                   /* what its cell brings */
    struct hth_rpc_request *held; /* its last ROW; NULL: it was answered */
    struct hth_rpc_call *ask;     /* whether it is in the round; or NULL */
    int64_t asked_us;
};

/* The line in which this member stands along an axis. */
struct round_line {
    struct collab_round *round;
    uint32_t axis;
    uint16_t member[HTH_ROLL_LINE_MAX]; /* of the list: of each cell, then twins (cells.h) */
    uint32_t members, self, leader;
    bool begun, over;
    struct hth_row_marks marks; /* whose values its cells bring, and then its mean has */
    struct round_row *row;      /* members, of a leader; else NULL */
    struct hth_rpc_call *call;  /* else its ROW; NULL: it is sent at the next tick */
    int64_t known_us;           /* when it was known what the own cell brings */
    struct hth_line in;         /* those who reduce it, once it has begun */
    struct hth_reduce_round *reduce;
};

struct collab_round {
    struct hth_collab *collab;
    struct hth_roll_group group;
    struct hth_cells cells;
    bool closed[HTH_ROLL_MEMBERS_MAX]; /* its connection was lost, and no ROW came since */
    bool away[HTH_ROLL_MEMBERS_MAX];   /* it is not in the round, as it says; no ROW came since */
    int64_t go_us;
    struct hth_timer *timer;
    uint32_t axis;              /* under way */
    struct hth_blob *mean;      /* of the axes before; NULL: none */
    struct hth_row_marks marks; /* whose values are in it */
    struct round_line line[HTH_AVG_DIMS_MAX];
};

static const struct hth_roll_peer *peer_at(const struct round_line *l, uint32_t k)
{
    return &l->round->group.peer[l->member[k]];
}

static bool leads(const struct round_line *l)
{
    return l->row != NULL;
}

static bool brings(const struct round_line *l, uint32_t k)
{
    const struct collab_round *r = l->round;
    uint32_t cell = r->cells.cell[l->member[k]];
    return hth_line_samples(&r->group, &r->cells, cell, l->axis, l->marks.of) > 0;
}

static bool is_twin(const struct round_line *l, uint32_t k)
{
    return hth_cells_is_twin(&l->round->cells, l->member[k]);
}

/* ---- the end ------------------------------------------------------------------------------ */

static void on_digest(struct hth_collab *c, enum hth_err err, struct hth_blob *hashes,
                      const struct hth_hash *digest);

static void release(const struct round_line *l, struct round_row *row)
{
    uint8_t bytes[HTH_ROW_BYTES_MAX];
    struct hth_row_msg answer = {.group = l->round->group.id, .axis = l->axis, .marks = l->marks};
    struct hth_rpc_body body = {.payload = bytes};
    struct hth_rpc_request *req = row->held;
    row->held = NULL;
    if (req == NULL)
        return;
    if (!l->begun) {
        hth_rpc_refuse(req, HTH_E_UNREACHABLE, 0, "a member of this line is lost");
        return;
    }
    body.payload_len = hth_row_write(&answer, bytes);
    hth_rpc_reply(req, &body);
}

static void release_all(const struct round_line *l)
{
    for (uint32_t k = 0; leads(l) && k < l->members; k++) {
        release(l, &l->row[k]);
        if (l->row[k].ask != NULL)
            hth_rpc_cancel(l->row[k].ask);
        l->row[k].ask = NULL;
    }
}

void collab_drop_round(struct hth_collab *c)
{
    struct collab_round *r = c->round;
    if (c->digest != NULL && c->digest->done == on_digest) {
        c->digest->collab = NULL;
        c->digest = NULL;
    }
    if (r == NULL)
        return;
    c->round = NULL;
    c->round_ended = r->group.id;
    hth_state_donor_yield(c->donor, false);
    for (uint32_t i = 0; i < r->cells.shape.dims; i++) {
        struct round_line *l = &r->line[i];
        l->over = true;
        release_all(l);
        if (l->call != NULL)
            hth_rpc_cancel(l->call);
        if (l->reduce != NULL)
            hth_reduce_cancel(l->reduce);
        hth_free(l->row);
    }
    hth_blob_unref(r->mean);
    hth_timer_free(c->env, r->timer);
    hth_free(r);
}

static void ends(struct hth_collab *c, enum hth_err err)
{
    hth_line_ends(&c->stats.averages, err, hth_now_us(c->env) - c->round->go_us);
    collab_drop_round(c);
}

static void fail(struct hth_collab *c, enum hth_err err)
{
    HTH_LOG(c->env, HTH_INFO, HTH_SUB_AVG, "step %llu: its round failed: %s",
            (unsigned long long)c->round->group.step, hth_err_text(err));
    ends(c, err);
    hth_roll_averaged(c->roll, err, NULL, NULL);
}

static void on_digest(struct hth_collab *c, enum hth_err err, struct hth_blob *hashes,
                      const struct hth_hash *digest)
{
    if (err != HTH_OK) {
        fail(c, err);
        return;
    }
    const struct hth_row_marks marks = c->round->marks;
    c->made = hth_blob_ref(c->round->mean);
    c->made_hashes = hashes;
    ends(c, HTH_OK);
    hth_roll_averaged(c->roll, HTH_OK, marks.of, digest);
    hth_blob_unref(c->made); /* it made no link */
    c->made = NULL;
}

static void next_axis(struct collab_round *r);

/* The axis has ended for the own line: without a mean it failed. */
static void end_axis(struct collab_round *r, enum hth_err err, struct hth_blob *mean)
{
    r->marks = r->line[r->axis].marks;
    if (mean == NULL)
        memset(r->marks.of, 0, sizeof(r->marks.of));
    hth_blob_unref(r->mean);
    r->mean = mean != NULL ? hth_blob_ref(mean) : NULL;
    if (r->axis + 1 < r->cells.shape.dims)
        next_axis(r);
    else if (mean != NULL)
        collab_hash(r->collab, mean, on_digest);
    else
        fail(r->collab, err);
}

static void end_line(struct round_line *l, enum hth_err err, struct hth_blob *mean)
{
    if (err != HTH_OK)
        HTH_LOG(l->round->collab->env, HTH_INFO, HTH_SUB_AVG, "a line of axis %u failed: %s",
                l->axis, hth_err_text(err));
    l->over = true;
    release_all(l);
    if (l->call != NULL)
        hth_rpc_cancel(l->call);
    l->call = NULL;
    end_axis(l->round, err, mean);
}

/* ---- the all-reduce of a line ------------------------------------------------------------- */

/* All that have all parts see alike who is missing in which. Along a later axis a mean that is
 * missing in a part is in the other lines' means all the same. */
static enum hth_err judge(struct round_line *l, const struct hth_reduce_result *r)
{
    struct hth_collab *c = l->round->collab;
    bool whole = true, far = false;
    for (uint32_t k = 0; k < r->members; k++) {
        const struct hth_reduce_fate *fate = &r->fates[k];
        far |= fate->as_reducer == HTH_REDUCE_DROP_FAR;
        if (k >= l->in.members)
            continue; /* a helper */
        uint16_t member = l->in.of[k];
        if (fate->as_reducer == HTH_REDUCE_DROP_FAR) /* its round with this member ends, too */
            hth_rpc_disconnect(c->rpc, &l->round->group.peer[member].id);
        if (fate->as_reducer != HTH_REDUCE_DROP_NONE)
            hth_roll_slow(c->roll, &l->round->group.peer[member].id);
        if (l->axis == 0 && member != l->round->group.self &&
            fate->as_sender == HTH_REDUCE_DROP_NOT_FINITE)
            hth_roll_doubt(c->roll, &l->round->group.peer[member].id, HTH_E_NOT_FINITE, "values");
        whole &= fate->parts_missing == 0;
        if (l->axis == 0)
            l->marks.of[member] = fate->parts_missing == 0         ? HTH_ROLL_IN
                                  : fate->parts_missing < r->parts ? HTH_ROLL_PART
                                                                   : 0;
    }
    if (r->err != HTH_OK || (far && l->round->cells.shape.dims == 1))
        return r->err != HTH_OK ? r->err : HTH_E_NORM;
    if (r->parts_kept > 0 || (l->axis > 0 && !whole))
        return HTH_E_UNREACHABLE; /* a reducer was lost: others may have its parts */
    return r->average == NULL ? HTH_E_BUG : HTH_OK;
}

static void on_reduced(void *arg, const struct hth_reduce_result *r)
{
    struct round_line *l = arg;
    l->reduce = NULL;
    hth_line_counts(&l->round->collab->stats.averages, r);
    enum hth_err err = judge(l, r);
    end_line(l, err, err == HTH_OK ? r->average : NULL);
}

/* Lines of later axes that begin unlike are other groups. */
static struct hth_hash name_of(const struct round_line *l)
{
    const struct collab_round *r = l->round;
    const struct hth_row_msg begin = {.group = r->group.id, .axis = l->axis, .marks = l->marks};
    uint8_t bytes[HTH_ROW_BYTES_MAX];
    struct hth_hash name = r->group.id;
    if (l->axis > 0)
        r->collab->env->crypto->hash(bytes, hth_row_write(&begin, bytes), &name);
    return name;
}

static bool is_connected(const struct collab_round *r, uint32_t member)
{
    struct hth_rpc_peer_info info;
    return hth_rpc_peer_info(r->collab->rpc, &r->group.peer[member].id, &info) == HTH_OK &&
           info.connected;
}

static void begin_line(struct round_line *l, struct hth_blob *values)
{
    const struct collab_round *r = l->round;
    struct hth_collab *c = r->collab;
    struct hth_reduce_opts o = hth_line_opts(c->opts.count, c->opts.spans, c->opts.span_count);
    l->begun = true;
    release_all(l);
    hth_line_fill(&r->group, &r->cells, r->cells.cell[r->group.self], l->axis, l->marks.of, &l->in);
    o.group = name_of(l);
    o.members = l->in.member;
    o.member_count = l->in.count;
    o.self = l->in.self;
    o.values = values;
    o.far = c->opts.far;
    o.fixed = l->axis > 0;
    o.done = on_reduced;
    o.arg = l;
    enum hth_err err =
        values == NULL ? HTH_E_UNREACHABLE : hth_reduce_start(c->opts.reducer, &o, &l->reduce);
    for (uint32_t k = 0; err == HTH_OK && k < l->in.members; k++)
        /* Reports who was lost before this line began, unless it is connected again. */
        if (r->away[l->in.of[k]] || (r->closed[l->in.of[k]] && !is_connected(r, l->in.of[k])))
            hth_reducer_peer_lost(c->opts.reducer, &l->in.member[k].id);
    if (err != HTH_OK)
        end_line(l, err, NULL);
}

/* Sends a ROW to a member; `call` NULL: it could not be sent. */
static void call_row(const struct round_line *l, uint32_t to, int64_t timeout_us,
                     hth_rpc_done_fn *done, void *arg, struct hth_rpc_call **call)
{
    const struct collab_round *r = l->round;
    uint8_t bytes[HTH_ROW_BYTES_MAX];
    struct hth_row_msg msg = {.group = r->group.id, .axis = l->axis, .marks = r->marks};
    struct hth_rpc_call_opts opts = {.method = HTH_ROW_METHOD, .timeout_us = timeout_us};
    const struct hth_roll_peer *peer = peer_at(l, to);
    struct hth_rpc_target target = {peer->id, peer->addr};
    opts.body.payload = bytes;
    opts.body.payload_len = hth_row_write(&msg, bytes);
    if (hth_rpc_call(r->collab->rpc, &target, &opts, done, arg, call) != HTH_OK)
        *call = NULL;
}

/* ---- ROW, as a leader --------------------------------------------------------------------- */

/* By then each cell knows what it brings: a line of an axis before is reduced or has failed. */
static int64_t known_by_us(const struct round_line *l)
{
    int64_t line_us = hth_line_opts(l->round->collab->opts.count, NULL, 0).timeout_us;
    return l->round->go_us + l->axis * line_us + SILENCE_MAX_US;
}

/* One that is not connected is expected once the own cell is known. */
static bool is_silent(const struct round_line *l, uint32_t k)
{
    const struct hth_collab *c = l->round->collab;
    struct hth_rpc_peer_info info;
    int64_t now = hth_now_us(c->env), go_us = l->round->go_us, limit = (now - go_us) / 2;
    limit = HTH_MIN(HTH_MAX(limit, SILENCE_US), SILENCE_MAX_US) + hth_rpc_late_us(c->rpc);
    if (hth_rpc_peer_info(c->rpc, &peer_at(l, k)->id, &info) != HTH_OK)
        info.rtt_us = info.received_us = 0;
    limit += info.rtt_us > 0 ? SILENCE_RTTS * info.rtt_us : SILENCE_US;
    return now - (info.received_us > 0 ? HTH_MAX(info.received_us, go_us) : l->known_us) > limit;
}

/* The first word of a cell counts, and a twin's does not. */
static void take_marks(struct round_line *l, uint32_t k, const uint16_t *marks)
{
    const struct hth_cells *cells = &l->round->cells;
    for (uint32_t i = 0; i < l->marks.count && !l->row[k].known && !is_twin(l, k); i++)
        if (hth_cells_covers(cells, cells->cell[l->member[k]], l->axis, i))
            l->marks.of[i] = marks[i];
    l->row[k].known = true;
}

/* One that is in the round refuses a ROW, as it does not lead the line. */
static void on_asked(void *arg, const struct hth_rpc_result *result)
{
    struct round_row *row = arg;
    const struct round_line *l = row->line;
    row->ask = NULL;
    if (result->remote && result->err != HTH_E_PROTOCOL)
        l->round->away[l->member[row - l->row]] = true;
}

/* A member may live, and not have come to the round, or have left it. */
static void ask(const struct round_line *l, struct round_row *row)
{
    int64_t now = hth_now_us(l->round->collab->env);
    if (row->ask != NULL || now - HTH_MAX(row->asked_us, l->known_us) < SILENCE_US)
        return;
    row->asked_us = now;
    call_row(l, (uint32_t)(row - l->row), SILENCE_MAX_US, on_asked, row, &row->ask);
}

/* Once all members are known the line begins; once its own is, and another cell is lost, it fails,
 * or lives and says no word of what it brings. A twin that is lost is nobody's loss. */
static void lead(struct round_line *l)
{
    bool known = true, lost = false, any = false;
    bool late = hth_now_us(l->round->collab->env) > known_by_us(l);
    if (l->axis > l->round->axis)
        return;
    take_marks(l, l->self, l->round->marks.of);
    for (uint32_t k = 0; k < l->members; k++) {
        struct round_row *row = &l->row[k];
        uint16_t member = l->member[k];
        bool left = l->round->closed[member] || l->round->away[member];
        if (!row->known && !left)
            ask(l, row);
        bool gone = k != l->self && ((late && !row->known) || left || is_silent(l, k));
        bool has = row->known && !is_twin(l, k) && brings(l, k);
        any |= has;
        known &= row->known || (gone && is_twin(l, k));
        lost |= !is_twin(l, k) && (gone || (row->known && !has && l->axis > 1));
    }
    if (lost || (known && !any))
        end_line(l, HTH_E_UNREACHABLE, NULL);
    else if (known)
        begin_line(l, l->round->mean);
}

/* The line that a ROW is for, which is led here, and its sender's place in it. */
static enum hth_err check(struct hth_collab *c, const struct hth_row_msg *msg,
                          const struct hth_peer_id *from, struct round_line **out, uint32_t *at)
{
    struct collab_round *r = c->round;
    uint32_t k = 0;
    if (r == NULL || memcmp(&msg->group, &r->group.id, sizeof(msg->group)) != 0)
        return memcmp(&msg->group, &c->round_ended, sizeof(msg->group)) == 0 ? HTH_E_EXPIRED
                                                                             : HTH_E_AGAIN;
    if (msg->axis == 0 || msg->axis >= r->cells.shape.dims || msg->marks.count != r->group.count)
        return HTH_E_RANGE;
    struct round_line *l = &r->line[msg->axis];
    while (k < l->members && !hth_peer_id_eq(&peer_at(l, k)->id, from))
        k++;
    *out = l;
    *at = k;
    return k == l->members ? HTH_E_BAD_PEER_ID : leads(l) ? HTH_OK : HTH_E_PROTOCOL;
}

void collab_on_row(void *arg, struct hth_rpc_request *req)
{
    struct hth_collab *c = arg;
    struct hth_row_msg msg;
    struct round_line *l = NULL;
    uint32_t k = 0;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    enum hth_err err = hth_row_read(bytes, len, &msg);
    if (err == HTH_OK)
        err = check(c, &msg, hth_rpc_peer(req), &l, &k);
    if (err != HTH_OK) {
        hth_rpc_refuse(req, err, err == HTH_E_AGAIN ? TICK_US : 0, "ROW");
        return;
    }
    struct round_row *row = &l->row[k];
    release(l, row); /* its older one */
    row->held = req;
    c->round->closed[l->member[k]] = c->round->away[l->member[k]] = false;
    if (l->begun || l->over) {
        release(l, row);
        return;
    }
    take_marks(l, k, msg.marks.of);
    lead(l);
}

void collab_round_peer_lost(struct hth_collab *c, const struct hth_peer_id *peer)
{
    struct collab_round *r = c->round;
    for (uint32_t i = 0; r != NULL && i < r->group.count; i++)
        r->closed[i] |= hth_peer_id_eq(&r->group.peer[i].id, peer);
}

/* ---- ROW, as a member --------------------------------------------------------------------- */

static void take_begin(struct round_line *l, const struct hth_row_marks *marks)
{
    if (marks->count != l->round->group.count) {
        end_line(l, HTH_E_PROTOCOL, NULL);
        return;
    }
    l->marks = *marks;
    begin_line(l, l->round->mean);
}

/* A refusal ends the line, but where the leader has not entered the round yet. */
static void on_row_answer(void *arg, const struct hth_rpc_result *result)
{
    struct round_line *l = arg;
    struct hth_row_msg reply;
    int64_t since_us = hth_now_us(l->round->collab->env) - l->known_us;
    enum hth_err err = result->err;
    bool again = result->remote && err == HTH_E_AGAIN && since_us <= SILENCE_US;
    l->call = NULL;
    if (err == HTH_OK)
        err = hth_row_read(result->payload, result->payload_len, &reply);
    if (err == HTH_OK)
        take_begin(l, &reply.marks);
    else if (!again)
        end_line(l, err, NULL);
}

static void on_greeted(void *arg, const struct hth_rpc_result *result)
{
    (void)arg;
    (void)result;
}

/* It refuses that, and is connected when the own cell is known. */
static void greet_leader(const struct round_line *l)
{
    struct hth_rpc *rpc = l->round->collab->rpc;
    const struct hth_roll_peer *leader = peer_at(l, l->leader);
    const struct hth_rpc_target target = {leader->id, leader->addr};
    const struct hth_rpc_call_opts opts = {.method = HTH_ROW_METHOD};
    if (is_connected(l->round, l->member[l->leader]))
        return;
    enum hth_err err = hth_rpc_call(rpc, &target, &opts, on_greeted, NULL, NULL);
    (void)err; /* then it is dialled later */
}

static void send_row(struct round_line *l)
{
    call_row(l, l->leader, HTH_AVG_REDUCE_TIMEOUT_MAX_US, on_row_answer, l, &l->call);
}

/* ---- the round ---------------------------------------------------------------------------- */

static void next_axis(struct collab_round *r)
{
    r->axis++;
    r->line[r->axis].known_us = hth_now_us(r->collab->env);
    hth_timer_set(r->collab->env, r->timer, 0);
}

/* Its members hear that it lives, also those that have begun already. */
static void nudge(const struct round_line *l)
{
    for (uint32_t k = 0; k < l->members; k++)
        if (k != l->self)
            hth_rpc_nudge(l->round->collab->rpc, &peer_at(l, k)->id);
}

static void on_tick(void *arg)
{
    struct collab_round *r = arg;
    struct hth_collab *c = r->collab;
    hth_timer_set(c->env, r->timer, TICK_US);
    for (uint32_t i = 1; c->round == r && i < r->cells.shape.dims; i++) {
        struct round_line *l = &r->line[i];
        if (l->begun || l->over)
            continue;
        nudge(l);
        if (leads(l))
            lead(l);
        else if (l->axis == r->axis &&
                 (is_silent(l, l->leader) || hth_now_us(c->env) > known_by_us(l) + SILENCE_MAX_US))
            end_line(l, HTH_E_TIMEOUT, NULL);
        else if (l->axis == r->axis && l->call == NULL)
            send_row(l);
    }
}

static void add_line(struct collab_round *r, uint32_t axis)
{
    struct round_line *l = &r->line[axis];
    *l = (struct round_line){.round = r, .axis = axis, .marks.count = r->group.count};
    l->members = hth_cells_line(&r->cells, r->cells.cell[r->group.self], axis, l->member);
    while (l->member[l->self] != r->group.self)
        l->self++;
    while (l->leader < l->members && peer_at(l, l->leader)->addr.family == 0)
        l->leader++;
    l->leader %= l->members;
    if (axis > 0 && l->leader == l->self)
        l->row = hth_new_array(struct round_row, l->members);
    else if (axis > 0)
        greet_leader(l);
    for (uint32_t k = 0; leads(l) && k < l->members; k++)
        l->row[k].line = l;
}

void collab_on_average(void *arg, const struct hth_roll_group *group)
{
    struct hth_collab *c = arg;
    struct collab_round *r = hth_new(struct collab_round);
    *r = (struct collab_round){.collab = c, .group = *group, .go_us = hth_now_us(c->env)};
    hth_cells_place(c->env->crypto, &group->head, group->peer, group->count, &c->opts.shape,
                    &r->cells);
    for (uint32_t i = 0; i < group->count; i++)
        hth_rpc_lives(c->rpc, &group->peer[i].id); /* each was READY; after a cut dials may rest */
    r->timer = hth_timer_new(c->env, on_tick, r);
    for (uint32_t i = 0; i < r->cells.shape.dims; i++)
        add_line(r, i);
    if (r->cells.shape.dims > 1)
        hth_timer_set(c->env, r->timer, TICK_US);
    c->round = r;
    hth_state_donor_yield(c->donor, true);
    c->stats.shape = r->cells.shape;
    hth_line_begins(&c->stats.averages, group);
    c->ops.take(c->arg);
}

void hth_collab_taken(struct hth_collab *c, enum hth_err err, struct hth_blob *values,
                      uint64_t samples)
{
    struct collab_round *r = c->round;
    if (r != NULL && err == HTH_OK && samples < r->group.peer[r->group.self].samples)
        err = HTH_E_STALE; /* a state was adopted since it was READY */
    if (r != NULL && err == HTH_OK)
        begin_line(&r->line[0], values);
    else if (r != NULL)
        fail(c, err);
}

void collab_on_tip(void *arg, uint32_t link, bool used)
{
    struct hth_collab *c = arg;
    if (used)
        c->ops.used(c->arg);
    if (collab_all_leave(c, link))
        hth_roll_freeze(c->roll, link);
    if (c->made == NULL)
        return; /* it was fetched */
    c->stats.forks += hth_chain_at(c->chain, link)->kind == HTH_LINK_FORK;
    collab_keep(c, link, c->made, c->made_hashes);
    struct hth_blob *mean = c->made;
    c->made = NULL;
    collab_step(c, link, mean);
    hth_blob_unref(mean);
}
