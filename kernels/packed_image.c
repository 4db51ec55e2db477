/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_image.c: images of weights: built when first needed, or emitted by an optimiser.
 *
 *   W [K, N]              forward image: panels of nr columns,     transposed: panels of nr rows,
 *                         K downwards                              N downwards
 *        n0    n1               panel 0       panel 1
 *   k0 [ a  b  c  d ]           [ a b ]       [ c d ]                  [ a e ]     (nr = 2, fp32)
 *   k1 [ e  f  g  h ]           [ e f ]       [ g h ]                  [ b f ]
 *                                                                      [ c g ]
 *                                                                      [ d h ]
 *
 * Builder and optimiser both write them tile by tile, with the same function.
 */
#include "core/mem.h"
#include "core/team.h"
#include "kernels/packed_int.h"

/* Rows and columns of the matrix B that the image holds. */
static uint32_t inner(const struct hth_weight *w, int which)
{
    return which == HTH_IMAGE_FORWARD ? w->rows : w->cols;
}

static uint32_t outer(const struct hth_weight *w, int which)
{
    return which == HTH_IMAGE_FORWARD ? w->cols : w->rows;
}

static size_t panel_units(const struct hth_packed_isa *isa, const struct hth_weight *w, int which)
{
    return (size_t)hth_units(isa, inner(w, which)) * isa->nr;
}

static size_t image_bytes(const struct hth_packed_isa *isa, const struct hth_weight *w, int which)
{
    size_t panels = (outer(w, which) + isa->nr - 1) / isa->nr;
    return panels * panel_units(isa, w, which) * sizeof(uint32_t);
}

/* An image of this size does not fit the caches. Tiles made in the first cache are then written
 * past the others: a plain store would first read the line that it overwrites. */
#define STREAM_BYTES ((size_t)4 << 20)
#define STREAM_UNITS (HTH_PACKED_TILE * 32)

static bool streams(const struct hth_packed_isa *isa, const struct hth_weight *w, int which)
{
    return image_bytes(isa, w, which) >= STREAM_BYTES && HTH_PACKED_TILE * isa->nr <= STREAM_UNITS;
}

static void stream(const struct hth_weight *w, size_t units, const uint32_t *src, uint32_t *dst)
{
    const struct hth_packed_cpu *cpu = w->owner->be->impl;
    cpu->cpu.row->stream(units * sizeof(src[0]), src, dst);
}

static void stream_end(const struct hth_weight *w)
{
    const struct hth_packed_cpu *cpu = w->owner->be->impl;
    cpu->cpu.row->stream_end();
}

/* Writes rows row0 .. of W, K downwards, into the panels of its columns. */
static void emit_forward(const struct hth_packed_isa *isa, struct hth_weight *w, uint32_t row0,
                         uint32_t rows, uint32_t col0, uint32_t cols, const float *values,
                         size_t ld)
{
    size_t panel = panel_units(isa, w, HTH_IMAGE_FORWARD);
    bool past = streams(isa, w, HTH_IMAGE_FORWARD);
    uint32_t *data = w->image[HTH_IMAGE_FORWARD].data, some[STREAM_UNITS];
    data += (size_t)(row0 / isa->pair) * isa->nr;
    for (uint32_t c = 0; c < cols; c += isa->nr) {
        uint32_t *dst = data + (col0 + c) / isa->nr * panel;
        isa->pack_down(values + c, ld, rows, HTH_MIN(cols - c, isa->nr), past ? some : dst,
                       isa->nr);
        if (past)
            stream(w, (size_t)hth_units(isa, rows) * isa->nr, some, dst);
    }
}

static void emit_backward(const struct hth_packed_isa *isa, struct hth_weight *w, uint32_t row0,
                          uint32_t rows, uint32_t col0, uint32_t cols, const float *values,
                          size_t ld)
{
    size_t panel = panel_units(isa, w, HTH_IMAGE_BACKWARD);
    bool past = streams(isa, w, HTH_IMAGE_BACKWARD);
    uint32_t *data = w->image[HTH_IMAGE_BACKWARD].data, some[STREAM_UNITS];
    data += (size_t)(col0 / isa->pair) * isa->nr;
    for (uint32_t r = 0; r < rows; r += isa->nr) {
        uint32_t *dst = data + (row0 + r) / isa->nr * panel;
        isa->pack_along(values + r * ld, ld, cols, HTH_MIN(rows - r, isa->nr), past ? some : dst);
        if (past)
            stream(w, (size_t)hth_units(isa, cols) * isa->nr, some, dst);
    }
}

struct build {
    const struct hth_packed_isa *isa;
    struct hth_weight *w;
    int which;
};

/* Builds HTH_PACKED_TILE rows of an image. */
static void build_part(void *arg, uint32_t part)
{
    const struct build *b = arg;
    struct hth_weight *w = b->w;
    uint32_t r = part * HTH_PACKED_TILE, rows = HTH_MIN(w->rows - r, (uint32_t)HTH_PACKED_TILE);
    for (uint32_t c = 0; c < w->cols; c += HTH_PACKED_TILE) {
        uint32_t cols = HTH_MIN(w->cols - c, (uint32_t)HTH_PACKED_TILE);
        const float *values = w->value + (size_t)r * w->cols + c;
        if (b->which == HTH_IMAGE_FORWARD)
            emit_forward(b->isa, w, r, rows, c, cols, values, w->cols);
        else
            emit_backward(b->isa, w, r, rows, c, cols, values, w->cols);
    }
    stream_end(w);
}

/* With fewer values a helper does not pay. */
#define TEAM_VALUES ((size_t)1 << 16)

static void build(struct hth_team *team, const struct hth_packed_isa *isa, struct hth_weight *w,
                  int which)
{
    struct build b = {isa, w, which};
    uint32_t parts = w->rows / HTH_PACKED_TILE + (w->rows % HTH_PACKED_TILE != 0);
    hth_team_run((size_t)w->rows * w->cols >= TEAM_VALUES ? team : NULL, parts, build_part, &b);
}

enum hth_err hth_packed_image(struct hth_exec *ex, struct hth_weight *w, int which,
                              const uint32_t **out)
{
    const struct hth_packed_isa *isa = hth_packed_isa_of(w->owner->be);
    struct hth_image *image = &w->image[which];
    uint64_t version = w->owner->version;
    enum hth_err err = HTH_OK;
    if (atomic_load_explicit(&image->version, memory_order_acquire) != version) {
        /* Another pass builds it: a few ms at most, once per version. It spins: kernels/ has no
         * locks. */
        while (atomic_exchange_explicit(&image->busy, true, memory_order_acquire))
            continue;
        if (atomic_load_explicit(&image->version, memory_order_relaxed) != version) {
            if (image->data == NULL)
                image->data = hth_try_aligned(image_bytes(isa, w, which));
            if (image->data == NULL) {
                err = HTH_E_NO_MEMORY;
            } else {
                build(ex->team, isa, w, which);
                atomic_store_explicit(&image->version, version, memory_order_release);
            }
        }
        atomic_store_explicit(&image->busy, false, memory_order_release);
    }
    *out = image->data;
    return err;
}

bool hth_packed_image_pays(struct hth_weight *w, uint32_t blocks)
{
    struct hth_image *image = &w->image[HTH_IMAGE_BACKWARD];
    uint32_t before = atomic_fetch_add_explicit(&image->passes, blocks, memory_order_relaxed);
    return before + blocks > 1 ||
           atomic_load_explicit(&image->version, memory_order_acquire) == w->owner->version;
}

void hth_packed_image_free(struct hth_weight *w)
{
    hth_aligned_free(w->image[HTH_IMAGE_FORWARD].data);
    hth_aligned_free(w->image[HTH_IMAGE_BACKWARD].data);
    hth_packed_factors_free(w);
}

static bool is_packed(const struct hth_backend *be)
{
    return be->image_free == hth_packed_image_free;
}

size_t hth_packed_image_bytes(const struct hth_params *p)
{
    size_t bytes = 0;
    for (uint32_t i = 0; is_packed(p->be) && i < p->count; i++) {
        for (int which = HTH_IMAGE_FORWARD; which <= HTH_IMAGE_BACKWARD; which++) {
            if (p->weights[i]->image[which].data != NULL)
                bytes += image_bytes(hth_packed_isa_of(p->be), p->weights[i], which);
        }
    }
    return bytes;
}

/* -- for optimisers ------------------------------------------------------------------------ */

/* True if the image is worth emitting: a backward image that paid since the last step pays
 * again. */
static bool emits(const struct hth_weight *w, int which)
{
    const struct hth_image *image = &w->image[which];
    return image->data != NULL && (which == HTH_IMAGE_FORWARD ||
                                   atomic_load_explicit(&image->passes, memory_order_relaxed) > 1);
}

bool hth_packed_emit_begin(struct hth_weight *w)
{
    return emits(w, HTH_IMAGE_FORWARD) || emits(w, HTH_IMAGE_BACKWARD);
}

void hth_packed_emit_tile(struct hth_weight *w, uint32_t row0, uint32_t rows, uint32_t col0,
                          uint32_t cols, const float *values, size_t ld)
{
    const struct hth_packed_isa *isa = hth_packed_isa_of(w->owner->be);
    if (emits(w, HTH_IMAGE_FORWARD))
        emit_forward(isa, w, row0, rows, col0, cols, values, ld);
    if (emits(w, HTH_IMAGE_BACKWARD))
        emit_backward(isa, w, row0, rows, col0, cols, values, ld);
    stream_end(w);
}

void hth_packed_emit_end(struct hth_weight *w)
{
    for (int which = HTH_IMAGE_FORWARD; which <= HTH_IMAGE_BACKWARD; which++) {
        if (emits(w, which))
            atomic_store_explicit(&w->image[which].version, w->owner->version,
                                  memory_order_release);
        atomic_store_explicit(&w->image[which].passes, 0, memory_order_relaxed);
    }
}
