/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_request.h: reads the head of an HTTP request: the parts that http.c answers by, and nothing
 * else. There are no bodies, so a request is its head.
 *
 *     GET /run.json?x=1 HTTP/1.1\r\n        -> path "/run.json"; what follows '?' is ignored
 *     Host: 127.0.0.1:8080\r\n              -> host
 *     Accept-Encoding: br, gzip\r\n         -> gzip
 *     If-None-Match: "3f..."\r\n            -> etag, with its quotes
 *     Connection: close\r\n                 -> keep false, as for HTTP/1.0
 *     \r\n
 *
 * Refused: another method than GET and HEAD (405), another protocol (505), a body (413), more than
 * HTH_HTTP_REQUEST_BYTES_MAX (431), and what is no request (400): control characters, a folded
 * line, a header without a colon, two Hosts, none in HTTP/1.1, a path that is not absolute or
 * longer than any that is served.
 *
 * A pure function, any thread.
 */
#ifndef HTH_NET_HTTP_REQUEST_H
#define HTH_NET_HTTP_REQUEST_H

#include "core/base.h"

#define HTH_HTTP_PATH_MAX 64
#define HTH_HTTP_HOST_MAX 256
#define HTH_HTTP_ETAG_MAX 24

struct hth_http_request {
    bool head, gzip, keep;
    char path[HTH_HTTP_PATH_MAX];
    char host[HTH_HTTP_HOST_MAX]; /* "" if there is none */
    char etag[HTH_HTTP_ETAG_MAX]; /* "" if there is none, or one that we never gave */
    size_t bytes;                 /* of `data` that it takes */
};

/* Returns 200 and the request; 0: more bytes are needed; else the status to refuse it with, after
 * which the connection can't be read on. */
int hth_http_request_read(const char *data, size_t len, struct hth_http_request *out) HTH_MUST;

#endif
