/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/churn.h"

#include "core/mem.h"

struct provider {
    struct hth_churn *churn;
    struct hth_rng rng;
    bool down;
};

struct churn_node {
    struct hth_churn *churn;
    struct churn_node *next;
    struct hth_node *node;
    struct provider *provider; /* NULL: plays a trace */
    struct hth_rng rng;
    bool away; /* in its own downtime */
    /* of a trace */
    const struct hth_avail_row *rows;
    size_t count, at;
    struct hth_device base;
    int64_t begun_us;
};

struct hth_churn {
    struct hth_world *world;
    struct hth_churn_opts opts;
    struct hth_rng root;
    struct provider *providers;
    struct churn_node *members, **last;
    uint32_t member_count;
    bool stopped;
    struct hth_churn_stats stats;
};

static int64_t now_us(const struct hth_churn *churn)
{
    return hth_world_now_us(churn->world);
}

/* ---- up and down --------------------------------------------------------------------------- */

static void settle(struct churn_node *m)
{
    struct hth_churn *churn = m->churn;
    bool up = !m->away && (m->provider == NULL || !m->provider->down);
    if (up == hth_node_is_up(m->node))
        return;
    if (up) {
        churn->stats.returns++;
        hth_node_restart(m->node);
        return;
    }
    bool silent = hth_rng_chance(&m->rng, churn->opts.silent);
    churn->stats.deaths++;
    hth_node_crash(m->node, silent ? HTH_CRASH_SILENT : HTH_CRASH_RESET);
}

static void node_step(void *arg);

static void member_next(struct churn_node *m)
{
    struct hth_churn *churn = m->churn;
    int64_t us = hth_life_draw(&churn->opts.peer, &m->rng, now_us(churn), !m->away);
    if (churn->opts.peer.kind != HTH_LIFE_ALWAYS)
        hth_world_at(churn->world, now_us(churn) + us, node_step, m);
}

static void node_step(void *arg)
{
    struct churn_node *m = arg;
    if (m->churn->stopped)
        return;
    m->away = !m->away;
    settle(m);
    member_next(m);
}

static void provider_turn(void *arg);

static void provider_next(struct provider *p)
{
    struct hth_churn *churn = p->churn;
    int64_t us = hth_life_draw(&churn->opts.provider, &p->rng, now_us(churn), !p->down);
    if (churn->opts.provider.kind != HTH_LIFE_ALWAYS)
        hth_world_at(churn->world, now_us(churn) + us, provider_turn, p);
}

static void provider_turn(void *arg)
{
    struct provider *p = arg;
    if (p->churn->stopped)
        return;
    p->down = !p->down;
    p->churn->stats.outages += p->down;
    for (struct churn_node *m = p->churn->members; m != NULL; m = m->next)
        if (m->provider == p)
            settle(m);
    provider_next(p);
}

/* ---- traces -------------------------------------------------------------------------------- */

static void play_turn(void *arg);

/* Schedule the next edge of the rows: on and off alternate. */
static void play_next(struct churn_node *m)
{
    if (m->at == m->count)
        return;
    const struct hth_avail_row *row = &m->rows[m->at];
    int64_t at_us = m->away ? row->on_us : row->off_us;
    if (at_us < INT64_MAX / 4)
        hth_world_at(m->churn->world, m->begun_us + at_us, play_turn, m);
}

static void play_turn(void *arg)
{
    struct churn_node *m = arg;
    if (m->churn->stopped)
        return;
    if (m->away) {
        const struct hth_avail_row *row = &m->rows[m->at];
        struct hth_device d = m->base;
        hth_device_scale(&d, row->speed);
        d.up_bytes_per_s = row->up_bytes_per_s;
        d.down_bytes_per_s = row->down_bytes_per_s;
        hth_node_set_device(m->node, &d);
    } else {
        m->at++;
    }
    m->away = !m->away;
    settle(m);
    play_next(m);
}

/* ---- the whole ----------------------------------------------------------------------------- */

struct hth_churn *hth_churn_new(struct hth_world *world, const struct hth_churn_opts *opts,
                                uint64_t seed)
{
    struct hth_churn *churn = hth_new(struct hth_churn);
    churn->world = world;
    churn->opts = *opts;
    churn->opts.providers = HTH_MAX(opts->providers, 1u);
    churn->last = &churn->members;
    hth_rng_init(&churn->root, seed);
    churn->providers = hth_new_array(struct provider, churn->opts.providers);
    for (uint32_t i = 0; i < churn->opts.providers; i++) {
        struct provider *p = &churn->providers[i];
        p->churn = churn;
        p->rng = hth_rng_split(&churn->root, "provider", i);
        provider_next(p);
    }
    return churn;
}

void hth_churn_free(struct hth_churn *churn)
{
    if (churn == NULL)
        return;
    while (churn->members != NULL) {
        struct churn_node *m = churn->members;
        churn->members = m->next;
        hth_free(m);
    }
    hth_free(churn->providers);
    hth_free(churn);
}

static struct churn_node *member_new(struct hth_churn *churn, struct hth_node *node)
{
    struct churn_node *m = hth_new(struct churn_node);
    m->churn = churn;
    m->node = node;
    m->rng = hth_rng_split(&churn->root, "member", churn->member_count++);
    *churn->last = m;
    churn->last = &m->next;
    return m;
}

void hth_churn_add(struct hth_churn *churn, struct hth_node *node)
{
    uint32_t number = churn->member_count;
    struct churn_node *m = member_new(churn, node);
    m->provider = &churn->providers[number % churn->opts.providers];
    if (churn->opts.under_way && churn->opts.peer.kind != HTH_LIFE_ALWAYS) {
        const struct hth_life *l = &churn->opts.peer;
        m->away = hth_rng_chance(&m->rng, (double)l->down_us / (double)(l->up_us + l->down_us));
    }
    settle(m);
    member_next(m);
}

void hth_churn_play(struct hth_churn *churn, struct hth_node *node,
                    const struct hth_avail_row *rows, size_t count, const struct hth_device *base)
{
    struct churn_node *m = member_new(churn, node);
    m->rows = rows;
    m->count = count;
    m->base = *base;
    m->begun_us = now_us(churn);
    m->away = true;
    if (count > 0 && rows[0].on_us == 0)
        play_turn(m);
    else
        play_next(m);
    settle(m);
}

void hth_churn_stop(struct hth_churn *churn)
{
    churn->stopped = true;
    for (uint32_t i = 0; i < churn->opts.providers; i++)
        churn->providers[i].down = false;
    for (struct churn_node *m = churn->members; m != NULL; m = m->next) {
        m->away = false;
        settle(m);
    }
}

void hth_churn_stats(const struct hth_churn *churn, struct hth_churn_stats *out)
{
    *out = churn->stats;
    out->down = 0;
    for (const struct churn_node *m = churn->members; m != NULL; m = m->next)
        out->down += !hth_node_is_up(m->node);
}
