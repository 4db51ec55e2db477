/* SPDX-License-Identifier: Apache-2.0 */
/* walk.c: files of a folder, depth first, then sorted. */
#include "cli/walk.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/say.h"
#include "core/mem.h"

struct walker {
    struct hth_walk *out;
    size_t room;
    size_t most; /* files */
};

static enum hth_err refuse(const char *path, const char *text, enum hth_err err)
{
    hth_cli_say_error("%s: %s", path, text);
    return err;
}

static enum hth_err refuse_errno(const char *path)
{
    int code = errno;

    return refuse(path, strerror(code),
                  code == ENOENT || code == ENOTDIR ? HTH_E_NO_FILE
                  : code == EACCES                  ? HTH_E_PERMISSION
                                                    : HTH_E_IO);
}

static void add(struct walker *w, const char *relative)
{
    if (w->out->count == w->room) {
        w->room = 2 * w->room + 256;
        w->out->files = hth_realloc(w->out->files, w->room, sizeof(*w->out->files));
    }
    w->out->files[w->out->count++] = hth_strdup(relative);
}

static enum hth_err walk(struct walker *w, const char *dir, const char *prefix, int depth);

static enum hth_err visit(struct walker *w, const char *dir, const char *prefix, const char *name,
                          int depth)
{
    char *path = hth_asprintf("%s/%s", dir, name);
    char *relative = hth_asprintf("%s%s%s", prefix, prefix[0] != '\0' ? "/" : "", name);
    struct stat entry, target;
    enum hth_err err = HTH_OK;

    if (lstat(path, &entry) != 0 || stat(path, &target) != 0)
        err = HTH_OK; /* a link to nothing, or a file that was removed just now */
    else if (S_ISDIR(entry.st_mode))
        err = walk(w, path, relative, depth + 1);
    else if (S_ISREG(target.st_mode) && w->out->count == w->most)
        err = refuse(dir, "too many files for one data set", HTH_E_TOO_LARGE);
    else if (S_ISREG(target.st_mode))
        add(w, relative);
    hth_free(path);
    hth_free(relative);
    return err;
}

static enum hth_err walk(struct walker *w, const char *dir, const char *prefix, int depth)
{
    DIR *open_dir;
    const struct dirent *entry;
    enum hth_err err = HTH_OK;

    if (depth > HTH_WALK_DEPTH_MAX)
        return refuse(dir, "folders in folders too deep", HTH_E_TOO_LARGE);
    open_dir = opendir(dir);
    if (open_dir == NULL)
        return refuse_errno(dir);
    while (err == HTH_OK && (entry = readdir(open_dir)) != NULL)
        if (entry->d_name[0] != '.')
            err = visit(w, dir, prefix, entry->d_name, depth);
    closedir(open_dir);
    return err;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum hth_err hth_walk_list(const char *dir, size_t most, struct hth_walk *out)
{
    struct walker w = {out, 0, most};
    enum hth_err err;

    *out = (struct hth_walk){0};
    err = walk(&w, dir, "", 0);
    if (err != HTH_OK) {
        hth_walk_clear(out);
        return err;
    }
    if (out->count > 0)
        qsort(out->files, out->count, sizeof(*out->files), by_text);
    return HTH_OK;
}

void hth_walk_clear(struct hth_walk *walk)
{
    for (size_t i = 0; i < walk->count; i++)
        hth_free(walk->files[i]);
    hth_free(walk->files);
    *walk = (struct hth_walk){0};
}
