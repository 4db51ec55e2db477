/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h: the cases of `hearth bench peers`: hearth and hivemind do the same work on the same
 * machine in turns. docs/benchmarks.md describes each case.
 */
#ifndef HTH_BENCHMARKS_PEERS_H
#define HTH_BENCHMARKS_PEERS_H

#include "benchmarks/bench.h"

struct hth_bench_peers_case;

/* One run's figure, in the case's unit. */
struct hth_bench_peers_run {
    double value;
    uint32_t good; /* C: successful steps */
};

/* hearth's side of a case: opened, run once and closed for each run. */
struct hth_bench_peers_side {
    /* Starts processes and threads, compares results with an independent computation, warms up. */
    enum hth_err (*open)(struct hth_bench *b, const struct hth_bench_peers_case *c, void **state);
    enum hth_err (*run)(void *state, struct hth_bench_peers_run *out);
    void (*close)(void *state); /* NULL is fine */
};

struct hth_bench_peers_case {
    const char *name, *unit;
    bool less_is_better;
    const struct hth_bench_peers_side *ours;
    const char *module; /* hivemind's side: a file of benchmarks/peers */
    const char *kind;   /* kind of the experts */
    /* A: closed loops of clients */
    uint32_t d, experts, clients, batches, rows;
    bool backward;
    uint32_t handlers; /* processes per hivemind server that accept requests */
    /* E: timed steps of a layer; beam: timed searches */
    uint32_t hosts, k, steps;
    /* C: each node's vector is three transformer layers of this width */
    uint32_t nodes, width, group, rounds;
};

extern const struct hth_bench_peers_side hth_bench_peers_calls, hth_bench_peers_layer,
    hth_bench_peers_beam;
extern const struct hth_bench_peers_side hth_bench_peers_averagers; /* needs OpenDHT */

/* ---- hivemind's side ------------------------------------------------------------------------ */

/* The Python with hivemind. All fields may be NULL or false. */
struct hth_bench_peers_python {
    const char *program; /* a Python that has hivemind; NULL: make a virtual environment */
    const char *folder;  /* of the virtual environment; NULL: in the user's cache */
    bool system_torch;   /* use Debian's PyTorch, not PyPI's */
};

/* Gives the Python program to run (heap string); makes the virtual environment if it is missing.
 * Errors: E_IO, printed with what to do. */
enum hth_err hth_bench_peers_python(const struct hth_bench_peers_python *opts,
                                    char **program) HTH_MUST;
/* The Python of the virtual environment in the user's cache (heap string); NULL: none was made. */
char *hth_bench_peers_made(void);

/* Options of hivemind's side. */
struct hth_bench_peers_opts {
    struct hth_bench *bench;
    char *python;
    int64_t limit_us; /* timeout of each answer */
    char *version;    /* set when a case is opened: "hivemind 1.1.12, PyTorch ..." */
};

struct hth_bench_peers_peer;

/* Starts hivemind's side of a case and waits until it is verified and warm. Errors, printed:
 * E_CLOSED, E_TIMEOUT, E_MALFORMED. */
enum hth_err hth_bench_peers_peer_open(struct hth_bench_peers_opts *opts,
                                       const struct hth_bench_peers_case *c,
                                       struct hth_bench_peers_peer **out) HTH_MUST;
enum hth_err hth_bench_peers_peer_run(struct hth_bench_peers_peer *p,
                                      struct hth_bench_peers_run *out) HTH_MUST;
/* NULL is fine. */
void hth_bench_peers_peer_close(struct hth_bench_peers_peer *p);

/* ---- figures -------------------------------------------------------------------------------- */

/* Figures of alternating runs: ours[i] and peer[i] follow each other. */
struct hth_bench_peers_pairs {
    double ours[HTH_BENCH_REPEATS_MAX], peer[HTH_BENCH_REPEATS_MAX];
    uint32_t count;
};

struct hth_bench_peers_figure {
    double ours, peer; /* medians */
    double ratio;      /* of the medians; above 1: hearth is better */
    double spread;     /* (largest - smallest) / median of the pairs' ratios */
};

struct hth_bench_peers_figure hth_bench_peers_figure(const struct hth_bench_peers_pairs *p,
                                                     bool less_is_better);

#endif
