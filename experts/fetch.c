/* SPDX-License-Identifier: Apache-2.0 */
/* fetch.c: WEIGHTS requests, at most AT_ONCE at a time. */
#include "experts/fetch.h"

#include "core/mem.h"
#include "experts/message.h"
#include "experts/server.h"

#include <string.h>

#define AT_ONCE   4
#define LOOK_US   (100 * HTH_US_PER_MS)
#define ANSWER_US (60 * HTH_US_PER_S)
#define HOSTS_MAX 8

struct wanted {
    struct hth_fetch *of;
    struct hth_uid uid;
    uint32_t layer, index; /* in the directory */
    uint32_t tries;
    struct hth_rpc_call *call; /* NULL: none is under way */
    enum hth_err err;          /* the last one */
    bool over;
};

struct hth_fetch {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_directory *directory;
    struct hth_fetch_opts opts;
    struct hth_timer *timer;
    struct wanted *wanted;
    uint32_t count, left, asking;
    int64_t news_us; /* when the last expert came */
};

static void end(struct wanted *w, enum hth_err err, struct hth_blob *bytes)
{
    struct hth_fetch *f = w->of;

    w->over = true;
    f->left--;
    f->opts.on_expert_take(f->opts.arg, &w->uid, err, bytes);
}

/* The file in a reply: one tensor of bytes, copied out of the body. */
static struct hth_blob *file_of(const struct hth_rpc_result *r)
{
    struct hth_blob *out;
    uint64_t bytes;

    if (r->tensor_count != 1 || r->tensors[0].dtype != HTH_U8 || r->tensors[0].ndim != 1 ||
        hth_tensor_bytes(&r->tensors[0], &bytes) != HTH_OK)
        return NULL;
    out = hth_blob_try_new(bytes);
    if (out != NULL)
        memcpy(out->data, r->tensors[0].blob->data + r->tensors[0].offset, bytes);
    return out;
}

static void on_reply(void *arg, const struct hth_rpc_result *r)
{
    struct wanted *w = arg;
    struct hth_blob *bytes = r->err == HTH_OK ? file_of(r) : NULL;

    w->call = NULL;
    w->of->asking--;
    w->err = r->err == HTH_OK ? HTH_E_PROTOCOL : r->err;
    if (r->err == HTH_E_TOO_LARGE) /* for a reply, whoever gives it */
        end(w, r->err, NULL);
    if (bytes == NULL)
        return;
    w->of->news_us = hth_now_us(w->of->env);
    end(w, HTH_OK, bytes);
}

/* Asks the next of the expert's hosts, in turns. */
static void ask(struct wanted *w)
{
    struct hth_fetch *f = w->of;
    struct hth_host_ref hosts[HOSTS_MAX];
    uint8_t payload[HTH_UID_TEXT_MAX + 4];
    struct hth_rpc_call_opts call = {.method = HTH_METHOD_EXPERT_WEIGHTS, .timeout_us = ANSWER_US};
    size_t count = hth_directory_hosts_of(f->directory, w->layer, w->index, hosts, HOSTS_MAX);

    if (count == 0) {
        w->err = HTH_E_NOT_FOUND; /* a host that left may have been asked before it was known */
        return;
    }
    const struct hth_host_ref *host = &hosts[w->tries++ % count];
    const struct hth_rpc_target target = {.peer = host->id, .addr = host->addr};
    hth_weights_request_pack(&w->uid, payload, &call.body.payload_len);
    call.body.payload = payload;
    w->err = hth_rpc_call(f->rpc, &target, &call, on_reply, w, &w->call);
    f->asking += w->err == HTH_OK;
}

static void on_timer(void *arg)
{
    struct hth_fetch *f = arg;
    bool patient = hth_now_us(f->env) - f->news_us < f->opts.patience_us;

    for (uint32_t i = 0; i < f->count; i++) {
        struct wanted *w = &f->wanted[i];
        if (w->over || w->call != NULL)
            continue;
        if (patient && f->asking < AT_ONCE)
            ask(w);
        else if (!patient)
            end(w, w->err, NULL);
    }
    if (f->left == 0)
        f->opts.on_done(f->opts.done_arg);
    else
        hth_timer_set(f->env, f->timer, LOOK_US);
}

static enum hth_err add_grid(struct hth_fetch *f, const struct hth_grid *grid)
{
    uint32_t size = hth_grid_size(grid), layer;

    HTH_TRY(hth_directory_open_layer(f->directory, grid, f->opts.shape, &layer));
    f->wanted = hth_realloc(f->wanted, f->count + size, sizeof(*f->wanted));
    for (uint32_t i = 0; i < size; i++) {
        struct wanted *w = &f->wanted[f->count++];
        *w = (struct wanted){.of = f, .layer = layer, .index = i, .err = HTH_E_NOT_FOUND};
        memcpy(w->uid.name, grid->name, sizeof(w->uid.name));
        w->uid.ncoord = grid->ndim;
        hth_grid_coords(grid, i, w->uid.coord);
    }
    return HTH_OK;
}

enum hth_err hth_fetch_new(struct hth_env *env, struct hth_rpc *rpc,
                           struct hth_directory *directory, const struct hth_fetch_opts *opts,
                           struct hth_fetch **out)
{
    struct hth_fetch *f = hth_new(struct hth_fetch);

    *out = NULL;
    f->env = env;
    f->rpc = rpc;
    f->directory = directory;
    f->opts = *opts;
    f->timer = hth_timer_new(env, on_timer, f);
    f->news_us = hth_now_us(env);
    for (uint32_t i = 0; i < opts->grid_count; i++) {
        enum hth_err err = add_grid(f, &opts->grids[i]);
        if (err != HTH_OK) {
            hth_fetch_free(f);
            return err;
        }
    }
    f->left = f->count;
    hth_timer_set(env, f->timer, LOOK_US);
    *out = f;
    return HTH_OK;
}

void hth_fetch_free(struct hth_fetch *fetch)
{
    if (fetch == NULL)
        return;
    for (uint32_t i = 0; i < fetch->count; i++)
        if (fetch->wanted[i].call != NULL)
            hth_rpc_cancel(fetch->wanted[i].call);
    hth_timer_free(fetch->env, fetch->timer);
    hth_free(fetch->wanted);
    hth_free(fetch);
}
