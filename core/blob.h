/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob.h: reference-counted bytes that cross threads and sockets without being copied.
 *
 * A blob is written by its one owner. Sharing freezes it: once a second reference exists, nobody
 * writes. References may be taken and dropped on any thread. The data is 64-byte aligned.
 *
 * A *ghost* blob has a length and a digest but no bytes (data == NULL): the simulator moves ghosts
 * so that a thousand peers with large payloads fit in memory. Only jobs (env.h) read the bytes of a
 * payload, and an environment with ghosts does not run them; so code above net/ need not know which
 * kind it holds. Allocate payloads with hth_env_blob_new, which makes the kind of its environment.
 *
 * A blob may draw on a byte budget, which gets the bytes back when the last reference is dropped.
 */
#ifndef HTH_CORE_BLOB_H
#define HTH_CORE_BLOB_H

#include "core/base.h"

struct hth_budget;

struct hth_blob {
    uint8_t *data; /* NULL for a ghost and when size is 0 */
    size_t size;
    uint64_t digest; /* of a ghost: stands for its content; 0 otherwise */
    /* private */
    int64_t refs;
    bool inside; /* the bytes follow this struct in one allocation */
    struct hth_budget *budget;
    void (*release)(void *arg, void *data); /* for hth_blob_wrap */
    void *release_arg;
};

/* Uninitialised bytes. NULL when memory is gone. */
struct hth_blob *hth_blob_try_new(size_t size) HTH_MUST;
/* Draws `size` on the budget first: E_BUDGET or E_NO_MEMORY leave *out NULL. */
enum hth_err hth_blob_new_budget(size_t size, struct hth_budget *budget,
                                 struct hth_blob **out) HTH_MUST;
/* A copy of small bytes (aborts when memory is gone: only for sizes we chose ourselves). */
struct hth_blob *hth_blob_copy(const void *data, size_t size);
/* Foreign memory; `release(arg, data)` is called on whichever thread drops the last reference. */
struct hth_blob *hth_blob_wrap(void *data, size_t size, void (*release)(void *arg, void *data),
                               void *release_arg);
struct hth_blob *hth_blob_ghost(size_t size, uint64_t digest);
struct hth_blob *hth_blob_ref(struct hth_blob *blob);
/* NULL is fine. */
void hth_blob_unref(struct hth_blob *blob);

/* Whether its bytes were drawn on a budget. */
static inline bool hth_blob_is_drawn(const struct hth_blob *blob)
{
    return blob->budget != NULL;
}

/* A range of a blob's bytes. */
struct hth_span {
    struct hth_blob *blob;
    size_t offset;
    size_t len;
};

#endif
