/* SPDX-License-Identifier: Apache-2.0 */
/* gate.c: a table of granted peers, each in the place that its id names; a later one takes it. */
#include "admission/gate.h"

#include "core/bytes.h"
#include "core/mem.h"

struct known {
    struct hth_peer_id peer; /* zero: empty */
    struct hth_grant grant;
};

struct hth_gate {
    struct hth_env *env;
    struct hth_closed_run run;
    uint64_t judged;
    struct known known[HTH_GATE_KNOWN];
};

struct hth_gate *hth_gate_new(struct hth_env *env, const struct hth_closed_run *run)
{
    struct hth_gate *g = hth_new(struct hth_gate);
    g->env = env;
    g->run = *run;
    return g;
}

void hth_gate_free(struct hth_gate *g)
{
    hth_free(g);
}

enum hth_err hth_gate_check(void *gate, const struct hth_peer_id *peer, const void *creds,
                            size_t len, struct hth_grant *out)
{
    struct hth_gate *g = gate;
    struct known *k = &g->known[hth_load_u64le(peer->b) % HTH_GATE_KNOWN];
    uint64_t serial;
    int64_t wall_us = hth_wall_us(g->env);
    /* The verdict on this peer's last pass counts again, whatever the other bytes are: TLS has
     * proved its key, and only a good signature gave that serial to it. */
    if (hth_peer_id_eq(&k->peer, peer) && hth_creds_serial(creds, len, &serial) == HTH_OK &&
        serial == k->grant.serial && hth_grant_check(&k->grant, &g->run, wall_us) == HTH_OK) {
        *out = k->grant;
        return HTH_OK;
    }
    g->judged++;
    HTH_TRY(hth_creds_check(g->env->crypto, &g->run, peer, creds, len, wall_us, out));
    k->peer = *peer;
    k->grant = *out;
    return HTH_OK;
}

enum hth_err hth_gate_holds(void *gate, const struct hth_grant *grant)
{
    const struct hth_gate *g = gate;
    return hth_grant_check(grant, &g->run, hth_wall_us(g->env));
}

uint64_t hth_gate_judged(const struct hth_gate *g)
{
    return g->judged;
}
