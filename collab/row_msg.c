/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/row_msg.h"

#include "collab/chain.h"

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
