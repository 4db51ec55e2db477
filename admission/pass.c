/* SPDX-License-Identifier: Apache-2.0 */
/* pass.c: the bytes of certificates and passes, and the verdict on them; pass.h has the layout. */
#include "admission/pass.h"

#include "admission/revoke.h"
#include "core/bytes.h"
#include "core/name.h"

#include <stdio.h>
#include <string.h>

#define VERSION         2
#define PASS_HEAD_BYTES (HTH_PASS_BYTES - HTH_SIG_LEN)

_Static_assert(49 + HTH_CERT_NAME_MAX + 4 + HTH_SIG_LEN == HTH_CERT_BYTES_MAX, "fits");

static const char cert_text[] = "hearth certificate";
static const char pass_text[] = "hearth pass";

void hth_run_id(const struct hth_crypto *crypto, const struct hth_pubkey *owner,
                const struct hth_hash *run_file, struct hth_hash *out)
{
    static const char text[] = "hearth run";
    uint8_t bytes[sizeof(text) + sizeof(owner->b) + sizeof(run_file->b)];
    memcpy(bytes, text, sizeof(text));
    memcpy(bytes + sizeof(text), owner->b, sizeof(owner->b));
    memcpy(bytes + sizeof(text) + sizeof(owner->b), run_file->b, sizeof(run_file->b));
    crypto->hash(bytes, sizeof(bytes), out);
}

/* ---- signatures ---------------------------------------------------------------------------- */

#define SIGNED_BYTES_MAX (sizeof(cert_text) + sizeof(struct hth_hash) + 8 + HTH_CERT_BYTES_MAX)

/* Joins the text, with its zero, the run, the serial and the bytes. Returns the length. */
static size_t signed_bytes(const char *text, const struct hth_hash *run, uint64_t serial,
                           const uint8_t *data, size_t len, uint8_t out[SIGNED_BYTES_MAX])
{
    struct hth_writer w;
    hth_writer_init(&w, out, SIGNED_BYTES_MAX);
    hth_write_bytes(&w, text, strlen(text) + 1);
    hth_write_bytes(&w, run->b, sizeof(run->b));
    hth_write_u64(&w, serial);
    hth_write_bytes(&w, data, len);
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

/* Writes the signature of the first `len` bytes behind them. */
static void seal(const struct hth_crypto *crypto, const char *text, const struct hth_hash *run,
                 uint64_t serial, const struct hth_secret *signer, uint8_t *data, size_t len)
{
    uint8_t bytes[SIGNED_BYTES_MAX];
    crypto->sign(signer, bytes, signed_bytes(text, run, serial, data, len, bytes), data + len);
}

static bool is_sealed(const struct hth_crypto *crypto, const char *text, const struct hth_hash *run,
                      uint64_t serial, const struct hth_pubkey *by, const uint8_t *data, size_t len)
{
    uint8_t bytes[SIGNED_BYTES_MAX];
    size_t n = signed_bytes(text, run, serial, data, len - HTH_SIG_LEN, bytes);
    return crypto->verify(by, bytes, n, data + len - HTH_SIG_LEN) == HTH_OK;
}

/* ---- bytes --------------------------------------------------------------------------------- */

static enum hth_err check_cert(const struct hth_cert *c)
{
    size_t n = strnlen(c->name, sizeof(c->name));
    bool public = (c->flags & HTH_CERT_PUBLIC) != 0;
    if (c->serial == 0 || c->serial > INT64_MAX || c->class < HTH_PROBATION ||
        c->class > HTH_MEMBER || c->roles == 0 || c->roles > HTH_MAY_ALL ||
        c->not_after_us < hth_cert_from_us(c) || c->not_after_us / HTH_US_PER_S > UINT32_MAX)
        return HTH_E_RANGE;
    if (public && (c->class != HTH_PROBATION || (c->roles & HTH_MAY_INVITE) != 0))
        return HTH_E_RANGE;
    if ((c->flags & ~(HTH_CERT_PUBLIC | HTH_CERT_SUCCESSOR)) != 0 ||
        (c->silence_s != 0 && (c->flags & HTH_CERT_SUCCESSOR) == 0))
        return HTH_E_VERSION;
    return n > HTH_CERT_NAME_MAX ? HTH_E_TOO_LARGE : hth_name_check(c->name, n);
}

enum hth_err hth_cert_write(const struct hth_crypto *crypto, const struct hth_cert *cert,
                            const struct hth_secret *signer, uint8_t out[HTH_CERT_BYTES_MAX],
                            size_t *len)
{
    struct hth_writer w;
    HTH_TRY(check_cert(cert));
    hth_writer_init(&w, out, HTH_CERT_BYTES_MAX - HTH_SIG_LEN);
    hth_write_u8(&w, VERSION);
    hth_write_u8(&w, cert->flags);
    hth_write_u8(&w, cert->class);
    hth_write_u8(&w, cert->roles);
    hth_write_u64(&w, cert->serial);
    hth_write_u32(&w, (uint32_t)(cert->not_after_us / HTH_US_PER_S));
    hth_write_bytes(&w, cert->key.b, sizeof(cert->key.b));
    hth_write_u8(&w, (uint8_t)strlen(cert->name));
    hth_write_bytes(&w, cert->name, strlen(cert->name));
    if ((cert->flags & HTH_CERT_SUCCESSOR) != 0)
        hth_write_u32(&w, cert->silence_s);
    HTH_ASSERT(w.err == HTH_OK);
    seal(crypto, cert_text, &cert->run, 0, signer, out, w.pos);
    *len = w.pos + HTH_SIG_LEN;
    return HTH_OK;
}

enum hth_err hth_cert_read(const void *data, size_t len, struct hth_cert *out, size_t *used)
{
    struct hth_reader r;
    memset(out, 0, sizeof(*out));
    hth_reader_init(&r, data, len);
    uint8_t version = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (version != VERSION)
        return HTH_E_VERSION;
    out->flags = hth_read_u8(&r);
    out->class = hth_read_u8(&r);
    out->roles = hth_read_u8(&r);
    out->serial = hth_read_u64(&r);
    out->not_after_us = hth_read_u32(&r) * HTH_US_PER_S;
    hth_read_bytes(&r, out->key.b, sizeof(out->key.b));
    size_t n = hth_read_u8(&r);
    if (n > HTH_CERT_NAME_MAX)
        return HTH_E_RANGE;
    hth_read_bytes(&r, out->name, n);
    if ((out->flags & HTH_CERT_SUCCESSOR) != 0)
        out->silence_s = hth_read_u32(&r);
    (void)hth_read_view(&r, HTH_SIG_LEN);
    HTH_TRY(r.err);
    if (strlen(out->name) != n)
        return HTH_E_MALFORMED;
    *used = r.pos;
    return check_cert(out);
}

void hth_pass_write(const struct hth_crypto *crypto, const struct hth_hash *run, uint64_t serial,
                    const struct hth_pubkey *peer, int64_t issued_us,
                    const struct hth_secret *invite, uint8_t out[HTH_PASS_BYTES])
{
    struct hth_writer w;
    hth_writer_init(&w, out, PASS_HEAD_BYTES);
    hth_write_u8(&w, VERSION);
    hth_write_bytes(&w, peer->b, sizeof(peer->b));
    hth_write_u32(&w, (uint32_t)(issued_us / HTH_US_PER_S));
    HTH_ASSERT(w.err == HTH_OK && w.pos == PASS_HEAD_BYTES);
    seal(crypto, pass_text, run, serial, invite, out, PASS_HEAD_BYTES);
}

/* Without its signature. Errors: E_TRUNCATED, E_VERSION. */
static enum hth_err read_pass(const void *data, size_t len, struct hth_pubkey *peer,
                              int64_t *issued_us)
{
    struct hth_reader r;
    hth_reader_init(&r, data, len);
    uint8_t version = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (version != VERSION)
        return HTH_E_VERSION;
    hth_read_bytes(&r, peer->b, sizeof(peer->b));
    *issued_us = hth_read_u32(&r) * HTH_US_PER_S;
    (void)hth_read_view(&r, HTH_SIG_LEN);
    return r.err;
}

/* ---- the verdict --------------------------------------------------------------------------- */

/* A certificate, and where its bytes are. */
struct link {
    struct hth_cert cert;
    const uint8_t *at;
    size_t len;
};

/* From the one that signs to the one that the owner signed. */
static enum hth_err read_chain(const uint8_t *data, size_t len, struct link link[2], size_t *count)
{
    *count = 0;
    for (size_t at = 0; at < len; (*count)++) {
        if (*count == 2)
            return HTH_E_MALFORMED;
        struct link *l = &link[*count];
        l->at = data + at;
        HTH_TRY(hth_cert_read(l->at, len - at, &l->cert, &l->len));
        at += l->len;
    }
    return HTH_OK;
}

static void take_times(struct hth_signer *s, const struct hth_cert *cert)
{
    s->from_us = HTH_MAX(s->from_us, hth_cert_from_us(cert));
    s->until_us = HTH_MIN(s->until_us, cert->not_after_us);
}

/* Goes one link further from the owner. A successor may sign for deputies, these only for peers. */
static enum hth_err step(struct hth_signer *s, const struct hth_cert *cert)
{
    bool successor = (cert->flags & HTH_CERT_SUCCESSOR) != 0;
    if (successor ? s->successor != 0 : (cert->roles & HTH_MAY_INVITE) == 0)
        return HTH_E_PASS_ROLE;
    if (successor) {
        s->successor = cert->serial;
        s->named_us = hth_cert_from_us(cert);
        s->silence_s = cert->silence_s;
    } else {
        s->deputy = cert->serial;
        s->class = cert->class;
        s->roles = cert->roles & (uint8_t)~HTH_MAY_INVITE;
    }
    s->key = cert->key;
    take_times(s, cert);
    return HTH_OK;
}

enum hth_err hth_chain_check(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                             const void *chain, size_t len, struct hth_signer *out)
{
    struct link link[2];
    size_t count;
    memset(out, 0, sizeof(*out));
    HTH_TRY(read_chain(chain, len, link, &count));
    *out = (struct hth_signer){
        .key = run->owner, .until_us = INT64_MAX, .class = HTH_MEMBER, .roles = HTH_MAY_ALL};
    while (count-- > 0) {
        const struct link *l = &link[count];
        if (!is_sealed(crypto, cert_text, &run->id, 0, &out->key, l->at, l->len))
            return HTH_E_PASS_FORGED;
        if (out->deputy != 0)
            return HTH_E_PASS_ROLE;
        HTH_TRY(step(out, &l->cert));
    }
    return HTH_OK;
}

enum hth_err hth_grant_check(const struct hth_grant *grant, const struct hth_closed_run *run,
                             int64_t wall_us)
{
    int64_t from_us = grant->from_us;
    if (run->revoked != NULL && hth_revoked_set_has(run->revoked, grant, wall_us))
        return HTH_E_PASS_REVOKED;
    if (grant->by.successor != 0)
        from_us = HTH_MAX(from_us, hth_succession_us(run->revoked, &grant->by));
    if (wall_us < from_us - HTH_CLOCK_SKEW_MAX_US)
        return HTH_E_PASS_EARLY;
    return wall_us - HTH_CLOCK_SKEW_MAX_US > grant->until_us ? HTH_E_PASS_EXPIRED : HTH_OK;
}

/* A signer gives no more than it has. */
static bool may_sign(const struct hth_signer *by, const struct hth_cert *cert)
{
    return (cert->flags & HTH_CERT_SUCCESSOR) == 0 && (cert->roles & ~by->roles) == 0 &&
           cert->class <= by->class;
}

enum hth_err hth_cert_check(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                            const void *certs, size_t len, struct hth_cert *cert,
                            struct hth_grant *out)
{
    size_t own;
    memset(out, 0, sizeof(*out));
    HTH_TRY(hth_cert_read(certs, len, cert, &own));
    HTH_TRY(hth_chain_check(crypto, run, (const uint8_t *)certs + own, len - own, &out->by));
    if (!is_sealed(crypto, cert_text, &run->id, 0, &out->by.key, certs, own))
        return HTH_E_PASS_FORGED;
    if (!may_sign(&out->by, cert))
        return HTH_E_PASS_ROLE;
    take_times(&out->by, cert);
    out->serial = cert->serial;
    out->invite = hth_load_u64le(cert->key.b);
    out->from_us = out->by.from_us;
    out->until_us = out->by.until_us;
    out->flags = cert->flags;
    out->class = cert->class;
    out->roles = cert->roles;
    memcpy(out->name, cert->name, sizeof(out->name));
    return HTH_OK;
}

enum hth_err hth_creds_serial(const void *creds, size_t len, uint64_t *serial)
{
    struct hth_pubkey peer;
    struct hth_cert cert;
    int64_t issued_us;
    size_t used;
    HTH_TRY(read_pass(creds, len, &peer, &issued_us));
    HTH_TRY(
        hth_cert_read((const uint8_t *)creds + HTH_PASS_BYTES, len - HTH_PASS_BYTES, &cert, &used));
    *serial = cert.serial;
    return HTH_OK;
}

enum hth_err hth_creds_check(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                             const struct hth_peer_id *peer, const void *creds, size_t len,
                             int64_t wall_us, struct hth_grant *out)
{
    struct hth_pubkey shown;
    struct hth_cert cert;
    int64_t issued_us;
    memset(out, 0, sizeof(*out));
    if (len == 0)
        return HTH_E_NOT_ADMITTED;
    HTH_TRY(read_pass(creds, len, &shown, &issued_us));
    /* Before the signatures: these cost a hundred times as much. */
    struct hth_peer_id id = hth_peer_id_of(crypto, &shown);
    if (!hth_peer_id_eq(&id, peer))
        return HTH_E_PASS_OTHER_KEY;
    HTH_TRY(hth_cert_check(crypto, run, (const uint8_t *)creds + HTH_PASS_BYTES,
                           len - HTH_PASS_BYTES, &cert, out));
    if (!is_sealed(crypto, pass_text, &run->id, cert.serial, &cert.key, creds, HTH_PASS_BYTES))
        return HTH_E_PASS_FORGED;
    out->peer = hth_load_u64le(peer->b);
    out->from_us = HTH_MAX(out->from_us, issued_us);
    return hth_grant_check(out, run, wall_us);
}

/* ---- roles --------------------------------------------------------------------------------- */

static const char *const role_names[] = {"train", "serve", "reduce", "watch", "invite"};

const char *hth_roles_text(uint8_t roles, char out[48])
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < HTH_ARRAY_LEN(role_names); i++)
        if ((roles >> i & 1) != 0)
            at += (size_t)snprintf(out + at, 48 - at, "%s%s", at > 0 ? "," : "", role_names[i]);
    return out;
}

enum hth_err hth_roles_parse(const char *text, uint8_t *out)
{
    *out = 0;
    for (;; text++) {
        size_t n = strcspn(text, ","), i = 0;
        while (i < HTH_ARRAY_LEN(role_names) &&
               !(strlen(role_names[i]) == n && memcmp(role_names[i], text, n) == 0))
            i++;
        if (i == HTH_ARRAY_LEN(role_names))
            return HTH_E_MALFORMED;
        *out |= (uint8_t)(1u << i);
        text += n;
        if (*text == '\0')
            return HTH_OK;
    }
}
