/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page.h: the status page of a peer (net/http.h), with what every process tells of itself: build,
 * start, memory, joined or not, DHT nodes known.
 *
 * /health answers 503 until the peer has joined and while its verb names a trouble. Verbs add their
 * own figures in peer->refresh. Loop thread only.
 */
#ifndef HTH_APP_PAGE_H
#define HTH_APP_PAGE_H

#include "core/base.h"

struct hth_http;
struct hth_peer;
struct hth_page;

/* Listens on this loopback address. Errors: E_USAGE (no address), those of hth_http_new. */
enum hth_err hth_page_open(struct hth_peer *peer, const char *listen,
                           struct hth_page **out) HTH_MUST;
/* To put more pages on. */
struct hth_http *hth_page_http(const struct hth_page *page);
/* Call it before hth_net_free. NULL is fine. */
void hth_page_close(struct hth_page *page);

#endif
