/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handing out a state in the simulator: from several donors, while some of them die, freeze, lie or
 * go on to another step; and what the messages may say.
 */
#include "averaging/handout.h"
#include "support/suite.h"

TEST(parts_come_from_several)
{
    struct handout f;
    struct hth_state_fetch_opts o;
    struct hth_state_donor_stats s;
    uint64_t parts = 0;

    setup_world(&f, 1, false);
    for (int i = 0; i < 4; i++)
        add(&f, 12, 5, false);
    o = fetch_opts(&f);
    start(&f, &o);
    finish(&f, 10 * S);
    check_values(&f, &f.peer[0]);
    assert_int_equal(f.result.said_by.count, 4);
    assert_int_equal(f.result.bytes, BYTES);
    for (int i = 0; i < 4; i++) {
        hth_state_donor_stats(f.peer[i].donor, &s);
        assert_true(s.parts >= 5);
        assert_int_equal(s.snapshots, 1);
        parts += s.parts;
    }
    assert_int_equal(parts, 76);
    tear_down(&f);
}

/* The root that more have, and only from them; the highest step. */
TEST(most_donors_then_the_highest_step_win)
{
    static const struct {
        uint64_t step[3];
        uint32_t seed[3], taken, donors;
    } cases[] = {{{9, 11, 10}, {5, 5, 5}, 1, 1}, {{12, 12, 12}, {5, 6, 6}, 1, 2}};

    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        struct handout f;
        struct hth_state_fetch_opts o;

        setup_world(&f, 2, false);
        for (int i = 0; i < 3; i++)
            add(&f, cases[c].step[i], cases[c].seed[i], false);
        o = fetch_opts(&f);
        start(&f, &o);
        finish(&f, 10 * S);
        check_values(&f, &f.peer[cases[c].taken]);
        assert_int_equal(f.result.said_by.count, cases[c].donors);
        tear_down(&f);
    }
}

static uint64_t least;
static enum hth_err verdict;
static uint32_t judged;

static enum hth_err judge(void *arg, const struct hth_rpc_target *donor, const uint8_t *given,
                          size_t len)
{
    uint64_t step;

    (void)arg;
    assert_int_equal(len, sizeof(step));
    assert_int_equal(donor->addr.port, PORT);
    memcpy(&step, given, sizeof(step));
    judged++;
    return step < least ? verdict : HTH_OK;
}

/* A holder whose state the owner puts off is asked again; one that it refuses is left out. */
TEST(owner_judges_states)
{
    static const enum hth_err cases[] = {HTH_E_BUSY, HTH_E_STALE, HTH_E_MALFORMED};

    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct handout f;
        struct hth_state_fetch_opts o;

        setup_world(&f, 40, false);
        least = 12;
        verdict = cases[i];
        judged = 0;
        add(&f, 9, 5, false);
        add(&f, 11, 5, false);
        add(&f, 10, 5, false)->silent = true; /* it gives none before step 13 */
        o = fetch_opts(&f);
        o.judge = judge;
        start(&f, &o);
        hth_world_run_for(f.world, 800 * MS);
        assert_false(f.done);
        f.peer[2].step = 13;
        assert_ok(hth_state_donor_give(f.peer[2].donor, 13, &f.peer[2].step, sizeof(uint64_t),
                                       f.peer[2].values));
        finish(&f, 2 * S);
        check_values(&f, &f.peer[2]);
        assert_int_equal(judged > 3, verdict != HTH_E_MALFORMED);
        tear_down(&f);
    }
}

/* A state of another size is refused, and one that a donor says it has not reached; a donor that
 * has none now is asked again, and others beside it. */
TEST(holders_without_a_state)
{
    enum { SIZE, AHEAD, DECLINES, SILENT, CASES };
    struct hth_state_progress progress;

    for (int c = 0; c < CASES; c++) {
        struct handout f;
        struct hth_state_fetch_opts o;

        setup_world(&f, 31, false);
        add(&f, 11, 5, false);
        o = fetch_opts(&f);
        o.bytes = c == SIZE ? BYTES + 1 : BYTES;
        o.step_min = c == AHEAD ? 12 : 0;
        f.peer[0].declines = c == DECLINES;
        f.peer[0].silent = c == SILENT;
        for (int i = 0; i < 4 && c == SILENT; i++)
            add(&f, 12, 6, false)->silent = i < 3;
        start(&f, &o);
        hth_world_run_for(f.world, 5 * S);
        assert_int_equal(f.done, c != DECLINES);
        if (c < DECLINES)
            assert_err(HTH_E_NOT_FOUND, f.err);
        if (c == DECLINES) {
            hth_state_fetch_progress(f.fetch, &progress);
            assert_non_null(strstr(progress.news, "put off: its snapshot is not there yet"));
        }
        assert_int_equal(f.peer[0].wanted > 0, c != AHEAD); /* it knows where it stands */
        f.peer[0].declines = false;
        if (c == DECLINES)
            finish(&f, 20 * S);
        tear_down(&f);
    }
}

/* ---- clients that dial ----------------------------------------------------------------------- */

static uint32_t heard; /* of all newcomers */

static void count_dials(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    heard++;
    hth_rpc_reply(req, NULL);
}

static void reach_for(struct handout *f, struct handout_peer *client, int64_t us)
{
    for (int64_t t = 0; t < us; t += 50 * MS) {
        hth_state_donor_reach(client->donor, client->roster);
        hth_world_run_for(f->world, 50 * MS);
    }
}

/* Anybody can say that it needs a state: one is dialled at a time, and all have their turn. Of many
 * clients, who need not dial, each dials less often. */
TEST(dials_are_bounded)
{
    enum { MANY = 24, IDLE = 3 * HTH_STATE_REACH };

    for (uint32_t idle = 0; idle <= IDLE; idle += IDLE) {
        struct handout f;
        struct handout_peer *client;

        setup_world(&f, 5, true);
        client = add_client(&f, 12, 5);
        for (uint32_t i = 0; i < idle; i++)
            add_client(&f, 12, 5);
        for (uint32_t i = 0; i < MANY; i++)
            hth_rpc_serve(add_in_need(&f)->rpc, HTH_STATE_METHOD_PART, count_dials, NULL);
        hth_world_run_for(f.world, 3 * S);
        heard = 0;
        reach_for(&f, client, 16 * HTH_STATE_DIAL_US);
        if (idle == 0)
            assert_in_range(heard, 14, 17);
        else
            assert_in_range(heard, 1, 12);
        reach_for(&f, client, 6 * MANY * HTH_STATE_DIAL_US);
        assert_int_equal(heard, MANY);
        tear_down(&f);
    }
}

/* ---- donors that fail ------------------------------------------------------------------------ */

enum how { KILLED, POWER_LOST, BLACK_HOLE };

static void fail_donor(struct handout *f, struct handout_peer *p, enum how how)
{
    if (how == BLACK_HOLE) {
        hth_world_block(f->world, p->node, f->newcomer->node, true);
        hth_world_block(f->world, f->newcomer->node, p->node, true);
    } else {
        hth_node_crash(p->node, how == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
    }
}

static void begin_part_way(struct handout *f)
{
    struct hth_state_fetch_opts o = fetch_opts(f);

    start_slowly(f, &o);
    assert_true(hth_world_run_until_true(f->world, part_way, f, 20 * S));
    assert_false(f->done);
}

/* One of three fails: what was in flight to it comes from the others, and nothing else again. */
TEST(one_of_three_donors_fails)
{
    for (enum how how = KILLED; how <= BLACK_HOLE; how++) {
        struct handout f;
        int64_t failed_us;

        setup_world(&f, 10 + how, false);
        for (uint32_t i = 0; i < 3; i++)
            add(&f, 12, 5, false);
        begin_part_way(&f);
        fail_donor(&f, &f.peer[0], how);
        failed_us = hth_world_now_us(f.world);
        finish(&f, 30 * S);
        check_values(&f, &f.peer[1]);
        assert_int_equal(f.result.said_by.count, how == KILLED ? f.result.said_by.count : 3);
        assert_true(f.result.bytes <= BYTES + 2 * HTH_STATE_PART_BYTES_MIN);
        assert_true(hth_world_now_us(f.world) - failed_us < 4 * S);
        tear_down(&f);
    }
}

/* The only donor of its root fails: the next best state is fetched from the start; or, when it is
 * back with the same root, only the missing parts are. */
TEST(last_donor_fails)
{
    for (int back = 0; back < 2; back++) {
        struct handout f;

        setup_world(&f, 20, false);
        add(&f, 12, 5, false);
        if (!back)
            add(&f, 11, 6, false);
        begin_part_way(&f);
        fail_donor(&f, &f.peer[0], back ? BLACK_HOLE : KILLED);
        hth_world_run_for(f.world, 5 * S);
        assert_int_equal(f.done, !back);
        hth_world_heal(f.world);
        finish(&f, 60 * S);
        check_values(&f, &f.peer[back ? 0 : 1]);
        assert_true(!back || f.result.bytes <= BYTES + 4 * HTH_STATE_PART_BYTES_MIN);
        tear_down(&f);
    }
}

/* Describes truly, and spoils every part. */
static void spoil(void *arg, struct hth_rpc_request *req)
{
    struct handout_peer *p = arg;
    struct hth_state_ask ask;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    struct hth_tensor t = {.dtype = HTH_U8, .ndim = 1};
    const struct hth_rpc_body body = {.tensors = &t, .tensor_count = 1};
    size_t first;

    assert_ok(hth_state_ask_open(payload, len, &ask));
    first = (size_t)ask.part * HTH_STATE_PART_BYTES_MIN;
    t.dim[0] = HTH_MIN((size_t)HTH_STATE_PART_BYTES_MIN, BYTES - first);
    assert_ok(hth_env_blob_new(p->env, t.dim[0], NULL, &t.blob));
    memcpy(t.blob->data, p->values->data + first, t.dim[0]);
    if (p->lies++ % 2 == 0)
        t.blob->data[t.dim[0] / 2] ^= 1;
    else
        t.dim[0]--; /* or sends too little */
    hth_rpc_reply(req, &body);
    hth_blob_unref(t.blob);
}

/* Beside two others, and alone: it is left alone in between. */
TEST(liars_are_left_out)
{
    for (uint32_t honest = 0; honest <= 2; honest += 2) {
        struct handout f;
        struct hth_state_fetch_opts o;

        setup_world(&f, 22, false);
        for (uint32_t i = 0; i <= honest; i++)
            add(&f, 12, 5, false);
        hth_rpc_serve(f.peer[0].rpc, HTH_STATE_METHOD_PART, spoil, &f.peer[0]);
        o = fetch_opts(&f);
        start(&f, &o);
        hth_world_run_for(f.world, 30 * S);
        assert_true(f.done);
        assert_err(honest > 0 ? HTH_OK : HTH_E_NOT_FOUND, f.err);
        assert_in_range(f.peer[0].lies, 1, 200);
        if (honest > 0) {
            check_values(&f, &f.peer[1]);
            assert_int_equal(f.result.said_by.count, 2);
        }
        tear_down(&f);
    }
}

/* A donor goes on to the next step while it is fetched from: the snapshot stays. Later the new one
 * is given. */
TEST(snapshot_stays_while_fetched)
{
    struct handout f;
    struct hth_state_fetch_opts o;
    struct hth_blob *first;

    setup_world(&f, 24, false);
    add(&f, 12, 5, false);
    begin_part_way(&f);
    first = f.peer[0].values;
    f.peer[0].values = make_values(f.peer[0].env, BYTES, 77);
    f.peer[0].step = 13;
    finish(&f, 20 * S);
    assert_int_equal(f.result.step, 12);
    assert_memory_equal(f.values->data, first->data, BYTES);
    hth_blob_unref(first);
    hth_world_run_for(f.world, 5 * S);
    o = fetch_opts(&f);
    start(&f, &o);
    finish(&f, 20 * S);
    check_values(&f, &f.peer[0]);
    tear_down(&f);
}

/* While its owner averages, but not for ever; then the rest of the same one is given. */
TEST(snapshot_waits_for_a_round)
{
    for (int ends = 0; ends < 2; ends++) {
        struct handout f;
        uint32_t done;

        setup_world(&f, 25, false);
        add(&f, 12, 5, false);
        begin_part_way(&f);
        hth_state_donor_yield(f.peer[0].donor, true);
        hth_world_run_for(f.world, S); /* what was under way */
        done = parts_done(&f);
        f.peer[0].step++;
        hth_world_run_for(f.world, 4 * S);
        assert_int_equal(parts_done(&f), done);
        hth_state_donor_yield(f.peer[0].donor, !ends);
        finish(&f, ends ? 4 * S : 14 * S);
        assert_int_equal(f.result.step, 12);
        assert_int_equal(f.result.bytes, BYTES);
        tear_down(&f);
    }
}

static void refuse_busy(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    hth_rpc_refuse(req, HTH_E_BUSY, 0, NULL);
}

/* One that describes a state and says for ever that it is in a round is left out. */
TEST(donor_that_is_always_busy)
{
    for (int others = 0; others < 2; others++) {
        struct handout f;
        struct hth_state_fetch_opts o;

        setup_world(&f, 43, false);
        add(&f, 12, 5, false);
        if (others)
            add(&f, 11, 6, false);
        hth_rpc_serve(f.peer[0].rpc, HTH_STATE_METHOD_PART, refuse_busy, NULL);
        o = fetch_opts(&f);
        o.patience_us = 20 * S;
        start(&f, &o);
        if (others) {
            finish(&f, 20 * S);
            check_values(&f, &f.peer[1]);
        } else {
            hth_world_run_for(f.world, 20 * S);
            assert_true(f.done);
            assert_err(HTH_E_NOT_FOUND, f.err);
        }
        tear_down(&f);
    }
}

/* A part takes longer than a whole line has for one; many are in flight. */
TEST(slow_line_of_its_own)
{
    struct hth_device slow = HTH_DEVICE_INIT;
    struct handout f;
    struct hth_state_fetch_opts o;

    setup_world(&f, 42, false);
    for (int i = 0; i < 4; i++)
        add(&f, 12, 5, false);
    o = fetch_opts(&f);
    start(&f, &o);
    slow.down_bytes_per_s = 520e3; /* 32 parts in a second, the first 8 in a quarter */
    hth_node_set_device(f.newcomer->node, &slow);
    finish(&f, 10 * S);
    check_values(&f, &f.peer[0]);
    assert_int_equal(f.result.bytes, BYTES);
    tear_down(&f);
}

/* ---- bad requests, bounds -------------------------------------------------------------------- */

static struct hth_hash root; /* of the last description */

static void answered(void *arg, const struct hth_rpc_result *r)
{
    struct hth_state_desc desc;

    *(enum hth_err *)arg = r->err;
    if (r->err != HTH_OK || r->tensor_count > 0)
        return;
    assert_ok(hth_state_desc_open(r->payload, r->payload_len, SCHEMA, &desc));
    hth_state_desc_seal(&desc, hth_sim_crypto());
    root = desc.name;
    hth_state_desc_clear(&desc);
}

static enum hth_err call(struct handout *f, uint16_t method, const void *payload, size_t len)
{
    const struct hth_rpc_target target = target_of(&f->peer[0]);
    const struct hth_rpc_call_opts o = {
        .method = method, .body = {.payload = payload, .payload_len = len}, .timeout_us = 5 * S};
    enum hth_err err = HTH_E_BUG;

    assert_ok(hth_rpc_call(f->newcomer->rpc, &target, &o, answered, &err, NULL));
    hth_world_run_for(f->world, S);
    return err;
}

static enum hth_err ask(struct handout *f, uint16_t method, const struct hth_state_ask *a)
{
    uint8_t p[HTH_STATE_ASK_MAX];

    return call(f, method, p, hth_state_ask_pack(a, p));
}

TEST(bad_requests_are_refused)
{
    struct handout f;
    const struct hth_state_ask any = {.schema = SCHEMA};
    struct hth_state_ask part = {.schema = SCHEMA, .named = true};

    setup_world(&f, 32, false);
    add(&f, 12, 5, false);
    f.newcomer = add(&f, 0, 0, true);
    for (uint16_t m = HTH_STATE_METHOD_DESCRIBE; m <= HTH_STATE_METHOD_PART; m++) {
        assert_err(HTH_E_MALFORMED, call(&f, m, "\xff\xff", 2));
        assert_err(HTH_E_MALFORMED, call(&f, m, "\x12\x01\x01", 3)); /* a name of one byte */
        assert_err(HTH_E_NOT_FOUND, ask(&f, m, &part));
    }
    assert_err(HTH_E_NOT_FOUND, call(&f, HTH_STATE_METHOD_PART, "", 0));
    assert_err(HTH_E_BAD_SHAPE,
               ask(&f, HTH_STATE_METHOD_DESCRIBE, &(struct hth_state_ask){.schema = SCHEMA + 1}));
    assert_err(HTH_E_AGAIN, ask(&f, HTH_STATE_METHOD_DESCRIBE, &any));
    assert_ok(ask(&f, HTH_STATE_METHOD_DESCRIBE, &any));
    part.name = root;
    part.part = 75;
    assert_ok(ask(&f, HTH_STATE_METHOD_PART, &part));
    part.part = 76;
    assert_err(HTH_E_RANGE, ask(&f, HTH_STATE_METHOD_PART, &part));
    /* A snapshot that nobody asks for any more is let go. */
    part.part = 0;
    hth_world_run_for(f.world, 25 * S);
    assert_err(HTH_E_NOT_FOUND, ask(&f, HTH_STATE_METHOD_PART, &part));
    tear_down(&f);
}

TEST(options_are_checked)
{
    struct handout f;
    struct hth_state_fetch_opts good, o;
    struct hth_state_fetch *none;

    setup_world(&f, 36, false);
    add(&f, 12, 5, false);
    good = fetch_opts(&f);
    start(&f, &good);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        o = good;                                                                                  \
        o.field = value;                                                                           \
        assert_err(HTH_E_CONFIG,                                                                   \
                   hth_state_fetch_new(f.newcomer->env, f.newcomer->rpc, &o, &none));              \
        assert_null(none);                                                                         \
    } while (0)
    REFUSED(holders_count, 0);
    REFUSED(holders_count, HTH_STATE_DONORS_MAX + 1);
    REFUSED(bytes, 0);
    REFUSED(bytes, HTH_STATE_BYTES_MAX + 1);
    REFUSED(on_done, NULL);
#undef REFUSED
    tear_down(&f);
}

TEST(ghosts_are_fetched)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    setup_world(&f, 34, true);
    for (int i = 0; i < 3; i++)
        add(&f, 12, 5, false);
    o = fetch_opts(&f);
    start(&f, &o);
    finish(&f, 10 * S);
    assert_int_equal(f.values->size, BYTES);
    assert_int_equal(f.result.step, 12);
    tear_down(&f);
}

struct probe {
    struct hth_job job;
    struct hth_env *env;
    struct hth_timer *timer;
    bool waits;
    int64_t at_us, longest_us;
};

static void nothing(struct hth_job *job)
{
    (void)job;
}

static void on_probed(struct hth_job *job, enum hth_err err)
{
    struct probe *p = HTH_CONTAINER(job, struct probe, job);

    assert_ok(err);
    p->waits = false;
    p->longest_us = HTH_MAX(p->longest_us, hth_now_us(p->env) - p->at_us);
}

static void on_probe(void *arg)
{
    struct probe *p = arg;

    hth_timer_set(p->env, p->timer, MS);
    if (p->waits)
        return;
    p->waits = true;
    p->at_us = hth_now_us(p->env);
    p->job = (struct hth_job){.lane = HTH_LANE_COMPUTE, .run = nothing, .done = on_probed};
    assert_ok(hth_job_submit(p->env, &p->job));
}

/* A state of 1 GiB takes the only worker 0.3 s; who averages meanwhile does not wait for that. */
TEST(averages_go_on)
{
    struct handout f;
    struct probe probe = {.waits = false};
    struct handout_peer *donor;

    setup_world(&f, 37, true);
    donor = add(&f, 12, 5, false);
    hth_blob_unref(donor->values);
    donor->values = make_values(donor->env, 1u << 30, 5);
    f.newcomer = add(&f, 0, 0, true);
    probe.env = donor->env;
    probe.timer = hth_timer_new(donor->env, on_probe, &probe);
    hth_timer_set(donor->env, probe.timer, 0);
    assert_err(HTH_E_AGAIN,
               ask(&f, HTH_STATE_METHOD_DESCRIBE, &(struct hth_state_ask){.schema = SCHEMA}));
    assert_ok(ask(&f, HTH_STATE_METHOD_DESCRIBE, &(struct hth_state_ask){.schema = SCHEMA}));
    assert_in_range(probe.longest_us, MS, 5 * MS);
    hth_timer_free(donor->env, probe.timer);
    tear_down(&f);
}

/* Freed at any moment, with jobs and calls under way. */
TEST(freed_at_any_moment)
{
    struct handout f;
    struct hth_state_fetch_opts o;

    for (int64_t ms = 1; ms < 900; ms += 53) {
        setup_world(&f, 35, false);
        add(&f, 12, 5, false);
        add(&f, 12, 5, false);
        o = fetch_opts(&f);
        start(&f, &o);
        hth_world_run_for(f.world, ms * MS);
        if (ms % 2)
            halt(NULL, &f.peer[0]);
        tear_down(&f);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

TEST(descriptions_are_sealed)
{
    const struct hth_crypto *c = hth_sim_crypto();
    const uint64_t part = HTH_STATE_PART_BYTES_MIN;
    struct hth_state_desc d, got;
    struct hth_hash name;
    uint8_t *bytes;
    size_t len;

    assert_int_equal(hth_state_part_bytes(1), part);
    assert_int_equal(hth_state_part_bytes(256 * part + 1), 2 * part);
    assert_int_equal(hth_state_part_bytes(HTH_STATE_BYTES_MAX), HTH_STATE_PART_BYTES_MAX);
    assert_ok(hth_state_desc_init(&d, 1, 2, "abc", 3, 2 * part + 7, NULL));
    assert_int_equal(d.parts, 3);
    assert_int_equal(hth_state_part_len(&d, 2), 7);
    memset(hth_state_part_hash(&d, 0), 7, 3 * sizeof(name));
    hth_state_desc_seal(&d, c);
    hth_state_desc_pack(&d, &bytes, &len);
    assert_ok(hth_state_desc_open(bytes, len, 1, &got));
    hth_state_desc_seal(&got, c);
    assert_memory_equal(&got.name, &d.name, sizeof(d.name));
    assert_memory_equal(got.meta, "abc", 3);
    /* The root stands for everything. */
    name = d.name;
    d.step++;
    hth_state_desc_seal(&d, c);
    assert_memory_not_equal(&name, &d.name, sizeof(name));
    hth_state_part_hash(&got, 2)->b[31] ^= 1;
    hth_state_desc_seal(&got, c);
    assert_memory_not_equal(&name, &got.name, sizeof(name));
    hth_free(bytes);
    hth_state_desc_clear(&got);
    hth_state_desc_clear(&d);
}

static enum hth_err reopen(const struct hth_state_desc *d)
{
    struct hth_state_desc got;
    uint8_t *bytes;
    size_t len;
    enum hth_err err;

    hth_state_desc_pack(d, &bytes, &len);
    err = hth_state_desc_open(bytes, len, 1, &got);
    hth_state_desc_clear(&got);
    hth_free(bytes);
    return err;
}

TEST(descriptions_are_bounded)
{
    const uint64_t most = HTH_STATE_BYTES_MAX;
    struct hth_state_desc d, bad;

    assert_err(HTH_E_RANGE, hth_state_desc_init(&d, 1, 2, NULL, 0, 0, NULL));
    assert_err(HTH_E_TOO_LARGE, hth_state_desc_init(&d, 1, 2, NULL, 0, most + 1, NULL));
    assert_err(HTH_E_TOO_LARGE,
               hth_state_desc_init(&d, 1, 2, "x", HTH_STATE_META_MAX + 1, 5, NULL));
    assert_ok(hth_state_desc_init(&d, 1, 2, NULL, 0, most, NULL));
    assert_int_equal(d.parts, 1024);
    assert_ok(reopen(&d));
#define REFUSED(err, field, value)                                                                 \
    do {                                                                                           \
        bad = d;                                                                                   \
        bad.field = value;                                                                         \
        assert_err(err, reopen(&bad));                                                             \
    } while (0)
    REFUSED(HTH_E_RANGE, step, HTH_AVG_STEP_MAX + 1);
    REFUSED(HTH_E_RANGE, bytes, 0);
    REFUSED(HTH_E_TOO_LARGE, bytes, most + 1);
    REFUSED(HTH_E_MALFORMED, bytes, most - HTH_STATE_PART_BYTES_MAX);
    REFUSED(HTH_E_MALFORMED, bytes, HTH_STATE_PART_BYTES_MIN);
#undef REFUSED
    hth_state_desc_clear(&d);
}
