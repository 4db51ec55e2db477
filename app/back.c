/* SPDX-License-Identifier: Apache-2.0 */
/* back.c: see back.h. */
#include "app/back.h"

#include "cli/cli.h"
#include "core/limits.h"
#include "core/mem.h"
#include "experts/ring.h"
#include "trainer/trunk_file.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX ".safetensors"
#define RING   ".ring"
#define TEMP   ".tmp-" /* NAME.tmp-PID-N: net/file.c */

enum { KEY_BACK = 0x6100, KEY_DISK };

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Checkpoints:", 2},
    {"roll-back", KEY_BACK, "AGE", 0,
     "Start from what the checkpoints in --dir held that long ago, such as 10m, 1h or 1d", 2},
    {"disk", KEY_DISK, "SIZE", 0,
     "At most SIZE for checkpoints and their older copies (default: no bound, seven times a "
     "checkpoint)",
     2},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_back_flags *f = state->input;
    switch (key) {
    case KEY_BACK:
        if (hth_cli_parse_time(arg, &f->back_us) != HTH_OK || f->back_us <= 0)
            argp_error(state, "--roll-back '%s': expected an age, such as 10m, 1h or 1d", arg);
        return 0;
    case KEY_DISK:
        if (hth_cli_parse_size(arg, &f->disk_bytes) != HTH_OK || f->disk_bytes == 0)
            argp_error(state, "--disk '%s': expected a size, such as 10GB", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp hth_back_argp = {.options = options, .parser = parse};

/* ---- temporary files ------------------------------------------------------------------------ */

/* The number between ".tmp-" and "-N" at the end of a name; 0: this is no temporary file. */
static long temp_pid(const char *name)
{
    const char *at = strstr(name, TEMP);
    char *end;
    if (at == NULL)
        return 0;
    long pid = strtol(at + strlen(TEMP), &end, 10);
    return pid > 0 && *end == '-' && end[1] != '\0' &&
                   end[1 + strspn(end + 1, "0123456789")] == '\0'
               ? pid
               : 0;
}

static void sweep(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    unsigned swept = 0;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        long pid = temp_pid(entry->d_name);
        /* In a container each start may have the same number, and nothing is being written yet. */
        bool dead = pid > 0 && (pid == getpid() || (kill((pid_t)pid, 0) != 0 && errno == ESRCH));
        if (dead && unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            swept++;
    }
    if (dir != NULL)
        closedir(dir);
    if (swept > 0)
        hth_say("%s: removed %u unfinished files of processes that were killed", folder, swept);
}

void hth_back_sweep(const char *dir)
{
    static const char *const folders[] = {"", "/experts", "/kept"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(folders); i++) {
        char *folder = hth_asprintf("%s%s", dir, folders[i]);
        sweep(folder);
        hth_free(folder);
    }
}

/* ---- going back ----------------------------------------------------------------------------- */

struct back {
    const struct hth_back_flags *flags;
    struct hth_env *env;
    uint32_t done, stay;
    int64_t oldest_us;      /* of the copies of files that stay; 0: they have none */
    int64_t from_us, to_us; /* the times of the copies that files went back to */
};

static enum hth_err back_file(struct back *b, const char *path, uint64_t max)
{
    int64_t taken;
    enum hth_err err =
        hth_ring_back(b->env, path, b->flags->back_us, hth_wall_us(b->env), max, &taken);
    if (err == HTH_OK) {
        b->from_us = b->done == 0 ? taken : HTH_MIN(b->from_us, taken);
        b->to_us = HTH_MAX(b->to_us, taken);
        b->done++;
    } else if (err == HTH_E_NOT_FOUND) {
        b->stay++;
        b->oldest_us = b->oldest_us == 0 ? taken : HTH_MIN(b->oldest_us, taken);
    } else {
        hth_cli_say_error("--roll-back: a copy of %s: %s; the file is left as it is", path,
                          hth_err_text(err));
    }
    return err;
}

static bool ends_with(const char *name, const char *suffix)
{
    size_t len = strlen(name), most = strlen(suffix);
    return len > most && strcmp(name + len - most, suffix) == 0;
}

/* The checkpoint that a file of the folder stands for: each once, whether it is there itself or
 * only its copies are. NULL: none. */
static char *checkpoint_of(const char *folder, const char *name)
{
    char *path = NULL, *list;
    if (ends_with(name, SUFFIX RING))
        return hth_asprintf("%s/%.*s", folder, (int)(strlen(name) - strlen(RING)), name);
    if (!ends_with(name, SUFFIX))
        return NULL;
    list = hth_asprintf("%s/%s" RING, folder, name);
    if (access(list, F_OK) != 0)
        path = hth_asprintf("%s/%s", folder, name);
    hth_free(list);
    return path;
}

static enum hth_err back_experts(struct back *b, const char *dir)
{
    char *folder = hth_asprintf("%s/experts", dir);
    DIR *d = opendir(folder);
    const struct dirent *entry;
    enum hth_err err = HTH_OK;
    while (d != NULL && (err == HTH_OK || err == HTH_E_NOT_FOUND) && (entry = readdir(d)) != NULL) {
        char *path = checkpoint_of(folder, entry->d_name);
        if (path != NULL)
            err = back_file(b, path, HTH_CHECKPOINT_BYTES_MAX);
        hth_free(path);
    }
    if (d != NULL)
        closedir(d);
    hth_free(folder);
    return err == HTH_E_NOT_FOUND ? HTH_OK : err;
}

static enum hth_err say_none(const struct back *b, const char *dir)
{
    char age[16], want[16];
    hth_cli_span_text(b->flags->back_us, want);
    if (b->oldest_us > 0)
        hth_cli_say_error("--roll-back: no copy in %s is %s old; the oldest has %s", dir, want,
                          hth_cli_span_text(hth_wall_us(b->env) - b->oldest_us, age));
    else
        hth_cli_say_error("--roll-back: %s has no older copies of checkpoints; a host or trainer "
                          "that has run for 10 minutes has some",
                          dir);
    return HTH_E_USAGE;
}

enum hth_err hth_back(const struct hth_back_flags *flags, struct hth_env *env, const char *dir,
                      bool trunk, bool experts)
{
    struct back b = {.flags = flags, .env = env};
    char age[2][16];
    if (flags->back_us == 0)
        return HTH_OK;
    if (trunk) {
        char *path = hth_asprintf("%s/trunk" SUFFIX, dir);
        enum hth_err err = back_file(&b, path, HTH_TRUNK_FILE_BYTES_MAX);
        hth_free(path);
        if (err != HTH_OK)
            return err == HTH_E_NOT_FOUND ? say_none(&b, dir) : err;
        path = hth_asprintf("%s/trunk" SUFFIX ".vote", dir); /* for a later state */
        (void)!hth_file_remove(env, path);
        hth_free(path);
    }
    if (experts)
        HTH_TRY(back_experts(&b, dir));
    if (b.done == 0)
        return say_none(&b, dir);
    hth_say("rolled back %u checkpoints, to what they held %s ago%s%s", b.done,
            hth_cli_span_text(hth_wall_us(env) - b.to_us, age[0]),
            b.to_us - b.from_us > 60 * HTH_US_PER_S ? " and, the earliest, " : "",
            b.to_us - b.from_us > 60 * HTH_US_PER_S
                ? hth_cli_span_text(hth_wall_us(env) - b.from_us, age[1])
                : "");
    if (b.stay > 0)
        hth_cli_say_error("%u checkpoints have no copy that old, and stay as they are", b.stay);
    return HTH_OK;
}
