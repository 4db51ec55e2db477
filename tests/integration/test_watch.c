/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_watch.c: `hearth watch` on a pseudo terminal: it shows a swarm, follows keys and a new size,
 * and leaves the terminal as it was. Into a pipe it prints lines, while somebody reads them.
 */
#define _XOPEN_SOURCE   700
#define _DEFAULT_SOURCE /* cfmakeraw's kin, struct winsize */
#include "integration/toy.h"
#include "support/suite.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

struct pty {
    int fd; /* ours */
    int slave;
    pid_t pid;
    struct termios before;
    char *out; /* all that was shown */
    size_t len;
};

static void set_size(struct pty *t, unsigned short columns, unsigned short rows)
{
    struct winsize size = {.ws_col = columns, .ws_row = rows};
    assert_int_equal(ioctl(t->fd, TIOCSWINSZ, &size), 0);
}

/* Starts `hearth watch --join ADDR` on a terminal of that size, with one more variable. */
static void start(struct pty *t, const char *addr, unsigned short columns, const char *name,
                  const char *value)
{
    *t = (struct pty){.fd = posix_openpt(O_RDWR | O_NOCTTY)};
    assert_true(t->fd >= 0 && grantpt(t->fd) == 0 && unlockpt(t->fd) == 0);
    t->slave = open(ptsname(t->fd), O_RDWR | O_NOCTTY);
    assert_true(t->slave >= 0);
    set_size(t, columns, 24);
    assert_int_equal(tcgetattr(t->slave, &t->before), 0);
    t->out = calloc(1, 1);
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        setsid();
        ioctl(t->slave, TIOCSCTTY, 0); /* Ctrl-C is ours */
        for (int fd = 0; fd < 3; fd++)
            dup2(t->slave, fd);
        setenv("TERM", "xterm", 1);
        setenv("LC_ALL", "C.UTF-8", 1);
        unsetenv("NO_COLOR");
        setenv(name, value, 1);
        execl(HTH_TEST_PROGRAM, "hearth", "watch", "--join", addr, (char *)NULL);
        _exit(127);
    }
}

static void read_some(struct pty *t)
{
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    if (poll(&p, 1, 50) != 1)
        return;
    t->out = realloc(t->out, t->len + 65537);
    ssize_t n = read(t->fd, t->out + t->len, 65536);
    t->len += n > 0 ? (size_t)n : 0;
    t->out[t->len] = '\0';
}

/* Waits until `text` is shown after the byte `since`. Returns where its end is. */
static size_t shown(struct pty *t, size_t since, const char *text)
{
    struct wait w = {0};
    const char *at;
    while ((at = strstr(t->out + since, text)) == NULL) {
        read_some(t);
        wait_step(&w, text);
    }
    return (size_t)(at - t->out) + strlen(text);
}

static void type(struct pty *t, const char *keys)
{
    assert_int_equal(write(t->fd, keys, strlen(keys)), (ssize_t)strlen(keys));
}

/* Waits for the end; returns the code. The terminal is as it was. */
static int ended(struct pty *t)
{
    struct termios after;
    struct wait w = {0};
    int status;
    while (waitpid(t->pid, &status, WNOHANG) == 0) {
        read_some(t);
        wait_step(&w, "the end of hearth watch");
    }
    read_some(t);
    assert_int_equal(tcgetattr(t->slave, &after), 0);
    assert_int_equal(after.c_lflag, t->before.c_lflag);
    close(t->slave);
    close(t->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

PLACE_TEST(test_watches_a_swarm)
{
    struct place *p = *state;
    struct pty t, plain, small;
    struct toy toy;
    toy_init(&toy, p, 1000000);
    toy_start_node(&toy);
    toy_start_host(&toy, 0);
    start(&t, toy.addr[1], 80, "A", "b");
    start(&plain, toy.addr[1], 80, "NO_COLOR", "1");
    start(&small, toy.addr[1], 20, "A", "b");
    struct proc *lines = START(p, "lines", "watch", "--join", toy.addr[1]);

    /* The frames, with colours and rules. */
    size_t at = shown(&t, 0, "\x1b[?1049h");
    at = shown(&t, at, "toy");
    at = shown(&t, at, "idle: no trainer");
    (void)shown(&t, at, "\x1b[0;1;31mexperts: 4 of 8 missing");
    at = shown(&t, at, "host");
    type(&t, "?");
    at = shown(&t, at, "these keys");
    type(&t, "e");
    at = shown(&t, at, "XXXX");
    set_size(&t, 100, 30);
    at = shown(&t, at, "\r\n \x1b[0;2m? keys   q end");
    set_size(&t, 30, 30);
    at = shown(&t, at, "30 columns, 30 rows:");
    type(&t, "q");
    (void)shown(&t, at, "\x1b[?1049l");
    assert_int_equal(ended(&t), 0);

    /* Without colours; an interrupt ends it as well. */
    at = shown(&plain, 0, "experts: 4 of 8 missing");
    assert_null(strstr(plain.out, "\x1b[0"));
    type(&plain, "\x03");
    assert_int_equal(ended(&plain), 0);
    (void)shown(&plain, at, "\x1b[?1049l");

    (void)shown(&small, 0, "20 columns and 24 rows, and 40 and 12 are needed");
    assert_int_equal(ended(&small), 1);
    assert_null(strstr(small.out, "\x1b["));

    proc_wait_text(lines, "experts 4 of 8 served, 4 missing");
    proc_must_say(lines, "UTC: idle: no trainer; step 0;");
    assert_false(proc_said(lines, "\x1b"));
    assert_int_equal(proc_stop(lines), 0);
    /* It ends with its reader. */
    const char *piped = place_text(p, HTH_TEST_PROGRAM " watch --join %s | true", toy.addr[1]);
    struct proc *unread =
        place_start_program(p, "/bin/sh", "unread", (const char *const[]){"-c", piped, NULL});
    assert_int_equal(proc_wait(unread), 0);
    free(t.out);
    free(plain.out);
    free(small.out);
    place_end(p);
}
