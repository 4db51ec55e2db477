/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.c: whole small files. Stateless: any job may call these at the same time.
 *
 * A write goes to a new file beside the target, is synced, and takes the target's name; then the
 * folder is synced, because the name lives there. A crash at any point leaves the old content or
 * the new one under the name, and at worst a file "NAME.tmp-..." beside it.
 */
#define _GNU_SOURCE
#include "net/net_int.h"

#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One write() moves at most this: the kernel's own bound is just below 2 GiB. */
#define WRITE_BYTES_MAX ((size_t)1 << 30)
#define TEMP_TRIES      64

enum hth_err hth_net_file_errno(int e)
{
    switch (e) {
    case ENOENT:
    case ENOTDIR:
        return HTH_E_NO_FILE;
    case EACCES:
    case EPERM:
    case EROFS:
        return HTH_E_PERMISSION;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return HTH_E_DISK_FULL;
    default:
        return HTH_E_IO;
    }
}

/* Opens a regular file for reading. O_NONBLOCK: a pipe under that name must not make us wait. */
static enum hth_err open_regular(const char *path, int *out, struct stat *st)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return hth_net_file_errno(errno);
    if (fstat(fd, st) != 0 || !S_ISREG(st->st_mode)) {
        close(fd);
        return HTH_E_IO;
    }
    *out = fd;
    return HTH_OK;
}

enum hth_err hth_net_file_size(struct hth_env *env, const char *path, uint64_t *size)
{
    struct stat st;
    int fd;
    (void)env;
    *size = 0;
    HTH_TRY(open_regular(path, &fd, &st));
    close(fd);
    *size = (uint64_t)st.st_size;
    return HTH_OK;
}

enum hth_err hth_net_file_pread(struct hth_env *env, const char *path, uint64_t offset, void *buf,
                                size_t len, size_t *got)
{
    struct stat st;
    enum hth_err err = HTH_OK;
    int fd;
    (void)env;
    *got = 0;
    if (offset > INT64_MAX)
        return HTH_OK; /* beyond the end of any file */
    HTH_TRY(open_regular(path, &fd, &st));
    while (*got < len && offset + *got <= INT64_MAX) {
        size_t n = HTH_MIN(len - *got, WRITE_BYTES_MAX);
        ssize_t r = pread(fd, (uint8_t *)buf + *got, n, (off_t)(offset + *got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            err = hth_net_file_errno(errno);
        if (r <= 0)
            break;
        *got += (size_t)r;
    }
    close(fd);
    return err;
}

enum hth_err hth_net_write_all(int fd, const void *data, size_t len)
{
    const uint8_t *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, HTH_MIN(len, WRITE_BYTES_MAX));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hth_net_file_errno(errno);
        p += n;
        len -= (size_t)n;
    }
    return HTH_OK;
}

enum hth_err hth_net_mkdirs(const char *path)
{
    char *copy = hth_strdup(path);
    enum hth_err err = HTH_OK;
    for (char *slash = strchr(copy + 1, '/'); slash != NULL && err == HTH_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            err = hth_net_file_errno(errno);
        *slash = '/';
    }
    hth_free(copy);
    return err;
}

enum hth_err hth_net_sync_dir(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = hth_strdup(slash == path ? "/" : slash == NULL ? "." : path);
    if (slash != NULL && slash != path)
        dir[slash - path] = '\0';
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    hth_free(dir);
    if (fd < 0)
        return hth_net_file_errno(errno);
    /* EINVAL: this file system has nothing to sync for a folder. */
    int failed = fsync(fd) != 0 && errno != EINVAL ? errno : 0;
    close(fd);
    return failed != 0 ? hth_net_file_errno(failed) : HTH_OK;
}

enum hth_err hth_net_temp_open(const char *path, mode_t mode, char **tmp, int *fd)
{
    static unsigned counter; /* distinguishes the threads of this process */
    for (int i = 0; i < TEMP_TRIES; i++) {
        unsigned n = __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED);
        char *name = hth_asprintf("%s.tmp-%ld-%u", path, (long)getpid(), n);
        *fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (*fd >= 0) {
            *tmp = name;
            return HTH_OK;
        }
        int code = errno;
        hth_free(name);
        if (code != EEXIST) /* left by a crashed process that had our number */
            return hth_net_file_errno(code);
    }
    return HTH_E_IO;
}

enum hth_err hth_net_file_write(struct hth_env *env, const char *path, const struct hth_span *spans,
                                size_t count)
{
    char *tmp = NULL;
    int fd = -1;
    enum hth_err err;
    (void)env;
    HTH_TRY(hth_net_mkdirs(path));
    HTH_TRY(hth_net_temp_open(path, 0666, &tmp, &fd));
    for (size_t i = 0; i < count; i++) {
        const struct hth_span *sp = &spans[i];
        HTH_ASSERT(sp->offset <= sp->blob->size && sp->len <= sp->blob->size - sp->offset);
        if (sp->len > 0)
            HTH_GOTO(out, hth_net_write_all(fd, sp->blob->data + sp->offset, sp->len));
    }
    err = fsync(fd) == 0 ? HTH_OK : hth_net_file_errno(errno);
    /* close can be the first to report that a quota is used up. */
    int closed = close(fd);
    fd = -1;
    if (err == HTH_OK && closed != 0)
        err = hth_net_file_errno(errno);
    if (err == HTH_OK && rename(tmp, path) != 0)
        err = hth_net_file_errno(errno);
    if (err == HTH_OK) {
        hth_free(tmp);
        return hth_net_sync_dir(path);
    }
out:
    if (fd >= 0)
        close(fd);
    unlink(tmp);
    hth_free(tmp);
    return err;
}

enum hth_err hth_net_file_remove(struct hth_env *env, const char *path)
{
    (void)env;
    if (remove(path) != 0)
        return hth_net_file_errno(errno);
    return hth_net_sync_dir(path);
}
