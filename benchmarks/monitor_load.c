/* SPDX-License-Identifier: Apache-2.0 */
/* monitor_load.c: readers of a page, each from a loopback address of its own; one thread, poll. */
#define _GNU_SOURCE
#include "benchmarks/bench.h"
#include "benchmarks/monitor.h"
#include "core/mem.h"
#include "core/order.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MAX (1u << 20)
#define EACH_US    HTH_US_PER_S /* between two requests of a reader */

struct reader {
    int fd;
    bool slow, sent;
    uint32_t number;
    int64_t asked_us, next_us; /* asked_us 0: it waits for its next turn */
    uint32_t asks;
    size_t got, want; /* bytes of the answer; want 0: its head has not come */
    char head[2048];
};

/* A connection from 127.a.b.1, begun; -1: there are no more sockets. */
static int dial(uint16_t port, uint32_t number)
{
    uint32_t prefix = 256 + number;
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(127u << 24 | prefix << 8 | 1)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&from, sizeof(from)) != 0 ||
        (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS)) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool ask(int fd, const char *path)
{
    char text[200];
    int len =
        snprintf(text, sizeof(text),
                 "GET %s HTTP/1.1\r\nHost: example.org\r\nAccept-Encoding: gzip\r\n\r\n", path);
    return send(fd, text, (size_t)len, MSG_NOSIGNAL) == len;
}

/* ---- one reader ----------------------------------------------------------------------------- */

/* Takes what came of the answer: 1: it is whole, 0: not yet, -1: it will not be. */
static int take(struct reader *r)
{
    static char bytes[65536];
    for (;;) {
        ssize_t n = recv(r->fd, bytes, sizeof(bytes), 0);
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        if (n == 0)
            return -1;
        if (r->want == 0) {
            size_t room = sizeof(r->head) - 1 - HTH_MIN(r->got, sizeof(r->head) - 1);
            memcpy(r->head + HTH_MIN(r->got, sizeof(r->head) - 1), bytes, HTH_MIN((size_t)n, room));
            const char *end = strstr(r->head, "\r\n\r\n");
            const char *length = strstr(r->head, "Content-Length: ");
            if (strncmp(r->head, "HTTP/1.1 200 ", HTH_MIN(r->got + (size_t)n, 13)) != 0)
                return -1;
            if (end != NULL && length != NULL)
                r->want = (size_t)(end + 4 - r->head) + strtoull(length + 16, NULL, 10);
        }
        r->got += (size_t)n;
        if (r->want != 0 && r->got >= r->want)
            return 1;
    }
}

/* Until the connection is there the request waits, and its time counts. */
static bool begin(struct reader *r, int64_t now)
{
    if (r->asked_us == 0)
        r->asked_us = now;
    r->got = r->want = 0;
    memset(r->head, 0, sizeof(r->head));
    r->sent = ask(r->fd, r->asks == 0 ? "/run.json" : "/now.json");
    r->asks += r->sent;
    return r->sent || errno == EAGAIN || errno == ENOTCONN;
}

/* A slow reader sends a byte in a while, or asks and does not read. */
static void be_slow(struct reader *r, int64_t now)
{
    static const char request[] = "GET /run.json HTTP/1.1\r\nHost: example.org\r\n";
    if (r->number % 2 == 0 && r->asks == 0)
        r->asks += ask(r->fd, "/run.json");
    else if (r->number % 2 == 1)
        (void)!send(r->fd, &request[r->asks++ % (sizeof(request) - 1)], 1, MSG_NOSIGNAL);
    r->next_us = now + EACH_US / 2;
}

/* ---- all of them ---------------------------------------------------------------------------- */

struct readers {
    struct reader *r;
    struct pollfd *poll;
    uint32_t count;
    double *ms;
    uint64_t answers, failed, room;
};

static void note(struct readers *all, double ms)
{
    if (all->answers == all->room) {
        all->room = HTH_MAX(2 * all->room, UINT64_C(4096));
        all->ms = hth_realloc(all->ms, all->room, sizeof(double));
    }
    all->ms[all->answers++] = ms;
}

static void turn(struct readers *all, struct reader *r, struct pollfd *p, int64_t now)
{
    if (r->fd < 0)
        return;
    if (r->slow) {
        if (now >= r->next_us)
            be_slow(r, now);
        return;
    }
    int state = 0;
    if (!r->sent && now >= r->next_us)
        state = begin(r, now) ? 0 : -1;
    else if (r->sent && (p->revents & (POLLIN | POLLERR | POLLHUP)) != 0)
        state = take(r);
    if (state == 1) {
        note(all, (double)(hth_bench_now_us(NULL) - r->asked_us) / 1e3);
        r->next_us = r->asked_us + EACH_US;
        r->asked_us = 0;
        r->sent = false;
    } else if (state < 0) {
        all->failed++;
        close(r->fd);
        r->fd = p->fd = -1;
    }
}

static bool open_all(struct readers *all, uint16_t port, const struct hth_bench_readers *how)
{
    int64_t now = hth_bench_now_us(NULL);
    for (uint32_t i = 0; i < all->count; i++) {
        struct reader *r = &all->r[i];
        r->number = i;
        r->slow = i < how->slow;
        r->fd = dial(port, i);
        all->poll[i] = (struct pollfd){.fd = r->slow ? -1 : r->fd, .events = POLLIN};
        /* At once as people are: within a second, so that no two clocks are alike. */
        r->next_us = now + (int64_t)i * EACH_US / all->count;
        if (r->fd < 0)
            return false;
    }
    return true;
}

bool hth_bench_read(uint16_t port, const struct hth_bench_readers *how, struct hth_bench_read *out)
{
    struct readers all = {.count = how->readers};
    all.r = hth_new_array(struct reader, all.count);
    all.poll = hth_new_array(struct pollfd, all.count);
    bool good = open_all(&all, port, how);
    int64_t end_us = hth_bench_now_us(NULL) + (int64_t)(how->seconds * 1e6);
    for (int64_t now; good && (now = hth_bench_now_us(NULL)) < end_us;) {
        poll(all.poll, all.count, 1);
        for (uint32_t i = 0; i < all.count; i++)
            turn(&all, &all.r[i], &all.poll[i], hth_bench_now_us(NULL));
    }
    *out = (struct hth_bench_read){.answers = all.answers, .failed = all.failed};
    if (all.answers > 0) {
        out->p50_ms = hth_kth(all.ms, all.answers, all.answers / 2);
        out->p99_ms = hth_kth(all.ms, all.answers, all.answers * 99 / 100);
    }
    for (uint32_t i = 0; i < all.count; i++)
        if (all.r[i].fd > 0)
            close(all.r[i].fd);
    hth_free(all.ms);
    hth_free(all.r);
    hth_free(all.poll);
    return good;
}

uint32_t hth_bench_crowd(uint16_t port, uint32_t sockets, uint32_t *opened)
{
    struct pollfd *all = hth_new_array(struct pollfd, sockets);
    uint32_t open = 0;
    *opened = 0;
    for (uint32_t i = 0; i < sockets; i++) {
        all[i] = (struct pollfd){.fd = dial(port, i), .events = POLLIN};
        if (all[i].fd < 0)
            break;
        ++*opened;
        poll(all, 0, i % 64 == 63 ? 1 : 0); /* the backlog is finite */
    }
    poll(all, 0, 1000);
    poll(all, *opened, 0);
    for (uint32_t i = 0; i < *opened; i++) {
        open += (all[i].revents & (POLLIN | POLLERR | POLLHUP)) == 0;
        close(all[i].fd);
    }
    hth_free(all);
    return open;
}

size_t hth_bench_get(uint16_t port, const char *path)
{
    struct reader r = {.fd = dial(port, 0)};
    struct pollfd p = {.fd = r.fd, .events = POLLOUT};
    int state = -1;
    poll(&p, 1, 5000);
    if (r.fd >= 0 && ask(r.fd, path)) {
        p.events = POLLIN;
        while ((state = take(&r)) == 0 && poll(&p, 1, 5000) == 1) {
        }
    }
    if (r.fd >= 0)
        close(r.fd);
    const char *end = strstr(r.head, "\r\n\r\n");
    return state == 1 && end != NULL ? r.want - (size_t)(end + 4 - r.head) : 0;
}

/* ---- browsers ------------------------------------------------------------------------------- */

struct hth_bench_browsers {
    struct reader *events, *pages;
    uint32_t count;
    pthread_t thread;
    int stop; /* atomic */
};

/* Events are no answers with a length: each brings one more request. */
static void *browse(void *arg)
{
    struct hth_bench_browsers *b = arg;
    static char bytes[65536];
    while (!__atomic_load_n(&b->stop, __ATOMIC_RELAXED)) {
        for (uint32_t i = 0; i < b->count; i++) {
            if (recv(b->events[i].fd, bytes, sizeof(bytes), 0) > 0)
                (void)!ask(b->pages[i].fd, "/now.json");
            while (recv(b->pages[i].fd, bytes, sizeof(bytes), 0) > 0) {
            }
        }
        usleep(100000); /* browsers are elsewhere: their work here is kept small */
    }
    return NULL;
}

struct hth_bench_browsers *hth_bench_browsers_new(uint16_t port, uint32_t count)
{
    struct hth_bench_browsers *b = hth_new(struct hth_bench_browsers);
    b->count = count;
    b->events = hth_new_array(struct reader, count);
    b->pages = hth_new_array(struct reader, count);
    bool good = true;
    for (uint32_t i = 0; i < count; i++) {
        b->events[i].fd = dial(port, i);
        b->pages[i].fd = dial(port, i);
        good = good && b->events[i].fd >= 0 && b->pages[i].fd >= 0;
    }
    usleep(200000); /* until they are connected */
    for (uint32_t i = 0; good && i < count; i++)
        good = ask(b->events[i].fd, "/events") && ask(b->pages[i].fd, "/run.json");
    HTH_ASSERT(pthread_create(&b->thread, NULL, browse, b) == 0);
    if (!good) {
        hth_bench_browsers_free(b);
        return NULL;
    }
    return b;
}

void hth_bench_browsers_free(struct hth_bench_browsers *b)
{
    if (b == NULL)
        return;
    __atomic_store_n(&b->stop, 1, __ATOMIC_RELAXED);
    pthread_join(b->thread, NULL);
    for (uint32_t i = 0; i < b->count; i++) {
        close(b->events[i].fd);
        close(b->pages[i].fd);
    }
    hth_free(b->events);
    hth_free(b->pages);
    hth_free(b);
}
