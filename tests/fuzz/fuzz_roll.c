/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_roll.c: any bytes as a message of the roll call; the first byte selects one. A message that
 * is taken is in range and writes the same bytes again.
 */
#include "collab/heads.h"
#include "collab/roll_msg.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t again[HTH_ROLL_BYTES_MAX];
    static struct hth_ready_reply reply;
    struct hth_ready_msg ready;
    struct hth_links_msg links;
    struct hth_roll_ballot ballot;
    struct hth_head_note note;
    struct hth_row_msg row;
    size_t len = 0;
    if (size == 0)
        return 0;
    const uint8_t *bytes = data + 1;
    size_t n = size - 1;
    switch (data[0] % 6) {
    case 0:
        if (hth_ready_read(bytes, n, &ready) != HTH_OK)
            return 0;
        len = hth_ready_write(&ready, again);
        break;
    case 1:
        if (hth_ready_reply_read(bytes, n, &reply) != HTH_OK)
            return 0;
        HTH_ASSERT(reply.count <= HTH_ROLL_MEMBERS_MAX);
        len = hth_ready_reply_write(&reply, again);
        break;
    case 2:
        if (hth_call_read(bytes, n, &ballot) != HTH_OK)
            return 0;
        len = hth_call_write(&ballot, again);
        break;
    case 3:
        if (hth_head_read(bytes, n, &note) != HTH_OK)
            return 0;
        len = hth_head_write(&note, again);
        break;
    case 4:
        if (hth_row_read(bytes, n, &row) != HTH_OK)
            return 0;
        HTH_ASSERT(row.marks.count <= HTH_ROLL_MEMBERS_MAX);
        len = hth_row_write(&row, again);
        break;
    default:
        if (hth_links_read(bytes, n, &links) != HTH_OK)
            return 0;
        len = hth_links_write(&links, again);
    }
    HTH_ASSERT(len == n && memcmp(again, bytes, n) == 0);
    return 0;
}
