/* SPDX-License-Identifier: Apache-2.0 */
/* transport_trust.c: breakers of replicas, and the usual gains. */
#include "trainer/transport_trust.h"

#include <math.h>
#include <string.h>

#include "core/limits.h"
#include "core/mem.h"
#include "gating/breaker.h"
#include "trainer/model.h"

#define GAINS_KEPT 15
#define GAINS_MIN  4
#define GAINS_GROW 2
/* Short, because a probe costs some rows one expert. COPY_PROBE_US leaves a restarted host time to
 * read its experts. */
#define COPY_BACKOFF_MAX_US (8 * HTH_US_PER_S)
#define COPY_PROBE_US       (5 * HTH_US_PER_S)

struct gains {
    float last[GAINS_KEPT]; /* a ring */
    uint64_t count;         /* in all */
};

struct hth_trust {
    struct hth_breaker *copies;
    struct gains gains[HTH_MODEL_LAYERS_MAX][2];
};

enum hth_err hth_trust_new(const struct hth_rng *rng, struct hth_trust **out)
{
    struct hth_breaker_opts opts = HTH_BREAKER_OPTS_INIT;
    opts.backoff_max_us = COPY_BACKOFF_MAX_US;
    opts.probe_timeout_us = COPY_PROBE_US;
    struct hth_trust *trust = hth_new(struct hth_trust);
    enum hth_err err = hth_breaker_new(&opts, rng, &trust->copies);

    *out = err == HTH_OK ? trust : NULL;
    if (err != HTH_OK)
        hth_free(trust);
    return err;
}

void hth_trust_free(struct hth_trust *trust)
{
    if (trust == NULL)
        return;
    hth_breaker_free(trust->copies);
    hth_free(trust);
}

/* ---- copies -------------------------------------------------------------------------------- */

/* An id for each direction of a replica: the host's, with these bytes changed. Ids are hashes, so
 * that no two hosts differ in these bytes alone. */
static struct hth_peer_id copy_id(const struct hth_peer_id *host, uint32_t layer, uint32_t expert,
                                  bool backward)
{
    struct hth_peer_id id = *host;
    uint32_t what[2] = {layer << 1 | backward, expert};

    for (uint32_t i = 0; i < sizeof(what); i++)
        id.b[i] ^= (uint8_t)(what[i / 4] >> (i % 4 * 8));
    return id;
}

bool hth_trust_peek(const struct hth_trust *trust, const struct hth_peer_id *host, uint32_t layer,
                    uint32_t expert, bool closed, int64_t now_us)
{
    for (int backward = 0; backward < 2; backward++) {
        struct hth_peer_id id = copy_id(host, layer, expert, backward);

        if (closed ? hth_breaker_state(trust->copies, &id) != HTH_BREAKER_CLOSED
                   : !hth_breaker_peek(trust->copies, &id, now_us))
            return false;
    }
    return true;
}

void hth_trust_take(struct hth_trust *trust, const struct hth_peer_id *host, uint32_t layer,
                    uint32_t expert, int64_t now_us)
{
    for (int backward = 0; backward < 2; backward++) {
        struct hth_peer_id id = copy_id(host, layer, expert, backward);
        bool yes = hth_breaker_allow(trust->copies, &id, now_us);

        HTH_ASSERT(yes);
    }
}

void hth_trust_report(struct hth_trust *trust, const struct hth_peer_id *host, uint32_t layer,
                      uint32_t expert, bool backward, enum hth_err err, int64_t now_us)
{
    struct hth_peer_id id = copy_id(host, layer, expert, backward);
    bool at_once = err == HTH_E_NOT_FINITE || err == HTH_E_RANGE || err == HTH_E_NO_SUCH_EXPERT;
    /* The breaker counts E_PROTOCOL as a hard failure and E_NOT_FINITE as a soft one. */
    enum hth_err verdict = at_once ? HTH_E_PROTOCOL : HTH_E_NOT_FINITE;

    hth_breaker_report(trust->copies, &id, err == HTH_OK ? HTH_OK : verdict, now_us);
}

/* ---- gains --------------------------------------------------------------------------------- */

/* The lower median of the last gains; 0: fewer than GAINS_MIN are known. */
static double usual(const struct gains *g)
{
    uint32_t n = (uint32_t)HTH_MIN(g->count, (uint64_t)GAINS_KEPT), below;

    if (n < GAINS_MIN)
        return 0;
    /* The lower median has exactly (n - 1) / 2 others before it. */
    for (uint32_t i = 0; i < n; i++) {
        below = 0;
        for (uint32_t j = 0; j < n; j++)
            below += g->last[j] < g->last[i] || (g->last[j] == g->last[i] && j < i);
        if (below == (n - 1) / 2)
            return (double)g->last[i];
    }
    return 0;
}

/* The usual gain at most doubles in a batch. Without this bound a host that is the only one asked
 * for some time would decide what is usual. */
void hth_trust_learn(struct hth_trust *trust, uint32_t layer, bool backward, double gain)
{
    struct gains *g = &trust->gains[layer][backward];
    double most = fmax(GAINS_GROW * usual(g), HTH_EXPERT_GAIN_FIRST_MAX);

    if (gain > 0)
        g->last[g->count++ % GAINS_KEPT] = (float)fmin(gain, most);
}

double hth_trust_gain_max(const struct hth_trust *trust, uint32_t layer, bool backward)
{
    const struct gains *g = &trust->gains[layer][backward];

    return g->count < GAINS_MIN ? 0 : HTH_EXPERT_GAIN_FACTOR * fmax(usual(g), 1);
}

/* ---- order --------------------------------------------------------------------------------- */

uint64_t hth_trust_spread(const struct hth_peer_id *self, const struct hth_peer_id *host)
{
    uint64_t a = 0, b = 0;

    for (int i = 0; i < 8; i++) {
        a = a << 8 | self->b[i];
        b = b << 8 | host->b[i];
    }
    return hth_mix64(hth_mix64(a) ^ b);
}
