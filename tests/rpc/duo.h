/* SPDX-License-Identifier: Apache-2.0 */
/*
 * duo.h: two endpoints in a world of their own and the verdicts of their calls, as static variables
 * of the test that includes this.
 */
#ifndef HTH_TESTS_RPC_DUO_H
#define HTH_TESTS_RPC_DUO_H

#include "support/test.h"

#include "rpc/swarm.h"

static struct hth_world *w;
static struct swarm_member a, b;
static struct swarm_verdict v[64];

static void start(struct hth_rpc_opts opts_a, struct hth_rpc_opts opts_b)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    w = hth_world_new(7, &opts);
    member_start(&a, w, "a", opts_a);
    member_start(&b, w, "b", opts_b);
    memset(v, 0, sizeof(v));
}

static void start_default(void)
{
    start(member_opts(), member_opts());
}

/* Frees both endpoints; every object of the env, request and call must be freed. */
static void stop(void)
{
    struct hth_open_counts counts;
    for (size_t i = 0; i < HTH_ARRAY_LEN(v); i++)
        verdict_clear(&v[i]);
    if (a.rpc != NULL)
        member_stop(&a);
    if (b.rpc != NULL)
        member_stop(&b);
    for (uint32_t i = 0; i < a.held_count; i++)
        hth_rpc_reply(a.held[i], NULL);
    for (uint32_t i = 0; i < b.held_count; i++)
        hth_rpc_reply(b.held[i], NULL);
    hth_world_open(w, &counts);
    assert_int_equal(hth_open_total(&counts), 0);
    hth_world_free(w);
}

#endif
