/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.h: several trainers of one run in a simulated world, each made of the production parts, that
 * average their trunks:
 *
 *   member i   rpc + averager (averaging/peer.h) + trainer, with experts of its own, or a helper
 *
 * The experts are local, so differences between members come from averaging alone. With learning
 * rate 0 the experts stay equal everywhere, and only the trunk learns.
 *
 * Members boot and halt by themselves, so that a scenario can crash any of them and let others
 * join: hth_crew_join makes the next member's node. Data files must be mounted in the world first.
 * One thread; free the world first, then the crew.
 */
#ifndef HTH_SCENARIOS_CREW_H
#define HTH_SCENARIOS_CREW_H

#include "averaging/peer.h"
#include "sim/world.h"
#include "trainer/trainer.h"

struct hth_crew;
struct hth_helper;

#define HTH_CREW_NETWORK "crew"
#define HTH_CREW_PORT    7000

struct hth_crew_opts {
    uint32_t members; /* at the start */
    uint32_t members_max;
    uint32_t clients;                /* the first so many are in client mode */
    struct hth_trainer_opts trainer; /* rpc, averager, share's roster and names are filled in */
    struct hth_roster_opts roster;   /* network, address and on_change are */
    struct hth_moshpit_opts moshpit; /* network and address are */
    struct hth_reducer_opts reducer;
    const struct hth_device *device; /* NULL: the world's */
    /* Called before member i is made, at each boot; may be NULL. */
    void (*edit)(void *arg, uint32_t i, struct hth_trainer_opts *trainer);
    /* After each of its updates; may be NULL. */
    void (*on_update)(void *arg, uint32_t i, const struct hth_train_stats *stats);
    void (*on_eval)(void *arg, uint32_t i, const struct hth_eval_result *result);
    void *arg;
};
#define HTH_CREW_OPTS_INIT                                                                         \
    {                                                                                              \
        .members = 2, .members_max = 64, .trainer = HTH_TRAINER_OPTS_INIT,                         \
        .roster = HTH_ROSTER_OPTS_INIT, .moshpit = HTH_MOSHPIT_OPTS_INIT,                          \
        .reducer = HTH_REDUCER_OPTS_INIT                                                           \
    }

/* Make a crew. Its members are up once the world's clock has moved. Strings in opts must outlive
 * the crew. */
struct hth_crew *hth_crew_new(struct hth_world *world, const struct hth_crew_opts *opts);
void hth_crew_free(struct hth_crew *crew);
/* Add a member and return its number; at most members_max members. */
uint32_t hth_crew_join(struct hth_crew *crew);
uint32_t hth_crew_count(const struct hth_crew *crew);
struct hth_node *hth_crew_node(struct hth_crew *crew, uint32_t i);
/* The same of one that helps and trains nothing (trainer/helper.h). */
uint32_t hth_crew_help(struct hth_crew *crew);
/* NULL while that member is down, and of a helper. */
struct hth_trainer *hth_crew_trainer(struct hth_crew *crew, uint32_t i);
struct hth_helper *hth_crew_helper(struct hth_crew *crew, uint32_t i); /* NULL of a trainer */
struct hth_roster *hth_crew_roster(struct hth_crew *crew, uint32_t i);
struct hth_rpc *hth_crew_rpc(struct hth_crew *crew, uint32_t i);
/* Whether the member has made all its updates. */
bool hth_crew_is_done(const struct hth_crew *crew, uint32_t i);
/* Whether all members that are up are done. */
bool hth_crew_all_done(void *crew);
/* Largest relative distance ||w_i - w_0|| / ||w_0|| between the trunks of members that are up. */
double hth_crew_spread(struct hth_crew *crew);
/* The first error of any boot. */
enum hth_err hth_crew_err(const struct hth_crew *crew);

#endif
