/* SPDX-License-Identifier: Apache-2.0 */
/* rowops_gemm_template.h: the matrix product of rowops_template.h, which includes this. */

/* -- matrix product ------------------------------------------------------------------------
 *
 * Element (i, j) is the sum over k in rising order, started from 0 or from C's old value. Tiles of
 * MR x NR elements stay in registers over a chunk of k; between chunks they rest in C, which
 * changes no bit. Which tile an element falls into depends on its column only, so a row's bits do
 * not depend on its neighbours. */
#define MR 4
#define NR (2 * W)
#define KC 256

struct tile {
    const float *a; /* element (r, k) at a[r * ars + k * aks] */
    size_t ars, aks;
    const float *b; /* row k at b + k * ldb */
    size_t ldb;
    float *c;
    size_t ldc;
    size_t kc;
    bool fresh; /* start from 0 */
};

static inline __attribute__((always_inline)) void tile_rows(const struct tile *t, int rows)
{
    vec acc[MR][2];
    for (int r = 0; r < rows; r++) {
        for (int q = 0; q < 2; q++)
            acc[r][q] = t->fresh ? (vec){0} : load(t->c + (size_t)r * t->ldc + (size_t)(q * W));
    }
    const float *a = t->a, *b = t->b;
    for (size_t k = 0; k < t->kc; k++) {
        vec b0 = load(b), b1 = load(b + W);
        for (int r = 0; r < rows; r++) {
            float x = a[(size_t)r * t->ars];
            acc[r][0] += x * b0;
            acc[r][1] += x * b1;
        }
        a += t->aks;
        b += t->ldb;
    }
    for (int r = 0; r < rows; r++) {
        for (int q = 0; q < 2; q++)
            store(t->c + (size_t)r * t->ldc + (size_t)(q * W), acc[r][q]);
    }
}

static void tile_full(const struct tile *t)
{
    tile_rows(t, MR);
}

static void tile_one(const struct tile *t)
{
    tile_rows(t, 1);
}

/* The last n mod NR columns: the panel is padded with zeros, the result is cut. */
static void tile_edge(const struct tile *t, size_t rows, size_t cols)
{
    float c[NR] = {0}; /* the first `cols` belong to C; the others are dropped */
    for (size_t r = 0; r < rows; r++) {
        struct tile one = *t;
        float *out = t->c + r * t->ldc;
        memcpy(c, out, cols * sizeof(float));
        one.a = t->a + r * t->ars;
        one.c = c;
        one.ldc = NR;
        tile_one(&one);
        memcpy(out, c, cols * sizeof(float));
    }
}

/* panel[k][j] for kc rows and NR columns of B (or of B^T), zeros beyond the last column. */
static void pack_panel(const struct hth_gemm *g, size_t k0, size_t kc, size_t j0, float *panel)
{
    size_t cols = g->n - j0 < NR ? g->n - j0 : NR;
    for (size_t k = 0; k < kc; k++) {
        float *row = panel + k * NR;
        for (size_t j = 0; j < cols; j++) {
            row[j] = g->form == HTH_GEMM_NT ? g->b[(j0 + j) * g->ldb + k0 + k]
                                            : g->b[(k0 + k) * g->ldb + j0 + j];
        }
        for (size_t j = cols; j < NR; j++)
            row[j] = 0;
    }
}

static void gemm_panel(const struct hth_gemm *g, struct tile *t, size_t j0, size_t k0)
{
    size_t i = 0, cols = g->n - j0;
    const float *a = g->a + k0 * t->aks;
    for (; cols >= NR && i + MR <= g->m; i += MR) {
        t->a = a + i * t->ars;
        t->c = g->c + i * g->ldc + j0;
        tile_full(t);
    }
    t->a = a + i * t->ars;
    t->c = g->c + i * g->ldc + j0;
    if (cols < NR) {
        tile_edge(t, g->m, cols);
        return;
    }
    for (; i < g->m; i++, t->a += t->ars, t->c += t->ldc)
        tile_one(t);
}

static void row_gemm(const struct hth_gemm *g)
{
    float panel[KC * NR] __attribute__((aligned(64)));
    struct tile t = {.ldc = g->ldc, .fresh = !g->accumulate};
    t.ars = g->form == HTH_GEMM_TN ? 1 : g->lda;
    t.aks = g->form == HTH_GEMM_TN ? g->lda : 1;
    if (g->k == 0 && !g->accumulate) {
        for (size_t i = 0; i < g->m; i++)
            memset(g->c + i * g->ldc, 0, g->n * sizeof(float));
    }
    for (size_t k0 = 0; k0 < g->k; k0 += KC) {
        t.kc = g->k - k0 < KC ? g->k - k0 : KC;
        for (size_t j0 = 0; j0 < g->n; j0 += NR) {
            /* Reads rows of B that are used once in place. */
            bool direct = g->form != HTH_GEMM_NT && j0 + NR <= g->n && g->m <= MR;
            if (!direct)
                pack_panel(g, k0, t.kc, j0, panel);
            t.b = direct ? g->b + k0 * g->ldb + j0 : panel;
            t.ldb = direct ? g->ldb : NR;
            gemm_panel(g, &t, j0, k0);
        }
        t.fresh = false;
    }
}
