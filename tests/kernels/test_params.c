/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_params.c: parameter sets: layout, initial values, import and export, limits, failing memory.
 */
#include "core/limits.h"
#include "core/mem.h"
#include "core/rng.h"
#include "kernels/blocks.h"
#include "kernels/optim.h"
#include "support/suite.h"

static struct hth_params *make(const struct hth_param_spec *specs, size_t count,
                               struct hth_weight **w, uint64_t seed, uint32_t stream)
{
    struct hth_params *p;
    struct hth_seal_options seal = {.seed = seed, .stream = stream, .state_slots = 2};
    assert_ok(hth_params_new(hth_backend_ref(), &p));
    for (size_t i = 0; i < count; i++)
        assert_ok(hth_params_add(p, &specs[i], &w[i]));
    assert_ok(hth_params_seal(p, &seal));
    return p;
}

TEST(tensors_are_aligned_and_padded)
{
    (void)state;
    struct hth_param_spec specs[] = {
        {.name = "a", .rows = 3, .cols = 7, .init = HTH_INIT_ONES},
        {.name = "b", .rows = 1, .cols = 16, .init = HTH_INIT_ONES},
        {.name = "c", .rows = 1, .cols = 1, .init = HTH_INIT_ONES},
    };
    struct hth_weight *w[3];
    struct hth_params *p = make(specs, 3, w, 1, 0);
    assert_int_equal(hth_params_count(p), 3);
    assert_int_equal(hth_params_elements(p), 21 + 16 + 1);
    assert_int_equal(hth_params_flat_len(p), 32 + 16 + 16);
    assert_int_equal(hth_weight_offset(w[1]), 32);
    assert_ptr_equal(hth_params_find(p, "b"), w[1]);
    assert_ptr_equal(hth_params_at(p, 2), w[2]);
    assert_null(hth_params_at(p, 3));
    assert_null(hth_params_find(p, "d"));
    for (int part = HTH_PART_VALUE; part <= HTH_PART_STATE1; part++) {
        const float *flat = hth_params_flat(p, (enum hth_part)part);
        assert_non_null(flat);
        assert_int_equal((uintptr_t)flat % 64, 0);
        for (size_t i = 0; i < 64; i++) {
            bool used = i < 21 || (i >= 32 && i < 49);
            assert_true(flat[i] == (part == HTH_PART_VALUE && used ? 1.0f : 0.0f));
        }
    }
    hth_params_free(p);
}

TEST(invalid_tensors_are_refused)
{
    (void)state;
    struct hth_params *p;
    struct hth_weight *w;
    char longest[HTH_PARAM_NAME_MAX + 2];
    memset(longest, 'x', sizeof(longest));
    longest[HTH_PARAM_NAME_MAX + 1] = '\0';
    struct hth_param_spec good = {.name = "a", .rows = 1, .cols = 1}, bad = good;
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    assert_ok(hth_params_new(hth_backend_ref(), &p));
    assert_ok(hth_params_add(p, &good, &w));
    assert_err(HTH_E_CONFIG, hth_params_add(p, &good, &w)); /* twice */
    bad.name = "";
    assert_err(HTH_E_CONFIG, hth_params_add(p, &bad, &w));
    bad.name = longest;
    assert_err(HTH_E_CONFIG, hth_params_add(p, &bad, &w));
    longest[HTH_PARAM_NAME_MAX] = '\0';
    assert_ok(hth_params_add(p, &bad, &w));
    bad.name = "b";
    bad.cols = 0;
    assert_err(HTH_E_CONFIG, hth_params_add(p, &bad, &w));
    bad.rows = UINT32_MAX;
    bad.cols = UINT32_MAX;
    assert_err(HTH_E_TOO_LARGE, hth_params_add(p, &bad, &w));
    bad.rows = (uint32_t)(HTH_PARAMS_FLOATS_MAX >> 16);
    bad.cols = 1 << 16; /* fits alone, but not beside the others */
    assert_err(HTH_E_TOO_LARGE, hth_params_add(p, &bad, &w));
    seal.state_slots = 3;
    assert_err(HTH_E_CONFIG, hth_params_seal(p, &seal));
    seal.state_slots = 0;
    assert_ok(hth_params_seal(p, &seal));
    assert_err(HTH_E_CONFIG, hth_params_seal(p, &seal));
    bad = (struct hth_param_spec){.name = "late", .rows = 1, .cols = 1};
    assert_err(HTH_E_CONFIG, hth_params_add(p, &bad, &w));
    assert_null(hth_params_flat(p, HTH_PART_STATE0));
    hth_params_free(p);
}

TEST(tensor_count_limit_holds)
{
    (void)state;
    struct hth_params *p;
    struct hth_weight *w;
    char name[16];
    struct hth_param_spec spec = {.name = name, .rows = 1, .cols = 1};
    assert_ok(hth_params_new(hth_backend_ref(), &p));
    for (int i = 0; i < HTH_PARAMS_TENSORS_MAX; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        assert_ok(hth_params_add(p, &spec, &w));
    }
    strcpy(name, "more");
    assert_err(HTH_E_TOO_LARGE, hth_params_add(p, &spec, &w));
    hth_params_free(p);
}

static void moments(const float *x, size_t n, double *mean, double *deviation, double *most)
{
    double sum = 0, square = 0;
    *most = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i];
        square += (double)x[i] * (double)x[i];
        *most = hth_worse(*most, fabs((double)x[i]));
    }
    *mean = sum / (double)n;
    *deviation = sqrt(square / (double)n - *mean * *mean);
}

TEST(initial_values_have_their_distribution)
{
    (void)state;
    struct hth_param_spec specs[] = {
        {.name = "zeros", .rows = 2, .cols = 5, .init = HTH_INIT_ZEROS},
        {.name = "uniform", .rows = 100, .cols = 333, .init = HTH_INIT_UNIFORM, .scale = 0.5f},
        {.name = "normal", .rows = 100, .cols = 333, .init = HTH_INIT_NORMAL, .scale = 2},
        {.name = "kaiming", .rows = 50, .cols = 600, .init = HTH_INIT_KAIMING},
        {.name = "linear", .rows = 25, .cols = 1200, .init = HTH_INIT_LINEAR},
    };
    struct hth_weight *w[5];
    struct hth_params *p = make(specs, 5, w, 42, 3);
    const float *flat = hth_params_flat(p, HTH_PART_VALUE);
    const double deviation[] = {0, 0.5 / sqrt(3), 2, sqrt(2.0 / 50), 0.2 / sqrt(3)};
    const double most_min[] = {0, 0.499, 7, 0.7, 0.199}, most_max[] = {0, 0.5, 12, 1.2, 0.2};
    for (size_t i = 0; i < 5; i++) {
        double mean, dev, most;
        size_t n = (size_t)specs[i].rows * specs[i].cols;
        moments(flat + hth_weight_offset(w[i]), n, &mean, &dev, &most);
        assert_close(mean, 0, 0, 4 * deviation[i] / sqrt((double)n) + 1e-12);
        assert_close(dev, deviation[i], 0.02, 1e-12);
        assert_true(most >= most_min[i] && most <= most_max[i] + 1e-7);
    }
    /* Same seed and stream: same bits; another stream or seed: others. */
    struct hth_weight *v[5];
    struct hth_params *same = make(specs, 5, v, 42, 3), *stream = make(specs, 5, v, 42, 4);
    struct hth_params *seed = make(specs, 5, v, 43, 3);
    size_t bytes = hth_params_flat_len(p) * sizeof(float);
    assert_memory_equal(flat, hth_params_flat(same, HTH_PART_VALUE), bytes);
    assert_true(memcmp(flat, hth_params_flat(stream, HTH_PART_VALUE), bytes) != 0);
    assert_true(memcmp(flat, hth_params_flat(seed, HTH_PART_VALUE), bytes) != 0);
    hth_params_free(p);
    hth_params_free(same);
    hth_params_free(stream);
    hth_params_free(seed);
}

/* Uniform values are the Philox words of rng.h, wherever the vector loops divide them. */
TEST(initial_values_are_philox_words)
{
    (void)state;
    struct hth_param_spec specs[] = {
        {.name = "zeros", .rows = 2, .cols = 5},
        {.name = "u", .rows = 1, .cols = 4099, .init = HTH_INIT_UNIFORM},
        {.name = "n", .rows = 1, .cols = 1030, .init = HTH_INIT_NORMAL},
    };
    struct hth_weight *w[3];
    struct hth_params *p = make(specs, 3, w, 99, 5);
    uint64_t key64 = hth_mix64(99 ^ UINT64_C(0x696e697469616c73));
    uint32_t key[2] = {(uint32_t)key64, (uint32_t)(key64 >> 32)}, words[4];
    const float *u = hth_params_flat(p, HTH_PART_VALUE) + hth_weight_offset(w[1]);
    const float *n = hth_params_flat(p, HTH_PART_VALUE) + hth_weight_offset(w[2]);
    for (uint32_t i = 0; i < 4099; i++) {
        hth_philox((uint32_t[]){i / 4, 1, 0, 5}, key, words);
        assert_true(u[i] == (float)(words[i % 4] >> 8) * 0x1p-23f - 1.0f);
    }
    for (uint32_t i = 0; i < 1030; i++) {
        float normal[4];
        hth_philox_normal((uint32_t[]){i / 4, 2, 0, 5}, key, normal);
        assert_close(n[i], normal[i % 4], 1e-6, 1e-7);
    }
    hth_params_free(p);
}

TEST(import_and_export_are_exact)
{
    (void)state;
    struct hth_param_spec specs[] = {
        {.name = "a", .rows = 3, .cols = 7},
        {.name = "b", .rows = 2, .cols = 2},
    };
    struct hth_weight *w[2];
    struct hth_params *p = make(specs, 2, w, 1, 0);
    struct hth_exec *ex;
    float in[21], out[21], flat[48];
    assert_ok(hth_exec_new(hth_backend_ref(), 0, &ex));
    for (int i = 0; i < 21; i++)
        in[i] = (float)i + 0.5f;
    for (int part = HTH_PART_VALUE; part <= HTH_PART_STATE1; part++) {
        assert_ok(hth_weight_import(ex, w[0], (enum hth_part)part, in));
        assert_ok(hth_weight_export(ex, w[0], (enum hth_part)part, out));
        assert_memory_equal(in, out, sizeof(in));
        assert_ok(hth_params_export(ex, p, (enum hth_part)part, 0, 48, flat));
        assert_memory_equal(in, flat, sizeof(in));
        assert_true(flat[21] == 0 && flat[32] == 0);
    }
    assert_err(HTH_E_RANGE, hth_params_export(ex, p, HTH_PART_VALUE, 1, 48, flat));
    assert_err(HTH_E_RANGE, hth_params_import(ex, p, HTH_PART_VALUE, 49, 0, flat));
    assert_err(HTH_E_RANGE, hth_params_export(ex, p, HTH_PART_VALUE, 2, SIZE_MAX, flat));
    hth_params_zero_grads(p);
    assert_ok(hth_weight_export(ex, w[0], HTH_PART_GRAD, out));
    assert_true(out[0] == 0 && out[20] == 0);
    hth_exec_free(ex);
    hth_params_free(p);
}

/* Operations use values written through the flat buffer. */
TEST(operations_use_flat_writes)
{
    (void)state;
    const struct hth_backend *all[2] = {hth_backend_ref(), NULL};
    assert_ok(hth_backend_by_name("auto", &all[1]));
    for (size_t k = 0; k < 2; k++) {
        struct hth_params *p;
        struct hth_weight *w;
        struct hth_exec *ex;
        struct hth_param_spec spec = {.name = "w", .rows = 2, .cols = 1};
        struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
        float x[2] = {3, 5}, y;
        assert_ok(hth_params_new(all[k], &p));
        assert_ok(hth_params_add(p, &spec, &w));
        assert_ok(hth_params_seal(p, &seal));
        assert_ok(hth_exec_new(all[k], hth_linear_scratch(all[k], 2, 1), &ex));
        struct hth_linear lin = {.w = w};
        for (float value = 1; value < 4; value++) {
            hth_params_flat(p, HTH_PART_VALUE)[1] = value;
            hth_params_touched(p);
            assert_ok(
                hth_linear_forward(ex, &lin, hth_view_f32(x, 1, 2, 2), hth_view_f32(&y, 1, 1, 1)));
            assert_true(y == 5 * value);
        }
        hth_exec_free(ex);
        hth_params_free(p);
    }
}

TEST(forward_only_sets_have_no_gradients)
{
    (void)state;
    struct hth_params *p;
    struct hth_ffn f;
    struct hth_exec *ex;
    struct hth_ffn_options options = {.dim = 4};
    struct hth_seal_options seal = {.forward_only = true, .state_slots = 2};
    struct hth_optim optim = HTH_OPTIM_INIT;
    float x[4] = {1, 2, 3, 4}, y[4];
    double norm;
    bool finite;
    assert_ok(hth_params_new(hth_backend_ref(), &p));
    assert_ok(hth_ffn_declare(p, &options, &f));
    assert_ok(hth_params_seal(p, &seal));
    assert_ok(
        hth_exec_new(hth_backend_ref(), hth_ffn_scratch_bytes(hth_backend_ref(), &f, 1), &ex));
    void *saved = hth_backend_alloc(hth_backend_ref(), hth_ffn_saved_bytes(&f, 1));
    struct hth_view vx = hth_view_f32(x, 1, 4, 4), vy = hth_view_f32(y, 1, 4, 4);
    assert_ok(hth_ffn_forward(ex, &f, vx, vy, saved));
    assert_err(HTH_E_UNSUPPORTED, hth_ffn_backward(ex, &f, vx, saved, vy, vy));
    assert_err(HTH_E_UNSUPPORTED, hth_optim_step(ex, p, &optim, 1));
    assert_err(HTH_E_UNSUPPORTED, hth_grad_norm(ex, p, &norm, &finite));
    assert_null(hth_params_flat(p, HTH_PART_GRAD));
    hth_backend_free(hth_backend_ref(), saved);
    hth_exec_free(ex);
    hth_params_free(p);
}

/* Each allocation fails once: no leak (the sanitizer checks) and the right error. */
TEST(every_failed_allocation_is_clean)
{
    (void)state;
    for (long n = 1; n < 20; n++) {
        struct hth_params *p;
        struct hth_ffn f;
        struct hth_rope *rope = NULL;
        struct hth_exec *ex = NULL;
        struct hth_ffn_options options = {.dim = 4};
        struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
        assert_ok(hth_params_new(hth_backend_ref(), &p));
        assert_ok(hth_ffn_declare(p, &options, &f));
        hth_mem_fail_at(n);
        enum hth_err err = hth_params_seal(p, &seal);
        if (err == HTH_OK)
            err = hth_exec_new(hth_backend_ref(), 100, &ex);
        if (err == HTH_OK)
            err = hth_rope_new(hth_backend_ref(), 4, 4, 100, &rope);
        long tries = hth_mem_try_count();
        hth_mem_fail_at(0);
        assert_err(n <= tries ? HTH_E_NO_MEMORY : HTH_OK, err);
        assert_true(n > 1 || tries == 1);
        hth_rope_free(rope);
        hth_exec_free(ex);
        hth_params_free(p);
    }
}
