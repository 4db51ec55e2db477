/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A note's bytes, little-endian:
 *
 *   0  version (1)    2  address: family, 16 bytes of ip, port     49 round (4)
 *   1  flags (1)     21  schema (8)     29  step (8)               53 dims (1), then per axis
 *                    37  samples (8)    45  rate (4, a float)         size (4), at (4)
 *   the last round: group, members, drops, reason, wait, match, reduce (4 each), bytes (8),
 *   change, norm, weight fraction (4 each, floats)
 *   the settings: 5 x 4
 */
#include <float.h>
#include <string.h>

#include "averaging/roster_note.h"

#define NOTE_VERSION 8

static uint32_t float_bits(double x)
{
    float f = (float)x;
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static double from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return (double)f;
}

static void write_last(const struct hth_roster_last *l, struct hth_writer *w)
{
    const uint32_t numbers[] = {l->group,   l->members,  l->drops,    l->reason,
                                l->wait_ms, l->match_ms, l->reduce_ms};

    for (size_t i = 0; i < HTH_ARRAY_LEN(numbers); i++)
        hth_write_u32(w, numbers[i]);
    hth_write_u64(w, l->bytes);
    hth_write_u32(w, float_bits(l->change));
    hth_write_u32(w, float_bits(l->norm));
    hth_write_u32(w, float_bits(l->weight_fraction));
}

static void read_last(struct hth_reader *r, struct hth_roster_last *l)
{
    uint32_t *const numbers[] = {&l->group,   &l->members,  &l->drops,    &l->reason,
                                 &l->wait_ms, &l->match_ms, &l->reduce_ms};

    for (size_t i = 0; i < HTH_ARRAY_LEN(numbers); i++)
        *numbers[i] = hth_read_u32(r);
    l->bytes = hth_read_u64(r);
    l->change = from_bits(hth_read_u32(r));
    l->norm = from_bits(hth_read_u32(r));
    l->weight_fraction = from_bits(hth_read_u32(r));
}

enum hth_err hth_roster_note_write(const struct hth_roster_note *n, struct hth_writer *w)
{
    hth_write_u8(w, NOTE_VERSION);
    hth_write_u8(w, (uint8_t)n->flags);
    hth_write_u8(w, n->addr.family);
    hth_write_bytes(w, n->addr.ip, sizeof(n->addr.ip));
    hth_write_u16(w, n->addr.port);
    hth_write_u64(w, n->schema);
    hth_write_u64(w, n->step);
    hth_write_u64(w, n->samples);
    hth_write_u32(w, float_bits(n->samples_per_s));
    hth_write_u32(w, n->round);
    hth_write_u8(w, (uint8_t)n->shape.dims);
    for (uint32_t i = 0; i < n->shape.dims; i++) {
        hth_write_u32(w, n->shape.size[i]);
        hth_write_u32(w, n->cell.at[i]);
    }
    write_last(&n->last, w);
    for (uint32_t i = 0; i < HTH_ROSTER_SETTINGS; i++)
        hth_write_u32(w, n->settings[i]);
    return w->err;
}

static enum hth_err check(const struct hth_roster_note *n)
{
    if (n->addr.family != 0 && n->addr.family != 4 && n->addr.family != 6)
        return HTH_E_RANGE;
    if (n->step > HTH_AVG_STEP_MAX || n->samples > HTH_AVG_SAMPLES_MAX)
        return HTH_E_RANGE;
    if (!(n->samples_per_s >= 0 && n->samples_per_s <= HTH_AVG_RATE_MAX))
        return HTH_E_RANGE;
    if (n->last.members > HTH_AVG_MEMBERS_MAX || n->last.drops > HTH_AVG_MEMBERS_MAX ||
        !(n->last.change >= 0 && n->last.change <= FLT_MAX) ||
        !(n->last.norm >= 0 && n->last.norm <= FLT_MAX) ||
        !(n->last.weight_fraction >= 0 && n->last.weight_fraction <= 1))
        return HTH_E_RANGE;
    if (n->shape.dims == 0)
        return HTH_OK;
    if (hth_avg_shape_check(&n->shape) != HTH_OK)
        return HTH_E_RANGE;
    return hth_avg_cell_check(&n->shape, &n->cell);
}

enum hth_err hth_roster_note_read(const uint8_t *data, size_t len, struct hth_roster_note *n)
{
    struct hth_reader r;
    uint8_t version;

    memset(n, 0, sizeof(*n));
    hth_reader_init(&r, data, len);
    version = hth_read_u8(&r);
    if (r.err == HTH_OK && version != NOTE_VERSION)
        return HTH_E_VERSION;
    n->flags = hth_read_u8(&r);
    n->addr.family = hth_read_u8(&r);
    hth_read_bytes(&r, n->addr.ip, sizeof(n->addr.ip));
    n->addr.port = hth_read_u16(&r);
    n->schema = hth_read_u64(&r);
    n->step = hth_read_u64(&r);
    n->samples = hth_read_u64(&r);
    n->samples_per_s = from_bits(hth_read_u32(&r));
    n->round = hth_read_u32(&r);
    n->shape.dims = hth_read_u8(&r);
    if (n->shape.dims > HTH_AVG_DIMS_MAX)
        return HTH_E_RANGE;
    for (uint32_t i = 0; i < n->shape.dims; i++) {
        n->shape.size[i] = hth_read_u32(&r);
        n->cell.at[i] = hth_read_u32(&r);
    }
    read_last(&r, &n->last);
    for (uint32_t i = 0; i < HTH_ROSTER_SETTINGS; i++)
        n->settings[i] = hth_read_u32(&r);
    if (r.err != HTH_OK)
        return HTH_E_TRUNCATED;
    if (hth_reader_left(&r) > 0 || (n->flags & ~HTH_ROSTER_FLAGS) != 0)
        return HTH_E_MALFORMED;
    return check(n);
}
