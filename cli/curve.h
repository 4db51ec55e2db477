/* SPDX-License-Identifier: Apache-2.0 */
/*
 * curve.h: the loss of a run, from the lines that `hearth train` writes (app/train_lines.h).
 *
 * Training goes back where a run was resumed from a checkpoint: points from that step on are
 * dropped, as what came after was not part of the model. Time stands still between two lines that
 * are more than two minutes apart: nothing trained.
 *
 * Lines that can't be read (a killed program leaves half of one) are counted and skipped. Pure
 * functions, any thread.
 */
#ifndef HTH_CLI_CURVE_H
#define HTH_CLI_CURVE_H

#include "core/base.h"

struct hth_curve_point {
    double at[3]; /* by enum hth_curve_axis */
    double loss;
};

enum hth_curve_axis { HTH_CURVE_STEPS, HTH_CURVE_SAMPLES, HTH_CURVE_TIME };

struct hth_curve_line {
    struct hth_curve_point *point; /* steps rise */
    size_t count;
};

struct hth_curve {
    struct hth_curve_line train, test;
    uint64_t lines_bad;
};

/* Free *out with hth_curve_clear. */
void hth_curve_parse(const uint8_t *bytes, size_t len, struct hth_curve *out);
void hth_curve_clear(struct hth_curve *curve);

#endif
