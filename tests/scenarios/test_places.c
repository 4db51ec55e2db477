/* SPDX-License-Identifier: Apache-2.0 */
/* test_places.c: some rows of `hearth sim places`, which has many seeds. */
#include "scenarios/places.h"
#include "support/suite.h"

#include <math.h>

TEST(every_place_gets_one_host)
{
    static const uint32_t hosts[] = {1, 2, 7, 40};

    (void)state;
    for (size_t h = 0; h < HTH_ARRAY_LEN(hosts); h++)
        for (int start = HTH_PLACES_AT_ONCE; start <= HTH_PLACES_ONE_BY_ONE; start++)
            for (uint64_t seed = 1; seed <= 3; seed++) {
                const struct hth_sim_places_opts opts = {seed, hosts[h],
                                                         (enum hth_places_start)start};
                struct hth_sim_places_row row;

                assert_ok(hth_sim_places(&opts, &row));
                if (isnan(row.s) || row.served < 1 || row.twice > 0)
                    fail_msg("%u hosts, start %d, seed %llu: %.1f %% served, %u twice", hosts[h],
                             start, (unsigned long long)seed, 100 * row.served, row.twice);
            }
}

TEST(too_many_hosts_are_refused)
{
    const struct hth_sim_places_opts opts = {.hosts = HTH_PLACES_HOSTS_MAX + 1};
    struct hth_sim_places_row row;

    (void)state;
    assert_err(HTH_E_CONFIG, hth_sim_places(&opts, &row));
}
