/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opendht_bind.h: private to dht/. After this call sockets that this thread binds listen on this
 * address (the port stays the caller's); NULL ends that. The address is borrowed.
 */
#ifndef HTH_DHT_OPENDHT_BIND_H
#define HTH_DHT_OPENDHT_BIND_H

#include "core/ident.h"

void hth_opendht_bind_to(const struct hth_addr *addr);

#endif
