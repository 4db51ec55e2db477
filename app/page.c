/* SPDX-License-Identifier: Apache-2.0 */
/* page.c: the answers of a peer's status page, and the gauges that are read when it is asked. */
#include "app/page.h"

#include "app/peer.h"
#include "cli/json.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "core/metrics.h"
#include "dht/members.h"
#include "monitor/status_json.h"
#include "net/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct hth_page {
    struct hth_peer *peer;
    struct hth_http *http;
    struct hth_metric *memory, *joined, *dht_nodes, *run_nodes;
};

/* Linux: the second number of statm. 0 where there is no /proc. */
static double resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long total, resident = 0;
    if (file == NULL)
        return 0;
    if (fscanf(file, "%ld %ld", &total, &resident) != 2)
        resident = 0;
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static void refresh(void *arg)
{
    struct hth_page *page = arg;
    struct hth_peer *peer = page->peer;
    struct hth_dht_stats dht = {0};
    struct hth_census_stats seen = {0};
    if (peer->dht != NULL)
        hth_dht_stats(peer->dht, &dht);
    if (peer->census != NULL)
        hth_census_stats(peer->census, &seen);
    hth_metric_set(page->memory, resident_bytes());
    hth_metric_set(page->joined, peer->joined ? 1 : 0);
    hth_metric_set(page->dht_nodes, dht.nodes_good);
    hth_metric_set(page->run_nodes, seen.nodes);
    if (peer->refresh != NULL)
        peer->refresh(peer->arg);
}

static json_t *grant_json(const struct hth_peer_id *id, const struct hth_grant *grant)
{
    char text[2 * HTH_HASH_LEN + 1], roles[48];
    json_t *o = json_object();
    hth_hex(id->b, HTH_HASH_LEN, text);
    hth_json_text(o, "id", text);
    hth_json_text(o, "name", grant->name);
    hth_json_count(o, "class", grant->class);
    hth_json_text(o, "may", hth_roles_text(grant->roles, roles));
    hth_json_real(o, "until", (double)grant->until_us / 1e6);
    return o;
}

/* The members of a closed run, and refusals of this peer. */
static json_t *admission_json(const struct hth_peer *peer)
{
    struct hth_peer_id id;
    struct hth_grant grant;
    struct hth_about *about = hth_new(struct hth_about);
    json_t *o = json_object(), *members = json_array();
    bool closed = peer->admit.gate != NULL;
    hth_json_flag(o, "closed", closed);
    if (closed)
        hth_json_take(o, "own", grant_json(&peer->env->self, &peer->admit.grant));
    for (size_t it = 0; closed && hth_members_next(peer->members, &it, &id, &grant);)
        json_array_append_new(members, grant_json(&id, &grant));
    hth_peer_about(peer, about);
    hth_json_take(o, "members", members);
    hth_json_take(o, "revoked", hth_status_revoked_json(peer->admit.revoked));
    hth_json_take(o, "refused", hth_status_refused_json(about));
    hth_json_flag(o, "refuses_values", hth_about_refuses_values(about));
    hth_free(about);
    return o;
}

static char *status(void *arg)
{
    const struct hth_page *page = arg;
    const struct hth_peer *peer = page->peer;
    char *own = peer->status_json != NULL ? peer->status_json(peer->arg) : hth_strdup("{}");
    json_t *all = json_loads(own, 0, NULL);
    if (json_is_object(all) && peer->rpc != NULL) {
        hth_json_take(all, "admission", admission_json(peer));
        char *dumped = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(9));
        hth_free(own);
        own = hth_strdup(dumped != NULL ? dumped : "{}");
        free(dumped);
    }
    json_decref(all);
    return own;
}

static char *trouble(void *arg)
{
    const struct hth_page *page = arg;
    const struct hth_peer *peer = page->peer;
    if (!peer->joined)
        return hth_strdup("not joined to the swarm yet");
    return peer->trouble != NULL ? peer->trouble(peer->arg) : NULL;
}

static const struct hth_http_ops OPS = {status, trouble, refresh};

static void add_metrics(struct hth_page *page)
{
    struct hth_metrics *m = page->peer->env->metrics;
    hth_info(m, "hearth_build_info", "The program's version", "version", HTH_VERSION);
    hth_metric_set(hth_gauge(m, "process_start_time_seconds", "Unix time of the start"),
                   (double)hth_wall_us(page->peer->env) / 1e6);
    page->memory = hth_gauge(m, "process_resident_memory_bytes", "Resident memory");
    page->joined = hth_gauge(m, "hearth_joined", "1 once a peer of the swarm answered");
    page->dht_nodes =
        hth_gauge(m, "hearth_dht_nodes", "DHT nodes known to be alive, at least: the bootstrap's");
    page->run_nodes = hth_gauge(m, "hearth_run_nodes", "Other peers of this run, by their records");
}

enum hth_err hth_page_open(struct hth_peer *peer, const char *listen, struct hth_page **out)
{
    struct hth_addr addr;
    *out = NULL;
    HTH_TRY(hth_addr_parse(listen, &addr));
    struct hth_page *page = hth_new(struct hth_page);
    page->peer = peer;
    enum hth_err err = hth_http_new(peer->env, &addr, &OPS, page, &page->http);
    if (err != HTH_OK) {
        hth_free(page);
        return err;
    }
    add_metrics(page);
    *out = page;
    return HTH_OK;
}

struct hth_http *hth_page_http(const struct hth_page *page)
{
    return page->http;
}

void hth_page_close(struct hth_page *page)
{
    if (page == NULL)
        return;
    hth_http_free(page->http);
    hth_free(page);
}
