/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c: hearth sim: the table of its studies. */
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
    {"run", hth_sim_run_verb, "run a scenario file: faults drawn from a seed, then recovery"},
    {"hunt", hth_sim_hunt_verb, "run a scenario with seed after seed, on all cores"},
    {"vary", hth_sim_vary_verb, "run a scenario with several values of one of its numbers"},
    {"smoke", hth_sim_smoke_verb, "N peers announce, look up and call each other under faults"},
    {"latency", hth_sim_latency_verb, "throughput of a trainer against the delay of its calls"},
    {"throughput", hth_sim_throughput_verb,
     "throughput against flights, blocks, trainers and failures"},
    {"convergence", hth_sim_convergence_verb, "learning under delays and failures"},
    {"storm", hth_sim_storm_verb,
     "learning with hosts replaced, calls lost and hosts slow at once"},
    {"churn", hth_sim_churn_verb, "when peers notice crashes and joins of hosts"},
    {"dht", hth_sim_dht_verb, "time that a new trainer takes to select experts"},
    {"fidelity", hth_sim_fidelity_verb, "one swarm as processes and as a simulation, compared"},
    {"averaging", hth_sim_averaging_verb, "rounds until peers agree, by method and failure rate"},
    {"mixing", hth_sim_mixing_verb,
     "factor by which a round of random groups shrinks the variance"},
    {"shares", hth_sim_shares_verb, "share of a vector that each peer reduces, by its link"},
    {"links", hth_sim_links_verb, "duration of an average when links differ"},
    {"collab", hth_sim_collab_verb, "trainers of one model join, leave and crash"},
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
    hth_cli_say_error("no study '%s'; the studies are:", argv[1]);
    print_studies(stderr);
    return HTH_EXIT_USAGE;
}
