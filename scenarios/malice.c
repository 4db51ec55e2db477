/* SPDX-License-Identifier: Apache-2.0 */
/* malice.c: hosts that answer wrongly or never. */
#include "scenarios/malice.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "experts/message.h"
#include "experts/server.h"

#define HELD_MAX    256
#define LIE_US      (500 * HTH_US_PER_MS)
#define LIE_ROWS    8
#define RECORD_LIFE (60 * HTH_US_PER_S)

/* A false host: it announces every expert of every layer and serves their methods in its way. */
struct malice_host {
    struct hth_malice_place place;
    struct hth_rng rng;
    struct hth_rpc *rpc;
    struct hth_announcer *announcer;
    struct hth_timer *timer; /* for the liar's own calls */
    struct hth_rpc_request *held[HELD_MAX];
    uint32_t held_count;
    uint64_t lies;
};

static enum hth_err announce(struct malice_host *h)
{
    const struct hth_malice_place *p = &h->place;
    struct hth_announcer_opts a = HTH_ANNOUNCER_OPTS_INIT;
    enum hth_err err = HTH_OK;

    a.network = p->network;
    a.role = HTH_ROLE_HOST;
    a.life_us = RECORD_LIFE;
    a.info.addr[0] = p->addr;
    a.info.addr_count = 1;
    a.info.rows_per_s = 1e6f; /* faster than any honest host */
    HTH_TRY(hth_announcer_new(p->env, p->dht, &a, &h->announcer));
    for (uint32_t l = 0; l < p->layers && err == HTH_OK; l++) {
        uint32_t size = hth_grid_size(&p->grids[l]);
        uint32_t *all = hth_new_array(uint32_t, size);
        for (uint32_t i = 0; i < size; i++)
            all[i] = i;
        err = hth_announcer_set_layer(h->announcer, &p->grids[l], &p->shape,
                                      &(struct hth_expert_list){all, size});
        hth_free(all);
    }
    return err;
}

static void host_stop(void *self)
{
    struct malice_host *h = self;

    hth_announcer_free(h->announcer);
    hth_rpc_free(h->rpc);
    hth_timer_free(h->place.env, h->timer);
    for (uint32_t i = 0; i < h->held_count; i++)
        hth_rpc_refuse(h->held[i], HTH_E_CANCELED, 0, NULL);
    hth_free(h);
}

static enum hth_err host_start(const struct hth_malice_place *place, hth_rpc_handler_fn *handler,
                               struct malice_host **out)
{
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct malice_host *h = hth_new(struct malice_host);
    enum hth_err err;

    h->place = *place;
    h->rng = hth_rng_split(&place->env->rng, "malice", 0);
    rpc.network = place->network;
    rpc.listen = &place->addr;
    HTH_GOTO(fail, hth_rpc_new(place->env, &rpc, &h->rpc));
    hth_rpc_serve(h->rpc, HTH_METHOD_EXPERT_FORWARD, handler, h);
    hth_rpc_serve(h->rpc, HTH_METHOD_EXPERT_BACKWARD, handler, h);
    HTH_GOTO(fail, announce(h));
    *out = h;
    return HTH_OK;
fail:
    host_stop(h);
    return err;
}

/* ---- the claimer ----------------------------------------------------------------------------- */

static enum hth_err claimer_start(const struct hth_malice_place *place, void **self)
{
    struct malice_host *h = hth_new(struct malice_host);
    enum hth_err err;

    h->place = *place;
    h->place.addr.port++;
    err = announce(h);
    if (err == HTH_OK)
        *self = h;
    else
        host_stop(h);
    return err;
}

const struct hth_malice hth_malice_claimer = {
    .name = "claimer", .start = claimer_start, .stop = host_stop};

/* ---- the mute -------------------------------------------------------------------------------- */

static void never(void *arg, struct hth_rpc_request *req)
{
    struct malice_host *h = arg;

    if (h->held_count < HELD_MAX)
        h->held[h->held_count++] = req;
    else
        hth_rpc_refuse(req, HTH_E_BUSY, HTH_US_PER_S, "later, perhaps");
}

static enum hth_err mute_start(const struct hth_malice_place *place, void **self)
{
    struct malice_host *h;

    HTH_TRY(host_start(place, never, &h));
    *self = h;
    return HTH_OK;
}

const struct hth_malice hth_malice_mute = {.name = "mute", .start = mute_start, .stop = host_stop};

/* ---- the liar: answers ----------------------------------------------------------------------- */

static void fill(struct hth_blob *blob, float value)
{
    for (size_t i = 0; blob->data != NULL && i < blob->size / sizeof(float); i++)
        memcpy(blob->data + i * sizeof(float), &value, sizeof(float));
}

static void reply_rows(struct malice_host *h, struct hth_rpc_request *req, uint64_t rows,
                       uint64_t d, float value)
{
    struct hth_tensor t = {.dtype = HTH_F32, .ndim = 2, .dim = {rows, d}};
    struct hth_rpc_body body = {.tensors = &t, .tensor_count = 1};

    if (hth_env_blob_new(h->place.env, (size_t)(rows * d * sizeof(float)), NULL, &t.blob) !=
        HTH_OK) {
        hth_rpc_refuse(req, HTH_E_BUSY, 0, NULL);
        return;
    }
    fill(t.blob, value);
    hth_rpc_reply(req, &body);
    hth_blob_unref(t.blob);
}

static void lie(void *arg, struct hth_rpc_request *req)
{
    struct malice_host *h = arg;
    size_t count;
    const struct hth_tensor *t = hth_rpc_tensors(req, &count);
    uint64_t rows = count > 0 ? t[0].dim[0] : 1, d = count > 0 ? t[0].dim[1] : 1;
    uint8_t noise[64];

    switch (h->lies++ % 6) {
    case 0:
        reply_rows(h, req, rows, d, NAN);
        break;
    case 1: /* too few rows */
        reply_rows(h, req, HTH_MAX(rows - 1, 1u), d, 0);
        break;
    case 2:
        reply_rows(h, req, rows, d + 1, 0);
        break;
    case 3:
        reply_rows(h, req, rows, d, 1e30f);
        break;
    case 4: /* a malformed list of verdicts */
        for (size_t i = 0; i < sizeof(noise); i++)
            noise[i] = (uint8_t)hth_rng_u64(&h->rng);
        hth_rpc_reply(req, &(struct hth_rpc_body){.payload = noise, .payload_len = sizeof(noise)});
        break;
    default: /* a refusal with an unknown error number */
        hth_rpc_refuse(req, (enum hth_err)0x7ffe, INT64_MAX / 2, "\x1b[2J%s%n");
        break;
    }
}

/* ---- the liar: calls ------------------------------------------------------------------------- */

static void on_verdict(void *arg, const struct hth_rpc_result *result)
{
    (void)arg;
    (void)result;
}

/* Send a backward for one expert with wrong numbers, a wrong list, or a used key. */
static void send_lie(struct malice_host *h, const struct hth_rpc_target *to)
{
    const struct hth_malice_place *p = &h->place;
    uint32_t layer = (uint32_t)hth_rng_below(&h->rng, p->layers);
    uint32_t coord[HTH_GRID_DIMS_MAX] = {0}, rows = LIE_ROWS, what = (uint32_t)(h->lies++ % 4);
    struct hth_expert_msg work = {.layer = p->grids[layer].name,
                                  .ndim = p->grids[layer].ndim,
                                  .parts = 1,
                                  .coord = coord,
                                  .rows = &rows,
                                  .rows_in_microbatch = LIE_ROWS};
    struct hth_tensor t[2] = {{.dtype = HTH_F32, .ndim = 2, .dim = {LIE_ROWS, p->shape.d}}};
    struct hth_rpc_call_opts o = {.method = HTH_METHOD_EXPERT_BACKWARD, .timeout_us = HTH_US_PER_S};
    uint8_t *payload = NULL;
    size_t bytes = (size_t)LIE_ROWS * p->shape.d * sizeof(float);

    rows = what == 1 ? LIE_ROWS + 7 : LIE_ROWS;
    if (hth_expert_msg_pack(&work, &payload, &o.body.payload_len) != HTH_OK ||
        hth_env_blob_new(p->env, bytes, NULL, &t[0].blob) != HTH_OK) {
        hth_free(payload);
        return;
    }
    fill(t[0].blob, what == 0 ? NAN : 1e14f);
    t[1] = t[0];
    o.body.payload = payload;
    o.body.tensors = t;
    o.body.tensor_count = what == 2 ? 1 : 2;
    /* Every fourth backward reuses one key. */
    o.idem = (struct hth_rpc_idem){7, what == 3 ? 7 : 1 + h->lies};
    if (hth_rpc_call(h->rpc, to, &o, on_verdict, NULL, NULL) != HTH_OK)
        h->lies++;
    hth_blob_unref(t[0].blob);
    hth_free(payload);
}

static void on_lie(void *arg)
{
    struct malice_host *h = arg;
    struct hth_rpc_target to;

    if (h->place.victim(h->place.arg, &h->rng, &to))
        send_lie(h, &to);
    hth_timer_set(h->place.env, h->timer, LIE_US);
}

static enum hth_err liar_start(const struct hth_malice_place *place, void **self)
{
    struct malice_host *h;

    HTH_TRY(host_start(place, lie, &h));
    h->timer = hth_timer_new(place->env, on_lie, h);
    hth_timer_set(place->env, h->timer, LIE_US);
    *self = h;
    return HTH_OK;
}

const struct hth_malice hth_malice_liar = {.name = "liar", .start = liar_start, .stop = host_stop};

/* ---- hosts with one kind of answer ---------------------------------------------------------- */

static void answer_with(struct malice_host *h, struct hth_rpc_request *req, float value)
{
    size_t count;
    const struct hth_tensor *t = hth_rpc_tensors(req, &count);

    if (count > 0)
        reply_rows(h, req, t[0].dim[0], t[0].dim[1], value);
    else
        hth_rpc_refuse(req, HTH_E_MALFORMED, 0, NULL);
}

static void deafen(void *arg, struct hth_rpc_request *req)
{
    answer_with(arg, req, 3e38f);
}

static enum hth_err deafening_start(const struct hth_malice_place *place, void **self)
{
    struct malice_host *h;

    HTH_TRY(host_start(place, deafen, &h));
    *self = h;
    return HTH_OK;
}

const struct hth_malice hth_malice_deafening = {
    .name = "deafening", .start = deafening_start, .stop = host_stop};

static void shout(void *arg, struct hth_rpc_request *req)
{
    answer_with(arg, req, 1e9f);
}

static enum hth_err loud_start(const struct hth_malice_place *place, void **self)
{
    struct malice_host *h;

    HTH_TRY(host_start(place, shout, &h));
    *self = h;
    return HTH_OK;
}

const struct hth_malice hth_malice_loud = {.name = "loud", .start = loud_start, .stop = host_stop};

typedef enum hth_err part_fn(const struct hth_expert_msg *work, uint32_t part, bool backward);

/* Refuse every second expert by its first coordinate, with reasons that a client must doubt; the
 * others echo their input. */
static enum hth_err nay(const struct hth_expert_msg *work, uint32_t part, bool backward)
{
    (void)backward;
    const uint32_t *coord = work->coord + (size_t)part * work->ndim;

    if (coord[0] % 2 == 1)
        return HTH_OK;
    return coord[work->ndim - 1] % 2 == 1 ? HTH_E_CANCELED : HTH_E_NO_SUCH_EXPERT;
}

/* Echo the input, except for the parts that `verdict` refuses. */
static void refuse_parts(struct hth_rpc_request *req, part_fn *verdict)
{
    struct hth_expert_msg work;
    struct hth_rpc_body body = {0};
    enum hth_err *status;
    size_t len;
    const uint8_t *asked = hth_rpc_payload(req, &len);
    const struct hth_tensor *t = hth_rpc_tensors(req, &body.tensor_count);
    uint8_t *payload = NULL;

    if (body.tensor_count == 0 ||
        hth_expert_msg_open(asked, len, HTH_EXPERT_CALL_ROWS_MAX, &work) != HTH_OK) {
        hth_rpc_refuse(req, HTH_E_MALFORMED, 0, NULL);
        return;
    }
    status = hth_new_array(enum hth_err, work.parts);
    for (uint32_t i = 0; i < work.parts; i++)
        status[i] = verdict(&work, i, hth_rpc_method(req) == HTH_METHOD_EXPERT_BACKWARD);
    hth_expert_msg_reply_pack(status, work.parts, false, &payload, &body.payload_len);
    body.payload = payload;
    body.tensors = &t[body.tensor_count - 1]; /* x, or dy */
    body.tensor_count = 1;
    hth_rpc_reply(req, &body);
    hth_free(payload);
    hth_free(status);
    hth_expert_msg_close(&work);
}

static void deny(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    refuse_parts(req, nay);
}

static enum hth_err naysayer_start(const struct hth_malice_place *place, void **self)
{
    struct malice_host *h;

    HTH_TRY(host_start(place, deny, &h));
    *self = h;
    return HTH_OK;
}

const struct hth_malice hth_malice_naysayer = {
    .name = "naysayer", .start = naysayer_start, .stop = host_stop};

static void put_off(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    hth_rpc_refuse(req, HTH_E_BUSY, 0, "soon, soon");
}

static enum hth_err postponer_start(const struct hth_malice_place *place, void **self)
{
    struct malice_host *h;

    HTH_TRY(host_start(place, put_off, &h));
    *self = h;
    return HTH_OK;
}

const struct hth_malice hth_malice_postponer = {
    .name = "postponer", .start = postponer_start, .stop = host_stop};

static enum hth_err too_large(const struct hth_expert_msg *work, uint32_t part, bool backward)
{
    (void)work;
    (void)part;
    return backward ? HTH_E_NORM : HTH_OK;
}

static void take_no_gradient(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    refuse_parts(req, too_large);
}

static enum hth_err prude_start(const struct hth_malice_place *place, void **self)
{
    struct malice_host *h;

    HTH_TRY(host_start(place, take_no_gradient, &h));
    *self = h;
    return HTH_OK;
}

const struct hth_malice hth_malice_prude = {
    .name = "prude", .start = prude_start, .stop = host_stop};

static enum hth_err first_is_gone(const struct hth_expert_msg *work, uint32_t part, bool backward)
{
    const uint32_t *coord = work->coord + (size_t)part * work->ndim;

    (void)backward;
    for (uint32_t i = 0; i < work->ndim; i++)
        if (coord[i] != 0)
            return HTH_OK;
    return HTH_E_NO_SUCH_EXPERT;
}

static void forget(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    refuse_parts(req, first_is_gone);
}

static enum hth_err forgetful_start(const struct hth_malice_place *place, void **self)
{
    struct malice_host *h;

    HTH_TRY(host_start(place, forget, &h));
    *self = h;
    return HTH_OK;
}

const struct hth_malice hth_malice_forgetful = {
    .name = "forgetful", .start = forgetful_start, .stop = host_stop};
