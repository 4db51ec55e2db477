/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercache.c: a text file that people can read, with a checksum that detects a torn or edited one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/blob.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "dht/peers.h"

#define MAGIC         "hearth-peers "
#define CHECKSUM_SEED 1
/* Address, id, time of 20 digits, two blanks, the line's end. */
#define PEER_LINE_MAX (HTH_ADDR_TEXT_MAX + 2 * HTH_HASH_LEN + 24)

struct peercache_cursor {
    const char *p, *end;
};

/* Copies the next line without its end; false when there is none or it is too long. */
static bool take_line(struct peercache_cursor *c, char out[PEER_LINE_MAX])
{
    const char *nl = memchr(c->p, '\n', (size_t)(c->end - c->p));
    if (nl == NULL || nl - c->p >= PEER_LINE_MAX || memchr(c->p, '\0', (size_t)(nl - c->p)) != NULL)
        return false;
    size_t len = (size_t)(nl - c->p);
    memcpy(out, c->p, len);
    out[len] = '\0';
    c->p = nl + 1;
    return true;
}

/* Decimal digits, all of them, without sign and leading zeros. */
static bool take_number(const char *text, int64_t max, int64_t *out)
{
    int64_t v = 0;
    if (text[0] == '\0' || (text[0] == '0' && text[1] != '\0'))
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || v > (max - (*text - '0')) / 10)
            return false;
        v = v * 10 + (*text - '0');
    }
    *out = v;
    return true;
}

static bool parse_peer(char *line, struct hth_peer_entry *out)
{
    char *id = strchr(line, ' ');
    char *seen = id != NULL ? strchr(id + 1, ' ') : NULL;
    memset(out, 0, sizeof(*out));
    if (seen == NULL)
        return false;
    *id++ = '\0';
    *seen++ = '\0';
    return hth_addr_parse(line, &out->addr) == HTH_OK &&
           hth_unhex(id, out->id.b, HTH_HASH_LEN) == HTH_OK &&
           take_number(seen, INT64_MAX / 2, &out->seen_us);
}

static enum hth_err read_head(struct peercache_cursor *c, int64_t *peers)
{
    char line[PEER_LINE_MAX];
    if ((size_t)(c->end - c->p) < strlen(MAGIC) || memcmp(c->p, MAGIC, strlen(MAGIC)) != 0)
        return HTH_E_BAD_MAGIC;
    if (!take_line(c, line))
        return HTH_E_CORRUPT;
    const char *version = line + strlen(MAGIC);
    if (strncmp(version, "1 ", 2) != 0)
        return HTH_E_VERSION;
    return take_number(version + 2, HTH_PEERCACHE_PEERS_MAX, peers) ? HTH_OK : HTH_E_CORRUPT;
}

/* The last line covers everything before it. */
static bool checksum_ok(struct peercache_cursor *c, const char *begin)
{
    char line[PEER_LINE_MAX], want[2 * 8 + 5];
    uint8_t sum[8];
    hth_store_u64le(sum, hth_hash64(begin, (size_t)(c->p - begin), CHECKSUM_SEED));
    memcpy(want, "end ", 4);
    hth_hex(sum, sizeof(sum), want + 4);
    return take_line(c, line) && strcmp(line, want) == 0 && c->p == c->end;
}

/* Newest first; of equal age by address, so that the order is total. */
static int newer_first(const void *a, const void *b)
{
    const struct hth_peer_entry *x = a, *y = b;
    if (x->seen_us != y->seen_us)
        return x->seen_us > y->seen_us ? -1 : 1;
    int c = memcmp(x->addr.ip, y->addr.ip, sizeof(x->addr.ip));
    if (c != 0)
        return c;
    if (x->addr.port != y->addr.port)
        return x->addr.port < y->addr.port ? -1 : 1;
    return hth_peer_id_cmp(&x->id, &y->id);
}

static enum hth_err read_all(const uint8_t *data, size_t len, struct hth_peer_entry *peers,
                             size_t *count)
{
    const char *begin = (const char *)data;
    struct peercache_cursor c = {begin, begin + len};
    int64_t want;
    HTH_TRY(read_head(&c, &want));
    for (; *count < (size_t)want; ++*count) {
        char line[PEER_LINE_MAX];
        if (!take_line(&c, line) || !parse_peer(line, &peers[*count]))
            return HTH_E_CORRUPT;
    }
    return checksum_ok(&c, begin) ? HTH_OK : HTH_E_CORRUPT;
}

enum hth_err hth_peercache_read(const uint8_t *data, size_t len, struct hth_peer_entry *out,
                                size_t max, size_t *count)
{
    size_t n = 0;
    *count = 0;
    if (len > HTH_PEERCACHE_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    struct hth_peer_entry *peers = hth_new_array(struct hth_peer_entry, HTH_PEERCACHE_PEERS_MAX);
    enum hth_err err = read_all(data, len, peers, &n);
    if (err == HTH_OK) {
        qsort(peers, n, sizeof(*peers), newer_first);
        *count = HTH_MIN(n, max);
        if (*count > 0)
            memcpy(out, peers, *count * sizeof(*out));
    }
    hth_free(peers);
    return err;
}

enum hth_err hth_peercache_load(struct hth_env *env, const char *path, struct hth_peer_entry *out,
                                size_t max, size_t *count)
{
    struct hth_blob *blob;
    *count = 0;
    enum hth_err err = hth_file_read(env, path, HTH_PEERCACHE_BYTES_MAX, &blob);
    if (err == HTH_OK) {
        err = hth_peercache_read(blob->data, blob->size, out, max, count);
        hth_blob_unref(blob);
    }
    if (err != HTH_OK && err != HTH_E_NO_FILE)
        HTH_LOG(env, HTH_WARN, HTH_SUB_DHT, "the peer cache %s is ignored (%s): %s", path,
                hth_err_name(err), hth_err_text(err));
    return err;
}

enum hth_err hth_peercache_save(struct hth_env *env, const char *path,
                                const struct hth_peer_entry *peers, size_t count)
{
    uint8_t sum[8];
    char hex[2 * HTH_HASH_LEN + 1], addr[HTH_ADDR_TEXT_MAX];
    count = HTH_MIN(count, (size_t)HTH_PEERCACHE_PEERS_MAX);
    size_t room = (count + 2) * PEER_LINE_MAX;
    char *text = hth_calloc(room, 1);
    size_t at = (size_t)snprintf(text, room, MAGIC "1 %zu\n", count);
    for (size_t i = 0; i < count; i++) {
        hth_hex(peers[i].id.b, HTH_HASH_LEN, hex);
        at += (size_t)snprintf(text + at, room - at, "%s %s %lld\n",
                               hth_addr_text(&peers[i].addr, addr), hex,
                               (long long)HTH_MAX(peers[i].seen_us, 0));
    }
    hth_store_u64le(sum, hth_hash64(text, at, CHECKSUM_SEED));
    hth_hex(sum, sizeof(sum), hex);
    at += (size_t)snprintf(text + at, room - at, "end %s\n", hex);
    struct hth_blob *blob = hth_blob_copy(text, at);
    struct hth_span span = {blob, 0, at};
    enum hth_err err = hth_file_write(env, path, &span, 1);
    hth_blob_unref(blob);
    hth_free(text);
    return err;
}
