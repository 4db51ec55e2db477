/* SPDX-License-Identifier: Apache-2.0 */
/* test_quick.c: metas that are written and read by hand, against protobuf-c: the same bytes, and of
 * whatever bytes the same message or the same error. */
#include "support/test.h"

#include "core/rng.h"
#include "rpc/frame.h"
#include "rpc/wire.pb-c.h"

#define META_MAX    2048
#define TENSORS_MAX 11 /* more than are read by hand */
#define CASES       4000

static const enum hth_frame_type kinds[] = {HTH_FRAME_HELLO, HTH_FRAME_REQUEST, HTH_FRAME_REPLY,
                                            HTH_FRAME_CREDIT};

struct sample {
    struct hth_frame_msg msg;
    struct hth_tensor tensor[TENSORS_MAX];
    uint8_t payload[400];
    char network[HTH_NAME_LEN_MAX + 1];
};

/* Zero, and numbers of every length. */
static uint64_t number(struct hth_rng *rng, unsigned bits)
{
    uint64_t used = hth_rng_below(rng, bits + 1);
    return used == 0 ? 0 : hth_rng_u64(rng) >> (64 - used);
}

static void sample_tensors(struct hth_rng *rng, struct sample *s, struct hth_blob *blob)
{
    s->msg.body.tensor_count =
        (size_t)hth_rng_below(rng, hth_rng_below(rng, 4) == 0 ? TENSORS_MAX + 1 : 3);
    s->msg.body.tensors = s->tensor;
    for (size_t i = 0; i < s->msg.body.tensor_count; i++) {
        struct hth_tensor *t = &s->tensor[i];
        *t = (struct hth_tensor){.dtype = HTH_U8, .blob = blob};
        t->ndim = (uint32_t)hth_rng_below(rng, HTH_TENSOR_DIMS_MAX + 1);
        for (uint32_t d = 0; d < t->ndim; d++)
            t->dim[d] = hth_rng_below(rng, 9);
        if (t->ndim == 1)
            t->dim[0] = hth_rng_below(rng, blob->size);
    }
}

static void sample_body(struct hth_rng *rng, struct sample *s, struct hth_blob *blob)
{
    size_t max = hth_rng_below(rng, 4) == 0 ? sizeof(s->payload) : 40;
    s->msg.body.payload = s->payload;
    s->msg.body.payload_len = (size_t)hth_rng_below(rng, max + 1);
    for (size_t i = 0; i < s->msg.body.payload_len; i++)
        s->payload[i] = (uint8_t)hth_rng_u64(rng);
    sample_tensors(rng, s, blob);
}

static void sample_make(struct hth_rng *rng, struct hth_blob *blob, struct sample *s)
{
    memset(s, 0, sizeof(*s));
    struct hth_frame_msg *m = &s->msg;
    m->type = kinds[hth_rng_below(rng, 4)];
    m->id = 7;
    if (m->type == HTH_FRAME_HELLO) {
        size_t len = (size_t)hth_rng_below(rng, HTH_NAME_LEN_MAX + 1);
        memset(s->network, 'n', len);
        m->u.hello.network = s->network;
        m->u.hello.version_min = (uint32_t)number(rng, 32);
        m->u.hello.version_max = (uint32_t)number(rng, 32);
        m->u.hello.features = number(rng, 64);
        m->u.hello.requests_max = (uint32_t)number(rng, 32);
        m->u.hello.body_bytes_max = number(rng, 64);
        m->u.hello.request_credit_bytes = number(rng, 64);
        m->u.hello.reply_credit_bytes = number(rng, 64);
    } else if (m->type == HTH_FRAME_CREDIT) {
        m->u.credit.reply_bytes = number(rng, 64);
    } else {
        sample_body(rng, s, blob);
    }
    if (m->type == HTH_FRAME_REQUEST) {
        m->u.request.method = (uint16_t)number(rng, 16);
        m->u.request.timeout_ms = (uint32_t)number(rng, 32);
        m->u.request.idem.hi = number(rng, 64);
        m->u.request.idem.lo = number(rng, 64);
    }
}

/* ---- writing ------------------------------------------------------------------------------- */

static size_t reference_tensors(const struct sample *s, Hth__Rpc__Tensor *t, Hth__Rpc__Tensor **ptr)
{
    uint64_t end = 0;
    for (size_t i = 0; i < s->msg.body.tensor_count; i++) {
        hth__rpc__tensor__init(&t[i]);
        t[i].dtype = s->tensor[i].dtype;
        t[i].n_dim = s->tensor[i].ndim;
        t[i].dim = (uint64_t *)s->tensor[i].dim;
        t[i].bytes = 1;
        for (uint32_t d = 0; d < s->tensor[i].ndim; d++)
            t[i].bytes *= s->tensor[i].dim[d];
        if (t[i].bytes > 0) {
            t[i].offset = (end + 63) / 64 * 64;
            end = t[i].offset + t[i].bytes;
        }
        ptr[i] = &t[i];
    }
    return s->msg.body.tensor_count;
}

static size_t reference_write(const struct sample *s, uint8_t *out)
{
    const struct hth_frame_msg *m = &s->msg;
    Hth__Rpc__Tensor t[TENSORS_MAX], *ptr[TENSORS_MAX];
    ProtobufCBinaryData payload = {m->body.payload_len, (uint8_t *)s->payload};
    size_t n = reference_tensors(s, t, ptr);
    if (m->type == HTH_FRAME_HELLO) {
        Hth__Rpc__Hello h = HTH__RPC__HELLO__INIT;
        h.version_min = m->u.hello.version_min;
        h.version_max = m->u.hello.version_max;
        h.network = (char *)s->network;
        h.features = m->u.hello.features;
        h.requests_max = m->u.hello.requests_max;
        h.body_bytes_max = m->u.hello.body_bytes_max;
        h.request_credit_bytes = m->u.hello.request_credit_bytes;
        h.reply_credit_bytes = m->u.hello.reply_credit_bytes;
        return hth__rpc__hello__pack(&h, out);
    }
    if (m->type == HTH_FRAME_CREDIT) {
        Hth__Rpc__Credit c = HTH__RPC__CREDIT__INIT;
        c.reply_bytes = m->u.credit.reply_bytes;
        return hth__rpc__credit__pack(&c, out);
    }
    if (m->type == HTH_FRAME_REPLY) {
        Hth__Rpc__Reply r = HTH__RPC__REPLY__INIT;
        r.payload = payload;
        r.tensors = ptr;
        r.n_tensors = n;
        return hth__rpc__reply__pack(&r, out);
    }
    Hth__Rpc__Request r = HTH__RPC__REQUEST__INIT;
    r.method = m->u.request.method;
    r.timeout_ms = m->u.request.timeout_ms;
    r.idem_hi = m->u.request.idem.hi;
    r.idem_lo = m->u.request.idem.lo;
    r.payload = payload;
    r.tensors = ptr;
    r.n_tensors = n;
    return hth__rpc__request__pack(&r, out);
}

static void the_same_bytes_are_written(void **state)
{
    (void)state;
    static uint8_t got[8192], want[8192];
    struct hth_blob *blob = hth_blob_try_new(8000);
    struct hth_rng rng;
    struct sample s;
    hth_rng_init(&rng, 1);
    for (int i = 0; i < CASES; i++) {
        size_t len;
        sample_make(&rng, blob, &s);
        assert_ok(hth_frame_pack(&s.msg, got, sizeof(got), &len));
        assert_true(len <= hth_frame_pack_bound(&s.msg));
        size_t want_len = reference_write(&s, want);
        assert_int_equal(len - HTH_FRAME_HEADER_BYTES, want_len);
        assert_memory_equal(got + HTH_FRAME_HEADER_BYTES, want, want_len);
    }
    hth_blob_unref(blob);
}

/* ---- reading ------------------------------------------------------------------------------- */

static void assert_same_body(const struct hth_rpc_body *a, const struct hth_rpc_body *b)
{
    assert_int_equal(a->payload_len, b->payload_len);
    if (a->payload_len > 0)
        assert_memory_equal(a->payload, b->payload, a->payload_len);
    assert_int_equal(a->tensor_count, b->tensor_count);
    for (size_t i = 0; i < a->tensor_count; i++) {
        const struct hth_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->ndim, y->ndim);
        assert_memory_equal(x->dim, y->dim, sizeof(x->dim));
        assert_int_equal(x->offset, y->offset);
    }
}

static void assert_same(const struct hth_frame_msg *a, const struct hth_frame_msg *b)
{
    assert_int_equal(a->type, b->type);
    assert_same_body(&a->body, &b->body);
    if (a->type == HTH_FRAME_HELLO) {
        assert_string_equal(a->u.hello.network, b->u.hello.network);
        assert_int_equal(a->u.hello.version_min, b->u.hello.version_min);
        assert_int_equal(a->u.hello.version_max, b->u.hello.version_max);
        assert_int_equal(a->u.hello.features, b->u.hello.features);
        assert_int_equal(a->u.hello.requests_max, b->u.hello.requests_max);
        assert_int_equal(a->u.hello.body_bytes_max, b->u.hello.body_bytes_max);
        assert_int_equal(a->u.hello.request_credit_bytes, b->u.hello.request_credit_bytes);
        assert_int_equal(a->u.hello.reply_credit_bytes, b->u.hello.reply_credit_bytes);
    } else if (a->type == HTH_FRAME_REQUEST) {
        assert_int_equal(a->u.request.method, b->u.request.method);
        assert_int_equal(a->u.request.timeout_ms, b->u.request.timeout_ms);
        assert_int_equal(a->u.request.idem.hi, b->u.request.idem.hi);
        assert_int_equal(a->u.request.idem.lo, b->u.request.idem.lo);
    } else if (a->type == HTH_FRAME_CREDIT) {
        assert_int_equal(a->u.credit.reply_bytes, b->u.credit.reply_bytes);
    }
}

/* Field 15, empty: nobody knows it, and only protobuf-c skips what it does not know. */
static const uint8_t unknown[2] = {0x7a, 0};

/* Reads meta as it is and behind a field that leaves it to protobuf-c; returns the error. */
static enum hth_err both(struct hth_frame_header h, const uint8_t *meta, size_t len)
{
    static struct hth_frame quick, slow;
    uint8_t longer[META_MAX + sizeof(unknown)];
    memcpy(longer, unknown, sizeof(unknown));
    memcpy(longer + sizeof(unknown), meta, len);
    hth_frame_init(&quick);
    hth_frame_init(&slow);
    quick.header = slow.header = h;
    quick.header.meta_len = (uint32_t)len;
    slow.header.meta_len = (uint32_t)(len + sizeof(unknown));
    enum hth_err err = hth_frame_unpack(&quick, meta, NULL);
    assert_err(err, hth_frame_unpack(&slow, longer, NULL));
    if (err == HTH_OK)
        assert_same(&quick.msg, &slow.msg);
    hth_frame_clear(&quick);
    hth_frame_clear(&slow);
    return err;
}

/* Changes, adds, takes away or doubles some bytes. */
static size_t spoil(struct hth_rng *rng, uint8_t *meta, size_t len)
{
    static const uint8_t likely[] = {0x00, 0x01, 0x08, 0x0a, 0x10, 0x12, 0x19, 0x1a,
                                     0x21, 0x28, 0x2a, 0x32, 0x7f, 0x80, 0xff};
    for (uint64_t n = 1 + hth_rng_below(rng, 3); n > 0; n--) {
        size_t at = (size_t)hth_rng_below(rng, len + 1), left = len - at;
        size_t some = (size_t)hth_rng_below(rng, HTH_MIN(left, (size_t)12) + 1);
        uint64_t how = hth_rng_below(rng, 4);
        if (how == 0 && at < len) {
            meta[at] = (uint8_t)hth_rng_u64(rng);
        } else if (how == 1 && at < len) {
            meta[at] = likely[hth_rng_below(rng, sizeof(likely))];
        } else if (how == 2) {
            memmove(meta + at, meta + at + some, left - some);
            len -= some;
        } else if (how == 3 && len + some < META_MAX) {
            memmove(meta + at + some, meta + at, left);
            len += some;
        }
    }
    return len;
}

static void the_same_messages_are_read(void **state)
{
    (void)state;
    static uint8_t frame[8192];
    struct hth_blob *blob = hth_blob_try_new(8000);
    struct hth_frame_header h;
    struct hth_rng rng;
    struct sample s;
    int good = 0, bad = 0;
    hth_rng_init(&rng, 2);
    for (int i = 0; i < CASES; i++) {
        size_t len;
        sample_make(&rng, blob, &s);
        assert_ok(hth_frame_pack(&s.msg, frame, sizeof(frame), &len));
        assert_ok(hth_frame_header_read(frame, &h));
        uint8_t *meta = frame + HTH_FRAME_HEADER_BYTES;
        len -= HTH_FRAME_HEADER_BYTES;
        enum hth_err err = both(h, meta, len);
        /* Random versions may contradict each other. */
        assert_true(err == HTH_OK || (s.msg.type == HTH_FRAME_HELLO && err == HTH_E_RANGE));
        for (int k = 0; k < 8; k++) {
            uint8_t other[META_MAX];
            memcpy(other, meta, len);
            bool ok = both(h, other, spoil(&rng, other, len)) == HTH_OK;
            good += ok;
            bad += !ok;
        }
    }
    assert_true(good > CASES / 2 && bad > CASES);
    hth_blob_unref(blob);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bytes_are_written),
        cmocka_unit_test(the_same_messages_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
