/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.h: gives a test of several processes a folder and addresses of its own, and starts, awaits
 * and stops its processes.
 *
 * A place uses a 127.X.Y.0/24 of loopback, chosen by the test's process id, so that tests can run
 * at the same time. Every port was free a moment ago. All files are in one folder below /tmp. A
 * test waits for a line of a process's output, for a condition or for an end, never for a time.
 * WAIT_S bounds each wait; a wait that times out fails the test and prints the process's output.
 *
 * With HTH_TEST_KEEP in the environment the folder is kept.
 *
 * place_setup and place_teardown are for cmocka. A test ends with place_end, which stops the
 * processes and checks their exit codes. After a failed test the teardown kills the rest, by pid.
 * Single-threaded.
 */
#ifndef HTH_TESTS_INTEGRATION_PLACE_H
#define HTH_TESTS_INTEGRATION_PLACE_H

#include "support/test.h"

#include "core/err.h"

#include <stdbool.h>
#include <sys/types.h>

#define PLACE_PROCS_MAX 96
#define PLACE_TEXTS     64
#define PLACE_TEXT_MAX  256
#define WAIT_S          60 /* sanitizers and a busy machine included */
#define STILL_RUNS      (-1)

struct place;

struct proc {
    struct place *place;
    char name[24];
    char out[PLACE_TEXT_MAX], err[PLACE_TEXT_MAX]; /* files of its output */
    pid_t pid;
    int code;   /* exit code, 128 + signal, or STILL_RUNS */
    bool ended; /* before place_end */
};

struct place {
    char *root; /* the folder */
    uint8_t x, y;
    unsigned ports; /* number of ports given out */
    struct proc proc[PLACE_PROCS_MAX];
    size_t proc_count;
    char text[PLACE_TEXTS][PLACE_TEXT_MAX];
    size_t text_next;
};

int place_setup(void **state);
int place_teardown(void **state);
#define PLACE_TEST(name) TEST_WITH(name, place_setup, place_teardown) /* of suite.h */
/* Runs each test in a process of its own, all at the same time, for tests that wait more than they
 * compute: SUITE_RUN of such a file. Returns 0 if all pass. */
int place_run_at_once(const struct CMUnitTest *tests, size_t count);
/* Sends SIGTERM to all running processes; each must exit with 0. */
void place_end(struct place *p);

/* A formatted text, valid until PLACE_TEXTS more are made. */
const char *place_text(struct place *p, const char *fmt, ...) HTH_PRINTF(2, 3);
/* The path of a file of this place. */
const char *place_path(struct place *p, const char *name);
/* "127.X.Y.1:PORT" with a port that is free for TCP and UDP, a different one each time. */
const char *place_addr(struct place *p);

void place_write(struct place *p, const char *name, const void *data, size_t len);
/* A whole file as text; NULL: it can't be read. Free it with free(). */
char *place_read(const char *path, size_t *len);
bool place_exists(struct place *p, const char *name);
/* The number of files in a folder of this place whose names have this ending; 0: no such folder. */
size_t place_count(struct place *p, const char *folder, const char *ending);

/* Starts `hearth ARGS...`. args ends with NULL. `name` names its logs. */
struct proc *place_start(struct place *p, const char *name, const char *const *args);
struct proc *place_start_program(struct place *p, const char *program, const char *name,
                                 const char *const *args);
#define START(p, name, ...) place_start(p, name, (const char *const[]){__VA_ARGS__, NULL})
/* Starts hearth, waits for its end and returns its exit code. */
#define RUN(p, name, ...) proc_wait(START(p, name, __VA_ARGS__))

void proc_signal(struct proc *proc, int signal);
bool proc_runs(struct proc *proc);
/* Waits for the end; returns the code. */
int proc_wait(struct proc *proc);
/* Gives back the place of the process that was started last and has ended, for loops. */
void proc_forget(struct proc *proc);
/* Sends SIGTERM, then proc_wait. */
int proc_stop(struct proc *proc);
/* Waits until standard output or error contains `text`; fails if the process ends without it. */
void proc_wait_text(struct proc *proc, const char *text);
bool proc_said(struct proc *proc, const char *text);
/* Fails unless the output contains `text`. */
void proc_must_say(struct proc *proc, const char *text);
/* Milliseconds of processor time that it has used. */
double proc_cpu_ms(const struct proc *proc);
/* Resident kilobytes. */
long proc_rss_kib(const struct proc *proc);
/* Open descriptors. */
size_t proc_descriptors(const struct proc *proc);

/* `while (!condition) wait_step(&w, "the condition")`: pauses; fails the test after WAIT_S. */
struct wait {
    int64_t begin_us;
};
void wait_step(struct wait *w, const char *what);
int64_t place_now_us(void);

/* Opens a nonblocking TCP connection to "127.X.Y.N:PORT", from the address `from` if it isn't NULL.
 * Returns -1 with errno if that fails. */
int place_dial(const char *to, const char *from);

#endif
