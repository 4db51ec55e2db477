/* SPDX-License-Identifier: Apache-2.0 */
/*
 * row_msg.h: the bytes of what the members of a grid's line tell their leader (collab_grid.c),
 * little-endian, a version first.
 *
 *     ROW  u8 version, group 32, u8 axis, u32 cell, u8 state, and with state HAS: marks
 *     its answer: u8 kind, then of a BEGIN: u64 has (bits by coordinate, not 0), marks
 *
 *     marks  u16 count (of the list), then 2 bits for each of its members, the lowest first:
 *            HTH_ROLL_IN, HTH_ROLL_PART or 0; the rest of the last byte is 0
 *
 * The functions that read let through what is in range, and nothing with bytes left over. Pure
 * functions, any thread. Their errors: E_TRUNCATED, E_VERSION, E_MALFORMED, E_TOO_LARGE (a count).
 */
#ifndef HTH_COLLAB_ROW_MSG_H
#define HTH_COLLAB_ROW_MSG_H

#include "collab/roll_msg.h"

#define HTH_ROW_METHOD    76

#define HTH_ROW_BYTES_MAX (48 + HTH_ROLL_MEMBERS_MAX / 4)

/* A cell brings the mean that its line of the axis before has come to. */
enum hth_row_state {
    HTH_ROW_WORKS, /* that is not known yet */
    HTH_ROW_FAILED,
    HTH_ROW_HAS,
};

struct hth_row_marks {
    uint32_t count;
    uint16_t of[HTH_ROLL_MEMBERS_MAX]; /* HTH_ROLL_IN, HTH_ROLL_PART or 0 */
};

struct hth_row_msg {
    struct hth_hash group; /* of the GO */
    uint32_t axis;
    uint32_t cell; /* the sender's, or the hole that it stands in for */
    enum hth_row_state state;
    struct hth_row_marks marks; /* whose values are in the mean that it has */
};

enum hth_row_answer {
    HTH_ROW_WAIT, /* still here: send it again */
    HTH_ROW_BEGIN,
};

struct hth_row_reply {
    enum hth_row_answer kind;
    uint64_t has; /* cells of the line that bring a mean; all others are told the line's */
    struct hth_row_marks marks; /* whose values are in them */
};

/* The writers' buffers have HTH_ROW_BYTES_MAX bytes. Each returns the number of bytes. */
size_t hth_row_write(const struct hth_row_msg *row, uint8_t *out);
enum hth_err hth_row_read(const uint8_t *data, size_t len, struct hth_row_msg *out) HTH_MUST;
size_t hth_row_reply_write(const struct hth_row_reply *reply, uint8_t *out);
enum hth_err hth_row_reply_read(const uint8_t *data, size_t len,
                                struct hth_row_reply *out) HTH_MUST;

#endif
