/* SPDX-License-Identifier: Apache-2.0 */
/* runner_crowd.h: many experts on one device, for runner.c. */
#ifndef HTH_TESTS_KERNELS_RUNNER_CROWD_H
#define HTH_TESTS_KERNELS_RUNNER_CROWD_H

#include "kernels/backend.h"

/* Each gives the distance of what came out to what should have (relative 2-norm), infinite when an
 * operation failed. */

/* A dozen FFN experts train in turns, beside the same on `ref`: on a device that holds fewer they
 * come and go. */
double runner_crowd(const struct hth_backend *be);
/* Small blocks together, beside the same one by one on the same device. */
double runner_together(const struct hth_backend *be);
/* The same block from the same places again and again, beside one that is computed at other places
 * each time: no recording may serve it. */
double runner_again(const struct hth_backend *be);

#endif
