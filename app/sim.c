/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c: hearth sim: the table of its questions. */
#include "cli/cli.h"
#include "core/mem.h"
#include "lab/fidelity.h"
#include "studies/questions.h"
#include "studies/tools.h"

#include <stdio.h>
#include <string.h>

struct study {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
};

static const struct study studies[] = {
    {"run", hth_sim_run_verb, "a scenario file: faults drawn from a seed, then recovery"},
    {"hunt", hth_sim_hunt_verb, "seed after seed of a scenario, on all cores"},
    {"vary", hth_sim_vary_verb, "scenarios as a study: a number of theirs takes several values"},
    {"smoke", hth_sim_smoke_verb, "N peers announce, look up and call each other under faults"},
    {"latency", hth_sim_latency_verb, "throughput of a trainer against the delay of its calls"},
    {"throughput", hth_sim_throughput_verb, "the same against flights, blocks, trainers, failures"},
    {"convergence", hth_sim_convergence_verb, "what delays and failures do to learning"},
    {"storm", hth_sim_storm_verb,
     "the same with hosts replaced, calls lost and hosts slow at once"},
    {"churn", hth_sim_churn_verb, "what peers notice of deaths and births, and when"},
    {"dht", hth_sim_dht_verb, "how long a new trainer takes to select experts"},
    {"fidelity", hth_sim_fidelity_verb, "the same swarm with processes and simulated"},
    {"averaging", hth_sim_averaging_verb, "how fast peers agree, by method and failure rate"},
    {"mixing", hth_sim_mixing_verb, "by how much a round of random groups shrinks the variance"},
    {"shares", hth_sim_shares_verb, "who reduces how much when links differ"},
    {"links", hth_sim_links_verb, "how long an average takes when links differ"},
    {"collab", hth_sim_collab_verb, "trainers of one model come and go"},
};

static void print_studies(FILE *to)
{
    fputs("usage: hearth sim STUDY [options]      hearth sim STUDY --help\n\n", to);
    for (size_t i = 0; i < HTH_ARRAY_LEN(studies); i++)
        fprintf(to, "  %-11s %s\n", studies[i].name, studies[i].what);
}

int hth_verb_sim(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_studies(stdout);
        return argc < 2 ? HTH_EXIT_USAGE : HTH_EXIT_OK;
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(studies); i++) {
        if (strcmp(studies[i].name, argv[1]) == 0) {
            static char program[64];
            hth_sim_settle_memory();
            hth_mem_hoard(true);
            snprintf(program, sizeof(program), "%s %s", argv[0], argv[1]);
            argv[1] = program;
            return studies[i].run(argc - 1, argv + 1);
        }
    }
    hth_cli_say_error("no study '%s'", argv[1]);
    print_studies(stderr);
    return HTH_EXIT_USAGE;
}
