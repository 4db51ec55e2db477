/* SPDX-License-Identifier: Apache-2.0 */
/* directory_why.c: says in words why a directory has no live expert of some layer. */
#include <stdio.h>

#include "core/name.h"
#include "dht/directory_int.h"

#define ADDRS_SHOWN 4

/* ": 10.0.0.1:4700, 10.0.0.2:4700 and 3 more" */
static void list_addrs(const struct hth_directory *dir, char *out, size_t room)
{
    struct hth_host_status host;
    char addr[HTH_ADDR_TEXT_MAX];
    uint32_t count = 0;
    size_t len = 0;
    out[0] = '\0';
    while (hth_directory_host_at(dir, count, &host)) {
        if (count < ADDRS_SHOWN)
            len += (size_t)snprintf(out + len, room - len, "%s %s", count == 0 ? ":" : ",",
                                    hth_addr_text(&host.ref.addr, addr));
        count++;
    }
    if (count > ADDRS_SHOWN)
        snprintf(out + len, room - len, " and %u more", count - ADDRS_SHOWN);
}

static const char *empty_layer(struct hth_directory *dir)
{
    for (uint32_t l = 0; l < hth_directory_layer_count(dir); l++)
        if (hth_directory_view(dir, l)->live_count == 0)
            return hth_directory_grid(dir, l)->name;
    return "some layer";
}

const char *hth_directory_why(struct hth_directory *dir, char out[HTH_DIR_WHY_MAX])
{
    char network[HTH_NAME_LEN_MAX + 1];
    hth_network_name(dir->network, network);
    struct hth_directory_stats s;
    char differ[HTH_DIR_DIFFER_MAX], addrs[ADDRS_SHOWN * (HTH_ADDR_TEXT_MAX + 2) + 32];
    uint32_t others = hth_directory_others(dir, differ);
    hth_directory_stats(dir, &s);
    list_addrs(dir, addrs, sizeof(addrs));
    if (s.hosts == 0 && others > 0)
        snprintf(out, HTH_DIR_WHY_MAX,
                 "waiting for experts: %u host%s run '%s' with another run file: %s", others,
                 others == 1 ? " serves" : "s serve", network, differ);
    else if (s.hosts == 0)
        snprintf(out, HTH_DIR_WHY_MAX, "waiting for experts of run '%s': no host is announced yet",
                 network);
    else if (s.hosts_dead == s.hosts)
        snprintf(out, HTH_DIR_WHY_MAX,
                 "waiting for experts of run '%s': %u host%s announced, none can be reached%s",
                 network, s.hosts, s.hosts == 1 ? " is" : "s are", addrs);
    else
        snprintf(out, HTH_DIR_WHY_MAX,
                 "waiting for experts of run '%s': no live host of %u serves %s", network, s.hosts,
                 empty_layer(dir));
    return out;
}
