/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_group.c: groups with Byzantine members.
 *
 * Two honest peers average as the program does, beside three foes that know the protocol: they
 * JOIN, are hosts of a line and reduce, but the input decides their messages, times and receivers.
 * They use lines, nonces and group ids that they received, as nothing else would pass the first
 * check. All run in the simulated world. For every input each honest offer ends once and in time,
 * averages are finite, and no object is left at the end.
 *
 *   input:  'g', how all begin, then orders: one byte for the kind and the pause after it, then its
 *           fields
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "averaging/part.h"
#include "averaging/peer.h"
#include "core/mem.h"
#include "dht/record.h"
#include "sim/world.h"

#define HONEST    2
#define FOES      3
#define PEERS     (HONEST + FOES)
#define PORT      4000
#define FLOATS    600
#define HELD_MAX  24
#define CALLS_MAX 200 /* of the foes; more would be no new input */
#define INPUT_MAX 4096
#define SCHEMA    5
#define BUDGET    (1u << 20)
#define SHARE     0.3f /* share of the foes' floats */

struct peer {
    struct hth_node *node;
    struct hth_env *env;
    struct hth_addr addr;
    struct hth_rpc *rpc;
    struct hth_avg_peer avg;   /* of an honest peer */
    struct hth_roster *roster; /* of a foe */
    uint32_t offered, ended;
};

static struct {
    const uint8_t *data;
    size_t left;
    struct hth_world *world;
    struct hth_budget budget;
    struct peer peer[PEERS];
    struct hth_avg_shape shape;
    enum hth_quant_format format;
    uint32_t calls;
    /* knowledge of the foes */
    bool has_line, has_group, has_part;
    struct hth_avg_line line;
    struct hth_avg_member joined[PEERS]; /* from their messages */
    bool has_joined[PEERS];
    struct hth_hash group;
    double weight; /* sum of the last list */
    struct hth_part_head part;
    uint32_t floats; /* of that part */
    struct held {
        struct peer *foe;
        struct hth_rpc_request *req; /* NULL: free */
    } held[HELD_MAX];
} s;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- the input ------------------------------------------------------------------------------- */

static uint32_t take8(void)
{
    if (s.left == 0)
        return 0;
    s.left--;
    return *s.data++;
}

static uint32_t take16(void)
{
    uint32_t high = take8();

    return high << 8 | take8();
}

static bool take_bit(void)
{
    return (take8() & 1) != 0;
}

static double take_number(void)
{
    static const double odd[] = {0, 1, 2.5, 1e9, 1e-6, 1e15, -1, 1e-300, 1e300, INFINITY, NAN};
    uint32_t b = take8();

    return b < HTH_ARRAY_LEN(odd) ? odd[b] : b;
}

static void take_bytes(uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)take8();
}

/* ---- what foes say --------------------------------------------------------------------------- */

static struct hth_avg_line make_line(void)
{
    struct hth_avg_line line = s.line;
    uint32_t how = take8(), axis = (how >> 3) % line.shape.dims;

    if ((how & 7) == 1)
        line.round += take8();
    if ((how & 7) == 2)
        line.cell.at[axis] = take8() % line.shape.size[axis];
    if ((how & 7) == 3)
        line.shape.size[axis] += take8();
    return line;
}

static struct hth_avg_member make_member(const struct peer *foe)
{
    uint32_t how = take8();
    struct hth_avg_member m = {.id = foe->env->self, .mode = (how & 3)};

    if (hth_avg_mode_reduces(m.mode) || (how & 8) != 0)
        m.addr = foe->addr;
    if (hth_avg_mode_reduces(m.mode))
        m.bandwidth = take_number();
    if (hth_avg_mode_brings(m.mode) || (how & 16) != 0)
        m.weight = take_number();
    m.nonce = take8();
    return m;
}

/* Make the list of a group: the members that the bits select, as they joined or as the input
 * says. */
static uint32_t make_list(struct hth_avg_member members[2 * PEERS])
{
    uint32_t who = take8(), count = 0;

    s.weight = 0;
    for (uint32_t i = 0; i < PEERS; i++) {
        if ((who >> i & 1) == 0 && !(i < HONEST && s.has_joined[i]))
            continue;
        members[count] = i < HONEST || s.has_joined[i] ? s.joined[i] : make_member(&s.peer[i]);
        members[count].id = s.peer[i].env->self;
        s.weight += members[count++].weight;
    }
    if ((who & 128) != 0 && count > 0) { /* a duplicate, or an unknown peer */
        members[count] = members[take8() % count];
        members[count++].id.b[take8() % sizeof(s.peer[0].env->self.b)] ^= (uint8_t)take8();
    }
    return count;
}

/* Make segments and their bytes: valid unless the input says otherwise. */
static struct hth_blob *make_segments(struct hth_segment seg[4], uint32_t *count)
{
    static const float fills[] = {SHARE, 0, 3e38f, -3e38f, INFINITY, NAN, 1e-40f, 1};
    uint32_t how = take8(), floats = s.floats > 0 ? s.floats : FLOATS;
    float fill = fills[how >> 5], x[FLOATS];
    struct hth_blob *blob;
    size_t bytes;

    *count = how & 3;
    for (uint32_t i = 0; i < *count; i++) {
        seg[i] = (struct hth_segment){.format = (how & 4) != 0 ? take8() % 8 : HTH_QUANT_F32,
                                      .count = (how & 8) != 0 ? take16() % (FLOATS + 1) : floats};
        seg[i].count = HTH_MIN(seg[i].count, (uint32_t)FLOATS);
        floats = 0;
        if (seg[i].count == 0)
            *count = i;
    }
    bytes = hth_codec_bytes(seg, *count);
    if (*count == 0 || bytes == 0)
        return NULL;
    bytes += (how & 16) != 0 ? take8() : 0;
    blob = hth_blob_try_new(bytes);
    memset(blob->data, (how & 16) != 0 ? (int)take8() : 0, bytes);
    for (uint32_t i = 0; i < FLOATS; i++)
        x[i] = fill;
    if (*count == 1 && (how & 16) == 0)
        (void)!hth_codec_encode(seg, 1, x, blob->data);
    return blob;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* A refusal, or a group, which the foes know then as its members do. */
static void answer_match(struct peer *foe, struct hth_rpc_request *req)
{
    struct hth_join_reply reply = {.reason = take8() & 63};
    uint8_t data[HTH_JOIN_REPLY_BYTES_MAX];
    struct hth_rpc_body body = {.payload = data};
    struct hth_avg_group *group;

    if (reply.reason == HTH_AVG_OK)
        reply.count = make_list(reply.member);
    body.payload_len = hth_join_reply_write(&reply, data);
    if (reply.count > 0 && s.has_line &&
        hth_avg_group_new(foe->env->crypto, &foe->env->self, &s.line, SCHEMA, data,
                          body.payload_len, &reply, &group) == HTH_OK) {
        s.group = group->id;
        s.has_group = true;
        hth_free(group);
    }
    hth_rpc_reply(req, &body);
}

static void answer_part(struct hth_rpc_request *req)
{
    uint8_t payload[HTH_PART_BYTES_MAX];
    uint32_t how = take8();
    struct hth_part_reply reply = {.whole = (how & 4) != 0};
    struct hth_tensor tensor = {HTH_U8, 1, {0}, NULL, 0};
    struct hth_rpc_body body = {payload, 0, &tensor, 0};

    for (uint32_t i = 0, bits = (how & 8) != 0 ? take8() : 0; i < 8; i++)
        if ((bits >> i & 1) != 0)
            reply.missing[reply.missing_count++] = i;
    reply.weight = (how & 16) != 0 ? take_number() : s.weight;
    for (uint32_t i = 0; i < reply.missing_count && (how & 32) != 0; i++)
        reply.weight -= 1;
    tensor.blob = make_segments(reply.segments, &reply.segment_count);
    if (tensor.blob != NULL)
        tensor.dim[0] = tensor.blob->size;
    body.tensor_count = tensor.blob != NULL;
    body.payload_len = hth_part_reply_pack(&reply, payload);
    hth_rpc_reply(req, &body);
    hth_blob_unref(tensor.blob);
}

static void answer(struct peer *foe, struct hth_rpc_request *req)
{
    uint32_t how = take8();
    uint8_t raw[64];
    struct hth_rpc_body body = {raw, how & 63, NULL, 0};

    hth_rpc_on_cancel(req, NULL, NULL);
    if (how >= 248) {
        hth_rpc_refuse(req, HTH_E_BUSY, (int64_t)take8() * 10000, NULL);
    } else if (how >= 240) {
        hth_rpc_refuse(req, 1 + take8() % (HTH_ERR_COUNT - 1), (int64_t)take8() * 10000, "no");
    } else if (how >= 224) {
        take_bytes(raw, body.payload_len);
        hth_rpc_reply(req, &body);
    } else if (hth_rpc_method(req) == HTH_REDUCE_METHOD) {
        answer_part(req);
    } else {
        answer_match(foe, req);
    }
}

static void on_cancel(void *arg)
{
    struct held *h = arg;
    struct hth_rpc_request *req = h->req;

    h->req = NULL;
    hth_rpc_refuse(req, HTH_E_CANCELED, 0, NULL);
}

/* ---- what foes hear -------------------------------------------------------------------------- */

static uint32_t index_of(const struct hth_peer_id *id)
{
    uint32_t i = 0;

    while (i < PEERS && !hth_peer_id_eq(&s.peer[i].env->self, id))
        i++;
    return i;
}

static void learn_line(const struct hth_avg_line *line)
{
    s.line = *line;
    s.has_line = true;
}

static void learn(struct hth_rpc_request *req)
{
    uint32_t from = index_of(hth_rpc_peer(req));
    struct hth_join_msg join;
    struct hth_part_head part;
    size_t len, tensors;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    const struct hth_tensor *t = hth_rpc_tensors(req, &tensors);

    switch (hth_rpc_method(req)) {
    case HTH_MATCH_METHOD_JOIN:
        if (len == 0) /* only for a connection */
            return;
        HTH_ASSERT(from < HONEST && hth_join_read(payload, len, &join) == HTH_OK);
        learn_line(&join.line);
        s.joined[from] = join.self;
        s.has_joined[from] = true;
        break;
    default:
        HTH_ASSERT(hth_part_open(payload, len, tensors > 0 ? t->dim[0] : 0, &part) == HTH_OK);
        s.has_group = true;
        s.group = part.group;
        if (part.segment_count > 0)
            s.floats = 0;
        for (uint32_t i = 0; i < part.segment_count; i++)
            s.floats += part.segments[i].count;
        s.part = part;
        s.has_part = true;
    }
}

/* Answer a request at once, or keep it for an order. */
static void on_request(void *arg, struct hth_rpc_request *req)
{
    struct peer *foe = arg;

    learn(req);
    for (uint32_t i = 0; i < HELD_MAX && take_bit(); i++) {
        struct held *h = &s.held[i];

        if (h->req != NULL)
            continue;
        *h = (struct held){foe, req};
        hth_rpc_on_cancel(req, on_cancel, h);
        return;
    }
    answer(foe, req);
}

static void on_answer(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    (void)r;
}

/* ---- orders ---------------------------------------------------------------------------------- */

static void call(struct peer *foe, uint16_t method, const struct hth_rpc_body *body)
{
    const struct peer *to = &s.peer[take8() % HONEST];
    struct hth_rpc_target target = {.peer = to->env->self, .addr = to->addr};
    struct hth_rpc_call_opts call = {.method = method, .body = *body, .timeout_us = HTH_US_PER_S};

    if (s.calls++ < CALLS_MAX)
        (void)!hth_rpc_call(foe->rpc, &target, &call, on_answer, foe, NULL);
}

static void say_join(struct peer *foe)
{
    uint8_t bytes[HTH_JOIN_BYTES_MAX];
    struct hth_join_msg join = {.line = make_line(), .schema = SCHEMA};
    uint32_t how = take8(), i = index_of(&foe->env->self);

    join.self = make_member(foe);
    if ((how & 1) != 0 && s.has_joined[i])
        join.self = s.joined[i];
    s.joined[i] = join.self;
    s.has_joined[i] = true;
    call(foe, HTH_MATCH_METHOD_JOIN,
         &(struct hth_rpc_body){bytes, hth_join_write(&join, bytes), NULL, 0});
}

static void say_part(struct peer *foe)
{
    uint8_t payload[HTH_PART_BYTES_MAX];
    uint32_t how = take8();
    struct hth_part_head part = {.group = s.group};
    struct hth_tensor tensor = {HTH_U8, 1, {0}, NULL, 0};

    part.part = (how >> 2) % 8;
    part.weight = (how & 32) != 0 ? take_number() : s.joined[index_of(&foe->env->self)].weight;
    if ((how & 64) != 0)
        part.group.b[0] ^= (uint8_t)take8();
    if ((how & 128) == 0)
        tensor.blob = make_segments(part.segments, &part.segment_count);
    if (tensor.blob != NULL)
        tensor.dim[0] = tensor.blob->size;
    call(foe, HTH_REDUCE_METHOD,
         &(struct hth_rpc_body){payload, hth_part_pack(&part, payload), &tensor,
                                tensor.blob != NULL});
    hth_blob_unref(tensor.blob);
}

static void say_raw(struct peer *foe)
{
    uint8_t raw[64];
    uint32_t how = take8(), len = how & 63;

    take_bytes(raw, len);
    call(foe, (how & 64) != 0 ? HTH_REDUCE_METHOD : HTH_MATCH_METHOD_JOIN,
         &(struct hth_rpc_body){raw, len, NULL, 0});
}

static void answer_held(void)
{
    struct held *h = &s.held[take8() % HELD_MAX];
    struct hth_rpc_request *req = h->req;

    for (uint32_t i = 0; i < HELD_MAX && req == NULL; i++) {
        h = &s.held[i];
        req = h->req;
    }
    h->req = NULL;
    if (req != NULL)
        answer(h->foe, req);
}

static void offer(struct peer *p)
{
    uint32_t how = take8();
    static struct hth_avg_span span;
    struct hth_avg_offer o = {.count = FLOATS,
                              .weight = 1 + (how >> 4),
                              .schema = SCHEMA,
                              .spans = &span,
                              .span_count = 1};

    span = (struct hth_avg_span){FLOATS, s.format};
    if ((how & 3) == 3) {
        o.weight = 0;
    } else {
        if (hth_env_blob_new(p->env, FLOATS * sizeof(float), &s.budget, &o.values) != HTH_OK)
            return;
        for (uint32_t i = 0; i < FLOATS; i++)
            ((float *)(void *)o.values->data)[i] = (float)(i % 17) - 8;
    }
    p->offered += hth_averager_offer(&p->avg.averager, &o) == HTH_OK;
    hth_blob_unref(o.values);
}

static void obey(void)
{
    uint32_t what = take8();
    struct peer *foe = &s.peer[HONEST + (what >> 3) % FOES];

    if (!s.has_line && what % 8 >= 1 && what % 8 <= 2)
        what = 0;
    switch (what % 8) {
    case 0:
        offer(&s.peer[what >> 3 & 1]);
        break;
    case 1:
        say_join(foe);
        break;
    case 2:
    case 3:
        say_part(foe);
        break;
    case 4:
        say_raw(foe);
        break;
    case 5:
        answer_held();
        break;
    case 6:
        hth_roster_set_flags(foe->roster, take8());
        hth_roster_set_progress(foe->roster, take8(), take8(), take8());
        break;
    default:
        hth_rpc_disconnect(foe->rpc, &s.peer[take8() % HONEST].env->self);
    }
    hth_world_run_for(s.world, (int64_t)(1 << (what >> 5)) * 2 * HTH_US_PER_MS);
}

/* ---- the scene ------------------------------------------------------------------------------- */

static void on_round(void *arg, const struct hth_avg_result *r)
{
    struct peer *p = arg;

    p->ended++;
    HTH_ASSERT((r->err == HTH_OK) == (r->reason == HTH_AVG_OK));
    HTH_ASSERT(r->round.members <= 2 * PEERS);
    if (r->err != HTH_OK || r->average == NULL)
        return;
    HTH_ASSERT(r->average->size == FLOATS * sizeof(float));
    for (uint32_t i = 0; i < FLOATS; i++)
        HTH_ASSERT(isfinite(((const float *)(const void *)r->average->data)[i]));
}

static struct hth_roster_opts roster_opts(const struct peer *p, uint32_t i, uint32_t flags)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;

    o.network = "run";
    o.schema = SCHEMA;
    o.addr = p->addr;
    o.flags = flags;
    o.shape = s.shape;
    o.has_cell = true;
    o.cell = hth_avg_cell_of_rank(&s.shape, i % hth_avg_cells(&s.shape));
    return o;
}

static void open_honest(struct peer *p, uint32_t i, enum hth_avg_mode mode)
{
    struct hth_avg_peer_opts o = HTH_AVG_PEER_OPTS_INIT;

    o.network = "run";
    o.mode = mode;
    if (mode != HTH_AVG_CLIENT)
        o.addr = p->addr;
    o.roster = roster_opts(p, i, 0);
    o.moshpit.window_us = 600 * HTH_US_PER_MS;
    o.moshpit.round_us = 2 * HTH_US_PER_S;
    HTH_ASSERT(hth_avg_peer_open(p->env, p->rpc, hth_node_dht(p->node), &o, &p->avg) == HTH_OK);
    HTH_ASSERT(hth_averager_start(&p->avg.averager, on_round, p) == HTH_OK);
}

static void open_foe(struct peer *p, uint32_t i, uint32_t flags)
{
    struct hth_roster_opts o = roster_opts(p, i, flags);

    HTH_ASSERT(hth_roster_new(p->env, hth_node_dht(p->node), &o, &p->roster) == HTH_OK);
    hth_rpc_serve(p->rpc, HTH_MATCH_METHOD_JOIN, on_request, p);
    hth_rpc_serve(p->rpc, HTH_REDUCE_METHOD, on_request, p);
}

static void open_peer(uint32_t i)
{
    struct peer *p = &s.peer[i];
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    uint32_t how = take8();
    char name[8];

    snprintf(name, sizeof(name), "p%u", i);
    p->node = hth_world_node(s.world, name, NULL);
    p->env = hth_node_env(p->node);
    p->addr = hth_node_addr(p->node, PORT);
    rpc.network = "run";
    rpc.listen = &p->addr;
    rpc.budget = i < HONEST ? &s.budget : NULL;
    rpc.on_peer_lost = i < HONEST ? hth_avg_peer_lost : NULL;
    rpc.arg = &p->avg;
    HTH_ASSERT(hth_rpc_new(p->env, &rpc, &p->rpc) == HTH_OK);
    if (i < HONEST)
        open_honest(p, i, i == 0 ? HTH_AVG_TRAINER : how % 3);
    else
        open_foe(p, i, how & HTH_ROSTER_FLAGS);
}

static void open_scene(void)
{
    static const enum hth_quant_format formats[] = {HTH_QUANT_F32, HTH_QUANT_F16, HTH_QUANT_INT8,
                                                    HTH_QUANT_F32};
    uint32_t how = take8();

    s.shape = (struct hth_avg_shape){.dims = 1, .size = {PEERS}};
    if ((how & 1) != 0)
        s.shape = (struct hth_avg_shape){.dims = 2, .size = {2, 2}};
    s.format = formats[how >> 1 & 3];
    hth_budget_init(&s.budget, BUDGET, NULL);
    s.world = hth_world_new(how >> 4, NULL);
    for (uint32_t i = 0; i < PEERS; i++)
        open_peer(i);
    hth_world_run_for(s.world, 2 * HTH_US_PER_S);
}

static bool all_ended(void *arg)
{
    (void)arg;
    return s.peer[0].ended == s.peer[0].offered && s.peer[1].ended == s.peer[1].offered;
}

static void close_scene(void)
{
    struct hth_open_counts open;

    for (uint32_t i = 0; i < HELD_MAX; i++)
        if (s.held[i].req != NULL)
            hth_rpc_ignore(s.held[i].req);
    for (uint32_t i = 0; i < PEERS; i++) {
        hth_avg_peer_close(&s.peer[i].avg);
        hth_roster_free(s.peer[i].roster);
        hth_rpc_free(s.peer[i].rpc);
    }
    hth_world_run_for(s.world, HTH_US_PER_S); /* jobs end */
    hth_world_open(s.world, &open);
    HTH_ASSERT(hth_open_total(&open) == 0);
    HTH_ASSERT(hth_budget_used(&s.budget) == 0);
    hth_world_free(s.world);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8 || size > INPUT_MAX || data[0] != 'g') /* random bytes get no world */
        return 0;
    memset(&s, 0, sizeof(s));
    s.data = data + 1;
    s.left = size - 1;
    open_scene();
    while (s.left > 0)
        obey();
    HTH_ASSERT(hth_world_run_until_true(s.world, all_ended, NULL, 20 * HTH_US_PER_S));
    close_scene();
    return 0;
}
