/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listing.h: the payloads of a host's records: which experts of a layer it serves, and its beacon.
 *
 * Fields are little-endian; `v` is a LEB128 number of at most 32 bits in its shortest form; `s` is
 * a length byte and that many bytes of text.
 *
 *   host    count 1, then per address: family 1 (4 or 6), ip 4 or 16, port 2
 *           compute 1, rows/s 4, queue in ms 4, version s
 *   listing format 1 (= 1), flags 1, host
 *           layer name s, axes 1, size of each v
 *           kind s, d v, block rows v
 *           depth 1 (0: the root, 1: below one first coordinate), with depth 1 that coordinate v
 *           set: codec 1, count v, then
 *                runs   (1): number v, then per run: gap v since the last run's end, length - 1 v
 *                bitmap (2): first v, bits v, ceil(bits / 8) bytes, lowest bit first
 *   beacon  format 1 (= 2), flags 1 (= 0), oldest and newest protocol 2 + 2, role 1, host
 *           network s (core/name.h; empty: a private one)
 *           number of layers v, then per layer: name s, axes 1, sizes v, kind s, d v, block rows v,
 *           experts v
 *
 * A set counts inside its prefix: of the root, grid indices (or, with HTH_LISTING_FIRSTS, first
 * coordinates); below c0, index - c0 * (grid size / dim[0]). Numbers ascend strictly. Decoding
 * checks everything; its results are within the limits. Pure functions, any thread.
 */
#ifndef HTH_DHT_LISTING_H
#define HTH_DHT_LISTING_H

#include "core/bytes.h"
#include "dht/announce.h"

/* flags: the root's set holds first coordinates; the experts are listed under the prefixes. */
#define HTH_LISTING_FIRSTS 1u

struct hth_run {
    uint32_t first, count;
};

struct hth_listing {
    uint8_t flags;
    struct hth_host_info info;
    struct hth_grid grid;
    struct hth_layer_shape shape;
    uint8_t depth; /* 0: root, 1: below `c0` */
    uint32_t c0;
    /* decoded: disjoint, ascending, not touching each other; free with hth_listing_clear */
    struct hth_run *runs;
    size_t run_count;
    uint32_t count; /* numbers in all runs */
};

struct hth_beacon_layer {
    struct hth_grid grid;
    struct hth_layer_shape shape;
    uint32_t experts; /* that this node serves */
};

struct hth_beacon {
    uint16_t protocol_min, protocol_max;
    enum hth_role role;
    struct hth_host_info info;
    char network[HTH_NAME_LEN_MAX + 1];
    struct hth_beacon_layer *layers; /* free with hth_beacon_clear */
    size_t layer_count;
};

/* The exclusive bound of the numbers in the set. */
uint32_t hth_listing_universe(const struct hth_listing *listing);

/* Writes everything before the set. Errors: E_TOO_LARGE (capacity). */
enum hth_err hth_listing_write_head(struct hth_writer *w,
                                    const struct hth_listing *listing) HTH_MUST;
/* Writes as many of the ascending numbers as fit in bytes_max, by the codec that takes more of
 * them; *taken is at least 1 when count > 0 and bytes_max >= 16. w NULL only counts. Errors:
 * E_TOO_LARGE (the writer's capacity). */
enum hth_err hth_listing_write_set(struct hth_writer *w, const uint32_t *number, size_t count,
                                   size_t bytes_max, size_t *taken) HTH_MUST;
/* Errors: E_TRUNCATED, E_VERSION (format), E_MALFORMED, E_RANGE, E_TOO_LARGE (more experts than
 * HTH_ANNOUNCE_EXPERTS_MAX), E_NO_MEMORY. */
enum hth_err hth_listing_read(const uint8_t *data, size_t len, struct hth_listing *out) HTH_MUST;
void hth_listing_clear(struct hth_listing *listing);

/* Layers that do not fit in bytes_max are left out. Errors: E_TOO_LARGE. */
enum hth_err hth_beacon_write(struct hth_writer *w, const struct hth_beacon *beacon,
                              size_t bytes_max) HTH_MUST;
/* Errors: as of hth_listing_read, and E_MALFORMED for bytes that cannot name a network. The caller
 * checks that the network matches the record's tag. */
enum hth_err hth_beacon_read(const uint8_t *data, size_t len, struct hth_beacon *out) HTH_MUST;
void hth_beacon_clear(struct hth_beacon *beacon);

/* Checks that these addresses and figures may be published or believed. Errors: E_MALFORMED,
 * E_RANGE. */
enum hth_err hth_host_info_check(const struct hth_host_info *info) HTH_MUST;
bool hth_layer_shape_eq(const struct hth_layer_shape *a, const struct hth_layer_shape *b);

#endif
