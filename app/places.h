/* SPDX-License-Identifier: Apache-2.0 */
/*
 * places.h: chooses the experts of a layer for a host that was given only a number (--experts N).
 *
 * A returning host takes the places it had: it has trained these experts, and a host that started
 * them from seeds would lose that work. It knows its places by its own records, which outlive a
 * crash for a minute, and by the checkpoints in its folder. It leaves a place that another host
 * serves to that host. It fills up with places that no host serves.
 *
 * The directory says which host serves which place, and anyone may claim anything in it. Where a
 * claim makes a difference (hth_places_contested) the caller first asks the claimants to confirm
 * (app/claims.h).
 *
 * Loop thread, at the start of a host: it reads a folder, which may block for a moment.
 */
#ifndef HTH_APP_PLACES_H
#define HTH_APP_PLACES_H

#include "core/base.h"

struct hth_directory;
struct hth_env;

/* Writes at most `want` grid indices to out, ascending, and returns how many; 0: every place is
 * taken. checkpoint_dir need not exist. */
size_t hth_places_choose(struct hth_env *env, struct hth_directory *directory, uint32_t layer,
                         const char *checkpoint_dir, uint32_t want, uint32_t *out);
/* Whether claims of other hosts take places that this host had, or leave fewer than `want`. */
bool hth_places_contested(struct hth_env *env, struct hth_directory *directory, uint32_t layer,
                          const char *checkpoint_dir, uint32_t want);

#endif
