/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uid.h: names of experts, and the grids they lie in.
 *
 *   uid      ffn0.3.7              layer name, then 1 to 3 coordinates
 *   prefix   ffn0.3.               layer name, then fewer coordinates, and always a final dot
 *   pattern  ffn0.[0:4].[0:16]     each coordinate a number or a half-open range
 *   grid     ffn0.16.16            layer name, then the size of each axis
 *
 * A name is as core/name.h says. A number is `0` or has no leading zero, and has no sign. Nothing
 * may follow: a trailing newline or blank is an error.
 *
 * Inside a grid an expert has an *index*: its coordinates in row-major order, the last one fastest.
 * The directory, the gate and the records use indices; uids are for people and files.
 *
 * Plain values and pure functions: any thread.
 */
#ifndef HTH_DHT_UID_H
#define HTH_DHT_UID_H

#include "core/base.h"
#include "core/limits.h"
#include "core/name.h"

/* Name, three dots, three numbers of 5 digits, the final dot of a prefix, the terminator. */
#define HTH_UID_TEXT_MAX (HTH_NAME_LEN_MAX + 3 * 11 + 2)

struct hth_uid {
    char name[HTH_NAME_LEN_MAX + 1];
    uint8_t ncoord; /* 1..3; of a prefix 0..2 */
    uint32_t coord[HTH_GRID_DIMS_MAX];
};

struct hth_pattern {
    char name[HTH_NAME_LEN_MAX + 1];
    uint8_t ncoord;
    uint32_t lo[HTH_GRID_DIMS_MAX];
    uint32_t hi[HTH_GRID_DIMS_MAX]; /* exclusive */
};

struct hth_grid {
    char name[HTH_NAME_LEN_MAX + 1];
    uint8_t ndim;
    uint32_t dim[HTH_GRID_DIMS_MAX]; /* unused axes are 1 */
};

/* Errors of the four parsers: E_MALFORMED (grammar), E_RANGE (a coordinate or size beyond
 * HTH_GRID_DIM_MAX, an empty range, a grid beyond HTH_GRID_EXPERTS_MAX), E_TOO_LARGE (name or
 * number of coordinates). `out` is all zero then. `len` bytes are read; no terminator is needed. */
enum hth_err hth_uid_parse(const char *text, size_t len, struct hth_uid *out) HTH_MUST;
enum hth_err hth_prefix_parse(const char *text, size_t len, struct hth_uid *out) HTH_MUST;
enum hth_err hth_pattern_parse(const char *text, size_t len, struct hth_pattern *out) HTH_MUST;
enum hth_err hth_grid_parse(const char *text, size_t len, struct hth_grid *out) HTH_MUST;

/* Text forms; each returns `out`. */
const char *hth_uid_text(const struct hth_uid *uid, char out[HTH_UID_TEXT_MAX]);
const char *hth_prefix_text(const struct hth_uid *prefix, char out[HTH_UID_TEXT_MAX]);
const char *hth_grid_text(const struct hth_grid *grid, char out[HTH_UID_TEXT_MAX]);

/* Fills a grid from numbers. Errors: as hth_grid_parse. */
enum hth_err hth_grid_init(struct hth_grid *grid, const char *name, uint32_t ndim,
                           const uint32_t *dim) HTH_MUST;
/* The number of cells: at most HTH_GRID_EXPERTS_MAX. */
uint32_t hth_grid_size(const struct hth_grid *grid);
bool hth_grid_eq(const struct hth_grid *a, const struct hth_grid *b);
/* index = (c0 * dim1 + c1) * dim2 + c2. Coordinates must lie inside. */
uint32_t hth_grid_index(const struct hth_grid *grid, const uint32_t coord[HTH_GRID_DIMS_MAX]);
void hth_grid_coords(const struct hth_grid *grid, uint32_t index,
                     uint32_t coord[HTH_GRID_DIMS_MAX]);
/* The text of an expert's uid, from its index. */
const char *hth_grid_uid_text(const struct hth_grid *grid, uint32_t index,
                              char out[HTH_UID_TEXT_MAX]);
/* The index of a parsed uid. Errors: E_WRONG_RUN (another name or number of axes), E_RANGE. */
enum hth_err hth_grid_find(const struct hth_grid *grid, const struct hth_uid *uid,
                           uint32_t *index) HTH_MUST;

/* How many experts a pattern names; at most HTH_GRID_EXPERTS_MAX. */
uint32_t hth_pattern_count(const struct hth_pattern *pattern);
/* The i-th of them (i < count), in row-major order of the pattern's box. */
void hth_pattern_at(const struct hth_pattern *pattern, uint32_t i, struct hth_uid *out);
/* Writes the pattern's expert indices inside a grid to out[hth_pattern_count()], ascending.
 * Errors: E_WRONG_RUN (another name or number of axes), E_RANGE (reaches beyond the grid). */
enum hth_err hth_pattern_expand(const struct hth_pattern *pattern, const struct hth_grid *grid,
                                uint32_t *out) HTH_MUST;

#endif
