/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h: a small status page for the person at this machine.
 *
 *   GET /              links to the other three
 *   GET /health        200 "ok", or 503 and the program's reason
 *   GET /metrics       the environment's metrics as Prometheus text
 *   GET /status.json   the text that the program's callback returns
 *   GET <page path>    fixed bytes that the program gave (hth_http_page), in place of "/" too
 *
 * It binds loopback addresses only and answers only requests whose Host is a loopback name, so that
 * no web page in a browser can read it through a name that resolves to 127.0.0.1. It runs on the
 * environment's loop thread. The program must start it; nothing is served by default.
 */
#ifndef HTH_NET_HTTP_H
#define HTH_NET_HTTP_H

#include "core/env.h"

struct hth_http;

/* Texts are made with hth_asprintf or the like, and are freed with hth_free. Each may be NULL. */
struct hth_http_ops {
    char *(*status)(void *arg);  /* the JSON text of /status.json */
    char *(*trouble)(void *arg); /* why the program can't do its work; NULL: it can */
    void (*refresh)(void *arg);  /* before metrics are shown: sets those that nobody updates */
};

/* `ops` must outlive the server. Port 0 picks one. Errors: E_PERMISSION (not a loopback address),
 * E_ADDR_IN_USE, E_IO. */
enum hth_err hth_http_new(struct hth_env *env, const struct hth_addr *addr,
                          const struct hth_http_ops *ops, void *arg,
                          struct hth_http **out) HTH_MUST;
/* Call it before hth_net_free. NULL is fine. */
void hth_http_free(struct hth_http *http);
void hth_http_addr(const struct hth_http *http, struct hth_addr *out);

/* Serves these bytes at `path` ("/" for the first page); both must outlive the server. */
void hth_http_page(struct hth_http *http, const char *path, const char *content_type,
                   const void *data, size_t len);

#endif
