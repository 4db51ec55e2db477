/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lines.c: README's lines for joining a swarm by hand, typed as they are printed: on one
 * machine, and on three. Machines are hosts of a lab (lab/lab.h), so that default addresses and
 * ports are free. The program is the one that `cmake --install` installs. Only the run is a small
 * one.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <stdlib.h>
#include <sys/stat.h>

#define LINES_MAX 8

static const char lab[] = "link: { latency_ms: 1 }\n"
                          "hosts:\n  - { name: a }\n  - { name: b }\n  - { name: c }\n";

/* Functions for the scripts: `at HOST COMMAND` runs a line on a machine with a home of its own,
 * `await TEXT FILE` waits for a line of output, and `stop` ends a process as Ctrl-C does. */
static const char tools[] =
    "set -eu\n"
    "cd '%s'\n"
    "PATH='%s/prefix/bin':$PATH\n"
    "at() { XDG_STATE_HOME='%s'/home-$1 exec '%s' at $1 sh -c \"exec $2\"; }\n"
    "await() {\n"
    "    end=$(($(date +%%s) + 45))\n"
    "    until grep -q -e \"$1\" $2; do\n"
    "        [ $(date +%%s) -lt $end ] || { echo \"$2 does not say: $1\"; cat $2; exit 1; }\n"
    "        sleep 0.1\n"
    "    done\n"
    "    echo \"$2 says: $1\"\n"
    "}\n"
    "never() { ! grep -e \"$1\" $2 || { echo \"$2 says: $1\"; exit 1; }; }\n"
    "stop() { kill -TERM $1; wait $1 || { echo \"exit code $?\"; exit 1; }; }\n";

/* The `hearth` commands of README's section on joining by hand, without their remarks. */
static size_t readme_lines(char *text, const char *line[LINES_MAX])
{
    size_t count = 0;
    char *at = strstr(text, "## Joining a swarm by hand"), *rest;
    assert_non_null(at);
    char *end = strstr(at + 2, "\n## ");
    assert_non_null(end);
    *end = '\0';
    for (char *l = strtok_r(at, "\n", &rest); l != NULL; l = strtok_r(NULL, "\n", &rest)) {
        char *remark = strstr(l, " #");
        if (strncmp(l, "    hearth ", 11) != 0)
            continue;
        assert_true(count < LINES_MAX);
        if (remark != NULL)
            *remark = '\0';
        line[count++] = l + 4;
    }
    return count;
}

/* `line` with the script's invite in place of INVITE. */
static const char *with_invite(struct place *p, const char *line)
{
    const char *at = strstr(line, "INVITE");
    assert_non_null(at);
    return place_text(p, "%.*s$invite%s", (int)(at - line), line, at + strlen("INVITE"));
}

/* Installs the program, and puts a small run in the place of runs/fashion.yaml. */
static void prepare(struct place *p, const char *grid)
{
    struct toy t;
    toy_init(&t, p, 300);
    char *text = place_read(t.run, NULL);
    assert_non_null(text);
    char *name = strstr(text, "run: toy\n"), *axes = strstr(text, "[2, 4]");
    assert_true(name != NULL && axes != NULL);
    memcpy(axes, grid, strlen("[2, 4]"));
    assert_int_equal(mkdir(place_path(p, "runs"), 0700), 0);
    const char *run = place_text(p, "run: fashion\n");
    char *all = malloc(strlen(run) + strlen(text) + 1);
    assert_non_null(all);
    sprintf(all, "%s%s", run, name + strlen("run: toy\n"));
    place_write(p, "runs/fashion.yaml", all, strlen(all));
    free(all);
    free(text);
    struct proc *install =
        place_start_program(p, HTH_TEST_CMAKE, "install",
                            (const char *const[]){"--install", HTH_TEST_BUILD, "--prefix",
                                                  place_path(p, "prefix"), NULL});
    assert_int_equal(proc_wait(install), 0);
}

/* Without root or /dev/net/tun no lab can be made. */
static bool skipped(struct place *p)
{
    place_write(p, "lab.yaml", lab, strlen(lab));
    struct proc *proc = place_start_program(
        p, HTH_TEST_NETLAB, "probe",
        (const char *const[]){"run", place_path(p, "lab.yaml"), "--", "true", NULL});
    if (proc_wait(proc) != 77)
        return false;
    print_message("skipped: a lab needs root and /dev/net/tun\n");
    place_end(p);
    skip();
    return true;
}

static void run_script(struct place *p, const char *script)
{
    size_t room = sizeof(tools) + 4 * PLACE_TEXT_MAX + strlen(script);
    char *text = malloc(room);
    assert_non_null(text);
    int len = snprintf(text, room, tools, p->root, p->root, p->root, HTH_TEST_NETLAB);
    snprintf(text + len, room - (size_t)len, "%s", script);
    place_write(p, "script.sh", text, strlen(text));
    free(text);
    struct proc *proc =
        place_start_program(p, HTH_TEST_NETLAB, "lab",
                            (const char *const[]){"run", place_path(p, "lab.yaml"), "--", "sh",
                                                  place_path(p, "script.sh"), NULL});
    size_t before = 0, size = 0;
    /* Each step may take WAIT_S, not all of them together. */
    for (struct wait w = {0}; proc_runs(proc); wait_step(&w, "the next step of the script")) {
        free(place_read(proc->out, &size));
        if (size != before)
            w = (struct wait){0};
        before = size;
    }
    int code = proc_wait(proc);
    if (code != 0) {
        char *said = place_read(proc->out, NULL), *err = place_read(proc->err, NULL);
        fail_msg("the script ended with %d: %s%s", code, said, err);
    }
    place_end(p);
}

/* Line i runs on machine[i]. */
static void type_lines(struct place *p, const char *const machine[5], const char *more)
{
    char script[4096], *text = place_read(HTH_TEST_SOURCES "/README.md", NULL);
    const char *line[LINES_MAX];
    assert_non_null(text);
    assert_int_equal(readme_lines(text, line), 5);
    int len = snprintf(script, sizeof(script),
                       "at %s '%s' >own 2>&1 & own=$!\n"
                       "await 'serving 8 experts' own\n"
                       "await 'others join with  --join 10.77.0.1:4700 (a private address' own\n"
                       "invite=$(sed -n 's/.*others take part with  --invite //p' own)\n"
                       "at %s \"%s\" >serve 2>&1 & serve=$!\n"
                       "await 'serving 8 experts' serve\n"
                       "never 'join with  --join 127' serve\n"
                       "at %s \"%s\" >train 2>&1 & train=$!\n"
                       "wait $train || { cat train; exit 1; }\n"
                       "await 'test: ' train\n"
                       "(at %s \"%s\") >status 2>&1\n"
                       "await \"run 'fashion'\" status\n"
                       "at %s \"%s\" >watch 2>&1 & watch=$!\n"
                       "await 'experts 16 of ' watch\n"
                       "%s"
                       "stop $watch; stop $serve; stop $own\n",
                       machine[0], line[0], machine[1], with_invite(p, line[1]), machine[2],
                       with_invite(p, line[2]), machine[3], with_invite(p, line[3]), machine[4],
                       with_invite(p, line[4]), more);
    assert_in_range(len, 1, sizeof(script) - 1);
    free(text);
    run_script(p, script);
}

PLACE_TEST(lines_work_on_three_machines)
{
    struct place *p = *state;
    static const char *const machine[] = {"a", "b", "c", "a", "c"};
    if (skipped(p))
        return;
    prepare(p, "[4, 4]");
    type_lines(p, machine,
               "await '100%' status\n"
               "await '--join 10.77.0.2:4700' serve\n"
               "await '--join 10.77.0.3:4700' train\n"
               "await 'others reach this machine at 10.77.0.2:4700' serve\n"
               "await 'others reach this machine at 10.77.0.1:4700' own\n");
}

/* Both hosts announce an address that leads nowhere: the node, asked by them, finds out. */
PLACE_TEST(hosts_learn_that_nobody_reaches_them)
{
    struct place *p = *state;
    if (skipped(p))
        return;
    prepare(p, "[2, 4]");
    run_script(p,
               "at a 'hearth node' >node 2>&1 & node=$!\n"
               "await 'others join with' node\n"
               "run='--run runs/fashion.yaml --open-to-anyone --join 10.77.0.1:4700'\n"
               "line=\"hearth serve $run --experts 4\"\n"
               "at b \"$line --announce 10.77.0.9:4700\" >b 2>&1 & b=$!\n"
               "at c \"$line --announce 10.77.0.9:4701\" >c 2>&1 & c=$!\n"
               "why='forward port 4700, TCP and UDP, or correct --announce'\n"
               "await \"others can't reach this machine at 10.77.0.9:4700: $why\" b\n"
               "await \"others can't reach this machine at 10.77.0.9:4701: \" c\n"
               "at a \"hearth train $run\" >t 2>&1 & t=$!\n"
               "await '2 hosts are announced, none can be reached: 10.77.0.9:470' t\n"
               "kill -9 $t; stop $b; stop $c; stop $node\n");
}

/* A second host takes the next folder and port, and finds its folder again after an end. The
 * default address is listened on in both families, and never announced as loopback. */
PLACE_TEST(lines_work_on_one_machine)
{
    struct place *p = *state;
    static const char *const machine[] = {"a", "a", "a", "a", "a"};
    if (skipped(p))
        return;
    prepare(p, "[4, 4]");
    type_lines(p, machine,
               "await 'port 4701 ' serve\n"
               "await 'new key in .*/home-a/hearth/fashion/serve-2)' serve\n"
               "await 'join with  --join 10.77.0.1:4701' serve\n"
               "stop $serve\n"
               "line=\"hearth serve --invite $invite --experts 8\"\n"
               "at a \"$line --join [::1]:4700\" >again 2>&1 & serve=$!\n"
               "await 'known key in .*/home-a/hearth/fashion/serve-2)' again\n"
               "await 'serving 8 experts (8 from' again\n");
}

/* The lines in the wrong order: the host does not take the port at which it looks for its node. A
 * host that names itself does not wait for its own answer. */
PLACE_TEST(a_host_may_start_before_its_node)
{
    struct place *p = *state;
    if (skipped(p))
        return;
    prepare(p, "[2, 4]");
    run_script(p,
               "line='hearth serve --run runs/fashion.yaml --open-to-anyone --experts 8'\n"
               "at a \"$line --join localhost:4700\" >first 2>&1 & first=$!\n"
               "await 'joining localhost:4700 ...' first\n"
               "await 'port 4701 ' first\n"
               "at a 'hearth node' >node 2>&1 & node=$!\n"
               "await 'port 4700 ' node\n"
               "await 'serving 8 experts' first\n"
               "await 'host .* at 10.77.0.1:4701 has joined' node\n"
               "stop $node; stop $first\n"
               "at a \"$line --listen 10.77.0.1:4700 --join 10.77.0.1:4700\" >self 2>&1 & s=$!\n"
               "await '--join names this process itself' self\n"
               "await 'serving 8 experts (0 from' self\n"
               "stop $s\n");
}
