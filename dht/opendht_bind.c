/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opendht_bind.c: lets a caller choose the address that OpenDHT's sockets listen on.
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
