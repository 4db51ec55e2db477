/* SPDX-License-Identifier: Apache-2.0 */
/* cli.c: options, numbers, exit codes and messages of all verbs. */
#include "cli/cli.h"

#include "core/guess.h"
#include "core/limits.h"
#include "core/mem.h"
#include "dht/uid.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXAMPLE_NUMBER UINT64_C(8)

int hth_exit_of(enum hth_err err)
{
    switch (err) {
    case HTH_OK:
        return HTH_EXIT_OK;
    case HTH_E_USAGE:
        return HTH_EXIT_USAGE;
    case HTH_E_CONFIG:
    case HTH_E_BAD_KEY:
    case HTH_E_OTHER_SETTINGS:
        return HTH_EXIT_CONFIG;
    case HTH_E_NO_DEVICE:
    case HTH_E_UNSUPPORTED:
        return HTH_EXIT_DEVICE;
    case HTH_E_UNREACHABLE:
    case HTH_E_REFUSED:
    case HTH_E_ADDR_IN_USE:
    case HTH_E_NOT_FOUND:
    case HTH_E_JOIN_NOTHING_LISTENS:
    case HTH_E_JOIN_UDP_CLOSED:
    case HTH_E_JOIN_WRONG_NETWORK:
    case HTH_E_JOIN_CLOCK:
    case HTH_E_JOIN_VERSION:
        return HTH_EXIT_NETWORK;
    case HTH_E_NOT_ADMITTED:
    case HTH_E_PASS_EXPIRED:
    case HTH_E_PASS_EARLY:
    case HTH_E_PASS_OTHER_RUN:
    case HTH_E_PASS_OTHER_KEY:
    case HTH_E_PASS_REVOKED:
    case HTH_E_PASS_ROLE:
    case HTH_E_PASS_FORGED:
        return HTH_EXIT_ADMISSION;
    case HTH_E_CANCELED:
        return HTH_EXIT_INTERRUPTED;
    default:
        return hth_err_class(err) == HTH_CLASS_RETRY ? HTH_EXIT_AGAIN : HTH_EXIT_FAILURE;
    }
}

/* ---- numbers ------------------------------------------------------------------------------- */

enum hth_err hth_cli_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return HTH_E_USAGE;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < min || value > max)
        return HTH_E_USAGE;
    *out = value;
    return HTH_OK;
}

struct unit {
    const char *name;
    double factor;
};

/* Parses a non-negative decimal number and one of the units. */
static enum hth_err parse_with_unit(const char *text, const struct unit *units, size_t count,
                                    double *out)
{
    char *end;
    if ((text[0] < '0' || text[0] > '9') && text[0] != '.')
        return HTH_E_USAGE;
    double value = strtod(text, &end);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(end, units[i].name) == 0 && isfinite(value)) {
            *out = value * units[i].factor;
            return *out < 9e18 ? HTH_OK : HTH_E_USAGE;
        }
    }
    return HTH_E_USAGE;
}

enum hth_err hth_cli_parse_size(const char *text, uint64_t *bytes)
{
    static const struct unit units[] = {
        {"", 1},       {"B", 1},         {"kB", 1e3},           {"MB", 1e6}, {"GB", 1e9},
        {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824.0}, {"k", 1e3},  {"M", 1e6},
    };
    double value;
    HTH_TRY(parse_with_unit(text, units, HTH_ARRAY_LEN(units), &value));
    *bytes = (uint64_t)value;
    return HTH_OK;
}

enum hth_err hth_cli_parse_time(const char *text, int64_t *time_us)
{
    static const struct unit units[] = {
        {"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}};
    double value;
    HTH_TRY(parse_with_unit(text, units, HTH_ARRAY_LEN(units), &value));
    *time_us = (int64_t)value;
    return HTH_OK;
}

uint64_t hth_cli_number(struct argp_state *state, const char *flag, const char *text, uint64_t min,
                        uint64_t max)
{
    uint64_t value = 0;
    if (hth_cli_parse_u64(text, min, max, &value) != HTH_OK)
        argp_error(state, "%s '%s': it must be a whole number from %llu to %llu, such as %llu",
                   flag, text, (unsigned long long)min, (unsigned long long)max,
                   (unsigned long long)HTH_MIN(HTH_MAX(EXAMPLE_NUMBER, min), max));
    return value;
}

/* ---- addresses ----------------------------------------------------------------------------- */

static bool is_host_port(const char *text, uint16_t least)
{
    char host[256], port[32];
    struct hth_addr addr;
    const char *colon = strrchr(text, ':');
    if (hth_addr_parse(text, &addr) == HTH_OK)
        return addr.port >= least;
    if (colon == NULL || colon == text || (size_t)(colon - text) >= sizeof(host))
        return false;
    snprintf(port, sizeof(port), "0.0.0.0%s", colon);
    snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
    if (hth_addr_parse(port, &addr) != HTH_OK || addr.port < least)
        return false;
    /* Digits and dots that are no address are a mistyped one. */
    return strpbrk(host, ":[]/ ") == NULL && host[strspn(host, "0123456789.")] != '\0';
}

void hth_cli_check_host(struct argp_state *state, const char *flag, const char *text,
                        uint16_t least, const char *example)
{
    if (!is_host_port(text, least))
        argp_error(state, "%s '%s': expected an address and a port, such as %s", flag, text,
                   example);
}

void hth_cli_say_unresolved(const char *flag, const char *text, enum hth_err err)
{
    const char *colon = strrchr(text, ':');
    int len = colon != NULL ? (int)(colon - text) : (int)strlen(text);
    if (err == HTH_E_NOT_FOUND || err == HTH_E_AGAIN)
        hth_cli_say_error("%s: no address found for %.*s: is this machine on the internet?", flag,
                          len, text);
    else
        hth_cli_say_error("%s '%s': %s", flag, text, hth_err_text(err));
}

int64_t hth_cli_bodies_bytes(int64_t memory_bytes)
{
    if (memory_bytes <= 0)
        return HTH_APP_BODIES_BYTES_UNKNOWN;
    return HTH_MAX(memory_bytes / 4, (int64_t)HTH_APP_BODIES_BYTES_MIN);
}

const char *hth_cli_bytes_text(double bytes, char out[16])
{
    static const char *const names[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < HTH_ARRAY_LEN(names)) {
        bytes /= 1000;
        unit++;
    }
    snprintf(out, 16, unit == 0 ? "%.0f %s" : "%.3g %s", bytes, names[unit]);
    return out;
}

const char *hth_cli_count_text(uint64_t n, char out[32])
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

const char *hth_cli_span_text(int64_t span_us, char out[16])
{
    double s = (double)HTH_MAX(span_us, INT64_C(0)) / 1e6;
    if (s < 9.95)
        snprintf(out, 16, "%.1f s", s);
    else if (s < 99.5)
        snprintf(out, 16, "%.0f s", s);
    else if (s < 99.5 * 60)
        snprintf(out, 16, "%.0f min", s / 60);
    else if (s < 99.5 * 3600)
        snprintf(out, 16, "%.1f h", s / 3600);
    else
        snprintf(out, 16, "%.0f d", s / 86400);
    return out;
}

char *hth_cli_default_dir(void)
{
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    if (state != NULL && state[0] == '/')
        return hth_asprintf("%s/hearth", state);
    return hth_asprintf("%s/.local/state/hearth", home != NULL ? home : "/var/lib/hearth");
}

/* ---- options about the swarm --------------------------------------------------------------- */

enum {
    KEY_NETWORK = 0x1000,
    KEY_THREADS,
    KEY_ANNOUNCE,
    KEY_MEMORY,
    KEY_STATUS,
    KEY_LOG,
    KEY_LOG_FORMAT,
    KEY_ONCE,
    KEY_INVITE,
    KEY_OPEN,
    KEY_OWN,
    KEY_PRIVATE
};

static const struct argp_option net_options[] = {
    {NULL, 0, NULL, 0, "Swarm:", 1},
    {"join", 'j', "HOST:PORT", 0,
     "Join the swarm through this peer (repeatable; default: through remembered peers)", 1},
    {"once", KEY_ONCE, NULL, 0, "End with code 4 if no peer to join answers (default: try on)", 1},
    {"listen", 'l', "ADDR:PORT", 0,
     "Listen here, TCP and UDP (default: every address, or loopback in a run without an owner, at "
     "4700 or the next free port)",
     1},
    {"announce", KEY_ANNOUNCE, "ADDR:PORT", 0,
     "Address at which others reach this peer (default: the one it listens on)", 1},
    {"invite", KEY_INVITE, "TEXT|@FILE|-", 0,
     "Invite to a closed run, as text, in a file, or on standard input", 1},
    {"own", KEY_OWN, NULL, 0,
     "Begin the run of --run here, as its owner: close its file, and make an invite for others", 1},
    {"private", KEY_PRIVATE, NULL, 0, "With --own: hide the run from everybody who has no invite",
     1},
    {"open-to-anyone", KEY_OPEN, NULL, 0,
     "In a run without an owner: leave this machine, and let everybody take part", 1},
    {"network", KEY_NETWORK, "NAME", 0, "Name of the swarm (default: the run file's run)", 1},
    {"dir", 'd', "DIR", 0,
     "State folder: key, known peers, checkpoints (default: one for each run and role below "
     "~/.local/state/hearth)",
     1},
    {"threads", KEY_THREADS, "N", 0,
     "Number of compute threads (default: cores - 1; without a network: cores)", 1},
    {"memory", KEY_MEMORY, "SIZE", 0,
     "Memory that this process may use; others' requests get a quarter of it (default: what the "
     "machine, the control group and ulimit -v allow)",
     1},
    {"status", KEY_STATUS, "ADDR:PORT", 0,
     "Serve /health, /metrics and /status.json over HTTP at this loopback address (default: off)",
     1},
    {0},
};

static const struct argp_option dial_options[] = {
    {NULL, 0, NULL, 0, "Model:", 1},
    {"dir", 'd', "DIR", 0, "The folder of a trainer that has saved (required)", 1},
    {"join", 'j', "HOST:PORT", 0,
     "Ask the experts on their hosts, through this peer (repeatable; default: those of the folder)",
     1},
    {"once", KEY_ONCE, NULL, 0, "End with code 4 if no peer to join answers (default: try on)", 1},
    {"invite", KEY_INVITE, "TEXT|@FILE|-", 0,
     "Likewise in a closed run, with this invite: text, file, or standard input", 1},
    {"network", KEY_NETWORK, "NAME", 0, "Name of the swarm (default: the run file's run)", 1},
    {"threads", KEY_THREADS, "N", 0,
     "Number of compute threads (default: cores - 1; without a network: cores)", 1},
    {0},
};

static bool is_loopback(const char *text)
{
    struct hth_addr addr;
    return hth_addr_parse(text, &addr) == HTH_OK && hth_addr_scope(&addr) == HTH_SCOPE_MACHINE;
}

/* A folder that does not exist yet is made later. */
void hth_cli_check_folder(struct argp_state *state, const char *flag, const char *path,
                          const char *example)
{
    struct stat st;
    int code = stat(path, &st);
    if (path[0] == '\0' || (code == 0 && !S_ISDIR(st.st_mode)) || (code != 0 && errno == ENOTDIR))
        argp_error(state, "%s '%s'%s: expected a folder, such as %s", flag, path,
                   path[0] == '\0' ? "" : ": a part of that path is not a folder", example);
}

enum hth_err hth_cli_secret(const char *arg, char *out, size_t max, size_t *len)
{
    *len = strlen(arg);
    bool piped = strcmp(arg, "-") == 0;
    if (!piped && arg[0] != '@') {
        if (*len > max)
            return HTH_E_TOO_LARGE;
        memcpy(out, arg, *len);
        return HTH_OK;
    }
    FILE *f = piped ? stdin : fopen(arg + 1, "re");
    if (f == NULL)
        return errno == EACCES ? HTH_E_PERMISSION : HTH_E_NO_FILE;
    *len = fread(out, 1, max, f);
    enum hth_err err = ferror(f) ? HTH_E_IO : feof(f) || fgetc(f) == EOF ? HTH_OK : HTH_E_TOO_LARGE;
    if (!piped)
        fclose(f);
    return err;
}

enum hth_err hth_cli_invite(const char *arg, struct hth_invite *out, const char **why)
{
    char text[2 * HTH_INVITE_TEXT_MAX]; /* with blanks around it and in it */
    size_t len;
    enum hth_err err = hth_cli_secret(arg, text, sizeof(text), &len);
    *why = hth_err_text(err);
    HTH_TRY(err);
    err = hth_invite_read(text, len, out);
    *why = err == HTH_E_BAD_MAGIC && access(arg, F_OK) == 0 ? "this names a file: write @ before it"
                                                            : hth_invite_why(err);
    return err;
}

void hth_cli_take_invite(struct argp_state *state, const char *arg, struct hth_cli_net *net)
{
    const char *why;
    net->invited = hth_cli_invite(arg, &net->invite, &why) == HTH_OK;
    if (!net->invited)
        argp_error(state,
                   "--invite%s%s: %s; expected hearth1.TEXT, @FILE or -, such as @ana.invite",
                   arg[0] == '@' ? " " : "", arg[0] == '@' ? arg : "", why);
}

static void check_network(struct argp_state *state, const char *name)
{
    if (hth_name_check(name, strlen(name)) != HTH_OK)
        argp_error(state,
                   "--network '%s': a name is 1 to %d bytes of UTF-8, without blanks, control or "
                   "direction marks and . / \\ [ ], such as fashion-2",
                   name, HTH_NAME_LEN_MAX);
}

static error_t parse_net(int key, char *arg, struct argp_state *state)
{
    struct hth_cli_net *net = state->input;
    uint64_t bytes;
    switch (key) {
    case 'j':
        hth_cli_check_host(state, "--join", arg, 1, "example.org:4700");
        if (net->join_count == HTH_CLI_JOIN_MAX)
            argp_error(state, "--join is given more than %d times", HTH_CLI_JOIN_MAX);
        else
            net->join[net->join_count++] = arg;
        break;
    case KEY_ONCE:
        net->once = true;
        break;
    case 'l':
        hth_cli_check_host(state, "--listen", arg, 0, "0.0.0.0:4700");
        net->listen = arg;
        break;
    case KEY_ANNOUNCE:
        hth_cli_check_host(state, "--announce", arg, 1, "203.0.113.5:4700");
        net->announce = arg;
        break;
    case KEY_INVITE:
        hth_cli_take_invite(state, arg, net);
        break;
    case KEY_OWN:
        net->own = true;
        break;
    case KEY_PRIVATE:
        net->hidden = true;
        break;
    case KEY_OPEN:
        net->open_to_anyone = true;
        break;
    case KEY_NETWORK:
        check_network(state, arg);
        net->network = arg;
        break;
    case 'd':
        hth_cli_check_folder(state, "--dir", arg, "~/.local/state/hearth");
        net->dir = arg;
        break;
    case KEY_THREADS:
        net->threads = (uint32_t)hth_cli_number(state, "--threads", arg, 1, 1024);
        break;
    case KEY_MEMORY:
        if (hth_cli_parse_size(arg, &bytes) != HTH_OK || bytes < HTH_APP_BODIES_BYTES_MIN ||
            bytes > INT64_MAX)
            argp_error(state, "--memory '%s': expected a size of at least 32MiB, such as 2GiB",
                       arg);
        net->memory_bytes = (int64_t)bytes;
        break;
    case KEY_STATUS:
        if (!is_loopback(arg))
            argp_error(state,
                       "--status '%s': expected a loopback address and a port, such as "
                       "127.0.0.1:8080",
                       arg);
        net->status_listen = arg;
        break;
    case ARGP_KEY_END:
        if (net->hidden && !net->own)
            argp_error(state, "--private hides a run that begins: add --own");
        if (net->own && (net->invited || net->open_to_anyone))
            argp_error(state, "--own invites this machine: leave out %s",
                       net->invited ? "--invite" : "--open-to-anyone");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

const struct argp hth_cli_net_argp = {.options = net_options, .parser = parse_net};
const struct argp hth_cli_dial_argp = {.options = dial_options, .parser = parse_net};

/* ---- options about logs -------------------------------------------------------------------- */

static const struct argp_option log_options[] = {
    {NULL, 0, NULL, 0, "Log:", 3},
    {"log", KEY_LOG, "SPEC", 0,
     "Log levels: one for all, or by module, as in 'warn,rpc:debug,dht:trace' (default info)", 3},
    {"log-format", KEY_LOG_FORMAT, "text|json", 0, "Format of all that is printed (default text)",
     3},
    {0},
};

static error_t parse_log(int key, char *arg, struct argp_state *state)
{
    struct hth_cli_log *log = state->input;
    struct hth_log probe;
    char bad[64];
    switch (key) {
    case KEY_LOG:
        hth_log_init(&probe);
        if (hth_log_parse(&probe, arg, bad) != HTH_OK)
            argp_error(state,
                       "--log '%s': unknown word '%s'; expected levels, such as info or "
                       "warn,rpc:debug,dht:trace",
                       arg, bad);
        log->spec = arg;
        break;
    case KEY_LOG_FORMAT:
        log->json = strcmp(arg, "json") == 0;
        if (!log->json && strcmp(arg, "text") != 0)
            argp_error(state, "--log-format '%s': expected text or json, such as json", arg);
        hth_say_json(log->json); /* also the errors before a log is there */
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

const struct argp hth_cli_log_argp = {.options = log_options, .parser = parse_log};

enum hth_err hth_cli_log_apply(const struct hth_cli_log *flags, struct hth_log *log)
{
    char bad[64];
    log->json = flags->json;
    log->sink = hth_say_log;
    if (flags->spec == NULL)
        return HTH_OK;
    enum hth_err err = hth_log_parse(log, flags->spec, bad);
    if (err != HTH_OK)
        hth_cli_say_error("--log: unknown word '%s'", bad);
    return err;
}

/* ---- questions ----------------------------------------------------------------------------- */

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "-?") == 0;
}

static void list_questions(const struct hth_question *all, size_t count, const char *examples,
                           const char *program, FILE *to)
{
    fprintf(to, "usage: %s QUESTION [options]      %s QUESTION --help\n\n", program, program);
    fprintf(to, "  %-11s %-14s %s\n", "question", "takes", "answers");
    for (size_t i = 0; i < count; i++)
        fprintf(to, "  %-11s %-14s %s\n", all[i].name, all[i].takes, all[i].what);
    fprintf(to, "\nTimes are those of two cores, with the defaults.\n\nexamples:\n%s", examples);
}

int hth_cli_ask(const struct hth_question *all, size_t count, const char *examples, int argc,
                char **argv)
{
    char program[64], hint[320];
    if (argc < 2 || is_help(argv[1])) {
        list_questions(all, count, examples, argv[0], argc < 2 ? stderr : stdout);
        return argc < 2 ? HTH_EXIT_USAGE : HTH_EXIT_OK;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(argv[1], all[i].name) != 0)
            continue;
        for (int a = 2; a < argc; a++)
            if (is_help(argv[a])) {
                printf("Takes %s on two cores, with the defaults.\n", all[i].takes);
                break;
            }
        snprintf(program, sizeof(program), "%s %s", argv[0], all[i].name);
        argv[1] = program;
        return all[i].run(argc - 1, argv + 1);
    }
    hth_cli_say_error("%s has no question '%s'%s", argv[0], argv[1],
                      hth_guess_text(argv[1], all, sizeof(all[0]), count, hint, sizeof(hint)));
    return HTH_EXIT_USAGE;
}
