/* SPDX-License-Identifier: Apache-2.0 */
/* raise.c: see raise.h. */
#include "rpc/raise.h"

#include "core/bytes.h"
#include "core/mem.h"

#include <string.h>

#define TIMEOUT_US      (10 * HTH_US_PER_S)
#define CERTS_BYTES_MAX (HTH_CERT_BYTES_MAX + HTH_CHAIN_BYTES_MAX)

struct hth_raise {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_raise_opts opts;
    char *dir, *path; /* path: of DIR/witnessed */
    struct hth_timer *timer;
    size_t written; /* bytes of it; a file without peers is not begun */
    struct hth_rpc_call *call[HTH_WITNESS_MAX];
};

/* ---- the one in the middle ----------------------------------------------------------------- */

static void load(struct hth_raise *r)
{
    struct hth_blob *blob;
    enum hth_err err = hth_file_read(r->env, r->path, HTH_WITNESS_BYTES_MAX, &blob);
    if (err == HTH_OK) {
        err = hth_witness_read(r->opts.witness, blob->data, blob->size);
        hth_blob_unref(blob);
    }
    if (err != HTH_OK && err != HTH_E_NO_FILE)
        HTH_LOG(r->env, HTH_WARN, HTH_SUB_RPC, "%s: %s; the times in it begin anew", r->path,
                hth_err_text(err));
}

static void save(struct hth_raise *r)
{
    uint8_t bytes[HTH_WITNESS_BYTES_MAX];
    static const size_t empty = 6;
    size_t len = hth_witness_write(r->opts.witness, bytes);
    if (len == empty && r->written <= empty)
        return;
    struct hth_blob *blob = hth_blob_copy(bytes, len);
    struct hth_span span = {blob, 0, len};
    enum hth_err err = hth_file_write(r->env, r->path, &span, 1);
    hth_blob_unref(blob);
    r->written = len;
    if (err != HTH_OK)
        HTH_LOG(r->env, HTH_WARN, HTH_SUB_RPC, "%s: %s", r->path, hth_err_text(err));
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct hth_rpc_call **call = arg;
    (void)result; /* it comes back as a member, or is asked again */
    *call = NULL;
}

/* Sends a connected peer what was signed for it, if anything was. */
static void give(struct hth_raise *r, const struct hth_pubkey *key, struct hth_rpc_call **call)
{
    char hex[2 * HTH_PUBKEY_LEN + 1];
    const struct hth_rpc_target to = {.peer = hth_peer_id_of(r->env->crypto, key)};
    struct hth_blob *blob;
    hth_hex(key->b, sizeof(key->b), hex);
    char *path = hth_asprintf("%s/" HTH_RAISE_FILE, r->dir, hex);
    enum hth_err err = hth_file_read(r->env, path, CERTS_BYTES_MAX, &blob);
    if (err == HTH_OK) {
        const struct hth_rpc_call_opts opts = {
            .method = HTH_RPC_RAISE,
            .timeout_us = TIMEOUT_US,
            .body = {.payload = blob->data, .payload_len = blob->size}};
        if (hth_rpc_call(r->rpc, &to, &opts, on_answer, call, call) != HTH_OK)
            *call = NULL;
        hth_blob_unref(blob);
    } else if (err != HTH_E_NO_FILE) {
        HTH_LOG(r->env, HTH_WARN, HTH_SUB_RPC, "%s: %s", path, hth_err_text(err));
    }
    hth_free(path);
}

static void on_timer(void *arg)
{
    struct hth_raise *r = arg;
    struct hth_pubkey key;
    save(r);
    for (size_t it = 0; hth_witness_due(r->opts.witness, &it, &key);)
        if (r->call[it - 1] == NULL)
            give(r, &key, &r->call[it - 1]);
    hth_timer_set(r->env, r->timer, HTH_RAISE_EVERY_US);
}

/* ---- the peer that is raised --------------------------------------------------------------- */

static void on_raise(void *arg, struct hth_rpc_request *req)
{
    struct hth_raise *r = arg;
    size_t len;
    const uint8_t *certs = hth_rpc_payload(req, &len);
    enum hth_err err =
        len <= CERTS_BYTES_MAX ? r->opts.take(r->opts.arg, certs, len) : HTH_E_TOO_LARGE;
    if (err == HTH_OK)
        hth_rpc_reply(req, NULL);
    else
        hth_rpc_refuse(req, err, 0, NULL);
}

/* ---- life ---------------------------------------------------------------------------------- */

struct hth_raise *hth_raise_new(struct hth_env *env, struct hth_rpc *rpc,
                                const struct hth_raise_opts *opts)
{
    struct hth_raise *r = hth_new(struct hth_raise);
    r->env = env;
    r->rpc = rpc;
    r->opts = *opts;
    r->dir = hth_strdup(opts->dir);
    r->path = hth_asprintf("%s/" HTH_RAISE_WITNESSED, opts->dir);
    load(r);
    r->timer = hth_timer_new(env, on_timer, r);
    hth_timer_set(env, r->timer, HTH_RAISE_EVERY_US);
    hth_rpc_serve(rpc, HTH_RPC_RAISE, on_raise, r);
    return r;
}

void hth_raise_free(struct hth_raise *r)
{
    if (r == NULL)
        return;
    hth_rpc_serve(r->rpc, HTH_RPC_RAISE, NULL, NULL);
    for (size_t i = 0; i < HTH_ARRAY_LEN(r->call); i++)
        if (r->call[i] != NULL)
            hth_rpc_cancel(r->call[i]);
    save(r);
    hth_timer_free(r->env, r->timer);
    hth_free(r->path);
    hth_free(r->dir);
    hth_free(r);
}
