/* SPDX-License-Identifier: Apache-2.0 */
/* scene.h: deaths of averagers at every phase of a round, in every role. */
#ifndef HTH_TESTS_AVERAGING_SCENE_H
#define HTH_TESTS_AVERAGING_SCENE_H

#include "averaging/pit.h"

enum how { KILLED, POWERED_OFF, CUT_OFF, HOWS };
/* A reducer is the last peer, a helper without values; only in one line. A donor hands a state to a
 * newcomer meanwhile: one of several, or alone. */
enum role { MEMBER, LEADER, REDUCER, DONOR, ONLY_DONOR, ROLES };
enum phase { DECLARED, JOINED, BEGUN, REDUCING, RETURNING, PHASES };

#define SCENE_PEERS_MAX 64

/* One dies in the first sweep of all. The others end with an average, and one sweep later all of
 * them hold the same to 1e-4; the newcomer of a donor gets the whole state from others, and keeps
 * what had come. */
struct scene_times {
    int64_t first_us, next_us; /* the longest wait, from the death; from the second offer */
    int64_t state_us;          /* from the death until the newcomer has all; 0: no newcomer */
    uint64_t trace;
};
struct scene_times scene_one_dies(const char *shape, uint32_t peers, uint64_t seed, enum role role,
                                  enum phase phase, enum how how);
void scene_print(enum role role, enum phase phase, enum how how, const struct scene_times *times);

#endif
