/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * client_int.h: declarations that the files of the client share.
 *
 *   batch   one call; owns copies of pairs and targets, and the verdicts
 *   group   one request: the pairs of one host in order of (target, unit); a run of one target is
 *           a part
 *   pack    a job that gathers the rows of some groups
 *
 * A group that fails may be dealt again: its pairs then form new groups on their replicas' hosts.
 * So each pair has a place, the group and the row in that group's tensors, where its answer lies.
 *
 * The key of a forward group that may be named later, and of every backward group, is `idem`. A
 * backward group whose host keeps the rows has the forward's key in `forward`, and no x.
 */
/* clang-format on */
#ifndef HTH_EXPERTS_CLIENT_INT_H
#define HTH_EXPERTS_CLIENT_INT_H

#include "core/limits.h"
#include "core/mem.h"
#include "experts/client.h"
#include "experts/message.h"
#include "experts/rows.h"
#include "experts/server.h"

struct cl_group {
    struct hth_expert_batch *batch;
    struct hth_rpc_target to;
    uint32_t *pairs; /* in the order of their rows */
    uint32_t pairs_count;
    uint32_t *coord, *rows; /* of the parts */
    enum hth_err *status;   /* of the parts: from the reply, then from judging their numbers */
    float *gain;            /* of the parts: the largest finite one */
    uint32_t parts;
    uint32_t rows_total;
    bool on_replica;
    bool settled;
    bool answered; /* to be judged */
    bool refused;  /* the host's last word was a refusal */
    int64_t rtt_us;
    enum hth_err err;
    struct hth_tensor x, dy, reply; /* blobs referenced; NULL while there are none */
    bool x_ready, dy_ready;         /* nothing to gather: the caller's own bytes, or done */
    struct hth_rpc_idem idem, forward;
    bool named; /* `forward` is sent instead of x */
    bool kept;  /* a forward: the host keeps x */
    struct hth_rpc_call *call;
    struct hth_timer *retry_timer;
    uint32_t busy_retries, lost_retries;
};

struct cl_place {
    uint32_t group;
    uint32_t part;
    uint32_t row; /* in the group's tensors */
};

struct hth_expert_batch {
    struct hth_expert_client *client; /* NULL after the callback */
    struct hth_expert_batch *prev, *next;
    struct hth_env *env;
    char layer[HTH_NAME_LEN_MAX + 1];
    uint32_t ndim, block_rows, d, units, rows_in_microbatch, k_min;
    enum hth_dtype wire;
    bool backward, keep;
    struct hth_tensor x, dy;
    struct hth_expert_target *targets;
    uint32_t *answered_by; /* per target: index of a group that answered for it, plus one */
    uint32_t targets_count;
    struct hth_expert_pair *pairs;
    uint32_t pairs_count;
    struct cl_place *places;
    enum hth_err *verdicts;
    uint16_t *left, *ok;  /* per unit: pairs without a verdict, pairs with an answer */
    uint32_t unsatisfied; /* units below k_min that may still reach it */
    struct cl_group **groups;
    uint32_t groups_count, groups_capacity, groups_open;
    uint32_t packs; /* jobs submitted and not done */
    bool in_call, finished, dead;
    struct hth_timer *deadline_timer, *grace_timer, *finish_timer;
    bool grace_armed;
    int64_t started_us, deadline_us, grace_us;
    double gain_max, gain_usual;
    uint64_t trace_id;
    struct hth_expert_batch_info info;
    hth_expert_batch_fn *done;
    void *arg;
};

struct hth_expert_client {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_expert_client_opts opts;
    struct hth_expert_batch *batches; /* under way */
    struct cl_info *infos;
    uint64_t idem_hi, idem_lo;
};

/* ---- client_pack.c ------------------------------------------------------------------------- */

/* Deals pairs to new groups by host, or by their replicas' hosts, and appends the groups to the
 * batch. Reorders `pairs`. Errors: E_DUPLICATE, E_NO_MEMORY. */
enum hth_err hth_cl_deal(struct hth_expert_batch *b, uint32_t *pairs, uint32_t count,
                         bool replica) HTH_MUST;
/* Makes backward groups name the forward's rows that their hosts keep. */
void hth_cl_name(struct hth_expert_batch *b, const struct hth_expert_batch *forward);
/* Gathers the rows of the groups first .. end - 1 in a job and sends each group; groups with
 * nothing to gather are sent at once. The caller sets `in_call`, so that no settled group finishes
 * the batch meanwhile. */
void hth_cl_pack(struct hth_expert_batch *b, uint32_t first, uint32_t end);
void hth_cl_group_free(struct cl_group *g);

/* ---- client_wire.c ------------------------------------------------------------------------- */

void hth_cl_send(struct cl_group *g);
/* Settles the group with `err`: gives each of its pairs a verdict. May finish the batch. */
void hth_cl_settle(struct cl_group *g, enum hth_err err);
/* Settles all open groups with `err`. May finish the batch. */
void hth_cl_cut(struct hth_expert_batch *b, enum hth_err err);

/* ---- client.c ------------------------------------------------------------------------------ */

void hth_cl_finish(struct hth_expert_batch *b);
/* Frees a dead batch when its last job has ended. */
void hth_cl_release(struct hth_expert_batch *b);

#endif
