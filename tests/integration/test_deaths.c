/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deaths.c: averagers and trainers die in every role and phase, and the others continue.
 *
 *   test_integration_deaths               some deaths of each kind, for CI
 *   test_integration_deaths all [line|3x3 [WHICH]]
 *                                         every role, death and phase, in a lab: the table of
 *                                         docs/benchmarks.md (takes minutes, and an idle machine);
 *                                         WHICH: only deaths with these words, "donor stop"
 *   test_integration_deaths loopback ...  all deaths that need no lab
 *
 * Averagers in one line (or on a grid) go through a calm sweep and begin another with values that
 * differ, and one of them dies in it:
 *
 *   role    member, leader, reducer (a helper with no values and most of the vector), bootstrap
 *           (the DHT's first node), donor (while it sends its state to a newcomer)
 *   death   kill (SIGKILL: connections break), end (SIGTERM: it leaves in order), stop (SIGSTOP:
 *           silence), hole (its packets vanish; in a lab, which takes root)
 *   phase   declared, joined, begun, reducing, returning; giving: a donor between two rounds
 *
 * The cost of a death is bounded. In one line it is the time from the death to the end of the last
 * peer's sweep (gap): 0.2 s if connections break and 1 s if there is silence. A sweep of a grid has
 * a round for each axis and takes time without a death, too: its cost is the time beyond that of
 * the calm sweep before it, of the same processes, and so is that of the sweep after it (next). In
 * a line all agree to 1e-4 two rounds later, on a grid, which has an empty cell then, twelve. A
 * newcomer whose donor dies still gets the whole state.
 *
 * Trainers of one run that share batches continue when the bootstrap node is killed, when a donor
 * is killed during a newcomer's state transfer, and when one of them ends.
 */
#define _GNU_SOURCE
#include "integration/swarm.h"
#include "integration/toy.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNT       400000
#define TRAINERS    6
#define HELPER      4e9 /* bit/s: more than half of the vector is its */
#define STATE_BYTES (16u << 20)
#define AGREE       1e-4
/* The aims, to be held on a quiet machine (`all`), and what a busy one may add before a test
 * fails. */
#define KILLED_US  200000
#define SILENT_US  1000000
#define BUSY_US    2000000
#define PATIENCE_S 3
#define EXIT_SKIP  77 /* netlab's, where no lab can be made */

enum role { MEMBER, LEADER, REDUCER, BOOTSTRAP, DONOR, ROLES };
enum phase { DECLARED, JOINED, BEGUN, REDUCING, RETURNING, GIVING, PHASES };
enum how { KILL, END, STOP, HOLE, HOWS };

static const char *const role_name[] = {"member", "leader", "reducer", "bootstrap", "donor"};
static const char *const phase_name[] = {"declared", "joined",    "begun",
                                         "reducing", "returning", "giving"};
static const char *const how_name[] = {"kill", "end", "stop", "hole"};

struct death {
    enum role role;
    enum how how;
    enum phase phase;
    const char *grid; /* NULL: one line */
};

struct outcome {
    int64_t gap_us, next_us; /* the others: from the death to the last one's end; the next sweep */
    int64_t cost_us, next_cost_us; /* see above */
    double left, spread; /* differences after the sweep of the death; and some rounds later */
    int64_t fetch_us;    /* a donor: that the newcomer's state took; -1: there was none */
    int64_t gave;        /* bytes of it by the dead one */
};

/* Set by main: where the processes are; whether this machine may be busy; which deaths, NULL:
 * all. */
static bool in_lab, patient;
static const char *only;

/* ---- one death ------------------------------------------------------------------------------- */

/* On a grid one sweep must be exact, so timeouts are long: a process that waits for a core must not
 * count as dead. A death that breaks connections is noticed at once all the same. */
static bool is_patient(const struct death *d)
{
    return patient && d->grid != NULL && d->how <= END;
}

static struct swarm_opts options_of(const struct death *d)
{
    struct swarm_opts o = {.shape = d->grid == NULL ? "6" : d->grid,
                           .peers = d->grid == NULL ? 6 : 9,
                           .count = COUNT,
                           .format = "fp32",
                           .lab = in_lab,
                           .calm = d->grid == NULL ? 1 : 2,
                           .die = how_name[d->how],
                           .role = role_name[d->role],
                           .phase = phase_name[d->phase]};

    o.die_last = o.peers - 1;
    if (d->role == BOOTSTRAP)
        o.die_last = 0;
    else if (d->role == MEMBER || d->role == DONOR)
        o.die_first = 1;
    if (d->role == REDUCER) {
        o.shape = "7";
        o.die_first = o.die_last = o.peers++;
        o.helper = HELPER;
    }
    if (d->role == DONOR)
        o.state_bytes = STATE_BYTES;
    if (is_patient(d))
        o.patience_s = PATIENCE_S;
    return o;
}

/* Waits for the death in a swarm that is in a sweep, and starts further sweeps until it comes;
 * returns the dead peer. */
static uint32_t wait_for_death(struct swarm *s)
{
    struct wait w = {0};

    for (;;) {
        bool all_ended = true;
        for (uint32_t i = 0; i < s->opts.peers; i++) {
            if (proc_said(s->proc[i], "dies now"))
                return i;
            all_ended &= proc_said(s->proc[i], place_text(s->place, "sweep %u ", s->sweeps));
        }
        if (all_ended)
            swarm_begin(s, true);
        wait_step(&w, "a death");
    }
}

/* The newcomer has every byte, of which the dead donor sent some but not all. */
static void check_newcomer(struct swarm *s, uint32_t dead, struct outcome *out)
{
    proc_wait_text(s->newcomer, "fetched ");
    proc_must_say(s->newcomer, "fetched well");
    out->gave = proc_number(s->proc[dead], "dies now", "after giving ");
    out->fetch_us = proc_number(s->newcomer, "fetched ", " took_us ");
    assert_in_range(out->gave, 1, STATE_BYTES - 1);
    assert_true(proc_number(s->newcomer, "fetched ", " at ") >
                proc_number(s->proc[dead], "dies now", ", at "));
}

static void one_dies(struct place *p, const struct death *d, struct outcome *out)
{
    const struct swarm_opts o = options_of(d);
    struct swarm s;
    uint32_t dead, rounds = 0;
    int64_t died_us, calm_us;

    swarm_start(&s, p, &o);
    (void)swarm_sweep(&s, true); /* connections are made */
    calm_us = d->grid == NULL ? 0 : swarm_sweep(&s, true);
    if (s.newcomer != NULL) {
        proc_signal(s.newcomer, SIGUSR1);
        proc_wait_text(s.newcomer, "moving: ");
    }
    swarm_begin(&s, true);
    dead = wait_for_death(&s);
    s.gone[dead] = true;
    died_us = proc_number(s.proc[dead], "dies now", ", at ");
    swarm_end(&s);
    *out = (struct outcome){.fetch_us = -1, .left = swarm_spread(&s)};
    out->gap_us = HTH_MAX(swarm_ended_us(&s) - died_us, INT64_C(0));
    out->cost_us = out->gap_us;
    if (d->grid != NULL)
        out->cost_us = HTH_MAX(swarm_ended_us(&s) - s.began_us - calm_us, INT64_C(0));
    /* A line holds one mean after a round; a grid with an empty cell mixes. */
    for (; rounds < (d->grid == NULL ? 2 : 12); rounds += d->grid == NULL ? 1 : 2)
        out->next_us = HTH_MAX(out->next_us, swarm_sweep(&s, false));
    out->next_cost_us = HTH_MAX(out->next_us - calm_us, INT64_C(0));
    out->spread = swarm_spread(&s);
    if (s.newcomer != NULL)
        check_newcomer(&s, dead, out);
    if (d->how == END) {
        assert_int_equal(proc_wait(s.proc[dead]), 0);
    } else if (proc_runs(s.proc[dead])) {
        proc_signal(s.proc[dead], SIGKILL);
        (void)proc_wait(s.proc[dead]);
    }
}

/* ---- many deaths ----------------------------------------------------------------------------- */

#define DEATHS_MAX (ROLES * HOWS * PHASES)

static struct death deaths[DEATHS_MAX];
static struct outcome outcomes[DEATHS_MAX];
static size_t death_count, death_next;

static const char *const columns =
    "role       death  phase      cost ms  gap ms   next: cost ms  in all  differ    some rounds "
    "later";

static void others_finish_after_a_death(void **state)
{
    const struct death *d = &deaths[death_next];
    struct outcome *out = &outcomes[death_next++];
    int64_t aim_us = d->how <= END ? KILLED_US : SILENT_US, late_us = patient ? BUSY_US : 0;

    if (is_patient(d)) /* a busy machine may delay answers in each of two rounds */
        late_us += 2 * PATIENCE_S * 1000000;

    one_dies(*state, d, out);
    print_message("%-10s %-6s %-9s %8.0f %7.0f %14.0f %7.0f  %-8.2g  %.2g%s\n", role_name[d->role],
                  how_name[d->how], phase_name[d->phase], (double)out->cost_us / 1e3,
                  (double)out->gap_us / 1e3, (double)out->next_cost_us / 1e3,
                  (double)out->next_us / 1e3, out->left, out->spread,
                  out->cost_us > aim_us || out->next_cost_us > SILENT_US ? "   beyond the aim"
                                                                         : "");
    if (out->fetch_us >= 0)
        print_message("    the newcomer's state: %.0f ms; %.2f MB from the one who died\n",
                      (double)out->fetch_us / 1e3, (double)out->gave / 1e6);
    assert_true(out->spread < AGREE);
    assert_true(out->cost_us < aim_us + late_us);
    assert_true(out->next_cost_us < SILENT_US + late_us);
    place_end(*state);
}

/* Prints over all phases: the least and greatest cost, the longest next sweep, the largest
 * difference. */
static void print_summary(void)
{
    print_message(
        "\nrole       death  deaths  cost ms (aim)        next: cost ms  in all  differ later\n");
    for (int k = 0; k < ROLES * HOWS; k++) {
        struct outcome low = {.cost_us = INT64_MAX}, high = {.cost_us = 0};
        unsigned n = 0;
        for (size_t i = 0; i < death_next; i++) {
            const struct outcome *o = &outcomes[i];
            if ((int)deaths[i].role != k / HOWS || (int)deaths[i].how != k % HOWS)
                continue;
            low.cost_us = HTH_MIN(low.cost_us, o->cost_us);
            high.cost_us = HTH_MAX(high.cost_us, o->cost_us);
            high.next_us = HTH_MAX(high.next_us, o->next_us);
            high.next_cost_us = HTH_MAX(high.next_cost_us, o->next_cost_us);
            high.spread = hth_worse(high.spread, o->spread);
            n++;
        }
        if (n > 0)
            print_message("%-10s %-6s %6u  %4.0f to %4.0f (%4d) %14.0f %7.0f  %.2g\n",
                          role_name[k / HOWS], how_name[k % HOWS], n, (double)low.cost_us / 1e3,
                          (double)high.cost_us / 1e3,
                          (k % HOWS <= END ? KILLED_US : SILENT_US) / 1000,
                          (double)high.next_cost_us / 1e3, (double)high.next_us / 1e3, high.spread);
    }
}

/* Adds a death if it is possible here: holes and slow links need a lab; a helper has no cell of a
 * grid; only a member leaves in order. */
static void add_death(const char *grid, enum role role, enum how how, enum phase phase)
{
    bool gives = role == DONOR && phase == GIVING;
    char name[64];

    if ((how == HOLE && !in_lab) || (how == END && role != MEMBER) || (phase == GIVING && !gives) ||
        (role == DONOR && !gives && !in_lab) || (role == REDUCER && grid != NULL))
        return;
    snprintf(name, sizeof(name), "%s %s %s", role_name[role], how_name[how], phase_name[phase]);
    if (only != NULL && strstr(name, only) == NULL)
        return;
    deaths[death_count++] = (struct death){role, how, phase, grid};
}

static void add_all(const char *grid)
{
    for (int role = MEMBER; role < ROLES; role++)
        for (int how = KILL; how < HOWS; how++)
            for (int phase = DECLARED; phase < PHASES; phase++)
                add_death(grid, (enum role)role, (enum how)how, (enum phase)phase);
}

/* Each role and each phase once, silence and broken connections in turn. */
static void add_some(void)
{
    if (in_lab) {
        add_death(NULL, LEADER, HOLE, JOINED);
        add_death(NULL, DONOR, HOLE, REDUCING);
        return;
    }
    add_death(NULL, MEMBER, END, DECLARED);
    add_death(NULL, LEADER, KILL, JOINED);
    add_death(NULL, MEMBER, STOP, BEGUN);
    add_death(NULL, REDUCER, KILL, RETURNING);
    add_death(NULL, BOOTSTRAP, STOP, REDUCING);
    add_death(NULL, DONOR, KILL, GIVING);
    add_death("3x3", LEADER, KILL, BEGUN);
}

/* ---- in a lab -------------------------------------------------------------------------------- */

/* A host for each averager, and one with a slow line for the newcomer. */
static const char *lab_text(void)
{
    static char text[1024] = "link: { latency_ms: 1 }\nhosts:\n";

    for (int i = 0; i <= SWARM_NEWCOMER; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "  - { name: h%d%s }\n", i,
                 i == SWARM_NEWCOMER ? ", down_mbit: 100" : "");
    return text;
}

static const char *own_path(void)
{
    static char path[1024];

    assert_true(readlink("/proc/self/exe", path, sizeof(path) - 1) > 0);
    return path;
}

static void deaths_in_a_lab(void **state)
{
    struct place *p = *state;
    const char *lab = lab_text();

    place_write(p, "lab.yaml", lab, strlen(lab));
    struct proc *proc =
        place_start_program(p, HTH_TEST_NETLAB, "lab",
                            (const char *const[]){"run", place_path(p, "lab.yaml"), "--",
                                                  own_path(), "inside", "some", NULL});
    int code = proc_wait(proc);
    if (code == EXIT_SKIP) {
        print_message("skipped: black holes need a lab, and a lab needs root and /dev/net/tun\n");
        skip();
    }
    char *text = place_read(proc->out, NULL);
    print_message("%s", text != NULL ? text : "");
    free(text);
    assert_int_equal(code, 0);
}

/* Becomes netlab, which runs this program in its lab. */
static int go_to_a_lab(const char *shape)
{
    const char *lab = lab_text();
    char path[32];
    int fd = memfd_create("lab.yaml", 0);

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fd >= 0 && write(fd, lab, strlen(lab)) == (ssize_t)strlen(lab))
        execl(HTH_TEST_NETLAB, "netlab", "run", path, "--", own_path(), "inside", "all", shape,
              only, (char *)NULL);
    perror(HTH_TEST_NETLAB);
    return 1;
}

/* ---- trainers -------------------------------------------------------------------------------- */

static void wait_for_steps(struct toy *t, const char *name, double more)
{
    struct wait w = {0};
    double goal = toy_step(t, name) + more;
    char what[64];

    snprintf(what, sizeof(what), "step %.0f of trainer %s", goal, name);
    while (toy_step(t, name) < goal)
        wait_step(&w, what);
}

static struct proc *start_trainer(struct toy *t, const char *name, const char *listen,
                                  const char *join)
{
    toy_start_trainer(t, name,
                      (const char *const[]){"--listen", listen, "--join", join, "--averaging",
                                            "batch", "--target", "256", "--steps", "1000000",
                                            NULL});
    return t->trainer;
}

static void trainers_continue_after_deaths(void **state)
{
    struct place *p = *state;
    struct toy t;
    static const char *const name[] = {"t0", "t1", "t2"};
    struct proc *trainer[3], *late;
    char addr[4][64];

    toy_init(&t, p, 100);
    for (unsigned i = 0; i < 4; i++)
        snprintf(addr[i], sizeof(addr[i]), "%s", place_addr(p));
    toy_start_node(&t);
    toy_start_host(&t, 0);
    for (unsigned i = 0; i < 3; i++)
        trainer[i] = start_trainer(&t, name[i], addr[i], t.addr[2]);
    for (unsigned i = 0; i < 3; i++)
        wait_for_steps(&t, name[i], 5);
    proc_signal(t.node, SIGKILL); /* the one through which all came */
    (void)proc_wait(t.node);
    wait_for_steps(&t, "t0", 5);
    late = start_trainer(&t, "late", addr[3], addr[0]);
    proc_wait_text(late, "state: ");
    proc_signal(trainer[1], SIGKILL); /* one who could give the state */
    (void)proc_wait(trainer[1]);
    wait_for_steps(&t, "late", 5);
    proc_must_say(late, "goes on from step");
    proc_signal(trainer[2], SIGTERM); /* in the middle of whatever it does */
    (void)proc_wait(trainer[2]);
    proc_must_say(trainer[2], "updates, ");
    wait_for_steps(&t, "late", 5);
    wait_for_steps(&t, "t0", 5);
    proc_signal(late, SIGINT);
    proc_signal(trainer[0], SIGINT);
    assert_int_equal(proc_wait(late), 130);
    assert_int_equal(proc_wait(trainer[0]), 130);
    place_end(p);
}

static int run_deaths(void)
{
    struct CMUnitTest tests[DEATHS_MAX];

    for (size_t i = 0; i < death_count; i++)
        tests[i] = (struct CMUnitTest)cmocka_unit_test_setup_teardown(others_finish_after_a_death,
                                                                      place_setup, place_teardown);
    print_message("%s\n", columns);
    int failed = _cmocka_run_group_tests("deaths of averagers", tests, death_count, NULL, NULL);
    if (!patient)
        print_summary();
    return failed;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(deaths_in_a_lab, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(trainers_continue_after_deaths, place_setup,
                                        place_teardown),
    };
    const char *where = argc > 1 ? argv[1] : "", *what = where, *grid = NULL;
    int at = 2;

    in_lab = strcmp(where, "inside") == 0;
    if (in_lab && argc > at)
        what = argv[at++];
    if (argc > at && strcmp(argv[at], "line") != 0)
        grid = argv[at];
    only = argc > at + 1 ? argv[at + 1] : NULL;
    if (strcmp(where, "all") == 0)
        return go_to_a_lab(grid != NULL ? grid : "line");
    if (strcmp(what, "all") == 0 || strcmp(what, "loopback") == 0)
        add_all(grid);
    else
        add_some();
    patient = strcmp(what, "all") != 0;
    int failed = run_deaths();
    return argc > 1 ? failed : failed + cmocka_run_group_tests(tests, NULL, NULL);
}
