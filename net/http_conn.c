/* SPDX-License-Identifier: Apache-2.0 */
/* http_conn.c: the connections of the page server, each within its limits; see http_int.h. */
#define _GNU_SOURCE
#include "net/http_int.h"

#include "core/mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/buffer.h>

#define ACCEPT_BATCH 64
#define LINGER_US    HTH_US_PER_S
#define REST_US      100000

struct http_conn {
    struct hth_http *http;
    int fd;
    struct event read, write;
    struct evbuffer *out;
    char *part; /* of a request */
    size_t part_len;
    struct http_prefix *prefix;     /* NULL: local */
    const struct http_page *events; /* that it reads */
    int64_t until_us;               /* for a whole request, or the linger */
    int64_t unread_us;              /* since when an answer waits to be read; 0: none does */
    bool ends, lingers;             /* after the answer that waits; that is sent */
    struct http_conn *prev, *next;
};

static void drop(struct http_conn *c)
{
    struct hth_http *http = c->http;
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        http->conns = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    if (c->prefix != NULL)
        c->prefix->conns--;
    http->stats.conns--;
    http->stats.readers -= c->events != NULL;
    event_del(&c->read);
    event_del(&c->write);
    evbuffer_free(c->out);
    close(c->fd);
    hth_free(c->part);
    hth_free(c);
}

/* ---- sending -------------------------------------------------------------------------------- */

/* Sends what the socket takes; false: the connection is gone. */
static bool flush(struct http_conn *c)
{
    int64_t now = hth_now_us(&c->http->net->env);
    while (evbuffer_get_length(c->out) > 0) {
        int n = evbuffer_write(c->out, c->fd);
        if (n > 0 || (n < 0 && errno == EINTR))
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        drop(c);
        return false;
    }
    if (evbuffer_get_length(c->out) > 0) {
        event_del(&c->read);
        event_add(&c->write, NULL);
        if (c->unread_us == 0)
            c->unread_us = now;
        return true;
    }
    event_del(&c->write);
    event_add(&c->read, NULL);
    if (c->unread_us != 0)
        c->until_us = now + c->http->limits.request_us;
    c->unread_us = 0;
    if (c->ends && !c->lingers) {
        c->lingers = true;
        c->until_us = now + LINGER_US;
        shutdown(c->fd, SHUT_WR);
    }
    return true;
}

void hth_http_tell_all(struct hth_http *http, const struct http_page *page)
{
    for (struct http_conn *c = http->conns, *next; c != NULL; c = next) {
        next = c->next;
        if (c->events != page || evbuffer_get_length(c->out) > 0)
            continue;
        hth_http_add_event(c->out, page);
        (void)flush(c);
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool may_ask(struct http_conn *c)
{
    struct http_prefix *p = c->prefix;
    int64_t now = hth_now_us(&c->http->net->env);
    double per_s = c->http->limits.prefix_per_s;
    if (p == NULL)
        return true;
    p->tokens += (double)(now - p->at_us) / 1e6 * per_s;
    p->tokens = HTH_MIN(p->tokens, per_s * HTTP_BURST_S);
    p->at_us = now;
    if (p->tokens < 1)
        return false;
    p->tokens--;
    return true;
}

static void refuse(struct http_conn *c, int status)
{
    c->http->stats.refused_rate += status == 429;
    c->http->stats.bad += status != 429;
    hth_http_refuse(c->out, status);
    c->ends = true;
}

/* Answers the first request of these bytes; returns how many it took, 0: there is no whole one. */
static size_t take_request(struct http_conn *c, const char *data, size_t len)
{
    struct hth_http_request req;
    int status = hth_http_request_read(data, len, &req);
    if (status == 0)
        return 0;
    if (status == 200 && !may_ask(c))
        status = 429;
    if (status != 200) {
        refuse(c, status);
        return len;
    }
    c->http->stats.answers++;
    c->events = hth_http_answer(c->http, c->out, &req);
    c->http->stats.readers += c->events != NULL;
    c->ends = !req.keep && c->events == NULL;
    c->until_us = hth_now_us(&c->http->net->env) + c->http->limits.request_us;
    return req.bytes;
}

/* Keeps the bytes that are no request yet. */
static void keep_part(struct http_conn *c, const char *data, size_t len)
{
    char *part = len > 0 ? hth_calloc(1, len) : NULL;
    if (len > 0)
        memcpy(part, data, len);
    hth_free(c->part);
    c->part = part;
    c->part_len = len;
}

/* Answers what has come so far, one request after the other, until an answer waits to be read. */
static void take_requests(struct http_conn *c, const char *data, size_t len)
{
    size_t at = 0, n = 1;
    while (at < len && n > 0 && !c->ends && c->events == NULL) {
        n = take_request(c, data + at, len - at);
        at += n;
        if (n > 0 && !flush(c))
            return;
        if (c->unread_us != 0)
            break;
    }
    bool over = c->ends || c->events != NULL;
    keep_part(c, data + at, over ? 0 : len - at);
}

static void read_cb(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    struct hth_net *net = c->http->net;
    char data[2 * HTH_HTTP_REQUEST_BYTES_MAX];
    (void)what;
    hth_net_enter(net);
    if (c->part_len > 0)
        memcpy(data, c->part, c->part_len);
    ssize_t n = recv(fd, data + c->part_len, sizeof(data) - c->part_len, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        drop(c);
    else if (n > 0 && !c->ends && c->events == NULL)
        take_requests(c, data, c->part_len + (size_t)n);
    hth_net_leave(net);
}

static void write_cb(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    struct hth_net *net = c->http->net;
    (void)fd;
    (void)what;
    hth_net_enter(net);
    if (flush(c) && c->unread_us == 0 && c->part_len > 0) { /* requests that waited for it */
        char data[2 * HTH_HTTP_REQUEST_BYTES_MAX];
        memcpy(data, c->part, c->part_len);
        take_requests(c, data, c->part_len);
    }
    hth_net_leave(net);
}

/* ---- accepting ------------------------------------------------------------------------------ */

static struct http_prefix *prefix_of(struct hth_http *http, const struct hth_addr *addr)
{
    if (http->prefixes == NULL)
        return NULL;
    uint64_t hash = hth_hash64(addr->ip, addr->family == 4 ? 3 : 6, http->secret + addr->family);
    return &http->prefixes[hash % HTTP_PREFIXES];
}

/* Says no in one packet, and closes. */
static void turn_away(struct hth_http *http, int fd, int status)
{
    struct evbuffer *out = evbuffer_new();
    http->stats.refused_conns++;
    hth_http_refuse(out, status);
    (void)!evbuffer_write(out, fd);
    evbuffer_free(out);
    shutdown(fd, SHUT_WR);
    close(fd);
}

static void take_conn(struct hth_http *http, int fd, const struct hth_addr *addr)
{
    struct http_prefix *prefix = prefix_of(http, addr);
    int one = 1;
    if (prefix != NULL && prefix->conns >= http->limits.prefix_conns) {
        turn_away(http, fd, 429);
        return;
    }
    if (http->stats.conns >= http->limits.conns) {
        turn_away(http, fd, 503);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    struct http_conn *c = hth_new(struct http_conn);
    c->http = http;
    c->fd = fd;
    c->out = evbuffer_new();
    HTH_ASSERT(c->out != NULL);
    c->prefix = prefix;
    if (prefix != NULL)
        prefix->conns++;
    c->until_us = hth_now_us(&http->net->env) + http->limits.request_us;
    c->next = http->conns;
    if (c->next != NULL)
        c->next->prev = c;
    http->conns = c;
    http->stats.conns++;
    event_assign(&c->read, http->net->base, fd, EV_READ | EV_PERSIST, read_cb, c);
    event_assign(&c->write, http->net->base, fd, EV_WRITE | EV_PERSIST, write_cb, c);
    event_add(&c->read, NULL);
}

static void accept_cb(evutil_socket_t listen_fd, short what, void *arg)
{
    struct hth_http *http = arg;
    struct timeval rest = {.tv_usec = REST_US};
    (void)what;
    hth_net_enter(http->net);
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        struct sockaddr_storage ss;
        socklen_t len = sizeof(ss);
        struct hth_addr addr;
        int fd = accept4(listen_fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0 && hth_net_addr_of(&ss, &addr)) {
            take_conn(http, fd, &addr);
            continue;
        }
        if (fd >= 0)
            close(fd);
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            event_del(&http->accept); /* it would stay readable */
            event_add(&http->rest, &rest);
        }
        if (errno != EINTR && errno != ECONNABORTED)
            break;
    }
    hth_net_leave(http->net);
}

static void rest_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_http *http = arg;
    (void)fd;
    (void)what;
    event_add(&http->accept, NULL);
}

/* Ends the connections whose time is over. */
static void on_sweep(void *arg)
{
    struct hth_http *http = arg;
    struct hth_env *env = &http->net->env;
    int64_t now = hth_now_us(env), least = HTH_MIN(http->limits.request_us, http->limits.read_us);
    for (struct http_conn *c = http->conns, *next; c != NULL; c = next) {
        next = c->next;
        bool waits = c->unread_us == 0 && c->events == NULL;
        bool slow = (waits && now >= c->until_us) ||
                    (c->unread_us != 0 && now - c->unread_us >= http->limits.read_us);
        http->stats.slow += slow && !c->lingers;
        if (slow)
            drop(c);
    }
    hth_timer_set(env, http->sweep, HTH_MIN(least / 4, HTH_US_PER_S / 2));
}

enum hth_err hth_http_open(struct hth_http *http)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    enum hth_err err = hth_net_listen_socket(&http->addr, &http->fd);
    if (err != HTH_OK)
        return err;
    if (getsockname(http->fd, (struct sockaddr *)&ss, &len) == 0)
        (void)hth_net_addr_of(&ss, &http->addr);
    event_assign(&http->accept, http->net->base, http->fd, EV_READ | EV_PERSIST, accept_cb, http);
    event_assign(&http->rest, http->net->base, -1, 0, rest_cb, http);
    event_add(&http->accept, NULL);
    http->sweep = hth_timer_new(&http->net->env, on_sweep, http);
    hth_timer_set(&http->net->env, http->sweep, HTH_US_PER_S);
    return HTH_OK;
}

void hth_http_shut(struct hth_http *http)
{
    while (http->conns != NULL)
        drop(http->conns);
    event_del(&http->accept);
    event_del(&http->rest);
    hth_timer_free(&http->net->env, http->sweep);
    close(http->fd);
}
