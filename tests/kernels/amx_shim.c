/* SPDX-License-Identifier: Apache-2.0 */
/* amx_shim.c: eight tiles for each thread, and the permission to use them. */
#include "kernels/amx_shim.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/base.h"

#define TILES 8
#define ROWS  16
#define LANES 16 /* units of a row */

struct tile {
    uint32_t rows, lanes; /* 0: not configured */
    uint32_t data[ROWS][LANES];
};

static _Thread_local struct tile tiles[TILES];
static _Thread_local size_t dots;

static enum hth_amx answered = HTH_AMX_RUNS;

void amx_shim_answer(enum hth_amx answer)
{
    answered = answer;
}

enum hth_amx hth_amx_ask(void)
{
    return answered;
}

static struct tile *at(int tile)
{
    HTH_ASSERT(tile >= 0 && tile < TILES && tiles[tile].rows > 0);
    return &tiles[tile];
}

void amx_shim_load_config(const void *config)
{
    const uint8_t *bytes = config;
    HTH_ASSERT(bytes[0] == 1 && bytes[1] == 0);
    memset(tiles, 0, sizeof(tiles));
    for (int i = 0; i < TILES; i++) {
        uint32_t row_bytes = bytes[16 + 2 * i] | (uint32_t)bytes[17 + 2 * i] << 8;
        uint32_t rows = bytes[48 + i];
        HTH_ASSERT(rows <= ROWS && row_bytes <= 4 * LANES && row_bytes % 4 == 0 &&
                   (rows == 0) == (row_bytes == 0));
        tiles[i].rows = rows;
        tiles[i].lanes = row_bytes / 4;
    }
}

void amx_shim_release(void)
{
    memset(tiles, 0, sizeof(tiles));
}

bool amx_shim_is_configured(void)
{
    bool any = false;
    for (int i = 0; i < TILES; i++)
        any = any || tiles[i].rows > 0;
    return any;
}

size_t amx_shim_dots(void)
{
    return dots;
}

void amx_shim_zero(int tile)
{
    memset(at(tile)->data, 0, sizeof(tiles[0].data));
}

void amx_shim_load(int tile, const void *from, size_t row_bytes)
{
    struct tile *t = at(tile);
    memset(t->data, 0, sizeof(t->data));
    for (uint32_t r = 0; r < t->rows; r++)
        memcpy(t->data[r], (const uint8_t *)from + r * row_bytes, t->lanes * sizeof(uint32_t));
}

void amx_shim_store(int tile, void *to, size_t row_bytes)
{
    const struct tile *t = at(tile);
    for (uint32_t r = 0; r < t->rows; r++)
        memcpy((uint8_t *)to + r * row_bytes, t->data[r], t->lanes * sizeof(uint32_t));
}

/* A denormal is zero. */
static inline float flush(float x)
{
    return fabsf(x) < FLT_MIN ? 0.0f * x : x;
}

static inline float as_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return flush(x);
}

static void dot_row(uint32_t *c, const uint32_t *a, const struct tile *b, uint32_t lanes)
{
    float even[LANES] = {0}, odd[LANES] = {0}, sum[LANES];
    for (uint32_t k = 0; k < b->rows; k++) {
        float low = as_float(a[k] << 16), high = as_float(a[k] & 0xffff0000u);
        for (uint32_t n = 0; n < LANES; n++) {
            even[n] = flush(even[n] + low * as_float(b->data[k][n] << 16));
            odd[n] = flush(odd[n] + high * as_float(b->data[k][n] & 0xffff0000u));
        }
    }
    for (uint32_t n = 0; n < LANES; n++)
        sum[n] = flush(as_float(c[n]) + flush(even[n] + odd[n]));
    memcpy(c, sum, lanes * sizeof(float));
}

void amx_shim_dot(int c, int a, int b)
{
    struct tile *sums = at(c);
    const struct tile *left = at(a), *right = at(b);
    HTH_ASSERT(c != a && c != b && a != b && sums->rows == left->rows &&
               left->lanes == right->rows && sums->lanes == right->lanes);
    for (uint32_t m = 0; m < sums->rows; m++)
        dot_row(sums->data[m], left->data[m], right, sums->lanes);
    dots++;
}
