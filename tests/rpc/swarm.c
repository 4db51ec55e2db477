/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/swarm.h"

#include "support/test.h"

#include "core/bytes.h"

/* ---- members ------------------------------------------------------------------------------- */

static void echo(void *arg, struct hth_rpc_request *req)
{
    struct swarm_member *m = arg;
    struct hth_rpc_body body;
    m->seen++;
    body.payload = hth_rpc_payload(req, &body.payload_len);
    body.tensors = hth_rpc_tensors(req, &body.tensor_count);
    hth_rpc_reply(req, &body);
}

static void canceled(void *arg)
{
    struct swarm_member *m = arg;
    m->cancels++;
    m->cancel_us = hth_now_us(m->env);
}

static void hold(void *arg, struct hth_rpc_request *req)
{
    struct swarm_member *m = arg;
    m->seen++;
    assert_true(m->held_count < HELD_MAX);
    m->held[m->held_count++] = req;
    hth_rpc_on_cancel(req, canceled, m);
}

static void give_blob(void *arg, struct hth_rpc_request *req)
{
    struct swarm_member *m = arg;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    struct hth_tensor t = {HTH_U8, 1, {hth_load_u32le(payload)}, NULL, 0};
    struct hth_rpc_body body = {.tensors = &t, .tensor_count = 1};
    m->seen++;
    assert_int_equal(len, 4);
    assert_ok(hth_env_blob_new(m->env, (size_t)t.dim[0], NULL, &t.blob));
    for (size_t i = 0; t.blob->data != NULL && i < t.dim[0]; i++)
        t.blob->data[i] = (uint8_t)(i * 7);
    hth_rpc_reply(req, &body);
    hth_blob_unref(t.blob);
}

static void busy(void *arg, struct hth_rpc_request *req)
{
    struct swarm_member *m = arg;
    m->seen++;
    hth_rpc_refuse(req, HTH_E_BUSY, 300 * HTH_US_PER_MS, "come back later");
}

static void peer_lost(void *arg, const struct hth_peer_id *peer, enum hth_err err)
{
    struct swarm_member *m = arg;
    (void)peer;
    m->lost_count++;
    m->lost_err = err;
}

struct hth_rpc_opts member_opts(void)
{
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    opts.network = "test";
    return opts;
}

/* The node crashes: as after the end of a process, requests held by handlers are freed as well. */
static void halt(struct hth_env *env, void *arg)
{
    struct swarm_member *m = arg;
    (void)env;
    if (m->rpc == NULL)
        return;
    hth_rpc_free(m->rpc);
    m->rpc = NULL;
    for (uint32_t i = 0; i < m->held_count; i++)
        hth_rpc_reply(m->held[i], NULL);
    m->held_count = 0;
}

void member_start(struct swarm_member *m, struct hth_world *w, const char *name,
                  struct hth_rpc_opts opts)
{
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    memset(m, 0, sizeof(*m));
    node.halt = halt;
    node.arg = m;
    m->node = hth_world_node(w, name, &node);
    m->env = hth_node_env(m->node);
    m->addr = hth_node_addr(m->node, 4000);
    m->opts = opts;
    member_serve(m);
}

void member_serve(struct swarm_member *m)
{
    struct hth_rpc_opts opts = m->opts;
    opts.listen = &m->addr;
    opts.on_peer_lost = peer_lost;
    opts.arg = m;
    assert_ok(hth_rpc_new(m->env, &opts, &m->rpc));
    hth_rpc_serve(m->rpc, METHOD_ECHO, echo, m);
    hth_rpc_serve(m->rpc, METHOD_HOLD, hold, m);
    hth_rpc_serve(m->rpc, METHOD_BLOB, give_blob, m);
    hth_rpc_serve(m->rpc, METHOD_BUSY, busy, m);
}

void member_stop(struct swarm_member *m)
{
    hth_rpc_free(m->rpc);
    m->rpc = NULL;
}

struct hth_rpc_target member_target(const struct swarm_member *m)
{
    return (struct hth_rpc_target){m->env->self, m->addr};
}

/* ---- verdicts ------------------------------------------------------------------------------ */

void verdict_clear(struct swarm_verdict *v)
{
    struct hth_env *env = v->env;
    hth_blob_unref(v->body);
    memset(v, 0, sizeof(*v));
    v->env = env;
}

void on_verdict(void *arg, const struct hth_rpc_result *r)
{
    struct swarm_verdict *v = arg;
    v->count++;
    v->err = r->err;
    v->at_us = v->env != NULL ? hth_now_us(v->env) : 0;
    v->rtt_us = r->rtt_us;
    v->retry_after_us = r->retry_after_us;
    v->remote = r->remote;
    strncpy(v->text, r->text, HTH_RPC_TEXT_MAX);
    v->payload_len = r->payload_len;
    if (r->payload_len > 0)
        memcpy(v->payload, r->payload, HTH_MIN(r->payload_len, sizeof(v->payload)));
    v->tensor_count = r->tensor_count;
    for (size_t i = 0; i < r->tensor_count && i < HTH_ARRAY_LEN(v->tensors); i++) {
        v->tensors[i] = r->tensors[i];
        if (v->body == NULL && r->tensors[i].blob != NULL)
            v->body = hth_blob_ref(r->tensors[i].blob);
    }
}

struct hth_rpc_call *call_text(struct swarm_member *from, const struct swarm_member *to,
                               uint16_t method, const char *text, int64_t timeout_us,
                               struct swarm_verdict *v)
{
    struct hth_rpc_target target = member_target(to);
    struct hth_rpc_call_opts opts = {.method = method, .timeout_us = timeout_us};
    struct hth_rpc_call *call;
    opts.body.payload = text;
    opts.body.payload_len = strlen(text);
    v->env = from->env;
    assert_ok(hth_rpc_call(from->rpc, &target, &opts, on_verdict, v, &call));
    assert_int_equal(v->count, 0);
    return call;
}

bool has_verdict(void *arg)
{
    return ((struct swarm_verdict *)arg)->count > 0;
}

void await(struct hth_world *w, struct swarm_verdict *v)
{
    assert_true(hth_world_run_until_true(w, has_verdict, v, 60 * HTH_US_PER_S));
}

/* ---- raw peers ----------------------------------------------------------------------------- */

static void raw_head(struct swarm_raw *r)
{
    struct hth_frame *f = &r->frame;
    r->heads++;
    r->seen[f->msg.type]++;
    if (f->msg.type == HTH_FRAME_GOODBYE || f->msg.type == HTH_FRAME_REFUSE) {
        strncpy(r->text, f->msg.u.refuse.text, HTH_RPC_TEXT_MAX);
        if (f->msg.type == HTH_FRAME_GOODBYE)
            r->goodbye_err = f->msg.u.refuse.err;
        else
            r->refuse_err = f->msg.u.refuse.err;
    }
    r->reply_bytes += f->header.body_len;
    if (f->header.body_len > 0) {
        struct hth_blob *blob;
        assert_ok(hth_env_blob_new(r->env, f->header.body_len, NULL, &blob));
        hth_frame_parser_body_take(&r->parser, blob);
    }
}

static void raw_readable(struct hth_stream *s, void *arg)
{
    struct swarm_raw *r = arg;
    for (;;) {
        struct hth_blob *into;
        size_t offset, max;
        assert_ok(hth_frame_parser_want(&r->parser, &into, &offset, &max));
        size_t n = hth_stream_read(r->env, s, into, offset, max);
        if (n == 0)
            return;
        enum hth_frame_event ev = hth_frame_parser_got(&r->parser, n);
        assert_int_not_equal(ev, HTH_FRAME_BAD);
        if (ev == HTH_FRAME_HEAD)
            raw_head(r);
        if (ev != HTH_FRAME_MORE && !hth_frame_parser_busy(&r->parser))
            hth_frame_clear(&r->frame);
    }
}

static void raw_open(struct hth_stream *s, void *arg)
{
    struct swarm_raw *r = arg;
    (void)s;
    r->open = true;
    hth_stream_pause(r->env, s, r->deaf);
}

static void raw_drained(struct hth_stream *s, void *arg)
{
    (void)s;
    (void)arg;
}

static void raw_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct swarm_raw *r = arg;
    (void)s;
    r->closed = true;
    r->closed_err = err;
    r->closed_us = hth_now_us(r->env);
    r->stream = NULL;
}

static const struct hth_stream_ops raw_ops = {.on_open = raw_open,
                                              .on_readable = raw_readable,
                                              .on_drained = raw_drained,
                                              .on_closed = raw_closed};

static void raw_init(struct swarm_raw *r, struct hth_env *env)
{
    bool deaf = r->deaf;
    memset(r, 0, sizeof(*r));
    r->deaf = deaf;
    r->env = env;
    hth_frame_parser_init(&r->parser, NULL);
    hth_frame_init(&r->frame);
    r->parser.frame = &r->frame;
}

void raw_dial(struct swarm_raw *r, struct hth_env *env, const struct hth_addr *addr)
{
    raw_init(r, env);
    assert_ok(hth_dial(env, addr, NULL, &raw_ops, r, &r->stream));
}

static void raw_accept(void *arg, struct hth_stream *s)
{
    struct swarm_raw *r = arg;
    if (r->stream != NULL)
        return;
    r->stream = s;
    r->open = true;
    hth_stream_attach(r->env, s, &raw_ops, r);
}

void raw_listen(struct swarm_raw *r, struct hth_env *env, uint16_t port)
{
    struct hth_addr any = {.family = 4, .port = port};
    raw_init(r, env);
    assert_ok(hth_listen(env, &any, raw_accept, r, &r->listener));
}

void raw_bytes(struct swarm_raw *r, const void *data, size_t len)
{
    struct hth_blob *blob = hth_blob_copy(data, len);
    struct hth_span span = {blob, 0, len};
    if (!r->closed)
        assert_ok(hth_stream_write(r->env, r->stream, &span, 1));
    hth_blob_unref(blob);
}

void raw_frame(struct swarm_raw *r, const struct hth_frame_msg *msg)
{
    static uint8_t bytes[HTH_FRAME_META_BYTES_MAX + 1024];
    size_t len;
    assert_ok(hth_frame_pack(msg, bytes, sizeof(bytes), &len));
    raw_bytes(r, bytes, len);
}

void raw_request(struct swarm_raw *r, uint64_t id, uint16_t method, const void *payload, size_t len,
                 uint32_t body_len)
{
    struct hth_blob *ghost = hth_blob_ghost(body_len, 1);
    struct hth_tensor t = {HTH_U8, 1, {body_len}, ghost, 0};
    struct hth_frame_msg msg = {.type = HTH_FRAME_REQUEST, .id = id};
    msg.u.request.method = method;
    msg.u.request.timeout_ms = 60000;
    msg.body.payload = payload;
    msg.body.payload_len = len;
    msg.body.tensors = &t;
    msg.body.tensor_count = body_len > 0 ? 1 : 0;
    raw_frame(r, &msg);
    hth_blob_unref(ghost);
}

void raw_hello(struct swarm_raw *r)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_HELLO};
    msg.u.hello.version_min = HTH_RPC_VERSION_MIN;
    msg.u.hello.version_max = HTH_RPC_VERSION_MAX;
    msg.u.hello.network = "test";
    msg.u.hello.requests_max = 8;
    msg.u.hello.body_bytes_max = 1 << 20;
    msg.u.hello.request_credit_bytes = 2 << 20;
    msg.u.hello.reply_credit_bytes = 2 << 20;
    raw_frame(r, &msg);
}

void raw_clear(struct swarm_raw *r)
{
    if (r->stream != NULL)
        hth_stream_close(r->env, r->stream, false);
    hth_listener_free(r->env, r->listener);
    hth_frame_parser_clear(&r->parser);
    hth_frame_clear(&r->frame);
    memset(r, 0, sizeof(*r));
}
