/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.h: several trainers of one run (scenarios/crew.h) on the small task of task.h, in a world
 * without chaos. A test sets what differs in the options and makes the scene.
 */
#ifndef HTH_TESTS_TRAINER_CREW_H
#define HTH_TESTS_TRAINER_CREW_H

#include "collab/collab.h"
#include "scenarios/crew.h"
#include "trainer/task.h"

#define S  HTH_US_PER_S
#define MS HTH_US_PER_MS

/* A micro-batch of crew_opts takes about 50 ms on it. */
extern const struct hth_device crew_slow;

/* Micro-batches of 6, one at a time, without an end or evaluations, on crew_slow, of rows in an
 * order of each member's own; experts that do not move, no noise, no balancing: the gradient of a
 * batch is the mean over its samples, however it is cut. */
struct hth_crew_opts crew_opts(enum hth_share_mode mode, uint32_t members);
/* Batches of so many samples. */
struct hth_crew_opts crew_batch_opts(uint32_t members, uint64_t target);
/* The same of a language model. */
void crew_use_lm(struct hth_crew_opts *opts);
/* For `edit` of the options: each member has an order of rows of its own. */
void crew_own_rows(void *arg, uint32_t i, struct hth_trainer_opts *trainer);

#define CREW_MAX 128

/* A crew in its world. */
struct crew_scene {
    struct hth_world *world;
    struct hth_crew *crew;
    struct hth_crew_opts opts;
    struct task_files files;
    char said[8192]; /* warnings and errors of the log */
    size_t said_len;
};

/* At most CREW_MAX members. */
struct crew_scene *crew_scene_new(uint64_t seed, const struct hth_crew_opts *opts);
/* The same with links of that one-way latency. */
struct crew_scene *crew_scene_near(uint64_t seed, int64_t latency_us,
                                   const struct hth_crew_opts *opts);
/* Checks that nothing is left open. */
void crew_scene_free(struct crew_scene *s);
/* Runs until member i has made so many updates; fails the test if that takes longer than
 * within_us. */
void crew_scene_run(struct crew_scene *s, uint32_t i, uint64_t updates, int64_t within_us);
/* Runs until all that are up are done; returns how long that took. */
int64_t crew_to_the_end(struct crew_scene *s, int64_t within_us);
void crew_crash(struct crew_scene *s, uint32_t i, enum hth_crash how);
void crew_restart(struct crew_scene *s, uint32_t i);
/* Neither of two members has a way to the other. */
void crew_block(struct crew_scene *s, uint32_t i, uint32_t k);
/* Of a member at this moment; zeros while it is down. */
struct hth_train_stats crew_stats(const struct crew_scene *s, uint32_t i);
/* Of a member that is up. */
const struct hth_collab *crew_collab(const struct crew_scene *s, uint32_t i);
struct hth_collab_stats crew_collab_stats(const struct crew_scene *s, uint32_t i);
/* Runs until all that are up hold one head, between steps, and returns its step. Fails the test,
 * and says where each member is, if that takes longer or their parameters differ there. */
uint64_t crew_same(struct crew_scene *s, int64_t within_us);
/* The same within a second, after that time. */
uint64_t crew_same_after(struct crew_scene *s, int64_t us);

#endif
