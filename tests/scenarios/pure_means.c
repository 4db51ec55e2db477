/* SPDX-License-Identifier: Apache-2.0 */
#include "core/mem.h"
#include "scenarios/pure_means.h"
#include "support/test.h"

#include <math.h>

static void sum_up(const double *rows, size_t seeds, size_t len, double *mean, double *se)
{
    for (size_t i = 0; i < len; i++) {
        double sum = 0, square = 0;
        for (size_t s = 0; s < seeds; s++)
            sum += rows[s * len + i];
        mean[i] = sum / (double)seeds;
        for (size_t s = 0; s < seeds; s++) {
            double off = rows[s * len + i] - mean[i];
            square += off * off;
        }
        se[i] = seeds > 1 ? sqrt(square / (double)(seeds - 1) / (double)seeds) : 0;
    }
}

double *pure_means(const struct hth_pure_opts *opts, size_t seeds)
{
    size_t len = hth_pure_row_len(opts);
    double *rows = hth_new_array(double, len *seeds), *out = hth_new_array(double, 2 * len);
    struct hth_pure *pure;

    assert_ok(hth_pure_new(opts, &pure));
    for (size_t s = 0; s < seeds; s++)
        hth_pure_run(pure, s, rows + s * len);
    hth_pure_free(pure);
    sum_up(rows, seeds, len, out, out + len);
    hth_free(rows);
    return out;
}
