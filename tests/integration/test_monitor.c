/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_monitor.c: hearth monitor beside a small run: its page shows what `hearth status` shows and
 * no address, a killed host is seen, a killed monitor goes on from its history, and requests from
 * elsewhere are refused.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct watched {
    struct place *p;
    struct toy t;
    const char *page, *public, *dir;
    struct proc *monitor;
};

/* The answer to a GET, headers and all; must be freed. */
static char *get(const char *addr, const char *path, const char *host)
{
    char request[256];
    size_t size = 0;
    struct wait w = {0};
    char *answer = calloc(1, 1 << 20);
    int fd = place_dial(addr, NULL);
    assert_true(fd >= 0);
    int len = snprintf(request, sizeof(request),
                       "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host);
    while (send(fd, request, (size_t)len, MSG_NOSIGNAL) != len)
        wait_step(&w, "a connection to the page");
    for (;;) {
        ssize_t got = recv(fd, answer + size, (1 << 20) - 1 - size, 0);
        if (got == 0)
            break;
        if (got > 0)
            size += (size_t)got;
        else
            wait_step(&w, "the page's answer");
    }
    close(fd);
    return answer;
}

static json_t *run_json(const struct watched *w)
{
    char *answer = get(w->page, "/run.json", "localhost");
    const char *body = strstr(answer, "\r\n\r\n");
    json_t *run = body != NULL ? json_loads(body + 4, JSON_REJECT_DUPLICATES, NULL) : NULL;
    free(answer);
    return run;
}

/* The newest run.json of which this is true. */
static json_t *wait_for_run(const struct watched *w, bool (*good)(const json_t *run),
                            const char *what)
{
    struct wait wait = {0};
    json_t *run;
    while ((run = run_json(w)) == NULL || !good(run)) {
        json_decref(run);
        wait_step(&wait, what);
    }
    return run;
}

static void start_monitor(struct watched *w)
{
    w->monitor =
        START(w->p, "monitor", "monitor", "--join", w->t.addr[1], "--listen", place_addr(w->p),
              "--dir", w->dir, "--status", w->page, "--public", w->public, "--export",
              place_path(w->p, "export"), "--tensorboard", place_path(w->p, "board"));
    proc_wait_text(w->monitor, "  public ");
}

/* ---- what is shown -------------------------------------------------------------------------- */

static bool is_whole(const json_t *run)
{
    return toy_number(run, "served") == 8 && toy_number(run, "trainers") == 1 &&
           toy_number(run, "step") > 0 &&
           json_array_size(json_object_get(json_object_get(run, "tests"), "t")) > 0 &&
           json_array_size(json_object_get(json_object_get(run, "history"), "t")) >= 2;
}

static bool lost_a_host(const json_t *run)
{
    return toy_number(run, "served") == 4;
}

/* The folder shows at once that a host died. */
static void wait_for_export(const struct watched *w)
{
    struct wait wait = {0};
    bool good = false;
    while (!good) {
        json_t *run = json_load_file(place_path(w->p, "export/run.json"), 0, NULL);
        good = lost_a_host(run);
        json_decref(run);
        if (!good)
            wait_step(&wait, "the folder to show the death");
    }
}

/* The peers of status, by their ids and roles. */
static void check_against_status(struct watched *w, const json_t *run)
{
    json_t *status = toy_status(&w->t, 2, 1.0), *node, *peer;
    const json_t *peers = json_object_get(run, "peers");
    size_t i, j, found = 0;
    assert_string_equal(json_string_value(json_object_get(run, "run")), "toy");
    json_array_foreach(json_object_get(status, "nodes"), i, node) json_array_foreach(peers, j, peer)
        found += strncmp(json_string_value(json_object_get(peer, "id")),
                         json_string_value(json_object_get(node, "id")), 8) == 0 &&
                 strcmp(json_string_value(json_object_get(peer, "role")),
                        json_string_value(json_object_get(node, "role"))) == 0;
    assert_int_equal(found, json_array_size(json_object_get(status, "nodes")));
    assert_int_equal(found, json_array_size(peers));
    json_decref(status);
}

/* All peers of this place have addresses that begin like this, and the pages' own begin so, too. */
static void has_no_address(const struct watched *w, const char *text)
{
    char prefix[16];
    snprintf(prefix, sizeof(prefix), "127.%u.%u.", w->p->x, w->p->y);
    if (strstr(text, prefix) != NULL)
        fail_msg("an address is told: %.200s", strstr(text, prefix));
}

static void outputs_have_no_address(struct watched *w)
{
    static const char *const paths[] = {"/", "/run.json", "/now.json", "/metrics"};
    static const char *const files[] = {"export/index.html", "export/run.json", "export/now.json"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(paths); i++) {
        char *text = get(w->page, paths[i], "localhost");
        assert_non_null(strstr(text, "200 OK"));
        has_no_address(w, text);
        free(text);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(files); i++) {
        char *text = place_read(place_path(w->p, files[i]), NULL);
        assert_non_null(text);
        has_no_address(w, text);
        free(text);
    }
    assert_true(place_count(w->p, "board", ".hearth") >= 1);
    assert_true(place_count(w->p, "export", "page.js") == 1);
}

/* ---- other programs' readers ----------------------------------------------------------------- */

/* Each series of the dashboard is there. */
static void dashboard_has_its_series(const char *metrics)
{
    char name[64];
    size_t found = 0;
    char *text = place_read(HTH_TEST_SOURCES "/docs/grafana.json", NULL);
    assert_non_null(text);
    for (const char *at = text; (at = strpbrk(at, "hp")) != NULL;) {
        size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
        if (strncmp(at, "hearth_", 7) == 0 || strncmp(at, "process_", 8) == 0) {
            snprintf(name, sizeof(name), "\n%.*s ", (int)len, at);
            if (strstr(metrics, name) == NULL)
                fail_msg("docs/grafana.json names%s", name);
            found++;
        }
        at += len;
    }
    assert_true(found > 10);
    free(text);
}

/* tests/monitor/readers.py says which reader is missing here. */
static void others_read_it(struct watched *w)
{
    char *answer = get(w->page, "/metrics", "localhost");
    const char *metrics = strstr(answer, "\r\n\r\n") + 4;
    dashboard_has_its_series(metrics);
    place_write(w->p, "metrics.txt", metrics, strlen(metrics));
    free(answer);
    const char *python = getenv("HEARTH_PYTHON");
    struct proc *readers = place_start_program(
        w->p, "/usr/bin/env", "readers",
        (const char *const[]){python != NULL ? python : "python3",
                              HTH_TEST_SOURCES "/tests/monitor/readers.py",
                              place_path(w->p, "board"), place_path(w->p, "metrics.txt"), NULL});
    int code = proc_wait(readers);
    char *out = place_read(readers->out, NULL), *err = place_read(readers->err, NULL);
    printf("%s", code == 127 ? "skipped: no python3\n" : out);
    if (code != 0 && code != 127)
        fail_msg("%s", err);
    free(out);
    free(err);
}

static void must_answer(const char *addr, const char *path, const char *host, const char *status)
{
    char *text = get(addr, path, host);
    if (strncmp(text + strlen("HTTP/1.1 "), status, 3) != 0)
        fail_msg("%s of %s: %.60s", path, addr, text);
    free(text);
}

static size_t rows_of(const json_t *run)
{
    return json_array_size(json_object_get(json_object_get(run, "history"), "t"));
}

static bool has_history(const json_t *run)
{
    return rows_of(run) >= 3;
}

PLACE_TEST(a_run_is_watched)
{
    static struct watched w;
    w.p = *state;
    toy_init(&w.t, w.p, 1000000);
    w.page = place_addr(w.p);
    w.public = place_addr(w.p);
    w.dir = place_path(w.p, "monitor");
    toy_start_node(&w.t);
    toy_start_host(&w.t, 0);
    toy_start_host(&w.t, 1);
    toy_start_trainer(&w.t, "trainer",
                      (const char *const[]){"--tensorboard", place_path(w.p, "own"), NULL});
    proc_wait_text(w.t.trainer, "test after 100 updates");
    start_monitor(&w);
    json_t *run = wait_for_run(&w, is_whole, "the whole run on the page");
    check_against_status(&w, run);
    outputs_have_no_address(&w);
    assert_true(place_count(w.p, "own", ".hearth") == 1);
    others_read_it(&w);
    json_decref(run);
    must_answer(w.page, "/run.json", "evil.example", "403");
    must_answer(w.public, "/run.json", "example.org", "200");
    must_answer(w.public, "/metrics", "localhost", "404");
    must_answer(w.public, "/../monitor/key", "localhost", "404");
    /* A port that is taken. */
    assert_int_equal(RUN(w.p, "second", "monitor", "--join", w.t.addr[1], "--listen",
                         place_addr(w.p), "--dir", place_path(w.p, "second"), "--status", w.page),
                     4);
    /* Killed: a host, and the monitor. */
    proc_signal(w.t.host[1], SIGKILL);
    proc_wait(w.t.host[1]);
    run = wait_for_run(&w, lost_a_host, "four experts of a killed host to be missing");
    wait_for_export(&w);
    size_t rows = rows_of(run);
    json_decref(run);
    proc_signal(w.monitor, SIGKILL);
    proc_wait(w.monitor);
    start_monitor(&w);
    run = wait_for_run(&w, has_history, "the history of before");
    assert_true(rows_of(run) >= rows - 1);
    json_decref(run);
    assert_int_equal(proc_stop(w.monitor), 0);
    proc_signal(w.t.trainer, SIGINT);
    assert_int_equal(proc_wait(w.t.trainer), 130);
    place_end(w.p);
}
