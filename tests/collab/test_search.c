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

static void keeps_its_promises(void **state)
{
    const struct world *w = *state;
    if (HTH_TEST_FEW && w->large)
        return;
    struct world_found found = world_search(w, true);
    printf("%s: %zu states, %zu ends\n", w->name, found.states, found.ends);
    assert_string_equal(found.why, "");
    assert_true(found.ends > 0);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[HTH_ARRAY_LEN(worlds)];
    struct world asked[HTH_ARRAY_LEN(worlds)];
    size_t n = 0;
    /* test_search [WORLD [FAULTS [STEPS]]]: larger ones by hand. */
    for (size_t i = 0; i < HTH_ARRAY_LEN(worlds); i++) {
        if (argc > 1 && strcmp(argv[1], worlds[i].name) != 0)
            continue;
        asked[n] = worlds[i];
        asked[n].faults = argc > 2 ? atoi(argv[2]) : asked[n].faults;
        asked[n].steps = argc > 3 ? atoi(argv[3]) : asked[n].steps;
        tests[n] = (struct CMUnitTest){
            .name = asked[n].name, .test_func = keeps_its_promises, .initial_state = &asked[n]};
        n++;
    }
    return _cmocka_run_group_tests("search", tests, n, NULL, NULL);
}
