/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raise.h: a peer on probation becomes a member without a message from person to person.
 *
 *   hearth owner promote --auto          host or trainer                      peer on probation
 *                                        witnesses its work (witness.h)
 *   reads DIR/witnessed  <-------------- writes it, each minute
 *   signs for a key that is due
 *   writes DIR/raise-KEY  -------------> reads it, each minute
 *                                        RAISE (certificate and chain) -----> judges and keeps it,
 *                                                                             and shows it from
 *                                                                             now on
 *
 * DIR is the state folder of the one in the middle, which has no key that signs. A certificate is
 * no secret, and of use to one key only. KEY are the first 16 hex digits of the public key.
 *
 * Loop thread only. Small files are read and written there, each minute.
 */
#ifndef HTH_RPC_RAISE_H
#define HTH_RPC_RAISE_H

#include "admission/witness.h"
#include "rpc/rpc.h"

#define HTH_RPC_RAISE       4 /* the method */
#define HTH_RAISE_EVERY_US  (60 * HTH_US_PER_S)

#define HTH_RAISE_WITNESSED "witnessed"
#define HTH_RAISE_FILE      "raise-%.16s"

struct hth_raise;

/* For our own key. An error is the answer to the one who sent it. */
typedef enum hth_err hth_raise_take_fn(void *arg, const void *certs, size_t len);

struct hth_raise_opts {
    struct hth_witness *witness; /* the endpoint's; must outlive this */
    const char *dir;             /* the state folder; copied */
    hth_raise_take_fn *take;
    void *arg;
};

/* Reads DIR/witnessed; one that can't be read is logged, and the times begin anew. Serves the
 * method until it is freed. */
struct hth_raise *hth_raise_new(struct hth_env *env, struct hth_rpc *rpc,
                                const struct hth_raise_opts *opts);
/* Before the endpoint; writes the file. NULL is fine. */
void hth_raise_free(struct hth_raise *raise);

#endif
