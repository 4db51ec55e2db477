/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak.c: five minutes of two nodes, three hosts and three trainers of one run, of which a random
 * one is killed or frozen every 4 to 14 s and returns within seconds. Each host wants 16 of the 32
 * places, so one is a spare. Then:
 *
 *   - no process has ended that was not killed
 *   - no trainer has judged a host by its answers, all of which are good
 *   - at most one row in a thousand had no expert while all hosts were up
 *   - the trainers have one model: after the same step the same bits
 *
 *   test_integration_soak [SECONDS [SEED]]     (tools/test -L soak)
 */
#define _GNU_SOURCE
#include "integration/toy.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

#define S          INT64_C(1000000)
#define NODES      2
#define HOSTS      3
#define MEMBERS    (NODES + HOSTS + 3)
#define WINDOWS    64
#define SETTLED_US (10 * S) /* after a host returned: records expire, places are dealt out */
#define LOST_MAX   1e-3
#define APART_MAX  1e-3 /* of two trunks, for each update that one of them is ahead */
#define AHEAD_MAX  100  /* updates: stopping takes a moment */

struct member {
    char name[16];
    char addr[64];
    struct proc *proc;
    unsigned life; /* of a trainer: number of its metrics file */
    bool frozen;
    int64_t back_us; /* when it starts again or goes on; 0: it runs */
};

struct soak {
    struct place *place;
    struct toy toy;
    struct member member[MEMBERS];
    uint64_t random;
    unsigned kills, freezes, lives;
    int64_t calm_us[WINDOWS][2]; /* wall clock: all hosts up; the last one may be open */
    unsigned windows;
    int64_t hosts_up_us; /* since when; 0: not all */
};

static int64_t duration_us = 300 * S;
static uint64_t seed = 1;

static int64_t wall_us(void)
{
    struct timeval now;

    gettimeofday(&now, NULL);
    return now.tv_sec * S + now.tv_usec;
}

static uint64_t draw(struct soak *s, uint64_t below)
{
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (s->random >> 33) % below;
}

/* ---- processes ----------------------------------------------------------------------------- */

static bool is_host(unsigned i)
{
    return i >= NODES && i < NODES + HOSTS;
}

static void start(struct soak *s, unsigned i)
{
    struct member *m = &s->member[i];
    const char *args[32] = {i < NODES ? "node" : is_host(i) ? "serve" : "train"};
    size_t n = 1;

#define ADD(...)                                                                                   \
    do {                                                                                           \
        const char *more[] = {__VA_ARGS__};                                                        \
        for (size_t k = 0; k < HTH_ARRAY_LEN(more); k++)                                           \
            args[n++] = more[k];                                                                   \
    } while (0)
    ADD("--listen", m->addr, "--dir", place_path(s->place, m->name));
    for (unsigned node = 0; node < NODES; node++)
        if (node != i)
            ADD("--join", s->member[node].addr);
    if (i < NODES)
        ADD("--network", "toy");
    else
        ADD("--run", s->toy.run, "--threads", "1");
    if (is_host(i))
        ADD("--experts", "16");
    if (i >= NODES + HOSTS) {
        m->life = s->lives++;
        ADD("--resume", "--metrics",
            place_text(s->place, "%s/life%u.jsonl", s->place->root, m->life));
    }
#undef ADD
    m->proc = place_start(s->place, m->name, args);
    m->back_us = 0;
    m->frozen = false;
}

static void disturb(struct soak *s, unsigned i)
{
    struct member *m = &s->member[i];

    m->frozen = draw(s, 10) < 3;
    m->back_us = wall_us() + S + (int64_t)draw(s, 4 * (uint64_t)S);
    proc_signal(m->proc, m->frozen ? SIGSTOP : SIGKILL);
    s->kills += !m->frozen;
    s->freezes += m->frozen;
    if (!m->frozen)
        assert_int_equal(proc_wait(m->proc), 128 + SIGKILL);
}

static void bring_back(struct soak *s, unsigned i)
{
    struct member *m = &s->member[i];

    if (m->frozen)
        proc_signal(m->proc, SIGCONT);
    else
        start(s, i);
    m->frozen = false;
    m->back_us = 0;
}

/* Keeps the times in which all hosts were up, SETTLED_US after the last returned. */
static void note_hosts(struct soak *s)
{
    bool up = true;
    int64_t now = wall_us();

    for (unsigned i = NODES; i < NODES + HOSTS; i++)
        up = up && s->member[i].back_us == 0;
    if (!up) {
        s->hosts_up_us = 0;
        return;
    }
    if (s->hosts_up_us == 0)
        s->hosts_up_us = now;
    if (now - s->hosts_up_us < SETTLED_US)
        return;
    if (s->windows == 0 || s->calm_us[s->windows - 1][0] != s->hosts_up_us + SETTLED_US) {
        assert_true(s->windows < WINDOWS);
        s->calm_us[s->windows++][0] = s->hosts_up_us + SETTLED_US;
    }
    s->calm_us[s->windows - 1][1] = now;
}

static void must_run(struct soak *s)
{
    for (unsigned i = 0; i < MEMBERS; i++) {
        struct member *m = &s->member[i];
        if ((m->back_us == 0 || m->frozen) && !proc_runs(m->proc))
            fail_msg("%s ended by itself with code %d", m->proc->name, m->proc->code);
    }
}

/* Lets time pass until `until_us`, with disturbances or without. */
static void pass(struct soak *s, int64_t until_us, bool disturbs)
{
    int64_t next_us = wall_us() + 4 * S;
    struct wait w = {place_now_us()};

    while (wall_us() < until_us) {
        w.begin_us = place_now_us(); /* no timeout */
        wait_step(&w, "the end");
        for (unsigned i = 0; i < MEMBERS; i++)
            if (s->member[i].back_us != 0 && wall_us() >= s->member[i].back_us)
                bring_back(s, i);
        must_run(s);
        note_hosts(s);
        if (!disturbs || wall_us() < next_us)
            continue;
        unsigned i = (unsigned)draw(s, MEMBERS);
        if (s->member[i].back_us != 0)
            continue;
        disturb(s, i);
        note_hosts(s);
        next_us = wall_us() + 4 * S + (int64_t)draw(s, 10 * (uint64_t)S);
    }
}

/* ---- verdicts ------------------------------------------------------------------------------ */

static bool is_calm(const struct soak *s, double from, double to)
{
    for (unsigned i = 0; i < s->windows; i++)
        if (from * 1e6 >= (double)s->calm_us[i][0] && to * 1e6 <= (double)s->calm_us[i][1])
            return true;
    return false;
}

/* Adds the rows of one life of a trainer between progress lines of calm times. Returns the last
 * line. */
static json_t *add_rows(const struct soak *s, unsigned life, double *mixed, double *lost)
{
    char *text = place_read(place_text(s->place, "%s/life%u.jsonl", s->place->root, life), NULL);
    json_t *last = NULL;

    for (char *save = NULL, *line = text != NULL ? strtok_r(text, "\n", &save) : NULL;
         line != NULL; line = strtok_r(NULL, "\n", &save)) {
        json_t *o = json_loads(line, 0, NULL);
        const char *kind = json_string_value(json_object_get(o, "kind"));
        if (kind == NULL || strcmp(kind, "progress") != 0) { /* or half a line of a kill */
            json_decref(o);
            continue;
        }
        if (last != NULL && is_calm(s, toy_number(last, "t"), toy_number(o, "t"))) {
            *mixed += toy_number(o, "rows_mixed") - toy_number(last, "rows_mixed");
            *lost += toy_number(o, "rows_lost") - toy_number(last, "rows_lost");
        }
        json_decref(last);
        last = o;
    }
    free(text);
    return last;
}

static void rows_have_experts(struct soak *s)
{
    double mixed = 0, lost = 0;

    for (unsigned life = 0; life < s->lives; life++)
        json_decref(add_rows(s, life, &mixed, &lost));
    print_message("%u kills, %u freezes; while all hosts were up, in %u stretches: %.0f rows, %.0f "
                  "without an expert\n",
                  s->kills, s->freezes, s->windows, mixed, lost);
    assert_true(mixed > 1000);
    assert_true(lost <= LOST_MAX * mixed);
}

static void no_host_is_judged(struct soak *s)
{
    static const char *const verdicts[] = {"NaN or infinity", "are not used",
                                           "broke the protocol", "outside its allowed range"};

    for (size_t i = 0; i < s->place->proc_count; i++)
        for (size_t v = 0; v < HTH_ARRAY_LEN(verdicts); v++)
            if (proc_said(&s->place->proc[i], verdicts[v]))
                fail_msg("%s said '%s'", s->place->proc[i].err, verdicts[v]);
}

struct trunk {
    char *bytes;
    size_t len, data;
    json_t *header;
    double updates;
};

static struct trunk open_trunk(const struct soak *s, unsigned i)
{
    struct trunk t;
    uint64_t header;

    t.bytes = place_read(place_text(s->place, "%s/%s/trunk.safetensors", s->place->root,
                                    s->member[i].name),
                         &t.len);
    assert_non_null(t.bytes);
    memcpy(&header, t.bytes, sizeof(header));
    t.data = sizeof(header) + header;
    t.header = json_loadb(t.bytes + sizeof(header), header, 0, NULL);
    assert_non_null(t.header);
    const char *updates = json_string_value(
        json_object_get(json_object_get(t.header, "__metadata__"), "hearth.updates"));
    assert_non_null(updates);
    t.updates = strtod(updates, NULL);
    return t;
}

/* The distance of two trunks, relative to the norm of the first; moments are left out. */
static double distance(struct trunk *a, struct trunk *b)
{
    double apart = 0, norm = 0;
    const char *name;
    json_t *of;

    json_object_foreach(a->header, name, of) {
        const char *end = strrchr(name, '.');
        const json_t *at = json_object_get(of, "data_offsets");
        const json_t *other = json_object_get(json_object_get(b->header, name), "data_offsets");
        if (at == NULL || (end != NULL && (strcmp(end, ".m") == 0 || strcmp(end, ".v") == 0)))
            continue;
        assert_non_null(other);
        size_t from = (size_t)json_integer_value(json_array_get(at, 0));
        size_t to = (size_t)json_integer_value(json_array_get(at, 1));
        size_t from2 = (size_t)json_integer_value(json_array_get(other, 0));
        for (size_t k = 0; from + k + 4 <= to; k += 4) {
            float x, y;
            memcpy(&x, a->bytes + a->data + from + k, 4);
            memcpy(&y, b->bytes + b->data + from2 + k, 4);
            apart += (double)(x - y) * (double)(x - y);
            norm += (double)x * (double)x;
        }
    }
    return sqrt(apart / norm);
}

/* Stops the trainers at once and compares their checkpoints. */
static void trainers_have_one_model(struct soak *s)
{
    struct trunk trunk[MEMBERS - NODES - HOSTS];

    for (unsigned i = NODES + HOSTS; i < MEMBERS; i++)
        proc_signal(s->member[i].proc, SIGTERM);
    for (unsigned i = NODES + HOSTS; i < MEMBERS; i++)
        assert_int_equal(proc_wait(s->member[i].proc), 130);
    for (unsigned k = 0; k < HTH_ARRAY_LEN(trunk); k++) {
        trunk[k] = open_trunk(s, NODES + HOSTS + k);
        double apart = distance(&trunk[0], &trunk[k]);
        double ahead = fabs(trunk[k].updates - trunk[0].updates);
        double mixed = 0, lost = 0;
        json_t *last = add_rows(s, s->member[NODES + HOSTS + k].life, &mixed, &lost);
        print_message("%s: update %.0f, %.2g from %s; it saw %.0f trainers, phase %s\n",
                      s->member[NODES + HOSTS + k].name, trunk[k].updates, apart,
                      s->member[NODES + HOSTS].name, toy_number(last, "trainers"),
                      json_string_value(json_object_get(last, "phase")));
        json_decref(last);
        assert_true(ahead > 0 ? ahead <= AHEAD_MAX && apart < APART_MAX * ahead : apart == 0);
    }
    for (unsigned k = 0; k < HTH_ARRAY_LEN(trunk); k++) {
        json_decref(trunk[k].header);
        free(trunk[k].bytes);
    }
}

/* ---- the test ------------------------------------------------------------------------------ */

static void write_run(struct soak *s)
{
    char text[1024];
    int len = snprintf(
        text, sizeof(text),
        "run: toy\n"
        "seed: 1\n"
        "model: {kind: classifier, dim: 32, layers: 2, grid: [4, 4], top_k: 4}\n"
        "data: {kind: fashion-mnist, path: %s/data, shuffle_rows: 512}\n"
        "train: {rows: 32, flights: 4, steps: 1000000, eval_every: 0,\n"
        "        checkpoint_every: 50, timeout_s: 5, grace_s: 0.2}\n"
        "optimizer: {kind: adamw, rate: 0.001}\n"
        "averaging: {mode: batch, target: 256}\n"
        "experts: {step_rows: 32, step_age_s: 0.2, optimizer: {kind: adam, rate: 0.001}}\n",
        s->place->root);

    assert_in_range(len, 1, sizeof(text) - 1);
    place_write(s->place, "run.yaml", text, (size_t)len);
}

static void swarm_survives_kills_and_freezes(void **state)
{
    static const char *const roles[] = {"node", "host", "trainer"};
    struct soak s = {.place = *state, .random = seed};

    toy_init(&s.toy, s.place, 100);
    write_run(&s);
    for (unsigned i = 0; i < MEMBERS; i++) {
        struct member *m = &s.member[i];
        unsigned role = i < NODES ? 0 : is_host(i) ? 1 : 2;
        snprintf(m->name, sizeof(m->name), "%s%u", roles[role], i);
        snprintf(m->addr, sizeof(m->addr), "%s", place_addr(s.place));
    }
    for (unsigned i = 0; i < MEMBERS; i++)
        start(&s, i);
    int64_t begin_us = wall_us();
    pass(&s, begin_us + 20 * S, false);
    pass(&s, begin_us + duration_us - 30 * S, true);
    pass(&s, begin_us + duration_us, false);
    no_host_is_judged(&s);
    rows_have_experts(&s);
    trainers_have_one_model(&s);
    place_end(s.place);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        swarm_survives_kills_and_freezes, place_setup, place_teardown)};

    if (argc > 1)
        duration_us = HTH_MAX(strtoll(argv[1], NULL, 10), 60LL) * S;
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
