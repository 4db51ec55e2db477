/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/heads.h"

#include "core/mem.h"
#include "dht/board.h"

#include <string.h>

#define RENEW_US (3 * HTH_US_PER_S) /* a later head is said after so long */

/* Another's record. */
struct record {
    struct hth_peer_id by;
    struct hth_head_note note;
    int64_t doubted_until_us;
    uint32_t told; /* by hth_heads_next, as the last one of so many */
    struct record *next;
};

struct hth_heads {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_topic topic;
    struct hth_board *board;
    struct hth_publisher *said; /* NULL: nothing was ever said */
    bool says;
    struct hth_head_note note;
    struct record *first; /* those that live */
    uint32_t told;
    hth_head_fn *heard;
    void *arg;
};

/* ---- bytes -------------------------------------------------------------------------------- */

static void head(struct hth_wire *io, struct hth_head_note *note)
{
    hth_wire_version(io, 1);
    hth_wire_bytes(io, &note->head, sizeof(note->head));
    hth_wire_u64(io, &note->step);
    hth_wire_u64(io, &note->samples);
    hth_wire_addr(io, &note->addr);
}

HTH_WIRE_PAIR(hth_head, struct hth_head_note, head, HTH_HEAD_BYTES_MAX)

/* ---- the board ---------------------------------------------------------------------------- */

static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_heads *heads = arg;
    struct hth_head_note note;
    HTH_TRY(hth_head_read(rec->payload, rec->payload_len, &note));
    if (hth_peer_id_eq(&rec->owner_id, &heads->env->self))
        return HTH_OK;
    struct record *r = *user;
    if (r == NULL) {
        *user = r = hth_new(struct record);
        r->next = heads->first;
        heads->first = r;
    }
    r->by = rec->owner_id;
    r->note = note;
    heads->heard(heads->arg, &note, &rec->owner_id);
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    (void)owner;
    (void)part;
    struct record **at = &((struct hth_heads *)arg)->first, *r = user;
    while (r != NULL && *at != r)
        at = &(*at)->next;
    if (r != NULL)
        *at = r->next;
    hth_free(r);
}

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    const struct hth_heads *heads = arg;
    uint8_t bytes[HTH_HEAD_BYTES_MAX];
    hth_write_bytes(w, bytes, hth_head_write(&heads->note, bytes));
    return w->err;
}

void hth_heads_topic(const struct hth_crypto *crypto, const char *network, uint64_t schema,
                     struct hth_topic *out)
{
    uint8_t name[4 + 8] = "head";
    hth_store_u64le(name + 4, schema);
    hth_topic_init(out, crypto, network, HTH_RECORD_HEAD, name, sizeof(name));
}

enum hth_err hth_heads_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                           uint64_t schema, hth_head_fn *heard, void *arg, struct hth_heads **out)
{
    static const struct hth_board_ops ops = {.on_record = on_record, .on_gone = on_gone};
    struct hth_heads *heads = hth_new(struct hth_heads);
    *heads = (struct hth_heads){.env = env, .dht = dht, .heard = heard, .arg = arg};
    hth_heads_topic(env->crypto, network, schema, &heads->topic);
    enum hth_err err = hth_board_new(env, dht, &heads->topic, NULL, &ops, heads, &heads->board);
    *out = err == HTH_OK ? heads : NULL;
    if (err != HTH_OK)
        hth_free(heads);
    return err;
}

void hth_heads_free(struct hth_heads *heads)
{
    if (heads == NULL)
        return;
    hth_publisher_free(heads->said);
    hth_board_free(heads->board);
    hth_free(heads);
}

void hth_heads_say(struct hth_heads *heads, const struct hth_head_note *note)
{
    static const struct hth_publisher_opts opts = {.life_us = HTH_HEAD_LIFE_US};
    bool says = note != NULL;
    bool first = says && heads->says && hth_head_is_none(&heads->note.head);
    enum hth_err err = HTH_OK;
    if (says)
        heads->note = *note;
    if (!says && heads->says)
        hth_publisher_goodbye(heads->said, NULL, NULL);
    else if (says && heads->said == NULL)
        err = hth_publisher_new(heads->env, heads->dht, &heads->topic, &opts, fill, heads,
                                &heads->said);
    else if (says && !heads->says)
        hth_publisher_resume(heads->said);
    else if (says)
        hth_publisher_update(heads->said, first ? 0 : RENEW_US);
    heads->says = says && err == HTH_OK;
    if (err != HTH_OK)
        HTH_LOG(heads->env, HTH_WARN, HTH_SUB_AVG, "a head can't be said: %s", hth_err_text(err));
}

uint32_t hth_heads_others(const struct hth_heads *heads, bool looks)
{
    int64_t now = hth_now_us(heads->env);
    uint32_t n = 0;
    for (const struct record *r = heads->first; r != NULL; r = r->next)
        n += looks == hth_head_is_none(&r->note.head) && (looks || now >= r->doubted_until_us);
    return n;
}

bool hth_heads_next(struct hth_heads *heads, struct hth_roll_peer *holder)
{
    struct record *next = NULL;
    for (struct record *r = heads->first; r != NULL; r = r->next)
        if (!hth_head_is_none(&r->note.head) && (next == NULL || r->told < next->told))
            next = r;
    if (next == NULL)
        return false;
    next->told = ++heads->told;
    *holder = (struct hth_roll_peer){.id = next->by, .addr = next->note.addr};
    return true;
}

void hth_heads_doubt(struct hth_heads *heads, const struct hth_peer_id *by, int64_t least_us)
{
    int64_t until_us = hth_now_us(heads->env) + HTH_MAX(least_us, RENEW_US);
    for (struct record *r = heads->first; r != NULL; r = r->next)
        if (hth_peer_id_eq(&r->by, by))
            r->doubted_until_us = HTH_MAX(r->doubted_until_us, until_us);
}
