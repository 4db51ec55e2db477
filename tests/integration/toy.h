/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toy.h: a run that learns in a second: ten noisy patterns of 28 x 28 pixels as idx.gz files, a
 * small classifier with one mixture layer of 2 x 4 experts, and its processes.
 *
 * The patterns come from a fixed generator, so every machine has the same data. A swarm consists of
 * process 1 (the node), 2 and 3 (hosts of four experts each) and 4 (the trainer); a test starts
 * those that it needs.
 */
#ifndef HTH_TESTS_INTEGRATION_TOY_H
#define HTH_TESTS_INTEGRATION_TOY_H

#include "integration/place.h"

#include <jansson.h>

#define TOY_TEST_IMAGES 500
#define TOY_HALF_1      "ffn0.[0:1].[0:4]"
#define TOY_HALF_2      "ffn0.[1:2].[0:4]"

struct toy {
    struct place *place;
    const char *addr[5]; /* by the numbers above */
    char addr_text[5][64];
    char run[PLACE_TEXT_MAX];    /* the run file */
    char invite[PLACE_TEXT_MAX]; /* of a closed run: ana's, as a flag takes it; else empty */
    const char *owner_dir;       /* in the place */
    const char *program;         /* of the next trainer; NULL: hearth */
    struct proc *node, *host[2], *trainer;
};

/* Writes data and run file (`steps` updates) and chooses the addresses. */
void toy_init(struct toy *t, struct place *p, unsigned steps);
/* Makes the owner's key, in the folder `owner`, and names it in the run file, whose open form stays
 * as open.yaml. */
void toy_own(struct toy *t);
/* Makes an invite in NAME.invite. Returns it as a flag takes it; its path is behind the @. */
const char *toy_invite(struct toy *t, const char *name, const char *roles);
/* Keeps what a process said as an invite likewise. */
const char *toy_keep(struct place *p, struct proc *proc, const char *name);
/* toy_own, and an invite for ana to train and serve. Before the first process; all take it then. */
void toy_close(struct toy *t);
/* Starts the node and waits until it listens. */
void toy_start_node(struct toy *t);
/* Starts host 0 or 1 in the folder host0 or host1 and waits until it serves. */
void toy_start_host(struct toy *t, int i);
/* Starts the trainer in the folder `name`, with its metrics in NAME.jsonl. `more` ends with NULL,
 * or is NULL. Does not wait. */
void toy_start_trainer(struct toy *t, const char *name, const char *const *more);

/* The content of a trainer's metrics file. Every line must be an object with the fields of its
 * kind, all numbers must be finite, and the steps of each kind must not go back. (An evaluation has
 * the step at which it began, so it may follow progress beyond it.) */
struct toy_metrics {
    size_t progress, evals, ends;
    json_t *last_progress, *last_eval, *end; /* NULL: none */
};
void toy_metrics_load(struct toy *t, const char *name, struct toy_metrics *m);
void toy_metrics_clear(struct toy_metrics *m);
double toy_number(const json_t *object, const char *key);
/* The step of the last progress line; 0: there is none. */
double toy_step(struct toy *t, const char *name);

/* Repeats `hearth status --json` until it shows that many hosts and that coverage, because records
 * take a moment in a DHT. Free the object with json_decref. */
json_t *toy_status(struct toy *t, size_t hosts, double coverage);
/* The number of nodes with this role in a status. */
size_t toy_status_count(const json_t *status, const char *role);
/* The fraction of the layer that is served. */
double toy_status_coverage(const json_t *status);

#endif
