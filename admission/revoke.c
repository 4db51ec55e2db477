/* SPDX-License-Identifier: Apache-2.0 */
/* revoke.c: the bytes of a list of revoked serials; revoke.h has the layout. */
#include "admission/revoke.h"

#include "core/bytes.h"

#include <string.h>

#define VERSION 1

static const char magic[4] = {'H', 'R', 'E', 'V'};
static const char text[] = "hearth revoked";

enum hth_err hth_revoked_add(struct hth_revoked *list, uint64_t serial)
{
    uint16_t at = 0;
    while (at < list->count && list->serial[at] < serial)
        at++;
    if (at < list->count && list->serial[at] == serial)
        return HTH_E_DUPLICATE;
    if (list->count == HTH_REVOKED_MAX)
        return HTH_E_TOO_LARGE;
    memmove(&list->serial[at + 1], &list->serial[at], (list->count - at) * sizeof(uint64_t));
    list->serial[at] = serial;
    list->count++;
    return HTH_OK;
}

/* The list's bytes behind the text that its signature begins with. */
struct signed_list {
    uint8_t text[sizeof(text)];
    uint8_t list[HTH_REVOKED_BYTES_MAX];
};
_Static_assert(offsetof(struct signed_list, list) == sizeof(text), "no gap");

size_t hth_revoked_write(const struct hth_crypto *crypto, const struct hth_revoked *list,
                         const struct hth_hash *run, const struct hth_secret *owner,
                         uint8_t out[HTH_REVOKED_BYTES_MAX])
{
    struct signed_list s;
    struct hth_writer w;
    memcpy(s.text, text, sizeof(text));
    hth_writer_init(&w, s.list, sizeof(s.list) - HTH_SIG_LEN);
    hth_write_bytes(&w, magic, sizeof(magic));
    hth_write_u8(&w, VERSION);
    hth_write_u8(&w, 0);
    hth_write_u16(&w, list->count);
    hth_write_u64(&w, list->seq);
    hth_write_bytes(&w, run->b, sizeof(run->b));
    for (uint16_t i = 0; i < list->count; i++)
        hth_write_u64(&w, list->serial[i]);
    HTH_ASSERT(w.err == HTH_OK);
    crypto->sign(owner, &s, sizeof(text) + w.pos, s.list + w.pos);
    memcpy(out, s.list, w.pos + HTH_SIG_LEN);
    return w.pos + HTH_SIG_LEN;
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
    if (out->count > HTH_REVOKED_MAX || (r->err == HTH_OK && out->seq == 0))
        return HTH_E_RANGE;
    for (uint16_t i = 0; i < out->count; i++) {
        out->serial[i] = hth_read_u64(r);
        if (r->err == HTH_OK && i > 0 && out->serial[i] <= out->serial[i - 1])
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
    if (hth_reader_left(&r) > 0)
        return HTH_E_MALFORMED;
    if (memcmp(id.b, run->id.b, sizeof(id.b)) != 0)
        return HTH_E_PASS_OTHER_RUN;
    memcpy(s.text, text, sizeof(text));
    memcpy(s.list, data, at);
    return crypto->verify(&run->owner, &s, sizeof(text) + at, sig) == HTH_OK ? HTH_OK
                                                                             : HTH_E_PASS_FORGED;
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
