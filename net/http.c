/* SPDX-License-Identifier: Apache-2.0 */
/* http.c: the status page, over libevent's evhttp; see http.h. */
#define _GNU_SOURCE
#include "net/http.h"

#include "core/mem.h"
#include "net/net_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include <event2/buffer.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>

#define HEADER_BYTES_MAX 8192
#define BODY_BYTES_MAX   1024
#define IDLE_TIMEOUT_S   10

static const char INDEX[] =
    "<!doctype html><title>hearth</title><h1>hearth</h1><ul>"
    "<li><a href=\"/health\">/health</a>: 200 while this process does its work, else 503 and why"
    "<li><a href=\"/metrics\">/metrics</a>: for Prometheus"
    "<li><a href=\"/status.json\">/status.json</a>: the same and more, as JSON</ul>\n";

struct page {
    const char *path, *content_type;
    const void *data;
    size_t len;
    struct page *next;
};

struct hth_http {
    struct hth_net *net;
    struct evhttp *server;
    struct hth_addr addr;
    const struct hth_http_ops *ops;
    void *arg;
    struct page *pages;
};

static bool is_loopback(const struct hth_addr *addr)
{
    static const uint8_t one[16] = {[15] = 1};
    return addr->family == 4 ? addr->ip[0] == 127
                             : addr->family == 6 && memcmp(addr->ip, one, sizeof(one)) == 0;
}

/* Guards against DNS rebinding: a web page may resolve a name of its own to 127.0.0.1 and read us
 * through it; its requests carry that name. */
static bool host_is_local(struct evhttp_request *req)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    const char *host = evhttp_find_header(evhttp_request_get_input_headers(req), "Host");
    if (host == NULL)
        return false;
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        size_t len = strlen(names[i]);
        if (strncasecmp(host, names[i], len) == 0 && (host[len] == '\0' || host[len] == ':'))
            return true;
    }
    return false;
}

static void answer(struct evhttp_request *req, int code, const char *content_type, const void *data,
                   size_t len)
{
    struct evbuffer *body = evbuffer_new();
    struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
    if (body == NULL || evbuffer_add(body, data, len) != 0) {
        evhttp_send_error(req, HTTP_INTERNAL, NULL);
    } else {
        evhttp_add_header(headers, "Content-Type", content_type);
        evhttp_add_header(headers, "Cache-Control", "no-store");
        evhttp_add_header(headers, "X-Content-Type-Options", "nosniff");
        evhttp_send_reply(req, code, NULL, body); /* NULL: the code's usual phrase */
    }
    if (body != NULL)
        evbuffer_free(body);
}

static void answer_text(struct evhttp_request *req, int code, const char *content_type, char *text)
{
    answer(req, code, content_type, text, strlen(text));
    hth_free(text);
}

static void answer_health(const struct hth_http *http, struct evhttp_request *req)
{
    char *trouble = http->ops->trouble != NULL ? http->ops->trouble(http->arg) : NULL;
    char *text = hth_asprintf("%s\n", trouble != NULL ? trouble : "ok");
    answer_text(req, trouble != NULL ? HTTP_SERVUNAVAIL : HTTP_OK, "text/plain", text);
    hth_free(trouble);
}

/* False: no page has this path. */
static bool answer_page(const struct hth_http *http, struct evhttp_request *req, const char *path)
{
    for (const struct page *p = http->pages; p != NULL; p = p->next) {
        if (strcmp(path, p->path) == 0) {
            answer(req, HTTP_OK, p->content_type, p->data, p->len);
            return true;
        }
    }
    if (strcmp(path, "/") == 0)
        answer(req, HTTP_OK, "text/html; charset=utf-8", INDEX, sizeof(INDEX) - 1);
    return strcmp(path, "/") == 0;
}

static void serve(struct hth_http *http, struct evhttp_request *req)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
    const char *path = uri != NULL ? evhttp_uri_get_path(uri) : NULL;
    if (!host_is_local(req)) {
        evhttp_send_error(req, 403, "Forbidden");
        return;
    }
    if (path == NULL)
        path = "";
    if (strcmp(path, "/health") == 0) {
        answer_health(http, req);
        return;
    }
    if (http->ops->refresh != NULL)
        http->ops->refresh(http->arg);
    if (strcmp(path, "/metrics") == 0) {
        answer_text(req, HTTP_OK, "text/plain; version=0.0.4",
                    hth_metrics_prometheus(http->net->env.metrics));
        return;
    }
    if (strcmp(path, "/status.json") == 0 && http->ops->status != NULL) {
        answer_text(req, HTTP_OK, "application/json", http->ops->status(http->arg));
        return;
    }
    if (!answer_page(http, req, path))
        answer(req, HTTP_NOTFOUND, "text/plain", "nothing here\n", 13);
}

static void request_cb(struct evhttp_request *req, void *arg)
{
    struct hth_http *http = arg;
    hth_net_enter(http->net);
    serve(http, req);
    hth_net_leave(http->net);
}

enum hth_err hth_http_new(struct hth_env *env, const struct hth_addr *addr,
                          const struct hth_http_ops *ops, void *arg, struct hth_http **out)
{
    struct hth_net *net = hth_net_of(env);
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    char ip[INET6_ADDRSTRLEN];

    *out = NULL;
    if (!is_loopback(addr))
        return HTH_E_PERMISSION;
    if (inet_ntop(addr->family == 4 ? AF_INET : AF_INET6, addr->ip, ip, sizeof(ip)) == NULL)
        return HTH_E_IO;
    struct evhttp *server = evhttp_new(net->base);
    if (server == NULL)
        return HTH_E_IO;
    struct evhttp_bound_socket *bound = evhttp_bind_socket_with_handle(server, ip, addr->port);
    if (bound == NULL) {
        int code = errno;
        evhttp_free(server);
        return code == EADDRINUSE ? HTH_E_ADDR_IN_USE
               : code == EACCES   ? HTH_E_PERMISSION
                                  : HTH_E_IO;
    }
    struct hth_http *http = hth_new(struct hth_http);
    http->net = net;
    http->server = server;
    http->addr = *addr;
    http->ops = ops;
    http->arg = arg;
    if (getsockname(evhttp_bound_socket_get_fd(bound), (struct sockaddr *)&ss, &len) == 0)
        (void)hth_net_addr_of(&ss, &http->addr);
    evhttp_set_allowed_methods(server, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_max_headers_size(server, HEADER_BYTES_MAX);
    evhttp_set_max_body_size(server, BODY_BYTES_MAX);
    evhttp_set_timeout(server, IDLE_TIMEOUT_S);
    evhttp_set_gencb(server, request_cb, http);
    *out = http;
    return HTH_OK;
}

void hth_http_free(struct hth_http *http)
{
    if (http == NULL)
        return;
    evhttp_free(http->server);
    while (http->pages != NULL) {
        struct page *p = http->pages;
        http->pages = p->next;
        hth_free(p);
    }
    hth_free(http);
}

void hth_http_addr(const struct hth_http *http, struct hth_addr *out)
{
    *out = http->addr;
}

void hth_http_page(struct hth_http *http, const char *path, const char *content_type,
                   const void *data, size_t len)
{
    struct page *p = hth_new(struct page);
    p->path = path;
    p->content_type = content_type;
    p->data = data;
    p->len = len;
    p->next = http->pages;
    http->pages = p;
}
