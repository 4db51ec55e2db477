/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/reason.h"

static const struct {
    const char *name, *text;
} reasons[] = {
#define ROW(num, name, text) [num] = {#name, text},
    HTH_AVG_REASON_MAP(ROW)
#undef ROW
};

const char *hth_avg_reason_name(enum hth_avg_reason reason)
{
    bool known = reason < HTH_ARRAY_LEN(reasons) && reasons[reason].name != NULL;

    return known ? reasons[reason].name : "UNKNOWN";
}

const char *hth_avg_reason_text(enum hth_avg_reason reason)
{
    bool known = reason < HTH_ARRAY_LEN(reasons) && reasons[reason].text != NULL;

    return known ? reasons[reason].text : "an unknown reason";
}
