/* SPDX-License-Identifier: Apache-2.0 */
/* state_look.c: whom a fetcher asks what it has, and which state it settles on. */
#include <stdlib.h>
#include <string.h>

#include "averaging/state_int.h"
#include "core/mem.h"

#define DESCRIBE_US  (10 * HTH_US_PER_S) /* a snapshot has to be made */
#define GRACE_MAX_US (300 * HTH_US_PER_MS)
#define ALONE_US     (2 * HTH_US_PER_S) /* ... when the only answer so far is of a step alone */
#define ASKED_TIMES  4                  /* as many at once, of those wanted, when they are silent */
#define BEHIND_TIMES 4                  /* that one may say so before it is struck off */

static enum hth_err judge(const struct donor *donor)
{
    const struct hth_state_fetch *f = donor->fetch;
    const struct hth_state_desc *d = &donor->desc;
    const struct hth_rpc_target from = {donor->id, donor->addr};

    if (d->schema != f->opts.schema || d->bytes != f->opts.bytes)
        return HTH_E_BAD_SHAPE;
    if (d->step < f->opts.step_min)
        return HTH_E_STALE;
    return f->opts.judge == NULL ? HTH_OK : f->opts.judge(f->opts.arg, &from, d->meta, d->meta_len);
}

/* Its note says that it has one; it was asked, and says that it has nothing of the kind. */
static bool denies(const struct hth_rpc_result *r)
{
    return r->remote && (r->err == HTH_E_NO_SUCH_METHOD || r->err == HTH_E_BAD_SHAPE);
}

static void on_described(void *arg, const struct hth_rpc_result *r)
{
    struct donor *d = arg;
    struct hth_state_fetch *f = d->fetch;
    enum hth_err err = r->err;

    d->describing = NULL;
    hth_state_desc_clear(&d->desc);
    if (err == HTH_OK)
        err = hth_state_desc_open(r->payload, r->payload_len, f->env->crypto, &d->desc);
    if (err == HTH_OK)
        err = judge(d);
    if (err != HTH_OK) {
        hth_fetch_strike(d, hth_err_text(err));
        if (denies(r) && f->roster != NULL)
            hth_roster_doubt(f->roster, &d->id);
        if (r->retry_after_us > 0)
            hth_fetch_spare(d, HTH_MIN(r->retry_after_us, STRUCK_US));
        else if (err == HTH_E_AGAIN || (err == HTH_E_STALE && ++d->behind < BEHIND_TIMES))
            hth_fetch_spare(d, LOOK_US); /* its next one may do */
    } else {
        d->described = true;
        d->lost = false;
        d->behind = 0;
        if (f->first_answer_us == 0)
            f->first_answer_us = hth_now_us(f->env);
        if (f->desc.parts > 0 && hth_fetch_same_root(&d->desc.root, &f->desc.root))
            d->has_root = true;
    }
    hth_fetch_pump(f);
}

static void ask_to_describe(struct donor *d)
{
    struct hth_state_fetch *f = d->fetch;
    const struct hth_rpc_target target = {.peer = d->id, .addr = d->addr};
    const struct hth_state_describe ask = {.schema = f->opts.schema, .step_min = f->opts.step_min};
    uint8_t payload[HTH_STATE_REQUEST_MAX];
    struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_DESCRIBE,
                                     .timeout_us = DESCRIBE_US};
    enum hth_err err;

    call.body.payload_len = hth_state_describe_pack(&ask, payload);
    call.body.payload = payload;
    d->asked_us = hth_now_us(f->env);
    if (f->asked_us == 0)
        f->asked_us = d->asked_us;
    err = hth_rpc_call(f->rpc, &target, &call, on_described, d, &d->describing);
    if (err != HTH_OK)
        hth_fetch_strike(d, hth_err_text(err));
}

static bool has_one(const struct hth_state_fetch *f, const struct hth_roster_peer *p)
{
    return p->note.schema == f->opts.schema && !p->doubted &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0 &&
           p->note.step >= f->opts.step_min;
}

/* It has one and can be asked: it can be dialled, or has dialled us. */
static bool can_give(const struct hth_state_fetch *f, const struct hth_roster_peer *p)
{
    struct hth_rpc_peer_info info;

    return has_one(f, p) &&
           (p->note.addr.family != 0 ||
            (hth_rpc_peer_info(f->rpc, &p->id, &info) == HTH_OK && info.connected));
}

static void tell_of_nobody(struct hth_state_fetch *f)
{
    const struct hth_roster_peer *p;
    uint32_t clients = 0;

    for (uint32_t i = 0; (p = hth_roster_at(f->roster, i)) != NULL; i++)
        clients += has_one(f, p);
    if (clients == 0)
        hth_fetch_tell(f, "no trainer that has one is seen");
    else if (hth_roster_self(f->roster)->addr.family == 0)
        hth_fetch_tell(f,
                       "only clients have it, and this is one, too: one trainer must be reachable");
    else
        hth_fetch_tell(f, "only clients have it: until one of them has dialled this machine");
}

static struct donor *donor_of(const struct hth_state_fetch *f, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < f->donors_count; i++)
        if (hth_peer_id_eq(&f->donors[i]->id, id))
            return f->donors[i];
    return NULL;
}

/* ---- which steps are believed ---------------------------------------------------------------- */

/* Two steps that far apart are near each other. */
static uint64_t near(const struct hth_state_fetch *f, uint64_t step)
{
    return HTH_MAX(step / 64, f->opts.near);
}

/* By its word, or the state that it described since. */
static uint64_t step_of(const struct hth_state_fetch *f, const struct hth_roster_peer *p)
{
    const struct donor *d = donor_of(f, &p->id);

    return d != NULL && d->described ? HTH_MAX(p->note.step, d->desc.step) : p->note.step;
}

static int highest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x < y) - (x > y);
}

/* A quarter of those who have a state has come that far, and two of them: no single word moves it,
 * unless there is no other. */
static uint64_t step_reached(const struct hth_state_fetch *f)
{
    uint64_t *steps = hth_new_array(uint64_t, HTH_AVG_ROSTER_MAX);
    const struct hth_roster_peer *p;
    uint64_t reached = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; n < HTH_AVG_ROSTER_MAX && (p = hth_roster_at(f->roster, i)) != NULL; i++)
        if (has_one(f, p))
            steps[n++] = step_of(f, p);
    qsort(steps, n, sizeof(*steps), highest_first);
    if (n > 0)
        reached = steps[HTH_MIN(HTH_MAX((n + 3) / 4, 2u), n) - 1];
    hth_free(steps);
    return reached;
}

static bool is_alone(const struct hth_state_fetch *f, uint64_t step)
{
    return step > f->reached && step - f->reached > near(f, f->reached);
}

void hth_fetch_list_unshown(struct hth_state_fetch *f)
{
    struct hth_state_peers *out = &f->unshown;
    const struct hth_roster_peer *p;
    uint64_t known = f->desc.step + near(f, f->desc.step);

    if (f->roster == NULL)
        return;
    f->reached = step_reached(f);
    for (uint32_t i = 0; (p = hth_roster_at(f->roster, i)) != NULL; i++) {
        const struct donor *d = donor_of(f, &p->id);
        bool silent = d != NULL && d->claimed > known && !d->described;

        if (out->count < HTH_STATE_DONORS_MAX && has_one(f, p) && p->note.step > known &&
            (silent || is_alone(f, p->note.step)))
            out->id[out->count++] = p->id;
    }
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* In the order in which they are asked: in random order those that are nearly at the step that was
 * reached, so that newcomers do not all come to the same one; when these have been silent for a
 * while, all others: who says a step and can't show it does not keep others from being asked. */
static uint32_t freshest(struct hth_state_fetch *f, const struct hth_roster_peer **out)
{
    uint64_t slack = HTH_MAX(f->reached / 64, UINT64_C(1));
    bool silent = f->asked_us > 0 && hth_now_us(f->env) - f->asked_us >= HEDGE_US;
    const struct hth_roster_peer *p;
    uint32_t n = 0, first, live = 0;

    for (uint32_t i = 0; (p = hth_roster_at(f->roster, i)) != NULL; i++) {
        if (!can_give(f, p))
            continue;
        live++;
        if (p->note.step + slack >= f->reached && !is_alone(f, p->note.step) &&
            n < HTH_AVG_ROSTER_MAX)
            out[n++] = p;
    }
    hth_rng_shuffle(&f->rng, out, n, sizeof(*out));
    first = n;
    for (uint32_t i = 0; silent && (p = hth_roster_at(f->roster, i)) != NULL; i++)
        if (can_give(f, p) && (p->note.step + slack < f->reached || is_alone(f, p->note.step)) &&
            n < HTH_AVG_ROSTER_MAX)
            out[n++] = p;
    hth_rng_shuffle(&f->rng, out + first, n - first, sizeof(*out));
    if (live == 0)
        tell_of_nobody(f);
    return n;
}

/* Those that do not answer soon do not count, up to a bound. */
static bool are_enough_asked(const struct hth_state_fetch *f)
{
    int64_t since_us = hth_now_us(f->env) - HEDGE_US;
    uint32_t asked = 0, soon = 0;

    for (uint32_t i = 0; i < f->donors_count; i++) {
        const struct donor *d = f->donors[i];

        asked += d->described || d->describing != NULL;
        soon += d->described || (d->describing != NULL && d->asked_us > since_us);
    }
    return soon >= f->opts.donors || asked >= ASKED_TIMES * f->opts.donors;
}

/* Those that are struck off and of no more use make room. */
static void forget_struck(struct hth_state_fetch *f)
{
    uint32_t kept = 0;

    if (f->donors_count < HTH_STATE_DONORS_MAX)
        return;
    for (uint32_t i = 0; i < f->donors_count; i++) {
        struct donor *d = f->donors[i];

        if (d->describing != NULL || d->in_flight > 0 || d->described || d->has_root) {
            f->donors[kept++] = d;
            continue;
        }
        hth_state_desc_clear(&d->desc);
        hth_free(d);
    }
    f->donors_count = kept;
}

static bool may_be_asked(const struct donor *d)
{
    return d->describing == NULL && !d->described && !hth_fetch_is_struck(d);
}

static void ask_roster(struct hth_state_fetch *f)
{
    const struct hth_roster_peer **peers =
        hth_new_array(const struct hth_roster_peer *, HTH_AVG_ROSTER_MAX);
    uint32_t n;

    f->reached = step_reached(f);
    n = freshest(f, peers);
    forget_struck(f);
    for (uint32_t i = 0; i < n && !are_enough_asked(f); i++) {
        struct donor *d = hth_fetch_donor(f, &peers[i]->id, &peers[i]->note.addr);

        if (d == NULL || !may_be_asked(d))
            continue;
        d->addr = peers[i]->note.addr;
        d->claimed = peers[i]->note.step;
        ask_to_describe(d);
    }
    hth_free(peers);
}

void hth_fetch_ask_around(struct hth_state_fetch *f)
{
    if (f->roster != NULL) {
        ask_roster(f);
        return;
    }
    for (uint32_t i = 0; i < f->donors_count && !are_enough_asked(f); i++)
        if (may_be_asked(f->donors[i]))
            ask_to_describe(f->donors[i]);
}

/* How many of the described donors have this root. */
static uint32_t votes(const struct hth_state_fetch *f, const struct hth_hash *root)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->donors_count; i++)
        n += f->donors[i]->described && hth_fetch_same_root(&f->donors[i]->desc.root, root);
    return n;
}

static bool is_better(const struct hth_state_fetch *f, const struct hth_state_desc *a,
                      const struct hth_state_desc *b)
{
    bool a_now = f->desc.parts > 0 && hth_fetch_same_root(&a->root, &f->desc.root);
    bool b_now = f->desc.parts > 0 && hth_fetch_same_root(&b->root, &f->desc.root);

    if (is_alone(f, a->step) != is_alone(f, b->step))
        return is_alone(f, b->step);
    if (a_now != b_now) /* what was begun is finished */
        return a_now;
    if (a->step != b->step)
        return a->step > b->step;
    if (votes(f, &a->root) != votes(f, &b->root))
        return votes(f, &a->root) > votes(f, &b->root);
    return memcmp(&a->root, &b->root, sizeof(a->root)) > 0;
}

static enum hth_err begin(struct hth_state_fetch *f, const struct hth_state_desc *d)
{
    struct hth_blob *values = NULL;

    if (hth_fault(f->env, "averaging.state"))
        return HTH_E_NO_MEMORY;
    HTH_TRY(hth_env_blob_new(f->env, d->bytes, f->opts.budget, &values));
    hth_fetch_cancel_asks(f, NULL);
    hth_state_desc_clear(&f->desc);
    hth_blob_unref(f->values);
    hth_free(f->state);
    f->values = values;
    f->desc = *d;
    f->desc.hashes = hth_new_array(struct hth_hash, d->parts);
    memcpy(f->desc.hashes, d->hashes, d->parts * sizeof(*d->hashes));
    f->state = hth_calloc(d->parts, 1);
    f->done = 0;
    f->result.donors = 0;
    for (uint32_t i = 0; i < f->donors_count; i++)
        f->donors[i]->gave = f->donors[i]->has_root = false;
    return HTH_OK;
}

/* Who announces the root that is being fetched gives parts of it, too. */
void hth_fetch_use_ad(struct hth_state_fetch *f, const struct ad *ad)
{
    struct donor *d;

    if (!f->fetching || !hth_fetch_same_root(&ad->said.root, &f->desc.root))
        return;
    d = hth_fetch_donor(f, &ad->id, &ad->said.addr);
    if (d != NULL && !hth_fetch_is_struck(d))
        d->has_root = true;
}

/* Settles on a root, once nobody who was asked may still say something better. */
void hth_fetch_settle(struct hth_state_fetch *f)
{
    struct donor *best = NULL;
    int64_t grace_us = HTH_MAX(f->first_answer_us - f->asked_us, GRACE_MIN_US);
    bool waiting = false;
    enum hth_err err = HTH_OK;

    for (uint32_t i = 0; i < f->donors_count; i++) {
        struct donor *d = f->donors[i];

        waiting = waiting || d->describing != NULL;
        if (d->described && (best == NULL || is_better(f, &d->desc, &best->desc)))
            best = d;
    }
    if (best == NULL)
        return;
    grace_us = is_alone(f, best->desc.step) ? ALONE_US : HTH_MIN(grace_us, GRACE_MAX_US);
    if (waiting && hth_now_us(f->env) < f->first_answer_us + grace_us)
        return;
    if (f->desc.parts == 0 || !hth_fetch_same_root(&f->desc.root, &best->desc.root))
        err = f->checks > 0 ? HTH_E_AGAIN : begin(f, &best->desc);
    if (err != HTH_OK) {
        if (err != HTH_E_AGAIN)
            hth_fetch_tell(f, "no room for %llu bytes: %s", (unsigned long long)best->desc.bytes,
                           hth_err_text(err));
        return;
    }
    for (uint32_t i = 0; i < f->donors_count; i++)
        f->donors[i]->has_root =
            f->donors[i]->described && hth_fetch_same_root(&f->donors[i]->desc.root, &f->desc.root);
    f->fetching = true;
    for (const struct ad *ad = f->ads; ad != NULL; ad = ad->next)
        hth_fetch_use_ad(f, ad);
    hth_fetch_tell(f, "fetching step %llu, %u parts of %llu KiB, from %u peers",
                   (unsigned long long)f->desc.step, f->desc.parts,
                   (unsigned long long)(f->desc.part_bytes >> 10), hth_fetch_donors_alive(f));
}
