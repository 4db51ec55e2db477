/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stalls.c: 16 identities send 63 of 64 MiB each and stall, at a host that may use 700 MB: a
 * control group kills it beyond that. Where no group can be made, --memory says so, and its memory
 * is measured. A trainer goes on meanwhile.
 */
#define _GNU_SOURCE
#include "integration/toy.h"
#include "support/suite.h"

#include "core/mem.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STALLERS   16
#define MEMORY_MIB 700
#define LASTS_US   (15 * INT64_C(1000000))

/* A child of this process's own group of control group version 1; "": none can be made. */
static char group[PLACE_TEXT_MAX];

static bool write_to(const char *file, const char *text)
{
    char path[2 * PLACE_TEXT_MAX];
    snprintf(path, sizeof(path), "%s/%s", group, file);
    FILE *f = fopen(path, "w");
    bool good = f != NULL && fputs(text, f) >= 0;
    return f != NULL && fclose(f) == 0 && good;
}

static void make_group(void)
{
    char line[512], *own = NULL;
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f != NULL && own == NULL && fgets(line, sizeof(line), f) != NULL)
        if (strstr(line, ":memory:") != NULL)
            own = strstr(line, ":memory:") + strlen(":memory:");
    if (f != NULL)
        fclose(f);
    group[0] = '\0';
    if (own == NULL)
        return;
    own[strcspn(own, "\n")] = '\0';
    snprintf(group, sizeof(group), "/sys/fs/cgroup/memory%s/hearth-test-%d", own, (int)getpid());
    if (mkdir(group, 0755) != 0) {
        group[0] = '\0';
    } else if (!write_to("memory.limit_in_bytes", "700M\n") || access(group, W_OK) != 0) {
        (void)rmdir(group);
        group[0] = '\0';
    }
}

static void start_host(struct toy *t)
{
    struct place *p = t->place;
    const char *enter = group[0] != '\0' ? place_text(p, "echo $$ > %s/cgroup.procs; ", group) : "";
    char *line = hth_asprintf("%sexec %s serve --run %s --join %s --listen %s --dir %s --threads 1 "
                              "--experts 'ffn0.[0:2].[0:4]'%s",
                              enter, HTH_TEST_PROGRAM, t->run, t->addr[1], t->addr[2],
                              place_path(p, "host"), group[0] != '\0' ? "" : " --memory 700MiB");
    const char *const args[] = {"-c", line, NULL};
    t->host[0] = place_start_program(p, "/bin/sh", "host", args);
    proc_wait_text(t->host[0], "serving 8 experts");
    hth_free(line);
}

static int teardown(void **state)
{
    int code = place_teardown(state); /* ends what a failed test left in the group */
    return group[0] != '\0' && rmdir(group) != 0 ? 1 : code;
}

TEST_WITH(a_host_in_little_memory_outlives_stalled_bodies, place_setup, teardown)
{
    struct place *p = *state;
    struct proc *staller[STALLERS];
    struct wait w = {0};
    struct toy t;
    toy_init(&t, p, 1000000);
    make_group();
    toy_start_node(&t);
    start_host(&t);
    toy_start_trainer(&t, "trainer", NULL);
    while (toy_step(&t, "trainer") < 50)
        wait_step(&w, "the trainer's first steps");
    for (int i = 0; i < STALLERS; i++) {
        const char *const args[] = {"-n", "19", HTH_TEST_STALLER, "toy", t.addr[2], NULL};
        staller[i] = place_start_program(p, "/usr/bin/nice", "staller", args);
    }
    double before = toy_step(&t, "trainer");
    for (int64_t from = place_now_us(); place_now_us() - from < LASTS_US;) {
        assert_true(proc_runs(t.host[0]) && proc_runs(t.trainer));
        if (group[0] == '\0')
            assert_true(proc_rss_kib(t.host[0]) < MEMORY_MIB * 1024L);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    if (toy_step(&t, "trainer") < before + 50)
        fail_msg("%g steps beside the stalled bodies", toy_step(&t, "trainer") - before);
    for (int i = 0; i < STALLERS; i++)
        proc_signal(staller[i], SIGKILL);
    for (int i = 0; i < STALLERS; i++)
        assert_int_equal(proc_wait(staller[i]), 128 + SIGKILL);
    proc_signal(t.trainer, SIGINT);
    assert_int_equal(proc_wait(t.trainer), 130);
    assert_int_equal(proc_stop(t.host[0]), 0);
    place_end(p);
}
