/* SPDX-License-Identifier: Apache-2.0 */
/* peer_join.c: tries to join until it succeeds, and keeps the file of remembered peers. */
#include "app/peer_join.h"

#include "app/peer_addr.h"
#include "core/mem.h"
#include "net/net.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

/* The first saves come soon after one another: a peer that is killed young knows whom it met. */
#define SAVE_FIRST_US  (2 * HTH_US_PER_S)
#define SAVE_PERIOD_US (60 * HTH_US_PER_S)
#define RETRY_MIN_US   HTH_US_PER_S
#define RETRY_MAX_US   (30 * HTH_US_PER_S)
/* Remembered peers: of one file, and to join through. */
#define REMEMBERED_MAX 16

struct hth_peer_join {
    struct hth_peer *peer;
    const struct hth_cli_net *net;
    bool named; /* the name of the run is known */
    bool may_be_first, once, quiet, trains;
    bool keeps;          /* has a state folder: else a peer of a moment (status) */
    int64_t patience_us; /* for beacons; 0: the usual time */
    char *path;          /* of the own file */
    struct hth_addr addr[HTH_BOOTSTRAP_MAX];        /* of --join, then the remembered ones */
    struct hth_peer_entry entry[HTH_BOOTSTRAP_MAX]; /* the same; id and time of the latter */
    size_t count, typed;
    struct hth_peer_entry kept[REMEMBERED_MAX]; /* as in the own file */
    size_t kept_count;
    char *remembered_in; /* the first file that gave a peer */
    uint32_t files;      /* that gave peers */
    struct hth_join *join;
    struct hth_timer *retry_timer, *save_timer;
    struct hth_reacher *reacher;
    int64_t pause_us, save_us;
};

/* ---- addresses ----------------------------------------------------------------------------- */

static void add(struct hth_peer_join *j, const struct hth_peer_entry *entry)
{
    for (size_t i = 0; i < j->count; i++)
        if (hth_addr_eq(&j->addr[i], &entry->addr))
            return;
    if (j->count == HTH_BOOTSTRAP_MAX)
        return;
    j->addr[j->count] = entry->addr;
    j->entry[j->count++] = *entry;
}

static enum hth_err resolve(struct hth_peer_join *j)
{
    for (size_t i = 0; i < j->net->join_count; i++) {
        struct hth_peer_entry entry = {.seen_us = hth_wall_us(j->peer->env)};
        struct hth_addr addr[2]; /* of a name: IPv4 and IPv6 */
        size_t got = 0;
        enum hth_err err = hth_net_resolve(j->net->join[i], addr, HTH_ARRAY_LEN(addr), &got);
        if (err != HTH_OK) {
            hth_cli_say_unresolved("--join", j->net->join[i], err);
            return err;
        }
        for (size_t a = 0; a < got; a++) {
            entry.addr = addr[a];
            add(j, &entry);
        }
    }
    for (size_t i = 0; j->net->invited && i < j->net->invite.addr_count; i++)
        add(j, &(struct hth_peer_entry){.addr = j->net->invite.addr[i],
                                        .seen_us = hth_wall_us(j->peer->env)});
    j->typed = j->count;
    return HTH_OK;
}

static void read_file(struct hth_peer_join *j, const char *path)
{
    struct hth_peer_entry known[REMEMBERED_MAX];
    size_t count = 0, before = j->count;
    /* A damaged file was logged, and is replaced when the peer has joined. */
    (void)!hth_peercache_load(j->peer->env, path, known, REMEMBERED_MAX, &count);
    for (size_t i = 0; i < count && j->count < j->typed + REMEMBERED_MAX; i++)
        if (!hth_peer_id_eq(&known[i].id, &j->peer->env->self) &&
            (!j->peer->stays || hth_peer_addr_is_own(&known[i].addr)))
            add(j, &known[i]);
    if (j->count > before && j->files++ == 0)
        j->remembered_in = hth_strdup(path);
}

/* The files of this run's processes on this machine, and of nodes without a run. */
static void read_neighbours(struct hth_peer_join *j)
{
    char *base = hth_cli_default_dir();
    char *of_run = hth_asprintf("%s/%s/*/peers", base, j->named ? j->peer->name : "*");
    char *of_nodes = hth_asprintf("%s/*/peers", base);
    glob_t found = {0};
    (void)glob(of_run, 0, NULL, &found);
    (void)glob(of_nodes, GLOB_APPEND, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (strcmp(found.gl_pathv[i], j->path) != 0)
            read_file(j, found.gl_pathv[i]);
    globfree(&found);
    hth_free(of_nodes);
    hth_free(of_run);
    hth_free(base);
}

enum hth_err hth_peer_join_new(const struct hth_peer_opts *opts, struct hth_peer *peer,
                               struct hth_peer_join **out)
{
    struct hth_peer_join *j = hth_new(struct hth_peer_join);
    j->peer = peer;
    j->net = opts->net;
    j->named = peer->network[0] != '\0';
    j->may_be_first = opts->may_be_first;
    j->once = opts->net->once || (opts->ephemeral && !opts->tries_on);
    j->quiet = opts->quiet;
    j->trains = strcmp(opts->verb, "train") == 0;
    j->patience_us = opts->patience_us;
    j->keeps = !opts->ephemeral;
    j->path = hth_asprintf("%s/peers", peer->dir);
    j->pause_us = RETRY_MIN_US;
    j->save_us = SAVE_FIRST_US;
    *out = j;
    HTH_TRY(resolve(j));
    if (j->keeps || (j->typed == 0 && opts->net->dir != NULL))
        read_file(j, j->path);
    if (j->typed == 0 && opts->net->dir == NULL)
        read_neighbours(j);
    for (size_t i = 0; i < opts->also_count; i++)
        add(j, &(struct hth_peer_entry){.addr = opts->also[i]});
    if (j->count > 0 || !opts->ephemeral)
        return HTH_OK;
    hth_cli_say_error("no hearth process of this user runs here, and no peer is remembered: --join "
                      "HOST:PORT is required");
    return HTH_E_USAGE;
}

const struct hth_addr *hth_peer_join_addrs(const struct hth_peer_join *j, size_t *count)
{
    *count = j->count;
    return j->addr;
}

bool hth_peer_join_names_port(const struct hth_peer_join *j, uint16_t port)
{
    size_t i = 0;
    while (i < j->typed && !(j->addr[i].port == port && hth_peer_addr_is_own(&j->addr[i])))
        i++;
    return i < j->typed;
}

static bool is_self(const struct hth_addr *addr, const struct hth_addr *listen)
{
    bool every = hth_addr_scope(listen) == HTH_SCOPE_NONE;
    return addr->port == listen->port &&
           (every ? hth_peer_addr_is_own(addr) : hth_addr_same_ip(addr, listen));
}

void hth_peer_join_drop_self(struct hth_peer_join *j, const struct hth_addr *listen)
{
    size_t count = 0, typed = 0;
    for (size_t i = 0; i < j->count; i++) {
        if (is_self(&j->addr[i], listen))
            continue;
        typed += i < j->typed;
        j->addr[count] = j->addr[i];
        j->entry[count++] = j->entry[i];
    }
    if (typed < j->typed && !j->quiet)
        hth_say("--join names this process itself, and is left out");
    j->count = count;
    j->typed = typed;
}

/* ---- remembering --------------------------------------------------------------------------- */

static size_t put(struct hth_peer_entry *list, size_t count, const struct hth_peer_entry *from,
                  size_t from_count)
{
    for (size_t i = 0; i < from_count && count < REMEMBERED_MAX; i++) {
        size_t at = 0;
        while (at < count && !hth_addr_eq(&list[at].addr, &from[i].addr))
            at++;
        if (at == count)
            list[count++] = from[i];
    }
    return count;
}

/* Peers that have left stay in the file while there is room: they may come back. */
static void save(struct hth_peer_join *j, bool ends)
{
    struct hth_peer *peer = j->peer;
    const struct hth_peer_entry self = {peer->announce, peer->env->self, hth_wall_us(peer->env)};
    struct hth_peer_entry seen[REMEMBERED_MAX], list[REMEMBERED_MAX];
    bool runs = !ends && self.addr.family != 0;
    size_t count = put(list, 0, &self, runs);
    count = put(list, count, seen, hth_census_peers(peer->census, seen, REMEMBERED_MAX));
    count = put(list, count, j->entry, j->count);
    count = put(list, count, j->kept, j->kept_count);
    enum hth_err err = hth_peercache_save(peer->env, j->path, list, count);
    if (err != HTH_OK)
        HTH_LOG(peer->env, HTH_WARN, HTH_SUB_APP, "%s: %s", j->path, hth_err_text(err));
    j->kept_count = count - runs;
    memcpy(j->kept, list + runs, j->kept_count * sizeof(*list));
}

static void on_save_timer(void *arg)
{
    struct hth_peer_join *j = arg;
    save(j, false);
    hth_timer_set(j->peer->env, j->save_timer, j->save_us);
    j->save_us = HTH_MIN(2 * j->save_us, SAVE_PERIOD_US);
}

/* ---- joining ------------------------------------------------------------------------------- */

/* "1 remembered peer does not answer (D/peers)" */
static void say_remembered(const struct hth_peer_join *j, const char *then)
{
    size_t n = j->count - j->typed;
    char more[32] = "";
    if (j->files > 1)
        snprintf(more, sizeof(more), " and %u more", j->files - 1);
    hth_cli_say_error("%zu remembered peer%s not answer (%s%s)%s", n, n == 1 ? " does" : "s do",
                      j->remembered_in, more, then);
}

/* The first address that was given: by --join, or in the invite. */
static const char *first_text(const struct hth_peer_join *j, char out[HTH_ADDR_TEXT_MAX])
{
    return j->net->join_count > 0 ? j->net->join[0] : hth_addr_text(&j->addr[0], out);
}

static void say_joining(const struct hth_peer_join *j)
{
    char text[HTH_ADDR_TEXT_MAX];
    if (j->quiet || j->count == 0)
        return;
    if (j->typed == 0)
        hth_say("joining through %zu remembered peer%s ...", j->count, j->count == 1 ? "" : "s");
    else
        hth_say("joining %s%s ...", first_text(j, text),
                j->net->join_count > 1 || (j->net->join_count == 0 && j->typed > 1) ? " and others"
                                                                                    : "");
}

static void say_joined(const struct hth_peer_join *j, const struct hth_join_result *result)
{
    char run[HTH_NAME_LEN_MAX + 16] = "";
    const char *swarm = j->count == 0 ? "a new swarm" : "joined";
    if (j->quiet)
        return;
    if (j->named)
        snprintf(run, sizeof(run), " of run '%s'", j->peer->name);
    if (result->nodes > 0)
        hth_say("joined in %.1f s; %u other peer%s%s seen", (double)result->took_us / 1e6,
                result->nodes, result->nodes == 1 ? "" : "s", run);
    else if (j->named)
        hth_say("%s; you are the first%s", swarm, run);
    else
        hth_say("%s", swarm);
}

static void on_reach(void *arg, enum hth_reach reach, const struct hth_addr *from)
{
    struct hth_peer_join *j = arg;
    const struct hth_addr *at = &j->peer->announce;
    char text[HTH_ADDR_TEXT_MAX], seen[HTH_ADDR_TEXT_MAX], hint[HTH_ADDR_TEXT_MAX + 48] = "";
    struct hth_addr outside = *from;
    j->peer->reachable = reach;
    if (reach == HTH_REACH_YES) {
        hth_say("others reach this machine at %s", hth_addr_text(at, text));
        return;
    }
    outside.port = at->port;
    if (j->net->announce != NULL)
        snprintf(hint, sizeof(hint), ", or correct --announce");
    else if (from->family != 0 && !hth_addr_same_ip(from, at))
        snprintf(hint, sizeof(hint), ", and give --announce %s", hth_addr_text(&outside, seen));
    hth_cli_say_error("others can't reach this machine at %s: forward port %u, TCP and UDP%s%s",
                      hth_addr_text(at, text), (unsigned)at->port, hint,
                      j->trains ? "; or give --client" : "");
}

static void look_whether_reached(struct hth_peer_join *j)
{
    const struct hth_reach_opts opts = {.rpc = j->peer->rpc,
                                        .census = j->peer->census,
                                        .through = j->addr,
                                        .through_count = j->count,
                                        .announce = j->peer->announce,
                                        .on_change = on_reach,
                                        .arg = j};
    if (j->keeps)
        j->reacher = hth_reacher_new(j->peer->env, &opts);
}

static void go_on(struct hth_peer_join *j, const struct hth_join_result *result)
{
    struct hth_peer *peer = j->peer;
    say_joined(j, result);
    peer->joined = true;
    if (j->keeps)
        on_save_timer(j);
    look_whether_reached(j);
    if (peer->on_joined != NULL)
        peer->on_joined(peer->arg);
}

static bool is_unanswered(enum hth_err err)
{
    return err == HTH_E_JOIN_NOTHING_LISTENS || err == HTH_E_JOIN_UDP_CLOSED;
}

/* Nothing answers: says so, and tries again unless that is not wanted. */
static void try_later(struct hth_peer_join *j, const struct hth_join_result *result)
{
    char then[96] = "", text[HTH_ADDR_TEXT_MAX];
    if (!j->once)
        snprintf(then, sizeof(then), "; trying again in %.0f s%s", (double)j->pause_us / 1e6,
                 j->pause_us == RETRY_MIN_US ? ", then less often (--once ends instead)" : "");
    if (j->typed == 0)
        say_remembered(j, then[0] != '\0' ? then : "; give --join HOST:PORT");
    else if (j->once || j->pause_us == RETRY_MIN_US)
        hth_cli_say_error("%s%s", result->text, then);
    else
        hth_cli_say_error("no answer from %s yet%s", first_text(j, text), then);
    if (j->once) {
        hth_peer_stop(j->peer, hth_exit_of(result->err));
        return;
    }
    hth_timer_set(j->peer->env, j->retry_timer, j->pause_us);
    j->pause_us = HTH_MIN(2 * j->pause_us, RETRY_MAX_US);
}

static void on_join(void *arg, const struct hth_join_result *result)
{
    struct hth_peer_join *j = arg;
    enum hth_err err = result->err;
    if (j->peer->draining) /* its verb stops the peer */
        return;
    if (err == HTH_OK || (err == HTH_E_JOIN_WRONG_NETWORK && j->may_be_first)) {
        go_on(j, result);
    } else if (is_unanswered(err) && j->typed == 0 && j->may_be_first) {
        say_remembered(j, ""); /* the DHT node goes on asking them */
        go_on(j, result);
    } else if (is_unanswered(err)) {
        try_later(j, result);
    } else {
        hth_cli_say_error("%s", result->text);
        hth_peer_stop(j->peer, hth_exit_of(err));
    }
}

static enum hth_err try_once(struct hth_peer_join *j)
{
    struct hth_join_opts opts = HTH_JOIN_OPTS_INIT;
    opts.network = j->named ? j->peer->network : NULL;
    opts.any_network = !j->named;
    opts.bootstrap = j->addr;
    opts.bootstrap_count = j->count;
    opts.typed_count = j->typed;
    opts.census = j->peer->census;
    if (j->patience_us > 0) {
        opts.beacon_us = j->patience_us * 3 / 4;
        opts.scan_us = j->patience_us - opts.beacon_us;
    }
    hth_join_free(j->join);
    return hth_join_new(j->peer->env, j->peer->dht, &opts, on_join, j, &j->join);
}

static void on_retry(void *arg)
{
    struct hth_peer_join *j = arg;
    enum hth_err err = try_once(j);
    if (err == HTH_OK)
        return;
    hth_cli_say_error("joining failed: %s", hth_err_text(err));
    hth_peer_stop(j->peer, hth_exit_of(err));
}

enum hth_err hth_peer_join_start(struct hth_peer_join *j)
{
    struct hth_peer *peer = j->peer;
    j->retry_timer = hth_timer_new(peer->env, on_retry, j);
    j->save_timer = hth_timer_new(peer->env, on_save_timer, j);
    HTH_TRY(hth_census_new(peer->env, peer->dht, j->named ? peer->network : NULL, &peer->census));
    hth_census_log(peer->census);
    say_joining(j);
    return try_once(j);
}

void hth_peer_join_free(struct hth_peer_join *j)
{
    if (j == NULL)
        return;
    if (j->keeps && j->peer->joined)
        save(j, true);
    hth_reacher_free(j->reacher);
    hth_join_free(j->join);
    hth_timer_free(j->peer->env, j->retry_timer);
    hth_timer_free(j->peer->env, j->save_timer);
    hth_free(j->remembered_in);
    hth_free(j->path);
    hth_free(j);
}
