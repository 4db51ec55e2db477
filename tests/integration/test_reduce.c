/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reduce.c: the others finish their rounds when a process of a reduction dies or freezes. The
 * members are those of `hearth bench allreduce` (benchmarks/reduce.h has their commands). The
 * simulator checks exact times (tests/averaging); here the machine may be busy, so the limits are
 * wide and the times are printed.
 */
#define _GNU_SOURCE
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MEMBERS   4
#define VICTIM    1
#define LINE_MAX_ 4096

extern char **environ;

struct member {
    pid_t pid;
    FILE *to, *from;
    char line[LINE_MAX_];
};

static void start(struct member *m)
{
    char *argv[] = {(char *)HTH_TEST_PROGRAM, (char *)"bench", (char *)"allreduce",
                    (char *)"--as-member", NULL};
    int to[2], from[2];
    posix_spawn_file_actions_t actions;
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, to[0], 0), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, from[1], 1), 0);
    assert_int_equal(posix_spawn(&m->pid, HTH_TEST_PROGRAM, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    m->to = fdopen(to[1], "w");
    m->from = fdopen(from[0], "r");
    assert_non_null(m->to);
    assert_non_null(m->from);
}

static const char *hear(struct member *m)
{
    if (fgets(m->line, sizeof(m->line), m->from) == NULL)
        fail_msg("a member ended too early");
    if (strncmp(m->line, "failed", 6) == 0)
        fail_msg("a member %s", m->line);
    return m->line;
}

static void tell(struct member *m, const char *text)
{
    fputs(text, m->to);
    fflush(m->to);
}

static void crew_start(struct member *m)
{
    char list[LINE_MAX_] = "", id[80], line[LINE_MAX_ + 64];
    unsigned port, floor_port;
    for (int i = 0; i < MEMBERS; i++) {
        start(&m[i]);
        assert_int_equal(sscanf(hear(&m[i]), "hello %79s %u %u", id, &port, &floor_port), 3);
        size_t len = strlen(list);
        snprintf(list + len, sizeof(list) - len, " %s:%u:%u", id, port, floor_port);
    }
    for (int i = 0; i < MEMBERS; i++) {
        snprintf(line, sizeof(line), "group %d %d%s\n", i, MEMBERS, list);
        tell(&m[i], line);
    }
    for (int i = 0; i < MEMBERS; i++)
        assert_string_equal(hear(&m[i]), "ok\n");
}

static void crew_end(struct member *m)
{
    for (int i = 0; i < MEMBERS; i++) {
        int status;
        fclose(m[i].to);
        fclose(m[i].from);
        if (i == VICTIM)
            kill(m[i].pid, SIGKILL);
        assert_int_equal(waitpid(m[i].pid, &status, 0), m[i].pid);
        if (i != VICTIM)
            assert_int_equal(status, 0);
    }
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        continue;
}

/* All rounds end without the victim; the longest takes about the time of detecting its loss. */
static void run(int sig, const char *format, int rounds, double limit_s)
{
    struct member m[MEMBERS];
    char line[64];
    crew_start(m);
    snprintf(line, sizeof(line), "prepare 4194304 %s 1\n", format);
    for (int i = 0; i < MEMBERS; i++)
        tell(&m[i], line);
    for (int i = 0; i < MEMBERS; i++)
        assert_string_equal(hear(&m[i]), "ready\n");
    snprintf(line, sizeof(line), "rounds %d\n", rounds);
    for (int i = 0; i < MEMBERS; i++)
        tell(&m[i], line);
    sleep_ms(150);
    assert_int_equal(kill(m[VICTIM].pid, sig), 0);
    for (int i = 0; i < MEMBERS; i++) {
        int64_t ns, cpu, longest;
        uint64_t bytes;
        unsigned dropped;
        double error;
        if (i == VICTIM)
            continue;
        assert_int_equal(sscanf(hear(&m[i]), "done %" SCNd64 " %" SCNd64 " %" SCNu64 " %u %" SCNd64,
                                &ns, &cpu, &bytes, &dropped, &longest),
                         5);
        assert_true(dropped > 0);
        print_message("member %d: longest round %.0f ms\n", i, (double)longest * 1e-6);
        if ((double)longest * 1e-9 > limit_s)
            fail_msg("a round took %.2f s, more than %.1f", (double)longest * 1e-9, limit_s);
        /* The result is finite and near the mean: that of three is within the range of four. */
        tell(&m[i], "check\n");
        assert_int_equal(sscanf(hear(&m[i]), "error %lf", &error), 1);
        assert_true(error > 0 && error < 1.5);
    }
    crew_end(m);
}

static void rounds_end_after_a_kill(void **state)
{
    (void)state;
    run(SIGKILL, "fp32", 400, 5);
    run(SIGKILL, "int8", 400, 5);
}

static void rounds_end_after_a_freeze(void **state)
{
    (void)state;
    run(SIGSTOP, "fp32", 20, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_end_after_a_kill),
        cmocka_unit_test(rounds_end_after_a_freeze),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
