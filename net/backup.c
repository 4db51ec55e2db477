/* SPDX-License-Identifier: Apache-2.0 */
/* backup.c: scrypt and AES-256-GCM by OpenSSL's EVP; backup.h has the format. */
#define _DEFAULT_SOURCE
#include "net/backup.h"

#include "core/bytes.h"
#include "net/crypto.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define NAME         "hearth-backup-v"
#define NAME_LEN     (sizeof(NAME) - 1)
#define LINE_LEN     (NAME_LEN + 2) /* with the version and the line's end */
#define SCRYPT_N     (UINT64_C(1) << 17)
#define SCRYPT_BYTES (UINT64_C(160) << 20) /* the limit that OpenSSL is given: 128 MiB and some */

struct sealed {
    uint8_t salt[16], nonce[12];
    struct hth_pubkey pub;
    uint8_t secret[sizeof(struct hth_secret)], tag[16];
};
#define HEX_LEN (2 * sizeof(struct sealed))
_Static_assert(sizeof(struct sealed) == 108, "no gaps");
_Static_assert(LINE_LEN + HEX_LEN + 2 <= HTH_BACKUP_TEXT_MAX, "fits");

static enum hth_err stretch(const void *passphrase, size_t len, const struct sealed *s,
                            uint8_t key[32])
{
    if (EVP_PBE_scrypt(passphrase, len, s->salt, sizeof(s->salt), SCRYPT_N, 8, 1, SCRYPT_BYTES, key,
                       32) == 1)
        return HTH_OK;
    ERR_clear_error();
    return HTH_E_NO_MEMORY;
}

/* Encrypts or decrypts in's 32 bytes; false: the tag is not that of these bytes. */
static bool cipher(struct sealed *s, const uint8_t key[32], bool encrypt, const uint8_t *in,
                   uint8_t *out)
{
    int n = 0;
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    bool fine = ctx != NULL &&
                EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, key, s->nonce, encrypt) == 1 &&
                EVP_CipherUpdate(ctx, NULL, &n, s->pub.b, sizeof(s->pub.b)) == 1 &&
                EVP_CipherUpdate(ctx, out, &n, in, sizeof(s->secret)) == 1;
    if (fine && !encrypt)
        fine = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, sizeof(s->tag), s->tag) == 1;
    fine = fine && EVP_CipherFinal_ex(ctx, out + sizeof(s->secret), &n) == 1;
    if (fine && encrypt)
        fine = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, sizeof(s->tag), s->tag) == 1;
    EVP_CIPHER_CTX_free(ctx);
    ERR_clear_error();
    return fine;
}

enum hth_err hth_backup_write(const struct hth_secret *secret, const void *passphrase, size_t len,
                              char out[HTH_BACKUP_TEXT_MAX])
{
    struct sealed s;
    uint8_t key[32];
    if (getrandom(&s, sizeof(s.salt) + sizeof(s.nonce), 0) !=
        (ssize_t)(sizeof(s.salt) + sizeof(s.nonce)))
        return HTH_E_IO;
    hth_crypto_openssl()->public_of(secret, &s.pub);
    HTH_TRY(stretch(passphrase, len, &s, key));
    bool fine = cipher(&s, key, true, secret->b, s.secret);
    explicit_bzero(key, sizeof(key));
    if (!fine)
        return HTH_E_NO_MEMORY;
    memcpy(out, NAME "1\n", LINE_LEN);
    hth_hex((const uint8_t *)&s, sizeof(s), out + LINE_LEN);
    memcpy(out + LINE_LEN + HEX_LEN, "\n", 2);
    return HTH_OK;
}

static enum hth_err parse(const char *text, size_t len, struct sealed *out)
{
    char hex[HEX_LEN + 1] = {0};
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r' || text[len - 1] == ' '))
        len--;
    if (len < LINE_LEN || memcmp(text, NAME, NAME_LEN) != 0)
        return HTH_E_BAD_MAGIC;
    if (text[NAME_LEN] != '1' || text[NAME_LEN + 1] != '\n')
        return HTH_E_VERSION;
    if (len < LINE_LEN + HEX_LEN)
        return HTH_E_TRUNCATED;
    if (len > LINE_LEN + HEX_LEN)
        return HTH_E_MALFORMED;
    memcpy(hex, text + LINE_LEN, HEX_LEN);
    return hth_unhex(hex, (uint8_t *)out, sizeof(*out)) == HTH_OK ? HTH_OK : HTH_E_MALFORMED;
}

enum hth_err hth_backup_peek(const void *text, size_t len, struct hth_pubkey *out)
{
    struct sealed s;
    HTH_TRY(parse(text, len, &s));
    *out = s.pub;
    return HTH_OK;
}

enum hth_err hth_backup_read(const void *text, size_t len, const void *passphrase, size_t pass_len,
                             struct hth_secret *out)
{
    struct sealed s;
    struct hth_pubkey pub;
    uint8_t key[32];
    memset(out, 0, sizeof(*out));
    HTH_TRY(parse(text, len, &s));
    HTH_TRY(stretch(passphrase, pass_len, &s, key));
    bool fine = cipher(&s, key, false, s.secret, out->b);
    explicit_bzero(key, sizeof(key));
    if (fine)
        hth_crypto_openssl()->public_of(out, &pub);
    if (fine && memcmp(pub.b, s.pub.b, sizeof(pub.b)) == 0)
        return HTH_OK;
    explicit_bzero(out, sizeof(*out));
    return HTH_E_BAD_KEY;
}
