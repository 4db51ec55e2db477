/* SPDX-License-Identifier: Apache-2.0 */
/* blob.c: reference counts are atomic; everything else of a blob is frozen once shared. */
#include "core/blob.h"

#include "core/budget.h"
#include "core/counter.h"
#include "core/mem.h"

#include <string.h>

/* The bytes live in the same allocation as their header, at the next multiple of 64 behind it.
 * Aligned allocations are for large blobs: malloc serves small ones several times as fast, and a
 * blob is made for nearly every message. */
#define HEADER_BYTES ((sizeof(struct hth_blob) + 63) / 64 * 64)
#define SMALL_BYTES  16384

static struct hth_blob *blob_alloc(size_t size)
{
    struct hth_blob *blob;
    if (size > SIZE_MAX / 2)
        return NULL;
    if (size == 0)
        blob = hth_try_alloc(sizeof(*blob));
    else if (size <= SMALL_BYTES)
        blob = hth_try_alloc(sizeof(*blob) + 63 + size);
    else
        blob = hth_try_block(HEADER_BYTES + size);
    if (blob == NULL)
        return NULL;
    memset(blob, 0, sizeof(*blob));
    blob->inside = size > 0;
    if (blob->inside)
        blob->data = (uint8_t *)(((uintptr_t)(blob + 1) + 63) & ~(uintptr_t)63);
    blob->size = size;
    blob->refs = 1;
    return blob;
}

struct hth_blob *hth_blob_try_new(size_t size)
{
    return blob_alloc(size);
}

enum hth_err hth_blob_new_budget(size_t size, struct hth_budget *budget, struct hth_blob **out)
{
    *out = NULL;
    if (budget != NULL)
        HTH_TRY(hth_budget_take(budget, size));
    struct hth_blob *blob = blob_alloc(size);
    if (blob == NULL) {
        if (budget != NULL)
            hth_budget_give(budget, size);
        return HTH_E_NO_MEMORY;
    }
    blob->budget = budget;
    *out = blob;
    return HTH_OK;
}

struct hth_blob *hth_blob_copy(const void *data, size_t size)
{
    struct hth_blob *blob = blob_alloc(size);
    HTH_ASSERT(blob != NULL);
    if (size > 0)
        memcpy(blob->data, data, size);
    return blob;
}

struct hth_blob *hth_blob_wrap(void *data, size_t size, void (*release)(void *arg, void *data),
                               void *release_arg)
{
    struct hth_blob *blob = blob_alloc(0);
    HTH_ASSERT(blob != NULL);
    blob->data = data;
    blob->size = size;
    blob->release = release;
    blob->release_arg = release_arg;
    return blob;
}

struct hth_blob *hth_blob_ghost(size_t size, uint64_t digest)
{
    struct hth_blob *blob = blob_alloc(0);
    HTH_ASSERT(blob != NULL);
    blob->size = size;
    blob->digest = digest;
    return blob;
}

struct hth_blob *hth_blob_ref(struct hth_blob *blob)
{
    int64_t refs = hth_counter_add(&blob->refs, 1);
    HTH_ASSERT(refs > 1);
    return blob;
}

void hth_blob_unref(struct hth_blob *blob)
{
    if (blob == NULL)
        return;
    int64_t left = hth_counter_add(&blob->refs, -1);
    HTH_ASSERT(left >= 0);
    if (left > 0)
        return;
    if (blob->budget != NULL)
        hth_budget_give(blob->budget, blob->size);
    if (blob->release != NULL)
        blob->release(blob->release_arg, blob->data);
    if (blob->inside && blob->size > SMALL_BYTES)
        hth_block_free(blob, HEADER_BYTES + blob->size);
    else
        hth_free(blob);
}
