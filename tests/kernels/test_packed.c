/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_packed.c: promises of the packed back ends beyond the table of cases: the choice of a table,
 * images that follow the values, the same bits for any team, and no access beyond a view.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/rng.h"
#include "core/team.h"
#include "kernels/backend.h"
#include "kernels/isa.h"
#include "kernels/ops.h"
#include "kernels/optim.h"
#include "kernels/packed.h"
#include "kernels/params.h"
#include "kernels/peak.h"
#include "kernels/tables.h"

/* The packed back ends that this CPU runs. */
static const struct hth_backend *backends[HTH_PACKED_MAX];
static size_t backend_count;

static int setup(void **state)
{
    (void)state;
    backend_count = test_tables(backends);
    if (HTH_TEST_ONLY_THREADS && backend_count > 2) { /* no table has threads of its own */
        backends[1] = backends[backend_count - 1];
        backend_count = 2;
    }
    return backend_count >= 1 ? 0 : -1;
}

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(int32_t)(hth_mix64(seed * 1000003 + i) >> 40) * 0x1p-23f - 1.0f;
}

/* Finds one of `all`; NULL if there is none. */
static const struct hth_backend *backends_find(const struct hth_backend *const *all, size_t count,
                                               const char *isa, enum hth_matmul compute)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(hth_backend_isa(all[i]), isa) == 0 && hth_backend_compute(all[i]) == compute)
            return all[i];
    }
    return NULL;
}

/* -- the choice ---------------------------------------------------------------------------- */

static void best_set_is_chosen(void **state)
{
    (void)state;
    const struct hth_backend *be = NULL, *all[HTH_PACKED_MAX];
    size_t count = hth_backend_packed_all(all), found = 0;
    struct hth_packed_options o = HTH_PACKED_OPTIONS_INIT;
    for (size_t i = 0; (o.isa = hth_isa_name(i)) != NULL; i++) {
        for (o.compute = HTH_MATMUL_F32; o.compute <= HTH_MATMUL_BF16; o.compute++) {
            enum hth_err err = hth_backend_packed(&o, &be);
            if (err == HTH_E_UNSUPPORTED && i > 0)
                continue;
            assert_ok(err);
            assert_ptr_equal(be, backends_find(all, count, o.isa, o.compute));
            assert_true(hth_backend_caps(be) & HTH_CAP_ROW_INVARIANT);
            found++;
        }
    }
    assert_int_equal(found, count);
    o = (struct hth_packed_options){.isa = "abacus"};
    assert_err(HTH_E_NO_DEVICE, hth_backend_packed(&o, &be));
    o = (struct hth_packed_options){.isa = "avx2", .compute = HTH_MATMUL_BF16};
    assert_err(HTH_E_UNSUPPORTED, hth_backend_packed(&o, &be));
    /* Plain C multiplies bf16 only if named. */
    o = (struct hth_packed_options){.isa = "generic"};
    assert_ok(hth_backend_packed(&o, &be));
    assert_int_equal(hth_backend_compute(be), HTH_MATMUL_F32);
    struct hth_backend_choice c = {.name = "packed", .isa = "generic", .compute = HTH_MATMUL_F32};
    assert_ok(hth_backend_choose(&c, &be));
    assert_string_equal(hth_backend_name(be), "packed");
    c = (struct hth_backend_choice){.name = "packed-bf16", .isa = "generic"};
    assert_ok(hth_backend_choose(&c, &be));
    assert_string_equal(hth_backend_name(be), "packed-bf16");
    assert_string_equal(hth_matmul_name(hth_backend_compute(be)), "bf16");
    c = (struct hth_backend_choice){.name = "ref", .compute = HTH_MATMUL_BF16};
    assert_err(HTH_E_UNSUPPORTED, hth_backend_choose(&c, &be));
    c = (struct hth_backend_choice){.name = "auto", .isa = "generic"};
    assert_ok(hth_backend_choose(&c, &be));
    assert_string_equal(hth_backend_isa(be), "generic");
    assert_ok(hth_backend_by_name("auto", &be));
    assert_int_equal(hth_backend_compute(be), HTH_MATMUL_F32);
}

static void type_whose_peak_is_higher_is_chosen(void **state)
{
    (void)state;
    static const struct {
        double fp32, bf16;
        enum hth_matmul chosen;
    } cases[] = {
        {117, 234, HTH_MATMUL_BF16},                              /* Zen 4: twice as quick */
        {242, 121, HTH_MATMUL_F32},                               /* a Xeon with AMX: half */
        {242, 3419, HTH_MATMUL_BF16},                             /* its tiles */
        {120, 120, HTH_MATMUL_BF16},                              /* as quick, and half the bytes */
        {109, 100, HTH_MATMUL_BF16},  {95, 104, HTH_MATMUL_BF16}, /* noise around that */
        {111, 100, HTH_MATMUL_F32},   {50, 0, HTH_MATMUL_F32},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_int_equal(hth_peak_quicker(cases[i].fp32, cases[i].bf16), cases[i].chosen);
}

/* A team that runs each part in a thread, a few at a time, the last part first. */
struct crowd {
    struct hth_team team;
    uint32_t width, most_parts;
};

struct crowd_part {
    hth_team_fn *fn;
    void *arg;
    uint32_t part;
};

static void *crowd_thread(void *arg)
{
    struct crowd_part *p = arg;
    p->fn(p->arg, p->part);
    return NULL;
}

static void crowd_run(struct hth_team *team, uint32_t parts, hth_team_fn *fn, void *arg)
{
    struct crowd *crowd = (struct crowd *)team;
    crowd->most_parts = HTH_MAX(crowd->most_parts, parts);
    for (uint32_t left = parts; left > 0;) {
        pthread_t threads[4];
        struct crowd_part part[4];
        uint32_t n = HTH_MIN(left, crowd->width);
        for (uint32_t i = 0; i < n; i++) {
            part[i] = (struct crowd_part){fn, arg, --left};
            assert_int_equal(pthread_create(&threads[i], NULL, crowd_thread, &part[i]), 0);
        }
        for (uint32_t i = 0; i < n; i++)
            pthread_join(threads[i], NULL);
    }
}

static uint32_t crowd_width(const struct hth_team *team)
{
    return ((const struct crowd *)team)->width;
}

static const struct hth_team_ops crowd_ops = {crowd_run, crowd_width};

/* -- images -------------------------------------------------------------------------------- */

#define ROWS 9

/* A layer with everything that the three operations read and write. */
struct layer {
    const struct hth_backend *be;
    struct hth_params *p;
    struct hth_weight *w, *b;
    struct hth_exec *ex;
    uint32_t in, out;
    float *x, *y, *dy, *dx;
};

static struct layer layer_new(const struct hth_backend *be, uint32_t in, uint32_t out)
{
    struct layer l = {.be = be, .in = in, .out = out};
    struct hth_param_spec w = {.name = "w", .rows = in, .cols = out, .init = HTH_INIT_UNIFORM};
    struct hth_param_spec b = {.name = "b", .rows = 1, .cols = out, .init = HTH_INIT_UNIFORM};
    struct hth_seal_options seal = {.seed = 5, .state_slots = 2};
    assert_ok(hth_params_new(be, &l.p));
    assert_ok(hth_params_add(l.p, &w, &l.w));
    assert_ok(hth_params_add(l.p, &b, &l.b));
    assert_ok(hth_params_seal(l.p, &seal));
    assert_ok(hth_exec_new(be, hth_linear_scratch(be, in, out), &l.ex));
    l.x = hth_calloc((size_t)2 * ROWS * (in + out), sizeof(float));
    l.dx = l.x + ROWS * in;
    l.y = l.dx + ROWS * in;
    l.dy = l.y + ROWS * out;
    fill(l.x, ROWS * in, 1);
    fill(l.dy, ROWS * out, 2);
    return l;
}

static void layer_free(struct layer *l)
{
    hth_free(l->x);
    hth_exec_free(l->ex);
    hth_params_free(l->p);
}

/* Forward and data gradient: both images are read. */
static uint64_t layer_hash(struct layer *l)
{
    struct hth_linear lin = {.w = l->w, .bias = l->b, .act = HTH_ACT_GELU};
    struct hth_linear_back back = {.w = l->w};
    assert_ok(hth_linear_forward(l->ex, &lin, hth_view_f32(l->x, ROWS, l->in, l->in),
                                 hth_view_f32(l->y, ROWS, l->out, l->out)));
    assert_ok(hth_linear_backward_data(l->ex, &back, hth_view_f32(l->dy, ROWS, l->out, l->out),
                                       hth_view_f32(l->dx, ROWS, l->in, l->in)));
    uint64_t hash = hth_hash64(l->y, ROWS * l->out * sizeof(float), 0);
    return hth_hash64(l->dx, ROWS * l->in * sizeof(float), hash);
}

/* The hash of a new layer with these values. */
static uint64_t fresh_hash(struct layer *l)
{
    struct layer fresh = layer_new(l->be, l->in, l->out);
    assert_ok(hth_params_import(fresh.ex, fresh.p, HTH_PART_VALUE, 0, hth_params_flat_len(l->p),
                                hth_params_flat(l->p, HTH_PART_VALUE)));
    uint64_t hash = layer_hash(&fresh);
    layer_free(&fresh);
    return hash;
}

static void images_follow_the_values(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct layer l = layer_new(backends[k], 131, 77);
        uint64_t before = layer_hash(&l);
        assert_true(before == fresh_hash(&l));
        fill(hth_params_flat(l.p, HTH_PART_VALUE), 131 * 77, 3);
        hth_params_touched(l.p);
        uint64_t touched = layer_hash(&l);
        assert_true(touched != before && touched == fresh_hash(&l));
        float one = 100;
        assert_ok(hth_params_import(l.ex, l.p, HTH_PART_VALUE, 40 * 77 + 3, 1, &one));
        uint64_t imported = layer_hash(&l);
        assert_true(imported != touched && imported == fresh_hash(&l));
        struct hth_optim o = HTH_OPTIM_INIT;
        assert_ok(hth_linear_backward_weight(l.ex, l.w, l.b, hth_view_f32(l.x, ROWS, 131, 131),
                                             hth_view_f32(l.dy, ROWS, 77, 77)));
        assert_ok(hth_optim_step(l.ex, l.p, &o, 1));
        uint64_t stepped = layer_hash(&l);
        assert_true(stepped != imported && stepped == fresh_hash(&l));
        layer_free(&l);
    }
}

/* -- interrupted threads -- */

#define SIGNALS 20

static atomic_uint signals;
static volatile float product = 1.0f;

/* Uses the registers that it interrupted. */
static void on_tick(int signal)
{
    (void)signal;
    for (int i = 0; i < 64; i++)
        product = product * 1.0000001f;
    atomic_fetch_add(&signals, 1);
}

/* Computes until enough signals came. Returns NULL if all bits were the same. */
static void *compute_on(void *arg)
{
    struct layer *l = arg;
    uint64_t first = layer_hash(l);
    bool same = true;
    while (atomic_load(&signals) < SIGNALS)
        same = same && layer_hash(l) == first;
    return same ? NULL : arg;
}

static void tick_each_ms(bool on)
{
    long us = on ? 1000 : 0;
    const struct itimerval timer = {.it_interval.tv_usec = us, .it_value.tv_usec = us};
    assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

/* The kernel saves registers and tiles: a signal, a switch of threads or a fork changes no bit. */
static void bits_survive_signals_and_forks(void **state)
{
    (void)state;
    const struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    for (size_t k = 0; k < backend_count; k++) {
        struct layer layers[4];
        pthread_t threads[4];
        atomic_store(&signals, 0);
        for (int i = 0; i < 4; i++) {
            layers[i] = layer_new(backends[k], 131, 77);
            assert_int_equal(pthread_create(&threads[i], NULL, compute_on, &layers[i]), 0);
        }
        tick_each_ms(true);
        for (int i = 0; i < 3; i++) {
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            assert_int_equal(waitpid(child, NULL, 0), child);
        }
        void *wrong;
        for (int i = 0; i < 4; i++) {
            assert_int_equal(pthread_join(threads[i], &wrong), 0);
            assert_null(wrong);
        }
        tick_each_ms(false);
        for (int i = 0; i < 4; i++)
            layer_free(&layers[i]);
    }
}

/* Sets new values and emits tiles of them; `end` false: the optimiser never ends the emission. */
static void emit_all(struct layer *l, uint64_t seed, bool end)
{
    float *w = hth_params_flat(l->p, HTH_PART_VALUE), tile[HTH_PACKED_TILE * HTH_PACKED_TILE];
    fill(w, (size_t)l->in * l->out, seed);
    hth_params_touched(l->p);
    assert_true(hth_packed_emit_begin(l->w));
    for (uint32_t r = 0; r < l->in; r += HTH_PACKED_TILE) {
        for (uint32_t c = 0; c < l->out; c += HTH_PACKED_TILE) {
            uint32_t rows = HTH_MIN(l->in - r, (uint32_t)HTH_PACKED_TILE);
            uint32_t cols = HTH_MIN(l->out - c, (uint32_t)HTH_PACKED_TILE);
            for (uint32_t i = 0; i < rows; i++)
                memcpy(tile + i * cols, w + (r + i) * l->out + c, cols * sizeof(float));
            hth_packed_emit_tile(l->w, r, rows, c, cols, tile, cols);
        }
    }
    if (end)
        hth_packed_emit_end(l->w);
}

static void emitted_images_are_used(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{64, 128}, {131, 77}, {1, 70}, {65, 1}, {7, 5}};
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            struct layer l = layer_new(backends[k], shapes[s][0], shapes[s][1]);
            assert_false(hth_packed_emit_begin(l.w)); /* not used yet */
            assert_int_equal(hth_packed_image_bytes(l.p), 0);
            uint64_t first =
                layer_hash(&l); /* the second pass over the same values pays for both */
            assert_true(layer_hash(&l) == first);
            size_t unit = hth_backend_compute(backends[k]) == HTH_MATMUL_BF16 ? 2 : 4;
            size_t least = 2 * (size_t)l.in * l.out * unit;
            assert_true(hth_packed_image_bytes(l.p) >= least);
            assert_false(hth_packed_emit_begin(l.b)); /* biases have none */
            emit_all(&l, 21, true);
            assert_true(layer_hash(&l) == fresh_hash(&l));
            assert_true(layer_hash(&l) == fresh_hash(&l));
            emit_all(&l, 22, false);
            assert_true(layer_hash(&l) == fresh_hash(&l));
            /* The emitted image is used: one with other values gives other results. */
            emit_all(&l, 23, true);
            fill(hth_params_flat(l.p, HTH_PART_VALUE), (size_t)l.in * l.out, 24);
            assert_true(layer_hash(&l) != fresh_hash(&l));
            layer_free(&l);
        }
    }
}

/* The data gradient of the first rows after a step transposes the forward image, with any team. The
 * next rows of the same values find or make the other image. */
static uint64_t data_hash(struct layer *l, uint32_t rows, const float *dy, float *dx)
{
    struct hth_linear_back back = {.w = l->w};
    assert_ok(hth_linear_backward_data(l->ex, &back,
                                       hth_view_f32((float *)(uintptr_t)dy, rows, l->out, l->out),
                                       hth_view_f32(dx, rows, l->in, l->in)));
    return hth_hash64(dx, (size_t)rows * l->in * sizeof(float), 0);
}

static void check_turned(struct layer *l, uint32_t rows)
{
    struct crowd crowd = {{&crowd_ops}, 3, 0};
    struct hth_optim o = HTH_OPTIM_INIT;
    float *dy = hth_calloc((size_t)rows * (l->out + l->in), sizeof(float)),
          *dx = dy + rows * l->out;
    size_t values = (size_t)l->in * l->out;
    float *grad = hth_calloc(values, sizeof(float));
    fill(dy, (size_t)rows * l->out, 5);
    uint64_t transposed = data_hash(l, rows, dy, dx);
    size_t one = hth_packed_image_bytes(l->p);
    assert_true(data_hash(l, rows, dy, dx) == transposed);
    size_t both = hth_packed_image_bytes(l->p);
    assert_true(one > 0 && both > one);
    for (int step = 0; step < 3; step++) { /* the first step emits both, after two passes */
        uint64_t before = transposed;
        hth_params_zero_grads(l->p);
        fill(grad, values, 6 + (uint64_t)step);
        assert_ok(hth_weight_import(l->ex, l->w, HTH_PART_GRAD, grad));
        assert_ok(hth_optim_step(l->ex, l->p, &o, 1));
        hth_exec_set_team(l->ex, &crowd.team);
        transposed = data_hash(l, rows, dy, dx);
        hth_exec_set_team(l->ex, NULL);
        assert_true(transposed != before); /* stale values would show */
        struct layer fresh = layer_new(l->be, l->in, l->out);
        assert_ok(hth_params_import(fresh.ex, fresh.p, HTH_PART_VALUE, 0, hth_params_flat_len(l->p),
                                    hth_params_flat(l->p, HTH_PART_VALUE)));
        assert_true(data_hash(&fresh, rows, dy, dx) == transposed);
        assert_true(data_hash(&fresh, rows, dy, dx) == transposed);
        layer_free(&fresh);
    }
    assert_int_equal(hth_packed_image_bytes(l->p), both);
    assert_true(rows * l->in * l->out < 1u << 21 || crowd.most_parts > 1); /* the team helped */
    hth_free(dy);
    hth_free(grad);
}

static void transposed_panels_give_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 131, 77},   {9, 33, 1100}, {30, 1100, 33},
                                         {5, 130, 2050}, {13, 65, 1},   {40, 300, 400},
                                         {8, 1, 70}};
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            struct layer l = layer_new(backends[k], shapes[s][1], shapes[s][2]);
            check_turned(&l, shapes[s][0]);
            layer_free(&l);
        }
    }
}

/* With one pass of few rows between steps the backward image is never made. */
static void single_pass_makes_one_image(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct layer l = layer_new(backends[k], 131, 77);
        struct hth_optim o = HTH_OPTIM_INIT;
        size_t one = 0;
        for (int step = 0; step < 3; step++) {
            uint64_t hash = layer_hash(&l);
            one = step == 0 ? hth_packed_image_bytes(l.p) : one;
            assert_true(one > 0 && hth_packed_image_bytes(l.p) == one);
            assert_true(hash == fresh_hash(&l));
            hth_params_zero_grads(l.p);
            assert_ok(hth_linear_backward_weight(l.ex, l.w, l.b, hth_view_f32(l.x, ROWS, 131, 131),
                                                 hth_view_f32(l.dy, ROWS, 77, 77)));
            assert_ok(hth_optim_step(l.ex, l.p, &o, 1));
        }
        layer_free(&l);
    }
}

/* Several passes find the image missing at the same time: one builds it, all use it. */
struct pass {
    struct layer *l;
    struct hth_exec *ex;
    float y[ROWS * 256];
};

static void *pass_run(void *arg)
{
    struct pass *pass = arg;
    struct layer *l = pass->l;
    struct hth_linear lin = {.w = l->w, .bias = l->b};
    assert_ok(hth_linear_forward(pass->ex, &lin, hth_view_f32(l->x, ROWS, l->in, l->in),
                                 hth_view_f32(pass->y, ROWS, l->out, l->out)));
    return NULL;
}

static void concurrent_passes_build_an_image_once(void **state)
{
    (void)state;
    enum { PASSES = 4 };
    static struct pass pass[PASSES];
    for (size_t k = 0; k < backend_count; k++) {
        struct layer l = layer_new(backends[k], 300, 256);
        for (int round = 0; round < 5; round++) {
            pthread_t threads[PASSES];
            hth_params_touched(l.p);
            for (size_t i = 0; i < PASSES; i++) {
                pass[i].l = &l;
                assert_ok(hth_exec_new(l.be, hth_linear_scratch(l.be, 300, 256), &pass[i].ex));
                memset(pass[i].y, 0, sizeof(pass[i].y));
            }
            for (size_t i = 0; i < PASSES; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, pass_run, &pass[i]), 0);
            for (size_t i = 0; i < PASSES; i++)
                pthread_join(threads[i], NULL);
            for (size_t i = 0; i < PASSES; i++) {
                assert_memory_equal(pass[i].y, pass[0].y, sizeof(pass[0].y));
                hth_exec_free(pass[i].ex);
            }
            assert_true(pass[0].y[0] != 0);
        }
        layer_free(&l);
    }
}

/* -- helpers ------------------------------------------------------------------------------- */

/* All three operations, with and without a team. */
static void team_changes_no_bit(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {
        {101, 333, 400}, {3, 700, 2050}, {300, 130, 257}, {530, 40, 700}};
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            uint32_t rows = shapes[s][0], in = shapes[s][1], out = shapes[s][2];
            struct layer l = layer_new(backends[k], in, out);
            float *x = hth_calloc((size_t)2 * rows * (in + out), sizeof(float));
            float *dy = x + rows * in, *y = dy + rows * out, *dx = y + rows * out;
            uint64_t want = 0;
            struct hth_linear lin = {.w = l.w, .bias = l.b, .act = HTH_ACT_GELU};
            struct hth_linear_back back = {.w = l.w};
            fill(x, (size_t)rows * (in + out), 9);
            for (uint32_t width = 0; width <= 4; width++) {
                struct crowd crowd = {{&crowd_ops}, width, 0};
                hth_exec_set_team(l.ex, width > 0 ? &crowd.team : NULL);
                hth_params_zero_grads(l.p);
                assert_ok(hth_linear_forward(l.ex, &lin, hth_view_f32(x, rows, in, in),
                                             hth_view_f32(y, rows, out, out)));
                assert_ok(hth_linear_backward_data(l.ex, &back, hth_view_f32(dy, rows, out, out),
                                                   hth_view_f32(dx, rows, in, in)));
                for (int twice = 0; twice < 2; twice++) {
                    assert_ok(hth_linear_backward_weight(l.ex, l.w, l.b,
                                                         hth_view_f32(x, rows, in, in),
                                                         hth_view_f32(dy, rows, out, out)));
                }
                uint64_t hash = hth_hash64(y, (size_t)rows * (out + in) * sizeof(float), 0);
                hash = hth_hash64(hth_params_flat(l.p, HTH_PART_GRAD),
                                  hth_params_flat_len(l.p) * sizeof(float), hash);
                want = width == 0 ? hash : want;
                assert_true(hash == want);
                assert_true(width <= 1 || crowd.most_parts > 1); /* it was asked for help */
            }
            hth_free(x);
            layer_free(&l);
        }
    }
}

/* The results of attention, layer norm and a bias as one hash. */
struct helped {
    struct hth_params *p;
    struct hth_weight *gamma, *beta;
    struct hth_exec *ex;
    float *x;
};

enum { H_SEQ = 70, H_ROWS = 3 * H_SEQ, H_DIM = 400, H_HEADS = 5, H_FLOATS = 9 * H_ROWS * H_DIM };

static struct helped helped_new(const struct hth_backend *be)
{
    struct hth_param_spec gamma = {.name = "g", .rows = 1, .cols = H_DIM, .init = HTH_INIT_ONES};
    struct hth_param_spec beta = {.name = "b", .rows = 1, .cols = H_DIM};
    struct helped h = {.x = hth_calloc(H_FLOATS, sizeof(float))};
    struct hth_seal_options seal = {.state_slots = 0};
    assert_ok(hth_params_new(be, &h.p));
    assert_ok(hth_params_add(h.p, &gamma, &h.gamma));
    assert_ok(hth_params_add(h.p, &beta, &h.beta));
    assert_ok(hth_params_seal(h.p, &seal));
    assert_ok(hth_exec_new(be, hth_attention_scratch(be, H_SEQ, H_DIM / H_HEADS), &h.ex));
    return h;
}

static enum hth_err helped_attention(struct hth_exec *ex, void *arg, uint32_t i)
{
    const struct helped *h = arg;
    const size_t n = (size_t)H_ROWS * H_DIM;
    struct hth_attention att = {.seq = H_SEQ, .heads = H_HEADS};
    struct hth_view qkv = hth_view_f32(h->x, H_ROWS, 3 * H_DIM, 3 * H_DIM);
    struct hth_view dqkv = hth_view_f32(h->x + 3 * n, H_ROWS, 3 * H_DIM, 3 * H_DIM);
    struct hth_view out = hth_view_f32(h->x + 6 * n, H_ROWS, H_DIM, H_DIM);
    struct hth_view dout = hth_view_f32(h->x + 7 * n, H_ROWS, H_DIM, H_DIM);
    struct hth_view lse = hth_view_f32(h->x + 8 * n, H_ROWS, H_HEADS, H_HEADS);
    struct hth_attention_saved saved = {.qkv = qkv, .out = out, .lse = lse};
    if (i > 0) /* the other calls have no buffers */
        return HTH_OK;
    HTH_TRY(hth_attention_forward(ex, &att, qkv, out, lse));
    return hth_attention_backward(ex, &att, &saved, dout, dqkv);
}

/* Forward and backward; dx of the norm lies where its dy was. */
static uint64_t helped_hash(struct helped *h)
{
    const size_t n = (size_t)H_ROWS * H_DIM;
    struct hth_layernorm ln = {.gamma = h->gamma, .beta = h->beta, .eps = 1e-5f};
    struct hth_view x = hth_view_f32(h->x, H_ROWS, H_DIM, H_DIM);
    struct hth_view y = hth_view_f32(h->x + 6 * n, H_ROWS, H_DIM, H_DIM);
    struct hth_view dy = hth_view_f32(h->x + 7 * n, H_ROWS, H_DIM, H_DIM);
    struct hth_view stats = hth_view_f32(h->x + 8 * n, H_ROWS, 2, 2);
    struct hth_layernorm_back back = {.gamma = h->gamma, .beta = h->beta, .x = x, .stats = stats};
    fill(h->x, H_FLOATS, 4);
    hth_params_zero_grads(h->p);
    size_t scratch = hth_attention_scratch(hth_exec_backend(h->ex), H_SEQ, H_DIM / H_HEADS);
    assert_ok(helped_attention(h->ex, h, 0));
    uint64_t hash = hth_hash64(h->x, H_FLOATS * sizeof(float), 0);
    assert_ok(hth_exec_reserve(h->ex, hth_exec_each_bytes(h->ex, 3, scratch)));
    assert_ok(hth_exec_each(h->ex, 3, scratch, helped_attention, h));
    assert_true(hash ==
                hth_hash64(h->x, H_FLOATS * sizeof(float), 0)); /* the same inside hth_exec_each */
    assert_ok(hth_layernorm_forward(h->ex, &ln, x, y, stats));
    assert_ok(hth_layernorm_backward(h->ex, &back, dy, dy));
    hash = hth_hash64(h->x, H_FLOATS * sizeof(float), hash);
    return hth_hash64(hth_params_flat(h->p, HTH_PART_GRAD),
                      hth_params_flat_len(h->p) * sizeof(float), hash);
}

static void team_changes_no_bit_of_other_operations(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct helped h = helped_new(backends[k]);
        uint64_t want = helped_hash(&h);
        for (uint32_t width = 1; width <= 4; width++) {
            struct crowd crowd = {{&crowd_ops}, width, 0};
            hth_exec_set_team(h.ex, &crowd.team);
            assert_true(helped_hash(&h) == want);
            assert_true(width <= 1 || crowd.most_parts > 1); /* it was asked for help */
        }
        hth_exec_free(h.ex);
        hth_params_free(h.p);
        hth_free(h.x);
    }
}

/* A gradient of more than 8 MiB is written past the cache, except for its ragged columns; then it
 * is added to. */
static void large_gradient_is_streamed(void **state)
{
    (void)state;
    enum { IN = 1060, OUT = 2000 };
    double *want = hth_calloc((size_t)IN * OUT, sizeof(double));
    for (size_t k = 0; k < backend_count; k++) {
        struct layer l = layer_new(backends[k], IN, OUT);
        bool bf16 = hth_backend_compute(backends[k]) == HTH_MATMUL_BF16;
        for (int round = 1; round <= 2; round++) {
            assert_ok(hth_linear_backward_weight(l.ex, l.w, l.b, hth_view_f32(l.x, ROWS, IN, IN),
                                                 hth_view_f32(l.dy, ROWS, OUT, OUT)));
            for (size_t i = 0; i < IN; i++) {
                for (size_t j = 0; j < OUT; j++) {
                    double sum = 0;
                    for (size_t r = 0; r < ROWS; r++)
                        sum += (double)l.x[r * IN + i] * (double)l.dy[r * OUT + j];
                    want[i * OUT + j] = round * sum;
                }
            }
            const float *got = hth_params_flat(l.p, HTH_PART_GRAD) + hth_weight_offset(l.w);
            double off = hth_test_rel_l2(got, want, (size_t)IN * OUT);
            assert_true(off < (bf16 ? 6e-3 : 5e-6));
        }
        layer_free(&l);
    }
    hth_free(want);
}

/* -- the end of memory --------------------------------------------------------------------- */

/* rows x cols floats that end at an unreadable page. */
struct walled {
    uint8_t *pages;
    size_t bytes;
    struct hth_view v;
};

static struct walled walled_new(uint32_t rows, uint32_t cols, uint32_t gap, uint64_t seed)
{
    struct walled m;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), ld = cols + gap;
    size_t data = ((rows - 1) * ld + cols) * sizeof(float);
    size_t inside = (data + page - 1) / page * page;
    m.bytes = inside + 2 * page;
    m.pages = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(m.pages != MAP_FAILED);
    assert_int_equal(mprotect(m.pages, page, PROT_NONE), 0);
    assert_int_equal(mprotect(m.pages + page + inside, page, PROT_NONE), 0);
    float *x = (float *)(void *)(m.pages + page + inside - data);
    fill(x, data / sizeof(float), seed);
    m.v = hth_view_f32(x, rows, cols, (uint32_t)ld);
    return m;
}

static void walled_free(struct walled *m)
{
    munmap(m->pages, m->bytes);
}

static void walled_ops(const struct hth_backend *be, uint32_t rows, uint32_t in, uint32_t out,
                       uint32_t gap)
{
    struct layer l = layer_new(be, in, out);
    struct walled x = walled_new(rows, in, gap, 1), y = walled_new(rows, out, gap, 2);
    struct walled pre = walled_new(rows, out, gap, 3), res = walled_new(rows, out, gap, 4);
    struct walled dx = walled_new(rows, in, gap, 5), pre_in = walled_new(rows, in, gap, 6);
    struct walled res_in = walled_new(rows, in, gap, 7);
    struct hth_linear lin = {
        .w = l.w, .bias = l.b, .act = HTH_ACT_GELU, .pre = pre.v, .residual = res.v};
    struct hth_linear_back back = {
        .w = l.w, .act = HTH_ACT_GELU, .pre = pre_in.v, .residual = res_in.v};
    assert_ok(hth_linear_forward(l.ex, &lin, x.v, y.v));
    assert_ok(hth_linear_backward_data(l.ex, &back, y.v, dx.v));
    assert_ok(hth_linear_backward_weight(l.ex, l.w, l.b, x.v, y.v));
    assert_ok(hth_linear_backward_weight(l.ex, l.w, l.b, x.v, y.v));
    struct walled *all[] = {&x, &y, &pre, &res, &dx, &pre_in, &res_in};
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        walled_free(all[i]);
    layer_free(&l);
}

/* The optimiser's tile ends at the wall. */
static void walled_emit(const struct hth_backend *be, uint32_t rows, uint32_t cols, uint32_t gap)
{
    struct layer l = layer_new(be, rows, cols);
    struct walled tile = walled_new(rows, cols, gap, 1);
    float *w = hth_params_flat(l.p, HTH_PART_VALUE), *values = tile.v.data;
    layer_hash(&l);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(w + r * cols, values + r * tile.v.ld, cols * sizeof(float));
    hth_params_touched(l.p);
    assert_true(hth_packed_emit_begin(l.w));
    hth_packed_emit_tile(l.w, 0, rows, 0, cols, values, tile.v.ld);
    hth_packed_emit_end(l.w);
    assert_true(layer_hash(&l) == fresh_hash(&l));
    walled_free(&tile);
    layer_free(&l);
}

static void walled_attention(const struct hth_backend *be, uint32_t seq, uint32_t heads,
                             uint32_t head_dim, uint32_t gap)
{
    uint32_t rows = 2 * seq, d = heads * head_dim;
    struct walled qkv = walled_new(rows, 3 * d, gap, 1), dqkv = walled_new(rows, 3 * d, gap, 2);
    struct walled out = walled_new(rows, d, gap, 3), dout = walled_new(rows, d, gap, 4);
    struct walled lse = walled_new(rows, heads, gap, 5);
    struct hth_attention att = {.seq = seq, .heads = heads};
    struct hth_attention_saved saved = {.qkv = qkv.v, .out = out.v, .lse = lse.v};
    struct hth_exec *ex;
    assert_ok(hth_exec_new(be, hth_attention_scratch(be, seq, head_dim), &ex));
    struct hth_mask mask = {.width = 2, .height = (seq - 1) / 2, .window = 3};
    mask.text = seq - mask.width * mask.height;
    for (int kind = 0; kind <= HTH_MASK_KINDS; kind++) { /* at last without a mask */
        mask.kind = (enum hth_mask_kind)kind;
        att.mask = kind < HTH_MASK_KINDS && mask.height > 0 ? &mask : NULL;
        assert_ok(hth_attention_forward(ex, &att, qkv.v, out.v, lse.v));
        assert_ok(hth_attention_backward(ex, &att, &saved, dout.v, dqkv.v));
    }
    hth_exec_free(ex);
    struct walled *all[] = {&qkv, &dqkv, &out, &dout, &lse};
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        walled_free(all[i]);
}

static void other_operations_stay_within_their_views(void **state)
{
    (void)state;
    static const uint32_t sides[] = {1, 2, 5, 15, 16, 17, 31, 33, 63, 64};
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t i = 0; i < HTH_ARRAY_LEN(sides); i++) {
            for (size_t j = 0; j < HTH_ARRAY_LEN(sides); j++)
                walled_emit(backends[k], sides[i], sides[j], (uint32_t)(i + j) % 2);
            walled_attention(backends[k], 1 + sides[i], 1 + i % 3, sides[i], (uint32_t)i % 2);
        }
        walled_attention(backends[k], 131, 2, 24, 0);
    }
}

static void operations_stay_within_their_views(void **state)
{
    (void)state;
    static const uint32_t sides[] = {1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65, 97};
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t i = 0; i < HTH_ARRAY_LEN(sides); i++) {
            for (size_t j = 0; j < HTH_ARRAY_LEN(sides); j++) {
                uint32_t rows = 1 + (uint32_t)(i + 3 * j) % 14;
                walled_ops(backends[k], rows, sides[i], sides[j], (uint32_t)(i + j) % 2);
            }
        }
        walled_ops(backends[k], 14, 1030, 37, 0);
        walled_ops(backends[k], 3, 37, 1030, 1);
        walled_ops(backends[k], 530, 61, 701, 1); /* columns of x are kept packed, in two chunks */
    }
}

/* Rows of a gradient are independent: a layer wider than the kept packed columns gives the rows of
 * the narrower layers into which it can be cut. */
static void wide_gradient_equals_narrow_ones(void **state)
{
    (void)state;
    enum { BATCH = 516, IN = 4700, PIECE = 940, OUT = 760 };
    float *x = hth_calloc((size_t)BATCH * (IN + OUT), sizeof(float)), *dy = x + BATCH * IN;
    fill(x, (size_t)BATCH * (IN + OUT), 12);
    for (size_t k = 0; k < backend_count; k++) {
        if (strcmp(hth_backend_isa(backends[k]), "generic") == 0)
            continue; /* the same driver, ten times slower */
        struct layer all = layer_new(backends[k], IN, OUT);
        struct layer piece = layer_new(backends[k], PIECE, OUT);
        const struct hth_view b = hth_view_f32(dy, BATCH, OUT, OUT);
        assert_ok(
            hth_linear_backward_weight(all.ex, all.w, NULL, hth_view_f32(x, BATCH, IN, IN), b));
        for (uint32_t first = 0; first < IN; first += PIECE) {
            hth_params_zero_grads(piece.p);
            assert_ok(hth_linear_backward_weight(piece.ex, piece.w, NULL,
                                                 hth_view_f32(x + first, BATCH, PIECE, IN), b));
            assert_memory_equal(hth_params_flat(piece.p, HTH_PART_GRAD),
                                hth_params_flat(all.p, HTH_PART_GRAD) + (size_t)first * OUT,
                                sizeof(float) * PIECE * OUT);
        }
        layer_free(&all);
        layer_free(&piece);
    }
    hth_free(x);
}

int main(void)
{
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(best_set_is_chosen),
        cmocka_unit_test(type_whose_peak_is_higher_is_chosen),
        cmocka_unit_test(images_follow_the_values),
        cmocka_unit_test(bits_survive_signals_and_forks),
        cmocka_unit_test(emitted_images_are_used),
        cmocka_unit_test(single_pass_makes_one_image),
        cmocka_unit_test(large_gradient_is_streamed),
        cmocka_unit_test(wide_gradient_equals_narrow_ones),
        cmocka_unit_test(operations_stay_within_their_views),
        cmocka_unit_test(other_operations_stay_within_their_views),
    };
    const struct CMUnitTest threads[] = {
        cmocka_unit_test(transposed_panels_give_the_same_bits),
        cmocka_unit_test(concurrent_passes_build_an_image_once),
        cmocka_unit_test(team_changes_no_bit),
        cmocka_unit_test(team_changes_no_bit_of_other_operations),
    };
    int failed = cmocka_run_group_tests(threads, setup, NULL);

    if (!HTH_TEST_ONLY_THREADS)
        failed += cmocka_run_group_tests(alone, setup, NULL);
    return failed;
}
