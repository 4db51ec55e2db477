/* SPDX-License-Identifier: Apache-2.0 */
/*
 * traces.c: prints the result of scenarios, a line for each, with the hash of all its events:
 *
 *     sim_traces SCENARIO SEED [SCENARIO SEED]...      SCENARIO: of scenarios/files, or smoke
 *
 * Each must pass. tools/test builds this program with gcc and with clang and compares the lines.
 * Lines that differ show code that relies on behaviour which C leaves open: two draws in one
 * expression, contracted or reordered sums, uninitialised bytes.
 */
#include "core/limits.h"
#include "core/mem.h"
#include "scenarios/file.h"
#include "scenarios/smoke.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool run_smoke(uint64_t seed)
{
    struct hth_smoke_opts opts = HTH_SMOKE_OPTS_INIT;
    struct hth_smoke_report report;
    char line[HTH_SMOKE_LINE_MAX];
    opts.peers = 64;
    opts.seed = seed;
    if (hth_smoke_run(&opts, &report) != HTH_OK)
        return false;
    puts(hth_smoke_line(&report, 0, 0, line));
    return report.pass;
}

static struct hth_scenario *read_scenario(const char *name)
{
    struct hth_scenario *scenario = NULL;
    char path[512], error[HTH_SCENARIO_ERROR_MAX];
    snprintf(path, sizeof(path), "%s/%s.yaml", HTH_SCENARIO_DIR, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fprintf(stderr, "sim_traces: can't open %s\n", path);
        return NULL;
    }
    uint8_t *text = hth_calloc(HTH_SCENARIO_BYTES_MAX, 1);
    size_t len = fread(text, 1, HTH_SCENARIO_BYTES_MAX, f);
    fclose(f);
    if (hth_scenario_parse(name, text, len, &scenario, error) != HTH_OK)
        fprintf(stderr, "sim_traces: %s\n", error);
    hth_free(text);
    return scenario;
}

static bool run_scenario(const char *name, uint64_t seed)
{
    struct hth_scenario_opts opts = {.log_level = HTH_ERROR};
    struct hth_scenario_report report = {.pass = false};
    struct hth_plan plan;
    char line[HTH_SCENARIO_LINE_MAX];
    struct hth_scenario *scenario = read_scenario(name);
    if (scenario == NULL)
        return false;
    hth_scenario_draw(scenario, seed, &plan);
    if (hth_scenario_run(&plan, &opts, &report) == HTH_OK)
        puts(hth_scenario_line(&report, "hearth sim run", 0, line));
    hth_scenario_free(scenario);
    return report.pass;
}

int main(int argc, char **argv)
{
    bool good = argc > 2 && argc % 2 == 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t seed = strtoull(argv[i + 1], NULL, 10);
        good &= strcmp(argv[i], "smoke") == 0 ? run_smoke(seed) : run_scenario(argv[i], seed);
    }
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
