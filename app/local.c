/* SPDX-License-Identifier: Apache-2.0 */
/* local.c: walks state folders; see local.h. */
#define _GNU_SOURCE
#include "app/local.h"

#include "cli/cli.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "net/lock.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDERS_MAX 256 /* looked into */
#define DEPTH_MAX   2   /* ROOT/RUN/ROLE */
#define ELSEWHERE   "%s/.elsewhere"

struct found {
    struct hth_gather_own *own;
    size_t count;
    int folders; /* looked at */
};

static bool lives(long pid)
{
    return pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

/* "ADDRESS ID" */
static bool read_note(char *note, struct hth_gather_own *out)
{
    char *space = strchr(note, ' ');
    if (space == NULL)
        return false;
    *space = '\0';
    return hth_addr_parse(note, &out->addr) == HTH_OK &&
           hth_unhex(space + 1, out->id.b, sizeof(out->id.b)) == HTH_OK;
}

static void look_into(struct found *f, const char *dir)
{
    struct hth_gather_own own;
    char note[HTH_LOCK_NOTE_MAX];
    long pid;
    char *path = hth_asprintf("%s/lock", dir);
    bool found = hth_lock_read(path, &pid, note) == HTH_OK && lives(pid) && read_note(note, &own);
    hth_free(path);
    for (size_t i = 0; found && i < f->count; i++)
        found = !hth_peer_id_eq(&f->own[i].id, &own.id);
    if (found && f->count < HTH_LOCAL_MAX)
        f->own[f->count++] = own;
}

static void walk(struct found *f, const char *dir, int depth)
{
    DIR *list = opendir(dir);
    struct dirent *entry;
    struct stat st;
    if (list == NULL)
        return;
    look_into(f, dir);
    while (depth < DEPTH_MAX && (entry = readdir(list)) != NULL && f->folders++ < FOLDERS_MAX) {
        if (entry->d_name[0] == '.')
            continue;
        char *below = hth_asprintf("%s/%s", dir, entry->d_name);
        if (lstat(below, &st) == 0 && S_ISDIR(st.st_mode))
            walk(f, below, depth + 1);
        hth_free(below);
    }
    closedir(list);
}

/* Links of processes that were killed are removed. */
static void follow_links(struct found *f, const char *root)
{
    char *dir = hth_asprintf(ELSEWHERE, root);
    DIR *list = opendir(dir);
    struct dirent *entry;
    while (list != NULL && (entry = readdir(list)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        char *link = hth_asprintf("%s/%s", dir, entry->d_name);
        if (lives(strtol(entry->d_name, NULL, 10)))
            look_into(f, link);
        else
            (void)!unlink(link);
        hth_free(link);
    }
    if (list != NULL)
        closedir(list);
    hth_free(dir);
}

size_t hth_local_find(const char *dir, struct hth_gather_own out[HTH_LOCAL_MAX])
{
    char *root = hth_cli_default_dir();
    struct found f = {.own = out};
    if (dir != NULL)
        look_into(&f, dir);
    walk(&f, root, 0);
    follow_links(&f, root);
    hth_free(root);
    return f.count;
}

void hth_local_note(struct hth_lock *lock, const struct hth_addr *addr,
                    const struct hth_peer_id *id)
{
    char text[HTH_ADDR_TEXT_MAX], hex[2 * HTH_HASH_LEN + 1];
    hth_hex(id->b, sizeof(id->b), hex);
    char *note = hth_asprintf("%s %s", hth_addr_text(addr, text), hex);
    hth_lock_note(lock, note);
    hth_free(note);
}

/* The link of this process; *folder is the folder of all links. */
static char *link_path(char **folder)
{
    char *root = hth_cli_default_dir();
    *folder = hth_asprintf(ELSEWHERE, root);
    hth_free(root);
    return hth_asprintf("%s/%ld", *folder, (long)getpid());
}

static void make_folders(char *path)
{
    for (char *end = strchr(path + 1, '/'); end != NULL; end = strchr(end + 1, '/')) {
        *end = '\0';
        (void)!mkdir(path, 0700);
        *end = '/';
    }
}

void hth_local_enter(const char *dir)
{
    char *target = realpath(dir, NULL), *folder, *path = link_path(&folder);
    make_folders(path);
    (void)!unlink(path);
    if (target != NULL)
        (void)!symlink(target, path);
    free(target);
    hth_free(folder);
    hth_free(path);
}

void hth_local_leave(void)
{
    char *folder, *path = link_path(&folder);
    (void)!unlink(path);
    hth_free(folder);
    hth_free(path);
}
