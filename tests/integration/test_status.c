/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_status.c: `hearth status` and a host's status page describe a swarm, and each way of not
 * reaching one is named.
 */
#define _XOPEN_SOURCE 700
#include "core/bytes.h"
#include "core/rng.h"
#include "integration/toy.h"
#include "kernels/backend.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the page ------------------------------------------------------------------------------ */

/* The answer to a GET, headers and all; must be freed. */
static char *get(const char *addr, const char *path)
{
    char request[256];
    size_t size = 0;
    struct wait w = {0};
    char *answer = calloc(1, 1 << 20);
    int fd = place_dial(addr, NULL);
    assert_true(fd >= 0);
    int len = snprintf(request, sizeof(request),
                       "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    while (send(fd, request, (size_t)len, MSG_NOSIGNAL) != len)
        wait_step(&w, "a connection to the status page");
    for (;;) {
        ssize_t got = recv(fd, answer + size, (1 << 20) - 1 - size, 0);
        if (got == 0)
            break;
        if (got > 0)
            size += (size_t)got;
        else
            wait_step(&w, "the status page's answer");
    }
    close(fd);
    return answer;
}

static void page_must_say(const char *addr, const char *path, const char *text)
{
    char *answer = get(addr, path);
    if (strstr(answer, text) == NULL)
        fail_msg("%s does not say '%s': %s", path, text, answer);
    free(answer);
}

/* A page is no file: it comes whole, from a live process. */
static json_t *page_of(const char *addr)
{
    json_error_t error;
    char *answer = get(addr, "/status.json");
    const char *body = strstr(answer, "\r\n\r\n");
    assert_non_null(body);
    json_t *page = json_loads(body + 4, 0, &error);
    if (!json_is_object(page))
        fail_msg("status page: %s in %s", error.text, body + 4);
    free(answer);
    return page;
}

/* Checks the averaging of a trainer's page, or of a helper's, which has no step. Returns the number
 * of rounds. */
static double check_page(const char *addr, bool trains)
{
    static const char *const of_all[] = {"trainers", "seen",          "rounds",
                                         "bytes_in", "rounds_failed", "drops"};
    static const char *const of_trainers[] = {
        "gathered",    "steps_shared", "members", "means",    "forks",    "joined",
        "state_bytes", "averaged_ms",  "weight",  "distance", "catch_ups"};
    static const char *const of_last[] = {"members", "drops", "weight_fraction", "wait_ms"};
    json_t *page = page_of(addr);
    const json_t *averaging = json_object_get(page, "averaging");
    const json_t *last = json_object_get(averaging, "last");
    for (size_t i = 0; i < HTH_ARRAY_LEN(of_all); i++)
        toy_number(averaging, of_all[i]);
    for (size_t i = 0; i < HTH_ARRAY_LEN(of_last); i++)
        toy_number(last, of_last[i]);
    for (size_t i = 0; trains && i < HTH_ARRAY_LEN(of_trainers); i++)
        toy_number(averaging, of_trainers[i]);
    if (trains)
        toy_number(json_object_get(averaging, "contributed"), "samples");
    assert_int_equal(json_is_string(json_object_get(averaging, "phase")), trains);
    assert_int_equal(json_is_string(json_object_get(averaging, "news")), trains);
    double rounds = toy_number(averaging, "rounds");
    json_decref(page);
    return rounds;
}

/* ---- the swarm ----------------------------------------------------------------------------- */

/* The type that all hosts here announce: that of HEARTH_ISA, so that nothing is measured. */
static const char *compute_here(void)
{
    const struct hth_backend_choice choice = {.compute = HTH_MATMUL_AUTO,
                                              .isa = getenv("HEARTH_ISA")};
    const struct hth_backend *backend;
    assert_ok(hth_backend_choose(&choice, &backend));
    return hth_matmul_name(hth_backend_compute(backend));
}

static void check_node(const json_t *node)
{
    const char *id = json_string_value(json_object_get(node, "id"));
    assert_non_null(id);
    assert_int_equal(strlen(id), 64);
    assert_non_null(strchr(json_string_value(json_object_get(node, "address")), ':'));
    assert_string_equal(json_string_value(json_object_get(node, "version")), "0.1.0");
    assert_false(json_is_false(json_object_get(node, "reachable")));
    assert_true(json_is_true(json_object_get(node, "own")));
    assert_true(json_is_false(json_object_get(node, "silent")));
    assert_true(toy_number(node, "seen_s") == 0);
    if (strcmp(json_string_value(json_object_get(node, "role")), "host") == 0) {
        assert_true(toy_number(node, "experts") == 4);
        assert_true(toy_number(node, "rows_per_s") > 0);
        assert_true(toy_number(node, "queue_ms") >= 0);
        assert_true(toy_number(node, "up_s") >= 0);
        assert_true(toy_number(node, "served") >= 0);
        assert_true(toy_number(node, "unsaved_s") == 0);
        assert_string_equal(json_string_value(json_object_get(node, "compute")), compute_here());
    } else {
        assert_string_equal(json_string_value(json_object_get(node, "compute")), "");
    }
}

static void check_layer(const json_t *layer, double served)
{
    assert_string_equal(json_string_value(json_object_get(layer, "name")), "ffn0");
    assert_int_equal(json_array_size(json_object_get(layer, "grid")), 2);
    assert_true(toy_number(layer, "places") == 8);
    assert_true(toy_number(layer, "served") == served);
    assert_true(toy_number(layer, "twice") == 0);
    assert_close(toy_number(layer, "coverage"), served / 8, 0, 1e-6);
}

/* Starts a host whose experts have the same names and another width. Does not wait. */
static void start_other_host(struct toy *t)
{
    static const char text[] = "run: toy\nmodel: {dim: 16, layers: 1, grid: [2, 4], top_k: 4}\n";
    place_write(t->place, "other.yaml", text, sizeof(text) - 1);
    START(t->place, "other", "serve", "--run", place_path(t->place, "other.yaml"), "--join",
          t->addr[1], "--listen", place_addr(t->place), "--dir", place_path(t->place, "other"),
          "--threads", "1", "--experts", "ffn0.[0:2].[0:4]");
}

PLACE_TEST(test_hosts_roles_and_coverage)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 1000000);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    json_t *status = toy_status(&t, 1, 0.5);
    check_layer(json_array_get(json_object_get(status, "layers"), 0), 4);
    json_decref(status);
    toy_start_host(&t, 1);
    const char *page = place_addr(p);
    toy_start_trainer(&t, "trainer", (const char *const[]){"--status", page, NULL});
    proc_wait_text(t.trainer, "test after 100 updates");
    check_page(page, true);
    status = toy_status(&t, 2, 1.0);
    assert_string_equal(json_string_value(json_object_get(status, "run")), "toy");
    const json_t *nodes = json_object_get(status, "nodes");
    for (size_t i = 0; i < json_array_size(nodes); i++)
        check_node(json_array_get(nodes, i));
    assert_int_equal(toy_status_count(status, "node"), 1);
    assert_int_equal(toy_status_count(status, "host"), 2);
    assert_int_equal(toy_status_count(status, "trainer"), 1);
    check_layer(json_array_get(json_object_get(status, "layers"), 0), 8);
    json_decref(status);
    /* Without a run file the layers of most hosts are shown. */
    start_other_host(&t);
    struct wait w = {0};
    struct proc *table = NULL;
    while (table == NULL || !proc_said(table, "100%") || !proc_said(table, "another run file")) {
        if (table != NULL) {
            wait_step(&w, "a table of the whole grid");
            proc_forget(table);
        }
        table =
            START(p, "table", "status", "--wait", "10s", "--network", "toy", "--join", t.addr[1]);
        assert_int_equal(proc_wait(table), 0);
    }
    proc_must_say(table, "run 'toy': 5 peers");
    proc_must_say(table, "has ffn0 as 2x4 of ffn, width 16, not 2x4 of ffn, width 32");
    /* A single run is found without its name. */
    table = START(p, "table", "status", "--wait", "10s", "--join", t.addr[1]);
    assert_int_equal(proc_wait(table), 0);
    proc_must_say(table, "run 'toy': 5 peers");
    proc_must_say(table, "100%");
    proc_signal(t.trainer, SIGINT);
    assert_int_equal(proc_wait(t.trainer), 130);
    place_end(p);
}

/* ---- trainers ------------------------------------------------------------------------------ */

/* Started like toy's trainer, on another port. */
static struct proc *start_trainer(struct toy *t, const char *name, const char *listen,
                                  const char *page, const char *more)
{
    toy_start_trainer(t, name,
                      (const char *const[]){"--listen", listen, "--status", page, more, NULL});
    return t->trainer;
}

/* The toy run with batches that trainers share; a helper reads that from the run file. */
static void share_batches(struct toy *t)
{
    static const char averaging[] = "averaging: {mode: batch, target: 512, format: fp16}\n";
    FILE *run = fopen(t->run, "ab");
    assert_non_null(run);
    assert_int_equal(fwrite(averaging, 1, sizeof(averaging) - 1, run), sizeof(averaging) - 1);
    assert_int_equal(fclose(run), 0);
}

/* Of the numbers behind that key in a trainer's metrics. */
static double largest(struct toy *t, const char *name, const char *key)
{
    char *text = place_read(place_text(t->place, "%s/%s.jsonl", t->place->root, name), NULL);
    const char *quoted = place_text(t->place, "\"%s\":", key);
    double most = 0;
    for (const char *at = text; at != NULL && (at = strstr(at, quoted)) != NULL; at++)
        most = fmax(most, strtod(at + strlen(quoted), NULL));
    free(text);
    return most;
}

static const json_t *the_one_that(const json_t *status, const char *is)
{
    const json_t *all = json_object_get(status, "trainers");
    for (size_t i = 0; i < json_array_size(all); i++)
        if (json_is_true(json_object_get(json_array_get(all, i), is)))
            return json_array_get(all, i);
    return NULL;
}

/* All of them were in one group, and each note says so. */
static bool tells_of_three(const json_t *status)
{
    const json_t *all = json_object_get(status, "trainers");
    bool good = json_array_size(all) == 3;
    for (size_t i = 0; good && i < 3; i++) {
        const json_t *last = json_object_get(json_array_get(all, i), "last");
        good = strlen(json_string_value(json_object_get(last, "group"))) == 8 &&
               toy_number(last, "members") == 3 &&
               strcmp(json_string_value(json_object_get(last, "reason")), "OK") == 0;
    }
    return good;
}

static void check_last(const json_t *trainer)
{
    static const char *const numbers[] = {"drops",  "wait_ms", "reduce_ms",
                                          "change", "norm",    "weight_fraction"};
    const json_t *last = json_object_get(trainer, "last"), *peers = json_object_get(last, "peers");
    for (size_t i = 0; i < HTH_ARRAY_LEN(numbers); i++)
        assert_true(toy_number(last, numbers[i]) >= 0);
    assert_true(toy_number(last, "bytes") > 0);
    assert_in_range(json_array_size(peers), 0, 2);
    for (size_t i = 0; i < json_array_size(peers); i++) {
        const char *mate = json_string_value(json_array_get(peers, i));
        assert_int_not_equal(
            strncmp(mate, json_string_value(json_object_get(trainer, "id")), strlen(mate)), 0);
    }
    assert_true(toy_number(trainer, "samples_per_s") >= 0);
}

/* A trainer that can be dialled, one that can't, and a helper average together, and `status` tells
 * of each who it is and how its last round went. */
PLACE_TEST(test_trainers_and_a_helper)
{
    struct place *p = *state;
    struct wait w = {0};
    struct toy t;
    json_t *status;
    toy_init(&t, p, 1000000);
    share_batches(&t);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    const char *page[] = {place_addr(p), place_addr(p), place_addr(p)};
    struct proc *one = start_trainer(&t, "one", t.addr[4], page[0], NULL);
    struct proc *client = start_trainer(&t, "client", place_addr(p), page[1], "--client");
    struct proc *helper =
        START(p, "helper", "node", "--reduce", "--run", t.run, "--join", t.addr[1], "--listen",
              t.addr[3], "--dir", place_path(p, "helper"), "--up", "1000", "--status", page[2]);
    proc_wait_text(client, "dials only, accepts no connections");
    proc_wait_text(helper, "reduced its share of a first average");
    while (!tells_of_three(status = toy_status(&t, 1, 0.5))) {
        json_decref(status);
        wait_step(&w, "three who were in one group");
    }
    for (size_t i = 0; i < 3; i++)
        check_last(json_array_get(json_object_get(status, "trainers"), i));
    assert_non_null(the_one_that(status, "client"));
    assert_non_null(the_one_that(status, "helper"));
    assert_ptr_not_equal(the_one_that(status, "client"), the_one_that(status, "helper"));
    assert_true(toy_number(the_one_that(status, "client"), "step") > 0);
    json_decref(status);
    struct proc *table =
        START(p, "table", "status", "--wait", "10s", "--run", t.run, "--join", t.addr[1]);
    assert_int_equal(proc_wait(table), 0);
    proc_must_say(table, "trainers: 2, helpers: 1");
    proc_must_say(table, " client ");
    proc_must_say(table, " helper ");
    proc_must_say(table, " ms, reduced");
    check_page(page[0], true);
    check_page(page[2], false);
    double rounds = check_page(page[1], true);
    page_must_say(page[1], "/status.json", "\"grid\":\"2\"");
    assert_true(rounds > 0);
    assert_int_equal(proc_stop(helper), 0);
    assert_int_equal(proc_stop(client), 130);
    assert_int_equal(proc_stop(one), 130);
    struct toy_metrics m;
    toy_metrics_load(&t, "client", &m); /* all fields are there */
    toy_metrics_clear(&m);
    assert_true(largest(&t, "client", "weight_fraction") == 1);
    assert_true(largest(&t, "client", "rounds") >= rounds); /* the same under the same name */
    place_end(p);
}

PLACE_TEST(test_a_hosts_page)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 10);
    const char *page = place_addr(p);
    struct proc *host = START(p, "host", "serve", "--run", t.run, "--listen", t.addr[2], "--dir",
                              place_path(p, "host"), "--experts", "2", "--status", page);
    proc_wait_text(host, "serving 2 experts");
    page_must_say(page, "/health", "200 OK");
    page_must_say(page, "/", "href=\"/status.json\"");
    static const char *const figures[] = {
        "\nhearth_experts 2\n",
        "\nhearth_trainers 0\n",
        "\nhearth_joined 1\n",
        "\nhearth_dht_nodes ",
        "\nhearth_checkpoint_time_seconds 0\n",
        "\nhearth_build_info{version=\"",
        "\nprocess_start_time_seconds ",
        "\nprocess_resident_memory_bytes ",
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(figures); i++)
        page_must_say(page, "/metrics", figures[i]);
    json_t *status = page_of(page);
    assert_true(toy_number(status, "process_resident_memory_bytes") > 1e6);
    assert_true(toy_number(status, "process_start_time_seconds") > 1.7e9);
    json_decref(status);
    assert_int_equal(proc_stop(host), 0);
    proc_must_say(host, "served ");
    proc_must_say(host, " s: 0 rows, 0 B, 0 trainers");
    place_end(p);
}

/* A host whose node does not answer is not healthy, and says why. */
PLACE_TEST(test_health_of_a_host_that_is_alone)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 10);
    const char *page = place_addr(p);
    struct proc *host =
        START(p, "host", "serve", "--run", t.run, "--listen", t.addr[2], "--join", t.addr[1],
              "--dir", place_path(p, "host"), "--experts", "2", "--status", page);
    proc_wait_text(host, "listening");
    page_must_say(page, "/health", "503 Service Unavailable");
    page_must_say(page, "/health", "not joined");
    proc_signal(host, SIGKILL);
    (void)proc_wait(host);
    place_end(p);
}

/* Without --join, status asks the processes of this machine: in default folders, and with --dir. A
 * host that was killed is silent at once, while its records live on. */
PLACE_TEST(test_on_this_machine)
{
    struct place *p = *state;
    struct toy t;
    struct proc *s = NULL;
    struct wait w = {0};
    toy_init(&t, p, 10);
    struct proc *node = START(p, "node", "node", "--network", "toy", "--listen", t.addr[1]);
    proc_wait_text(node, "you are the first of run 'toy'");
    t.host[0] = START(p, "host", "serve", "--run", t.run, "--experts", TOY_HALF_1, "--listen",
                      t.addr[2], "--join", t.addr[1], "--dir", place_path(p, "elsewhere"));
    t.host[1] = START(p, "other", "serve", "--run", t.run, "--experts", TOY_HALF_2, "--listen",
                      t.addr[3], "--join", t.addr[1]);
    proc_wait_text(t.host[0], "serving 4 experts");
    proc_wait_text(t.host[1], "serving 4 experts");
    while (s == NULL || !proc_said(s, "run 'toy': 3 peers") || !proc_said(s, " 100%")) {
        if (s != NULL) {
            wait_step(&w, "three peers of this machine");
            proc_forget(s);
        }
        s = START(p, "status", "status");
        (void)proc_wait(s);
    }
    proc_must_say(s, "* runs on this machine");
    assert_false(proc_said(s, "silent"));
    proc_signal(t.host[0], SIGKILL);
    (void)proc_wait(t.host[0]);
    while (!proc_said(s, "1 silent: ") || !proc_said(s, " 50%")) {
        wait_step(&w, "a killed host that is silent");
        proc_forget(s);
        s = START(p, "status", "status");
        (void)proc_wait(s);
    }
    place_end(p);
}

/* The experts' folder is a file, so every save fails: /health and status tell it. */
PLACE_TEST(test_a_host_that_cannot_save)
{
    struct place *p = *state;
    struct toy t;
    struct wait w = {0};
    toy_init(&t, p, 1000000);
    toy_start_node(&t);
    toy_start_host(&t, 1);
    const char *page = place_addr(p);
    assert_int_equal(mkdir(place_path(p, "full"), 0700), 0);
    place_write(p, "full/experts", "", 0);
    struct proc *host =
        START(p, "full", "serve", "--run", t.run, "--experts", TOY_HALF_1, "--listen", t.addr[2],
              "--join", t.addr[1], "--dir", place_path(p, "full"), "--status", page);
    proc_wait_text(host, "serving 4 experts");
    proc_wait_text(host, "joined in");
    page_must_say(page, "/health", "200 OK");
    toy_start_trainer(&t, "trainer", NULL);
    proc_wait_text(host, "first trainer: ");
    struct proc *s = START(p, "status", "status", "--network", "toy", "--join", t.addr[1]);
    while (proc_wait(s) != 0 || !proc_said(s, " is not saving since ")) {
        wait_step(&w, "a host that can't save");
        proc_forget(s);
        s = START(p, "status", "status", "--network", "toy", "--join", t.addr[1]);
    }
    page_must_say(page, "/health", "503 Service Unavailable");
    page_must_say(page, "/health", "can't be saved");
    assert_int_equal(proc_stop(t.trainer), 130);
    assert_int_equal(proc_stop(host), 1);
    proc_must_say(host, " rows, ");
    place_end(p);
}

/* ---- no swarm ------------------------------------------------------------------------------ */

PLACE_TEST(test_nothing_listens)
{
    struct place *p = *state;
    struct proc *s =
        START(p, "status", "status", "--network", "toy", "--json", "--join", place_addr(p));
    assert_int_equal(proc_wait(s), 4);
    proc_must_say(s, hth_err_text(HTH_E_JOIN_NOTHING_LISTENS));
    proc_must_say(s, "is the node running");
    place_end(p);
}

PLACE_TEST(test_wrong_network)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 10);
    toy_start_node(&t);
    struct proc *s =
        START(p, "status", "status", "--network", "toys", "--join", t.addr[1], "--wait", "4s");
    /* A trainer can't be the first of a run either. */
    struct proc *trainer =
        START(p, "trainer", "train", "--run", t.run, "--network", "toys", "--join", t.addr[1],
              "--listen", t.addr[4], "--dir", place_path(p, "trainer"));
    assert_int_equal(proc_wait(s), 4);
    proc_must_say(s, hth_err_text(HTH_E_JOIN_WRONG_NETWORK));
    proc_must_say(s, "\"toys\"");
    assert_int_equal(proc_wait(trainer), 4);
    proc_must_say(trainer, hth_err_text(HTH_E_JOIN_WRONG_NETWORK));
    /* A host can be the first. */
    struct proc *host =
        START(p, "host", "serve", "--run", t.run, "--network", "toys", "--join", t.addr[1],
              "--listen", t.addr[2], "--dir", place_path(p, "host"), "--experts", "2");
    proc_wait_text(host, "you are the first of run 'toys'");
    proc_wait_text(host, "serving 2 experts");
    place_end(p);
}

/* Without a name status finds no run, then one, then two, of which the user must pick one. */
PLACE_TEST(test_no_name_given)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 10);
    struct proc *node =
        START(p, "node", "node", "--listen", t.addr[1], "--dir", place_path(p, "node"));
    proc_wait_text(node, "a new swarm");
    struct proc *s = START(p, "status", "status", "--join", t.addr[1], "--wait", "1s");
    assert_int_equal(proc_wait(s), 4);
    proc_must_say(s, "no peer of any run");
    s = START(p, "status", "status", "--join", t.addr[1], "--network", "nobody");
    assert_int_equal(proc_wait(s), 4);
    proc_must_say(s, "no peer of run nobody");
    assert_false(proc_said(s, "run 'nobody'")); /* no empty table */
    toy_start_host(&t, 0);
    s = START(p, "status", "status", "--wait", "10s", "--join", t.addr[1]);
    assert_int_equal(proc_wait(s), 0);
    proc_must_say(s, "run 'toy': 1 peer\n");
    proc_must_say(s, "50%");
    struct proc *other =
        START(p, "other", "serve", "--run", t.run, "--network", "other", "--join", t.addr[1],
              "--listen", t.addr[3], "--dir", place_path(p, "other"), "--experts", "2");
    proc_wait_text(other, "serving 2 experts");
    struct wait w = {0};
    for (s = NULL; s == NULL || !proc_said(s, "the swarm has 2 runs; pick one with --network");) {
        if (s != NULL) {
            wait_step(&w, "two runs in a list");
            proc_forget(s);
        }
        s = START(p, "status", "status", "--join", t.addr[1]);
        assert_int_equal(proc_wait(s), 0);
    }
    proc_must_say(s, "other ");
    proc_must_say(s, "toy ");
    s = START(p, "status", "status", "--wait", "10s", "--join", t.addr[1], "--network", "other");
    assert_int_equal(proc_wait(s), 0);
    proc_must_say(s, "run 'other': 1 peer\n");
    place_end(p);
}

/* If no peer of the cache answers, the node starts as the first of its run. */
PLACE_TEST(test_an_old_peer_cache_stops_nobody)
{
    struct place *p = *state;
    char text[256], hex[17];
    uint8_t sum[8];
    int len = snprintf(text, sizeof(text), "hearth-peers 1 1\n%s %064d 1700000000000000\n",
                       place_addr(p), 7);
    hth_store_u64le(sum, hth_hash64(text, (size_t)len, 1));
    hth_hex(sum, sizeof(sum), hex);
    len += snprintf(text + len, sizeof(text) - (size_t)len, "end %s\n", hex);
    assert_int_equal(mkdir(place_path(p, "node"), 0700), 0);
    place_write(p, "node/peers", text, (size_t)len);
    struct proc *node = START(p, "node", "node", "--network", "toy", "--listen", place_addr(p),
                              "--dir", place_path(p, "node"));
    proc_wait_text(node, "you are the first of run 'toy'");
    proc_must_say(node, place_text(p, "1 remembered peer does not answer (%s)\n",
                                   place_path(p, "node/peers")));
    assert_false(proc_said(node, "is ignored"));
    place_end(p);
}

PLACE_TEST(test_udp_closed)
{
    struct place *p = *state;
    const char *addr = place_addr(p);
    struct sockaddr_in sa = {.sin_family = AF_INET};
    char host[64];
    snprintf(host, sizeof(host), "%.*s", (int)(strchr(addr, ':') - addr), addr);
    sa.sin_port = htons((uint16_t)strtoul(strchr(addr, ':') + 1, NULL, 10));
    assert_int_equal(inet_pton(AF_INET, host, &sa.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(fd, 8), 0);
    /* Nothing accepts: the kernel takes the connection, as it does for a firewall's proxy. */
    struct proc *s = START(p, "status", "status", "--network", "toy", "--join", addr);
    assert_int_equal(proc_wait(s), 4);
    proc_must_say(s, hth_err_text(HTH_E_JOIN_UDP_CLOSED));
    proc_must_say(s, "open that port for UDP");
    close(fd);
    place_end(p);
}

__attribute__((constructor)) static void choose_kernels(void)
{
    setenv("HEARTH_ISA", "generic", 0);
}
