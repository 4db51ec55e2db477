/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner_int.h: what the files of `hearth owner` share. The signer is the owner, with the key in
 * DIR, or a deputy or successor, by the text of --as.
 *
 *   DIR/key          the key, a file like a peer's (net/identity.h)
 *   DIR/invites      a line for each certificate: serial, time of its end, class, roles, run, name,
 *                    kind
 *   DIR/revoked.RUN  the signer's list of that run, as it is published (admission/revoke.h); a
 *                    deputy's has its serial behind it
 *
 * Main thread. All print what fails.
 */
#ifndef HTH_APP_OWNER_INT_H
#define HTH_APP_OWNER_INT_H

#include "admission/revoke.h"
#include "app/admit.h"
#include "core/bytes.h"

struct hth_owner {
    const char *word, *dir, *run_path, *name, *what, *passphrase;
    const char *beside;     /* promote --auto: the state folder of the process that witnesses */
    struct hth_cli_net net; /* only --join */
    const char *address[HTH_INVITE_ADDRS_MAX];
    size_t address_count;
    uint8_t roles;                   /* 0: not given */
    bool probation, public, made_by; /* made_by: --as was given */
    bool auto_promotes;
    int64_t days; /* 0: not given */
    int64_t silence_days;
    struct hth_invite as;

    char *own_dir, *key_path, *list_path;
    int code; /* to exit with, if no step fails */
    /* the signer, by hth_owner_signer */
    struct hth_secret secret;
    struct hth_closed_run run;
    struct hth_signer by;
    struct hth_invite base; /* run, owner, run file, addresses, and the chain of what it signs */
};

#define HTH_OWNER_REVOKED "revoked" /* the kind of a line whose serial was revoked */

#define HTH_OWNER_AUTO    "auto" /* of one that promote --auto signed */

/* A line of DIR/invites. */
struct hth_owner_entry {
    unsigned long long serial;
    long long until_s;
    unsigned class;
    char roles[48], run[HTH_NAME_LEN_MAX + 1], name[HTH_CERT_NAME_MAX + 1], kind[16];
    bool revokes; /* by its kind */
};

/* Sets the paths: of o->dir, or of the default folder. */
void hth_owner_open(struct hth_owner *o);
/* Frees them, and forgets the secrets. */
void hth_owner_close(struct hth_owner *o);
/* Signs what word and flags ask for, and enters it in the list. */
enum hth_err hth_owner_sign(struct hth_owner *o, struct hth_invite *out,
                            struct hth_cert *cert) HTH_MUST;
/* Loads DIR/key. Errors: E_BAD_KEY (there is none), those of hth_identity_load. */
enum hth_err hth_owner_key(const struct hth_owner *o, struct hth_secret *out) HTH_MUST;
/* The public key of a secret, as the run file has it. Returns hex. */
const char *hth_owner_key_text(const struct hth_secret *secret, char hex[2 * HTH_PUBKEY_LEN + 1]);
/* Finds key, run and chain, by --as or by DIR and --run. */
enum hth_err hth_owner_signer(struct hth_owner *o) HTH_MUST;
/* All good lines, on the heap; NULL: none. */
struct hth_owner_entry *hth_owner_lines(const struct hth_owner *o, size_t *count);
/* Appends a line. Errors: E_IO. */
enum hth_err hth_owner_note(const struct hth_owner *o, const struct hth_owner_entry *e) HTH_MUST;
/* Writes a whole file that nobody else reads, and its folder; one that is there is replaced. Prints
 * what failed: E_IO. */
enum hth_err hth_owner_write(const char *path, const void *data, size_t len) HTH_MUST;
int64_t hth_owner_now_us(void);

/* The words. */
enum hth_err hth_owner_init(struct hth_owner *o) HTH_MUST;
enum hth_err hth_owner_list(struct hth_owner *o) HTH_MUST;
enum hth_err hth_owner_invite(struct hth_owner *o) HTH_MUST; /* deputy, successor, too */
enum hth_err hth_owner_promote(struct hth_owner *o) HTH_MUST;
enum hth_err hth_owner_revoke(struct hth_owner *o) HTH_MUST; /* alive, too */
enum hth_err hth_owner_backup(struct hth_owner *o) HTH_MUST;
enum hth_err hth_owner_restore(struct hth_owner *o) HTH_MUST;

/* A list on its way into the network. */
struct hth_owner_news {
    const struct hth_closed_run *run;
    struct hth_revoked *list; /* gets the entries of the signer's lists that the network has */
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    size_t len;
    enum hth_err (*sign)(void *arg, struct hth_owner_news *news); /* writes bytes and len */
    enum hth_err err;                                             /* of it */
    void *arg;
    const struct hth_addr *through; /* peers to join through, besides --join */
    size_t through_count;           /* at most HTH_INVITE_ADDRS_MAX */
};
/* Joins that network as a peer of a moment, without --join also through this user's processes,
 * signs the list once what the network has lies in it, and ends once the DHT has it: the members
 * take it from there. Returns an exit code; news->len is 0 if it was not signed. */
int hth_owner_publish(const struct hth_cli_net *net, const char *network,
                      struct hth_owner_news *news);

#endif
