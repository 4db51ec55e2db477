/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers_python.c: makes the virtual environment in which hivemind runs.
 *
 * It is made once from PyPI with the versions of benchmarks/peers/requirements.txt. A file in a
 * complete environment records its packages; if they differ from those wanted, it is made again.
 */
#define _GNU_SOURCE
#include "benchmarks/peers.h"

#include "cli/shipped.h"
#include "core/mem.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* PyPI's wheel for Linux on x86-64 is built for CUDA and does not load without CUDA's libraries,
 * although nothing here uses them. */
#define TORCH "torch==2.15.0"
#define TORCH_SIZE                                                                                 \
    "3.1 GB to download (PyTorch's wheel of PyPI with its CUDA libraries), 5.6 GB on disk"
#define SYSTEM_SIZE "90 MB to download, 320 MB on disk"
#define STAMP       "made-of.txt"

extern char **environ;

/* Runs a program with its output on standard error; returns its exit code, or -1. */
static int run(const char *const *argv)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    if (posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ) == 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    posix_spawn_file_actions_destroy(&actions);
    return status != -1 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The text of a small file (heap string); NULL: it can't be read. */
static char *read_text(const char *path)
{
    char text[8192];
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return NULL;
    size_t len = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[len] = '\0';
    return hth_strdup(text);
}

static bool write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    if (f == NULL)
        return false;
    bool good = fputs(text, f) >= 0;
    return fclose(f) == 0 && good;
}

static char *default_folder(bool system_torch)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const char *name = system_torch ? "peers-system-torch" : "peers";
    if (cache != NULL && cache[0] == '/')
        return hth_asprintf("%s/hearth/%s", cache, name);
    return hth_asprintf("%s/.cache/hearth/%s", home != NULL ? home : "", name);
}

char *hth_bench_peers_made(void)
{
    char *folder = default_folder(false), *program = hth_asprintf("%s/bin/python3", folder);
    hth_free(folder);
    if (access(program, X_OK) == 0)
        return program;
    hth_free(program);
    return NULL;
}

static bool make_folder(const char *python, const char *folder, bool system_torch)
{
    const char *const torch[] = {python, "-c", "import torch", NULL};
    const char *const venv[] = {
        python, "-m", "venv", folder, system_torch ? "--system-site-packages" : NULL, NULL};
    if (system_torch && run(torch) != 0) {
        hth_cli_say_error("there is no PyTorch under %s: install Debian's python3-torch, or leave "
                          "out --system-torch",
                          python);
        return false;
    }
    if (run(venv) == 0)
        return true;
    hth_cli_say_error("no virtual environment could be made: '%s -m venv %s' failed. Install "
                      "Python 3 with its venv module (Debian: python3-venv), name another folder "
                      "with --venv, or a Python that has hivemind with --python",
                      python, folder);
    return false;
}

static bool install(const char *program, const char *requirements, const char *folder,
                    bool system_torch)
{
    const char *const pip[] = {program,   "-m",         "pip",
                               "install", "--no-input", "--progress-bar=off",
                               "-r",      requirements, system_torch ? NULL : TORCH,
                               NULL};
    if (run(pip) == 0)
        return true;
    hth_cli_say_error("pip could not install the packages of %s%s into %s; its reason stands "
                      "above. It needs PyPI, or a mirror that pip is set up for. Without either, "
                      "name a Python that has them with --python",
                      requirements, system_torch ? "" : " and " TORCH, folder);
    return false;
}

enum hth_err hth_bench_peers_python(const struct hth_bench_peers_python *opts, char **program)
{
    if (opts->program != NULL) {
        *program = hth_strdup(opts->program);
        return HTH_OK;
    }
    const char *python = opts->system_torch ? "/usr/bin/python3" : "python3";
    char *folder =
        opts->folder != NULL ? hth_strdup(opts->folder) : default_folder(opts->system_torch);
    char *requirements = hth_shipped_find("benchmarks/peers/requirements.txt");
    char *stamp = hth_asprintf("%s/" STAMP, folder), *is = read_text(stamp);
    char *list = read_text(requirements);
    char *want = hth_asprintf("%s%s\n", list != NULL ? list : "",
                              opts->system_torch ? "Debian's PyTorch" : TORCH);
    *program = hth_asprintf("%s/bin/python3", folder);
    bool good = is != NULL && strcmp(is, want) == 0;
    if (!good) {
        fprintf(stderr, "making a virtual environment with hivemind in %s: %s\n", folder,
                opts->system_torch ? SYSTEM_SIZE : TORCH_SIZE);
        good = make_folder(python, folder, opts->system_torch) &&
               install(*program, requirements, folder, opts->system_torch) &&
               write_text(stamp, want);
    }
    hth_free(want);
    hth_free(list);
    hth_free(is);
    hth_free(stamp);
    hth_free(requirements);
    hth_free(folder);
    return good ? HTH_OK : HTH_E_IO;
}
