/* SPDX-License-Identifier: Apache-2.0 */
/* floor.c: moves bytes between processes through plain sockets, one thread in each. */
#define _GNU_SOURCE
#include "benchmarks/reduce.h"
#include "core/mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHUNK_BYTES (256u << 10)

struct floor_link {
    int fd;
    uint64_t to_send, to_read;
};

struct hth_bench_floor {
    int listener;
    uint32_t n; /* members */
    struct floor_link link[HTH_BENCH_MEMBERS_MAX];
    uint8_t *from, *into;
    uint64_t size;
};

static struct sockaddr_in loopback(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

enum hth_err hth_bench_floor_new(struct hth_bench_floor **out, uint16_t *port)
{
    struct hth_bench_floor *f = hth_new(struct hth_bench_floor);
    struct sockaddr_in a = loopback(0);
    socklen_t len = sizeof(a);
    *out = f;
    f->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (f->listener < 0 || bind(f->listener, (struct sockaddr *)&a, len) != 0 ||
        listen(f->listener, HTH_BENCH_MEMBERS_MAX) != 0 ||
        getsockname(f->listener, (struct sockaddr *)&a, &len) != 0)
        return HTH_E_IO;
    *port = ntohs(a.sin_port);
    return HTH_OK;
}

static enum hth_err add_link(struct hth_bench_floor *f, int fd)
{
    int on = 1;
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0)
        return HTH_E_IO;
    f->link[f->n++].fd = fd;
    return HTH_OK;
}

enum hth_err hth_bench_floor_join(struct hth_bench_floor *f, uint32_t self, uint32_t n,
                                  const uint16_t *ports)
{
    for (uint32_t i = 0; i < self; i++) {
        struct sockaddr_in a = loopback(ports[i]);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        HTH_TRY(add_link(f, fd));
        if (connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0)
            return HTH_E_IO;
    }
    for (uint32_t i = self + 1; i < n; i++)
        HTH_TRY(add_link(f, accept4(f->listener, NULL, NULL, SOCK_CLOEXEC)));
    return HTH_OK;
}

static bool would_wait(ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

/* Moves as many bytes as possible without blocking. Each link has its own part of both vectors. */
static enum hth_err move(struct hth_bench_floor *f, uint32_t i, uint64_t bytes, short events)
{
    struct floor_link *l = &f->link[i];
    if ((events & POLLOUT) != 0 && l->to_send > 0) {
        size_t len = (size_t)HTH_MIN(l->to_send, (uint64_t)CHUNK_BYTES);
        const uint8_t *at = f->from + i * bytes + (bytes - l->to_send);
        ssize_t n = send(l->fd, at, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && !would_wait(n))
            return HTH_E_IO;
        l->to_send -= n > 0 ? (uint64_t)n : 0;
    }
    if ((events & (POLLIN | POLLHUP)) != 0 && l->to_read > 0) {
        size_t len = (size_t)HTH_MIN(l->to_read, (uint64_t)CHUNK_BYTES);
        ssize_t n = recv(l->fd, f->into + i * bytes + (bytes - l->to_read), len, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && !would_wait(n)))
            return HTH_E_IO;
        l->to_read -= n > 0 ? (uint64_t)n : 0;
    }
    return HTH_OK;
}

static enum hth_err make_room(struct hth_bench_floor *f, uint64_t size)
{
    if (f->size >= size)
        return HTH_OK;
    hth_aligned_free(f->from);
    hth_aligned_free(f->into);
    f->from = hth_try_aligned(size);
    f->into = hth_try_aligned(size);
    f->size = size;
    if (f->from == NULL || f->into == NULL)
        return HTH_E_NO_MEMORY;
    memset(f->from, 1, size);
    memset(f->into, 2, size);
    return HTH_OK;
}

enum hth_err hth_bench_floor_run(struct hth_bench_floor *f, uint64_t bytes)
{
    struct pollfd ready[HTH_BENCH_MEMBERS_MAX];
    HTH_TRY(make_room(f, bytes * f->n));
    for (uint32_t i = 0; i < f->n; i++)
        f->link[i].to_send = f->link[i].to_read = bytes;
    for (;;) {
        uint32_t open = 0;
        for (uint32_t i = 0; i < f->n; i++) {
            const struct floor_link *l = &f->link[i];
            short events = (short)((l->to_send > 0 ? POLLOUT : 0) | (l->to_read > 0 ? POLLIN : 0));
            ready[i] = (struct pollfd){.fd = events != 0 ? l->fd : -1, .events = events};
            open += events != 0;
        }
        if (open == 0)
            return HTH_OK;
        if (poll(ready, f->n, 60000) <= 0 && errno != EINTR)
            return HTH_E_IO;
        for (uint32_t i = 0; i < f->n; i++)
            HTH_TRY(move(f, i, bytes, ready[i].revents));
    }
}

void hth_bench_floor_free(struct hth_bench_floor *f)
{
    if (f == NULL)
        return;
    for (uint32_t i = 0; i < f->n; i++)
        close(f->link[i].fd);
    if (f->listener >= 0)
        close(f->listener);
    hth_aligned_free(f->from);
    hth_aligned_free(f->into);
    hth_free(f);
}
