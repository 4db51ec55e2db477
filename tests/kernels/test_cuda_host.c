/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_host.c: the host's side of the CUDA back end over a driver that counts and fails: the
 * pool, the plans of products, and contexts whose making fails.
 */
#include <stdlib.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/plan.h"
#include "kernels/shim_control.h"
#include "support/suite.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* -- a driver with a small card ------------------------------------------------------------ */

static struct {
    size_t card, held, asked;
    uint32_t allocs, frees, made, gone; /* memory; streams, events, pinned blocks, libraries */
    long fail_at;                       /* the n-th call from now fails; 0: none */
    bool copies_fail, waits_fail;
} fake;

static bool fails(void)
{
    return fake.fail_at > 0 && --fake.fail_at == 0;
}

static int fake_mem_alloc(void **p, size_t bytes)
{
    fake.asked = bytes;
    if (fails() || bytes > fake.card - fake.held)
        return 2;
    int err = hth_gpu_shim.mem_alloc(p, bytes);
    fake.allocs += err == 0;
    fake.held += err == 0 ? bytes : 0;
    return err;
}

/* Needs no sizes: a test that frees has blocks of one size, or frees all. */
static int fake_mem_free(void *p)
{
    fake.frees++;
    if (fake.frees == fake.allocs)
        fake.held = 0;
    else
        fake.held -= fake.held / (fake.allocs - fake.frees + 1);
    return hth_gpu_shim.mem_free(p);
}

static int fake_host_alloc(void **p, size_t bytes)
{
    if (fails())
        return 2;
    fake.made++;
    return hth_gpu_shim.host_alloc(p, bytes);
}

static int fake_host_free(void *p)
{
    fake.gone++;
    return hth_gpu_shim.host_free(p);
}

static int fake_new(void **handle)
{
    if (fails())
        return 3;
    fake.made++;
    return hth_gpu_shim.stream_new(handle);
}

static int fake_blas_open(void **blas, char *why, size_t why_size)
{
    if (why != NULL)
        snprintf(why, why_size, "no library");
    return fake_new(blas);
}

static void fake_free(void *handle)
{
    fake.gone++;
    hth_gpu_shim.stream_free(handle);
}

static int fake_copy_in(void *device, const void *host, size_t bytes, void *stream)
{
    return fake.copies_fail ? 700 : hth_gpu_shim.copy_in(device, host, bytes, stream);
}

static int fake_stream_sync(void *stream)
{
    return fake.waits_fail ? 900 : hth_gpu_shim.stream_sync(stream);
}

static int fake_use(int device)
{
    (void)device;
    return fails() ? 4 : 0;
}

static const char *fake_text(int err)
{
    (void)err;
    return "the fake failed";
}

static struct hth_gpu driver(size_t card)
{
    struct hth_gpu gpu = hth_gpu_shim;
    memset(&fake, 0, sizeof(fake));
    fake.card = card;
    gpu.text = fake_text;
    gpu.use = fake_use;
    gpu.mem_alloc = fake_mem_alloc;
    gpu.mem_free = fake_mem_free;
    gpu.host_alloc = fake_host_alloc;
    gpu.host_free = fake_host_free;
    gpu.stream_new = fake_new;
    gpu.stream_free = fake_free;
    gpu.event_new = fake_new;
    gpu.event_free = fake_free;
    gpu.blas_open = fake_blas_open;
    gpu.blas_close = fake_free;
    gpu.copy_in = fake_copy_in;
    gpu.stream_sync = fake_stream_sync;
    return gpu;
}

/* -- the pool ------------------------------------------------------------------------------ */

TEST(pool_rounds_by_an_eighth)
{
    (void)state;
    assert_int_equal(hth_pool_round(0), 512);
    assert_int_equal(hth_pool_round(1), 512);
    assert_int_equal(hth_pool_round(512), 512);
    assert_int_equal(hth_pool_round(513), 1024);
    assert_int_equal(hth_pool_round(2 * MIB), 2 * MIB);
    assert_int_equal(hth_pool_round(2 * MIB + 1), 4 * MIB);
    assert_int_equal(hth_pool_round(SIZE_MAX), SIZE_MAX);
    for (size_t bytes = 4097; bytes < 2 * MIB; bytes += 997) /* an eighth is lost at most */
        assert_in_range(hth_pool_round(bytes), bytes, bytes + bytes / 7);
}

TEST(pool_reuses_blocks_of_a_size)
{
    struct hth_gpu gpu = driver(64 * MIB);
    struct hth_pool pool;
    (void)state;
    hth_pool_init(&pool, &gpu, 0);
    void *a = hth_pool_take(&pool, 100 * KIB), *b = hth_pool_take(&pool, 100 * KIB);
    assert_non_null(a);
    assert_ptr_not_equal(a, b);
    assert_true(hth_pool_give(&pool, a));
    assert_false(hth_pool_give(&pool, a)); /* the block is not in use */
    assert_false(hth_pool_give(&pool, (char *)b + 64));
    assert_ptr_equal(hth_pool_take(&pool, 99 * KIB), a); /* of the same rounded size */
    assert_int_equal(fake.allocs, 2);
    assert_int_equal(fake.frees, 0);
    assert_int_equal(pool.used, 2 * hth_pool_round(100 * KIB));
    assert_true(hth_pool_give(&pool, a) && hth_pool_give(&pool, b));
    assert_int_equal(pool.used, 0);
    assert_int_equal(pool.held, 2 * hth_pool_round(100 * KIB));
    hth_pool_clear(&pool);
    assert_int_equal(pool.held, 0);
    assert_int_equal(fake.frees, 2);
}

TEST(pool_keeps_its_limit)
{
    struct hth_gpu gpu = driver(64 * MIB);
    struct hth_pool pool;
    (void)state;
    hth_pool_init(&pool, &gpu, 8 * MIB);
    assert_null(hth_pool_take(&pool, 8 * MIB + 1));
    assert_int_equal(fake.allocs, 0); /* the driver was not called */
    void *a = hth_pool_take(&pool, 4 * MIB), *b = hth_pool_take(&pool, 4 * MIB);
    assert_non_null(b);
    assert_null(hth_pool_take(&pool, 512));
    assert_true(hth_pool_give(&pool, a));
    /* Idle blocks make room for another size. */
    void *c = hth_pool_take(&pool, 2 * MIB);
    assert_non_null(c);
    assert_int_equal(fake.frees, 1);
    assert_int_equal(pool.held, 6 * MIB);
    assert_true(hth_pool_give(&pool, b) && hth_pool_give(&pool, c));
    hth_pool_clear(&pool);
}

TEST(full_card_returns_idle_blocks)
{
    struct hth_gpu gpu = driver(8 * MIB);
    struct hth_pool pool;
    void *p[4];
    (void)state;
    hth_pool_init(&pool, &gpu, 0);
    for (int i = 0; i < 4; i++)
        p[i] = hth_pool_take(&pool, 2 * MIB);
    assert_non_null(p[3]);
    assert_null(hth_pool_take(&pool, 2 * MIB));
    for (int i = 0; i < 4; i++)
        assert_true(hth_pool_give(&pool, p[i]));
    p[0] = hth_pool_take(&pool, 8 * MIB); /* all four are returned for this one */
    assert_non_null(p[0]);
    assert_int_equal(fake.frees, 4);
    assert_true(hth_pool_give(&pool, p[0]));
    hth_pool_clear(&pool);
    assert_int_equal(fake.held, 0);
}

/* Blocks of two sizes alternate, as values with and gradients without a bf16 copy: a request of one
 * size returns only as many blocks as it must. */
TEST(pool_returns_as_few_blocks_as_needed)
{
    enum { N = 10 };
    struct hth_gpu gpu = driver(256 * MIB);
    struct hth_pool pool;
    void *p[N];
    (void)state;
    hth_pool_init(&pool, &gpu, N * 4 * MIB);
    for (int i = 0; i < N; i++)
        p[i] = hth_pool_take(&pool, 4 * MIB);
    for (int i = 0; i < N; i++)
        assert_true(hth_pool_give(&pool, p[i]));
    p[0] = hth_pool_take(&pool, 6 * MIB);
    assert_non_null(p[0]);
    assert_int_equal(fake.frees, 2);
    for (int i = 1; i < N - 1; i++)
        assert_non_null(p[i] = hth_pool_take(&pool, 4 * MIB));
    assert_int_equal(fake.allocs, N + 1);
    assert_true(hth_pool_give(&pool, p[1]) && hth_pool_give(&pool, p[0]));
    p[0] = hth_pool_take(&pool, 2 * MIB); /* 2 MiB are free beside them */
    p[1] = hth_pool_take(&pool, 2 * MIB); /* replaces the smallest one that is large enough */
    assert_int_equal(fake.frees, 3);
    assert_int_equal(pool.held, N * 4 * MIB - 2 * MIB);
    assert_true(hth_pool_give(&pool, p[0]) && hth_pool_give(&pool, p[1]));
    for (int i = 2; i < N - 1; i++)
        assert_true(hth_pool_give(&pool, p[i]));
    hth_pool_clear(&pool);
    assert_int_equal(fake.held, 0);
}

/* Thousands of takes and gives: no two blocks overlap, and counts agree. */
TEST(pool_blocks_never_overlap)
{
    enum { SLOTS = 200 };
    struct hth_gpu gpu = driver(512 * MIB);
    struct hth_pool pool;
    uint8_t *at[SLOTS] = {0};
    size_t size[SLOTS] = {0}, used = 0;
    uint32_t seed = 7;
    (void)state;
    hth_pool_init(&pool, &gpu, 0);
    for (int turn = 0; turn < 5000; turn++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t i = (seed >> 8) % SLOTS;
        if (at[i] != NULL) {
            assert_true(hth_pool_give(&pool, at[i]));
            used -= hth_pool_round(size[i]);
            at[i] = NULL;
            continue;
        }
        size[i] = 1 + (seed >> 12) % (64 * KIB);
        at[i] = hth_pool_take(&pool, size[i]);
        assert_non_null(at[i]);
        used += hth_pool_round(size[i]);
        for (uint32_t j = 0; j < SLOTS; j++) {
            if (j != i && at[j] != NULL)
                assert_true(at[j] + size[j] <= at[i] || at[i] + size[i] <= at[j]);
        }
        assert_int_equal(pool.used, used);
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (at[i] != NULL)
            assert_true(hth_pool_give(&pool, at[i]));
    }
    assert_int_equal(pool.used, 0);
    hth_pool_clear(&pool);
}

/* -- plans --------------------------------------------------------------------------------- */

static uint32_t plans_freed;

static void count_plan(void *plan)
{
    (void)plan;
    plans_freed++;
}

static struct hth_gpu_matmul product(void)
{
    static float a[64] __attribute__((aligned(256)));
    return (struct hth_gpu_matmul){.form = HTH_GPU_NN,
                                   .m = 8,
                                   .n = 16,
                                   .k = 32,
                                   .a = a,
                                   .b = a,
                                   .c = a,
                                   .lda = 32,
                                   .ldb = 16,
                                   .ldc = 16};
}

static bool same_key(const struct hth_gpu_matmul *a, const struct hth_gpu_matmul *b)
{
    struct hth_matmul_plan_key x = hth_matmul_plan_key_of(a), y = hth_matmul_plan_key_of(b);
    return memcmp(&x, &y, sizeof(x)) == 0;
}

TEST(plan_keys_ignore_addresses)
{
    const struct hth_gpu_matmul base = product();
    struct hth_gpu_matmul other = base;
    static float elsewhere[512] __attribute__((aligned(256)));
    (void)state;
    other.a = other.c = elsewhere; /* addresses don't matter ... */
    assert_true(same_key(&base, &other));
    other.a = elsewhere + 1; /* ... but their alignment does */
    assert_false(same_key(&base, &other));
    other = base;
    other.aux = elsewhere; /* not used by this end */
    other.bias = elsewhere;
    assert_true(same_key(&base, &other));
    other.end = HTH_GPU_BIAS_GELU;
    struct hth_gpu_matmul bare = other;
    bare.aux = NULL;
    assert_false(same_key(&bare, &other));
#define DIFFERS(field, value)                                                                      \
    other = base;                                                                                  \
    other.field = (value);                                                                         \
    assert_false(same_key(&base, &other))
    DIFFERS(form, HTH_GPU_NT);
    DIFFERS(type, HTH_GPU_BF16);
    DIFFERS(end, HTH_GPU_BIAS);
    DIFFERS(m, 9);
    DIFFERS(n, 17);
    DIFFERS(k, 33);
    DIFFERS(lda, 33);
    DIFFERS(ldb, 17);
    DIFFERS(ldc, 17);
    DIFFERS(accumulate, true);
}

TEST(full_plan_table_replaces_the_least_used)
{
    static struct hth_matmul_plans plans;
    struct hth_gpu_matmul m = product();
    struct hth_matmul_plan_key key;
    int thing;
    void *plan;
    (void)state;
    plans_freed = 0;
    hth_matmul_plans_init(&plans, count_plan);
    for (uint32_t i = 0; i < HTH_MATMUL_PLANS_MAX; i++) {
        m.m = i + 1;
        key = hth_matmul_plan_key_of(&m);
        assert_false(hth_matmul_plans_find(&plans, &key, &plan));
        hth_matmul_plans_put(&plans, &key, i == 1 ? NULL : &thing);
    }
    m.m = 1; /* the oldest is used again, so the second is replaced: a plan of NULL */
    key = hth_matmul_plan_key_of(&m);
    assert_true(hth_matmul_plans_find(&plans, &key, &plan));
    assert_ptr_equal(plan, &thing);
    m.m = HTH_MATMUL_PLANS_MAX + 1;
    key = hth_matmul_plan_key_of(&m);
    hth_matmul_plans_put(&plans, &key, &thing);
    assert_int_equal(plans_freed, 0);
    m.m = 2;
    key = hth_matmul_plan_key_of(&m);
    assert_false(hth_matmul_plans_find(&plans, &key, &plan));
    hth_matmul_plans_put(&plans, &key, NULL); /* replaces the third */
    assert_int_equal(plans_freed, 1);
    assert_true(hth_matmul_plans_find(&plans, &key, &plan));
    assert_null(plan); /* a plan of NULL is kept, too */
    hth_matmul_plans_clear(&plans);
    assert_int_equal(plans_freed, HTH_MATMUL_PLANS_MAX);
}

/* -- devices and contexts ------------------------------------------------------------------ */

TEST(every_failed_call_is_cleaned_up)
{
    uint32_t failures = 0;
    (void)state;
    for (long n = 1; n < 100; n++) {
        struct hth_gpu gpu = driver(64 * MIB);
        struct hth_cu_device device;
        struct hth_exec *ex = NULL;
        char why[200] = "";
        fake.fail_at = n;
        enum hth_err err = hth_cu_device_open(&device, &gpu, 0, 0, why, sizeof(why));
        if (err != HTH_OK) {
            assert_true(why[0] != '\0');
        } else {
            err = hth_exec_new(&device.tables[HTH_GPU_F32], 4096, &ex);
            if (err == HTH_OK) {
                float x = 1;
                err = hth_exec_upload(ex, ex->scratch, &x, sizeof(x));
                if (err == HTH_OK)
                    err = hth_exec_sync(ex);
            }
            hth_exec_free(ex);
            assert_int_equal(device.pool.used, 0);
            hth_cu_device_close(&device);
        }
        assert_int_equal(fake.made, fake.gone);
        assert_int_equal(fake.allocs, fake.frees);
        failures += err != HTH_OK;
        if (fake.fail_at > 0) /* no call is left to fail */
            break;
        assert_true(n < 99);
    }
    assert_true(failures >= 10);
}

TEST(errors_come_at_the_sync)
{
    struct hth_gpu gpu = driver(64 * MIB);
    struct hth_cu_device device;
    struct hth_exec *ex;
    char why[200];
    float x = 3, y = 0;
    (void)state;
    assert_ok(hth_cu_device_open(&device, &gpu, 0, 0, why, sizeof(why)));
    assert_ok(hth_exec_new(&device.tables[HTH_GPU_F32], 4096, &ex));
    fake.copies_fail = true;
    assert_ok(hth_exec_upload(ex, ex->scratch, &x, sizeof(x)));
    fake.copies_fail = false;
    assert_ok(hth_fill(ex, hth_view_f32((float *)(void *)ex->scratch, 1, 1, 1), 7));
    assert_ok(hth_exec_download(ex, &y, ex->scratch, sizeof(y)));
    assert_err(HTH_E_DEVICE, hth_exec_sync(ex));
    assert_true(y == 7); /* the call that worked has its result */
    assert_ok(hth_exec_sync(ex));
    hth_exec_free(ex);
    hth_cu_device_close(&device);
}

TEST(scratch_beyond_the_card_is_refused)
{
    struct hth_gpu gpu = driver(16 * MIB);
    struct hth_cu_device device;
    struct hth_exec *ex;
    struct hth_params *p;
    struct hth_weight *w;
    char why[200];
    struct hth_param_spec spec = {.name = "w", .rows = 1024, .cols = 4096, .init = HTH_INIT_ONES};
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    (void)state;
    assert_ok(hth_cu_device_open(&device, &gpu, 0, 0, why, sizeof(why)));
    assert_err(HTH_E_NO_MEMORY, hth_exec_new(&device.tables[HTH_GPU_F32], 17 * MIB, &ex));
    assert_ok(hth_params_new(&device.tables[HTH_GPU_F32], &p));
    assert_ok(hth_params_add(p, &spec, &w));
    assert_err(HTH_E_NO_MEMORY, hth_params_seal(p, &seal)); /* 64 MiB */
    hth_params_free(p);
    assert_int_equal(device.pool.used, 0);
    hth_cu_device_close(&device);
}

/* The room's memory is reused only after a wait for its work. */
TEST(room_is_freed_after_a_wait)
{
    struct hth_gpu gpu = driver(64 * MIB);
    struct hth_cu_device device;
    struct hth_exec *ex;
    char why[200];
    (void)state;
    assert_ok(hth_cu_device_open(&device, &gpu, 0, 0, why, sizeof(why)));
    assert_ok(hth_exec_new(&device.tables[HTH_GPU_F32], 0, &ex));
    struct hth_cu_stream *s = ex->stream;
    void *room = hth_cu_room(s, 100 * KIB);
    uint64_t number = s->rooms;
    assert_non_null(room);
    assert_ptr_equal(hth_cu_room(s, 50 * KIB), room);
    assert_int_equal(s->rooms, number);
    fake.waits_fail = true;
    assert_null(hth_cu_room(s, 200 * KIB));
    void *others = hth_cu_take(&device, 100 * KIB);
    assert_ptr_not_equal(others, room);
    fake.waits_fail = false;
    assert_non_null(hth_cu_room(s, 200 * KIB));
    assert_true(s->rooms > number); /* graphs of the old room are not found */
    assert_true(hth_pool_give(&device.pool, others));
    assert_err(HTH_E_DEVICE, hth_exec_sync(ex));
    hth_exec_free(ex);
    assert_int_equal(device.pool.used, 0);
    hth_cu_device_close(&device);
}
