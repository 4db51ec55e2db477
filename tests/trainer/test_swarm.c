/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole path in the simulator: announce, look up, gate, dispatch, batch, reply, backward. The
 * network gives the same losses as experts in the trainer's process; a dead host costs its own rows
 * only; the same seed gives the same trace.
 */
#include "admission/witness.h"
#include "core/mem.h"
#include "scenarios/swarm.h"
#include "support/test.h"
#include "trainer/task.h"

#define LOSSES_MAX 512

struct run {
    struct hth_world *world;
    struct hth_swarm *swarm;
    struct task_files files;
    double loss[LOSSES_MAX];
    struct hth_train_stats stats;
    bool done;
    enum hth_err err;
    uint64_t trace;
};

static void on_update(void *arg, const struct hth_train_stats *stats)
{
    struct run *r = arg;

    assert_true(stats->updates >= 1);
    assert_true(isfinite(stats->loss) && isfinite(stats->grad_norm));
    if (stats->updates <= LOSSES_MAX)
        r->loss[stats->updates - 1] = stats->loss;
    r->stats = *stats;
}

static void on_done(void *arg, enum hth_err err)
{
    struct run *r = arg;

    r->done = true;
    r->err = err;
}

static bool is_done(void *arg)
{
    return ((struct run *)arg)->done;
}

static bool half_way(void *arg)
{
    return ((struct run *)arg)->stats.updates >= 30;
}

static struct run *open_run(uint64_t seed, const struct hth_world_opts *world)
{
    struct run *r = hth_new(struct run);

    r->world = hth_world_new(seed, world);
    task_mount(r->world, &r->files, 3);
    return r;
}

static void start(struct run *r, struct hth_swarm_opts *o)
{
    o->trainer.on =
        (struct hth_train_callbacks){.on_update = on_update, .on_done = on_done, .arg = r};
    r->swarm = hth_swarm_new(r->world, o);
}

static void run_on(struct run *r, bool (*until)(void *arg))
{
    bool reached = hth_world_run_until_true(r->world, until, r, 3600 * HTH_US_PER_S);

    assert_ok(hth_swarm_err(r->swarm));
    if (!reached)
        fail_msg("stuck after %llu updates", (unsigned long long)r->stats.updates);
}

static void close_run(struct run *r)
{
    struct hth_open_counts leaks;

    r->trace = hth_world_trace_hash(r->world);
    for (size_t i = 0; i < hth_world_node_count(r->world); i++)
        hth_node_crash(hth_world_node_at(r->world, i), HTH_CRASH_RESET);
    hth_world_run_for(r->world, HTH_US_PER_S);
    hth_world_leaks(r->world, &leaks);
    assert_int_equal(hth_open_total(&leaks), 0);
    hth_world_free(r->world);
    hth_swarm_free(r->swarm);
}

static struct hth_swarm_opts swarm_opts(void)
{
    struct hth_swarm_opts o = HTH_SWARM_OPTS_INIT;

    o.trainer = task_classifier();
    o.trainer.experts_min = 4; /* the whole grid, so that the first choice is among all experts */
    o.expert_optim = o.trainer.local_optim;
    o.server.step_rows = 1;
    return o;
}

static struct hth_world_opts calm(void)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;

    w.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    return w;
}

/* ---- the reference --------------------------------------------------------------------------- */

static void check_net_is_local(struct hth_trainer_opts task)
{
    struct hth_world_opts w = calm();
    struct hth_swarm_opts o = swarm_opts();
    struct run *net = open_run(1, &w), *local = open_run(1, &w);
    struct hth_node *node;
    struct hth_trainer *t;

    task.experts_min = 4;
    task.updates_max = 40;
    o.trainer = task;
    start(net, &o);
    run_on(net, is_done);
    assert_int_equal(net->err, HTH_OK);
    assert_int_equal(net->stats.answers_missing, 0);
    assert_true(net->stats.requests > 0);
    close_run(net);

    node = hth_world_node(local->world, "alone", NULL);
    task.local = true;
    task.on =
        (struct hth_train_callbacks){.on_update = on_update, .on_done = on_done, .arg = local};
    assert_ok(hth_trainer_new(hth_node_env(node), &task, &t));
    hth_trainer_start(t);
    assert_true(hth_world_run_until_true(local->world, is_done, local, 3600 * HTH_US_PER_S));
    hth_trainer_free(t);
    hth_world_free(local->world);
    assert_memory_equal(net->loss, local->loss, 40 * sizeof(double));
    assert_true(net->loss[39] < net->loss[0]);
    hth_free(net);
    hth_free(local);
}

static void network_equals_local_classifier(void **state)
{
    (void)state;
    check_net_is_local(task_classifier());
}

static void network_equals_local_lm(void **state)
{
    (void)state;
    check_net_is_local(task_lm());
}

static void network_equals_local_transformer(void **state)
{
    struct hth_trainer_opts o = task_lm();

    (void)state;
    o.model.expert_kind = "transformer";
    check_net_is_local(o);
}

/* ---- failures -------------------------------------------------------------------------------- */

static struct run *crash_run(uint64_t seed, enum hth_crash how)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_swarm_opts o = swarm_opts();
    struct run *r = open_run(seed, &w);

    o.trainer.flights = 4;
    o.trainer.updates_max = 150;
    o.trainer.experts_min = 1;
    start(r, &o);
    run_on(r, half_way);
    hth_node_crash(hth_swarm_host(r->swarm, 1), how);
    run_on(r, is_done);
    assert_int_equal(r->err, HTH_OK);
    return r;
}

static void dead_host_costs_only_its_rows(void **state)
{
    (void)state;
    for (int how = HTH_CRASH_RESET; how <= HTH_CRASH_SILENT; how++) {
        struct run *r = crash_run(7, (enum hth_crash)how);

        assert_int_equal(r->stats.updates, 150);
        assert_true(r->stats.requests_failed > 0);
        assert_int_equal(r->stats.flights_not_finite, 0);
        assert_int_equal(r->stats.flights_failed, 0);
        assert_true(r->stats.live_experts < 8); /* 2 layers of 4, a third of them gone */
        assert_true(r->stats.loss_ema < 0.5 * r->loss[0]);
        close_run(r);
        hth_free(r);
    }
}

/* Everybody is on probation. */
static enum hth_err admit(void *arg, const struct hth_peer_id *peer, const void *creds, size_t len,
                          struct hth_grant *out)
{
    (void)arg, (void)creds, (void)len;
    *out = (struct hth_grant)HTH_GRANT_IMPLICIT;
    memcpy(out->key.b, peer->b, sizeof(out->key.b));
    out->class = HTH_PROBATION;
    return HTH_OK;
}

static enum hth_err holds(void *arg, const struct hth_grant *grant)
{
    (void)arg, (void)grant;
    return HTH_OK;
}

/* Seconds of its host's work in a trainer's witness, which had an hour before. */
static uint32_t witnessed_s(bool bad)
{
    const struct hth_world_opts world = calm();
    struct hth_admission admission = {
        .creds_len = 1, .admit = admit, .holds = holds, .witness = hth_witness_new()};
    struct hth_swarm_opts o = swarm_opts();
    struct run *r = open_run(7, &world);
    uint8_t seen[HTH_WITNESS_BYTES_MAX] = {'H', 'W', 'I', 'T', 1, 1};
    uint32_t s = 0;

    o.hosts = 1;
    o.admission = &admission;
    o.trainer.updates_max = bad ? 10 : 100;
    if (bad)
        o.expert_optim.schedule.lr = 1e38f; /* after a step its answers are infinite */
    start(r, &o);
    const struct hth_peer_id *host = &hth_node_env(hth_swarm_host(r->swarm, 0))->self;
    memcpy(seen + 6, host->b, sizeof(host->b));
    hth_store_u32le(seen + 6 + 40, 3600);
    assert_ok(hth_witness_read(admission.witness, seen, 6 + 44));
    run_on(r, is_done);
    assert_true((r->stats.parts_bad > 0) == bad);
    (void)hth_witness_write(admission.witness, seen);
    for (size_t at = 6; at < 6 + (size_t)seen[5] * 44; at += 44)
        if (memcmp(seen + at, host->b, sizeof(host->b)) == 0)
            s = hth_load_u32le(seen + at + 40);
    close_run(r);
    hth_witness_free(admission.witness);
    hth_free(r);
    return s;
}

static void trainer_witnesses_its_hosts(void **state)
{
    (void)state;
    assert_true(witnessed_s(false) > 3600);
    assert_int_equal(witnessed_s(true), 0);
}

static void same_seed_gives_the_same_trace(void **state)
{
    struct run *a = crash_run(11, HTH_CRASH_RESET), *b = crash_run(11, HTH_CRASH_RESET);
    struct run *c = crash_run(12, HTH_CRASH_RESET);

    (void)state;
    close_run(a);
    close_run(b);
    close_run(c);
    /* For comparing compilers by hand. */
    print_message("trace %016llx, loss %.17g\n", (unsigned long long)a->trace, a->loss[149]);
    assert_true(a->trace == b->trace);
    assert_true(a->trace != c->trace);
    assert_memory_equal(a->loss, b->loss, sizeof(a->loss));
    hth_free(a);
    hth_free(b);
    hth_free(c);
}

/* A host that returns after most of a minute is used again within seconds, with its checkpoints:
 * the trainer does not wait for the end of the breaker's back-off, which has doubled several times
 * by then. */
static void returned_host_is_used_within_seconds(void **state)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_swarm_opts o = swarm_opts();
    struct run *r = open_run(5, &w);
    struct hth_server_expert before, after;
    struct hth_server_stats stats;

    (void)state;
    o.trainer.flights = 4;
    o.trainer.updates_max = 1000000;
    o.trainer.experts_min = 1;
    o.server.checkpoint_dir = "experts";
    o.server.checkpoint_period_us = HTH_US_PER_S;
    start(r, &o);
    run_on(r, half_way);
    hth_world_run_for(r->world, 10 * HTH_US_PER_S);
    assert_true(hth_server_expert_at(hth_swarm_server(r->swarm, 1), 0, &before));
    hth_node_crash(hth_swarm_host(r->swarm, 1), HTH_CRASH_RESET);
    hth_world_run_for(r->world, 42 * HTH_US_PER_S);
    assert_true(r->stats.live_experts < 8);
    hth_node_restart(hth_swarm_host(r->swarm, 1));
    hth_world_run_for(r->world, 5 * HTH_US_PER_S);
    assert_ok(hth_swarm_err(r->swarm));
    assert_int_equal(r->stats.live_experts, 8);
    hth_server_stats(hth_swarm_server(r->swarm, 1), &stats);
    assert_true(stats.rows_backward > 0);
    /* Ten seconds of steps before, at most five after: only a restored count is higher. */
    assert_true(hth_server_expert_at(hth_swarm_server(r->swarm, 1), 0, &after));
    assert_true(after.steps > before.steps);
    close_run(r);
    hth_free(r);
}

/* A host drops half of its experts while its record still names them. The trainer drops these
 * claims and goes on to ask the host for the others; a claim returns with the next record. */
static void outdated_claims_are_dropped_one_by_one(void **state)
{
    struct hth_world_opts w = calm();
    struct hth_swarm_opts o = swarm_opts();
    struct run *r = open_run(5, &w);
    struct hth_server *host;
    struct hth_train_stats before;
    uint32_t layer = 0;

    (void)state;
    o.hosts = 2;
    o.trainer.flights = 4;
    o.trainer.updates_max = 1000000;
    o.trainer.experts_min = 1;
    o.trainer.model.top_k = 1;
    start(r, &o);
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
    before = r->stats;
    hth_world_run_for(r->world, 5 * HTH_US_PER_S);
    assert_int_equal(r->stats.hosts_dead, 0);
    assert_int_equal(r->stats.live_experts, 5);
    uint64_t lost = r->stats.answers_missing - before.answers_missing;
    assert_true(lost > 0 && lost < (r->stats.rows_mixed - before.rows_mixed) / 20);
    hth_world_run_for(r->world, 20 * HTH_US_PER_S); /* with a renewal, which is as wrong */
    assert_int_equal(r->stats.hosts_dead, 0);
    assert_true(r->stats.live_experts >= 5);
    close_run(r);
    hth_free(r);
}

/* Now and then one flight probes a host that hangs, and may lose its answers; meanwhile the others
 * do not choose the host's experts. Each layer has four experts on four hosts, two of which hang,
 * and each row needs two. */
static void probe_costs_one_flight(void **state)
{
    struct hth_world_opts w = calm();
    struct hth_swarm_opts o = swarm_opts();
    struct run *r = open_run(5, &w);
    struct hth_train_stats before;

    (void)state;
    o.hosts = 4;
    o.trainer.flights = 16;
    o.trainer.updates_max = 1000000;
    o.trainer.experts_min = 1;
    o.trainer.model.top_k = 2;
    start(r, &o);
    run_on(r, half_way);
    hth_node_crash(hth_swarm_host(r->swarm, 2), HTH_CRASH_SILENT);
    hth_node_crash(hth_swarm_host(r->swarm, 3), HTH_CRASH_SILENT);
    hth_world_run_for(r->world, 5 * HTH_US_PER_S);
    before = r->stats;
    hth_world_run_for(r->world, 10 * HTH_US_PER_S);
    assert_ok(hth_swarm_err(r->swarm));
    uint64_t mixed = r->stats.rows_mixed - before.rows_mixed;
    uint64_t few = r->stats.rows_short - before.rows_short;
    assert_true(r->stats.live_experts < 8);
    assert_true(mixed > 0 && few > 0 && few < mixed / 500);
    close_run(r);
    hth_free(r);
}

/* The trainer is killed after a checkpoint and returns while the hosts stay up: its losses are
 * those of a run without the kill, to the bit. */
static void resumed_trainer_gives_the_same_losses(void **state)
{
    struct hth_world_opts w = calm();
    struct hth_swarm_opts o = swarm_opts();
    struct run *whole = open_run(6, &w), *broken = open_run(6, &w);

    (void)state;
    o.trainer.checkpoint_path = "trunk.safetensors";
    o.trainer.checkpoint_every = 20;
    o.trainer.resume = true;
    o.trainer.model.noise_std = 0.05f;
    o.trainer.data.shuffle_rows = 100;
    o.trainer.updates_max = 40;
    start(whole, &o);
    run_on(whole, is_done);
    o.trainer.updates_max = 20;
    start(broken, &o);
    run_on(broken, is_done);
    hth_node_crash(hth_swarm_trainer_node(broken->swarm), HTH_CRASH_RESET);
    hth_world_run_for(broken->world, HTH_US_PER_S);
    hth_swarm_edit(broken->swarm)->trainer.updates_max = 40;
    broken->done = false;
    hth_node_restart(hth_swarm_trainer_node(broken->swarm));
    run_on(broken, is_done);
    assert_int_equal(broken->stats.updates, 40);
    assert_memory_equal(whole->loss, broken->loss, 40 * sizeof(double));
    close_run(whole);
    close_run(broken);
    hth_free(whole);
    hth_free(broken);
}

/* With two replicas of each expert a crash has no lasting cost. */
static void crash_with_replicas_has_no_lasting_cost(void **state)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_swarm_opts o = swarm_opts();
    struct run *r = open_run(9, &w);

    (void)state;
    o.copies = 2;
    o.trainer.flights = 2;
    o.trainer.updates_max = 100;
    start(r, &o);
    run_on(r, half_way);
    hth_node_crash(hth_swarm_host(r->swarm, 0), HTH_CRASH_RESET);
    run_on(r, is_done);
    assert_int_equal(r->stats.live_experts, 8);
    assert_int_equal(r->stats.rows_without_expert, 0);
    close_run(r);
    hth_free(r);
}

/* Rows in half or a quarter of the bytes: the losses stay close to those of fp32, and the traffic
 * shrinks. */
static void narrow_rows_save_bytes_and_keep_losses(void **state)
{
    static const struct {
        enum hth_dtype wire;
        double bytes; /* of those of fp32 */
    } cases[] = {{HTH_BF16, 0.6}, {HTH_I8, 0.35}};
    struct hth_world_opts w = calm();
    struct hth_swarm_opts o = swarm_opts();
    struct run *full = open_run(4, &w);

    (void)state;
    start(full, &o);
    run_on(full, is_done);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct run *r = open_run(4, &w);
        o.trainer.wire = cases[i].wire;
        start(r, &o);
        run_on(r, is_done);
        assert_true((double)r->stats.bytes_out < (double)full->stats.bytes_out * cases[i].bytes);
        assert_close(r->loss[0], full->loss[0], 1e-2, 0);
        assert_close(r->stats.loss_ema, full->stats.loss_ema, 5e-2, 0);
        close_run(r);
        hth_free(r);
    }
    close_run(full);
    hth_free(full);
}

/* Without hosts the trainer waits, says so, and continues when a host appears. */
static void trainer_waits_for_experts(void **state)
{
    struct hth_world_opts w = calm();
    struct hth_swarm_opts o = swarm_opts();
    struct run *r = open_run(2, &w);
    struct hth_train_stats stats;

    (void)state;
    o.trainer.updates_max = 10;
    start(r, &o);
    for (uint32_t i = 0; i < 3; i++)
        hth_node_crash(hth_swarm_host(r->swarm, i), HTH_CRASH_RESET);
    hth_world_run_for(r->world, 10 * HTH_US_PER_S);
    hth_trainer_stats(hth_swarm_trainer(r->swarm), &stats);
    assert_true(stats.waiting);
    assert_int_equal(stats.updates, 0);
    for (uint32_t i = 0; i < 3; i++)
        hth_node_restart(hth_swarm_host(r->swarm, i));
    run_on(r, is_done);
    assert_int_equal(r->stats.updates, 10);
    assert_true(r->stats.waiting_us > 5 * HTH_US_PER_S);
    close_run(r);
    hth_free(r);
}

/* The trainer itself dies at any moment and leaves nothing behind. */
static void crashed_trainer_leaves_nothing_behind(void **state)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;

    (void)state;
    for (uint64_t i = 0; i < 12; i++) {
        struct hth_swarm_opts o = swarm_opts();
        struct run *r = open_run(100 + i, &w);

        o.trainer.flights = 3;
        start(r, &o);
        hth_world_run_for(r->world, 2 * HTH_US_PER_S + (int64_t)i * 17777);
        hth_node_crash(hth_swarm_trainer_node(r->swarm), HTH_CRASH_RESET);
        hth_world_run_for(r->world, HTH_US_PER_S);
        close_run(r);
        hth_free(r);
    }
}

/* Ghosts are payloads without bytes, and jobs do not run. The traffic is alike. */
static void ghosts_have_the_same_traffic(void **state)
{
    struct hth_world_opts w = calm();
    struct hth_swarm_opts o = swarm_opts();
    struct run *r;

    (void)state;
    w.ghost = true;
    r = open_run(3, &w);
    o.trainer.flights = 4;
    start(r, &o);
    run_on(r, is_done);
    assert_int_equal(r->err, HTH_OK);
    assert_int_equal(r->stats.updates, 60);
    assert_true(r->stats.bytes_out > 60 * 2 * 2 * 32 * 16 * 4);
    assert_int_equal(r->stats.answers_missing, 0);
    close_run(r);
    hth_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(network_equals_local_classifier),
        cmocka_unit_test(network_equals_local_lm),
        cmocka_unit_test(network_equals_local_transformer),
        cmocka_unit_test(dead_host_costs_only_its_rows),
        cmocka_unit_test(trainer_witnesses_its_hosts),
        cmocka_unit_test(same_seed_gives_the_same_trace),
        cmocka_unit_test(returned_host_is_used_within_seconds),
        cmocka_unit_test(outdated_claims_are_dropped_one_by_one),
        cmocka_unit_test(probe_costs_one_flight),
        cmocka_unit_test(resumed_trainer_gives_the_same_losses),
        cmocka_unit_test(crash_with_replicas_has_no_lasting_cost),
        cmocka_unit_test(narrow_rows_save_bytes_and_keep_losses),
        cmocka_unit_test(trainer_waits_for_experts),
        cmocka_unit_test(crashed_trainer_leaves_nothing_behind),
        cmocka_unit_test(ghosts_have_the_same_traffic),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
