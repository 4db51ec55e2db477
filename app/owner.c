/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.c: hearth owner: the key that closes a run, what it signs, and its care. Its words are in
 * owner_sign.c, owner_auto.c, owner_list.c, owner_revoke.c and owner_backup.c.
 */
#include "app/owner_int.h"

#include "core/guess.h"
#include "core/mem.h"
#include "core/name.h"

#include <string.h>

#define DAYS_MAX 3650

/* ---- words --------------------------------------------------------------------------------- */

static const struct word {
    const char *name;
    enum hth_err (*run)(struct hth_owner *o);
    const char *what;                       /* its argument; NULL: none */
    bool needs_what, needs_name, needs_run; /* the run file, or --as */
    const char *example;
} words[] = {
    {"init", hth_owner_init, NULL, false, false, false, ""},
    {"invite", hth_owner_invite, NULL, false, true, true, "--run runs/fashion.yaml --name ana"},
    {"deputy", hth_owner_invite, "KEY", false, true, true, "--run runs/fashion.yaml --name dora"},
    {"successor", hth_owner_invite, "KEY", true, true, true,
     "KEY --run runs/fashion.yaml --name sara"},
    {"promote", hth_owner_promote, "KEY", true, true, true,
     "KEY --run runs/fashion.yaml --name ben"},
    {"list", hth_owner_list, NULL, false, false, false, ""},
    {"revoke", hth_owner_revoke, "SERIAL", true, false, true,
     "1795814913123456 --run runs/fashion.yaml"},
    {"alive", hth_owner_revoke, NULL, false, false, true, "--run runs/fashion.yaml"},
    {"backup", hth_owner_backup, "FILE", true, false, false, "owner.backup"},
    {"restore", hth_owner_restore, "FILE", true, false, false, "owner.backup"},
};

static const struct word *find(const char *name)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(words); i++)
        if (strcmp(name, words[i].name) == 0)
            return &words[i];
    return NULL;
}

static void check_auto(const struct hth_owner *o, struct argp_state *state)
{
    if (!o->auto_promotes || strcmp(o->word, "promote") != 0 || o->probation || o->what != NULL ||
        o->name != NULL || o->beside == NULL || (o->run_path == NULL && !o->made_by))
        argp_error(
            state,
            "promote --auto takes --beside DIR, and --run FILE or --as TEXT, such as: hearth "
            "owner promote --auto --beside ~/.local/state/hearth/fashion/serve --as "
            "@dora.deputy");
}

static void check(struct hth_owner *o, struct argp_state *state)
{
    const struct word *w = o->word != NULL ? find(o->word) : NULL;
    if (w == NULL)
        argp_error(state, "expected a word, such as: hearth owner init");
    if (o->public && strcmp(o->word, "invite") != 0)
        argp_error(state, "--public is for: hearth owner invite");
    if (o->auto_promotes || o->beside != NULL) {
        check_auto(o, state);
        return;
    }
    if ((w->needs_what && o->what == NULL) || (w->needs_name && o->name == NULL) ||
        (w->needs_run && o->run_path == NULL && !o->made_by))
        argp_error(state, "%s needs%s%s%s%s%s, such as: hearth owner %s %s", w->name,
                   w->needs_what ? " " : "", w->needs_what ? w->what : "",
                   w->needs_what && w->needs_run ? " and" : "",
                   w->needs_run ? " --run FILE or --as TEXT" : "",
                   w->needs_name ? " and --name NAME" : "", w->name, w->example);
}

/* ---- flags --------------------------------------------------------------------------------- */

enum {
    KEY_NAME = 0x3700,
    KEY_ROLES,
    KEY_DAYS,
    KEY_PROBATION,
    KEY_PUBLIC,
    KEY_ADDRESS,
    KEY_AUTO,
    KEY_BESIDE,
    KEY_AS,
    KEY_SILENCE,
    KEY_PASSPHRASE
};

static const struct argp_option options[] = {
    {"dir", 'd', "DIR", 0,
     "Folder of the owner's key and of the list of invites (default: owner below "
     "~/.local/state/hearth)",
     0},
    {"run", 'r', "FILE", 0, "The run file, with the owner's public key", 0},
    {"as", KEY_AS, "TEXT|@FILE|-", 0,
     "Sign as a deputy or successor: the text that the owner made; no run file is needed", 0},
    {"join", 'j', "HOST:PORT", 0,
     "revoke, alive: a peer of the run (default: this user's processes, and remembered peers)", 0},
    {"passphrase", KEY_PASSPHRASE, "@FILE|-", 0,
     "backup, restore: the passphrase (default: asked for on the terminal)", 0},
    {"auto", KEY_AUTO, NULL, 0,
     "promote: until it is ended, each peer on probation that has worked for 4 hours without a "
     "refusal, as the process of --beside saw it",
     0},
    {"beside", KEY_BESIDE, "DIR", 0,
     "promote --auto: the state folder of a host or trainer on this machine", 0},
    {NULL, 0, NULL, 0, "Of an invite:", 1},
    {"name", KEY_NAME, "NAME", 0, "Name of the person or machine that gets it (required)", 1},
    {"roles", KEY_ROLES, "LIST", 0,
     "Rights, of train, serve, reduce and watch (default: all that the signer has; with "
     "--public not reduce)",
     1},
    {"days", KEY_DAYS, "N", 0, "Days until it ends (default 30; of a successor 3650)", 1},
    {"probation", KEY_PROBATION, NULL, 0, "Mark its peers as on probation (class 1)", 1},
    {"public", KEY_PUBLIC, NULL, 0, "invite: for everybody, on probation; the text is no secret",
     1},
    {"address", KEY_ADDRESS, "HOST:PORT", 0,
     "A peer to join through, which is written into the invite (up to 4)", 1},
    {"silence", KEY_SILENCE, "DAYS", 0,
     "successor: days without a word of the owner after which it counts; 0: at once (default 30)",
     1},
    {0},
};

static void take_word(struct hth_owner *o, const char *arg, struct argp_state *state)
{
    char hint[160];
    if (find(arg) == NULL)
        argp_error(state, "no word '%s'%s", arg,
                   hth_guess_text(arg, &words[0].name, sizeof(words[0]), HTH_ARRAY_LEN(words), hint,
                                  sizeof(hint)));
    o->word = arg;
}

static void take_name(struct hth_owner *o, const char *arg, struct argp_state *state)
{
    if (strlen(arg) > HTH_CERT_NAME_MAX || hth_name_check(arg, strlen(arg)) != HTH_OK)
        argp_error(state,
                   "--name '%s': a name is 1 to %d bytes of UTF-8, without blanks, control or "
                   "direction marks and . / \\ [ ], such as ana",
                   arg, HTH_CERT_NAME_MAX);
    o->name = arg;
}

static error_t parse_invite(int key, char *arg, struct argp_state *state)
{
    struct hth_owner *o = state->input;
    switch (key) {
    case KEY_NAME:
        take_name(o, arg, state);
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
    case KEY_SILENCE:
        o->silence_days = (int64_t)hth_cli_number(state, "--silence", arg, 0, DAYS_MAX);
        return 0;
    case KEY_PROBATION:
        o->probation = true;
        return 0;
    case KEY_PUBLIC:
        o->public = true;
        return 0;
    case KEY_ADDRESS:
        hth_cli_check_host(state, "--address", arg, 1, "example.org:4700");
        if (o->address_count == HTH_INVITE_ADDRS_MAX)
            argp_error(state, "--address is given more than %d times", HTH_INVITE_ADDRS_MAX);
        o->address[o->address_count++] = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void take_as(struct hth_owner *o, const char *arg, struct argp_state *state)
{
    const char *why;
    o->made_by = hth_cli_invite(arg, &o->as, &why) == HTH_OK;
    if (!o->made_by)
        argp_error(state, "--as: %s; expected hearth1.TEXT, @FILE or -, such as @dora.deputy", why);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_owner *o = state->input;
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
    case KEY_AUTO:
        o->auto_promotes = true;
        return 0;
    case KEY_BESIDE:
        hth_cli_check_folder(state, "--beside", arg, "~/.local/state/hearth/fashion/serve");
        o->beside = arg;
        return 0;
    case KEY_AS:
        take_as(o, arg, state);
        return 0;
    case KEY_PASSPHRASE:
        if (arg[0] != '@' && strcmp(arg, "-") != 0)
            argp_error(state, "--passphrase: expected @FILE or -: others can read a command line");
        o->passphrase = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            take_word(o, arg, state);
        else if (state->arg_num == 1 && find(o->word)->what != NULL)
            o->what = arg;
        else
            return ARGP_ERR_UNKNOWN;
        return 0;
    case ARGP_KEY_END:
        check(o, state);
        return 0;
    default:
        return parse_invite(key, arg, state);
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "init | invite | deputy [KEY] | successor KEY | promote KEY | promote --auto | "
                "list | revoke SERIAL | "
                "alive | backup FILE | restore FILE",
    .doc =
        "Close a run to strangers. init makes the owner's key and prints the lines for the run "
        "file. invite prints an invite to that run; deputy prints a text whose holder may invite "
        "as well, with --as; promote prints an invite for the public key of one peer, such as "
        "one on probation, and with --auto does so by itself. successor prints a text by which "
        "another key takes over when the "
        "owner is silent; alive tells the swarm that the owner is here. list shows all that was "
        "signed. revoke ends an invite, by its serial, or one peer, by its id, in the whole "
        "swarm. backup writes the key, encrypted with a passphrase; restore reads it.",
};

/* ---- verb ---------------------------------------------------------------------------------- */

int hth_verb_owner(int argc, char **argv)
{
    struct hth_owner o = {.silence_days = 30};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
        return HTH_EXIT_USAGE;
    hth_owner_open(&o);
    enum hth_err err = find(o.word)->run(&o);
    hth_owner_close(&o);
    return err == HTH_OK ? o.code : hth_exit_of(err);
}
