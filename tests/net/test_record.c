/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_record.c: encryption against published vectors and OpenSSL, records against the trace of
 * RFC 8448, and everything that a peer can put into a record.
 */
#include "support/test.h"

#include "core/mem.h"
#include "net/record.h"

#include <string.h>

#include <openssl/evp.h>

/* ---- encryption ----------------------------------------------------------------------------- */

static size_t from_hex(const char *hex, uint8_t *out)
{
    size_t n = 0;
    for (; *hex != '\0'; hex += 2) {
        unsigned byte;
        while (*hex == ' ')
            hex++;
        assert_int_equal(sscanf(hex, "%2x", &byte), 1);
        out[n++] = (uint8_t)byte;
    }
    return n;
}

static uint32_t draw(void)
{
    static uint64_t state = 88172645463325252u; /* xorshift (Marsaglia) */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static void draw_bytes(uint8_t *out, size_t len)
{
    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)draw();
}

/* Cases 3 and 4 of the GCM specification (McGrew and Viega, appendix B). */
static void published_vectors(void **state)
{
    static const char *const key_hex = "feffe9928665731c6d6a8f9467308308";
    static const char *const nonce_hex = "cafebabefacedbaddecaf888";
    static const char *const text_hex =
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
    static const char *const want_hex =
        "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
        "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985";
    uint8_t key[16], nonce[12], text[64], want[80], out[80];
    (void)state;
    from_hex(key_hex, key);
    from_hex(nonce_hex, nonce);
    from_hex(text_hex, text);
    from_hex(want_hex, want);
    from_hex("4d5c2af327cd64a62cf35abd2ba6fab4", want + 64);
    for (int library = 0; library < 2; library++) {
        struct hth_aead a;
        assert_ok(hth_aead_init(&a, HTH_SUITE_AES_128_GCM_SHA256, key, true, library == 1));
        assert_true(hth_aead_seal(&a, nonce, NULL, 0, text, 63, text[63], out));
        assert_memory_equal(out, want, 80);
        hth_aead_clear(&a);
    }
}

/* OpenSSL, told of all bytes at once. */
static void reference(const uint8_t *key, const uint8_t *nonce, const uint8_t *aad, size_t aad_len,
                      const uint8_t *text, size_t len, uint8_t *out)
{
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    int n = 0, rest = 0;
    assert_int_equal(EVP_EncryptInit_ex(c, EVP_aes_128_gcm(), NULL, key, nonce), 1);
    assert_int_equal(EVP_EncryptUpdate(c, NULL, &n, aad, (int)aad_len), 1);
    assert_int_equal(EVP_EncryptUpdate(c, out, &n, text, (int)len), 1);
    assert_int_equal(EVP_EncryptFinal_ex(c, out + n, &rest), 1);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, 16, out + len), 1);
    EVP_CIPHER_CTX_free(c);
}

static void check_length(const uint8_t *text, size_t len, bool library)
{
    uint8_t key[16], nonce[12], aad[16];
    size_t aad_len = draw() % 17;
    /* Exactly as long as they may be: the sanitizer sees a byte beyond. */
    uint8_t *out = hth_calloc(1, len + 16), *want = hth_calloc(1, len + 16);
    uint8_t *back = hth_calloc(1, len);
    struct hth_aead seal, open;
    draw_bytes(key, sizeof(key));
    draw_bytes(nonce, sizeof(nonce));
    draw_bytes(aad, sizeof(aad));
    assert_ok(hth_aead_init(&seal, HTH_SUITE_AES_128_GCM_SHA256, key, true, library));
    assert_ok(hth_aead_init(&open, HTH_SUITE_AES_128_GCM_SHA256, key, false, library));
    reference(key, nonce, aad, aad_len, text, len, want);
    assert_true(hth_aead_seal(&seal, nonce, aad, aad_len, text, len - 1, text[len - 1], out));
    assert_memory_equal(out, want, len + 16);
    assert_true(hth_aead_open(&open, nonce, aad, aad_len, out, len, back));
    assert_memory_equal(back, text, len);
    assert_true(hth_aead_open(&open, nonce, aad, aad_len, out, len, out)); /* in place */
    assert_memory_equal(out, text, len);
    want[draw() % (len + 16)] ^= (uint8_t)(1u << draw() % 8);
    assert_false(hth_aead_open(&open, nonce, aad, aad_len, want, len, back));
    hth_aead_clear(&seal);
    hth_aead_clear(&open);
    hth_free(out);
    hth_free(want);
    hth_free(back);
}

static void every_length(void **state)
{
    static uint8_t text[HTH_RECORD_BYTES + 1];
    (void)state;
    draw_bytes(text, sizeof(text));
    for (int library = 0; library < 2; library++) {
        for (size_t len = 1; len <= 600; len++)
            check_length(text, len, library == 1);
        for (int i = 0; i < 40; i++)
            check_length(text, 1 + draw() % sizeof(text), library == 1);
        check_length(text, sizeof(text), library == 1);
    }
}

/* The counter's last 32 bits never carry into the nonce, whatever that is. */
static void nonce_of_ones(void **state)
{
    uint8_t key[16] = {9}, nonce[12], text[300] = {1}, out[316], want[316];
    struct hth_aead a;
    (void)state;
    memset(nonce, 0xff, sizeof(nonce));
    assert_ok(hth_aead_init(&a, HTH_SUITE_AES_128_GCM_SHA256, key, true, false));
    assert_true(hth_aead_seal(&a, nonce, NULL, 0, text, 299, text[299], out));
    reference(key, nonce, NULL, 0, text, 300, want);
    assert_memory_equal(out, want, 316);
    hth_aead_clear(&a);
}

/* ---- records -------------------------------------------------------------------------------- */

static const char *const client_secret =
    "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
static const char *const server_secret =
    "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";

/* Both sides of a connection; secrets of the longest kind, of which shorter suites use a part. */
static void connect_pair(struct hth_records *client, struct hth_records *server, uint16_t suite,
                         bool library)
{
    uint8_t c[HTH_RECORD_SECRET_MAX] = {0}, s[HTH_RECORD_SECRET_MAX] = {0};
    from_hex(client_secret, c);
    from_hex(server_secret, s);
    assert_ok(hth_records_init(client, suite, c, s, library));
    assert_ok(hth_records_init(server, suite, s, c, false));
}

static void clear_pair(struct hth_records *client, struct hth_records *server)
{
    hth_records_clear(client);
    hth_records_clear(server);
}

/* "Application Data" of the simple 1-RTT handshake in RFC 8448, section 3. */
static void trace_of_rfc_8448(void **state)
{
    static const char *const want_hex =
        "17030300 43a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a"
        "20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";
    struct hth_records client, server;
    uint8_t data[50], want[100], out[100];
    (void)state;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)i;
    assert_int_equal(from_hex(want_hex, want), sizeof(data) + HTH_RECORD_EXTRA_BYTES);
    for (int library = 0; library < 2; library++) {
        connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, library == 1);
        assert_ok(hth_records_seal(&client, HTH_RECORD_DATA, data, sizeof(data), out));
        assert_memory_equal(out, want, sizeof(data) + HTH_RECORD_EXTRA_BYTES);
        clear_pair(&client, &server);
    }
}

/* Opens what was sealed; the type. */
static uint8_t pass(struct hth_records *to, uint8_t *record, const uint8_t *want, size_t want_len)
{
    uint8_t type = 0, alert = 0;
    size_t len, got;
    assert_ok(hth_records_next(record, HTH_RECORD_HEADER_BYTES, &len, &alert));
    uint8_t *out = hth_calloc(1, len - HTH_RECORD_EXTRA_BYTES + 1);
    assert_ok(hth_records_open(to, record, len, out, &type, &got, &alert));
    assert_int_equal(got, want_len);
    if (want_len > 0)
        assert_memory_equal(out, want, want_len);
    hth_free(out);
    return type;
}

static void key_updates(void **state)
{
    static const uint16_t suite[] = {HTH_SUITE_AES_128_GCM_SHA256, HTH_SUITE_AES_256_GCM_SHA384,
                                     HTH_SUITE_CHACHA20_POLY1305_SHA256};
    static uint8_t data[HTH_RECORD_BYTES], out[HTH_RECORD_WIRE_BYTES_MAX];
    struct hth_records client, server;
    uint8_t alert;
    (void)state;
    draw_bytes(data, sizeof(data));
    for (size_t i = 0; i < HTH_ARRAY_LEN(suite); i++) {
        connect_pair(&client, &server, suite[i], i % 2 == 1);
        for (int k = 0; k < 20; k++) {
            size_t len = k == 0 ? sizeof(data) : draw() % 100 + 1;
            assert_ok(hth_records_seal(&client, HTH_RECORD_DATA, data, len, out));
            assert_int_equal(pass(&server, out, data, len), HTH_RECORD_DATA);
            assert_ok(hth_records_seal_update(&client, out));
            assert_int_equal(client.out.count, 0);
            static const uint8_t update[] = {24, 0, 0, 1, 0};
            assert_int_equal(pass(&server, out, update, 5), HTH_RECORD_HANDSHAKE);
            assert_int_equal(hth_records_control(&server, HTH_RECORD_HANDSHAKE, update, 5, &alert),
                             HTH_RECORD_NOTHING);
        }
        clear_pair(&client, &server);
    }
    assert_err(HTH_E_UNSUPPORTED, hth_records_init(&client, 0x1304, data, data, false));
}

static void damaged_records(void **state)
{
    struct hth_records client, server;
    uint8_t data[100] = {5}, out[200], plain[200], type, alert;
    size_t got;
    (void)state;
    for (size_t at = HTH_RECORD_HEADER_BYTES; at < 100 + HTH_RECORD_EXTRA_BYTES; at++) {
        connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
        assert_ok(hth_records_seal(&client, HTH_RECORD_DATA, data, sizeof(data), out));
        out[at] ^= 0x10;
        alert = 0;
        assert_err(HTH_E_PROTOCOL, hth_records_open(&server, out, 100 + HTH_RECORD_EXTRA_BYTES,
                                                    plain, &type, &got, &alert));
        assert_int_equal(alert, HTH_RECORD_BAD_MAC);
        clear_pair(&client, &server);
    }
    /* A record that is sent twice has the wrong number. */
    connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
    assert_ok(hth_records_seal(&client, HTH_RECORD_DATA, data, sizeof(data), out));
    assert_int_equal(pass(&server, out, data, sizeof(data)), HTH_RECORD_DATA);
    assert_err(HTH_E_PROTOCOL, hth_records_open(&server, out, 100 + HTH_RECORD_EXTRA_BYTES, plain,
                                                &type, &got, &alert));
    clear_pair(&client, &server);
}

static void bad_headers(void **state)
{
    static const struct {
        uint8_t header[5];
        uint8_t alert; /* 0: fine */
    } cases[] = {
        {{23, 3, 3, 0, 17}, 0},
        {{23, 3, 3, 0x41, 0x00}, 0},
        {{23, 3, 3, 0x41, 0x01}, HTH_RECORD_OVERFLOW},
        {{23, 3, 3, 0xff, 0xff}, HTH_RECORD_OVERFLOW},
        {{23, 3, 3, 0, 16}, HTH_RECORD_BAD_MAC},
        {{23, 3, 3, 0, 0}, HTH_RECORD_BAD_MAC},
        {{20, 3, 3, 0, 17}, HTH_RECORD_UNEXPECTED_MESSAGE},
        {{22, 3, 3, 0, 17}, HTH_RECORD_UNEXPECTED_MESSAGE},
        {{23, 3, 1, 0, 17}, HTH_RECORD_UNEXPECTED_MESSAGE},
        {{23, 2, 3, 0, 17}, HTH_RECORD_UNEXPECTED_MESSAGE},
    };
    size_t len;
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        uint8_t alert = 0;
        const uint8_t *h = cases[i].header;
        assert_ok(hth_records_next(h, 4, &len, &alert));
        assert_int_equal(len, 0);
        assert_err(cases[i].alert == 0 ? HTH_OK : HTH_E_PROTOCOL,
                   hth_records_next(h, 5, &len, &alert));
        assert_int_equal(alert, cases[i].alert);
        if (alert == 0)
            assert_int_equal(len, 5u + 256u * h[3] + h[4]);
    }
}

/* A record whose inner bytes are exactly these: content, type and padding. */
static size_t seal_raw(struct hth_records *r, const uint8_t *inner, size_t len, uint8_t *out)
{
    uint8_t nonce[HTH_AEAD_NONCE_BYTES], header[5] = {23, 3, 3};
    header[3] = (uint8_t)((len + 16) >> 8);
    header[4] = (uint8_t)(len + 16);
    memcpy(nonce, r->out.iv, sizeof(nonce));
    assert_true(r->out.count < 256);
    nonce[11] ^= (uint8_t)r->out.count++;
    memcpy(out, header, 5);
    assert_true(
        hth_aead_seal(&r->out.aead, nonce, header, 5, inner, len - 1, inner[len - 1], out + 5));
    return len + 21;
}

static void padding(void **state)
{
    static uint8_t inner[HTH_RECORD_BYTES + 240], out[HTH_RECORD_WIRE_BYTES_MAX];
    static uint8_t plain[HTH_RECORD_WIRE_BYTES_MAX];
    struct hth_records client, server;
    uint8_t type, alert = 0;
    size_t got, len;
    (void)state;
    connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
    memcpy(inner, "abc\x17", 4);
    len = seal_raw(&client, inner, 200, out);
    assert_ok(hth_records_open(&server, out, len, plain, &type, &got, &alert));
    assert_int_equal(type, HTH_RECORD_DATA);
    assert_int_equal(got, 3);
    /* Data of no length is allowed; zeros alone have no type. */
    len = seal_raw(&client, inner + 3, 1, out);
    assert_ok(hth_records_open(&server, out, len, plain, &type, &got, &alert));
    assert_int_equal(got, 0);
    len = seal_raw(&client, inner + 10, 30, out);
    assert_err(HTH_E_PROTOCOL, hth_records_open(&server, out, len, plain, &type, &got, &alert));
    assert_int_equal(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
    clear_pair(&client, &server);
    /* One byte more than a record may have. */
    for (size_t n = HTH_RECORD_BYTES; n <= HTH_RECORD_BYTES + 1; n++) {
        connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
        memset(inner, 1, n);
        inner[n] = HTH_RECORD_DATA;
        len = seal_raw(&client, inner, n + 1, out);
        assert_err(n == HTH_RECORD_BYTES ? HTH_OK : HTH_E_PROTOCOL,
                   hth_records_open(&server, out, len, plain, &type, &got, &alert));
        clear_pair(&client, &server);
    }
    assert_int_equal(alert, HTH_RECORD_OVERFLOW);
}

/* ---- what is no data ------------------------------------------------------------------------ */

static void handshake_messages(void **state)
{
    static const uint8_t two[] = {4, 0, 0, 3, 1, 2, 3, 24, 0, 0, 1, 1};
    struct hth_records client, server;
    uint8_t alert = 0;
    (void)state;
    /* A ticket and an update that asks for ours, cut at every byte. */
    for (size_t cut = 1; cut < sizeof(two); cut++) {
        connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
        assert_int_equal(hth_records_control(&server, HTH_RECORD_HANDSHAKE, two, cut, &alert),
                         HTH_RECORD_NOTHING);
        assert_int_equal(hth_records_control(&server, HTH_RECORD_HANDSHAKE, two + cut,
                                             sizeof(two) - cut, &alert),
                         HTH_RECORD_ANSWER_UPDATE);
        clear_pair(&client, &server);
    }
    static const struct {
        uint8_t bytes[8];
        size_t len;
        uint8_t alert;
    } bad[] = {
        {{1, 0, 0, 1}, 4, HTH_RECORD_UNEXPECTED_MESSAGE},  /* a ClientHello */
        {{13, 0, 0, 1}, 4, HTH_RECORD_UNEXPECTED_MESSAGE}, /* a CertificateRequest */
        {{24, 0, 0, 2, 0, 0}, 6, HTH_RECORD_DECODE_ERROR},
        {{24, 0, 0, 0}, 4, HTH_RECORD_DECODE_ERROR},
        {{24, 0, 0, 1, 2}, 5, HTH_RECORD_UNEXPECTED_MESSAGE},
        {{24, 0, 0, 1, 0, 4}, 6, HTH_RECORD_UNEXPECTED_MESSAGE}, /* under the old key */
        {{4, 0, 0, 0}, 4, HTH_RECORD_DECODE_ERROR},
        {{4, 1, 0, 1}, 4, HTH_RECORD_DECODE_ERROR}, /* a ticket of more than 64 KiB */
        {{0}, 0, HTH_RECORD_UNEXPECTED_MESSAGE},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
        assert_int_equal(
            hth_records_control(&server, HTH_RECORD_HANDSHAKE, bad[i].bytes, bad[i].len, &alert),
            HTH_RECORD_FAIL);
        assert_int_equal(alert, bad[i].alert);
        clear_pair(&client, &server);
    }
}

static void alerts(void **state)
{
    static const struct {
        uint8_t type, bytes[3];
        size_t len;
        enum hth_record_event event;
        uint8_t alert;
    } cases[] = {
        {21, {1, 0}, 2, HTH_RECORD_END, 99},
        {21, {2, 0}, 2, HTH_RECORD_END, 99},
        {21, {1, 90}, 2, HTH_RECORD_NOTHING, 99},
        {21, {2, 20}, 2, HTH_RECORD_FAIL, 0},
        {21, {1}, 1, HTH_RECORD_FAIL, HTH_RECORD_DECODE_ERROR},
        {21, {1, 0, 0}, 3, HTH_RECORD_FAIL, HTH_RECORD_DECODE_ERROR},
        {20, {1}, 1, HTH_RECORD_FAIL, HTH_RECORD_UNEXPECTED_MESSAGE},
        {24, {1}, 1, HTH_RECORD_FAIL, HTH_RECORD_UNEXPECTED_MESSAGE},
    };
    struct hth_records client, server;
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        uint8_t alert = 99;
        connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
        assert_int_equal(
            hth_records_control(&server, cases[i].type, cases[i].bytes, cases[i].len, &alert),
            cases[i].event);
        assert_int_equal(alert, cases[i].alert);
        clear_pair(&client, &server);
    }
    /* Ours are understood by the other side. */
    uint8_t out[HTH_RECORD_ALERT_BYTES], closing[] = {1, 0}, fatal[] = {2, 20};
    connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
    assert_ok(hth_records_seal_alert(&client, HTH_RECORD_CLOSE_NOTIFY, out));
    assert_int_equal(pass(&server, out, closing, 2), HTH_RECORD_ALERT);
    assert_ok(hth_records_seal_alert(&client, HTH_RECORD_BAD_MAC, out));
    assert_int_equal(pass(&server, out, fatal, 2), HTH_RECORD_ALERT);
    clear_pair(&client, &server);
}

/* Data may not come within a handshake message, nor may other records come without end. */
static void out_of_place(void **state)
{
    static const uint8_t half[] = {4, 0, 0, 9, 1}, end[] = {1, 0};
    struct hth_records client, server;
    uint8_t out[100], plain[100], type, alert = 0, data[1] = {7};
    size_t got, len = 1 + HTH_RECORD_EXTRA_BYTES;
    (void)state;
    connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
    assert_int_equal(hth_records_control(&server, HTH_RECORD_HANDSHAKE, half, 5, &alert),
                     HTH_RECORD_NOTHING);
    assert_int_equal(hth_records_control(&server, HTH_RECORD_ALERT, end, 2, &alert),
                     HTH_RECORD_FAIL);
    assert_ok(hth_records_seal(&client, HTH_RECORD_DATA, data, 1, out));
    assert_err(HTH_E_PROTOCOL, hth_records_open(&server, out, len, plain, &type, &got, &alert));
    clear_pair(&client, &server);

    connect_pair(&client, &server, HTH_SUITE_AES_128_GCM_SHA256, false);
    for (int i = 0; i <= HTH_RECORD_IDLE_MAX; i++) {
        bool last = i == HTH_RECORD_IDLE_MAX;
        assert_ok(hth_records_seal(&client, HTH_RECORD_DATA, data, 0, out));
        assert_err(last ? HTH_E_PROTOCOL : HTH_OK,
                   hth_records_open(&server, out, len - 1, plain, &type, &got, &alert));
    }
    assert_int_equal(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
    clear_pair(&client, &server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),  cmocka_unit_test(every_length),
        cmocka_unit_test(nonce_of_ones),      cmocka_unit_test(trace_of_rfc_8448),
        cmocka_unit_test(key_updates),        cmocka_unit_test(damaged_records),
        cmocka_unit_test(bad_headers),        cmocka_unit_test(padding),
        cmocka_unit_test(handshake_messages), cmocka_unit_test(alerts),
        cmocka_unit_test(out_of_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
