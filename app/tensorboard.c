/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* mkdir of a path */
#include "app/tensorboard.h"

#include "cli/cli.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct hth_tensorboard {
    struct hth_env *env;
    FILE *file;
    char *path;
    bool lost; /* said so */
};

static double now_s(const struct hth_tensorboard *t)
{
    return (double)hth_wall_us(t->env) / 1e6;
}

static void write_record(struct hth_tensorboard *t, const uint8_t *data, size_t len)
{
    bool good = fwrite(data, 1, len, t->file) == len && fflush(t->file) == 0;
    if (!good && !t->lost)
        hth_cli_say_error("--tensorboard %s: %s; the run goes on without it", t->path,
                          strerror(errno));
    t->lost = t->lost || !good;
}

/* Makes the folder and those above it. */
static bool make_folder(const char *dir)
{
    char *path = hth_strdup(dir);
    bool good = true;
    for (char *p = strchr(path + 1, '/'); good; p = strchr(p + 1, '/')) {
        if (p != NULL)
            *p = '\0';
        good = mkdir(path, 0777) == 0 || errno == EEXIST;
        if (p == NULL)
            break;
        *p = '/';
    }
    hth_free(path);
    return good;
}

enum hth_err hth_tensorboard_open(struct hth_env *env, const char *dir,
                                  struct hth_tensorboard **out)
{
    uint8_t record[HTH_TFEVENTS_BYTES_MAX];
    struct hth_tensorboard *t = hth_new(struct hth_tensorboard);
    t->env = env;
    *out = NULL;
    t->path = hth_asprintf("%s/events.out.tfevents.%010lld.hearth", dir, (long long)now_s(t));
    t->file = dir[0] != '\0' && make_folder(dir) ? fopen(t->path, "abe") : NULL;
    if (t->file == NULL) {
        hth_cli_say_error("--tensorboard %s: %s", dir, strerror(errno));
        hth_tensorboard_close(t);
        return HTH_E_IO;
    }
    write_record(t, record, hth_tfevents_begin(now_s(t), record));
    *out = t;
    return HTH_OK;
}

void hth_tensorboard_close(struct hth_tensorboard *t)
{
    if (t == NULL)
        return;
    if (t->file != NULL)
        fclose(t->file);
    hth_free(t->path);
    hth_free(t);
}

void hth_tensorboard_add(struct hth_tensorboard *t, uint64_t step,
                         const struct hth_tfevents_scalar *scalar, size_t count)
{
    uint8_t record[HTH_TFEVENTS_BYTES_MAX];
    if (t == NULL)
        return;
    size_t len = hth_tfevents_scalars(now_s(t), step, scalar, count, record);
    if (len > 0)
        write_record(t, record, len);
}
