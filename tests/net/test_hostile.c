/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostile.c: peers that are absent, wrong, silent, slow, many, or that speak another protocol.
 * Raw clients are plain sockets on loopback, driven from the same thread between runs of the loop.
 */
#define _GNU_SOURCE
#include "net/pair.h"
#include "support/suite.h"

#include "net/crypto.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define RAW_MAX 300

struct raw {
    int fd[RAW_MAX];
    int count;
};

static int raw_connect(const struct hth_addr *addr)
{
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(addr->port)};
    memcpy(&sin.sin_addr, addr->ip, 4);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    return fd;
}

/* True when the other side has closed: all its bytes are read and dropped. */
static bool raw_is_closed(int fd)
{
    uint8_t buf[4096];
    for (;;) {
        ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
        if (n == 0)
            return true;
        if (n < 0)
            return errno != EAGAIN;
    }
}

static double metric(struct stream_pair *p, const char *name)
{
    return hth_metrics_get(p->env->metrics, name);
}

static bool one_failed(struct stream_pair *p)
{
    return metric(p, "hearth_net_handshake_failed_total") >= 1 && no_streams(p);
}

/* ---- dialling ------------------------------------------------------------------------------- */

TEST(dial_refuses_wrong_peer_id)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        opts.plain = plain == 1;
        pair_open(&p, &opts);
        struct hth_peer_id other = p.env->self;
        other.b[31] ^= 1;
        assert_ok(hth_dial(p.env, &p.addr, &other, &end_ops, &p.client, &p.client.s));
        pair_run(&p, client_closed);
        assert_int_equal(p.client.err, HTH_E_BAD_PEER_ID);
        assert_int_equal(p.client.opened, 0);
        if (!opts.plain) {
            pair_run(&p, no_streams);
            assert_int_equal(p.accepted, 0); /* our certificate was not sent */
        }
        pair_close(&p);
    }
}

TEST(dial_accepts_any_peer_id)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    assert_ok(hth_dial(p.env, &p.addr, NULL, &end_ops, &p.client, &p.client.s));
    pair_run(&p, both_open);
    struct hth_peer_id id;
    hth_stream_peer(p.env, p.server.s, &id, NULL);
    assert_true(hth_peer_id_eq(&id, &p.env->self));
    assert_string_equal(hth_net_stream_cipher(p.client.s), "TLS_AES_128_GCM_SHA256");
    pair_close(&p);
}

TEST(dial_without_listener_is_refused)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    hth_listener_free(p.env, p.listener); /* nothing listens on that port after this */
    p.listener = NULL;
    pair_dial(&p);
    pair_run(&p, client_closed);
    assert_int_equal(p.client.err, HTH_E_REFUSED);
    assert_int_equal(p.client.opened, 0);
    pair_close(&p);
}

/* A full backlog makes the kernel drop further SYNs. */
TEST(dial_ends_at_its_timeout)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    int fill[8];
    struct stream_pair p;
    (void)state;
    opts.dial_timeout_us = 60000;
    pair_open(&p, &opts);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
    for (size_t i = 0; i < HTH_ARRAY_LEN(fill); i++) {
        fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(fill[i], (struct sockaddr *)&sin, sizeof(sin));
    }
    p.addr.port = ntohs(sin.sin_port);
    int64_t start = hth_now_us(p.env);
    pair_dial(&p);
    pair_run(&p, client_closed);
    assert_int_equal(p.client.err, HTH_E_TIMEOUT);
    assert_true(hth_now_us(p.env) - start >= 60000);
    for (size_t i = 0; i < HTH_ARRAY_LEN(fill); i++)
        close(fill[i]);
    close(fd);
    pair_close(&p);
}

/* The other side accepts the connection and sends nothing. */
TEST(silent_server_times_out)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    struct stream_pair p;
    (void)state;
    opts.handshake_timeout_us = 60000;
    pair_open(&p, &opts);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
    p.addr.port = ntohs(sin.sin_port);
    pair_dial(&p);
    pair_run(&p, client_closed);
    assert_int_equal(p.client.err, HTH_E_TIMEOUT);
    close(fd);
    pair_close(&p);
}

TEST(bad_addresses_are_errors)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_addr none = {0};
    struct hth_listener *l;
    struct hth_stream *s;
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    assert_err(HTH_E_UNSUPPORTED, hth_dial(p.env, &none, NULL, &end_ops, &p.client, &s));
    assert_null(s);
    assert_err(HTH_E_UNSUPPORTED, hth_listen(p.env, &none, pair_accept, &p, &l));
    /* A documentation address (RFC 5737) that no interface of this machine has. */
    struct hth_addr foreign = {.family = 4, .ip = {192, 0, 2, 1}};
    assert_err(HTH_E_UNREACHABLE, hth_listen(p.env, &foreign, pair_accept, &p, &l));
    pair_close(&p);
}

/* ---- listening ------------------------------------------------------------------------------ */

static bool raw_all_closed(struct stream_pair *p)
{
    struct raw *r = p->user;
    for (int i = 0; i < r->count; i++) {
        if (!raw_is_closed(r->fd[i]))
            return false;
    }
    return true;
}

static void run_garbage(const struct hth_net_opts *opts, const void *data, size_t len)
{
    struct raw r = {.count = 1};
    struct stream_pair p;
    pair_open(&p, opts);
    p.user = &r;
    r.fd[0] = raw_connect(&p.addr);
    assert_int_equal(send(r.fd[0], data, len, MSG_NOSIGNAL), (ssize_t)len);
    pair_run(&p, one_failed);
    pair_run(&p, raw_all_closed);
    assert_int_equal(p.accepted, 0);
    assert_true(metric(&p, "hearth_net_received_bytes") <= HTH_STRANGER_BYTES_MAX);
    /* The next peer is accepted. */
    pair_dial(&p);
    pair_run(&p, both_open);
    close(r.fd[0]);
    pair_close(&p);
}

TEST(garbage_is_dropped)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    /* A record header of a handshake message that would be 16 MB long. */
    static const uint8_t huge[] = {0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff, 3, 3};
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    uint8_t noise[2 * HTH_STRANGER_BYTES_MAX];
    struct hth_rng rng;
    (void)state;
    opts.handshake_timeout_us = 100000; /* for noise that announces more than it sends */
    run_garbage(&opts, http, sizeof(http) - 1);
    run_garbage(&opts, huge, sizeof(huge));
    hth_rng_init(&rng, 1);
    for (int round = 0; round < 12; round++) {
        for (size_t i = 0; i < sizeof(noise); i++)
            noise[i] = (uint8_t)hth_rng_u64(&rng);
        if (round % 2 == 1)
            noise[0] = 0x16; /* looks like a TLS handshake a little longer */
        run_garbage(&opts, noise, sizeof(noise));
    }
    opts.plain = true;
    run_garbage(&opts, http, sizeof(http) - 1);
    run_garbage(&opts, noise, sizeof(noise));
}

/* Bytes that break the stream after a good handshake: the peer gets E_PROTOCOL, and no damaged
 * byte. A proxy between the two ends flips one bit. */
struct proxy {
    int listen_fd, up, down; /* up: towards the real listener */
    bool corrupt;
    struct hth_addr addr;
};

static void proxy_pass(int from, int to, bool corrupt)
{
    uint8_t buf[65536];
    ssize_t n = recv(from, buf, sizeof(buf), MSG_DONTWAIT);
    if (n <= 0)
        return;
    if (corrupt)
        buf[n - 1] ^= 1;
    assert_int_equal(send(to, buf, (size_t)n, MSG_NOSIGNAL), n);
}

static void proxy_turn(struct proxy *x, const struct hth_addr *real)
{
    if (x->down < 0) {
        x->down = accept4(x->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (x->down >= 0)
            x->up = raw_connect(real);
        return;
    }
    proxy_pass(x->down, x->up, x->corrupt);
    proxy_pass(x->up, x->down, false);
}

static bool proxied_open(struct stream_pair *p)
{
    proxy_turn(p->user, &p->addr);
    return both_open(p);
}

static bool proxied_server_closed(struct stream_pair *p)
{
    proxy_turn(p->user, &p->addr);
    return p->server.closed == 1;
}

TEST(flipped_bit_ends_the_stream)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    struct proxy x = {.down = -1, .up = -1};
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    p.user = &x;
    x.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(x.listen_fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    assert_int_equal(listen(x.listen_fd, 4), 0);
    assert_int_equal(getsockname(x.listen_fd, (struct sockaddr *)&sin, &len), 0);
    struct hth_addr via = p.addr;
    via.port = ntohs(sin.sin_port);
    assert_ok(hth_dial(p.env, &via, &p.env->self, &end_ops, &p.client, &p.client.s));
    pair_run(&p, proxied_open);
    x.corrupt = true;
    assert_ok(end_write(&p.client, "does not arrive", 15));
    pair_run(&p, proxied_server_closed);
    assert_int_equal(p.server.err, HTH_E_PROTOCOL);
    assert_int_equal(p.server.got, 0);
    close(x.listen_fd);
    close(x.up);
    close(x.down);
    pair_close(&p);
}

/* Sends one byte at a time: the timeout covers the whole handshake. */
static bool trickle(struct stream_pair *p)
{
    static const uint8_t hello[] = {0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc, 3, 3};
    static size_t at;
    struct raw *r = p->user;
    if (at < sizeof(hello))
        (void)send(r->fd[0], &hello[at++], 1, MSG_NOSIGNAL);
    return one_failed(p);
}

TEST(handshake_timeout_covers_trickling_bytes)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct raw r = {.count = 1};
    struct stream_pair p;
    (void)state;
    opts.handshake_timeout_us = 60000;
    pair_open(&p, &opts);
    p.user = &r;
    r.fd[0] = raw_connect(&p.addr);
    int64_t start = hth_now_us(p.env);
    pair_run(&p, trickle);
    assert_true(hth_now_us(p.env) - start >= 60000);
    assert_int_equal(p.accepted, 0);
    assert_true(raw_is_closed(r.fd[0]));
    close(r.fd[0]);
    pair_close(&p);
}

static bool all_seen(struct stream_pair *p)
{
    struct raw *r = p->user;
    return hth_net_stream_count(p->env) + (uint32_t)metric(p, "hearth_net_refused_total") ==
           (uint32_t)r->count;
}

/* 300 connections from one address: 256 are accepted, the others closed at once. After they end,
 * the address is accepted again. */
TEST(connections_per_address_are_bounded)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct raw r = {.count = RAW_MAX};
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    p.user = &r;
    for (int i = 0; i < RAW_MAX; i++)
        r.fd[i] = raw_connect(&p.addr);
    pair_run(&p, all_seen);
    assert_int_equal(hth_net_stream_count(p.env), HTH_STREAMS_PER_ADDR_MAX);
    int closed = 0;
    for (int i = 0; i < RAW_MAX; i++)
        closed += raw_is_closed(r.fd[i]);
    assert_int_equal(closed, RAW_MAX - HTH_STREAMS_PER_ADDR_MAX);
    for (int i = 0; i < RAW_MAX; i++)
        close(r.fd[i]);
    pair_run(&p, no_streams);
    pair_dial(&p);
    pair_run(&p, both_open);
    pair_close(&p);
}

/* The environment is full, so connections are refused although their address has a place left. Once
 * the environment has room, both places of the address are free. */
TEST(refused_connection_gives_back_its_place)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct raw r = {.count = 5};
    struct stream_pair p;
    (void)state;
    opts.streams_max = 2;
    opts.streams_per_addr_max = 2;
    pair_open(&p, &opts);
    p.user = &r;
    pair_dial(&p);
    pair_run(&p, both_open);
    for (int i = 0; i < r.count; i++)
        r.fd[i] = raw_connect(&p.addr);
    pair_run(&p, raw_all_closed);
    assert_int_equal(metric(&p, "hearth_net_refused_total"), r.count);
    for (int i = 0; i < r.count; i++)
        close(r.fd[i]);
    hth_stream_close(p.env, p.client.s, false);
    p.client.s = NULL;
    pair_run(&p, no_streams);
    r.fd[0] = raw_connect(&p.addr);
    r.fd[1] = raw_connect(&p.addr);
    r.count += 2; /* all connections made, for all_seen */
    pair_run(&p, all_seen);
    assert_int_equal(metric(&p, "hearth_net_refused_total"), r.count - 2);
    assert_int_equal(hth_net_stream_count(p.env), 2);
    close(r.fd[0]);
    close(r.fd[1]);
    pair_close(&p);
}

static bool all_failed(struct stream_pair *p)
{
    const struct raw *r = p->user;
    return metric(p, "hearth_net_handshake_failed_total") == r->count && no_streams(p);
}

/* An address with one place: each connection gets it after the failure of the last one. */
TEST(failed_handshake_gives_back_its_place)
{
    static const struct {
        const char *says; /* sent instead of a handshake */
        bool leaves;
        int64_t timeout_us;
    } cases[] = {
        {.says = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"},
        {.leaves = true},
        {.timeout_us = 20000},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_net_opts opts = HTH_NET_OPTS_INIT;
        struct raw r = {.count = 0};
        struct stream_pair p;
        opts.streams_per_addr_max = 1;
        opts.handshake_timeout_us = cases[i].timeout_us;
        pair_open(&p, &opts);
        p.user = &r;
        while (r.count < 4) {
            int fd = raw_connect(&p.addr);
            size_t len = cases[i].says != NULL ? strlen(cases[i].says) : 0;
            if (len > 0)
                assert_int_equal(send(fd, cases[i].says, len, MSG_NOSIGNAL), (ssize_t)len);
            if (cases[i].leaves)
                close(fd);
            r.count++;
            pair_run(&p, all_failed);
            if (!cases[i].leaves)
                close(fd);
        }
        assert_int_equal(metric(&p, "hearth_net_refused_total"), 0);
        pair_close(&p);
    }
}

/* Streams beyond the environment's limit: dialling gives E_BUDGET. The loop does not run meanwhile,
 * so each dial stays one stream. */
TEST(streams_are_bounded)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    enum hth_err err = HTH_OK;
    struct hth_stream *s;
    struct rlimit lim;
    struct stream_pair p;
    uint32_t n = 0;
    (void)state;
    pair_open(&p, &opts);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &lim), 0);
    while (err == HTH_OK && n <= HTH_STREAMS_MAX) {
        err = hth_dial(p.env, &p.addr, NULL, &end_ops, &p.client, &s);
        n += err == HTH_OK;
    }
    assert_int_equal(err, HTH_E_BUDGET);
    if (lim.rlim_cur > HTH_STREAMS_MAX + 64)
        assert_int_equal(n, HTH_STREAMS_MAX);
    assert_int_equal(hth_net_stream_count(p.env), n);
    pair_close(&p);

    opts.streams_max = 3;
    pair_open(&p, &opts);
    struct raw r = {.count = 5};
    p.user = &r;
    for (int i = 0; i < r.count; i++)
        r.fd[i] = raw_connect(&p.addr);
    pair_run(&p, all_seen);
    assert_int_equal(hth_net_stream_count(p.env), 3);
    assert_err(HTH_E_BUDGET, hth_dial(p.env, &p.addr, NULL, &end_ops, &p.client, &s));
    for (int i = 0; i < r.count; i++)
        close(r.fd[i]);
    pair_close(&p);
}

/* Silent connections fill every place: a peer that completes its handshake replaces the oldest
 * silent one. Once all places belong to peers with proven keys, a further connection is closed. */
TEST(silent_connections_give_way)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct raw r = {.count = 4};
    struct stream_pair p;
    (void)state;
    opts.streams_max = 4;
    pair_open(&p, &opts);
    p.user = &r;
    for (int i = 0; i < r.count; i++)
        r.fd[i] = raw_connect(&p.addr);
    pair_run(&p, all_seen);
    for (int i = 0; i < r.count; i++)
        assert_false(raw_is_closed(r.fd[i]));
    close(r.fd[3]);
    r.count = 3;
    pair_run(&p, all_seen);
    pair_dial(&p); /* takes the free place itself, so its accepted end needs another */
    pair_run(&p, both_open);
    assert_true(raw_is_closed(r.fd[0]));
    assert_false(raw_is_closed(r.fd[1]));
    assert_false(raw_is_closed(r.fd[2]));
    for (int i = 0; i < r.count; i++)
        close(r.fd[i]);
    pair_close(&p);

    opts.streams_max = 2;
    pair_open(&p, &opts);
    pair_dial(&p);
    pair_run(&p, both_open);
    r = (struct raw){.count = 1};
    p.user = &r;
    r.fd[0] = raw_connect(&p.addr);
    pair_run(&p, raw_all_closed);
    assert_int_equal(hth_net_stream_count(p.env), 2);
    close(r.fd[0]);
    pair_close(&p);
}

/* ---- TLS clients without a proven key ------------------------------------------------------- */

struct client {
    SSL_CTX *ctx;
    SSL *ssl;
    int fd;
    bool refused; /* the server ended the connection */
};

static X509 *self_signed(EVP_PKEY *key)
{
    X509 *cert = X509_new();
    assert_int_equal(X509_set_version(cert, X509_VERSION_3), 1);
    assert_int_equal(ASN1_INTEGER_set(X509_get_serialNumber(cert), 1), 1);
    assert_non_null(X509_gmtime_adj(X509_getm_notBefore(cert), 0));
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(cert), 3600));
    assert_int_equal(X509_set_pubkey(cert, key), 1);
    bool ed25519 = EVP_PKEY_get_id(key) == EVP_PKEY_ED25519;
    assert_true(X509_sign(cert, key, ed25519 ? NULL : EVP_sha256()) > 0);
    return cert;
}

/* One step of the client: its handshake, a few bytes, then reading to the end. */
static bool client_turn(struct stream_pair *p)
{
    struct client *c = p->user;
    char byte;
    int ret = SSL_do_handshake(c->ssl);
    if (ret == 1)
        ret = SSL_write(c->ssl, "hello", 5);
    if (ret > 0)
        ret = SSL_read(c->ssl, &byte, 1);
    int why = SSL_get_error(c->ssl, ret);
    c->refused = why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE;
    ERR_clear_error();
    return p->accepted > 0 || (c->refused && one_failed(p));
}

/* Only a client that shows an Ed25519 certificate, and holds its key, is accepted. */
TEST(client_without_proven_key_is_never_accepted)
{
    static const struct {
        const char *name;
        bool shows, ed25519, holds;
        int version;
        bool accepted;
    } cases[] = {
        {"its own certificate", true, true, true, TLS1_3_VERSION, true},
        {"no certificate", false, true, true, TLS1_3_VERSION, false},
        {"a certificate of a P-256 key", true, false, true, TLS1_3_VERSION, false},
        {"a certificate of another peer's key", true, true, false, TLS1_3_VERSION, false},
        {"TLS 1.2", true, true, true, TLS1_2_VERSION, false},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_net_opts opts = HTH_NET_OPTS_INIT;
        struct client c = {.ctx = SSL_CTX_new(TLS_client_method())};
        EVP_PKEY *key = cases[i].ed25519 ? EVP_PKEY_Q_keygen(NULL, NULL, "ED25519")
                                         : EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
        EVP_PKEY *other = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
        X509 *cert = self_signed(key);
        struct stream_pair p;
        pair_open(&p, &opts);
        p.user = &c;
        SSL_CTX_set_verify(c.ctx, SSL_VERIFY_NONE, NULL);
        assert_int_equal(SSL_CTX_set_max_proto_version(c.ctx, cases[i].version), 1);
        if (cases[i].shows) {
            assert_int_equal(SSL_CTX_use_certificate(c.ctx, cert), 1);
            assert_int_equal(SSL_CTX_use_PrivateKey(c.ctx, key), 1);
        }
        if (!cases[i].holds)
            assert_int_equal(X509_set_pubkey(cert, other), 1);
        c.ssl = SSL_new(c.ctx);
        c.fd = raw_connect(&p.addr);
        assert_int_equal(fcntl(c.fd, F_SETFL, O_NONBLOCK), 0);
        assert_int_equal(SSL_set_fd(c.ssl, c.fd), 1);
        SSL_set_connect_state(c.ssl);
        pair_run(&p, client_turn);
        if ((p.accepted > 0) != cases[i].accepted)
            fail_msg("a client with %s: accepted %d", cases[i].name, p.accepted);
        SSL_free(c.ssl);
        SSL_CTX_free(c.ctx);
        X509_free(cert);
        EVP_PKEY_free(key);
        EVP_PKEY_free(other);
        close(c.fd);
        pair_close(&p);
    }
}

/* The listener is freed while a handshake is under way. */
static bool one_stream(struct stream_pair *p)
{
    return hth_net_stream_count(p->env) == 1;
}

TEST(freeing_listener_cuts_handshakes)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    int fd = raw_connect(&p.addr);
    pair_run(&p, one_stream);
    hth_listener_free(p.env, p.listener);
    p.listener = NULL;
    pair_run(&p, no_streams);
    assert_true(raw_is_closed(fd));
    close(fd);
    pair_close(&p);
}

TEST(identity_is_the_key)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_secret secret = {{1, 2, 3}};
    struct hth_pubkey pub;
    struct stream_pair p;
    (void)state;
    opts.secret = &secret;
    pair_open(&p, &opts);
    hth_crypto_openssl()->public_of(&secret, &pub);
    struct hth_peer_id want = hth_peer_id_of(hth_crypto_openssl(), &pub);
    assert_true(hth_peer_id_eq(&want, &p.env->self));
    assert_ok(hth_dial(p.env, &p.addr, &want, &end_ops, &p.client, &p.client.s));
    pair_run(&p, both_open);
    pair_close(&p);
}

/* ---- IPv6 ---------------------------------------------------------------------------------- */

/* Makes a network namespace for this process, whose loopback has these addresses too. */
static bool own_network(const char *const *addrs, size_t count)
{
    struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK};
    bool good = unshare(CLONE_NEWNET) == 0;
    int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    good = good && fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &up) == 0;
    for (size_t i = 0; i < count && good; i++) {
        struct in6_ifreq one = {.ifr6_prefixlen = 128, .ifr6_ifindex = 1};
        good =
            inet_pton(AF_INET6, addrs[i], &one.ifr6_addr) == 1 && ioctl(fd, SIOCSIFADDR, &one) == 0;
    }
    if (fd >= 0)
        close(fd);
    return good;
}

static bool one_accepted(struct stream_pair *p)
{
    return hth_net_stream_count(p->env) == 1;
}

static int connect_from(const char *from, uint16_t port)
{
    struct sockaddr_in6 sin = {.sin6_family = AF_INET6}, to = {.sin6_family = AF_INET6};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET6, from, &sin.sin6_addr), 1);
    /* The kernel checks a new address asynchronously before it may be used. */
    int err = bind(fd, (struct sockaddr *)&sin, sizeof(sin));
    for (int i = 0; err != 0 && errno == EADDRNOTAVAIL && i < 500; i++) {
        usleep(10000);
        err = bind(fd, (struct sockaddr *)&sin, sizeof(sin));
    }
    assert_int_equal(err, 0);
    to.sin6_port = htons(port);
    to.sin6_addr = in6addr_loopback;
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* A home has 2^64 addresses and counts as one. This test is the last: it leaves the network
 * namespace. */
TEST(connections_per_ipv6_network_are_bounded)
{
    static const char *const from[] = {"fd00:0:0:7::1", "fd00:0:0:7::2", "fd00:0:0:7:8000::3",
                                       "fd00:0:0:7::4", "fd00:0:0:8::1", "fd00:0:0:8::2"};
    enum { COUNT = HTH_ARRAY_LEN(from) };
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct raw r = {.count = COUNT};
    struct stream_pair p;
    (void)state;
    if (!own_network(from, COUNT)) {
        print_message("this user can't make a network of its own, or there is no IPv6\n");
        skip();
    }
    opts.streams_per_addr_max = 2;
    pair_open_at(&p, &opts, "[::1]:0");
    p.user = &r;
    for (int i = 0; i < COUNT; i++)
        r.fd[i] = connect_from(from[i], p.addr.port);
    pair_run(&p, all_seen);
    assert_int_equal(hth_net_stream_count(p.env), 4);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(raw_is_closed(r.fd[i]), i == 2 || i == 3);
        close(r.fd[i]);
    }
    pair_run(&p, no_streams);
    r.fd[0] = connect_from(from[3], p.addr.port); /* others are accepted then */
    pair_run(&p, one_accepted);
    close(r.fd[0]);
    pair_run(&p, no_streams);
    pair_close(&p);
}

/* ---- the door ------------------------------------------------------------------------------- */

#define CROWD 60

static bool server_got(struct stream_pair *p)
{
    return p->server.got > 0;
}

/* They all have sent something when a peer writes: that waits for a few of them. */
TEST(peers_need_not_wait_for_a_crowd)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct raw r = {.count = CROWD};
    struct stream_pair p;
    (void)state;
    pair_connect(&p, &opts);
    p.user = &r;
    for (int i = 0; i < CROWD; i++) {
        r.fd[i] = raw_connect(&p.addr);
        assert_int_equal(send(r.fd[i], "no TLS", 6, MSG_NOSIGNAL), 6);
    }
    assert_ok(end_write(&p.client, "x", 1));
    pair_run(&p, server_got);
    assert_true(metric(&p, "hearth_net_handshake_failed_total") < CROWD / 4);
    pair_run(&p, raw_all_closed);
    for (int i = 0; i < CROWD; i++)
        close(r.fd[i]);
    pair_close(&p);
}

static int64_t clock_us(clockid_t clock)
{
    struct timespec ts;
    assert_int_equal(clock_gettime(clock, &ts), 0);
    return (int64_t)ts.tv_sec * HTH_US_PER_S + ts.tv_nsec / 1000;
}

static bool crowd_was_there(struct stream_pair *p)
{
    return p->accepted == CROWD && no_streams(p);
}

/* Half of this thread's time is theirs, and that is at most an eighth of all. */
TEST(a_crowd_gets_a_share_of_the_loop)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    static struct pair_end end[CROWD];
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    p.reject = true;
    int64_t began_us = clock_us(CLOCK_MONOTONIC), used_us = clock_us(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < CROWD; i++) {
        end[i] = (struct pair_end){.pair = &p, .into = p.client.into};
        assert_ok(hth_dial(p.env, &p.addr, NULL, &end_ops, &end[i], &end[i].s));
    }
    pair_run(&p, crowd_was_there);
    used_us = clock_us(CLOCK_THREAD_CPUTIME_ID) - used_us;
    assert_true(clock_us(CLOCK_MONOTONIC) - began_us > 2 * used_us);
    pair_close(&p);
}
