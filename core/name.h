/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name.h: the rule for every name that people give: of a run, a layer, a member.
 *
 * A name is 1 to HTH_NAME_LEN_MAX bytes of valid UTF-8 without dots, spaces, brackets, slashes,
 * control characters or marks of text's direction: names become file names and log lines.
 *
 * A *network* is what peers compare in records and in HELLO. That of a run without an owner is the
 * run's name. That of a closed run is the name, cut where it is too long, and the first bytes of
 * the run's id, which has the run file's hash: `fashion~5d0e27ab94c31f6082e7`. So two runs of one
 * name never meet, nor peers with different run files of one run. It is a name by the rule above,
 * so whatever takes a network need not know which of the two it is.
 *
 * The network of a private run has no name, and its bytes are those of the run id hashed with a
 * secret that travels in invites: `~5d0e27ab94c31f6082e7`. It is a secret itself, as it leads to
 * all topics of the run: neither beacons nor HELLO nor log lines show it.
 */
#ifndef HTH_CORE_NAME_H
#define HTH_CORE_NAME_H

#include "core/base.h"
#include "core/ident.h"
#include "core/limits.h"

#define HTH_NETWORK_ID_BYTES 10

/* Errors: E_MALFORMED, E_TOO_LARGE. */
enum hth_err hth_name_check(const char *name, size_t len) HTH_MUST;

/* The network of a closed run, whose name is a good one, or "" in a private run. Returns out. */
const char *hth_network_of(const char *run, const struct hth_hash *id,
                           char out[HTH_NAME_LEN_MAX + 1]);
bool hth_network_is_private(const char *network);
/* The run's name in a network, for people; "private" where there is none. Returns out. */
const char *hth_network_name(const char *network, char out[HTH_NAME_LEN_MAX + 1]);

#endif
