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

/* Starts argv in the process group of this process, or, with 0, as the first of a new one. An input
 * or output of -1 is ours; log NULL: so are the errors. Returns -1 if it can't. */
static pid_t spawn(const char *const *argv, pid_t group, const char *log, int in, int out)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    pid_t pid = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    if (out >= 0)
        posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    if (log != NULL)
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_TRUNC,
                                         0644);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attr, group);
    if (posix_spawnp(&pid, argv[0], &actions, &attr, (char *const *)(uintptr_t)argv, environ) != 0)
        pid = -1;
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

bool hth_bench_child_start(struct hth_bench_child *c, const char *const *argv, const char *log)
{
    static const char *const keeper[] = {"sh", "-c", "read line; kill -KILL 0", NULL};
    int to[2] = {-1, -1}, from[2] = {-1, -1}, hold[2] = {-1, -1};
    signal(SIGPIPE, SIG_IGN); /* a write to a dead child must return an error */
    *c = (struct hth_bench_child){.pid = -1, .keeper = -1};
    if (pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0 && pipe2(hold, O_CLOEXEC) == 0)
        c->pid = spawn(argv, 0, log, to[0], from[1]);
    if (c->pid > 0)
        c->keeper = spawn(keeper, c->pid, "/dev/null", hold[0], -1);
    close(to[0]);
    close(from[1]);
    close(hold[0]);
    c->to = to[1];
    c->from = from[0];
    c->hold = hold[1];
    c->dead = c->keeper < 0;
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

static void reap(pid_t pid)
{
    int status;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
}

void hth_bench_child_end(struct hth_bench_child *c)
{
    siginfo_t info = {.si_pid = 0};
    close(c->to); /* a child exits at the end of its input */
    close(c->from);
    for (int i = 0; c->pid > 0 && i < END_TRIES && info.si_pid == 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = i > 0 ? END_NS : 0}, NULL);
        if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno != EINTR)
            break;
    }
    close(c->hold); /* the keeper ends what is left, and itself */
    reap(c->keeper);
    if (c->pid > 0 && c->keeper < 0)
        kill(-c->pid, SIGKILL);
    reap(c->pid);
    c->pid = c->keeper = -1;
}
