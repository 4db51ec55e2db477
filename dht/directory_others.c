/* SPDX-License-Identifier: Apache-2.0 */
/*
 * directory_others.c: counts the hosts of the run that have another run file: the same layer with
 * another grid or shape. One line names them all, and again when there are more.
 */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/name.h"
#include "dht/directory_int.h"

#define OTHERS_MAX 256
/* Records of several hosts and layers come in a few moments: the line waits for them. */
#define COLLECT_US (2 * HTH_US_PER_S)
#define AGAIN_US   (60 * HTH_US_PER_S)

struct other_host {
    struct hth_peer_id id;
    int64_t until_us; /* its newest record expires */
};

struct hth_dir_others {
    struct hth_directory *dir;
    struct other_host host[OTHERS_MAX];
    uint32_t count, said;
    struct hth_timer *timer;
    bool armed;
    char differ[HTH_DIR_DIFFER_MAX];
};

static const char *dims_text(const struct hth_grid *grid, char out[64])
{
    int len = 0;
    for (uint32_t i = 0; i < grid->ndim; i++)
        len += snprintf(out + len, 64 - (size_t)len, "%s%u", i > 0 ? "x" : "", grid->dim[i]);
    return out;
}

static void write_differ(const struct hth_dir_layer *layer, const struct hth_listing *l,
                         char out[HTH_DIR_DIFFER_MAX])
{
    const struct hth_layer_shape *theirs = &l->shape, *ours = &layer->shape;
    char a[64], b[64];
    if (!hth_grid_eq(&l->grid, &layer->grid))
        snprintf(out, HTH_DIR_DIFFER_MAX, "grid %s, yours %s", dims_text(&l->grid, a),
                 dims_text(&layer->grid, b));
    else if (strcmp(theirs->kind, ours->kind) != 0)
        snprintf(out, HTH_DIR_DIFFER_MAX, "experts of kind %s, yours %s", theirs->kind, ours->kind);
    else if (theirs->d != ours->d)
        snprintf(out, HTH_DIR_DIFFER_MAX, "width %u, yours %u", theirs->d, ours->d);
    else
        snprintf(out, HTH_DIR_DIFFER_MAX, "sequences of %u rows, yours %u", theirs->block_rows,
                 ours->block_rows);
}

static uint32_t count_live(struct hth_dir_others *o)
{
    int64_t now = hth_now_us(o->dir->env);
    for (uint32_t i = 0; i < o->count;) {
        if (o->host[i].until_us > now)
            i++;
        else
            o->host[i] = o->host[--o->count];
    }
    return o->count;
}

static void on_timer(void *arg)
{
    struct hth_dir_others *o = arg;
    uint32_t count = count_live(o);
    char run[HTH_NAME_LEN_MAX + 1];
    o->armed = false;
    if (count <= o->said)
        return;
    HTH_LOG(o->dir->env, HTH_WARN, HTH_SUB_DHT,
            "%u host%s run '%s' with another run file: %s; %s left out", count,
            count == 1 ? " serves" : "s serve", hth_network_name(o->dir->network, run), o->differ,
            count == 1 ? "it is" : "they are");
    o->said = count;
}

static struct hth_dir_others *others_of(struct hth_directory *dir)
{
    if (dir->others == NULL) {
        dir->others = hth_new(struct hth_dir_others);
        dir->others->dir = dir;
        dir->others->timer = hth_timer_new(dir->env, on_timer, dir->others);
    }
    return dir->others;
}

void hth_dir_other_seen(struct hth_dir_layer *layer, const struct hth_record *rec,
                        const struct hth_listing *l)
{
    struct hth_dir_others *o = others_of(layer->dir);
    uint32_t i = 0;
    while (i < o->count && !hth_peer_id_eq(&o->host[i].id, &rec->owner_id))
        i++;
    if (i == OTHERS_MAX)
        return;
    if (i == o->count) {
        o->host[o->count++].id = rec->owner_id;
        write_differ(layer, l, o->differ);
    }
    o->host[i].until_us = hth_now_us(layer->dir->env) + (int64_t)rec->life_ms * HTH_US_PER_MS;
    if (!o->armed && o->count > o->said)
        hth_timer_set(layer->dir->env, o->timer, o->said > 0 ? AGAIN_US : COLLECT_US);
    o->armed = o->armed || o->count > o->said;
}

uint32_t hth_directory_others(struct hth_directory *dir, char differ[HTH_DIR_DIFFER_MAX])
{
    differ[0] = '\0';
    if (dir->others == NULL)
        return 0;
    memcpy(differ, dir->others->differ, HTH_DIR_DIFFER_MAX);
    return count_live(dir->others);
}

void hth_dir_others_free(struct hth_dir_others *others)
{
    if (others == NULL)
        return;
    hth_timer_free(others->dir->env, others->timer);
    hth_free(others);
}
