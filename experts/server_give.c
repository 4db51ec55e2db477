/* SPDX-License-Identifier: Apache-2.0 */
/* server_give.c: gives the weights of an expert to a peer that asks, one expert at a time. */
#include "experts/server_int.h"

#define AGAIN_US (200 * HTH_US_PER_MS) /* a step or another copy is soon done */

static void give_run(struct hth_job *job)
{
    struct srv_give *give = HTH_CONTAINER(job, struct srv_give, job);

    give->err = hth_expert_weights(give->expert->expert, &give->blob);
}

static void answer(struct srv_give *give)
{
    struct hth_tensor t = {.dtype = HTH_U8, .ndim = 1, .blob = give->blob};
    const struct hth_rpc_body body = {.tensors = &t, .tensor_count = 1};

    t.dim[0] = give->blob->size;
    hth_rpc_reply(give->req, &body);
}

static void give_done(struct hth_job *job, enum hth_err err)
{
    struct srv_give *give = HTH_CONTAINER(job, struct srv_give, job);
    struct hth_server *s = give->server;

    give->expert->readers--;
    err = err != HTH_OK ? err : give->err;
    s->give = NULL;
    if (give->req != NULL && err == HTH_OK && give->blob != NULL)
        answer(give);
    else if (give->req != NULL) /* in a world of ghosts jobs do not run */
        hth_rpc_refuse(give->req, err != HTH_OK ? err : HTH_E_UNSUPPORTED, 0, NULL);
    if (!s->dead)
        hth_srv_pump(s); /* a step may have waited */
    hth_blob_unref(give->blob);
    hth_free(give);
    hth_srv_unref(s);
}

/* HTH_OK: the expert's weights can be copied now. */
static enum hth_err find(struct hth_server *s, struct hth_rpc_request *req, struct srv_expert **out)
{
    uint8_t key[HTH_EXPERT_KEY_MAX];
    struct hth_uid uid;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);

    HTH_TRY(hth_weights_request_open(payload, len, &uid));
    if (s->draining)
        return HTH_E_DRAINING;
    *out = hth_map_get(s->by_key, key, hth_expert_key(uid.name, uid.ncoord, uid.coord, key));
    if (*out == NULL)
        return HTH_E_NO_SUCH_EXPERT;
    if (s->give != NULL || (*out)->state != SRV_READY || (*out)->step_running)
        return HTH_E_BUSY;
    return HTH_OK;
}

void hth_srv_on_weights(void *arg, struct hth_rpc_request *req)
{
    struct hth_server *s = arg;
    struct srv_expert *e;
    enum hth_err err = find(s, req, &e);

    if (err != HTH_OK) {
        s->stats.refused_bad += err == HTH_E_MALFORMED;
        hth_rpc_refuse(req, err, err == HTH_E_BUSY ? AGAIN_US : 0, NULL);
        return;
    }
    s->give = hth_new(struct srv_give);
    s->give->server = s;
    s->give->expert = e;
    s->give->req = req;
    s->give->job = (struct hth_job){.lane = hth_srv_snapshot_lane(e),
                                    .run = give_run,
                                    .done = give_done,
                                    .bytes_moved = 8.0 * (double)e->weights};
    err = hth_job_submit(s->env, &s->give->job);
    if (err != HTH_OK) {
        hth_free(s->give);
        s->give = NULL;
        hth_rpc_refuse(req, HTH_E_BUSY, AGAIN_US, NULL);
        return;
    }
    s->refs++;
    e->readers++;
}

void hth_srv_give_drop(struct hth_server *s)
{
    if (s->give == NULL || s->give->req == NULL)
        return;
    hth_rpc_refuse(s->give->req, HTH_E_DRAINING, 0, NULL);
    s->give->req = NULL;
}
