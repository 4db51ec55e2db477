/* SPDX-License-Identifier: Apache-2.0 */
/* test_netlab.c: a real lab delays, loses and slows packets as told, and leaves nothing behind. */
#include "integration/place.h"
#include "support/suite.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>

#define NETLAB(p, name, ...)                                                                       \
    place_start_program(p, HTH_TEST_NETLAB, name, (const char *const[]){__VA_ARGS__, NULL})

static const char file[] = "link: { latency_ms: 1 }\nhosts:\n  - { name: a }\n  - { name: b }\n";

/* Without root or /dev/net/tun no lab can be made: then only the message is tested. */
static bool skipped(struct place *p)
{
    place_write(p, "lab.yaml", file, strlen(file));
    struct proc *proc = NETLAB(p, "probe", "run", place_path(p, "lab.yaml"), "--", "true");
    int code = proc_wait(proc);
    if (code != 77) {
        assert_int_equal(code, 0);
        return false;
    }
    bool root = proc_said(proc, "root"), tun = proc_said(proc, "/dev/net/tun");
    assert_true(root || tun);
    print_message("skipped: a lab needs root and /dev/net/tun\n");
    place_end(p);
    skip();
    return true;
}

static double measured(struct proc *proc, const char *what)
{
    double set = NAN, value = NAN;
    char *text = place_read(proc->out, NULL);
    const char *line = text != NULL ? strstr(text, what) : NULL;
    if (line == NULL || sscanf(line + strlen(what), "%lf %lf", &set, &value) != 2)
        fail_msg("no figure of '%s' in: %s", what, text != NULL ? text : "");
    free(text);
    return value;
}

/* On any machine, however busy, nothing is faster than set, and the set share is lost. `netlab
 * test` itself is stricter. */
PLACE_TEST(lab_delays_and_loses_as_set)
{
    struct place *p = *state;
    if (skipped(p))
        return;
    struct proc *proc = NETLAB(p, "test", "test", "0.9");
    int code = proc_wait(proc);
    assert_in_range(code, 0, 1);
    proc_must_say(proc, code == 0 ? "PASS" : "FAIL");
    double ms = measured(proc, "round trip, ms"), mbit = measured(proc, "TCP, Mbit/s of data");
    double lost = measured(proc, "UDP packets lost, share");
    assert_true(ms >= 20 && ms < 120);
    assert_true(mbit > 1 && mbit <= 80);
    assert_true(lost > 0.02 && lost < 0.09);
    place_end(p);
}

PLACE_TEST(commands_run_on_their_host)
{
    struct place *p = *state;
    if (skipped(p))
        return;
    const char *lab = place_path(p, "lab.yaml"), *self = HTH_TEST_NETLAB;
    const char *script = place_text(p, "%s at b cat /proc/net/fib_trie; exit 5", self);
    struct proc *proc = NETLAB(p, "run", "run", lab, "--", "sh", "-c", script);
    assert_int_equal(proc_wait(proc), 5);
    proc_must_say(proc, "10.77.0.2");
    proc = NETLAB(p, "nobody", "run", lab, "--", self, "at", "c", "true");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "no host 'c'");
    assert_int_equal(proc_wait(NETLAB(p, "outside", "at", "a", "true")), 2);
    place_end(p);
}

/* Processes with this text in their command line. */
static unsigned count_processes(const char *text)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc");
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[300], line[1024] = "";
        size_t len = 0;
        snprintf(path, sizeof(path), "/proc/%.200s/cmdline", e->d_name);
        FILE *f = e->d_name[0] >= '1' && e->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (f == NULL)
            continue;
        len = fread(line, 1, sizeof(line) - 1, f);
        fclose(f);
        for (size_t i = 0; i < len; i++)
            line[i] = line[i] == '\0' ? ' ' : line[i];
        count += strstr(line, text) != NULL;
    }
    closedir(dir);
    return count;
}

/* All processes of a lab end with netlab, however it ends, even those that left its process group.
 * The namespaces have no names, so they end with the last process. */
PLACE_TEST(lab_leaves_nothing_behind)
{
    static const int signals[] = {SIGTERM, SIGKILL};
    struct place *p = *state;
    if (skipped(p))
        return;
    place_write(p, "stays", "", 0);
    const char *stays = place_text(p, "tail -f %s", place_path(p, "stays"));
    const char *script = place_text(p, "setsid %s & wait", stays);
    for (int i = 0; i < 2; i++) {
        struct proc *proc = NETLAB(p, i == 0 ? "term" : "kill", "run", place_path(p, "lab.yaml"),
                                   "--", "sh", "-c", script);
        struct wait begun = {0}, gone = {0};
        /* netlab, the lab's first process, the shell and the one that is to end. */
        while (count_processes(stays) < 4)
            wait_step(&begun, "the start of the command");
        proc_signal(proc, signals[i]);
        assert_int_equal(proc_wait(proc), 128 + signals[i]);
        while (count_processes(stays) > 0)
            wait_step(&gone, "the end of the lab");
    }
    place_end(p);
}
