/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h: what all verbs of the program share: exit codes, common flags, sizes and times as people
 * write them, and how things are said. Data goes to standard output, talk to standard error.
 *
 * A verb is one function and one line in main.c's table. Its flags are parsed by glibc's argp, with
 * the groups below as children.
 */
#ifndef HTH_CLI_CLI_H
#define HTH_CLI_CLI_H

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
    HTH_EXIT_AGAIN = 75,
    HTH_EXIT_INTERRUPTED = 130,
};

/* The code that tells a script what kind of error this was. */
int hth_exit_of(enum hth_err err);

#define HTH_CLI_JOIN_MAX 16

/* Flags of every verb that talks to a swarm. */
struct hth_cli_net {
    const char *listen;   /* ADDR:PORT for TCP and UDP */
    const char *announce; /* address told to others; NULL: the one listened on */
    const char *join[HTH_CLI_JOIN_MAX];
    size_t join_count;
    const char *network;       /* swarm's name; NULL: the run file's */
    const char *dir;           /* state: key, peers, checkpoints */
    uint32_t threads;          /* compute; 0: cores - 1 */
    const char *status_listen; /* HTTP status page; NULL: off */
};

struct hth_cli_log {
    const char *spec;
    bool json;
};

/* argp children: `input` in child_inputs is the struct of the same name. */
extern const struct argp hth_cli_net_argp;
extern const struct argp hth_cli_log_argp;

/* Applies --log and --log-format. Errors: E_USAGE, said on stderr. */
enum hth_err hth_cli_log_apply(const struct hth_cli_log *flags, struct hth_log *log) HTH_MUST;

/* Numbers as people write them: "64MiB", "1.5GB", "2000"; "30s", "250ms", "2h". Whole text or
 * E_USAGE. */
enum hth_err hth_cli_parse_u64(const char *text, uint64_t min, uint64_t max,
                               uint64_t *out) HTH_MUST;
enum hth_err hth_cli_parse_size(const char *text, uint64_t *bytes) HTH_MUST;
enum hth_err hth_cli_parse_time(const char *text, int64_t *time_us) HTH_MUST;

/* For argp parsers: argp_error with the flag's name unless the text is a number in range. */
uint64_t hth_cli_number(struct argp_state *state, const char *flag, const char *text, uint64_t min,
                        uint64_t max);

/* What all bodies of all peers may hold on a machine with that much memory: a quarter of it, and
 * never less than HTH_APP_BODIES_BYTES_MIN. */
int64_t hth_cli_bodies_bytes(int64_t memory_bytes);

/* "1.2 MB", "12.3 k": for reports. out has 16 bytes. */
const char *hth_cli_bytes_text(double bytes, char out[16]);

/* "hearth: what" on stderr. */
void hth_cli_say_error(const char *fmt, ...) HTH_PRINTF(1, 2);

/* Where state lives by default: $XDG_STATE_HOME/hearth or ~/.local/state/hearth; heap string. */
char *hth_cli_default_dir(void);

/* The verbs. Each gets its own argv (argv[0] is "hearth VERB") and returns an exit code. */
int hth_verb_node(int argc, char **argv);
int hth_verb_serve(int argc, char **argv);
int hth_verb_train(int argc, char **argv);
int hth_verb_sim(int argc, char **argv);
int hth_verb_bench(int argc, char **argv);
int hth_verb_status(int argc, char **argv);
int hth_verb_devices(int argc, char **argv);
int hth_verb_version(int argc, char **argv);

#endif
