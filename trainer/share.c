/* SPDX-License-Identifier: Apache-2.0 */
/* share.c: what a trainer publishes in its roster record, and what it reports about sharing. */
#include "averaging/roster.h"
#include "averaging/state.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"

#include <math.h>
#include <string.h>

void hth_share_tell(struct hth_trainer *t)
{
    if (t->opts.share.roster != NULL)
        hth_roster_set_progress(t->opts.share.roster, t->stats.updates, 0, t->stats.samples_per_s);
}

uint32_t hth_share_parts(const struct hth_model *model, bool states)
{
    return 1 + (states ? HTH_MIN(hth_params_state_slots(model->params), 2u) : 0);
}

enum hth_err hth_share_spans(const struct hth_model *model, enum hth_quant_format format,
                             uint32_t parts, struct hth_avg_span **out, uint32_t *count)
{
    size_t n = hth_params_flat_len(model->params);
    struct hth_avg_span *spans;

    *out = NULL;
    *count = 0;
    if (format == 0 || format == HTH_QUANT_F32)
        return HTH_OK;
    HTH_TRY(hth_avg_spans_of(model->params, format, &spans, count));
    *out = hth_new_array(struct hth_avg_span, *count + 1);
    memcpy(*out, spans, *count * sizeof(*spans));
    (*out)[*count] = (struct hth_avg_span){.count = (parts - 1) * n, .format = HTH_QUANT_F32};
    *count += parts > 1;
    hth_free(spans);
    return HTH_OK;
}

struct hth_collab_opts hth_share_collab(const struct hth_model *model,
                                        const struct hth_settings *settings,
                                        const struct hth_share_opts *share,
                                        const struct hth_avg_span *spans, uint32_t span_count)
{
    uint64_t count = hth_params_flat_len(model->params);

    return (struct hth_collab_opts){.network = share->network,
                                    .schema = hth_settings_schema(settings, HTH_TICKET_GRADIENT),
                                    .addr = share->addr,
                                    .bandwidth = share->bandwidth,
                                    .count = count,
                                    .state_bytes =
                                        hth_share_parts(model, true) * count * sizeof(float),
                                    .spans = spans,
                                    .span_count = span_count,
                                    .target = share->target,
                                    .shape = share->shape,
                                    .eventual = !share->strict,
                                    .bootstrap = share->bootstrap,
                                    .strangers = share->strangers,
                                    .look_us = share->look_us,
                                    .dht = share->dht,
                                    .reducer = share->reducer};
}

void hth_share_tell_round(struct hth_roster *roster, const struct hth_avg_round_info *round,
                          double distance, double norm)
{
    const struct hth_roster_last last = {
        .group = round->err == HTH_OK ? hth_load_u32le(round->group.b) : 0,
        .members = HTH_MIN(round->members, HTH_AVG_MEMBERS_MAX),
        .drops = HTH_MIN(round->drops, HTH_AVG_MEMBERS_MAX),
        .reason = round->reason,
        .wait_ms = (uint32_t)(round->wait_us / HTH_US_PER_MS),
        .reduce_ms = (uint32_t)(round->reduce_us / HTH_US_PER_MS),
        .bytes = round->bytes_out + round->bytes_in,
        .change = distance,
        .norm = norm,
        .weight_fraction = HTH_MIN(round->weight_fraction, 1.0)};

    if (roster != NULL && isfinite(distance) && isfinite(norm))
        hth_roster_set_last(roster, &last);
}

const char *hth_share_phase_name(enum hth_collab_phase phase)
{
    static const char *const names[] = {
        [HTH_COLLAB_LOOKS] = "looking for others",
        [HTH_COLLAB_FETCHES] = "fetching the run's state",
        [HTH_COLLAB_GATHERS] = "training",
        [HTH_COLLAB_AVERAGES] = "averaging",
        [HTH_COLLAB_STEPS] = "stepping",
        [HTH_COLLAB_ALONE] = "alone",
    };

    return (size_t)phase < HTH_ARRAY_LEN(names) ? names[phase] : "?";
}

/* Of a trainer that averages parameters, or is alone. */
static void look_at_local(const struct hth_trainer *t, struct hth_collab_stats *out)
{
    const struct hth_newcomer *n = &t->newcomer;
    struct hth_state_donor_stats given = {.bytes = 0};

    out->phase = t->opts.share.roster == NULL ? HTH_COLLAB_ALONE
                 : n->boot == HTH_BOOT_READY  ? HTH_COLLAB_GATHERS
                 : n->boot == HTH_BOOT_LOOK   ? HTH_COLLAB_LOOKS
                                              : HTH_COLLAB_FETCHES;
    hth_averager_stats(&t->average.averager, &out->averages);
    out->fetch.news = n->news != NULL ? n->news : "";
    if (n->fetch != NULL)
        hth_state_fetch_progress(n->fetch, &out->fetch);
    if (n->donor != NULL)
        hth_state_donor_stats(n->donor, &given);
    out->given_bytes = given.bytes;
}

void hth_share_stats(const struct hth_trainer *t, struct hth_share_stats *out)
{
    *out = t->stats.share;
    if (t->collab != NULL)
        hth_collab_stats(t->collab, &out->run);
    else
        look_at_local(t, &out->run);
    out->gathered = t->batch.samples;
}
