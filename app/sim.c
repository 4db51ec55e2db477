/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c: hearth sim: the table of its studies. */
#include "cli/cli.h"
#include "core/mem.h"
#include "lab/fidelity.h"
#include "studies/questions.h"
#include "studies/tools.h"

static const struct hth_question studies[] = {
    {"run", hth_sim_run_verb, "seconds",
     "run a scenario file: faults drawn from a seed, then recovery"},
    {"hunt", hth_sim_hunt_verb, "about 10 min",
     "run a scenario with seed after seed, on all cores"},
    {"vary", hth_sim_vary_verb, "about 30 s",
     "run a scenario with several values of one of its numbers"},
    {"smoke", hth_sim_smoke_verb, "about 1 s",
     "N peers announce, look up and call each other under faults"},
    {"latency", hth_sim_latency_verb, "about 5 s",
     "throughput of a trainer against the delay of its calls"},
    {"throughput", hth_sim_throughput_verb, "about 90 s",
     "throughput against flights, blocks, trainers and failures"},
    {"convergence", hth_sim_convergence_verb, "about 20 min", "learning under delays and failures"},
    {"storm", hth_sim_storm_verb, "about 5 min",
     "learning with hosts replaced, calls lost and hosts slow at once"},
    {"churn", hth_sim_churn_verb, "about 40 s", "when peers notice crashes and joins of hosts"},
    {"places", hth_sim_places_verb, "about 30 s",
     "hosts that start together share the places of a run"},
    {"dht", hth_sim_dht_verb, "about 1 s", "time that a new trainer takes to select experts"},
    {"fidelity", hth_sim_fidelity_verb, "about 3 min",
     "one swarm as processes and as a simulation, compared"},
    {"averaging", hth_sim_averaging_verb, "about 1 s",
     "rounds until peers agree, by method and failure rate"},
    {"mixing", hth_sim_mixing_verb, "about 1 s",
     "factor by which a round of random groups shrinks the variance"},
    {"shares", hth_sim_shares_verb, "about 1 s",
     "share of a vector that each peer reduces, by its link"},
    {"links", hth_sim_links_verb, "about 1 s", "duration of an average when links differ"},
    {"collab", hth_sim_collab_verb, "about 40 s", "trainers of one model join, leave and crash"},
    {"cuts", hth_sim_cuts_verb, "about 20 min", "a run's network is cut in two for a while"},
    {"arrivals", hth_sim_arrivals_verb, "about 10 min",
     "how soon newcomers take part in the steps of a run"},
    {"keys", hth_sim_keys_verb, "about 30 min",
     "a run's speed beside keys that speak and bring nothing"},
    {"hostile", hth_sim_hostile_verb, "about 1 min",
     "a run beside one person's hostile keys, with its bounds and without"},
};

int hth_verb_sim(int argc, char **argv)
{
    static const char examples[] = "  hearth sim latency --json\n"
                                   "  hearth sim run storm --seed 1\n";
    hth_sim_settle_memory();
    hth_mem_hoard(true);
    return hth_cli_ask(studies, HTH_ARRAY_LEN(studies), examples, argc, argv);
}
