/* SPDX-License-Identifier: Apache-2.0 */
/* page.c: the answers of a peer's status page, and the gauges that are read when it is asked. */
#include "app/page.h"

#include "app/peer.h"
#include "core/mem.h"
#include "core/metrics.h"
#include "net/http.h"

#include <stdio.h>
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

static char *status(void *arg)
{
    const struct hth_page *page = arg;
    const struct hth_peer *peer = page->peer;
    return peer->status_json != NULL ? peer->status_json(peer->arg) : hth_strdup("{}");
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
