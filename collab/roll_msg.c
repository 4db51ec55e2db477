/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/roll_msg.h"

#include "core/limits.h"

/* Programs that make something else of these bytes have another version. */
#define VERSION 1

enum { LEAVES = 1, HELPS = 2, RESTS = 2, SIGNED = 4 }; /* flags, of a READY and of a GO's member */

/* ---- parts of messages --------------------------------------------------------------------- */

static void write_hash(struct hth_writer *w, const struct hth_hash *hash)
{
    hth_write_bytes(w, hash, sizeof(*hash));
}

static void read_hash(struct hth_reader *r, struct hth_hash *out)
{
    hth_read_bytes(r, out, sizeof(*out));
}

void hth_roll_addr_write(const struct hth_addr *addr, struct hth_writer *w)
{
    hth_write_u8(w, addr->family);
    hth_write_bytes(w, addr->ip, sizeof(addr->ip));
    hth_write_u16(w, addr->port);
}

enum hth_err hth_roll_addr_read(struct hth_reader *r, struct hth_addr *out)
{
    static const uint8_t zero[16];
    out->family = hth_read_u8(r);
    hth_read_bytes(r, out->ip, sizeof(out->ip));
    out->port = hth_read_u16(r);
    HTH_TRY(r->err);
    size_t used = out->family == 4 ? 4 : out->family == 6 ? 16 : 0;
    bool good = (out->family == 0 || used > 0) && (out->port > 0) == (used > 0) &&
                memcmp(out->ip + used, zero, sizeof(zero) - used) == 0;
    return good ? HTH_OK : HTH_E_MALFORMED;
}

static void write_ballot(struct hth_writer *w, const struct hth_roll_ballot *ballot)
{
    hth_write_u64(w, ballot->step);
    write_hash(w, &ballot->base);
    hth_write_u32(w, ballot->n);
}

static void read_ballot(struct hth_reader *r, struct hth_roll_ballot *out)
{
    out->step = hth_read_u64(r);
    read_hash(r, &out->base);
    out->n = hth_read_u32(r);
}

static enum hth_err read_version(struct hth_reader *r)
{
    uint8_t version = hth_read_u8(r);
    HTH_TRY(r->err);
    return version == VERSION ? HTH_OK : HTH_E_VERSION;
}

static enum hth_err read_flag(struct hth_reader *r, bool *out)
{
    uint8_t flag = hth_read_u8(r);
    *out = flag == 1;
    return flag <= 1 ? HTH_OK : HTH_E_MALFORMED;
}

static enum hth_err read_end(const struct hth_reader *r)
{
    HTH_TRY(r->err);
    return hth_reader_left(r) == 0 ? HTH_OK : HTH_E_MALFORMED;
}

static struct hth_writer begin(uint8_t *out)
{
    struct hth_writer w;
    hth_writer_init(&w, out, HTH_ROLL_BYTES_MAX);
    return w;
}

static size_t end(const struct hth_writer *w)
{
    HTH_ASSERT(w->err == HTH_OK);
    return w->pos;
}

static uint32_t to_u32_us(int64_t us)
{
    return us == HTH_BRINGS_NO_MORE ? UINT32_MAX
                                    : (uint32_t)HTH_MIN(HTH_MAX(us, 0), UINT32_MAX - INT64_C(1));
}

static void write_brings(struct hth_writer *w, const struct hth_brings *brings)
{
    hth_write_u32(w, brings->samples);
    hth_write_u32(w, brings->air);
    hth_write_u32(w, brings->grain);
    hth_write_u32(w, to_u32_us(brings->lands_us));
    hth_write_u32(w, to_u32_us(brings->each_us));
}

static enum hth_err read_brings(struct hth_reader *r, struct hth_brings *out)
{
    out->samples = hth_read_u32(r);
    out->air = hth_read_u32(r);
    out->grain = hth_read_u32(r);
    out->lands_us = hth_read_u32(r);
    out->each_us = hth_read_u32(r);
    if (out->each_us == UINT32_MAX)
        out->each_us = HTH_BRINGS_NO_MORE;
    HTH_TRY(r->err);
    bool good = out->samples <= HTH_ROLL_SAMPLES_MAX && out->air <= HTH_ROLL_SAMPLES_MAX &&
                out->grain > 0 && out->grain <= HTH_AVG_GRAIN_MAX && out->lands_us < UINT32_MAX;
    return good ? HTH_OK : HTH_E_MALFORMED;
}

/* ---- READY --------------------------------------------------------------------------------- */

size_t hth_ready_write(const struct hth_ready_msg *ready, uint8_t *out)
{
    struct hth_writer w = begin(out);
    hth_write_u8(&w, VERSION);
    hth_write_u8(&w, (uint8_t)((ready->leaves ? LEAVES : 0) | (ready->helps ? HELPS : 0) |
                               (ready->is_signed ? SIGNED : 0)));
    write_ballot(&w, &ready->ballot);
    write_hash(&w, &ready->head);
    write_hash(&w, &ready->accepted);
    hth_write_u32(&w, ready->accepted_n);
    hth_write_u64(&w, ready->life);
    hth_write_u32(&w, ready->batch);
    write_brings(&w, &ready->brings);
    hth_write_u32(&w, ready->quota);
    hth_write_u32(&w, ready->rtt_us);
    hth_write_u32(&w, ready->first);
    hth_write_u32(&w, ready->last);
    hth_write_u32(&w, ready->up_kbit);
    hth_roll_addr_write(&ready->addr, &w);
    if (ready->is_signed)
        hth_sig_write(&ready->sig, &w);
    return end(&w);
}

enum hth_err hth_ready_read(const uint8_t *data, size_t len, struct hth_ready_msg *out)
{
    struct hth_reader r;
    *out = (struct hth_ready_msg){0};
    hth_reader_init(&r, data, len);
    HTH_TRY(read_version(&r));
    uint8_t flags = hth_read_u8(&r);
    out->leaves = flags & LEAVES;
    out->helps = flags & HELPS;
    out->is_signed = flags & SIGNED;
    read_ballot(&r, &out->ballot);
    read_hash(&r, &out->head);
    read_hash(&r, &out->accepted);
    out->accepted_n = hth_read_u32(&r);
    out->life = hth_read_u64(&r);
    out->batch = hth_read_u32(&r);
    HTH_TRY(read_brings(&r, &out->brings));
    out->quota = hth_read_u32(&r);
    out->rtt_us = hth_read_u32(&r);
    out->first = hth_read_u32(&r);
    out->last = hth_read_u32(&r);
    out->up_kbit = hth_read_u32(&r);
    HTH_TRY(hth_roll_addr_read(&r, &out->addr));
    if (out->is_signed)
        HTH_TRY(hth_sig_read(&r, &out->sig));
    HTH_TRY(flags <= (LEAVES | HELPS | SIGNED) && out->first > 0 && out->first <= out->last
                ? HTH_OK
                : HTH_E_MALFORMED);
    return read_end(&r);
}

/* ---- its answer ------------------------------------------------------------------------------ */

static void write_helpers(struct hth_writer *w, const struct hth_ready_reply *go)
{
    hth_write_u32(w, go->helpers);
    for (uint32_t i = 0; i < go->helpers; i++) {
        hth_write_bytes(w, &go->helper[i].id, sizeof(go->helper[i].id));
        hth_write_u32(w, go->helper[i].up_kbit);
        hth_roll_addr_write(&go->helper[i].addr, w);
    }
}

size_t hth_ready_reply_write(const struct hth_ready_reply *reply, uint8_t *out)
{
    struct hth_writer w = begin(out);
    bool go = reply->kind == HTH_READY_GO;
    hth_write_u8(&w, (uint8_t)reply->kind);
    if (go || reply->kind == HTH_READY_MOVE || reply->kind == HTH_READY_BEHIND)
        write_hash(&w, &reply->head);
    if (go || reply->kind == HTH_READY_LATER)
        hth_write_u32(&w, reply->n);
    if (reply->kind == HTH_READY_WAIT) {
        hth_write_u32(&w, reply->quota);
        hth_write_u8(&w, reply->quorum);
    }
    if (go) {
        hth_write_u8(&w, reply->fork);
        hth_write_u32(&w, reply->protocol);
    }
    if (!go && reply->kind != HTH_READY_MOVE)
        return end(&w);
    hth_write_u32(&w, reply->count);
    for (uint32_t i = 0; i < reply->count; i++) {
        const struct hth_roll_peer *p = &reply->peer[i];
        hth_write_bytes(&w, &p->id, sizeof(p->id));
        if (go) {
            hth_write_u64(&w, p->life);
            hth_write_u32(&w, p->batch);
            hth_write_u32(&w, p->samples);
            hth_write_u32(&w, p->next);
            hth_write_u8(&w, (uint8_t)((p->leaves ? LEAVES : 0) | (p->rests ? RESTS : 0)));
            hth_write_u32(&w, p->up_kbit);
        }
        hth_roll_addr_write(&p->addr, &w);
    }
    if (go) {
        write_helpers(&w, reply);
        hth_write_u32(&w, reply->sigs);
        hth_write_bytes(&w, reply->sig, reply->sigs * HTH_SIG_BYTES);
    }
    return end(&w);
}

static enum hth_err read_peers(struct hth_reader *r, struct hth_ready_reply *out)
{
    out->count = hth_read_u32(r);
    HTH_TRY(r->err);
    if (out->count > (out->kind == HTH_READY_GO ? HTH_ROLL_MEMBERS_MAX : HTH_ROLL_LINE_MAX))
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < out->count; i++) {
        struct hth_roll_peer *p = &out->peer[i];
        hth_read_bytes(r, &p->id, sizeof(p->id));
        if (out->kind == HTH_READY_GO) {
            p->life = hth_read_u64(r);
            p->batch = hth_read_u32(r);
            p->samples = hth_read_u32(r);
            p->next = hth_read_u32(r);
            HTH_TRY(p->samples <= HTH_ROLL_SAMPLES_MAX ? HTH_OK : HTH_E_MALFORMED);
            uint8_t flags = hth_read_u8(r);
            p->leaves = flags & LEAVES;
            p->rests = flags & RESTS;
            HTH_TRY(flags <= (LEAVES | RESTS) ? HTH_OK : HTH_E_MALFORMED);
            p->up_kbit = hth_read_u32(r);
        }
        HTH_TRY(hth_roll_addr_read(r, &p->addr));
        for (uint32_t k = 0; k < i; k++)
            if (hth_peer_id_eq(&out->peer[k].id, &p->id))
                return HTH_E_MALFORMED;
    }
    return out->count > 0 ? HTH_OK : HTH_E_MALFORMED;
}

/* Each can be dialled, and is no member. */
static enum hth_err read_helpers(struct hth_reader *r, struct hth_ready_reply *out)
{
    out->helpers = hth_read_u32(r);
    HTH_TRY(r->err);
    if (out->helpers > HTH_ROLL_HELPERS_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < out->helpers; i++) {
        struct hth_roll_peer *p = &out->helper[i];
        hth_read_bytes(r, &p->id, sizeof(p->id));
        p->up_kbit = hth_read_u32(r);
        HTH_TRY(hth_roll_addr_read(r, &p->addr));
        bool twice = p->addr.family == 0;
        for (uint32_t k = 0; k < out->count; k++)
            twice |= hth_peer_id_eq(&out->peer[k].id, &p->id);
        for (uint32_t k = 0; k < i; k++)
            twice |= hth_peer_id_eq(&out->helper[k].id, &p->id);
        if (twice)
            return HTH_E_MALFORMED;
    }
    return HTH_OK;
}

enum hth_err hth_ready_reply_read(const uint8_t *data, size_t len, struct hth_ready_reply *out)
{
    struct hth_reader r;
    *out = (struct hth_ready_reply){0};
    hth_reader_init(&r, data, len);
    uint8_t kind = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (kind > HTH_READY_BEHIND)
        return HTH_E_MALFORMED;
    out->kind = (enum hth_ready_answer)kind;
    bool go = kind == HTH_READY_GO;
    if (go || kind == HTH_READY_MOVE || kind == HTH_READY_BEHIND)
        read_hash(&r, &out->head);
    if (go || kind == HTH_READY_LATER)
        out->n = hth_read_u32(&r);
    if (kind == HTH_READY_WAIT) {
        out->quota = hth_read_u32(&r);
        HTH_TRY(read_flag(&r, &out->quorum));
    }
    if (go) {
        HTH_TRY(read_flag(&r, &out->fork));
        out->protocol = hth_read_u32(&r);
    }
    if (go || kind == HTH_READY_MOVE)
        HTH_TRY(read_peers(&r, out));
    if (go) {
        HTH_TRY(read_helpers(&r, out));
        out->sigs = hth_read_u32(&r);
        HTH_TRY(out->sigs <= HTH_ROLL_MEMBERS_MAX ? HTH_OK : HTH_E_TOO_LARGE);
        out->sig = hth_read_view(&r, out->sigs * HTH_SIG_BYTES);
    }
    return read_end(&r);
}

/* ---- CALL and LINKS -------------------------------------------------------------------------- */

size_t hth_call_write(const struct hth_roll_ballot *ballot, uint8_t *out)
{
    struct hth_writer w = begin(out);
    hth_write_u8(&w, VERSION);
    write_ballot(&w, ballot);
    return end(&w);
}

enum hth_err hth_call_read(const uint8_t *data, size_t len, struct hth_roll_ballot *out)
{
    struct hth_reader r;
    *out = (struct hth_roll_ballot){0};
    hth_reader_init(&r, data, len);
    HTH_TRY(read_version(&r));
    read_ballot(&r, out);
    return read_end(&r);
}

size_t hth_links_write(const struct hth_links_msg *links, uint8_t *out)
{
    struct hth_writer w = begin(out);
    hth_write_u8(&w, VERSION);
    write_hash(&w, &links->head);
    hth_write_u32(&w, links->count);
    for (uint32_t i = 0; i < links->count; i++)
        write_hash(&w, &links->held[i]);
    return end(&w);
}

enum hth_err hth_links_read(const uint8_t *data, size_t len, struct hth_links_msg *out)
{
    struct hth_reader r;
    *out = (struct hth_links_msg){0};
    hth_reader_init(&r, data, len);
    HTH_TRY(read_version(&r));
    read_hash(&r, &out->head);
    out->count = hth_read_u32(&r);
    HTH_TRY(r.err);
    if (out->count > HTH_ROLL_HELD_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < out->count; i++)
        read_hash(&r, &out->held[i]);
    return read_end(&r);
}
