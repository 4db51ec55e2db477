/* SPDX-License-Identifier: Apache-2.0 */
/* owner_backup.c: hearth owner backup, restore: the key in a file that a passphrase opens. */
#define _DEFAULT_SOURCE
#include "app/owner_int.h"

#include "net/backup.h"
#include "net/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PASSPHRASE_MIN 8
#define PASSPHRASE_MAX 256

struct passphrase {
    char text[PASSPHRASE_MAX];
    size_t len;
};

static enum hth_err from_terminal(const char *prompt, struct passphrase *out)
{
    char *text = isatty(STDIN_FILENO) != 0 ? getpass(prompt) : NULL;
    if (text == NULL || strlen(text) > sizeof(out->text)) {
        hth_cli_say_error("%s", text == NULL
                                    ? "no terminal to ask for the passphrase on; give --passphrase "
                                      "@FILE or -"
                                    : "the passphrase is longer than 256 bytes");
        return HTH_E_USAGE;
    }
    out->len = strlen(text);
    memcpy(out->text, text, out->len);
    explicit_bzero(text, out->len);
    return HTH_OK;
}

/* The whole first line of a file; the terminal is asked twice for a new one. */
static enum hth_err ask(const struct hth_owner *o, bool twice, struct passphrase *out)
{
    struct passphrase again;
    if (o->passphrase != NULL) {
        enum hth_err err = hth_cli_secret(o->passphrase, out->text, sizeof(out->text), &out->len);
        if (err != HTH_OK) {
            hth_cli_say_error("--passphrase: %s", hth_err_text(err));
            return HTH_E_USAGE;
        }
        const char *end = memchr(out->text, '\n', out->len);
        out->len = end != NULL ? (size_t)(end - out->text) : out->len;
    } else {
        HTH_TRY(from_terminal("Passphrase: ", out));
        if (twice)
            HTH_TRY(from_terminal("The same again: ", &again));
        bool same =
            !twice || (again.len == out->len && memcmp(again.text, out->text, out->len) == 0);
        explicit_bzero(&again, sizeof(again));
        if (!same) {
            hth_cli_say_error("the two passphrases differ");
            return HTH_E_USAGE;
        }
    }
    if (twice && out->len < PASSPHRASE_MIN) {
        hth_cli_say_error("a passphrase has at least %d bytes: who finds the file can try many",
                          PASSPHRASE_MIN);
        return HTH_E_USAGE;
    }
    return HTH_OK;
}

/* A file that is there may be the only copy of another key. */
static enum hth_err check_new(const char *path)
{
    if (access(path, F_OK) != 0)
        return HTH_OK;
    hth_cli_say_error("%s: it exists; give another name", path);
    return HTH_E_IO;
}

static enum hth_err write_new(const char *path, const char *text)
{
    size_t len = strlen(text);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        hth_cli_say_error("%s: %s", path, strerror(errno));
        return HTH_E_IO;
    }
    bool good = write(fd, text, len) == (ssize_t)len && fsync(fd) == 0;
    good &= close(fd) == 0;
    if (good)
        return HTH_OK;
    hth_cli_say_error("%s can't be written", path);
    unlink(path);
    return HTH_E_IO;
}

enum hth_err hth_owner_backup(struct hth_owner *o)
{
    struct passphrase pass = {.len = 0};
    char text[HTH_BACKUP_TEXT_MAX];
    HTH_TRY(hth_owner_key(o, &o->secret));
    HTH_TRY(check_new(o->what));
    enum hth_err err = ask(o, true, &pass);
    if (err == HTH_OK) {
        err = hth_backup_write(&o->secret, pass.text, pass.len, text);
        if (err != HTH_OK)
            hth_cli_say_error("the key can't be encrypted: %s", hth_err_text(err));
    }
    explicit_bzero(&pass, sizeof(pass));
    HTH_TRY(err);
    HTH_TRY(write_new(o->what, text));
    hth_say("%s has the owner's key; hearth owner restore %s reads it with the passphrase", o->what,
            o->what);
    return HTH_OK;
}

static enum hth_err read_file(const char *path, char text[HTH_BACKUP_TEXT_MAX], size_t *len)
{
    FILE *f = fopen(path, "re");
    *len = f != NULL ? fread(text, 1, HTH_BACKUP_TEXT_MAX, f) : 0;
    if (f == NULL)
        return errno == ENOENT ? HTH_E_NO_FILE : HTH_E_PERMISSION;
    fclose(f);
    return HTH_OK;
}

static const char *why(enum hth_err err)
{
    switch (err) {
    case HTH_E_BAD_MAGIC:
        return "this is no backup: one begins with hearth-backup-v1";
    case HTH_E_VERSION:
        return "the backup is of another version of hearth";
    case HTH_E_TRUNCATED:
        return "the backup is cut";
    case HTH_E_BAD_KEY:
        return "the passphrase is another one, or the file is damaged";
    default:
        return hth_err_text(err);
    }
}

static enum hth_err open_backup(struct hth_owner *o, const char *text, size_t len)
{
    struct passphrase pass = {.len = 0};
    struct hth_pubkey pub;
    enum hth_err err = hth_backup_peek(text, len, &pub);
    if (err == HTH_OK) {
        HTH_TRY(ask(o, false, &pass));
        err = hth_backup_read(text, len, pass.text, pass.len, &o->secret);
        explicit_bzero(&pass, sizeof(pass));
    }
    if (err != HTH_OK)
        hth_cli_say_error("%s: %s", o->what, why(err));
    return err == HTH_OK ? HTH_OK : HTH_E_BAD_KEY;
}

enum hth_err hth_owner_restore(struct hth_owner *o)
{
    char text[HTH_BACKUP_TEXT_MAX];
    size_t len;
    enum hth_err err = read_file(o->what, text, &len);
    if (err != HTH_OK) {
        hth_cli_say_error("%s: %s", o->what, hth_err_text(err));
        return HTH_E_CONFIG;
    }
    if (access(o->key_path, F_OK) == 0) {
        hth_cli_say_error("%s: there is a key already; move it away, or give another --dir",
                          o->key_path);
        return HTH_E_BAD_KEY;
    }
    HTH_TRY(open_backup(o, text, len));
    err = hth_identity_save(o->key_path, &o->secret);
    if (err != HTH_OK) {
        hth_cli_say_error("%s can't be written: %s", o->key_path, hth_err_text(err));
        return err;
    }
    hth_say("%s is the owner's key again; which invites were revoked is learnt from the network",
            o->key_path);
    return HTH_OK;
}
