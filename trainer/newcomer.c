/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the run stands: found out at the start, and taken from others when behind (run_state.c has
 * the bytes, and hands them out).
 *
 *   LOOK --nobody trains--------------------------------> READY
 *     '---others do--> FETCH --state--> LAND --> APPLY --> READY --behind--> FETCH
 */
#include <stdio.h>
#include <string.h>

#include "averaging/roster.h"
#include "averaging/state.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"

#define POLL_US (100 * HTH_US_PER_MS)
/* Then who says a later step is doubted: there is no connection to it; no state of one was
 * described; no part of it came. */
#define DEAF_US    (1 * HTH_US_PER_S)
#define UNSHOWN_US (15 * HTH_US_PER_S)
#define STALLED_US (45 * HTH_US_PER_S)
/* States in a row that came too late: then the run is faster than its state can be fetched. One
 * that was more than a step late says so at once. */
#define OVERTAKEN 3
#define JUMP_MAX  64 /* steps without their states, at once */
#define GOES_MAX  8  /* at a step of the others, without taking one: then it is too old */

/* ---- who is ahead ---------------------------------------------------------------------------- */

static bool can_be_ahead(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return p->note.schema == hth_roster_self(r)->schema && !p->doubted &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0;
}

static void doubt(struct hth_trainer *t, const struct hth_peer_id *id, const char *why)
{
    const struct hth_roster_peer *p = hth_roster_find(t->opts.share.roster, id);
    char text[HTH_PEER_SHORT_LEN];

    if (p == NULL || p->doubted)
        return;
    HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN, "%s says step %llu and %s: goes on without it for now",
            hth_peer_id_short(id, text), (unsigned long long)p->step, why);
    hth_roster_doubt(t->opts.share.roster, id);
}

static void doubt_all(struct hth_trainer *t, const struct hth_state_peers *peers, const char *why)
{
    for (uint32_t i = 0; i < peers->count; i++)
        doubt(t, &peers->id[i], why);
}

static bool is_winner(void *arg, const struct hth_roster_peer *p)
{
    const struct hth_mark *winner = &((const struct hth_trainer *)arg)->newcomer.yields_to;

    return winner->mark == 0 || hth_lineage_may_be(&p->note.marks, winner);
}

/* Whose word it is that there is a state to fetch: it says a later step, or shows the parameters
 * that we yield to. */
static bool is_followed(struct hth_trainer *t, const struct hth_roster_peer *p)
{
    return can_be_ahead(t->opts.share.roster, p) &&
           (p->step > t->stats.updates || (t->newcomer.yields_to.step != 0 && is_winner(t, p)));
}

/* A trainer that was in step does not stop for a word that nobody proves; a newcomer only where
 * others are at its own step. Who told the truth is believed again in a minute. */
static void doubt_who_is_followed(struct hth_trainer *t, const char *why)
{
    const struct hth_roster *r = t->opts.share.roster;
    const struct hth_roster_peer *p;
    bool in_step = t->newcomer.was_ready;

    for (uint32_t i = 0; (p = hth_roster_at(r, i)) != NULL; i++)
        in_step |= can_be_ahead(r, p) && p->step <= t->stats.updates;
    for (uint32_t i = 0; in_step && (p = hth_roster_at(r, i)) != NULL; i++)
        if (is_followed(t, p))
            doubt(t, &p->id, why);
}

/* Those whose it is have shown what their word is worth, and the others are asked. */
static void is_of_no_use(struct hth_trainer *t, enum hth_err err)
{
    HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN, "a state that can't be used: %s", hth_err_text(err));
    t->newcomer.no_use = err;
    doubt_all(t, &t->newcomer.said_by, "what came of it is of no use");
    hth_timer_set(t->env, t->newcomer.timer, POLL_US);
}

static void fetch(struct hth_trainer *t);

/* ---- taking up ------------------------------------------------------------------------------- */

static void apply_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, newcomer.apply);

    t->hearing.err = HTH_OK;
    t->newcomer.err = hth_run_state_take_up(t);
    if (t->newcomer.err == HTH_OK)
        t->hearing.err = hth_hear_step(t, t->newcomer.updates);
}

static void ready(struct hth_trainer *t)
{
    t->newcomer.boot = HTH_BOOT_READY;
    t->newcomer.was_ready = true;
    t->newcomer.yields_to.step = 0;
    t->told_us = 0;
    hth_hear_clear(t);
    if (t->opts.share.roster != NULL)
        hth_roster_set_flags(t->opts.share.roster, hth_roster_self(t->opts.share.roster)->flags &
                                                       ~HTH_ROSTER_BOOTSTRAPPING);
    hth_share_tell(t);
    hth_trainer_pump_soon(t);
}

static void apply_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, newcomer.apply);
    struct hth_newcomer *n = &t->newcomer;

    if (err == HTH_OK && work->ran)
        err = n->err;
    hth_blob_unref(n->values);
    n->values = NULL;
    if (err == HTH_E_NOT_FINITE || err == HTH_E_RANGE) {
        n->boot = HTH_BOOT_FETCH;
        is_of_no_use(t, err);
        return;
    }
    if (err == HTH_OK && work->ran)
        err = t->hearing.err;
    if (err != HTH_OK) {
        hth_trainer_spoilt(t, err);
        return;
    }
    t->stats.updates = n->updates;
    t->stats.samples = n->samples;
    t->stats.rows = n->samples * t->model->opts.seq_len;
    t->stats.share.catch_ups++;
    n->overtaken++;
    n->goes = 0;
    n->approximate = false;
    t->average.at = n->updates;
    t->average.samples_at = n->samples;
    t->average.discard = t->average.out;
    t->lineage = n->lineage;
    t->stood.step = 0;
    hth_hear_count(t);
    doubt_all(t, &n->unshown, "does not show it");
    hth_batch_reset(t);
    HTH_LOG(
        t->env, HTH_INFO, HTH_SUB_TRAIN, "goes on from step %llu of the run, %llu of them heard",
        (unsigned long long)t->stats.updates, (unsigned long long)(t->stats.updates - n->updates));
    ready(t);
    if (t->stats.updates > n->updates)
        hth_average_offer(t);
}

/* A state of that step would be taken up in vain: what was heard goes on from a later one. To whom
 * states come late again and again, that one takes the last of them, approximately; where nothing
 * would ever bring it to the others that is of no use, either. */
static bool is_late(const struct hth_trainer *t, uint64_t step)
{
    return (t->newcomer.overtaken < OVERTAKEN || t->opts.share.every == 0) &&
           hth_hear_is_late(t, step);
}

static void say_overtaken(struct hth_trainer *t)
{
    uint32_t times = t->newcomer.overtaken;

    if (t->opts.share.every == 0 && times >= OVERTAKEN)
        snprintf(t->stats.share.news, sizeof(t->stats.share.news),
                 "it takes longer to come than a step of the run, %u times so far: the run needs a "
                 "larger averaging.target, or averaging.every above 0",
                 times);
}

/* Flights in the air were begun with other weights, and jobs of the batch use its sums. */
static bool is_quiet(const struct hth_trainer *t)
{
    return t->training == 0 && (!t->batch.on || t->batch.phase == HTH_BATCH_GATHER ||
                                t->batch.phase == HTH_BATCH_AGAIN);
}

static void land(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;

    hth_hear_pump(t);
    if (!is_quiet(t) || hth_hear_is_about_to(t, n->updates)) {
        hth_timer_set(t->env, n->timer, POLL_US);
        return;
    }
    if (is_late(t, n->updates)) {
        n->overtaken++;
        say_overtaken(t);
        hth_blob_unref(n->values);
        n->values = NULL;
        fetch(t);
        return;
    }
    n->boot = HTH_BOOT_APPLY;
    n->apply.run = apply_run;
    n->apply.done = apply_done;
    n->apply.job.bytes_moved = 3.0 * (double)hth_run_state_bytes(t);
    hth_queue_push(&t->trunk, &n->apply);
}

/* ---- fetching -------------------------------------------------------------------------------- */

static void on_news(void *arg, const char *text)
{
    struct hth_trainer *t = arg;

    if (t->newcomer.overtaken >= OVERTAKEN) /* says why already */
        return;
    snprintf(t->stats.share.news, sizeof(t->stats.share.news), "%s", text);
}

static void on_fetched(void *arg, const struct hth_state_result *r)
{
    struct hth_trainer *t = arg;
    struct hth_newcomer *n = &t->newcomer;
    enum hth_err err = hth_run_state_open(t, r, n);

    n->said_by = *r->said_by;
    n->unshown = *r->unshown;
    t->stats.share.state_bytes += r->bytes;
    t->stats.share.state_us = r->took_us;
    if (err == HTH_OK) {
        n->values = hth_blob_ref(r->values);
        n->boot = HTH_BOOT_LAND;
    } else {
        is_of_no_use(t, err);
    }
    hth_state_fetch_free(n->fetch);
    n->fetch = NULL;
    if (err == HTH_OK)
        hth_timer_set(t->env, n->timer, 0);
}

/* Later than ours; where most others have other parameters, one of those, though we may be ahead:
 * not much older than what they have, for that would be too late. */
static uint64_t step_wanted(const struct hth_trainer *t)
{
    uint64_t winner = t->newcomer.yields_to.step;

    if (winner == 0)
        return t->stats.updates + 1;
    return HTH_MIN(t->stats.updates,
                   hth_roster_reached(t->opts.share.roster, winner, HTH_BATCH_AHEAD_ONE_IN, 1));
}

static void fetch(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    struct hth_state_fetch_opts o = HTH_STATE_FETCH_OPTS_INIT;
    enum hth_err err;

    n->boot = HTH_BOOT_FETCH;
    n->moved_us = hth_now_us(t->env);
    n->parts_done = 0;
    n->alone_since_us = 0;
    o.network = t->opts.share.network;
    o.schema = hth_roster_self(t->opts.share.roster)->schema;
    o.bytes = hth_run_state_bytes(t);
    o.step_min = n->step_min = HTH_MAX(step_wanted(t), hth_hear_since(t));
    if (t->opts.share.mode == HTH_SHARE_LOCAL)
        o.near = HTH_SHARE_LAG_LOCAL;
    o.will_do = n->yields_to.step != 0 ? is_winner : NULL;
    o.budget = t->opts.budget;
    o.on_done = on_fetched;
    o.on_news = on_news;
    o.arg = t;
    err = hth_state_fetch_new(t->env, t->opts.rpc, t->opts.share.dht, t->opts.share.roster, &o,
                              &n->fetch);
    if (err != HTH_OK)
        HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN, "the state can't be fetched: %s",
                hth_err_text(err));
    hth_timer_set(t->env, n->timer, POLL_US);
}

/* ---- looking --------------------------------------------------------------------------------- */

/* Trainers of the run that have its state, and the highest step that one of them says. */
static uint32_t others(const struct hth_trainer *t, uint64_t *step)
{
    const struct hth_roster *r = t->opts.share.roster;
    const struct hth_roster_peer *p;
    uint32_t n = 0;

    *step = 0;
    for (uint32_t i = 0; (p = hth_roster_at(r, i)) != NULL; i++) {
        if (!can_be_ahead(r, p))
            continue;
        n++;
        *step = HTH_MAX(*step, p->step);
    }
    return n;
}

/* All who train under this name do it on other settings: to begin beside them would be a second
 * run, with the same experts, and likely by mistake. To go on with a run on these settings is none,
 * and no stranger shall end it. */
bool hth_newcomer_is_another_run(const struct hth_trainer *t)
{
    struct hth_other_settings others;

    if (t->newcomer.goes_on)
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
        if (p->note.schema == hth_roster_self(r)->schema && !p->doubted &&
            (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) != 0 && p->step > t->stats.updates)
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

/* The run was taken up again from an older checkpoint than ours, and those who did so don't come to
 * it: they believe no single one that is far ahead. */
static void yield_to_all(struct hth_trainer *t, uint64_t step)
{
    HTH_LOG(
        t->env, HTH_WARN, HTH_SUB_TRAIN,
        "all others are at step %llu or before, and this checkpoint is of step %llu: takes theirs",
        (unsigned long long)step, (unsigned long long)t->stats.updates);
    t->stats.share.yields++;
    t->newcomer.yields_to = (struct hth_mark){.step = 1};
    fetch(t);
}

static void look(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    uint64_t slack = t->opts.share.mode == HTH_SHARE_LOCAL ? HTH_SHARE_LAG_LOCAL : 0;
    uint64_t step;
    uint32_t live = others(t, &step);
    bool ends = t->stats.updates >= t->opts.updates_max;
    bool ahead = t->batch.on && !ends && step > 0 && step < t->stats.updates; /* of all others */

    /* Who is seen has spoken: no need to look longer. */
    if (live > 0 && step > t->stats.updates + slack)
        fetch(t);
    else if ((live == 0 || ahead) && looks_on(t, n->since_us))
        hth_timer_set(t->env, n->timer, POLL_US);
    else if (live == 0 && hth_newcomer_is_another_run(t))
        hth_trainer_fatal(t, HTH_E_OTHER_SETTINGS);
    else if (ahead && live > 1)
        yield_to_all(t, step);
    else
        ready(t);
}

/* Who was in step needs no second run to go on: who is ahead and not there is a word of nobody. */
static void doubt_the_deaf(struct hth_trainer *t)
{
    struct hth_roster *r = t->opts.share.roster;
    const struct hth_roster_peer *p;
    struct hth_rpc_peer_info info;

    for (uint32_t i = 0; (p = hth_roster_at(r, i)) != NULL; i++)
        if (is_followed(t, p) && !(hth_rpc_peer_info(t->opts.rpc, &p->id, &info) == HTH_OK &&
                                   (info.connected || info.dialing)))
            hth_roster_deaf(r, &p->id);
}

static void doubt_the_unshown(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    struct hth_state_progress progress;
    int64_t still_us;

    hth_state_fetch_progress(n->fetch, &progress);
    if (progress.parts_done > n->parts_done)
        n->moved_us = hth_now_us(t->env);
    n->parts_done = progress.parts_done;
    still_us = hth_now_us(t->env) - n->moved_us;
    if (progress.step == 0 && still_us >= DEAF_US && n->was_ready)
        doubt_the_deaf(t);
    if (progress.step == 0 && still_us >= UNSHOWN_US)
        doubt_who_is_followed(t, "nobody shows it");
    if (progress.step != 0 && still_us >= STALLED_US)
        doubt_who_is_followed(t, "nothing of it comes");
}

static bool is_fetched_late(const struct hth_trainer *t)
{
    struct hth_state_progress progress;

    hth_state_fetch_progress(t->newcomer.fetch, &progress);
    return progress.step != 0 && is_late(t, progress.step);
}

/* It looks for a later one than is needed by now, and has not found any. */
static bool is_asked_for_late(const struct hth_trainer *t)
{
    struct hth_state_progress progress;

    hth_state_fetch_progress(t->newcomer.fetch, &progress);
    return progress.step == 0 && t->newcomer.step_min > HTH_MAX(step_wanted(t), hth_hear_since(t));
}

/* While the run lives, its state is waited for; when all of it has died, there is no run. */
static void wait_for_state(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    int64_t now = hth_now_us(t->env);
    uint64_t step;

    if (n->fetch == NULL) {
        fetch(t);
        return;
    }
    hth_timer_set(t->env, n->timer, POLL_US);
    hth_hear_pump(t);
    if (is_fetched_late(t) || is_asked_for_late(t)) {
        n->overtaken += !is_asked_for_late(t);
        say_overtaken(t);
        hth_state_fetch_free(n->fetch);
        n->fetch = NULL;
        fetch(t);
        return;
    }
    doubt_the_unshown(t);
    if (others(t, &step) > 0 && step >= step_wanted(t)) {
        n->alone_since_us = 0;
        return;
    }
    if (n->alone_since_us == 0)
        n->alone_since_us = now;
    /* Who yields was in step, and may be ahead of those to whom it does. */
    if ((!n->was_ready || n->yields_to.step != 0) && looks_on(t, n->alone_since_us))
        return;
    if (n->yields_to.step != 0)
        doubt_who_is_followed(t, "does not come to ours");
    hth_state_fetch_free(n->fetch);
    n->fetch = NULL;
    if (n->no_use == HTH_E_VERSION && !n->was_ready && !n->goes_on) {
        hth_trainer_fatal(t, HTH_E_VERSION); /* to begin beside them would be a second run */
        return;
    }
    HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN, "nobody who was ahead is left: goes on from step %llu",
            (unsigned long long)t->stats.updates);
    if (t->batch.on)
        hth_batch_renumber(t); /* it went along with the others' tries */
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
    case HTH_BOOT_LAND:
        land(t);
        break;
    default:
        break;
    }
}

bool hth_newcomer_ready(struct hth_trainer *t)
{
    if (t->collab != NULL)
        return hth_shared_is_ready(t);
    if (t->newcomer.boot == HTH_BOOT_LOOK || t->newcomer.boot == HTH_BOOT_LAND)
        on_timer(t);
    return t->newcomer.boot == HTH_BOOT_READY;
}

static void go_and_fetch(struct hth_trainer *t)
{
    struct hth_roster *r = t->opts.share.roster;

    hth_roster_set_flags(r, hth_roster_self(r)->flags | HTH_ROSTER_BOOTSTRAPPING);
    fetch(t);
}

/* Where a quarter of them are; far ahead of ours only where half of them, and two, are, and no
 * further at once than a run goes while its state is fetched: whoever says more has to show it. */
static uint64_t step_of_others(const struct hth_trainer *t)
{
    const struct hth_roster *r = t->opts.share.roster;
    uint64_t ours = t->stats.updates;
    uint64_t step = hth_roster_reached(r, ours, HTH_BATCH_AHEAD_ONE_IN, 1);

    if (step - ours > HTH_BATCH_AHEAD_ALONE)
        step = hth_roster_reached(r, ours, 2, 2);
    return HTH_MIN(step, ours + JUMP_MAX);
}

/* Notes are late by as much as a short step takes: where half the samples of a step are said to be
 * there, it is averaged by now, or over, and who comes along is in time for the next one only. */
static uint64_t step_to_join(const struct hth_trainer *t)
{
    struct hth_roster_batch all;
    uint64_t step = step_of_others(t);

    hth_roster_batch(t->opts.share.roster, step, t->opts.share.target, &all);
    return step + (2 * all.samples_said >= (double)t->opts.share.target);
}

/* With the parameters that it has; the number of the step, also the schedule's, is the others'. */
static void go_on_approximately(struct hth_trainer *t)
{
    uint64_t step = step_to_join(t), skipped = step - t->stats.updates;

    /* What a job copies now is labelled with the number of the step when it has ended. */
    if (skipped == 0 || t->ckpt.busy || t->newcomer.giving)
        return;
    t->newcomer.goes++;
    HTH_LOG(
        t->env, t->newcomer.approximate ? HTH_DEBUG : HTH_WARN, HTH_SUB_TRAIN,
        "the state of a step takes longer to come than a step: goes on from step %llu with that "
        "of step %llu until parameters are averaged",
        (unsigned long long)step, (unsigned long long)t->stats.updates);
    t->stats.share.overtaken += !t->newcomer.approximate;
    t->newcomer.approximate = true;
    hth_lineage_forget(&t->lineage, step);
    t->stood.step = 0;
    hth_params_set_steps(t->model->params, hth_params_steps(t->model->params) + skipped);
    t->stats.updates = step;
    hth_batch_renumber(t);
}

void hth_newcomer_nudge(struct hth_trainer *t)
{
    if (t->newcomer.donor != NULL && t->newcomer.boot == HTH_BOOT_READY)
        hth_state_donor_reach(t->newcomer.donor, t->opts.share.roster);
}

void hth_newcomer_stepped(struct hth_trainer *t)
{
    t->newcomer.overtaken = t->newcomer.goes = 0;
}

void hth_newcomer_is_whole(struct hth_trainer *t, bool alone)
{
    if (!t->newcomer.approximate)
        return;
    t->newcomer.approximate = false;
    if (alone)
        hth_lineage_init(&t->lineage, t->stats.updates);
    else
        hth_lineage_is_alike(&t->lineage, t->stats.updates);
}

void hth_newcomer_catch_up(struct hth_trainer *t, uint64_t steps)
{
    bool averages = t->opts.share.every > 0;
    uint32_t overtaken = t->newcomer.overtaken;
    bool too_late = overtaken >= OVERTAKEN || (overtaken > 0 && steps > 1);

    if (t->newcomer.boot != HTH_BOOT_READY)
        return;
    if (averages && (too_late || t->newcomer.approximate) && t->newcomer.goes < GOES_MAX &&
        step_of_others(t) > t->stats.updates) {
        go_on_approximately(t);
        return;
    }
    say_overtaken(t);
    HTH_LOG(t->env, HTH_INFO, HTH_SUB_TRAIN, "the others are ahead of step %llu: catches up",
            (unsigned long long)t->stats.updates);
    go_and_fetch(t);
}

/* Of this trainer first, then of those who spoke to it, then of all others that train. Free `said`
 * with hth_free. */
static struct hth_lineage_voices all_marks(const struct hth_trainer *t)
{
    struct hth_roster_marks *said = hth_new_array(struct hth_roster_marks, HTH_AVG_ROSTER_MAX + 1);
    struct hth_lineage_voices v = {.said = said, .count = 1};
    const struct hth_roster *r = t->opts.share.roster;
    const struct hth_roster_peer *p;

    hth_lineage_say(&t->lineage, &said[0]);
    for (int spoke = 1; spoke >= 0; spoke--) {
        for (uint32_t i = 0; v.count <= HTH_AVG_ROSTER_MAX && (p = hth_roster_at(r, i)) != NULL;
             i++)
            if (can_be_ahead(r, p) && (p->spoke_us > 0) == spoke)
                said[v.count++] = p->note.marks;
        if (spoke)
            v.known = v.count;
    }
    return v;
}

void hth_newcomer_stands(const struct hth_trainer *t, struct hth_lineage_standing *out)
{
    struct hth_lineage_voices v = all_marks(t);

    hth_lineage_stands(&t->lineage, v.said, v.count, out);
    hth_free((void *)v.said);
}

bool hth_newcomer_yield(struct hth_trainer *t)
{
    struct hth_lineage_voices v;
    struct hth_mark winner;
    bool yields;

    if (t->opts.share.roster == NULL || t->newcomer.boot != HTH_BOOT_READY ||
        hth_now_us(t->env) - t->newcomer.voted_us < POLL_US)
        return false;
    t->newcomer.voted_us = hth_now_us(t->env);
    v = all_marks(t);
    yields = hth_lineage_adopt(&t->lineage, t->stats.updates, &v) &&
             hth_lineage_is_outvoted(&t->lineage, &v, &winner);
    hth_free((void *)v.said);
    if (!yields)
        return false;
    HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN,
            "most others have other parameters since step %llu or before: takes theirs",
            (unsigned long long)winner.step);
    t->stats.share.yields++;
    t->newcomer.yields_to = winner;
    go_and_fetch(t);
    return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_newcomer_start(struct hth_trainer *t)
{
    const struct hth_share_opts *o = &t->opts.share;
    struct hth_state_donor_opts donor = HTH_STATE_DONOR_OPTS_INIT;
    struct hth_newcomer *n = &t->newcomer;

    if (t->lineage.digest == 0) /* else it came with the checkpoint */
        hth_lineage_init(&t->lineage, t->stats.updates);
    if (o->roster == NULL || t->collab != NULL)
        return HTH_OK;
    if (t->opts.rpc == NULL || o->dht == NULL || o->network == NULL || o->look_us < 0)
        return HTH_E_CONFIG;
    n->timer = hth_timer_new(t->env, on_timer, t);
    hth_settings_set(o->roster, &t->settings, HTH_TICKET_PARAMS);
    n->was_ready = o->bootstrap;
    if (!o->bootstrap) {
        n->boot = HTH_BOOT_LOOK;
        hth_roster_set_flags(o->roster,
                             hth_roster_self(o->roster)->flags | HTH_ROSTER_BOOTSTRAPPING);
        if (t->stats.updates > 0)
            hth_roster_set_progress(o->roster, t->stats.updates, 0, 0);
    }
    donor.network = o->network;
    donor.schema = hth_roster_self(o->roster)->schema;
    donor.addr = o->addr;
    donor.want = hth_run_state_want;
    donor.step = hth_run_state_step;
    donor.arg = t;
    return hth_state_donor_new(t->env, t->opts.rpc, o->dht, &donor, &n->donor);
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
    hth_hear_clear(t);
    hth_blob_unref(t->newcomer.values);
    hth_blob_unref(t->newcomer.given);
}
