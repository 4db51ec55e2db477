/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_msg.h: the bytes of what the members of a grid's line tell their leader, and of its answer
 * (collab_round.c), little-endian, a version first.
 *
 *     ROW    u8 version, group 32, u8 axis, marks
 *     marks  u16 count (of the list; 0: not known yet), then 2 bits for each of its members, the
 *            lowest first: HTH_ROLL_IN, HTH_ROLL_PART or 0; the rest of the last byte is 0
 *
 * The reader lets through what is in range, and nothing with bytes left over. Pure functions, any
 * thread. Errors: E_TRUNCATED, E_VERSION, E_MALFORMED, E_TOO_LARGE (a count).
 */
#ifndef HTH_COLLAB_ROW_MSG_H
#define HTH_COLLAB_ROW_MSG_H

#include "collab/roll_msg.h"

#define HTH_ROW_METHOD    76

#define HTH_ROW_BYTES_MAX (36 + HTH_ROLL_MEMBERS_MAX / 4)

struct hth_row_marks {
    uint32_t count;
    uint16_t of[HTH_ROLL_MEMBERS_MAX]; /* HTH_ROLL_IN, HTH_ROLL_PART or 0 */
};

struct hth_row_msg {
    struct hth_hash group; /* of the GO */
    uint32_t axis;
    /* Of a member: whose values are in the mean that it brings; all 0: it has none. Of its leader:
     * whose are in the means of all. Count 0: that is not known yet; of a leader: send it again. */
    struct hth_row_marks marks;
};

/* `out` has HTH_ROW_BYTES_MAX bytes; returns the number of bytes. */
size_t hth_row_write(const struct hth_row_msg *row, uint8_t *out);
enum hth_err hth_row_read(const uint8_t *data, size_t len, struct hth_row_msg *out) HTH_MUST;

#endif
