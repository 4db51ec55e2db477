/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plugin.c: a plug-in that is found, is missing, or belongs to another build. A process
 * searches once, so each test runs in a child.
 */
#include "support/suite.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/plugin.h"

/* A failed assert of a child ends it with a code for the parent. */
static void in_child(void (*check)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        check();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "line %d: %s\n", __LINE__, #cond);                                     \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static struct hth_device_info info;
static const struct hth_backend *backend;
static char why[200];

static void look_in(const char *first, const char *second)
{
    const char *folders[] = {NULL, "", first, second};
    hth_plugins_search(folders, HTH_ARRAY_LEN(folders));
}

static void child_none(void)
{
    CHECK(hth_devices_list(&info, 1) == 1 && info.index == -1 && !info.usable);
    CHECK(strcmp(info.kind, "cuda") == 0 && strstr(info.why, "no folder is set") != NULL);
    CHECK(hth_plugin_backend("cuda", HTH_MATMUL_AUTO, &backend, why, sizeof(why)) ==
          HTH_E_NO_DEVICE);
    CHECK(hth_backend_by_name("cuda:1", &backend) == HTH_E_NO_DEVICE);
    CHECK(hth_devices_list(&info, 0) == 0);
}

static void child_missing(void)
{
    look_in("/nonexistent", NULL);
    CHECK(hth_devices_list(&info, 1) == 1 && !info.usable);
    CHECK(strstr(info.why, HTH_PLUGIN_FILE) != NULL);
}

static void child_good(void)
{
    look_in("/nonexistent", PLUGIN_DIR "/good");
    CHECK(hth_devices_list(&info, 1) == 1 && info.usable && info.memory_bytes == 1 << 20);
    CHECK(strcmp(info.name, "a card of paper") == 0);
    CHECK(hth_plugin_backend("cuda:3", HTH_MATMUL_F32, &backend, why, sizeof(why)) ==
          HTH_E_UNSUPPORTED);
    CHECK(strcmp(why, "card 3 is of paper") == 0);
    hth_plugins_limit((uint64_t)6 << 30);
    CHECK(hth_plugin_backend("cuda:2", HTH_MATMUL_F32, &backend, why, sizeof(why)) ==
          HTH_E_UNSUPPORTED);
    CHECK(strcmp(why, "card 2 is of paper, MiB used: 6144") == 0);
}

static void child_libraries(void)
{
    look_in(PLUGIN_DIR "/good", NULL);
    hth_plugins_libraries(NULL);
    hth_plugins_libraries("");
    char folder[] = "/opt/blas";
    hth_plugins_libraries(folder);
    folder[1] = 'x';
    CHECK(hth_plugin_backend("cuda", HTH_MATMUL_F32, &backend, why, sizeof(why)) ==
          HTH_E_UNSUPPORTED);
    CHECK(strcmp(why, "card 0 is of paper, libraries in /opt/blas") == 0);
    hth_plugins_libraries("/too/late");
    CHECK(hth_plugin_backend("cuda:1", HTH_MATMUL_F32, &backend, why, sizeof(why)) ==
          HTH_E_UNSUPPORTED);
    CHECK(strcmp(why, "card 1 is of paper, libraries in /opt/blas") == 0);
}

static void child_names(void)
{
    static const char *const bad[] = {"cuda:",   "cuda:x",  "cuda:16",   "cuda:1x",
                                      "cuda:-1", "cuda: 1", "cuda:0001", "cudax"};
    look_in(PLUGIN_DIR "/good", NULL);
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        CHECK(hth_plugin_backend(bad[i], HTH_MATMUL_F32, &backend, why, sizeof(why)) ==
              HTH_E_NO_DEVICE);
    CHECK(hth_plugin_knows("cuda") && hth_plugin_knows("cuda:0"));
    CHECK(!hth_plugin_knows("cudax") && !hth_plugin_knows("ref") && !hth_plugin_knows(NULL));
}

static void check_other_build(const char *folder)
{
    look_in(folder, PLUGIN_DIR "/good");
    CHECK(hth_devices_list(&info, 1) == 1 && !info.usable && info.index == -1);
    CHECK(strstr(info.why, "another build") != NULL);
}

static void child_abi(void)
{
    check_other_build(PLUGIN_DIR "/abi");
}

static void child_size(void)
{
    check_other_build(PLUGIN_DIR "/size");
}

static void child_damaged(void)
{
    char folder[] = "/tmp/hearth-plugin-XXXXXX", path[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/" HTH_PLUGIN_FILE, folder);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs("not a library", f) >= 0 && fclose(f) == 0);
    look_in(folder, PLUGIN_DIR "/good");
    CHECK(hth_devices_list(&info, 1) == 1 && !info.usable);
    CHECK(strstr(info.why, path) != NULL);
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
}

#define IN_CHILD(name)                                                                             \
    TEST(test_##name)                                                                              \
    {                                                                                              \
        (void)state;                                                                               \
        in_child(child_##name);                                                                    \
    }
IN_CHILD(none)
IN_CHILD(missing)
IN_CHILD(good)
IN_CHILD(libraries)
IN_CHILD(names)
IN_CHILD(abi)
IN_CHILD(size)
IN_CHILD(damaged)
