/* SPDX-License-Identifier: Apache-2.0 */
#include "app/train_recall.h"

#include "core/bytes.h"
#include "core/mem.h"
#include "monitor/recall.h"

#include <math.h>

struct hth_train_recall {
    struct hth_peer *peer;
    struct hth_recall_told told;
};

static uint32_t unix_s(const struct hth_train_recall *r)
{
    return (uint32_t)(hth_wall_us(r->peer->env) / HTH_US_PER_S);
}

static void on_recall(void *arg, struct hth_rpc_request *req)
{
    struct hth_train_recall *r = arg;
    size_t len;
    const uint8_t *after = hth_rpc_payload(req, &len);
    if (len < 4) {
        hth_rpc_refuse(req, HTH_E_TRUNCATED, 0, "RECALL needs the second after which to tell");
        return;
    }
    uint8_t *bytes = hth_new_array(uint8_t, HTH_RECALL_BYTES_MAX);
    struct hth_rpc_body body = {.payload = bytes};
    body.payload_len = hth_recall_write(&r->told, hth_load_u32le(after), bytes);
    hth_rpc_reply(req, &body);
    hth_free(bytes);
}

struct hth_train_recall *hth_train_recall_new(struct hth_peer *peer, uint64_t total)
{
    struct hth_train_recall *r = hth_new(struct hth_train_recall);
    r->peer = peer;
    r->told.total = total;
    hth_rpc_serve(peer->rpc, HTH_METHOD_RECALL, on_recall, r);
    return r;
}

void hth_train_recall_free(struct hth_train_recall *r)
{
    if (r != NULL)
        hth_rpc_serve(r->peer->rpc, HTH_METHOD_RECALL, NULL, NULL);
    hth_free(r);
}

void hth_train_recall_add(struct hth_train_recall *r, const struct hth_train_stats *stats)
{
    if (r == NULL)
        return;
    if (r->told.began_t == 0)
        r->told.began_t = unix_s(r);
    const struct hth_recall_point point = {.t = unix_s(r),
                                           .step = stats->updates,
                                           .samples = stats->own_samples,
                                           .loss =
                                               stats->loss_ema > 0 ? (float)stats->loss_ema : NAN,
                                           .samples_per_s = (float)stats->samples_per_s};
    hth_recall_add(&r->told, &point);
    r->told.behind = stats->samples;
}

void hth_train_recall_test(struct hth_train_recall *r, const struct hth_eval_result *result,
                           bool is_text)
{
    if (r == NULL)
        return;
    const struct hth_recall_test test = {.t = unix_s(r),
                                         .step = result->updates,
                                         .loss = (float)result->loss,
                                         .accuracy = is_text ? NAN : (float)result->accuracy,
                                         .bits_per_byte =
                                             is_text ? (float)result->bits_per_byte : NAN};
    hth_recall_add_test(&r->told, &test);
}

void hth_train_recall_saved(struct hth_train_recall *r, uint64_t step)
{
    if (r == NULL)
        return;
    r->told.saved_step = step;
    r->told.saved_t = unix_s(r);
}
