/* SPDX-License-Identifier: Apache-2.0 */
/* runner_crowd.h: many experts on one device, for runner.c. */
#ifndef HTH_TESTS_KERNELS_RUNNER_CROWD_H
#define HTH_TESTS_KERNELS_RUNNER_CROWD_H

#include "kernels/backend.h"

/* Each returns the distance of its results from the expected ones (relative 2-norm), infinite when
 * an operation failed. */

/* A dozen FFN experts train in rotation, beside the same on `ref`. A device that holds fewer evicts
 * and fetches them. */
double runner_crowd(const struct hth_backend *be);
/* Small blocks in one call, beside the same one by one on the same device. */
double runner_together(const struct hth_backend *be);
/* A block at the same addresses again and again, beside one that is computed at other addresses
 * each time, which no recording may serve. */
double runner_again(const struct hth_backend *be);

#endif
