/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.c: each node's files in memory. They survive a crash. With chaos.torn_file a file that was
 * written shortly before the crash comes back truncated, as from a disk that lied about its
 * flush.
 */
#include "sim/sim_int.h"

#include <string.h>

#define TEAR_WINDOW_US (5 * HTH_US_PER_S)

static struct sim_file *find(const struct hth_node *node, const char *path)
{
    struct sim_file *file = NULL;
    if (node->disk != NULL)
        file = hth_map_get(node->disk, path, strlen(path));
    return file != NULL ? file : hth_map_get(node->world->mounts, path, strlen(path));
}

static void file_free(struct sim_file *file)
{
    if (file != NULL && !file->borrowed)
        hth_free(file->data);
    hth_free(file);
}

void hth_sim_files_free(struct hth_map *files)
{
    struct sim_file *file;
    if (files == NULL)
        return;
    for (size_t it = 0; (file = hth_map_next(files, &it, NULL, NULL)) != NULL;)
        file_free(file);
    hth_map_free(files);
}

static enum hth_err failure(struct hth_node *node)
{
    struct hth_world *w = node->world;
    if (!node->live)
        return HTH_E_IO;
    if (w->opts.chaos.io_error > 0.0 && hth_rng_chance(&w->chaos_rng, w->opts.chaos.io_error))
        return HTH_E_IO;
    return HTH_OK;
}

enum hth_err hth_sim_file_size(struct hth_env *env, const char *path, uint64_t *size)
{
    struct hth_node *node = sim_node_of(env);
    *size = 0;
    HTH_TRY(failure(node));
    const struct sim_file *file = find(node, path);
    if (file == NULL)
        return HTH_E_NO_FILE;
    *size = file->size;
    return HTH_OK;
}

enum hth_err hth_sim_file_pread(struct hth_env *env, const char *path, uint64_t offset, void *buf,
                                size_t len, size_t *got)
{
    struct hth_node *node = sim_node_of(env);
    *got = 0;
    HTH_TRY(failure(node));
    const struct sim_file *file = find(node, path);
    if (file == NULL)
        return HTH_E_NO_FILE;
    if (offset < file->size) {
        *got = HTH_MIN(len, file->size - (size_t)offset);
        memcpy(buf, file->data + offset, *got);
    }
    return HTH_OK;
}

/* Store a file. Takes ownership of data. */
static void store_take(struct hth_node *node, const char *path, uint8_t *data, size_t size)
{
    if (node->disk == NULL)
        node->disk = hth_map_new();
    struct sim_file *file = hth_new(struct sim_file);
    *file = (struct sim_file){.data = data, .size = size, .written_us = node->world->now_us};
    struct sim_file *old = hth_map_put(node->disk, path, strlen(path), file);
    node->disk_bytes += size - (old != NULL ? old->size : 0);
    file_free(old);
}

enum hth_err hth_sim_file_write(struct hth_env *env, const char *path, const struct hth_span *spans,
                                size_t count)
{
    struct hth_node *node = sim_node_of(env);
    HTH_TRY(failure(node));
    if (hth_map_get(node->world->mounts, path, strlen(path)) != NULL)
        return HTH_E_PERMISSION;
    size_t size = 0;
    for (size_t i = 0; i < count; i++)
        size += spans[i].len;
    /* A file is written aside and renamed, so the old content takes its room until the end. */
    if (node->device.disk_bytes_max > 0 && node->disk_bytes + size > node->device.disk_bytes_max)
        return HTH_E_DISK_FULL;
    uint8_t *data = hth_try_calloc(size > 0 ? size : 1, 1);
    if (data == NULL)
        return HTH_E_NO_MEMORY;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (spans[i].len > 0 && spans[i].blob->data != NULL)
            memcpy(data + at, spans[i].blob->data + spans[i].offset, spans[i].len);
        at += spans[i].len;
    }
    store_take(node, path, data, size);
    return HTH_OK;
}

enum hth_err hth_sim_file_remove(struct hth_env *env, const char *path)
{
    struct hth_node *node = sim_node_of(env);
    HTH_TRY(failure(node));
    struct sim_file *file = NULL;
    if (node->disk != NULL)
        file = hth_map_del(node->disk, path, strlen(path));
    if (file == NULL)
        return find(node, path) != NULL ? HTH_E_PERMISSION : HTH_E_NO_FILE;
    node->disk_bytes -= file->size;
    file_free(file);
    return HTH_OK;
}

void hth_sim_disk_crash(struct hth_node *node)
{
    struct hth_world *w = node->world;
    struct sim_file *file;
    if (node->disk == NULL || w->opts.chaos.torn_file <= 0.0)
        return;
    for (size_t it = 0; (file = hth_map_next(node->disk, &it, NULL, NULL)) != NULL;) {
        if (w->now_us - file->written_us > TEAR_WINDOW_US || file->size == 0 ||
            !hth_rng_chance(&w->chaos_rng, w->opts.chaos.torn_file))
            continue;
        size_t kept = (size_t)hth_rng_below(&w->chaos_rng, file->size);
        node->disk_bytes -= file->size - kept;
        file->size = kept;
    }
}

/* ---- from outside -------------------------------------------------------------------------- */

void hth_world_mount(struct hth_world *w, const char *path, const void *data, size_t len)
{
    struct sim_file *file = hth_new(struct sim_file);
    *file = (struct sim_file){.data = (uint8_t *)(uintptr_t)data, .size = len, .borrowed = true};
    file_free(hth_map_put(w->mounts, path, strlen(path), file));
}

void hth_node_disk_put(struct hth_node *node, const char *path, const void *data, size_t len)
{
    uint8_t *copy = hth_calloc(len > 0 ? len : 1, 1);
    if (len > 0)
        memcpy(copy, data, len);
    store_take(node, path, copy, len);
}

const uint8_t *hth_node_disk_get(const struct hth_node *node, const char *path, size_t *len)
{
    const struct sim_file *file = find(node, path);
    *len = file != NULL ? file->size : 0;
    return file != NULL ? file->data : NULL;
}
