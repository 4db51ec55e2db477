/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.c: TLS 1.3 between keys, not names.
 *
 * Both sides present a certificate that signs itself with the node's Ed25519 key. TLS proves that
 * the other side holds the key; we accept any such key, compute the peer's id from it and, when
 * dialling, compare it with the wanted id before our own certificate is sent. Names, dates and
 * chains are ignored. No tickets, no resumption, no early data: every connection proves its key
 * anew.
 *
 * OpenSSL reads and writes through a BIO of our own: writes collect in net->out until the pump
 * sends them in large pieces; reads fill the read-ahead buffer from the socket.
 */
#include "net/net_int.h"

#include "core/limits.h"

#include <string.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

/* AES first: with the AES instructions of x86-64 it beats ChaCha20; a peer without them may prefer
 * the last. */
#define CIPHERS "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
/* Our certificate has about 300 bytes. */
#define CERT_BYTES_MAX 4096

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
    *got = hth_net_sock_recv(s, buf, len);
    if (*got > 0)
        return 1;
    if (s->dry && !s->eof && s->sock_errno == 0)
        BIO_set_retry_read(bio);
    return 0;
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

/* Replaces OpenSSL's chain verification: takes the key and compares it with the wanted one. TLS's
 * CertificateVerify, which follows, proves that the other side holds the secret. */
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

/* Valid at all times: clocks of volunteers are wrong, and verify_cb ignores dates. */
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
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS); /* an idle stream does not hold 64 KiB */
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, HTH_NET_SEND_BYTES);
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

/* ---- the codec ------------------------------------------------------------------------------ */

static enum hth_err tls_open(struct hth_stream *s)
{
    BIO *bio = BIO_new(s->net->bio_method);
    s->ssl = SSL_new(s->net->ctx);
    if (bio == NULL || s->ssl == NULL) {
        BIO_free(bio);
        ERR_clear_error();
        return HTH_E_NO_MEMORY;
    }
    BIO_set_data(bio, s);
    SSL_set_bio(s->ssl, bio, bio);
    SSL_set_app_data(s->ssl, s);
    if (s->dialed)
        SSL_set_connect_state(s->ssl);
    else
        SSL_set_accept_state(s->ssl);
    return HTH_OK;
}

/* Converts a failed call's error. OpenSSL's error queue is per thread and affects later calls, so
 * it is emptied after every failure. */
static enum hth_net_step failed(struct hth_stream *s, int ret)
{
    int code = SSL_get_error(s->ssl, ret);
    if (code == SSL_ERROR_WANT_READ)
        return HTH_NET_STEP_WAIT;
    ERR_clear_error();
    if (code == SSL_ERROR_ZERO_RETURN)
        return HTH_NET_STEP_END;
    if (s->end_err == HTH_OK)
        s->end_err = hth_net_sock_err(s, HTH_E_PROTOCOL);
    return HTH_NET_STEP_FAIL;
}

static enum hth_net_step tls_handshake(struct hth_stream *s)
{
    int ret = SSL_do_handshake(s->ssl);
    if (ret == 1)
        return HTH_NET_STEP_OK;
    enum hth_net_step step = failed(s, ret);
    if (step == HTH_NET_STEP_END)
        s->end_err = HTH_E_CLOSED;
    return step;
}

static enum hth_net_step tls_peek(struct hth_stream *s)
{
    uint8_t byte;
    size_t n;
    if (SSL_pending(s->ssl) > 0)
        return HTH_NET_STEP_OK;
    int ret = SSL_peek_ex(s->ssl, &byte, 1, &n);
    return ret == 1 ? HTH_NET_STEP_OK : failed(s, ret);
}

static enum hth_net_step tls_read(struct hth_stream *s, uint8_t *to, size_t max, size_t *got)
{
    int ret = SSL_read_ex(s->ssl, to, max, got);
    return ret == 1 ? HTH_NET_STEP_OK : failed(s, ret);
}

static enum hth_err tls_seal(struct hth_stream *s, const uint8_t *data, size_t len)
{
    size_t n = 0;
    if (++s->records > s->net->opts.key_records_max) {
        s->records = 1;
        if (SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
            ERR_clear_error(); /* the next failed read or write reports the error */
    }
    if (SSL_write_ex(s->ssl, data, len, &n) == 1 && n == len)
        return HTH_OK;
    ERR_clear_error();
    return HTH_E_CLOSED;
}

static void tls_seal_end(struct hth_stream *s)
{
    if (SSL_shutdown(s->ssl) < 0)
        ERR_clear_error();
}

static bool tls_buffered(const struct hth_stream *s)
{
    return SSL_has_pending(s->ssl) == 1;
}

static void tls_clear(struct hth_stream *s)
{
    SSL_free(s->ssl);
    s->ssl = NULL;
}

const struct hth_net_codec hth_net_tls = {
    .open = tls_open,
    .handshake = tls_handshake,
    .peek = tls_peek,
    .read = tls_read,
    .seal = tls_seal,
    .seal_end = tls_seal_end,
    .buffered = tls_buffered,
    .clear = tls_clear,
};

const char *hth_net_stream_cipher(const struct hth_stream *s)
{
    return s->ssl != NULL ? SSL_get_cipher_name(s->ssl) : "plain";
}
