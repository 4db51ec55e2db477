/* SPDX-License-Identifier: Apache-2.0 */
/* The averager of a trainer that is alone: it refuses every offer and says why. */
#include "averaging/averager.h"
#include "core/mem.h"

struct nobody {
    struct hth_averager_stats stats;
};

static enum hth_err nobody_start(void *self, hth_avg_round_fn *fn, void *arg)
{
    (void)self;
    (void)fn;
    (void)arg;
    return HTH_OK;
}

static enum hth_err nobody_ready(void *self, enum hth_avg_reason *reason)
{
    (void)self;
    *reason = HTH_AVG_NOBODY;
    return HTH_E_NOT_FOUND;
}

static enum hth_err nobody_offer(void *self, const struct hth_avg_offer *offer)
{
    struct nobody *nobody = self;

    nobody->stats.offers++;
    nobody->stats.refused++;
    if (offer->count == 0 || !(offer->weight > 0) || !(offer->weight <= HTH_AVG_WEIGHT_MAX))
        return HTH_E_RANGE;
    return HTH_E_NOT_FOUND;
}

static void nobody_stop(void *self)
{
    (void)self;
}

static void nobody_stats(const void *self, struct hth_averager_stats *out)
{
    *out = ((const struct nobody *)self)->stats;
}

static const struct hth_averager_ops nobody_ops = {
    .name = "nobody",
    .start = nobody_start,
    .ready = nobody_ready,
    .offer = nobody_offer,
    .stop = nobody_stop,
    .stats = nobody_stats,
    .free = hth_free,
};

void hth_averager_nobody(struct hth_averager *out)
{
    out->ops = &nobody_ops;
    out->self = hth_new(struct nobody);
}
