/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format: golden bytes both ways, every limit crossed, every allocation made to fail. */
#include <stdlib.h>

#include "core/mem.h"
#include "core/rng.h"
#include "rpc/frame.h"
#include "rpc/wire.pb-c.h"
#include "support/suite.h"

#define BYTES_MAX (256u << 10)

/* ---- golden -------------------------------------------------------------------------------- */

static size_t golden(const char *name, uint8_t *out)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/rpc/golden/%s.hex", HTH_TEST_SOURCE_DIR, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t n = 0;
    unsigned byte;
    while (n < BYTES_MAX && fscanf(file, "%2x", &byte) == 1)
        out[n++] = (uint8_t)byte;
    fclose(file);
    assert_true(n >= HTH_FRAME_HEADER_BYTES);
    return n;
}

static uint8_t rows_and_grads[80];

static struct hth_blob *golden_body(void)
{
    for (int i = 0; i < 6; i++) {
        float f = (float)(i + 1);
        memcpy(rows_and_grads + 4 * i, &f, 4);
    }
    for (int i = 0; i < 16; i++)
        rows_and_grads[64 + i] = (uint8_t)i;
    return hth_blob_copy(rows_and_grads, sizeof(rows_and_grads));
}

/* The message that golden/make.py wrote under this name. */
static struct hth_frame_msg golden_msg(const char *name, struct hth_tensor tensors[2],
                                       struct hth_blob *blob)
{
    struct hth_frame_msg m = {.id = 0x10000, .trace_id = 0x1122334455667788};
    tensors[0] = (struct hth_tensor){HTH_F32, 2, {2, 3}, blob, 0};
    tensors[1] = (struct hth_tensor){HTH_BF16, 1, {8}, blob, 64};
    if (strcmp(name, "hello") == 0) {
        m = (struct hth_frame_msg){.type = HTH_FRAME_HELLO};
        m.u.hello.version_min = m.u.hello.version_max = 1;
        m.u.hello.network = "demo";
        m.u.hello.features = 5;
        m.u.hello.requests_max = 1024;
        m.u.hello.body_bytes_max = 128u << 20;
        m.u.hello.request_credit_bytes = m.u.hello.reply_credit_bytes = 256u << 20;
    } else if (strcmp(name, "request") == 0) {
        m.type = HTH_FRAME_REQUEST;
        m.u.request.method = 17;
        m.u.request.timeout_ms = 1500;
        m.u.request.idem = (struct hth_rpc_idem){0xa1, 0xb2};
        m.body = (struct hth_rpc_body){"payload", 7, tensors, 2};
    } else if (strcmp(name, "reply") == 0) {
        m.type = HTH_FRAME_REPLY;
        m.body = (struct hth_rpc_body){"ok", 2, tensors, 1};
    } else if (strcmp(name, "refuse") == 0) {
        m = (struct hth_frame_msg){.type = HTH_FRAME_REFUSE, .id = 0x20001, .trace_id = 7};
        m.u.refuse.err = HTH_E_BUSY;
        m.u.refuse.retry_after_ms = 250;
        m.u.refuse.text = "come back";
    } else if (strcmp(name, "goodbye") == 0) {
        m = (struct hth_frame_msg){.type = HTH_FRAME_GOODBYE};
        m.u.refuse.err = HTH_E_DRAINING;
        m.u.refuse.text = "shutting down";
    } else if (strcmp(name, "credit") == 0) {
        m = (struct hth_frame_msg){.type = HTH_FRAME_CREDIT};
        m.u.credit.reply_bytes = 64u << 20;
    } else if (strcmp(name, "cancel") == 0) {
        m = (struct hth_frame_msg){.type = HTH_FRAME_CANCEL, .id = 0x20001};
    } else {
        bool ping = strcmp(name, "ping") == 0;
        m = (struct hth_frame_msg){.type = ping ? HTH_FRAME_PING : HTH_FRAME_PONG, .id = 3};
    }
    return m;
}

static const char *const names[] = {"hello",  "request", "reply", "refuse", "cancel",
                                    "credit", "ping",    "pong",  "goodbye"};

TEST(packs_golden_bytes)
{
    static uint8_t want[BYTES_MAX], got[BYTES_MAX];
    struct hth_tensor tensors[2];
    struct hth_blob *blob = golden_body();
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        size_t len, want_len = golden(names[i], want);
        uint64_t body = 0;
        struct hth_frame_msg m = golden_msg(names[i], tensors, blob);
        assert_ok(hth_frame_pack(&m, got, sizeof(got), &len));
        assert_true(len <= hth_frame_pack_bound(&m));
        if (m.type == HTH_FRAME_REQUEST || m.type == HTH_FRAME_REPLY) {
            assert_true(len - HTH_FRAME_HEADER_BYTES <= hth_frame_meta_bound(&m));
            assert_ok(hth_frame_body_len(m.body.tensors, m.body.tensor_count, &body));
            memcpy(got + len, rows_and_grads, (size_t)body);
        }
        assert_int_equal(len + body, want_len);
        assert_memory_equal(got, want, want_len);
    }
    hth_blob_unref(blob);
}

/* docs/protocol.md shows the same bytes. */
TEST(documentation_shows_golden_bytes)
{
    static char doc[BYTES_MAX], hex[8192];
    char path[512];
    (void)state;
    snprintf(path, sizeof(path), "%s/../docs/protocol.md", HTH_TEST_SOURCE_DIR);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t n = fread(doc, 1, sizeof(doc) - 1, file);
    fclose(file);
    doc[n] = '\0';
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/rpc/golden/%s.hex", HTH_TEST_SOURCE_DIR, names[i]);
        file = fopen(path, "r");
        assert_non_null(file);
        n = fread(hex, 1, sizeof(hex) - 1, file);
        fclose(file);
        hex[n] = '\0';
        if (n == 0 || strstr(doc, hex) == NULL)
            fail_msg("docs/protocol.md does not show %s.hex", names[i]);
    }
}

/* ---- parsing ------------------------------------------------------------------------------- */

struct feeder {
    struct hth_frame_parser parser;
    struct hth_frame frame;
    struct hth_budget budget;
    struct hth_rng rng;
    size_t chunk_max;
    uint32_t heads, bodies;
    bool skip_bodies;
};

static void feeder_init(struct feeder *f, int64_t budget, size_t chunk_max)
{
    memset(f, 0, sizeof(*f));
    hth_budget_init(&f->budget, budget, NULL);
    hth_frame_parser_init(&f->parser, &f->budget);
    hth_frame_init(&f->frame);
    hth_rng_init(&f->rng, chunk_max);
    f->parser.frame = &f->frame;
    f->chunk_max = chunk_max;
}

static void feeder_clear(struct feeder *f)
{
    hth_frame_parser_clear(&f->parser);
    hth_frame_clear(&f->frame);
    assert_int_equal(hth_budget_used(&f->budget), 0);
}

static enum hth_err feeder_head(struct feeder *f)
{
    struct hth_blob *blob;
    f->heads++;
    if (f->frame.header.body_len == 0)
        return HTH_OK;
    if (f->skip_bodies) {
        HTH_TRY(hth_blob_new_budget(7, &f->budget, &blob));
        hth_frame_parser_skip_take(&f->parser, blob);
        return HTH_OK;
    }
    HTH_TRY(hth_blob_new_budget(f->frame.header.body_len, &f->budget, &blob));
    hth_frame_parser_body_take(&f->parser, blob);
    return HTH_OK;
}

/* Gives the bytes in pieces until they end; the last frame stays in f->frame. */
static enum hth_err feed(struct feeder *f, const uint8_t *data, size_t len)
{
    size_t pos = 0;
    while (pos < len) {
        struct hth_blob *into;
        size_t offset, max;
        HTH_TRY(hth_frame_parser_want(&f->parser, &into, &offset, &max));
        size_t piece = 1 + (size_t)hth_rng_below(&f->rng, f->chunk_max);
        size_t n = HTH_MIN(HTH_MIN(max, len - pos), piece);
        memcpy(into->data + offset, data + pos, n);
        pos += n;
        if (!hth_frame_parser_busy(&f->parser) && f->parser.have == 0)
            hth_frame_clear(&f->frame);
        switch (hth_frame_parser_got(&f->parser, n)) {
        case HTH_FRAME_MORE:
            break;
        case HTH_FRAME_HEAD:
            HTH_TRY(feeder_head(f));
            break;
        case HTH_FRAME_BODY:
            f->bodies++;
            break;
        case HTH_FRAME_BAD:
            return f->parser.err;
        }
    }
    return HTH_OK;
}

static void check_golden_frame(const char *name, const struct hth_frame *f)
{
    struct hth_tensor tensors[2];
    struct hth_blob *blob = golden_body();
    struct hth_frame_msg want = golden_msg(name, tensors, blob);
    const struct hth_frame_msg *got = &f->msg;
    assert_int_equal(got->type, want.type);
    assert_int_equal(got->id, want.id);
    assert_int_equal(got->trace_id, want.trace_id);
    assert_int_equal(got->body.payload_len, want.body.payload_len);
    assert_int_equal(got->body.tensor_count, want.body.tensor_count);
    if (want.body.payload_len > 0)
        assert_memory_equal(got->body.payload, want.body.payload, want.body.payload_len);
    for (size_t i = 0; i < want.body.tensor_count; i++) {
        const struct hth_tensor *a = &got->body.tensors[i], *b = &tensors[i];
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->ndim, b->ndim);
        assert_memory_equal(a->dim, b->dim, sizeof(a->dim));
        uint64_t bytes;
        assert_ok(hth_tensor_bytes(b, &bytes));
        assert_int_equal(a->offset % 64, 0);
        assert_memory_equal(a->blob->data + a->offset, blob->data + b->offset, bytes);
    }
    if (want.type == HTH_FRAME_HELLO) {
        assert_string_equal(got->u.hello.network, "demo");
        assert_int_equal(got->u.hello.features, 5);
        assert_int_equal(got->u.hello.body_bytes_max, 128u << 20);
    } else if (want.type == HTH_FRAME_REQUEST) {
        assert_int_equal(got->u.request.method, 17);
        assert_int_equal(got->u.request.timeout_ms, 1500);
        assert_int_equal(got->u.request.idem.hi, 0xa1);
        assert_int_equal(got->u.request.idem.lo, 0xb2);
    } else if (want.type == HTH_FRAME_REFUSE || want.type == HTH_FRAME_GOODBYE) {
        assert_int_equal(got->u.refuse.err, want.u.refuse.err);
        assert_int_equal(got->u.refuse.retry_after_ms, want.u.refuse.retry_after_ms);
        assert_string_equal(got->u.refuse.text, want.u.refuse.text);
    } else if (want.type == HTH_FRAME_CREDIT) {
        assert_int_equal(got->u.credit.reply_bytes, 64u << 20);
    }
    hth_blob_unref(blob);
}

TEST(parses_golden_bytes_in_any_pieces)
{
    static uint8_t bytes[BYTES_MAX];
    static const size_t chunks[] = {1, 2, 7, 33, 100000};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        size_t len = golden(names[i], bytes);
        for (size_t k = 0; k < HTH_ARRAY_LEN(chunks); k++) {
            struct feeder f;
            feeder_init(&f, 1 << 20, chunks[k]);
            assert_ok(feed(&f, bytes, len));
            assert_int_equal(f.heads, 1);
            assert_int_equal(f.bodies, f.frame.header.body_len > 0);
            assert_false(hth_frame_parser_busy(&f.parser));
            check_golden_frame(names[i], &f.frame);
            feeder_clear(&f);
        }
    }
}

static size_t hello(uint32_t version_max, uint64_t features, const char *network, uint8_t *out)
{
    struct hth_frame_msg m = {.type = HTH_FRAME_HELLO};
    size_t len;
    m.u.hello.version_min = 1;
    m.u.hello.version_max = version_max;
    m.u.hello.features = features;
    m.u.hello.network = network;
    m.u.hello.requests_max = 7;
    m.u.hello.body_bytes_max = 1u << 20;
    m.u.hello.request_credit_bytes = m.u.hello.reply_credit_bytes = 4u << 20;
    assert_ok(hth_frame_pack(&m, out, BYTES_MAX, &len));
    return len;
}

/* A HELLO equal to the last one is not parsed again: it must give the same message to its own
 * frame. One that differs in a byte, or that was refused, must be parsed. */
TEST(repeated_hello_reads_the_same)
{
    static const char *const network[] = {"one", "zw\xC3\xB6lf"};
    static uint8_t bytes[BYTES_MAX];
    struct feeder f, kept;
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t which = i / 3 % 2;
        size_t len = hello(1 + i / 3, 40 + i % 2, network[which], bytes);
        feeder_init(&f, 1 << 20, 100000);
        assert_ok(feed(&f, bytes, len));
        assert_string_equal(f.frame.msg.u.hello.network, network[which]);
        assert_int_equal(f.frame.msg.u.hello.version_min, 1);
        assert_int_equal(f.frame.msg.u.hello.version_max, 1 + i / 3);
        assert_int_equal(f.frame.msg.u.hello.features, 40 + i % 2);
        assert_int_equal(f.frame.msg.u.hello.requests_max, 7);
        assert_int_equal(f.frame.msg.u.hello.body_bytes_max, 1u << 20);
        assert_int_equal(f.frame.msg.u.hello.request_credit_bytes, 4u << 20);
        feeder_clear(&f);
    }
    size_t len = hello(3, 1, "mine", bytes);
    feeder_init(&f, 1 << 20, 100000);
    assert_ok(feed(&f, bytes, len));
    feeder_init(&kept, 1 << 20, 100000);
    assert_ok(feed(&kept, bytes, len)); /* equals the last HELLO */
    for (int i = 0; i < 2; i++) {       /* versions 1 to 0, twice */
        struct feeder bad;
        len = hello(0, 1, "mine", bytes);
        feeder_init(&bad, 1 << 20, 100000);
        assert_err(HTH_E_RANGE, feed(&bad, bytes, len));
        feeder_clear(&bad);
    }
    feeder_clear(&f);
    struct feeder other;
    len = hello(3, 1, "others", bytes);
    feeder_init(&other, 1 << 20, 100000);
    assert_ok(feed(&other, bytes, len));
    assert_string_equal(other.frame.msg.u.hello.network, "others");
    assert_string_equal(kept.frame.msg.u.hello.network, "mine");
    feeder_clear(&other);
    feeder_clear(&kept);
    for (int i = 0; i < 3; i++) { /* a pass, which no HELLO but its own has */
        uint8_t pass[HTH_CREDS_BYTES_MAX];
        struct hth_frame_msg m = {.type = HTH_FRAME_HELLO};
        size_t pass_len = i == 2 ? sizeof(pass) : 20;
        memset(pass, i, sizeof(pass));
        m.u.hello.network = "mine";
        m.u.hello.pass = pass;
        m.u.hello.pass_len = pass_len;
        assert_ok(hth_frame_pack(&m, bytes, BYTES_MAX, &len));
        for (int k = 0; k < 2; k++) {
            feeder_init(&f, 1 << 20, 100000);
            assert_ok(feed(&f, bytes, len));
            assert_int_equal(f.frame.msg.u.hello.pass_len, pass_len);
            assert_memory_equal(f.frame.msg.u.hello.pass, pass, pass_len);
            assert_string_equal(f.frame.msg.u.hello.network, "mine");
            feeder_clear(&f);
        }
        memset(bytes, 0, BYTES_MAX);
    }
    const struct hth_frame_header empty = {.version = 1, .type = HTH_FRAME_HELLO};
    hth_frame_header_write(&empty, bytes);
    for (int i = 0; i < 2; i++) {
        feeder_init(&f, 1 << 20, 100000);
        assert_ok(feed(&f, bytes, HTH_FRAME_HEADER_BYTES));
        assert_string_equal(f.frame.msg.u.hello.network, "");
        feeder_clear(&f);
    }
}

/* A stream of all frames with skipped bodies gives the same stream of heads. */
TEST(skipping_a_body_keeps_the_place)
{
    static uint8_t bytes[BYTES_MAX];
    size_t len = 0;
    struct feeder f;
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++)
        len += golden(names[i], bytes + len);
    for (size_t chunk = 1; chunk < 200; chunk += 13) {
        feeder_init(&f, 1 << 20, chunk);
        f.skip_bodies = true;
        assert_ok(feed(&f, bytes, len));
        assert_int_equal(f.heads, HTH_ARRAY_LEN(names));
        assert_int_equal(f.bodies, 2);
        assert_int_equal(f.frame.msg.type, HTH_FRAME_GOODBYE);
        feeder_clear(&f);
    }
}

/* ---- bad headers --------------------------------------------------------------------------- */

static enum hth_err feed_header(struct hth_frame_header h, int flip_at)
{
    uint8_t bytes[HTH_FRAME_HEADER_BYTES];
    struct feeder f;
    hth_frame_header_write(&h, bytes);
    if (flip_at >= 0)
        bytes[flip_at] ^= 0x20;
    feeder_init(&f, 1 << 20, 1000);
    enum hth_err err = feed(&f, bytes, sizeof(bytes));
    feeder_clear(&f);
    return err;
}

TEST(header_errors_have_names)
{
    const struct hth_frame_header ok = {.version = 1, .type = HTH_FRAME_PING, .id = 1};
    struct hth_frame_header h;
    (void)state;
    assert_ok(feed_header(ok, -1));
    for (int i = 0; i < 4; i++)
        assert_err(HTH_E_BAD_MAGIC, feed_header(ok, i));
    h = ok, h.version = 0;
    assert_err(HTH_E_VERSION, feed_header(h, -1));
    h = ok, h.version = HTH_RPC_VERSION_MAX + 1;
    assert_err(HTH_E_VERSION, feed_header(h, -1));
    h = ok, h.type = 0;
    assert_err(HTH_E_PROTOCOL, feed_header(h, -1));
    h = ok, h.type = HTH_FRAME_GOODBYE + 1;
    assert_err(HTH_E_PROTOCOL, feed_header(h, -1));
    h = ok, h.flags = 0x100;
    assert_err(HTH_E_PROTOCOL, feed_header(h, -1));
    h = ok, h.meta_len = 1; /* PING has none */
    assert_err(HTH_E_PROTOCOL, feed_header(h, -1));
    h = ok, h.body_len = 1;
    assert_err(HTH_E_PROTOCOL, feed_header(h, -1));
    h = ok, h.type = HTH_FRAME_REQUEST, h.meta_len = HTH_FRAME_META_BYTES_MAX;
    assert_ok(feed_header(h, -1)); /* waits for the meta */
    h.meta_len++;
    assert_err(HTH_E_TOO_LARGE, feed_header(h, -1));
    h.meta_len = 0, h.body_len = HTH_FRAME_BODY_BYTES_MAX + 1;
    assert_err(HTH_E_TOO_LARGE, feed_header(h, -1));
}

/* ---- bad metas ----------------------------------------------------------------------------- */

static enum hth_err feed_request(const Hth__Rpc__Request *m, uint32_t body_len)
{
    static uint8_t bytes[BYTES_MAX];
    struct feeder f;
    size_t len = hth__rpc__request__get_packed_size(m);
    assert_true(len < BYTES_MAX - 64);
    struct hth_frame_header h = {.version = 1,
                                 .type = HTH_FRAME_REQUEST,
                                 .id = 1,
                                 .meta_len = (uint32_t)len,
                                 .body_len = body_len};
    hth_frame_header_write(&h, bytes);
    hth__rpc__request__pack(m, bytes + HTH_FRAME_HEADER_BYTES);
    feeder_init(&f, 8 << 20, 100000);
    enum hth_err err = feed(&f, bytes, HTH_FRAME_HEADER_BYTES + len);
    if (err == HTH_OK)
        assert_int_equal(f.heads, 1);
    feeder_clear(&f);
    return err;
}

/* One request with up to two sections. */
static enum hth_err feed_tensors(uint32_t dtype, size_t ndim, uint64_t *dims, uint64_t offset,
                                 uint64_t bytes, uint64_t second_offset, uint32_t body_len)
{
    uint64_t four = 4;
    Hth__Rpc__Tensor a = HTH__RPC__TENSOR__INIT, b = HTH__RPC__TENSOR__INIT;
    Hth__Rpc__Tensor *list[2] = {&a, &b};
    Hth__Rpc__Request m = HTH__RPC__REQUEST__INIT;
    a.dtype = dtype;
    a.n_dim = ndim;
    a.dim = dims;
    a.offset = offset;
    a.bytes = bytes;
    b.dtype = HTH_U8;
    b.n_dim = 1;
    b.dim = &four;
    b.offset = second_offset;
    b.bytes = 4;
    m.tensors = list;
    m.n_tensors = second_offset > 0 ? 2 : 1;
    return feed_request(&m, body_len);
}

TEST(tensor_sections_are_checked)
{
    uint64_t d6[2] = {2, 3};
    uint64_t d5[5] = {1, 1, 1, 1, 1};
    uint64_t huge[4] = {1ull << 32, 1ull << 30, 1, 1};
    uint64_t exa[1] = {UINT64_MAX};
    uint64_t wrap[4] = {1ull << 32, 1ull << 32, 1, 1};
    uint64_t zero[2] = {0, 1ull << 40};
    (void)state;
    assert_ok(feed_tensors(HTH_F32, 2, d6, 0, 24, 0, 24));
    assert_ok(feed_tensors(HTH_F32, 2, d6, 0, 24, 64, 68));
    assert_ok(feed_tensors(HTH_F32, 2, zero, 0, 0, 0, 0));
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(HTH_F32, 2, d6, 0, 20, 0, 20));
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(HTH_F32, 2, d6, 0, 24, 0, 23)); /* outside */
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(HTH_F32, 2, d6, 0, 24, 0, 28)); /* bytes left over */
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(HTH_F32, 2, d6, 64, 24, 0, 88));
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(HTH_F32, 2, d6, 0, 24, 24, 28));   /* unaligned */
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(HTH_F32, 2, d6, 0, 24, 128, 132)); /* a gap */
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(HTH_F32, 2, d6, 0, 24, 1, 24));    /* overlap */
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(HTH_F32, 2, d6, UINT64_MAX, 24, 0, 24));
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(0, 2, d6, 0, 24, 0, 24));
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(99, 2, d6, 0, 24, 0, 24));
    assert_err(HTH_E_BAD_SHAPE, feed_tensors(HTH_F32, 5, d5, 0, 4, 0, 4));
    assert_err(HTH_E_TOO_LARGE, feed_tensors(HTH_F32, 4, huge, 0, UINT64_MAX, 0, 64));
    assert_err(HTH_E_TOO_LARGE, feed_tensors(HTH_U8, 1, exa, 0, UINT64_MAX, 0, 64)); /* 16 EiB */
    assert_err(HTH_E_TOO_LARGE, feed_tensors(HTH_U8, 4, wrap, 0, 0, 0, 0));
}

/* The reader accepts the writer's tensors without bytes at any position. The writer adds no padding
 * after the last byte, so an empty section may lie beyond the end. */
TEST(empty_tensors_may_stand_anywhere)
{
    static uint8_t out[BYTES_MAX];
    struct hth_blob *blob = golden_body();
    (void)state;
    for (uint32_t empty = 0; empty < 8; empty++) { /* a bit for each of three tensors */
        struct hth_tensor tensors[3];
        struct hth_frame_msg m = {.type = HTH_FRAME_REQUEST, .id = 1};
        struct feeder f;
        uint64_t body;
        size_t len;
        for (uint32_t i = 0; i < 3; i++)
            tensors[i] = (struct hth_tensor){HTH_F32, 2, {empty >> i & 1 ? 0 : 2, 3}, blob, 0};
        m.body = (struct hth_rpc_body){"", 0, tensors, 3};
        assert_ok(hth_frame_pack(&m, out, sizeof(out), &len));
        assert_ok(hth_frame_body_len(tensors, 3, &body));
        feeder_init(&f, 8 << 20, 50);
        assert_ok(feed(&f, out, len + (size_t)body));
        assert_int_equal(f.heads, 1);
        assert_int_equal(f.bodies, body > 0);
        assert_int_equal(f.frame.msg.body.tensor_count, 3);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(f.frame.msg.body.tensors[i].dim[0], empty >> i & 1 ? 0 : 2);
        feeder_clear(&f);
    }
    hth_blob_unref(blob);
}

/* `count` scalars, which are the shortest sections there are. */
static enum hth_err feed_many(size_t count)
{
    Hth__Rpc__Tensor *items = calloc(count, sizeof(*items));
    Hth__Rpc__Tensor **list = calloc(count, sizeof(*list));
    Hth__Rpc__Request m = HTH__RPC__REQUEST__INIT;
    for (size_t i = 0; i < count; i++) {
        hth__rpc__tensor__init(&items[i]);
        items[i].dtype = HTH_U8;
        items[i].offset = 64 * i;
        items[i].bytes = 1;
        list[i] = &items[i];
    }
    m.tensors = list;
    m.n_tensors = count;
    enum hth_err err = feed_request(&m, (uint32_t)(64 * (count - 1) + 1));
    free(items);
    free(list);
    return err;
}

TEST(number_of_tensors_is_bounded)
{
    (void)state;
    assert_ok(feed_many(HTH_FRAME_TENSORS_MAX));
    assert_err(HTH_E_TOO_LARGE, feed_many(HTH_FRAME_TENSORS_MAX + 1));
}

static enum hth_err feed_raw_meta(uint8_t type, const uint8_t *meta, size_t len, int64_t budget)
{
    static uint8_t bytes[BYTES_MAX];
    struct feeder f;
    struct hth_frame_header h = {.version = 1, .type = type, .id = 1, .meta_len = (uint32_t)len};
    hth_frame_header_write(&h, bytes);
    memcpy(bytes + HTH_FRAME_HEADER_BYTES, meta, len);
    feeder_init(&f, budget, 100000);
    enum hth_err err = feed(&f, bytes, HTH_FRAME_HEADER_BYTES + len);
    feeder_clear(&f);
    return err;
}

TEST(malformed_metas_are_refused)
{
    static uint8_t many[60000];
    /* a payload of 127 bytes, of which one exists */
    const uint8_t open_end[] = {0x2a, 0x7f, 'x'};
    const uint8_t bad_wire[] = {0x0f, 0x01};        /* wire type 7 */
    const uint8_t method[] = {0x08, 0x80, 0x80, 4}; /* 65536 */
    const uint8_t ok_refused[] = {0x08, 0x00};      /* refused with "success" */
    const uint8_t versions[] = {0x08, 0x03, 0x10, 2};
    (void)state;
    assert_err(HTH_E_MALFORMED, feed_raw_meta(HTH_FRAME_REQUEST, open_end, 3, 1 << 20));
    assert_err(HTH_E_MALFORMED, feed_raw_meta(HTH_FRAME_REQUEST, bad_wire, 2, 1 << 20));
    assert_err(HTH_E_RANGE, feed_raw_meta(HTH_FRAME_REQUEST, method, 4, 1 << 20));
    assert_err(HTH_E_RANGE, feed_raw_meta(HTH_FRAME_REFUSE, ok_refused, 2, 1 << 20));
    assert_err(HTH_E_RANGE, feed_raw_meta(HTH_FRAME_HELLO, versions, 4, 1 << 20));
    /* 30,000 empty tensors of two bytes each need 3 MB of structs. */
    for (size_t i = 0; i < sizeof(many); i += 2)
        many[i] = 0x32;
    assert_err(HTH_E_TOO_LARGE, feed_raw_meta(HTH_FRAME_REQUEST, many, sizeof(many), 64 << 20));
    assert_err(HTH_E_BUDGET, feed_raw_meta(HTH_FRAME_REQUEST, many, sizeof(many), 100000));
    /* A network's name is at most HTH_NAME_LEN_MAX long. */
    uint8_t name[2 + HTH_NAME_LEN_MAX + 1] = {0x1a, HTH_NAME_LEN_MAX};
    memset(name + 2, 'n', HTH_NAME_LEN_MAX + 1);
    assert_ok(feed_raw_meta(HTH_FRAME_HELLO, name, sizeof(name) - 1, 1 << 20));
    name[1]++;
    assert_err(HTH_E_RANGE, feed_raw_meta(HTH_FRAME_HELLO, name, sizeof(name), 1 << 20));
}

TEST(texts_are_cut_and_cleaned)
{
    uint8_t meta[3 + 300] = {0x1a, 0xac, 0x02}, bytes[400];
    struct feeder f;
    (void)state;
    memset(meta + 3, 'a', 300);
    meta[3] = 0x1b; /* escape: a terminal would obey it */
    struct hth_frame_header h = {.version = 1, .type = HTH_FRAME_REFUSE, .id = 1};
    h.meta_len = sizeof(meta) + 2;
    hth_frame_header_write(&h, bytes);
    memcpy(bytes + 32, meta, sizeof(meta));
    bytes[32 + sizeof(meta)] = 0x08; /* error = 999, of a newer peer */
    bytes[32 + sizeof(meta) + 1] = 0xe7;
    bytes[32 + sizeof(meta) + 2] = 0x07;
    h.meta_len++;
    hth_frame_header_write(&h, bytes);
    feeder_init(&f, 1 << 20, 1000);
    assert_ok(feed(&f, bytes, 32 + h.meta_len));
    assert_int_equal(strlen(f.frame.msg.u.refuse.text), HTH_RPC_TEXT_MAX);
    assert_int_equal(f.frame.msg.u.refuse.text[0], '?');
    assert_int_equal(f.frame.msg.u.refuse.err, HTH_E_PROTOCOL);
    feeder_clear(&f);
}

/* ---- limits of what we send ---------------------------------------------------------------- */

TEST(oversized_messages_are_not_packed)
{
    static uint8_t out[2 * BYTES_MAX], payload[HTH_FRAME_META_BYTES_MAX + 1];
    struct hth_blob *blob = hth_blob_ghost(4ull << 30, 1);
    struct hth_tensor t = {HTH_U8, 1, {HTH_FRAME_BODY_BYTES_MAX}, blob, 0};
    struct hth_frame_msg m = {.type = HTH_FRAME_REQUEST, .id = 1};
    uint64_t len;
    size_t got;
    (void)state;
    m.body.payload = payload;
    m.body.payload_len = HTH_FRAME_META_BYTES_MAX - 3; /* one byte too much with tag and length */
    assert_err(HTH_E_TOO_LARGE, hth_frame_pack(&m, out, sizeof(out), &got));
    m.body.payload_len = HTH_FRAME_META_BYTES_MAX - 4;
    assert_ok(hth_frame_pack(&m, out, sizeof(out), &got));
    assert_int_equal(got, HTH_FRAME_HEADER_BYTES + HTH_FRAME_META_BYTES_MAX);
    m.body.payload_len = HTH_FRAME_META_BYTES_MAX + 1;
    assert_err(HTH_E_TOO_LARGE, hth_frame_pack(&m, out, sizeof(out), &got));
    assert_ok(hth_frame_body_len(&t, 1, &len));
    t.dim[0]++;
    assert_err(HTH_E_TOO_LARGE, hth_frame_body_len(&t, 1, &len));
    t.dim[0] = 100, t.offset = (4ull << 30) - 64;
    assert_err(HTH_E_BAD_SHAPE, hth_frame_body_len(&t, 1, &len)); /* beyond the end of its blob */
    t.offset = 0, t.dtype = (enum hth_dtype)77;
    assert_err(HTH_E_BAD_SHAPE, hth_frame_body_len(&t, 1, &len));
    assert_err(HTH_E_TOO_LARGE, hth_frame_body_len(&t, HTH_FRAME_TENSORS_MAX + 1, &len));
    hth_blob_unref(blob);
}

/* ---- torture ------------------------------------------------------------------------------- */

static enum hth_err pack_and_feed_many(struct hth_blob *blob)
{
    static uint8_t out[BYTES_MAX];
    struct hth_tensor tensors[64];
    struct hth_frame_msg m = {.type = HTH_FRAME_REQUEST, .id = 1};
    struct feeder f;
    size_t len;
    for (size_t i = 0; i < HTH_ARRAY_LEN(tensors); i++)
        tensors[i] = (struct hth_tensor){HTH_U8, 1, {1 + i}, blob, 0};
    m.body = (struct hth_rpc_body){"torture", 7, tensors, HTH_ARRAY_LEN(tensors)};
    feeder_init(&f, 1 << 20, 50);
    enum hth_err err = hth_frame_pack(&m, out, sizeof(out), &len);
    if (err == HTH_OK)
        err = feed(&f, out, len + 64);
    feeder_clear(&f);
    return err;
}

TEST(every_failed_allocation_is_an_error)
{
    struct hth_blob *blob = hth_blob_ghost(4096, 1);
    (void)state;
    hth_mem_fail_at(1000000);
    assert_ok(pack_and_feed_many(blob));
    long count = hth_mem_try_count();
    assert_true(count >= 4);
    for (long n = 1; n <= count; n++) {
        hth_mem_fail_at(n);
        enum hth_err err = pack_and_feed_many(blob);
        hth_mem_fail_at(0);
        assert_int_equal(err, HTH_E_NO_MEMORY);
    }
    hth_blob_unref(blob);
}
