/* SPDX-License-Identifier: Apache-2.0 */
/*
 * means_run.h: a run in the simulated world that is a clock: each step it makes a mean and a link,
 * and those of its members, the donors, that are up add the mean to their parameters. A newcomer,
 * or one that missed steps, gets to its tip.
 */
#ifndef HTH_TESTS_COLLAB_MEANS_RUN_H
#define HTH_TESTS_COLLAB_MEANS_RUN_H

#include "collab/arrive.h"
#include "collab/nodes.h"

#define SCHEMA 99

enum { DONORS_MAX = 5, STEPS_MAX = 400, VALUES = 64 * 4096 + 7 }; /* 65 parts of a mean */
#define MEAN_BYTES (VALUES * sizeof(float))

/* How a donor answers who asks for means. */
enum kind {
    HONEST,
    GONE,   /* has let them go */
    SILENT, /* never */
    LIES,   /* one value is another, */
    HASHES, /* ... and so they say of it themselves */
    SHORT,
};

struct run;

struct donor {
    struct run *run;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_state_donor *donor;
    uint32_t tip;  /* link */
    uint64_t said; /* the step of its snapshots, if that is another */
    float params[VALUES];
    bool declines, short_meta, spoilt; /* its states */
    bool stays;                        /* takes no more steps */
    enum kind kind;
};

struct newcomer {
    struct run *run;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_chain *chain;
    struct hth_collab_opts opts;
    struct hth_arrive *arrive;
    struct hth_timer *links;
    uint32_t at;    /* link in its chain */
    uint32_t known; /* the run's last link that it knows, in the run's chain */
    float params[VALUES];
    struct hth_budget budget;
    uint32_t steps, states, unknown, ends;
    enum hth_err err, adopt_err;
    bool goes_on; /* asks for links five times a step, until it is at the tip */
    bool came;
    int64_t came_us;
};

struct run {
    struct hth_world *world;
    struct donor donor[DONORS_MAX];
    uint32_t donors;
    struct newcomer newcomer;
    struct hth_chain *chain;
    uint32_t tip;
    uint64_t values; /* of a mean; beyond VALUES only as ghosts */
    uint64_t state_bytes;
    int64_t step_us, next_us;
    struct hth_hash params[STEPS_MAX]; /* digest of all members' by step */
    bool ghost;
    uint32_t links_max;        /* that the newcomer keeps */
    struct hth_budget *budget; /* of the donors' kept means; NULL: none */
};

/* Of means of so many values, which a state is so many times as large as, and steps so long. */
void setup_values(struct run *r, bool ghost, uint64_t values, double state_means, int64_t step_us,
                  uint32_t window_bytes);
void setup(struct run *r, bool ghost, double state_means, int64_t step_us);
/* Frees it, and checks that nothing is left open or drawn. */
void tear_down(struct run *r);
struct donor *add_donor(struct run *r);
void lie(struct donor *d, enum kind kind);
/* It holds nothing yet, and knows the links up to the tip. */
struct newcomer *add_newcomer(struct run *r, double bytes_per_s);
/* It holds that step's link, as if it had been there. */
void hold(struct newcomer *n, uint64_t step);
/* To the last link that it knows; and on, as it learns of others. */
void go(struct newcomer *n);
void go_on(struct newcomer *n);
void on_links(void *newcomer);
/* Bytes that the donors gave, of means and states. */
uint64_t given(const struct run *r);
void take_step(struct run *r);
void run_steps(struct run *r, uint32_t steps);
/* The run goes on until the arrival has ended. */
bool run_until_over(struct run *r, int64_t us);
uint32_t add_link(struct hth_chain *chain, uint32_t prev, enum hth_link_kind kind, uint32_t ballot,
                  const struct hth_hash *mean);
uint32_t copy_links(const struct run *r, uint32_t link, struct hth_chain *into);

#endif
