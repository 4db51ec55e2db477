/* SPDX-License-Identifier: Apache-2.0 */
/* test_memory.c: the limits of control groups, from trees of files like those of the kernel. */
#define _XOPEN_SOURCE 700
#include "app/memory.h"
#include "core/mem.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64];

static void put(const char *name, const char *text)
{
    char *path = hth_asprintf("%s/%s", root, name);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
    hth_free(path);
}

static int setup(void **state)
{
    (void)state;
    strcpy(root, "/tmp/hearth-memory-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int teardown(void **state)
{
    char *command = hth_asprintf("rm -r %s", root);
    int code = system(command);
    (void)state;
    hth_free(command);
    return code;
}

TEST_WITH(the_least_of_a_group_and_its_parents_counts, setup, teardown)
{
    (void)state;
    assert_true(hth_memory_cgroup_bytes(root) == INT64_MAX); /* no file */
    put("proc/self/cgroup", "5:cpu:/other\n4:memory:/a/b\n0::/\n");
    assert_true(hth_memory_cgroup_bytes(root) == INT64_MAX);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "734003200\n");
    assert_true(hth_memory_cgroup_bytes(root) == 734003200);
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "524288000\n");
    assert_true(hth_memory_cgroup_bytes(root) == 524288000);
    put("proc/self/cgroup", "0::/user/x.service\n");
    put("sys/fs/cgroup/user/x.service/memory.max", "max\n");
    put("sys/fs/cgroup/user/memory.max", "1000000\n");
    assert_true(hth_memory_cgroup_bytes(root) == 1000000);
    /* A container sees the host's path, and its own group at the mount's root. */
    put("proc/self/cgroup", "0::/docker/0123\n");
    put("sys/fs/cgroup/memory.max", "2000000\n");
    assert_true(hth_memory_cgroup_bytes(root) == 2000000);
    put("proc/self/cgroup", "no colons\n:\n::\n4:memory\n");
    put("sys/fs/cgroup/memory.max", "-1 lots");
    assert_true(hth_memory_cgroup_bytes(root) == INT64_MAX);
}

TEST(address_space_counts)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* its shadow takes terabytes of address space */
#endif
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {INT64_C(700) << 20, INT64_C(700) << 20};
        int64_t bytes = setrlimit(RLIMIT_AS, &limit) == 0 ? hth_memory_bytes() : 0;
        _exit(bytes > 0 && bytes < INT64_C(700) << 20 ? 0 : 1);
    }
    int status = 1;
    assert_true(waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
}
