/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opendht_door.h: private to dht/. Which datagrams OpenDHT gets to read while strangers crowd a
 * closed run.
 *
 * A value that is put costs the nodes that store it and their watchers half a millisecond each:
 * many times the look that is taken here, where a record shows its kind and owner.
 * Puts of owners that are not known have a few in a second of each kind; the others are dropped.
 * Their senders try again, and other nodes. So whoever floods the claims of experts keeps no
 * newcomer's pass out.
 *
 * All else is let in: what known owners put, replies, and what watchers are told, whose sender
 * would take this node for dead.
 *
 * Any thread.
 */
#ifndef HTH_DHT_OPENDHT_DOOR_H
#define HTH_DHT_OPENDHT_DOOR_H

#include "core/base.h"
#include "core/ident.h"

struct hth_opendht_door;

struct hth_opendht_door *hth_opendht_door_new(void);
/* NULL is fine. */
void hth_opendht_door_free(struct hth_opendht_door *door);
/* As hth_dht_ops.know. Before the first call all is let in. */
void hth_opendht_door_know(struct hth_opendht_door *door, uint64_t network,
                           const struct hth_pubkey *owner, bool known);
/* False: OpenDHT should not see this datagram. The clock never steps back. */
bool hth_opendht_door_lets(struct hth_opendht_door *door, const uint8_t *data, size_t len,
                           int64_t now_us);
uint64_t hth_opendht_door_dropped(struct hth_opendht_door *door);

#endif
