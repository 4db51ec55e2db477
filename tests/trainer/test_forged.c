/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer says in the DHT that it holds a head far ahead, and has none: what that does to a run, to
 * a newcomer, and to a trainer that is alone.
 */
#include "collab/heads.h"
#include "collab/roll_msg.h"
#include "rpc/rpc.h"
#include "support/suite.h"
#include "trainer/crew.h"
#include "trainer/trainer_int.h"

enum lie {
    NOBODY_THERE, /* at its address */
    NO_ANSWER,    /* to a question for its links */
    NO_LINKS,     /* it refuses */
    NO_SENSE,     /* in its answer */
    LOOKS,        /* for others, with more samples than anybody has */
    LIES
};

static struct liar {
    enum lie lie;
    struct hth_rpc *rpc;
    struct hth_heads *heads;
} liar;

static void on_head(void *arg, const struct hth_head_note *note, const struct hth_peer_id *by)
{
}

static void on_links(void *arg, struct hth_rpc_request *req)
{
    static const uint8_t bytes[100] = {1, 2, 3};
    const struct hth_rpc_body body = {.payload = bytes, .payload_len = sizeof(bytes)};

    if (liar.lie == NO_ANSWER)
        hth_rpc_ignore(req);
    else if (liar.lie == NO_SENSE)
        hth_rpc_reply(req, &body);
    else
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, "LINKS");
}

static void halt_liar(struct hth_env *env, void *arg)
{
    hth_heads_free(liar.heads);
    hth_rpc_free(liar.rpc);
    memset(&liar, 0, sizeof(liar));
}

static void liar_comes(struct crew_scene *s, enum lie lie)
{
    struct hth_node_opts o = HTH_NODE_OPTS_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_head_note note = {.head = {{77}}, .step = 1u << 30, .samples = UINT64_MAX / 4};
    struct hth_node *node;

    o.halt = halt_liar;
    node = hth_world_node(s->world, "liar", &o);
    note.addr = hth_node_addr(node, 4000);
    if (lie == LOOKS)
        memset(&note.head, 0, sizeof(note.head));
    liar.lie = lie;
    rpc.network = "crew";
    rpc.listen = &note.addr;
    if (lie != NOBODY_THERE) {
        assert_ok(hth_rpc_new(hth_node_env(node), &rpc, &liar.rpc));
        hth_rpc_serve(liar.rpc, HTH_ROLL_METHOD_LINKS, on_links, NULL);
    }
    assert_ok(hth_heads_new(
        hth_node_env(node), hth_node_dht(node), "crew",
        hth_settings_schema(&hth_crew_trainer(s->crew, 0)->settings, HTH_TICKET_GRADIENT), on_head,
        NULL, &liar.heads));
    hth_heads_say(liar.heads, &note);
}

static struct crew_scene *start(uint64_t seed, uint32_t members)
{
    struct hth_crew_opts o = crew_batch_opts(members, 60);
    struct crew_scene *s = crew_scene_new(seed, &o);

    crew_scene_run(s, 0, 10, 300 * S);
    return s;
}

static uint64_t steps_in_10_s(struct crew_scene *s)
{
    uint64_t before = crew_stats(s, 0).updates;

    hth_world_run_for(s->world, 10 * S);
    return crew_stats(s, 0).updates - before;
}

/* Nor, where all that trained are gone, one that begins: a peer that answers, and has no chain to
 * show, is no run. */
TEST(forged_head_delays_neither_a_run_nor_a_newcomer)
{
    for (enum lie lie = 0; lie < LIES; lie++)
        for (uint32_t members = 1; members <= 3; members++) {
            struct crew_scene *s = start(13, members);
            uint64_t before = steps_in_10_s(s), after;
            uint32_t late;

            liar_comes(s, lie);
            after = steps_in_10_s(s);
            assert_true(10 * after >= 9 * before);
            late = hth_crew_join(s->crew);
            crew_scene_run(s, late, 1, 8 * S);
            assert_true(crew_stats(s, late).updates > 10);
            crew_same(s, S);
            if (lie >= NO_LINKS && members == 1) {
                crew_crash(s, 0, HTH_CRASH_RESET);
                crew_crash(s, late, HTH_CRASH_RESET);
                hth_world_run_for(s->world, 30 * S);
                late = hth_crew_join(s->crew);
                hth_world_run_for(s->world, 60 * S);
                assert_true(crew_stats(s, late).updates > 10);
            }
            crew_scene_free(s);
        }
}
