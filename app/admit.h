/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admit.h: closed runs, between a program's flags and rpc: the pass that this peer shows, and the
 * gate that judges others. A run is closed if its run file names an owner, or if the program
 * has no run file and an invite.
 *
 * Main thread.
 */
#ifndef HTH_APP_ADMIT_H
#define HTH_APP_ADMIT_H

#include "admission/gate.h"
#include "admission/revoke.h"
#include "cli/cli.h"

struct hth_runfile;

struct hth_admit {
    struct hth_gate *gate; /* NULL: the run is open */
    struct hth_closed_run run;
    const struct hth_invite *invite; /* the one that was given */
    struct hth_admission admission;  /* its witness is freed with it */
    struct hth_grant grant;          /* our own */
    bool raised;       /* it is by a certificate that another peer brought (rpc/raise.h) */
    char *path;        /* of the lists of revoked invites; NULL: they are not kept */
    char *raised_path; /* of that certificate and its chain; with it */
    struct hth_revoked_set *revoked;
};

/* run NULL: not known. dir: the state folder, which keeps the lists of revoked invites; NULL: none.
 * roles: rights of which the verb needs one; 0: none. A certificate that raised this peer before
 * counts in place of a lower one of the invite, while it holds. net must outlive it. Prints what is
 * wrong: E_NOT_ADMITTED (closed, and no invite), E_USAGE (an invite to an open run), and what
 * hth_creds_check says of our own pass. */
enum hth_err hth_admit_open(struct hth_env *env, const struct hth_cli_net *net,
                            const struct hth_runfile *run, uint8_t roles, const char *dir,
                            struct hth_admit *out) HTH_MUST;
void hth_admit_close(struct hth_admit *admit);
/* For hth_rpc_opts; NULL: the run is open. */
const struct hth_admission *hth_admit_rpc(const struct hth_admit *admit);

/* Keeps the lists, of which one is newer. */
void hth_admit_revoked(struct hth_env *env, struct hth_admit *admit);

/* Takes a certificate and its chain for our own key, keeps them, and shows them from now on: the
 * caller tells rpc and members. Errors: those of hth_cert_check and hth_grant_check;
 * E_PASS_OTHER_KEY, E_STALE (it gives no higher class, and is no longer one of what raised this
 * peer; or it lacks a role). */
enum hth_err hth_admit_raise(struct hth_env *env, struct hth_admit *admit, const void *certs,
                             size_t len) HTH_MUST;
/* Whether our own grant holds still. One that raised this peer and ended gives way to that of the
 * invite: then *changed. Errors: those of hth_grant_check. */
enum hth_err hth_admit_holds(struct hth_env *env, struct hth_admit *admit, bool *changed) HTH_MUST;

/* The words that follow `hearth serve --experts 8` for whoever wants to join, a heap string: an
 * --invite that is public; or `--invite INVITE`, and *ask is the name of who gives one. NULL: the
 * run is open. */
char *hth_admit_join(const struct hth_admit *admit, const struct hth_cli_net *net,
                     char ask[HTH_CERT_NAME_MAX + 16]);

/* "2026-12-27 21:09 UTC". Returns out. */
const char *hth_admit_date(int64_t wall_us, char out[32]);
/* Prints an invite for a person, without its secret. */
void hth_admit_print(const struct hth_invite *invite);

#endif
