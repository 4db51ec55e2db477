/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_fetch.h: a closed run's file, from peer to peer: method 3, RUN.
 *
 * An invite names the hash of the run file, so a peer that has an invite alone takes the file from
 * any member and believes no one: it asks one address after another, judges what comes, names a
 * file that is not the one, and asks the next. When all were asked in vain, it asks them again, and
 * those that it has heard of since.
 *
 *   RUN: no payload; the reply is one tensor u8 [bytes], at most HTH_RUNFILE_BYTES_MAX: the file as
 *   its holder read it. A copy whose canonical form has another hash is refused.
 *
 * Every peer that holds the run file serves it, to whomever HELLO let in.
 *
 * Loop thread; callbacks never come inside a call.
 */
#ifndef HTH_CLI_RUN_FETCH_H
#define HTH_CLI_RUN_FETCH_H

#include "admission/invite.h"
#include "cli/runfile.h"
#include "rpc/rpc.h"

#define HTH_METHOD_RUN          3
#define HTH_RUN_FETCH_ADDRS_MAX 64

/* A hth_rpc_handler_fn; its arg is a blob with the file's text, which outlives the endpoint. */
void hth_run_give(void *blob, struct hth_rpc_request *req);

/* Parses a run file and compares it with the invite's owner and hash; `name` is for the error's
 * sentence. The hash leaves out data.path, and so does *out: the peer that gave the file must not
 * choose what this machine reads and trains on. Free *out with hth_runfile_free. Errors:
 * E_PASS_OTHER_RUN, those of hth_runfile_parse; `error` then has a sentence. */
enum hth_err hth_run_judge(const struct hth_crypto *crypto, const struct hth_invite *invite,
                           const char *name, const uint8_t *data, size_t len,
                           struct hth_runfile **out, char error[HTH_RUNFILE_ERROR_MAX]) HTH_MUST;

struct hth_run_fetch;

struct hth_run_fetch_opts {
    const char *network;                   /* as in hth_rpc_opts */
    const struct hth_admission *admission; /* likewise */
    const struct hth_invite *invite;       /* must outlive the fetch */
    /* Writes the addresses to ask now, the likeliest first; returns how many. */
    size_t (*addrs)(void *arg, struct hth_addr out[HTH_RUN_FETCH_ADDRS_MAX]);
    /* A peer gave no file, or a wrong one; `why` is a sentence. */
    void (*refused)(void *arg, const struct hth_addr *addr, enum hth_err err, const char *why);
    /* The file is the callee's. Comes once; may not free the fetch. */
    void (*done)(void *arg, struct hth_runfile *run);
    void *arg;
};

/* Errors: those of hth_rpc_new. */
enum hth_err hth_run_fetch_new(struct hth_env *env, const struct hth_run_fetch_opts *opts,
                               struct hth_run_fetch **out) HTH_MUST;
/* NULL is fine. */
void hth_run_fetch_free(struct hth_run_fetch *fetch);

#endif
