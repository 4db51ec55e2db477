/* SPDX-License-Identifier: Apache-2.0 */
/* http.c: what a page server answers; see http.h and http_int.h. */
#define _GNU_SOURCE
#include "net/http_int.h"

#include "core/mem.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <event2/buffer.h>

static const char INDEX[] =
    "<!doctype html><title>hearth</title><h1>hearth</h1><ul>"
    "<li><a href=\"/health\">/health</a>: 200 while this process does its work, else 503 and why"
    "<li><a href=\"/metrics\">/metrics</a>: for Prometheus"
    "<li><a href=\"/status.json\">/status.json</a>: the same and more, as JSON</ul>\n";

static const struct {
    int status;
    const char *name, *text;
} STATUSES[] = {
    {200, "OK", ""},
    {304, "Not Modified", ""},
    {400, "Bad Request", "that is no HTTP request\n"},
    {403, "Forbidden", "this page is for this machine: ask by the name localhost\n"},
    {404, "Not Found", "nothing here\n"},
    {405, "Method Not Allowed", "only GET and HEAD\n"},
    {413, "Content Too Large", "a request has no body here\n"},
    {429, "Too Many Requests", "too many requests or connections from your network: wait\n"},
    {431, "Request Header Fields Too Large", "more than 8 KiB of request\n"},
    {503, "Service Unavailable", "too many connections: try again in a while\n"},
    {505, "HTTP Version Not Supported", "only HTTP/1.1 and HTTP/1.0\n"},
};

static size_t index_of(int status)
{
    size_t i = 0;
    while (STATUSES[i].status != status && i + 1 < HTH_ARRAY_LEN(STATUSES))
        i++;
    return i;
}

/* ---- answers -------------------------------------------------------------------------------- */

struct answer {
    int status;
    const char *type, *etag; /* etag NULL: may not be kept */
    bool gzip, ends, head;
    bool endless; /* the body has no length: it ends with the connection */
    size_t len;
};

static void add_head(struct evbuffer *out, const struct answer *a)
{
    evbuffer_add_printf(out,
                        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n"
                        "Content-Security-Policy: " HTH_HTTP_POLICY "; frame-ancestors 'none'\r\n"
                        "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n",
                        a->status, STATUSES[index_of(a->status)].name, a->type);
    if (!a->endless)
        evbuffer_add_printf(out, "Content-Length: %zu\r\n", a->len);
    if (a->etag != NULL)
        evbuffer_add_printf(out, "ETag: %s\r\nCache-Control: no-cache\r\nVary: Accept-Encoding\r\n",
                            a->etag);
    else
        evbuffer_add_printf(out, "Cache-Control: no-store\r\n");
    if (a->gzip)
        evbuffer_add_printf(out, "Content-Encoding: gzip\r\n");
    if (a->status == 405)
        evbuffer_add_printf(out, "Allow: GET, HEAD\r\n");
    if (a->status == 429 || a->status == 503)
        evbuffer_add_printf(out, "Retry-After: 10\r\n");
    evbuffer_add_printf(out, "%s\r\n", a->ends ? "Connection: close\r\n" : "");
}

static void add_text(struct evbuffer *out, struct answer a, const char *text)
{
    a.len = strlen(text);
    add_head(out, &a);
    if (!a.head)
        evbuffer_add(out, text, a.len);
}

void hth_http_refuse(struct evbuffer *out, int status)
{
    const struct answer a = {.status = status, .type = "text/plain", .ends = true};
    add_text(out, a, STATUSES[index_of(status)].text);
}

static void unref(const void *data, size_t len, void *blob)
{
    (void)data;
    (void)len;
    hth_blob_unref(blob);
}

static void add_blob(struct evbuffer *out, struct hth_blob *blob)
{
    if (blob->size > 0 &&
        evbuffer_add_reference(out, blob->data, blob->size, unref, hth_blob_ref(blob)) != 0)
        hth_blob_unref(blob);
}

static void add_page(struct evbuffer *out, const struct http_page *page,
                     const struct hth_http_request *req)
{
    struct answer a = {.status = 200,
                       .type = page->type,
                       .etag = page->etag,
                       .gzip = req->gzip && page->gzip != NULL,
                       .ends = !req->keep};
    struct hth_blob *blob = a.gzip ? page->gzip : page->plain;
    a.len = blob->size; /* with 304, too: of the page that the reader has */
    if (strcmp(req->etag, page->etag) == 0) {
        a.status = 304;
        a.gzip = false;
        add_head(out, &a);
        return;
    }
    add_head(out, &a);
    if (!req->head)
        add_blob(out, blob);
}

void hth_http_add_event(struct evbuffer *out, const struct http_page *page)
{
    if (page->plain != NULL)
        add_blob(out, page->plain);
}

static const struct http_page *begin_events(struct evbuffer *out, const struct http_page *page,
                                            const struct hth_http_request *req)
{
    const struct answer a = {
        .status = 200, .type = page->type, .ends = !req->head || !req->keep, .endless = true};
    add_head(out, &a);
    if (req->head)
        return NULL;
    hth_http_add_event(out, page);
    return page;
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Guards against DNS rebinding: a web page may resolve a name of its own to 127.0.0.1 and read us
 * through it; its requests carry that name. */
static bool host_is_local(const char *host)
{
    char name[HTH_HTTP_HOST_MAX];
    struct in_addr ip;
    size_t len = strcspn(host, host[0] == '[' ? "]" : ":");
    len += host[len] == ']';
    if (host[len] != '\0' && host[len] != ':')
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)len, host);
    return strcasecmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0 ||
           (inet_pton(AF_INET, name, &ip) == 1 && ntohl(ip.s_addr) >> 24 == 127);
}

static struct http_page *find_page(struct hth_http *http, const char *path)
{
    for (size_t i = 0; i < http->page_count; i++)
        if (strcmp(http->page[i].path, path) == 0)
            return &http->page[i];
    return NULL;
}

static void answer_health(const struct hth_http *http, struct evbuffer *out, struct answer a)
{
    char *trouble = http->ops->trouble != NULL ? http->ops->trouble(http->arg) : NULL;
    char *text = hth_asprintf("%s\n", trouble != NULL ? trouble : "ok");
    a.status = trouble != NULL ? 503 : 200;
    add_text(out, a, text);
    hth_free(text);
    hth_free(trouble);
}

/* The paths that the program's callbacks answer; false: it is none of them. */
static bool answer_local(const struct hth_http *http, struct evbuffer *out, const char *path,
                         struct answer a)
{
    char *text = NULL;
    a.status = 200;
    a.type = "text/plain";
    if (strcmp(path, "/health") == 0) {
        answer_health(http, out, a);
        return true;
    }
    if (http->ops->refresh != NULL)
        http->ops->refresh(http->arg);
    if (strcmp(path, "/metrics") == 0) {
        a.type = "text/plain; version=0.0.4";
        text = hth_metrics_prometheus(http->net->env.metrics);
    } else if (strcmp(path, "/status.json") == 0 && http->ops->status != NULL) {
        a.type = "application/json";
        text = http->ops->status(http->arg);
    } else if (strcmp(path, "/") == 0) {
        a.type = "text/html; charset=utf-8";
        text = hth_strdup(INDEX);
    }
    if (text != NULL)
        add_text(out, a, text);
    hth_free(text);
    return text != NULL;
}

const struct http_page *hth_http_answer(struct hth_http *http, struct evbuffer *out,
                                        const struct hth_http_request *req)
{
    const struct http_page *page = find_page(http, req->path);
    struct answer a = {.ends = !req->keep, .head = req->head, .type = "text/plain"};
    if (!http->is_public && !host_is_local(req->host)) {
        a.status = 403;
        add_text(out, a, STATUSES[index_of(a.status)].text);
    } else if (page != NULL && page->events) {
        return begin_events(out, page, req);
    } else if (page != NULL) {
        add_page(out, page, req);
    } else if (http->is_public || !answer_local(http, out, req->path, a)) {
        a.status = 404;
        add_text(out, a, STATUSES[index_of(a.status)].text);
    }
    return NULL;
}

/* ---- pages ---------------------------------------------------------------------------------- */

static struct http_page *page_at(struct hth_http *http, const char *path)
{
    struct http_page *page = find_page(http, path);
    if (page == NULL) {
        HTH_ASSERT(http->page_count < HTH_HTTP_PAGES_MAX);
        page = &http->page[http->page_count++];
        page->path = path;
    }
    return page;
}

static void replace(struct hth_blob **at, struct hth_blob *blob)
{
    hth_blob_unref(*at);
    *at = blob != NULL ? hth_blob_ref(blob) : NULL;
}

void hth_http_put(struct hth_http *http, const char *path, const char *type, struct hth_blob *plain,
                  struct hth_blob *gzip)
{
    struct http_page *page = page_at(http, path);
    page->type = type;
    replace(&page->plain, plain);
    replace(&page->gzip, gzip);
    snprintf(page->etag, sizeof(page->etag), "\"%016llx\"",
             (unsigned long long)hth_hash64(plain->data, plain->size, 0));
}

void hth_http_tell(struct hth_http *http, const char *path, const char *name, const char *data)
{
    struct http_page *page = page_at(http, path);
    char *text = hth_asprintf("event: %s\ndata: %s\n\n", name, data);
    struct hth_blob *blob = hth_blob_copy(text, strlen(text));
    page->type = "text/event-stream";
    page->events = true;
    replace(&page->plain, blob);
    hth_blob_unref(blob);
    hth_free(text);
    hth_http_tell_all(http, page);
}

/* ---- life ----------------------------------------------------------------------------------- */

static const struct hth_http_limits LIMITS = {.conns = HTH_HTTP_CONNS_MAX,
                                              .prefix_conns = HTH_HTTP_PREFIX_CONNS_MAX,
                                              .prefix_per_s = HTH_HTTP_PREFIX_PER_S,
                                              .request_us = HTH_HTTP_REQUEST_US,
                                              .read_us = HTH_HTTP_READ_US};

static bool is_loopback(const struct hth_addr *addr)
{
    static const uint8_t one[16] = {[15] = 1};
    return addr->family == 4 ? addr->ip[0] == 127
                             : addr->family == 6 && memcmp(addr->ip, one, sizeof(one)) == 0;
}

static enum hth_err open_take(struct hth_http *http, struct hth_http **out)
{
    enum hth_err err = hth_http_open(http);
    if (err != HTH_OK) {
        hth_free(http->prefixes);
        hth_free(http);
        return err;
    }
    *out = http;
    return HTH_OK;
}

static struct hth_http *make(struct hth_env *env, const struct hth_addr *addr)
{
    struct hth_http *http = hth_new(struct hth_http);
    http->net = hth_net_of(env);
    http->addr = *addr;
    http->limits = LIMITS;
    return http;
}

enum hth_err hth_http_new(struct hth_env *env, const struct hth_addr *addr,
                          const struct hth_http_ops *ops, void *arg, struct hth_http **out)
{
    *out = NULL;
    if (!is_loopback(addr))
        return HTH_E_PERMISSION;
    struct hth_http *http = make(env, addr);
    http->ops = ops;
    http->arg = arg;
    return open_take(http, out);
}

enum hth_err hth_http_new_public(struct hth_env *env, const struct hth_addr *addr,
                                 struct hth_http **out)
{
    *out = NULL;
    struct hth_http *http = make(env, addr);
    http->is_public = true;
    http->secret = hth_rng_u64(&env->rng);
    http->prefixes = hth_new_array(struct http_prefix, HTTP_PREFIXES);
    return open_take(http, out);
}

void hth_http_free(struct hth_http *http)
{
    if (http == NULL)
        return;
    hth_http_shut(http);
    for (size_t i = 0; i < http->page_count; i++) {
        hth_blob_unref(http->page[i].plain);
        hth_blob_unref(http->page[i].gzip);
    }
    hth_free(http->prefixes);
    hth_free(http);
}

void hth_http_addr(const struct hth_http *http, struct hth_addr *out)
{
    *out = http->addr;
}

void hth_http_stats(const struct hth_http *http, struct hth_http_stats *out)
{
    *out = http->stats;
}

void hth_http_limit(struct hth_http *http, const struct hth_http_limits *limits)
{
    http->limits = *limits;
    hth_timer_set(&http->net->env, http->sweep, 0);
}
