/* SPDX-License-Identifier: Apache-2.0 */
/* own.c: closes the run file, and keeps two invites in files that nobody else reads. */
#include "app/own.h"

#include "app/owner_int.h"
#include "app/peer.h"
#include "cli/config.h"
#include "core/mem.h"
#include "net/identity.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DAYS      365
#define FOR_SELF  "owner" /* names of the invites */
#define FOR_OTHER "all"

/* The path of the file of an invite to that run. */
static char *path_of(const struct hth_owner *o, const struct hth_hash *run_file, const char *name)
{
    char hash[17];
    hth_hex(run_file->b, 8, hash);
    return hth_asprintf("%s/%s-%s.invite", o->dir, name, hash);
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
    size_t len = strlen(text);
    text[len++] = '\n';
    return hth_owner_write(path, text, len);
}

/* The invite of that name, kept or new. */
static enum hth_err find(struct hth_owner *o, const struct hth_invite *like, const char *name,
                         struct hth_invite *out)
{
    struct hth_cert cert;
    char *path = path_of(o, &like->run_file, name);
    enum hth_err err = HTH_OK;
    o->name = name;
    if (!read_kept(path, like, out)) {
        err = hth_owner_sign(o, out, &cert);
        if (err == HTH_OK)
            err = write_kept(path, out);
    }
    hth_free(path);
    return err;
}

/* The lines that close a run, at the end of its file. */
static enum hth_err add_lines(const char *run_path, const struct hth_runfile *run,
                              const struct hth_secret *owner, bool hidden)
{
    char hex[2 * HTH_PUBKEY_LEN + 1];
    struct stat st;
    FILE *f = stat(run_path, &st) == 0 ? fopen(run_path, "ae") : NULL;
    bool ends = run->text != NULL && run->text[strlen(run->text) - 1] == '\n';
    bool good =
        f != NULL && fprintf(f, "%sadmission:\n  owner: %s\n%s", ends ? "" : "\n",
                             hth_owner_key_text(owner, hex), hidden ? "  private: true\n" : "") > 0;
    bool opened = f != NULL;
    if (opened)
        good &= fclose(f) == 0;
    const char *why = strerror(errno);
    if (opened && !good)
        (void)!truncate(run_path, st.st_size); /* half of the lines is no run file */
    if (good)
        hth_say("%s: run '%s' has an owner now, and lets in only peers with an invite", run_path,
                run->run);
    else
        hth_cli_say_error("the owner can't be written into %s: %s; give a copy in a folder of "
                          "yours",
                          run_path, why);
    return good ? HTH_OK : HTH_E_IO;
}

static enum hth_err close_run(struct hth_owner *o, bool hidden)
{
    struct hth_runfile *run;
    char why[HTH_IDENTITY_WHY_MAX];
    bool made;
    HTH_TRY(hth_config_load(o->run_path, &run));
    enum hth_err err = hth_identity_load(o->key_path, &o->secret, &made, why);
    if (err != HTH_OK)
        hth_cli_say_error("%s", why);
    else if (made)
        hth_say("the owner's key: %s; keep a copy (hearth owner backup)", o->key_path);
    if (err == HTH_OK && run->admission.owner == NULL)
        err = add_lines(o->run_path, run, &o->secret, hidden);
    else if (err == HTH_OK && hidden && !run->admission.is_private) {
        hth_cli_say_error("--private: %s names an owner, and is not private; 'private: true' among "
                          "its lines of admission makes another run of it",
                          o->run_path);
        err = HTH_E_CONFIG;
    }
    hth_runfile_free(run);
    return err == HTH_E_PERMISSION ? HTH_E_BAD_KEY : err;
}

/* This machine's invite; for others, too, if it begins the run. */
static enum hth_err invite(struct hth_owner *o, struct hth_cli_net *net)
{
    HTH_TRY(hth_owner_signer(o));
    const struct hth_invite like = o->base;
    HTH_TRY(find(o, &like, FOR_SELF, &net->invite));
    if (net->own)
        HTH_TRY(find(o, &like, FOR_OTHER, &net->share));
    net->invited = true;
    return HTH_OK;
}

enum hth_err hth_own_begin(const char *run_path, struct hth_cli_net *net)
{
    struct hth_owner o = {.word = "invite", .run_path = run_path, .days = DAYS};
    hth_owner_open(&o);
    enum hth_err err = close_run(&o, net->hidden);
    if (err == HTH_OK)
        err = invite(&o, net);
    hth_owner_close(&o);
    return err;
}

enum hth_err hth_own_enter(const char *run_path, const struct hth_runfile *run,
                           struct hth_cli_net *net)
{
    struct hth_owner o = {.word = "invite", .run_path = run_path, .days = DAYS};
    char hex[2 * HTH_PUBKEY_LEN + 1];
    if (run->admission.owner == NULL || net->invited)
        return HTH_OK;
    hth_owner_open(&o);
    bool ours = access(o.key_path, R_OK) == 0 && hth_owner_key(&o, &o.secret) == HTH_OK &&
                strcasecmp(hth_owner_key_text(&o.secret, hex), run->admission.owner) == 0;
    enum hth_err err = ours ? invite(&o, net) : HTH_OK;
    hth_owner_close(&o);
    return err;
}

void hth_own_say(const struct hth_cli_net *net, const struct hth_peer *peer)
{
    struct hth_owner o = {.word = "invite"};
    struct hth_invite share = net->share;
    char text[HTH_INVITE_TEXT_MAX];
    hth_owner_open(&o);
    char *path = path_of(&o, &share.run_file, FOR_OTHER);
    share.addr_count = peer->announce.family != 0;
    share.addr[0] = peer->announce;
    if (write_kept(path, &share) == HTH_OK && hth_invite_write(&share, text) == HTH_OK) {
        hth_say("  others take part with  --invite @%s", path);
        if (isatty(STDOUT_FILENO) && hth_say_stands()) /* never into a log */
            hth_say("  or  --invite %s\n  The text is a secret: it lets in everybody who has it.",
                    text);
    }
    hth_free(path);
    hth_owner_close(&o);
}
