/* SPDX-License-Identifier: Apache-2.0 */
/* pass.c: the bytes of certificates and passes, and the verdict on them; pass.h has the layout. */
#include "admission/pass.h"

#include "admission/revoke.h"
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
    bool public = (c->flags & HTH_CERT_PUBLIC) != 0;
    if (c->serial == 0 || c->class < HTH_PROBATION || c->class > HTH_MEMBER || c->roles == 0 ||
        c->roles > HTH_MAY_ALL || c->not_before_us < 0 || c->not_after_us < c->not_before_us)
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
    hth_write_bytes(&w, magic, sizeof(magic));
    hth_write_u8(&w, VERSION);
    hth_write_u8(&w, cert->flags);
    hth_write_u8(&w, cert->class);
    hth_write_u8(&w, cert->roles);
    hth_write_u64(&w, cert->serial);
    hth_write_u64(&w, (uint64_t)cert->not_before_us);
    hth_write_u64(&w, (uint64_t)cert->not_after_us);
    hth_write_bytes(&w, cert->run.b, sizeof(cert->run.b));
    hth_write_bytes(&w, cert->key.b, sizeof(cert->key.b));
    hth_write_u32(&w, cert->silence_s);
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
    uint8_t version = hth_read_u8(&r);
    out->flags = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (memcmp(head, magic, sizeof(magic)) != 0)
        return HTH_E_BAD_MAGIC;
    if (version != VERSION)
        return HTH_E_VERSION;
    out->class = hth_read_u8(&r);
    out->roles = hth_read_u8(&r);
    out->serial = hth_read_u64(&r);
    out->not_before_us = (int64_t)hth_read_u64(&r);
    out->not_after_us = (int64_t)hth_read_u64(&r);
    hth_read_bytes(&r, out->run.b, sizeof(out->run.b));
    hth_read_bytes(&r, out->key.b, sizeof(out->key.b));
    out->silence_s = hth_read_u32(&r);
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

static bool same_run(const struct hth_cert *cert, const struct hth_closed_run *run)
{
    return memcmp(cert->run.b, run->id.b, sizeof(run->id.b)) == 0;
}

/* A certificate, and where its bytes are. */
struct link {
    struct hth_cert cert;
    const uint8_t *at;
    size_t len;
};

/* From the one that signs to the one that the owner signed. */
static enum hth_err read_chain(const struct hth_closed_run *run, const uint8_t *data, size_t len,
                               struct link link[2], size_t *count)
{
    *count = 0;
    for (size_t at = 0; at < len; (*count)++) {
        if (*count == 2)
            return HTH_E_MALFORMED;
        struct link *l = &link[*count];
        l->at = data + at;
        HTH_TRY(hth_cert_read(l->at, len - at, &l->cert, &l->len));
        if (!same_run(&l->cert, run))
            return HTH_E_PASS_OTHER_RUN;
        at += l->len;
    }
    return HTH_OK;
}

static void take_times(struct hth_signer *s, const struct hth_cert *cert)
{
    s->from_us = HTH_MAX(s->from_us, cert->not_before_us);
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
        s->named_us = cert->not_before_us;
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
    HTH_TRY(read_chain(run, chain, len, link, &count));
    *out = (struct hth_signer){
        .key = run->owner, .until_us = INT64_MAX, .class = HTH_MEMBER, .roles = HTH_MAY_ALL};
    while (count-- > 0) {
        const struct link *l = &link[count];
        if (!is_sealed(crypto, cert_text, &out->key, l->at, l->len))
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
    if (!same_run(cert, run))
        return HTH_E_PASS_OTHER_RUN;
    HTH_TRY(hth_chain_check(crypto, run, (const uint8_t *)certs + own, len - own, &out->by));
    if (!is_sealed(crypto, cert_text, &out->by.key, certs, own))
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

enum hth_err hth_creds_check(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                             const struct hth_peer_id *peer, const void *creds, size_t len,
                             int64_t wall_us, struct hth_grant *out)
{
    struct hth_member_pass pass;
    struct hth_cert cert;
    memset(out, 0, sizeof(*out));
    if (len == 0)
        return HTH_E_NOT_ADMITTED;
    HTH_TRY(hth_member_pass_read(creds, len, &pass));
    /* Before the signatures: these cost a hundred times as much. */
    struct hth_peer_id id = hth_peer_id_of(crypto, &pass.peer);
    if (!hth_peer_id_eq(&id, peer))
        return HTH_E_PASS_OTHER_KEY;
    HTH_TRY(hth_cert_check(crypto, run, (const uint8_t *)creds + HTH_PASS_BYTES,
                           len - HTH_PASS_BYTES, &cert, out));
    if (pass.serial != cert.serial ||
        !is_sealed(crypto, pass_text, &cert.key, creds, HTH_PASS_BYTES))
        return HTH_E_PASS_FORGED;
    out->key = pass.peer;
    out->peer = hth_load_u64le(peer->b);
    out->from_us = HTH_MAX(out->from_us, pass.issued_us);
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
