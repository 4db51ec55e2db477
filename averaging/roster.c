/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The roster: the board of the others' notes, this peer's own note, and who speaks at all.
 *
 *   board -> on_record / on_gone -> adjust: counts, level, shape -> on_change (next turn)
 *   set_* -> say -> note (after publish_min_us at the earliest)
 *   tick  -> whatever of slot, level, patience is due
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/roster_int.h"
#include "core/mem.h"
#include "dht/uid.h"

#define SLOT_BITS 8                  /* rarer marks speak at once */
#define RATE_STEP 0.25               /* a speed that others should hear of */
#define LEAVE_US  (1 * HTH_US_PER_S) /* the DHT may be gone before us */

#define NEWS_US   (60 * HTH_US_PER_S) /* how long a refusal is news, and said only once */

static void adjust(struct hth_roster *r);

/* ---- timer ----------------------------------------------------------------------------------- */

void hth_roster_tick_at(struct hth_roster *r, int64_t at_us)
{
    if (r->tick_at_us != 0 && r->tick_at_us <= at_us)
        return;
    r->tick_at_us = at_us;
    hth_timer_set(r->env, r->tick, at_us - hth_now_us(r->env));
}

static void on_tick(void *arg)
{
    struct hth_roster *r = arg;

    r->tick_at_us = 0;
    adjust(r);
}

static void on_change_timer(void *arg)
{
    struct hth_roster *r = arg;

    r->changed = false;
    if (r->opts.on_change != NULL)
        r->opts.on_change(r->opts.arg);
}

void hth_roster_tell_change(struct hth_roster *r)
{
    if (r->changed)
        return;
    r->changed = true;
    hth_timer_set(r->env, r->change, 0);
}

/* ---- this peer's note ------------------------------------------------------------------------ */

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    struct hth_roster *r = arg;

    hth_roster_place(r);
    r->said = r->self;
    r->said_us = hth_now_us(r->env);
    r->stats.puts++;
    return hth_roster_note_write(&r->self, w);
}

void hth_roster_say(struct hth_roster *r)
{
    if (r->speaking)
        hth_publisher_update(r->note,
                             HTH_MAX(r->said_us + r->opts.publish_min_us - hth_now_us(r->env), 0));
}

void hth_roster_say_now(struct hth_roster *r)
{
    if (r->speaking)
        hth_publisher_update(r->note, 0);
}

static void speak(struct hth_roster *r, bool yes)
{
    const struct hth_publisher_opts opts = {.life_us = r->opts.life_us};
    enum hth_err err = HTH_OK;

    if (yes == r->speaking)
        return;
    if (yes && r->note == NULL)
        err = hth_publisher_new(r->env, r->dht, &r->topic, &opts, fill, r, &r->note);
    else if (yes)
        hth_publisher_resume(r->note);
    else
        hth_publisher_goodbye(r->note, NULL, NULL);
    if (err == HTH_OK)
        r->speaking = yes;
    else
        HTH_LOG(r->env, HTH_WARN, HTH_SUB_AVG, "progress can't be told: %s", hth_err_text(err));
}

static void adjust_speaking(struct hth_roster *r)
{
    if (r->opts.watch_only || r->opts.silent || r->leaving)
        return;
    if (hth_now_us(r->env) < r->slot_at_us)
        hth_roster_tick_at(r, r->slot_at_us);
    else
        speak(r, hth_roster_zeros(&r->env->self) >= r->level);
}

static void adjust(struct hth_roster *r)
{
    if (hth_now_us(r->env) >= r->recount_at_us)
        hth_roster_recount(r);
    hth_roster_adjust_level(r);
    adjust_speaking(r);
    hth_roster_review(r);
}

void hth_roster_set_progress(struct hth_roster *r, uint64_t step, uint64_t samples,
                             double samples_per_s)
{
    double said = r->said.samples_per_s, rate;

    rate = samples_per_s > 0 ? HTH_MIN(samples_per_s, HTH_AVG_RATE_MAX) : 0; /* and not NaN */
    r->self.step = HTH_MIN(step, HTH_AVG_STEP_MAX);
    r->self.samples = HTH_MIN(samples, HTH_AVG_SAMPLES_MAX);
    r->self.samples_per_s = rate;
    if (said == 0 && rate > 0)
        hth_roster_say_now(r); /* until then nobody can tell how long the run takes */
    else if (r->self.step != r->said.step || fabs(rate - said) > RATE_STEP * said)
        hth_roster_say(r);
}

void hth_roster_set_schema(struct hth_roster *r, uint64_t schema,
                           const uint32_t settings[HTH_ROSTER_SETTINGS])
{
    memcpy(r->self.settings, settings, sizeof(r->self.settings));
    if (r->opts.schema == schema)
        return;
    r->opts.schema = r->self.schema = schema;
    hth_roster_recount(r);
    r->other_shapes = true;
    hth_roster_say(r);
    adjust(r);
}

/* A peer that got a state says so at once: it may be in the next average. */
void hth_roster_set_flags(struct hth_roster *r, uint32_t flags)
{
    bool came = (r->self.flags & ~flags & HTH_ROSTER_BOOTSTRAPPING) != 0;

    if (r->self.flags == (flags & HTH_ROSTER_FLAGS))
        return;
    r->self.flags = flags & HTH_ROSTER_FLAGS;
    if (came)
        hth_roster_say_now(r);
    else
        hth_roster_say(r);
    hth_roster_tell_change(r);
}

/* Goes along with the next note: nobody acts on it. */
void hth_roster_set_last(struct hth_roster *r, const struct hth_roster_last *last)
{
    r->self.last = *last;
}

void hth_roster_set_round(struct hth_roster *r, uint64_t round)
{
    if (round == r->self.round)
        return;
    r->self.round = HTH_MIN(round, HTH_AVG_STEP_MAX);
    hth_roster_say(r);
}

const struct hth_roster_note *hth_roster_self(const struct hth_roster *r)
{
    return &r->self;
}

/* ---- the board ------------------------------------------------------------------------------- */

/* Where the id is, or would be put. */
static uint32_t place_of(const struct hth_roster *r, const struct hth_peer_id *id, bool *found)
{
    uint32_t lo = 0, hi = r->count;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (hth_peer_id_cmp(&r->peers[mid]->id, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *found = lo < r->count && hth_peer_id_eq(&r->peers[lo]->id, id);
    return lo;
}

static struct hth_roster_peer *insert(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = hth_new(struct hth_roster_peer);
    bool found;
    uint32_t at = place_of(r, id, &found);

    if (r->count == r->capacity) {
        r->capacity = r->capacity > 0 ? 2 * r->capacity : 16;
        r->peers = hth_realloc(r->peers, r->capacity, sizeof(struct hth_roster_peer *));
    }
    memmove(&r->peers[at + 1], &r->peers[at], (r->count - at) * sizeof(struct hth_roster_peer *));
    r->peers[at] = p;
    r->count++;
    p->id = *id;
    return p;
}

static void take_out(struct hth_roster *r, struct hth_roster_peer *p)
{
    bool found;
    uint32_t at = place_of(r, &p->id, &found);

    HTH_ASSERT(found && r->peers[at] == p);
    hth_roster_count(r, p, false);
    r->count--;
    memmove(&r->peers[at], &r->peers[at + 1], (r->count - at) * sizeof(struct hth_roster_peer *));
    hth_free(p);
}

static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_roster *r = arg;
    struct hth_roster_note note;
    struct hth_roster_peer *p = *user;

    if (rec->part !=
        0) /* a peer has one note: two would be one peer, freed with the first of them */
        return HTH_E_RANGE;
    HTH_TRY(hth_roster_note_read(rec->payload, rec->payload_len, &note));
    if (hth_peer_id_eq(&rec->owner_id, &r->env->self)) /* said before a restart, or just now */
        return HTH_OK;
    if (p == NULL && r->count == HTH_AVG_ROSTER_MAX)
        return HTH_E_BUDGET;
    if (p == NULL)
        p = insert(r, &rec->owner_id);
    else
        hth_roster_count(r, p, false);
    if (rec->issued_us <= p->told_us) { /* it told us itself since */
        note.round = p->note.round;
        note.shape = p->note.shape;
        note.cell = p->note.cell;
    }
    if (*user != NULL && note.round != p->note.round)
        p->moved_us = hth_now_us(r->env);
    *user = p;
    p->note = note;
    p->lost = false;
    p->issued_us = rec->issued_us;
    hth_roster_count(r, p, true);
    r->other_shapes |= !hth_avg_shape_eq(&note.shape, &r->self.shape);
    adjust(r);
    hth_roster_tell_change(r);
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    struct hth_roster *r = arg;
    struct hth_roster_peer *p = user;

    (void)owner;
    (void)part;
    if (p == NULL)
        return;
    take_out(r, p);
    if (r->freed)
        return;
    adjust(r);
    hth_roster_tell_change(r);
}

void hth_roster_lost(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = hth_roster_get(r, id);

    if (p != NULL)
        p->lost = true;
}

void hth_roster_heard(struct hth_roster *r, const struct hth_peer_id *id,
                      const struct hth_avg_line *line, uint64_t schema, int64_t wall_us)
{
    struct hth_roster_peer *p = hth_roster_get(r, id);

    if (p == NULL || p->note.schema != schema)
        return;
    p->lost = false;
    p->told_us = wall_us;
    p->moved_us = hth_now_us(r->env);
    p->note.round = line->round;
    p->note.shape = line->shape;
    p->note.cell = line->cell;
}

/* With many trainers a wrong clock is met at each of their notes. */
static bool may_say_clock(struct hth_roster *r)
{
    int64_t now_us = hth_now_us(r->env);

    if (r->clock_said_us != 0 && now_us - r->clock_said_us < NEWS_US)
        return false;
    r->clock_said_us = HTH_MAX(now_us, 1);
    return true;
}

static void on_refused(void *arg, enum hth_err err, const struct hth_record *rec)
{
    struct hth_roster *r = arg;

    r->stats.refused++;
    r->refused_us = hth_now_us(r->env);
    hth_record_explain(err, rec, hth_wall_us(r->env), r->stats.refusal);
    if (err == HTH_E_CLOCK_SKEW && may_say_clock(r))
        HTH_LOG(r->env, HTH_WARN, HTH_SUB_AVG, "a trainer is left out: %s", r->stats.refusal);
}

const struct hth_roster_peer *hth_roster_at(const struct hth_roster *r, uint32_t index)
{
    return index < r->count ? r->peers[index] : NULL;
}

struct hth_roster_peer *hth_roster_get(const struct hth_roster *r, const struct hth_peer_id *id)
{
    bool found;
    uint32_t at = place_of(r, id, &found);

    return found ? r->peers[at] : NULL;
}

const struct hth_roster_peer *hth_roster_find(const struct hth_roster *r,
                                              const struct hth_peer_id *id)
{
    return hth_roster_get(r, id);
}

void hth_roster_stats(const struct hth_roster *r, struct hth_roster_stats *out)
{
    int64_t now_us = hth_now_us(r->env);

    *out = r->stats;
    out->seen = r->count;
    if (now_us - r->refused_us > NEWS_US)
        out->refusal[0] = '\0';
    for (uint32_t i = 0; i < r->count; i++)
        out->other_schema += r->peers[i]->note.schema != r->opts.schema;
}

/* ---- life ------------------------------------------------------------------------------------ */

static const struct hth_board_ops board_ops = {on_record, on_gone, on_refused};

static enum hth_err check_opts(const struct hth_roster_opts *o)
{
    if (o->network == NULL || hth_name_check(o->network, strnlen(o->network, 256)) != HTH_OK)
        return HTH_E_CONFIG;
    if (o->life_us < HTH_RECORD_LIFE_MIN_US || o->life_us > HTH_RECORD_LIFE_MAX_US ||
        o->slot_us < 0 || o->patience_us <= 0 || o->publish_min_us < 0 || o->group_max < 2)
        return HTH_E_CONFIG;
    if (o->shape.dims > 0 && hth_avg_shape_check(&o->shape) != HTH_OK)
        return HTH_E_CONFIG;
    if (o->has_cell && (o->shape.dims == 0 || hth_avg_cell_check(&o->shape, &o->cell) != HTH_OK))
        return HTH_E_CONFIG;
    return HTH_OK;
}

void hth_roster_speak(struct hth_roster *r)
{
    int zeros = (int)hth_roster_zeros(&r->env->self);

    r->opts.silent = false;
    r->slot_at_us = hth_now_us(r->env) + HTH_MAX(SLOT_BITS - zeros, 0) * r->opts.slot_us;
    hth_roster_tick_at(r, r->slot_at_us);
}

static void begin(struct hth_roster *r)
{
    const struct hth_roster_opts *o = &r->opts;

    r->self = (struct hth_roster_note){
        .addr = o->addr, .flags = o->flags & HTH_ROSTER_FLAGS, .schema = o->schema};
    if (o->has_cell)
        r->self.shape = o->shape;
    if (!o->silent)
        hth_roster_speak(r);
}

enum hth_err hth_roster_new(struct hth_env *env, struct hth_dht *dht,
                            const struct hth_roster_opts *opts, struct hth_roster **out)
{
    struct hth_board_opts board = HTH_BOARD_OPTS_INIT;
    struct hth_roster *r;
    enum hth_err err;

    *out = NULL;
    HTH_TRY(check_opts(opts));
    r = hth_new(struct hth_roster);
    r->env = env;
    r->dht = dht;
    r->opts = *opts;
    r->recount_at_us = INT64_MAX;
    r->high = opts->watch_only ? HTH_AVG_ROSTER_WHOLE : HTH_AVG_ROSTER_HIGH;
    r->cache = hth_record_cache_new();
    r->tick = hth_timer_new(env, on_tick, r);
    r->change = hth_timer_new(env, on_change_timer, r);
    hth_topic_init(&r->topic, env->crypto, opts->network, HTH_RECORD_PROGRESS, "roster", 6);
    r->opts.network = NULL;
    board.records_max = HTH_AVG_ROSTER_MAX;
    board.cache = r->cache;
    err = hth_board_new(env, dht, &r->topic, &board, &board_ops, r, &r->board);
    if (err != HTH_OK) {
        hth_roster_free(r);
        return err;
    }
    begin(r);
    *out = r;
    return HTH_OK;
}

void hth_roster_free(struct hth_roster *r)
{
    if (r == NULL)
        return;
    r->freed = true;
    hth_publisher_free(r->note);
    hth_board_free(r->board);
    hth_record_cache_free(r->cache);
    hth_timer_free(r->env, r->tick);
    hth_timer_free(r->env, r->change);
    hth_free(r->peers);
    hth_free(r);
}

static void left(void *arg, enum hth_err err)
{
    struct hth_roster *r = arg;
    hth_fn *done = r->left;

    (void)err;
    r->left = NULL;
    if (done != NULL)
        done(r->left_arg);
}

static void left_in_time(void *arg)
{
    left(arg, HTH_OK);
}

void hth_roster_leave(struct hth_roster *r, hth_fn *done, void *arg)
{
    r->leaving = true;
    r->left = done;
    r->left_arg = arg;
    /* The change timer is free for this, for nobody is told of changes any more. */
    hth_timer_free(r->env, r->change);
    r->change = hth_timer_new(r->env, left_in_time, r);
    r->changed = true;
    hth_timer_set(r->env, r->change, r->note != NULL ? LEAVE_US : 0);
    if (r->note != NULL)
        hth_publisher_goodbye(r->note, left, r);
    r->speaking = false;
}
