/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/about.h"

#include "core/bytes.h"

#include <stdio.h>
#include <string.h>

size_t hth_about_write(const struct hth_about *about, uint8_t out[HTH_ABOUT_BYTES_MAX])
{
    struct hth_writer w;
    hth_writer_init(&w, out, HTH_ABOUT_BYTES_MAX);
    hth_write_u64(&w, (uint64_t)about->started_us);
    hth_write_u64(&w, about->rows);
    hth_write_u64(&w, (uint64_t)about->unsaved_since_us);
    hth_write_u32(&w, about->trainers);
    hth_write_u32(&w, about->queue_ms);
    hth_write_u32(&w, about->rows_per_s);
    hth_write_u8(&w, (uint8_t)about->reach);
    hth_write_u8(&w, about->compute);
    hth_write_u8(&w, (uint8_t)strlen(about->version));
    hth_write_bytes(&w, about->version, strlen(about->version));
    hth_write_u16(&w, (uint16_t)about->peer_count);
    for (uint32_t i = 0; i < about->peer_count; i++) {
        const struct hth_about_peer *p = &about->peer[i];
        hth_write_bytes(&w, p->id.b, sizeof(p->id.b));
        hth_write_u8(&w, p->role);
        hth_write_u8(&w, p->addr.family);
        hth_write_bytes(&w, p->addr.ip, sizeof(p->addr.ip));
        hth_write_u16(&w, p->addr.port);
        hth_write_u32(&w, p->age_s);
    }
    hth_write_u8(&w, (uint8_t)about->refusal_count);
    for (uint32_t i = 0; i < about->refusal_count; i++) {
        const struct hth_about_refusal *f = &about->refusal[i];
        hth_write_u8(&w, (uint8_t)strlen(f->reason));
        hth_write_bytes(&w, f->reason, strlen(f->reason));
        hth_write_u32(&w, f->count);
    }
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

void hth_about_refuse(struct hth_about *about, const char *reason, uint64_t count)
{
    if (count == 0 || about->refusal_count == HTH_ABOUT_REFUSALS_MAX)
        return;
    struct hth_about_refusal *f = &about->refusal[about->refusal_count++];
    snprintf(f->reason, sizeof(f->reason), "%s", reason);
    f->count = (uint32_t)HTH_MIN(count, (uint64_t)UINT32_MAX);
}

bool hth_about_refuses_values(const struct hth_about *about)
{
    static const char *const values[] = {"claim", "mean", "state"};
    for (uint32_t i = 0; i < about->refusal_count; i++)
        for (size_t k = 0; k < HTH_ARRAY_LEN(values); k++)
            if (strcmp(about->refusal[i].reason, values[k]) == 0)
                return true;
    return false;
}

static void fail(struct hth_reader *r, enum hth_err err)
{
    if (r->err == HTH_OK)
        r->err = err;
}

static int64_t read_time(struct hth_reader *r)
{
    uint64_t us = hth_read_u64(r);
    if (us > (uint64_t)INT64_MAX / 2)
        fail(r, HTH_E_RANGE);
    return r->err == HTH_OK ? (int64_t)us : 0;
}

/* Text that can be printed; out has room for max bytes and its end. */
static void read_word(struct hth_reader *r, char *out, size_t max)
{
    size_t len = hth_read_u8(r);
    if (len > max) {
        fail(r, HTH_E_TOO_LARGE);
        return;
    }
    hth_read_bytes(r, out, len);
    for (size_t i = 0; i < len; i++)
        if (out[i] <= ' ' || out[i] > '~')
            fail(r, HTH_E_MALFORMED);
}

static void read_peer(struct hth_reader *r, struct hth_about_peer *out)
{
    hth_read_bytes(r, out->id.b, sizeof(out->id.b));
    out->role = hth_read_u8(r);
    out->addr.family = hth_read_u8(r);
    hth_read_bytes(r, out->addr.ip, sizeof(out->addr.ip));
    out->addr.port = hth_read_u16(r);
    out->age_s = hth_read_u32(r);
    if (out->addr.family != 0 && out->addr.family != 4 && out->addr.family != 6)
        fail(r, HTH_E_MALFORMED);
}

enum hth_err hth_about_read(const uint8_t *data, size_t len, struct hth_about *out)
{
    struct hth_reader r;
    hth_reader_init(&r, data, len);
    memset(out, 0, sizeof(*out));
    out->started_us = read_time(&r);
    out->rows = hth_read_u64(&r);
    out->unsaved_since_us = read_time(&r);
    out->trainers = hth_read_u32(&r);
    out->queue_ms = hth_read_u32(&r);
    out->rows_per_s = hth_read_u32(&r);
    out->reach = (enum hth_reach)hth_read_u8(&r);
    out->compute = hth_read_u8(&r);
    read_word(&r, out->version, HTH_VERSION_LEN_MAX);
    uint32_t peers = hth_read_u16(&r);
    HTH_TRY(r.err);
    if ((unsigned)out->reach > HTH_REACH_NO)
        return HTH_E_RANGE;
    if (peers > HTH_ABOUT_PEERS_MAX)
        return HTH_E_TOO_LARGE;
    for (; out->peer_count < peers && r.err == HTH_OK; out->peer_count++)
        read_peer(&r, &out->peer[out->peer_count]);
    if (hth_reader_left(&r) == 0) /* of an earlier version */
        return r.err;
    uint32_t refusals = hth_read_u8(&r);
    if (refusals > HTH_ABOUT_REFUSALS_MAX)
        return HTH_E_TOO_LARGE;
    for (; out->refusal_count < refusals && r.err == HTH_OK; out->refusal_count++) {
        struct hth_about_refusal *f = &out->refusal[out->refusal_count];
        read_word(&r, f->reason, HTH_ABOUT_REASON_MAX);
        f->count = hth_read_u32(&r);
    }
    return r.err;
}
