/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole path in the simulator: announce, look up, gate, dispatch, batch, reply, backward. The
 * network gives the same losses as experts in the trainer's process; a dead host costs its own rows
 * only.
 */
#include "admission/witness.h"
#include "core/mem.h"
#include "scenarios/swarm.h"
#include "support/end_world.h"
#include "support/suite.h"
#include "trainer/task.h"

#define S HTH_US_PER_S

struct run {
    struct hth_swarm *swarm;
    struct task task;
};

enum weather { CALM, ROUGH, GHOSTS }; /* 100 ms from each other */

static bool is_done(void *arg)
{
    return ((struct run *)arg)->task.done;
}

static bool half_way(void *arg)
{
    return ((struct run *)arg)->task.stats.updates >= 30;
}

static void run_on(struct run *r, bool (*until)(void *arg))
{
    bool reached = hth_world_run_until_true(r->task.world, until, r, 3600 * S);

    assert_ok(hth_swarm_err(r->swarm));
    if (!reached)
        fail_msg("stuck after %llu updates", (unsigned long long)r->task.stats.updates);
}

/* The whole grid must be there first, so that the first choice is among all experts. */
static struct hth_swarm_opts swarm_opts(void)
{
    struct hth_swarm_opts o = HTH_SWARM_OPTS_INIT;

    o.trainer = task_classifier();
    o.trainer.experts_min = 4;
    o.expert_optim = o.trainer.local_optim;
    o.server.step_rows = 1;
    return o;
}

/* A trainer that goes on with what there is, without an end. */
static struct hth_swarm_opts endless(uint32_t flights)
{
    struct hth_swarm_opts o = swarm_opts();

    o.trainer.flights = flights;
    o.trainer.updates_max = 1000000;
    o.trainer.experts_min = 1;
    return o;
}

static struct run *start(uint64_t seed, enum weather weather, struct hth_swarm_opts *o)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct run *r = hth_new(struct run);

    if (weather != ROUGH)
        w.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    w.ghost = weather == GHOSTS;
    if (w.ghost)
        w.link = (struct hth_link){.latency_us = 100 * HTH_US_PER_MS};
    r->task.world = hth_world_new(seed, &w);
    task_mount(r->task.world, &r->task.files, 3);
    o->trainer.on = task_callbacks(&r->task);
    r->swarm = hth_swarm_new(r->task.world, o);
    return r;
}

static struct run *run_to_the_end(uint64_t seed, enum weather weather, struct hth_swarm_opts *o)
{
    struct run *r = start(seed, weather, o);

    run_on(r, is_done);
    assert_ok(r->task.err);
    return r;
}

static void end(struct run *r)
{
    end_world(r->task.world);
    hth_swarm_free(r->swarm);
    hth_free(r);
}

/* ---- the reference --------------------------------------------------------------------------- */

static void check_net_is_local(struct task *local, struct hth_trainer_opts task)
{
    struct hth_swarm_opts o = swarm_opts();
    struct run *net;

    task.experts_min = 4;
    task.updates_max = 40;
    o.trainer = task;
    net = run_to_the_end(1, CALM, &o);
    assert_int_equal(net->task.stats.answers_missing, 0);
    assert_true(net->task.stats.requests > 0);
    task_run(local, task);
    assert_memory_equal(net->task.loss, local->loss, 40 * sizeof(double));
    assert_true(net->task.loss[39] < net->task.loss[0]);
    end(net);
}

TASK_TEST(network_equals_local)
{
    struct hth_trainer_opts o = task_lm();

    check_net_is_local(*state, task_classifier());
    o.model.expert_kind = "transformer";
    check_net_is_local(*state, o);
}

/* ---- failures -------------------------------------------------------------------------------- */

TEST(dead_host_costs_only_its_rows)
{
    for (int how = HTH_CRASH_RESET; how <= HTH_CRASH_SILENT; how++) {
        struct hth_swarm_opts o = endless(4);

        o.trainer.updates_max = 150;
        struct run *r = start(7, ROUGH, &o);
        run_on(r, half_way);
        hth_node_crash(hth_swarm_host(r->swarm, 1), (enum hth_crash)how);
        run_on(r, is_done);
        assert_ok(r->task.err);
        assert_int_equal(r->task.stats.updates, 150);
        assert_true(r->task.stats.requests_failed > 0);
        assert_int_equal(r->task.stats.flights_not_finite, 0);
        assert_int_equal(r->task.stats.flights_failed, 0);
        assert_true(r->task.stats.live_experts < 8); /* 2 layers of 4, a third of them gone */
        assert_true(r->task.stats.loss_ema < 0.5 * r->task.loss[0]);
        end(r);
    }
}

/* Everybody is on probation. */
static enum hth_err admit(void *arg, const struct hth_peer_id *peer, const void *creds, size_t len,
                          struct hth_grant *out)
{
    *out = (struct hth_grant)HTH_GRANT_IMPLICIT;
    memcpy(out->key.b, peer->b, sizeof(out->key.b));
    out->class = HTH_PROBATION;
    return HTH_OK;
}

static enum hth_err holds(void *arg, const struct hth_grant *grant)
{
    return HTH_OK;
}

/* Seconds of its host's work in a trainer's witness, which had an hour before. */
static uint32_t witnessed_s(bool bad)
{
    struct hth_admission admission = {
        .creds_len = 1, .admit = admit, .holds = holds, .witness = hth_witness_new()};
    struct hth_swarm_opts o = swarm_opts();
    uint8_t seen[HTH_WITNESS_BYTES_MAX] = {'H', 'W', 'I', 'T', 1, 1};
    uint32_t s = 0;

    o.hosts = 1;
    o.admission = &admission;
    o.trainer.updates_max = bad ? 10 : 100;
    if (bad)
        o.expert_optim.schedule.lr = 1e38f; /* after a step its answers are infinite */
    struct run *r = start(7, CALM, &o);
    const struct hth_peer_id *host = &hth_node_env(hth_swarm_host(r->swarm, 0))->self;
    memcpy(seen + 6, host->b, sizeof(host->b));
    hth_store_u32le(seen + 6 + 40, 3600);
    assert_ok(hth_witness_read(admission.witness, seen, 6 + 44));
    run_on(r, is_done);
    assert_true((r->task.stats.parts_bad > 0) == bad);
    (void)hth_witness_write(admission.witness, seen);
    for (size_t at = 6; at < 6 + (size_t)seen[5] * 44; at += 44)
        if (memcmp(seen + at, host->b, sizeof(host->b)) == 0)
            s = hth_load_u32le(seen + at + 40);
    end(r);
    hth_witness_free(admission.witness);
    return s;
}

TEST(trainer_witnesses_its_hosts)
{
    assert_true(witnessed_s(false) > 3600);
    assert_int_equal(witnessed_s(true), 0);
}

/* A host that returns after most of a minute is used again within seconds, with its checkpoints:
 * the trainer does not wait for the end of the breaker's back-off, which has doubled several times
 * by then. */
TEST(returned_host_is_used_within_seconds)
{
    struct hth_swarm_opts o = endless(4);
    struct hth_server_expert before, after;
    struct hth_server_stats stats;

    o.server.checkpoint_dir = "experts";
    o.server.checkpoint_period_us = S;
    struct run *r = start(5, ROUGH, &o);
    run_on(r, half_way);
    hth_world_run_for(r->task.world, 10 * S);
    assert_true(hth_server_expert_at(hth_swarm_server(r->swarm, 1), 0, &before));
    hth_node_crash(hth_swarm_host(r->swarm, 1), HTH_CRASH_RESET);
    hth_world_run_for(r->task.world, 42 * S);
    assert_true(r->task.stats.live_experts < 8);
    hth_node_restart(hth_swarm_host(r->swarm, 1));
    hth_world_run_for(r->task.world, 5 * S);
    assert_ok(hth_swarm_err(r->swarm));
    assert_int_equal(r->task.stats.live_experts, 8);
    hth_server_stats(hth_swarm_server(r->swarm, 1), &stats);
    assert_true(stats.rows_backward > 0);
    /* Ten seconds of steps before, at most five after: only a restored count is higher. */
    assert_true(hth_server_expert_at(hth_swarm_server(r->swarm, 1), 0, &after));
    assert_true(after.steps > before.steps);
    end(r);
}

/* A host drops half of its experts while its record still names them. The trainer drops these
 * claims and goes on to ask the host for the others; a claim returns with the next record. */
TEST(outdated_claims_are_dropped_one_by_one)
{
    struct hth_swarm_opts o = endless(4);
    struct hth_server *host;
    struct hth_train_stats before;
    uint32_t layer = 0;

    o.hosts = 2;
    o.trainer.model.top_k = 1;
    struct run *r = start(5, CALM, &o);
    run_on(r, half_way);
    host = hth_swarm_server(r->swarm, 1);
    for (; layer < 2; layer++) { /* indices 1 and 3 of each layer; all but one of them */
        struct hth_uid uid = {.ncoord = 2, .coord = {0, 1}};
        snprintf(uid.name, sizeof(uid.name), "ffn%u", layer);
        assert_ok(hth_server_remove(host, &uid));
        uid.coord[0] = 1;
        if (layer == 1)
            assert_ok(hth_server_remove(host, &uid));
    }
    before = r->task.stats;
    hth_world_run_for(r->task.world, 5 * S);
    assert_int_equal(r->task.stats.hosts_dead, 0);
    assert_int_equal(r->task.stats.live_experts, 5);
    uint64_t lost = r->task.stats.answers_missing - before.answers_missing;
    assert_true(lost > 0 && lost < (r->task.stats.rows_mixed - before.rows_mixed) / 20);
    hth_world_run_for(r->task.world, 20 * S); /* with a renewal, which is as wrong */
    assert_int_equal(r->task.stats.hosts_dead, 0);
    assert_true(r->task.stats.live_experts >= 5);
    end(r);
}

/* Now and then one flight probes a host that hangs, and may lose its answers; meanwhile the others
 * do not choose the host's experts. Each layer has four experts on four hosts, two of which hang,
 * and each row needs two. */
TEST(probe_costs_one_flight)
{
    struct hth_swarm_opts o = endless(16);
    struct hth_train_stats before;

    o.hosts = 4;
    o.trainer.model.top_k = 2;
    struct run *r = start(5, CALM, &o);
    run_on(r, half_way);
    hth_node_crash(hth_swarm_host(r->swarm, 2), HTH_CRASH_SILENT);
    hth_node_crash(hth_swarm_host(r->swarm, 3), HTH_CRASH_SILENT);
    hth_world_run_for(r->task.world, 5 * S);
    before = r->task.stats;
    hth_world_run_for(r->task.world, 10 * S);
    assert_ok(hth_swarm_err(r->swarm));
    uint64_t mixed = r->task.stats.rows_mixed - before.rows_mixed;
    uint64_t few = r->task.stats.rows_short - before.rows_short;
    assert_true(r->task.stats.live_experts < 8);
    assert_true(mixed > 0 && few > 0 && few < mixed / 500);
    end(r);
}

/* With two replicas of each expert a crash has no lasting cost. */
TEST(crash_with_replicas_has_no_lasting_cost)
{
    struct hth_swarm_opts o = swarm_opts();

    o.copies = 2;
    o.trainer.flights = 2;
    o.trainer.updates_max = 100;
    struct run *r = start(9, ROUGH, &o);
    run_on(r, half_way);
    hth_node_crash(hth_swarm_host(r->swarm, 0), HTH_CRASH_RESET);
    run_on(r, is_done);
    assert_int_equal(r->task.stats.live_experts, 8);
    assert_int_equal(r->task.stats.rows_without_expert, 0);
    end(r);
}

/* Rows in half or a quarter of the bytes: the losses stay close to those of fp32, and the traffic
 * shrinks. */
TEST(narrow_rows_save_bytes_and_keep_losses)
{
    static const struct {
        enum hth_dtype wire;
        double bytes; /* of those of fp32 */
    } cases[] = {{HTH_BF16, 0.6}, {HTH_I8, 0.35}};
    struct hth_swarm_opts o = swarm_opts();
    struct run *full = run_to_the_end(4, CALM, &o);

    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        o.trainer.wire = cases[i].wire;
        struct run *r = run_to_the_end(4, CALM, &o);
        assert_true((double)r->task.stats.bytes_out <
                    (double)full->task.stats.bytes_out * cases[i].bytes);
        assert_close(r->task.loss[0], full->task.loss[0], 1e-2, 0);
        assert_close(r->task.stats.loss_ema, full->task.stats.loss_ema, 5e-2, 0);
        end(r);
    }
    end(full);
}

/* Without hosts the trainer waits, says so, and continues when a host appears. */
TEST(trainer_waits_for_experts)
{
    struct hth_swarm_opts o = swarm_opts();
    struct hth_train_stats stats;

    o.trainer.updates_max = 10;
    struct run *r = start(2, CALM, &o);
    for (uint32_t i = 0; i < 3; i++)
        hth_node_crash(hth_swarm_host(r->swarm, i), HTH_CRASH_RESET);
    hth_world_run_for(r->task.world, 10 * S);
    hth_trainer_stats(hth_swarm_trainer(r->swarm), &stats);
    assert_true(stats.waiting);
    assert_int_equal(stats.updates, 0);
    for (uint32_t i = 0; i < 3; i++)
        hth_node_restart(hth_swarm_host(r->swarm, i));
    run_on(r, is_done);
    assert_int_equal(r->task.stats.updates, 10);
    assert_true(r->task.stats.waiting_us > 5 * S);
    end(r);
}

/* Eight flights, no jitter, no failures. A deadline no longer than the usual call would miss each
 * call that met another on its way, and repeat it. */
TEST(regular_delays_lose_no_answers)
{
    struct hth_swarm_opts o = endless(8);

    o.hosts = 4;
    struct run *r = start(1, GHOSTS, &o);
    hth_world_run_for(r->task.world, 20 * S);
    assert_ok(hth_swarm_err(r->swarm));
    assert_true(r->task.stats.updates > 100);
    assert_int_equal(r->task.stats.requests_failed, 0);
    assert_int_equal(r->task.stats.answers_missing, 0);
    end(r);
}
