/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h: pages over HTTP/1.1, read-only, at fixed paths.
 *
 *   GET /              links to the others, or the page that the program put there
 *   GET /health        200 "ok", or 503 and the program's reason
 *   GET /metrics       the environment's metrics as Prometheus text
 *   GET /status.json   the text that the program's callback returns
 *   GET <path>         what the program put there (hth_http_put), gzip'd where the reader takes it;
 *                      304 while it has not changed
 *   GET <path>         events as they come (hth_http_tell), for as long as the reader stays
 *
 * Two kinds. A *local* page is for the person at this machine: it binds loopback addresses only and
 * answers only requests whose Host is a loopback name, so that no web page in a browser can read it
 * through a name that resolves to 127.0.0.1. A *public* page binds any address, serves only what
 * was put and told, and never asks the program's callbacks. It treats all addresses with one prefix
 * (24 bits of IPv4, 48 of IPv6) as one reader: so many connections, and so many requests a second
 * (limits.h); 429 beyond them.
 *
 * Both take at most HTH_HTTP_CONNS_MAX connections, and refuse more with 503. A connection ends
 * when no whole request came within HTH_HTTP_REQUEST_US of its start or of the last answer, when an
 * answer is not read within HTH_HTTP_READ_US, and after a request that is refused. A reader that
 * has not read an event yet gets none of the next ones. So no reader costs more than one
 * connection, one request head and a reference to bytes that all share.
 *
 * Every answer forbids the browser to load anything from elsewhere (HTH_HTTP_POLICY), to show it
 * within another page, and to guess types.
 *
 * The server runs on the environment's loop thread, and nothing is served by default.
 */
#ifndef HTH_NET_HTTP_H
#define HTH_NET_HTTP_H

#include "core/env.h"

struct hth_http;

/* Of the header Content-Security-Policy; a page that other servers hand out names it itself. */
#define HTH_HTTP_POLICY "default-src 'self'; base-uri 'none'; form-action 'none'"

/* Texts are made with hth_asprintf or the like, and are freed with hth_free. Each may be NULL. */
struct hth_http_ops {
    char *(*status)(void *arg);  /* the JSON text of /status.json */
    char *(*trouble)(void *arg); /* why the program can't do its work; NULL: it can */
    void (*refresh)(void *arg);  /* before metrics are shown: sets those that nobody updates */
};

/* Makes a local page. `ops` must outlive it. Port 0 picks one. Errors: E_PERMISSION (not a loopback
 * address, a port of root's), E_ADDR_IN_USE, E_UNREACHABLE (not this machine's), E_IO. */
enum hth_err hth_http_new(struct hth_env *env, const struct hth_addr *addr,
                          const struct hth_http_ops *ops, void *arg,
                          struct hth_http **out) HTH_MUST;
/* Makes a public page. Errors: the same, but for the first. */
enum hth_err hth_http_new_public(struct hth_env *env, const struct hth_addr *addr,
                                 struct hth_http **out) HTH_MUST;
/* Call it before hth_net_free. NULL is fine. */
void hth_http_free(struct hth_http *http);
void hth_http_addr(const struct hth_http *http, struct hth_addr *out);

/* Serves these bytes at `path`, in place of what was there, even "/". `gzip` is the same
 * compressed; NULL: there is none. Takes a reference of each. `path` and `type` are static strings.
 * At most HTH_HTTP_PAGES_MAX paths. */
void hth_http_put(struct hth_http *http, const char *path, const char *type, struct hth_blob *plain,
                  struct hth_blob *gzip);
/* Sends this to all that read the events of `path`, and at once to those that come later. `name`
 * and `data` have no line breaks. */
void hth_http_tell(struct hth_http *http, const char *path, const char *name, const char *data);

struct hth_http_stats {
    uint32_t conns, readers;                       /* now; readers of events among them */
    uint64_t answers, refused_conns, refused_rate; /* for the number, for the rate */
    uint64_t bad, slow;                            /* requests refused; ended for a time limit */
};
void hth_http_stats(const struct hth_http *http, struct hth_http_stats *out);

/* For tests: other limits than those of limits.h. */
struct hth_http_limits {
    uint32_t conns, prefix_conns;
    double prefix_per_s;
    int64_t request_us, read_us;
};
void hth_http_limit(struct hth_http *http, const struct hth_http_limits *limits);

#endif
