/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.h: a run by roll call (collab/collab.h) beside keys that speak and do nothing: anybody can
 * make any number of them.
 *
 *     warm-up       first minute                  second minute
 *     |----------->|----------------------------->|----------------------------->|
 *                  the keys come, within 2 s of   ... and stay, or fall silent
 *                  each other (silent, brings: in the whole time)
 *
 * The same crew (crew.h) runs a second time without them, with the same seed. Each key is a node
 * with an identity and an endpoint (4,096 of them take about 400 MB); it sees the crew's chain, as
 * if it had fetched it. Keys of kind `brings` are whole trainers.
 */
#ifndef HTH_SCENARIOS_KEYS_H
#define HTH_SCENARIOS_KEYS_H

#include "core/base.h"

enum hth_keys_kind {
    HTH_KEYS_DECLARE, /* put a head, or that they look for one, in the DHT, and are READY once */
    HTH_KEYS_READY,   /* are READY in each ballot, with samples, and never bring values */
    HTH_KEYS_SILENT,  /* the same until a message, which the seed draws; then never a word */
    HTH_KEYS_BRINGS,  /* bring values for 1 to 7 steps; then never a word */
    HTH_KEYS_KINDS,
};
const char *hth_keys_kind_name(enum hth_keys_kind kind);

struct hth_keys_opts {
    uint64_t seed;
    uint32_t keys;     /* at least 1 */
    uint32_t trainers; /* 1 to 9 */
    enum hth_keys_kind kind;
    uint32_t minutes; /* at least 1 */
};

struct hth_keys_report {
    double steps_ratio; /* steps of a minute by those without keys, of the worst minute */
    uint64_t steps;     /* in all minutes, */
    uint64_t alone;     /* and without keys */
    uint64_t asked;     /* requests of parts that a key which brings nothing should have reduced */
    uint64_t hash;      /* of the world's events */
};

/* Runs both. Errors: E_CONFIG (numbers out of range), those of a boot. */
enum hth_err hth_sim_keys(const struct hth_keys_opts *opts, struct hth_keys_report *out) HTH_MUST;
/* The first promise that a report breaks, in words; NULL: it keeps all. */
const char *hth_keys_broken(const struct hth_keys_report *r);

/* The table: 1, 64 and 4,096 keys of each kind beside 1 to 9 trainers. The seed is left at 0. */
uint32_t hth_keys_rows(void);
struct hth_keys_opts hth_keys_row(uint32_t row);

#endif
