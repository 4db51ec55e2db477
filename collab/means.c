/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/means_int.h"

#include "core/mem.h"

#include <string.h>

/* Programs that make something else of a request's bytes have another version. */
#define VERSION 1

/* A mean is kept for HOLD_US after its step, and for ASKED_US after it was last asked for: a member
 * that missed steps of milliseconds asks for several. Or for ASKED_STEPS steps, at most
 * ASKED_MAX_US: a member whose line carries one mean a step asks for the next one only then. */
#define HOLD_US      (1 * HTH_US_PER_S)
#define ASKED_US     (3 * HTH_US_PER_S)
#define ASKED_STEPS  2
#define ASKED_MAX_US (120 * HTH_US_PER_S)
#define BUSY_US  (100 * HTH_US_PER_MS)

/* ---- digests --------------------------------------------------------------------------------- */

uint64_t mean_blocks(uint64_t values)
{
    return (values + HTH_MEAN_BLOCK - 1) / HTH_MEAN_BLOCK;
}

void mean_hash_blocks(const struct hth_crypto *crypto, const float *values, uint64_t count,
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
    hth_wire_version(io, VERSION);
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
    means->kept[means->count++] = (struct kept_mean){.head = *head,
                                                     .step = step,
                                                     .mean = hth_blob_ref(mean),
                                                     .until_us = hth_now_us(means->env) + HOLD_US};
    tidy(means);
}

static int64_t asked_us(const struct hth_means *means)
{
    int64_t steps_us = HTH_MIN(means->step_us, ASKED_MAX_US / ASKED_STEPS) * ASKED_STEPS;
    return HTH_MAX(ASKED_US, steps_us);
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

static void refuse(struct hth_means *means, struct hth_rpc_request *req, enum hth_err err,
                   const char *text)
{
    means->stats.refused++;
    hth_rpc_refuse(req, err, err == HTH_E_BUSY ? BUSY_US : 0, text);
}

static void on_mean(void *arg, struct hth_rpc_request *req)
{
    struct hth_means *means = arg;
    struct hth_mean_msg msg;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    enum hth_err err = hth_mean_msg_read(bytes, len, &msg);
    if (err != HTH_OK) {
        refuse(means, req, err, "not a request for a mean");
        return;
    }
    struct kept_mean *kept = find(means, &msg.head);
    if (kept == NULL) {
        refuse(means, req, HTH_E_NOT_FOUND, "that mean is not kept here");
        return;
    }
    uint64_t count = kept->mean->size / sizeof(float);
    kept->until_us = hth_now_us(means->env) + asked_us(means);
    if (msg.first >= count || msg.values > count - msg.first) {
        refuse(means, req, HTH_E_RANGE, "the mean has fewer values");
    } else if (reads_of(means, hth_rpc_peer(req)) >= HTH_MEAN_READS_MAX) {
        refuse(means, req, HTH_E_BUSY, "read the replies first");
    } else {
        struct hth_tensor part = {.dtype = HTH_F32, .ndim = 1, .dim = {msg.values}};
        const struct hth_rpc_body body = {.tensors = &part, .tensor_count = 1};
        part.blob = read_new(means, hth_rpc_peer(req), kept->mean, msg.first * sizeof(float),
                             msg.values * sizeof(float));
        means->stats.served++;
        means->stats.bytes += part.blob->size;
        hth_rpc_reply(req, &body);
        hth_blob_unref(part.blob);
    }
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

uint64_t hth_means_fetched(const struct hth_means *means)
{
    return means->fetched;
}
