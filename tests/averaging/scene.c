/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/scene.h"

#include "support/test.h"

const char *const scene_how[] = {"killed", "powered off", "cut off"};
const char *const scene_role[] = {"member", "leader", "reducer"};
const char *const scene_phase[] = {"declared", "joined", "begun", "reducing", "returning"};

struct scene {
    struct pit *pit;
    enum role role;
    enum phase phase;
    struct peer *victim;
    /* what each had done before */
    struct hth_match_stats match[SCENE_PEERS_MAX];
    struct hth_reducer_stats reducer[SCENE_PEERS_MAX];
};

static void remember(struct scene *s, const struct peer *p)
{
    hth_moshpit_match_stats(&p->averager, &s->match[p->index]);
    hth_reducer_stats(p->reducer, &s->reducer[p->index]);
}

static bool in_phase(const struct scene *s, const struct peer *p)
{
    struct hth_match_stats m;
    struct hth_reducer_stats r;

    hth_moshpit_match_stats(&p->averager, &m);
    hth_reducer_stats(p->reducer, &r);
    switch (s->phase) {
    case DECLARED:
        return m.looks_now > 0;
    case JOINED:
        return m.followers_now > 0 || m.joins_out > s->match[p->index].joins_out;
    case BEGUN:
        return r.rounds_now > 0;
    case REDUCING:
        return r.rounds_now > 0 && r.bytes_in > s->reducer[p->index].bytes_in;
    default: /* a helper is done with its last answer, which may still be on its way */
        return (r.rounds_now > 0 || p->mode == HTH_AVG_HELPER) &&
               r.parts_reduced > s->reducer[p->index].parts_reduced;
    }
}

static bool in_role(const struct scene *s, const struct peer *p)
{
    struct hth_match_stats m;

    if (s->role == REDUCER)
        return p->mode == HTH_AVG_HELPER;
    hth_moshpit_match_stats(&p->averager, &m);
    return (s->role == LEADER) == (m.followers_now > 0 || m.led > s->match[p->index].led);
}

static bool scene_is_set(void *arg)
{
    struct scene *s = arg;

    for (uint32_t i = 0; i < s->pit->peers && s->victim == NULL; i++) {
        struct peer *p = &s->pit->peer[(i + 3) % s->pit->peers];
        /* nobody leads yet when all have only declared */
        if (in_phase(s, p) && ((s->phase == DECLARED && s->role != REDUCER) || in_role(s, p)))
            s->victim = p;
    }
    return s->victim != NULL;
}

static void die(struct peer *p, enum how how)
{
    if (how == CUT_OFF) {
        hth_node_set_side(p->node, 1);
        p->up = false; /* as far as the others are concerned */
    } else {
        hth_node_crash(p->node, how == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
    }
}

void scene_one_dies(const char *shape, uint32_t peers, uint64_t seed, enum role role,
                    enum phase phase, enum how how, int64_t worst[3])
{
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct pit p;
    struct scene s = {.pit = &p, .role = role, .phase = phase};
    int64_t at;

    pit_init(&p, seed + (uint64_t)(role * 100 + phase * 10 + how), peers, 50000, &world);
    assert_ok(hth_avg_shape_parse(shape, &p.shape));
    p.has_cells = true;
    if (role == REDUCER) {
        p.peer[peers - 1].mode = HTH_AVG_HELPER;
        p.peer[peers - 1].weight = 0;
    }
    pit_fill(&p, 6);
    pit_start(&p, 3 * HTH_US_PER_S);
    pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES); /* a calm one: all are connected */
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    pit_fill(&p, 7);
    hth_world_run_for(p.world, HTH_US_PER_S);
    for (uint32_t i = 0; i < p.peers; i++)
        remember(&s, &p.peer[i]);
    pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
    if (!hth_world_run_until_true(p.world, scene_is_set, &s, 2 * HTH_US_PER_S))
        fail_msg("%s %s was never seen", scene_role[role], scene_phase[phase]);
    at = hth_world_now_us(p.world);
    die(s.victim, how);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    worst[0] = worst[1] = 0;
    for (uint32_t i = 0; i < p.peers; i++)
        if (p.peer[i].up) {
            worst[0] = HTH_MAX(worst[0], p.peer[i].ended_us - at);
            assert_int_equal(p.peer[i].result.err, HTH_OK);
        }
    at = hth_world_now_us(p.world);
    pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    for (uint32_t i = 0; i < p.peers; i++)
        if (p.peer[i].up) {
            worst[1] = HTH_MAX(worst[1], p.peer[i].ended_us - at);
            assert_int_equal(p.peer[i].result.err, HTH_OK);
        }
    if (pit_spread(&p) >= 1e-4)
        fail_msg("%s %s in phase %s, seed %llu: spread %g", scene_how[how], scene_role[role],
                 scene_phase[phase], (unsigned long long)seed, pit_spread(&p));
    worst[2] = (int64_t)hth_world_trace_hash(p.world);
    pit_stop(&p);
}
