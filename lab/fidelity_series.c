/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fidelity_series.c: the run file of both halves, the trainer's counters, and the times at which a
 * host disappears and returns; see fidelity.h.
 */
#include "core/mem.h"
#include "lab/fidelity.h"

#include <math.h>

#define STAYS_S 2.0

void hth_fidelity_clear(struct hth_fidelity_series *s)
{
    hth_free(s->sample);
    *s = (struct hth_fidelity_series){.count = 0};
}

void hth_fidelity_add(struct hth_fidelity_series *s, const struct hth_fidelity_sample *sample)
{
    s->sample = hth_realloc(s->sample, s->count + 1, sizeof(s->sample[0]));
    s->sample[s->count++] = *sample;
}

double hth_fidelity_begin_s(const struct hth_fidelity_series *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->sample[i].updates > 0)
            return s->sample[i].t_s;
    return -1;
}

bool hth_fidelity_enough(const struct hth_fidelity_series *s, const struct hth_fidelity_case *c)
{
    double begin_s = hth_fidelity_begin_s(s);
    return begin_s >= 0 && s->sample[s->count - 1].t_s >= begin_s + c->seconds;
}

double hth_fidelity_until_gone(const struct hth_fidelity_series *s, double from_s, uint32_t live)
{
    for (size_t i = 0; i + 1 < s->count; i++)
        if (s->sample[i].t_s >= from_s && s->sample[i].live <= live &&
            s->sample[i + 1].live <= live)
            return s->sample[i].t_s - from_s;
    return NAN;
}

/* Count the samples within STAYS_S after that one that show fewer live experts. */
static size_t dips(const struct hth_fidelity_series *s, size_t from, uint32_t live)
{
    size_t n = 0;
    for (size_t i = from; i < s->count && s->sample[i].t_s - s->sample[from].t_s <= STAYS_S; i++)
        n += s->sample[i].live < live;
    return n;
}

double hth_fidelity_until_back(const struct hth_fidelity_series *s, double from_s, uint32_t live)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->sample[i].t_s >= from_s && s->sample[i].live >= live && dips(s, i, live) <= 1)
            return s->sample[i].t_s - from_s;
    return NAN;
}

char *hth_fidelity_runfile(void)
{
    return hth_strdup("run: fidelity\nseed: 1\n"
                      "model: { kind: classifier, dim: 128, layers: 2, grid: [4, 4], top_k: 4 }\n"
                      "data: { kind: fashion-mnist, shuffle_rows: 1024 }\n"
                      "train: { rows: 64, flights: 8, steps: 1000000, eval_every: 1000000,\n"
                      "         checkpoint_every: 1000000, wire: fp32 }\n"
                      "optimizer: { kind: adam, rate: 0.001 }\n"
                      "experts: { step_rows: 64, optimizer: { kind: adam, rate: 0.001 } }\n"
                      "averaging: { mode: off }\n");
}
