/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/scene.h"

#include "averaging/newcomer.h"
#include "support/test.h"

static const char *const scene_how[] = {"killed", "powered off", "cut off"};
static const char *const scene_role[] = {"member", "leader", "reducer", "donor", "only donor"};
static const char *const scene_phase[] = {"declared", "joined", "begun", "reducing", "returning"};

struct scene {
    struct pit *pit;
    struct newcomer newcomer; /* of a donor */
    enum role role;
    enum phase phase;
    struct pit_peer *victim;
    /* what each had done before */
    struct hth_match_stats match[SCENE_PEERS_MAX];
    struct hth_reducer_stats reducer[SCENE_PEERS_MAX];
};

static void remember(struct scene *s, const struct pit_peer *p)
{
    hth_moshpit_match_stats(&p->avg.averager, &s->match[p->index]);
    hth_reducer_stats(p->avg.reducer, &s->reducer[p->index]);
}

static bool in_phase(const struct scene *s, const struct pit_peer *p)
{
    struct hth_match_stats m;
    struct hth_reducer_stats r;

    hth_moshpit_match_stats(&p->avg.averager, &m);
    hth_reducer_stats(p->avg.reducer, &r);
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

static bool in_role(const struct scene *s, const struct pit_peer *p)
{
    struct hth_match_stats m;

    if (s->role == REDUCER)
        return p->mode == HTH_AVG_HELPER;
    if (s->role >= DONOR)
        return newcomer_is_fed_by(&s->newcomer, p);
    hth_moshpit_match_stats(&p->avg.averager, &m);
    return (s->role == LEADER) == (m.followers_now > 0 || m.led > s->match[p->index].led);
}

static bool scene_is_set(void *arg)
{
    struct scene *s = arg;

    for (uint32_t i = 0; i < s->pit->peers && s->victim == NULL; i++) {
        struct pit_peer *p = &s->pit->peer[(i + 3) % s->pit->peers];
        /* nobody leads yet when all have only declared */
        if (in_phase(s, p) && ((s->phase == DECLARED && s->role < REDUCER) || in_role(s, p)))
            s->victim = p;
    }
    return s->victim != NULL;
}

static void die(struct pit_peer *p, enum how how)
{
    if (how == CUT_OFF) {
        hth_node_set_side(p->node, 1);
        p->up = false; /* as far as the others are concerned */
    } else {
        hth_node_crash(p->node, how == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
    }
}

static void open_scene(struct scene *s, const char *shape, uint32_t peers, uint64_t seed)
{
    struct pit *p = s->pit;

    pit_init(p, seed, peers, 50000, NULL);
    assert_ok(hth_avg_shape_parse(shape, &p->shape));
    p->has_cells = true;
    if (s->role == REDUCER) {
        p->peer[peers - 1].mode = HTH_AVG_HELPER;
        p->peer[peers - 1].weight = 0;
    }
    pit_fill(p, 6);
    pit_start(p, 3 * HTH_US_PER_S);
    pit_offer_all(p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES); /* a calm one: all are connected */
    assert_true(pit_run(p, 20 * HTH_US_PER_S));
    pit_fill(p, 7);
    hth_world_run_for(p->world, HTH_US_PER_S);
    if (s->role >= DONOR) {
        newcomer_comes(&s->newcomer, p);
        hth_world_run_for(p->world, 2 * HTH_US_PER_S); /* its roster fills */
        newcomer_asks(&s->newcomer, s->role == DONOR ? 4 : 1);
    }
    for (uint32_t i = 0; i < p->peers; i++)
        remember(s, &p->peer[i]);
}

/* All that live have an average; returns the longest wait of them. */
static int64_t all_end(struct pit *p, int64_t from_us)
{
    int64_t worst = 0;

    assert_true(pit_run(p, 20 * HTH_US_PER_S));
    for (uint32_t i = 0; i < p->peers; i++)
        if (p->peer[i].up) {
            worst = HTH_MAX(worst, p->peer[i].ended_us - from_us);
            assert_int_equal(p->peer[i].result.err, HTH_OK);
        }
    return worst;
}

/* Only the dead donor was struck off, and only what was on its way from it is asked for again. */
static int64_t newcomer_ends(struct newcomer *n, int64_t died_us)
{
    if (!newcomer_run(n, 10 * HTH_US_PER_S))
        fail_msg("the newcomer has no state");
    assert_int_equal(n->result.donors_lost, 1);
    assert_in_range(n->result.parts_again, 1, 4);
    assert_true(n->result.donors >= 2);
    assert_true(n->result.bytes <= NEWCOMER_BYTES + 4 * HTH_STATE_PART_BYTES_MIN * 2);
    newcomer_goes(n);
    return n->done_us - died_us;
}

struct scene_times scene_one_dies(const char *shape, uint32_t peers, uint64_t seed, enum role role,
                                  enum phase phase, enum how how)
{
    struct pit p;
    struct scene s = {.pit = &p, .role = role, .phase = phase};
    struct scene_times t = {0};
    int64_t at;

    open_scene(&s, shape, peers, seed + (uint64_t)(role * 100 + phase * 10 + how));
    pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
    if (!hth_world_run_until_true(p.world, scene_is_set, &s, 2 * HTH_US_PER_S))
        fail_msg("%s %s was never seen", scene_role[role], scene_phase[phase]);
    at = hth_world_now_us(p.world);
    die(s.victim, how);
    t.first_us = all_end(&p, at);
    if (role >= DONOR)
        t.state_us = newcomer_ends(&s.newcomer, at);
    at = hth_world_now_us(p.world);
    pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
    t.next_us = all_end(&p, at);
    if (pit_spread(&p) >= 1e-4)
        fail_msg("%s %s in phase %s, seed %llu: spread %g", scene_how[how], scene_role[role],
                 scene_phase[phase], (unsigned long long)seed, pit_spread(&p));
    t.trace = hth_world_trace_hash(p.world);
    pit_stop(&p);
    return t;
}

void scene_print(enum role role, enum phase phase, enum how how, const struct scene_times *t)
{
    char state[40] = "";

    if (role >= DONOR)
        snprintf(state, sizeof(state), ", state %lld ms", (long long)t->state_us / 1000);
    print_message("%s %s in phase %s: %lld ms, next %lld ms%s, trace %016llx\n", scene_how[how],
                  scene_role[role], scene_phase[phase], (long long)t->first_us / 1000,
                  (long long)t->next_us / 1000, state, (unsigned long long)t->trace);
}
