/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "net/lock.h"

#include "core/mem.h"
#include "net/net_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct hth_lock {
    int fd;
};

/* The first line, up to a character that is not printable: any program may have written the
 * file. */
static void read_holder(int fd, char holder[HTH_LOCK_HOLDER_MAX])
{
    ssize_t n = pread(fd, holder, HTH_LOCK_HOLDER_MAX - 1, 0);
    size_t len = 0;
    while (n > 0 && len < (size_t)n && holder[len] >= ' ' && holder[len] <= '~')
        len++;
    holder[len] = '\0';
}

/* Only a hint for people, so a failed write is ignored. */
static void write_holder(int fd, const char *who)
{
    char *text = hth_asprintf("%s, process %ld\n", who, (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, strlen(text), 0) < 0)
        (void)!ftruncate(fd, 0);
    hth_free(text);
}

void hth_lock_note(struct hth_lock *lock, const char *note)
{
    char holder[HTH_LOCK_HOLDER_MAX];
    if (lock == NULL)
        return;
    read_holder(lock->fd, holder);
    char *text = hth_asprintf("%s\n%s\n", holder, note);
    if (ftruncate(lock->fd, 0) != 0 || pwrite(lock->fd, text, strlen(text), 0) < 0)
        (void)!ftruncate(lock->fd, 0);
    hth_free(text);
}

enum hth_err hth_lock_read(const char *path, long *pid, char note[HTH_LOCK_NOTE_MAX])
{
    char text[HTH_LOCK_HOLDER_MAX + HTH_LOCK_NOTE_MAX];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return hth_net_file_errno(errno);
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    close(fd);
    if (n < 0)
        return HTH_E_IO;
    text[n] = '\0';
    const char *process = strstr(text, ", process "), *line = strchr(text, '\n');
    size_t len = line != NULL ? strcspn(line + 1, "\n") : 0;
    if (process == NULL || process > line || len == 0 || len >= HTH_LOCK_NOTE_MAX)
        return HTH_E_MALFORMED;
    *pid = strtol(process + strlen(", process "), NULL, 10);
    memcpy(note, line + 1, len);
    note[len] = '\0';
    return HTH_OK;
}

static enum hth_err take(int fd, const char *who, struct hth_lock **out,
                         char holder[HTH_LOCK_HOLDER_MAX])
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return HTH_E_IO;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return HTH_OK;
        read_holder(fd, holder);
        return HTH_E_BUSY;
    }
    write_holder(fd, who);
    *out = hth_new(struct hth_lock);
    (*out)->fd = fd;
    return HTH_OK;
}

enum hth_err hth_lock_take(const char *path, const char *who, struct hth_lock **out,
                           char holder[HTH_LOCK_HOLDER_MAX])
{
    enum hth_err err = hth_net_mkdirs(path);
    int fd = -1;
    *out = NULL;
    holder[0] = '\0';
    if (err == HTH_OK) {
        /* O_NOFOLLOW: a link could lead to any file of ours, whose content would be overwritten. */
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0644);
        err = fd < 0 ? hth_net_file_errno(errno) : take(fd, who, out, holder);
    }
    if (fd >= 0 && *out == NULL)
        close(fd);
    return err == HTH_E_PERMISSION ? HTH_OK : err;
}

void hth_lock_free(struct hth_lock *lock)
{
    if (lock != NULL)
        close(lock->fd);
    hth_free(lock);
}
