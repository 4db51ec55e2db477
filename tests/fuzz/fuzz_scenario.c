/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_scenario.c: any bytes as a scenario: one within its limits that can be drawn, or an error
 * with a text.
 */
#include "scenarios/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_scenario *s;
    struct hth_plan plan;
    char error[HTH_SCENARIO_ERROR_MAX], text[HTH_SCENARIO_TEXT_MAX];
    if (hth_scenario_parse("fuzz", data, size, &s, error) != HTH_OK) {
        HTH_ASSERT(error[0] != '\0');
        return 0;
    }
    HTH_ASSERT(hth_scenario_check(s, error, sizeof(error)) == HTH_OK);
    hth_scenario_draw(s, 1, &plan);
    HTH_ASSERT(plan.safety_us < plan.duration_us && plan.link.loss >= 0 && plan.link.loss <= 0.5);
    hth_plan_text(&plan, text);
    hth_scenario_free(s);
    return 0;
}
