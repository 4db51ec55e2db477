/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shim_plant.c: the kernels with one barrier left out, one after the other: the table of cases
 * must fail, or it could not find a forgotten barrier.
 */
#include <dirent.h>

#include "kernels/cases.h"
#include "kernels/cuda/device.h"
#include "kernels/shim_control.h"
#include "support/suite.h"

#define BARRIERS_MAX 64
#define RUNS_MAX     256
#define SEED         5

static struct hth_cu_device device;

/* A case with one of its shapes, and the barriers that it reaches. */
struct run {
    const struct kernel_case *kase;
    struct case_shape shape;
    bool reaches[BARRIERS_MAX];
};
static struct run runs[RUNS_MAX];
static uint32_t run_count;

static const char *run_one(const struct run *r)
{
    hth_shim_seed(1);
    return kernel_case_run(r->kase, r->shape, &device.tables[HTH_GPU_F32], 5e-6, SEED);
}

/* True for cases to run. Products have no barriers, and the sums beside them are those of the
 * norms; a long sequence is slow and reaches no barrier that a shorter one of a few tiles does
 * not. */
static bool wanted(const struct kernel_case *kase, struct case_shape shape)
{
    if (strcmp(kase->name, "case_attention") == 0)
        return shape.a < 100;
    return strncmp(kase->name, "linear", 6) != 0;
}

static int setup(void **state)
{
    char why[200];
    (void)state;
    if (hth_cu_device_open(&device, &hth_gpu_shim, 0, 512u << 20, why, sizeof(why)) != HTH_OK)
        return -1;
    hth_shim_batch(true);
    for (size_t i = 0; i < kernel_case_count; i++) {
        for (size_t s = 0; s < kernel_cases[i].shape_count; s++) {
            if (!wanted(&kernel_cases[i], kernel_cases[i].shapes[s]))
                continue;
            struct run *r = &runs[run_count++];
            uint64_t before[BARRIERS_MAX] = {0};
            HTH_ASSERT(run_count < RUNS_MAX);
            *r = (struct run){.kase = &kernel_cases[i], .shape = kernel_cases[i].shapes[s]};
            for (uint32_t b = 0; b < hth_shim_barriers(); b++)
                before[b] = hth_shim_barrier_reached(b);
            const char *error = run_one(r);
            if (error != NULL) {
                print_error("%s\n", error);
                return -1;
            }
            HTH_ASSERT(hth_shim_barriers() <= BARRIERS_MAX);
            for (uint32_t b = 0; b < hth_shim_barriers(); b++)
                r->reaches[b] = hth_shim_barrier_reached(b) > before[b];
        }
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hth_cu_device_close(&device);
    return 0;
}

/* The number of barriers in a file's text. */
static uint32_t written_in(const char *name)
{
    char path[512], line[256];
    uint32_t found = 0;
    snprintf(path, sizeof(path), "%s/%s", KERNELS, name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL)
        found += strstr(line, "__syncthreads") != NULL;
    fclose(f);
    return found;
}

/* The table reaches every barrier. */
TEST(cases_reach_every_barrier)
{
    uint32_t written = 0;
    const struct dirent *entry;
    DIR *folder = opendir(KERNELS);
    (void)state;
    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL) {
        size_t len = strlen(entry->d_name);
        if ((len > 3 && strcmp(entry->d_name + len - 3, ".cu") == 0) ||
            strcmp(entry->d_name, "launch.h") == 0)
            written += written_in(entry->d_name);
    }
    closedir(folder);
    assert_true(written > 0);
    if (hth_shim_barriers() != written) {
        for (uint32_t b = 0; b < hth_shim_barriers(); b++)
            print_error("reached: %s\n", hth_shim_barrier_name(b));
        fail_msg("%u of %u barriers were reached", hth_shim_barriers(), written);
    }
}

TEST(each_missing_barrier_fails_a_case)
{
    uint32_t unnoticed = 0;
    (void)state;
    for (uint32_t b = 0; b < hth_shim_barriers(); b++) {
        bool noticed = false;
        hth_shim_leave_out((int)b);
        for (uint32_t i = 0; i < run_count && !noticed; i++)
            noticed = runs[i].reaches[b] && run_one(&runs[i]) != NULL;
        hth_shim_leave_out(-1);
        if (!noticed) {
            print_error("no case misses %s\n", hth_shim_barrier_name(b));
            unnoticed++;
        }
    }
    assert_int_equal(unnoticed, 0);
}

SUITE_WITH(setup, teardown)
