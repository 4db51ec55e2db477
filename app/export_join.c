/* SPDX-License-Identifier: Apache-2.0 */
/* export_join.c: a peer that only asks; see export_join.h. */
#include "app/export_join.h"

#include "app/peer.h"
#include "dht/directory.h"

struct joined {
    struct hth_peer peer;
    struct hth_directory *directory;
    struct hth_fetch_opts opts;
    struct hth_fetch *fetch;
};

static void on_done(void *arg)
{
    struct joined *j = arg;
    hth_peer_stop(&j->peer, HTH_EXIT_OK);
}

static void on_joined(void *arg)
{
    struct joined *j = arg;
    if (j->fetch != NULL)
        return;
    enum hth_err err = hth_fetch_new(j->peer.env, j->peer.rpc, j->directory, &j->opts, &j->fetch);
    if (err == HTH_OK)
        return;
    hth_cli_say_error("experts: %s", hth_err_text(err));
    hth_peer_stop(&j->peer, hth_exit_of(err));
}

int hth_export_join(struct hth_env *env, const struct hth_cli_net *net, const char *network,
                    const struct hth_fetch_opts *fetch)
{
    struct joined j = {.opts = *fetch};
    const struct hth_cli_log log = {0};
    const struct hth_peer_opts opts = {.env = env,
                                       .verb = "export",
                                       .net = net,
                                       .log = &log,
                                       .network = network,
                                       .quiet = true,
                                       .ephemeral = true};
    struct hth_directory_opts directory = HTH_DIRECTORY_OPTS_INIT;
    int code = hth_peer_open(&opts, &j.peer);
    if (code != HTH_EXIT_OK)
        return code;
    j.opts.on_done = on_done;
    j.opts.done_arg = &j;
    j.peer.on_joined = on_joined;
    j.peer.arg = &j;
    directory.network = j.peer.network;
    enum hth_err err = hth_directory_new(j.peer.env, j.peer.dht, &directory, &j.directory);
    code = err == HTH_OK ? hth_peer_run(&j.peer) : hth_exit_of(err);
    hth_peer_jobs_end(&j.peer);
    hth_fetch_free(j.fetch);
    hth_directory_free(j.directory);
    hth_peer_close(&j.peer);
    return code;
}
