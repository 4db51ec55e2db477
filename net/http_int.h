/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_int.h: the two halves of the page server.
 *
 *   http_conn.c   sockets: accepts, reads requests, sends what waits, ends what is slow or too much
 *   http.c        pages: what a request is answered
 *
 *     accepted -> reading -> answered -> reading ...        until HTH_HTTP_REQUEST_US without one
 *                    |           '-----> events             until it closes
 *                    '-> refused -> flushed -> lingers 1 s -> closed
 *
 * While an answer is on its way nothing is read, so that a reader that sends many requests waits
 * for its own answers. A refused connection is still read for a moment: else the kernel would
 * answer the bytes on their way with a reset, which takes the refusal from its reader.
 */
#ifndef HTH_NET_HTTP_INT_H
#define HTH_NET_HTTP_INT_H

#include "core/limits.h"
#include "net/http.h"
#include "net/http_request.h"
#include "net/net_int.h"

struct evbuffer;
struct http_conn;

struct http_page {
    const char *path, *type;
    struct hth_blob *plain, *gzip; /* of events: the newest one */
    char etag[HTH_HTTP_ETAG_MAX];
    bool events;
};

/* All readers with one address prefix; several prefixes may share one, as their number is bounded
 * and that of prefixes is not. */
struct http_prefix {
    uint32_t conns;
    double tokens; /* requests that it may make now */
    int64_t at_us;
};
#define HTTP_PREFIXES 4096
/* Requests at once: a page's files, for each of a home's browsers. */
#define HTTP_BURST_S 8

struct hth_http {
    struct hth_net *net;
    struct hth_addr addr;
    bool is_public;
    const struct hth_http_ops *ops; /* NULL: public */
    void *arg;
    struct hth_http_limits limits;
    struct hth_http_stats stats;

    int fd;
    struct event accept, rest;
    struct hth_timer *sweep;
    struct http_conn *conns;
    struct http_prefix *prefixes; /* HTTP_PREFIXES; NULL: local */
    uint64_t secret;              /* so that nobody chooses whose prefix is shared */
    struct http_page page[HTH_HTTP_PAGES_MAX];
    size_t page_count;
};

/* ---- http_conn.c ---------------------------------------------------------------------------- */

enum hth_err hth_http_open(struct hth_http *http) HTH_MUST;
void hth_http_shut(struct hth_http *http);
/* Sends the newest event to all readers of this page that have read the one before. */
void hth_http_tell_all(struct hth_http *http, const struct http_page *page);

/* ---- http.c --------------------------------------------------------------------------------- */

/* Adds the answer. A page of events is returned: the connection stays for it. */
const struct http_page *hth_http_answer(struct hth_http *http, struct evbuffer *out,
                                        const struct hth_http_request *req);
/* Adds an answer that ends the connection, with the status's meaning as its text. */
void hth_http_refuse(struct evbuffer *out, int status);
void hth_http_add_event(struct evbuffer *out, const struct http_page *page);

#endif
