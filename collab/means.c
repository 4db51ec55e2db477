/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/means.h"

#include "core/mem.h"

#include <string.h>

/* A mean is kept so long after its step, and after it was last asked for: a member that missed
 * steps of milliseconds asks for several. Or for two steps: a member whose line carries one mean a
 * step asks for the next one only then. */
#define HOLD_US (3 * HTH_US_PER_S)

#define CHUNK_VALUES (64u << 10) /* of a mean */

/* The first chunks share the line, and the last of them says what a chunk takes. Until then, and
 * unless an earlier mean told, a chunk may take FIRST_US; then so many times what it takes. On its
 * second turn a holder has all the time that one may take, as on 1 Mbit/s behind replies that
 * nobody waits for any more. */
#define FIRST_US       (3 * HTH_US_PER_S)
#define TIMEOUT_FACTOR 4
#define CHUNK_MIN_US   (500 * HTH_US_PER_MS)
#define CHUNK_MAX_US   (30 * HTH_US_PER_S)

/* A slow holder makes the next ones' time longer by that factor at most. */
#define SLOWER 1.1

struct kept_mean {
    struct hth_hash head;
    uint64_t step;
    struct hth_blob *mean;
    int64_t until_us; /* stays until then, if there is room */
    bool drawn;       /* its bytes were taken from the budget */
};

/* A reply that its reader has not read yet. */
struct mean_read {
    struct mean_read *next;
    struct hth_means *means; /* NULL: freed */
    struct hth_peer_id by;
    struct hth_blob *mean;
    bool stale; /* counted as one whose mean is not kept any more */
};

struct hth_means {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_budget *budget;
    struct kept_mean kept[HTH_MEANS_MAX]; /* ascending by step */
    uint32_t count;
    uint64_t from;
    int64_t put_us, step_us; /* when the last mean came, and how long after the one before */
    struct mean_read *reads, **reads_end; /* the oldest first */
    struct hth_means_stats stats;
    double chunk_us; /* that fetched chunks took; 0: not known */
};

/* ---- digests --------------------------------------------------------------------------------- */

static uint64_t mean_blocks(uint64_t values)
{
    return (values + HTH_MEAN_BLOCK - 1) / HTH_MEAN_BLOCK;
}

/* A hash for each block, of values that begin at one. */
static void mean_hash_blocks(const struct hth_crypto *crypto, const float *values, uint64_t count,
                             struct hth_hash *out)
{
    for (uint64_t at = 0; at < count; at += HTH_MEAN_BLOCK) {
        uint64_t n = HTH_MIN(count - at, (uint64_t)HTH_MEAN_BLOCK);
        crypto->hash(values + at, n * sizeof(*values), out++);
    }
}

void hth_mean_digest(const struct hth_crypto *crypto, const float *values, uint64_t count,
                     struct hth_hash *out)
{
    struct hth_hash *hashes = hth_new_array(struct hth_hash, mean_blocks(count));
    mean_hash_blocks(crypto, values, count, hashes);
    crypto->hash(hashes, mean_blocks(count) * sizeof(*hashes), out);
    hth_free(hashes);
}

/* ---- the request ----------------------------------------------------------------------------- */

static void request(struct hth_wire *io, struct hth_mean_msg *m)
{
    hth_wire_version(io, 1);
    hth_wire_bytes(io, &m->head, sizeof(m->head));
    hth_wire_u64(io, &m->first);
    hth_wire_check(io, m->first % HTH_MEAN_BLOCK == 0);
    hth_wire_u32(io, &m->values);
    hth_wire_check(io, hth_reader_left(&io->r) == 0);
    hth_wire_expect(io, m->values > 0, HTH_E_RANGE);
    hth_wire_expect(io, m->values <= HTH_MEAN_BYTES_MAX / sizeof(float), HTH_E_TOO_LARGE);
}

HTH_WIRE_PAIR(hth_mean_msg, struct hth_mean_msg, request, HTH_MEAN_MSG_BYTES)

/* ---- readers --------------------------------------------------------------------------------- */

/* The last reference to a reply's bytes was dropped: they were sent, or the connection is gone. */
static void on_read(void *arg, void *data)
{
    struct mean_read *read = arg;
    struct hth_means *means = read->means;
    (void)data;
    if (means != NULL) {
        struct mean_read **at = &means->reads;
        while (*at != read)
            at = &(*at)->next;
        *at = read->next;
        if (means->reads_end == &read->next)
            means->reads_end = at;
        means->stats.reads--;
        means->stats.stale -= read->stale;
    }
    hth_blob_unref(read->mean);
    hth_free(read);
}

/* Bytes of a mean as a blob of their own, which tells when they were read. A ghost has no bytes to
 * hold. */
static struct hth_blob *read_new(struct hth_means *means, const struct hth_peer_id *by,
                                 struct hth_blob *mean, size_t offset, size_t len)
{
    if (mean->data == NULL)
        return hth_blob_ghost(len, mean->digest);
    struct mean_read *read = hth_new(struct mean_read);
    *read = (struct mean_read){.means = means, .by = *by, .mean = hth_blob_ref(mean)};
    *means->reads_end = read;
    means->reads_end = &read->next;
    means->stats.reads++;
    return hth_blob_wrap(mean->data + offset, len, on_read, read);
}

static uint32_t reads_of(const struct hth_means *means, const struct hth_peer_id *peer)
{
    uint32_t n = 0;
    for (const struct mean_read *r = means->reads; r != NULL; r = r->next)
        n += hth_peer_id_eq(&r->by, peer);
    return n;
}

/* The mean is let go: its readers alone hold it from now on. */
static void note_stale(struct hth_means *means, const struct hth_blob *mean)
{
    for (struct mean_read *r = means->reads; r != NULL; r = r->next)
        if (r->mean == mean) {
            r->stale = true;
            means->stats.stale++;
        }
    while (means->stats.stale > HTH_MEAN_STALE_MAX) {
        struct mean_read *oldest = means->reads;
        char id[HTH_PEER_SHORT_LEN];
        while (!oldest->stale)
            oldest = oldest->next;
        oldest->stale = false;
        means->stats.stale--;
        struct hth_peer_id by = oldest->by;
        HTH_LOG(means->env, HTH_WARN, HTH_SUB_AVG,
                "peer %s does not read the means that it asks "
                "for: disconnected",
                hth_peer_id_short(&by, id));
        hth_rpc_disconnect(means->rpc, &by);
    }
}

/* ---- keeping --------------------------------------------------------------------------------- */

static void let_go(struct hth_means *means, uint32_t at)
{
    struct kept_mean gone = means->kept[at];
    memmove(&means->kept[at], &means->kept[at + 1], (--means->count - at) * sizeof(means->kept[0]));
    if (gone.drawn)
        hth_budget_give(means->budget, gone.mean->size);
    note_stale(means, gone.mean);
    hth_blob_unref(gone.mean);
}

/* The last mean is followed by another, and has to draw on the budget from now on. The oldest make
 * room for it. */
static void draw_last(struct hth_means *means)
{
    struct kept_mean *last = &means->kept[means->count - 1];
    if (means->budget == NULL)
        return;
    while (hth_budget_take(means->budget, last->mean->size) != HTH_OK) {
        bool none_left = means->count == 1;
        let_go(means, 0);
        if (none_left)
            return;
        last = &means->kept[means->count - 1];
    }
    last->drawn = true;
}

static int64_t hold_until(const struct hth_means *means)
{
    return hth_now_us(means->env) + HTH_MAX(HOLD_US, 2 * means->step_us);
}

static void tidy(struct hth_means *means)
{
    int64_t now = hth_now_us(means->env);
    while (means->count > 1 && means->kept[0].step <= means->from && means->kept[0].until_us <= now)
        let_go(means, 0);
}

void hth_means_put(struct hth_means *means, const struct hth_hash *head, uint64_t step,
                   struct hth_blob *mean)
{
    while (means->count > 0 && means->kept[means->count - 1].step >= step)
        let_go(means, means->count - 1);
    while (means->count > 0 && means->kept[means->count - 1].step + 1 != step)
        let_go(means, 0); /* they do not lead here */
    if (means->count == HTH_MEANS_MAX)
        let_go(means, 0);
    if (means->count > 0 && !means->kept[means->count - 1].drawn)
        draw_last(means);
    if (means->put_us != 0)
        means->step_us = hth_now_us(means->env) - means->put_us;
    means->put_us = hth_now_us(means->env);
    means->kept[means->count++] = (struct kept_mean){
        .head = *head, .step = step, .mean = hth_blob_ref(mean), .until_us = hold_until(means)};
    tidy(means);
}

void hth_means_keep_from(struct hth_means *means, uint64_t step)
{
    means->from = step;
    tidy(means);
}

void hth_means_stats(const struct hth_means *means, struct hth_means_stats *out)
{
    *out = means->stats;
    out->kept = means->count;
    out->first = means->count > 0 ? means->kept[0].step : 0;
}

/* ---- serving --------------------------------------------------------------------------------- */

static struct kept_mean *find(struct hth_means *means, const struct hth_hash *head)
{
    for (uint32_t i = means->count; i-- > 0;)
        if (memcmp(&means->kept[i].head, head, sizeof(*head)) == 0)
            return &means->kept[i];
    return NULL;
}

/* HTH_OK: it is answered with values of `mean`. */
static enum hth_err judge(struct hth_means *means, const struct hth_rpc_request *req,
                          struct hth_mean_msg *msg, struct hth_blob **mean, const char **text)
{
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    *text = "not a request for a mean";
    HTH_TRY(hth_mean_msg_read(bytes, len, msg));
    struct kept_mean *kept = find(means, &msg->head);
    *text = "that mean is not kept here";
    if (kept == NULL)
        return HTH_E_NOT_FOUND;
    *mean = kept->mean;
    uint64_t count = kept->mean->size / sizeof(float);
    kept->until_us = hold_until(means);
    *text = "the mean has fewer values";
    if (msg->first >= count || msg->values > count - msg->first)
        return HTH_E_RANGE;
    *text = "read the replies first";
    return reads_of(means, hth_rpc_peer(req)) < HTH_MEAN_READS_MAX ? HTH_OK : HTH_E_BUSY;
}

static void on_mean(void *arg, struct hth_rpc_request *req)
{
    struct hth_means *means = arg;
    struct hth_mean_msg msg;
    struct hth_blob *mean;
    const char *text;
    enum hth_err err = judge(means, req, &msg, &mean, &text);
    if (err != HTH_OK) {
        hth_rpc_refuse(req, err, 0, text);
        return;
    }
    struct hth_tensor part = {.dtype = HTH_F32, .ndim = 1, .dim = {msg.values}};
    const struct hth_rpc_body body = {.tensors = &part, .tensor_count = 1};
    part.blob = read_new(means, hth_rpc_peer(req), mean, msg.first * sizeof(float),
                         msg.values * sizeof(float));
    hth_rpc_reply(req, &body);
    hth_blob_unref(part.blob);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct hth_means *hth_means_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_budget *budget)
{
    struct hth_means *means = hth_new(struct hth_means);
    means->env = env;
    means->rpc = rpc;
    means->budget = budget;
    means->from = UINT64_MAX;
    means->reads_end = &means->reads;
    hth_rpc_serve(rpc, HTH_MEAN_METHOD, on_mean, means);
    return means;
}

void hth_means_free(struct hth_means *means)
{
    if (means == NULL)
        return;
    hth_rpc_serve(means->rpc, HTH_MEAN_METHOD, NULL, NULL);
    for (struct mean_read *r = means->reads; r != NULL; r = r->next)
        r->means = NULL;
    for (uint32_t i = 0; i < means->count; i++) {
        if (means->kept[i].drawn)
            hth_budget_give(means->budget, means->kept[i].mean->size);
        hth_blob_unref(means->kept[i].mean);
    }
    hth_free(means);
}

/* ---- fetching -------------------------------------------------------------------------------- */

/* TURN    chunks in flight from one holder; a job copies each and hashes its blocks
 *           it fails -> its jobs end -> TURN of the next holder
 * SEAL    all chunks are there: a job compares the digest */

struct chunk_ask {
    struct hth_mean_fetch *fetch;
    struct hth_rpc_call *call; /* NULL: free */
    uint32_t chunk;
    int64_t sent_us;
};

struct hth_mean_fetch {
    struct hth_means *means;
    struct hth_mean_fetch_opts opts;
    struct hth_holders holders; /* that are left: it is the first one's turn */
    uint32_t firsts;            /* so many of them had none before */
    bool gone;        /* somebody that answered does not keep it */
    enum hth_err err; /* that ended this turn; HTH_OK: it goes on */
    struct hth_blob *mean;
    struct hth_hash *hashes; /* of blocks */
    uint32_t chunks, next, done;
    struct chunk_ask ask[HTH_MEAN_ASKS];
    double chunk_us; /* the longest of this turn */
    struct hth_timer *timer;
    uint32_t jobs;
    bool freed;
};

/* Copies a chunk to its place and hashes its blocks; or compares the digest of all. */
struct chunk_job {
    struct hth_job job;
    struct hth_mean_fetch *fetch;
    const struct hth_crypto *crypto;
    struct hth_blob *from; /* NULL: all are there */
    size_t offset;
    uint64_t first, values;
    bool bad;
};

static void pump(struct hth_mean_fetch *f);

/* ---- turns ----------------------------------------------------------------------------------- */

static void cancel_asks(struct hth_mean_fetch *f)
{
    for (uint32_t i = 0; i < HTH_MEAN_ASKS; i++) {
        if (f->ask[i].call != NULL)
            hth_rpc_cancel(f->ask[i].call);
        f->ask[i].call = NULL;
    }
}

/* The present holder's turn ends. */
static void fail(struct hth_mean_fetch *f, enum hth_err err, const char *why)
{
    char id[HTH_PEER_SHORT_LEN], head[2 * 4 + 1];
    if (f->err != HTH_OK)
        return;
    hth_hex(f->opts.head.b, 4, head);
    HTH_LOG(f->means->env, err == HTH_E_PROTOCOL ? HTH_WARN : HTH_INFO, HTH_SUB_AVG,
            "mean of link %s: peer %s is left out: %s", head,
            hth_peer_id_short(&f->holders.peer[0].id, id), why);
    f->err = err;
    f->gone |= err == HTH_E_NOT_FOUND;
    cancel_asks(f);
}

/* Returns whether a holder is left. One that was silent has a second turn behind all others. */
static bool next_turn(struct hth_mean_fetch *f)
{
    const struct hth_roll_peer last = f->holders.peer[0];
    bool silent = f->err == HTH_E_TIMEOUT || f->err == HTH_E_BUSY;
    hth_holders_drop(&f->holders, &last.id);
    if (f->firsts > 0 && silent)
        hth_holders_add(&f->holders, &last);
    f->firsts -= f->firsts > 0;
    if (f->holders.count == 0 || (f->firsts == 0 && f->gone))
        return false;
    f->next = f->done = 0;
    f->chunk_us = 0;
    f->err = HTH_OK;
    return true;
}

/* All of the mean is there, and its digest is the link's. */
static void finish(struct hth_mean_fetch *f)
{
    double *learnt = &f->means->chunk_us;
    *learnt = *learnt == 0 || f->firsts == 0 ? f->chunk_us : HTH_MIN(f->chunk_us, SLOWER * *learnt);
    f->opts.done(f->opts.arg, HTH_OK, f->mean, &f->holders.peer[0].id); /* may free it */
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static void job_run(struct hth_job *job)
{
    struct chunk_job *c = HTH_CONTAINER(job, struct chunk_job, job);
    struct hth_mean_fetch *f = c->fetch;
    float *into = (float *)(void *)f->mean->data + c->first;
    if (c->from != NULL) {
        memcpy(into, c->from->data + c->offset, c->values * sizeof(*into));
        mean_hash_blocks(c->crypto, into, c->values, &f->hashes[c->first / HTH_MEAN_BLOCK]);
        return;
    }
    struct hth_hash digest;
    c->crypto->hash(f->hashes, mean_blocks(c->values) * sizeof(*f->hashes), &digest);
    c->bad = memcmp(&digest, &f->opts.digest, sizeof(digest)) != 0;
}

static void destroy(struct hth_mean_fetch *f)
{
    hth_blob_unref(f->mean);
    hth_free(f->hashes);
    hth_free(f);
}

static void job_done(struct hth_job *job, enum hth_err err)
{
    struct chunk_job *c = HTH_CONTAINER(job, struct chunk_job, job);
    struct hth_mean_fetch *f = c->fetch;
    bool sealed = c->from == NULL && !c->bad && err == HTH_OK;
    bool bad = c->bad;
    hth_blob_unref(c->from);
    hth_free(c);
    f->jobs--;
    if (f->freed) {
        if (f->jobs == 0)
            destroy(f);
        return;
    }
    if (bad)
        fail(f, HTH_E_PROTOCOL, "its values are not those that the link's digest is of");
    else if (err != HTH_OK)
        fail(f, err, hth_err_text(err));
    f->done++;
    if (sealed)
        finish(f);
    else
        pump(f);
}

static enum hth_err submit(struct hth_mean_fetch *f, struct hth_blob *from, size_t offset,
                           uint64_t first, uint64_t values)
{
    struct chunk_job *c = hth_new(struct chunk_job);
    double bytes = (double)values * (from != NULL ? sizeof(float) : sizeof(float) / 512.0);
    c->fetch = f;
    c->crypto = f->means->env->crypto;
    c->from = from == NULL ? NULL : hth_blob_ref(from);
    c->offset = offset;
    c->first = first;
    c->values = values;
    c->job.lane = HTH_LANE_COMPUTE;
    c->job.run = job_run;
    c->job.done = job_done;
    c->job.bytes_moved = 3 * bytes;
    c->job.flops = 4 * bytes;
    enum hth_err err = hth_job_submit(f->means->env, &c->job);
    if (err != HTH_OK) {
        hth_blob_unref(c->from);
        hth_free(c);
        return err;
    }
    f->jobs++;
    return HTH_OK;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static uint64_t values_of(const struct hth_mean_fetch *f, uint32_t chunk)
{
    return HTH_MIN(CHUNK_VALUES, f->opts.values - chunk * (uint64_t)CHUNK_VALUES);
}

static enum hth_err take_chunk(struct hth_mean_fetch *f, uint32_t chunk,
                               const struct hth_rpc_result *r)
{
    const struct hth_tensor *t = r->tensors;
    if (r->tensor_count != 1 || t->dtype != HTH_F32 || t->ndim != 1 ||
        t->dim[0] != values_of(f, chunk))
        return HTH_E_BAD_SHAPE;
    return submit(f, t->blob, t->offset, chunk * (uint64_t)CHUNK_VALUES, t->dim[0]);
}

static void on_chunk(void *arg, const struct hth_rpc_result *r)
{
    struct chunk_ask *a = arg;
    struct hth_mean_fetch *f = a->fetch;
    enum hth_err err = r->err;
    double took_us = (double)(hth_now_us(f->means->env) - a->sent_us);
    a->call = NULL;
    if (err == HTH_OK) {
        f->means->stats.fetched += values_of(f, a->chunk) * sizeof(float);
        f->chunk_us = HTH_MAX(f->chunk_us, took_us);
        err = take_chunk(f, a->chunk, r);
    }
    if (err != HTH_OK)
        fail(f, err, r->remote ? r->text : hth_err_text(err));
    pump(f);
}

static int64_t timeout_us(const struct hth_mean_fetch *f)
{
    double us = (double)FIRST_US;
    if (f->firsts == 0)
        return CHUNK_MAX_US;
    if (f->means->chunk_us > 0)
        us = TIMEOUT_FACTOR * f->means->chunk_us;
    else if (f->done >= HTH_MEAN_ASKS)
        us = TIMEOUT_FACTOR * f->chunk_us;
    return (int64_t)HTH_MIN(HTH_MAX(us, (double)CHUNK_MIN_US), (double)CHUNK_MAX_US);
}

static enum hth_err ask_chunk(struct hth_mean_fetch *f, struct chunk_ask *a)
{
    const struct hth_roll_peer *holder = &f->holders.peer[0];
    const struct hth_rpc_target target = {.peer = holder->id, .addr = holder->addr};
    const struct hth_mean_msg msg = {.head = f->opts.head,
                                     .first = f->next * (uint64_t)CHUNK_VALUES,
                                     .values = (uint32_t)values_of(f, f->next)};
    uint8_t payload[HTH_MEAN_MSG_BYTES];
    const struct hth_rpc_call_opts call = {
        .method = HTH_MEAN_METHOD,
        .timeout_us = timeout_us(f),
        .body = {.payload = payload, .payload_len = sizeof(payload)}};
    hth_mean_msg_write(&msg, payload);
    a->chunk = f->next++;
    a->sent_us = hth_now_us(f->means->env);
    return hth_rpc_call(f->means->rpc, &target, &call, on_chunk, a, &a->call);
}

/* Asks for chunks; with all of them here, compares the digest. */
static enum hth_err go_on(struct hth_mean_fetch *f)
{
    if (f->done == f->chunks)
        return submit(f, NULL, 0, 0, f->opts.values);
    for (uint32_t i = 0; i < HTH_MEAN_ASKS && f->next < f->chunks; i++)
        if (f->ask[i].call == NULL)
            HTH_TRY(ask_chunk(f, &f->ask[i]));
    return HTH_OK;
}

static void pump(struct hth_mean_fetch *f)
{
    for (;;) {
        if (f->err == HTH_OK) {
            enum hth_err err = go_on(f);
            if (err != HTH_OK)
                fail(f, err, hth_err_text(err));
        }
        if (f->err == HTH_OK || f->jobs > 0) /* jobs of this turn write to the mean */
            return;
        enum hth_err last = f->gone ? HTH_E_NOT_FOUND : f->err;
        if (!next_turn(f)) {
            f->opts.done(f->opts.arg, last, NULL, NULL); /* may free it */
            return;
        }
    }
}

static void on_timer(void *arg)
{
    pump(arg);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_mean_fetch_new(struct hth_means *means, const struct hth_mean_fetch_opts *opts,
                                struct hth_mean_fetch **out)
{
    *out = NULL;
    if (opts->values == 0 || opts->values > HTH_PARAMS_FLOATS_MAX || opts->holders->count == 0)
        return HTH_E_CONFIG;
    struct hth_hash *hashes = hth_try_calloc(mean_blocks(opts->values), sizeof(*hashes));
    if (hashes == NULL)
        return HTH_E_NO_MEMORY;
    struct hth_mean_fetch *f = hth_new(struct hth_mean_fetch);
    f->hashes = hashes;
    enum hth_err err =
        hth_env_blob_new(means->env, opts->values * sizeof(float), NULL, &f->mean);
    if (err != HTH_OK) {
        destroy(f);
        return err;
    }
    f->means = means;
    f->opts = *opts;
    f->holders = *opts->holders;
    f->firsts = f->holders.count;
    f->opts.holders = NULL;
    f->chunks = (uint32_t)((opts->values + CHUNK_VALUES - 1) / CHUNK_VALUES);
    for (uint32_t i = 0; i < HTH_MEAN_ASKS; i++)
        f->ask[i].fetch = f;
    f->timer = hth_timer_new(means->env, on_timer, f);
    hth_timer_set(means->env, f->timer, 0);
    *out = f;
    return HTH_OK;
}

void hth_mean_fetch_free(struct hth_mean_fetch *f)
{
    if (f == NULL)
        return;
    cancel_asks(f);
    hth_timer_free(f->means->env, f->timer);
    f->freed = true;
    if (f->jobs == 0)
        destroy(f);
}
