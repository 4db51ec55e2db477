/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opendht_bind.c: lets a caller choose the address that OpenDHT's sockets listen on, and which of
 * the datagrams that come there OpenDHT reads.
 *
 * OpenDHT's C API takes a port and always binds to every address. This file defines bind(2) for the
 * program: the dynamic linker resolves libopendht's call to it, because the program's symbols come
 * before the C library's. It passes every call unchanged to the kernel, except on a thread that is
 * inside dht_runner_run_config with a wanted address (opendht.c): there a wildcard address of the
 * same family becomes that address, and one of the other family becomes loopback, on any port.
 *
 * The socket of the other family reaches no peer, but OpenDHT 2.4 needs it: without one family
 * every listen returns a failed token although it listens, so no cancel can end it, and every
 * watched key is queried and stored until the program ends. Where IPv6 is turned off, loopback
 * fails too, and binding to any address reaches no one.
 *
 * recvfrom(2) is defined in the same way: where a socket was bound with a door (opendht_door.h), it
 * passes over what the door does not let in.
 */
#define _DEFAULT_SOURCE /* syscall */
#include "dht/opendht_bind.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FDS     4096 /* a node's sockets are among a program's first */
#define REST_MS 10

static _Thread_local const struct hth_addr *wanted;
static _Thread_local struct hth_opendht_door *door;
static _Atomic(struct hth_opendht_door *) doors[FDS];

void hth_opendht_bind_to(const struct hth_addr *addr, struct hth_opendht_door *to)
{
    wanted = addr;
    door = to;
}

void hth_opendht_unbind(const struct hth_opendht_door *of)
{
    for (size_t fd = 0; fd < FDS; fd++)
        if (atomic_load(&doors[fd]) == of)
            atomic_store(&doors[fd], NULL);
}

static int kernel_bind(int fd, const struct sockaddr *sa, socklen_t len)
{
    if (door != NULL && fd >= 0 && fd < FDS)
        atomic_store(&doors[fd], door);
    return (int)syscall(SYS_bind, fd, sa, len);
}

static int bind4(int fd, const struct sockaddr *sa, socklen_t len)
{
    struct sockaddr_in in4;
    memcpy(&in4, sa, sizeof(in4));
    if (wanted->family == 4) {
        memcpy(&in4.sin_addr, wanted->ip, 4);
    } else {
        in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        in4.sin_port = 0;
    }
    return kernel_bind(fd, (struct sockaddr *)&in4, len);
}

static int bind6(int fd, const struct sockaddr *sa, socklen_t len)
{
    struct sockaddr_in6 in6;
    memcpy(&in6, sa, sizeof(in6));
    if (wanted->family == 6) {
        memcpy(&in6.sin6_addr, wanted->ip, 16);
    } else {
        in6.sin6_addr = in6addr_loopback;
        in6.sin6_port = 0;
    }
    int err = kernel_bind(fd, (struct sockaddr *)&in6, len);
    if (err == 0 || wanted->family == 6 || errno != EADDRNOTAVAIL)
        return err;
    in6.sin6_addr = in6addr_any;
    return kernel_bind(fd, (struct sockaddr *)&in6, len);
}

int bind(int fd, const struct sockaddr *sa, socklen_t len)
{
    if (wanted != NULL && sa->sa_family == AF_INET && len == sizeof(struct sockaddr_in))
        return bind4(fd, sa, len);
    if (wanted != NULL && sa->sa_family == AF_INET6 && len == sizeof(struct sockaddr_in6))
        return bind6(fd, sa, len);
    return kernel_bind(fd, sa, len);
}

static bool lets(struct hth_opendht_door *d, const void *data, size_t len)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return hth_opendht_door_lets(d, data, len,
                                 (int64_t)now.tv_sec * HTH_US_PER_S + now.tv_nsec / 1000);
}

/* Datagrams that are dropped come in crowds, and to wake up for each costs more than the look at
 * it: when nothing follows on one, the reader rests, and takes in one go what comes meanwhile. */
ssize_t recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *from,
                 socklen_t *from_len)
{
    static const struct timespec pause = {.tv_nsec = REST_MS * 1000000L};
    struct hth_opendht_door *d = fd >= 0 && fd < FDS ? atomic_load(&doors[fd]) : NULL;
    const socklen_t room = from_len != NULL ? *from_len : 0;
    bool dropped = false;
    for (;;) {
        ssize_t n = syscall(SYS_recvfrom, fd, buf, len, flags, from, from_len);
        if (n < 0 && dropped) {
            int err = errno;
            nanosleep(&pause, NULL);
            errno = err;
        }
        if (d == NULL || n <= 0 || lets(d, buf, (size_t)n))
            return n;
        if (from_len != NULL)
            *from_len = room;
        flags |= MSG_DONTWAIT; /* the caller knew of one datagram */
        dropped = true;
    }
}
