/* SPDX-License-Identifier: Apache-2.0 */
/*
 * each.c: many independent calls of one context, over its team.
 *
 * Each thread needs its own scratch: a slice of the context's. Threads join and leave, so a thread
 * takes a slice for one call of fn. There are as many slices as threads in the team, so one is
 * always free.
 */
#include <string.h>

#include "kernels/backend_int.h"

struct each {
    struct hth_exec *ex;
    hth_exec_fn *fn;
    void *arg;
    uint8_t *slices; /* `width` of them, slice_bytes apart */
    size_t slice_bytes;
    uint8_t *busy; /* one flag per slice */
    uint32_t width;
    uint64_t failed; /* index << 32 | error of the lowest index that failed */
};

static uint32_t slice_take(struct each *e)
{
    for (uint32_t i = 0;; i = (i + 1) % e->width) {
        if (__atomic_exchange_n(&e->busy[i], 1, __ATOMIC_ACQUIRE) == 0)
            return i;
    }
}

static void note_failure(struct each *e, uint32_t index, enum hth_err err)
{
    uint64_t mine = (uint64_t)index << 32 | (uint32_t)err;
    uint64_t seen = __atomic_load_n(&e->failed, __ATOMIC_RELAXED);
    while (mine < seen && !__atomic_compare_exchange_n(&e->failed, &seen, mine, true,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void each_part(void *arg, uint32_t part)
{
    struct each *e = arg;
    uint32_t slice = slice_take(e);
    struct hth_exec sub = *e->ex;
    sub.scratch = e->slices + slice * e->slice_bytes;
    sub.scratch_bytes = e->slice_bytes;
    sub.scratch_used = 0;
    sub.is_part = true;
    sub.spare = NULL; /* belongs to the owner */
    sub.spare_bytes = 0;
    enum hth_err err = e->fn(&sub, e->arg, part);
    if (err != HTH_OK)
        note_failure(e, part, err);
    __atomic_store_n(&e->busy[slice], 0, __ATOMIC_RELEASE);
}

/* The number of threads that may help: on a device all work is in the one stream. */
static uint32_t each_width(const struct hth_backend *be, const struct hth_team *team,
                           uint32_t count)
{
    if (!(be->caps & HTH_CAP_HOST_MEMORY))
        return 1;
    return HTH_MIN(HTH_MAX(count, 1u), hth_team_width(team));
}

size_t hth_exec_each_bytes(const struct hth_exec *ex, uint32_t count, size_t scratch_bytes)
{
    uint32_t width = each_width(ex->be, ex->team, count);
    return width * hth_exec_cost(scratch_bytes) + (width > 1 ? hth_exec_cost(width) : 0);
}

/* Makes the calls one after the other, in the context's own scratch. */
static enum hth_err each_alone(struct hth_exec *ex, uint32_t count, hth_exec_fn *fn, void *arg)
{
    size_t mark = hth_exec_mark(ex);
    enum hth_err first = HTH_OK;
    for (uint32_t i = 0; i < count; i++) {
        enum hth_err err = fn(ex, arg, i);
        first = first == HTH_OK ? err : first;
        hth_exec_release(ex, mark);
    }
    return first;
}

/* Makes the calls over the team; e has its slices and flags. */
static enum hth_err each_run(struct each *e, uint32_t count)
{
    memset(e->busy, 0, e->width);
    hth_team_run(e->ex->team, count, each_part, e);
    return e->failed == UINT64_MAX ? HTH_OK : (enum hth_err)(uint32_t)e->failed;
}

enum hth_err hth_exec_each(struct hth_exec *ex, uint32_t count, size_t scratch_bytes,
                           hth_exec_fn *fn, void *arg)
{
    struct each e = {.ex = ex, .fn = fn, .arg = arg, .failed = UINT64_MAX};
    size_t mark = hth_exec_mark(ex);
    e.width = each_width(ex->be, ex->team, count);
    if (e.width == 1)
        return each_alone(ex, count, fn, arg);
    e.slice_bytes = hth_exec_cost(scratch_bytes);
    e.busy = hth_exec_take(ex, e.width);
    e.slices = hth_exec_take(ex, e.width * e.slice_bytes);
    enum hth_err err = HTH_E_NO_MEMORY;
    if (e.busy != NULL && e.slices != NULL)
        err = each_run(&e, count);
    hth_exec_release(ex, mark);
    return err;
}

static bool spare_grow(struct hth_exec *ex, size_t bytes)
{
    if (bytes <= ex->spare_bytes)
        return true;
    hth_backend_free(ex->be, ex->spare);
    ex->spare = hth_backend_alloc(ex->be, bytes);
    ex->spare_bytes = ex->spare != NULL ? bytes : 0;
    return ex->spare != NULL;
}

enum hth_err hth_exec_share(struct hth_exec *ex, uint32_t count, size_t scratch_bytes,
                            hth_exec_fn *fn, void *arg)
{
    struct each e = {.ex = ex, .fn = fn, .arg = arg, .failed = UINT64_MAX};
    e.slice_bytes = hth_exec_cost(scratch_bytes);
    e.width = ex->is_part ? 1 : each_width(ex->be, ex->team, count);
    if (e.width == 1 || !spare_grow(ex, e.width * e.slice_bytes + hth_exec_cost(e.width)))
        return each_alone(ex, count, fn, arg);
    e.slices = ex->spare;
    e.busy = ex->spare + e.width * e.slice_bytes;
    return each_run(&e, count);
}
