/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h: a small status page for the person at this machine.
 *
 *   GET /health        200 "ok"
 *   GET /metrics       the environment's metrics as Prometheus text
 *   GET /status.json   the text that the program's callback returns
 *   GET <page path>    fixed bytes that the program gave (hth_http_page)
 *
 * It binds loopback addresses only and answers only requests whose Host is a loopback name, so that
 * no web page in a browser can read it through a name that resolves to 127.0.0.1. It runs on the
 * environment's loop thread. The program must start it; nothing is served by default.
 */
#ifndef HTH_NET_HTTP_H
#define HTH_NET_HTTP_H

#include "core/env.h"

struct hth_http;

/* Returns JSON text made with hth_asprintf or the like; it is freed with hth_free. */
typedef char *hth_http_status_fn(void *arg);

/* Port 0 picks one. Errors: E_PERMISSION (not a loopback address), E_ADDR_IN_USE, E_IO. */
enum hth_err hth_http_new(struct hth_env *env, const struct hth_addr *addr,
                          hth_http_status_fn *status, void *arg, struct hth_http **out) HTH_MUST;
/* Call it before hth_net_free. NULL is fine. */
void hth_http_free(struct hth_http *http);
void hth_http_addr(const struct hth_http *http, struct hth_addr *out);

/* Serves these bytes at `path` ("/" for the first page); both must outlive the server. */
void hth_http_page(struct hth_http *http, const char *path, const char *content_type,
                   const void *data, size_t len);

#endif
