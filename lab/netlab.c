/* SPDX-License-Identifier: Apache-2.0 */
/*
 * netlab.c: a separate program: runs commands in a small internet on this machine (lab.h).
 *
 *   netlab run FILE [--stats] -- COMMAND...   makes the lab, runs the command, takes it away netlab
 *   at HOST COMMAND...                 inside: runs the command as that host netlab test [SECONDS]
 *   measures a lab and compares with its settings
 *
 * Exit codes: the command's; 2 usage, 3 an invalid file, 77 no lab can be made here.
 */
#include "cli/cli.h"
#include "core/mem.h"
#include "lab/measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_usage(FILE *to)
{
    fputs("usage: netlab run FILE [--stats] -- COMMAND...   run COMMAND in a lab of FILE's hosts\n"
          "       netlab at HOST COMMAND...                 inside: run COMMAND as that host\n"
          "       netlab test [SECONDS]                     do delay, rate and loss match the "
          "settings?\n"
          "\n"
          "FILE:  link: { latency_ms: 25, jitter_ms: 5, jitter: exponential, loss: 0.001 }\n"
          "       hosts:                          # 10.77.0.1, 10.77.0.2, ... in this order\n"
          "         - { name: home, up_mbit: 20, down_mbit: 100 }\n"
          "         - { name: server }\n"
          "\n"
          "example: netlab run home.yaml -- netlab at home ip address\n",
          to);
}

static int exit_of(enum hth_err err)
{
    return err == HTH_E_UNSUPPORTED ? HTH_LAB_EXIT_SKIP : hth_exit_of(err);
}

/* ---- run ----------------------------------------------------------------------------------- */

static struct hth_lab_spec *load(const char *path)
{
    char error[HTH_LAB_ERROR_MAX];
    struct hth_lab_spec *spec = NULL;
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        hth_cli_say_error("%s: %s", path, strerror(errno));
        return NULL;
    }
    uint8_t *data = hth_calloc(HTH_LAB_TEXT_MAX + 1, 1);
    size_t len = fread(data, 1, HTH_LAB_TEXT_MAX + 1, f);
    if (ferror(f) != 0)
        hth_cli_say_error("%s: %s", path, strerror(errno));
    else if (hth_lab_parse(path, data, len, &spec, error) != HTH_OK)
        hth_cli_say_error("%s", error);
    fclose(f);
    hth_free(data);
    return spec;
}

static void print_stats(const struct hth_lab *lab, const struct hth_lab_spec *spec)
{
    double median_us, p99_us, worst_us;
    fprintf(stderr, "%-16s %10s %10s %12s %8s %10s %12s\n", "host", "sent", "delivered", "bytes",
            "lost", "queue up", "queue down");
    for (uint32_t i = 0; i < spec->host_count; i++) {
        struct hth_lab_count c;
        hth_lab_count(lab, i, &c);
        fprintf(stderr, "%-16s %10llu %10llu %12llu %8llu %10llu %12llu\n", spec->hosts[i].name,
                (unsigned long long)c.sent, (unsigned long long)c.delivered,
                (unsigned long long)c.delivered_bytes, (unsigned long long)c.lost,
                (unsigned long long)c.dropped_up, (unsigned long long)c.dropped_down);
    }
    hth_lab_lateness(lab, &median_us, &p99_us, &worst_us);
    fprintf(stderr, "packets were late by %.0f us (median), %.0f us (99 %%), %.0f us (worst)\n",
            median_us, p99_us, worst_us);
}

static int run_command(void *arg)
{
    return hth_lab_command(arg);
}

static int run(int argc, char **argv)
{
    char error[HTH_LAB_ERROR_MAX];
    struct hth_lab *lab;
    bool stats = argc > 1 && strcmp(argv[1], "--stats") == 0;
    int at = stats ? 2 : 1;
    if (argc < at + 2 || strcmp(argv[at], "--") != 0) {
        print_usage(stderr);
        return HTH_EXIT_USAGE;
    }
    struct hth_lab_spec *spec = load(argv[0]);
    if (spec == NULL)
        return HTH_EXIT_CONFIG;
    enum hth_err err = hth_lab_new(spec, &lab, error);
    int code = HTH_EXIT_FAILURE;
    if (err == HTH_OK) {
        code = hth_lab_run(lab, run_command, argv + at + 1);
        if (code < 0)
            hth_cli_say_error("no PID namespace: %s. A lab needs root (CAP_SYS_ADMIN)",
                              strerror(errno));
        else if (stats)
            print_stats(lab, spec);
    } else {
        hth_cli_say_error("%s", error);
        code = exit_of(err);
    }
    hth_lab_free(lab);
    hth_lab_spec_free(spec);
    return code < 0 ? HTH_LAB_EXIT_SKIP : code;
}

/* ---- at, test ------------------------------------------------------------------------------ */

static int at(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return HTH_EXIT_USAGE;
    }
    enum hth_err err = hth_lab_enter(argv[0]);
    if (err == HTH_E_CLOSED)
        hth_cli_say_error("this process is in no lab; use it inside 'netlab run'");
    else if (err == HTH_E_NOT_FOUND)
        hth_cli_say_error("no host '%s' in this lab; there are: %s", argv[0], getenv("NETLAB"));
    else if (err != HTH_OK)
        hth_cli_say_error("entering host '%s': %s", argv[0], strerror(errno));
    if (err != HTH_OK)
        return HTH_EXIT_USAGE;
    execvp(argv[1], argv + 1);
    hth_cli_say_error("%s: %s", argv[1], strerror(errno));
    return errno == ENOENT ? 127 : 126;
}

static int test(int argc, char **argv)
{
    struct hth_lab_test_row rows[HTH_LAB_TEST_ROWS];
    char error[HTH_LAB_ERROR_MAX];
    double seconds = argc > 0 ? strtod(argv[0], NULL) : 6;
    if (!(seconds > 0 && seconds <= 600)) {
        hth_cli_say_error("'%s': must be seconds, at most 600", argv[0]);
        return HTH_EXIT_USAGE;
    }
    enum hth_err err = hth_lab_test(seconds, rows, error);
    if (err != HTH_OK) {
        hth_cli_say_error("%s", error);
        return exit_of(err);
    }
    bool good = true;
    printf("%-26s %10s %10s %18s %14s\n", "", "set", "measured", "allowed", "late 99 %, us");
    for (int i = 0; i < HTH_LAB_TEST_ROWS; i++) {
        const struct hth_lab_test_row *r = &rows[i];
        printf("%-26s %10.4g %10.4g %8.4g - %7.4g %14.0f%s\n", r->what, r->set, r->measured, r->low,
               r->high, r->late_p99_us, r->good ? "" : "  <-- not what was set");
        good = good && r->good;
    }
    puts(good ? "PASS" : "FAIL");
    return good ? HTH_EXIT_OK : HTH_EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "run") == 0)
        return run(argc - 2, argv + 2);
    if (argc >= 2 && strcmp(argv[1], "at") == 0)
        return at(argc - 2, argv + 2);
    if (argc >= 2 && strcmp(argv[1], "test") == 0)
        return test(argc - 2, argv + 2);
    bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    print_usage(help ? stdout : stderr);
    return help ? HTH_EXIT_OK : HTH_EXIT_USAGE;
}
