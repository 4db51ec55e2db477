/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "net/lock.h"

#include "core/mem.h"
#include "net/net_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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
