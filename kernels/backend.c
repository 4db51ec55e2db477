/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c: choosing a back end, and execution contexts with their stack of scratch. */
#include "kernels/backend_int.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/plugin.h"
#include "kernels/rowops.h"

#define SCRATCH_ALIGN 64

uint32_t hth_ld_f32(uint32_t cols)
{
    uint32_t ld = (cols + 15) / 16 * 16;
    return ld > 0 && ld % 1024 == 0 ? ld + 16 : ld;
}

static bool is(const char *name, const char *what)
{
    return name != NULL && strcmp(name, what) == 0;
}

/* The packed kernels if this CPU runs them; else OpenBLAS, which beats plain C. */
static enum hth_err choose_auto(const struct hth_packed_options *options,
                                const struct hth_backend **out)
{
    const struct hth_backend *blas;
    HTH_TRY(hth_backend_packed(options, out));
    if (options->isa == NULL && is(hth_backend_isa(*out), "generic") &&
        hth_backend_blas(NULL, &blas) == HTH_OK)
        *out = blas;
    return HTH_OK;
}

enum hth_err hth_backend_choose(const struct hth_backend_choice *choice,
                                const struct hth_backend **out)
{
    struct hth_packed_options options = {.isa = choice->isa, .compute = choice->compute};
    if (choice->name == NULL || is(choice->name, "auto"))
        return choose_auto(&options, out);
    if (hth_plugin_knows(choice->name)) {
        char why[200];
        return hth_plugin_backend(choice->name, choice->compute, out, why, sizeof(why));
    }
    if (is(choice->name, "packed-bf16"))
        options.compute = HTH_MATMUL_BF16;
    if (is(choice->name, "packed") || is(choice->name, "packed-bf16"))
        return hth_backend_packed(&options, out);
    if (!is(choice->name, "ref") && !is(choice->name, "blas"))
        return HTH_E_NO_DEVICE;
    if (choice->compute == HTH_MATMUL_BF16 || choice->compute == HTH_MATMUL_TF32)
        return HTH_E_UNSUPPORTED;
    if (is(choice->name, "blas"))
        return hth_backend_blas(NULL, out);
    *out = hth_backend_ref();
    return HTH_OK;
}

enum hth_err hth_backend_by_name(const char *name, const struct hth_backend **out)
{
    struct hth_backend_choice choice = {.name = name, .compute = HTH_MATMUL_F32};
    return hth_backend_choose(&choice, out);
}

size_t hth_backend_list(struct hth_backend_info *out, size_t max)
{
    struct hth_backend_info all[] = {
        {.name = "ref", .usable = true},
        {.name = "packed"},
        {.name = "packed-bf16"},
        {.name = "blas"},
    };
    const struct hth_backend *be;
    snprintf(all[0].detail, sizeof(all[0].detail), "plain loops, the same bits everywhere");
    for (size_t i = 1; i < HTH_ARRAY_LEN(all); i++)
        all[i].usable = hth_backend_by_name(all[i].name, &be) == HTH_OK;
    hth_packed_describe(HTH_MATMUL_F32, all[1].detail, sizeof(all[1].detail));
    hth_packed_describe(HTH_MATMUL_BF16, all[2].detail, sizeof(all[2].detail));
    hth_blas_describe(all[3].detail, sizeof(all[3].detail));
    size_t count = HTH_MIN(max, HTH_ARRAY_LEN(all));
    for (size_t i = 0; i < count; i++)
        out[i] = all[i];
    return count;
}

const char *hth_backend_name(const struct hth_backend *be)
{
    return be->name;
}

uint32_t hth_backend_jobs(const struct hth_backend *be)
{
    return be->caps & HTH_CAP_HOST_MEMORY ? UINT32_MAX : 2;
}

int hth_backend_card(const struct hth_backend *be)
{
    return (int)be->card - 1;
}

/* The largest step between sizes: a large batch gains little from padding and pays for all its
 * rows. */
#define PADDED_MOST 64u

uint32_t hth_backend_padded(const struct hth_backend *be, uint32_t rows, uint32_t unit)
{
    uint32_t units = rows / unit, step = unit == 1 ? 8 : 1;
    if (be->caps & HTH_CAP_HOST_MEMORY || be->replay == NULL)
        return rows;
    while (step * 8 <= units && step * unit < PADDED_MOST)
        step *= 2;
    return (units + step - 1) / step * step * unit;
}

uint32_t hth_backend_caps(const struct hth_backend *be)
{
    return be->caps;
}

enum hth_matmul hth_backend_compute(const struct hth_backend *be)
{
    return be->compute;
}

enum hth_dtype hth_backend_operand(const struct hth_backend *be)
{
    return be->bf16_views ? HTH_BF16 : HTH_F32;
}

const char *hth_backend_isa(const struct hth_backend *be)
{
    return be->isa != NULL ? be->isa : "";
}

const char *hth_matmul_name(enum hth_matmul compute)
{
    static const char *const names[] = {"auto", "fp32", "bf16", "tf32"};
    return names[compute];
}

void *hth_backend_alloc(const struct hth_backend *be, size_t bytes)
{
    return be->alloc(be, bytes);
}

void hth_backend_free(const struct hth_backend *be, void *p)
{
    if (p != NULL)
        be->free(be, p);
}

enum hth_err hth_exec_new(const struct hth_backend *be, size_t scratch_bytes, struct hth_exec **out)
{
    struct hth_exec *ex = hth_new(struct hth_exec);
    ex->be = be;
    enum hth_err err = be->exec_open(ex);
    if (err != HTH_OK) {
        hth_free(ex);
        return err;
    }
    err = hth_exec_reserve(ex, scratch_bytes);
    if (err != HTH_OK) {
        hth_exec_free(ex);
        return err;
    }
    *out = ex;
    return HTH_OK;
}

void hth_exec_free(struct hth_exec *ex)
{
    if (ex == NULL)
        return;
    ex->be->exec_close(ex);
    hth_backend_free(ex->be, ex->scratch);
    hth_backend_free(ex->be, ex->spare);
    hth_free(ex);
}

const struct hth_backend *hth_exec_backend(const struct hth_exec *ex)
{
    return ex->be;
}

void hth_exec_set_team(struct hth_exec *ex, struct hth_team *team)
{
    ex->team = team;
}

enum hth_err hth_exec_reserve(struct hth_exec *ex, size_t scratch_bytes)
{
    HTH_ASSERT(ex->scratch_used == 0);
    if (scratch_bytes <= ex->scratch_bytes)
        return HTH_OK;
    HTH_TRY(ex->be->exec_sync(ex));
    uint8_t *bigger = hth_backend_alloc(ex->be, scratch_bytes);
    if (bigger == NULL)
        return HTH_E_NO_MEMORY;
    hth_backend_free(ex->be, ex->scratch);
    ex->scratch = bigger;
    ex->scratch_bytes = scratch_bytes;
    return HTH_OK;
}

enum hth_err hth_exec_sync(struct hth_exec *ex)
{
    return ex->be->exec_sync(ex);
}

enum hth_err hth_exec_stamp(struct hth_exec *ex, bool last)
{
    return ex->be->stamp != NULL ? ex->be->stamp(ex, last) : HTH_E_UNSUPPORTED;
}

enum hth_err hth_exec_stamped_us(struct hth_exec *ex, double *us)
{
    return ex->be->stamped_us != NULL ? ex->be->stamped_us(ex, us) : HTH_E_UNSUPPORTED;
}

size_t hth_exec_cost(size_t bytes)
{
    return (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

void *hth_exec_take(struct hth_exec *ex, size_t bytes)
{
    size_t left = ex->scratch_bytes - ex->scratch_used;
    if (bytes > left || hth_exec_cost(bytes) > left)
        return NULL;
    void *p = ex->scratch + ex->scratch_used;
    ex->scratch_used += hth_exec_cost(bytes);
    return p;
}

size_t hth_exec_mark(const struct hth_exec *ex)
{
    return ex->scratch_used;
}

void hth_exec_release(struct hth_exec *ex, size_t mark)
{
    HTH_ASSERT(mark <= ex->scratch_used);
    ex->scratch_used = mark;
}

enum hth_err hth_exec_upload(struct hth_exec *ex, void *device, const void *host, size_t bytes)
{
    return bytes > 0 ? ex->be->upload(ex, device, host, bytes) : HTH_OK;
}

enum hth_err hth_exec_download(struct hth_exec *ex, void *host, const void *device, size_t bytes)
{
    return bytes > 0 ? ex->be->download(ex, host, device, bytes) : HTH_OK;
}
