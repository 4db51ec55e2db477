/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.h: small tasks for trainers in the simulator: images of four classes that a few updates
 * learn, and a text with a pattern; both mounted as files of the world.
 */
#ifndef HTH_TESTS_TRAINER_TASK_H
#define HTH_TESTS_TRAINER_TASK_H

#include "sim/world.h"
#include "trainer/trainer.h"

#define TASK_ITEMS      512
#define TASK_SIDE       4
#define TASK_PIXELS     (TASK_SIDE * TASK_SIDE)
#define TASK_TEXT_BYTES 8192

struct task_files {
    uint8_t images[16 + TASK_ITEMS * TASK_PIXELS];
    uint8_t labels[8 + TASK_ITEMS];
    uint8_t text[TASK_TEXT_BYTES];
};

/* As idx files have it. */
void task_be32(uint8_t *p, uint32_t v);
/* The headers of files of pictures, 16 bytes, and of labels, 8; NULL: of none. */
void task_heads(uint8_t *images, uint8_t *labels, uint32_t items, uint32_t high, uint32_t wide);
/* Fills the files from the seed and mounts them; they must live as long as the world. */
void task_mount(struct hth_world *world, struct task_files *files, uint64_t seed);
/* A calm world with these files and one node, for a trainer of its own. */
struct hth_world *task_world(struct task_files *files, struct hth_node **node);
/* A small classifier over the images: d 16, grid 2 x 2, 2 layers, k 2, no shuffling. */
struct hth_trainer_opts task_classifier(void);
/* A small language model over the text: d 16, 2 heads, 2 layers. */
struct hth_trainer_opts task_lm(void);

#define TASK_UPDATES_MAX 256

/* A trainer in a world of its own, and what it brought. */
struct task {
    struct hth_world *world;
    struct hth_node *node;
    struct hth_env *env;
    struct task_files files;
    double loss[TASK_UPDATES_MAX]; /* of each update */
    struct hth_train_stats stats;  /* of the last one */
    struct hth_eval_result eval;
    bool evaluated, saved, done, stopped;
    enum hth_err save_err;                /* that the next checkpoints are expected to end with */
    enum hth_err err;                     /* of the end */
    void (*on_update)(struct task *task); /* after each update; may be NULL */
    void (*on_eval)(struct task *task);   /* after each evaluation; may be NULL */
};

/* Of a test: makes a task, and frees it and checks that nothing is left open. */
int task_setup(void **state);
int task_teardown(void **state);
#define TASK_TEST(name) TEST_WITH(name, task_setup, task_teardown) /* of suite.h */
/* Callbacks that write to the task. */
struct hth_train_callbacks task_callbacks(struct task *task);
/* Makes a trainer with local experts and these callbacks. */
struct hth_trainer *task_make(struct task *task, struct hth_trainer_opts opts);
/* For the owner's callback at an end: the task is done, with that error. */
void task_done(void *task, enum hth_err err);
/* Runs until that flag of the task is set. */
void task_until(struct task *task, bool *flag);
/* hth_trainer_stop, until it has stopped. */
void task_stop(struct task *task, struct hth_trainer *trainer);
/* Frees the trainer and lets a job end that the environment has. */
void task_put_down(struct task *task, struct hth_trainer *trainer);
/* Starts it and runs it to its end with that error; its statistics are the task's. */
void task_end(struct task *task, struct hth_trainer *trainer, enum hth_err err);
/* Makes one, starts it, runs it to its end without an error, and puts it down. */
void task_run(struct task *task, struct hth_trainer_opts opts);
/* Evaluates before the first update, and puts the trainer down; returns the loss. */
double task_loss(struct task *task, struct hth_trainer *trainer);
struct hth_params *task_params(struct hth_trainer *trainer);
float *task_values(struct hth_trainer *trainer);

/* An averager whose other member has all values `shift` higher, so that the average is shift / 2
 * above. It takes `left` offers; rounds end a while later, or when the test ends them. */
struct twin {
    struct hth_averager averager;
    struct task *task;
    float shift;
    uint32_t left, offers;
    bool by_hand, stopped;
    struct hth_trainer *trainer; /* the weight of an offer is what it gathered since the last */
    struct hth_timer *timer;
    hth_avg_round_fn *fn;
    void *arg;
    struct hth_blob *values, *average;
    uint64_t samples; /* at the last offer */
};

/* Makes a trainer that averages with it. */
struct hth_trainer *twin_make(struct twin *twin, struct task *task, struct hth_trainer_opts opts);
void twin_end_round(void *twin);
/* Puts the trainer down, too. */
void twin_put_down(struct twin *twin);

#endif
