/* SPDX-License-Identifier: Apache-2.0 */
/* book.c: k-means in whole numbers. */
#include "data/book.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"

#define PART_PATCHES 2048 /* patches that one part of the team's work assigns */

/* ---- distances ----------------------------------------------------------------------------- */

/* Of the squared distance times HTH_BOOK_SCALE^2, the part that depends on the centre. */
static int64_t score_of(const int16_t *x, const int16_t *centre, int64_t norm, uint32_t n)
{
    int32_t dot = 0;

    for (uint32_t i = 0; i < n; i++)
        dot += x[i] * centre[i];
    return norm - 2 * HTH_BOOK_SCALE * (int64_t)dot;
}

static int64_t norm_of(const int16_t *v, uint32_t n)
{
    int64_t sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += v[i] * v[i];
    return sum;
}

static uint32_t nearest(const struct hth_book *b, const int64_t *norms, const int16_t *x,
                        int64_t *score)
{
    uint32_t n = 3 * b->patch * b->patch, best = 0;

    *score = INT64_MAX;
    for (uint32_t k = 0; k < b->codes; k++) {
        int64_t s = score_of(x, b->centres + (size_t)k * n, norms[k], n);
        if (s < *score) {
            *score = s;
            best = k;
        }
    }
    return best;
}

static void find_norms(const struct hth_book *b, int64_t *norms)
{
    uint32_t n = 3 * b->patch * b->patch;

    for (uint32_t k = 0; k < b->codes; k++)
        norms[k] = norm_of(b->centres + (size_t)k * n, n);
}

/* ---- patches ------------------------------------------------------------------------------- */

/* The different patches of all pictures. */
struct patches {
    uint32_t n; /* numbers of one */
    uint32_t count;
    int16_t *x;       /* [count, n] */
    int64_t *norm;    /* of each, times HTH_BOOK_SCALE^2 */
    uint32_t *weight; /* how often it comes */
    uint32_t *code;
    int64_t *distance; /* to the nearest centre, times HTH_BOOK_SCALE^2 */
};

/* Copies patch (px, py) of a picture. */
static void cut(const uint8_t *rgb, uint32_t side, uint32_t patch, uint32_t px, uint32_t py,
                uint8_t *out)
{
    for (uint32_t y = 0; y < patch; y++)
        memcpy(out + (size_t)3 * patch * y,
               rgb + 3 * ((size_t)(py * patch + y) * side + (size_t)px * patch), 3 * (size_t)patch);
}

static void widen(const uint8_t *bytes, uint32_t n, int16_t *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = bytes[i];
}

/* A patch among many: `len` bytes. */
struct patch_ref {
    const uint8_t *bytes;
    uint32_t len;
};

static int by_bytes(const void *left, const void *right)
{
    const struct patch_ref *a = left, *b = right;

    return memcmp(a->bytes, b->bytes, a->len);
}

static void patches_clear(struct patches *p)
{
    hth_free(p->x);
    hth_free(p->norm);
    hth_free(p->weight);
    hth_free(p->code);
    hth_free(p->distance);
}

/* They are sorted: equal ones follow each other, and the order of the pictures does not matter. */
static enum hth_err keep_different(struct patches *p, struct patch_ref *all, size_t count)
{
    qsort(all, count, sizeof(*all), by_bytes);
    p->x = hth_try_calloc(count, p->n * sizeof(*p->x));
    p->norm = hth_try_calloc(count, sizeof(*p->norm));
    p->weight = hth_try_calloc(count, sizeof(*p->weight));
    p->code = hth_try_calloc(count, sizeof(*p->code));
    p->distance = hth_try_calloc(count, sizeof(*p->distance));
    if (p->x == NULL || p->norm == NULL || p->weight == NULL || p->code == NULL ||
        p->distance == NULL)
        return HTH_E_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || by_bytes(&all[i - 1], &all[i]) != 0) {
            int16_t *x = p->x + (size_t)p->count * p->n;
            widen(all[i].bytes, p->n, x);
            p->norm[p->count++] = HTH_BOOK_SCALE * HTH_BOOK_SCALE * norm_of(x, p->n);
        }
        p->weight[p->count - 1]++;
    }
    return HTH_OK;
}

static enum hth_err patches_init(struct patches *p, const struct hth_book_pictures *pictures,
                                 uint32_t patch)
{
    uint32_t grid = pictures->side / patch;
    size_t each = (size_t)grid * grid, count = each * pictures->count;
    uint8_t *bytes;
    struct patch_ref *all;
    enum hth_err err = HTH_E_NO_MEMORY;

    *p = (struct patches){.n = 3 * patch * patch};
    bytes = hth_try_calloc(count, p->n);
    all = hth_try_calloc(count, sizeof(*all));
    if (bytes != NULL && all != NULL) {
        for (size_t i = 0; i < count; i++) {
            all[i] = (struct patch_ref){bytes + i * p->n, p->n};
            cut(pictures->rgb + i / each * pictures->side * pictures->side * 3, pictures->side,
                patch, (uint32_t)(i % each % grid), (uint32_t)(i % each / grid), bytes + i * p->n);
        }
        err = keep_different(p, all, count);
    }
    hth_free(bytes);
    hth_free(all);
    return err;
}

/* ---- k-means ------------------------------------------------------------------------------- */

struct kmeans {
    struct hth_book *book;
    struct patches p;
    int64_t *norms;  /* of the centres */
    uint32_t newest; /* while the start is drawn: the centre that was added */
};

static void assign_part(void *arg, uint32_t part)
{
    struct kmeans *k = arg;
    uint32_t end = HTH_MIN(k->p.count, (part + 1) * PART_PATCHES);

    for (uint32_t i = part * PART_PATCHES; i < end; i++) {
        int64_t score;
        k->p.code[i] = nearest(k->book, k->norms, k->p.x + (size_t)i * k->p.n, &score);
        k->p.distance[i] = k->p.norm[i] + score;
    }
}

/* Lowers the distances to those of the newest centre. */
static void draw_part(void *arg, uint32_t part)
{
    struct kmeans *k = arg;
    uint32_t end = HTH_MIN(k->p.count, (part + 1) * PART_PATCHES);
    const int16_t *centre = k->book->centres + (size_t)k->newest * k->p.n;

    for (uint32_t i = part * PART_PATCHES; i < end; i++) {
        int64_t d = k->p.norm[i] +
                    score_of(k->p.x + (size_t)i * k->p.n, centre, k->norms[k->newest], k->p.n);
        if (k->newest == 0 || d < k->p.distance[i])
            k->p.distance[i] = d;
    }
}

static uint32_t parts_of(const struct kmeans *k)
{
    return (k->p.count + PART_PATCHES - 1) / PART_PATCHES;
}

static void set_centre(struct kmeans *k, uint32_t code, uint32_t patch)
{
    int16_t *centre = k->book->centres + (size_t)code * k->p.n;
    const int16_t *x = k->p.x + (size_t)patch * k->p.n;

    for (uint32_t i = 0; i < k->p.n; i++)
        centre[i] = (int16_t)(HTH_BOOK_SCALE * x[i]);
    k->norms[code] = norm_of(centre, k->p.n);
}

/* A patch drawn with a probability that grows with its distance and its count. */
static uint32_t draw(struct kmeans *k, struct hth_rng *rng)
{
    uint64_t all = 0, at;

    for (uint32_t i = 0; i < k->p.count; i++)
        all += (uint64_t)k->p.distance[i] * k->p.weight[i];
    at = all > 0 ? hth_rng_below(rng, all) : 0;
    for (uint32_t i = 0; i < k->p.count; i++) {
        uint64_t share = (uint64_t)k->p.distance[i] * k->p.weight[i];
        if (at < share)
            return i;
        at -= share;
    }
    return 0;
}

static void start(struct kmeans *k, const struct hth_book_opts *opts)
{
    struct hth_rng rng;

    hth_rng_init(&rng, opts->seed);
    set_centre(k, 0, (uint32_t)hth_rng_below(&rng, k->p.count));
    for (uint32_t code = 0; code + 1 < k->book->codes; code++) {
        k->newest = code;
        hth_team_run(opts->team, parts_of(k), draw_part, k);
        set_centre(k, code + 1, draw(k, &rng));
        if (opts->progress != NULL)
            opts->progress(opts->arg, code + 1, k->book->codes);
    }
}

/* The patch that adds most to the error; its distance becomes 0, so that the next is another. */
static uint32_t worst(struct kmeans *k)
{
    uint32_t found = 0;
    uint64_t most = 0;

    for (uint32_t i = 0; i < k->p.count; i++) {
        uint64_t share = (uint64_t)k->p.distance[i] * k->p.weight[i];
        if (share > most) {
            most = share;
            found = i;
        }
    }
    k->p.distance[found] = 0;
    return found;
}

static enum hth_err move_centres(struct kmeans *k)
{
    uint32_t codes = k->book->codes, n = k->p.n;
    uint64_t *sum = hth_try_calloc((size_t)codes * n, sizeof(*sum));
    uint64_t *weight = hth_try_calloc(codes, sizeof(*weight));

    if (sum == NULL || weight == NULL) {
        hth_free(sum);
        hth_free(weight);
        return HTH_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < k->p.count; i++) {
        uint64_t *to = sum + (size_t)k->p.code[i] * n;
        weight[k->p.code[i]] += k->p.weight[i];
        for (uint32_t c = 0; c < n; c++)
            to[c] += (uint64_t)k->p.x[(size_t)i * n + c] * k->p.weight[i];
    }
    for (uint32_t code = 0; code < codes; code++) {
        if (weight[code] == 0) {
            set_centre(k, code, worst(k));
            continue;
        }
        for (uint32_t c = 0; c < n; c++)
            k->book->centres[(size_t)code * n + c] =
                (int16_t)((HTH_BOOK_SCALE * sum[(size_t)code * n + c] + weight[code] / 2) /
                          weight[code]);
    }
    hth_free(sum);
    hth_free(weight);
    return HTH_OK;
}

static enum hth_err run_rounds(struct kmeans *k, const struct hth_book_opts *opts)
{
    for (uint32_t round = 0; round < HTH_BOOK_ROUNDS; round++) {
        find_norms(k->book, k->norms);
        hth_team_run(opts->team, parts_of(k), assign_part, k);
        HTH_TRY(move_centres(k));
        if (opts->progress != NULL)
            opts->progress(opts->arg, round + 1, HTH_BOOK_ROUNDS);
    }
    return HTH_OK;
}

static enum hth_err check(const struct hth_book_opts *o, const struct hth_book_pictures *p,
                          struct hth_why *why)
{
    if (o->codes < 2 || o->codes > HTH_BOOK_CODES_MAX)
        return hth_blame(why, HTH_E_CONFIG, "%u codes; expected 2 to %d", o->codes,
                         HTH_BOOK_CODES_MAX);
    if (o->patch < 1 || o->patch > HTH_BOOK_PATCH_MAX || p->side % o->patch != 0)
        return hth_blame(
            why, HTH_E_CONFIG,
            "patches of %u pixels; expected 1 to %d, and a divisor of the pictures' side %u",
            o->patch, HTH_BOOK_PATCH_MAX, p->side);
    return HTH_OK;
}

enum hth_err hth_book_train(const struct hth_book_opts *opts,
                            const struct hth_book_pictures *pictures, struct hth_book *out,
                            struct hth_why *why)
{
    struct kmeans k = {.book = out};
    enum hth_err err;

    *out = (struct hth_book){.codes = opts->codes, .patch = opts->patch};
    HTH_TRY(check(opts, pictures, why));
    err = patches_init(&k.p, pictures, opts->patch);
    if (err == HTH_OK && k.p.count < opts->codes)
        err = hth_blame(why, HTH_E_BAD_SHAPE,
                        "the pictures have %u different patches, fewer than %u codes: take at most "
                        "%u (--codes)",
                        k.p.count, opts->codes, k.p.count);
    if (err == HTH_OK) {
        out->centres = hth_try_calloc((size_t)opts->codes * k.p.n, sizeof(*out->centres));
        k.norms = hth_try_calloc(opts->codes, sizeof(*k.norms));
        err = out->centres != NULL && k.norms != NULL ? HTH_OK : HTH_E_NO_MEMORY;
    }
    if (err == HTH_OK) {
        start(&k, opts);
        err = run_rounds(&k, opts);
    }
    hth_free(k.norms);
    patches_clear(&k.p);
    if (err != HTH_OK)
        hth_book_clear(out);
    return err;
}

void hth_book_clear(struct hth_book *b)
{
    hth_free(b->centres);
    b->centres = NULL;
}

/* ---- use ----------------------------------------------------------------------------------- */

void hth_book_encode(const struct hth_book *b, const uint8_t *rgb, uint32_t side, uint16_t *codes)
{
    uint32_t grid = side / b->patch, n = 3 * b->patch * b->patch;
    uint8_t bytes[3 * HTH_BOOK_PATCH_MAX * HTH_BOOK_PATCH_MAX];
    int16_t x[3 * HTH_BOOK_PATCH_MAX * HTH_BOOK_PATCH_MAX];
    int64_t *norms = hth_new_array(int64_t, b->codes), score;

    find_norms(b, norms);
    for (uint32_t i = 0; i < grid * grid; i++) {
        cut(rgb, side, b->patch, i % grid, i / grid, bytes);
        widen(bytes, n, x);
        codes[i] = (uint16_t)nearest(b, norms, x, &score);
    }
    hth_free(norms);
}

void hth_book_paint(const struct hth_book *b, const uint16_t *codes, uint32_t side, uint8_t *rgb)
{
    uint32_t grid = side / b->patch, row = 3 * b->patch;

    for (uint32_t y = 0; y < side; y++) {
        for (uint32_t x = 0; x < 3 * side; x++) {
            uint32_t code = codes[y / b->patch * grid + x / row];
            int16_t c = b->centres[((size_t)code * b->patch + y % b->patch) * row + x % row];
            rgb[(size_t)y * 3 * side + x] = (uint8_t)((c + HTH_BOOK_SCALE / 2) / HTH_BOOK_SCALE);
        }
    }
}
