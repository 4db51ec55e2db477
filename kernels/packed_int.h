/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_int.h: the table that an instruction set gives to the packed back ends, and their images.
 *
 * Everything is counted in *units* of 4 bytes along the inner dimension K: one fp32 number, or two
 * neighbouring bf16 numbers (the lower half comes first; an odd K is filled with a zero). So the
 * two compute types share all layouts and the whole driver (packed.c); only packing and the
 * multiply-add of packed_template.h know what a unit holds.
 *
 *   B, a *panel*: [units of K][nr]      nr columns of the weight; panels lie one after the other
 *   A by rows:    [rows][HTH_PACK_LDA]  at most HTH_PACK_UNITS units of each row: one *chunk* of K
 *   A by units:   [units of K][width]   width is one vector, for tiles of AMX two; for x^T in the
 *                                       weight gradient
 *
 * Where one instruction sums a whole *group* of units, a row of A is filled with zeros up to it, A
 * by rows is [groups][rows and one more][group], so that a tile is one stretch of memory, and
 * `turn` exchanges rows and units of A by units within each square of a group: row r of a group
 * begins at (r % group) * width + r / group * group, and the next group `group * width` behind.
 *
 * A tile is at most mr rows by nr columns of C; its sums stay in registers for a chunk.
 */
#ifndef HTH_KERNELS_PACKED_INT_H
#define HTH_KERNELS_PACKED_INT_H

#include "kernels/cpu_int.h"
#include "kernels/packed.h"

#define HTH_PACK_UNITS       512 /* of K in a chunk: 2 KiB of a row, 64 KiB of a panel */
#define HTH_PACK_LDA         (HTH_PACK_UNITS + 16) /* no multiple of 4 KiB: rows spread in L1 */
#define HTH_PACK_NR          32                    /* the widest panel of any set */
#define HTH_PACK_MR          32  /* the most rows of a tile, and the largest `width` */
#define HTH_PACK_BLOCK_ROWS  256 /* the most of any set, and the most bytes of them */
#define HTH_PACK_BLOCK_BYTES ((size_t)1280 << 10)

/* C (+)= A B for one tile and one chunk of K. */
struct hth_tile {
    const uint32_t *a, *b;
    float *c;
    size_t ldc;
    size_t next_group; /* of A by rows, where groups are */
    size_t next_panel; /* units from b to a second panel; 0: there is none */
    /* Prefetched during this panel for the next one: ahead_step units for each unit of K, this
     * tile's share of the block's prefetches. */
    const uint32_t *ahead;
    size_t ahead_step;
    uint32_t ahead_lines; /* 2^i - 1: runs of one more line than this; ahead_step between runs */
    uint32_t rows, units;
    bool fresh;  /* start from 0, not from C */
    bool stream; /* stores C past the caches; its rows start on 64 bytes; needs `settle` */
};

/* The end of a tile: how its finished sums become y. Pointers are at its first row and column. */
struct hth_tile_end {
    enum hth_act act;
    bool backward;         /* y = c act'(pre) + residual, else y = act(c + bias) + residual */
    bool pre_bf16, y_bf16; /* else fp32 */
    const float *bias;     /* or NULL */
    float *sums;           /* backward: the rows of y are added to it, in order; or NULL */
    void *pre;             /* forward gets c + bias; or NULL */
    const float *residual; /* or NULL */
    void *y;
    bool stream; /* y, and pre if forward, go past the caches: rows on 64 bytes, then `settle` */
    size_t ld_pre, ld_residual, ldy; /* in elements */
};

struct hth_packed_isa {
    const char *name;
    enum hth_matmul compute;
    uint32_t mr, nr, width; /* rows and columns of a tile; rows of A by units */
    uint32_t pair;          /* numbers of a unit: 1 or 2 */
    uint32_t group;         /* units whose products one instruction sums; width is a multiple */
    uint32_t chunk;         /* units of K for which the sums of a tile by rows stay in registers */
    uint32_t block_rows;    /* rows of A that are packed at a time */
    size_t block_bytes;     /* ... in all; they stay in the second cache */
    size_t stream_bytes;    /* results by rows of this size are written past the caches */
    uint32_t pair_rows;     /* up to this many rows take two panels at a time */
    void (*tile_by_rows)(const struct hth_tile *t);
    void (*tile_by_units)(const struct hth_tile *t);
    /* Turns `units`, whole groups; NULL: tile_by_units takes them as they are packed. */
    void (*turn)(uint32_t *a, uint32_t units);
    /* Gives up what the thread keeps between tiles, after a piece of work; or NULL. */
    void (*leave)(void);
    /* Makes streamed stores visible to other threads. */
    void (*settle)(void);
    /* `rows` x `cols` sums with leading dimension nr; cols <= nr. */
    void (*finish)(const float *c, uint32_t rows, uint32_t cols, const struct hth_tile_end *end);
    /* k numbers of a row into (k + pair - 1) / pair units; where groups are, into whole groups that
     * lie `step` apart. */
    void (*pack_row)(const float *src, uint32_t k, uint32_t *dst, size_t step);
    /* dst[u][j], j < width (a multiple of the vector's): from k rows of `cols` numbers, K
     * downwards; zeros beyond cols. */
    void (*pack_down)(const float *src, size_t ld, uint32_t k, uint32_t cols, uint32_t *dst,
                      uint32_t width);
    /* The same from bf16 numbers; NULL in sets of fp32. */
    void (*pack_row_bf16)(const uint16_t *src, uint32_t k, uint32_t *dst, size_t step);
    void (*pack_down_bf16)(const uint16_t *src, size_t ld, uint32_t k, uint32_t cols, uint32_t *dst,
                           uint32_t width);
    /* dst[u][j], j < nr: from `cols` rows of k numbers, K along the row; zeros beyond cols. */
    void (*pack_along)(const float *src, size_t ld, uint32_t k, uint32_t cols, uint32_t *dst);
    /* Transposes a piece of a panel, `units` <= nr / pair units of nr columns: K and columns are
     * exchanged. dst[u][j], u < nr / pair, j < nr; zeros beyond the piece. */
    void (*transpose)(const uint32_t *src, uint32_t units, uint32_t *dst);
};

extern const struct hth_packed_isa hth_packed_generic, hth_packed_generic_bf16;
extern const struct hth_packed_isa hth_packed_avx2, hth_packed_avx512, hth_packed_avx512bf16,
    hth_packed_amxbf16;

/* A packed back end is a CPU back end whose struct hth_cpu is followed by its set. */
struct hth_packed_cpu {
    struct hth_cpu cpu;
    const struct hth_packed_isa *isa;
};

static inline const struct hth_packed_isa *hth_packed_isa_of(const struct hth_backend *be)
{
    return ((const struct hth_packed_cpu *)be->impl)->isa;
}

/* The two images of a weight. */
enum { HTH_IMAGE_FORWARD, HTH_IMAGE_BACKWARD };

/* Returns the panels of the image; builds them first if they are stale. Panel p starts at
 * p * nr * units of K. Errors: E_NO_MEMORY. */
enum hth_err hth_packed_image(struct hth_exec *ex, struct hth_weight *w, int which,
                              const uint32_t **out) HTH_MUST;
void hth_packed_image_free(struct hth_weight *w);
/* True if the backward image pays for a pass of that many blocks of rows: it exists, or these are
 * not the first since a step. Else the pass transposes panels of the forward image as it needs
 * them; the bits are the same. */
bool hth_packed_image_pays(struct hth_weight *w, uint32_t blocks);

enum hth_err hth_packed_linear_forward(struct hth_exec *ex, const struct hth_linear *lin,
                                       struct hth_view x, struct hth_view y);
enum hth_err hth_packed_linear_backward_data(struct hth_exec *ex, const struct hth_linear_back *lin,
                                             struct hth_view dy, struct hth_view dx);
enum hth_err hth_packed_linear_backward_weight(struct hth_exec *ex, struct hth_weight *w,
                                               struct hth_weight *bias, struct hth_view x,
                                               struct hth_view dy);
size_t hth_packed_linear_scratch(const struct hth_backend *be, uint32_t in, uint32_t out);
enum hth_err hth_packed_gemm(struct hth_exec *ex, const struct hth_gemm *g);
size_t hth_packed_gemm_scratch(size_t n, size_t k);

/* -- gradients that stay products (packed_factors.c) --------------------------------------- */

#define HTH_FACTOR_ROWS_MAX  64 /* of all batches together */
#define HTH_FACTOR_TILE_ROWS 8

/* Keeps a batch's summand of a gradient as factors. False: the caller adds it to the gradient in
 * memory, because this gradient does not stay a product, or there is no memory for factors. Then,
 * and when the factors have no room left, earlier batches have been added there. */
bool hth_packed_factors_take(struct hth_exec *ex, struct hth_weight *w, struct hth_view x,
                             struct hth_view dy) HTH_MUST;
/* Adds the kept factors to the gradient in memory. */
void hth_packed_factors_add(struct hth_weight *w, struct hth_team *team);
/* Computes rows of the product from row0 on, columns col0 .. col0 + cols. Returns the number of
 * rows, at most HTH_FACTOR_TILE_ROWS, of which row0 is a multiple; col0 is one of HTH_PACK_NR. */
uint32_t hth_packed_factors_rows(const struct hth_weight *w, uint32_t row0, uint32_t col0,
                                 uint32_t cols, float *c, size_t ldc);
/* The sum of the squares of the product's elements; not finite where an element might not be. */
double hth_packed_factors_sumsq(const struct hth_weight *w);
void hth_packed_factors_free(struct hth_weight *w);

static inline void hth_packed_leave(const struct hth_packed_isa *isa)
{
    if (isa->leave != NULL)
        isa->leave();
}

/* `units` filled up to whole groups. */
static inline uint32_t hth_groups(const struct hth_packed_isa *isa, uint32_t units)
{
    return (units + isa->group - 1) / isa->group * isa->group;
}

static inline uint32_t hth_units(const struct hth_packed_isa *isa, uint32_t k)
{
    return (k + isa->pair - 1) / isa->pair;
}

#endif
