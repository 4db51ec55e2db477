/* SPDX-License-Identifier: Apache-2.0 */
/*
 * places.h: which experts of a layer a host takes that was told only how many (--experts N).
 *
 * A host that comes back takes the places it had: what it trained is there, and somebody who
 * started these experts anew would throw that away. It knows them by its own records, which
 * outlive a crash for a minute, and by the checkpoints in its folder, which outlive everything. A
 * place that somebody else serves by now is left to them. What is still missing is taken from the
 * places that nobody serves.
 *
 * Who serves what is read off the directory, in which anybody may claim anything. Where a claim
 * stands in the way (hth_places_in_the_way) the caller asks the claimants first (app/claims.h).
 *
 * Loop thread, at the start of a host: it reads a folder, which may block for a moment.
 */
#ifndef HTH_APP_PLACES_H
#define HTH_APP_PLACES_H

#include "core/base.h"

struct hth_directory;
struct hth_env;

/* Writes at most `want` grid indices to out, ascending, and returns how many; 0 when every place is
 * taken. checkpoint_dir need not exist. */
size_t hth_places_choose(struct hth_env *env, struct hth_directory *directory, uint32_t layer,
                         const char *checkpoint_dir, uint32_t want, uint32_t *out);
/* Whether others' claims keep this host from places it had, or from finding `want` at all. */
bool hth_places_in_the_way(struct hth_env *env, struct hth_directory *directory, uint32_t layer,
                           const char *checkpoint_dir, uint32_t want);

#endif
