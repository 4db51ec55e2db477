/* SPDX-License-Identifier: Apache-2.0 */
/* test_status_layers.c: of layers with one name, the one with most hosts is shown. */
#include "monitor/status_layers.h"
#include "support/suite.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

static struct hth_beacon_layer layer(const char *name, uint32_t rows, uint32_t d, uint32_t experts)
{
    const uint32_t dim[2] = {rows, 4};
    struct hth_beacon_layer l = {.shape = {.kind = "ffn", .d = d, .block_rows = 1},
                                 .experts = experts};
    assert_ok(hth_grid_init(&l.grid, name, 2, dim));
    return l;
}

static void expect(const struct hth_status_layers *all, const struct hth_beacon_layer *want)
{
    const struct hth_beacon_layer *best = hth_status_layers_best(all, want->grid.name);
    assert_non_null(best);
    assert_true(hth_status_layer_eq(best, want));
}

TEST(shows_layer_with_most_hosts_then_experts_then_first)
{
    struct hth_status_layers *all = hth_new(struct hth_status_layers);
    const struct hth_beacon_layer odd = layer("ffn0", 8, 128, 4), thin = layer("ffn0", 4, 64, 30),
                                  good = layer("ffn0", 4, 128, 32), few = layer("ffn0", 4, 128, 2),
                                  other = layer("ffn1", 2, 128, 1);

    (void)state;
    assert_null(hth_status_layers_best(all, "ffn0"));
    hth_status_layers_add(all, &odd); /* the only claim */
    expect(all, &odd);
    hth_status_layers_add(all, &thin); /* as many hosts, more experts, another width */
    expect(all, &thin);
    hth_status_layers_add(all, &good);
    expect(all, &good);
    hth_status_layers_add(all, &odd);
    expect(all, &odd);
    hth_status_layers_add(all, &few); /* the same layer as good, fewer experts */
    expect(all, &good);
    hth_status_layers_add(all, &other);
    expect(all, &good);
    expect(all, &other);
    assert_null(hth_status_layers_best(all, "ffn"));
    memset(all, 0, sizeof(*all));
    hth_status_layers_add(all, &good);
    const struct hth_beacon_layer even = layer("ffn0", 8, 128, 32);
    hth_status_layers_add(all, &even);
    expect(all, &good);
    hth_free(all);
}

TEST(claims_are_bounded)
{
    struct hth_status_layers *all = hth_new(struct hth_status_layers);

    (void)state;
    for (uint32_t i = 0; i < HTH_STATUS_CLAIMS_MAX + 1; i++) {
        const struct hth_beacon_layer l = layer("ffn0", 4, i + 1, 1);
        hth_status_layers_add(all, &l);
    }
    assert_int_equal(all->count, HTH_STATUS_CLAIMS_MAX);
    const struct hth_beacon_layer last = layer("ffn0", 4, HTH_STATUS_CLAIMS_MAX, 1),
                                  beyond = layer("ffn0", 4, HTH_STATUS_CLAIMS_MAX + 1, 9);
    hth_status_layers_add(all, &beyond);
    hth_status_layers_add(all, &last); /* known claims are still counted */
    expect(all, &last);
    hth_free(all);
}
