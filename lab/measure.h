/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure.h: does a lab keep its settings? Three measurements with plain sockets, each in its own
 * lab of two hosts, beside the expected values:
 *
 *   delay   round trips of single UDP packets: the sum of both ways
 *   rate    one TCP transfer: the line's rate, less headers (40 of each packet's bytes)
 *   loss    the share of UDP packets that do not arrive: the way's probability
 *
 * Bounds: the median delay within 1 ms above (never below) the setting; rate from 85 to 100 %; loss
 * within four standard errors. On a busy machine packets are late; the report has the lateness.
 */
#ifndef HTH_LAB_MEASURE_H
#define HTH_LAB_MEASURE_H

#include "lab/lab.h"

struct hth_lab_test_row {
    const char *what;
    double set, measured, low, high;
    bool good;
    double late_p99_us;
};

#define HTH_LAB_TEST_ROWS 3

/* Measure for about `seconds`. Errors: those of hth_lab_new; E_IO: sockets failed. */
enum hth_err hth_lab_test(double seconds, struct hth_lab_test_row rows[HTH_LAB_TEST_ROWS],
                          char error[HTH_LAB_ERROR_MAX]) HTH_MUST;

#endif
