/* SPDX-License-Identifier: Apache-2.0 */
/* pass.c: the bytes of certificates and passes, and the verdict on them; pass.h has the layout. */
#include "admission/pass.h"

#include "core/bytes.h"
#include "core/name.h"

#include <stdio.h>
#include <string.h>

#define CERT_HEAD_BYTES 101
#define PASS_HEAD_BYTES (HTH_PASS_BYTES - HTH_SIG_LEN)
#define RESERVED_BYTES  32
#define VERSION         1

_Static_assert(CERT_HEAD_BYTES + HTH_CERT_NAME_MAX + HTH_SIG_LEN <= HTH_CERT_BYTES_MAX, "fits");

static const char magic[4] = {'H', 'C', 'R', 'T'};
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

#define SIGNED_BYTES_MAX (sizeof(cert_text) + HTH_CERT_BYTES_MAX)

/* Joins the text, with its zero, and the bytes, for a signature. Returns the length. */
static size_t signed_bytes(const char *text, const uint8_t *data, size_t len,
                           uint8_t out[SIGNED_BYTES_MAX])
{
    size_t text_len = strlen(text) + 1;
    memcpy(out, text, text_len);
    memcpy(out + text_len, data, len);
    return text_len + len;
}

/* Writes the signature of the first `len` bytes behind them. */
static void seal(const struct hth_crypto *crypto, const char *text, const struct hth_secret *signer,
                 uint8_t *data, size_t len)
{
    uint8_t bytes[SIGNED_BYTES_MAX];
    crypto->sign(signer, bytes, signed_bytes(text, data, len, bytes), data + len);
}

static bool is_sealed(const struct hth_crypto *crypto, const char *text,
                      const struct hth_pubkey *by, const uint8_t *data, size_t len)
{
    uint8_t bytes[SIGNED_BYTES_MAX];
    size_t n = signed_bytes(text, data, len - HTH_SIG_LEN, bytes);
    return crypto->verify(by, bytes, n, data + len - HTH_SIG_LEN) == HTH_OK;
}

/* ---- bytes --------------------------------------------------------------------------------- */

static enum hth_err check_cert(const struct hth_cert *c)
{
    size_t n = strnlen(c->name, sizeof(c->name));
    if (c->class < HTH_PROBATION || c->class > HTH_MEMBER || c->roles == 0 ||
        c->roles > HTH_MAY_ALL || c->not_before_us < 0 || c->not_after_us < c->not_before_us)
        return HTH_E_RANGE;
    return n > HTH_CERT_NAME_MAX ? HTH_E_TOO_LARGE : hth_name_check(c->name, n);
}

enum hth_err hth_cert_write(const struct hth_crypto *crypto, const struct hth_cert *cert,
                            const struct hth_secret *signer, uint8_t out[HTH_CERT_BYTES_MAX],
                            size_t *len)
{
    struct hth_writer w;
    HTH_TRY(check_cert(cert));
    hth_writer_init(&w, out, HTH_CERT_BYTES_MAX - HTH_SIG_LEN);
    hth_write_bytes(&w, magic, sizeof(magic));
    hth_write_u8(&w, VERSION);
    hth_write_u8(&w, 0);
    hth_write_u8(&w, cert->class);
    hth_write_u8(&w, cert->roles);
    hth_write_u64(&w, cert->serial);
    hth_write_u64(&w, (uint64_t)cert->not_before_us);
    hth_write_u64(&w, (uint64_t)cert->not_after_us);
    hth_write_bytes(&w, cert->run.b, sizeof(cert->run.b));
    hth_write_bytes(&w, cert->key.b, sizeof(cert->key.b));
    hth_write_u32(&w, cert->quota);
    hth_write_u8(&w, (uint8_t)strlen(cert->name));
    hth_write_bytes(&w, cert->name, strlen(cert->name));
    HTH_ASSERT(w.err == HTH_OK);
    seal(crypto, cert_text, signer, out, w.pos);
    *len = w.pos + HTH_SIG_LEN;
    return HTH_OK;
}

enum hth_err hth_cert_read(const void *data, size_t len, struct hth_cert *out, size_t *used)
{
    struct hth_reader r;
    char head[sizeof(magic)];
    memset(out, 0, sizeof(*out));
    hth_reader_init(&r, data, len);
    hth_read_bytes(&r, head, sizeof(head));
    uint8_t version = hth_read_u8(&r), flags = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (memcmp(head, magic, sizeof(magic)) != 0)
        return HTH_E_BAD_MAGIC;
    if (version != VERSION || flags != 0)
        return HTH_E_VERSION;
    out->class = hth_read_u8(&r);
    out->roles = hth_read_u8(&r);
    out->serial = hth_read_u64(&r);
    out->not_before_us = (int64_t)hth_read_u64(&r);
    out->not_after_us = (int64_t)hth_read_u64(&r);
    hth_read_bytes(&r, out->run.b, sizeof(out->run.b));
    hth_read_bytes(&r, out->key.b, sizeof(out->key.b));
    out->quota = hth_read_u32(&r);
    size_t n = hth_read_u8(&r);
    if (n > HTH_CERT_NAME_MAX)
        return HTH_E_RANGE;
    hth_read_bytes(&r, out->name, n);
    (void)hth_read_view(&r, HTH_SIG_LEN);
    HTH_TRY(r.err);
    if (strlen(out->name) != n)
        return HTH_E_MALFORMED;
    *used = r.pos;
    return check_cert(out);
}

void hth_member_pass_write(const struct hth_crypto *crypto, const struct hth_member_pass *pass,
                           const struct hth_secret *invite, uint8_t out[HTH_PASS_BYTES])
{
    static const uint8_t reserved[RESERVED_BYTES];
    struct hth_writer w;
    hth_writer_init(&w, out, PASS_HEAD_BYTES);
    hth_write_u8(&w, 'P');
    hth_write_u8(&w, VERSION);
    hth_write_bytes(&w, pass->peer.b, sizeof(pass->peer.b));
    hth_write_u64(&w, pass->serial);
    hth_write_u64(&w, (uint64_t)pass->issued_us);
    hth_write_bytes(&w, reserved, sizeof(reserved));
    HTH_ASSERT(w.err == HTH_OK && w.pos == PASS_HEAD_BYTES);
    seal(crypto, pass_text, invite, out, PASS_HEAD_BYTES);
}

enum hth_err hth_member_pass_read(const void *data, size_t len, struct hth_member_pass *out)
{
    struct hth_reader r;
    uint8_t any = 0;
    memset(out, 0, sizeof(*out));
    hth_reader_init(&r, data, len);
    uint8_t head = hth_read_u8(&r), version = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (head != 'P')
        return HTH_E_BAD_MAGIC;
    if (version != VERSION)
        return HTH_E_VERSION;
    hth_read_bytes(&r, out->peer.b, sizeof(out->peer.b));
    out->serial = hth_read_u64(&r);
    out->issued_us = (int64_t)hth_read_u64(&r);
    const uint8_t *reserved = hth_read_view(&r, RESERVED_BYTES);
    (void)hth_read_view(&r, HTH_SIG_LEN);
    HTH_TRY(r.err);
    for (size_t i = 0; i < RESERVED_BYTES; i++)
        any |= reserved[i];
    return any != 0 ? HTH_E_VERSION : HTH_OK;
}

/* ---- the verdict --------------------------------------------------------------------------- */

/* Credentials, read but not yet judged. */
struct creds {
    const uint8_t *pass_at, *cert_at, *deputy_at; /* deputy_at NULL: the owner signed */
    size_t cert_len, deputy_len;
    struct hth_member_pass pass;
    struct hth_cert cert, deputy;
};

static enum hth_err read_creds(const uint8_t *data, size_t len, struct creds *c)
{
    size_t at = HTH_PASS_BYTES;
    memset(c, 0, sizeof(*c));
    HTH_TRY(hth_member_pass_read(data, len, &c->pass));
    c->pass_at = data;
    c->cert_at = data + at;
    HTH_TRY(hth_cert_read(c->cert_at, len - at, &c->cert, &c->cert_len));
    at += c->cert_len;
    if (at == len)
        return HTH_OK;
    c->deputy_at = data + at;
    HTH_TRY(hth_cert_read(c->deputy_at, len - at, &c->deputy, &c->deputy_len));
    return at + c->deputy_len == len ? HTH_OK : HTH_E_MALFORMED;
}

static bool same_run(const struct hth_cert *cert, const struct hth_closed_run *run)
{
    return memcmp(cert->run.b, run->id.b, sizeof(run->id.b)) == 0;
}

static enum hth_err check_seals(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                                const struct creds *c)
{
    const struct hth_pubkey *by = c->deputy_at != NULL ? &c->deputy.key : &run->owner;
    if (c->pass.serial != c->cert.serial ||
        !is_sealed(crypto, pass_text, &c->cert.key, c->pass_at, HTH_PASS_BYTES) ||
        !is_sealed(crypto, cert_text, by, c->cert_at, c->cert_len))
        return HTH_E_PASS_FORGED;
    if (c->deputy_at != NULL &&
        !is_sealed(crypto, cert_text, &run->owner, c->deputy_at, c->deputy_len))
        return HTH_E_PASS_FORGED;
    return HTH_OK;
}

/* A deputy gives no more than it has. */
static enum hth_err check_deputy(const struct creds *c)
{
    const struct hth_cert *d = &c->deputy;
    bool may = (d->roles & HTH_MAY_INVITE) != 0 && (c->cert.roles & HTH_MAY_INVITE) == 0 &&
               (c->cert.roles & ~d->roles) == 0 && c->cert.class <= d->class;
    return may ? HTH_OK : HTH_E_PASS_ROLE;
}

enum hth_err hth_grant_check(const struct hth_grant *grant, const struct hth_closed_run *run,
                             int64_t wall_us)
{
    for (size_t i = 0; i < run->revoked_count; i++)
        if (run->revoked[i] == grant->serial ||
            (grant->deputy != 0 && run->revoked[i] == grant->deputy))
            return HTH_E_PASS_REVOKED;
    if (wall_us < grant->from_us - HTH_CLOCK_SKEW_MAX_US)
        return HTH_E_PASS_EARLY;
    return wall_us > grant->until_us + HTH_CLOCK_SKEW_MAX_US ? HTH_E_PASS_EXPIRED : HTH_OK;
}

enum hth_err hth_creds_check(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                             const struct hth_peer_id *peer, const void *creds, size_t len,
                             int64_t wall_us, struct hth_grant *out)
{
    struct creds c;
    memset(out, 0, sizeof(*out));
    if (len == 0)
        return HTH_E_NOT_ADMITTED;
    HTH_TRY(read_creds(creds, len, &c));
    bool by_deputy = c.deputy_at != NULL;
    if (!same_run(&c.cert, run) || (by_deputy && !same_run(&c.deputy, run)))
        return HTH_E_PASS_OTHER_RUN;
    /* Before the signatures: these cost a hundred times as much. */
    struct hth_peer_id id = hth_peer_id_of(crypto, &c.pass.peer);
    if (!hth_peer_id_eq(&id, peer))
        return HTH_E_PASS_OTHER_KEY;
    HTH_TRY(check_seals(crypto, run, &c));
    if (by_deputy)
        HTH_TRY(check_deputy(&c));
    out->serial = c.cert.serial;
    out->class = c.cert.class;
    out->roles = c.cert.roles;
    out->from_us = HTH_MAX(c.cert.not_before_us, c.pass.issued_us);
    out->until_us = c.cert.not_after_us;
    memcpy(out->name, c.cert.name, sizeof(out->name));
    if (by_deputy) {
        out->deputy = c.deputy.serial;
        out->from_us = HTH_MAX(out->from_us, c.deputy.not_before_us);
        out->until_us = HTH_MIN(out->until_us, c.deputy.not_after_us);
    }
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
