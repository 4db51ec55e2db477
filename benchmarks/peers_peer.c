/* SPDX-License-Identifier: Apache-2.0 */
/* peers_peer.c: runs hivemind's side of a case, benchmarks/peers/peer.py, in a child process. */
#include "benchmarks/child.h"
#include "benchmarks/peers.h"

#include "cli/json.h"
#include "cli/shipped.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The memory allocator with which hivemind is fastest; the loader ignores it if it is missing. */
#define PRELOAD "LD_PRELOAD=libtcmalloc_minimal.so.4"

struct hth_bench_peers_peer {
    struct hth_bench_child child;
    const struct hth_bench_peers_opts *opts;
    const char *name;
    char *log;
    bool failed; /* keep the log */
};

static uint32_t square_root(uint32_t n)
{
    uint32_t side = 1;
    while ((side + 1) * (side + 1) <= n)
        side++;
    return side;
}

static void number(json_t *work, const char *name, uint32_t value)
{
    json_object_set_new(work, name, json_integer(value));
}

/* The message to peer.py: its names are the parameters of the modules' start(). */
static json_t *work_of(const struct hth_bench_peers_case *c)
{
    bool calls = strcmp(c->module, "calls") == 0, layer = strcmp(c->module, "layer") == 0;
    json_t *work = json_object();
    if (strcmp(c->module, "averaging") == 0) {
        number(work, "nodes", c->nodes);
        number(work, "width", c->width);
        number(work, "group", c->group);
        number(work, "rounds", c->rounds);
        return work;
    }
    number(work, "rows", c->rows);
    if (calls || layer) {
        hth_json_text(work, "kind", c->kind);
        number(work, "d", c->d);
        number(work, "handlers", c->handlers);
    }
    if (calls) {
        number(work, "experts", c->experts);
        number(work, "clients", c->clients);
        number(work, "batches", c->batches);
        json_object_set_new(work, "backward", json_boolean(c->backward));
        return work;
    }
    number(work, "side", square_root(c->experts)); /* of the square grid */
    number(work, "k", c->k);
    number(work, layer ? "steps" : "searches", c->steps);
    if (layer)
        number(work, "servers", c->hosts);
    return work;
}

static bool start(struct hth_bench_peers_peer *p, const struct hth_bench_peers_case *c)
{
    json_t *what = json_object();
    hth_json_text(what, "module", c->module);
    json_object_set_new(what, "work", work_of(c));
    char *script = hth_shipped_find("benchmarks/peers/peer.py");
    char *json = json_dumps(what, JSON_COMPACT);
    HTH_ASSERT(json != NULL);
    const char *const argv[] = {"env", PRELOAD, p->opts->python, script, json, NULL};
    bool started = hth_bench_child_start(&p->child, argv, p->log);
    free(json);
    hth_free(script);
    json_decref(what);
    return started;
}

/* Reads the peer's next line, an object without "error"; NULL: the reason is printed. */
static json_t *receive(struct hth_bench_peers_peer *p, enum hth_err *err)
{
    char line[1024];
    int64_t begin_us = hth_bench_now_us(NULL);
    if (!hth_bench_child_hear(&p->child, line, sizeof(line), p->opts->limit_us)) {
        bool late = hth_bench_now_us(NULL) - begin_us >= p->opts->limit_us;
        *err = late ? HTH_E_TIMEOUT : HTH_E_CLOSED;
        if (late)
            hth_cli_say_error("case %s: hivemind did not answer for %lld s (--timeout); see %s",
                              p->name, (long long)(p->opts->limit_us / HTH_US_PER_S), p->log);
        else
            hth_cli_say_error("case %s: hivemind's process ended without an answer; see %s",
                              p->name, p->log);
        p->failed = true;
        return NULL;
    }
    json_t *answer = json_loads(line, 0, NULL);
    const char *error = json_string_value(json_object_get(answer, "error"));
    if (json_is_object(answer) && error == NULL)
        return answer;
    hth_cli_say_error("case %s: hivemind says: %s; see %s", p->name, error != NULL ? error : line,
                      p->log);
    json_decref(answer);
    p->failed = true;
    *err = error != NULL ? HTH_E_CLOSED : HTH_E_MALFORMED;
    return NULL;
}

static const char *text(const json_t *answer, const char *key)
{
    const char *value = json_string_value(json_object_get(answer, key));
    return value != NULL ? value : "unknown";
}

/* Keeps the version, and prints it if it differs from the last one. */
static void take_version(struct hth_bench_peers_opts *opts, const json_t *ready)
{
    char *version =
        hth_asprintf("%s, %s, %s", text(ready, "peer"), text(ready, "with"), text(ready, "malloc"));
    if (opts->version == NULL || strcmp(opts->version, version) != 0)
        fprintf(stderr, "peer: %s\n", version);
    hth_free(opts->version);
    opts->version = version;
}

enum hth_err hth_bench_peers_peer_open(struct hth_bench_peers_opts *opts,
                                       const struct hth_bench_peers_case *c,
                                       struct hth_bench_peers_peer **out)
{
    struct hth_bench_peers_peer *p = hth_new(struct hth_bench_peers_peer);
    enum hth_err err = HTH_OK;
    *out = p;
    p->opts = opts;
    p->name = c->name;
    const char *folder = getenv("TMPDIR");
    p->log = hth_asprintf("%s/hearth-peers-%ld-%s.log", folder != NULL ? folder : "/tmp",
                          (long)getpid(), c->name);
    if (!start(p, c)) {
        hth_cli_say_error("case %s: cannot start %s", c->name, opts->python);
        return HTH_E_IO;
    }
    json_t *ready = receive(p, &err);
    if (ready != NULL)
        take_version(opts, ready);
    json_decref(ready);
    return err;
}

enum hth_err hth_bench_peers_peer_run(struct hth_bench_peers_peer *p,
                                      struct hth_bench_peers_run *out)
{
    enum hth_err err = HTH_OK;
    (void)hth_bench_child_say(&p->child, "go\n"); /* a failure shows when the answer is read */
    json_t *answer = receive(p, &err);
    if (answer == NULL)
        return err;
    out->value = json_number_value(json_object_get(answer, "value"));
    out->good = (uint32_t)json_integer_value(json_object_get(answer, "good"));
    json_decref(answer);
    if (out->value > 0)
        return HTH_OK;
    hth_cli_say_error("case %s: hivemind's answer has no value; see %s", p->name, p->log);
    p->failed = true;
    return HTH_E_MALFORMED;
}

void hth_bench_peers_peer_close(struct hth_bench_peers_peer *p)
{
    if (p == NULL)
        return;
    hth_bench_child_end(&p->child);
    if (!p->failed)
        unlink(p->log);
    hth_free(p->log);
    hth_free(p);
}
