/* SPDX-License-Identifier: Apache-2.0 */
/* train_hosts.h: says why a trainer has no experts, by what its directory knows of the hosts. */
#ifndef HTH_APP_TRAIN_HOSTS_H
#define HTH_APP_TRAIN_HOSTS_H

#include "core/base.h"

struct hth_directory;

#define HTH_TRAIN_HOSTS_TEXT_MAX 512

/* One line, without its end: no host is announced, all have another run file, none can be reached
 * (with their addresses), or a layer has no live host. Returns out. Loop thread. */
const char *hth_train_hosts_text(struct hth_directory *dir, const char *network,
                                 char out[HTH_TRAIN_HOSTS_TEXT_MAX]);

#endif
