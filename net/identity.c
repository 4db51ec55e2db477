/* SPDX-License-Identifier: Apache-2.0 */
/* identity.c: a node's key on disk; the format is in identity.h. */
#define _GNU_SOURCE
#include "net/identity.h"

#include "core/bytes.h"
#include "core/mem.h"
#include "net/crypto.h"
#include "net/net_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC_LINE "hearth-identity-v1\n"
#define MAGIC_LEN  (sizeof(MAGIC_LINE) - 1)
#define HEX_LEN    64
#define FILE_LEN   (MAGIC_LEN + 2 * (HEX_LEN + 1))

enum hth_err hth_identity_random(struct hth_secret *out)
{
    return getrandom(out->b, sizeof(out->b), 0) == (ssize_t)sizeof(out->b) ? HTH_OK : HTH_E_IO;
}

static void format(const struct hth_secret *secret, char text[FILE_LEN + 1])
{
    struct hth_pubkey pub;
    hth_crypto_openssl()->public_of(secret, &pub);
    memcpy(text, MAGIC_LINE, MAGIC_LEN);
    hth_hex(secret->b, sizeof(secret->b), text + MAGIC_LEN);
    text[MAGIC_LEN + HEX_LEN] = '\n';
    hth_hex(pub.b, sizeof(pub.b), text + MAGIC_LEN + HEX_LEN + 1);
    text[FILE_LEN - 1] = '\n';
    text[FILE_LEN] = '\0';
}

/* The public key in the file is a checksum: a damaged secret would be another identity. */
enum hth_err hth_identity_parse(const void *data, size_t len, struct hth_secret *out)
{
    const char *text = data;
    char hex[HEX_LEN + 1] = {0};
    struct hth_pubkey pub, want;
    enum hth_err err = HTH_E_BAD_KEY;
    explicit_bzero(out, sizeof(*out));
    if (len != FILE_LEN || memcmp(text, MAGIC_LINE, MAGIC_LEN) != 0 ||
        text[MAGIC_LEN + HEX_LEN] != '\n' || text[FILE_LEN - 1] != '\n')
        return err;
    memcpy(hex, text + MAGIC_LEN, HEX_LEN);
    if (hth_unhex(hex, out->b, sizeof(out->b)) != HTH_OK)
        goto out;
    memcpy(hex, text + MAGIC_LEN + HEX_LEN + 1, HEX_LEN);
    if (hth_unhex(hex, want.b, sizeof(want.b)) != HTH_OK)
        goto out;
    hth_crypto_openssl()->public_of(out, &pub);
    if (memcmp(pub.b, want.b, sizeof(pub.b)) == 0)
        err = HTH_OK;
out:
    explicit_bzero(hex, sizeof(hex));
    if (err != HTH_OK)
        explicit_bzero(out, sizeof(*out));
    return err;
}

static enum hth_err check_mode(const char *path, const struct stat *st, char *why)
{
    if (!S_ISREG(st->st_mode)) {
        snprintf(why, HTH_IDENTITY_WHY_MAX, "%s is not a regular file: name another path", path);
        return HTH_E_BAD_KEY;
    }
    if (st->st_uid != geteuid()) {
        snprintf(why, HTH_IDENTITY_WHY_MAX,
                 "%s belongs to another user (uid %ld): start as that user or name another file",
                 path, (long)st->st_uid);
        return HTH_E_PERMISSION;
    }
    if ((st->st_mode & 077) != 0) {
        snprintf(why, HTH_IDENTITY_WHY_MAX,
                 "%s holds the secret key and other users may read it (mode %04o): chmod 600 %s",
                 path, (unsigned)(st->st_mode & 07777), path);
        return HTH_E_PERMISSION;
    }
    return HTH_OK;
}

static enum hth_err load(const char *path, struct hth_secret *out, char *why)
{
    char text[FILE_LEN + 1]; /* one byte more, to detect a longer file */
    size_t len = 0;
    struct stat st;
    enum hth_err err;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        err = hth_net_file_errno(errno);
        snprintf(why, HTH_IDENTITY_WHY_MAX, "%s can't be opened: %s", path, hth_err_text(err));
        return err;
    }
    err = fstat(fd, &st) == 0 ? check_mode(path, &st, why) : HTH_E_IO;
    while (err == HTH_OK && len < sizeof(text)) {
        ssize_t n = read(fd, text + len, sizeof(text) - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            err = hth_net_file_errno(errno);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    close(fd);
    if (err == HTH_OK) {
        err = hth_identity_parse(text, len, out);
        if (err != HTH_OK)
            snprintf(why, HTH_IDENTITY_WHY_MAX,
                     "%s is damaged or is not a key: restore it, or move it away to get a new one",
                     path);
    }
    explicit_bzero(text, sizeof(text));
    return err;
}

/* Writes a temporary file and links it to the name, which fails when another process was first. */
static enum hth_err create(const char *path, const struct hth_secret *secret, bool *lost_race)
{
    char text[FILE_LEN + 1];
    char *tmp = NULL;
    int fd = -1;
    enum hth_err err;
    *lost_race = false;
    HTH_TRY(hth_net_mkdirs(path));
    HTH_TRY(hth_net_temp_open(path, 0600, &tmp, &fd));
    format(secret, text);
    HTH_GOTO(out, hth_net_write_all(fd, text, FILE_LEN));
    if (fsync(fd) != 0) {
        err = hth_net_file_errno(errno);
        goto out;
    }
    if (link(tmp, path) == 0)
        err = hth_net_sync_dir(path);
    else if (errno == EEXIST)
        *lost_race = true;
    else
        err = hth_net_file_errno(errno);
out:
    explicit_bzero(text, sizeof(text));
    close(fd);
    unlink(tmp);
    hth_free(tmp);
    return err;
}

enum hth_err hth_identity_save(const char *path, const struct hth_secret *secret)
{
    bool exists = false;
    HTH_TRY(create(path, secret, &exists));
    return exists ? HTH_E_DUPLICATE : HTH_OK;
}

enum hth_err hth_identity_load(const char *path, struct hth_secret *out, bool *created,
                               char why[HTH_IDENTITY_WHY_MAX])
{
    bool lost_race = false;
    enum hth_err err;
    why[0] = '\0';
    if (created != NULL)
        *created = false;
    err = load(path, out, why);
    if (err != HTH_E_NO_FILE)
        return err;
    why[0] = '\0';
    err = hth_identity_random(out);
    if (err == HTH_OK)
        err = create(path, out, &lost_race);
    if (err != HTH_OK) {
        explicit_bzero(out, sizeof(*out));
        snprintf(why, HTH_IDENTITY_WHY_MAX, "%s can't be written: %s", path, hth_err_text(err));
        return err;
    }
    if (lost_race)
        return load(path, out, why);
    if (created != NULL)
        *created = true;
    return HTH_OK;
}
