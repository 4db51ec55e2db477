/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opendht_bind.h: private to dht/. After the first call sockets that this thread binds listen on
 * this address (the port stays the caller's; NULL: on theirs), and show what they receive to this
 * door; NULL and NULL end that. Both are borrowed, the door until the second call.
 */
#ifndef HTH_DHT_OPENDHT_BIND_H
#define HTH_DHT_OPENDHT_BIND_H

#include "core/ident.h"
#include "dht/opendht_door.h"

void hth_opendht_bind_to(const struct hth_addr *addr, struct hth_opendht_door *door);
void hth_opendht_unbind(const struct hth_opendht_door *door);

#endif
