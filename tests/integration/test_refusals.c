/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_refusals.c: each mistake of a user, on the command line or with a file, gives an exit code
 * and a text that names it, and changes nothing on the disk.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/isa.h"

struct mistake {
    const char *args[8];
    int code;
    const char *text;
};

/* Too few descriptors are no port that another program uses. */
PLACE_TEST(low_limit_of_files_is_named)
{
    struct place *p = *state;
    const char *line = place_text(p, "ulimit -n 12; exec %s node --dir %s --listen %s",
                                  HTH_TEST_PROGRAM, place_path(p, "few"), place_addr(p));
    const char *const args[] = {"-c", line, NULL};
    struct proc *proc = place_start_program(p, "/bin/sh", "few", args);
    assert_int_equal(proc_wait(proc), 1);
    proc_must_say(proc, "this process may open 12 files (ulimit -n), and needs at least 40");
    place_end(p);
}

PLACE_TEST(wrong_command_lines_are_named)
{
    struct place *p = *state;
    static const struct mistake cases[] = {
        {{"foo"}, 2, "no verb 'foo'; expected one of: node, serve, train, "},
        {{"trian"}, 2, "did you mean 'train'?"},
        {{"serv", "--run", "x"}, 2, "did you mean 'serve'?"},
        {{"train"}, 2, "--run FILE is required"},
        {{"train", "--run"}, 2, "requires an argument"},
        {{"train", "--rum", "x"}, 2, "unrecognized option '--rum'"},
        {{"train", "--run", "x", "--steps", "many"}, 2, "it must be a whole number from 1"},
        {{"train", "--run", "x", "--steps", "0"}, 2, "it must be a whole number from 1"},
        {{"train", "--run", "x", "--flights", "1025"}, 2, "from 1 to 1024"},
        {{"train", "--run", "x", "--rows", "65537"}, 2, "from 1 to 65536"},
        {{"train", "--run", "x", "--device-memory", "1GiB"}, 2, "add --device cuda"},
        {{"serve", "--device", "cpu", "--device-memory", "1GiB"}, 2, "add --device cuda"},
        {{"train", "--run", "x", "--log", "loud"}, 2, "unknown word 'loud'"},
        {{"node", "--memory", "1MiB"}, 2, "expected a size of at least 32MiB"},
        {{"train", "--run", "x", "--roll-back", "soon"}, 2, "expected an age, such as 10m"},
        {{"serve", "--run", "x", "--disk", "0"}, 2, "expected a size, such as 10GB"},
        {{"train", "--run", "x", "--log-format", "xml"}, 2, "expected text or json"},
        {{"serve", "--run", "x"}, 2, "--experts N or --experts PATTERN is required"},
        {{"serve", "--run", "x", "-e", "2", "-e", "ffn0.1.1"}, 2, "not both"},
        {{"serve", "--experts", "2"}, 2, "--run FILE is required"},
        {{"status", "--network", "x"}, 2, "--join HOST:PORT is required"},
        {{"status", "--network", "x", "--join", "127.0.0.1:1", "--wait", "soon"}, 2, "'soon'"},
        {{"node", "--threads", "0"}, 2, "from 1 to 1024"},
        {{"sim", "nothing"}, 2, "no question 'nothing'; expected one of: run, hunt, vary,"},
        {{"sim", "convergance"}, 2, "did you mean 'convergence'?"},
        {{"bench", "nothing"}, 2, "no question 'nothing'; expected one of: allreduce,"},
        {{"bench", "allreduce", "--n", "3"}, 2, "expected 2, 4 or 8"},
        {{"bench", "allreduce", "--bytes", "5KiB"}, 2, "4KiB, 4MiB or 64MiB"},
        {{"bench", "allreduce", "--format", "uniform8"}, 2, "fp32, fp16, bf16 or int8"},
        {{"sim", "shares", "--bandwidth", "0,0"}, 2, "at least one peer must reduce"},
        {{"sim", "shares", "--bandwidth", "0"}, 2, "at least one peer must reduce"},
        {{"sim", "averaging", "--latency", "5"}, 2, "--latency: needs --model protocol"},
        {{"sim", "averaging", "--model=protocol", "--mend", "1"}, 2, "needs --failure partition"},
        {{"sim", "averaging", "--model=protocol", "--failure=partition", "--mend", "4"},
         2,
         "at most the --pause"},
        {{"node", "--network", ""}, 2, "--network '': a name is 1 to 63 bytes"},
        {{"sim", "collab", "--trainers", "2", "--die", "2"}, 2, "at least one must stay"},
        {{"train", "--run", "x", "--client", "--up", "5"}, 2, "a --client reduces none"},
        {{"train", "--run", "x", "--client", "--announce", "h:1"}, 2, "--announce gives one"},
        {{"train", "--run", "x", "--local", "--client"}, 2, "so --client has no effect"},
        {{"train", "--run", "x", "--local", "--join", "h:1"}, 2, "so --join has no effect"},
        {{"train", "--run", "x", "--local", "--target", "9"}, 2, "so --target has no effect"},
        {{"train", "--run", "x", "--local", "--averaging", "off"},
         2,
         "so --averaging has no effect"},
        {{"train", "--run", "x", "--without-experts"}, 2, "add --local"},
        {{"node", "--up", "5"}, 2, "add --reduce"},
        {{"node", "--reduce", "--run", "/nonexistent.yaml"}, 3, "No such file"},
        {{"train", "--run", "/nonexistent.yaml"}, 3, "/nonexistent.yaml: No such file"},
        {{"serve", "--run", "/nonexistent.yaml", "-e", "1"}, 3, "No such file"},
        {{"status", "--run", "/nonexistent.yaml", "--join", "127.0.0.1:1"}, 3, "No such file"},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        char name[24];
        snprintf(name, sizeof(name), "case%zu", i);
        p->proc_count = 0; /* all before have ended */
        struct proc *proc = place_start(p, name, cases[i].args);
        int code = proc_wait(proc);
        if (code != cases[i].code)
            fail_msg("case %zu (%s %s) gave %d", i, cases[i].args[0], cases[i].text, code);
        proc_must_say(proc, cases[i].text);
        assert_int_equal(access(proc->out, F_OK), 0);
        char *out = place_read(proc->out, NULL);
        assert_string_equal(out, ""); /* talk goes to stderr */
        free(out);
    }
    place_end(p);
}

/* An option that has no effect in this run is a mistake of the command line, although it is found
 * only after the run file is read. */
PLACE_TEST(options_without_effect_are_refused)
{
    struct place *p = *state;
    struct toy t;
    static const struct {
        const char *mode, *flag[2], *text;
    } cases[] = {{"local", {"--target", "9"}, "add --averaging batch"},
                 {"off", {"--target", "9"}, "add --averaging batch"},
                 {"off", {"--bootstrap"}, "does not look for any"},
                 {"off", {"--up", "5"}, "there is none: leave it out"},
                 /* The run has no owner. */
                 {"local", {"--listen=0.0.0.0:0"}, "leads beyond this machine"},
                 {"local", {"--join=192.0.2.77:4700"}, "run 'toy' has no owner"},
                 {"local", {"--announce=192.0.2.77:4700"}, "--open-to-anyone"}};
    toy_init(&t, p, 2);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        char name[24];
        snprintf(name, sizeof(name), "flag%zu", i);
        struct proc *proc = START(p, name, "train", "--run", t.run, "--dir", place_path(p, "state"),
                                  "--averaging", cases[i].mode, cases[i].flag[0], cases[i].flag[1]);
        assert_int_equal(proc_wait(proc), 2);
        proc_must_say(proc, cases[i].text);
    }
    place_end(p);
}

/* All verbs refuse the same names, also those that need none: other peers use the run file, too. */
PLACE_TEST(bad_network_names_are_refused)
{
    struct place *p = *state;
    struct toy t;
    static const char *const bad[] = {"", "a/../b x", "a.b", "\x1b[31m"};
    toy_init(&t, p, 2);
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        const char *dir = place_path(p, "state"), *said = place_text(p, "--network '%s': ", bad[i]);
        const char *const train[] = {"train", "--local",   "--run", t.run, "--dir",
                                     dir,     "--network", bad[i],  NULL};
        const char *const serve[] = {"serve", "--run", t.run,       "--dir", dir,
                                     "-e",    "2",     "--network", bad[i],  NULL};
        struct proc *proc = place_start(p, "train", train);
        assert_int_equal(proc_wait(proc), 2);
        proc_must_say(proc, said);
        proc = place_start(p, "serve", serve);
        assert_int_equal(proc_wait(proc), 2);
        proc_must_say(proc, said);
    }
    assert_false(place_exists(p, "state"));
    place_end(p);
}

PLACE_TEST(help_goes_to_stdout)
{
    struct place *p = *state;
    static const char *const verbs[] = {"node",   "serve", "train",  "sim",
                                        "status", "bench", "version"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(verbs); i++) {
        struct proc *help = START(p, verbs[i], verbs[i], "--help");
        assert_int_equal(proc_wait(help), 0);
        char *out = place_read(help->out, NULL), *err = place_read(help->err, NULL);
        if (strstr(out, place_text(p, "hearth %s", verbs[i])) == NULL)
            fail_msg("hearth %s --help: %s", verbs[i], out);
        assert_string_equal(err, "");
        free(out);
        free(err);
    }
    for (size_t i = 0; i < 3; i++) {
        struct proc *help = START(p, "help", i == 0 ? "help" : i == 1 ? "--help" : "-h");
        assert_int_equal(proc_wait(help), 0);
        char *out = place_read(help->out, NULL);
        for (size_t v = 0; v < HTH_ARRAY_LEN(verbs); v++)
            assert_non_null(strstr(out, verbs[v]));
        free(out);
    }
    struct proc *of = START(p, "of", "help", "serve");
    assert_int_equal(proc_wait(of), 0);
    proc_must_say(of, "Usage: hearth serve");
    struct proc *version = START(p, "version", "--version");
    assert_int_equal(proc_wait(version), 0);
    proc_must_say(version, "hearth 0.1.0");
    place_end(p);
}

/* On a full disk the work continues and the exit code is a failure. */
PLACE_TEST(full_disk_gives_a_failure)
{
    struct place *p = *state;
    struct toy t;
    static const char *const to_stdout[] = {"sim shares --bandwidth 1,2 --json",
                                            "sim smoke --peers 4", "version", "train --help"};
    toy_init(&t, p, 20);
    for (size_t i = 0; i < HTH_ARRAY_LEN(to_stdout); i++) {
        const char *line =
            place_text(p, "exec '%s' %s > /dev/full", HTH_TEST_PROGRAM, to_stdout[i]);
        struct proc *proc =
            place_start_program(p, "/bin/sh", "shell", (const char *const[]){"-c", line, NULL});
        assert_int_equal(proc_wait(proc), 1);
        proc_must_say(proc, "writing to standard output failed");
    }
    struct proc *proc = START(p, "lines", "train", "--run", t.run, "--local", "--dir",
                              place_path(p, "state"), "--metrics", "/dev/full");
    assert_int_equal(proc_wait(proc), 1);
    proc_must_say(proc, "/dev/full: No space left on device; training continues");
    proc_must_say(proc, "20 updates");
    proc_must_say(proc, "lines could not be written");
    assert_true(place_exists(p, "state/trunk.safetensors"));
    assert_int_equal(mkdir(place_path(p, "taken"), 0700), 0);
    assert_int_equal(mkdir(place_path(p, "taken/trunk.safetensors"), 0700), 0);
    proc = START(p, "trunk", "train", "--run", t.run, "--local", "--dir", place_path(p, "taken"),
                 "--metrics", place_path(p, "trunk.jsonl"));
    assert_int_equal(proc_wait(proc), 1);
    proc_must_say(proc, "update 20 could not be saved to ");
    proc_must_say(proc, "taken/trunk.safetensors: ");
    struct toy_metrics m;
    toy_metrics_load(&t, "trunk", &m);
    assert_int_equal((int)toy_number(m.end, "code"), 1);
    toy_metrics_clear(&m);
    place_end(p);
}

/* A reader that closes the pipe, like `head`, is no error. Descriptor 4 is the only reader. */
PLACE_TEST(closed_pipe_is_no_error)
{
    struct place *p = *state;
    static const char *const verbs[] = {"version", "--help", "train --help"};
    assert_int_equal(mkfifo(place_path(p, "pipe"), 0600), 0);
    for (size_t i = 0; i < HTH_ARRAY_LEN(verbs); i++) {
        const char *line =
            place_text(p, "exec 4<>'%s' 5>'%s' 4<&-; exec '%s' %s >&5", place_path(p, "pipe"),
                       place_path(p, "pipe"), HTH_TEST_PROGRAM, verbs[i]);
        struct proc *proc =
            place_start_program(p, "/bin/sh", "shell", (const char *const[]){"-c", line, NULL});
        assert_int_equal(proc_wait(proc), 0);
        char *err = place_read(proc->err, NULL);
        assert_string_equal(err, "");
        free(err);
    }
    place_end(p);
}

/* If standard output is closed, no file of ours may get its descriptor and receive the output. */
PLACE_TEST(closed_output_gives_a_failure)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 2);
    const char *line = place_text(p, "exec '%s' train --local --run '%s' --dir '%s' >&-",
                                  HTH_TEST_PROGRAM, t.run, place_path(p, "state"));
    struct proc *proc =
        place_start_program(p, "/bin/sh", "shell", (const char *const[]){"-c", line, NULL});
    assert_int_equal(proc_wait(proc), 1);
    proc_must_say(proc, "writing to standard output failed");
    char *lock = place_read(place_path(p, "state/lock"), NULL), want[64];
    snprintf(want, sizeof(want), "hearth train, process %ld\n", (long)proc->pid);
    assert_string_equal(lock, want);
    free(lock);
    place_end(p);
}

/* Unknown or unfit instruction sets are refused; an empty one counts as not set. */
PLACE_TEST(wrong_instruction_sets_are_refused)
{
    struct place *p = *state;
    struct toy t;
    const char *tiles = hth_isa_why_not("amxbf16"); /* which of both is missing */
    const char *const cases[][3] = {{"abacus", "auto", "HEARTH_ISA=abacus"},
                                    {"amxbf16", "bf16", tiles},
                                    {"avx2", "bf16", "amxbf16 (bf16), or not set"},
                                    {"AVX2", "fp32", "HEARTH_ISA is generic, avx2"},
                                    {"", "tf32", "compute tf32 needs a card"}};
    toy_init(&t, p, 2);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        if (cases[i][2] == NULL) /* this processor has tiles */
            continue;
        assert_int_equal(setenv("HEARTH_ISA", cases[i][0], 1), 0);
        struct proc *proc = START(p, "wrong", "train", "--local", "--run", t.run, "--dir",
                                  place_path(p, "state"), "--compute", cases[i][1]);
        assert_int_not_equal(proc_wait(proc), 0);
        proc_must_say(proc, cases[i][2]);
        p->proc_count = 0;
    }
    assert_int_equal(setenv("HEARTH_ISA", "", 1), 0);
    struct proc *proc =
        START(p, "empty", "train", "--local", "--run", t.run, "--dir", place_path(p, "state"));
    assert_int_equal(proc_wait(proc), 0);
    unsetenv("HEARTH_ISA");
    place_end(p);
}

/* `hearth bench kernels` refuses unusable options in one sentence, before it measures. */
PLACE_TEST(wrong_kernels_are_refused)
{
    struct place *p = *state;
    static const char *const cases[][3] = {
        {"--rows=,", "--rows ','", NULL},
        {"--op=,", "--op ','", NULL},
        {"--op=ffn_forward,nonsense", "--op 'nonsense'", NULL},
        {"--isa=neon", "--isa 'neon'", NULL},
        {"--isa=generic", "no kernels for --isa generic --type tf32", "--type=tf32"},
        {"--device=cuda:0,cuda", "names a card twice", NULL},
        {"--device=cuda:1,cuda:2,cuda:1", "names a card twice", NULL},
        {"--device=cuda", "leave them out, or --device", "--op=adamw"},
        {"--device=cuda", "leave them out, or --device", "--isa=avx2"},
        {"--device=cuda", "leave them out, or --device", "--backend=ref"},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct proc *proc = START(p, "wrong", "bench", "kernels", "--python=no", cases[i][0],
                                  cases[i][2] != NULL ? cases[i][2] : "--json");
        int code = proc_wait(proc);
        assert_true(code != 0 && code < 128);
        proc_must_say(proc, cases[i][1]);
        char *err = place_read(proc->err, NULL);
        size_t sentences = 0;
        for (const char *line = err; line != NULL; line = strchr(line, '\n'), line += line != NULL)
            sentences += strncmp(line, "hearth", 6) == 0;
        if (sentences != 1)
            fail_msg("%s: %s", cases[i][0], err);
        free(err);
        p->proc_count = 0;
    }
    /* The same name twice is allowed. */
    struct proc *twice = START(p, "twice", "bench", "kernels", "--python=no", "--d=8", "--rows=1",
                               "--repeats=1", "--isa=generic", "--op=softmax,softmax");
    assert_int_equal(proc_wait(twice), 0);
    place_end(p);
}

static int run_with(struct place *p, const char *text, const char *say)
{
    place_write(p, "bad.yaml", text, strlen(text));
    struct proc *proc = START(p, "train", "train", "--local", "--run", place_path(p, "bad.yaml"),
                              "--dir", place_path(p, "state"));
    int code = proc_wait(proc);
    proc_must_say(proc, say);
    return code;
}

PLACE_TEST(wrong_run_files_are_named)
{
    struct place *p = *state;
    assert_int_equal(run_with(p, "run: a\nmodel:\n  dmi: 3\n", "unknown key 'dmi'"), 3);
    assert_int_equal(run_with(p, "run: a\nmodel:\n  dmi: 3\n", "did you mean 'model.dim'?"), 3);
    assert_int_equal(run_with(p, "", "at least 'run: NAME'"), 3);
    assert_int_equal(run_with(p, "run: a\ntrain: {k_min: 9}\n", "train.k_min is 9"), 3);
    assert_int_equal(run_with(p, "{{{{", "bad.yaml"), 3);
    char *huge = malloc(100001);
    memset(huge, '#', 100000);
    huge[100000] = '\0';
    assert_int_not_equal(run_with(p, huge, "at most 65536"), 0);
    free(huge);
    place_end(p);
}

PLACE_TEST(missing_and_damaged_data_are_named)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 10);
    struct proc *proc = START(p, "missing", "train", "--local", "--run", t.run, "--dir",
                              place_path(p, "state"), "--data", place_path(p, "nowhere"));
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, place_text(p, "%s/nowhere", p->root));
    proc_must_say(proc, "expected a text file, a folder that hearth data made");
    assert_false(place_exists(p, "state"));
    assert_int_equal(mkdir(place_path(p, "nowhere"), 0700), 0);
    proc = START(p, "empty", "train", "--local", "--run", t.run, "--dir", place_path(p, "state"),
                 "--data", place_path(p, "nowhere"));
    assert_int_equal(proc_wait(proc), 3);
    proc_must_say(proc, "give --data");
    size_t len;
    const char *name = "data/train-labels-idx1-ubyte.gz";
    char *labels = place_read(place_path(p, name), &len);
    place_write(p, name, labels, len / 2);
    free(labels);
    /* The fixed seed makes the trainer read the missing samples. */
    proc = START(p, "cut", "train", "--local", "--peer-seed", "1", "--run", t.run, "--dir",
                 place_path(p, "state"));
    assert_int_equal(proc_wait(proc), 1);
    proc_must_say(proc, "hearth: ");
    place_write(p, name, "not an idx file at all", 22);
    proc = START(p, "odd", "train", "--local", "--run", t.run, "--dir", place_path(p, "state"));
    assert_int_equal(proc_wait(proc), 1);
    proc_must_say(proc, hth_err_text(HTH_E_BAD_MAGIC));
    place_end(p);
}

PLACE_TEST(damaged_keys_are_named)
{
    struct place *p = *state;
    const char *addr = place_addr(p), *dir = place_path(p, "state");
    struct stat before, after;
    struct proc *node = START(p, "node", "node", "--listen", addr, "--dir", dir);
    proc_wait_text(node, "new key in");
    assert_int_equal(proc_stop(node), 0);
    assert_int_equal(stat(place_path(p, "state/key"), &before), 0);
    assert_int_equal(before.st_mode & 07777, 0600);

    assert_int_equal(chmod(place_path(p, "state/key"), 0644), 0);
    node = START(p, "open", "node", "--listen", addr, "--dir", dir);
    assert_int_equal(proc_wait(node), 3);
    proc_must_say(node, "other users may read it");
    proc_must_say(node, "chmod 600");
    assert_int_equal(stat(place_path(p, "state/key"), &after), 0);
    assert_int_equal(after.st_mtime, before.st_mtime);
    assert_int_equal(chmod(place_path(p, "state/key"), 0600), 0);

    size_t len;
    char *key = place_read(place_path(p, "state/key"), &len);
    key[len / 2] ^= 1;
    place_write(p, "state/key", key, len);
    free(key);
    node = START(p, "damaged", "node", "--listen", addr, "--dir", dir);
    assert_int_equal(proc_wait(node), 3);
    proc_must_say(node, "is damaged or is not a key");
    place_end(p);
}

/* A second process in a folder is refused and named the first; a killed one holds no lock. */
PLACE_TEST(folder_in_use_is_refused)
{
    struct place *p = *state;
    const char *dir = place_path(p, "state");
    struct toy t;
    toy_init(&t, p, 1000000);
    struct proc *first = START(p, "first", "train", "--local", "--run", t.run, "--dir", dir);
    proc_wait_text(first, "test after");
    const char *held = place_text(p, "the state folder %s is in use by hearth train, process %ld",
                                  dir, (long)first->pid);
    struct proc *second = START(p, "second", "train", "--local", "--run", t.run, "--dir", dir);
    assert_int_equal(proc_wait(second), 75);
    proc_must_say(second, held);
    proc_must_say(second, "give another --dir");
    struct proc *host = START(p, "host", "serve", "--run", t.run, "--listen", t.addr[2], "--dir",
                              dir, "--experts", "2");
    assert_int_equal(proc_wait(host), 75);
    proc_must_say(host, held);
    proc_signal(first, SIGKILL);
    proc_wait(first);
    struct proc *third = START(p, "third", "serve", "--run", t.run, "--listen", t.addr[2], "--dir",
                               dir, "--experts", "2");
    proc_wait_text(third, "serving 2 experts");
    assert_int_equal(proc_stop(third), 0);
    /* A lock file with any content that no process holds does not stop a start. */
    place_write(p, "state/lock", "\x1b[31mhearth\n", 12);
    third = START(p, "fourth", "node", "--listen", t.addr[2], "--dir", dir);
    proc_wait_text(third, "listening");
    place_end(p);
}

PLACE_TEST(port_in_use_is_refused)
{
    struct place *p = *state;
    const char *addr = place_addr(p);
    struct proc *first = START(p, "first", "node", "--listen", addr, "--dir", place_path(p, "a"));
    proc_wait_text(first, "listening");
    struct proc *second = START(p, "second", "node", "--listen", addr, "--dir", place_path(p, "b"));
    assert_int_equal(proc_wait(second), 4);
    proc_must_say(second, hth_err_text(HTH_E_ADDR_IN_USE));
    proc_must_say(second, "give another port with --listen");
    proc_must_say(second, addr);
    place_end(p);
}

PLACE_TEST(pattern_beyond_the_grid_is_refused)
{
    struct place *p = *state;
    struct toy t;
    static const char *const cases[][2] = {
        {"ffn0.[0:3].[0:4]", "reaches beyond the run's grid"},
        {"ffn0.[0:1]", "has not as many axes as the run's grid"},
        {"ffn7.[0:1].[0:4]", "the run has 1 layers"},
        {"ffn0.[", "or a pattern, such as 'ffn0.[0:4].3'"},
    };
    toy_init(&t, p, 10);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct proc *host = START(p, "host", "serve", "--run", t.run, "--listen", t.addr[2],
                                  "--dir", place_path(p, "h"), "--experts", cases[i][0]);
        assert_int_equal(proc_wait(host), 2);
        proc_must_say(host, cases[i][1]);
    }
    struct proc *host = START(p, "host", "serve", "--run", t.run, "--listen", t.addr[2], "--dir",
                              place_path(p, "h"), "--experts", "2", "--backend", "abacus");
    assert_int_equal(proc_wait(host), 2);
    proc_must_say(host, "'abacus'");
    assert_false(place_exists(p, "h")); /* no key was made */
    place_end(p);
}

PLACE_TEST(corrupt_checkpoint_is_named_and_kept)
{
    struct place *p = *state;
    struct toy t;
    size_t len, len_after;
    const char *bad = "host0/experts/ffn0.0.1.safetensors";
    toy_init(&t, p, 300);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_trainer(&t, "trainer", NULL);
    assert_int_equal(proc_wait(t.trainer), 0);
    assert_int_equal(proc_stop(t.host[0]), 0);
    assert_int_equal(place_count(p, "host0/experts", ".safetensors"), 4);

    char *content = place_read(place_path(p, bad), &len);
    place_write(p, bad, content, len / 2);
    struct proc *host = START(p, "host0", "serve", "--run", t.run, "--join", t.addr[1], "--listen",
                              t.addr[2], "--dir", place_path(p, "host0"), "--experts", TOY_HALF_1);
    proc_wait_text(host, "serving 3 experts (3 from checkpoints)");
    proc_must_say(host, "expert ffn0.0.1");
    proc_must_say(host, place_text(p, "%s: a file's content is damaged", place_path(p, bad)));
    proc_must_say(host, "the file is left as it is");
    assert_int_equal(proc_stop(host), 0);
    char *after = place_read(place_path(p, bad), &len_after);
    assert_int_equal(len_after, len / 2);
    assert_memory_equal(content, after, len_after);
    free(content);
    free(after);

    /* A damaged trunk is refused, too, and not changed. */
    place_write(p, "trainer/trunk.safetensors", "\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
    struct proc *trainer = START(p, "resume", "train", "--local", "--run", t.run, "--resume",
                                 "--dir", place_path(p, "trainer"));
    assert_int_equal(proc_wait(trainer), 1);
    proc_must_say(trainer,
                  place_text(p,
                             "hearth: checkpoint %s: larger than the limit; put good copies there",
                             place_path(p, "trainer/trunk.safetensors")));
    place_end(p);
}
