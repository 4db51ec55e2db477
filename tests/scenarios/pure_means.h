/* SPDX-License-Identifier: Apache-2.0 */
/* pure_means.h: a pure simulation over several seeds. */
#ifndef HTH_TESTS_SCENARIOS_PURE_MEANS_H
#define HTH_TESTS_SCENARIOS_PURE_MEANS_H

#include "scenarios/pure.h"

/* Returns the means over the seeds 0 .. seeds - 1, followed by their standard errors, each as long
 * as a row. Free with hth_free. */
double *pure_means(const struct hth_pure_opts *opts, size_t seeds);

#endif
