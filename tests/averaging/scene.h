/* SPDX-License-Identifier: Apache-2.0 */
/* scene.h: deaths of averagers at every phase of a round, in every role. */
#ifndef HTH_TESTS_AVERAGING_SCENE_H
#define HTH_TESTS_AVERAGING_SCENE_H

#include "averaging/pit.h"

enum how { KILLED, POWERED_OFF, CUT_OFF, HOWS };
/* A reducer is the last peer, a helper without values; only in one line. */
enum role { MEMBER, LEADER, REDUCER, ROLES };
enum phase { DECLARED, JOINED, BEGUN, REDUCING, RETURNING, PHASES };

extern const char *const scene_how[], *const scene_role[], *const scene_phase[];

#define SCENE_PEERS_MAX 64

/* One dies in the first sweep of all. The others end with an average, and one sweep later all of
 * them hold the same to 1e-4. worst: the longest that anybody waited in both, from the death and
 * from the second offer; and the trace's hash. */
void scene_one_dies(const char *shape, uint32_t peers, uint64_t seed, enum role role,
                    enum phase phase, enum how how, int64_t worst[3]);

#endif
