/* SPDX-License-Identifier: Apache-2.0 */
/* All orders of events in small worlds keep the promises of choice.h and chain.h (world.h). */
#include "support/test.h"

#include "world.h"

#include <stdlib.h>

static const struct world worlds[] = {
    {"line2", 2, 1, 2, .steps = 3, .faults = 1, .kinds = WORLD_ANY},
    {"line3", 3, 0, 1, .steps = 3, .faults = 2, .kinds = WORLD_ANY, .large = true},
    {"shares3", 3, 0, 2, .steps = 2, .faults = 1, .kinds = WORLD_ANY},
    {"line4", 4, 0, 1, .steps = 3, .faults = 1, .kinds = WORLD_ANY, .large = true},
    {"line5", 5, 0, 1, .steps = 2, .faults = 1, .kinds = WORLD_ANY, .large = true},
    {"newcomer", 3, 1, 1, .steps = 3, .faults = 1, .kinds = WORLD_ANY, .large = true},
    {"leave3", 3, 0, 1, .steps = 4, .faults = 2, .kinds = WORLD_CRASH | WORLD_LEAVE},
    {"grid4", 4, 0, 1, .grid = true, .steps = 2, .faults = 1, .kinds = WORLD_ANY, .large = true},
    {"grid3", 3, 0, 1, .grid = true, .steps = 2, .faults = 1, .kinds = WORLD_ANY},
    {"eventual3", 3, 0, 1, .eventual = true, .steps = 3, .faults = 2, .kinds = WORLD_ANY,
     .large = true},
    {"eventual4", 4, 0, 1, .eventual = true, .steps = 3, .faults = 1, .kinds = WORLD_PART},
    {"genesis4", 4, 0, 1, .genesis = true, .steps = 2, .faults = 1,
     .kinds = WORLD_CRASH | WORLD_FREEZE},
};

/* test_search [WORLD [FAULTS [STEPS]]]: larger ones by hand. */
int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < HTH_ARRAY_LEN(worlds); i++) {
        struct world w = worlds[i];
        if ((argc > 1 && strcmp(argv[1], w.name) != 0) || (HTH_TEST_FEW && w.large))
            continue;
        w.faults = argc > 2 ? atoi(argv[2]) : w.faults;
        w.steps = argc > 3 ? atoi(argv[3]) : w.steps;
        struct world_found found = world_search(&w, true);
        printf("%s: %zu states, %zu ends%s%s\n", w.name, found.states, found.ends,
               found.why[0] != '\0' ? ": " : "", found.why);
        failed += found.why[0] != '\0' || found.ends == 0;
    }
    return failed;
}
