/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h: judges the peers that connect, and remembers the good verdicts.
 *
 * A check of credentials costs two or three verified signatures. A peer that comes again with a
 * certificate of the same serial costs none: the gate keeps what was granted to HTH_GATE_KNOWN
 * peers, and asks only the clock and the revoked invites again. Strangers are never entered.
 *
 * Loop thread.
 */
#ifndef HTH_ADMISSION_GATE_H
#define HTH_ADMISSION_GATE_H

#include "admission/pass.h"
#include "core/env.h"

struct hth_gate;

/* The run is copied; its set of revoked invites must outlive the gate, and may change. */
struct hth_gate *hth_gate_new(struct hth_env *env, const struct hth_closed_run *run);
/* NULL is fine. */
void hth_gate_free(struct hth_gate *gate);
/* As hth_creds_check, at this moment; a hth_admit_fn, whose arg is the gate. */
enum hth_err hth_gate_check(void *gate, const struct hth_peer_id *peer, const void *creds,
                            size_t len, struct hth_grant *out) HTH_MUST;
/* As hth_grant_check, at this moment; a hth_holds_fn, whose arg is the gate. */
enum hth_err hth_gate_holds(void *gate, const struct hth_grant *grant) HTH_MUST;
/* Checks that needed signatures. */
uint64_t hth_gate_judged(const struct hth_gate *gate);

#endif
