/* SPDX-License-Identifier: Apache-2.0 */
/* blob.c: reference counts are atomic; everything else of a blob is frozen once shared. */
#include "core/blob.h"

#include "core/budget.h"
#include "core/mem.h"

#include <string.h>

/* Small payloads live in the same allocation as their header, 64-byte aligned behind it. */
#define HEADER_BYTES ((sizeof(struct hth_blob) + 63) / 64 * 64)

static struct hth_blob *blob_alloc(size_t size)
{
    if (size > SIZE_MAX / 2)
        return NULL;
    struct hth_blob *blob = hth_try_block(HEADER_BYTES + size);
    if (blob == NULL)
        return NULL;
    memset(blob, 0, sizeof(*blob));
    blob->data = size > 0 ? (uint8_t *)blob + HEADER_BYTES : NULL;
    blob->size = size;
    blob->refs = 1;
    return blob;
}

/* Where the bytes of a blob lie that were allocated with it. */
static const uint8_t *own_data(const struct hth_blob *blob)
{
    return (const uint8_t *)blob + HEADER_BYTES;
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
    int before = __atomic_fetch_add(&blob->refs, 1, __ATOMIC_RELAXED);
    HTH_ASSERT(before > 0);
    return blob;
}

void hth_blob_unref(struct hth_blob *blob)
{
    if (blob == NULL)
        return;
    int left = __atomic_sub_fetch(&blob->refs, 1, __ATOMIC_ACQ_REL);
    HTH_ASSERT(left >= 0);
    if (left > 0)
        return;
    if (blob->budget != NULL)
        hth_budget_give(blob->budget, blob->size);
    if (blob->release != NULL)
        blob->release(blob->release_arg, blob->data);
    /* A ghost and a wrapper have only the header. */
    hth_block_free(blob, HEADER_BYTES + (blob->data == own_data(blob) ? blob->size : 0));
}
