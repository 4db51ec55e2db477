/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.h: gets the weights of experts from the hosts that have them.
 *
 * It looks for each expert in the directory, asks its least loaded host, and after a refusal or a
 * lost connection asks the next one, or later again. A few are under way at once. An expert that
 * nobody gives within `patience_us` of the last one that came is given up with the last error;
 * E_NOT_FOUND: it has no host. One that is larger than a reply may be (body_bytes_max of our
 * rpc) is given up at once: E_TOO_LARGE.
 *
 * The bytes are a safetensors file by the protocol (experts/expert.proto) and not trusted: whoever
 * reads them checks them (experts/safetensors.h).
 *
 * Loop thread. It borrows env, rpc and directory. Callbacks never run inside these calls.
 */
#ifndef HTH_EXPERTS_FETCH_H
#define HTH_EXPERTS_FETCH_H

#include "dht/directory.h"
#include "rpc/rpc.h"

struct hth_fetch;

struct hth_fetch_opts {
    const struct hth_grid *grids; /* all of their experts are wanted; copied */
    uint32_t grid_count;
    const struct hth_layer_shape *shape;
    int64_t patience_us;
    /* Once for each expert: HTH_OK with its file, which the callback keeps, or the error. */
    void (*on_expert_take)(void *arg, const struct hth_uid *uid, enum hth_err err,
                           struct hth_blob *bytes);
    void *arg;
    /* Once, after the last expert; the caller then frees. */
    hth_fn *on_done;
    void *done_arg;
};

/* Errors: those of opening a layer of the directory. */
enum hth_err hth_fetch_new(struct hth_env *env, struct hth_rpc *rpc,
                           struct hth_directory *directory, const struct hth_fetch_opts *opts,
                           struct hth_fetch **out) HTH_MUST;
/* Ends what is under way. NULL is fine. */
void hth_fetch_free(struct hth_fetch *fetch);

#endif
