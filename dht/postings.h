/* SPDX-License-Identifier: Apache-2.0 */
/*
 * postings.h: private to dht/. Maps each expert of one layer to the records that name it, and so
 * tells which experts are live.
 *
 * A *claim* is the content of one record: an owner and runs of expert indices. Each expert has a
 * list of the claims that name it, those whose owners are up before all others: so claims of owners
 * that are down cost no reader anything, however many they are. An expert is live while the first
 * one is up. One posting of a list is 32 bytes, so a million experts with one host each cost 32 MiB
 * beside the heads.
 */
#ifndef HTH_DHT_POSTINGS_H
#define HTH_DHT_POSTINGS_H

#include "dht/directory.h"
#include "dht/listing.h"

struct hth_postings;

struct hth_claim {
    void *owner;          /* the caller's; equal pointers are one owner */
    const bool *dead;     /* the owner's: true hides it, from hth_postings_owner_moved on */
    bool down;            /* ... as of then: set by the postings */
    struct hth_run *runs; /* the claim's own; freed with it */
    size_t run_count;
    uint32_t count;
};

/* Errors: E_NO_MEMORY. */
enum hth_err hth_postings_new(const struct hth_grid *grid, struct hth_postings **out) HTH_MUST;
void hth_postings_free(struct hth_postings *p); /* claims must be gone; NULL is fine */

/* Adds a claim; on success takes its runs. Errors: E_BUDGET, E_NO_MEMORY; nothing changed then. */
enum hth_err hth_postings_add(struct hth_postings *p, const struct hth_claim *claim,
                              struct hth_claim **out) HTH_MUST;
void hth_postings_remove(struct hth_postings *p, struct hth_claim *claim);
/* To be called for each claim of an owner whose `dead` changed. */
void hth_postings_owner_moved(struct hth_postings *p, struct hth_claim *claim);

/* Whether one of the claim's experts has fewer than HTH_DIR_PROVED_MAX claims that are up. */
bool hth_postings_need(const struct hth_postings *p, const struct hth_claim *claim);
/* Calls fn for each distinct owner of an expert that is up, of at most HTH_DIR_REPLICAS_MAX of its
 * claims, in no particular order. */
void hth_postings_owners(const struct hth_postings *p, uint32_t expert,
                         void (*fn)(void *arg, void *owner), void *arg);
/* Prefetches the list heads of the first experts. */
void hth_postings_fetch(const struct hth_postings *p);
const uint64_t *hth_postings_live(const struct hth_postings *p);
size_t hth_postings_live_count(const struct hth_postings *p);
/* Grows with each change of the live set. */
uint64_t hth_postings_version(const struct hth_postings *p);

#endif
