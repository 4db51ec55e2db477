/* SPDX-License-Identifier: Apache-2.0 */
#include "core/order.h"

double hth_kth(double *v, size_t count, size_t k)
{
    int64_t low = 0, high = (int64_t)count - 1, at = (int64_t)k;

    HTH_ASSERT(k < count);
    while (low < high) {
        double pivot = v[at];
        int64_t i = low, j = high;

        do {
            while (v[i] < pivot)
                i++;
            while (pivot < v[j])
                j--;
            if (i <= j) {
                double swap = v[i];

                v[i++] = v[j];
                v[j--] = swap;
            }
        } while (i <= j);
        if (j < at)
            low = i;
        if (at < i)
            high = j;
    }
    return v[at];
}
