/* SPDX-License-Identifier: Apache-2.0 */
/* peer_addr.c: asks the kernel for routes, interfaces and free ports. */
#define _DEFAULT_SOURCE /* ifaddrs */
#include "app/peer_addr.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Documentation addresses stand for "the internet": the kernel looks up the route, and nothing is
 * sent. */
static const struct hth_addr internet[] = {
    {.family = 4, .ip = {192, 0, 2, 1}, .port = 9},
    {.family = 6, .ip = {0x20, 0x01, 0x0d, 0xb8, [15] = 1}, .port = 9},
};

static socklen_t to_sockaddr(const struct hth_addr *addr, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    if (addr->family == 6) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons(addr->port);
        memcpy(&in6->sin6_addr, addr->ip, 16);
        return sizeof(*in6);
    }
    struct sockaddr_in *in = (struct sockaddr_in *)out;
    in->sin_family = AF_INET;
    in->sin_port = htons(addr->port);
    memcpy(&in->sin_addr, addr->ip, 4);
    return sizeof(*in);
}

static bool from_sockaddr(const struct sockaddr *sa, struct hth_addr *out)
{
    memset(out, 0, sizeof(*out));
    if (sa->sa_family == AF_INET) {
        out->family = 4;
        memcpy(out->ip, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        out->family = 6;
        memcpy(out->ip, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, 16);
    }
    return out->family != 0;
}

/* A UDP socket bound to this address; -1: it can't be. */
static int bound(const struct hth_addr *addr, bool only_6)
{
    struct sockaddr_storage sa;
    socklen_t len = to_sockaddr(addr, &sa);
    int yes = only_6;
    int fd = socket(sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && addr->family == 6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes));
    if (fd >= 0 && bind(fd, (struct sockaddr *)&sa, len) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool can_bind(const struct hth_addr *addr, bool only_6)
{
    int fd = bound(addr, only_6);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

void hth_peer_addr_any(uint16_t port, struct hth_addr *out)
{
    *out = (struct hth_addr){.family = 6};
    if (!can_bind(out, false))
        out->family = 4;
    out->port = port;
}

bool hth_peer_addr_udp_free(const struct hth_addr *addr)
{
    return addr->port == 0 || can_bind(addr, false);
}

bool hth_peer_addr_is_own(const struct hth_addr *addr)
{
    struct hth_addr any_port = *addr;
    any_port.port = 0;
    return addr->family != 0 && can_bind(&any_port, true);
}

/* The local address from which packets to `to` are sent. */
static bool outward(const struct hth_addr *to, struct hth_addr *out)
{
    struct sockaddr_storage sa, local = {0};
    socklen_t len = to_sockaddr(to, &sa), local_len = sizeof(local);
    int fd = to->family != 0 ? socket(sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    bool good = fd >= 0 && connect(fd, (struct sockaddr *)&sa, len) == 0 &&
                getsockname(fd, (struct sockaddr *)&local, &local_len) == 0 &&
                from_sockaddr((struct sockaddr *)&local, out);
    if (fd >= 0)
        close(fd);
    return good;
}

/* Keeps `addr` if it leads further than the best so far and its family is listened on. A link-local
 * address is no use without the name of an interface. */
static void consider(const struct hth_addr *listen, const struct hth_addr *addr,
                     struct hth_addr *best)
{
    if (listen->family == 4 && addr->family != 4)
        return;
    if (hth_addr_scope(best) < HTH_SCOPE_PRIVATE && hth_addr_scope(addr) >= HTH_SCOPE_PRIVATE)
        *best = *addr;
}

static void consider_interfaces(const struct hth_addr *listen, struct hth_addr *best)
{
    struct ifaddrs *list = NULL;
    struct hth_addr addr;
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
        if (i->ifa_addr != NULL && (i->ifa_flags & IFF_UP) != 0 &&
            from_sockaddr(i->ifa_addr, &addr))
            consider(listen, &addr, best);
    freeifaddrs(list);
}

void hth_peer_addr_announce(const struct hth_addr *listen, const struct hth_addr *join,
                            struct hth_addr *out)
{
    struct hth_addr addr, best = {.family = 4, .ip = {127, 0, 0, 1}};
    *out = *listen;
    if (hth_addr_scope(listen) != HTH_SCOPE_NONE)
        return;
    if (outward(join, &addr))
        consider(listen, &addr, &best);
    for (size_t i = 0; i < HTH_ARRAY_LEN(internet); i++)
        if (outward(&internet[i], &addr))
            consider(listen, &addr, &best);
    consider_interfaces(listen, &best);
    best.port = listen->port;
    *out = best;
}

const char *hth_peer_addr_remark(const struct hth_addr *addr)
{
    switch (hth_addr_scope(addr)) {
    case HTH_SCOPE_MACHINE:
        return " (this machine only)";
    case HTH_SCOPE_LINK:
    case HTH_SCOPE_PRIVATE:
        return " (a private address: only peers of your own network reach it)";
    default:
        return "";
    }
}
