/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h: the parts that all verbs share: exit codes, common options, sizes and times as people
 * write them, and error messages. Data goes to standard output, messages to standard error.
 *
 * A verb is one function and one line in the table of app/main.c. glibc's argp parses its options,
 * with the groups below as children.
 *
 * Main thread.
 */
#ifndef HTH_CLI_CLI_H
#define HTH_CLI_CLI_H

#include "admission/invite.h"
#include "cli/say.h"
#include "core/env.h"

#include <argp.h>

/* Exit codes, also in docs/operations.md. */
enum hth_exit {
    HTH_EXIT_OK = 0,
    HTH_EXIT_FAILURE = 1,
    HTH_EXIT_USAGE = 2,
    HTH_EXIT_CONFIG = 3,
    HTH_EXIT_NETWORK = 4,
    HTH_EXIT_DEVICE = 5,
    HTH_EXIT_ADMISSION = 6,
    HTH_EXIT_AGAIN = 75,
    HTH_EXIT_INTERRUPTED = 130,
};

/* The exit code for this error. */
int hth_exit_of(enum hth_err err);

#define HTH_CLI_JOIN_MAX 16

/* Options of every verb that joins a swarm. Strings are borrowed from argv. */
struct hth_cli_net {
    const char *listen;   /* ADDR:PORT for TCP and UDP */
    const char *announce; /* where others dial us; NULL: the address we listen on */
    const char *join[HTH_CLI_JOIN_MAX];
    size_t join_count;
    bool once;                 /* end when no peer to join answers; else try on */
    const char *network;       /* name of the swarm; NULL: the run file's */
    const char *dir;           /* state folder; NULL: one below hth_cli_default_dir() */
    uint32_t threads;          /* compute threads; 0: cores - 1 */
    const char *status_listen; /* address of the HTTP status page; NULL: off */
    bool open_to_anyone;       /* a run without an owner may leave this machine */
    bool invited;
    struct hth_invite invite; /* of --invite, or of this machine to itself */
    bool own;                 /* the run begins here: app/own.h */
    bool hidden;              /* with own: as a private one */
    struct hth_invite share;  /* with own: for others */
};

struct hth_cli_log {
    const char *spec;
    bool json;
};

/* Whether the options name a swarm to join. */
static inline bool hth_cli_joins(const struct hth_cli_net *net)
{
    return net->join_count > 0 || net->invited;
}

/* argp children; the input of each is the struct of the same name. The second is the first for
 * those that only dial, and use the folder of another process. */
extern const struct argp hth_cli_net_argp;
extern const struct argp hth_cli_dial_argp;
extern const struct argp hth_cli_log_argp;

/* Applies --log and --log-format; lines go through hth_say_log. Errors: E_USAGE, printed. */
enum hth_err hth_cli_log_apply(const struct hth_cli_log *flags, struct hth_log *log) HTH_MUST;

/* Parse numbers as people write them: "64MiB", "1.5GB", "2000"; "30s", "250ms", "2h". Errors:
 * E_USAGE, if any part of the text does not belong to the number. */
enum hth_err hth_cli_parse_u64(const char *text, uint64_t min, uint64_t max,
                               uint64_t *out) HTH_MUST;
enum hth_err hth_cli_parse_size(const char *text, uint64_t *bytes) HTH_MUST;
enum hth_err hth_cli_parse_time(const char *text, int64_t *time_us) HTH_MUST;

/* Checks a HOST:PORT in an argp parser, with an IPv6 address in brackets and a port of at least
 * `least`; calls argp_error, which shows the example, if it is none. Asks no resolver. */
void hth_cli_check_host(struct argp_state *state, const char *flag, const char *text,
                        uint16_t least, const char *example);
/* Reads what may not stand on a command line: the text itself, or @FILE, or - for standard input.
 * Cuts nothing: a longer one is E_TOO_LARGE. Errors: those of files. */
enum hth_err hth_cli_secret(const char *arg, char *out, size_t max, size_t *len) HTH_MUST;
/* Reads an invite so; on an error *why is a sentence. Errors: those of hth_invite_read too. */
enum hth_err hth_cli_invite(const char *arg, struct hth_invite *out, const char **why) HTH_MUST;
/* Takes an --invite in an argp parser; calls argp_error if it is none. */
void hth_cli_take_invite(struct argp_state *state, const char *arg, struct hth_cli_net *net);
/* Checks a folder, which may be missing, in the same way. */
void hth_cli_check_folder(struct argp_state *state, const char *flag, const char *path,
                          const char *example);
/* Prints why the resolver gave no address for that HOST:PORT. */
void hth_cli_say_unresolved(const char *flag, const char *text, enum hth_err err);

/* Parses a whole number in an argp parser; calls argp_error if it is none or out of range. */
uint64_t hth_cli_number(struct argp_state *state, const char *flag, const char *text, uint64_t min,
                        uint64_t max);

/* The budget for message bodies of all peers together on a machine with that much memory: a quarter
 * of it, and at least HTH_APP_BODIES_BYTES_MIN. */
int64_t hth_cli_bodies_bytes(int64_t memory_bytes);

/* "1.23 MB" or "12.3 kB", for reports. Returns out. */
const char *hth_cli_bytes_text(double bytes, char out[16]);

/* "1,203,200". Returns out. */
const char *hth_cli_count_text(uint64_t n, char out[32]);
/* "0.4 s", "12 s", "5 min", "3.2 h", "12 d". Returns out. */
const char *hth_cli_span_text(int64_t span_us, char out[16]);

/* The folder of the default state folders: $XDG_STATE_HOME/hearth or ~/.local/state/hearth; heap
 * string. */
char *hth_cli_default_dir(void);

/* One question of `hearth sim` or `hearth bench`. */
struct hth_question {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *takes; /* on two cores, with its defaults: "about 2 min" */
    const char *what;
};
/* Runs the question that argv[1] names, with its own argv, or lists all; with --help it first
 * prints how long the question takes. Returns an exit code. */
int hth_cli_ask(const struct hth_question *all, size_t count, const char *examples, int argc,
                char **argv);

/* The verbs. Each gets its own argv (argv[0] is "hearth VERB") and returns an exit code. */
int hth_verb_owner(int argc, char **argv);
int hth_verb_invite(int argc, char **argv);
int hth_verb_node(int argc, char **argv);
int hth_verb_serve(int argc, char **argv);
int hth_verb_train(int argc, char **argv);
int hth_verb_new(int argc, char **argv);
int hth_verb_run(int argc, char **argv);
/* hearth help run-file: every key of a run file. */
int hth_help_run_file(void);
int hth_verb_data(int argc, char **argv);
int hth_verb_plot(int argc, char **argv);
int hth_verb_export(int argc, char **argv);
int hth_verb_import(int argc, char **argv);
int hth_verb_sim(int argc, char **argv);
int hth_verb_bench(int argc, char **argv);
int hth_verb_draw(int argc, char **argv);
int hth_verb_eval(int argc, char **argv);
int hth_verb_fill(int argc, char **argv);
int hth_verb_predict(int argc, char **argv);
int hth_verb_write(int argc, char **argv);
int hth_verb_status(int argc, char **argv);
int hth_verb_monitor(int argc, char **argv);
int hth_verb_devices(int argc, char **argv);
int hth_verb_version(int argc, char **argv);
int hth_verb_watch(int argc, char **argv);

#endif
