/* SPDX-License-Identifier: Apache-2.0 */
/* test_child.c: a child of a benchmark answers, and ends with its own children, however we end. */
#define _GNU_SOURCE
#include "benchmarks/child.h"
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_US (20 * HTH_US_PER_S)

/* Says its own process and one that it starts. It does not end with its input, nor on SIGTERM. */
static const char *const stubborn[] = {
    "sh", "-c", "trap '' TERM; sleep 1000 & echo $$ $!; while :; do sleep 1000; done", NULL};

/* Of a process that nobody waits for; one that is dead and not waited for does not run. */
static bool runs(long pid)
{
    char path[64], state = 'X';
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'X';
    if (file != NULL)
        fclose(file);
    return state != 'X' && state != 'Z';
}

static void must_end(long pid)
{
    for (int i = 0; i < 2000 && runs(pid); i++)
        usleep(10000);
    assert_false(runs(pid));
}

static void hear_pids(struct hth_bench_child *c, long pid[2])
{
    char line[64];
    assert_true(hth_bench_child_hear(c, line, sizeof(line), LIMIT_US));
    assert_int_equal(sscanf(line, "%ld %ld", &pid[0], &pid[1]), 2);
    assert_true(runs(pid[0]) && runs(pid[1]));
}

TEST(child_answers)
{
    static const char *const argv[] = {"cat", NULL};
    struct hth_bench_child c;
    char line[16];
    (void)state;
    assert_true(hth_bench_child_start(&c, argv, NULL));
    assert_true(hth_bench_child_say(&c, "hello\nto all of you who read this\n"));
    assert_true(hth_bench_child_hear(&c, line, sizeof(line), LIMIT_US));
    assert_string_equal(line, "hello");
    assert_true(hth_bench_child_hear(&c, line, sizeof(line), LIMIT_US));
    assert_string_equal(line, "to all of you w"); /* cut */
    assert_false(hth_bench_child_hear(&c, line, sizeof(line), 1000));
    assert_true(c.dead);
    hth_bench_child_end(&c);
}

TEST(no_program_is_no_child)
{
    static const char *const argv[] = {"/nonexistent/program", NULL};
    struct hth_bench_child c;
    char line[16];
    (void)state;
    assert_false(hth_bench_child_start(&c, argv, NULL));
    assert_false(hth_bench_child_say(&c, "hello\n"));
    assert_false(hth_bench_child_hear(&c, line, sizeof(line), LIMIT_US));
    hth_bench_child_end(&c);
}

TEST(child_that_does_not_end_is_killed_with_its_own)
{
    struct hth_bench_child c;
    long pid[2];
    (void)state;
    assert_true(hth_bench_child_start(&c, stubborn, "/dev/null"));
    hear_pids(&c, pid);
    hth_bench_child_end(&c);
    must_end(pid[0]);
    must_end(pid[1]);
}

TEST(children_end_with_a_parent_that_is_killed)
{
    int told[2];
    long pid[2];
    (void)state;
    assert_int_equal(pipe(told), 0);
    pid_t parent = fork();
    if (parent == 0) {
        struct hth_bench_child c;
        if (hth_bench_child_start(&c, stubborn, "/dev/null"))
            hear_pids(&c, pid);
        (void)!write(told[1], pid, sizeof(pid));
        for (;;)
            pause();
    }
    assert_int_equal(read(told[0], pid, sizeof(pid)), sizeof(pid));
    assert_int_equal(kill(parent, SIGKILL), 0);
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    must_end(pid[0]);
    must_end(pid[1]);
    close(told[0]);
    close(told[1]);
}
