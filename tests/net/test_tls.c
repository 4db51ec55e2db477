/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tls.c: our streams against OpenSSL's own, in a thread with a blocking socket: each suite, in
 * both roles, with key updates that it asks for, the tickets that it hands out, and its alerts.
 */
#define _GNU_SOURCE
#include "net/pair.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#define TOTAL (1u << 20)

/* What runs in the thread; it asserts nothing itself. */
struct theirs {
    const char *suite;
    bool serves, requests_update, cuts;
    int fd; /* listens, or is connected */
    bool fine;
    char cipher[40];
    uint64_t came;
    bool ended_well;
};

static int any_cert(X509_STORE_CTX *store, void *arg)
{
    (void)store;
    (void)arg;
    return 1;
}

static SSL_CTX *their_ctx(const struct theirs *t)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    X509 *cert = X509_new();
    X509_set_version(cert, X509_VERSION_3);
    X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_sign(cert, key, NULL);
    SSL_CTX_use_certificate(ctx, cert);
    SSL_CTX_use_PrivateKey(ctx, key);
    SSL_CTX_set_ciphersuites(ctx, t->suite);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(ctx, any_cert, NULL);
    SSL_CTX_set_session_id_context(ctx, (const unsigned char *)"x", 1); /* tickets want one */
    X509_free(cert);
    EVP_PKEY_free(key);
    return ctx;
}

static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 11 + i / 251);
}

/* Sends TOTAL bytes and reads as many of the same back, a piece at a time. */
static bool exchange(struct theirs *t, SSL *ssl)
{
    static uint8_t out[50000], in[50000];
    size_t piece = 1;
    for (uint64_t sent = 0; sent < TOTAL;) {
        size_t n = HTH_MIN(piece, (size_t)(TOTAL - sent)), done, got;
        for (size_t i = 0; i < n; i++)
            out[i] = byte_at(sent + i);
        if (SSL_write_ex(ssl, out, n, &done) != 1 || done != n)
            return false;
        for (size_t at = 0; at < n; at += got) {
            if (SSL_read_ex(ssl, in, n - at, &got) != 1 || memcmp(in, out + at, got) != 0)
                return false;
            t->came += got;
        }
        sent += n;
        piece = HTH_MIN(piece * 3, sizeof(out));
        if (t->requests_update && sent < TOTAL &&
            SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED) != 1)
            return false;
    }
    return true;
}

static void *their_thread(void *arg)
{
    struct theirs *t = arg;
    SSL_CTX *ctx = their_ctx(t);
    SSL *ssl = SSL_new(ctx);
    int fd = t->serves ? accept(t->fd, NULL, NULL) : t->fd;
    SSL_set_fd(ssl, fd);
    t->fine = (t->serves ? SSL_accept(ssl) : SSL_connect(ssl)) == 1 && exchange(t, ssl);
    snprintf(t->cipher, sizeof(t->cipher), "%s", SSL_get_cipher_name(ssl));
    if (t->fine && !t->cuts) {
        size_t n;
        uint8_t byte;
        SSL_shutdown(ssl);
        /* Our side answers by ending its own direction. */
        t->ended_well =
            SSL_read_ex(ssl, &byte, 1, &n) == 0 && SSL_get_error(ssl, 0) == SSL_ERROR_ZERO_RETURN;
    }
    SSL_free(ssl);
    close(fd);
    SSL_CTX_free(ctx);
    return NULL;
}

/* ---- our side ------------------------------------------------------------------------------- */

static void echo(struct end *e)
{
    size_t n;
    while (e->s != NULL && (n = hth_stream_read(e->pair->env, e->s, e->into, 0, 30000)) > 0) {
        e->got += n;
        assert_ok(end_write(e, e->into->data, n));
    }
}

static int local_socket(const struct hth_addr *to, uint16_t *port)
{
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (to != NULL) {
        sin.sin_port = htons(to->port);
        assert_int_equal(connect(fd, (struct sockaddr *)&sin, len), 0);
        return fd;
    }
    assert_int_equal(bind(fd, (struct sockaddr *)&sin, len), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
    *port = ntohs(sin.sin_port);
    return fd;
}

static void run(struct theirs *t, bool library)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct pair p;
    pthread_t thread;
    opts.library_ciphers = library;
    pair_open(&p, &opts);
    p.client.on_readable = p.server.on_readable = echo;
    t->fd = local_socket(t->serves ? NULL : &p.addr, &p.addr.port);
    assert_int_equal(pthread_create(&thread, NULL, their_thread, t), 0);
    if (t->serves)
        assert_ok(hth_dial(p.env, &p.addr, NULL, &end_ops, &p.client, &p.client.s));
    pair_run(&p, t->serves ? client_closed : server_closed);
    const struct end *e = t->serves ? &p.client : &p.server;
    assert_int_equal(e->got, TOTAL);
    assert_int_equal(e->err, t->cuts ? HTH_E_CLOSED : HTH_OK);
    pair_close(&p); /* only now the thread is sure to end */
    pthread_join(thread, NULL);
    if (t->serves)
        close(t->fd);
    assert_true(t->fine);
    assert_int_equal(t->came, TOTAL);
    assert_string_equal(t->cipher, t->suite);
}

static void every_suite(void **state)
{
    static const char *const suite[] = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384",
                                        "TLS_CHACHA20_POLY1305_SHA256"};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(suite); i++) {
        for (int serves = 0; serves < 2; serves++) {
            struct theirs t = {.suite = suite[i], .serves = serves == 1};
            run(&t, false);
        }
    }
}

static void by_library(void **state)
{
    struct theirs t = {.suite = "TLS_AES_128_GCM_SHA256"};
    (void)state;
    run(&t, true);
}

static void updates_on_request(void **state)
{
    (void)state;
    for (int serves = 0; serves < 2; serves++) {
        struct theirs t = {
            .suite = "TLS_AES_128_GCM_SHA256", .serves = serves == 1, .requests_update = true};
        run(&t, false);
    }
}

/* An end without close_notify is a loss, not an end. */
static void cut_off(void **state)
{
    struct theirs t = {.suite = "TLS_AES_128_GCM_SHA256", .cuts = true};
    (void)state;
    run(&t, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_suite),
        cmocka_unit_test(by_library),
        cmocka_unit_test(updates_on_request),
        cmocka_unit_test(cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
