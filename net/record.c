/* SPDX-License-Identifier: Apache-2.0 */
/* record.c: TLS 1.3 records. Numbers in brackets are sections of RFC 8446. */
#include "net/record.h"

#include <string.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#define VERSION_HIGH 3
#define VERSION_LOW  3
/* Handshake messages that may come after the handshake [4]. */
#define NEW_SESSION_TICKET   4
#define KEY_UPDATE           24
#define TICKET_BYTES_MAX     (64u << 10)
#define ALERT_FATAL          2
#define ALERT_WARNING        1
#define ALERT_USER_CANCELED  90
#define UPDATE_NOT_REQUESTED 0
#define UPDATE_REQUESTED     1

/* ---- keys [7.1] ----------------------------------------------------------------------------- */

size_t hth_record_secret_bytes(uint16_t suite)
{
    if (hth_aead_key_bytes(suite) == 0)
        return 0;
    return suite == HTH_SUITE_AES_256_GCM_SHA384 ? 48 : 32;
}

/* HKDF-Expand-Label with an empty context, of at most one hash's length: a single HMAC of
 * length (2) | length of label (1) | "tls13 " label | 0 | 1. */
static enum hth_err expand(uint16_t suite, const uint8_t *secret, const char *label, uint8_t *out,
                           size_t len)
{
    uint8_t info[64], hash[EVP_MAX_MD_SIZE];
    unsigned hash_len = 0;
    size_t label_len = strlen(label), n = 0;
    size_t secret_len = hth_record_secret_bytes(suite);
    const EVP_MD *md = suite == HTH_SUITE_AES_256_GCM_SHA384 ? EVP_sha384() : EVP_sha256();
    info[n++] = 0;
    info[n++] = (uint8_t)len;
    info[n++] = (uint8_t)(6 + label_len);
    memcpy(info + n, "tls13 ", 6);
    memcpy(info + n + 6, label, label_len);
    n += 6 + label_len;
    info[n++] = 0;
    info[n++] = 1;
    bool fine = HMAC(md, secret, (int)secret_len, info, n, hash, &hash_len) != NULL;
    HTH_ASSERT(!fine || len <= hash_len);
    if (fine)
        memcpy(out, hash, len);
    else
        ERR_clear_error();
    OPENSSL_cleanse(hash, sizeof(hash));
    return fine ? HTH_OK : HTH_E_NO_MEMORY;
}

/* Key and iv of the way's secret. */
static enum hth_err take_keys(const struct hth_records *r, struct hth_record_way *w)
{
    uint8_t key[HTH_AEAD_KEY_BYTES_MAX];
    enum hth_err err;
    hth_aead_clear(&w->aead);
    w->count = 0;
    HTH_GOTO(out, expand(r->suite, w->secret, "key", key, hth_aead_key_bytes(r->suite)));
    HTH_GOTO(out, expand(r->suite, w->secret, "iv", w->iv, sizeof(w->iv)));
    err = hth_aead_init(&w->aead, r->suite, key, w->sealing, r->library);
out:
    OPENSSL_cleanse(key, sizeof(key));
    return err;
}

/* [7.2] */
static enum hth_err next_keys(const struct hth_records *r, struct hth_record_way *w)
{
    uint8_t next[HTH_RECORD_SECRET_MAX];
    size_t len = hth_record_secret_bytes(r->suite);
    HTH_TRY(expand(r->suite, w->secret, "traffic upd", next, len));
    memcpy(w->secret, next, len);
    OPENSSL_cleanse(next, sizeof(next));
    return take_keys(r, w);
}

enum hth_err hth_records_init(struct hth_records *r, uint16_t suite, const uint8_t *out_secret,
                              const uint8_t *in_secret, bool library)
{
    size_t len = hth_record_secret_bytes(suite);
    *r = (struct hth_records){.suite = suite, .library = library};
    if (len == 0)
        return HTH_E_UNSUPPORTED;
    memcpy(r->out.secret, out_secret, len);
    memcpy(r->in.secret, in_secret, len);
    r->out.sealing = true;
    enum hth_err err = take_keys(r, &r->out);
    if (err == HTH_OK)
        err = take_keys(r, &r->in);
    if (err != HTH_OK)
        hth_records_clear(r);
    return err;
}

void hth_records_clear(struct hth_records *r)
{
    hth_aead_clear(&r->out.aead);
    hth_aead_clear(&r->in.aead);
    OPENSSL_cleanse(r, sizeof(*r));
}

/* The iv with the record's number in its last eight bytes [5.3]. */
static void nonce_of(const struct hth_record_way *w, uint8_t nonce[HTH_AEAD_NONCE_BYTES])
{
    memcpy(nonce, w->iv, HTH_AEAD_NONCE_BYTES);
    for (int i = 0; i < 8; i++)
        nonce[HTH_AEAD_NONCE_BYTES - 1 - i] ^= (uint8_t)(w->count >> (8 * i));
}

/* ---- sealing -------------------------------------------------------------------------------- */

enum hth_err hth_records_seal(struct hth_records *r, enum hth_record_type type, const uint8_t *data,
                              size_t len, uint8_t *out)
{
    struct hth_record_way *w = &r->out;
    uint8_t nonce[HTH_AEAD_NONCE_BYTES];
    size_t body = len + 1 + HTH_AEAD_TAG_BYTES;
    HTH_ASSERT(len <= HTH_RECORD_BYTES);
    out[0] = HTH_RECORD_DATA;
    out[1] = VERSION_HIGH;
    out[2] = VERSION_LOW;
    out[3] = (uint8_t)(body >> 8);
    out[4] = (uint8_t)body;
    nonce_of(w, nonce);
    w->count++;
    bool fine = hth_aead_seal(&w->aead, nonce, out, HTH_RECORD_HEADER_BYTES, data, len,
                              (uint8_t)type, out + HTH_RECORD_HEADER_BYTES);
    return fine ? HTH_OK : HTH_E_NO_MEMORY;
}

enum hth_err hth_records_seal_alert(struct hth_records *r, enum hth_record_alert alert,
                                    uint8_t *out)
{
    uint8_t content[2] = {alert == HTH_RECORD_CLOSE_NOTIFY ? ALERT_WARNING : ALERT_FATAL,
                          (uint8_t)alert};
    return hth_records_seal(r, HTH_RECORD_ALERT, content, sizeof(content), out);
}

enum hth_err hth_records_seal_update(struct hth_records *r, uint8_t *out)
{
    static const uint8_t update[5] = {KEY_UPDATE, 0, 0, 1, UPDATE_NOT_REQUESTED};
    HTH_TRY(hth_records_seal(r, HTH_RECORD_HANDSHAKE, update, sizeof(update), out));
    return next_keys(r, &r->out);
}

/* ---- opening -------------------------------------------------------------------------------- */

static enum hth_err bad(uint8_t *alert, enum hth_record_alert why)
{
    *alert = (uint8_t)why;
    return HTH_E_PROTOCOL;
}

enum hth_err hth_records_next(const uint8_t *bytes, size_t have, size_t *len, uint8_t *alert)
{
    *len = 0;
    if (have < HTH_RECORD_HEADER_BYTES)
        return HTH_OK;
    size_t body = (size_t)bytes[3] << 8 | bytes[4];
    if (bytes[0] != HTH_RECORD_DATA || bytes[1] != VERSION_HIGH || bytes[2] != VERSION_LOW)
        return bad(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
    if (HTH_RECORD_HEADER_BYTES + body > HTH_RECORD_WIRE_BYTES_MAX)
        return bad(alert, HTH_RECORD_OVERFLOW);
    if (body < 1 + HTH_AEAD_TAG_BYTES)
        return bad(alert, HTH_RECORD_BAD_MAC);
    *len = HTH_RECORD_HEADER_BYTES + body;
    return HTH_OK;
}

enum hth_err hth_records_open(struct hth_records *r, const uint8_t *record, size_t len,
                              uint8_t *out, uint8_t *type, size_t *got, uint8_t *alert)
{
    struct hth_record_way *w = &r->in;
    uint8_t nonce[HTH_AEAD_NONCE_BYTES];
    size_t n = len - HTH_RECORD_HEADER_BYTES - HTH_AEAD_TAG_BYTES;
    *got = 0;
    nonce_of(w, nonce);
    w->count++;
    if (!hth_aead_open(&w->aead, nonce, record, HTH_RECORD_HEADER_BYTES,
                       record + HTH_RECORD_HEADER_BYTES, n, out))
        return bad(alert, HTH_RECORD_BAD_MAC);
    while (n > 0 && out[n - 1] == 0) /* padding [5.4] */
        n--;
    if (n == 0)
        return bad(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
    n--;
    if (n > HTH_RECORD_BYTES)
        return bad(alert, HTH_RECORD_OVERFLOW);
    *type = out[n];
    *got = n;
    if (*type == HTH_RECORD_DATA && r->head_have > 0) /* within a handshake message [5.1] */
        return bad(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
    if (*type == HTH_RECORD_DATA && n > 0)
        r->idle = 0;
    else if (++r->idle > HTH_RECORD_IDLE_MAX)
        return bad(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
    return HTH_OK;
}

/* ---- what is no data ------------------------------------------------------------------------ */

static enum hth_record_event fail(uint8_t *alert, enum hth_record_alert why)
{
    *alert = (uint8_t)why;
    return HTH_RECORD_FAIL;
}

static enum hth_record_event take_alert(const uint8_t *content, size_t len, uint8_t *alert)
{
    if (len != 2)
        return fail(alert, HTH_RECORD_DECODE_ERROR);
    if (content[1] == HTH_RECORD_CLOSE_NOTIFY)
        return HTH_RECORD_END;
    if (content[1] == ALERT_USER_CANCELED)
        return HTH_RECORD_NOTHING;
    *alert = 0;
    return HTH_RECORD_FAIL;
}

/* The only byte of a KeyUpdate [4.6.3]. Nothing may follow in its record: it would be under the old
 * key. */
static enum hth_record_event take_update(struct hth_records *r, uint8_t requested, bool last,
                                         uint8_t *alert)
{
    if (!last || requested > UPDATE_REQUESTED)
        return fail(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
    if (next_keys(r, &r->in) != HTH_OK)
        return fail(alert, HTH_RECORD_DECODE_ERROR);
    return requested == UPDATE_REQUESTED ? HTH_RECORD_ANSWER_UPDATE : HTH_RECORD_NOTHING;
}

/* type (1) | length (3) of a message is complete. */
static bool head_fine(struct hth_records *r, uint8_t *alert)
{
    r->body_left = (uint32_t)r->head[1] << 16 | (uint32_t)r->head[2] << 8 | r->head[3];
    *alert = HTH_RECORD_UNEXPECTED_MESSAGE;
    if (r->head[0] != KEY_UPDATE && r->head[0] != NEW_SESSION_TICKET)
        return false;
    *alert = HTH_RECORD_DECODE_ERROR;
    return r->head[0] == KEY_UPDATE ? r->body_left == 1
                                    : r->body_left > 0 && r->body_left <= TICKET_BYTES_MAX;
}

static enum hth_record_event take_handshake(struct hth_records *r, const uint8_t *at, size_t len,
                                            uint8_t *alert)
{
    enum hth_record_event event = HTH_RECORD_NOTHING;
    if (len == 0)
        return fail(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
    while (len > 0) {
        size_t n = 1;
        if (r->head_have < sizeof(r->head)) {
            r->head[r->head_have++] = *at;
            if (r->head_have == sizeof(r->head) && !head_fine(r, alert))
                return HTH_RECORD_FAIL;
        } else {
            n = HTH_MIN(len, (size_t)r->body_left);
            r->body_left -= (uint32_t)n;
            if (r->body_left == 0)
                r->head_have = 0;
            if (r->head[0] == KEY_UPDATE)
                event = take_update(r, *at, len == 1, alert);
            if (event == HTH_RECORD_FAIL)
                return event;
        }
        at += n;
        len -= n;
    }
    return event;
}

enum hth_record_event hth_records_control(struct hth_records *r, uint8_t type,
                                          const uint8_t *content, size_t len, uint8_t *alert)
{
    /* A message that was begun has to be ended first [5.1]. */
    if (type != HTH_RECORD_HANDSHAKE && r->head_have > 0)
        return fail(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
    if (type == HTH_RECORD_ALERT)
        return take_alert(content, len, alert);
    if (type == HTH_RECORD_HANDSHAKE)
        return take_handshake(r, content, len, alert);
    return fail(alert, HTH_RECORD_UNEXPECTED_MESSAGE);
}
