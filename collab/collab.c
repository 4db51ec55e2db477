/* SPDX-License-Identifier: Apache-2.0 */
/* collab.c: a collaboration's life, other heads, and what is asked of the trainer. */
#include "collab/collab_int.h"
#include "core/blob.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define POLL_US      (200 * HTH_US_PER_MS)
#define TOLD_US      (10 * HTH_US_PER_S) /* between two lines about what it waits for */
#define LINKS_MAX    1280
#define WINDOW_LINKS 16 /* whose rolls say who votes */

/* ---- the trainer -------------------------------------------------------------------------- */

static uint64_t samples_of(const struct hth_chain_link *link)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < link->count; i++)
        sum += link->roll[i].samples;
    return sum;
}

/* Whether the trainer's state stays as it is. */
static bool is_still(const struct hth_collab *c)
{
    return !c->steps && !c->adopts;
}

void collab_step(struct hth_collab *c, uint32_t link, struct hth_blob *mean)
{
    const struct hth_chain_link *at = hth_chain_at(c->chain, link);
    c->steps = true;
    c->to = link;
    c->ops.step(c->arg, mean, samples_of(at), at);
}

/* One copy may be for both. */
static void want_copy(struct hth_collab *c, bool *wants)
{
    bool asks = !c->wants_own && !c->wants_copy;
    *wants = true;
    if (asks)
        c->ops.copy(c->arg);
}

static bool calls(const struct hth_collab *c)
{
    struct hth_ballot now = hth_choice_now(hth_roll_choice(c->roll));
    return now.base != HTH_LINK_NONE && c->opts.addr.family != 0 &&
           hth_choice_caller(c->chain, &now) == hth_roll_choice(c->roll)->me;
}

/* That it looks for others; or, as a caller, its head. */
static void say_head(struct hth_collab *c)
{
    struct hth_head_note note = {.samples = c->opts.samples, .addr = c->opts.addr};
    uint32_t tip = hth_roll_choice(c->roll)->tip;
    c->calls = calls(c);
    if (tip != HTH_LINK_NONE) {
        note.head = *hth_chain_head(c->chain, tip);
        note.step = hth_chain_at(c->chain, tip)->step;
        note.samples = hth_chain_samples(c->chain, tip);
    }
    bool says = !c->frozen && (c->calls || (tip == HTH_LINK_NONE && c->started));
    hth_heads_say(c->heads, says ? &note : NULL);
}

void collab_holds(struct hth_collab *c, uint32_t link)
{
    c->held = link;
    c->own = HTH_LINK_NONE;
    c->founds = false;
    c->alone_us = hth_now_us(c->env);
    c->stats.step = hth_chain_at(c->chain, link)->step;
    c->stats.head = *hth_chain_head(c->chain, link);
    c->stats.members = hth_chain_at(c->chain, link)->count;
    say_head(c);
    c->ops.more(c->arg);
}

/* A step that is under way ends first: the way begins at its link. */
static void go_to_head(struct hth_collab *c)
{
    bool has = hth_roll_choice(c->roll)->tip != HTH_LINK_NONE; /* else its head was left behind */
    uint32_t held = has ? c->held : c->own;
    if (c->goal == HTH_LINK_NONE || c->steps)
        return;
    if (held != HTH_LINK_NONE && !hth_chain_has(c->chain, held))
        held = HTH_LINK_NONE;
    c->stats.joined += has && hth_chain_better(c->chain, c->goal, held) &&
                       hth_chain_base(c->chain, c->goal) != held;
    hth_arrive_go(c->arrive, held, c->goal, &c->holders);
    c->goal = HTH_LINK_NONE;
}

void hth_collab_stepped(struct hth_collab *c)
{
    HTH_ASSERT(c->steps);
    c->steps = false;
    hth_timer_set(c->env, c->timer, 0);
    collab_holds(c, c->to);
    hth_arrive_stepped(c->arrive);
    go_to_head(c);
}

void hth_collab_adopted(struct hth_collab *c, enum hth_err err)
{
    HTH_ASSERT(c->adopts);
    c->adopts = false;
    hth_timer_set(c->env, c->timer, 0);
    if (err == HTH_OK)
        collab_holds(c, c->to);
    for (uint32_t i = 0; i < c->donors.count && hth_err_class(err) == HTH_CLASS_PEER; i++) {
        hth_roll_doubt(c->roll, &c->donors.id[i], err, "a state that can't be used");
        hth_heads_doubt(c->heads, &c->donors.id[i], HTH_ROLL_DOUBT_US);
    }
    hth_arrive_adopted(c->arrive, err);
}

/* ---- the way to another head -------------------------------------------------------------- */

/* Members that were given a snapshot find the means since. */
void collab_keep(struct hth_collab *c, uint32_t link, struct hth_blob *mean,
                 struct hth_blob *hashes)
{
    hth_state_donor_keep(c->donor, hth_chain_head(c->chain, link),
                         hth_chain_at(c->chain, link)->step, mean, hashes);
}

static void on_arrive_step(void *arg, uint32_t link, struct hth_blob *mean, struct hth_blob *hashes)
{
    struct hth_collab *c = arg;
    c->stats.means++;
    collab_keep(c, link, mean, hashes);
    collab_step(c, link, mean);
}

static void on_arrive_adopt(void *arg, uint32_t link, const struct hth_state_result *state)
{
    struct hth_collab *c = arg;
    c->stats.states++;
    c->to = link;
    c->donors = state->said_by;
    c->adopts = true;
    c->ops.adopt(c->arg, state, state->meta + HTH_COLLAB_META_BYTES,
                 state->meta_len - HTH_COLLAB_META_BYTES);
}

/* Peers that claim a head and give nothing of it keep nobody from beginning: if it is a run's, its
 * chain has more samples, and is gone over to later. */
static void doubt_holders(struct hth_collab *c)
{
    bool none = c->goal == HTH_LINK_NONE && c->held == HTH_LINK_NONE;
    for (uint32_t i = 0; i < c->holders.count && none; i++)
        hth_heads_doubt(c->heads, &c->holders.peer[i].peer, 0);
}

static void on_arrive_done(void *arg, enum hth_err err, uint32_t held)
{
    struct hth_collab *c = arg;
    if (err != HTH_OK) {
        HTH_LOG(c->env, HTH_INFO, HTH_SUB_AVG, "the others' head can't be fetched: %s",
                hth_err_text(err));
        doubt_holders(c);
    }
    if (held == c->own) /* it came nowhere: the genesis that it began at is no chain yet */
        held = HTH_LINK_NONE;
    hth_roll_fetched(c->roll, held);
    if (held != HTH_LINK_NONE && c->held != held)
        collab_holds(c, held); /* alike: nothing was moved */
    say_head(c);
}

static void on_arrive_unknown(void *arg, const struct hth_hash *head,
                              const struct hth_rpc_target *holder)
{
    const struct hth_roll_peer peer = {.id = holder->peer, .addr = holder->addr};
    hth_roll_hear(((struct hth_collab *)arg)->roll, head, &peer);
}

static void on_fetch(void *arg, const struct hth_hash *head, const struct hth_holders *holders)
{
    struct hth_collab *c = arg;
    c->goal = hth_chain_find(c->chain, head);
    c->holders = *holders;
    go_to_head(c);
}

/* ---- states for others -------------------------------------------------------------------- */

static void on_state_want(void *arg)
{
    struct hth_collab *c = arg;
    if (c->held == HTH_LINK_NONE)
        hth_state_donor_decline(c->donor);
    else
        want_copy(c, &c->wants_copy);
}

static uint64_t state_step(void *arg)
{
    return ((const struct hth_collab *)arg)->stats.step;
}

static enum hth_err give(struct hth_collab *c, struct hth_blob *values, const void *meta,
                         size_t meta_len)
{
    uint8_t bytes[HTH_STATE_META_MAX];
    if (meta_len > sizeof(bytes) - HTH_COLLAB_META_BYTES)
        return HTH_E_TOO_LARGE;
    memcpy(bytes, &c->stats.head, HTH_COLLAB_META_BYTES);
    memcpy(bytes + HTH_COLLAB_META_BYTES, meta, meta_len);
    return hth_state_donor_give(c->donor, c->stats.step, bytes, HTH_COLLAB_META_BYTES + meta_len,
                                values);
}

/* ---- the start ---------------------------------------------------------------------------- */

static void found(struct hth_collab *c)
{
    HTH_LOG(c->env, HTH_INFO, HTH_SUB_AVG, "begins a chain of steps at step %llu",
            (unsigned long long)c->opts.step);
    hth_roll_hold(c->roll, c->own);
    collab_holds(c, c->own);
}

/* Whether it is where nobody calls, still, and has nothing to do there. */
static bool may_part(const struct hth_collab *c)
{
    const struct hth_choice *choice = hth_roll_choice(c->roll);
    return c->founds && choice->tip == c->held && choice->phase != HTH_CHOICE_ROUND && is_still(c);
}

/* Makes the genesis of the state that it started with: to found a chain, or because another one
 * that began from the same seed needs no state to be moved (arrive.h). */
static void on_first_digest(struct hth_collab *c, enum hth_err err, struct hth_blob *hashes,
                            const struct hth_hash *digest)
{
    uint32_t samples = (uint32_t)HTH_MIN(c->opts.samples, (uint64_t)UINT32_MAX);
    (void)hashes;
    bool client = c->opts.addr.family == 0;
    struct hth_roll self = {.marks = HTH_ROLL_IN | (client ? HTH_ROLL_CLIENT : 0),
                            .samples = samples};
    struct hth_chain_link link = {.step = c->opts.step,
                                  .prev = HTH_LINK_NONE,
                                  .protocol = HTH_ROLL_PROTOCOL,
                                  .kind = HTH_LINK_GENESIS,
                                  .roll = &self,
                                  .count = 1};
    uint32_t genesis = HTH_LINK_NONE;
    if (c->held != HTH_LINK_NONE && !may_part(c)) {
        c->founds = false;
        return; /* it has another state by now, or will */
    }
    if (err == HTH_OK)
        link.mean = *digest;
    if (err == HTH_OK)
        err = hth_chain_member(c->chain, &c->env->self, c->opts.life, &self.member);
    if (err == HTH_OK)
        err = hth_chain_add(c->chain, &link, &genesis);
    if (err != HTH_OK) {
        HTH_LOG(c->env, HTH_ERROR, HTH_SUB_AVG, "no chain of steps can be begun: %s",
                hth_err_text(err));
        c->founds = false; /* is tried again */
        return;
    }
    if (c->held != HTH_LINK_NONE) {
        c->held = HTH_LINK_NONE;
        hth_roll_lose(c->roll);
    }
    c->own = genesis;
    if (c->founds)
        found(c);
}

void hth_collab_copied(struct hth_collab *c, enum hth_err err, struct hth_blob *values,
                       const void *meta, size_t meta_len)
{
    bool own = c->wants_own && !c->frozen, gives = c->wants_copy;
    c->wants_own = c->wants_copy = false;
    if (own && err == HTH_OK)
        collab_hash(c, values, on_first_digest);
    else if (own)
        on_first_digest(c, err, NULL, NULL);
    if (gives && err == HTH_OK)
        err = give(c, values, meta, meta_len);
    if (gives && err != HTH_OK)
        hth_state_donor_decline(c->donor);
}

static bool is_looking(const struct hth_collab *c)
{
    return c->started && !c->founds && c->held == HTH_LINK_NONE;
}

static void begin(struct hth_collab *c)
{
    c->founds = true;
    if (c->own != HTH_LINK_NONE && hth_chain_has(c->chain, c->own))
        found(c);
    else if (!c->wants_own && c->digest == NULL)
        want_copy(c, &c->wants_own);
}

/* ---- the end ------------------------------------------------------------------------------ */

bool collab_all_leave(const struct hth_collab *c, uint32_t link)
{
    const struct hth_chain_link *at = hth_chain_at(c->chain, link);
    bool all = c->left != NULL;
    for (uint32_t i = 0; i < at->count; i++)
        all &= !(at->roll[i].marks & HTH_ROLL_IN) || at->roll[i].marks & HTH_ROLL_LEFT;
    return all;
}

/* Nobody waits for its values, or it has waited long enough for that. */
static bool may_leave(const struct hth_collab *c)
{
    return c->held == HTH_LINK_NONE || c->stats.members <= 1 || hth_roll_has_left(c->roll) ||
           collab_all_leave(c, c->held) || hth_now_us(c->env) - c->leave_us >= HTH_COLLAB_LEAVE_US;
}

static void freeze(struct hth_collab *c)
{
    c->frozen = true;
    collab_drop_round(c);
    hth_arrive_free(c->arrive);
    c->arrive = NULL;
    hth_roll_freeze(c->roll, c->held);
    say_head(c);
}

static void look_whether_left(struct hth_collab *c)
{
    hth_fn *left = c->left;
    if (left == NULL || !may_leave(c) || !is_still(c))
        return;
    freeze(c);
    c->left = NULL;
    left(c->left_arg);
}

enum hth_err hth_collab_save(const struct hth_collab *c, uint64_t step, struct hth_blob **out)
{
    struct hth_collab_file file = {.life = c->opts.life};
    *out = NULL;
    if (!c->frozen || c->held == HTH_LINK_NONE || c->held != hth_roll_choice(c->roll)->tip ||
        hth_chain_at(c->chain, c->held)->step != step)
        return HTH_E_NOT_FOUND;
    file.vote = hth_choice_vote(hth_roll_choice(c->roll));
    const struct hth_chain_link *tip = hth_chain_at(c->chain, c->held);
    for (; file.peers < HTH_MIN(tip->count, HTH_ROLL_LINE_MAX); file.peers++) {
        uint16_t member = tip->roll[file.peers].member;
        file.peer[file.peers] = (struct hth_roll_peer){.id = *hth_chain_id(c->chain, member),
                                                       .addr = hth_roll_addr(c->roll, member)};
    }
    return hth_collab_file_write(c->chain, &file, out);
}

/* ---- the timer ---------------------------------------------------------------------------- */

/* Where all that could call are gone, nobody goes on with their chain: clients vote and can't call,
 * and members without a vote neither. One that is dialled begins another one with its state, which
 * has to be better than theirs up to its base (hth_chain_better), so that they come. */
static void begin_anew(struct hth_collab *c)
{
    bool ties = hth_chain_base(c->chain, c->held) == c->held;
    c->alone_us = hth_now_us(c->env);
    c->opts.step = c->stats.step;
    c->opts.samples = hth_chain_samples(c->chain, c->held) + ties;
    c->own = HTH_LINK_NONE;
    begin(c);
}

/* Whether people are told, now and then, why it does not get on. */
static bool tells(struct hth_collab *c)
{
    int64_t now = hth_now_us(c->env);
    bool due = now - c->told_us >= TOLD_US;
    c->told_us = due ? now : c->told_us;
    return due;
}

static void look_at_quorum(struct hth_collab *c)
{
    uint32_t heard = 0, voters = 0;
    bool holds = c->held != HTH_LINK_NONE, callers = true;
    int64_t now = hth_now_us(c->env);
    if (holds &&
        (hth_arrive_is_going(c->arrive) || hth_roll_hears(c->roll, &heard, &voters, &callers)))
        c->alone_us = now;
    if (now - c->alone_us < TOLD_US)
        return;
    if (c->opts.eventual && !callers && c->opts.addr.family != 0 && is_still(c) &&
        hth_roll_choice(c->roll)->phase != HTH_CHOICE_ROUND)
        begin_anew(c);
    else if (!c->opts.eventual && holds && tells(c))
        HTH_LOG(c->env, HTH_WARN, HTH_SUB_AVG,
                "step %llu waits for a quorum: hears %u of %u voters (averaging.majority: strict)",
                (unsigned long long)c->stats.step + 1, heard, voters);
    else if (!c->opts.eventual && c->opts.step > 0 && is_looking(c) && tells(c))
        HTH_LOG(c->env, HTH_WARN, HTH_SUB_AVG,
                "waits for others to go on from step %llu with; --bootstrap begins without them "
                "(averaging.majority: strict)",
                (unsigned long long)c->opts.step);
}

/* Its own genesis apart. */
static bool knows_nobody(const struct hth_collab *c)
{
    return hth_chain_count(c->chain) == (c->own != HTH_LINK_NONE);
}

/* In a strict run only those that have taken no step begin a chain by themselves: others can't know
 * whether the run goes on elsewhere. */
static bool may_begin(const struct hth_collab *c)
{
    int64_t now = hth_now_us(c->env);
    if (c->opts.bootstrap)
        return is_looking(c) && !c->wants_own;
    return is_looking(c) && now - c->alone_us >= c->opts.look_us && now >= c->yields_us &&
           hth_heads_others(c->heads, false) == 0 && !hth_arrive_is_going(c->arrive) &&
           (c->opts.eventual || (c->opts.step == 0 && knows_nobody(c)));
}

static void fail(struct hth_collab *c)
{
    if (!c->failed && !c->opts.strangers && c->ops.fail != NULL)
        c->ops.fail(c->arg, HTH_E_VERSION);
    c->failed = true;
}

/* The others have gone on to a protocol that is not spoken here: says so, and ends. */
static void look_at_protocol(struct hth_collab *c)
{
    int64_t since_us;
    uint32_t protocol = hth_roll_unspoken(c->roll, &since_us);
    if (protocol == 0)
        return;
    if (tells(c))
        HTH_LOG(c->env, HTH_ERROR, HTH_SUB_AVG,
                "the run's trainers speak protocol %u, which this program does not: it can't take "
                "part; run their version of hearth",
                protocol);
    if (hth_now_us(c->env) - since_us >= HTH_ROLL_DOUBT_US)
        fail(c); /* a liar's head ends nobody who takes steps */
}

/* Nobody is there with whom it could go on. One that is new, and the only one that looks, does not
 * begin a second run beside trainers of another version. Where several look, or strangers take
 * part, one peer that claims to be of another version keeps none of them from beginning. */
static void begin_alone(struct hth_collab *c)
{
    bool beside = c->unread && c->opts.step == 0 && hth_heads_others(c->heads, true) == 0;
    if (beside && !c->opts.strangers) {
        fail(c);
    } else if (c->ops.may_begin == NULL || c->ops.may_begin(c->arg)) {
        if (beside)
            HTH_LOG(c->env, HTH_WARN, HTH_SUB_AVG,
                    "a trainer's steps can't be read here: it is of another version of hearth, or "
                    "says so; begins without it");
        begin(c);
    }
}

/* Asks one of those after the other who say that they hold a head: not all of them do. */
static void ask_another(struct hth_collab *c)
{
    struct hth_roll_peer holder;
    if (is_looking(c) && hth_heads_next(c->heads, &holder))
        hth_roll_greet(c->roll, &holder);
}

static void on_no_head(void *arg, const struct hth_peer_id *peer, enum hth_err err)
{
    struct hth_collab *c = arg;
    c->unread |= err == HTH_E_VERSION;
    hth_heads_doubt(c->heads, peer, 0);
}

static void on_timer(void *arg)
{
    struct hth_collab *c = arg;
    look_whether_left(c);
    if (c->frozen)
        return;
    hth_timer_set(c->env, c->timer, POLL_US);
    look_at_quorum(c);
    look_at_protocol(c);
    ask_another(c);
    if (may_begin(c))
        begin_alone(c);
    if (calls(c) != c->calls)
        say_head(c);
}

/* Of several that look the one with the most samples begins; then one that others can dial, because
 * nobody else calls; then the one with the smallest id. */
static bool begins_before_us(const struct hth_collab *c, const struct hth_head_note *note,
                             const struct hth_peer_id *by)
{
    bool is_client = note->addr.family == 0, are_client = c->opts.addr.family == 0;
    if (note->samples != c->opts.samples)
        return note->samples > c->opts.samples;
    if (is_client != are_client)
        return are_client;
    return hth_peer_id_cmp(by, &c->env->self) < 0;
}

/* It is waited for once. */
static void yield(struct hth_collab *c, const struct hth_head_note *note,
                  const struct hth_peer_id *by)
{
    if (begins_before_us(c, note, by) && c->yields_us == 0)
        c->yields_us = hth_now_us(c->env) + 2 * c->opts.look_us;
}

/* A trainer with more samples than the others have begins a chain: of the two, that one stays. A
 * client tells those who look of its chain, as no record may lead there. */
static void on_head(void *arg, const struct hth_head_note *note, const struct hth_peer_id *by)
{
    struct hth_collab *c = arg;
    const struct hth_roll_peer holder = {.id = *by, .addr = note->addr};
    if (hth_head_is_none(&note->head)) {
        yield(c, note, by);
        if (holder.addr.family != 0 && c->opts.addr.family == 0 && c->held != HTH_LINK_NONE)
            hth_roll_greet(c->roll, &holder);
        return;
    }
    hth_roll_meet(c->roll, &holder);
    hth_rpc_lives(c->rpc, by); /* after a cut it may have failed for long */
    if (is_looking(c) && c->opts.eventual && c->opts.samples > note->samples) {
        begin(c);
        return;
    }
    if (c->started)
        hth_roll_hear(c->roll, &note->head, &holder);
}

/* ---- hashes ------------------------------------------------------------------------------- */

static void digest_run(struct hth_job *job)
{
    struct collab_digest *d = HTH_CONTAINER(job, struct collab_digest, job);
    d->hashes = hth_mean_hashes(d->crypto, d->values);
}

static void digest_done(struct hth_job *job, enum hth_err err)
{
    struct collab_digest *d = HTH_CONTAINER(job, struct collab_digest, job);
    struct hth_collab *c = d->collab;
    struct hth_hash digest = {{0}};
    if (err == HTH_OK && d->hashes == NULL) /* no job has run: they are zero, as the digest */
        d->hashes = hth_mean_hashes(d->crypto, d->values);
    else if (err == HTH_OK)
        d->crypto->hash(d->hashes->data, d->hashes->size, &digest);
    hth_blob_unref(d->values);
    if (c != NULL) {
        c->digest = NULL;
        d->done(c, err, d->hashes, &digest);
    }
    hth_blob_unref(d->hashes);
    hth_free(d);
}

void collab_hash(struct hth_collab *c, struct hth_blob *values, collab_hashed_fn *done)
{
    struct collab_digest *d = hth_new(struct collab_digest);
    if (c->digest != NULL) { /* of a genesis: a round has begun meanwhile */
        c->digest->collab = NULL;
        c->founds = false;
    }
    d->collab = c;
    d->crypto = c->env->crypto;
    d->values = hth_blob_ref(values);
    d->done = done;
    d->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                              .run = digest_run,
                              .done = digest_done,
                              .bytes_moved = (double)values->size};
    c->digest = d;
    enum hth_err err = hth_job_submit(c->env, &d->job);
    if (err != HTH_OK)
        digest_done(&d->job, err);
}

/* ---- what the trainer brings -------------------------------------------------------------- */

bool hth_collab_may_launch(const struct hth_collab *c, const struct hth_brings *brings)
{
    /* One micro-batch at least, so that it can bring its vote. */
    uint32_t quota = HTH_MAX(hth_roll_quota(c->roll), brings->grain);
    return c->held != HTH_LINK_NONE && is_still(c) && !c->frozen &&
           hth_roll_choice(c->roll)->phase != HTH_CHOICE_ROUND &&
           (uint64_t)brings->samples + brings->air + brings->grain <= quota;
}

void hth_collab_brings(struct hth_collab *c, const struct hth_brings *brings)
{
    hth_roll_bring(c->roll, brings);
}

static void on_more(void *arg)
{
    struct hth_collab *c = arg;
    c->ops.more(c->arg);
}

/* ---- life --------------------------------------------------------------------------------- */

static struct hth_hash run_of(struct hth_env *env, const struct hth_collab_opts *o)
{
    uint8_t bytes[HTH_NAME_LEN_MAX + 8] = {0};
    struct hth_hash run;
    size_t len = strlen(o->network);
    HTH_ASSERT(len <= HTH_NAME_LEN_MAX);
    hth_store_u64le(bytes, o->schema);
    memcpy(bytes + 8, o->network, len);
    env->crypto->hash(bytes, 8 + len, &run);
    return run;
}

/* Goes on as the member whose process ended, if its file fits; else as a new one. */
static void read_frozen(struct hth_collab *c, struct hth_collab_file *file)
{
    const struct hth_blob *bytes = c->opts.frozen;
    enum hth_err err = hth_collab_file_read(c->chain, bytes->data, bytes->size, c->opts.step, file);
    if (err == HTH_OK) {
        c->opts.life = file->life;
        c->vote = file->vote;
        return;
    }
    HTH_LOG(c->env, HTH_WARN, HTH_SUB_AVG,
            "the vote beside the checkpoint of step %llu can't be used: %s; this trainer joins its "
            "run anew, without a vote",
            (unsigned long long)c->opts.step, hth_err_text(err));
    file->peers = 0;
}

static enum hth_err make(struct hth_collab *c)
{
    static const struct hth_roll_ops roll_ops = {.average = collab_on_average,
                                                 .fetch = on_fetch,
                                                 .tip = collab_on_tip,
                                                 .more = on_more,
                                                 .no_head = on_no_head};
    static const struct hth_arrive_ops arrive_ops = {.step = on_arrive_step,
                                                     .adopt = on_arrive_adopt,
                                                     .unknown = on_arrive_unknown,
                                                     .done = on_arrive_done};
    const struct hth_collab_opts *o = &c->opts;
    struct hth_roll_opts roll = HTH_ROLL_OPTS_INIT;
    struct hth_collab_file file = {.peers = 0};
    const struct hth_state_donor_opts donor = {.schema = o->schema,
                                               .budget = o->budget,
                                               .want = on_state_want,
                                               .step = state_step,
                                               .arg = c};

    if (o->frozen != NULL)
        read_frozen(c, &file);
    c->opts.frozen = NULL;
    roll.addr = o->addr;
    roll.life = o->life;
    roll.target = o->target;
    roll.up_kbit = (uint32_t)HTH_MIN(o->bandwidth / 1e3, (double)UINT32_MAX);
    HTH_TRY(hth_roll_new(c->env, c->rpc, c->chain, &roll, &roll_ops, c, &c->roll));
    for (uint32_t i = 0; i < file.peers; i++)
        if (!hth_peer_id_eq(&file.peer[i].id, &c->env->self))
            hth_roll_meet(c->roll, &file.peer[i]);
    HTH_TRY(hth_heads_new(c->env, o->dht, o->network, o->schema, on_head, c, &c->heads));
    HTH_TRY(hth_state_donor_new(c->env, c->rpc, &donor, &c->donor));
    hth_rpc_serve(c->rpc, HTH_ROW_METHOD, collab_on_row, c);
    c->arrive = hth_arrive_new(c->env, c->rpc, c->chain, o, &arrive_ops, c);
    return HTH_OK;
}

enum hth_err hth_collab_new(struct hth_env *env, struct hth_rpc *rpc,
                            const struct hth_collab_opts *opts, const struct hth_collab_ops *ops,
                            void *arg, struct hth_collab **out)
{
    *out = NULL;
    if (opts->count == 0 || opts->target == 0 || opts->state_bytes > HTH_STATE_BYTES_MAX ||
        !(opts->bandwidth >= 0))
        return HTH_E_CONFIG;
    struct hth_collab *c = hth_new(struct hth_collab);
    *c = (struct hth_collab){.env = env,
                             .rpc = rpc,
                             .opts = *opts,
                             .ops = *ops,
                             .arg = arg,
                             .held = HTH_LINK_NONE,
                             .goal = HTH_LINK_NONE,
                             .own = HTH_LINK_NONE,
                             .vote = {.tip = HTH_LINK_NONE}};
    const struct hth_chain_opts chain = {.crypto = env->crypto,
                                         .run = run_of(env, opts),
                                         .window = WINDOW_LINKS,
                                         .eventual = opts->eventual,
                                         .links_max = LINKS_MAX,
                                         .members_max = HTH_MEMBERS_MAX};
    c->chain = hth_chain_new(&chain);
    c->timer = hth_timer_new(env, on_timer, c);
    enum hth_err err = make(c);
    if (err != HTH_OK) {
        hth_collab_free(c);
        return err;
    }
    *out = c;
    return HTH_OK;
}

void hth_collab_free(struct hth_collab *c)
{
    if (c == NULL)
        return;
    hth_rpc_serve(c->rpc, HTH_ROW_METHOD, NULL, NULL);
    collab_drop_round(c);
    if (c->digest != NULL)
        c->digest->collab = NULL;
    hth_arrive_free(c->arrive);
    hth_state_donor_free(c->donor);
    hth_heads_free(c->heads);
    hth_roll_free(c->roll);
    hth_chain_free(c->chain);
    hth_timer_free(c->env, c->timer);
    hth_free(c);
}

void hth_collab_start(struct hth_collab *c)
{
    c->started = true;
    c->alone_us = hth_now_us(c->env);
    if (c->vote.tip != HTH_LINK_NONE) {
        hth_roll_resume(c->roll, &c->vote);
        collab_holds(c, c->vote.tip);
    } else if (c->opts.bootstrap) {
        begin(c);
    } else {
        say_head(c);
        want_copy(c, &c->wants_own);
    }
    hth_timer_set(c->env, c->timer, POLL_US);
}

void hth_collab_leave(struct hth_collab *c, hth_fn *done, void *arg)
{
    c->leave_us = hth_now_us(c->env);
    c->left = done;
    c->left_arg = arg;
    hth_roll_leave(c->roll);
    hth_timer_set(c->env, c->timer, 0);
}

void hth_collab_peer_lost(struct hth_collab *c, const struct hth_peer_id *peer)
{
    hth_roll_peer_lost(c->roll, peer);
    collab_round_peer_lost(c, peer);
}

static enum hth_collab_phase phase_of(const struct hth_collab *c)
{
    if (!is_still(c))
        return HTH_COLLAB_STEPS;
    if (hth_roll_choice(c->roll)->phase == HTH_CHOICE_ROUND)
        return HTH_COLLAB_AVERAGES;
    if (c->held != HTH_LINK_NONE)
        return HTH_COLLAB_GATHERS;
    bool looks = knows_nobody(c) && hth_heads_others(c->heads, false) == 0;
    return looks ? HTH_COLLAB_LOOKS : HTH_COLLAB_FETCHES;
}

void hth_collab_stats(const struct hth_collab *c, struct hth_collab_stats *out)
{
    struct hth_state_donor_stats given;
    *out = c->stats;
    out->phase = phase_of(c);
    hth_state_donor_stats(c->donor, &given);
    out->given_bytes = given.bytes;
    out->fetch = (struct hth_state_progress){.news = ""};
    if (c->arrive != NULL)
        hth_arrive_progress(c->arrive, &out->fetch);
}

const struct hth_choice *hth_collab_choice(const struct hth_collab *c)
{
    return hth_roll_choice(c->roll);
}
