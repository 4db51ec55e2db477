/* SPDX-License-Identifier: Apache-2.0 */
/*
 * places.h: hosts start within ten seconds and share the places of a run, exactly as many as there
 * are; when is every place served, and none twice?
 *
 * Each host is production code: endpoint, server, announcer and keeper of places
 * (experts/places.h). It wants 1 to 7 places, drawn from the seed; together they want as many as
 * two layers have. Links have 40 ms one way and an exponential jitter of 10 ms; one value in fifty
 * is missing from an answer of the DHT, or its push is lost. A place counts while a server has its
 * expert, also one that is about to leave. A row is a pure function of its options.
 */
#ifndef HTH_SCENARIOS_PLACES_H
#define HTH_SCENARIOS_PLACES_H

#include "core/base.h"
#include "sim/world.h"

#define HTH_PLACES_HOSTS_MAX 64
#define HTH_PLACES_WITHIN_US (30 * HTH_US_PER_S)

enum hth_places_start { HTH_PLACES_AT_ONCE, HTH_PLACES_UNIFORM, HTH_PLACES_ONE_BY_ONE };

struct hth_sim_places_opts {
    uint64_t seed;
    uint32_t hosts; /* 1 .. HTH_PLACES_HOSTS_MAX */
    enum hth_places_start start;
};

/* HTH_PLACES_WITHIN_US after the first start. */
struct hth_sim_places_row {
    double served;  /* share of the places */
    uint32_t twice; /* places with two hosts */
    double s;       /* when each place had one host, for good; NaN: it has not */
};

/* Run one configuration. Errors: E_CONFIG, and those of making a host. */
enum hth_err hth_sim_places(const struct hth_sim_places_opts *opts,
                            struct hth_sim_places_row *row) HTH_MUST;

#endif
