/* SPDX-License-Identifier: Apache-2.0 */
/* host.c: namespaces and devices of a lab's hosts. */
#define _GNU_SOURCE
#include "lab/lab_int.h"

#include "core/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/route.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEVICE       "net0"
#define DEVICE_QUEUE 10000 /* packets: so many that the queues of the lines fill up first */
#define ENVIRONMENT  "NETLAB"

/* ---- one host ------------------------------------------------------------------------------ */

static struct sockaddr address(const uint8_t ip[4])
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr out;
    memcpy(&in.sin_addr, ip, 4);
    memcpy(&out, &in, sizeof(out));
    return out;
}

static bool bring_up(int sock, const char *device)
{
    struct ifreq r = {.ifr_flags = 0};
    snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", device);
    if (ioctl(sock, SIOCGIFFLAGS, &r) != 0)
        return false;
    r.ifr_flags |= IFF_UP;
    return ioctl(sock, SIOCSIFFLAGS, &r) == 0;
}

/* In the host's namespace: set the device's address, and route everything else through it. */
static bool set_up_device(uint32_t index, uint32_t mtu)
{
    const uint8_t ip[4] = {LAB_NET_0, LAB_NET_1, 0, (uint8_t)(index + 1)};
    const uint8_t mask[4] = {255, 255, 255, 0}, zero[4] = {0};
    struct ifreq r = {.ifr_flags = 0};
    struct rtentry route = {.rt_flags = RTF_UP, .rt_dev = r.ifr_name};
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool good = sock >= 0 && bring_up(sock, "lo");
    snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", DEVICE);
    r.ifr_addr = address(ip);
    good = good && ioctl(sock, SIOCSIFADDR, &r) == 0;
    r.ifr_netmask = address(mask);
    good = good && ioctl(sock, SIOCSIFNETMASK, &r) == 0;
    r.ifr_mtu = (int)mtu;
    good = good && ioctl(sock, SIOCSIFMTU, &r) == 0;
    r.ifr_qlen = DEVICE_QUEUE;
    good = good && ioctl(sock, SIOCSIFTXQLEN, &r) == 0 && bring_up(sock, DEVICE);
    route.rt_dst = route.rt_genmask = route.rt_gateway = address(zero);
    good = good && ioctl(sock, SIOCADDRT, &route) == 0;
    if (sock >= 0)
        close(sock);
    return good;
}

/* Make a host. Leaves this thread in the host's namespace. */
static enum hth_err make_host(struct hth_lab *lab, uint32_t i, char *error)
{
    struct lab_host *h = &lab->host[i];
    struct ifreq r = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", DEVICE);
    if (unshare(CLONE_NEWNET) != 0) {
        snprintf(error, HTH_LAB_ERROR_MAX,
                 "no network namespace: %s. A lab needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)",
                 strerror(errno));
        return HTH_E_UNSUPPORTED;
    }
    h->tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (h->tun < 0 || ioctl(h->tun, TUNSETIFF, &r) != 0) {
        snprintf(error, HTH_LAB_ERROR_MAX,
                 "no TUN device: /dev/net/tun: %s. Load the kernel's module 'tun', or run with the "
                 "right to use it",
                 strerror(errno));
        return HTH_E_UNSUPPORTED;
    }
    h->ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (h->ns < 0 || !set_up_device(i, lab->mtu)) {
        snprintf(error, HTH_LAB_ERROR_MAX, "host %s: its device: %s", h->name, strerror(errno));
        return HTH_E_IO;
    }
    return HTH_OK;
}

/* ---- the lab ------------------------------------------------------------------------------- */

static struct hth_link link_of(const struct hth_lab_spec_link *l)
{
    return (struct hth_link){.latency_us = (int64_t)(l->latency_ms * 1000 + 0.5),
                             .jitter_us = (int64_t)(l->jitter_ms * 1000 + 0.5),
                             .jitter = l->jitter,
                             .loss = l->loss};
}

static struct hth_lab_emu *emu_of(const struct hth_lab_spec *spec)
{
    struct hth_lab_emu *emu = hth_lab_emu_new(spec->seed, spec->host_count);
    struct hth_link usual = link_of(&spec->link);
    for (uint32_t i = 0; i < spec->host_count; i++) {
        const struct hth_lab_spec_host *h = &spec->hosts[i];
        struct hth_lab_line line = {.up_bytes_per_s = h->up_mbit * 125e3,
                                    .down_bytes_per_s = h->down_mbit * 125e3,
                                    .queue_bytes = HTH_LAB_QUEUE_BYTES};
        if (h->queue_kib > 0)
            line.queue_bytes = h->queue_kib << 10;
        hth_lab_emu_line(emu, i, &line);
        for (uint32_t j = 0; j < spec->host_count; j++)
            hth_lab_emu_way(emu, i, j, &usual);
    }
    for (uint32_t i = 0; i < spec->way_count; i++) {
        const struct hth_lab_spec_way *w = &spec->ways[i];
        struct hth_link link = link_of(&w->link);
        hth_lab_emu_way(emu, hth_lab_find(spec, w->from), hth_lab_find(spec, w->to), &link);
    }
    return emu;
}

enum hth_err hth_lab_new(const struct hth_lab_spec *spec, struct hth_lab **out,
                         char error[HTH_LAB_ERROR_MAX])
{
    *out = NULL;
    HTH_TRY(hth_lab_check(spec, error, HTH_LAB_ERROR_MAX));
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (own < 0) {
        snprintf(error, HTH_LAB_ERROR_MAX, "no /proc/self/ns/net: %s", strerror(errno));
        return HTH_E_UNSUPPORTED;
    }
    struct hth_lab *lab = hth_new(struct hth_lab);
    lab->count = spec->host_count;
    lab->mtu = spec->mtu > 0 ? spec->mtu : HTH_LAB_MTU;
    lab->host = hth_new_array(struct lab_host, lab->count);
    for (uint32_t i = 0; i < lab->count; i++)
        lab->host[i] = (struct lab_host){hth_strdup(spec->hosts[i].name), -1, -1};
    lab->emu = emu_of(spec);
    enum hth_err err = HTH_OK;
    for (uint32_t i = 0; i < lab->count && err == HTH_OK; i++)
        err = make_host(lab, i, error);
    if (setns(own, CLONE_NEWNET) != 0 && err == HTH_OK) {
        snprintf(error, HTH_LAB_ERROR_MAX, "back to our own namespace: %s", strerror(errno));
        err = HTH_E_IO;
    }
    close(own);
    if (err != HTH_OK)
        hth_lab_free(lab);
    else
        *out = lab;
    return err;
}

void hth_lab_free(struct hth_lab *lab)
{
    if (lab == NULL)
        return;
    for (uint32_t i = 0; i < lab->count; i++) {
        if (lab->host[i].tun >= 0)
            close(lab->host[i].tun);
        if (lab->host[i].ns >= 0)
            close(lab->host[i].ns);
        hth_free(lab->host[i].name);
    }
    hth_lab_emu_free(lab->emu);
    hth_free(lab->host);
    hth_free(lab);
}

/* ---- living there -------------------------------------------------------------------------- */

/* Set NETLAB to "name:descriptor name:descriptor ...", by the descriptors of the lab's first
 * process. */
void hth_lab_name_hosts(const struct hth_lab *lab)
{
    char *text = hth_strdup("");
    for (uint32_t i = 0; i < lab->count; i++) {
        char *longer = hth_asprintf("%s%s:%d ", text, lab->host[i].name, lab->host[i].ns);
        hth_free(text);
        text = longer;
    }
    setenv(ENVIRONMENT, text, 1);
    hth_free(text);
}

enum hth_err hth_lab_enter_index(struct hth_lab *lab, uint32_t host)
{
    if (host >= lab->count)
        return HTH_E_NOT_FOUND;
    return setns(lab->host[host].ns, CLONE_NEWNET) == 0 ? HTH_OK : HTH_E_IO;
}

enum hth_err hth_lab_enter(const char *host)
{
    const char *at = getenv(ENVIRONMENT);
    size_t len = strlen(host);
    char path[64];
    if (at == NULL)
        return HTH_E_CLOSED;
    while (*at != '\0' && !(strncmp(at, host, len) == 0 && at[len] == ':')) {
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    if (*at == '\0' || len == 0)
        return HTH_E_NOT_FOUND;
    snprintf(path, sizeof(path), "/proc/1/fd/%.*s", (int)strcspn(at + len + 1, " "), at + len + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool there = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    if (fd >= 0)
        close(fd);
    return there ? HTH_OK : HTH_E_IO;
}
