/* SPDX-License-Identifier: Apache-2.0 */
/* places.c: chooses a host's earlier places, then free ones. */
#include "app/places.h"

#include "core/env.h"
#include "core/mem.h"
#include "dht/directory.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define CHECKPOINT_SUFFIX ".safetensors"

struct places {
    uint32_t *index;
    size_t count, capacity;
};

static void add(struct places *p, uint32_t index)
{
    if (p->count == p->capacity) {
        p->capacity = p->capacity > 0 ? 2 * p->capacity : 64;
        p->index = hth_realloc(p->index, p->capacity, sizeof(*p->index));
    }
    p->index[p->count++] = index;
}

static int ascending(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* A folder lists its files in any order; sorted, the choice depends on their names alone. */
static void sort_unique(struct places *p)
{
    size_t n = 0;
    if (p->count > 1)
        qsort(p->index, p->count, sizeof(*p->index), ascending);
    for (size_t i = 0; i < p->count; i++) {
        if (n == 0 || p->index[n - 1] != p->index[i])
            p->index[n++] = p->index[i];
    }
    p->count = n;
}

static void add_checkpoints(const struct hth_grid *grid, const char *dir_path, struct places *p)
{
    DIR *dir = opendir(dir_path);
    const struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const char *name = entry->d_name;
        const size_t suffix = strlen(CHECKPOINT_SUFFIX);
        size_t len = strlen(name);
        struct hth_uid uid;
        uint32_t index;
        if (len <= suffix || strcmp(name + len - suffix, CHECKPOINT_SUFFIX) != 0)
            continue;
        /* The folder may hold files of other layers and runs, and unrelated ones: skip them. */
        if (hth_uid_parse(name, len - suffix, &uid) == HTH_OK &&
            hth_grid_find(grid, &uid, &index) == HTH_OK)
            add(p, index);
    }
    if (dir != NULL)
        closedir(dir);
}

static void add_own_records(const struct hth_env *env, const struct hth_directory *directory,
                            uint32_t layer, struct places *p)
{
    size_t count = hth_directory_host_experts(directory, &env->self, layer, NULL, 0);
    uint32_t *index = hth_new_array(uint32_t, HTH_MAX(count, (size_t)1));
    count = HTH_MIN(count, hth_directory_host_experts(directory, &env->self, layer, index, count));
    for (size_t i = 0; i < count; i++)
        add(p, index[i]);
    hth_free(index);
}

static bool served_by_others(const struct hth_env *env, const struct hth_directory *directory,
                             uint32_t layer, uint32_t index)
{
    struct hth_host_ref hosts[2];
    size_t count = hth_directory_hosts_of(directory, layer, index, hosts, HTH_ARRAY_LEN(hosts));
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&hosts[i].id, &env->self, sizeof(env->self)) != 0)
            return true;
    }
    return false;
}

/* The places of this host by checkpoints and own records, ascending. The caller frees the list. */
static struct places places_had(const struct hth_env *env, const struct hth_directory *directory,
                                uint32_t layer, const char *checkpoint_dir)
{
    struct places had = {0};
    add_checkpoints(hth_directory_grid(directory, layer), checkpoint_dir, &had);
    add_own_records(env, directory, layer, &had);
    sort_unique(&had);
    return had;
}

bool hth_places_contested(struct hth_env *env, struct hth_directory *directory, uint32_t layer,
                          const char *checkpoint_dir, uint32_t want)
{
    struct places had = places_had(env, directory, layer, checkpoint_dir);
    uint32_t *out = hth_new_array(uint32_t, HTH_MAX(want, 1u));
    bool yes = false;
    for (size_t i = 0; i < had.count && want > 0; i++)
        yes = yes || served_by_others(env, directory, layer, had.index[i]);
    yes = yes || hth_places_choose(env, directory, layer, checkpoint_dir, want, out) < want;
    hth_free(out);
    hth_free(had.index);
    return yes;
}

size_t hth_places_choose(struct hth_env *env, struct hth_directory *directory, uint32_t layer,
                         const char *checkpoint_dir, uint32_t want, uint32_t *out)
{
    struct places had = places_had(env, directory, layer, checkpoint_dir), chosen = {0};
    for (size_t i = 0; i < had.count && chosen.count < want; i++) {
        if (!served_by_others(env, directory, layer, had.index[i]))
            add(&chosen, had.index[i]);
    }
    /* At most chosen.count of `want` free places are chosen already, so enough are left. */
    uint32_t *spare = hth_new_array(uint32_t, HTH_MAX(want, 1u));
    size_t spares =
        chosen.count < want ? hth_directory_pick_free(directory, layer, want, spare) : 0;
    size_t before = chosen.count;
    for (size_t i = 0; i < spares && chosen.count < want; i++) {
        if (before == 0 ||
            bsearch(&spare[i], chosen.index, before, sizeof(*spare), ascending) == NULL)
            add(&chosen, spare[i]);
    }
    sort_unique(&chosen);
    if (chosen.count > 0)
        memcpy(out, chosen.index, chosen.count * sizeof(*out));
    size_t count = chosen.count;
    hth_free(spare);
    hth_free(had.index);
    hth_free(chosen.index);
    return count;
}
