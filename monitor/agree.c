/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/agree.h"

#include "core/order.h"

#include <math.h>

double hth_agreed(double *told, size_t count)
{
    return count > 0 ? hth_kth(told, count, (count - 1) / 2) : NAN;
}

double hth_agreed_most(double *told, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        double x = told[i];
        told[i] = told[n];
        if (x > 0)
            told[n++] = x;
    }
    return n > 0 ? HTH_AGREE_TIMES * hth_agreed(told, n) : INFINITY;
}
