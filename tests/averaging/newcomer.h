/* SPDX-License-Identifier: Apache-2.0 */
/* newcomer.h: one that takes up a state from the peers of a pit, on a slow line. */
#ifndef HTH_TESTS_AVERAGING_NEWCOMER_H
#define HTH_TESTS_AVERAGING_NEWCOMER_H

#include "averaging/pit.h"
#include "averaging/state.h"

#define NEWCOMER_BYTES (1024 * 1024 + 40) /* 129 parts; 0.42 s of its line of 20 Mbit/s */

struct newcomer {
    struct pit *pit;
    struct hth_node *node;
    struct hth_rpc *rpc;
    struct hth_roster *roster;
    struct hth_state_fetch *fetch;
    struct hth_blob *state; /* that all peers hand out */
    bool done;
    int64_t done_us;
    struct hth_state_result result; /* its bytes were compared, and are gone */
};

/* Joins the swarm of a pit that was started; all peers hand out the same state from now on. */
void newcomer_comes(struct newcomer *n, struct pit *pit);
/* Asks that many donors, and returns when some parts have come. */
void newcomer_asks(struct newcomer *n, uint32_t donors);
/* It has given parts, and more are needed. */
bool newcomer_is_fed_by(const struct newcomer *n, const struct pit_peer *peer);
/* Until it has the whole state. */
bool newcomer_run(struct newcomer *n, int64_t us);
/* Before pit_stop. */
void newcomer_goes(struct newcomer *n);

#endif
