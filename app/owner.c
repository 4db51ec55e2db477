/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.c: hearth owner: the key that closes a run, and the invites that it signs. An invite is a
 * text, which a person sends to a person: only a list of revoked ones is put into the network.
 *
 *   DIR/key       the owner's key, a file like a peer's (net/identity.h)
 *   DIR/revoked.RUN  the list of that run, as it is published (admission/revoke.h)
 *   DIR/invites   a line for each invite: serial, time of its end, class, roles, run, name
 */
#define _DEFAULT_SOURCE
#include "app/admit.h"
#include "app/owner.h"
#include "app/owner_publish.h"
#include "cli/config.h"
#include "core/bytes.h"
#include "core/guess.h"
#include "core/mem.h"
#include "core/name.h"
#include "net/crypto.h"
#include "net/identity.h"
#include "net/net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DAY_US         (86400 * HTH_US_PER_S)
#define DAYS_MAX       3650
#define LINE_MAX_BYTES 256

struct owner {
    const char *word, *dir, *run_path, *name;
    uint64_t serial;        /* to revoke */
    struct hth_cli_net net; /* only --join */
    const char *address[HTH_INVITE_ADDRS_MAX];
    size_t address_count;
    uint8_t roles;
    bool probation;
    int64_t days;

    char *own_dir, *key_path, *list_path;
    int code; /* to exit with, if no step fails */
    struct hth_secret secret;
    struct hth_pubkey pub;
    char hex[2 * HTH_PUBKEY_LEN + 1]; /* the public key */
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_NAME = 0x3700, KEY_ROLES, KEY_DAYS, KEY_PROBATION, KEY_ADDRESS };

static const struct argp_option options[] = {
    {"dir", 'd', "DIR", 0,
     "Folder of the owner's key and of the list of invites (default: owner below "
     "~/.local/state/hearth)",
     0},
    {"run", 'r', "FILE", 0, "The run file, with the owner's public key (required)", 0},
    {"join", 'j', "HOST:PORT", 0, "revoke: a peer of the run (default: through remembered peers)",
     0},
    {NULL, 0, NULL, 0, "Of an invite:", 1},
    {"name", KEY_NAME, "NAME", 0, "Name of the person or machine that gets it (required)", 1},
    {"roles", KEY_ROLES, "LIST", 0,
     "Rights, of train, serve, reduce and watch (default: train,serve,reduce,watch)", 1},
    {"days", KEY_DAYS, "N", 0, "Days until it ends (default 30)", 1},
    {"probation", KEY_PROBATION, NULL, 0, "Mark its peers as on probation (class 1)", 1},
    {"address", KEY_ADDRESS, "HOST:PORT", 0,
     "A peer to join through, which is written into the invite (up to 4)", 1},
    {0},
};

static void take_word(struct owner *o, const char *arg, struct argp_state *state)
{
    static const char *const words[] = {"init", "invite", "list", "revoke"};
    char hint[80];
    for (size_t i = 0; i < HTH_ARRAY_LEN(words); i++)
        if (strcmp(arg, words[i]) == 0)
            o->word = words[i];
    if (o->word == NULL)
        argp_error(
            state, "no word '%s'%s", arg,
            hth_guess_text(arg, words, sizeof(words[0]), HTH_ARRAY_LEN(words), hint, sizeof(hint)));
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct owner *o = state->input;
    switch (key) {
    case 'd':
        hth_cli_check_folder(state, "--dir", arg, "~/.local/state/hearth/owner");
        o->dir = arg;
        return 0;
    case 'r':
        o->run_path = arg;
        return 0;
    case 'j':
        hth_cli_check_host(state, "--join", arg, 1, "example.org:4700");
        if (o->net.join_count == HTH_CLI_JOIN_MAX)
            argp_error(state, "--join is given more than %d times", HTH_CLI_JOIN_MAX);
        o->net.join[o->net.join_count++] = arg;
        return 0;
    case KEY_NAME:
        if (strlen(arg) > HTH_CERT_NAME_MAX || hth_name_check(arg, strlen(arg)) != HTH_OK)
            argp_error(state,
                       "--name '%s': a name is 1 to %d bytes of UTF-8, without blanks, control or "
                       "direction marks and . / \\ [ ], such as ana",
                       arg, HTH_CERT_NAME_MAX);
        o->name = arg;
        return 0;
    case KEY_ROLES:
        if (hth_roles_parse(arg, &o->roles) != HTH_OK || (o->roles & HTH_MAY_INVITE) != 0)
            argp_error(state,
                       "--roles '%s': expected some of train, serve, reduce and watch, such as "
                       "train,serve",
                       arg);
        return 0;
    case KEY_DAYS:
        o->days = (int64_t)hth_cli_number(state, "--days", arg, 1, DAYS_MAX);
        return 0;
    case KEY_PROBATION:
        o->probation = true;
        return 0;
    case KEY_ADDRESS:
        hth_cli_check_host(state, "--address", arg, 1, "example.org:4700");
        if (o->address_count == HTH_INVITE_ADDRS_MAX)
            argp_error(state, "--address is given more than %d times", HTH_INVITE_ADDRS_MAX);
        o->address[o->address_count++] = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            take_word(o, arg, state);
        else if (state->arg_num == 1 && strcmp(o->word, "revoke") == 0)
            o->serial = hth_cli_number(state, "SERIAL", arg, 1, UINT64_MAX);
        else
            return ARGP_ERR_UNKNOWN;
        return 0;
    case ARGP_KEY_END:
        if (o->word == NULL)
            argp_error(state, "expected init, invite, list or revoke, such as: hearth owner init");
        if (strcmp(o->word, "revoke") == 0 && (o->run_path == NULL || o->serial == 0))
            argp_error(state, "SERIAL and --run FILE are required, such as: hearth owner revoke "
                              "1795814913 --run runs/fashion.yaml");
        if (strcmp(o->word, "invite") == 0 && (o->run_path == NULL || o->name == NULL))
            argp_error(state, "--run FILE and --name NAME are required, such as: hearth owner "
                              "invite --run runs/fashion.yaml --name ana");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "init | invite | list | revoke SERIAL",
    .doc = "Close a run to strangers. init makes the owner's key and prints the lines for the run "
           "file, invite prints an invite to that run, list shows all that were made, and revoke "
           "ends one in the "
           "whole swarm.",
};

/* ---- the key ------------------------------------------------------------------------------- */

/* Errors, printed: those of hth_identity_load; E_NO_FILE unless it may be made. */
static enum hth_err load_key(struct owner *o, bool make, bool *made)
{
    char why[HTH_IDENTITY_WHY_MAX];
    if (!make && access(o->key_path, F_OK) != 0 && errno == ENOENT) {
        hth_cli_say_error("%s: there is no owner's key yet: hearth owner init makes it",
                          o->key_path);
        return HTH_E_BAD_KEY;
    }
    enum hth_err err = hth_identity_load(o->key_path, &o->secret, made, why);
    if (err != HTH_OK) {
        hth_cli_say_error("%s", why);
        return err == HTH_E_PERMISSION ? HTH_E_BAD_KEY : err;
    }
    hth_crypto_openssl()->public_of(&o->secret, &o->pub);
    hth_hex(o->pub.b, sizeof(o->pub.b), o->hex);
    return HTH_OK;
}

static enum hth_err init(struct owner *o)
{
    bool made;
    HTH_TRY(load_key(o, true, &made));
    hth_say_note("the owner's key: %s (%s)", o->key_path, made ? "new" : "known");
    hth_say_note("Keep a copy in a safe place. Nobody can make this key again: once it is lost, "
                 "nobody can be invited to its runs, and no deputy be named.");
    hth_say_note("These lines close a run; put them into its run file:");
    hth_say("admission:\n  owner: %s", o->hex);
    return HTH_OK;
}

/* ---- the list ------------------------------------------------------------------------------ */

struct entry {
    unsigned long long serial;
    long long until_s;
    unsigned class;
    char roles[48], run[HTH_NAME_LEN_MAX + 1], name[HTH_CERT_NAME_MAX + 1];
};

static bool read_entry(FILE *f, struct entry *e)
{
    char line[LINE_MAX_BYTES];
    while (fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "%llu %lld %u %47s %63s %32s", &e->serial, &e->until_s, &e->class,
                   e->roles, e->run, e->name) == 6)
            return true;
    return false;
}

static enum hth_err list(struct owner *o)
{
    char date[32];
    struct entry e;
    FILE *f = fopen(o->list_path, "re");
    if (f == NULL) {
        hth_say_note("no invites were made with %s", o->key_path);
        return HTH_OK;
    }
    while (read_entry(f, &e))
        hth_say("%llu  %-16s %s  until %s%s  run '%s'%s", e.serial, e.name, e.roles,
                hth_admit_date(e.until_s * HTH_US_PER_S, date),
                e.until_s < (long long)time(NULL) ? " (over)" : "", e.run,
                e.class == HTH_PROBATION ? ", on probation" : "");
    fclose(f);
    return HTH_OK;
}

/* Serials are seconds of the clock, and rise: they stay unique if the list is lost. */
static uint64_t next_serial(const struct owner *o)
{
    uint64_t serial = (uint64_t)time(NULL);
    struct entry e;
    FILE *f = fopen(o->list_path, "re");
    while (f != NULL && read_entry(f, &e))
        serial = HTH_MAX(serial, (uint64_t)e.serial + 1);
    if (f != NULL)
        fclose(f);
    return serial;
}

/* Written before the invite is shown: none is made that the list does not know. */
static enum hth_err note(const struct owner *o, const struct hth_cert *cert, const char *run)
{
    char roles[48];
    mode_t mask = umask(077);
    FILE *f = fopen(o->list_path, "ae");
    umask(mask);
    bool good = f != NULL && fprintf(f, "%llu %lld %u %s %s %s\n", (unsigned long long)cert->serial,
                                     (long long)(cert->not_after_us / HTH_US_PER_S), cert->class,
                                     hth_roles_text(cert->roles, roles), run, cert->name) > 0;
    if (f != NULL)
        good &= fclose(f) == 0;
    if (!good)
        hth_cli_say_error("%s can't be written", o->list_path);
    return good ? HTH_OK : HTH_E_IO;
}

/* ---- invites ------------------------------------------------------------------------------- */

static enum hth_err resolve(const struct owner *o, struct hth_invite *out)
{
    for (size_t i = 0; i < o->address_count; i++) {
        size_t got = 0;
        enum hth_err err = hth_net_resolve(o->address[i], &out->addr[out->addr_count], 1, &got);
        if (err != HTH_OK) {
            hth_cli_say_unresolved("--address", o->address[i], err);
            return HTH_E_USAGE;
        }
        out->addr_count += got;
    }
    return HTH_OK;
}

/* Checks that the run file names this owner. */
static enum hth_err take_run(const struct owner *o, const struct hth_runfile *run,
                             struct hth_invite *out, struct hth_closed_run *closed)
{
    if (!hth_config_closed(run, hth_crypto_openssl(), &out->run_file, closed) ||
        memcmp(closed->owner.b, o->pub.b, sizeof(o->pub.b)) != 0) {
        hth_cli_say_error("%s %s; for this key it needs 'admission: {owner: %s}'", o->run_path,
                          run->admission.owner == NULL ? "names no owner" : "names another owner",
                          o->hex);
        return HTH_E_CONFIG;
    }
    out->owner = o->pub;
    snprintf(out->run, sizeof(out->run), "%s", run->run);
    return HTH_OK;
}

static enum hth_err sign(const struct owner *o, const struct hth_closed_run *closed,
                         struct hth_invite *invite, struct hth_cert *cert)
{
    const struct hth_crypto *crypto = hth_crypto_openssl();
    HTH_TRY(hth_identity_random(&invite->seed));
    cert->run = closed->id;
    cert->serial = next_serial(o);
    /* A minute early: the clocks of others may be behind. */
    cert->not_before_us = ((int64_t)time(NULL) - 60) * HTH_US_PER_S;
    cert->not_after_us = cert->not_before_us + o->days * DAY_US;
    cert->class = o->probation ? HTH_PROBATION : HTH_MEMBER;
    cert->roles = o->roles;
    snprintf(cert->name, sizeof(cert->name), "%s", o->name);
    crypto->public_of(&invite->seed, &cert->key);
    return hth_cert_write(crypto, cert, &o->secret, invite->cert, &invite->cert_len);
}

static enum hth_err invite_for(struct owner *o, const struct hth_runfile *run)
{
    struct hth_invite invite = {.addr_count = 0};
    struct hth_closed_run closed;
    struct hth_cert cert = {.serial = 0};
    char text[HTH_INVITE_TEXT_MAX], date[32];
    HTH_TRY(take_run(o, run, &invite, &closed));
    HTH_TRY(resolve(o, &invite));
    HTH_TRY(sign(o, &closed, &invite, &cert));
    HTH_TRY(hth_invite_write(&invite, text));
    HTH_TRY(note(o, &cert, invite.run));
    hth_say_note(
        "Send this text to %s by a way that nobody else reads: everybody who has it is let in "
        "as '%s' until %s, or until serial %llu is revoked.",
        o->name, o->name, hth_admit_date(cert.not_after_us, date), (unsigned long long)cert.serial);
    hth_say("%s", text);
    return HTH_OK;
}

/* ---- revoking ------------------------------------------------------------------------------ */

/* The list as it was; none is an empty one. Errors, printed: of a file that can't be used. */
static enum hth_err read_revoked(const char *path, const struct hth_closed_run *closed,
                                 struct hth_revoked *out)
{
    uint8_t bytes[HTH_REVOKED_BYTES_MAX + 1];
    memset(out, 0, sizeof(*out));
    FILE *f = fopen(path, "re");
    if (f == NULL && errno == ENOENT)
        return HTH_OK;
    size_t len = f != NULL ? fread(bytes, 1, sizeof(bytes), f) : 0;
    if (f != NULL)
        fclose(f);
    enum hth_err err = hth_revoked_read(hth_crypto_openssl(), closed, bytes, len, out);
    if (err != HTH_OK)
        hth_cli_say_error("%s: %s; move it away to begin anew", path, hth_err_text(err));
    return err;
}

/* Written aside and renamed: a list that was lost would end for those who have not heard it. */
static enum hth_err write_revoked(const char *path, const uint8_t *list, size_t len)
{
    char *aside = hth_asprintf("%s.new", path);
    FILE *f = fopen(aside, "we");
    bool good =
        f != NULL && fwrite(list, 1, len, f) == len && fflush(f) == 0 && fsync(fileno(f)) == 0;
    if (f != NULL)
        good &= fclose(f) == 0;
    good = good && rename(aside, path) == 0;
    if (!good)
        hth_cli_say_error("%s can't be written", path);
    hth_free(aside);
    return good ? HTH_OK : HTH_E_IO;
}

static enum hth_err revoke_in(struct owner *o, const char *path, const char *run,
                              const struct hth_closed_run *closed)
{
    struct hth_revoked revoked;
    uint8_t list[HTH_REVOKED_BYTES_MAX];
    char network[HTH_NAME_LEN_MAX + 1];
    HTH_TRY(read_revoked(path, closed, &revoked));
    enum hth_err err = hth_revoked_add(&revoked, o->serial);
    if (err == HTH_OK)
        revoked.seq = HTH_MAX(revoked.seq + 1, (uint64_t)time(NULL) * HTH_US_PER_S);
    else if (err != HTH_E_DUPLICATE) {
        hth_cli_say_error("%s: it has %d serials already, and has room for no more", path,
                          HTH_REVOKED_MAX);
        return err;
    }
    size_t len = hth_revoked_write(hth_crypto_openssl(), &revoked, &closed->id, &o->secret, list);
    HTH_TRY(write_revoked(path, list, len));
    o->code = hth_owner_publish(&o->net, hth_network_of(run, &closed->id, network), list, len);
    if (o->code == HTH_EXIT_OK)
        hth_say("revoked %llu; the members of run '%s' pass it on", (unsigned long long)o->serial,
                run);
    else
        hth_cli_say_error("%llu is in %s, but not published yet: repeat the command",
                          (unsigned long long)o->serial, path);
    return HTH_OK;
}

static enum hth_err revoke_one(struct owner *o, const struct hth_runfile *run)
{
    struct hth_invite invite;
    struct hth_closed_run closed;
    HTH_TRY(take_run(o, run, &invite, &closed));
    char *path = hth_asprintf("%s/revoked.%s", o->dir, run->run);
    enum hth_err err = revoke_in(o, path, run->run, &closed);
    hth_free(path);
    return err;
}

/* ---- for --own ---------------------------------------------------------------------------- */

char *hth_owner_dir(void)
{
    char *base = hth_cli_default_dir(), *dir = hth_asprintf("%s/owner", base);
    hth_free(base);
    return dir;
}

static void set_dir(struct owner *o)
{
    o->own_dir = o->dir != NULL ? hth_strdup(o->dir) : hth_owner_dir();
    o->dir = o->own_dir;
    o->key_path = hth_asprintf("%s/key", o->dir);
    o->list_path = hth_asprintf("%s/invites", o->dir);
}

static void clear(struct owner *o)
{
    memset(&o->secret, 0, sizeof(o->secret));
    hth_free(o->list_path);
    hth_free(o->key_path);
    hth_free(o->own_dir);
}

/* The lines that close a run, at the end of its file. */
static enum hth_err add_lines(const struct owner *o, const struct hth_runfile *run)
{
    FILE *f = fopen(o->run_path, "ae");
    bool ends = run->text != NULL && run->text[strlen(run->text) - 1] == '\n';
    bool good =
        f != NULL && fprintf(f, "%sadmission:\n  owner: %s\n", ends ? "" : "\n", o->hex) > 0;
    if (f != NULL)
        good &= fclose(f) == 0;
    if (good)
        hth_say("%s: run '%s' has an owner now, %.16s..., and lets in only those who are invited",
                o->run_path, run->run, o->hex);
    else
        hth_cli_say_error("%s can't be written; copy it to a folder of yours", o->run_path);
    return good ? HTH_OK : HTH_E_IO;
}

enum hth_err hth_owner_close(const char *run_path)
{
    struct owner o = {.run_path = run_path};
    struct hth_invite invite;
    struct hth_closed_run closed;
    struct hth_runfile *run;
    bool made = false;
    HTH_TRY(hth_config_load(run_path, &run));
    set_dir(&o);
    enum hth_err err = load_key(&o, true, &made);
    if (err == HTH_OK && made)
        hth_say("the owner's key: %s; keep a copy: nobody can make it again", o.key_path);
    if (err == HTH_OK)
        err =
            run->admission.owner == NULL ? add_lines(&o, run) : take_run(&o, run, &invite, &closed);
    clear(&o);
    hth_runfile_free(run);
    return err;
}

enum hth_err hth_owner_sign(const char *run_path, const struct hth_runfile *run, const char *name,
                            int64_t days, struct hth_invite *out)
{
    struct owner o = {
        .run_path = run_path, .name = name, .days = days, .roles = HTH_MAY_ALL & ~HTH_MAY_INVITE};
    struct hth_closed_run closed;
    struct hth_cert cert = {.serial = 0};
    memset(out, 0, sizeof(*out));
    set_dir(&o);
    enum hth_err err = load_key(&o, false, NULL);
    if (err == HTH_OK)
        err = take_run(&o, run, out, &closed);
    if (err == HTH_OK)
        err = sign(&o, &closed, out, &cert);
    if (err == HTH_OK)
        err = note(&o, &cert, out->run);
    clear(&o);
    return err;
}

/* ---- verb ---------------------------------------------------------------------------------- */

static enum hth_err with_run(struct owner *o)
{
    struct hth_runfile *run;
    HTH_TRY(load_key(o, false, NULL));
    enum hth_err err = hth_config_load(o->run_path, &run);
    if (err != HTH_OK)
        return err == HTH_E_NO_FILE ? HTH_E_CONFIG : err;
    err = strcmp(o->word, "invite") == 0 ? invite_for(o, run) : revoke_one(o, run);
    hth_runfile_free(run);
    return err;
}

int hth_verb_owner(int argc, char **argv)
{
    struct owner o = {.days = 30, .roles = HTH_MAY_ALL & ~HTH_MAY_INVITE};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
        return HTH_EXIT_USAGE;
    set_dir(&o);
    enum hth_err err = strcmp(o.word, "init") == 0   ? init(&o)
                       : strcmp(o.word, "list") == 0 ? list(&o)
                                                     : with_run(&o);
    clear(&o);
    return err == HTH_OK ? o.code : hth_exit_of(err);
}
