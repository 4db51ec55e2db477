/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The roster: the board of the others' notes, who counts, this peer's own note, and who speaks at
 * all.
 *
 *   board, set_*, time -> turn: who counts, level, who speaks, shape and cell, on_change
 *   a change of the own note -> published after publish_min_us at the earliest
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/roster.h"
#include "core/mem.h"
#include "dht/board.h"
#include "dht/uid.h"

#define LIFE_US   (20 * HTH_US_PER_S)   /* of a note */
#define SLOT_BITS 8                     /* peers with rarer marks speak at once, ... */
#define SLOT_US   (100 * HTH_US_PER_MS) /* ... others so much later for each bit */
#define SETTLE_US (3 * HTH_US_PER_S)    /* until all have spoken of what has changed */
#define DOUBT_US  (60 * HTH_US_PER_S)
#define RATE_STEP 0.25                /* a speed that others should hear of */
#define LEAVE_US  (1 * HTH_US_PER_S)  /* the DHT may be gone before us */
#define NEWS_US   (60 * HTH_US_PER_S) /* how long a refusal is news, and said only once */

struct hth_roster {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_roster_opts opts;
    struct hth_topic topic;
    struct hth_board *board;
    struct hth_record_cache *cache;
    struct hth_roster_peer **peers; /* by id */
    uint32_t count, capacity;
    /* this peer */
    struct hth_roster_note self;
    struct hth_publisher *note; /* NULL before its slot, or when it never spoke */
    bool speaking;              /* the note is up */
    bool leaving;
    struct hth_roster_note said; /* as last published */
    int64_t said_us;             /* when */
    /* sampling */
    uint32_t level;    /* decides who posts */
    int64_t slot_us;   /* before it this peer does not speak */
    int64_t lower_us;  /* when the level falls; 0: it does not */
    bool ranked;       /* the cell is by rank, all being known */
    int64_t review_us; /* when this peer proposes a shape; 0: there is one that suits */
    /* refusals */
    int64_t refused_us; /* the latest, on our clock */
    struct hth_timer *timer;
    int64_t turn_us; /* 0: not armed */
    bool changed;
    hth_fn *left;
    void *left_arg;
    struct hth_roster_stats stats;
};

/* ---- time ------------------------------------------------------------------------------------ */

static void turn_at(struct hth_roster *r, int64_t at_us)
{
    if (r->turn_us != 0 && r->turn_us <= at_us)
        return;
    r->turn_us = at_us;
    hth_timer_set(r->env, r->timer, at_us - hth_now_us(r->env));
}

static bool is_over(struct hth_roster *r, int64_t at_us)
{
    if (hth_now_us(r->env) >= at_us)
        return true;
    turn_at(r, at_us);
    return false;
}

/* Somebody came, went or moved: all of this turn of the loop are looked at together. */
static void change(struct hth_roster *r)
{
    r->changed = true;
    turn_at(r, hth_now_us(r->env));
}

/* ---- who counts ------------------------------------------------------------------------------ */

static bool takes_part(const struct hth_roster *r, const struct hth_roster_note *note)
{
    return note->schema == r->opts.schema &&
           (note->flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0;
}

/* Leading zeros of the id's mark: it is below a level with as many. */
static uint32_t zeros(const struct hth_peer_id *id)
{
    uint64_t mark = hth_mix64(hth_load_u64le(id->b));

    return mark == 0 ? 64 : (uint32_t)__builtin_clzll(mark);
}

/* It takes part, and is below the level. */
static bool is_counted(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return takes_part(r, &p->note) && zeros(&p->id) >= r->level;
}

/* Of those below the level: of all, or of those that take part. */
static uint32_t count(const struct hth_roster *r, uint32_t level, bool all)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->count; i++)
        n += zeros(&r->peers[i]->id) >= level && (all || takes_part(r, &r->peers[i]->note));
    return n;
}

uint32_t hth_roster_population(const struct hth_roster *r, bool *exact)
{
    bool self = !r->opts.silent && !r->leaving && takes_part(r, &r->self);
    uint32_t n = count(r, r->level, false) + (self && zeros(&r->env->self) >= r->level);

    if (exact != NULL)
        *exact = r->level == 0;
    return HTH_MAX(n << r->level, (uint32_t)self);
}

static void adjust_level(struct hth_roster *r)
{
    while (r->level < HTH_AVG_ROSTER_LEVEL_MAX && count(r, r->level, true) > HTH_AVG_ROSTER_HIGH)
        r->level++;
    if (r->level == 0 ||
        count(r, r->level, true) >= HTH_AVG_ROSTER_HIGH / HTH_AVG_ROSTER_LOW_PART) {
        r->lower_us = 0;
        return;
    }
    if (r->lower_us == 0)
        r->lower_us = hth_now_us(r->env) + SETTLE_US;
    if (!is_over(r, r->lower_us))
        return;
    r->level--;
    r->lower_us = 0;
    change(r);
}

/* ---- shape and cell -------------------------------------------------------------------------- */

/* Of those below the level, this peer included. */
static uint32_t holders(const struct hth_roster *r, const struct hth_avg_shape *shape)
{
    uint32_t n = takes_part(r, &r->self) && hth_avg_shape_eq(&r->self.shape, shape);

    for (uint32_t i = 0; i < r->count; i++)
        n += is_counted(r, r->peers[i]) && hth_avg_shape_eq(&r->peers[i]->note.shape, shape);
    return n;
}

/* Of those that suit the population; of as many always the same one, so that two never swap. NULL:
 * nobody holds one that suits. */
static const struct hth_avg_shape *most_held(const struct hth_roster *r)
{
    const struct hth_avg_shape *best = NULL;
    uint32_t population = hth_roster_population(r, NULL), most = 0;

    for (uint32_t i = 0; i <= r->count; i++) {
        const struct hth_roster_note *note = i < r->count ? &r->peers[i]->note : &r->self;
        const struct hth_avg_shape *shape = &note->shape;
        uint32_t n;

        if (shape->dims == 0 || (i < r->count && !is_counted(r, r->peers[i])) ||
            (best != NULL && hth_avg_shape_eq(shape, best)))
            continue;
        n = holders(r, shape);
        if (best != NULL && (n < most || (n == most && memcmp(shape, best, sizeof(*best)) < 0)))
            continue;
        if (hth_avg_shape_suits(shape, population, r->opts.group_max)) {
            best = shape;
            most = n;
        }
    }
    return best;
}

static struct hth_avg_shape shape_of(struct hth_roster *r)
{
    uint32_t population = hth_roster_population(r, NULL);
    const struct hth_avg_shape *held = population >= 2 ? most_held(r) : NULL;
    int64_t us = SETTLE_US;

    if (held != NULL || !r->speaking || population < 2) {
        r->review_us = 0;
        return held != NULL ? *held : r->self.shape;
    }
    if (r->self.shape.dims == 0) /* a peer without any grid loses nothing by a hasty one */
        us /= 3;
    if (r->review_us == 0)
        r->review_us = hth_now_us(r->env) + us + (int64_t)(hth_rng_unit(&r->env->rng) * (double)us);
    if (!is_over(r, r->review_us))
        return r->self.shape;
    r->review_us = 0;
    return hth_avg_shape_for(population, r->opts.group_max);
}

/* By rank. Clients can't be dialled, so a line of them alone never meets: who can be comes first,
 * into all lines if there are enough. */
static struct hth_avg_cell cell_among_all(const struct hth_roster *r)
{
    bool client = r->self.addr.family == 0;
    uint32_t rank = 0, clients = client;

    for (uint32_t i = 0; i < r->count; i++) {
        const struct hth_roster_peer *p = r->peers[i];
        bool other = p->note.addr.family == 0;

        if (!takes_part(r, &p->note))
            continue;
        clients += other;
        rank += other != client ? client : hth_peer_id_cmp(&p->id, &r->env->self) < 0;
    }
    if (clients == 0)
        return hth_avg_cell_of_rank(&r->self.shape, rank);
    return hth_avg_cell_across(&r->self.shape, rank);
}

static void find_place(struct hth_roster *r)
{
    char text[HTH_AVG_SHAPE_TEXT_MAX];
    struct hth_avg_shape shape = r->opts.shape.dims > 0 ? r->opts.shape : shape_of(r);
    bool other = !hth_avg_shape_eq(&shape, &r->self.shape), exact;

    if (other)
        HTH_LOG(r->env, HTH_DEBUG, HTH_SUB_AVG, "grid %s", hth_avg_shape_text(&shape, text));
    r->self.shape = shape;
    (void)hth_roster_population(r, &exact);
    if (r->opts.has_cell)
        r->self.cell = r->opts.cell;
    else if (exact && shape.dims > 0)
        r->self.cell = cell_among_all(r);
    else if (other || r->ranked)
        r->self.cell = hth_avg_cell_drawn(&shape, &r->env->self);
    r->ranked = exact;
}

/* ---- this peer's note ------------------------------------------------------------------------ */

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    struct hth_roster *r = arg;
    uint8_t bytes[HTH_ROSTER_NOTE_BYTES_MAX];

    r->said = r->self;
    r->said_us = hth_now_us(r->env);
    r->stats.puts++;
    hth_write_bytes(w, bytes, hth_roster_note_write(&r->self, bytes));
    return w->err;
}

/* The note has changed in a way that others should know soon; `now` what is said but once in a
 * life, and all wait for. */
static void say(struct hth_roster *r, bool now)
{
    int64_t us = r->said_us + r->opts.publish_min_us - hth_now_us(r->env);

    if (r->speaking)
        hth_publisher_update(r->note, now ? 0 : HTH_MAX(us, 0));
}

static void speak(struct hth_roster *r, bool yes)
{
    const struct hth_publisher_opts opts = {.life_us = LIFE_US};
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

/* Where it stands now; said if that is elsewhere. */
static void place(struct hth_roster *r)
{
    struct hth_avg_shape shape = r->self.shape;
    struct hth_avg_cell cell = r->self.cell;

    find_place(r);
    if (hth_avg_shape_eq(&shape, &r->self.shape) && memcmp(&cell, &r->self.cell, sizeof(cell)) == 0)
        return;
    say(r, shape.dims == 0);
    change(r);
}

/* ---- the turn -------------------------------------------------------------------------------- */

static void left(void *arg, enum hth_err err)
{
    struct hth_roster *r = arg;
    hth_fn *done = r->left;

    (void)err;
    r->left = NULL;
    if (done != NULL)
        done(r->left_arg);
}

static void on_turn(void *arg)
{
    struct hth_roster *r = arg;
    bool changed;

    r->turn_us = 0;
    if (r->leaving) {
        left(r, HTH_OK);
        return;
    }
    adjust_level(r);
    if (!r->opts.silent && is_over(r, r->slot_us))
        speak(r, zeros(&r->env->self) >= r->level);
    place(r);
    changed = r->changed;
    r->changed = false;
    if (changed && r->opts.on_change != NULL)
        r->opts.on_change(r->opts.arg);
}

/* ---- what this peer says --------------------------------------------------------------------- */

void hth_roster_set_progress(struct hth_roster *r, uint64_t step, uint64_t samples,
                             double samples_per_s)
{
    double said = r->said.samples_per_s, rate;

    rate = samples_per_s > 0 ? HTH_MIN(samples_per_s, HTH_AVG_RATE_MAX) : 0; /* and not NaN */
    r->self.step = HTH_MIN(step, HTH_AVG_STEP_MAX);
    r->self.samples = HTH_MIN(samples, HTH_AVG_SAMPLES_MAX);
    r->self.samples_per_s = rate;
    if (said == 0 && rate > 0)
        say(r, true); /* until then nobody can tell how long the run takes */
    else if (r->self.step != r->said.step || fabs(rate - said) > RATE_STEP * said)
        say(r, false);
}

void hth_roster_set_schema(struct hth_roster *r, uint64_t schema,
                           const uint32_t settings[HTH_ROSTER_SETTINGS])
{
    memcpy(r->self.settings, settings, sizeof(r->self.settings));
    if (r->opts.schema == schema)
        return;
    r->opts.schema = r->self.schema = schema;
    say(r, false);
    change(r);
}

/* A peer that got a state says so at once: it may be in the next average. */
void hth_roster_set_flags(struct hth_roster *r, uint32_t flags)
{
    bool came = (r->self.flags & ~flags & HTH_ROSTER_BOOTSTRAPPING) != 0;

    if (r->self.flags == (flags & HTH_ROSTER_FLAGS))
        return;
    r->self.flags = flags & HTH_ROSTER_FLAGS;
    say(r, came);
    change(r);
}

/* Goes along with the next note: nobody acts on it. */
void hth_roster_set_last(struct hth_roster *r, const struct hth_roster_last *last)
{
    r->self.last = *last;
}

void hth_roster_set_round(struct hth_roster *r, uint32_t round)
{
    if (round == r->self.round)
        return;
    r->self.round = round;
    say(r, false);
    place(r);
}

void hth_roster_set_place(struct hth_roster *r, uint32_t axis, uint32_t at)
{
    if (axis < r->self.shape.dims) /* which may have changed since the group began */
        r->self.cell.at[axis] = at % r->self.shape.size[axis];
}

bool hth_roster_speaks(const struct hth_roster *r)
{
    return r->speaking;
}

const struct hth_roster_note *hth_roster_self(const struct hth_roster *r)
{
    return &r->self;
}

/* ---- the board ------------------------------------------------------------------------------- */

/* Where the id is, or would be put. */
static uint32_t place_of(const struct hth_roster *r, const struct hth_peer_id *id)
{
    uint32_t i = 0;

    while (i < r->count && hth_peer_id_cmp(&r->peers[i]->id, id) < 0)
        i++;
    return i;
}

static struct hth_roster_peer *insert(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = hth_new(struct hth_roster_peer);
    uint32_t at = place_of(r, id);

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

static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_roster *r = arg;
    struct hth_roster_note note;
    struct hth_roster_peer *p = *user;

    if (rec->part != 0) /* a peer has one note: two would be freed with the first of them */
        return HTH_E_RANGE;
    HTH_TRY(hth_roster_note_read(rec->payload, rec->payload_len, &note));
    if (hth_peer_id_eq(&rec->owner_id, &r->env->self)) /* said before a restart, or just now */
        return HTH_OK;
    if (p == NULL && r->count == HTH_AVG_ROSTER_MAX)
        return HTH_E_BUDGET;
    if (p == NULL)
        p = insert(r, &rec->owner_id);
    *user = p;
    p->note = note;
    p->lost = false;
    p->issued_us = rec->issued_us;
    change(r);
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    struct hth_roster *r = arg;
    uint32_t at = place_of(r, owner);

    (void)part;
    if (user == NULL)
        return;
    HTH_ASSERT(r->peers[at] == user);
    r->count--;
    memmove(&r->peers[at], &r->peers[at + 1], (r->count - at) * sizeof(struct hth_roster_peer *));
    hth_free(user);
    change(r);
}

static struct hth_roster_peer *get(const struct hth_roster *r, const struct hth_peer_id *id)
{
    uint32_t at = place_of(r, id);

    return at < r->count && hth_peer_id_eq(&r->peers[at]->id, id) ? r->peers[at] : NULL;
}

bool hth_roster_meets(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return p->note.schema == r->opts.schema && (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) == 0 &&
           !p->lost;
}

void hth_roster_doubt(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = get(r, id);

    if (p != NULL)
        p->doubted_until_us = hth_now_us(r->env) + DOUBT_US;
}

bool hth_roster_doubts(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return hth_now_us(r->env) < p->doubted_until_us;
}

void hth_roster_lost(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = get(r, id);

    if (p != NULL)
        p->lost = true;
}

static void on_refused(void *arg, enum hth_err err, const struct hth_record *rec)
{
    struct hth_roster *r = arg;
    int64_t now_us = hth_now_us(r->env);
    bool news = r->stats.refused == 0 || now_us - r->refused_us > NEWS_US;

    r->stats.refused++;
    r->refused_us = now_us;
    hth_record_explain(err, rec, hth_wall_us(r->env), r->stats.refusal);
    if (err == HTH_E_CLOCK_SKEW && news) /* with a wrong clock at each note of each trainer */
        HTH_LOG(r->env, HTH_WARN, HTH_SUB_AVG, "a trainer is left out: %s", r->stats.refusal);
}

const struct hth_roster_peer *hth_roster_at(const struct hth_roster *r, uint32_t index)
{
    return index < r->count ? r->peers[index] : NULL;
}

const struct hth_roster_peer *hth_roster_find(const struct hth_roster *r,
                                              const struct hth_peer_id *id)
{
    return get(r, id);
}

void hth_roster_stats(const struct hth_roster *r, struct hth_roster_stats *out)
{
    int64_t now_us = hth_now_us(r->env);

    *out = r->stats;
    out->seen = r->count;
    out->level = r->level;
    if (now_us - r->refused_us > NEWS_US)
        out->refusal[0] = '\0';
}

/* ---- life ------------------------------------------------------------------------------------ */

static const struct hth_board_ops board_ops = {on_record, on_gone, on_refused};

static enum hth_err check_opts(const struct hth_roster_opts *o)
{
    if (o->network == NULL || hth_name_check(o->network, strnlen(o->network, 256)) != HTH_OK)
        return HTH_E_CONFIG;
    if (o->publish_min_us < 0 || o->group_max < 2)
        return HTH_E_CONFIG;
    if (o->shape.dims > 0 && hth_avg_shape_check(&o->shape) != HTH_OK)
        return HTH_E_CONFIG;
    if (o->has_cell && (o->shape.dims == 0 || hth_avg_cell_check(&o->shape, &o->cell) != HTH_OK))
        return HTH_E_CONFIG;
    return HTH_OK;
}

void hth_roster_speak(struct hth_roster *r)
{
    int64_t bits = HTH_MAX(SLOT_BITS - (int64_t)zeros(&r->env->self), 0);

    r->opts.silent = false;
    r->slot_us = hth_now_us(r->env) + bits * SLOT_US;
    turn_at(r, r->slot_us);
}

static void begin(struct hth_roster *r)
{
    const struct hth_roster_opts *o = &r->opts;

    r->self = (struct hth_roster_note){
        .addr = o->addr, .flags = o->flags & HTH_ROSTER_FLAGS, .schema = o->schema};
    find_place(r);
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
    r->cache = hth_record_cache_new();
    r->timer = hth_timer_new(env, on_turn, r);
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
    hth_publisher_free(r->note);
    hth_board_free(r->board);
    hth_record_cache_free(r->cache);
    hth_timer_free(r->env, r->timer);
    hth_free(r->peers);
    hth_free(r);
}

void hth_roster_leave(struct hth_roster *r, hth_fn *done, void *arg)
{
    r->leaving = true;
    r->left = done;
    r->left_arg = arg;
    hth_timer_set(r->env, r->timer, r->note != NULL ? LEAVE_US : 0);
    r->turn_us = 1; /* nobody is told of changes any more */
    if (r->note != NULL)
        hth_publisher_goodbye(r->note, left, r);
    r->speaking = false;
}
