/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_uid.c: names, prefixes, patterns and grids; a text that parses is printed back as it was.
 */
#include "dht/uid.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(const char *text, const uint8_t *data, size_t size)
{
    HTH_ASSERT(strlen(text) == size && memcmp(text, data, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    char out[HTH_UID_TEXT_MAX];
    struct hth_uid uid, last;
    struct hth_pattern pattern;
    struct hth_grid grid;
    if (hth_uid_parse(text, size, &uid) == HTH_OK) {
        same(hth_uid_text(&uid, out), data, size);
        HTH_ASSERT(hth_pattern_parse(text, size, &pattern) == HTH_OK);
        HTH_ASSERT(hth_pattern_count(&pattern) == 1);
    }
    if (hth_prefix_parse(text, size, &uid) == HTH_OK)
        same(hth_prefix_text(&uid, out), data, size);
    if (hth_grid_parse(text, size, &grid) == HTH_OK) {
        uint32_t coord[HTH_GRID_DIMS_MAX];
        same(hth_grid_text(&grid, out), data, size);
        hth_grid_coords(&grid, hth_grid_size(&grid) - 1, coord);
        HTH_ASSERT(hth_grid_index(&grid, coord) == hth_grid_size(&grid) - 1);
    }
    if (hth_pattern_parse(text, size, &pattern) == HTH_OK) {
        uint32_t count = hth_pattern_count(&pattern);
        HTH_ASSERT(count > 0 && count <= HTH_GRID_EXPERTS_MAX);
        hth_pattern_at(&pattern, count - 1, &last);
        for (uint32_t i = 0; i < last.ncoord; i++)
            HTH_ASSERT(last.coord[i] == pattern.hi[i] - 1);
    }
    return 0;
}
