/* SPDX-License-Identifier: Apache-2.0 */
/* witness.c: see witness.h. */
#include "admission/witness.h"

#include "core/bytes.h"
#include "core/mem.h"

#include <string.h>

#define SILENT_US (3600 * HTH_US_PER_S)
#define VERSION   1

struct place {
    struct hth_pubkey key;
    uint8_t network[8]; /* family, and the first bytes of the address */
    int64_t worked_us;
    int64_t seen_us; /* its last work; NEVER: before this process began */
};
#define NEVER INT64_MIN

struct hth_witness {
    size_t count;
    struct place place[HTH_WITNESS_MAX];
};

static const char magic[4] = {'H', 'W', 'I', 'T'};

struct hth_witness *hth_witness_new(void)
{
    return hth_new(struct hth_witness);
}

void hth_witness_free(struct hth_witness *witness)
{
    hth_free(witness);
}

static void network_of(const struct hth_addr *from, uint8_t out[8])
{
    memset(out, 0, 8);
    out[0] = from->family;
    memcpy(out + 1, from->ip, from->family == 4 ? 3 : 6);
}

static void drop(struct hth_witness *w, struct place *p)
{
    *p = w->place[--w->count];
}

/* A silent one may be replaced; one that this process has not seen yet has an hour from now on. */
static bool is_silent(struct place *p, int64_t now_us)
{
    if (p->seen_us == NEVER)
        p->seen_us = now_us - HTH_WITNESS_PAUSE_US - 1;
    return now_us - p->seen_us > SILENT_US;
}

/* A place for a newcomer of that network, or NULL. */
static struct place *make_room(struct hth_witness *w, const uint8_t network[8], int64_t now_us)
{
    struct place *least = NULL;
    for (size_t i = 0; i < w->count; i++) {
        struct place *p = &w->place[i];
        if (memcmp(p->network, network, sizeof(p->network)) == 0)
            return is_silent(p, now_us) ? p : NULL;
        if (least == NULL || p->worked_us < least->worked_us)
            least = p;
    }
    return w->count < HTH_WITNESS_MAX ? &w->place[w->count++] : least;
}

static struct place *find(struct hth_witness *w, const struct hth_pubkey *key)
{
    for (size_t i = 0; i < w->count; i++)
        if (memcmp(w->place[i].key.b, key->b, sizeof(key->b)) == 0)
            return &w->place[i];
    return NULL;
}

void hth_witness_saw(struct hth_witness *w, const struct hth_grant *grant,
                     const struct hth_addr *from, bool good, int64_t now_us)
{
    struct place *p = find(w, &grant->key);
    uint8_t network[8];
    if (grant->class != HTH_PROBATION) {
        if (p != NULL)
            drop(w, p);
        return;
    }
    network_of(from, network);
    if (p == NULL) {
        p = make_room(w, network, now_us);
        if (p == NULL)
            return;
        *p = (struct place){.key = grant->key, .seen_us = NEVER};
        memcpy(p->network, network, sizeof(network));
    }
    if (!good)
        p->worked_us = 0;
    else if (p->seen_us != NEVER && now_us - p->seen_us <= HTH_WITNESS_PAUSE_US)
        p->worked_us += now_us - p->seen_us;
    p->seen_us = now_us;
}

bool hth_witness_due(const struct hth_witness *w, size_t *it, struct hth_pubkey *out)
{
    for (; *it < w->count; (*it)++)
        if (w->place[*it].worked_us >= HTH_WITNESS_WORK_US) {
            *out = w->place[(*it)++].key;
            return true;
        }
    return false;
}

size_t hth_witness_write(const struct hth_witness *witness, uint8_t out[HTH_WITNESS_BYTES_MAX])
{
    struct hth_writer w;
    hth_writer_init(&w, out, HTH_WITNESS_BYTES_MAX);
    hth_write_bytes(&w, magic, sizeof(magic));
    hth_write_u8(&w, VERSION);
    hth_write_u8(&w, (uint8_t)witness->count);
    for (size_t i = 0; i < witness->count; i++) {
        const struct place *p = &witness->place[i];
        hth_write_bytes(&w, p->key.b, sizeof(p->key.b));
        hth_write_bytes(&w, p->network, sizeof(p->network));
        hth_write_u32(&w, (uint32_t)HTH_MIN(p->worked_us / HTH_US_PER_S, INT64_C(1) << 31));
    }
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

enum hth_err hth_witness_read(struct hth_witness *witness, const void *data, size_t len)
{
    struct hth_reader r;
    char head[sizeof(magic)];
    hth_reader_init(&r, data, len);
    hth_read_bytes(&r, head, sizeof(head));
    uint8_t version = hth_read_u8(&r);
    size_t count = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (memcmp(head, magic, sizeof(magic)) != 0)
        return HTH_E_BAD_MAGIC;
    if (version != VERSION)
        return HTH_E_VERSION;
    if (count > HTH_WITNESS_MAX)
        return HTH_E_RANGE;
    for (size_t i = 0; i < count; i++) {
        struct place *p = &witness->place[i];
        hth_read_bytes(&r, p->key.b, sizeof(p->key.b));
        hth_read_bytes(&r, p->network, sizeof(p->network));
        p->worked_us = hth_read_u32(&r) * HTH_US_PER_S;
        p->seen_us = NEVER;
    }
    HTH_TRY(r.err);
    if (r.pos != len)
        return HTH_E_MALFORMED;
    witness->count = count;
    return HTH_OK;
}
