/* SPDX-License-Identifier: Apache-2.0 */
/*
 * malice.h: Byzantine peers, as plug-ins.
 *
 * A kind of malice is a table of two functions over an environment and a DHT: the means of an
 * honest node, and no more. It knows the honest hosts and the model of the run, which are public in
 * records. The conditions of the honest peers hold whatever it does (fleet.h): none of them
 * crashes, hangs, holds more than its budget or accepts values that are not finite.
 *
 *   garbage   announces itself as a host, answers with random bytes, and dials others to send some:
 *             frames with a valid header and a wrong rest, and bytes that are no frames
 *   liar      a host whose answers have wrong shapes, NaN or too few rows, in rotation; as a caller
 *             it sends gradients that are not finite, lists that do not fit, and used keys
 *   mute      a host that takes every request and never answers
 *   deafening a host that announces itself likewise and answers 3e38 to everything, forward and
 *             backward: the sum of two is infinite
 *   loud      the same with 1e9, whose sums stay finite
 *   naysayer  lacks half of the experts that it announces, refuses them in two ways, and echoes the
 *             input of the others
 *   forgetful lacks the first expert of each layer, refuses it, and echoes the input of the others:
 *             most of its answers are good
 *   prude     echoes its input and refuses every gradient as too large
 *   postponer a host that refuses everything: BUSY, retry at once
 *   claimer   announces itself as the host of every expert, at an address where nobody listens
 *   forger    fills the layers' keys with records that others seem to have signed, with its own for
 *             experts that it lacks, with old and future ones, and with noise
 *
 * These attack the averaging; in a run without averaging they do nothing:
 *
 *   turncoat     averages like a trainer in client mode: brings the last average times -8, and
 *                claims a weight of a thousand samples
 *   usurper      a helper that claims the highest possible bandwidth, and answers every part that
 *                it reduces with its own numbers, the same to all
 *   equivocator  averages like a trainer, brings a turncoat's values, and answers each member
 *                differently, every fifth time with a malformed answer
 *   deserter     joins a group, brings a turncoat's values, then refuses every part and leaves; it
 *                comes again
 *   pretender    in shared batches claims a chain of steps of its own, of 2^31 samples; where
 *                trainers step by themselves it brings a turncoat's values
 *   replayer     publishes old records of trainers and donors again, also on boards where they do
 *                not belong
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

/* The place of an attacker; all of it is borrowed until stop. */
struct hth_malice_place {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_addr addr; /* its own address */
    const char *network;
    const struct hth_grid *grids; /* of the layers */
    uint32_t layers;
    struct hth_layer_shape shape;
    const struct hth_trainer_opts *trainer; /* the run's model and share; NULL: no averaging */
    /* Pick an honest node that can be called; false when none is up. */
    bool (*victim)(void *arg, struct hth_rng *rng, struct hth_rpc_target *out);
    void *arg;
};

struct hth_malice {
    const char *name;
    /* its values enter averages: these may lie outside the hull of honest offers */
    bool in_averages;
    bool splits; /* honest trunks may end far apart */
    /* Start. After any error the node does nothing. */
    enum hth_err (*start)(const struct hth_malice_place *place, void **self);
    /* Free everything made on the env. Called once if start gave an object. */
    void (*stop)(void *self);
};

/* X(name): the kinds that a scenario can name, in the order in which their nodes are made. */
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
    X(forgetful)                                                                                   \
    X(pretender)                                                                                   \
    X(claimer)

#define HTH_MALICE_EXTERN(name) extern const struct hth_malice hth_malice_##name;
HTH_MALICE_MAP(HTH_MALICE_EXTERN)
#undef HTH_MALICE_EXTERN

#endif
