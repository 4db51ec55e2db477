/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.h: membership of a closed run: certificates, passes and the check of both.
 *
 *   owner --signs--> certificate of an invite --its key signs--> pass of one peer's key
 *   owner --signs--> certificate of a deputy --its key signs--> certificate of an invite ...
 *   owner --signs--> certificate of a successor --its key signs--> what the owner would sign ...
 *
 * The run file names the owner's public key. An invite is a certificate and the private seed of the
 * key in it, so whoever holds the invite signs a pass for their own peer key on their own machine:
 * no process has to run to let people in. A peer shows its *credentials* when it connects: the
 * pass, its invite's certificate, and the *chain*: the certificates of a deputy and of a successor
 * that lie between it and the owner. TLS has proved the peer's key by then, so a stolen pass is
 * worth nothing without that key.
 *
 *   certificate                                       pass
 *     0  version 2    16  key (32)                      0  version 2
 *     1  flags        48  n (1), name (n)               1  peer's public key (32)
 *     2  class            of a successor: silence (4)  33  issued (4)
 *     3  roles            Ed25519 signature (64)       37  Ed25519 signature (64)
 *     4  serial (8)
 *    12  not after (4)
 *
 * Numbers are little-endian. A serial is the wall clock in microseconds when the certificate was
 * signed, which holds from a minute before on, as the clocks of others may be behind; the other
 * times are in seconds. A signature covers a text that says which of the two this is, the run's id,
 * 8 bytes (of a pass the serial of its certificate, else 0), and all bytes before it. Run id
 * and serial are known to all that check, so they are not sent: HELLO has a pass and at most three
 * certificates, in 540 bytes. A later version may add to a pass (verified training).
 *
 * A run's id is the hash of the owner's key and of the run file in its canonical form
 * (cli/runfile.h), so a run file can't be swapped under an invite.
 *
 * A deputy is a certificate with the role `invite`. A certificate that it signs can't give more
 * than it has itself, ends with it, and never has the role `invite`: there are no deputies of
 * deputies.
 *
 * A successor's certificate has a flag and a time of silence: it counts once the owner has signed
 * no newer list of revoked invites (revoke.h) for so long, and no more when the owner does. While
 * it counts, its key may sign what the owner's may, but no other successor.
 *
 * Pure functions, any thread. Bytes may come from strangers.
 */
#ifndef HTH_ADMISSION_PASS_H
#define HTH_ADMISSION_PASS_H

#include "core/crypto.h"
#include "core/limits.h"

#define HTH_CERT_BYTES_MAX  149
#define HTH_PASS_BYTES      101
#define HTH_CHAIN_BYTES_MAX (2 * HTH_CERT_BYTES_MAX)
#define HTH_CREDS_BYTES_MAX (HTH_PASS_BYTES + HTH_CERT_BYTES_MAX + HTH_CHAIN_BYTES_MAX)

/* Rights, as bits. */
#define HTH_MAY_TRAIN  1u  /* ask experts, take part in averages, fetch states */
#define HTH_MAY_SERVE  2u  /* host experts */
#define HTH_MAY_REDUCE 4u  /* compute averages for others */
#define HTH_MAY_WATCH  8u  /* see the run, fetch states */
#define HTH_MAY_INVITE 16u /* sign certificates: a deputy */
#define HTH_MAY_ALL    31u

enum hth_member_class { HTH_PROBATION = 1, HTH_MEMBER = 2 };

/* Flags of a certificate. */
#define HTH_CERT_PUBLIC    1u /* anybody may use its invite: on probation */
#define HTH_CERT_SUCCESSOR 2u

struct hth_cert {
    struct hth_pubkey key; /* the invite's */
    struct hth_hash run;   /* signed; zero in one that was read, whose bytes do not have it */
    uint64_t serial;
    int64_t not_after_us; /* whole seconds are written */
    uint32_t silence_s;   /* of a successor */
    uint8_t flags, class; /* HTH_CERT_..., enum hth_member_class */
    uint8_t roles;        /* HTH_MAY_... */
    char name[HTH_CERT_NAME_MAX + 1];
};

/* When it begins. */
static inline int64_t hth_cert_from_us(const struct hth_cert *cert)
{
    return HTH_MAX((int64_t)cert->serial - 60 * HTH_US_PER_S, (int64_t)0);
}

struct hth_revoked_set;

/* A closed run. */
struct hth_closed_run {
    struct hth_pubkey owner;
    struct hth_hash id;
    const struct hth_revoked_set *revoked; /* revoke.h; NULL: nothing is known */
};

/* The key that a chain leads to, and what it may sign now. Without a chain it is the owner's. */
struct hth_signer {
    struct hth_pubkey key;
    uint64_t deputy, successor; /* serials of their certificates; 0: none */
    int64_t from_us, until_us;
    int64_t named_us; /* of a successor: when the owner signed */
    uint32_t silence_s;
    uint8_t class, roles; /* the most that it can give */
};

/* The rights that valid credentials give. */
struct hth_grant {
    uint64_t serial, peer; /* peer: the first 8 bytes of its id */
    /* The first 8 bytes of the invite's key, which tells invites apart: whoever signs one chooses
     * its serial, and makes no pass with another's key. */
    uint64_t invite;
    struct hth_signer by;
    int64_t from_us, until_us;
    uint8_t flags, class, roles;
    char name[HTH_CERT_NAME_MAX + 1];
};

/* The pass that every key holds in a run without an owner: whatever asks for class or roles decides
 * there as in a closed run. */
#define HTH_GRANT_IMPLICIT                                                                         \
    {                                                                                              \
        .class = HTH_MEMBER, .roles = HTH_MAY_ALL, .until_us = INT64_MAX                           \
    }

void hth_run_id(const struct hth_crypto *crypto, const struct hth_pubkey *owner,
                const struct hth_hash *run_file, struct hth_hash *out);

/* Writes and signs. Errors: E_RANGE (serial, class, roles, times), those of hth_name_check. */
enum hth_err hth_cert_write(const struct hth_crypto *crypto, const struct hth_cert *cert,
                            const struct hth_secret *signer, uint8_t out[HTH_CERT_BYTES_MAX],
                            size_t *len) HTH_MUST;
/* Reads the certificate at the front of the data, without its signature; *used: its bytes. Errors:
 * E_TRUNCATED, E_VERSION (also: a flag of a newer version), E_RANGE, E_MALFORMED. */
enum hth_err hth_cert_read(const void *data, size_t len, struct hth_cert *out,
                           size_t *used) HTH_MUST;
/* Signs a pass of the peer, with the secret of a certificate of this run and serial. */
void hth_pass_write(const struct hth_crypto *crypto, const struct hth_hash *run, uint64_t serial,
                    const struct hth_pubkey *peer, int64_t issued_us,
                    const struct hth_secret *invite, uint8_t out[HTH_PASS_BYTES]);

/* Judges a chain, except for times and revocation. Errors: those of hth_cert_read, E_MALFORMED
 * (more follows), E_PASS_FORGED (also: for another run), E_PASS_ROLE (a certificate in it can't
 * sign that). */
enum hth_err hth_chain_check(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                             const void *chain, size_t len, struct hth_signer *out) HTH_MUST;
/* Judges a certificate with its chain likewise; *out has no peer. Errors: those too, E_PASS_ROLE
 * (its signer gave more than it may). */
enum hth_err hth_cert_check(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                            const void *certs, size_t len, struct hth_cert *cert,
                            struct hth_grant *out) HTH_MUST;
/* The serial that credentials claim. Errors: E_TRUNCATED, E_VERSION, those of hth_cert_read. */
enum hth_err hth_creds_serial(const void *creds, size_t len, uint64_t *serial) HTH_MUST;
/* Judges what a peer shows: pass, certificate, chain. Errors: E_NOT_ADMITTED (nothing was shown),
 * those of hth_creds_serial and hth_cert_check, E_PASS_OTHER_KEY, and those of hth_grant_check. */
enum hth_err hth_creds_check(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                             const struct hth_peer_id *peer, const void *creds, size_t len,
                             int64_t wall_us, struct hth_grant *out) HTH_MUST;
/* Whether a grant holds at that time, give or take HTH_CLOCK_SKEW_MAX_US, and was not revoked.
 * Errors: E_PASS_EARLY (also: the successor that signed does not count, as the owner is not
 * silent), E_PASS_EXPIRED, E_PASS_REVOKED. */
enum hth_err hth_grant_check(const struct hth_grant *grant, const struct hth_closed_run *run,
                             int64_t wall_us) HTH_MUST;

/* The credentials that an endpoint of a closed run shows, and its check of others: once for each
 * connection, when TLS has proved the peer's key, before any request. hth_gate_check is such a
 * function. */
typedef enum hth_err hth_admit_fn(void *arg, const struct hth_peer_id *peer, const void *creds,
                                  size_t len, struct hth_grant *out);
/* Judges a grant again, as hth_grant_check does: an invite ends while a connection stands. */
typedef enum hth_err hth_holds_fn(void *arg, const struct hth_grant *grant);
struct hth_admission {
    uint8_t creds[HTH_CREDS_BYTES_MAX];
    size_t creds_len;
    hth_admit_fn *admit;
    hth_holds_fn *holds;
    void *arg; /* of both */
};

/* "train,serve". Returns out. */
const char *hth_roles_text(uint8_t roles, char out[48]);
/* Errors: E_MALFORMED (an unknown or an empty word). */
enum hth_err hth_roles_parse(const char *text, uint8_t *out) HTH_MUST;

#endif
