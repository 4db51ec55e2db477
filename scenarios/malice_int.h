/* SPDX-License-Identifier: Apache-2.0 */
/*
 * malice_int.h (internal): what the attackers of averages share: values that are lies
 * (malice_average.c), and the member of a roll call that brings them (malice_roll.c).
 */
#ifndef HTH_SCENARIOS_MALICE_INT_H
#define HTH_SCENARIOS_MALICE_INT_H

#include "averaging/peer.h"
#include "scenarios/malice.h"

#define HTH_MALICE_SAMPLES 1000 /* the weight that an attacker claims */

/* A made-up number in about [-0.05, 0.05], the same for the same name. */
float hth_malice_made_up(uint64_t seed, uint64_t name);
/* Fill in the last average, turned; made-up numbers where there is none (NULL). */
void hth_malice_fill(uint64_t seed, const struct hth_blob *last, struct hth_blob *out);

struct hth_malice_member;

struct hth_malice_member_opts {
    const struct hth_malice_place *place;
    struct hth_rpc *rpc;
    struct hth_avg_peer *avg;
    uint64_t seed;        /* of made-up numbers */
    struct hth_addr addr; /* family 0: a client, which reduces nothing */
    bool bootstrap;       /* begins a chain of its own, of so many samples */
    uint64_t samples;
};

/* A member of the run's roll call. It brings lies in each step, gives junk to those that fetch its
 * state, and computes nothing. Errors: those of hth_model_new and hth_collab_new. */
enum hth_err hth_malice_member_new(struct hth_env *env, const struct hth_malice_member_opts *opts,
                                   struct hth_malice_member **out) HTH_MUST;
/* NULL is fine. */
void hth_malice_member_free(struct hth_malice_member *member);
/* Drops its round without a word, and comes again as a newcomer. Not inside one of its calls. */
void hth_malice_member_again(struct hth_malice_member *member);
/* For the endpoint's on_peer_lost. */
void hth_malice_member_peer_lost(struct hth_malice_member *member, const struct hth_peer_id *peer);

#endif
