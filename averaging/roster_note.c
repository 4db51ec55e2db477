/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A note's bytes, little-endian:
 *
 *   0  version (1)    2  address: family, 16 bytes of ip, port     49 round (4)
 *   1  flags (1)     21  schema (8)     29  step (8)               53 dims (1), then per axis
 *                    37  samples (8)    45  rate (4, a float)         size (4), at (4)
 *   the last round: group, members, drops, reason, wait, reduce (4 each), bytes (8),
 *   change, norm, weight fraction (4 each, floats)
 *   the settings: 5 x 4
 */
#include <float.h>

#include "averaging/roster.h"
#include "core/wire.h"

#define NOTE_VERSION 8

static void last(struct hth_wire *io, struct hth_roster_last *l)
{
    hth_wire_u32(io, &l->group);
    hth_wire_u32(io, &l->members);
    hth_wire_u32(io, &l->drops);
    hth_wire_u32(io, &l->reason);
    hth_wire_u32(io, &l->wait_ms);
    hth_wire_u32(io, &l->reduce_ms);
    hth_wire_u64(io, &l->bytes);
    hth_wire_f32(io, &l->change);
    hth_wire_f32(io, &l->norm);
    hth_wire_f32(io, &l->weight_fraction);
    hth_wire_expect(io,
                    l->members <= HTH_AVG_MEMBERS_MAX && l->drops <= HTH_AVG_MEMBERS_MAX &&
                        l->change >= 0 && l->change <= FLT_MAX && l->norm >= 0 &&
                        l->norm <= FLT_MAX && l->weight_fraction >= 0 && l->weight_fraction <= 1,
                    HTH_E_RANGE);
}

static void place(struct hth_wire *io, struct hth_roster_note *n)
{
    uint8_t dims = (uint8_t)n->shape.dims;

    hth_wire_u8(io, &dims);
    n->shape.dims = dims;
    hth_wire_bound(io, &n->shape.dims, HTH_AVG_DIMS_MAX);
    for (uint32_t i = 0; i < n->shape.dims; i++) {
        hth_wire_u32(io, &n->shape.size[i]);
        hth_wire_u32(io, &n->cell.at[i]);
    }
    hth_wire_expect(io,
                    n->shape.dims == 0 || (hth_avg_shape_check(&n->shape) == HTH_OK &&
                                           hth_avg_cell_check(&n->shape, &n->cell) == HTH_OK),
                    HTH_E_RANGE);
}

static void note(struct hth_wire *io, struct hth_roster_note *n)
{
    uint8_t flags = (uint8_t)n->flags;

    hth_wire_version(io, NOTE_VERSION);
    hth_wire_u8(io, &flags);
    n->flags = flags;
    hth_wire_check(io, (n->flags & ~HTH_ROSTER_FLAGS) == 0);
    hth_wire_addr(io, &n->addr);
    hth_wire_u64(io, &n->schema);
    hth_wire_u64(io, &n->step);
    hth_wire_u64(io, &n->samples);
    hth_wire_f32(io, &n->samples_per_s);
    hth_wire_expect(io,
                    n->step <= HTH_AVG_STEP_MAX && n->samples <= HTH_AVG_SAMPLES_MAX &&
                        n->samples_per_s >= 0 && n->samples_per_s <= HTH_AVG_RATE_MAX,
                    HTH_E_RANGE);
    hth_wire_u32(io, &n->round);
    place(io, n);
    last(io, &n->last);
    for (uint32_t i = 0; i < HTH_ROSTER_SETTINGS; i++)
        hth_wire_u32(io, &n->settings[i]);
}

HTH_WIRE_PAIR(hth_roster_note, struct hth_roster_note, note, HTH_ROSTER_NOTE_BYTES_MAX)
