/* SPDX-License-Identifier: Apache-2.0 */
/* run_file.c: joins for the time that fetching the run file takes, unless it is kept already. */
#include "app/run_file.h"

#include "app/own.h"
#include "app/peer.h"
#include "app/peer_join.h"
#include "cli/config.h"
#include "cli/run_fetch.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "net/crypto.h"

#include <stdio.h>
#include <string.h>

struct fetching {
    struct hth_peer peer;
    const struct hth_cli_net *net;
    const char *kept; /* path */
    struct hth_run_fetch *fetch;
    struct hth_addr told[HTH_RUN_FETCH_ADDRS_MAX]; /* whose refusal was printed */
    size_t told_count;
    uint32_t rounds;
    struct hth_runfile *run;
};

/* ---- the kept file ------------------------------------------------------------------------- */

static char *kept_path(const struct hth_cli_net *net)
{
    char hash[17];
    hth_hex(net->invite.run_file.b, 8, hash);
    char *base = hth_cli_default_dir();
    char *path = net->dir != NULL ? hth_asprintf("%s/run-%s.yaml", net->dir, hash)
                                  : hth_asprintf("%s/%s/run-%s.yaml", base, net->invite.run, hash);
    hth_free(base);
    return path;
}

/* False: there is none, or it was damaged or changed since a peer gave it. */
static bool load_kept(const struct hth_cli_net *net, const char *path, struct hth_runfile **out)
{
    char error[HTH_RUNFILE_ERROR_MAX];
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    uint8_t *bytes = hth_new_array(uint8_t, HTH_RUNFILE_BYTES_MAX + 1);
    size_t len = fread(bytes, 1, HTH_RUNFILE_BYTES_MAX + 1, file);
    fclose(file);
    enum hth_err err =
        hth_run_judge(hth_crypto_openssl(), &net->invite, path, bytes, len, out, error);
    hth_free(bytes);
    if (err != HTH_OK)
        hth_cli_say_error("%s; peers are asked for it (a run of your own takes --run FILE)", error);
    return err == HTH_OK;
}

/* Without one the run goes on, and asks again at its next start. */
static void keep(struct fetching *f)
{
    struct hth_blob *blob = hth_blob_copy(f->run->text, strlen(f->run->text));
    struct hth_span span = {blob, 0, blob->size};
    enum hth_err err = hth_file_write(f->peer.env, f->kept, &span, 1);
    if (err == HTH_OK)
        hth_say("the run file: %s", f->kept);
    else
        hth_cli_say_error("%s: %s", f->kept, hth_err_text(err));
    hth_blob_unref(blob);
}

/* ---- asking -------------------------------------------------------------------------------- */

static void add(struct hth_addr *out, size_t *count, const struct hth_addr *addr)
{
    for (size_t i = 0; i < *count; i++)
        if (hth_addr_eq(&out[i], addr))
            return;
    if (*count < HTH_RUN_FETCH_ADDRS_MAX)
        out[(*count)++] = *addr;
}

/* Those that were given, then the peers that the DHT knows of. */
static size_t addrs(void *arg, struct hth_addr out[HTH_RUN_FETCH_ADDRS_MAX])
{
    struct fetching *f = arg;
    struct hth_census_node node;
    size_t given, count = 0;
    const struct hth_addr *addr = hth_peer_join_addrs(f->peer.join, &given);
    if (f->net->once && f->rounds++ > 0) {
        hth_cli_say_error("no peer gave the run file; give it with --run");
        hth_peer_stop(&f->peer, HTH_EXIT_NETWORK);
        return 0;
    }
    for (size_t i = 0; i < given; i++)
        add(out, &count, &addr[i]);
    for (uint32_t i = 0; hth_census_at(f->peer.census, i, &node); i++)
        if (node.info.addr_count > 0)
            add(out, &count, &node.info.addr[0]);
    return count;
}

static void refused(void *arg, const struct hth_addr *addr, enum hth_err err, const char *why)
{
    struct fetching *f = arg;
    char text[HTH_ADDR_TEXT_MAX];
    size_t before = f->told_count;
    add(f->told, &f->told_count, addr);
    if (f->told_count > before)
        hth_cli_say_error("%s gives no run file: %s; the next peer is asked",
                          hth_addr_text(addr, text),
                          err == HTH_E_NO_SUCH_METHOD ? "it has none" : why);
}

static void done(void *arg, struct hth_runfile *run)
{
    struct fetching *f = arg;
    f->run = run;
    keep(f);
    hth_peer_stop(&f->peer, HTH_EXIT_OK);
}

static void on_joined(void *arg)
{
    struct fetching *f = arg;
    const struct hth_run_fetch_opts opts = {.network = f->peer.network,
                                            .admission = hth_admit_rpc(&f->peer.admit),
                                            .invite = &f->net->invite,
                                            .addrs = addrs,
                                            .refused = refused,
                                            .done = done,
                                            .arg = f};
    enum hth_err err = hth_run_fetch_new(f->peer.env, &opts, &f->fetch);
    if (err == HTH_OK)
        return;
    hth_cli_say_error("fetching the run file: %s", hth_err_text(err));
    hth_peer_stop(&f->peer, hth_exit_of(err));
}

static int fetch(struct fetching *f, const struct hth_cli_log *log)
{
    const struct hth_peer_opts opts = {.verb = "run",
                                       .net = f->net,
                                       .log = log,
                                       .dials_only = true,
                                       .quiet = true,
                                       .ephemeral = true,
                                       .tries_on = true};
    int code = hth_peer_open(&opts, &f->peer);
    if (code != HTH_EXIT_OK)
        return code;
    hth_say("asking the peers of run '%s' for its run file ...", f->peer.name);
    f->peer.on_joined = on_joined;
    f->peer.arg = f;
    code = hth_peer_run(&f->peer);
    hth_peer_jobs_end(&f->peer);
    hth_run_fetch_free(f->fetch);
    hth_peer_close(&f->peer);
    return code;
}

/* ---- opening ------------------------------------------------------------------------------- */

static int load(const char *path, struct hth_cli_net *net, struct hth_runfile **out)
{
    enum hth_err err = hth_config_load(path, out);
    if (err == HTH_OK)
        err = hth_own_enter(path, *out, net);
    return hth_exit_of(err == HTH_E_NO_FILE ? HTH_E_CONFIG : err);
}

int hth_run_file_open(const char *path, struct hth_cli_net *net, const struct hth_cli_log *log,
                      struct hth_runfile **out)
{
    enum hth_err err = net->own ? hth_own_begin(path, net) : HTH_OK;
    if (err != HTH_OK)
        return hth_exit_of(err == HTH_E_NO_FILE ? HTH_E_CONFIG : err);
    if (path != NULL)
        return load(path, net, out);
    char *kept = kept_path(net);
    struct fetching f = {.net = net, .kept = kept};
    int code = load_kept(net, kept, out) ? HTH_EXIT_OK : fetch(&f, log);
    if (f.run != NULL)
        *out = f.run;
    hth_free(kept);
    return code;
}

void hth_run_file_need(const struct argp_state *state, const char *path,
                       const struct hth_cli_net *net)
{
    if (path == NULL && net->own)
        argp_error(state, "--own closes a run file: add --run FILE");
    else if (path == NULL && !net->invited)
        argp_error(state, "--run FILE is required, or the --invite of a run whose peers have it");
}
