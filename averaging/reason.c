/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/reason.h"

const char *hth_avg_reason_name(enum hth_avg_reason reason)
{
    switch (reason) {
#define NAME(num, name, text)                                                                      \
    case HTH_AVG_##name:                                                                           \
        return #name;
        HTH_AVG_REASON_MAP(NAME)
#undef NAME
    }
    return "UNKNOWN";
}

const char *hth_avg_reason_text(enum hth_avg_reason reason)
{
    switch (reason) {
#define TEXT(num, name, text)                                                                      \
    case HTH_AVG_##name:                                                                           \
        return text;
        HTH_AVG_REASON_MAP(TEXT)
#undef TEXT
    }
    return "an unknown reason";
}
