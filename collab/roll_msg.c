/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/roll_msg.h"

#include "core/limits.h"

enum { LEAVES = 1, HELPS = 2, RESTS = 2, SIGNED = 4 }; /* flags, of a READY and of a GO's member */

/* ---- parts of messages --------------------------------------------------------------------- */

static void hash(struct hth_wire *io, struct hth_hash *hash)
{
    hth_wire_bytes(io, hash, sizeof(*hash));
}

void hth_wire_addr(struct hth_wire *io, struct hth_addr *addr)
{
    static const uint8_t zero[16];
    hth_wire_u8(io, &addr->family);
    hth_wire_bytes(io, addr->ip, sizeof(addr->ip));
    hth_wire_u16(io, &addr->port);
    size_t used = addr->family == 4 ? 4 : addr->family == 6 ? 16 : 0;
    hth_wire_check(io, (addr->family == 0 || used > 0) && (addr->port > 0) == (used > 0) &&
                           memcmp(addr->ip + used, zero, sizeof(zero) - used) == 0);
}

void hth_wire_places(struct hth_wire *io, struct hth_roll_peer *peer, uint32_t *count, uint32_t max)
{
    hth_wire_count16(io, count, max);
    for (uint32_t i = 0; i < *count; i++) {
        hth_wire_bytes(io, &peer[i].id, sizeof(peer[i].id));
        hth_wire_addr(io, &peer[i].addr);
    }
}

static void ballot(struct hth_wire *io, struct hth_roll_ballot *ballot)
{
    hth_wire_u64(io, &ballot->step);
    hash(io, &ballot->base);
    hth_wire_u32(io, &ballot->n);
}

static void time_us(struct hth_wire *io, int64_t *us)
{
    int64_t most = UINT32_MAX - INT64_C(1);
    uint32_t v = *us == HTH_BRINGS_NO_MORE ? UINT32_MAX : (uint32_t)HTH_MIN(HTH_MAX(*us, 0), most);
    hth_wire_u32(io, &v);
    *us = v == UINT32_MAX ? HTH_BRINGS_NO_MORE : v;
}

static void brings(struct hth_wire *io, struct hth_brings *b)
{
    hth_wire_u32(io, &b->samples);
    hth_wire_u32(io, &b->air);
    hth_wire_u32(io, &b->grain);
    time_us(io, &b->lands_us);
    time_us(io, &b->each_us);
    hth_wire_check(io, b->samples <= HTH_ROLL_SAMPLES_MAX && b->air <= HTH_ROLL_SAMPLES_MAX &&
                           b->grain > 0 && b->grain <= HTH_AVG_GRAIN_MAX &&
                           b->lands_us != HTH_BRINGS_NO_MORE);
}

static uint8_t flags(struct hth_wire *io, unsigned set, uint8_t all)
{
    uint8_t bits = (uint8_t)set;
    hth_wire_u8(io, &bits);
    hth_wire_check(io, bits <= all);
    return bits;
}

/* ---- READY --------------------------------------------------------------------------------- */

static void ready(struct hth_wire *io, struct hth_ready_msg *m)
{
    hth_wire_version(io, 1);
    uint8_t bits =
        flags(io, (m->leaves ? LEAVES : 0) | (m->helps ? HELPS : 0) | (m->is_signed ? SIGNED : 0),
              LEAVES | HELPS | SIGNED);
    m->leaves = bits & LEAVES;
    m->helps = bits & HELPS;
    m->is_signed = bits & SIGNED;
    ballot(io, &m->ballot);
    hash(io, &m->head);
    hash(io, &m->accepted);
    hth_wire_u32(io, &m->accepted_n);
    hth_wire_u64(io, &m->life);
    hth_wire_u32(io, &m->batch);
    brings(io, &m->brings);
    hth_wire_u32(io, &m->quota);
    hth_wire_u32(io, &m->rtt_us);
    hth_wire_u32(io, &m->first);
    hth_wire_u32(io, &m->last);
    hth_wire_check(io, m->first > 0 && m->first <= m->last);
    hth_wire_u32(io, &m->up_kbit);
    hth_wire_addr(io, &m->addr);
    if (m->is_signed)
        hth_wire_sig(io, &m->sig);
}

HTH_WIRE_PAIR(hth_ready, struct hth_ready_msg, ready, HTH_ROLL_BYTES_MAX)

/* ---- its answer ------------------------------------------------------------------------------ */

bool hth_roll_is_among(const struct hth_roll_peer *peers, uint32_t count,
                       const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < count; i++)
        if (hth_peer_id_eq(&peers[i].id, id))
            return true;
    return false;
}

static void listed(struct hth_wire *io, struct hth_roll_peer *p)
{
    hth_wire_u64(io, &p->life);
    hth_wire_u32(io, &p->batch);
    hth_wire_u32(io, &p->samples);
    hth_wire_check(io, p->samples <= HTH_ROLL_SAMPLES_MAX);
    hth_wire_u32(io, &p->next);
    uint8_t bits = flags(io, (p->leaves ? LEAVES : 0) | (p->rests ? RESTS : 0), LEAVES | RESTS);
    p->leaves = bits & LEAVES;
    p->rests = bits & RESTS;
    hth_wire_u32(io, &p->up_kbit);
}

static void peers(struct hth_wire *io, struct hth_ready_reply *m)
{
    bool go = m->kind == HTH_READY_GO;
    hth_wire_count(io, &m->count, go ? HTH_ROLL_MEMBERS_MAX : HTH_ROLL_LINE_MAX);
    hth_wire_check(io, m->count > 0);
    for (uint32_t i = 0; i < m->count && io->err == HTH_OK; i++) {
        struct hth_roll_peer *p = &m->peer[i];
        hth_wire_bytes(io, &p->id, sizeof(p->id));
        if (go)
            listed(io, p);
        hth_wire_addr(io, &p->addr);
        hth_wire_check(io, !io->reads || !hth_roll_is_among(m->peer, i, &p->id));
    }
}

/* Each can be dialled, and is no member. */
static void helpers(struct hth_wire *io, struct hth_ready_reply *m)
{
    hth_wire_count(io, &m->helpers, HTH_ROLL_HELPERS_MAX);
    for (uint32_t i = 0; i < m->helpers; i++) {
        struct hth_roll_peer *p = &m->helper[i];
        hth_wire_bytes(io, &p->id, sizeof(p->id));
        hth_wire_u32(io, &p->up_kbit);
        hth_wire_addr(io, &p->addr);
        hth_wire_check(io, p->addr.family != 0 && !hth_roll_is_among(m->peer, m->count, &p->id) &&
                               !hth_roll_is_among(m->helper, i, &p->id));
    }
}

static void sigs(struct hth_wire *io, struct hth_ready_reply *m)
{
    hth_wire_count(io, &m->sigs, HTH_ROLL_MEMBERS_MAX);
    if (io->reads)
        m->sig = hth_read_view(&io->r, m->sigs * HTH_SIG_BYTES);
    else
        hth_write_bytes(&io->w, m->sig, m->sigs * HTH_SIG_BYTES);
}

static void reply(struct hth_wire *io, struct hth_ready_reply *m)
{
    m->kind = (enum hth_ready_answer)hth_wire_kind(io, (uint8_t)m->kind, HTH_READY_BEHIND);
    bool go = m->kind == HTH_READY_GO;
    if (go || m->kind == HTH_READY_MOVE || m->kind == HTH_READY_BEHIND)
        hash(io, &m->head);
    if (go || m->kind == HTH_READY_LATER)
        hth_wire_u32(io, &m->n);
    if (m->kind == HTH_READY_WAIT) {
        hth_wire_u32(io, &m->quota);
        hth_wire_flag(io, &m->quorum);
    }
    if (go) {
        hth_wire_flag(io, &m->fork);
        hth_wire_u32(io, &m->protocol);
    }
    if (go || m->kind == HTH_READY_MOVE)
        peers(io, m);
    if (go) {
        helpers(io, m);
        sigs(io, m);
    }
}

HTH_WIRE_PAIR(hth_ready_reply, struct hth_ready_reply, reply, HTH_ROLL_BYTES_MAX)

/* ---- CALL and LINKS -------------------------------------------------------------------------- */

static void call(struct hth_wire *io, struct hth_roll_ballot *m)
{
    hth_wire_version(io, 1);
    ballot(io, m);
}

HTH_WIRE_PAIR(hth_call, struct hth_roll_ballot, call, HTH_ROLL_BYTES_MAX)

static void links(struct hth_wire *io, struct hth_links_msg *m)
{
    hth_wire_version(io, 1);
    hash(io, &m->head);
    hth_wire_count(io, &m->count, HTH_ROLL_HELD_MAX);
    for (uint32_t i = 0; i < m->count; i++)
        hash(io, &m->held[i]);
}

HTH_WIRE_PAIR(hth_links, struct hth_links_msg, links, HTH_ROLL_BYTES_MAX)

/* ---- ROW ------------------------------------------------------------------------------------- */

static void marks(struct hth_wire *io, struct hth_row_marks *marks)
{
    hth_wire_count16(io, &marks->count, HTH_ROLL_MEMBERS_MAX);
    for (uint32_t i = 0; i < marks->count; i += 4) {
        uint8_t byte = 0;
        for (uint32_t k = i; k < marks->count && k < i + 4; k++)
            byte |= (uint8_t)(marks->of[k] << 2 * (k - i));
        hth_wire_u8(io, &byte);
        for (uint32_t k = i; k < i + 4; k++, byte >>= 2) {
            uint16_t mark = byte & 3;
            hth_wire_check(io, mark != (HTH_ROLL_IN | HTH_ROLL_PART) &&
                                   (mark == 0 || k < marks->count));
            if (k < marks->count)
                marks->of[k] = mark;
        }
    }
}

static void row(struct hth_wire *io, struct hth_row_msg *m)
{
    uint8_t axis = (uint8_t)m->axis;
    hth_wire_version(io, 1);
    hth_wire_bytes(io, &m->group, sizeof(m->group));
    hth_wire_u8(io, &axis);
    m->axis = axis;
    marks(io, &m->marks);
}

HTH_WIRE_PAIR(hth_row, struct hth_row_msg, row, HTH_ROW_BYTES_MAX)
