/* SPDX-License-Identifier: Apache-2.0 */
/* test_http.c: the status page: pages served, and requests refused. */
#define _GNU_SOURCE
#include "net/pair.h"

#include "net/http.h"

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

static void serves_local_pages(void **state)
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
    hth_http_page(http, "/", "text/html", "<p>hello</p>", 12);
    get(&p, &v, &addr, "/", "LOCALHOST:8");
    assert_non_null(strstr(v.text, "<p>hello</p>"));
    get(&p, &v, &addr, "/none", "localhost");
    assert_non_null(strstr(v.text, " 404 "));
    hth_http_free(http);
    pair_close(&p);
}

static void refuses_foreign_hosts_and_large_headers(void **state)
{
    static const char *const foreign[] = {"evil.example", "localhost.evil.example",
                                          "127.0.0.1.evil.example", "", "localhostx"};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(serves_local_pages),
        cmocka_unit_test(refuses_foreign_hosts_and_large_headers),
    };
    return cmocka_run_group_tests_name("net http", tests, NULL, NULL);
}
