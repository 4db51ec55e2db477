/* SPDX-License-Identifier: Apache-2.0 */
/* run_fetch.c: gives the run file, and asks others for it, one at a time. */
#include "cli/run_fetch.h"

#include "cli/config.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

#define ANSWER_US (10 * HTH_US_PER_S)
#define AGAIN_US  (2 * HTH_US_PER_S)

struct hth_run_fetch {
    struct hth_env *env;
    struct hth_run_fetch_opts opts;
    struct hth_rpc *rpc;
    struct hth_timer *timer; /* until the next question */
    struct hth_addr addr[HTH_RUN_FETCH_ADDRS_MAX];
    size_t count, next;
};

/* ---- giving -------------------------------------------------------------------------------- */

void hth_run_give(void *blob, struct hth_rpc_request *req)
{
    struct hth_blob *text = blob;
    struct hth_tensor t = {.dtype = HTH_U8, .ndim = 1, .dim = {text->size}, .blob = text};
    const struct hth_rpc_body body = {.tensors = &t, .tensor_count = 1};
    hth_rpc_reply(req, &body);
}

/* ---- judging ------------------------------------------------------------------------------- */

enum hth_err hth_run_judge(const struct hth_crypto *crypto, const struct hth_invite *invite,
                           const char *name, const uint8_t *data, size_t len,
                           struct hth_runfile **out, char error[HTH_RUNFILE_ERROR_MAX])
{
    struct hth_hash file;
    struct hth_closed_run run;
    HTH_TRY(hth_runfile_parse(name, data, len, out, error));
    if (hth_config_closed(*out, crypto, &file, &run) &&
        memcmp(&file, &invite->run_file, sizeof(file)) == 0 &&
        memcmp(&run.owner, &invite->owner, sizeof(run.owner)) == 0 &&
        (*out)->admission.is_private == invite->is_private) {
        hth_free((*out)->data.path);
        (*out)->data.path = NULL;
        return HTH_OK;
    }
    hth_runfile_free(*out);
    *out = NULL;
    snprintf(error, HTH_RUNFILE_ERROR_MAX, "%s: not the run file that the invite to '%s' names",
             name, invite->run);
    return HTH_E_PASS_OTHER_RUN;
}

/* ---- asking -------------------------------------------------------------------------------- */

static enum hth_err take(struct hth_run_fetch *f, const struct hth_rpc_result *r,
                         struct hth_runfile **out, char error[HTH_RUNFILE_ERROR_MAX])
{
    uint64_t bytes;
    const struct hth_tensor *t = r->tensors;
    snprintf(error, HTH_RUNFILE_ERROR_MAX, "%s",
             r->text[0] != '\0' ? r->text : hth_err_text(r->err));
    HTH_TRY(r->err);
    if (r->tensor_count != 1 || t->dtype != HTH_U8 || t->ndim != 1 || t->blob == NULL ||
        hth_tensor_bytes(t, &bytes) != HTH_OK || bytes > HTH_RUNFILE_BYTES_MAX) {
        snprintf(error, HTH_RUNFILE_ERROR_MAX, "its answer has no run file");
        return HTH_E_PROTOCOL;
    }
    return hth_run_judge(f->env->crypto, f->opts.invite, "its run file", t->blob->data + t->offset,
                         bytes, out, error);
}

static void on_reply(void *arg, const struct hth_rpc_result *r)
{
    struct hth_run_fetch *f = arg;
    struct hth_runfile *run;
    char error[HTH_RUNFILE_ERROR_MAX];
    enum hth_err err = take(f, r, &run, error);
    if (err == HTH_OK) {
        f->opts.done(f->opts.arg, run);
        return;
    }
    for (char *c = error; *c != '\0'; c++) /* it quotes the peer's bytes, for a terminal */
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    f->opts.refused(f->opts.arg, &f->addr[f->next - 1], err, error);
    hth_timer_set(f->env, f->timer, f->next < f->count ? 0 : AGAIN_US);
}

static void on_timer(void *arg)
{
    struct hth_run_fetch *f = arg;
    const struct hth_rpc_call_opts call = {.method = HTH_METHOD_RUN, .timeout_us = ANSWER_US};
    if (f->next == f->count) {
        f->next = 0;
        f->count = f->opts.addrs(f->opts.arg, f->addr);
    }
    if (f->count == 0) {
        hth_timer_set(f->env, f->timer, AGAIN_US);
        return;
    }
    const struct hth_rpc_target target = {.addr = f->addr[f->next++]};
    if (hth_rpc_call(f->rpc, &target, &call, on_reply, f, NULL) != HTH_OK)
        hth_timer_set(f->env, f->timer, AGAIN_US);
}

enum hth_err hth_run_fetch_new(struct hth_env *env, const struct hth_run_fetch_opts *opts,
                               struct hth_run_fetch **out)
{
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_run_fetch *f = hth_new(struct hth_run_fetch);
    f->env = env;
    f->opts = *opts;
    rpc.network = opts->network;
    rpc.admission = opts->admission;
    rpc.body_bytes_max = HTH_RUNFILE_BYTES_MAX; /* a longer one is refused before it is read */
    enum hth_err err = hth_rpc_new(env, &rpc, &f->rpc);
    if (err != HTH_OK) {
        hth_free(f);
        return err;
    }
    f->timer = hth_timer_new(env, on_timer, f);
    hth_timer_set(env, f->timer, 0);
    *out = f;
    return HTH_OK;
}

void hth_run_fetch_free(struct hth_run_fetch *f)
{
    if (f == NULL)
        return;
    hth_rpc_free(f->rpc);
    hth_timer_free(f->env, f->timer);
    hth_free(f);
}
