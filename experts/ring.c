/* SPDX-License-Identifier: Apache-2.0 */
/* ring.c: see ring.h. */
#include "experts/ring.h"

#include "core/mem.h"
#include "experts/safetensors.h"

#include <stdio.h>

#define SLOTS          (HTH_RING_COPIES + 1) /* one more: a copy is written before another goes */
#define LIST           "%s.ring"
#define SLOT           "%s.ring%u"
#define UNDONE         "%s.undone"
#define KEY            "hearth.taken%u"
#define LIST_BYTES_MAX 4096
#define PERIOD_US      (hth_ring_age_s[0] * HTH_US_PER_S)

const int64_t hth_ring_age_s[HTH_RING_AGES] = {600, 3600, 86400};

/* Unix microseconds of the copy in each slot; 0: the slot is free. */
struct ring_list {
    int64_t taken_us[SLOTS];
};

int64_t hth_ring_due(struct hth_ring *ring, int64_t wall_us)
{
    /* A clock that was set back must not end the copies. */
    if (wall_us < ring->next_us && wall_us >= ring->next_us - PERIOD_US)
        return 0;
    ring->next_us = wall_us + PERIOD_US;
    return wall_us;
}

/* ---- the list ------------------------------------------------------------------------------ */

static enum hth_err list_parse(const struct hth_blob *bytes, struct ring_list *out)
{
    struct hth_st_reader *r;
    enum hth_err err = hth_st_open(bytes->data, bytes->size, &r);

    if (err != HTH_OK)
        return err == HTH_E_NO_MEMORY ? err : HTH_E_CORRUPT;
    for (unsigned i = 0; i < SLOTS; i++) {
        char key[32];
        uint64_t taken;
        snprintf(key, sizeof(key), KEY, i);
        if (hth_st_meta(r, key) == NULL)
            continue;
        if (hth_st_meta_u64(r, key, &taken) != HTH_OK || taken > INT64_MAX)
            err = HTH_E_CORRUPT;
        else
            out->taken_us[i] = (int64_t)taken;
    }
    hth_st_close(r);
    return err;
}

/* An empty list where there is no file. After an error it is empty, too. */
static enum hth_err list_read(struct hth_env *env, const char *path, struct ring_list *out)
{
    char *name = hth_asprintf(LIST, path);
    struct hth_blob *bytes = NULL;
    enum hth_err err = hth_file_read(env, name, LIST_BYTES_MAX, &bytes);

    *out = (struct ring_list){{0}};
    if (err == HTH_OK)
        err = list_parse(bytes, out);
    if (err != HTH_OK)
        *out = (struct ring_list){{0}};
    hth_blob_unref(bytes);
    hth_free(name);
    return err == HTH_E_NO_FILE ? HTH_OK : err;
}

static enum hth_err write_whole(struct hth_env *env, char *path, struct hth_blob *bytes)
{
    const struct hth_span span = {bytes, 0, bytes->size};
    enum hth_err err = hth_file_write(env, path, &span, 1);

    hth_free(path);
    return err;
}

static enum hth_err list_write(struct hth_env *env, const char *path, const struct ring_list *list)
{
    struct hth_st_writer *w = hth_st_writer_new();
    struct hth_blob *bytes = NULL;
    enum hth_err err;

    for (unsigned i = 0; i < SLOTS; i++) {
        char key[32];
        snprintf(key, sizeof(key), KEY, i);
        if (list->taken_us[i] > 0)
            hth_st_add_meta_u64(w, key, (uint64_t)list->taken_us[i]);
    }
    err = hth_st_writer_finish(w, &bytes);
    if (err == HTH_OK)
        err = write_whole(env, hth_asprintf(LIST, path), bytes);
    hth_blob_unref(bytes);
    hth_st_writer_free(w);
    return err;
}

static void remove_slot(struct hth_env *env, const char *path, unsigned slot)
{
    char *name = hth_asprintf(SLOT, path, slot);

    (void)!hth_file_remove(env, name);
    hth_free(name);
}

/* Writes `to`, then removes the copies that it lacks. */
static enum hth_err list_replace(struct hth_env *env, const char *path,
                                 const struct ring_list *from, const struct ring_list *to)
{
    HTH_TRY(list_write(env, path, to));
    for (unsigned i = 0; i < SLOTS; i++)
        if (from->taken_us[i] > 0 && to->taken_us[i] == 0)
            remove_slot(env, path, i);
    return HTH_OK;
}

/* ---- which copies stay ---------------------------------------------------------------------- */

/* The youngest copy that is at least age_us old, or the oldest that is younger; SLOTS: none. A copy
 * from the future, before a clock was set back, counts as taken now. */
static unsigned find(const struct ring_list *list, int64_t age_us, int64_t now_us, bool younger)
{
    unsigned best = SLOTS;

    for (unsigned i = 0; i < SLOTS; i++) {
        int64_t taken = list->taken_us[i];
        bool is_younger = now_us - HTH_MIN(taken, now_us) < age_us;
        if (taken == 0 || is_younger != younger)
            continue;
        if (best == SLOTS || (taken < list->taken_us[best]) == younger)
            best = i;
    }
    return best;
}

static void thin(struct ring_list *list, unsigned ages, int64_t now_us)
{
    bool stays[SLOTS + 1] = {false};

    for (unsigned a = 0; a < ages; a++) {
        stays[find(list, hth_ring_age_s[a] * HTH_US_PER_S, now_us, false)] = true;
        stays[find(list, hth_ring_age_s[a] * HTH_US_PER_S, now_us, true)] = true;
    }
    for (unsigned i = 0; i < SLOTS; i++)
        if (!stays[i])
            list->taken_us[i] = 0;
}

/* How many ages the bound leaves room for: each takes two copies, the file itself one. */
static unsigned ages_within(uint64_t disk_bytes, uint64_t file_bytes)
{
    uint64_t files = disk_bytes / HTH_MAX(file_bytes, 1u);

    if (disk_bytes == 0)
        return HTH_RING_AGES;
    return files == 0 ? 0 : (unsigned)HTH_MIN((files - 1) / 2, (uint64_t)HTH_RING_AGES);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Removes the oldest copy, and more until the list itself finds room; false: none is left. */
static bool make_room(struct hth_env *env, const char *path)
{
    struct ring_list list;
    unsigned oldest;

    (void)!list_read(env, path, &list);
    while ((oldest = find(&list, INT64_MAX, INT64_MAX, true)) < SLOTS) {
        remove_slot(env, path, oldest);
        list.taken_us[oldest] = 0;
        if (list_write(env, path, &list) == HTH_OK)
            return true;
    }
    return false;
}

static enum hth_err add_copy(struct hth_env *env, const char *path, struct hth_blob *bytes,
                             int64_t copy_us, unsigned ages)
{
    struct ring_list old, list;
    unsigned slot = 0;
    enum hth_err err = list_read(env, path, &old);

    if (err != HTH_OK && err != HTH_E_CORRUPT) /* a damaged list is begun anew */
        return err;
    list = old;
    thin(&list, ages, copy_us);
    while (slot < SLOTS && old.taken_us[slot] > 0)
        slot++;
    if (ages > 0 && slot < SLOTS) {
        HTH_TRY(write_whole(env, hth_asprintf(SLOT, path, slot), bytes));
        list.taken_us[slot] = copy_us;
        thin(&list, ages, copy_us);
    }
    err = list_replace(env, path, &old, &list);
    if (slot < SLOTS && list.taken_us[slot] == 0)
        remove_slot(env, path, slot); /* an older one is as useful */
    return err;
}

enum hth_err hth_ring_write(struct hth_env *env, const char *path, struct hth_blob *bytes,
                            int64_t copy_us, uint64_t disk_bytes)
{
    enum hth_err err;

    do
        err = write_whole(env, hth_strdup(path), bytes);
    while (err == HTH_E_DISK_FULL && make_room(env, path));
    if (err != HTH_OK || copy_us <= 0)
        return err;
    err = add_copy(env, path, bytes, copy_us, ages_within(disk_bytes, bytes->size));
    if (err != HTH_OK)
        HTH_LOG(env, HTH_WARN, HTH_SUB_EXPERT,
                "%s: saved, but no copy for a roll-back was kept: %s; it is tried again in %d "
                "minutes",
                path, hth_err_text(err), (int)(PERIOD_US / HTH_US_PER_S / 60));
    return HTH_OK;
}

/* ---- going back ----------------------------------------------------------------------------- */

static enum hth_err read_copy(struct hth_env *env, const char *path, unsigned slot, uint64_t max,
                              struct hth_blob **out)
{
    char *name = hth_asprintf(SLOT, path, slot);
    struct hth_st_reader *r;
    enum hth_err err = hth_file_read(env, name, max, out);

    hth_free(name);
    HTH_TRY(err);
    err = hth_st_open((*out)->data, (*out)->size, &r);
    if (err == HTH_OK && !hth_st_has_digest(r))
        err = HTH_E_CORRUPT;
    else if (err != HTH_OK && err != HTH_E_NO_MEMORY)
        err = HTH_E_CORRUPT;
    hth_st_close(r);
    return err;
}

static enum hth_err keep_undone(struct hth_env *env, const char *path, uint64_t max)
{
    struct hth_blob *bytes = NULL;
    enum hth_err err = hth_file_read(env, path, max, &bytes);

    if (err == HTH_OK)
        err = write_whole(env, hth_asprintf(UNDONE, path), bytes);
    hth_blob_unref(bytes);
    return err == HTH_E_NO_FILE ? HTH_OK : err;
}

enum hth_err hth_ring_back(struct hth_env *env, const char *path, int64_t age_us, int64_t wall_us,
                           uint64_t max, int64_t *taken_us)
{
    struct ring_list old, list;
    struct hth_blob *bytes = NULL;
    unsigned slot, oldest;
    enum hth_err err;

    *taken_us = 0;
    HTH_TRY(list_read(env, path, &old));
    slot = find(&old, age_us, wall_us, false);
    oldest = find(&old, INT64_MAX, wall_us, true);
    if (slot == SLOTS) {
        *taken_us = oldest < SLOTS ? old.taken_us[oldest] : 0;
        return HTH_E_NOT_FOUND;
    }
    *taken_us = old.taken_us[slot];
    list = old;
    for (unsigned i = 0; i < SLOTS; i++)
        if (list.taken_us[i] > old.taken_us[slot])
            list.taken_us[i] = 0;
    HTH_GOTO(out, read_copy(env, path, slot, max, &bytes));
    HTH_GOTO(out, keep_undone(env, path, max));
    HTH_GOTO(out, write_whole(env, hth_strdup(path), bytes));
    HTH_GOTO(out, list_replace(env, path, &old, &list));
out:
    hth_blob_unref(bytes);
    return err;
}
