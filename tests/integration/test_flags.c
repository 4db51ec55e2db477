/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_flags.c: a wrong value of any option of any verb ends the program with code 2 before
 * anything is made, and the text says what is expected. The options come from --help, so that a new
 * one is tried, too.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX 12

/* A verb with all that it requires besides the option that is tried. "RUN" stands for a good run
 * file, "VARY" for a scenario with $up. */
struct verb {
    const char *words[WORDS_MAX];
    size_t name; /* words that --help needs */
};

static const struct verb verbs[] = {
    {{"node"}, 1},
    {{"serve", "--run", "RUN", "--experts", "2"}, 1},
    {{"train", "--run", "RUN"}, 1},
    {{"status", "--join", "127.0.0.1:1"}, 1},
    {{"monitor", "--join", "127.0.0.1:1"}, 1},
    {{"watch", "--join", "127.0.0.1:1"}, 1},
    {{"owner", "list"}, 1},
    {{"devices"}, 1},
    {{"data", "folder", "RUN"}, 1},
    {{"sim", "run", "calm"}, 2},
    {{"sim", "hunt", "calm"}, 2},
    {{"sim", "vary", "VARY", "--vary", "up=1,2"}, 2},
    {{"sim", "smoke"}, 2},
    {{"sim", "latency"}, 2},
    {{"sim", "throughput"}, 2},
    {{"sim", "convergence"}, 2},
    {{"sim", "storm"}, 2},
    {{"sim", "churn"}, 2},
    {{"sim", "places"}, 2},
    {{"sim", "dht"}, 2},
    {{"sim", "fidelity"}, 2},
    {{"sim", "averaging", "--model", "protocol"}, 2},
    {{"sim", "mixing"}, 2},
    {{"sim", "shares", "--bandwidth", "1,2"}, 2},
    {{"sim", "links", "--bandwidth", "1,2"}, 2},
    {{"sim", "collab", "--seeds", "1"}, 2},
    {{"bench", "allreduce"}, 2},
    {{"bench", "expert"}, 2},
    {{"bench", "gate"}, 2},
    {{"bench", "kernels"}, 2},
    {{"bench", "monitor"}, 2},
    {{"bench", "peers"}, 2},
    {{"bench", "profile"}, 2},
    {{"bench", "step"}, 2},
    {{"bench", "tls"}, 2},
};

/* Options of all benchmarks, which one of them tries. */
static bool is_shared(const struct verb *v, const char *flag)
{
    static const char *const shared[] = {"log",     "log-format", "device",  "device-memory",
                                         "compute", "backend",    "repeats", "wire"};
    bool first = v->words[1] != NULL && strcmp(v->words[1], "allreduce") == 0;
    for (size_t i = 0; i < HTH_ARRAY_LEN(shared); i++)
        if (strcmp(v->words[0], "bench") == 0 && !first && strcmp(flag, shared[i]) == 0)
            return true;
    return false;
}

/* Options that take any text: a file that is read or written later, a name of the reader's own. */
static bool takes_any(const struct verb *v, const char *flag, const char *kind)
{
    bool own = strcmp(v->words[0], "node") == 0 || strcmp(v->words[0], "serve") == 0 ||
               strcmp(v->words[0], "train") == 0 || strcmp(v->words[0], "status") == 0 ||
               strcmp(v->words[0], "monitor") == 0;
    if (strcmp(kind, "FILE") == 0)
        return strcmp(flag, "metrics") != 0;
    if (!own && (strcmp(kind, "DIR") == 0 || strcmp(kind, "PATH") == 0))
        return true;
    return strcmp(kind, "PROGRAM") == 0 || strcmp(kind, "TEXT") == 0 ||
           (!own && strcmp(flag, "name") == 0);
}

/* Finds the next "--flag=KIND" at the begin of a line, after blanks and a short form. */
static bool next_flag(const char **at, char flag[32], char kind[32])
{
    for (const char *line = *at; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *word = line + strspn(line, " ");
        if (word == line)
            continue;
        if (word[0] == '-' && word[1] != '-' && word[2] == ',')
            word += 4;
        size_t len = strncmp(word, "--", 2) == 0 ? strcspn(word, "= \n") : 0;
        if (len == 0 || word[len] != '=' || len >= 32)
            continue;
        snprintf(flag, 32, "%.*s", (int)len - 2, word + 2);
        snprintf(kind, 32, "%.*s", (int)strcspn(word + len + 1, " \n"), word + len + 1);
        *at = word;
        return true;
    }
    return false;
}

static bool is_explained(const char *err)
{
    return strstr(err, "such as") != NULL || strstr(err, "expected") != NULL;
}

/* Nothing on the disk; the text names the option. */
static void try_flag(struct place *p, const struct verb *v, const char *run, const char *flag,
                     const char *value)
{
    static size_t tries; /* names their output */
    const char *args[WORDS_MAX + 2] = {NULL};
    size_t n = 0;
    p->proc_count = 0;
    for (; v->words[n] != NULL; n++)
        args[n] = strcmp(v->words[n], "RUN") == 0    ? run
                  : strcmp(v->words[n], "VARY") == 0 ? place_path(p, "vary.yaml")
                                                     : v->words[n];
    args[n] = place_text(p, "--%s=%s", flag, value);
    struct proc *proc = place_start(p, place_text(p, "try%zu", tries++), args);
    int code = proc_wait(proc);
    char *err = place_read(proc->err, NULL), *out = place_read(proc->out, NULL);
    if (code != 2 || !is_explained(err) || strstr(err, place_text(p, "--%s", flag)) == NULL)
        fail_msg("hearth %s %s --%s='%s' gave %d: %s", v->words[0],
                 v->words[1] != NULL ? v->words[1] : "", flag, value, code, err);
    assert_string_equal(out, "");
    free(err);
    free(out);
}

PLACE_TEST(every_flag_refuses_nonsense)
{
    struct place *p = *state;
    struct toy t;
    static const char scenario[] = "name: v\nnodes: 4\nduration_s: 60\n"
                                   "churn: {kind: poisson, up_s: [$up, $up], down_s: [9, 9]}\n";
    size_t tried = 0;
    toy_init(&t, p, 2);
    place_write(p, "vary.yaml", scenario, strlen(scenario));
    setenv("XDG_STATE_HOME", place_path(p, "state"), 1);
    for (size_t i = 0; i < HTH_ARRAY_LEN(verbs); i++) {
        const char *help[4] = {verbs[i].words[0], "--help"};
        char flag[32], kind[32];
        if (verbs[i].name == 2) {
            help[1] = verbs[i].words[1];
            help[2] = "--help";
        }
        p->proc_count = 0;
        struct proc *proc = place_start(p, place_text(p, "help%zu", i), help);
        assert_int_equal(proc_wait(proc), 0);
        char *text = place_read(proc->out, NULL);
        const char *at = text;
        if (verbs[i].name == 2) /* a question */
            assert_true(strncmp(text, "Takes ", 6) == 0 && strstr(text, "on two cores") != NULL);
        for (; next_flag(&at, flag, kind); tried++) {
            if (takes_any(&verbs[i], flag, kind) || is_shared(&verbs[i], flag))
                continue;
            bool names_a_file = strcmp(kind, "DIR") == 0 || strcmp(kind, "FILE") == 0;
            try_flag(p, &verbs[i], t.run, flag, names_a_file ? "" : "a b");
            if (!names_a_file && (verbs[i].name == 1 || strchr(kind, ',') != NULL))
                try_flag(p, &verbs[i], t.run, flag, "");
        }
        free(text);
    }
    assert_true(tried > 100);
    assert_false(place_exists(p, "state"));
    unsetenv("XDG_STATE_HOME");
    place_end(p);
}

PLACE_TEST(wrong_values_show_an_example)
{
    struct place *p = *state;
    struct toy t;
    static const struct {
        size_t verb;
        const char *flag, *value, *text;
    } cases[] = {
        {1, "experts", "eight", "expected a number from 1 to 65536, such as 8, or a pattern"},
        {1, "experts", "0", "such as 'ffn0.[0:4].3'"},
        {1, "announce", "1.2.3.4", "expected an address and a port, such as 203.0.113.5:4700"},
        {1, "announce", "1.2.3.4:0", "such as 203.0.113.5:4700"},
        {0, "listen", "4700", "expected an address and a port, such as 0.0.0.0:4700"},
        {0, "listen", "0.0.0.0:70000", "such as 0.0.0.0:4700"},
        {0, "listen", "::1:4700", "such as 0.0.0.0:4700"},
        {3, "wait", "2", "expected a time such as 500ms or 5s"},
        {2, "join", "foo", "expected an address and a port, such as example.org:4700"},
        {2, "join", "1.2.3.400:1", "such as example.org:4700"},
        {2, "join", "example.org:0", "such as example.org:4700"},
        {0, "status", "x", "expected a loopback address and a port, such as 127.0.0.1:8080"},
        {0, "status", "192.0.2.1:80", "such as 127.0.0.1:8080"},
        {0, "status", "0.0.0.0:8080", "such as 127.0.0.1:8080"},
        {0, "threads", "none", "from 1 to 1024, such as 8"},
        {0, "network", "a/b", "direction marks and . / \\ [ ], such as fashion-2"},
        {0, "dir", "", "expected a folder, such as ~/.local/state/hearth"},
        {0, "dir", "/dev/null/x", "a part of that path is not a folder"},
        {0, "dir", "/dev/null", "a part of that path is not a folder"},
        {2, "data", "/nonexistent", "No such file or directory; expected a text file"},
        {2, "metrics", "/nonexistent/m", "expected a file in a folder that exists"},
        {2, "backend", "abacus", "expected auto, packed, blas or ref"},
        {2, "log", "loud", "expected levels, such as info"},
        {6, "passphrase", "sesame", "expected @FILE or -: others can read a command line"},
        {6, "as", "@/nonexistent", "expected hearth1.TEXT, @FILE or -, such as @dora.deputy"},
        {6, "silence", "never", "a whole number from 0 to 3650"},
    };
    toy_init(&t, p, 2);
    setenv("XDG_STATE_HOME", place_path(p, "state"), 1);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        try_flag(p, &verbs[cases[i].verb], t.run, cases[i].flag, cases[i].value);
        proc_must_say(&p->proc[0], cases[i].text);
    }
    assert_false(place_exists(p, "state"));
    unsetenv("XDG_STATE_HOME");
    place_end(p);
}

/* No such name exists (RFC 6761), with a resolver and without one. */
PLACE_TEST(names_without_address_ask_for_the_internet)
{
    struct place *p = *state;
    setenv("RES_OPTIONS", "timeout:1 attempts:1", 1);
    struct proc *proc = START(p, "lost", "status", "--join", "nobody.invalid:4700");
    assert_int_equal(proc_wait(proc), 4);
    proc_must_say(proc, "no address found for nobody.invalid: is this machine on the internet?");
    unsetenv("RES_OPTIONS");
    place_end(p);
}
