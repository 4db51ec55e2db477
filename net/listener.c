/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.c: accepting connections, within the limits, in the door's turns (door.c).
 *
 * A connection beyond a limit is accepted and closed at once, or replaces one whose handshake is
 * not complete. Left in the backlog it would keep the listener readable and the other side waiting.
 * When the process is out of file descriptors, the listener pauses for REST_US instead of spinning.
 */
#define _GNU_SOURCE
#include "net/net_int.h"

#include "core/map.h"
#include "core/mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connections that a listener takes in a turn of the door. */
#define ACCEPT_BATCH 8
#define BACKLOG      4096 /* a crowd's first packets; the kernel may allow fewer */
#define REST_US      100000

struct addr_count {
    uint32_t streams;
};

/* The unit of the limit per address: an IPv4 address, or an IPv6 /64, because a home has a whole
 * /64. */
struct origin {
    uint8_t family, net[8];
};

static struct origin origin_of(const struct hth_addr *addr)
{
    struct origin o = {.family = addr->family};
    memcpy(o.net, addr->ip, sizeof(o.net)); /* for IPv4 the rest is zero */
    return o;
}

bool hth_net_addr_take(struct hth_net *net, const struct hth_addr *addr)
{
    const struct origin o = origin_of(addr);
    struct addr_count *c = hth_map_get(net->per_addr, &o, sizeof(o));
    if (c == NULL) {
        c = hth_new(struct addr_count);
        hth_map_put(net->per_addr, &o, sizeof(o), c);
    }
    if (c->streams >= net->opts.streams_per_addr_max)
        return false;
    c->streams++;
    return true;
}

void hth_net_addr_give(struct hth_net *net, const struct hth_addr *addr)
{
    const struct origin o = origin_of(addr);
    struct addr_count *c = hth_map_get(net->per_addr, &o, sizeof(o));
    HTH_ASSERT(c != NULL && c->streams > 0);
    if (--c->streams == 0)
        hth_free(hth_map_del(net->per_addr, &o, sizeof(o)));
}

/* Cuts the oldest accepted streams whose handshake is not complete. Otherwise an attacker that
 * opens enough silent connections would keep all others out. It cuts several at once, because the
 * search walks over all streams. Returns false when every accepted stream has a proven key. */
static bool make_room(struct hth_net *net)
{
    uint32_t most = HTH_MAX(net->opts.streams_max / 64, 1u), cut = 0;
    struct hth_stream *s = net->streams, *prev;
    while (s != NULL && s->next != NULL)
        s = s->next;
    for (; s != NULL && cut < most; s = prev) {
        prev = s->prev; /* newer ones are in front */
        if (s->dialed || s->state != HTH_NET_HANDSHAKE)
            continue;
        hth_metric_add(net->m_refused, 1);
        hth_net_stream_cut(s);
        cut++;
    }
    return cut > 0;
}

static void take_one(struct hth_listener *l, int fd, const struct sockaddr_storage *ss)
{
    struct hth_net *net = l->net;
    struct hth_addr addr;
    char text[HTH_ADDR_TEXT_MAX];
    if (!hth_net_addr_of(ss, &addr)) {
        close(fd);
        return;
    }
    bool room = hth_net_addr_take(net, &addr);
    if (room && net->stream_count >= net->opts.streams_max && !make_room(net)) {
        hth_net_addr_give(net, &addr);
        room = false;
    }
    if (!room) {
        hth_metric_add(net->m_refused, 1);
        HTH_LOG(&net->env, HTH_WARN, HTH_SUB_NET,
                "%s: connection dropped: the limit of streams is reached",
                hth_addr_text(&addr, text));
        close(fd);
        return;
    }
    hth_net_stream_accepted(l, fd, &addr);
}

static void rest(struct hth_listener *l)
{
    struct timeval tv = {.tv_sec = 0, .tv_usec = REST_US};
    HTH_LOG(&l->net->env, HTH_WARN, HTH_SUB_NET,
            "can't accept connections: out of file descriptors or memory; pausing for 100 ms "
            "(raise `ulimit -n`)");
    event_add(&l->retry, &tv);
}

static void accept_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_listener *l = arg;
    (void)fd;
    (void)what;
    event_del(&l->event);
    l->waits = true;
    hth_net_door_wake(l->net);
}

static void take(struct hth_listener *l)
{
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        struct sockaddr_storage ss;
        socklen_t len = sizeof(ss);
        int fd = accept4(l->fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            take_one(l, fd, &ss);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        l->waits = false;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            rest(l);
        else
            event_add(&l->event, NULL); /* the backlog is empty */
        return;
    }
}

bool hth_net_listeners_take(struct hth_net *net)
{
    bool more = false;
    for (struct hth_listener *l = net->listeners; l != NULL; l = l->next) {
        if (l->waits)
            take(l);
        more |= l->waits;
    }
    return more;
}

static void retry_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_listener *l = arg;
    (void)fd;
    (void)what;
    event_add(&l->event, NULL);
}

static enum hth_err bind_err(int e)
{
    switch (e) {
    case EADDRINUSE:
        return HTH_E_ADDR_IN_USE;
    case EACCES:
    case EPERM:
        return HTH_E_PERMISSION;
    case EMFILE:
    case ENFILE:
        return HTH_E_BUDGET;
    case EAFNOSUPPORT:
        return HTH_E_UNSUPPORTED;
    default:
        return HTH_E_UNREACHABLE;
    }
}

/* `[::]` listens in both families (hth_net_addr_of turns mapped addresses into IPv4); any other
 * IPv6 address takes IPv6 only. */
enum hth_err hth_net_listen_socket(const struct hth_addr *addr, int *out)
{
    struct sockaddr_storage ss;
    socklen_t len = hth_net_sockaddr(addr, &ss);
    int one = 1, only_6 = hth_addr_scope(addr) != HTH_SCOPE_NONE;
    if (len == 0)
        return HTH_E_UNSUPPORTED;
    int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return bind_err(errno);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (addr->family == 6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_6, sizeof(only_6));
    if (bind(fd, (struct sockaddr *)&ss, len) != 0 || listen(fd, BACKLOG) != 0) {
        enum hth_err err = bind_err(errno);
        close(fd);
        return err;
    }
    *out = fd;
    return HTH_OK;
}

enum hth_err hth_net_listen(struct hth_env *env, const struct hth_addr *addr, hth_accept_fn *fn,
                            void *arg, struct hth_listener **out)
{
    struct hth_net *net = hth_net_of(env);
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    int fd;

    *out = NULL;
    HTH_TRY(hth_net_listen_socket(addr, &fd));
    struct hth_listener *l = hth_new(struct hth_listener);
    l->net = net;
    l->fd = fd;
    l->fn = fn;
    l->arg = arg;
    l->addr = *addr;
    if (getsockname(fd, (struct sockaddr *)&ss, &len) == 0)
        (void)hth_net_addr_of(&ss, &l->addr);
    event_assign(&l->event, net->base, fd, EV_READ | EV_PERSIST, accept_cb, l);
    event_assign(&l->retry, net->base, -1, 0, retry_cb, l);
    event_add(&l->event, NULL);
    l->next = net->listeners;
    if (l->next != NULL)
        l->next->prev = l;
    net->listeners = l;
    *out = l;
    return HTH_OK;
}

void hth_net_listener_addr(struct hth_listener *l, struct hth_addr *out)
{
    *out = l->addr;
}

void hth_net_listener_free(struct hth_listener *l)
{
    struct hth_net *net = l->net;
    /* Cuts connections whose handshake is not complete: their accept callback is gone. */
    for (struct hth_stream *s = net->streams, *next; s != NULL; s = next) {
        next = s->next;
        if (s->listener == l)
            hth_net_stream_cut(s);
    }
    if (l->prev != NULL)
        l->prev->next = l->next;
    else
        net->listeners = l->next;
    if (l->next != NULL)
        l->next->prev = l->prev;
    event_del(&l->event);
    event_del(&l->retry);
    close(l->fd);
    hth_free(l);
}
