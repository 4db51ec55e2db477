/* SPDX-License-Identifier: Apache-2.0 */
/* torch.c: a child process that answers lines. */
#define _GNU_SOURCE
#include "benchmarks/torch.h"

#include "cli/shipped.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A run of the largest case takes seconds; starting PyTorch, too. */
#define ANSWER_MS 180000

extern char **environ;

struct hth_bench_torch {
    pid_t pid;
    int to, from;
    bool dead;
};

/* One line without its end; false at end of file or after ANSWER_MS. */
static bool read_line(struct hth_bench_torch *t, char *line, size_t size)
{
    size_t len = 0;
    while (!t->dead) {
        struct pollfd ready = {.fd = t->from, .events = POLLIN};
        char c;
        int rc = poll(&ready, 1, ANSWER_MS);
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0 || read(t->from, &c, 1) != 1)
            break;
        if (c == '\n') {
            line[len] = '\0';
            return true;
        }
        if (len + 1 < size)
            line[len++] = c;
    }
    line[len] = '\0';
    t->dead = true;
    return false;
}

static bool ask(struct hth_bench_torch *t, const char *question, char *answer, size_t size)
{
    size_t len = strlen(question);
    if (!t->dead && write(t->to, question, len) != (ssize_t)len)
        t->dead = true;
    return read_line(t, answer, size);
}

static pid_t start(const char *python, char *script, int in, int out)
{
    char *const argv[] = {(char *)(uintptr_t)python, script, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&pid, python, &actions, NULL, argv, environ) != 0)
        pid = -1;
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static struct hth_bench_torch *try_open(const char *python, char why[160])
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    struct hth_bench_torch *t = hth_new(struct hth_bench_torch);
    char line[128], *script = hth_shipped_find("benchmarks/torch_ffn.py");
    signal(SIGPIPE, SIG_IGN); /* a child that died is an answer, too */
    if (pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0)
        t->pid = start(python, script, to[0], from[1]);
    else
        t->pid = -1;
    close(to[0]);
    close(from[1]);
    t->to = to[1];
    t->from = from[0];
    t->dead = t->pid < 0;
    bool ready = read_line(t, line, sizeof(line)) && strncmp(line, "ready ", 6) == 0;
    if (ready)
        snprintf(why, 160, "PyTorch %s under %s", line + 6, python);
    else
        snprintf(why, 160, "no PyTorch under %s: %s%s", python,
                 line[0] != '\0' ? line : "it does not start ", line[0] != '\0' ? "" : script);
    hth_free(script);
    if (ready)
        return t;
    hth_bench_torch_close(t);
    return NULL;
}

struct hth_bench_torch *hth_bench_torch_open(const char *python, char why[160])
{
    if (python != NULL)
        return try_open(python, why);
    struct hth_bench_torch *t = try_open("python3", why);
    return t != NULL ? t : try_open("/usr/bin/python3", why);
}

void hth_bench_torch_close(struct hth_bench_torch *t)
{
    int status;
    if (t == NULL)
        return;
    close(t->to); /* the end of its input is the end of the child */
    close(t->from);
    if (t->pid > 0) {
        if (t->dead)
            kill(t->pid, SIGTERM);
        while (waitpid(t->pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    hth_free(t);
}

bool hth_bench_torch_case(struct hth_bench_torch *t, const char *op, uint64_t width, uint32_t rows)
{
    char question[128], answer[64];
    snprintf(question, sizeof(question), "case %s %" PRIu64 " %u\n", op, width, (unsigned)rows);
    return ask(t, question, answer, sizeof(answer)) && strcmp(answer, "ok") == 0;
}

double hth_bench_torch_go(struct hth_bench_torch *t, uint32_t runs)
{
    char question[64], answer[64];
    snprintf(question, sizeof(question), "go %u\n", (unsigned)runs);
    return ask(t, question, answer, sizeof(answer)) ? strtod(answer, NULL) * 1e-9 : 0;
}
