/* SPDX-License-Identifier: Apache-2.0 */
/* lab_int.h: shared by lab.c and host.c. Private to lab/. */
#ifndef HTH_LAB_LAB_INT_H
#define HTH_LAB_LAB_INT_H

#include "lab/lab.h"

#define LAB_NET_0        10
#define LAB_NET_1        77
#define LAB_MTU_MAX      65535
#define LAB_LATE_BUCKETS 96

struct lab_host {
    char *name;
    int tun; /* -1: not made */
    int ns;
};

struct hth_lab {
    uint32_t count;
    uint32_t mtu;
    struct lab_host *host;
    struct hth_lab_emu *emu;
    uint64_t late[LAB_LATE_BUCKETS]; /* delivered packets by their lateness */
    double late_worst_us;
    uint64_t refused;
};

/* Tell processes of the lab its hosts, by the environment. */
void hth_lab_name_hosts(const struct hth_lab *lab);

#endif
