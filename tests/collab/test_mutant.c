/* SPDX-License-Identifier: Apache-2.0 */
/* The search finds what goes wrong without a rule (mutants.cmake): else it would prove nothing. */
#include "support/suite.h"

#include "world.h"

/* A fault does harm in some orders of voters only: the seeds from the world's own up to this one
 * are tried. */
enum { SEEDS = 16 };

static const struct {
    struct world world; /* its name is the mutant's */
    const char *broken; /* the promise, as in world.h */
} mutants[] = {
    {{"tip", 4, 0, 1, .steps = 2, .faults = 2, .kinds = WORLD_PART, .links = true, .seed = 10},
     "S1"},
    {{"tally", 3, 0, 1, .steps = 2, .faults = 2, .kinds = WORLD_FREEZE, .links = true}, "S1"},
    {{"head", 3, 0, 2, .steps = 1, .faults = 2, .kinds = WORLD_CUT | WORLD_SUSPECT, .links = true},
     "S5"},
    {{"batch", 3, 0, 1, .steps = 3, .faults = 1, .kinds = WORLD_FREEZE | WORLD_CUT, .links = true},
     "S2"},
    {{"leave", 3, 0, 1, .steps = 3, .faults = 2, .kinds = WORLD_CUT | WORLD_LEAVE, .links = true},
     "S1"},
    {{"amnesia", 3, 0, 1, .steps = 2, .faults = 3, .kinds = WORLD_CRASH | WORLD_FREEZE,
      .links = true, .seed = 3},
     "S1"},
    {{"follow", 4, 0, 1, .steps = 2, .faults = 1, .kinds = WORLD_REFUSE, .links = true}, "S6"},
    {{"stubborn", 3, 0, 1, .steps = 2, .faults = 1, .kinds = WORLD_REFUSE}, "S3"},
    {{"all", 3, 0, 1, .steps = 4, .faults = 2, .kinds = WORLD_CRASH | WORLD_SUSPECT}, "S3"},
};

TEST(is_caught)
{
    size_t m = 0;
    while (m < HTH_ARRAY_LEN(mutants) && strcmp(mutants[m].world.name, HTH_MUTANT) != 0)
        m++;
    assert_true(m < HTH_ARRAY_LEN(mutants));
    struct world world = mutants[m].world;
    for (; world.seed < SEEDS; world.seed++) {
        struct world_found found = world_search(&world, false);
        printf("seed %u: %s (%zu states)\n", world.seed, found.why, found.states);
        if (found.why[0] == '\0')
            continue;
        assert_memory_equal(found.why, mutants[m].broken, 2);
        return;
    }
    fail_msg("mutant %s keeps all promises", HTH_MUTANT);
}
