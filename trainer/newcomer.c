/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a run stands whose trainers average parameters: found out at the start, and taken from
 * others (run_state.c has the bytes, and hands them out).
 *
 *   LOOK --nobody trains-----------------------> READY
 *     '---others do--> FETCH --state--> APPLY --> READY
 *                        '--- it is no good ---'   (trial.c)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/roster.h"
#include "averaging/state.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"

#define POLL_US    (100 * HTH_US_PER_MS)
#define UNSHOWN_US (15 * HTH_US_PER_S) /* then who says a later step is doubted */
#define OTHERS_US  (5 * HTH_US_PER_S)  /* then others are asked for a state */
#define HOLDERS    16                  /* that are named to a fetch */

/* ---- who is ahead ---------------------------------------------------------------------------- */

static bool can_be_ahead(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return p->note.schema == hth_roster_self(r)->schema && !hth_roster_doubts(r, p) &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0;
}

static void doubt(struct hth_trainer *t, const struct hth_peer_id *id, const char *why)
{
    const struct hth_roster_peer *p = hth_roster_find(t->opts.share.roster, id);
    char text[HTH_PEER_SHORT_LEN];

    if (p == NULL || hth_roster_doubts(t->opts.share.roster, p))
        return;
    HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN, "%s says step %llu and %s: goes on without it for now",
            hth_peer_id_short(id, text), (unsigned long long)p->note.step, why);
    hth_roster_doubt(t->opts.share.roster, id);
}

static int highest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x < y) - (x > y);
}

/* Trainers of the run that have its state, and the step that a quarter of them has reached, and two
 * of them: no single word moves it, unless there is no other. */
static uint32_t others(const struct hth_trainer *t, uint64_t *step)
{
    const struct hth_roster *r = t->opts.share.roster;
    uint64_t *steps = hth_new_array(uint64_t, HTH_AVG_ROSTER_MAX);
    const struct hth_roster_peer *p;
    uint32_t n = 0;

    for (uint32_t i = 0; n < HTH_AVG_ROSTER_MAX && (p = hth_roster_at(r, i)) != NULL; i++)
        if (can_be_ahead(r, p))
            steps[n++] = p->note.step;
    qsort(steps, n, sizeof(*steps), highest_first);
    *step = n > 0 ? steps[HTH_MIN(HTH_MAX((n + 3) / 4, 2u), n) - 1] : 0;
    hth_free(steps);
    return n;
}

/* Two steps that far apart are those of one run. */
static uint64_t near(uint64_t step)
{
    return HTH_MAX(step / 64, (uint64_t)HTH_SHARE_LAG_LOCAL);
}

/* Whether this peer says that there is a later state to fetch. */
static bool is_followed(const struct hth_trainer *t, const struct hth_roster_peer *p)
{
    return can_be_ahead(t->opts.share.roster, p) && p->note.step > t->stats.updates;
}

/* Where others are at its own step, a newcomer does not stop for a word that nobody proves. Who
 * told the truth is believed again in a minute. */
static void doubt_who_is_followed(struct hth_trainer *t)
{
    const struct hth_roster *r = t->opts.share.roster;
    const struct hth_roster_peer *p;
    bool in_step = false;

    for (uint32_t i = 0; (p = hth_roster_at(r, i)) != NULL; i++)
        in_step |= can_be_ahead(r, p) && p->note.step <= t->stats.updates;
    for (uint32_t i = 0; in_step && (p = hth_roster_at(r, i)) != NULL; i++)
        if (is_followed(t, p))
            doubt(t, &p->id, "does not show it");
}

/* Those whose it is have shown what their word is worth, and the others are asked. */
static void is_of_no_use(struct hth_trainer *t, enum hth_err err)
{
    HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN, "a state that can't be used: %s", hth_err_text(err));
    t->newcomer.no_use = err;
    for (uint32_t i = 0; i < t->newcomer.said_by.count; i++)
        doubt(t, &t->newcomer.said_by.id[i], "what came of it is of no use");
    hth_timer_set(t->env, t->newcomer.timer, POLL_US);
}

/* ---- taking up ------------------------------------------------------------------------------- */

static void ready(struct hth_trainer *t)
{
    t->newcomer.boot = HTH_BOOT_READY;
    if (t->opts.share.roster != NULL)
        hth_roster_set_flags(t->opts.share.roster, hth_roster_self(t->opts.share.roster)->flags &
                                                       ~HTH_ROSTER_BOOTSTRAPPING);
    hth_share_tell(t);
    hth_trainer_pump_soon(t);
}

static void tried(struct hth_trainer *t, enum hth_err err)
{
    struct hth_newcomer *n = &t->newcomer;

    if (err != HTH_OK) {
        n->boot = HTH_BOOT_FETCH;
        is_of_no_use(t, err);
        return;
    }
    hth_run_state_taken(t);
    hth_average_renew(t);
    ready(t);
}

/* ---- fetching -------------------------------------------------------------------------------- */

static void on_fetched(void *arg, enum hth_err err, const struct hth_state_result *r)
{
    struct hth_trainer *t = arg;
    struct hth_newcomer *n = &t->newcomer;

    if (err != HTH_OK) { /* others are asked */
        hth_state_fetch_free(n->fetch);
        n->fetch = NULL;
        return;
    }
    err = hth_run_state_open(t, r->meta, r->meta_len, n);
    if (err == HTH_OK && n->updates != r->step)
        err = HTH_E_RANGE;
    n->said_by = r->said_by;
    t->stats.share.state_bytes += r->bytes;
    t->stats.share.state_us = r->took_us;
    if (err == HTH_OK)
        n->values = hth_blob_ref(r->values);
    hth_state_fetch_free(n->fetch); /* and with it the result */
    n->fetch = NULL;
    if (err != HTH_OK) {
        is_of_no_use(t, err);
        return;
    }
    n->boot = HTH_BOOT_APPLY;
    hth_trial_begin(t, tried);
}

/* Far beyond where the others are is no step of this run, whatever its bytes. */
static enum hth_err judge(void *arg, const struct hth_rpc_target *donor, const uint8_t *meta,
                          size_t len)
{
    const struct hth_trainer *t = arg;
    struct hth_newcomer said = {.updates = 0};
    uint64_t reached;

    (void)donor;
    HTH_TRY(hth_run_state_open(t, meta, len, &said));
    return others(t, &reached) < 2 || said.updates <= reached + near(reached) ? HTH_OK
                                                                              : HTH_E_RANGE;
}

/* Some of those who can be asked: they can be dialled, or have dialled us. Drawn anew each time, so
 * that those who say a later step and can't show it do not keep the others from being asked. */
static uint32_t pick_holders(const struct hth_trainer *t, struct hth_rpc_target *out)
{
    const struct hth_roster *r = t->opts.share.roster;
    const struct hth_roster_peer *p;
    struct hth_rpc_peer_info info;
    struct hth_rng rng = hth_rng_split(&t->env->rng, "holders", (uint64_t)hth_now_us(t->env));
    uint32_t n = 0, seen = 0;

    for (uint32_t i = 0; (p = hth_roster_at(r, i)) != NULL; i++) {
        bool reaches = p->note.addr.family != 0 ||
                       (hth_rpc_peer_info(t->opts.rpc, &p->id, &info) == HTH_OK && info.connected);

        if (!is_followed(t, p) || !reaches)
            continue;
        uint64_t at = n < HOLDERS ? n : hth_rng_below(&rng, ++seen + HOLDERS);
        if (at < HOLDERS)
            out[at] = (struct hth_rpc_target){p->id, p->note.addr};
        n = HTH_MIN(n + 1, HOLDERS);
    }
    return n;
}

static void fetch(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    struct hth_rpc_target holders[HOLDERS];
    struct hth_state_fetch_opts o = {.schema = hth_roster_self(t->opts.share.roster)->schema,
                                     .bytes = hth_run_state_bytes(t),
                                     .step_min = t->stats.updates + 1,
                                     .holders = holders,
                                     .judge = judge,
                                     .patience_us = OTHERS_US,
                                     .budget = t->opts.budget,
                                     .on_done = on_fetched,
                                     .arg = t};

    if (n->boot != HTH_BOOT_FETCH) {
        n->moved_us = hth_now_us(t->env);
        n->alone_since_us = 0;
    }
    n->boot = HTH_BOOT_FETCH;
    n->parts_done = 0;
    o.holders_count = pick_holders(t, holders);
    n->news = o.holders_count > 0 ? ""
              : hth_roster_self(t->opts.share.roster)->addr.family == 0
                  ? "no trainer that has a state can be dialled, nor can this one: one trainer "
                    "must be reachable"
                  : "no trainer that has a state can be dialled: until a client has dialled this "
                    "one";
    if (o.holders_count > 0 && hth_state_fetch_new(t->env, t->opts.rpc, &o, &n->fetch) != HTH_OK)
        n->news = "no memory for a state";
    hth_timer_set(t->env, n->timer, POLL_US);
}

/* ---- looking --------------------------------------------------------------------------------- */

/* Whether others' word that the run is another one ends this trainer: to begin beside it would be a
 * second run, with the same experts, and likely by mistake. To go on with a run on these settings
 * is none; and where strangers take part, none of them shall end it. */
static bool believes(const struct hth_trainer *t)
{
    return !t->newcomer.goes_on && !t->opts.share.strangers;
}

/* All who train under this name do it on other settings. */
bool hth_newcomer_is_another_run(const struct hth_trainer *t)
{
    struct hth_other_settings others;

    if (!believes(t))
        return false;
    hth_settings_others(t->opts.share.roster, &others);
    return others.trainers > 0;
}

/* All may have begun again, each from the checkpoint that it has: the latest of them is the run. */
static bool is_later_one_there(const struct hth_trainer *t)
{
    const struct hth_roster *r = t->opts.share.roster;
    const struct hth_roster_peer *p;

    for (uint32_t i = 0; (p = hth_roster_at(r, i)) != NULL; i++)
        if (p->note.schema == hth_roster_self(r)->schema && !hth_roster_doubts(r, p) &&
            (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) != 0 && p->note.step > t->stats.updates)
            return true;
    return false;
}

/* For as long since it began, or since nobody is left who has the run's state. Who has a later one
 * and looks, too, will be there within as long. */
static bool looks_on(const struct hth_trainer *t, int64_t since_us)
{
    int64_t us = hth_now_us(t->env) - since_us, look_us = t->opts.share.look_us;

    return us < look_us || (us < 2 * look_us && is_later_one_there(t));
}

static void look(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    uint64_t step;
    uint32_t live = others(t, &step);

    /* A peer that is seen has spoken: no need to look longer. */
    if (live > 0 && step > t->stats.updates + HTH_SHARE_LAG_LOCAL)
        fetch(t);
    else if (live == 0 && looks_on(t, n->since_us))
        hth_timer_set(t->env, n->timer, POLL_US);
    else if (live == 0 && hth_newcomer_is_another_run(t))
        hth_trainer_fatal(t, HTH_E_OTHER_SETTINGS);
    else
        ready(t);
}

static void doubt_the_unshown(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    struct hth_state_progress p = {.step = 0};

    if (n->fetch != NULL)
        hth_state_fetch_progress(n->fetch, &p);
    if (p.parts_done > n->parts_done)
        n->moved_us = hth_now_us(t->env);
    n->parts_done = p.parts_done;
    if (hth_now_us(t->env) - n->moved_us >= UNSHOWN_US)
        doubt_who_is_followed(t);
}

/* While the run lives, its state is waited for; when all of it has died, there is no run. */
static void wait_for_state(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    int64_t now = hth_now_us(t->env);
    uint64_t step;

    doubt_the_unshown(t);
    if (n->fetch == NULL)
        fetch(t);
    hth_timer_set(t->env, n->timer, POLL_US);
    if (others(t, &step) > 0 && step > t->stats.updates) {
        n->alone_since_us = 0;
        return;
    }
    if (n->alone_since_us == 0)
        n->alone_since_us = now;
    if (looks_on(t, n->alone_since_us))
        return;
    hth_state_fetch_free(n->fetch);
    n->fetch = NULL;
    if (n->no_use == HTH_E_VERSION && believes(t)) {
        hth_trainer_fatal(t, HTH_E_VERSION); /* to begin beside them would be a second run */
        return;
    }
    HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN, "nobody who was ahead is left: goes on from step %llu",
            (unsigned long long)t->stats.updates);
    ready(t);
}

static void on_timer(void *arg)
{
    struct hth_trainer *t = arg;

    switch (t->newcomer.boot) {
    case HTH_BOOT_LOOK:
        look(t);
        break;
    case HTH_BOOT_FETCH:
        wait_for_state(t);
        break;
    default:
        break;
    }
}

bool hth_newcomer_ready(struct hth_trainer *t)
{
    if (t->collab != NULL)
        return hth_shared_is_ready(t);
    if (t->newcomer.boot == HTH_BOOT_LOOK)
        on_timer(t);
    return t->newcomer.boot == HTH_BOOT_READY;
}

void hth_newcomer_again(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;

    if (n->donor == NULL || n->boot != HTH_BOOT_READY || t->stopping)
        return;
    n->boot = HTH_BOOT_LOOK;
    n->since_us = hth_now_us(t->env);
    hth_trainer_pump_soon(t);
}

void hth_newcomer_nudge(struct hth_trainer *t)
{
    if (t->newcomer.donor != NULL && t->newcomer.boot == HTH_BOOT_READY)
        hth_state_donor_reach(t->newcomer.donor, t->opts.share.roster);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_newcomer_start(struct hth_trainer *t)
{
    const struct hth_share_opts *o = &t->opts.share;
    struct hth_newcomer *n = &t->newcomer;
    struct hth_state_donor_opts donor = {
        .want = hth_run_state_want, .step = hth_run_state_step, .arg = t};

    if (o->roster == NULL || t->collab != NULL)
        return HTH_OK;
    if (t->opts.rpc == NULL || o->dht == NULL || o->network == NULL || o->look_us < 0)
        return HTH_E_CONFIG;
    n->timer = hth_timer_new(t->env, on_timer, t);
    hth_settings_set(o->roster, &t->settings, HTH_TICKET_PARAMS);
    if (!o->bootstrap) {
        n->boot = HTH_BOOT_LOOK;
        hth_roster_set_flags(o->roster,
                             hth_roster_self(o->roster)->flags | HTH_ROSTER_BOOTSTRAPPING);
        if (t->stats.updates > 0)
            hth_roster_set_progress(o->roster, t->stats.updates, 0, 0);
    }
    donor.schema = hth_roster_self(o->roster)->schema;
    return hth_state_donor_new(t->env, t->opts.rpc, &donor, &n->donor);
}

/* rpc and the roster may be freed next. */
void hth_newcomer_stop(struct hth_trainer *t)
{
    hth_state_fetch_free(t->newcomer.fetch);
    hth_state_donor_free(t->newcomer.donor);
    t->newcomer.fetch = NULL;
    t->newcomer.donor = NULL;
    hth_timer_free(t->env, t->newcomer.timer);
    t->newcomer.timer = NULL;
}

void hth_newcomer_clear(struct hth_trainer *t)
{
    hth_blob_unref(t->trial.own);
    hth_blob_unref(t->newcomer.values);
    hth_blob_unref(t->newcomer.given);
}
