/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the table of verbs. */
#define _DEFAULT_SOURCE /* on_exit */
#include "cli/cli.h"
#include "core/guess.h"
#include "core/map.h"
#include "core/mem.h"
#include "net/identity.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
    bool secret; /* it holds keys, or an invite */
};

static const struct verb verbs[] = {
    {"node", hth_verb_node, "help peers find each other; with --reduce, compute averages", true},
    {"serve", hth_verb_serve, "host experts for a run", true},
    {"train", hth_verb_train, "train a run's model on your data, with the swarm's experts", true},
    {"status", hth_verb_status, "list a swarm's hosts, experts and load", true},
    {"monitor", hth_verb_monitor, "show a run on a page: loss, speed, who takes part", true},
    {"watch", hth_verb_watch, "watch a run on the terminal: loss, peers, experts, events", true},
    {"owner", hth_verb_owner, "close a run: make its owner's key, and invites", true},
    {"invite", hth_verb_invite, "show what an invite is for", true},
    {"data", hth_verb_data, "make a data set from your own files, and show one", false},
    {"new", hth_verb_new, "write the run file of a data set, with sizes that fit", false},
    {"run", hth_verb_run, "check a run file: every key, and the size of experts and trunk", false},
    {"write", hth_verb_write, "continue a text with a trained model", false},
    {"fill", hth_verb_fill, "fill in the masked words of a text", false},
    {"draw", hth_verb_draw, "draw pictures from a caption", false},
    {"predict", hth_verb_predict, "name the classes that a trained model sees in pictures", false},
    {"eval", hth_verb_eval, "compute a trained model's loss on a data set", false},
    {"plot", hth_verb_plot, "draw the loss of runs", false},
    {"export", hth_verb_export, "write a trained model as a folder that others can use", false},
    {"import", hth_verb_import, "make such a folder the start of a run", false},
    {"sim", hth_verb_sim, "simulate a swarm: the same code on a virtual clock", false},
    {"bench", hth_verb_bench, "measure this machine and this build", false},
    {"devices", hth_verb_devices, "list the devices that can compute, and why others are not used",
     false},
    {"version", hth_verb_version, "print the version and how this program was built", false},
};

static void print_usage(FILE *to)
{
    fputs("usage: hearth VERB [options]      hearth VERB --help      hearth help run-file\n\n", to);
    for (size_t i = 0; i < HTH_ARRAY_LEN(verbs); i++)
        fprintf(to, "  %-8s %s\n", verbs[i].name, verbs[i].what);
    fputs("\nexamples:\n"
          "  hearth serve --run runs/fashion.yaml --own --experts 8\n"
          "  hearth serve --invite @ana.invite --experts 8\n"
          "  hearth train --invite @ana.invite\n",
          to);
}

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(verbs); i++) {
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    }
    return NULL;
}

/* Keys the maps' hash. Without a key strangers could choose ids that collide and slow every access;
 * that is no reason to refuse to start. */
static void keep_map_secret(void)
{
    struct hth_secret secret;
    uint64_t half[2];
    if (hth_identity_random(&secret) != HTH_OK)
        return;
    memcpy(half, secret.b, sizeof(half));
    hth_map_secret(half);
}

/* A crash must not write a key into a file, nor into the pipe of a collector of crashes: of this
 * process a core has registers and headers, and no memory. */
static void keep_secrets_from_cores(void)
{
    static const char headers[] = "0x10";
    const struct rlimit none = {0, 0};
    int fd = open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, headers, strlen(headers)) < 0)
        setrlimit(RLIMIT_CORE, &none);
    if (fd >= 0)
        close(fd);
}

/* Opens descriptors 0, 1 and 2 if the parent closed them. Else the next file or socket would get
 * that number and receive the program's output. A write to the replacement fails. */
static void keep_std_fds(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(HTH_EXIT_FAILURE);
}

/* Whether standard output is a pipe whose reading end is closed. */
static bool reader_left(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/* Turns lost output into a failing exit code, which scripts rely on. Runs at every exit, because
 * argp exits by itself after --help. A reader that closed the pipe, like `head`, has all it
 * wants. */
static void check_stdout(int code, void *arg)
{
    (void)arg;
    bool bad = fflush(stdout) != 0;
    if ((!bad && ferror(stdout) == 0) || reader_left())
        return;
    hth_cli_say_error("writing to standard output failed: the output is incomplete");
    fflush(NULL);
    _exit(code == HTH_EXIT_OK ? HTH_EXIT_FAILURE : code);
}

int main(int argc, char **argv)
{
    /* A write to a closed connection must return an error, not end the program. */
    signal(SIGPIPE, SIG_IGN);
    keep_std_fds();
    on_exit(check_stdout, NULL);
    keep_map_secret();
    argp_err_exit_status = HTH_EXIT_USAGE;
    if (argc < 2) {
        print_usage(stdout);
        return HTH_EXIT_OK;
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        if (argc == 2) {
            print_usage(stdout);
            return HTH_EXIT_OK;
        }
        if (strcmp(argv[2], "run-file") == 0)
            return hth_help_run_file();
        static char option[] = "--help";
        argc = 3;
        argv[1] = argv[2];
        argv[2] = option;
    }
    const char *name = strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
    const struct verb *verb = find_verb(name);
    if (verb == NULL) {
        char hint[160];
        hth_cli_say_error("no verb '%s'%s", name,
                          hth_guess_text(name, verbs, sizeof(verbs[0]), HTH_ARRAY_LEN(verbs), hint,
                                         sizeof(hint)));
        return HTH_EXIT_USAGE;
    }
    if (verb->secret)
        keep_secrets_from_cores();
    char *program = hth_asprintf("hearth %s", verb->name);
    argv[1] = program;
    int code = verb->run(argc - 1, argv + 1);
    hth_free(program);
    return code;
}
