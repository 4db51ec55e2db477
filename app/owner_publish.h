/* SPDX-License-Identifier: Apache-2.0 */
/* owner_publish.h: puts an owner's list of revoked invites into the DHT. Main thread. */
#ifndef HTH_APP_OWNER_PUBLISH_H
#define HTH_APP_OWNER_PUBLISH_H

#include "cli/cli.h"

/* Joins that network as a peer of a moment, publishes the list, and ends once the DHT has it:
 * its members take it from there. Prints what fails; returns an exit code. */
int hth_owner_publish(const struct hth_cli_net *net, const char *network, const uint8_t *list,
                      size_t len);

#endif
