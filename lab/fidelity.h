/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fidelity.h: the same swarm twice, in earnest and simulated, and what each of the two showed.
 *
 * One trainer and four hosts with a quarter of the experts each. In earnest they are processes of
 * this program in a lab (lab.h); simulated they are nodes of a world (sim/world.h) with the same
 * delays and lines, and processors as a profile says (sim/profile.h). Both give a series of what
 * the trainer counted, twice a second, from which the same function computes the figures.
 */
#ifndef HTH_LAB_FIDELITY_H
#define HTH_LAB_FIDELITY_H

#include "cli/runfile.h"
#include "lab/lab.h"
#include "sim/profile.h"

#define HTH_FIDELITY_HOSTS 4

/* What is done; times count from the trainer's first update. */
struct hth_fidelity_case {
    const char *part, *name;
    double delay_ms;                /* each way, between any two */
    double trainer_mbit, host_mbit; /* up and down; 0: unlimited */
    uint32_t flights, rows;         /* micro-batches in the air, samples of each */
    double kill_s, back_s;          /* of the second host; 0: nobody dies */
    double seconds;
};

struct hth_fidelity_sample {
    double t_s;
    double updates, calls, failed, bytes;
    uint32_t live; /* experts */
};

struct hth_fidelity_series {
    struct hth_fidelity_sample *sample;
    size_t count;
    double kill_s, back_s; /* on the samples' clock; 0: nobody died */
    double boot_s;         /* from the second start of the host until it serves */
};
void hth_fidelity_clear(struct hth_fidelity_series *s);
void hth_fidelity_add(struct hth_fidelity_series *s, const struct hth_fidelity_sample *sample);
/* Whether it has seen enough of the case; samples come in order. */
bool hth_fidelity_enough(const struct hth_fidelity_series *s, const struct hth_fidelity_case *c);
/* The time of the first sample with an update; negative: there is none. */
double hth_fidelity_begin_s(const struct hth_fidelity_series *s);

/* Seconds from `from_s` to the first of two samples in a row with at most so many live experts;
 * NaN: there is none. */
double hth_fidelity_until_gone(const struct hth_fidelity_series *s, double from_s, uint32_t live);
/* The same until at least so many are live and stay: for the next two seconds all samples but one
 * show them. A dead host that is tried in vain counts as live in one sample now and then; and a
 * host of which two calls were late is out of sight for a tenth of a second, which may hide any of
 * them in one. */
double hth_fidelity_until_back(const struct hth_fidelity_series *s, double from_s, uint32_t live);

/* The run file of all cases; heap string. */
char *hth_fidelity_runfile(void);

/* `boot_s` is what a restarted host needs before it serves. Errors: those of the parts. */
enum hth_err hth_fidelity_simulate(const struct hth_fidelity_case *c, const struct hth_runfile *run,
                                   const struct hth_profile *profile, uint64_t seed, double boot_s,
                                   struct hth_fidelity_series *out) HTH_MUST;
/* With logs and files below `dir`, which exists. `data`: the folder of the pictures, or NULL;
 * `log`: as in
 * --log, or NULL.
 * Errors: those of hth_lab_new; E_IO, E_TIMEOUT: `error` says what went wrong. */
enum hth_err hth_fidelity_real(const struct hth_fidelity_case *c, const char *dir, const char *data,
                               const char *log, struct hth_fidelity_series *out,
                               char error[HTH_LAB_ERROR_MAX]) HTH_MUST;

/* The question `hearth sim fidelity`; argv[0] is "hearth sim fidelity". Returns an exit code. */
int hth_sim_fidelity_verb(int argc, char **argv);

#endif
