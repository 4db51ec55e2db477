/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_watch.c: who is lost, silent or slow. A look at all members every LOOK_US; rounds that go
 * well end before the first one. A round may fail, and is made again: so nothing here is certain,
 * and to give a member up wrongly costs what it costs to wait for one in vain.
 *
 *   lost     its connection is
 *   silent   not a byte came from it for silence_us and two round trips; while a connection to it
 *            is being made, four round trips to who is farthest more, or DIAL_US if there is nobody
 *   absent   no part and no answer of it came in silence_us and two round trips, and asked it says
 *            that it does not know the round
 *   closed   as a reducer: for three times silence_us it had no room for any part
 *   stranger it has done nothing yet (reduce.h), and fewer than MOVED_BYTES came in STRANGER_US and
 *            two round trips: that is a line of 1 Mbit/s, and words that are repeated each round
 *            trip are fewer
 *   idle     it lives, but for patience_us no part and no answer came from it, nor did MOVED_BYTES
 *            of anything go either way
 *   behind   all but a quarter of the others are ahead of it by two parts, at three looks; and at
 * the pace of its parts so far it needs more than SLOW times as long as they would need at their
 * best pace, and more than patience_us
 *
 * Absent, stranger, idle and behind are called slow. Every member speaks to all others ten times a
 * second, though it owes them nothing yet: a question would wait behind parts on a slow line, at
 * both ends. On a line that is full the round trip grows with what waits in it, and the limits with
 * the round trip; and with the time that this process did not run.
 *
 * A line of a fifth is waited for, one of a tenth not; where many are slow nobody is behind, until
 * the round's time is over.
 */
#include <math.h>

#include "averaging/reduce_int.h"

#define LOOK_US     (50 * HTH_US_PER_MS)
#define DIAL_US     HTH_US_PER_S
#define DIAL_RTTS   4                  /* and as many to the farthest one */
#define FAR_US      (2 * HTH_US_PER_S) /* nobody's round trip is believed to take longer */
#define MOVED_BYTES (64u << 10)
#define BEGUN_BYTES (1u << 10) /* more than words: values come */
#define STRANGER_US (500 * HTH_US_PER_MS)
#define SLOW        5

bool watch_waits_for(const struct reduce_member_state *m)
{
    return reduce_hears(&m->is) && (m->fate->as_sender == HTH_REDUCE_DROP_NONE ||
                                    m->fate->as_sender == HTH_REDUCE_DROP_NOT_FINITE);
}

static bool due_as_sender(const struct hth_reduce_round *r, uint32_t i)
{
    return i != r->is.self && watch_waits_for(&r->members[i]) &&
           r->members[i].got < reduce_self(r)->part_count;
}

bool watch_due_as_reducer(const struct hth_reduce_round *r, uint32_t i)
{
    const struct reduce_member_state *m = &r->members[i];
    return i != r->is.self && r->is.values != NULL && m->fate->as_reducer == HTH_REDUCE_DROP_NONE &&
           m->settled < m->part_count;
}

/* ---- verdicts ------------------------------------------------------------------------------ */

void watch_say(const struct hth_reduce_round *r, uint32_t i, const char *role,
               enum hth_reduce_drop why)
{
    static const char *const texts[] = {
        [HTH_REDUCE_DROP_LOST] = "its connection was lost or could not be made",
        [HTH_REDUCE_DROP_SILENT] = "no sign of life",
        [HTH_REDUCE_DROP_SLOW] = "it lives, but its parts did not come in time",
        [HTH_REDUCE_DROP_REFUSED] = "it refused parts, or what it said makes no sense",
        [HTH_REDUCE_DROP_FAR] = "what it calls the mean is further off than honest ones are"};
    char text[HTH_PEER_SHORT_LEN];
    struct hth_env *env = r->reducer->env;
    HTH_LOG(env, HTH_INFO, HTH_SUB_AVG,
            "group %02x%02x%02x%02x: member %s is dropped as %s after %lld ms: %s (heard %lld ms "
            "ago, we were %lld ms late)",
            r->is.group.b[0], r->is.group.b[1], r->is.group.b[2], r->is.group.b[3],
            hth_peer_id_short(&r->members[i].is.id, text), role,
            (long long)((hth_now_us(env) - r->start_us) / HTH_US_PER_MS), texts[why],
            (long long)((hth_now_us(env) - r->members[i].heard_us) / HTH_US_PER_MS),
            (long long)(hth_rpc_late_us(r->reducer->rpc) / HTH_US_PER_MS));
}

static void drop_sender(struct hth_reduce_round *r, uint32_t i, enum hth_reduce_drop why)
{
    if (r->reducer == NULL || !due_as_sender(r, i))
        return;
    watch_say(r, i, "sender", why);
    r->members[i].fate->as_sender = why;
    take_review(r);
}

void watch_drop(struct hth_reduce_round *r, uint32_t i, enum hth_reduce_drop why)
{
    give_fail(r, i, why);
    drop_sender(r, i, why);
}

/* ---- signs of life ------------------------------------------------------------------------- */

void watch_begin(struct hth_reduce_round *r)
{
    r->best_us = INFINITY;
    r->look_us = HTH_MIN(r->start_us + LOOK_US, r->end_us);
    hth_timer_set(r->reducer->env, r->timer, r->look_us - r->start_us);
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        struct hth_rpc_peer_info info;
        if (hth_rpc_peer_info(r->reducer->rpc, &r->members[i].is.id, &info) == HTH_OK)
            r->members[i].came_bytes = info.came_bytes;
    }
}

void watch_progress(struct hth_reduce_round *r, uint32_t i)
{
    struct reduce_member_state *m = &r->members[i];
    m->heard_us = m->progress_us = hth_now_us(r->reducer->env);
    m->gives_us = m->gives_us != 0 ? m->gives_us : m->heard_us;
}

static void listen_to(struct hth_reduce_round *r, struct reduce_member_state *m,
                      const struct hth_rpc_peer_info *info, int64_t now)
{
    m->heard_us = HTH_MAX(m->heard_us, info->received_us);
    r->far_us = HTH_MAX(r->far_us, HTH_MIN(info->rtt_us, FAR_US));
    if (info->dialing)
        m->here_us = now;
    /* Of a connection that is gone no more is known. */
    m->came_bytes = HTH_MIN(m->came_bytes, info->came_bytes);
    m->moved_bytes = HTH_MIN(m->moved_bytes, info->moved_bytes);
    if (m->gives_us == 0 && info->came_bytes - m->came_bytes >= BEGUN_BYTES)
        m->gives_us = now;
    if (info->moved_bytes - m->moved_bytes >= MOVED_BYTES) {
        m->moved_bytes = info->moved_bytes;
        m->progress_us = now;
    }
}

/* ---- asking -------------------------------------------------------------------------------- */

static void on_asked(void *arg, const struct hth_rpc_result *result)
{
    struct reduce_member_state *m = arg;
    struct hth_reduce_round *r = m->round;
    uint32_t i = (uint32_t)(m - r->members);
    m->ask = NULL;
    m->knows = result->remote && result->err == HTH_E_RANGE;
    if (result->remote && result->err == HTH_E_EXPIRED) /* its answers still come */
        drop_sender(r, i, HTH_REDUCE_DROP_SLOW);
    else if (result->remote && !m->knows && result->err != HTH_E_BUSY)
        watch_drop(r, i, HTH_REDUCE_DROP_SLOW);
    round_check(r);
}

/* Whether it knows the round: a part that there is not is out of its range then. */
static void ask(struct hth_reduce_round *r, struct reduce_member_state *m)
{
    uint8_t payload[HTH_PART_BYTES_MAX];
    struct hth_part_head part = {.group = r->is.group, .part = HTH_PART_NONE};
    struct hth_rpc_target target = {m->is.id, m->is.addr};
    struct hth_rpc_call_opts opts = {.method = HTH_REDUCE_METHOD,
                                     .body = {payload, hth_part_pack(&part, payload), NULL, 0},
                                     .timeout_us = r->end_us - r->start_us};
    if (hth_rpc_call(r->reducer->rpc, &target, &opts, on_asked, m, &m->ask) != HTH_OK)
        m->ask = NULL;
}

/* ---- by itself ----------------------------------------------------------------------------- */

static void judge(struct hth_reduce_round *r, uint32_t i, const struct hth_rpc_peer_info *info,
                  int64_t now)
{
    const struct hth_reducer_opts *o = &r->reducer->opts;
    struct reduce_member_state *m = &r->members[i];
    int64_t turn_us = 2 * HTH_MIN(info->rtt_us, FAR_US);
    int64_t late_us = hth_rpc_late_us(r->reducer->rpc),
            limit_us = o->silence_us + turn_us + late_us;
    if (!due_as_sender(r, i) && !watch_due_as_reducer(r, i)) {
        m->heard_us = now;
        return;
    }
    if (info->dialing)
        limit_us += r->far_us > 0 ? DIAL_RTTS * r->far_us : DIAL_US;
    if (now - m->heard_us >= limit_us)
        watch_drop(r, i, HTH_REDUCE_DROP_SILENT);
    if (m->put_off_us != 0 && now - m->put_off_us >= 3 * o->silence_us + late_us)
        give_fail(r, i, HTH_REDUCE_DROP_REFUSED);
    bool waits = due_as_sender(r, i) ? m->got == 0 : m->settled == 0;
    if (waits && !m->knows && m->ask == NULL && now - m->here_us >= o->silence_us + turn_us)
        ask(r, m);
    bool begins = m->got > 0 || info->came_bytes - m->came_bytes >= MOVED_BYTES;
    if (m->is.stranger && !begins && now - m->here_us >= STRANGER_US + turn_us + late_us)
        drop_sender(r, i, HTH_REDUCE_DROP_SLOW);
    if (now - m->progress_us >= o->patience_us + late_us ||
        now >= r->start_us + r->is.timeout_us / 10 * 8)
        drop_sender(r, i, HTH_REDUCE_DROP_SLOW);
    if (now - m->progress_us >= o->patience_us + o->patience_us / 2 + late_us)
        give_fail(r, i, HTH_REDUCE_DROP_SLOW);
}

/* ---- by the others ------------------------------------------------------------------------- */

/* The straggler that the others wait for: it would answer as slowly as it sends. */
static void weigh(struct hth_reduce_round *r)
{
    double done[HTH_AVG_MEMBERS_MAX], own = reduce_self(r)->part_count;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        const struct reduce_member_state *m = &r->members[i];
        if (i != r->is.self && m->gives_us != 0 && watch_waits_for(m) && own > 0)
            done[n++] = m->got / own;
    }
    /* At most a quarter, or one of two, may be behind: all others have done so much. */
    double usual = n < 2 ? 0 : hth_reduce_rank(done, n, HTH_MAX(n / 4, 1u));
    if (usual > 0)
        r->best_us = HTH_MIN(r->best_us, (double)(r->look_us - r->start_us) / usual);
    double limit_us = HTH_MAX(SLOW * r->best_us, (double)r->reducer->opts.patience_us);
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        struct reduce_member_state *m = &r->members[i];
        if (!due_as_sender(r, i) || m->gives_us == 0 || m->got + 2 > usual * own)
            continue;
        if (++m->held > 2 && (double)(r->look_us - m->gives_us) * own / (m->got + 1) > limit_us)
            watch_drop(r, i, HTH_REDUCE_DROP_SLOW);
    }
}

void watch_tick(struct hth_reduce_round *r)
{
    int64_t now = hth_now_us(r->reducer->env);
    hth_rpc_observe_late(r->reducer->rpc, r->look_us);
    r->look_us = now;
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        struct reduce_member_state *m = &r->members[i];
        struct hth_rpc_peer_info info;
        if (i == r->is.self)
            continue;
        if (hth_rpc_peer_info(r->reducer->rpc, &m->is.id, &info) != HTH_OK)
            info = (struct hth_rpc_peer_info){0};
        listen_to(r, m, &info, now);
        if ((now - r->start_us) / LOOK_US % 2 == 0)
            hth_rpc_nudge(r->reducer->rpc, &m->is.id);
        judge(r, i, &info, now);
    }
    weigh(r);
    give_again(r);
    r->look_us = HTH_MAX(HTH_MIN(now + LOOK_US, r->end_us), now);
    hth_timer_set(r->reducer->env, r->timer, r->look_us - now);
}
