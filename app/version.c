/* SPDX-License-Identifier: Apache-2.0 */
/* version.c: hearth version: prints the version and how the program was built. */
#include "cli/cli.h"

#include <stdio.h>

#ifdef __clang__
#define COMPILER __VERSION__ /* begins with "Clang" */
#else
#define COMPILER "gcc " __VERSION__
#endif

#ifndef HTH_BUILD
#define HTH_BUILD "unknown"
#endif

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bool *json = state->input;
    (void)arg;
    if (key != 'J')
        return ARGP_ERR_UNKNOWN;
    *json = true;
    return 0;
}

int hth_verb_version(int argc, char **argv)
{
    static const struct argp_option options[] = {{"json", 'J', NULL, 0, "Print JSON", 0}, {0}};
    static const struct argp argp = {.options = options,
                                     .parser = parse,
                                     .doc = "Print the version and how this program was built."};
    bool json = false;
    if (argp_parse(&argp, argc, argv, 0, NULL, &json) != 0)
        return HTH_EXIT_USAGE;
    if (json)
        printf("{\"version\":\"%s\",\"build\":\"%s\",\"compiler\":\"%s\"}\n", HTH_VERSION,
               HTH_BUILD, COMPILER);
    else
        printf("hearth %s (%s)\ncompiled with %s\n", HTH_VERSION, HTH_BUILD, COMPILER);
    return HTH_EXIT_OK;
}
