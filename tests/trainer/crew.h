/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.h: several trainers of one run (scenarios/crew.h) on the small task of task.h, in a world
 * without chaos. A test sets what differs in the options and makes the crew.
 */
#ifndef HTH_TESTS_TRAINER_CREW_H
#define HTH_TESTS_TRAINER_CREW_H

#include "scenarios/crew.h"
#include "trainer/task.h"

/* A micro-batch of crew_opts takes about 50 ms on it. */
extern const struct hth_device crew_slow;

/* Mounts the files, which must outlive the world. */
struct hth_world *crew_world(uint64_t seed, struct task_files *files);
/* Micro-batches of 6, no evaluations; experts that do not move, no noise, no balancing: the
 * gradient of a batch is the mean over its samples, however it is cut. */
struct hth_crew_opts crew_opts(enum hth_share_mode mode);
/* For `edit` of the options: each member has an order of rows of its own. */
void crew_own_rows(void *arg, uint32_t i, struct hth_trainer_opts *trainer);
/* Of a member at this moment; zeros while it is down. */
struct hth_train_stats crew_stats(struct hth_crew *crew, uint32_t i);
/* Runs until all that are up hold one head, between steps, and returns its step. Fails the test,
 * and says where each member is, if that takes longer or their parameters differ there. */
uint64_t crew_same(struct hth_world *world, struct hth_crew *crew, int64_t within_us);
/* Frees both and checks that nothing is left open. */
void crew_end(struct hth_world *world, struct hth_crew *crew);

#define CREW_MAX 32

/* A crew in its world, and the statistics of each member at its last update. */
struct crew_scene {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    struct hth_train_stats stats[CREW_MAX];
    char said[8192]; /* warnings and errors of the log */
    size_t said_len;
};

/* In a world as of crew_world. At most CREW_MAX members; on_update and arg are filled in. */
struct crew_scene *crew_scene_new(uint64_t seed, struct hth_crew_opts *opts);
/* The same with links of that one-way latency. */
struct crew_scene *crew_scene_near(uint64_t seed, int64_t latency_us, struct hth_crew_opts *opts);
void crew_scene_free(struct crew_scene *s);
/* Runs until member i has made so many updates; fails the test if that takes longer than
 * within_us. */
void crew_scene_run(struct crew_scene *s, uint32_t i, uint64_t updates, int64_t within_us);

#endif
