/* SPDX-License-Identifier: Apache-2.0 */
#include "dht/listing.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"

#define FORMAT       1
#define BEACON       2 /* format of a beacon */
#define CODEC_RUNS   1
#define CODEC_BITMAP 2
#define VARINT_MAX   5

/* ---- numbers and text ---------------------------------------------------------------------- */

static size_t varint_len(uint32_t v)
{
    size_t n = 1;
    while (v >= 0x80) {
        v >>= 7;
        n++;
    }
    return n;
}

static void write_varint(struct hth_writer *w, uint32_t v)
{
    while (v >= 0x80) {
        hth_write_u8(w, (uint8_t)(v | 0x80));
        v >>= 7;
    }
    hth_write_u8(w, (uint8_t)v);
}

static void fail(struct hth_reader *r, enum hth_err err)
{
    if (r->err == HTH_OK)
        r->err = err;
}

/* Accepts only the shortest form, so that equal records have equal bytes. */
static uint32_t read_varint(struct hth_reader *r)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < VARINT_MAX; i++) {
        uint8_t b = hth_read_u8(r);
        v |= (uint64_t)(b & 0x7F) << (7 * i);
        if ((b & 0x80) == 0) {
            if ((b == 0 && i > 0) || v > UINT32_MAX)
                fail(r, HTH_E_MALFORMED);
            return r->err == HTH_OK ? (uint32_t)v : 0;
        }
    }
    fail(r, HTH_E_MALFORMED);
    return 0;
}

static void write_text(struct hth_writer *w, const char *text)
{
    size_t len = strlen(text);
    hth_write_u8(w, (uint8_t)len);
    hth_write_bytes(w, text, len);
}

/* Reads printable ASCII, which is safe on terminals; `max` excludes the terminator. */
static void read_label(struct hth_reader *r, char *out, size_t max)
{
    size_t len = hth_read_u8(r);
    const uint8_t *p = len <= max ? hth_read_view(r, len) : NULL;
    memset(out, 0, max + 1);
    if (len > max)
        fail(r, HTH_E_RANGE);
    for (size_t i = 0; p != NULL && i < len; i++) {
        if (p[i] <= ' ' || p[i] >= 0x7F) {
            fail(r, HTH_E_MALFORMED);
            return;
        }
        out[i] = (char)p[i];
    }
}

/* ---- host, grid, shape --------------------------------------------------------------------- */

static bool label_ok(const char *text, size_t max)
{
    size_t len = strnlen(text, max + 1);
    if (len > max)
        return false;
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] >= 0x7F)
            return false;
    return true;
}

enum hth_err hth_host_info_check(const struct hth_host_info *info)
{
    if (info->addr_count > HTH_HOST_ADDRS_MAX)
        return HTH_E_RANGE;
    for (uint32_t i = 0; i < info->addr_count; i++)
        if (info->addr[i].family != 4 && info->addr[i].family != 6)
            return HTH_E_MALFORMED;
    if (!label_ok(info->version, HTH_VERSION_LEN_MAX))
        return HTH_E_MALFORMED;
    if (!(info->rows_per_s >= 0) || info->rows_per_s > 4e9f)
        return HTH_E_RANGE;
    return HTH_OK;
}

bool hth_layer_shape_eq(const struct hth_layer_shape *a, const struct hth_layer_shape *b)
{
    return a->d == b->d && a->block_rows == b->block_rows && strcmp(a->kind, b->kind) == 0;
}

static void write_host(struct hth_writer *w, const struct hth_host_info *info)
{
    hth_write_u8(w, (uint8_t)info->addr_count);
    for (uint32_t i = 0; i < info->addr_count; i++) {
        hth_write_u8(w, info->addr[i].family);
        hth_write_bytes(w, info->addr[i].ip, info->addr[i].family == 4 ? 4 : 16);
        hth_write_u16(w, info->addr[i].port);
    }
    hth_write_u8(w, (uint8_t)info->compute);
    hth_write_u32(w, (uint32_t)info->rows_per_s);
    hth_write_u32(w, info->queue_ms);
    write_text(w, info->version);
}

static void read_host(struct hth_reader *r, struct hth_host_info *info)
{
    uint8_t count = hth_read_u8(r);
    if (count > HTH_HOST_ADDRS_MAX) {
        fail(r, HTH_E_RANGE);
        return;
    }
    info->addr_count = count;
    for (uint32_t i = 0; i < count; i++) {
        info->addr[i].family = hth_read_u8(r);
        if (info->addr[i].family != 4 && info->addr[i].family != 6) {
            fail(r, HTH_E_MALFORMED);
            return;
        }
        hth_read_bytes(r, info->addr[i].ip, info->addr[i].family == 4 ? 4 : 16);
        info->addr[i].port = hth_read_u16(r);
    }
    info->compute = (enum hth_compute)hth_read_u8(r);
    info->rows_per_s = (float)hth_read_u32(r);
    info->queue_ms = hth_read_u32(r);
    read_label(r, info->version, HTH_VERSION_LEN_MAX);
}

static void write_layer(struct hth_writer *w, const struct hth_grid *grid,
                        const struct hth_layer_shape *shape)
{
    write_text(w, grid->name);
    hth_write_u8(w, grid->ndim);
    for (uint32_t i = 0; i < grid->ndim; i++)
        write_varint(w, grid->dim[i]);
    write_text(w, shape->kind);
    write_varint(w, shape->d);
    write_varint(w, shape->block_rows);
}

/* A layer's or network's name: UTF-8 by the rules of hth_name_check. */
static void read_name(struct hth_reader *r, char out[HTH_NAME_LEN_MAX + 1])
{
    size_t len = hth_read_u8(r);
    memset(out, 0, HTH_NAME_LEN_MAX + 1);
    if (len > HTH_NAME_LEN_MAX) {
        fail(r, HTH_E_RANGE);
        return;
    }
    hth_read_bytes(r, out, len);
    fail(r, hth_name_check(out, len));
}

static void read_layer(struct hth_reader *r, struct hth_grid *grid, struct hth_layer_shape *shape)
{
    char name[HTH_NAME_LEN_MAX + 1];
    uint32_t dim[HTH_GRID_DIMS_MAX] = {0};
    read_name(r, name);
    uint8_t ndim = hth_read_u8(r);
    for (uint32_t i = 0; i < ndim && i < HTH_GRID_DIMS_MAX; i++)
        dim[i] = read_varint(r);
    read_label(r, shape->kind, HTH_KIND_LEN_MAX);
    shape->d = read_varint(r);
    shape->block_rows = read_varint(r);
    if (r->err != HTH_OK)
        return;
    fail(r, hth_grid_init(grid, name, ndim, dim));
}

/* ---- sets ---------------------------------------------------------------------------------- */

uint32_t hth_listing_universe(const struct hth_listing *listing)
{
    if (listing->depth == 1)
        return hth_grid_size(&listing->grid) / listing->grid.dim[0];
    return listing->flags & HTH_LISTING_FIRSTS ? listing->grid.dim[0]
                                               : hth_grid_size(&listing->grid);
}

/* The end of the run of consecutive numbers that begins at `at`. */
static size_t run_end(const uint32_t *number, size_t count, size_t at)
{
    size_t end = at + 1;
    while (end < count && number[end] == number[end - 1] + 1)
        end++;
    return end;
}

struct plan {
    size_t runs;  /* whole runs that fit */
    size_t taken; /* numbers in them */
};

/* Codec byte, count and number of runs take at most 1 + 5 + 5 bytes. */
static struct plan plan_runs(const uint32_t *number, size_t count, size_t bytes_max)
{
    struct plan plan = {0, 0};
    size_t used = 1 + 2 * VARINT_MAX;
    uint32_t last = 0;
    while (plan.taken < count) {
        size_t end = run_end(number, count, plan.taken);
        used +=
            varint_len(number[plan.taken] - last) + varint_len((uint32_t)(end - plan.taken - 1));
        if (used > bytes_max)
            break;
        last = number[end - 1] + 1;
        plan.taken = end;
        plan.runs++;
    }
    return plan;
}

static size_t plan_bitmap(const uint32_t *number, size_t count, size_t bytes_max)
{
    size_t head = 1 + 3 * VARINT_MAX, taken = 0;
    if (count == 0 || bytes_max <= head)
        return 0;
    uint64_t end = number[0] + (uint64_t)(bytes_max - head) * 8;
    while (taken < count && number[taken] < end)
        taken++;
    return taken;
}

static void write_runs(struct hth_writer *w, const uint32_t *number, struct plan plan)
{
    uint32_t last = 0;
    hth_write_u8(w, CODEC_RUNS);
    write_varint(w, (uint32_t)plan.taken);
    write_varint(w, (uint32_t)plan.runs);
    for (size_t at = 0; at < plan.taken;) {
        size_t end = run_end(number, plan.taken, at);
        write_varint(w, number[at] - last);
        write_varint(w, (uint32_t)(end - at - 1));
        last = number[end - 1] + 1;
        at = end;
    }
}

static void write_bitmap(struct hth_writer *w, const uint32_t *number, size_t count)
{
    uint32_t first = number[0], bits = number[count - 1] - first + 1;
    hth_write_u8(w, CODEC_BITMAP);
    write_varint(w, (uint32_t)count);
    write_varint(w, first);
    write_varint(w, bits);
    size_t at = 0;
    for (uint32_t byte = 0; byte < (bits + 7) / 8; byte++) {
        uint8_t b = 0;
        for (; at < count && (number[at] - first) / 8 == byte; at++)
            b |= (uint8_t)(1u << ((number[at] - first) % 8));
        hth_write_u8(w, b);
    }
}

/* Bytes of the runs codec for the first `taken` numbers, which end at a run's end. */
static size_t runs_bytes(const uint32_t *number, size_t taken)
{
    size_t bytes = 0;
    uint32_t last = 0;
    for (size_t at = 0; at < taken;) {
        size_t end = run_end(number, taken, at);
        bytes += varint_len(number[at] - last) + varint_len((uint32_t)(end - at - 1));
        last = number[end - 1] + 1;
        at = end;
    }
    return bytes;
}

enum hth_err hth_listing_write_set(struct hth_writer *w, const uint32_t *number, size_t count,
                                   size_t bytes_max, size_t *taken)
{
    struct plan plan = plan_runs(number, count, bytes_max);
    size_t bits = plan_bitmap(number, count, bytes_max);
    bool bitmap = bits > plan.taken;
    /* If both take all numbers, choose the shorter. */
    if (bits == plan.taken && count > 0 && bits > 0)
        bitmap = (number[bits - 1] - number[0]) / 8 + 2 + varint_len(number[0]) <
                 runs_bytes(number, plan.taken);
    *taken = bitmap ? bits : plan.taken;
    if (w == NULL)
        return HTH_OK;
    if (bitmap)
        write_bitmap(w, number, bits);
    else
        write_runs(w, number, plan);
    return w->err;
}

/* Adds a run, merging it with the last one when they touch. Runs arrive in ascending order. */
static enum hth_err add_run(struct hth_listing *l, size_t *capacity, uint32_t first, uint32_t count)
{
    struct hth_run *last = l->run_count > 0 ? &l->runs[l->run_count - 1] : NULL;
    l->count += count;
    if (last != NULL && last->first + last->count == first) {
        last->count += count;
        return HTH_OK;
    }
    if (l->run_count == *capacity) {
        size_t want = *capacity > 0 ? 2 * *capacity : 8;
        struct hth_run *runs = hth_try_realloc(l->runs, want, sizeof(*runs));
        if (runs == NULL)
            return HTH_E_NO_MEMORY;
        l->runs = runs;
        *capacity = want;
    }
    l->runs[l->run_count++] = (struct hth_run){first, count};
    return HTH_OK;
}

static enum hth_err read_runs(struct hth_reader *r, struct hth_listing *l, uint32_t universe)
{
    size_t capacity = 0;
    uint64_t at = 0;
    uint32_t runs = read_varint(r);
    for (uint32_t i = 0; i < runs; i++) {
        uint32_t gap = read_varint(r);
        uint64_t count = (uint64_t)read_varint(r) + 1;
        HTH_TRY(r->err);
        if (i > 0 && gap == 0)
            return HTH_E_MALFORMED; /* two runs that touch are one run */
        at += gap;
        if (at + count > universe)
            return HTH_E_RANGE;
        if (l->count + count > HTH_ANNOUNCE_EXPERTS_MAX)
            return HTH_E_TOO_LARGE;
        HTH_TRY(add_run(l, &capacity, (uint32_t)at, (uint32_t)count));
        at += count;
    }
    return r->err;
}

static enum hth_err read_bitmap(struct hth_reader *r, struct hth_listing *l, uint32_t universe)
{
    size_t capacity = 0;
    uint32_t first = read_varint(r), bits = read_varint(r);
    HTH_TRY(r->err);
    if (bits == 0)
        return HTH_E_MALFORMED;
    if ((uint64_t)first + bits > universe)
        return HTH_E_RANGE;
    const uint8_t *map = hth_read_view(r, ((size_t)bits + 7) / 8);
    HTH_TRY(r->err);
    /* The first and last bit are set and the padding is not: one set has one form. */
    if ((map[0] & 1) == 0 || map[(bits - 1) / 8] >> ((bits - 1) % 8) != 1)
        return HTH_E_MALFORMED;
    for (uint32_t i = 0; i < bits; i++) {
        if ((map[i / 8] >> (i % 8) & 1) == 0)
            continue;
        if (l->count == HTH_ANNOUNCE_EXPERTS_MAX)
            return HTH_E_TOO_LARGE;
        HTH_TRY(add_run(l, &capacity, first + i, 1));
    }
    return HTH_OK;
}

static enum hth_err read_set(struct hth_reader *r, struct hth_listing *l)
{
    uint32_t universe = hth_listing_universe(l);
    uint8_t codec = hth_read_u8(r);
    uint32_t count = read_varint(r);
    HTH_TRY(r->err);
    if (codec != CODEC_RUNS && codec != CODEC_BITMAP)
        return HTH_E_MALFORMED;
    HTH_TRY(codec == CODEC_RUNS ? read_runs(r, l, universe) : read_bitmap(r, l, universe));
    return l->count == count ? HTH_OK : HTH_E_MALFORMED;
}

/* ---- listing ------------------------------------------------------------------------------- */

enum hth_err hth_listing_write_head(struct hth_writer *w, const struct hth_listing *l)
{
    hth_write_u8(w, FORMAT);
    hth_write_u8(w, l->flags);
    write_host(w, &l->info);
    write_layer(w, &l->grid, &l->shape);
    hth_write_u8(w, l->depth);
    if (l->depth == 1)
        write_varint(w, l->c0);
    return w->err;
}

static enum hth_err read_listing(struct hth_reader *r, struct hth_listing *l)
{
    if (hth_read_u8(r) != FORMAT)
        return r->err != HTH_OK ? r->err : HTH_E_VERSION;
    l->flags = hth_read_u8(r);
    read_host(r, &l->info);
    read_layer(r, &l->grid, &l->shape);
    l->depth = hth_read_u8(r);
    if (l->depth == 1)
        l->c0 = read_varint(r);
    HTH_TRY(r->err);
    if (l->depth > 1 || (l->flags & ~HTH_LISTING_FIRSTS) != 0)
        return HTH_E_MALFORMED;
    if (l->flags & HTH_LISTING_FIRSTS && (l->depth != 0 || l->grid.ndim < 2))
        return HTH_E_MALFORMED;
    if (l->depth == 1 && (l->grid.ndim < 2 || l->c0 >= l->grid.dim[0]))
        return HTH_E_RANGE;
    HTH_TRY(read_set(r, l));
    return hth_reader_left(r) == 0 ? HTH_OK : HTH_E_MALFORMED;
}

enum hth_err hth_listing_read(const uint8_t *data, size_t len, struct hth_listing *out)
{
    struct hth_reader r;
    memset(out, 0, sizeof(*out));
    hth_reader_init(&r, data, len);
    enum hth_err err = read_listing(&r, out);
    if (err != HTH_OK)
        hth_listing_clear(out);
    return err;
}

void hth_listing_clear(struct hth_listing *listing)
{
    hth_free(listing->runs);
    memset(listing, 0, sizeof(*listing));
}

/* ---- beacon -------------------------------------------------------------------------------- */

enum hth_err hth_beacon_write(struct hth_writer *w, const struct hth_beacon *beacon,
                              size_t bytes_max)
{
    size_t fit = 0;
    hth_write_u8(w, BEACON);
    hth_write_u8(w, 0);
    hth_write_u16(w, beacon->protocol_min);
    hth_write_u16(w, beacon->protocol_max);
    hth_write_u8(w, (uint8_t)beacon->role);
    write_host(w, &beacon->info);
    write_text(w, beacon->network);
    HTH_TRY(w->err);
    for (size_t used = w->pos + VARINT_MAX; fit < beacon->layer_count; fit++) {
        uint8_t buf[160];
        struct hth_writer one;
        hth_writer_init(&one, buf, sizeof(buf));
        write_layer(&one, &beacon->layers[fit].grid, &beacon->layers[fit].shape);
        write_varint(&one, beacon->layers[fit].experts);
        HTH_TRY(one.err);
        used += one.pos;
        if (used > bytes_max)
            break;
    }
    write_varint(w, (uint32_t)fit);
    for (size_t i = 0; i < fit; i++) {
        write_layer(w, &beacon->layers[i].grid, &beacon->layers[i].shape);
        write_varint(w, beacon->layers[i].experts);
    }
    return w->err;
}

static enum hth_err read_beacon(struct hth_reader *r, struct hth_beacon *b)
{
    if (hth_read_u8(r) != BEACON)
        return r->err != HTH_OK ? r->err : HTH_E_VERSION;
    if (hth_read_u8(r) != 0)
        return r->err != HTH_OK ? r->err : HTH_E_MALFORMED;
    b->protocol_min = hth_read_u16(r);
    b->protocol_max = hth_read_u16(r);
    b->role = (enum hth_role)hth_read_u8(r);
    read_host(r, &b->info);
    if (hth_reader_left(r) > 0 && r->data[r->pos] == 0)
        (void)hth_read_u8(r); /* a private one */
    else
        read_name(r, b->network);
    uint32_t layers = read_varint(r);
    HTH_TRY(r->err);
    if (b->protocol_min > b->protocol_max)
        return HTH_E_RANGE;
    if (layers > HTH_ANNOUNCE_LAYERS_MAX)
        return HTH_E_TOO_LARGE;
    if (layers == 0)
        return hth_reader_left(r) == 0 ? HTH_OK : HTH_E_MALFORMED;
    b->layers = hth_try_calloc(layers, sizeof(*b->layers));
    if (b->layers == NULL)
        return HTH_E_NO_MEMORY;
    b->layer_count = layers;
    for (uint32_t i = 0; i < layers && r->err == HTH_OK; i++) {
        read_layer(r, &b->layers[i].grid, &b->layers[i].shape);
        b->layers[i].experts = read_varint(r);
    }
    HTH_TRY(r->err);
    return hth_reader_left(r) == 0 ? HTH_OK : HTH_E_MALFORMED;
}

enum hth_err hth_beacon_read(const uint8_t *data, size_t len, struct hth_beacon *out)
{
    struct hth_reader r;
    memset(out, 0, sizeof(*out));
    hth_reader_init(&r, data, len);
    enum hth_err err = read_beacon(&r, out);
    if (err != HTH_OK)
        hth_beacon_clear(out);
    return err;
}

void hth_beacon_clear(struct hth_beacon *beacon)
{
    hth_free(beacon->layers);
    memset(beacon, 0, sizeof(*beacon));
}
