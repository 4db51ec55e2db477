/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_watch.c: who is lost, silent, slow or absent. A look at all members every quarter of the
 * shortest silence that counts; rounds that go well end before the first one.
 *
 *   limit = clamp(k * max(median of the others' longest pauses, its own), silence_min, max) + rtt
 *   max   = clamp(3 * median of the longest pauses of those that were heard, silence_max, thin)
 *
 * A thin line has something for each of many in turn, and the router in front of it may hold a
 * second of it: where most are heard so seldom nobody is dead for that, and who is is noticed
 * later.
 *
 * A peer that nothing of this round came from gets silence_new and two round trips: it has just
 * been in a group, over a connection that is there. It gets twice as long as the others (their
 * median) were silent so far, at most max and these, where that is more: a slow line is full of
 * first parts to everybody, or all began late. While a connection to it is being made it gets max
 * and as long again as it took to hear the first of the others, a second when nobody was heard, or
 * four round trips to the others (their median) where these are far; but one that fell silent in a
 * round before, and was not heard since, gets silence_min. Members that live but have sent nothing
 * for half the limit are asked what they are doing; the answer is a sign of life, or says that they
 * never began or have ended.
 *
 * Time in which this process did not run is no silence of others: what they sent meanwhile is not
 * read yet, and where they stand in the same queue for a core they did not run either. Where it was
 * late in the last 10 s (rpc.h: hth_rpc_late_us), silence_min is not enough to tell: silence_new
 * takes its place.
 *
 * On a slow line that question waits behind parts, at both ends. So every member also speaks
 * unasked to whom it has nothing to send, ten times a second: what it owes may wait for others.
 *
 * Patience is for those who live and do nothing. While bytes of whatever round move to or from a
 * peer its line is what is waited for; but few do not hold up many for ever. Who is behind most of
 * the others, one or up to a quarter of them, for longer than
 *
 *   held = max(patience, 5 * time of the round with equal shares over the median of the lines),
 *
 * twice the patience where nobody said how fast a line is, and a quarter of what the round has
 * taken so far, is given up in both roles, and keeps getting the mean. Who would need more than
 * one and a half times as long by what it has sent is waited for less: down to two of those times
 * where it would need twice as long, and to silence_min where by the bytes that come, or by what
 * it says, it would need eight times as long. So a line of a fifth is waited for, whatever the
 * size of the vector and whatever it says, and one of a hundredth not. A reducer that owes answers
 * when most of the others have given theirs is given up after half as long again as a sender at
 * most: it may put off some parts, whose bytes move all the time. Where many are slow nobody is,
 * until the round's time is over. Who puts off every part it is sent is given up as a reducer,
 * however many others there are (reduce_give.c: on_put_off).
 */
#include <stdlib.h>

#include "averaging/reduce_int.h"

static struct hth_env *env_of(const struct hth_reduce_round *r)
{
    return r->reducer->env;
}

bool watch_due_as_sender(const struct hth_reduce_round *r, uint32_t i)
{
    const struct reduce_member_state *m = &r->members[i];
    return i != r->self && m->is.weight > 0 && !m->dropped && m->got < r->own_count;
}

bool watch_due_as_reducer(const struct hth_reduce_round *r, uint32_t i)
{
    const struct reduce_member_state *m = &r->members[i];
    return i != r->self && r->values != NULL && m->as_reducer == HTH_REDUCE_DROP_NONE &&
           m->settled < m->part_count;
}

static bool is_due(const struct hth_reduce_round *r, uint32_t i)
{
    return watch_due_as_sender(r, i) || watch_due_as_reducer(r, i);
}

bool watch_connected(const struct hth_reduce_round *r, uint32_t i)
{
    struct hth_rpc_peer_info info;
    return hth_rpc_peer_info(r->reducer->rpc, &r->members[i].is.id, &info) == HTH_OK &&
           info.connected;
}

/* ---- verdicts ------------------------------------------------------------------------------ */

static void say(const struct hth_reduce_round *r, uint32_t i, const char *role,
                enum hth_reduce_drop why)
{
    char text[HTH_PEER_SHORT_LEN];
    HTH_LOG(env_of(r), HTH_INFO, HTH_SUB_AVG,
            "group %02x%02x%02x%02x: member %s is dropped as %s after %lld ms: %s (heard %lld ms "
            "ago, we were %lld ms late)",
            r->group.b[0], r->group.b[1], r->group.b[2], r->group.b[3],
            hth_peer_id_short(&r->members[i].is.id, text), role,
            (long long)((hth_now_us(env_of(r)) - r->start_us) / HTH_US_PER_MS),
            hth_reduce_drop_text(why),
            (long long)((hth_now_us(env_of(r)) - r->members[i].heard_us) / HTH_US_PER_MS),
            (long long)(hth_rpc_late_us(r->reducer->rpc) / HTH_US_PER_MS));
}

void watch_drop_sender(struct hth_reduce_round *r, uint32_t i, enum hth_reduce_drop why)
{
    struct reduce_member_state *m = &r->members[i];
    if (r->state != ROUND_RUNNING || !watch_due_as_sender(r, i))
        return;
    say(r, i, "sender", why);
    m->dropped = true;
    m->as_sender = why;
    r->reducer->stats.senders_dropped++;
    hth_metric_add(r->reducer->metrics.dropped, 1);
    take_review(r);
}

void watch_fail_reducer(struct hth_reduce_round *r, uint32_t i, enum hth_reduce_drop why)
{
    if (r->state != ROUND_RUNNING || !watch_due_as_reducer(r, i))
        return;
    say(r, i, "reducer", why);
    give_fail(r, i, why);
}

static void drop(struct hth_reduce_round *r, uint32_t i, enum hth_reduce_drop why)
{
    watch_fail_reducer(r, i, why);
    watch_drop_sender(r, i, why);
}

/* ---- memory -------------------------------------------------------------------------------- */

static int64_t last_heard(const struct hth_reduce_round *r, uint32_t i)
{
    struct hth_rpc_peer_info info;
    if (hth_rpc_peer_info(r->reducer->rpc, &r->members[i].is.id, &info) != HTH_OK)
        return 0;
    return info.received_us;
}

static void drop_silent(struct hth_reduce_round *r, uint32_t i)
{
    struct hth_reducer *red = r->reducer;
    struct reduce_suspect *s = &red->suspects[red->suspect_count++ % SUSPECTS_MAX];
    *s = (struct reduce_suspect){r->members[i].is.id, hth_now_us(red->env)};
    drop(r, i, HTH_REDUCE_DROP_SILENT);
}

void watch_begin(struct hth_reduce_round *r)
{
    const struct hth_reducer *red = r->reducer;
    uint32_t known = HTH_MIN(red->suspect_count, SUSPECTS_MAX);
    for (uint32_t i = 0; i < r->member_count; i++) {
        struct reduce_member_state *m = &r->members[i];
        struct hth_rpc_peer_info info;
        if (hth_rpc_peer_info(red->rpc, &m->is.id, &info) == HTH_OK)
            m->came_bytes = info.came_bytes;
        for (uint32_t k = 0; k < known && i != r->self; k++) {
            if (hth_peer_id_eq(&red->suspects[k].id, &m->is.id))
                m->suspect = m->suspect || last_heard(r, i) <= red->suspects[k].since_us;
        }
    }
}

/* ---- signs of life ------------------------------------------------------------------------- */

void watch_lost(struct hth_reduce_round *r, uint32_t i)
{
    drop(r, i, HTH_REDUCE_DROP_LOST);
}

static void note_heard(struct hth_reduce_round *r, struct reduce_member_state *m, int64_t at_us)
{
    m->heard_us = at_us;
    m->ever_heard = true;
    if (r->first_heard_us == 0)
        r->first_heard_us = at_us;
}

void watch_progress(struct hth_reduce_round *r, uint32_t i)
{
    struct reduce_member_state *m = &r->members[i];
    m->progress_us = hth_now_us(env_of(r));
    m->took_part = true;
    note_heard(r, m, m->progress_us);
    m->absent = false;
}

/* ---- asking -------------------------------------------------------------------------------- */

static void on_state(struct hth_reduce_round *r, uint32_t i, const struct hth_rpc_result *result)
{
    struct reduce_member_state *m = &r->members[i];
    struct hth_part_reply reply;
    if (hth_part_reply_open(result->payload, result->payload_len, 0, &reply) != HTH_OK) {
        drop(r, i, HTH_REDUCE_DROP_REFUSED);
        return;
    }
    hth_part_reply_clear(&reply);
    m->took_part = true;
    note_heard(r, m, hth_now_us(env_of(r)));
    m->absent = reply.state == HTH_PART_UNKNOWN;
    /* Its answers to our parts still come; parts of its own do not. */
    if (reply.state == HTH_PART_ENDED)
        watch_drop_sender(r, i, HTH_REDUCE_DROP_REFUSED);
}

static void on_asked(void *arg, const struct hth_rpc_result *result)
{
    struct reduce_member_state *m = arg;
    struct hth_reduce_round *r = m->round;
    uint32_t i = (uint32_t)(m - r->members);
    m->ask = NULL;
    if (r->state != ROUND_RUNNING)
        return;
    if (result->err == HTH_OK)
        on_state(r, i, result);
    else if (result->remote && hth_err_class(result->err) != HTH_CLASS_RETRY)
        drop(r, i, HTH_REDUCE_DROP_REFUSED);
    else if (!result->remote && result->err != HTH_E_TIMEOUT && !watch_connected(r, i))
        watch_lost(r, i);
}

static void ask(struct hth_reduce_round *r, uint32_t i)
{
    struct reduce_member_state *m = &r->members[i];
    uint8_t payload[HTH_PART_BYTES_MAX];
    struct hth_part_head part = {.group = r->group, .ask = true};
    struct hth_rpc_target target = {m->is.id, m->is.addr};
    struct hth_rpc_call_opts opts = {
        .method = HTH_REDUCE_METHOD,
        .body = {payload, hth_part_pack(&part, payload), NULL, 0},
        .timeout_us = HTH_MAX(r->end_us - hth_now_us(env_of(r)), (int64_t)1),
    };
    m->asked_us = hth_now_us(env_of(r));
    if (hth_rpc_call(r->reducer->rpc, &target, &opts, on_asked, m, &m->ask) != HTH_OK)
        m->ask = NULL; /* the limits below go on */
}

/* ---- the look ------------------------------------------------------------------------------ */

/* Whoever waits for us hears of us, though what we owe waits for others; and it need not ask, as
 * its question would wait behind all that it has sent. */
static void speak_to(struct hth_reduce_round *r, uint32_t i, int64_t now)
{
    struct reduce_member_state *m = &r->members[i];
    if (i == r->self || now - m->nudged_us < NUDGE_US)
        return;
    m->nudged_us = now;
    hth_rpc_nudge(r->reducer->rpc, &m->is.id);
}

/* Bytes of a body count as a sign of life before it is complete; and that many bytes, of whatever
 * round, mean that the line is what is waited for. */
static void listen_to(struct hth_reduce_round *r, uint32_t i, int64_t now)
{
    struct reduce_member_state *m = &r->members[i];
    struct hth_rpc_peer_info info;
    if (!is_due(r, i)) {
        m->heard_us = now;
        m->silent_us = 0;
        return;
    }
    if (hth_rpc_peer_info(r->reducer->rpc, &m->is.id, &info) != HTH_OK)
        info = (struct hth_rpc_peer_info){0};
    if (info.received_us > m->heard_us) {
        note_heard(r, m, info.received_us);
    }
    m->dialing = info.dialing;
    if (info.came_bytes < m->came_bytes)
        m->came_bytes = 0; /* of a connection that is gone */
    m->come_bytes = info.came_bytes - m->came_bytes;
    if (info.moved_bytes < m->moved_bytes)
        m->moved_bytes = info.moved_bytes; /* of a connection that is gone */
    if (info.moved_bytes - m->moved_bytes >= MOVED_BYTES_MIN) {
        m->moved_bytes = info.moved_bytes;
        m->moved_us = now;
    }
    if (now - m->heard_us < m->silent_us)
        m->pause_us = HTH_MAX(m->pause_us, m->silent_us);
    m->silent_us = now - m->heard_us;
}

/* One by which i is judged. */
static bool is_other(const struct hth_reduce_round *r, uint32_t i, uint32_t k)
{
    return k != i && k != r->self;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median(int64_t *x, uint32_t n)
{
    if (n == 0)
        return 0;
    qsort(x, n, sizeof(x[0]), by_size);
    return x[n / 2];
}

/* It may hear that the round has begun half a round trip later than we, or one more where its JOIN
 * missed the group by a moment, and we of it half a one later. */
static int64_t way_to(const struct hth_reduce_round *r, uint32_t i)
{
    struct hth_rpc_peer_info info;

    if (hth_rpc_peer_info(r->reducer->rpc, &r->members[i].is.id, &info) != HTH_OK)
        return 0;
    return HTH_MIN(info.rtt_us, FAR_US);
}

/* How much longer a connection may take that is being made: as long as it took until the first of
 * the others was heard, or by the ways to those with whom there is one, which say how far they
 * are. */
static int64_t dial_time(const struct hth_reduce_round *r)
{
    int64_t way[HTH_AVG_MEMBERS_MAX], heard_us = DIAL_US;
    uint32_t n = 0;

    for (uint32_t k = 0; k < r->member_count; k++) {
        way[n] = is_other(r, r->self, k) ? way_to(r, k) : 0;
        n += way[n] > 0;
    }
    if (r->first_heard_us > 0)
        heard_us = HTH_MIN(r->first_heard_us - r->start_us, DIAL_US);
    return HTH_MAX(heard_us, HTH_MIN(DIAL_RTTS * median(way, n), FAR_US));
}

/* The most that it may be silent. Where most of those who live pause that long lines are thin, and
 * full of what all others are sent. */
static int64_t silence_max(const struct hth_reduce_round *r, uint32_t i)
{
    const struct hth_reducer_opts *o = &r->reducer->opts;
    int64_t pauses[HTH_AVG_MEMBERS_MAX];
    uint32_t n = 0;

    for (uint32_t k = 0; k < r->member_count; k++)
        if (is_other(r, i, k) && r->members[k].ever_heard)
            pauses[n++] = r->members[k].pause_us;
    return HTH_MAX(o->silence_max_us, HTH_MIN(THIN_K * median(pauses, n), o->silence_thin_us));
}

/* Of one of which nothing came: for how long it may be so. */
static int64_t limit_of_new(const struct hth_reduce_round *r, uint32_t i)
{
    const struct hth_reducer_opts *o = &r->reducer->opts;
    int64_t silent[HTH_AVG_MEMBERS_MAX], limit;
    uint32_t n = 0;

    for (uint32_t k = 0; k < r->member_count; k++)
        if (is_other(r, i, k))
            silent[n++] = HTH_MAX(r->members[k].pause_us, r->members[k].silent_us);
    limit = HTH_MAX(o->silence_new_us, 2 * median(silent, n));
    return HTH_MAX(HTH_MIN(limit, silence_max(r, i)), o->silence_min_us) + 2 * way_to(r, i);
}

static int64_t limit_of(const struct hth_reduce_round *r, uint32_t i)
{
    const struct hth_reducer_opts *o = &r->reducer->opts;
    const struct reduce_member_state *m = &r->members[i];
    int64_t pauses[HTH_AVG_MEMBERS_MAX];
    int64_t min_us = hth_rpc_late_us(r->reducer->rpc) > 0 ? o->silence_new_us : o->silence_min_us;
    uint32_t n = 0;
    for (uint32_t k = 0; k < r->member_count; k++) {
        if (is_other(r, i, k))
            pauses[n++] = r->members[k].pause_us;
    }
    if (m->suspect && !m->ever_heard)
        return min_us;
    if (m->dialing)
        return silence_max(r, i) + dial_time(r);
    if (n == 0 || !m->took_part)
        return limit_of_new(r, i);
    double limit = o->silence_k * (double)HTH_MAX(median(pauses, n), m->pause_us);
    limit = HTH_MAX(limit, (double)min_us);
    /* What is far away comes with more jitter. */
    return (int64_t)HTH_MIN(limit, (double)silence_max(r, i)) + way_to(r, i);
}

static void judge(struct hth_reduce_round *r, uint32_t i, int64_t now)
{
    const struct hth_reducer_opts *o = &r->reducer->opts;
    struct reduce_member_state *m = &r->members[i];
    int64_t limit = limit_of(r, i), stuck = now - m->progress_us;
    int64_t stood = HTH_MIN(stuck, now - m->moved_us);
    if (now - m->heard_us >= limit) {
        drop_silent(r, i);
        return;
    }
    /* A JOIN may have missed the BEGIN of a far leader, and the next was answered with it. */
    int64_t begins_us = r->fixed ? 2 * o->silence_max_us : o->silence_max_us;
    if (m->absent && now - r->start_us >= begins_us + 3 * way_to(r, i)) {
        drop(r, i, HTH_REDUCE_DROP_ABSENT);
        return;
    }
    bool begins = m->got > 0 || m->come_bytes >= STRANGER_BYTES;
    bool idles = m->is.stranger && !begins && stuck >= o->silence_new_us + 2 * way_to(r, i);
    if (stood >= o->patience_us || idles)
        watch_drop_sender(r, i, HTH_REDUCE_DROP_SLOW);
    /* A reducer may have to lose its patience with somebody first. */
    if (stood >= o->patience_us + o->patience_us / 2)
        watch_fail_reducer(r, i, HTH_REDUCE_DROP_SLOW);
    if (m->ask == NULL && stuck >= limit / 2 && now - m->asked_us >= limit / 2 && is_due(r, i))
        ask(r, i);
}

static int by_count(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* How many parts most of those with values have sent here; 0 when there is nobody to compare. */
static uint32_t usual_got(const struct hth_reduce_round *r, uint32_t *senders)
{
    uint32_t got[HTH_AVG_MEMBERS_MAX], n = 0;
    for (uint32_t i = 0; i < r->member_count; i++) {
        const struct reduce_member_state *m = &r->members[i];
        if (i != r->self && m->is.weight > 0 && !m->dropped)
            got[n++] = m->got;
    }
    *senders = n;
    if (n < 2)
        return 0;
    qsort(got, n, sizeof(got[0]), by_count);
    return got[n / 2];
}

static bool lags(const struct hth_reduce_round *r, uint32_t i, uint32_t usual)
{
    uint32_t lag = HTH_MAX(usual / LAG_ONE_IN, LAG_PARTS);
    return watch_due_as_sender(r, i) && r->members[i].got + lag <= usual;
}

/* Few hold up many. */
static bool are_few(uint32_t behind, uint32_t all)
{
    return behind > 0 && behind <= HTH_MAX(all / 4, 1u);
}

/* How many times longer than max_us it needs for its parts, at least. Parts alone can't tell a slow
 * line from a busy machine: that takes the bytes that came, or what it says of its line, as a float
 * takes a byte or more. */
static double needs_of(const struct hth_reduce_round *r, const struct reduce_member_state *m,
                       int64_t max_us)
{
    double max = (double)max_us, passed_us = (double)(hth_now_us(env_of(r)) - r->start_us);
    double needs = HTH_MIN(passed_us * r->own_count / (m->got + 1) / max, HOPELESS);
    double part = 2 * (double)m->come_bytes / (double)r->members[r->self].floats;
    if (m->come_bytes >= BEGUN_BYTES)
        needs = HTH_MAX(needs, passed_us / part / max);
    if (m->is.bandwidth >= LINE_BITS_MIN)
        needs = HTH_MAX(needs, 8 * (double)r->count / m->is.bandwidth * HTH_US_PER_S / max);
    return needs;
}

/* For how long it may hold up the others. One that at the pace of its parts would need far longer
 * than anybody is waited for is given up soon, and between the two there is no edge on which a few
 * bytes could decide. */
static int64_t held_max_of(const struct hth_reduce_round *r, const struct reduce_member_state *m,
                           int64_t max_us)
{
    const struct hth_reducer_opts *o = &r->reducer->opts;
    double needs = needs_of(r, m, max_us);
    double hope = HTH_MIN(HTH_MAX((HOPELESS - needs) / (HOPELESS - DOUBTFUL), 0), 1);
    double rest = HTH_MIN(HTH_MAX((FUTILE - needs) / (FUTILE - HOPELESS), 0), 1);
    bool late = hth_rpc_late_us(r->reducer->rpc) > 0;
    int64_t brief_us = HTH_MIN(late ? o->silence_new_us : o->silence_min_us, max_us);
    int64_t least_us = (int64_t)(HOPELESS * (double)max_us / HELD_ROUNDS);

    least_us = HTH_MAX(HTH_MIN(HTH_MAX(least_us, o->patience_us), max_us), brief_us);
    return brief_us + (int64_t)(rest * (double)(least_us - brief_us)) +
           (int64_t)(hope * (double)(max_us - least_us));
}

static void weigh_senders(struct hth_reduce_round *r, int64_t passed, int64_t max_us)
{
    uint32_t senders, behind = 0, usual = usual_got(r, &senders);
    for (uint32_t i = 0; i < r->member_count; i++)
        behind += lags(r, i, usual);
    for (uint32_t i = 0; i < r->member_count && are_few(behind, senders); i++) {
        struct reduce_member_state *m = &r->members[i];
        if (!lags(r, i, usual))
            continue;
        m->held_us += passed;
        if (m->held_us >= held_max_of(r, m, max_us))
            drop(r, i, HTH_REDUCE_DROP_SLOW);
    }
}

/* Who has not answered all parts when the others have. It may have to give up a sender first. */
static void weigh_reducers(struct hth_reduce_round *r, int64_t passed, int64_t max_us)
{
    uint32_t reducers = 0, behind = 0;
    for (uint32_t i = 0; i < r->member_count; i++) {
        const struct reduce_member_state *m = &r->members[i];
        reducers += i != r->self && m->part_count > 0 && m->as_reducer == HTH_REDUCE_DROP_NONE;
        behind += watch_due_as_reducer(r, i);
    }
    if (reducers < 2 || !are_few(behind, reducers))
        return;
    for (uint32_t i = 0; i < r->member_count; i++) {
        struct reduce_member_state *m = &r->members[i];
        if (!watch_due_as_reducer(r, i))
            continue;
        m->owing_us += passed;
        if (m->owing_us >= max_us + max_us / 2)
            watch_fail_reducer(r, i, HTH_REDUCE_DROP_SLOW);
    }
}

/* Whom the others wait for. What a late look of our own has missed counts as one look. */
static void weigh(struct hth_reduce_round *r, int64_t now)
{
    int64_t passed = HTH_MIN(now - r->weighed_us, r->reducer->opts.silence_min_us / 4);
    int64_t max_us = HTH_MAX(r->held_max_us, (now - r->start_us) / HELD_PART);
    r->weighed_us = now;
    weigh_senders(r, passed, max_us);
    weigh_reducers(r, passed, max_us);
}

static void keep_time(struct hth_reduce_round *r, int64_t now)
{
    if (!r->gave_up && now >= r->give_up_us) {
        r->gave_up = true;
        for (uint32_t i = 0; i < r->member_count; i++)
            watch_drop_sender(r, i, HTH_REDUCE_DROP_DEADLINE);
    }
    if (!r->stopped && now >= r->stop_us) {
        r->stopped = true;
        for (uint32_t i = 0; i < r->member_count; i++)
            watch_fail_reducer(r, i, HTH_REDUCE_DROP_DEADLINE);
    }
}

static int64_t next_look(const struct hth_reduce_round *r, int64_t now)
{
    int64_t next = HTH_MIN(now + r->reducer->opts.silence_min_us / 4, r->end_us);
    if (!r->gave_up)
        next = HTH_MIN(next, r->give_up_us);
    if (!r->stopped)
        next = HTH_MIN(next, r->stop_us);
    for (uint32_t i = 0; i < r->send_count; i++) {
        const struct reduce_sent *s = &r->sends[i];
        if (s->state == SEND_WAITING && s->retry_us > now)
            next = HTH_MIN(next, s->retry_us);
    }
    return HTH_MAX(next, now + 1);
}

/* A look that comes late means that this process did not run: what came meanwhile is not read yet,
 * and nobody is silent for that. */
static void forgive(struct hth_reduce_round *r, int64_t now)
{
    struct hth_reducer *red = r->reducer;
    int64_t late = now - r->look_us;
    hth_rpc_observe_late(red->rpc, r->look_us);
    for (uint32_t i = 0; i < r->member_count && late > OWN_PAUSE_US; i++) {
        struct reduce_member_state *m = &r->members[i];
        m->heard_us = HTH_MIN(m->heard_us + late, now);
        m->progress_us = HTH_MIN(m->progress_us + late, now);
        m->moved_us = HTH_MIN(m->moved_us + late, now);
    }
}

void watch_tick(struct hth_reduce_round *r)
{
    int64_t now = hth_now_us(env_of(r));
    forgive(r, now);
    for (uint32_t i = 0; i < r->member_count; i++) {
        listen_to(r, i, now);
        speak_to(r, i, now);
    }
    for (uint32_t i = 0; i < r->member_count; i++) {
        if (is_due(r, i))
            judge(r, i, now);
    }
    weigh(r, now);
    keep_time(r, now);
    for (uint32_t i = 0; i < r->member_count; i++) {
        if (r->members[i].again > 0)
            give_pump(r, i);
    }
    r->look_us = next_look(r, now);
    hth_timer_set(env_of(r), r->timer, r->look_us - now);
}

void watch_end(struct hth_reduce_round *r)
{
    for (uint32_t i = 0; i < r->member_count; i++) {
        if (r->members[i].ask != NULL)
            hth_rpc_cancel(r->members[i].ask);
        r->members[i].ask = NULL;
    }
}
