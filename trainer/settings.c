/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/settings.h"

#include <stdio.h>
#include <string.h>

#include "core/bytes.h"
#include "kernels/params.h"
#include "trainer/model.h"
#include "trainer/trainer_int.h"

/* ---- hashes ---------------------------------------------------------------------------------- */

static uint64_t bits(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static uint64_t optimizer_hash(const struct hth_train_optim *o, bool whole)
{
    const struct hth_optim *p = &o->optim;
    const struct hth_schedule *s = &o->schedule;
    /* The optimiser's own lr is not used; the schedule gives it. */
    const uint64_t numbers[] = {
        p->kind,           bits(p->momentum),     bits(p->beta1),     bits(p->beta2),
        bits(p->eps),      bits(p->weight_decay), bits(p->trust_max), s->kind,
        bits(s->lr),       bits(s->lr_final),     s->warmup_steps,    s->total_steps,
        bits(o->clip_norm)};

    return hth_hash64(numbers, whole ? sizeof(numbers) : sizeof(numbers[0]), 0);
}

static uint64_t batch_hash(const struct hth_share_opts *o)
{
    const uint64_t numbers[] = {o->target, o->delayed | (uint64_t)o->strict << 1, o->format,
                                bits(o->clip)};

    return hth_hash64(numbers, sizeof(numbers), 0);
}

void hth_settings_of(const struct hth_model *model, const struct hth_train_optim *optim,
                     const struct hth_share_opts *share, struct hth_settings *out)
{
    bool batch = share->mode == HTH_SHARE_BATCH;
    uint64_t seed = hth_model_opts_of(model)->seed;
    const uint64_t mode[] = {share->mode, hth_share_parts(model, share->states)};

    out->hash[HTH_SETTING_MODEL] = hth_hash64(&seed, sizeof(seed), hth_model_schema(model));
    out->hash[HTH_SETTING_MODE] = hth_hash64(mode, sizeof(mode), 0);
    out->hash[HTH_SETTING_OPTIMIZER] = optimizer_hash(optim, batch);
    out->hash[HTH_SETTING_BATCH] = batch ? batch_hash(share) : 0;
    out->hash[HTH_SETTING_GRID] = share->meeting;
}

uint64_t hth_settings_schema(const struct hth_settings *settings, uint32_t ticket)
{
    return hth_hash64(settings->hash, sizeof(settings->hash), ticket);
}

void hth_settings_set(struct hth_roster *roster, const struct hth_settings *settings,
                      uint32_t ticket)
{
    uint32_t told[HTH_ROSTER_SETTINGS];

    for (uint32_t i = 0; i < HTH_ROSTER_SETTINGS; i++)
        told[i] = (uint32_t)settings->hash[i];
    hth_roster_set_schema(roster, hth_settings_schema(settings, ticket), told);
}

/* ---- differences ----------------------------------------------------------------------------- */

static const char *const keys[HTH_ROSTER_SETTINGS] = {
    [HTH_SETTING_MODEL] = "model or seed",
    [HTH_SETTING_MODE] = "averaging.mode or states",
    [HTH_SETTING_OPTIMIZER] = "optimizer",
    [HTH_SETTING_BATCH] = "averaging.target, delayed, majority, format or clip",
    [HTH_SETTING_GRID] = "averaging.grid, group or share_max",
};

/* Set of the settings that differ, as bits. If the modes differ, settings of one mode only are not
 * compared. */
static uint32_t differing(const struct hth_roster_note *a, const struct hth_roster_note *b)
{
    uint32_t set = 0;

    for (uint32_t i = 0; i < HTH_ROSTER_SETTINGS; i++)
        set |= (uint32_t)(a->settings[i] != b->settings[i]) << i;
    if (set & 1u << HTH_SETTING_MODE)
        set &= ~(1u << HTH_SETTING_OPTIMIZER | 1u << HTH_SETTING_BATCH);
    return set;
}

/* Records carry hashes cut to 32 bits: schemas may differ while all settings look equal. */
static void name_them(uint32_t set, char *out, size_t size)
{
    size_t at = 0;

    if (set == 0)
        snprintf(out, size, "setting");
    for (uint32_t i = 0; i < HTH_ROSTER_SETTINGS && at < size; i++)
        if (set & 1u << i)
            at += (size_t)snprintf(out + at, size - at, "%s%s", at > 0 ? "; " : "", keys[i]);
}

void hth_settings_others(const struct hth_roster *roster, struct hth_other_settings *out)
{
    const struct hth_roster_note *self = hth_roster_self(roster);
    const struct hth_roster_peer *p;
    uint32_t least = 0;

    *out = (struct hth_other_settings){.trainers = 0};
    for (uint32_t i = 0; (p = hth_roster_at(roster, i)) != NULL; i++) {
        uint32_t set = differing(&p->note, self);

        if (p->note.schema == self->schema || p->note.schema == 0 || hth_roster_doubts(roster, p) ||
            (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) != 0)
            continue;
        out->trainers++;
        if (least == 0 || (set != 0 && __builtin_popcount(set) < __builtin_popcount(least)))
            least = set;
    }
    if (out->trainers > 0)
        name_them(least, out->differ, sizeof(out->differ));
}
