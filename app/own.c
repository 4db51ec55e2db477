/* SPDX-License-Identifier: Apache-2.0 */
/* own.c: closes the run file, and keeps two invites in files that nobody else reads. */
#include "app/own.h"

#include "app/owner.h"
#include "app/peer.h"
#include "cli/config.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "net/crypto.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DAYS      365
#define FOR_SELF  "owner" /* names of the invites */
#define FOR_OTHER "all"

/* The path of the file of an invite to that run. */
static char *path_of(const struct hth_hash *run_file, const char *name)
{
    char hash[17], *dir = hth_owner_dir();
    hth_hex(run_file->b, 8, hash);
    char *path = hth_asprintf("%s/%s-%s.invite", dir, name, hash);
    hth_free(dir);
    return path;
}

/* Whether the file has an invite of this owner to this run that holds for another day. */
static bool read_kept(const char *path, const struct hth_invite *like, struct hth_invite *out)
{
    struct hth_cert cert;
    const char *why;
    char *arg = hth_asprintf("@%s", path);
    bool good = access(path, F_OK) == 0 && hth_cli_invite(arg, out, &why) == HTH_OK;
    hth_free(arg);
    if (!good)
        return false;
    hth_invite_cert(out, &cert);
    return memcmp(&out->owner, &like->owner, sizeof(out->owner)) == 0 &&
           memcmp(&out->run_file, &like->run_file, sizeof(out->run_file)) == 0 &&
           cert.not_after_us > ((int64_t)time(NULL) + 86400) * HTH_US_PER_S;
}

static enum hth_err write_kept(const char *path, const struct hth_invite *invite)
{
    char text[HTH_INVITE_TEXT_MAX];
    HTH_TRY(hth_invite_write(invite, text));
    mode_t mask = umask(077);
    FILE *f = fopen(path, "we");
    umask(mask);
    bool good = f != NULL && fprintf(f, "%s\n", text) > 0;
    if (f != NULL)
        good &= fclose(f) == 0;
    if (!good)
        hth_cli_say_error("%s can't be written", path);
    return good ? HTH_OK : HTH_E_IO;
}

static enum hth_err find(const char *run_path, const struct hth_runfile *run, const char *name,
                         struct hth_invite *out)
{
    struct hth_closed_run closed;
    struct hth_invite like;
    const struct hth_crypto *crypto = hth_crypto_openssl();
    HTH_ASSERT(hth_config_closed(run, crypto, &like.run_file, &closed));
    like.owner = closed.owner;
    char *path = path_of(&like.run_file, name);
    enum hth_err err = HTH_OK;
    if (!read_kept(path, &like, out)) {
        err = hth_owner_sign(run_path, run, name, DAYS, out);
        if (err == HTH_OK)
            err = write_kept(path, out);
    }
    hth_free(path);
    return err;
}

enum hth_err hth_own_begin(const char *run_path, struct hth_cli_net *net)
{
    struct hth_runfile *run;
    HTH_TRY(hth_owner_close(run_path));
    HTH_TRY(hth_config_load(run_path, &run));
    enum hth_err err = find(run_path, run, FOR_SELF, &net->invite);
    if (err == HTH_OK)
        err = find(run_path, run, FOR_OTHER, &net->share);
    net->invited = err == HTH_OK;
    hth_runfile_free(run);
    return err;
}

void hth_own_say(const struct hth_cli_net *net, const struct hth_peer *peer)
{
    struct hth_invite share = net->share;
    char text[HTH_INVITE_TEXT_MAX], *path = path_of(&share.run_file, FOR_OTHER);
    share.addr_count = peer->announce.family != 0;
    share.addr[0] = peer->announce;
    if (write_kept(path, &share) == HTH_OK && hth_invite_write(&share, text) == HTH_OK) {
        hth_say("  others take part with  --invite @%s", path);
        if (isatty(STDOUT_FILENO) && hth_say_stands()) /* never into a log */
            hth_say("  or  --invite %s\n  The text is a secret: it lets in everybody who has it.",
                    text);
    }
    hth_free(path);
}
