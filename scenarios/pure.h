/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pure.h: averaging as mathematics: vectors and random failures, no messages, no clock.
 *
 * How fast do N peers agree when each fails in each round with probability p? Every peer starts
 * with numbers from N(0, 1). In a round, absent peers keep their values, and the others do one step
 * of a method as if they were alone:
 *
 *   moshpit    each peer has a cell of the grid of its own, drawn once; round r averages the lines
 *              along axis r mod d. This is the simulation behind the paper's tables.
 *   random     every round a new partition into groups of near-equal size, as many as it takes for
 *              at most size[0] each
 *   gossip     a ring: the mean of a peer and its two neighbours, without absent ones
 *   pushsum    an exponential graph: a third of value and *weight* is kept and a third each goes to
 *              the peers 2^a and 2^b further on, where a and b walk through all powers below N; a
 *              sender keeps the third of an absent peer. The estimate is value / weight. (The
 *              paper's plot uses this name for a method without weights, which does not find the
 *              mean.)
 *   allreduce  nothing happens until a round without failures, which gives the exact mean
 *
 * Being absent is one kind of failure, and the one of the papers. The others:
 *
 *   crash      it crashes half-way and is back in the next round with its earlier values. A coin
 *              decides whether its values were in the others' sums by then. In a group each number
 *              has a reducer, drawn from the members: where that one crashed, all keep their
 *              values. A pushed third that it had taken is lost.
 *   slow       it is always too late: no peer counts its values, but it gets the others' mean. (The
 *              worst case of a slow link. The production code waits instead: the protocol model of
 *              average.h shows how long.)
 *   partition  it is on the other side of a partition: each side averages separately
 *
 * A failed peer stays so for `hold` rounds, then all are drawn again.
 *
 * Two errors are computed for each round, both means over the peers: `mse` is the squared distance
 * to the mean of the start values, `variance` the one to the mean of the present values. They are
 * equal where a method preserves the sum. `reached` is the first round with a variance below 1e-4
 * or 1e-9; a run that takes longer than the cap counts as the cap. For allreduce, whose rounds are
 * drawn and not played, there is no cap.
 *
 * The cost is the number of vectors that a peer sends in a round, on average. A group of m that
 * averages by a butterfly sends 2 (m - 1) in all, a gossip or a push 1 each, and every attempt of
 * an all-reduce 2 (N - 1), whether it succeeds or not.
 *
 * One *seed* is one placement and one sequence of absences, under which HTH_PURE_COLUMNS numbers
 * per peer are averaged side by side; its figures are means over them. (Of allreduce: as many
 * sequences.) Statistics are over seeds, which are independent.
 *
 * hth_pure is the workspace of one thread. A row depends on the options and the index of the seed
 * alone, so seeds may be computed in any order by any number of threads.
 */
#ifndef HTH_SCENARIOS_PURE_H
#define HTH_SCENARIOS_PURE_H

#include "averaging/grid.h"
#include "core/base.h"

#define HTH_PURE_COLUMNS    8
#define HTH_PURE_PEERS_MAX  65536
#define HTH_PURE_CELLS_MAX  (1u << 20)
#define HTH_PURE_ROUNDS_MAX 10000

/* X(NAME, text) */
#define HTH_PURE_METHOD_MAP(X)                                                                     \
    X(ALLREDUCE, "allreduce")                                                                      \
    X(GOSSIP, "gossip")                                                                            \
    X(PUSHSUM, "pushsum")                                                                          \
    X(RANDOM, "random")                                                                            \
    X(MOSHPIT, "moshpit")

enum hth_pure_method {
#define HTH_PURE_ENUM(name, text) HTH_PURE_##name,
    HTH_PURE_METHOD_MAP(HTH_PURE_ENUM)
#undef HTH_PURE_ENUM
        HTH_PURE_METHODS
};

/* X(NAME, text) */
#define HTH_PURE_FAILURE_MAP(X)                                                                    \
    X(ABSENT, "absent")                                                                            \
    X(CRASH, "crash")                                                                              \
    X(SLOW, "slow")                                                                                \
    X(PARTITION, "partition")

enum hth_pure_failure {
#define HTH_PURE_ENUM(name, text) HTH_PURE_##name,
    HTH_PURE_FAILURE_MAP(HTH_PURE_ENUM)
#undef HTH_PURE_ENUM
        HTH_PURE_FAILURES
};

const char *hth_pure_method_name(enum hth_pure_method method);
/* Errors: E_NOT_FOUND. */
enum hth_err hth_pure_method_find(const char *name, enum hth_pure_method *out) HTH_MUST;
const char *hth_pure_failure_name(enum hth_pure_failure failure);
/* Errors: E_NOT_FOUND. */
enum hth_err hth_pure_failure_find(const char *name, enum hth_pure_failure *out) HTH_MUST;

struct hth_pure_opts {
    enum hth_pure_method method;
    enum hth_pure_failure failure;
    uint32_t peers;
    struct hth_avg_shape shape;
    double p_fail;   /* chance that a peer fails in a round */
    uint32_t hold;   /* rounds for which it stays failed */
    uint32_t rounds; /* length of the lists of errors */
    uint32_t cap;    /* largest number of rounds to a target */
    uint64_t seed;   /* seed of run number 0 */
};
#define HTH_PURE_OPTS_INIT                                                                         \
    {                                                                                              \
        .method = HTH_PURE_MOSHPIT, .peers = 1024, .shape = {.dims = 2, .size = {32, 32}},         \
        .hold = 1, .rounds = 10, .cap = 50, .seed = 1                                              \
    }

/* The result of one seed is one array of hth_pure_row_len doubles: `rounds` times mse, `rounds`
 * times variance, `rounds` times vectors sent, and then these. */
enum { HTH_PURE_REACHED, HTH_PURE_REACHED_1E9, HTH_PURE_UNREACHED, HTH_PURE_UNREACHED_1E9 };
size_t hth_pure_row_len(const struct hth_pure_opts *opts);
/* The index of HTH_PURE_REACHED and so on: rounds to 1e-4 and to 1e-9, and the fractions of the
 * columns that did not reach them before the cap. */
size_t hth_pure_at(const struct hth_pure_opts *opts, int what);

struct hth_pure;

/* Errors: E_CONFIG (peers, rounds or cap 0 or beyond their limits, hold 0, p_fail not in [0, 1), a
 * shape that is not valid or beyond HTH_PURE_CELLS_MAX, more peers than cells where each needs
 * one). */
enum hth_err hth_pure_new(const struct hth_pure_opts *opts, struct hth_pure **out) HTH_MUST;
void hth_pure_free(struct hth_pure *pure);
void hth_pure_run(struct hth_pure *pure, uint64_t index, double *row);

/* Errors: E_CONFIG, as hth_pure_new. */
enum hth_err hth_pure_check(const struct hth_pure_opts *opts) HTH_MUST;

/* The mean number of rounds of an all-reduce with restarts and hold 1: 1 / (1 - p)^N, and with
 * partitions 1 / ((1 - p)^N + p^N). */
double hth_pure_allreduce_rounds(const struct hth_pure_opts *opts);

/* The exact expectation of `mse` in each of opts->rounds rounds, over placements, absences and
 * first values. Where peers are interchangeable it is a recursion of a few numbers: the covariance
 * of two peers' values depends only on the axes along which their cells differ (moshpit on a full
 * grid: 2^dims numbers) or on nothing at all (random groups of equal sizes: two numbers), and a
 * round maps these numbers linearly; a ring without absences is diagonal in Fourier's basis.
 *
 * It equals the mean over infinitely many seeds. Far below 1e-4 the mean over a few hundred seeds
 * says little: one peer that is absent for three rounds in a row outweighs all else. Errors:
 * E_CONFIG (as hth_pure_new), E_UNSUPPORTED (no such recursion: a grid with empty cells, groups of
 * different sizes, gossip with absences, other methods, failures or hold than absent, 1). */
enum hth_err hth_pure_expected(const struct hth_pure_opts *opts, double *mse) HTH_MUST;

/* ---- mixing -------------------------------------------------------------------------------- */

/* Theorem 3.2: the factor by which the variance shrinks when N peers are split at random into r
 * groups, T times. A group of m has a variance of its mean of s^2 / m (N - m) / (N - 1), for it is
 * drawn without replacement; weighted by m / N and summed over the groups that is
 * s^2 (r - 1) / (N - 1) whatever the sizes, and rounds are independent:
 *
 *     exact    ((r - 1) / (N - 1))^T
 *     printed  ((r - 1) / N + r / N^2)^T      an upper bound, not an equality */
struct hth_mixing_opts {
    uint32_t peers, groups, rounds;
    uint64_t seed;
};

/* Adds `trials` trials to sums[t] and squares[t], t = 0 .. rounds - 1. A block of trials depends on
 * its index alone. Errors: E_CONFIG (peers 2..HTH_PURE_PEERS_MAX, groups 1..peers, rounds
 * 1..HTH_PURE_ROUNDS_MAX). */
enum hth_err hth_mixing_block(const struct hth_mixing_opts *opts, uint64_t index, uint64_t trials,
                              double *sums, double *squares) HTH_MUST;
double hth_mixing_exact(const struct hth_mixing_opts *opts, uint32_t rounds);
double hth_mixing_printed(const struct hth_mixing_opts *opts, uint32_t rounds);

#endif
