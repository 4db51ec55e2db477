/* SPDX-License-Identifier: Apache-2.0 */
/* test_http.c: the status page: pages served, and requests refused. */
#define _GNU_SOURCE
#include "net/pair.h"

#include "net/http.h"
#include "net/http_request.h"
#include "support/suite.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

struct visit {
    int fd;
    char text[65536];
    size_t len;
    bool over;
};

static int times_refreshed;

static char *status(void *arg)
{
    return hth_asprintf("{\"n\":%d}", *(int *)arg);
}

static char *trouble(void *arg)
{
    return *(int *)arg < 0 ? hth_strdup("the disk is full") : NULL;
}

static void refresh(void *arg)
{
    (void)arg;
    times_refreshed++;
}

static const struct hth_http_ops OPS = {status, trouble, refresh};

static bool visit_over(struct stream_pair *p)
{
    struct visit *v = p->user;
    for (;;) {
        ssize_t n = recv(v->fd, v->text + v->len, sizeof(v->text) - 1 - v->len, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n <= 0)
            return true;
        v->len += (size_t)n;
        v->text[v->len] = '\0';
    }
}

/* One request over a fresh connection; the reply is in v->text. */
static void visit(struct stream_pair *p, struct visit *v, const struct hth_addr *addr,
                  const char *request)
{
    struct sockaddr_in sin = {.sin_family = AF_INET,
                              .sin_port = htons(addr->port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memset(v, 0, sizeof(*v));
    p->user = v;
    v->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(v->fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    assert_int_equal(send(v->fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    pair_run(p, visit_over);
    close(v->fd);
}

static void get(struct stream_pair *p, struct visit *v, const struct hth_addr *addr,
                const char *path, const char *host)
{
    char request[256];
    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
             path, host);
    visit(p, v, addr, request);
}

TEST(serves_local_pages)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_addr addr = {.family = 4, .ip = {127, 0, 0, 1}};
    static struct visit v;
    struct hth_http *http;
    struct stream_pair p;
    int n = 42;
    (void)state;
    pair_open(&p, &opts);
    assert_ok(hth_http_new(p.env, &addr, &OPS, &n, &http));
    hth_http_addr(http, &addr);
    assert_true(addr.port != 0);
    get(&p, &v, &addr, "/health", "127.0.0.1:1");
    assert_non_null(strstr(v.text, "200 OK"));
    assert_non_null(strstr(v.text, "\r\n\r\nok\n"));
    n = -1;
    get(&p, &v, &addr, "/health", "127.0.0.1:1");
    assert_non_null(strstr(v.text, " 503 Service Unavailable"));
    assert_non_null(strstr(v.text, "\r\n\r\nthe disk is full\n"));
    n = 42;
    assert_int_equal(times_refreshed, 0);
    hth_info(p.env->metrics, "hearth_build_info", "The program", "version", "1.2.3");
    get(&p, &v, &addr, "/metrics", "localhost");
    assert_non_null(strstr(v.text, "\nhearth_net_streams 0"));
    assert_non_null(strstr(v.text, "# TYPE hearth_build_info gauge\n"
                                   "hearth_build_info{version=\"1.2.3\"} 1\n"));
    assert_int_equal(times_refreshed, 1);
    hth_metric_set(hth_gauge(p.env->metrics, "start_seconds", "Unix time"), 1795746791.25);
    get(&p, &v, &addr, "/metrics", "localhost");
    assert_non_null(strstr(v.text, "\nstart_seconds 1795746791.25\n"));
    get(&p, &v, &addr, "/status.json", "[::1]:80");
    assert_non_null(strstr(v.text, "application/json"));
    assert_non_null(strstr(v.text, "\r\n\r\n{\"n\":42}"));
    get(&p, &v, &addr, "/", "LOCALHOST:8");
    static const char *const pages[] = {"/health", "/metrics", "/status.json"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(pages); i++)
        assert_non_null(strstr(v.text, pages[i]));
    struct hth_blob *hello = hth_blob_copy("<p>hello</p>", 12);
    hth_http_put(http, "/", "text/html", hello, NULL);
    hth_blob_unref(hello);
    get(&p, &v, &addr, "/", "LOCALHOST:8");
    assert_non_null(strstr(v.text, "<p>hello</p>"));
    get(&p, &v, &addr, "/", "127.7.8.9:80"); /* --status may name any loopback address */
    assert_non_null(strstr(v.text, "<p>hello</p>"));
    get(&p, &v, &addr, "/", "[::1]:80");
    assert_non_null(strstr(v.text, "<p>hello</p>"));
    get(&p, &v, &addr, "/none", "localhost");
    assert_non_null(strstr(v.text, " 404 "));
    hth_http_free(http);
    pair_close(&p);
}

TEST(refuses_foreign_hosts_and_large_headers)
{
    static const char *const foreign[] = {
        "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "",      "localhostx",
        "128.0.0.1",    "127.0.0.1x:80",          "127.evil.example",       "[::2]", "[::1]x",
        "[::1"};
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_addr addr = {.family = 4, .ip = {127, 0, 0, 1}}, outside = {.family = 4};
    static struct visit v;
    struct hth_http *http, *second;
    struct stream_pair p;
    int n = 7;
    (void)state;
    pair_open(&p, &opts);
    assert_err(HTH_E_PERMISSION, hth_http_new(p.env, &outside, &OPS, &n, &http));
    outside.family = 6;
    assert_err(HTH_E_PERMISSION, hth_http_new(p.env, &outside, &OPS, &n, &http));
    assert_null(http);
    assert_ok(hth_http_new(p.env, &addr, &OPS, &n, &http));
    hth_http_addr(http, &addr);
    assert_err(HTH_E_ADDR_IN_USE, hth_http_new(p.env, &addr, &OPS, &n, &second));
    for (size_t i = 0; i < HTH_ARRAY_LEN(foreign); i++) {
        get(&p, &v, &addr, "/status.json", foreign[i]);
        assert_null(strstr(v.text, "{\"n\""));
        assert_null(strstr(v.text, "200 OK"));
    }
    visit(&p, &v, &addr,
          "POST /status.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
          "Content-Length: 0\r\n\r\n");
    assert_null(strstr(v.text, "{\"n\""));
    /* Headers beyond their limit end the connection. */
    static char big[20000];
    int at = snprintf(big, sizeof(big), "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
    memset(big + at, 'x', 12000);
    strcpy(big + at + 12000, "\r\n\r\n");
    visit(&p, &v, &addr, big);
    assert_null(strstr(v.text, "200 OK"));
    hth_http_free(http);
    pair_close(&p);
}

/* ---- requests ------------------------------------------------------------------------------- */

TEST(requests_are_read_as_documented)
{
#define L "Host: localhost\r\n"
    static const struct {
        const char *text;
        int status; /* 0: more is needed */
        bool head, gzip, keep;
        const char *path;
    } rows[] = {
        {"GET / HTTP/1.1\r\n" L "\r\n", 200, false, false, true, "/"},
        {"GET / HTTP/1.1\n" L "\n", 200, false, false, true, "/"},
        {"HEAD /run.json?a=/.. HTTP/1.1\r\n" L "\r\n", 200, true, false, true, "/run.json"},
        {"GET /a HTTP/1.0\r\n\r\n", 200, false, false, false, "/a"},
        {"GET /a HTTP/1.1\r\n" L "connection: x, Close\r\n\r\n", 200, false, false, false, "/a"},
        {"GET /a HTTP/1.1\r\n" L "Accept-Encoding: br, GZIP\r\n\r\n", 200, false, true, true, "/a"},
        {"GET /a HTTP/1.1\r\n" L "Accept-Encoding: gzip;q=0.5\r\n\r\n", 200, false, true, true,
         "/a"},
        {"GET /a HTTP/1.1\r\n" L "Accept-Encoding: gzip; q=0.0\r\n\r\n", 200, false, false, true,
         "/a"},
        {"GET /a HTTP/1.1\r\n" L "Accept-Encoding: notgzip\r\n\r\n", 200, false, false, true, "/a"},
        {"GET /../etc/passwd HTTP/1.1\r\n" L "\r\n", 200, false, false, true, "/../etc/passwd"},
        {"GET / HTTP/1.1\r\n" L "Content-Length: 0\r\n\r\n", 200, false, false, true, "/"},
        {"", 0, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n" L "\r", 0, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n\r\n", 400, false, false, false, NULL}, /* no Host */
        {"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 400, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n" L L "\r\n", 400, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n" L " folded\r\n\r\n", 400, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n" L "no colon\r\n\r\n", 400, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n" L "a b: c\r\n\r\n", 400, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n" L "a: \001\r\n\r\n", 400, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n" L "a: b\rc\r\n\r\n", 400, false, false, false, NULL},
        {"GET http://a/ HTTP/1.1\r\n" L "\r\n", 400, false, false, false, NULL},
        {"GET ?a HTTP/1.1\r\n" L "\r\n", 400, false, false, false, NULL},
        {"GET  / HTTP/1.1\r\n" L "\r\n", 400, false, false, false, NULL},
        {"GET / HTTP/1.1 x\r\n" L "\r\n", 400, false, false, false, NULL},
        {"GET /\r\n\r\n", 400, false, false, false, NULL},
        {"\026\003\001\002", 400, false, false, false, NULL}, /* TLS */
        {"POST / HTTP/1.1\r\n" L "\r\n", 405, false, false, false, NULL},
        {"OPTIONS * HTTP/1.1\r\n" L "\r\n", 405, false, false, false, NULL},
        {"get / HTTP/1.1\r\n" L "\r\n", 400, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n" L "Content-Length: 1\r\n\r\nx", 413, false, false, false, NULL},
        {"GET / HTTP/1.1\r\n" L "Transfer-Encoding: chunked\r\n\r\n", 413, false, false, false,
         NULL},
        {"GET / HTTP/2\r\n" L "\r\n", 505, false, false, false, NULL},
    };
    struct hth_http_request r;
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(rows); i++) {
        int status = hth_http_request_read(rows[i].text, strlen(rows[i].text), &r);
        if (status != rows[i].status)
            fail_msg("%s: %d, not %d", rows[i].text, status, rows[i].status);
        if (status != 200)
            continue;
        assert_string_equal(r.path, rows[i].path);
        assert_int_equal(r.head, rows[i].head);
        assert_int_equal(r.gzip, rows[i].gzip);
        assert_int_equal(r.keep, rows[i].keep);
        assert_int_equal(r.bytes, strlen(rows[i].text));
    }
#undef L
}

/* ---- a public page -------------------------------------------------------------------------- */

#define ASK "GET /run.json HTTP/1.1\r\nHost: example.org\r\n"

struct site {
    struct stream_pair p;
    struct hth_http *http;
    struct hth_addr addr;
    struct visit v;
};

static void site_open(struct site *s)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    memset(s, 0, sizeof(*s));
    s->addr = (struct hth_addr){.family = 4, .ip = {127, 0, 0, 1}};
    pair_open(&s->p, &opts);
    assert_ok(hth_http_new_public(s->p.env, &s->addr, &s->http));
    hth_http_addr(s->http, &s->addr);
    struct hth_blob *plain = hth_blob_copy("{\"run\":1}", 9), *gzip = hth_blob_copy("zip!", 4);
    hth_http_put(s->http, "/run.json", "application/json", plain, gzip);
    hth_blob_unref(plain);
    hth_blob_unref(gzip);
}

static void site_close(struct site *s)
{
    hth_http_free(s->http);
    pair_close(&s->p);
}

/* A connection from 127.0.b.1. */
static int dial(const struct site *s, uint8_t b)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(s->addr.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK + ((uint32_t)b << 8))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static void ask(int fd, const char *request)
{
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
}

static uint32_t count(const char *text, const char *what)
{
    uint32_t n = 0;
    for (; (text = strstr(text, what)) != NULL; text++)
        n++;
    return n;
}

/* Runs until the server closes this connection; the bytes are in s->v.text. */
static const char *read_all(struct site *s, int fd)
{
    memset(&s->v, 0, sizeof(s->v));
    s->v.fd = fd;
    s->p.user = &s->v;
    pair_run(&s->p, visit_over);
    close(fd);
    return s->v.text;
}

TEST(a_public_page_serves_what_was_put)
{
    static struct site s;
    const char *text;
    char etag[64];
    (void)state;
    site_open(&s);
    int fd = dial(&s, 0);
    /* Three requests in one packet, the last one ends it. */
    ask(fd, ASK "\r\n" ASK "Accept-Encoding: gzip\r\n\r\nHEAD /run.json HTTP/1.0\r\n\r\n");
    text = read_all(&s, fd);
    assert_int_equal(count(text, "HTTP/1.1 200 OK"), 3);
    assert_int_equal(count(text, "{\"run\":1}"), 1);
    assert_int_equal(count(text, "Content-Encoding: gzip\r\n"), 1);
    assert_int_equal(count(text, "\r\n\r\nzip!"), 1);
    assert_int_equal(count(text, "Content-Length: 9"), 2);
    assert_int_equal(count(text, "Content-Security-Policy: default-src 'self'"), 3);
    const char *at = strstr(text, "ETag: ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "ETag: %60s", etag), 1);
    char request[300];
    snprintf(request, sizeof(request), ASK "If-None-Match: %s\r\nConnection: close\r\n\r\n", etag);
    fd = dial(&s, 0);
    ask(fd, request);
    text = read_all(&s, fd);
    assert_int_equal(count(text, "HTTP/1.1 304 "), 1);
    assert_int_equal(count(text, "Content-Length: 9\r\n"), 1); /* as of the page */
    assert_int_equal(count(text, "run\":"), 0);
    /* Neither the index nor the program's own pages, nor any file. */
    static const char *const none[] = {
        "/", "/metrics", "/health", "/status.json", "/../run.json", "/%72un.json", "/run.json/"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(none); i++) {
        snprintf(request, sizeof(request), "GET %s HTTP/1.0\r\n\r\n", none[i]);
        fd = dial(&s, (uint8_t)(i + 1));
        ask(fd, request);
        assert_int_equal(count(read_all(&s, fd), "HTTP/1.1 404 "), 1);
    }
    site_close(&s);
}

TEST(refusals_name_their_cause)
{
    static struct site s;
    static char big[1 << 20];
    (void)state;
    site_open(&s);
    int at = snprintf(big, sizeof(big), ASK "X: ");
    memset(big + at, 'x', sizeof(big) - 1 - (size_t)at);
    int fd = dial(&s, 1);
    size_t sent = 0;
    /* As much as the socket takes: the server reads on for a moment after it refused. */
    ssize_t n;
    while (sent < sizeof(big) - 1 &&
           (n = send(fd, big + sent, sizeof(big) - 1 - sent, MSG_NOSIGNAL | MSG_DONTWAIT)) > 0)
        sent += (size_t)n;
    assert_int_equal(count(read_all(&s, fd), "HTTP/1.1 431 "), 1);
    fd = dial(&s, 2);
    ask(fd, "PUT /run.json HTTP/1.1\r\nHost: a\r\n\r\n" ASK "\r\n");
    assert_int_equal(count(read_all(&s, fd), "HTTP/1.1 405 "), 1); /* and nothing after it */
    assert_int_equal(count(s.v.text, "HTTP/1.1"), 1);
    assert_int_equal(count(s.v.text, "Allow: GET, HEAD\r\n"), 1);
    fd = dial(&s, 3);
    ask(fd, ASK "\r\n\r\n\001\002 rubbish\r\n\r\n");
    assert_int_equal(count(read_all(&s, fd), "HTTP/1.1 200 "), 1);
    assert_int_equal(count(s.v.text, "HTTP/1.1 400 "), 1);
    site_close(&s);
}

TEST(one_network_prefix_gets_its_share)
{
    static struct site s;
    const struct hth_http_limits limits = {.conns = 5,
                                           .prefix_conns = 2,
                                           .prefix_per_s = 0.5, /* four at once */
                                           .request_us = 60 * HTH_US_PER_S,
                                           .read_us = 60 * HTH_US_PER_S};
    struct hth_http_stats stats;
    int fd[5];
    (void)state;
    site_open(&s);
    hth_http_limit(s.http, &limits);
    for (int i = 0; i < 4; i++)
        fd[i] = dial(&s, i < 2 ? 7 : (uint8_t)(8 + i));
    assert_int_equal(count(read_all(&s, dial(&s, 7)), "HTTP/1.1 429 "), 1);
    fd[4] = dial(&s, 20);
    assert_int_equal(count(read_all(&s, dial(&s, 21)), "HTTP/1.1 503 "), 1);
    hth_http_stats(s.http, &stats);
    assert_int_equal(stats.conns, 5);
    assert_int_equal(stats.refused_conns, 2);
    /* The next one is served when another has gone. */
    close(fd[4]);
    int late = -1;
    for (int i = 0; late < 0 && i < 100; i++) {
        late = dial(&s, 22);
        ask(late, "GET /run.json HTTP/1.0\r\n\r\n");
        if (count(read_all(&s, late), "HTTP/1.1 200 ") == 0)
            late = -1;
    }
    assert_true(late >= 0);
    /* Five requests of one prefix, whatever the connection. */
    ask(fd[0], ASK "\r\n" ASK "\r\n");
    ask(fd[1], ASK "\r\n" ASK "\r\n" ASK "\r\n" ASK "\r\n");
    assert_int_equal(count(read_all(&s, fd[1]), "HTTP/1.1 429 "), 1);
    hth_http_stats(s.http, &stats);
    assert_int_equal(stats.refused_rate, 1);
    for (int i = 2; i < 4; i++)
        close(fd[i]);
    close(fd[0]);
    site_close(&s);
}

static bool some_slow(struct stream_pair *p)
{
    struct hth_http_stats stats;
    hth_http_stats(*(struct hth_http **)p->user, &stats);
    return stats.slow >= 3;
}

TEST(slow_readers_are_ended)
{
    static struct site s;
    const struct hth_http_limits limits = {.conns = 10,
                                           .prefix_conns = 10,
                                           .prefix_per_s = 1000,
                                           .request_us = 20 * HTH_US_PER_MS,
                                           .read_us = 20 * HTH_US_PER_MS};
    struct hth_http_stats stats;
    (void)state;
    site_open(&s);
    struct hth_blob *large = hth_blob_try_new(64 << 20);
    assert_non_null(large);
    memset(large->data, 'x', large->size);
    hth_http_put(s.http, "/large", "text/plain", large, NULL);
    hth_blob_unref(large);
    hth_http_tell(s.http, "/events", "now", "{}");
    hth_http_limit(s.http, &limits);
    int mute = dial(&s, 1), half = dial(&s, 2), slow = dial(&s, 3), reader = dial(&s, 4);
    ask(half, "GET /run.json HTTP/1.1\r\nHost: exa");
    ask(slow, "GET /large HTTP/1.0\r\n\r\n");
    ask(reader, "GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    s.p.user = &s.http;
    pair_run(&s.p, some_slow);
    hth_http_stats(s.http, &stats);
    assert_int_equal(stats.conns, 1); /* who reads events has all the time */
    assert_int_equal(stats.readers, 1);
    close(mute);
    close(half);
    close(slow);
    close(reader);
    site_close(&s);
}

static bool heard_two(struct stream_pair *p)
{
    struct site *s = p->user;
    ssize_t n = recv(s->v.fd, s->v.text + s->v.len, sizeof(s->v.text) - 1 - s->v.len, MSG_DONTWAIT);
    if (n > 0)
        s->v.len += (size_t)n;
    s->v.text[s->v.len] = '\0';
    if (count(s->v.text, "event: now\ndata: {\"seq\":1}\n\n") == 1 && !s->v.over) {
        s->v.over = true;
        hth_http_tell(s->http, "/events", "now", "{\"seq\":2}");
    }
    return count(s->v.text, "event: now\ndata: {\"seq\":2}\n\n") == 1;
}

TEST(events_come_at_once_and_as_they_are_told)
{
    static struct site s;
    (void)state;
    site_open(&s);
    hth_http_tell(s.http, "/events", "now", "{\"seq\":1}");
    s.v.fd = dial(&s, 1);
    s.p.user = &s;
    ask(s.v.fd, "GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    pair_run(&s.p, heard_two);
    assert_int_equal(count(s.v.text, "Content-Type: text/event-stream"), 1);
    assert_int_equal(count(s.v.text, "Content-Length"), 0);
    assert_int_equal(count(s.v.text, "Content-Security-Policy: default-src 'self'"), 1);
    close(s.v.fd);
    site_close(&s);
}
