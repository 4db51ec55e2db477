/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fidelity.h: the same swarm twice, as real processes and simulated, and the figures of both.
 *
 * One trainer and four hosts with a quarter of the experts each. One half runs them as processes of
 * this program in a lab (lab.h). The other simulates them as nodes of a world (sim/world.h) with
 * the same delays and bandwidths, and with processors of a profile (sim/profile.h). Both record the
 * trainer's counters twice a second, and the same function computes the figures from them.
 */
#ifndef HTH_LAB_FIDELITY_H
#define HTH_LAB_FIDELITY_H

#include "cli/runfile.h"
#include "lab/lab.h"
#include "sim/profile.h"

#define HTH_FIDELITY_HOSTS 4

/* One case; times count from the trainer's first update. */
struct hth_fidelity_case {
    const char *part, *name;
    double delay_ms;                /* one way, between any two hosts */
    double trainer_mbit, host_mbit; /* up and down; 0: unlimited */
    uint32_t flights, rows;         /* micro-batches in the air, samples of each */
    double kill_s, back_s;          /* crash and restart of the second host; 0: none */
    double seconds;
};

struct hth_fidelity_sample {
    double t_s;
    double updates, calls, failed, bytes;
    uint32_t live; /* live experts */
};

struct hth_fidelity_series {
    struct hth_fidelity_sample *sample;
    size_t count;
    double kill_s, back_s; /* on the samples' clock; 0: no crash */
    double boot_s;         /* from the restart of the host until it serves */
};
void hth_fidelity_clear(struct hth_fidelity_series *s);
void hth_fidelity_add(struct hth_fidelity_series *s, const struct hth_fidelity_sample *sample);
/* Whether the samples cover the case; samples come in order. */
bool hth_fidelity_enough(const struct hth_fidelity_series *s, const struct hth_fidelity_case *c);
/* Time of the first sample with an update; negative without one. */
double hth_fidelity_begin_s(const struct hth_fidelity_series *s);

/* Seconds from `from_s` to the first of two consecutive samples with at most `live` live experts;
 * NaN without any. */
double hth_fidelity_until_gone(const struct hth_fidelity_series *s, double from_s, uint32_t live);
/* The same until at least `live` are live and stay so: for the next two seconds all samples but one
 * show them. The exception is needed because a crashed host that is being retried counts as live in
 * one sample now and then, and because a host with two late calls is hidden for a tenth of a
 * second, which may lower one sample. */
double hth_fidelity_until_back(const struct hth_fidelity_series *s, double from_s, uint32_t live);

/* The run file of all cases; heap string. */
char *hth_fidelity_runfile(void);

/* Run the simulated half. `boot_s` is the time from a host's restart until it serves. Errors: those
 * of the parts. */
enum hth_err hth_fidelity_simulate(const struct hth_fidelity_case *c, const struct hth_runfile *run,
                                   const struct hth_profile *profile, uint64_t seed, double boot_s,
                                   struct hth_fidelity_series *out) HTH_MUST;
/* Run the real half, with logs and files below `dir`, which exists. `data`: the folder of the
 * pictures, or NULL; `log`: as in --log, or NULL. Errors: those of hth_lab_new; E_IO, E_TIMEOUT:
 * `error` has the text. */
enum hth_err hth_fidelity_real(const struct hth_fidelity_case *c, const char *dir, const char *data,
                               const char *log, struct hth_fidelity_series *out,
                               char error[HTH_LAB_ERROR_MAX]) HTH_MUST;

/* The question `hearth sim fidelity`; argv[0] is "hearth sim fidelity". Returns an exit code. */
int hth_sim_fidelity_verb(int argc, char **argv);

#endif
