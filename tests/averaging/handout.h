/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handout.h: donors and a newcomer in the simulator, for tests of handing out a state.
 */
#ifndef HTH_TESTS_AVERAGING_HANDOUT_H
#define HTH_TESTS_AVERAGING_HANDOUT_H

#include "averaging/roster.h"
#include "averaging/state.h"
#include "averaging/state_msg.h"
#include "core/budget.h"
#include "core/mem.h"
#include "rpc/rpc.h"
#include "sim/world.h"
#include "support/test.h"

#define S         HTH_US_PER_S
#define MS        HTH_US_PER_MS
#define PORT      7000
#define BYTES     (75 * HTH_STATE_PART_BYTES_MIN + 100) /* 76 parts, the last one short */
#define PEERS_MAX 80
#define SCHEMA    99

struct handout_peer {
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_roster *roster; /* of a client and of who needs a state */
    struct hth_state_donor *donor;
    struct hth_blob *values;
    uint64_t step;
    hth_fn *want;             /* NULL: gives `values` */
    struct hth_budget budget; /* for its use */
    uint32_t wanted;
    bool silent, declines; /* what it does when a snapshot is wanted */
    uint32_t lies;         /* parts it has spoilt */
    struct handout *f;
};

struct handout {
    struct hth_world *world;
    struct handout_peer peer[PEERS_MAX];
    uint32_t count;
    struct handout_peer *newcomer;
    struct hth_state_fetch *fetch;
    bool done;
    enum hth_err err;
    struct hth_state_result result;
    struct hth_rpc_target holders[PEERS_MAX];
    struct hth_blob *values;
    uint8_t meta[HTH_STATE_META_MAX];
};

void setup_world(struct handout *f, uint64_t seed, bool ghost);
/* Everything is given back. */
void tear_down(struct handout *f);
/* A donor of BYTES that follow from the seed; or a newcomer, which has no donor. */
struct handout_peer *add(struct handout *f, uint64_t step, uint32_t seed, bool newcomer);
/* A donor that says it can't be dialled, with a roster; or who needs a state, with one. */
struct handout_peer *add_client(struct handout *f, uint64_t step, uint32_t seed);
struct handout_peer *add_in_need(struct handout *f);
/* Frees what it has; it may be done twice. */
void halt(struct hth_env *env, void *arg);
struct hth_blob *make_values(struct hth_env *env, size_t size, uint32_t seed);
struct hth_rpc_target target_of(const struct handout_peer *p);

struct hth_state_fetch_opts fetch_opts(struct handout *f);
/* Adds the newcomer and begins: all donors are its holders. */
void start(struct handout *f, struct hth_state_fetch_opts *o);
/* Its line takes 3 s for a state. */
void start_slowly(struct handout *f, struct hth_state_fetch_opts *o);
/* It ends well in that time. */
void finish(struct handout *f, int64_t within_us);
uint32_t parts_done(const struct handout *f);
/* A third of the parts are there. */
bool part_way(void *fixture);
/* What came is this donor's. */
void check_values(struct handout *f, const struct handout_peer *donor);

#endif
