/* SPDX-License-Identifier: Apache-2.0 */
/*
 * party.h: the owner of a run, a deputy, a successor, an invite and a peer with fixed keys: those
 * of golden_pass.py.
 */
#ifndef HTH_TESTS_ADMISSION_PARTY_H
#define HTH_TESTS_ADMISSION_PARTY_H

#include "admission/invite.h"
#include "support/test.h"

#define NOW_US (INT64_C(1700000000) * HTH_US_PER_S)
#define DAY_US (86400 * HTH_US_PER_S)

struct party {
    const struct hth_crypto *crypto;
    struct hth_secret owner, deputy, key, peer, successor;
    struct hth_closed_run run;
    struct hth_pubkey peer_pub;
    struct hth_peer_id peer_id;
    struct hth_cert cert, deputy_cert, successor_cert; /* as they will be signed: change them */
    struct hth_invite invite;
};

void party_init(struct party *p);
/* Signs the certificates into p->invite: by the owner, or by the deputy that the owner signed. */
void party_sign(struct party *p, bool by_deputy);
/* Signs the certificate by the owner's successor, through a deputy of its own or not. */
void party_sign_by_successor(struct party *p, bool by_deputy);
/* Judges credentials of what was signed last, at that time, by what p->run knows. */
enum hth_err party_judge(const struct party *p, int64_t wall_us, struct hth_grant *grant);
/* The credentials of p->peer; returns their length. */
size_t party_creds(const struct party *p, uint8_t out[HTH_CREDS_BYTES_MAX]);
/* Signs, makes credentials and judges them at NOW_US. */
enum hth_err party_verdict(struct party *p, bool by_deputy, struct hth_grant *grant);

#endif
