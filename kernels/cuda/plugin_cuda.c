/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin_cuda.c: the entry of hearth-cuda.so: the list of cards, and their back ends.
 *
 * A device is opened at its first use and stays open. No CUDA function is called earlier.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/blas_cuda.h"
#include "kernels/cuda/device.h"
#include "kernels/plugin_int.h"

/* The oldest cards that are compiled for (Turing), and the first with TF32 and bf16 (Ampere). */
#define ARCH_LEAST 75
#define ARCH_BF16  80

/* Written by the one thread that opens, read by all once `stage` is OPEN or FAILED. */
enum { CLOSED, OPENING, OPEN, FAILED };
static struct {
    atomic_int stage;
    enum hth_err err;
    char why[200];
    struct hth_cu_device device;
} cards[HTH_DEVICES_MAX];

static int arch_of(const struct hth_gpu_info *info)
{
    return 10 * info->major + info->minor;
}

/* The number of cards, or the reason for none in `why`. */
static int count_cards(char *why, size_t why_size)
{
    int count = 0, err = hth_gpu_cuda.count(&count);
    if (err != 0) {
        snprintf(why, why_size, "CUDA: %s", hth_gpu_cuda.text(err));
        return 0;
    }
    if (count == 0)
        snprintf(why, why_size, "CUDA found no card");
    return HTH_MIN(count, HTH_DEVICES_MAX);
}

static void describe(int index, struct hth_device_info *out)
{
    struct hth_gpu_info info;
    *out = (struct hth_device_info){.kind = "cuda", .index = index};
    int err = hth_gpu_cuda.info(index, &info);
    if (err != 0) {
        snprintf(out->why, sizeof(out->why), "%s", hth_gpu_cuda.text(err));
        return;
    }
    snprintf(out->name, sizeof(out->name), "%s", info.name);
    snprintf(out->driver, sizeof(out->driver), "%s", info.driver);
    out->memory_bytes = info.memory_bytes;
    out->usable = arch_of(&info) >= ARCH_LEAST;
    if (!out->usable)
        snprintf(out->why, sizeof(out->why), "compute capability %d.%d is below 7.5", info.major,
                 info.minor);
}

static size_t devices(struct hth_device_info *out, size_t max)
{
    char why[200];
    int count = count_cards(why, sizeof(why));
    if (max == 0)
        return 0;
    if (count == 0) {
        out[0] = (struct hth_device_info){.kind = "cuda", .index = -1};
        memcpy(out[0].why, why, sizeof(why));
        return 1;
    }
    size_t n = HTH_MIN((size_t)count, max);
    for (size_t i = 0; i < n; i++)
        describe((int)i, &out[i]);
    return n;
}

static enum hth_err open_card(int index, uint64_t limit, char *why, size_t why_size)
{
    struct hth_device_info info;
    int count = count_cards(why, why_size);
    if (count == 0)
        return HTH_E_NO_DEVICE;
    if (index >= count) {
        snprintf(why, why_size, "there %s only %d card%s", count == 1 ? "is" : "are", count,
                 count == 1 ? "" : "s");
        return HTH_E_NO_DEVICE;
    }
    describe(index, &info);
    if (!info.usable) {
        snprintf(why, why_size, "%s", info.why);
        return HTH_E_UNSUPPORTED;
    }
    return hth_cu_device_open(&cards[index].device, &hth_gpu_cuda, index, limit, why, why_size);
}

static enum hth_err open_once(uint32_t index, uint64_t limit)
{
    int stage = CLOSED;
    if (atomic_compare_exchange_strong(&cards[index].stage, &stage, OPENING)) {
        cards[index].err = open_card((int)index, limit, cards[index].why, sizeof(cards[index].why));
        atomic_store(&cards[index].stage, cards[index].err == HTH_OK ? OPEN : FAILED);
    }
    do /* about a second while the driver starts, once in a process */
        stage = atomic_load(&cards[index].stage);
    while (stage == OPENING);
    return cards[index].err;
}

static enum hth_err open_table(uint32_t index, uint64_t limit, const char *libraries,
                               enum hth_matmul compute, const struct hth_backend **out, char *why,
                               size_t why_size)
{
    hth_cublas_look_in(libraries);
    enum hth_err err = open_once(index, limit);
    if (err != HTH_OK) {
        snprintf(why, why_size, "%s", cards[index].why);
        return err;
    }
    struct hth_cu_device *dev = &cards[index].device;
    bool tensor = arch_of(&dev->info) >= ARCH_BF16;
    enum hth_gpu_type type = HTH_GPU_F32;
    if (compute == HTH_MATMUL_BF16 || (compute == HTH_MATMUL_AUTO && tensor))
        type = HTH_GPU_BF16;
    else if (compute == HTH_MATMUL_TF32)
        type = HTH_GPU_TF32;
    if (type != HTH_GPU_F32 && !tensor) {
        snprintf(why, why_size, "%s has fp32 products only", dev->info.name);
        return HTH_E_UNSUPPORTED;
    }
    *out = &dev->tables[type];
    return HTH_OK;
}

__attribute__((visibility("default"))) const struct hth_plugin *hth_plugin_entry(void);
const struct hth_plugin *hth_plugin_entry(void)
{
    static const struct hth_plugin self = {
        HTH_PLUGIN_HEAD,
        .kind = "cuda",
        .devices = devices,
        .open = open_table,
    };
    return &self;
}
