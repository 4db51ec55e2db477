/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/cuts.h"

#include <math.h>
#include <string.h>

#include "collab/collab.h"
#include "core/map.h"
#include "core/mem.h"
#include "kernels/params.h"
#include "scenarios/toy.h"

#define S            HTH_US_PER_S
#define MEMBERS_MAX  16
#define EACH_SAMPLES 36       /* of a step, by the number of trainers */
#define WARM_US      (18 * S) /* all have been in a whole window, and an epoch does not end */
#define RATE_US      (6 * S)  /* end of the warm-up, in which the run's speed is measured */
#define AFTER_US     (60 * S)
#define SETTLE_US    (4 * S)
#define POLL_US      (100 * HTH_US_PER_MS)

/* The promises (collab/collab.h). */
#define STILL_S  12.0
#define HEALED_S 15.0

/* A link, when a trainer first stepped on it. */
struct cut_link {
    struct hth_hash head, prev;
    uint64_t step, samples; /* of its chain */
    uint64_t own;           /* samples in its mean */
    int64_t made_us;
    uint32_t part;
    uint64_t bits; /* hash of the parameters */
    bool continued, stays;
};

struct cut_run {
    const struct hth_cut_opts *opts;
    struct hth_cut_report *report;
    struct hth_world *world;
    struct hth_crew *crew;
    struct hth_map *links;    /* by head */
    double slow[MEMBERS_MAX]; /* a machine's time by the fastest one's */
    uint32_t part[MEMBERS_MAX];
    int64_t cut_us, heal_us; /* 0: not yet */
    int64_t last_us[2];      /* a part's last new link */
    struct hth_hash last[MEMBERS_MAX];
};

/* ---- the run --------------------------------------------------------------------------------- */

static uint64_t bits_of(struct cut_run *c, uint32_t i)
{
    struct hth_params *p = hth_model_params(hth_trainer_model(hth_crew_trainer(c->crew, i)));

    return hth_hash64(hth_params_flat(p, HTH_PART_VALUE), hth_params_flat_len(p) * sizeof(float),
                      0);
}

static void note_gap(struct cut_run *c, uint32_t part)
{
    int64_t now = hth_world_now_us(c->world);
    double gap = (double)(now - c->last_us[part]) / S;

    if (c->cut_us != 0 && c->heal_us == 0)
        c->report->still_s[part] = fmax(c->report->still_s[part], gap);
    c->last_us[part] = now;
}

static void note_link(struct cut_run *c, uint32_t i, const struct hth_chain *chain, uint32_t link)
{
    const struct hth_chain_link *at = hth_chain_at(chain, link);
    struct cut_link *new = hth_new(struct cut_link), *prev;

    *new = (struct cut_link){.head = *hth_chain_head(chain, link),
                             .step = at->step,
                             .samples = hth_chain_samples(chain, link),
                             .own = hth_chain_samples(chain, link) -
                                    hth_chain_held(chain, link)->samples_before,
                             .made_us = hth_world_now_us(c->world),
                             .part = c->part[i],
                             .bits = bits_of(c, i)};
    if (at->prev != HTH_LINK_NONE)
        new->prev = *hth_chain_head(chain, at->prev);
    prev = hth_map_get(c->links, &new->prev, sizeof(new->prev));
    if (prev != NULL)
        prev->continued = true;
    hth_map_put(c->links, new, sizeof(new->head), new);
    note_gap(c, new->part);
    c->report->links[new->part] += c->cut_us != 0 && c->heal_us == 0;
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct cut_run *c = arg;
    const struct hth_collab *collab = hth_trainer_collab(hth_crew_trainer(c->crew, i));
    struct hth_collab_stats s;
    struct cut_link *link;

    (void)stats;
    hth_collab_stats(collab, &s);
    link = hth_map_get(c->links, &s.head, sizeof(s.head));
    c->last[i] = s.head;
    if (link == NULL)
        note_link(c, i, hth_collab_choice(collab)->chain,
                  hth_chain_find(hth_collab_choice(collab)->chain, &s.head));
    else
        c->report->bits_differ += bits_of(c, i) != link->bits;
}

/* A micro-batch takes about 50 ms on the fastest machine. */
static struct hth_device device_of(double slow)
{
    return (struct hth_device){.flops_per_s = 50e9 / slow,
                               .bytes_per_s = 10e9 / slow,
                               .job_overhead_us = (int64_t)(5000 * slow),
                               .compute_workers = 1,
                               .disk_bytes_per_s = 500e6,
                               .disk_latency_us = 100,
                               .up_bytes_per_s = 12.5e6,
                               .down_bytes_per_s = 12.5e6};
}

static struct hth_crew_opts crew_opts(struct cut_run *c)
{
    struct hth_crew_opts crew;

    hth_toy_crew(HTH_TOY_SIDE, &crew);
    crew.trainer.share.target = (uint64_t)EACH_SAMPLES * c->opts->members;
    crew.trainer.share.strict = c->opts->strict;
    crew.members = c->opts->members;
    if (c->opts->grid)
        crew.roster.shape =
            hth_avg_shape_for(crew.members, (uint32_t)ceil(sqrt((double)crew.members)));
    crew.on_update = on_update;
    crew.arg = c;
    return crew;
}

/* Speeds are spread evenly between 1 and 10, and dealt out by the seed. */
static void set_machines(struct cut_run *c)
{
    uint32_t n = c->opts->members;
    struct hth_rng rng;

    hth_rng_init(&rng, c->opts->seed);
    for (uint32_t i = 0; i < n; i++)
        c->slow[i] = c->opts->unlike ? pow(10, (double)i / (n - 1)) : 1;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t k = (uint32_t)hth_rng_below(&rng, i + 1);
        double slow = c->slow[i];

        c->slow[i] = c->slow[k];
        c->slow[k] = slow;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct hth_device device = device_of(c->slow[i]);

        hth_node_set_device(hth_crew_node(c->crew, i), &device);
    }
}

static const struct cut_link *last_of(struct cut_run *c, uint32_t i)
{
    return hth_map_get(c->links, &c->last[i], sizeof(c->last[i]));
}

static uint64_t samples_now(struct cut_run *c)
{
    const struct cut_link *link = last_of(c, 0);

    return link != NULL ? link->samples : 0;
}

/* The tip of the chain with most samples. */
static struct cut_link *best_link(struct cut_run *c)
{
    struct cut_link *best = NULL;

    for (uint32_t i = 0; i < c->opts->members; i++) {
        struct cut_link *link = hth_map_get(c->links, &c->last[i], sizeof(c->last[i]));

        if (link != NULL && (best == NULL || link->samples > best->samples))
            best = link;
    }
    return best;
}

static struct cut_link *before(struct cut_run *c, const struct cut_link *link)
{
    return hth_map_get(c->links, &link->prev, sizeof(link->prev));
}

/* Whether all hold links of one chain, and each one that was made after the cut. */
static bool is_healed(struct cut_run *c)
{
    uint32_t in = 0;

    for (struct cut_link *link = best_link(c); link != NULL && link->made_us > c->heal_us;
         link = before(c, link))
        for (uint32_t i = 0; i < c->opts->members; i++)
            in += last_of(c, i) == link;
    return in == c->opts->members;
}

/* ---- the judgement --------------------------------------------------------------------------- */

static void mark_chain(struct cut_run *c)
{
    struct cut_link *link = best_link(c);

    if (link == NULL)
        return;
    c->report->steps = link->step;
    c->report->samples = link->samples;
    for (; link != NULL; link = before(c, link))
        link->stays = true;
}

static bool is_rival(const struct cut_link *a, const struct cut_link *b)
{
    return a != b && a->step == b->step && a->continued && b->continued;
}

/* The chain that stayed, when a dropped link was made: a caller decides by the base, which is a
 * link behind the tip, and the other part's may be another one behind. */
static bool had_more(const struct cut_run *c, const struct cut_link *dropped)
{
    const struct cut_link *link;
    uint64_t most = 0;

    for (size_t it = 0; (link = hth_map_next(c->links, &it, NULL, NULL)) != NULL;)
        if (link->stays && link->made_us <= dropped->made_us)
            most = HTH_MAX(most, link->samples);
    return dropped->samples > most + 2 * dropped->own;
}

static void judge_links(struct cut_run *c)
{
    const struct cut_link *link, *other, *last = NULL;
    struct hth_cut_report *r = c->report;

    for (size_t it = 0; (link = hth_map_next(c->links, &it, NULL, NULL)) != NULL;) {
        if (link->stays)
            continue;
        if (link->made_us > c->cut_us) {
            r->dropped++;
            r->lost_samples += link->own;
        }
        if (last == NULL || link->made_us > last->made_us)
            last = link;
        bool rival = false;
        for (size_t k = 0; (other = hth_map_next(c->links, &k, NULL, NULL)) != NULL;)
            rival |= is_rival(link, other);
        r->both_stepped += rival;
    }
    r->loser_stays = last != NULL && had_more(c, last);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void cut(struct cut_run *c, double rate)
{
    double speed[2] = {0, 0}, all = 0;
    uint32_t n = c->opts->members;

    for (uint32_t i = 0; i < n; i++) {
        speed[c->part[i]] += 1 / c->slow[i];
        all += 1 / c->slow[i];
        hth_node_set_side(hth_crew_node(c->crew, i), c->part[i]);
    }
    c->cut_us = c->last_us[0] = c->last_us[1] = hth_world_now_us(c->world);
    hth_world_run_for(c->world, c->opts->cut_us);
    for (uint32_t part = 0; part < 2; part++) {
        double batch_s = EACH_SAMPLES * n / (rate * speed[part] / all);

        note_gap(c, part);
        c->report->still_s[part] = fmax(0, c->report->still_s[part] - batch_s);
    }
}

/* The time until they are one model for SETTLE_US; -1: they are not. */
static double settle(struct cut_run *c)
{
    int64_t now = c->heal_us, split_us = now;

    while (now < split_us + SETTLE_US && now < c->heal_us + AFTER_US) {
        if (!is_healed(c))
            split_us = now;
        hth_world_run_for(c->world, POLL_US);
        now = hth_world_now_us(c->world);
    }
    return now < split_us + SETTLE_US ? -1 : (double)(split_us + POLL_US - c->heal_us) / S;
}

static void run(struct cut_run *c)
{
    struct hth_rng rng;
    uint64_t samples;

    hth_rng_init(&rng, c->opts->seed + 1);
    hth_world_run_for(c->world, WARM_US + (int64_t)hth_rng_below(&rng, S));
    samples = samples_now(c);
    hth_world_run_for(c->world, RATE_US);
    cut(c, (double)(samples_now(c) - samples) * S / RATE_US);
    c->heal_us = hth_world_now_us(c->world);
    hth_world_heal(c->world);
    c->report->healed_s = settle(c);
    mark_chain(c);
    judge_links(c);
    c->report->hash = hth_world_trace_hash(c->world);
}

enum hth_err hth_sim_cut(const struct hth_cut_opts *opts, struct hth_cut_report *out)
{
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct cut_run *c;
    struct hth_toy *toy;
    struct cut_link *link;
    enum hth_err err;

    *out = (struct hth_cut_report){.steps = 0};
    if (opts->members < 2 || opts->members > MEMBERS_MAX || opts->away == 0 ||
        opts->away >= opts->members || opts->cut_us <= 0)
        return HTH_E_CONFIG;
    c = hth_new(struct cut_run);
    c->opts = opts;
    c->report = out;
    world.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    c->world = hth_world_new(opts->seed, &world);
    c->links = hth_map_new_held(offsetof(struct cut_link, head), sizeof(struct hth_hash));
    for (uint32_t i = 0; i < opts->members; i++)
        c->part[i] = i < opts->away;
    toy = hth_toy_new(c->world, HTH_TOY_SIDE);
    const struct hth_crew_opts crew = crew_opts(c);
    c->crew = hth_crew_new(c->world, &crew);
    set_machines(c);
    run(c);
    err = hth_crew_err(c->crew);
    hth_world_free(c->world);
    hth_crew_free(c->crew);
    hth_toy_free(toy);
    for (size_t it = 0; (link = hth_map_next(c->links, &it, NULL, NULL)) != NULL;)
        hth_free(link);
    hth_map_free(c->links);
    hth_free(c);
    return err;
}

/* ---- promises -------------------------------------------------------------------------------- */

static const char *strict_broken(const struct hth_cut_opts *o, const struct hth_cut_report *r)
{
    uint32_t on = (r->links[0] > 1) + (r->links[1] > 1); /* one link may end the cut's round */

    if (r->both_stepped > 0)
        return "two links of one step were both continued";
    if (r->dropped > 1)
        return "more than one step was dropped";
    if (on > 1)
        return "both parts went on";
    if (on < 1 && o->cut_us >= 30 * S)
        return "no part went on";
    return NULL;
}

static const char *eventual_broken(const struct hth_cut_report *r)
{
    if (r->loser_stays)
        return "the part with fewer samples stayed";
    if (r->still_s[0] > STILL_S || r->still_s[1] > STILL_S)
        return "a part stood still for more than 12 s";
    return NULL;
}

const char *hth_cut_broken(const struct hth_cut_opts *o, const struct hth_cut_report *r)
{
    const char *broken = o->strict ? strict_broken(o, r) : eventual_broken(r);

    if (broken != NULL)
        return broken;
    if (r->bits_differ > 0)
        return "trainers at one link had other parameters";
    if (r->healed_s < 0 || r->healed_s > HEALED_S)
        return "they were not one model 15 s after the cut";
    return NULL;
}

static const uint32_t sizes[] = {4, 5, 9, 16};
static const uint32_t cuts_s[] = {1, 5, 15, 30, 120, 300};

#define VARIANTS ((uint32_t)HTH_ARRAY_LEN(cuts_s) * 2 * 2)

uint32_t hth_cuts_rows(void)
{
    uint32_t splits = 0;

    for (size_t i = 0; i < HTH_ARRAY_LEN(sizes); i++)
        splits += sizes[i] / 2;
    return 2 * splits * VARIANTS;
}

struct hth_cut_opts hth_cuts_row(uint32_t row)
{
    uint32_t half = hth_cuts_rows() / 2;
    uint32_t split = row % half / VARIANTS, variant = row % VARIANTS, i = 0;

    for (; split >= sizes[i] / 2; i++)
        split -= sizes[i] / 2;
    return (struct hth_cut_opts){.members = sizes[i],
                                 .away = split + 1,
                                 .cut_us = cuts_s[variant / 4] * S,
                                 .unlike = variant / 2 % 2,
                                 .strict = variant % 2,
                                 .grid = row >= half};
}
