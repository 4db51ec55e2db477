/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_match.c: any bytes as a JOIN or its answer; the first byte selects one.
 * Accepted messages are in range and survive packing and opening again.
 */
#include <math.h>
#include <string.h>

#include "averaging/match.h"

static void check_member(const struct hth_avg_member *m)
{
    HTH_ASSERT(m->mode <= HTH_AVG_CLIENT);
    HTH_ASSERT(m->weight >= 0 && m->weight <= HTH_AVG_WEIGHT_MAX);
    HTH_ASSERT(m->bandwidth >= 0 && isfinite(m->bandwidth));
    HTH_ASSERT(m->addr.family != 0 || !hth_avg_mode_reduces(m->mode));
}

static void try_join(const uint8_t *data, size_t size)
{
    struct hth_join_msg join, again;
    uint8_t bytes[HTH_JOIN_BYTES_MAX];

    if (hth_join_read(data, size, &join) != HTH_OK)
        return;
    check_member(&join.self);
    HTH_ASSERT(hth_avg_shape_check(&join.line.shape) == HTH_OK);
    HTH_ASSERT(hth_join_read(bytes, hth_join_write(&join, bytes), &again) == HTH_OK);
    HTH_ASSERT(hth_avg_line_eq(&join.line, &again.line) && join.schema == again.schema);
}

static void try_reply(const uint8_t *data, size_t size)
{
    static struct hth_join_reply reply;
    uint8_t bytes[HTH_JOIN_REPLY_BYTES_MAX];

    if (hth_join_reply_read(data, size, &reply) != HTH_OK)
        return;
    HTH_ASSERT(reply.count <= HTH_AVG_MEMBERS_MAX && reply.reason < HTH_AVG_REASONS_MAX);
    for (uint32_t i = 0; i < reply.count; i++)
        check_member(&reply.member[i]);
    HTH_ASSERT(hth_join_reply_write(&reply, bytes) == size && memcmp(bytes, data, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > HTH_FRAME_META_BYTES_MAX)
        return 0;
    if (data[0] % 2 == 0)
        try_join(data + 1, size - 1);
    else
        try_reply(data + 1, size - 1);
    return 0;
}
