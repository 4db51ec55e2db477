/* SPDX-License-Identifier: Apache-2.0 */
/*
 * postings.h: private to dht/. Which records name which expert of one layer, and from that which
 * experts are live.
 *
 * A *claim* is what one record says: an owner and runs of expert indices. Each expert has a list of
 * the claims that name it. An expert is live while one of its claims has an owner that is up. One
 * node of a list is 16 bytes, so a million experts with one host each cost 16 MiB beside the heads.
 */
#ifndef HTH_DHT_POSTINGS_H
#define HTH_DHT_POSTINGS_H

#include "dht/directory.h"
#include "dht/listing.h"

struct hth_postings;

struct hth_claim {
    void *owner;          /* the caller's; equal pointers are one owner */
    const bool *down;     /* the owner's: true hides it */
    struct hth_run *runs; /* the claim's own; freed with it */
    size_t run_count;
    uint32_t count;
};

/* Errors: E_NO_MEMORY. */
enum hth_err hth_postings_new(const struct hth_grid *grid, struct hth_postings **out) HTH_MUST;
void hth_postings_free(struct hth_postings *p); /* claims must be gone; NULL is fine */

/* Adds a claim, taking over runs on success. Errors: E_BUDGET, E_NO_MEMORY; nothing changed
 * then. */
enum hth_err hth_postings_add(struct hth_postings *p, const struct hth_claim *claim,
                              struct hth_claim **out) HTH_MUST;
void hth_postings_remove(struct hth_postings *p, struct hth_claim *claim);
/* The owner's `down` changed: its claims are looked at again. */
void hth_postings_owner_moved(struct hth_postings *p, struct hth_claim *claim);

/* Distinct owners of an expert that are up, through fn, in no particular order. */
void hth_postings_owners(const struct hth_postings *p, uint32_t expert,
                         void (*fn)(void *arg, void *owner), void *arg);
/* Has fetched from memory what the first experts' owners are found by. */
void hth_postings_fetch(const struct hth_postings *p);
const uint64_t *hth_postings_live(const struct hth_postings *p);
size_t hth_postings_live_count(const struct hth_postings *p);
/* Moves with each change of the live set. */
uint64_t hth_postings_version(const struct hth_postings *p);

#endif
