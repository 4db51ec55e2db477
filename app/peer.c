/* SPDX-License-Identifier: Apache-2.0 */
/* peer.c: opens key, event loop, rpc and DHT node, then joins the swarm. */
#include "app/peer.h"

#include "admission/witness.h"
#include "app/back.h"
#include "app/local.h"
#include "app/memory.h"
#include "app/own.h"
#include "app/page.h"
#include "app/peer_addr.h"
#include "app/peer_join.h"
#include "cli/run_fetch.h"
#include "core/mem.h"
#include "dht/members.h"
#include "dht/opendht.h"
#include "dht/uid.h"
#include "net/crypto.h"
#include "net/identity.h"
#include "net/lock.h"
#include "net/net.h"
#include "rpc/closed.h"
#include "rpc/lists.h"
#include "rpc/raise.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The port of a peer without --listen: the first one that is free, of so many. */
#define PORT_FIRST 4700
#define PORTS      100
/* State folders of one run and role on one machine. */
#define FOLDERS 100
/* Files that a process of a swarm has open without any connection: 20, and as many again. */
#define FILES_MIN 40
/* Period in which the own invite's time is looked at. */
#define GRANT_US HTH_US_PER_S

/* ---- runs without an owner ------------------------------------------------------------------ */

/* Every key has a pass there, so whoever reaches a host or a trainer may break the run. */
static bool must_stay(const struct hth_peer_opts *opts, const struct hth_peer *peer)
{
    const uint8_t takes_part = HTH_MAY_TRAIN | HTH_MAY_SERVE | HTH_MAY_REDUCE;
    return (opts->roles & takes_part) != 0 && !opts->ephemeral && peer->admit.gate == NULL &&
           !opts->net->open_to_anyone;
}

static enum hth_err refuse_to_leave(const struct hth_peer *peer, const char *flag, const char *text)
{
    hth_cli_say_error("%s '%s' leads beyond this machine, and run '%s' has no owner: close it "
                      "('hearth owner init' makes its owner), or let everybody take part with "
                      "--open-to-anyone",
                      flag, text, peer->name);
    return HTH_E_USAGE;
}

static enum hth_err check_stay(const struct hth_peer_opts *opts, const struct hth_peer *peer)
{
    size_t count;
    const struct hth_addr *join = hth_peer_join_addrs(peer->join, &count);
    if (!peer->stays)
        return HTH_OK;
    if (opts->net->announce != NULL)
        return refuse_to_leave(peer, "--announce", opts->net->announce);
    for (size_t i = 0; i < count; i++)
        if (!hth_peer_addr_is_own(&join[i]))
            return refuse_to_leave(peer, "--join", opts->net->join[0]);
    return HTH_OK;
}

static void say_open(const struct hth_peer *peer)
{
    hth_cli_say_error("run '%s' IS OPEN TO ANYONE: whoever reaches a peer of it takes part, may "
                      "spoil the model, and can't be put out; a run with an owner lets in only "
                      "those who are invited",
                      peer->name);
}

/* ---- addresses ----------------------------------------------------------------------------- */

/* The address that others dial: --announce, else one of this machine. */
static enum hth_err choose_announce(const struct hth_cli_net *net, struct hth_peer *peer)
{
    static const struct hth_addr none;
    size_t count;
    if (net->announce == NULL) {
        const struct hth_addr *join = hth_peer_join_addrs(peer->join, &count);
        hth_peer_addr_announce(&peer->listen, count > 0 ? join : &none, &peer->announce);
        return HTH_OK;
    }
    enum hth_err err = hth_net_resolve(net->announce, &peer->announce, 1, &count);
    if (err != HTH_OK)
        hth_cli_say_unresolved("--announce", net->announce, err);
    return err;
}

/* Without --listen: every address, or loopback of the family that others here have, at the first
 * free port from PORT_FIRST on. */
static enum hth_err resolve_listen(const struct hth_peer_opts *opts, const struct hth_peer *peer,
                                   struct hth_addr *out)
{
    static const struct hth_addr here = {.family = 4, .ip = {127, 0, 0, 1}, .port = PORT_FIRST};
    static const struct hth_addr here6 = {.family = 6, .ip = {[15] = 1}, .port = PORT_FIRST};
    size_t count;
    if (opts->net->listen == NULL && peer->stays) {
        const struct hth_addr *join = hth_peer_join_addrs(peer->join, &count);
        *out = count > 0 && join[0].family == 6 ? here6 : here;
        return HTH_OK;
    }
    if (opts->net->listen == NULL) {
        hth_peer_addr_any(opts->ephemeral ? 0 : PORT_FIRST, out);
        return HTH_OK;
    }
    enum hth_err err = hth_net_resolve(opts->net->listen, out, 1, &count);
    if (err != HTH_OK)
        hth_cli_say_unresolved("--listen", opts->net->listen, err);
    else if (peer->stays && hth_addr_scope(out) != HTH_SCOPE_MACHINE)
        return refuse_to_leave(peer, "--listen", opts->net->listen);
    return err;
}

/* ---- signals ------------------------------------------------------------------------------- */

static void on_signal(void *arg)
{
    struct hth_peer *peer = arg;
    if (peer->draining || peer->on_drain == NULL) {
        hth_peer_stop(peer, HTH_EXIT_INTERRUPTED);
        return;
    }
    peer->draining = true;
    peer->on_drain(peer->arg);
}

/* A terminal that closes takes its programs along, and its shell may repeat the signal: a repeat
 * never ends the drain. */
static void on_hangup(void *arg)
{
    struct hth_peer *peer = arg;
    if (!peer->draining)
        on_signal(peer);
}

/* ---- opening ------------------------------------------------------------------------------- */

/* Two processes in one folder would have one key, so others would take them for one peer, and they
 * would overwrite each other's checkpoints. */
static enum hth_err lock_dir(const struct hth_peer_opts *opts, struct hth_peer *peer,
                             char holder[HTH_LOCK_HOLDER_MAX])
{
    char *path = hth_asprintf("%s/lock", peer->dir);
    char *who = hth_asprintf("hearth %s", opts->verb);
    enum hth_err err = hth_lock_take(path, who, &peer->lock, holder);
    hth_free(who);
    hth_free(path);
    return err;
}

/* Without --dir each run and role has a folder, such as fashion/serve, and each further process of
 * them one more (fashion/serve-2). The first one that no process holds is taken: so a process that
 * starts again finds its key and its experts. */
static enum hth_err take_default_dir(const struct hth_peer_opts *opts, struct hth_peer *peer,
                                     char holder[HTH_LOCK_HOLDER_MAX])
{
    bool named = peer->name[0] != '\0';
    char *base = hth_cli_default_dir();
    enum hth_err err = HTH_E_BUSY;
    for (int i = 1; i <= FOLDERS && err == HTH_E_BUSY; i++) {
        hth_free(peer->dir);
        char *number = i > 1 ? hth_asprintf("-%d", i) : hth_strdup("");
        peer->dir =
            hth_asprintf("%s/%s%s%s%s", base, peer->name, named ? "/" : "", opts->verb, number);
        hth_free(number);
        err = lock_dir(opts, peer, holder);
    }
    char *old_key = hth_asprintf("%s/key", base);
    if (err == HTH_OK && access(old_key, F_OK) == 0)
        hth_cli_say_error("%s holds the state of an earlier version: --dir %s goes on with it",
                          base, base);
    hth_free(old_key);
    hth_free(base);
    return err;
}

static int take_dir(const struct hth_peer_opts *opts, struct hth_peer *peer)
{
    char holder[HTH_LOCK_HOLDER_MAX] = "";
    enum hth_err err;
    if (opts->net->dir != NULL || opts->ephemeral)
        peer->dir = opts->net->dir != NULL ? hth_strdup(opts->net->dir) : hth_cli_default_dir();
    if (opts->ephemeral)
        return HTH_EXIT_OK;
    err = peer->dir != NULL ? lock_dir(opts, peer, holder) : take_default_dir(opts, peer, holder);
    if (err == HTH_E_BUSY)
        hth_cli_say_error("the state folder %s is in use by %s; end it, or give another --dir",
                          peer->dir, holder[0] != '\0' ? holder : "another process");
    else if (err == HTH_E_NO_FILE)
        hth_cli_say_error("can't make the state folder %s: a part of that path is not a folder",
                          peer->dir);
    else if (err != HTH_OK)
        hth_cli_say_error("%s/lock: %s", peer->dir, hth_err_text(err));
    return hth_exit_of(err);
}

static int open_env(const struct hth_peer_opts *opts, struct hth_peer *peer, bool *created)
{
    struct hth_net_opts net_opts = HTH_NET_OPTS_INIT;
    struct hth_secret secret;
    char why[HTH_IDENTITY_WHY_MAX];
    enum hth_err err;
    *created = true;
    if (!opts->ephemeral) {
        char *path = hth_asprintf("%s/key", peer->dir);
        err = hth_identity_load(path, &secret, created, why);
        hth_free(path);
        if (err != HTH_OK) {
            hth_cli_say_error("%s", why);
            return err == HTH_E_PERMISSION ? HTH_EXIT_CONFIG : hth_exit_of(err);
        }
        net_opts.secret = &secret;
    }
    net_opts.compute_threads = opts->net->threads;
    net_opts.offline = opts->offline;
    peer->env = opts->env;
    peer->lent = opts->env != NULL;
    err = peer->lent ? HTH_OK : hth_net_new(&net_opts, &peer->env);
    memset(&secret, 0, sizeof(secret));
    if (err != HTH_OK) {
        hth_cli_say_error("can't start the event loop: %s", hth_err_text(err));
        return hth_exit_of(err);
    }
    hth_peer_id_short(&peer->env->self, peer->env->log.node);
    hth_say_node(peer->env->log.node);
    if (opts->quiet)
        memset(peer->env->log.level, HTH_ERROR, sizeof(peer->env->log.level));
    err = hth_cli_log_apply(opts->log, &peer->env->log);
    if (err == HTH_OK)
        err = hth_net_on_signal(peer->env, SIGINT, on_signal, peer);
    if (err == HTH_OK)
        err = hth_net_on_signal(peer->env, SIGTERM, on_signal, peer);
    if (err == HTH_OK && signal(SIGHUP, SIG_IGN) != SIG_IGN) /* else nohup started it */
        err = hth_net_on_signal(peer->env, SIGHUP, on_hangup, peer);
    return hth_exit_of(err);
}

/* Thousands of connections, each within its own limits, could fill the memory: together they get a
 * quarter of it. */
static int64_t bodies_bytes(const struct hth_cli_net *net)
{
    int64_t bytes = hth_memory_bytes();
    if (net->memory_bytes > 0)
        bytes = bytes > 0 ? HTH_MIN(bytes, net->memory_bytes) : net->memory_bytes;
    return hth_cli_bodies_bytes(bytes);
}

/* Says that a peer of a closed run has turned us away. Its word ends no process that is to stay. */
static void refused(struct hth_peer *peer, const struct hth_peer_id *id, enum hth_err err)
{
    char text[HTH_PEER_SHORT_LEN];
    if (err != peer->refused)
        hth_cli_say_error("peer %s turns this one away: %s", hth_peer_id_short(id, text),
                          hth_err_text(err));
    peer->refused = err;
    if (peer->once && !peer->draining)
        hth_peer_stop(peer, HTH_EXIT_ADMISSION);
}

static void peer_lost(void *arg, const struct hth_peer_id *id, enum hth_err err)
{
    struct hth_peer *peer = arg;
    /* A member learns of its own revocation by the owner's list; here it may be the other's. */
    bool by_list = err == HTH_E_PASS_REVOKED && peer->admit.gate != NULL;
    if (hth_exit_of(err) == HTH_EXIT_ADMISSION && !by_list)
        refused(peer, id, err);
    if (peer->on_peer_lost != NULL)
        peer->on_peer_lost(peer->on_peer_lost_arg, id, err);
}

static void name_peers(const struct hth_peer *peer, struct hth_about *out)
{
    struct hth_census_node node;
    int64_t wall_us = hth_wall_us(peer->env);
    for (uint32_t i = 0; peer->census != NULL && out->peer_count < HTH_ABOUT_PEERS_MAX &&
                         hth_census_at(peer->census, i, &node);
         i++) {
        struct hth_about_peer *p = &out->peer[out->peer_count];
        if (strcmp(node.network, peer->network) != 0)
            continue;
        p->id = node.id;
        p->role = (uint8_t)node.role;
        if (node.info.addr_count > 0)
            p->addr = node.info.addr[0];
        p->age_s = (uint32_t)(HTH_MAX(wall_us - node.issued_us, INT64_C(0)) / HTH_US_PER_S);
        out->peer_count++;
    }
}

void hth_peer_about(const struct hth_peer *peer, struct hth_about *about)
{
    struct hth_rpc_stats rpc;
    about->started_us = peer->started_us;
    about->reach = peer->reachable;
    snprintf(about->version, sizeof(about->version), "%s", HTH_VERSION);
    name_peers(peer, about);
    hth_rpc_stats(peer->rpc, &rpc);
    for (size_t i = 0; i < HTH_ARRAY_LEN(rpc.turned_away); i++)
        hth_about_refuse(about, hth_err_name((enum hth_err)(HTH_E_NOT_ADMITTED + i)),
                         rpc.turned_away[i]);
    if (peer->tell != NULL)
        peer->tell(peer->arg, about);
}

/* Answers a peer that asks how this one is (about.h). */
static void on_about(void *arg, struct hth_rpc_request *req)
{
    struct hth_about *about = hth_new(struct hth_about);
    uint8_t *bytes = hth_new_array(uint8_t, HTH_ABOUT_BYTES_MAX);
    hth_peer_about(arg, about);
    const struct hth_rpc_body body = {.payload = bytes,
                                      .payload_len = hth_about_write(about, bytes)};
    hth_rpc_reply(req, &body);
    hth_free(bytes);
    hth_free(about);
}

static enum hth_err open_rpc(const struct hth_peer_opts *opts, struct hth_peer *peer,
                             const struct hth_addr *listen)
{
    struct hth_rpc_opts rpc_opts = HTH_RPC_OPTS_INIT;
    rpc_opts.network = peer->network;
    rpc_opts.listen = opts->rpc_listens ? listen : NULL;
    rpc_opts.admission = hth_admit_rpc(&peer->admit);
    hth_budget_init(&peer->bodies, bodies_bytes(opts->net), NULL);
    rpc_opts.budget = &peer->bodies;
    rpc_opts.on_peer_lost = peer_lost;
    rpc_opts.arg = peer;
    HTH_TRY(hth_rpc_new(peer->env, &rpc_opts, &peer->rpc));
    hth_rpc_serve(peer->rpc, HTH_METHOD_ABOUT, on_about, peer);
    if (peer->run_text != NULL)
        hth_rpc_serve(peer->rpc, HTH_METHOD_RUN, hth_run_give, peer->run_text);
    peer->listen = *listen;
    if (opts->rpc_listens)
        hth_rpc_addr(peer->rpc, &peer->listen);
    return HTH_OK;
}

static enum hth_err open_dht(struct hth_peer *peer)
{
    struct hth_opendht_opts dht_opts = HTH_OPENDHT_OPTS_INIT;
    dht_opts.bind = peer->listen;
    if (peer->listen.family == 6 && hth_addr_scope(&peer->listen) == HTH_SCOPE_NONE)
        dht_opts.bind.family = 0; /* both families */
    dht_opts.bootstrap = hth_peer_join_addrs(peer->join, &dht_opts.bootstrap_count);
    HTH_TRY(hth_opendht_new(peer->env, &dht_opts, &peer->opendht));
    peer->dht = hth_opendht_dht(peer->opendht);
    return HTH_OK;
}

/* TCP is taken first and by one process alone, so the look at UDP can't be overtaken. */
static enum hth_err open_at(const struct hth_peer_opts *opts, struct hth_peer *peer,
                            const struct hth_addr *listen)
{
    HTH_TRY(open_rpc(opts, peer, listen));
    enum hth_err err = hth_peer_addr_udp_free(&peer->listen) ? open_dht(peer) : HTH_E_ADDR_IN_USE;
    if (err != HTH_OK) {
        hth_rpc_free(peer->rpc);
        peer->rpc = NULL;
    }
    return err;
}

/* Opens rpc and DHT on one port. */
static int open_port(const struct hth_peer_opts *opts, struct hth_peer *peer)
{
    char text[HTH_ADDR_TEXT_MAX];
    struct hth_addr listen;
    bool fixed = opts->net->listen != NULL || opts->ephemeral;
    if (resolve_listen(opts, peer, &listen) != HTH_OK)
        return HTH_EXIT_USAGE;
    enum hth_err err = HTH_E_ADDR_IN_USE;
    for (int i = 0; i < (fixed ? 1 : PORTS) && err == HTH_E_ADDR_IN_USE; i++) {
        listen.port += i > 0;
        if (fixed || !hth_peer_join_names_port(peer->join, listen.port))
            err = open_at(opts, peer, &listen);
    }
    if (err != HTH_OK)
        hth_cli_say_error("can't listen on %s, TCP and UDP: %s%s", hth_addr_text(&listen, text),
                          hth_err_text(err),
                          err == HTH_E_ADDR_IN_USE   ? "; give another port with --listen"
                          : err == HTH_E_UNREACHABLE ? ": --listen needs one of this machine's"
                                                     : "");
    return hth_exit_of(err);
}

static const char *listen_text(const struct hth_addr *listen, char out[HTH_ADDR_TEXT_MAX])
{
    if (listen->family == 6 && hth_addr_scope(listen) == HTH_SCOPE_NONE)
        snprintf(out, HTH_ADDR_TEXT_MAX, "port %u of every address", (unsigned)listen->port);
    else
        hth_addr_text(listen, out);
    return out;
}

static void print_banner(const struct hth_peer_opts *opts, const struct hth_peer *peer,
                         bool created)
{
    char id[HTH_PEER_SHORT_LEN], listen[HTH_ADDR_TEXT_MAX], announce[HTH_ADDR_TEXT_MAX];
    if (opts->quiet)
        return;
    if (peer->name[0] != '\0')
        hth_say("hearth %s %s, run '%s'", HTH_VERSION, opts->verb, peer->name);
    else
        hth_say("hearth %s %s", HTH_VERSION, opts->verb);
    hth_say("  I am       %s (%s key in %s)", hth_peer_id_short(&peer->env->self, id),
            created ? "new" : "known", peer->dir);
    if (opts->dials_only) {
        hth_say("  client     sends from UDP %s; dials only, accepts no connections",
                listen_text(&peer->listen, listen));
    } else if (!opts->offline) {
        hth_say("  listening  %s, TCP and UDP", listen_text(&peer->listen, listen));
        hth_say("  others join with  --join %s%s", hth_addr_text(&peer->announce, announce),
                hth_peer_addr_remark(&peer->announce));
    }
}

/* ---- the network --------------------------------------------------------------------------- */

static void on_offline(void *arg)
{
    struct hth_peer *peer = arg;
    peer->joined = true;
    if (peer->on_joined != NULL)
        peer->on_joined(peer->arg);
}

/* Drains when our own invite holds no more. */
static void oust(struct hth_peer *peer, enum hth_err err)
{
    if (err == HTH_OK || peer->ousted != HTH_OK)
        return;
    hth_cli_say_error("--invite: %s", hth_err_text(err));
    peer->ousted = err;
    if (!peer->draining)
        on_signal(peer);
}

static void judge_own(struct hth_peer *peer)
{
    bool changed;
    enum hth_err err = hth_admit_holds(peer->env, &peer->admit, &changed);
    if (changed)
        hth_say("this peer is a member no more; it goes on with its invite");
    if (changed || peer->was_raised) {
        hth_rpc_show_again(peer->rpc);
        hth_members_show_again(peer->members);
    }
    peer->was_raised = false;
    oust(peer, err);
}

/* A newer list is in the set. */
static void apply_lists(struct hth_peer *peer)
{
    hth_admit_revoked(peer->env, &peer->admit);
    hth_rpc_judge_again(peer->rpc);
    judge_own(peer);
}

static void on_grant_timer(void *arg)
{
    struct hth_peer *peer = arg;
    judge_own(peer);
    hth_timer_set(peer->env, peer->grant_timer, GRANT_US);
}

/* Shown a moment later: the request that brought it is answered first. */
static enum hth_err on_raise(void *arg, const void *certs, size_t len)
{
    struct hth_peer *peer = arg;
    char date[32];
    HTH_TRY(hth_admit_raise(peer->env, &peer->admit, certs, len));
    peer->was_raised = true;
    hth_say("raised to a member as '%s', until %s", peer->admit.grant.name,
            hth_admit_date(peer->admit.grant.until_us, date));
    return HTH_OK;
}

static void on_revoked(void *arg)
{
    struct hth_peer *peer = arg;
    hth_lists_tell(peer->lists);
    apply_lists(peer);
}

static void on_lists_news(void *arg)
{
    struct hth_peer *peer = arg;
    hth_members_revoked(peer->members);
    apply_lists(peer);
}

static enum hth_err open_members(const struct hth_peer_opts *opts, struct hth_peer *peer)
{
    const struct hth_members_opts members = {.network = peer->network,
                                             .run = &peer->admit.run,
                                             .revoked = peer->admit.revoked,
                                             .own = hth_admit_rpc(&peer->admit),
                                             .publishes = !opts->ephemeral,
                                             .on_revoked = on_revoked,
                                             .arg = peer};
    if (members.own == NULL)
        return HTH_OK;
    HTH_TRY(hth_members_new(peer->env, peer->dht, &members, &peer->members));
    peer->lists = hth_lists_new(peer->env, peer->rpc, peer->admit.revoked, on_lists_news, peer);
    if (members.own->witness != NULL) {
        const struct hth_raise_opts raise = {
            .witness = members.own->witness, .dir = peer->dir, .take = on_raise, .arg = peer};
        peer->raise = hth_raise_new(peer->env, peer->rpc, &raise);
    }
    peer->grant_timer = hth_timer_new(peer->env, on_grant_timer, peer);
    hth_timer_set(peer->env, peer->grant_timer, GRANT_US);
    return HTH_OK;
}

static int open_network(const struct hth_peer_opts *opts, struct hth_peer *peer)
{
    enum hth_err err = hth_admit_open(peer->env, opts->net, opts->run, opts->roles,
                                      opts->ephemeral ? NULL : peer->dir, &peer->admit);
    if (err != HTH_OK)
        return hth_exit_of(err);
    if (peer->admit.gate != NULL && !opts->ephemeral)
        peer->admit.admission.witness = hth_witness_new();
    if (peer->admit.gate != NULL) {
        char network[HTH_NAME_LEN_MAX + 1];
        hth_free(peer->network);
        peer->network =
            hth_strdup(hth_invite_network(peer->env->crypto, &opts->net->invite, network));
    }
    peer->stays = must_stay(opts, peer);
    peer->once = opts->net->once;
    if (opts->run != NULL && opts->run->text != NULL)
        peer->run_text = hth_blob_copy(opts->run->text, strlen(opts->run->text));
    err = hth_peer_join_new(opts, peer, &peer->join);
    if (err == HTH_OK)
        err = check_stay(opts, peer);
    if (err != HTH_OK)
        return err == HTH_E_USAGE ? HTH_EXIT_USAGE : HTH_EXIT_NETWORK;
    int code = open_port(opts, peer);
    if (code == HTH_EXIT_OK)
        code = hth_exit_of(open_members(opts, peer));
    if (code == HTH_EXIT_OK)
        hth_peer_join_drop_self(peer->join, &peer->listen);
    if (code == HTH_EXIT_OK && !opts->dials_only && choose_announce(opts->net, peer) != HTH_OK)
        code = HTH_EXIT_USAGE;
    return code;
}

/* For `hearth status` on this machine. */
static void be_found(const struct hth_peer_opts *opts, struct hth_peer *peer)
{
    struct hth_addr addr = peer->listen;
    if (hth_addr_scope(&addr) == HTH_SCOPE_NONE)
        addr = (struct hth_addr){.family = 4, .ip = {127, 0, 0, 1}};
    addr.port = hth_opendht_port(peer->opendht);
    hth_local_note(peer->lock, &addr, &peer->env->self);
    peer->elsewhere = opts->net->dir != NULL;
    if (peer->elsewhere)
        hth_local_enter(peer->dir);
}

static enum hth_err open_status(const struct hth_peer_opts *opts, struct hth_peer *peer)
{
    if (opts->net->status_listen == NULL)
        return HTH_OK;
    enum hth_err err = hth_page_open(peer, opts->net->status_listen, &peer->page);
    if (err != HTH_OK)
        hth_cli_say_error("--status '%s': %s; expected a loopback ADDR:PORT, such as "
                          "127.0.0.1:8080",
                          opts->net->status_listen, hth_err_text(err));
    return err;
}

/* With fewer descriptors the DHT can't bind, and says that another program does. */
static enum hth_err check_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= FILES_MIN)
        return HTH_OK;
    hth_cli_say_error("this process may open %llu files (ulimit -n), and needs at least %d and one "
                      "for each peer: raise the limit, such as by ulimit -n 4096",
                      (unsigned long long)limit.rlim_cur, FILES_MIN);
    return HTH_E_BUDGET;
}

static const char *name_of(const struct hth_peer_opts *opts)
{
    const struct hth_cli_net *net = opts->net;
    if (net->network != NULL)
        return net->network;
    return opts->run != NULL ? opts->run->run : net->invited ? net->invite.run : "";
}

int hth_peer_open(const struct hth_peer_opts *opts, struct hth_peer *peer)
{
    bool created;
    memset(peer, 0, sizeof(*peer));
    enum hth_err files = opts->offline ? HTH_OK : check_files();
    if (files != HTH_OK)
        return HTH_EXIT_FAILURE;
    peer->name = hth_strdup(name_of(opts));
    peer->network = hth_strdup(opts->network != NULL ? opts->network : peer->name);
    int code = take_dir(opts, peer);
    if (code == HTH_EXIT_OK && !opts->ephemeral)
        hth_back_sweep(peer->dir);
    if (code == HTH_EXIT_OK && opts->check_dir != NULL)
        code = hth_exit_of(opts->check_dir(opts->check_arg, peer->dir));
    if (code == HTH_EXIT_OK)
        code = open_env(opts, peer, &created);
    if (code == HTH_EXIT_OK && !opts->offline)
        code = open_network(opts, peer);
    if (code == HTH_EXIT_OK)
        code = hth_exit_of(open_status(opts, peer));
    if (code == HTH_EXIT_OK) {
        peer->started_us = hth_wall_us(peer->env);
        if (!opts->offline && !opts->ephemeral)
            be_found(opts, peer);
        print_banner(opts, peer, created);
        if (opts->net->own)
            hth_own_say(opts->net, peer);
        if (opts->net->open_to_anyone && !opts->offline)
            say_open(peer);
        if (opts->offline)
            hth_post(peer->env, on_offline, peer);
        else
            code = hth_exit_of(hth_peer_join_start(peer->join));
    }
    if (code != HTH_EXIT_OK)
        hth_peer_close(peer);
    return code;
}

int hth_peer_run(struct hth_peer *peer)
{
    enum hth_err err = hth_net_run(peer->env);
    if (err != HTH_OK) {
        hth_cli_say_error("the event loop failed: %s", hth_err_text(err));
        return hth_exit_of(err);
    }
    return peer->exit_code;
}

void hth_peer_stop(struct hth_peer *peer, int exit_code)
{
    peer->exit_code = peer->ousted != HTH_OK ? hth_exit_of(peer->ousted) : exit_code;
    hth_net_stop(peer->env);
}

void hth_peer_jobs_end(struct hth_peer *peer)
{
    hth_net_jobs_end(peer->env);
}

void hth_peer_close(struct hth_peer *peer)
{
    if (peer->env != NULL) {
        hth_page_close(peer->page);
        hth_peer_join_free(peer->join);
        hth_census_free(peer->census);
        hth_lists_free(peer->lists);
        hth_raise_free(peer->raise);
        if (peer->grant_timer != NULL)
            hth_timer_free(peer->env, peer->grant_timer);
        hth_rpc_free(peer->rpc);
        hth_blob_unref(peer->run_text);
        hth_members_free(peer->members);
        hth_admit_close(&peer->admit);
        hth_opendht_free(peer->opendht);
        if (!peer->lent)
            hth_net_free(peer->env);
    }
    if (peer->elsewhere)
        hth_local_leave();
    hth_lock_free(peer->lock);
    hth_free(peer->dir);
    hth_free(peer->network);
    hth_free(peer->name);
    memset(peer, 0, sizeof(*peer));
}
