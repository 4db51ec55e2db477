/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c: see memory.h. */
#include "app/memory.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096

/* The number in a file; INT64_MAX: no file, or no limit ("max", or v1's huge one). */
static int64_t number_in(const char *path)
{
    FILE *f = fopen(path, "re");
    unsigned long long n = 0;
    bool found = f != NULL && fscanf(f, "%llu", &n) == 1;
    if (f != NULL)
        fclose(f);
    return found && n > 0 && n < (1ull << 60) ? (int64_t)n : INT64_MAX;
}

/* The least limit of a group and its parents. In a container the path may be the host's: then only
 * the mount's own root is there, which is this group. */
static int64_t least_of(const char *mount, const char *group, const char *file)
{
    char *path = hth_strdup(group);
    int64_t least = INT64_MAX;
    for (char *end = path; end != NULL;) {
        char *name = hth_asprintf("%s%s/%s", mount, path, file);
        int64_t limit = number_in(name);
        least = HTH_MIN(least, limit);
        hth_free(name);
        end = strrchr(path, '/');
        if (end != NULL)
            *end = '\0';
    }
    hth_free(path);
    return least;
}

/* A line of /proc/self/cgroup: "0::/path" (v2), or "4:memory:/path" (v1). */
static int64_t limit_of(const char *root, char *line)
{
    char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;
    int64_t least = INT64_MAX;
    if (path == NULL)
        return least;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    bool v2 = names[1] == '\0', v1 = strcmp(names + 1, "memory") == 0;
    char *mount = hth_asprintf("%s/sys/fs/cgroup%s", root, v1 ? "/memory" : "");
    char *hybrid = hth_asprintf("%s/sys/fs/cgroup/unified", root);
    if (v1)
        least = least_of(mount, path, "memory.limit_in_bytes");
    if (v2) {
        int64_t beside_v1 = least_of(hybrid, path, "memory.max");
        least = least_of(mount, path, "memory.max");
        least = HTH_MIN(least, beside_v1);
    }
    hth_free(mount);
    hth_free(hybrid);
    return least;
}

int64_t hth_memory_cgroup_bytes(const char *root)
{
    char *path = hth_asprintf("%s/proc/self/cgroup", root), line[LINE_MAX_BYTES];
    FILE *f = fopen(path, "re");
    int64_t least = INT64_MAX;
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        int64_t limit = limit_of(root, line);
        least = HTH_MIN(least, limit);
    }
    if (f != NULL)
        fclose(f);
    hth_free(path);
    return least;
}

/* The rest that RLIMIT_AS leaves: libraries and stacks count there, too. */
static int64_t address_space_left(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur > INT64_MAX)
        return INT64_MAX;
    FILE *f = fopen("/proc/self/statm", "re");
    long long pages = 0;
    if (f != NULL && fscanf(f, "%lld", &pages) != 1)
        pages = 0;
    if (f != NULL)
        fclose(f);
    return HTH_MAX((int64_t)limit.rlim_cur - pages * sysconf(_SC_PAGESIZE), INT64_C(1));
}

int64_t hth_memory_bytes(void)
{
    int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    int64_t least = pages > 0 && page_bytes > 0 ? pages * page_bytes : INT64_MAX;
    const int64_t limits[] = {hth_memory_cgroup_bytes(""), address_space_left()};
    for (size_t i = 0; i < HTH_ARRAY_LEN(limits); i++)
        least = HTH_MIN(least, limits[i]);
    return least == INT64_MAX ? 0 : least;
}
