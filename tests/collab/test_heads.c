/* SPDX-License-Identifier: Apache-2.0 */
/* Records of heads reach others, are renewed, and end. */
#include "collab/heads.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

#include <string.h>

static struct hth_head_note note_of(uint64_t step)
{
    struct hth_head_note note = {.step = step, .samples = 64 * step};
    note.addr = (struct hth_addr){.family = 4, .port = 4000};
    memcpy(note.addr.ip, (uint8_t[]){10, 0, 0, 1}, 4);
    memset(&note.head, (int)step, sizeof(note.head));
    return note;
}

struct reader {
    struct hth_heads *heads;
    struct hth_head_note last;
    uint32_t times;
};

static void on_head(void *arg, const struct hth_head_note *note, const struct hth_peer_id *by)
{
    struct reader *r = arg;
    r->last = *note;
    r->times++;
}

static uint64_t schema_of; /* of the next reader */

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct reader *r = arg;
    assert_ok(hth_heads_new(env, dht, "run", schema_of, on_head, r, &r->heads));
}

static void halt(struct hth_env *env, void *arg)
{
    struct reader *r = arg;
    hth_heads_free(r->heads);
    r->heads = NULL;
}

TEST(records_come_and_end)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct reader r[3] = {{.times = 0}};
    struct hth_node *node[3];
    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    struct hth_world *world = hth_world_new(1, &opts);
    for (uint32_t i = 0; i < 3; i++) {
        struct hth_node_opts o = HTH_NODE_OPTS_INIT;
        o.boot = boot;
        o.halt = halt;
        o.arg = &r[i];
        schema_of = i == 2; /* the third has other settings */
        node[i] = hth_world_node(world, (const char *[]){"a", "b", "c"}[i], &o);
        hth_world_run_for(world, HTH_US_PER_S);
    }
    struct hth_head_note note = note_of(3);
    hth_heads_say(r[0].heads, &note);
    hth_world_run_for(world, 2 * HTH_US_PER_S);
    assert_int_equal(r[1].last.step, 3);
    assert_int_equal(hth_heads_others(r[1].heads, false), 1);
    assert_int_equal(hth_heads_others(r[0].heads, false), 0); /* its own is no other's */
    struct hth_roll_peer next;
    assert_true(hth_heads_next(r[1].heads, &next) && next.addr.port == 4000);
    assert_true(hth_peer_id_eq(&next.id, &hth_node_env(node[0])->self));
    assert_false(hth_heads_next(r[0].heads, &next));
    hth_heads_doubt(r[1].heads, &next.id, 0); /* for a while */
    assert_int_equal(hth_heads_others(r[1].heads, false), 0);
    for (uint64_t step = 4; step < 100; step++) {
        note = note_of(step);
        hth_heads_say(r[0].heads, &note);
        hth_world_run_for(world, HTH_US_PER_S / 4);
    }
    assert_in_range(r[1].last.step, 80, 99);
    assert_in_range(r[1].times, 6, 14); /* not each step */
    hth_heads_say(r[0].heads, NULL);
    hth_world_run_for(world, 3 * HTH_US_PER_S);
    assert_int_equal(hth_heads_others(r[1].heads, false), 0);
    hth_heads_say(r[0].heads, &note);
    hth_world_run_for(world, 3 * HTH_US_PER_S);
    assert_int_equal(hth_heads_others(r[1].heads, false), 1);
    hth_node_crash(node[0], HTH_CRASH_SILENT);
    hth_world_run_for(world, HTH_HEAD_LIFE_US + 5 * HTH_US_PER_S);
    assert_int_equal(hth_heads_others(r[1].heads, false), 0);
    assert_int_equal(r[2].times, 0);
    hth_world_free(world);
}
