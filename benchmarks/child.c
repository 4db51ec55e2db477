/* SPDX-License-Identifier: Apache-2.0 */
/* child.c: runs a process with pipes on its input and output. */
#define _GNU_SOURCE
#include "benchmarks/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define END_TRIES 250 /* of END_NS each */
#define END_NS    20000000

extern char **environ;

static pid_t spawn(const char *const *argv, const char *log, int in, int out)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    pid_t pid = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_TRUNC,
                                     0644);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP); /* a group of its own */
    if (posix_spawnp(&pid, argv[0], &actions, &attr, (char *const *)(uintptr_t)argv, environ) != 0)
        pid = -1;
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

bool hth_bench_child_start(struct hth_bench_child *c, const char *const *argv, const char *log)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    signal(SIGPIPE, SIG_IGN); /* a write to a dead child must return an error */
    *c = (struct hth_bench_child){.pid = -1};
    if (pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0)
        c->pid = spawn(argv, log, to[0], from[1]);
    close(to[0]);
    close(from[1]);
    c->to = to[1];
    c->from = from[0];
    c->dead = c->pid < 0;
    return !c->dead;
}

bool hth_bench_child_say(struct hth_bench_child *c, const char *line)
{
    size_t len = strlen(line);
    if (!c->dead && write(c->to, line, len) != (ssize_t)len)
        c->dead = true;
    return !c->dead;
}

bool hth_bench_child_hear(struct hth_bench_child *c, char *line, size_t size, int64_t limit_us)
{
    size_t len = 0;
    while (!c->dead) {
        struct pollfd ready = {.fd = c->from, .events = POLLIN};
        char byte;
        int rc = poll(&ready, 1, (int)HTH_MIN(limit_us / 1000, (int64_t)INT32_MAX));
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0 || read(c->from, &byte, 1) != 1)
            break;
        if (byte == '\n') {
            line[len] = '\0';
            return true;
        }
        if (len + 1 < size)
            line[len++] = byte;
    }
    line[len] = '\0';
    c->dead = true;
    return false;
}

void hth_bench_child_end(struct hth_bench_child *c)
{
    int status;
    close(c->to); /* a child exits at the end of its input */
    close(c->from);
    for (int i = 0; c->pid > 0; i++) {
        pid_t ended = waitpid(c->pid, &status, WNOHANG);
        if (ended == c->pid || (ended < 0 && errno != EINTR))
            break;
        if (i == END_TRIES)
            kill(-c->pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = END_NS}, NULL);
    }
    if (c->pid > 0)
        kill(-c->pid, SIGKILL); /* ends processes that it left behind */
    c->pid = -1;
}
