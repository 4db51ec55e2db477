/* SPDX-License-Identifier: Apache-2.0 */
/* invite.c: an invite's bytes and its text; invite.h has the layout. */
#include "admission/invite.h"

#include "core/bytes.h"
#include "core/name.h"
#include "core/rng.h"

#include <string.h>

#define VERSION      1
#define PREFIX       "hearth"
#define PREFIX_LEN   (sizeof(PREFIX) - 1)
#define HEAD_LEN     (PREFIX_LEN + 2) /* "hearth1." */
#define CHECKSUM_LEN 4
#define PRIVATE      0x80u /* beside the number of certificates */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* ---- base64url ----------------------------------------------------------------------------- */

/* The end of what was written. */
static char *encode(const uint8_t *data, size_t len, char *out)
{
    for (size_t at = 0; at < len; at += 3) {
        size_t n = HTH_MIN(len - at, (size_t)3);
        uint32_t v = (uint32_t)data[at] << 16 | (n > 1 ? (uint32_t)data[at + 1] << 8 : 0) |
                     (n > 2 ? data[at + 2] : 0);
        for (size_t i = 0; i <= n; i++)
            *out++ = digits[v >> (18 - 6 * i) & 63];
    }
    *out = '\0';
    return out;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Errors: E_CORRUPT (a character that is no digit), E_TOO_LARGE. */
static enum hth_err decode(const char *text, size_t len, uint8_t *out, size_t max, size_t *out_len)
{
    uint32_t v = 0, bits = 0;
    *out_len = 0;
    for (size_t i = 0; i < len; i++) {
        if (is_blank(text[i]))
            continue; /* a letter breaks long lines */
        const char *digit = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (digit == NULL)
            return HTH_E_CORRUPT;
        v = (v << 6 | (uint32_t)(digit - digits)) & 0xffff;
        bits += 6;
        if (bits < 8)
            continue;
        if (*out_len == max)
            return HTH_E_TOO_LARGE;
        bits -= 8;
        out[(*out_len)++] = (uint8_t)(v >> bits);
    }
    return HTH_OK;
}

/* ---- bytes --------------------------------------------------------------------------------- */

static uint32_t checksum(const uint8_t *data, size_t len)
{
    return (uint32_t)hth_hash64(data, len, VERSION);
}

static void write_addr(struct hth_writer *w, const struct hth_addr *addr)
{
    hth_write_u8(w, addr->family);
    hth_write_bytes(w, addr->ip, addr->family == 4 ? 4 : 16);
    hth_write_u16(w, addr->port);
}

static enum hth_err read_addr(struct hth_reader *r, struct hth_addr *out)
{
    out->family = hth_read_u8(r);
    hth_read_bytes(r, out->ip, out->family == 4 ? 4 : 16);
    out->port = hth_read_u16(r);
    HTH_TRY(r->err);
    return out->family == 4 || out->family == 6 ? HTH_OK : HTH_E_MALFORMED;
}

static uint8_t chain_count(const struct hth_invite *invite)
{
    struct hth_cert cert;
    uint8_t n = 0;
    for (size_t at = 0, used; at < invite->chain_len; at += used, n++) {
        enum hth_err err = hth_cert_read(invite->chain + at, invite->chain_len - at, &cert, &used);
        HTH_ASSERT(err == HTH_OK);
    }
    return n;
}

enum hth_err hth_invite_write(const struct hth_invite *invite, char out[HTH_INVITE_TEXT_MAX])
{
    uint8_t bytes[HTH_INVITE_BYTES_MAX];
    struct hth_writer w;
    HTH_ASSERT(invite->addr_count <= HTH_INVITE_ADDRS_MAX);
    HTH_TRY(hth_name_check(invite->run, strnlen(invite->run, sizeof(invite->run))));
    hth_writer_init(&w, bytes, sizeof(bytes));
    hth_write_u8(&w, VERSION);
    hth_write_u8(&w, (uint8_t)invite->addr_count);
    for (size_t i = 0; i < invite->addr_count; i++)
        write_addr(&w, &invite->addr[i]);
    hth_write_u8(&w, (uint8_t)strlen(invite->run));
    hth_write_bytes(&w, invite->run, strlen(invite->run));
    hth_write_bytes(&w, invite->owner.b, sizeof(invite->owner.b));
    hth_write_bytes(&w, invite->run_file.b, sizeof(invite->run_file.b));
    hth_write_bytes(&w, invite->seed.b, sizeof(invite->seed.b));
    hth_write_bytes(&w, invite->cert, invite->cert_len);
    hth_write_u8(&w, chain_count(invite) | (invite->is_private ? PRIVATE : 0));
    hth_write_bytes(&w, invite->chain, invite->chain_len);
    if (invite->is_private)
        hth_write_bytes(&w, invite->secret.b, sizeof(invite->secret.b));
    hth_write_u32(&w, checksum(bytes, w.pos));
    HTH_ASSERT(w.err == HTH_OK);
    memcpy(out, PREFIX "1.", HEAD_LEN);
    encode(bytes, w.pos, out + HEAD_LEN);
    return HTH_OK;
}

static enum hth_err read_cert(struct hth_reader *r, uint8_t *out, size_t *len)
{
    struct hth_cert cert;
    HTH_TRY(hth_cert_read(r->data + r->pos, hth_reader_left(r), &cert, len));
    hth_read_bytes(r, out, *len);
    return r->err;
}

static enum hth_err read_bytes(const uint8_t *bytes, size_t len, struct hth_invite *out)
{
    struct hth_reader r;
    hth_reader_init(&r, bytes, len);
    uint8_t version = hth_read_u8(&r);
    out->addr_count = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (version != VERSION)
        return HTH_E_VERSION;
    if (out->addr_count > HTH_INVITE_ADDRS_MAX)
        return HTH_E_MALFORMED;
    for (size_t i = 0; i < out->addr_count; i++)
        HTH_TRY(read_addr(&r, &out->addr[i]));
    size_t n = hth_read_u8(&r);
    if (n > HTH_NAME_LEN_MAX)
        return HTH_E_MALFORMED;
    hth_read_bytes(&r, out->run, n);
    hth_read_bytes(&r, out->owner.b, sizeof(out->owner.b));
    hth_read_bytes(&r, out->run_file.b, sizeof(out->run_file.b));
    hth_read_bytes(&r, out->seed.b, sizeof(out->seed.b));
    HTH_TRY(r.err);
    HTH_TRY(hth_name_check(out->run, n));
    HTH_TRY(read_cert(&r, out->cert, &out->cert_len));
    uint8_t links = hth_read_u8(&r);
    out->is_private = (links & PRIVATE) != 0;
    links &= (uint8_t)~PRIVATE;
    if (links > 2)
        return HTH_E_MALFORMED;
    for (size_t i = 0, used; i < links; i++, out->chain_len += used)
        HTH_TRY(read_cert(&r, out->chain + out->chain_len, &used));
    if (out->is_private)
        hth_read_bytes(&r, out->secret.b, sizeof(out->secret.b));
    HTH_TRY(r.err);
    return hth_reader_left(&r) == 0 ? HTH_OK : HTH_E_MALFORMED;
}

/* True if the last four bytes are those of a whole invite. */
static bool is_whole(const uint8_t *bytes, size_t len)
{
    return len > CHECKSUM_LEN &&
           hth_load_u32le(bytes + len - CHECKSUM_LEN) == checksum(bytes, len - CHECKSUM_LEN);
}

enum hth_err hth_invite_read(const char *text, size_t len, struct hth_invite *out)
{
    uint8_t bytes[HTH_INVITE_BYTES_MAX];
    size_t n;
    memset(out, 0, sizeof(*out));
    for (; len > 0 && is_blank(text[0]); len--)
        text++;
    while (len > 0 && is_blank(text[len - 1]))
        len--;
    if (len < HEAD_LEN || memcmp(text, PREFIX, PREFIX_LEN) != 0)
        return HTH_E_BAD_MAGIC;
    if (text[PREFIX_LEN] != '0' + VERSION || text[PREFIX_LEN + 1] != '.')
        return HTH_E_VERSION;
    HTH_TRY(decode(text + HEAD_LEN, len - HEAD_LEN, bytes, sizeof(bytes), &n));
    enum hth_err err = HTH_E_TRUNCATED;
    if (n > CHECKSUM_LEN)
        err = read_bytes(bytes, n - CHECKSUM_LEN, out);
    /* Without its end an invite reads as cut; with a wrong character anything may be wrong. */
    if (err != HTH_E_TRUNCATED && !is_whole(bytes, n))
        err = HTH_E_CORRUPT;
    if (err != HTH_OK)
        memset(out, 0, sizeof(*out));
    return err;
}

const char *hth_invite_why(enum hth_err err)
{
    switch (err) {
    case HTH_E_BAD_MAGIC:
        return "this is no invite: one begins with hearth1.";
    case HTH_E_VERSION:
        return "the invite is of a newer version of hearth: update this one";
    case HTH_E_TRUNCATED:
        return "the invite is cut: copy the whole line";
    case HTH_E_CORRUPT:
    case HTH_E_TOO_LARGE:
        return "the invite is mistyped: copy it again";
    default:
        return hth_err_text(err);
    }
}

void hth_invite_cert(const struct hth_invite *invite, struct hth_cert *out)
{
    size_t used;
    enum hth_err err = hth_cert_read(invite->cert, invite->cert_len, out, &used);
    HTH_ASSERT(err == HTH_OK);
}

void hth_invite_run(const struct hth_crypto *crypto, const struct hth_invite *invite,
                    struct hth_closed_run *out)
{
    memset(out, 0, sizeof(*out));
    out->owner = invite->owner;
    hth_run_id(crypto, &invite->owner, &invite->run_file, &out->id);
}

/* Hashes two values, after a text that says for what. */
static void derive(const struct hth_crypto *crypto, const char text[24], const uint8_t a[32],
                   const uint8_t b[32], struct hth_hash *out)
{
    uint8_t bytes[24 + 64];
    memcpy(bytes, text, 24);
    memcpy(bytes + 24, a, 32);
    memcpy(bytes + 56, b, 32);
    crypto->hash(bytes, sizeof(bytes), out);
    memset(bytes, 0, sizeof(bytes));
}

const char *hth_invite_network(const struct hth_crypto *crypto, const struct hth_invite *invite,
                               char out[HTH_NAME_LEN_MAX + 1])
{
    static const char text[24] = "hearth private network";
    struct hth_closed_run run;
    struct hth_hash hidden;
    hth_invite_run(crypto, invite, &run);
    if (!invite->is_private)
        return hth_network_of(invite->run, &run.id, out);
    derive(crypto, text, run.id.b, invite->secret.b, &hidden);
    return hth_network_of("", &hidden, out);
}

void hth_invite_hide(const struct hth_crypto *crypto, const struct hth_secret *owner,
                     struct hth_invite *invite)
{
    static const char text[24] = "hearth run secret";
    _Static_assert(sizeof(owner->b) == 32, "as derive takes it");
    invite->is_private = true;
    derive(crypto, text, owner->b, invite->run_file.b, &invite->secret);
}

/* Certificate and chain side by side; returns the length. */
static size_t join_certs(const struct hth_invite *invite, uint8_t *out)
{
    memcpy(out, invite->cert, invite->cert_len);
    memcpy(out + invite->cert_len, invite->chain, invite->chain_len);
    return invite->cert_len + invite->chain_len;
}

enum hth_err hth_invite_check(const struct hth_crypto *crypto, const struct hth_invite *invite,
                              int64_t wall_us)
{
    uint8_t certs[HTH_CERT_BYTES_MAX + HTH_CHAIN_BYTES_MAX];
    struct hth_closed_run run;
    struct hth_cert cert;
    struct hth_grant grant;
    size_t len = join_certs(invite, certs);
    hth_invite_run(crypto, invite, &run);
    hth_invite_cert(invite, &cert);
    if ((cert.flags & HTH_CERT_SUCCESSOR) != 0) {
        memset(&grant, 0, sizeof(grant));
        HTH_TRY(hth_chain_check(crypto, &run, certs, len, &grant.by));
        grant.from_us = grant.by.from_us;
        grant.until_us = grant.by.until_us;
    } else {
        HTH_TRY(hth_cert_check(crypto, &run, certs, len, &cert, &grant));
    }
    return hth_grant_check(&grant, &run, wall_us);
}

bool hth_invite_is_bound(const struct hth_invite *invite)
{
    static const struct hth_secret none;
    return memcmp(invite->seed.b, none.b, sizeof(none.b)) == 0;
}

void hth_invite_bind(struct hth_invite *invite, const void *certs, size_t len)
{
    struct hth_cert cert;
    enum hth_err err = hth_cert_read(certs, len, &cert, &invite->cert_len);
    HTH_ASSERT(err == HTH_OK && len - invite->cert_len <= sizeof(invite->chain));
    memset(&invite->seed, 0, sizeof(invite->seed));
    memcpy(invite->cert, certs, invite->cert_len);
    invite->chain_len = len - invite->cert_len;
    memcpy(invite->chain, (const uint8_t *)certs + invite->cert_len, invite->chain_len);
}

size_t hth_invite_creds(const struct hth_crypto *crypto, const struct hth_invite *invite,
                        const struct hth_secret *peer, int64_t wall_us,
                        uint8_t out[HTH_CREDS_BYTES_MAX])
{
    struct hth_cert cert;
    struct hth_closed_run run;
    struct hth_pubkey key;
    hth_invite_cert(invite, &cert);
    hth_invite_run(crypto, invite, &run);
    crypto->public_of(peer, &key);
    hth_pass_write(crypto, &run.id, cert.serial, &key, wall_us,
                   hth_invite_is_bound(invite) ? peer : &invite->seed, out);
    return HTH_PASS_BYTES + join_certs(invite, out + HTH_PASS_BYTES);
}
