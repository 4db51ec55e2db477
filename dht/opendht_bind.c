/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opendht_bind.c: lets a caller decide on which address OpenDHT's sockets listen.
 *
 * OpenDHT's C API takes a port and always binds to every address. This file defines bind(2) for the
 * program: the dynamic linker resolves libopendht's call to it, as the program's symbols come
 * before the C library's. It hands every call to the kernel as it is, except on a thread that is
 * inside dht_runner_run_config with an address of its own (opendht.c): there a wildcard IPv4
 * address becomes that address, and sockets of the other family are refused, which OpenDHT takes
 * for a machine without that family.
 */
#define _DEFAULT_SOURCE /* syscall */
#include "dht/opendht_bind.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Thread_local const struct hth_addr *wanted;

void hth_opendht_bind_to(const struct hth_addr *addr)
{
    wanted = addr;
}

static int kernel_bind(int fd, const struct sockaddr *sa, socklen_t len)
{
    return (int)syscall(SYS_bind, fd, sa, len);
}

int bind(int fd, const struct sockaddr *sa, socklen_t len)
{
    struct sockaddr_in in4;
    struct sockaddr_in6 in6;
    if (wanted == NULL || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6))
        return kernel_bind(fd, sa, len);
    if ((sa->sa_family == AF_INET) != (wanted->family == 4)) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    if (sa->sa_family == AF_INET) {
        memcpy(&in4, sa, sizeof(in4));
        memcpy(&in4.sin_addr, wanted->ip, 4);
        return kernel_bind(fd, (struct sockaddr *)&in4, sizeof(in4));
    }
    memcpy(&in6, sa, sizeof(in6));
    memcpy(&in6.sin6_addr, wanted->ip, 16);
    return kernel_bind(fd, (struct sockaddr *)&in6, sizeof(in6));
}
