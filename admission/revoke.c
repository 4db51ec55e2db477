/* SPDX-License-Identifier: Apache-2.0 */
/* revoke.c: the bytes of a list of revoked invites, and the set of lists (revoke.h). */
#include "admission/revoke.h"

#include "core/bytes.h"
#include "core/mem.h"

#include <string.h>

#define VERSION    1
#define HEAD_BYTES 48

static const char magic[4] = {'H', 'R', 'E', 'V'};
static const char text[] = "hearth revoked";

enum hth_err hth_revoked_add(struct hth_revoked *list, uint64_t entry)
{
    uint16_t at = 0;
    while (at < list->count && list->entry[at] < entry)
        at++;
    if (at < list->count && list->entry[at] == entry)
        return HTH_E_DUPLICATE;
    if (list->count == HTH_REVOKED_MAX)
        return HTH_E_TOO_LARGE;
    memmove(&list->entry[at + 1], &list->entry[at], (list->count - at) * sizeof(uint64_t));
    list->entry[at] = entry;
    list->count++;
    return HTH_OK;
}

/* ---- bytes --------------------------------------------------------------------------------- */

/* The list's bytes behind the text that its signature begins with. */
struct signed_list {
    uint8_t text[sizeof(text)];
    uint8_t list[HTH_REVOKED_BYTES_MAX];
};
_Static_assert(offsetof(struct signed_list, list) == sizeof(text), "no gap");

size_t hth_revoked_write(const struct hth_crypto *crypto, const struct hth_revoked *list,
                         const struct hth_hash *run, const struct hth_secret *signer,
                         const void *chain, size_t chain_len, uint8_t out[HTH_REVOKED_BYTES_MAX])
{
    struct signed_list s;
    struct hth_writer w;
    HTH_ASSERT(chain_len <= HTH_CHAIN_BYTES_MAX);
    memcpy(s.text, text, sizeof(text));
    hth_writer_init(&w, s.list, sizeof(s.list));
    hth_write_bytes(&w, magic, sizeof(magic));
    hth_write_u8(&w, VERSION);
    hth_write_u8(&w, 0);
    hth_write_u16(&w, list->count);
    hth_write_u64(&w, list->seq);
    hth_write_bytes(&w, run->b, sizeof(run->b));
    for (uint16_t i = 0; i < list->count; i++)
        hth_write_u64(&w, list->entry[i]);
    uint8_t sig[HTH_SIG_LEN];
    crypto->sign(signer, &s, sizeof(text) + w.pos, sig);
    hth_write_bytes(&w, sig, sizeof(sig));
    hth_write_bytes(&w, chain, chain_len);
    HTH_ASSERT(w.err == HTH_OK);
    memcpy(out, s.list, w.pos);
    return w.pos;
}

static enum hth_err read_list(struct hth_reader *r, struct hth_hash *run, struct hth_revoked *out)
{
    char head[sizeof(magic)];
    hth_read_bytes(r, head, sizeof(head));
    uint8_t version = hth_read_u8(r), zero = hth_read_u8(r);
    HTH_TRY(r->err);
    if (memcmp(head, magic, sizeof(magic)) != 0)
        return HTH_E_BAD_MAGIC;
    if (version != VERSION || zero != 0)
        return HTH_E_VERSION;
    out->count = hth_read_u16(r);
    out->seq = hth_read_u64(r);
    hth_read_bytes(r, run->b, sizeof(run->b));
    HTH_TRY(r->err);
    if (out->count > HTH_REVOKED_MAX || out->seq == 0 || out->seq > INT64_MAX)
        return HTH_E_RANGE;
    uint64_t last = 0;
    for (uint16_t i = 0; i < out->count; i++, last = out->entry[i - 1]) {
        out->entry[i] = hth_read_u64(r);
        if (r->err == HTH_OK && out->entry[i] <= last)
            return HTH_E_RANGE;
    }
    return r->err;
}

static enum hth_err check(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                          const void *data, size_t len, struct hth_revoked *out)
{
    struct hth_hash id;
    struct hth_reader r;
    struct signed_list s;
    hth_reader_init(&r, data, len);
    HTH_TRY(read_list(&r, &id, out));
    size_t at = r.pos;
    const uint8_t *sig = hth_read_view(&r, HTH_SIG_LEN);
    HTH_TRY(r.err);
    if (memcmp(id.b, run->id.b, sizeof(id.b)) != 0)
        return HTH_E_PASS_OTHER_RUN;
    HTH_TRY(hth_chain_check(crypto, run, r.data + r.pos, hth_reader_left(&r), &out->by));
    memcpy(s.text, text, sizeof(text));
    memcpy(s.list, data, at);
    bool good = crypto->verify(&out->by.key, &s, sizeof(text) + at, sig) == HTH_OK;
    return good ? HTH_OK : HTH_E_PASS_FORGED;
}

enum hth_err hth_revoked_read(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                              const void *data, size_t len, struct hth_revoked *out)
{
    memset(out, 0, sizeof(*out));
    enum hth_err err = check(crypto, run, data, len, out);
    if (err != HTH_OK)
        memset(out, 0, sizeof(*out));
    return err;
}

/* ---- the set ------------------------------------------------------------------------------- */

struct item {
    struct hth_revoked list;
    size_t len;
    uint8_t data[HTH_REVOKED_BYTES_MAX];
};

struct hth_revoked_set {
    const struct hth_crypto *crypto;
    struct hth_closed_run run;
    size_t count;
    struct item *item[HTH_REVOKED_LISTS];
};

struct hth_revoked_set *hth_revoked_set_new(const struct hth_crypto *crypto,
                                            const struct hth_closed_run *run)
{
    struct hth_revoked_set *set = hth_new(struct hth_revoked_set);
    set->crypto = crypto;
    set->run = *run;
    set->run.revoked = NULL;
    return set;
}

void hth_revoked_set_free(struct hth_revoked_set *set)
{
    if (set == NULL)
        return;
    for (size_t i = 0; i < set->count; i++)
        hth_free(set->item[i]);
    hth_free(set);
}

bool hth_revoked_same(const struct hth_signer *a, const struct hth_signer *b)
{
    return memcmp(a->key.b, b->key.b, sizeof(a->key.b)) == 0 &&
           (a->deputy != 0) == (b->deputy != 0);
}

static struct item *find(const struct hth_revoked_set *set, const struct hth_signer *by)
{
    for (size_t i = 0; i < set->count; i++)
        if (hth_revoked_same(&set->item[i]->list.by, by))
            return set->item[i];
    return NULL;
}

static const struct hth_revoked *owners(const struct hth_revoked_set *set)
{
    const struct hth_signer owner = {.key = set->run.owner};
    const struct item *item = find(set, &owner);
    return item != NULL ? &item->list : NULL;
}

/* Deputies leave room for a successor's list, and all for the owner's. A successor can name
 * deputies before it counts: theirs give way to one whom the owner named. NULL: no place. */
static struct item *place(struct hth_revoked_set *set, const struct hth_signer *by)
{
    size_t deputies = 0, others = 0;
    struct item *least = NULL;
    for (size_t i = 0; i < set->count; i++) {
        const struct hth_signer *s = &set->item[i]->list.by;
        deputies += s->deputy != 0;
        others += s->deputy != 0 || s->successor != 0;
        if (s->deputy != 0 && s->successor != 0)
            least = set->item[i];
    }
    if ((by->deputy != 0 && deputies == HTH_REVOKED_LISTS - 2) ||
        ((by->deputy != 0 || by->successor != 0) && others == HTH_REVOKED_LISTS - 1))
        return by->successor == 0 ? least : NULL;
    return set->item[set->count++] = hth_new(struct item);
}

enum hth_err hth_revoked_set_take(struct hth_revoked_set *set, const void *data, size_t len)
{
    struct hth_revoked list;
    if (hth_revoked_set_find(set, data, len) < set->count)
        return HTH_E_STALE;
    HTH_TRY(hth_revoked_read(set->crypto, &set->run, data, len, &list));
    struct item *item = find(set, &list.by);
    if (item != NULL && list.seq <= item->list.seq)
        return HTH_E_STALE;
    if (item == NULL)
        item = place(set, &list.by);
    if (item == NULL)
        return HTH_E_TOO_LARGE;
    item->list = list;
    item->len = len;
    memcpy(item->data, data, len);
    return HTH_OK;
}

size_t hth_revoked_set_find(const struct hth_revoked_set *set, const void *data, size_t len)
{
    size_t i = 0;
    while (i < set->count &&
           (set->item[i]->len != len || memcmp(set->item[i]->data, data, len) != 0))
        i++;
    return i;
}

size_t hth_revoked_set_entries(const struct hth_revoked_set *set, uint64_t *out, size_t max)
{
    size_t count = 0;
    for (size_t i = 0; i < set->count; i++)
        for (uint16_t k = 0; k < set->item[i]->list.count; k++) {
            size_t at = 0;
            while (at < count && out[at] != set->item[i]->list.entry[k])
                at++;
            if (at == count && count < max)
                out[count++] = set->item[i]->list.entry[k];
        }
    return count;
}

size_t hth_revoked_set_count(const struct hth_revoked_set *set)
{
    return set->count;
}

const uint8_t *hth_revoked_set_at(const struct hth_revoked_set *set, size_t i, size_t *len)
{
    HTH_ASSERT(i < set->count);
    *len = set->item[i]->len;
    return set->item[i]->data;
}

/* ---- verdicts ------------------------------------------------------------------------------ */

int64_t hth_succession_us(const struct hth_revoked_set *set, const struct hth_signer *successor)
{
    const struct hth_revoked *owner = set != NULL ? owners(set) : NULL;
    int64_t heard_us = owner != NULL ? (int64_t)owner->seq : 0;
    int64_t silence_us = successor->silence_s * HTH_US_PER_S;
    return HTH_MIN(HTH_MAX(successor->named_us, heard_us), INT64_MAX - silence_us) + silence_us;
}

static bool names(const struct hth_revoked *list, uint64_t entry)
{
    uint16_t low = 0, high = list->count;
    while (low < high) {
        uint16_t mid = (uint16_t)((low + high) / 2);
        if (list->entry[mid] < entry)
            low = (uint16_t)(mid + 1);
        else
            high = mid;
    }
    return low < list->count && list->entry[low] == entry;
}

/* Whether the list counts for what that signer signed. */
static bool counts(const struct hth_revoked_set *set, const struct hth_revoked *list,
                   const struct hth_signer *of, int64_t wall_us)
{
    const struct hth_signer *by = &list->by;
    if (by->deputy != 0)
        return hth_revoked_same(of, by);
    if (by->successor == 0)
        return true;
    const struct hth_revoked *owner = owners(set);
    return wall_us >= hth_succession_us(set, by) - HTH_CLOCK_SKEW_MAX_US &&
           !(owner != NULL && names(owner, by->successor));
}

bool hth_revoked_set_has(const struct hth_revoked_set *set, const struct hth_grant *grant,
                         int64_t wall_us)
{
    const uint64_t entries[] = {grant->serial, grant->peer, grant->by.deputy, grant->by.successor};
    for (size_t i = 0; i < set->count; i++) {
        const struct hth_revoked *list = &set->item[i]->list;
        bool named = false;
        for (size_t k = 0; k < HTH_ARRAY_LEN(entries); k++)
            named = named || names(list, entries[k]);
        if (named && counts(set, list, &grant->by, wall_us))
            return true;
    }
    return false;
}

/* ---- exchange ------------------------------------------------------------------------------ */

/* Of 64 bits, which nobody finds a second key for. */
static uint64_t signer_of(const struct hth_revoked *list)
{
    uint64_t key = hth_load_u64le(list->by.key.b);
    return list->by.deputy != 0 ? key | 1 : key & ~UINT64_C(1);
}

static const struct item *named(const struct hth_revoked_set *set, uint64_t signer)
{
    for (size_t i = 0; i < set->count; i++)
        if (signer_of(&set->item[i]->list) == signer)
            return set->item[i];
    return NULL;
}

size_t hth_revoked_set_known(const struct hth_revoked_set *set, uint8_t out[HTH_REVOKED_KNOWN_MAX])
{
    for (size_t i = 0; i < set->count; i++) {
        hth_store_u64le(out + 16 * i, signer_of(&set->item[i]->list));
        hth_store_u64le(out + 16 * i + 8, set->item[i]->list.seq);
    }
    return 16 * set->count;
}

enum hth_err hth_revoked_set_lacks(const struct hth_revoked_set *set, const void *known, size_t len,
                                   bool *lacks)
{
    const uint8_t *at = known;
    *lacks = false;
    if (len % 16 != 0 || len > HTH_REVOKED_KNOWN_MAX)
        return HTH_E_MALFORMED;
    for (size_t i = 0; i < len; i += 16) {
        const struct item *item = named(set, hth_load_u64le(at + i));
        *lacks = *lacks || item == NULL || item->list.seq < hth_load_u64le(at + i + 8);
    }
    return HTH_OK;
}

static uint64_t known_seq(const uint8_t *known, size_t len, uint64_t signer)
{
    for (size_t i = 0; i + 16 <= len; i += 16)
        if (hth_load_u64le(known + i) == signer)
            return hth_load_u64le(known + i + 8);
    return 0;
}

size_t hth_revoked_set_pack(const struct hth_revoked_set *set, const void *known, size_t known_len,
                            uint8_t *out)
{
    struct hth_writer w;
    hth_writer_init(&w, out, HTH_REVOKED_PACK_MAX);
    for (size_t i = 0; i < set->count; i++) {
        const struct item *item = set->item[i];
        if (known_seq(known, known_len, signer_of(&item->list)) >= item->list.seq)
            continue;
        hth_write_u16(&w, (uint16_t)item->len);
        hth_write_bytes(&w, item->data, item->len);
    }
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

enum hth_err hth_revoked_set_unpack(struct hth_revoked_set *set, const void *data, size_t len,
                                    size_t *news)
{
    struct hth_reader r;
    enum hth_err first = HTH_OK;
    *news = 0;
    hth_reader_init(&r, data, len);
    for (size_t i = 0; i < HTH_REVOKED_LISTS && hth_reader_left(&r) > 0; i++) {
        size_t n = hth_read_u16(&r);
        const uint8_t *list = hth_read_view(&r, n);
        HTH_TRY(r.err);
        enum hth_err err = hth_revoked_set_take(set, list, n);
        *news += err == HTH_OK;
        if (first == HTH_OK && err != HTH_E_STALE)
            first = err;
    }
    return first;
}
