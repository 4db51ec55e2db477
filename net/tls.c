/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.c: TLS 1.3 between keys, not names.
 *
 * Both sides present a certificate that signs itself with the node's Ed25519 key. TLS proves that
 * the other side holds the key; we accept any such key, compute the peer's id from it and, when
 * dialling, compare it with the id that is wanted before our own certificate is sent. Names, dates
 * and chains mean nothing here and are not looked at. No tickets, no resumption, no early data:
 * every connection proves its key anew.
 *
 * OpenSSL does the handshake, through a BIO of our own: writes collect in net->out, reads take from
 * s->in no more than the handshake needs. The traffic secrets come to us as to any keylog; when the
 * other side is proven they go to record.c, and OpenSSL's part is over.
 */
#include "net/net-internal.h"

#include "core/limits.h"
#include "core/mem.h"
#include "net/record.h"

#include <string.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

/* AES first: with the instructions of any x86-64 it beats ChaCha20; a peer without them may prefer
 * the last. */
#define CIPHERS "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
/* Ours has about 300 bytes. */
#define CERT_BYTES_MAX 4096

struct hth_net_tls {
    SSL *ssl;           /* until the handshake is over */
    const char *cipher; /* then its name, */
    struct hth_records records;
    /* The secrets of what client and server send; forgotten when the records have them. */
    uint8_t client_secret[HTH_RECORD_SECRET_MAX], server_secret[HTH_RECORD_SECRET_MAX];
    size_t client_len, server_len;
};

/* ---- the BIO -------------------------------------------------------------------------------- */

static int bio_write(BIO *bio, const char *data, size_t len, size_t *written)
{
    struct hth_stream *s = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (!hth_net_out(s->net, data, len))
        return 0;
    *written = len;
    return 1;
}

static int bio_read(BIO *bio, char *buf, size_t len, size_t *got)
{
    struct hth_stream *s = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (s->in_len == 0 && hth_net_fill(s) == 0) {
        if (s->dry && !s->eof && s->sock_errno == 0)
            BIO_set_retry_read(bio);
        return 0;
    }
    *got = HTH_MIN(len, s->in_len);
    memcpy(buf, s->in + s->in_off, *got);
    s->in_off += *got;
    s->in_len -= *got;
    return 1;
}

static long bio_ctrl(BIO *bio, int cmd, long num, void *ptr)
{
    (void)num;
    (void)ptr;
    if (cmd == BIO_CTRL_FLUSH)
        return 1; /* the pump flushes */
    if (cmd == BIO_CTRL_EOF)
        return ((struct hth_stream *)BIO_get_data(bio))->eof;
    return 0;
}

static int bio_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

/* ---- certificates --------------------------------------------------------------------------- */

static bool key_of(X509 *cert, uint8_t key[HTH_PUBKEY_LEN])
{
    size_t len = HTH_PUBKEY_LEN;
    EVP_PKEY *pkey = cert != NULL ? X509_get0_pubkey(cert) : NULL;
    return pkey != NULL && EVP_PKEY_get_id(pkey) == EVP_PKEY_ED25519 &&
           EVP_PKEY_get_raw_public_key(pkey, key, &len) == 1 && len == HTH_PUBKEY_LEN;
}

/* Takes the place of OpenSSL's chain verification: which key is it, and is it the wanted one? That
 * the other side holds it is proven by TLS's CertificateVerify, which follows. */
static int verify_cb(X509_STORE_CTX *store, void *arg)
{
    uint8_t key[HTH_PUBKEY_LEN];
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct hth_stream *s = SSL_get_app_data(ssl);
    (void)arg;
    if (!key_of(X509_STORE_CTX_get0_cert(store), key)) {
        X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
        return 0;
    }
    hth_net_peer_from_key(s, key);
    if (s->has_want && !hth_peer_id_eq(&s->want, &s->peer)) {
        s->end_err = HTH_E_BAD_PEER_ID;
        X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
        return 0;
    }
    X509_STORE_CTX_set_error(store, X509_V_OK);
    return 1;
}

/* Valid at all times: clocks of volunteers are wrong, and nobody looks. */
static X509 *make_cert(EVP_PKEY *pkey)
{
    X509 *cert = X509_new();
    if (cert == NULL)
        return NULL;
    X509_NAME *name = X509_get_subject_name(cert);
    bool fine = X509_set_version(cert, X509_VERSION_3) == 1 &&
                ASN1_INTEGER_set(X509_get_serialNumber(cert), 1) == 1 &&
                ASN1_TIME_set_string_X509(X509_getm_notBefore(cert), "19700101000000Z") == 1 &&
                ASN1_TIME_set_string_X509(X509_getm_notAfter(cert), "99991231235959Z") == 1 &&
                X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                           (const unsigned char *)"hearth", -1, -1, 0) == 1 &&
                X509_set_issuer_name(cert, name) == 1 && X509_set_pubkey(cert, pkey) == 1 &&
                X509_sign(cert, pkey, NULL) > 0;
    if (fine)
        return cert;
    X509_free(cert);
    return NULL;
}

static unsigned hex_digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : ((unsigned)c | 0x20u) - 'a' + 10u;
}

/* "LABEL client-random secret", the last two in hexadecimal. */
static void keylog_cb(const SSL *ssl, const char *line)
{
    struct hth_stream *s = SSL_get_app_data(ssl);
    struct hth_net_tls *t = s->tls;
    bool client = strncmp(line, "CLIENT_TRAFFIC_SECRET_0 ", 24) == 0;
    const char *hex = strrchr(line, ' ');
    if (hex == NULL || (!client && strncmp(line, "SERVER_TRAFFIC_SECRET_0 ", 24) != 0))
        return;
    uint8_t *secret = client ? t->client_secret : t->server_secret;
    size_t len = strlen(++hex) / 2;
    if (len > HTH_RECORD_SECRET_MAX)
        return;
    for (size_t i = 0; i < len; i++)
        secret[i] = (uint8_t)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
    *(client ? &t->client_len : &t->server_len) = len;
}

static bool configure(struct hth_net *net, SSL_CTX *ctx)
{
    EVP_PKEY *pkey = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, net->env.secret.b,
                                                  sizeof(net->env.secret.b));
    X509 *cert = pkey != NULL ? make_cert(pkey) : NULL;
    bool fine = cert != NULL && SSL_CTX_use_certificate(ctx, cert) == 1 &&
                SSL_CTX_use_PrivateKey(ctx, pkey) == 1 &&
                SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) == 1 &&
                SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) == 1 &&
                SSL_CTX_set_ciphersuites(ctx, CIPHERS) == 1 &&
                SSL_CTX_set1_groups_list(ctx, "X25519") == 1 &&
                SSL_CTX_set1_sigalgs_list(ctx, "ed25519") == 1 &&
                SSL_CTX_set1_client_sigalgs_list(ctx, "ed25519") == 1;
    X509_free(cert);
    EVP_PKEY_free(pkey);
    if (!fine)
        return false;
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(ctx, verify_cb, NULL);
    SSL_CTX_set_max_cert_list(ctx, CERT_BYTES_MAX);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_read_ahead(ctx, 0); /* what follows the handshake is for record.c */
    SSL_CTX_set_keylog_callback(ctx, keylog_cb);
    return true;
}

enum hth_err hth_net_tls_setup(struct hth_net *net)
{
    net->bio_method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "hearth stream");
    net->ctx = SSL_CTX_new(TLS_method());
    bool fine = net->bio_method != NULL && net->ctx != NULL &&
                BIO_meth_set_write_ex(net->bio_method, bio_write) == 1 &&
                BIO_meth_set_read_ex(net->bio_method, bio_read) == 1 &&
                BIO_meth_set_ctrl(net->bio_method, bio_ctrl) == 1 &&
                BIO_meth_set_create(net->bio_method, bio_create) == 1 && configure(net, net->ctx);
    ERR_clear_error();
    return fine ? HTH_OK : HTH_E_BAD_KEY;
}

void hth_net_tls_teardown(struct hth_net *net)
{
    SSL_CTX_free(net->ctx);
    BIO_meth_free(net->bio_method);
    net->ctx = NULL;
    net->bio_method = NULL;
}

/* ---- the handshake -------------------------------------------------------------------------- */

static void tls_clear(struct hth_stream *s)
{
    struct hth_net_tls *t = s->tls;
    if (t == NULL)
        return;
    SSL_free(t->ssl);
    hth_records_clear(&t->records);
    OPENSSL_cleanse(t, sizeof(*t));
    hth_free(t);
    s->tls = NULL;
}

static enum hth_err tls_open(struct hth_stream *s)
{
    BIO *bio = BIO_new(s->net->bio_method);
    SSL *ssl = SSL_new(s->net->ctx);
    if (bio == NULL || ssl == NULL) {
        BIO_free(bio);
        SSL_free(ssl);
        ERR_clear_error();
        return HTH_E_NO_MEMORY;
    }
    s->tls = hth_new(struct hth_net_tls);
    s->tls->ssl = ssl;
    BIO_set_data(bio, s);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_app_data(ssl, s);
    if (s->dialed)
        SSL_set_connect_state(ssl);
    else
        SSL_set_accept_state(ssl);
    return HTH_OK;
}

/* From here on records are ours. */
static enum hth_err take_over(struct hth_stream *s)
{
    struct hth_net_tls *t = s->tls;
    const SSL_CIPHER *cipher = SSL_get_current_cipher(t->ssl);
    uint16_t suite = SSL_CIPHER_get_protocol_id(cipher);
    size_t len = hth_record_secret_bytes(suite);
    if (len == 0 || t->client_len != len || t->server_len != len || SSL_has_pending(t->ssl))
        return HTH_E_PROTOCOL;
    t->cipher = SSL_CIPHER_get_name(cipher);
    enum hth_err err = hth_records_init(
        &t->records, suite, s->dialed ? t->client_secret : t->server_secret,
        s->dialed ? t->server_secret : t->client_secret, s->net->opts.library_ciphers);
    OPENSSL_cleanse(t->client_secret, sizeof(t->client_secret));
    OPENSSL_cleanse(t->server_secret, sizeof(t->server_secret));
    SSL_free(t->ssl);
    t->ssl = NULL;
    return err;
}

/* OpenSSL's error queue is per thread and poisons later calls, so it is emptied whenever something
 * failed. */
static enum hth_net_step tls_handshake(struct hth_stream *s)
{
    int ret = SSL_do_handshake(s->tls->ssl);
    if (ret == 1) {
        enum hth_err err = take_over(s);
        if (err == HTH_OK)
            return HTH_NET_STEP_OK;
        s->end_err = err;
        return HTH_NET_STEP_FAIL;
    }
    int code = SSL_get_error(s->tls->ssl, ret);
    hth_net_in_rest(s);
    if (code == SSL_ERROR_WANT_READ)
        return HTH_NET_STEP_WAIT;
    ERR_clear_error();
    if (s->end_err == HTH_OK)
        s->end_err =
            code == SSL_ERROR_ZERO_RETURN ? HTH_E_CLOSED : hth_net_sock_err(s, HTH_E_PROTOCOL);
    return HTH_NET_STEP_FAIL;
}

/* ---- records -------------------------------------------------------------------------------- */

/* The connection can't go on; the other side hears why, unless it said so itself. */
static enum hth_net_step break_off(struct hth_stream *s, enum hth_err err, uint8_t alert)
{
    struct hth_records *r = &s->tls->records;
    uint8_t *room = alert != 0 ? hth_net_out_room(s->net, HTH_RECORD_ALERT_BYTES) : NULL;
    if (room != NULL && hth_records_seal_alert(r, alert, room) != HTH_OK)
        s->net->out_len -= HTH_RECORD_ALERT_BYTES;
    s->end_err = err;
    return HTH_NET_STEP_FAIL;
}

static enum hth_err change_key(struct hth_stream *s)
{
    uint8_t *room = hth_net_out_room(s->net, HTH_RECORD_UPDATE_BYTES);
    return room != NULL ? hth_records_seal_update(&s->tls->records, room) : HTH_E_PROTOCOL;
}

/* Content that is no data. */
static enum hth_net_step control(struct hth_stream *s, uint8_t type, const uint8_t *content,
                                 size_t len)
{
    uint8_t alert = 0;
    enum hth_err err = HTH_OK;
    switch (hth_records_control(&s->tls->records, type, content, len, &alert)) {
    case HTH_RECORD_NOTHING:
        return HTH_NET_STEP_OK;
    case HTH_RECORD_ANSWER_UPDATE:
        err = change_key(s);
        return err == HTH_OK ? HTH_NET_STEP_OK : break_off(s, err, 0);
    case HTH_RECORD_END:
        return HTH_NET_STEP_END;
    case HTH_RECORD_FAIL:
        break;
    }
    return break_off(s, HTH_E_PROTOCOL, alert);
}

/* The next record's place: behind s->in_off, *len bytes. */
static enum hth_net_step whole_record(struct hth_stream *s, size_t *len)
{
    for (;;) {
        uint8_t alert = 0;
        size_t n = 0;
        enum hth_err err =
            s->in_len > 0 ? hth_records_next(s->in + s->in_off, s->in_len, &n, &alert) : HTH_OK;
        if (err != HTH_OK)
            return break_off(s, err, alert);
        *len = n;
        if (n > 0 && n <= s->in_len)
            return HTH_NET_STEP_OK;
        if (hth_net_fill(s) > 0)
            continue;
        hth_net_in_rest(s);
        if (!s->eof && s->sock_errno == 0)
            return HTH_NET_STEP_WAIT;
        s->end_err = hth_net_sock_err(s, HTH_E_CLOSED);
        return HTH_NET_STEP_FAIL;
    }
}

/* Opens records until one has data: at `to`, when that has room for a whole one (then *got is its
 * length), else where it lies. */
static enum hth_net_step next_data(struct hth_stream *s, uint8_t *to, size_t max, size_t *got)
{
    for (;;) {
        size_t len = 0, n = 0;
        uint8_t type = 0, alert = 0;
        enum hth_net_step step = whole_record(s, &len);
        if (step != HTH_NET_STEP_OK)
            return step;
        uint8_t *record = s->in + s->in_off;
        bool direct = max > len - HTH_RECORD_EXTRA_BYTES;
        uint8_t *out = direct ? to : record + HTH_RECORD_HEADER_BYTES;
        enum hth_err err = hth_records_open(&s->tls->records, record, len, out, &type, &n, &alert);
        s->in_off += len;
        s->in_len -= len;
        if (err != HTH_OK)
            return break_off(s, err, alert);
        if (type == HTH_RECORD_DATA && n > 0) {
            *got = direct ? n : 0;
            s->plain_off = s->in_off - len + HTH_RECORD_HEADER_BYTES;
            s->plain_len = direct ? 0 : n;
            return HTH_NET_STEP_OK;
        }
        if (type != HTH_RECORD_DATA)
            step = control(s, type, out, n);
        if (step != HTH_NET_STEP_OK)
            return step;
    }
}

static enum hth_net_step tls_peek(struct hth_stream *s)
{
    size_t none;
    return s->plain_len > 0 ? HTH_NET_STEP_OK : next_data(s, NULL, 0, &none);
}

static enum hth_net_step tls_read(struct hth_stream *s, uint8_t *to, size_t max, size_t *got)
{
    *got = 0;
    if (s->plain_len == 0) {
        enum hth_net_step step = next_data(s, to, max, got);
        if (step != HTH_NET_STEP_OK || *got > 0)
            return step;
    }
    *got = HTH_MIN(max, s->plain_len);
    memcpy(to, s->in + s->plain_off, *got);
    s->plain_off += *got;
    s->plain_len -= *got;
    return HTH_NET_STEP_OK;
}

static enum hth_err tls_seal(struct hth_stream *s, const uint8_t *data, size_t len)
{
    struct hth_records *r = &s->tls->records;
    if (r->out.count >= s->net->opts.key_records_max)
        HTH_TRY(change_key(s));
    uint8_t *room = hth_net_out_room(s->net, len + HTH_RECORD_EXTRA_BYTES);
    HTH_ASSERT(room != NULL);
    return hth_records_seal(r, HTH_RECORD_DATA, data, len, room);
}

static void tls_seal_end(struct hth_stream *s)
{
    uint8_t *room = hth_net_out_room(s->net, HTH_RECORD_ALERT_BYTES);
    if (room != NULL &&
        hth_records_seal_alert(&s->tls->records, HTH_RECORD_CLOSE_NOTIFY, room) != HTH_OK)
        s->net->out_len -= HTH_RECORD_ALERT_BYTES;
}

const struct hth_net_codec hth_net_tls = {
    .open = tls_open,
    .handshake = tls_handshake,
    .peek = tls_peek,
    .read = tls_read,
    .seal = tls_seal,
    .seal_end = tls_seal_end,
    .clear = tls_clear,
};

const char *hth_net_stream_cipher(const struct hth_stream *s)
{
    return s->tls != NULL && s->tls->cipher != NULL ? s->tls->cipher : "plain";
}
