/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recall.h: what a trainer remembers of its run, and how it is asked: method 14, RECALL.
 *
 * A monitor that starts late, or starts again, has missed a part of the run. Each trainer keeps the
 * last hour of its own progress in points 10 s apart, its last tests, and its newest checkpoint, so
 * that the curve can be drawn from what the living remember. It is also how a monitor learns the
 * loss: notes of the roster (averaging/roster.h) tell none.
 *
 * The request is a Unix second (4 bytes); the answer has the points after it:
 *
 *    0  steps of the schedule (8)           8  step of the newest checkpoint; 0: none (8)
 *   16  when it was saved (4)              20  when this process began to train; 0: not yet (4)
 *   24  number of points (2), then of each, the oldest first:
 *         t (4), step (8), samples of this process (8), loss (f32), samples/s (f32)
 *       number of tests (2), then of each:
 *         t (4), step (8), loss (f32), accuracy (f32), bits per byte (f32)
 *       samples behind its parameters (8): its own, those of the state or checkpoint that it began
 *         with, and where all step together those of all; an earlier version does not tell it
 *       steps that it took without a quorum (8), and times that it went over to another chain of
 *         steps (8); likewise
 *
 * All numbers are little-endian, times are Unix seconds by the trainer's clock, and a float that is
 * not finite means that it is not known. Later versions only append. Nobody proves what a trainer
 * recalls: a reader takes one point of a trainer for each 10 s, none older than the hour, and of
 * several trainers what most agree on (agree.h).
 *
 * Plain memory, any thread.
 */
#ifndef HTH_MONITOR_RECALL_H
#define HTH_MONITOR_RECALL_H

#include "core/base.h"

#define HTH_METHOD_RECALL     14
#define HTH_RECALL_PERIOD_S   10
#define HTH_RECALL_POINTS_MAX 360
#define HTH_RECALL_TESTS_MAX  64
#define HTH_RECALL_BYTES_MAX  (52 + 28 * HTH_RECALL_POINTS_MAX + 24 * HTH_RECALL_TESTS_MAX)
/* A trainer's count of steps or samples beyond this is no count, and JSON's readers lose digits. */
#define HTH_RECALL_COUNT_MAX (UINT64_C(1) << 53)

struct hth_recall_point {
    uint32_t t;
    uint64_t step, samples;
    float loss, samples_per_s;
};

struct hth_recall_test {
    uint32_t t;
    uint64_t step;
    float loss, accuracy, bits_per_byte;
};

struct hth_recall_told {
    uint64_t total, saved_step;
    uint64_t behind; /* samples; 0: not known */
    uint64_t forks, joined;
    uint32_t saved_t, began_t;
    uint32_t point_count, test_count;
    struct hth_recall_point point[HTH_RECALL_POINTS_MAX];
    struct hth_recall_test test[HTH_RECALL_TESTS_MAX];
};

/* Adds a point if its ten seconds have none yet, else replaces that one; the oldest goes. A point
 * before the newest is ignored: the clock was set back. */
void hth_recall_add(struct hth_recall_told *r, const struct hth_recall_point *point);
void hth_recall_add_test(struct hth_recall_told *r, const struct hth_recall_test *test);

/* Writes the points after that second; returns the number of bytes. */
size_t hth_recall_write(const struct hth_recall_told *r, uint32_t after_t,
                        uint8_t out[HTH_RECALL_BYTES_MAX]);
/* Errors: E_TRUNCATED; E_TOO_LARGE (points, tests); E_RANGE (a count beyond
 * HTH_RECALL_COUNT_MAX, points not in order of time or two in the same ten seconds). */
enum hth_err hth_recall_read(const uint8_t *data, size_t len, struct hth_recall_told *out) HTH_MUST;

#endif
