/* SPDX-License-Identifier: Apache-2.0 */
/*
 * questions.h: the questions of `hearth sim`, one file each. Each function gets its own argv
 * (argv[0] is "hearth sim QUESTION") and returns an exit code. app/sim.c has the table.
 */
#ifndef HTH_STUDIES_QUESTIONS_H
#define HTH_STUDIES_QUESTIONS_H

int hth_sim_averaging_verb(int argc, char **argv);
int hth_sim_mixing_verb(int argc, char **argv);
int hth_sim_collab_verb(int argc, char **argv);
int hth_sim_cuts_verb(int argc, char **argv);
int hth_sim_arrivals_verb(int argc, char **argv);
int hth_sim_hostile_verb(int argc, char **argv);
int hth_sim_keys_verb(int argc, char **argv);
int hth_sim_shares_verb(int argc, char **argv);
int hth_sim_run_verb(int argc, char **argv);
int hth_sim_hunt_verb(int argc, char **argv);
int hth_sim_vary_verb(int argc, char **argv);
int hth_sim_links_verb(int argc, char **argv);
int hth_sim_churn_verb(int argc, char **argv);
int hth_sim_dht_verb(int argc, char **argv);
int hth_sim_throughput_verb(int argc, char **argv);
int hth_sim_convergence_verb(int argc, char **argv);
int hth_sim_storm_verb(int argc, char **argv);
int hth_sim_smoke_verb(int argc, char **argv);
int hth_sim_latency_verb(int argc, char **argv);
int hth_sim_places_verb(int argc, char **argv);

#endif
