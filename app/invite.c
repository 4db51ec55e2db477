/* SPDX-License-Identifier: Apache-2.0 */
/*
 * invite.c: hearth invite show, refresh: prints what an invite is for, and whether it holds now; or
 * prints it anew with the addresses of peers that answer now. No owner is needed for that: the
 * addresses lie outside what was signed.
 */
#include "app/onlooker.h"
#include "core/guess.h"
#include "monitor/gather.h"
#include "net/crypto.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_US (2 * HTH_US_PER_S)

struct invite_verb {
    bool refresh;
    const char *text;
    struct hth_invite invite;
    struct hth_onlooker at; /* whose net has the invite to ask with */
    struct hth_gather *gather;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_INVITE = 0x4100 };

static const struct argp_option options[] = {
    {"join", 'j', "HOST:PORT", 0,
     "refresh: a peer of the run (default: those of the invite, and of this machine)", 0},
    {"invite", KEY_INVITE, "TEXT|@FILE|-", 0,
     "refresh: ask with this invite of yours (default: with the one that is refreshed)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const words[] = {"show", "refresh"};
    struct invite_verb *v = state->input;
    char hint[80];
    switch (key) {
    case 'j':
        hth_cli_check_host(state, "--join", arg, 1, "example.org:4700");
        if (v->at.net.join_count == HTH_CLI_JOIN_MAX)
            argp_error(state, "--join is given more than %d times", HTH_CLI_JOIN_MAX);
        v->at.net.join[v->at.net.join_count++] = arg;
        return 0;
    case KEY_INVITE:
        hth_cli_take_invite(state, arg, &v->at.net);
        return 0;
    case ARGP_KEY_ARG:
        v->refresh = strcmp(arg, words[1]) == 0 || v->refresh;
        if (state->arg_num == 0 && strcmp(arg, words[0]) != 0 && !v->refresh)
            argp_error(state, "no word '%s'%s", arg,
                       hth_guess_text(arg, words, sizeof(words[0]), HTH_ARRAY_LEN(words), hint,
                                      sizeof(hint)));
        if (state->arg_num == 1)
            v->text = arg;
        return state->arg_num > 1 ? ARGP_ERR_UNKNOWN : 0;
    case ARGP_KEY_END:
        if (v->text == NULL)
            argp_error(state, "which invite? For example: hearth invite show @ana.invite");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "show|refresh TEXT|@FILE|-",
    .doc =
        "show prints what an invite is for, without its secret, and whether it holds now. refresh "
        "prints the invite itself anew, with up to 4 addresses of peers that answer now.",
};

/* ---- refresh ------------------------------------------------------------------------------- */

/* A peer that may stand in the invite. */
struct candidate {
    struct hth_addr addr;
    int64_t since_us; /* its start; the oldest have shown that they stay */
};

static int older(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    int by_age = x->since_us < y->since_us ? -1 : x->since_us > y->since_us;
    return by_age != 0 ? by_age : memcmp(&x->addr, &y->addr, sizeof(x->addr));
}

static bool find_addr(const struct invite_verb *v, const struct hth_gather_peer *p,
                      struct hth_addr *out)
{
    struct hth_census_node node;
    bool beacon = hth_gather_beacon(v->gather, &p->id, &node) && node.info.addr_count > 0;
    if (p->state != HTH_ANSWERED || (p->about != NULL && p->about->reach == HTH_REACH_NO))
        return false;
    *out = beacon ? node.info.addr[0] : p->addr;
    return out->family != 0 && (beacon || !p->own); /* its own is of this machine alone */
}

static int print_anew(struct invite_verb *v)
{
    static struct candidate all[HTH_GATHER_PEERS_MAX];
    char text[HTH_INVITE_TEXT_MAX], addr[HTH_ADDR_TEXT_MAX];
    size_t count = 0;
    for (size_t i = 0; i < v->gather->peer_count; i++) {
        const struct hth_gather_peer *p = v->gather->peer[i];
        if (find_addr(v, p, &all[count].addr))
            all[count++].since_us = p->about != NULL ? p->about->started_us : INT64_MAX;
    }
    if (count == 0) {
        hth_cli_say_error("no peer of run '%s' that others can dial answers now", v->invite.run);
        return HTH_EXIT_NETWORK;
    }
    qsort(all, count, sizeof(all[0]), older);
    v->invite.addr_count = HTH_MIN(count, (size_t)HTH_INVITE_ADDRS_MAX);
    for (size_t i = 0; i < v->invite.addr_count; i++) {
        v->invite.addr[i] = all[i].addr;
        hth_say_note("joins through %s", hth_addr_text(&all[i].addr, addr));
    }
    enum hth_err err = hth_invite_write(&v->invite, text);
    if (err == HTH_OK)
        hth_say("%s", text);
    return hth_exit_of(err);
}

static void on_gathered(void *arg)
{
    struct invite_verb *v = arg;
    int code = hth_exit_of(v->gather->err);
    if (v->gather->err != HTH_OK)
        hth_cli_say_error("refresh: %s", hth_err_text(v->gather->err));
    hth_peer_stop(&v->at.peer, code == HTH_EXIT_OK ? print_anew(v) : code);
}

static int ask(struct invite_verb *v)
{
    const struct hth_gather_opts opts = {.census = v->at.peer.census,
                                         .network = v->at.network,
                                         .own = v->at.own,
                                         .own_count = v->at.own_count,
                                         .admission = hth_admit_rpc(&v->at.peer.admit),
                                         .wait_us = WAIT_US,
                                         .done = on_gathered,
                                         .arg = v};
    v->at.peer.arg = v;
    enum hth_err err = hth_gather_new(v->at.peer.env, v->at.peer.dht, &opts, &v->gather);
    int code = err == HTH_OK ? hth_peer_run(&v->at.peer) : hth_exit_of(err);
    if (err != HTH_OK)
        hth_cli_say_error("refresh: %s", hth_err_text(err));
    hth_peer_jobs_end(&v->at.peer);
    hth_gather_free(v->gather);
    return code;
}

static int refresh(struct invite_verb *v)
{
    const struct hth_peer_opts opts = {
        .verb = "invite", .quiet = true, .ephemeral = true, .patience_us = WAIT_US};
    struct hth_cli_net *net = &v->at.net;
    if (!net->invited) {
        net->invite = v->invite;
        net->invited = true;
    }
    if (memcmp(net->invite.owner.b, v->invite.owner.b, sizeof(v->invite.owner.b)) != 0 ||
        memcmp(net->invite.run_file.b, v->invite.run_file.b, sizeof(v->invite.run_file.b)) != 0) {
        hth_cli_say_error("--invite: %s", hth_err_text(HTH_E_PASS_OTHER_RUN));
        return HTH_EXIT_ADMISSION;
    }
    int code = hth_onlooker_open(&v->at, &opts);
    if (code == HTH_EXIT_OK)
        code = ask(v);
    hth_onlooker_close(&v->at);
    return code;
}

/* ---- verb ---------------------------------------------------------------------------------- */

int hth_verb_invite(int argc, char **argv)
{
    struct invite_verb v = {.text = NULL};
    const char *why;
    if (argp_parse(&argp, argc, argv, 0, NULL, &v) != 0)
        return HTH_EXIT_USAGE;
    enum hth_err err = hth_cli_invite(v.text, &v.invite, &why);
    if (err != HTH_OK) {
        hth_cli_say_error("%s%s%s", v.text[0] == '@' ? v.text + 1 : "",
                          v.text[0] == '@' ? ": " : "", why);
        return HTH_EXIT_USAGE;
    }
    if (v.refresh)
        return refresh(&v);
    hth_admit_print(&v.invite);
    err = hth_invite_check(hth_crypto_openssl(), &v.invite, (int64_t)time(NULL) * HTH_US_PER_S);
    hth_say("%s", err == HTH_OK ? "It holds." : hth_err_text(err));
    return hth_exit_of(err);
}
