/* SPDX-License-Identifier: Apache-2.0 */
/* places.c: chooses, announces and leaves the places of a host; places.h has the rules. */
#include "experts/places.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/rng.h"
#include "dht/directory.h"
#include "experts/claims.h"
#include "experts/message.h"

#include <stdlib.h>
#include <string.h>

/* Longer than records live: a host that returns within the life of its records finds nobody settled
 * on its places. */
#define SETTLED_US (90 * HTH_US_PER_S)
/* Steps go on between the moments at which two hosts compare them. */
#define STEPS_MARGIN 16
/* A spare that looks again asks about so many hosts whether they are there. */
#define SAMPLE 64
/* Time for trainers to learn that an expert left. */
#define LEAVE_US (4 * HTH_PLACES_FLIGHT_US)

enum place_state { PLACE_LOADING, PLACE_SERVED, PLACE_LEAVING, PLACE_FAILED };

struct place {
    uint32_t layer, index;
    enum place_state state;
    bool pinned;
    int64_t gone_us; /* LEAVING: when the server drops it */
    uint64_t judged; /* sum of hashes of the hosts that it was kept from */
};

struct spot {
    uint32_t layer, index;
    bool recent;
};

struct hth_places {
    struct hth_env *env;
    struct hth_places_opts opts;
    struct hth_grid *grids;
    struct hth_directory *directory;
    struct place *list; /* ascending */
    uint32_t count, loading, restored, moved;
    struct spot *had; /* checkpoints in the folder; ascending */
    uint32_t had_count;
    bool *changed; /* by layer: its record must be put */
    bool looked, stopped, news_set;
    struct hth_timer *look_timer, *news_timer, *leave_timer;
    struct hth_claims *claims; /* while hosts are asked */
    bool is_short;        /* fewer places look free than are missing */
    uint64_t salt;        /* draws the sample */
    uint32_t hosts;       /* known when that began */
    uint32_t quiet_looks; /* since the last change */
    struct hth_peer_id *rivals; /* hosts on places of this one */
    uint32_t rivals_count;
};

/* ---- lists --------------------------------------------------------------------------------- */

static int compare_spots(uint32_t layer, uint32_t index, uint32_t layer2, uint32_t index2)
{
    if (layer != layer2)
        return layer < layer2 ? -1 : 1;
    return index < index2 ? -1 : index > index2;
}

/* The first entry that is not before the spot. */
static uint32_t lower_place(const struct hth_places *p, uint32_t layer, uint32_t index)
{
    uint32_t low = 0, high = p->count;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (compare_spots(p->list[mid].layer, p->list[mid].index, layer, index) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct place *find(const struct hth_places *p, uint32_t layer, uint32_t index)
{
    uint32_t at = lower_place(p, layer, index);

    if (at == p->count || p->list[at].layer != layer || p->list[at].index != index)
        return NULL;
    return &p->list[at];
}

static struct place *insert(struct hth_places *p, uint32_t layer, uint32_t index)
{
    uint32_t at = lower_place(p, layer, index);

    p->list = hth_realloc(p->list, p->count + 1, sizeof(*p->list));
    memmove(&p->list[at + 1], &p->list[at], (p->count - at) * sizeof(*p->list));
    p->count++;
    p->list[at] = (struct place){.layer = layer, .index = index};
    return &p->list[at];
}

static void erase(struct hth_places *p, struct place *place)
{
    size_t at = (size_t)(place - p->list);

    p->count--;
    memmove(place, place + 1, (p->count - at) * sizeof(*p->list));
}

static void remember(struct hth_places *p, uint32_t layer, uint32_t index, bool recent)
{
    uint32_t at = 0, high = p->had_count;

    while (at < high) {
        uint32_t mid = at + (high - at) / 2;
        if (compare_spots(p->had[mid].layer, p->had[mid].index, layer, index) < 0)
            at = mid + 1;
        else
            high = mid;
    }
    if (at < p->had_count && p->had[at].layer == layer && p->had[at].index == index)
        return;
    p->had = hth_realloc(p->had, p->had_count + 1, sizeof(*p->had));
    memmove(&p->had[at + 1], &p->had[at], (p->had_count - at) * sizeof(*p->had));
    p->had[at] = (struct spot){layer, index, recent};
    p->had_count++;
}

static struct hth_uid uid_of(const struct hth_places *p, uint32_t layer, uint32_t index)
{
    const struct hth_grid *grid = &p->grids[layer];
    struct hth_uid uid = {.ncoord = grid->ndim};

    memcpy(uid.name, grid->name, sizeof(uid.name));
    hth_grid_coords(grid, index, uid.coord);
    return uid;
}

/* Errors: E_NOT_FOUND, those of hth_grid_find. */
static enum hth_err spot_of(const struct hth_places *p, const struct hth_uid *uid, uint32_t *layer,
                            uint32_t *index)
{
    for (*layer = 0; *layer < p->opts.layers; ++*layer)
        if (strcmp(p->grids[*layer].name, uid->name) == 0)
            return hth_grid_find(&p->grids[*layer], uid, index);
    return HTH_E_NOT_FOUND;
}

/* Whether another host on this place is a matter to decide. */
static bool is_in_play(const struct place *place)
{
    return place->state == PLACE_SERVED && !place->pinned;
}

static uint64_t hash_of(const struct hth_peer_id *id)
{
    return hth_hash64(id->b, sizeof(id->b), 0);
}

static bool is_taken(const struct place *place)
{
    return place->state == PLACE_LOADING || place->state == PLACE_SERVED;
}

/* Places of `want` that are taken, in one layer or in all. */
static uint32_t taken(const struct hth_places *p, uint32_t layer)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->count; i++)
        n += is_taken(&p->list[i]) && !p->list[i].pinned &&
             (layer == UINT32_MAX || p->list[i].layer == layer);
    return n;
}

static uint32_t missing(const struct hth_places *p)
{
    uint32_t have = taken(p, UINT32_MAX);

    return have < p->opts.want ? p->opts.want - have : 0;
}

static int64_t flights_us(struct hth_places *p)
{
    return (int64_t)((1 + 2 * hth_rng_unit(&p->env->rng)) * HTH_PLACES_FLIGHT_US);
}

/* Until the next look: after a change 1 to 3 flights, then three times as long and so on, for a
 * push and an answer may both lack a record; later U(30, 90) s. */
static int64_t pause_us(struct hth_places *p)
{
    static const int times[] = {1, 3, 9};

    if (p->quiet_looks < HTH_ARRAY_LEN(times))
        return times[p->quiet_looks++] * flights_us(p);
    return (int64_t)((30 + 60 * hth_rng_unit(&p->env->rng)) * HTH_US_PER_S);
}

static void tell(struct hth_places *p)
{
    if (p->opts.on_change != NULL)
        p->opts.on_change(p->opts.arg);
}

/* ---- announcing ---------------------------------------------------------------------------- */

static void announce_layer(struct hth_places *p, uint32_t layer)
{
    uint32_t *index = hth_new_array(uint32_t, p->count + 1);
    struct hth_expert_list list = {.index = index};
    char text[HTH_UID_TEXT_MAX];

    for (uint32_t i = 0; i < p->count; i++)
        if (p->list[i].layer == layer && p->list[i].state == PLACE_SERVED)
            index[list.count++] = p->list[i].index;
    enum hth_err err =
        hth_announcer_set_layer(p->opts.announcer, &p->grids[layer], &p->opts.shape, &list);
    if (err != HTH_OK)
        HTH_LOG(p->env, HTH_ERROR, HTH_SUB_EXPERT, "can't announce experts of %s: %s",
                hth_grid_text(&p->grids[layer], text), hth_err_text(err));
    hth_free(index);
}

/* Puts the records of layers that changed, once nothing is loading, and looks soon what others did
 * meanwhile. */
static void announce(struct hth_places *p)
{
    bool any = false;

    for (uint32_t l = 0; l < p->opts.layers; l++) {
        if (p->changed[l])
            announce_layer(p, l);
        any = any || p->changed[l];
        p->changed[l] = false;
    }
    if (!any)
        return;
    p->quiet_looks = 0;
    if (p->looked)
        hth_timer_set(p->env, p->look_timer, pause_us(p));
    tell(p);
}

/* ---- taking and leaving -------------------------------------------------------------------- */

static enum hth_err take(struct hth_places *p, uint32_t layer, uint32_t index, bool pinned)
{
    struct hth_expert_opts opts = HTH_EXPERT_OPTS_INIT;
    struct hth_uid uid = uid_of(p, layer, index);

    p->opts.expert(p->opts.arg, &uid, &opts);
    opts.uid = uid;
    HTH_TRY(hth_server_add(p->opts.server, &opts));
    struct place *place = insert(p, layer, index);
    place->pinned = pinned;
    place->state = PLACE_LOADING;
    p->loading++;
    return HTH_OK;
}

/* Takes a place of `want`, if this host has no other business there. */
static bool try_take(struct hth_places *p, uint32_t layer, uint32_t index)
{
    char text[HTH_UID_TEXT_MAX];

    if (find(p, layer, index) != NULL)
        return false;
    enum hth_err err = take(p, layer, index, false);
    if (err != HTH_OK && err != HTH_E_AGAIN)
        HTH_LOG(p->env, HTH_ERROR, HTH_SUB_EXPERT, "expert %s is not hosted: %s",
                hth_grid_uid_text(&p->grids[layer], index, text), hth_err_text(err));
    return err == HTH_OK;
}

static void leave(struct hth_places *p, struct place *place, const struct hth_peer_id *to)
{
    char text[HTH_UID_TEXT_MAX], id[HTH_PEER_SHORT_LEN];

    HTH_LOG(p->env, HTH_INFO, HTH_SUB_EXPERT, "expert %s is left to host %s, which has it too",
            hth_grid_uid_text(&p->grids[place->layer], place->index, text),
            hth_peer_id_short(to, id));
    place->state = PLACE_LEAVING;
    place->gone_us = hth_now_us(p->env) + LEAVE_US;
    p->changed[place->layer] = true;
    p->moved++;
    remember(p, place->layer, place->index, false);
    hth_timer_set(p->env, p->leave_timer, LEAVE_US);
}

static void on_leave_timer(void *arg)
{
    struct hth_places *p = arg;
    int64_t now = hth_now_us(p->env), next_us = INT64_MAX;

    for (uint32_t i = p->count; i-- > 0;) {
        struct place *place = &p->list[i];
        if (place->state != PLACE_LEAVING)
            continue;
        if (place->gone_us > now) {
            next_us = HTH_MIN(next_us, place->gone_us);
            continue;
        }
        struct hth_uid uid = uid_of(p, place->layer, place->index);
        enum hth_err err = hth_server_remove(p->opts.server, &uid);
        HTH_ASSERT(err == HTH_OK);
        erase(p, place);
    }
    if (next_us != INT64_MAX)
        hth_timer_set(p->env, p->leave_timer, next_us - now);
}

/* ---- other hosts --------------------------------------------------------------------------- */

/* The hosts of a place besides this one, of which there may be many. */
static size_t others_on(const struct hth_places *p, uint32_t layer, uint32_t index,
                        struct hth_host_ref *out)
{
    size_t n = hth_directory_hosts_of(p->directory, layer, index, out, HTH_DIR_REPLICAS_MAX);

    for (size_t i = 0; i < n; i++) {
        if (hth_peer_id_cmp(&out[i].id, &p->env->self) != 0)
            continue;
        out[i] = out[--n];
        break;
    }
    return n;
}

/* Whether another host serves it. */
static bool is_others(const struct hth_places *p, uint32_t layer, uint32_t index)
{
    struct hth_host_ref hosts[HTH_DIR_REPLICAS_MAX];

    return others_on(p, layer, index, hosts) > 0;
}

/* This host's places by its own records: after a restart, those of the process before. */
static uint32_t own_records(const struct hth_places *p, uint32_t layer, uint32_t **out)
{
    const struct hth_peer_id *self = &p->env->self;
    size_t n = hth_directory_host_experts(p->directory, self, layer, NULL, 0);

    *out = hth_new_array(uint32_t, n + 1);
    return (uint32_t)HTH_MIN(n, hth_directory_host_experts(p->directory, self, layer, *out, n));
}

static uint32_t free_in(const struct hth_places *p, uint32_t layer)
{
    const struct hth_grid_view *view = hth_directory_view(p->directory, layer);
    uint32_t n = hth_grid_size(&p->grids[layer]) - view->live_count, *mine;

    for (uint32_t i = 0; i < p->count; i++)
        n -= p->list[i].layer == layer && !hth_grid_view_is_live(view, p->list[i].index);
    uint32_t count = own_records(p, layer, &mine);
    for (uint32_t i = 0; i < count; i++)
        n += find(p, layer, mine[i]) == NULL && !is_others(p, layer, mine[i]);
    hth_free(mine);
    return n;
}

static uint32_t free_in_all(const struct hth_places *p)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < p->opts.layers; l++)
        n += free_in(p, l);
    return n;
}

static uint64_t priority(const struct hth_uid *uid, const struct hth_peer_id *id)
{
    uint8_t key[HTH_EXPERT_KEY_MAX];
    size_t len = hth_expert_key(uid->name, uid->ncoord, uid->coord, key);

    return hth_hash64(id->b, sizeof(id->b), hth_hash64(key, len, 0));
}

static bool clearly_more(uint64_t a, uint64_t b)
{
    return a > b && a - b > STEPS_MARGIN;
}

/* Whether this host keeps a place that another one has too; the other comes to the opposite. */
static bool keeps(const struct hth_places *p, const struct place *place,
                  const struct hth_peer_id *other, const struct hth_claim_info *theirs)
{
    struct hth_uid uid = uid_of(p, place->layer, place->index);
    struct hth_server_expert mine = {0};
    bool known = hth_server_expert_find(p->opts.server, &uid, &mine);
    bool settled = mine.hosted_us > SETTLED_US;
    uint64_t first = priority(&uid, &p->env->self), second = priority(&uid, other);
    bool leads = first != second ? first > second : hth_peer_id_cmp(&p->env->self, other) > 0;

    HTH_ASSERT(known);
    if (settled != (theirs->hosted_us > SETTLED_US))
        return settled;
    if (settled)
        return leads;
    if (mine.returned != theirs->returned)
        leads = mine.returned;
    return leads ? !clearly_more(theirs->steps, mine.steps)
                 : clearly_more(mine.steps, theirs->steps);
}

/* Leaves the places that other hosts keep. Their claims are confirmed. The record of a place that
 * is kept is put again: its push to the other host may have been lost. */
static void judge_rivals(struct hth_places *p)
{
    struct hth_host_ref hosts[HTH_DIR_REPLICAS_MAX];

    for (uint32_t i = 0; i < p->count; i++) {
        struct place *place = &p->list[i];
        uint64_t before = place->judged;
        if (!is_in_play(place))
            continue;
        size_t n = others_on(p, place->layer, place->index, hosts);
        place->judged = 0;
        for (size_t h = 0; h < n && place->state == PLACE_SERVED; h++) {
            struct hth_claim_info theirs;
            if (!hth_claims_find(p->claims, &hosts[h].id, place->layer, place->index, &theirs))
                continue; /* its record came while others were asked */
            if (keeps(p, place, &hosts[h].id, &theirs))
                place->judged += hash_of(&hosts[h].id);
            else
                leave(p, place, &hosts[h].id);
        }
        if (place->judged != 0 && place->judged != before)
            p->changed[place->layer] = true;
    }
}

/* ---- choosing ------------------------------------------------------------------------------ */

static bool take_back(struct hth_places *p, uint32_t layer, uint32_t index)
{
    struct hth_uid uid = uid_of(p, layer, index);

    if (!try_take(p, layer, index))
        return false;
    hth_server_returned(p->opts.server, &uid);
    return true;
}

/* Takes the places of before the start, whoever serves them. */
static void take_all_back(struct hth_places *p)
{
    uint32_t want = missing(p);

    for (uint32_t l = 0; l < p->opts.layers; l++) {
        uint32_t *mine, count = own_records(p, l, &mine);
        for (uint32_t i = 0; i < count && want > 0; i++)
            want -= take_back(p, l, mine[i]);
        hth_free(mine);
    }
    for (uint32_t i = 0; i < p->had_count && want > 0; i++)
        if (p->had[i].recent)
            want -= take_back(p, p->had[i].layer, p->had[i].index);
}

static uint32_t take_checkpoints(struct hth_places *p, uint32_t layer, uint32_t want)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->had_count && n < want; i++)
        if (p->had[i].layer == layer && !is_others(p, layer, p->had[i].index))
            n += try_take(p, layer, p->had[i].index);
    return n;
}

static uint32_t take_free(struct hth_places *p, uint32_t layer, uint32_t want)
{
    uint32_t n = 0, most = want;

    if (want == 0)
        return 0;
    for (uint32_t i = 0; i < p->count; i++) /* they may look free */
        most += p->list[i].layer == layer;
    uint32_t *index = hth_new_array(uint32_t, most);
    size_t count = hth_directory_pick_free(p->directory, layer, most, index);
    for (size_t i = 0; i < count && n < want; i++)
        n += try_take(p, layer, index[i]);
    hth_free(index);
    return n;
}

/* Layer's share of `want`. The rest of the division goes to other layers on each host. */
static uint32_t share_of(const struct hth_places *p, uint32_t layer)
{
    uint32_t want = p->opts.want, layers = p->opts.layers;

    return want / layers + ((layer + p->env->self.b[0]) % layers < want % layers);
}

static void fill(struct hth_places *p)
{
    if (!p->looked)
        take_all_back(p);
    for (int all = 0; all < 2; all++)
        for (uint32_t l = 0; l < p->opts.layers; l++) {
            uint32_t share = share_of(p, l), have = taken(p, l), want = missing(p);
            if (!all)
                want = HTH_MIN(want, share > have ? share - have : 0);
            want -= take_checkpoints(p, l, want);
            (void)take_free(p, l, want);
        }
}

/* ---- looks --------------------------------------------------------------------------------- */

/* Some place is missing and may be free, or there is a host on a place of this one that was not
 * judged. */
static bool has_news(const struct hth_places *p)
{
    struct hth_host_ref hosts[HTH_DIR_REPLICAS_MAX];

    if (missing(p) > 0 && free_in_all(p) > 0)
        return true;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct place *place = &p->list[i];
        size_t n = is_in_play(place) ? others_on(p, place->layer, place->index, hosts) : 0;
        uint64_t sum = 0;
        for (size_t h = 0; h < n; h++)
            sum += hash_of(&hosts[h].id);
        if (n > 0 && sum != place->judged)
            return true;
    }
    return false;
}

static void choose(struct hth_places *p)
{
    bool first = !p->looked;

    if (p->claims != NULL)
        judge_rivals(p);
    hth_claims_free(p->claims);
    p->claims = NULL;
    fill(p);
    p->looked = true;
    hth_timer_set(p->env, p->look_timer, pause_us(p));
    announce(p); /* what was left; what was taken follows when it is loaded */
    if (first)
        tell(p);
}

static void on_claims(void *arg)
{
    choose(arg);
}

static bool is_rival(const struct hth_places *p, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < p->rivals_count; i++)
        if (hth_peer_id_cmp(&p->rivals[i], id) == 0)
            return true;
    return false;
}

static void find_rivals(struct hth_places *p)
{
    struct hth_host_ref hosts[HTH_DIR_REPLICAS_MAX];

    p->rivals_count = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct place *place = &p->list[i];
        size_t n = is_in_play(place) ? others_on(p, place->layer, place->index, hosts) : 0;
        p->rivals = hth_realloc(p->rivals, p->rivals_count + n + 1, sizeof(*p->rivals));
        for (size_t h = 0; h < n; h++)
            if (!is_rival(p, &hosts[h].id))
                p->rivals[p->rivals_count++] = hosts[h].id;
    }
}

/* A host that is short asks all at first, later a sample. */
static bool asks(void *arg, const struct hth_peer_id *id)
{
    const struct hth_places *p = arg;
    bool drawn = !p->looked || hth_hash64(id->b, sizeof(id->b), p->salt) % p->hosts < SAMPLE;

    return is_rival(p, id) || (p->is_short && drawn);
}

static void look(void *arg)
{
    struct hth_places *p = arg;
    struct hth_directory_stats stats;

    if (p->claims != NULL || p->stopped)
        return;
    for (uint32_t l = 0; l < p->opts.layers; l++) { /* for records whose push was lost */
        enum hth_err err = hth_directory_ask(p->directory, l);
        (void)err; /* one is under way, or was made a moment ago */
    }
    find_rivals(p);
    p->is_short = missing(p) > free_in_all(p);
    hth_directory_stats(p->directory, &stats);
    p->hosts = HTH_MAX(stats.hosts, 1u);
    p->salt = hth_rng_u64(&p->env->rng);
    if (p->rivals_count > 0 || p->is_short) {
        enum hth_err err =
            hth_claims_ask(p->env, p->opts.rpc, p->directory, asks, on_claims, p, &p->claims);
        if (err == HTH_OK)
            return;
    }
    choose(p);
}

static void on_news_timer(void *arg)
{
    struct hth_places *p = arg;

    p->news_set = false;
    if (!p->stopped && has_news(p))
        look(p);
}

static void on_directory(void *arg)
{
    struct hth_places *p = arg;

    if (!p->looked || p->stopped || p->news_set)
        return;
    p->news_set = true;
    hth_timer_set(p->env, p->news_timer, flights_us(p));
}

/* ---- calls --------------------------------------------------------------------------------- */

void hth_places_loaded(struct hth_places *places, const struct hth_uid *uid, enum hth_err err,
                       bool restored)
{
    struct hth_places *p = places;
    uint32_t layer, index;
    struct place *place = NULL;

    if (spot_of(p, uid, &layer, &index) == HTH_OK)
        place = find(p, layer, index);
    if (place == NULL || place->state != PLACE_LOADING)
        return;
    p->loading--;
    place->state = err == HTH_OK ? PLACE_SERVED : PLACE_FAILED;
    p->restored += err == HTH_OK && restored;
    p->changed[layer] = true;
    if (p->loading == 0 && !p->stopped)
        announce(p);
}

enum hth_err hth_places_pin(struct hth_places *places, const struct hth_uid *uid)
{
    uint32_t layer, index;

    HTH_TRY(spot_of(places, uid, &layer, &index));
    return take(places, layer, index, true);
}

void hth_places_had(struct hth_places *places, const struct hth_uid *uid, bool recent)
{
    uint32_t layer, index;

    if (spot_of(places, uid, &layer, &index) == HTH_OK)
        remember(places, layer, index, recent);
}

void hth_places_start(struct hth_places *places)
{
    if (places->opts.want > 0 && !places->looked && places->claims == NULL)
        hth_timer_set(places->env, places->look_timer, flights_us(places));
}

void hth_places_stop(struct hth_places *places)
{
    places->stopped = true;
    hth_timer_cancel(places->env, places->look_timer);
    hth_timer_cancel(places->env, places->news_timer);
    hth_timer_cancel(places->env, places->leave_timer);
    hth_claims_free(places->claims);
    places->claims = NULL;
}

void hth_places_stats(const struct hth_places *places, struct hth_places_stats *out)
{
    *out = (struct hth_places_stats){.want = places->opts.want,
                                     .loading = places->loading,
                                     .restored = places->restored,
                                     .moved = places->moved,
                                     .looked = places->looked};
    for (uint32_t i = 0; i < places->count; i++) {
        out->want += places->list[i].pinned;
        out->served += places->list[i].state == PLACE_SERVED;
        out->failed += places->list[i].state == PLACE_FAILED;
    }
}

static enum hth_err open_directory(struct hth_places *p, struct hth_dht *dht)
{
    struct hth_directory_opts opts = HTH_DIRECTORY_OPTS_INIT;
    uint32_t number;

    opts.network = p->opts.network;
    HTH_TRY(hth_directory_new(p->env, dht, &opts, &p->directory));
    for (uint32_t l = 0; l < p->opts.layers; l++) {
        HTH_TRY(
            hth_directory_open_layer(p->directory, &p->grids[l], &p->opts.shape, &number));
        HTH_ASSERT(number == l);
    }
    hth_directory_on_change(p->directory, on_directory, p);
    return HTH_OK;
}

enum hth_err hth_places_new(struct hth_env *env, struct hth_dht *dht,
                            const struct hth_places_opts *opts, struct hth_places **out)
{
    struct hth_places *p = hth_new(struct hth_places);

    *out = NULL;
    p->env = env;
    p->opts = *opts;
    p->grids = hth_new_array(struct hth_grid, opts->layers);
    memcpy(p->grids, opts->grids, opts->layers * sizeof(*p->grids));
    p->opts.grids = p->grids;
    p->changed = hth_new_array(bool, opts->layers);
    p->look_timer = hth_timer_new(env, look, p);
    p->news_timer = hth_timer_new(env, on_news_timer, p);
    p->leave_timer = hth_timer_new(env, on_leave_timer, p);
    enum hth_err err = opts->want > 0 ? open_directory(p, dht) : HTH_OK;
    if (err != HTH_OK) {
        hth_places_free(p);
        return err;
    }
    *out = p;
    return HTH_OK;
}

void hth_places_free(struct hth_places *places)
{
    struct hth_places *p = places;

    if (p == NULL)
        return;
    hth_claims_free(p->claims);
    hth_timer_free(p->env, p->look_timer);
    hth_timer_free(p->env, p->news_timer);
    hth_timer_free(p->env, p->leave_timer);
    hth_directory_free(p->directory);
    hth_free(p->rivals);
    hth_free(p->list);
    hth_free(p->had);
    hth_free(p->changed);
    hth_free(p->grids);
    hth_free(p);
}
