/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scene.h: several hosts and a client in a simulated world, with a reference for each expert, for
 * tests of the client.
 */
#ifndef HTH_TESTS_EXPERTS_SCENE_H
#define HTH_TESTS_EXPERTS_SCENE_H

#include "experts/swarm.h"

#define D 16

/* Hosts with `per_host` experts each, a caller, and reference experts for all. */
struct scene {
    struct hth_world *w;
    struct swarm_host host[HOSTS_MAX];
    struct swarm_caller c;
    struct reference ref[64];
    struct hth_expert_target target[64];
    uint32_t hosts, experts;
};

struct outcome {
    uint32_t count;
    struct hth_expert_batch *batch;
    int64_t at_us;
    struct hth_env *env;
};

/* `like`: options of the hosts, or NULL. */
void scene_start(struct scene *s, const struct hth_world_opts *wo, uint32_t hosts,
                 uint32_t per_host, const struct swarm_host *like);
void scene_end(struct scene *s);
/* The callback of a batch, whose arg is a struct outcome. */
void on_batch(void *arg, struct hth_expert_batch *batch);
bool has_outcome(void *arg);
/* A copy of count rows of D numbers. */
struct hth_tensor tensor_of(const float *rows, uint64_t count);
/* Assigns each unit to k experts that are spread over all. Returns the number of pairs. */
uint32_t deal_pairs(struct hth_expert_pair *pairs, uint32_t units, uint32_t k, uint32_t experts);
/* A forward of x for these pairs. */
struct hth_expert_call call_of(const struct scene *s, const struct hth_tensor *x,
                               const struct hth_expert_pair *pairs, uint32_t n);
/* Runs the call to its end; fails the test after two virtual minutes. */
void run_call(struct scene *s, const struct hth_expert_call *call, struct outcome *o);

#endif
