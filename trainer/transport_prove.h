/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_prove.h (internal to transport_net.c): proves the hosts of a directory.
 *
 * Anybody can sign a record that says "all experts live at this address". So no row goes to a host
 * before a connection to its address has proved its key (hth_directory_prove): each claimant is
 * asked once, by an INFO, whatever it answers; and only while its experts have fewer than
 * HTH_DIR_PROVED_MAX hosts that are up.
 *
 * The address may be a third party's. One that failed is dialled three times in a minute at most,
 * whoever claims it, and after some minutes ever less often. At most DIALS_MAX
 * dials are open at once.
 *
 * Loop thread.
 */
#ifndef HTH_TRAINER_TRANSPORT_PROVE_H
#define HTH_TRAINER_TRANSPORT_PROVE_H

#include "core/env.h"

struct hth_directory;
struct hth_prover;
struct hth_rpc;

/* Both must outlive it. */
struct hth_prover *hth_prover_new(struct hth_env *env, struct hth_rpc *rpc,
                                  struct hth_directory *directory);
/* NULL is fine. */
void hth_prover_free(struct hth_prover *prover);
/* The directory has changed. Not from a callback of the endpoint. */
void hth_prover_look(struct hth_prover *prover);
/* Claims that were found false: another key is at the address, or none of several that claim it. */
uint64_t hth_prover_refused(const struct hth_prover *prover);

#endif
