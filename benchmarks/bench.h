/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h: the shared parts of the questions of `hearth bench`: options, clock, printing of rows.
 *
 * A question is one function and one line in bench.c's table. It compares results with an
 * independent computation, then warms up, then times. Figures are medians over repeats; `spread` is
 * (slowest - fastest) / median. A row is a JSON object, printed as one line with --json, else as a
 * line of a table with the same names. Rows go to standard output; the line that describes the
 * machine goes to standard error.
 *
 * Main thread.
 */
#ifndef HTH_BENCHMARKS_BENCH_H
#define HTH_BENCHMARKS_BENCH_H

#include "cli/cli.h"
#include "cli/device.h"
#include "core/tensor.h"
#include "kernels/backend.h"

#include <jansson.h>

#define HTH_BENCH_REPEATS_MAX 99

struct hth_bench {
    bool json;
    bool plain; /* no TLS */
    /* Type of rows between clients and hosts. A question sets its default before hth_bench_open; 0:
     * `auto`, the type that `hearth train` sends. */
    enum hth_dtype wire;
    uint32_t repeats;  /* 0: each question's own */
    uint32_t threads;  /* compute threads of all hosts together; 0: one per core */
    int64_t budget_us; /* only the first repeat may begin later; 0: the question's own */
    uint64_t seed;
    struct hth_device_flags device;
    const struct hth_backend *backend; /* NULL if --device names a card */
    struct hth_cli_log log;
    bool may_be_card; /* set before hth_bench_open by questions that can measure cards */
    char *head;       /* column names of the current table */
};

/* A child of each question's argp; its input is a struct hth_bench. */
extern const struct argp hth_bench_argp;

/* Parses a question's options, chooses the back end and prints the machine's line. `own` (may be
 * NULL) is the argp of further options, with `input` as its input. Returns an exit code; call
 * hth_bench_close whatever it is. */
int hth_bench_open(struct hth_bench *b, int argc, char **argv, const char *doc,
                   const struct argp *own, void *input);
void hth_bench_close(struct hth_bench *b);

/* Prints "measuring X failed: text" unless err is HTH_OK. Returns the exit code. */
int hth_bench_finish(struct hth_bench *b, const char *what, enum hth_err err);

/* Prints a row and drops the reference. */
void hth_bench_row_take(struct hth_bench *b, json_t *row);

int64_t hth_bench_now_ns(void *arg);
int64_t hth_bench_now_us(void *arg);

/* The name of the type of rows on the wire: "fp32", "bf16", "fp16" or "int8". */
const char *hth_bench_wire_name(const struct hth_bench *b);

/* The samples of one figure. */
struct hth_bench_samples {
    double value[HTH_BENCH_REPEATS_MAX];
    uint32_t count;
    int64_t start_us;
};

/* Loop over the repeats: for (hth_bench_begin(&s); hth_bench_more(b, &s, 3);) ... */
void hth_bench_begin(struct hth_bench_samples *s);
bool hth_bench_more(const struct hth_bench *b, const struct hth_bench_samples *s, uint32_t usual);
void hth_bench_add(struct hth_bench_samples *s, double value);
double hth_bench_median(const struct hth_bench_samples *s);
double hth_bench_spread(const struct hth_bench_samples *s);

/* The processor's name. */
void hth_bench_cpu(char *out, size_t size);
uint32_t hth_bench_cores(void);
uint32_t hth_bench_threads(const struct hth_bench *b);
/* Rounds to the precision of a figure, about three significant digits. */
double hth_bench_round(double value);

/* Fills out with standard normals, a pure function of seed, stream and index. */
void hth_bench_normals(uint64_t seed, uint32_t stream, float *out, size_t count);
/* ||a - b|| / ||b||, in double; infinite if a number is not finite. */
double hth_bench_distance(const float *a, const float *b, size_t count);

/* The questions. argv[0] is "hearth bench NAME". */
int hth_bench_allreduce_main(int argc, char **argv);
int hth_bench_expert_main(int argc, char **argv);
int hth_bench_gate_main(int argc, char **argv);
int hth_bench_kernels_main(int argc, char **argv);
int hth_bench_monitor_main(int argc, char **argv);
int hth_bench_peers_main(int argc, char **argv);
int hth_bench_picture_main(int argc, char **argv);
int hth_bench_profile_main(int argc, char **argv);
int hth_bench_step_main(int argc, char **argv);
int hth_bench_tls_main(int argc, char **argv);

#endif
