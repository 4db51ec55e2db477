/* SPDX-License-Identifier: Apache-2.0 */
/*
 * malice.h: peers that do wrong on purpose, as plug-ins.
 *
 * A kind of malice is a table of two functions over an environment and a table of records: what an
 * honest node has, and no more. It knows who the honest hosts are and what the run looks like, as
 * anybody can learn that from records. Whatever it does, what must hold for the honest ones holds
 * (fleet.h): nobody crashes, hangs, holds more than its budget or takes what is not finite.
 *
 *   garbage   announces itself as a host, answers with random bytes, and dials others to send some:
 *             frames with a right header and a wrong rest, and no frames at all
 *   liar      a host whose answers have wrong shapes, NaN or too few rows, in turns; as a caller it
 *             sends gradients that are not finite, lists that do not fit, and keys used before
 *   mute      a host that takes every request and never answers
 *   deafening a host that announces itself likewise and answers 3e38 to everything, both ways: two
 *             of them are infinite
 *   loud      the same with 1e9, which no sum minds
 *   naysayer  lacks half of the experts that it announces, says so in two ways, and gives back
 *             what it is asked for the others
 *   forgetful lacks the first expert of each layer, says so, and gives back what it is asked for
 *             the others: most of what it answers is good
 *   prude     gives back what it is asked, and takes no gradient: too large, it says of each
 *   postponer a host that takes nothing: BUSY, it says, come back at once
 *   forger    fills the layers' keys with records that others seem to have signed, with its own
 *             that claim what is not there, with old and future ones, and with noise
 *
 * And those who lie to the averaging; where nobody averages they do nothing:
 *
 *   turncoat     averages like a trainer that nobody can dial: brings the last average turned round
 *                and eight times as large, and says that a thousand samples are behind it
 *   usurper      a helper that claims the fastest line there can be, and answers every part that it
 *                is to reduce with numbers of its own, the same to all
 *   equivocator  averages like a trainer, brings what a turncoat brings, and answers each member
 *                something else, every fifth time what is no answer
 *   deserter     looks for a group, is in it, brings the same, then refuses every part and leaves
 *   replayer     says again what trainers and donors said in their notes, when it is old, and on
 *                boards where it does not belong
 *
 * A new kind is a table like these; a scenario file names the built-in ones under `malice:`. One
 * thread, that of the world.
 */
#ifndef HTH_SCENARIOS_MALICE_H
#define HTH_SCENARIOS_MALICE_H

#include "core/dht.h"
#include "core/env.h"
#include "dht/announce.h"
#include "rpc/rpc.h"
#include "trainer/trainer.h"

/* Where it finds itself; all of it is borrowed until stop. */
struct hth_malice_place {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_addr addr; /* its own */
    const char *network;
    const struct hth_grid *grids; /* of the layers */
    uint32_t layers;
    struct hth_layer_shape shape;
    const struct hth_trainer_opts *trainer; /* the run's model and share; NULL: nobody averages */
    /* Some honest node that can be called; false when none is up. */
    bool (*victim)(void *arg, struct hth_rng *rng, struct hth_rpc_target *out);
    void *arg;
};

struct hth_malice {
    const char *name;
    bool in_averages; /* its values are in them: they may be outside of what the honest offered */
    bool splits;      /* honest trunks may end far apart */
    /* Errors: any; the node then does nothing. */
    enum hth_err (*start)(const struct hth_malice_place *place, void **self);
    /* Frees everything it made on the env. Called once if start gave something. */
    void (*stop)(void *self);
};

/* X(name): those that a scenario can name, in the order in which their nodes are made. */
#define HTH_MALICE_MAP(X)                                                                          \
    X(garbage)                                                                                     \
    X(liar)                                                                                        \
    X(mute)                                                                                        \
    X(forger)                                                                                      \
    X(turncoat)                                                                                    \
    X(usurper)                                                                                     \
    X(equivocator)                                                                                 \
    X(deserter)                                                                                    \
    X(replayer)                                                                                    \
    X(deafening)                                                                                   \
    X(loud)                                                                                        \
    X(naysayer)                                                                                    \
    X(postponer)                                                                                   \
    X(prude)                                                                                       \
    X(forgetful)

#define HTH_MALICE_EXTERN(name) extern const struct hth_malice hth_malice_##name;
HTH_MALICE_MAP(HTH_MALICE_EXTERN)
#undef HTH_MALICE_EXTERN

#endif
