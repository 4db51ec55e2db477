/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_scenario.c: scenario files and their errors, the draw, the kept seeds, and planted faults
 * that must be found.
 */
#include "support/suite.h"

#include "core/limits.h"
#include "core/mem.h"
#include "scenarios/file.h"

#ifdef HTH_PLANT
#include "rpc/rpc_int.h"
#endif

#include <inttypes.h>
#include <string.h>

static struct hth_scenario *parse_ok(const char *text)
{
    struct hth_scenario *s;
    char error[HTH_SCENARIO_ERROR_MAX];
    if (hth_scenario_parse("test", (const uint8_t *)text, strlen(text), &s, error) != HTH_OK)
        fail_msg("%s", error);
    assert_string_equal(error, "");
    return s;
}

static struct hth_scenario *read_scenario(const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s.yaml", HTH_SCENARIO_DIR, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        fail_msg("can't open %s", path);
    char *text = hth_calloc(HTH_SCENARIO_BYTES_MAX + 1, 1);
    size_t len = fread(text, 1, HTH_SCENARIO_BYTES_MAX, f);
    assert_true(len > 0);
    fclose(f);
    struct hth_scenario *s = parse_ok(text);
    hth_free(text);
    return s;
}

static void run_one(const struct hth_scenario *s, uint64_t seed, struct hth_scenario_report *r)
{
    struct hth_scenario_opts opts = {.log_level = HTH_ERROR};
    struct hth_plan plan;
    hth_scenario_draw(s, seed, &plan);
    assert_ok(hth_scenario_run(&plan, &opts, r));
}

#ifdef HTH_PLANT

/* The planted fault: when a connection breaks with several calls in flight, the verdict of one is
 * forgotten. The linker replaces rpc's own function by this one (--wrap). */
void __real_hth_rpc_slots_fail_all(struct rpc_conn *c, enum hth_err err, const char *text,
                                   bool remote);
void __wrap_hth_rpc_slots_fail_all(struct rpc_conn *c, enum hth_err err, const char *text,
                                   bool remote);

static struct hth_rpc_call *forgotten[4096];
static size_t forgotten_count;
static enum { FORGETS, CUTS_REPLIES, REFUSES } plant;

void __wrap_hth_rpc_slots_fail_all(struct rpc_conn *c, enum hth_err err, const char *text,
                                   bool remote)
{
    for (uint32_t i = 0; plant == FORGETS && i < c->slots_count && c->in_flight >= 3; i++) {
        struct hth_rpc_call *call = c->slots[i].call;
        if (call == NULL || forgotten_count == HTH_ARRAY_LEN(forgotten))
            continue;
        c->slots[i].call = NULL;
        call->conn = NULL;
        hth_rpc_due_cancel(call->rpc, &call->due);
        /* keep a reference, or a leak checker would report it first */
        forgotten[forgotten_count++] = call;
        break;
    }
    __real_hth_rpc_slots_fail_all(c, err, text, remote);
}

/* Two more planted faults: each 500th reply lacks a byte, or is a refusal. */
void __real_hth_rpc_reply(struct hth_rpc_request *req, const struct hth_rpc_body *body);
void __wrap_hth_rpc_reply(struct hth_rpc_request *req, const struct hth_rpc_body *body);

void __wrap_hth_rpc_reply(struct hth_rpc_request *req, const struct hth_rpc_body *body)
{
    static uint32_t replies;
    if (plant == FORGETS || body->tensor_count != 1 || ++replies % 500 != 0) {
        __real_hth_rpc_reply(req, body);
    } else if (plant == REFUSES) {
        hth_rpc_refuse(req, HTH_E_BUSY, 0, "planted");
    } else {
        struct hth_tensor tensor = body->tensors[0];
        struct hth_rpc_body cut = {.tensors = &tensor, .tensor_count = 1};
        tensor.dim[0]--;
        __real_hth_rpc_reply(req, &cut);
    }
}

static void check_plant(const char *scenario, const char *why)
{
    struct hth_scenario *s = read_scenario(scenario);
    struct hth_scenario_report r;
    run_one(s, 1, &r);
    assert_false(r.pass);
    if (strstr(r.why, why) == NULL)
        fail_msg("%s", r.why);
    hth_scenario_free(s);
}

TEST(finds_wrong_replies)
{
    (void)state;
    plant = CUTS_REPLIES;
    check_plant("calm", "a reply has the wrong payload");
    plant = REFUSES;
    check_plant("faults", "failed after the faults");
    plant = FORGETS;
}

TEST(finds_a_forgotten_verdict)
{
    (void)state;
    struct hth_scenario *s = read_scenario("faults");
    struct hth_scenario_report r = {.pass = true};
    uint64_t seed = 1;
    for (; seed <= 200; seed++) {
        run_one(s, seed, &r);
        if (!r.pass)
            break;
    }
    assert_true(seed <= 200 && forgotten_count > 0);
    print_message("found with seed %" PRIu64 ": %s\n", seed, r.why);
    assert_non_null(strstr(r.why, "verdict"));
    hth_scenario_free(s);
}

#else

/* ---- files --------------------------------------------------------------------------------- */

TEST(missing_keys_have_their_default)
{
    (void)state;
    struct hth_scenario *s = parse_ok("name: short\n"), d;
    hth_scenario_init(&d);
    assert_string_equal(s->name, "short");
    assert_int_equal(s->nodes, d.nodes);
    assert_true(s->duration_s == d.duration_s && s->safety == d.safety);
    assert_true(s->links.latency_ms.low == 20 && s->links.latency_ms.high == 20);
    assert_int_equal(s->churn.kind, HTH_LIFE_ALWAYS);
    assert_int_equal(s->load.hood, d.load.hood);
    hth_scenario_free(s);
}

/* A written 0 is not replaced by the default: it counts where 0 is valid. */
TEST(written_zero_is_not_the_default)
{
    (void)state;
    struct hth_scenario *s = parse_ok("name: zero\nnodes: 4\nduration_s: 10\nsafety: 0\n"
                                      "links: { latency_ms: [0, 0] }\nload: {}\n");
    struct hth_scenario_report r;
    assert_true(s->safety == 0 && s->links.latency_ms.low == 0 && s->links.latency_ms.high == 0);
    assert_true(s->load.payload_kib == 256); /* the default of a key that is left out */
    run_one(s, 1, &r);
    /* with the default latency it would be 40 ms or more */
    assert_true(r.pass && r.calls_ok > 0 && r.latency_median_us < 20e3);
    hth_scenario_free(s);
}

TEST(parser_reads_every_key)
{
    (void)state;
    struct hth_scenario *s = parse_ok(
        "name: all\nnodes: 7\nduration_s: 30\nsafety: 0.5\n"
        "load: { payload_kib: 1, calls_per_s: 2, experts: 3, hood: 4, real: true }\n"
        "links: { latency_ms: [1, 2], jitter_ms: [3, 4], loss: [0.1, 0.2] }\n"
        "zones:\n"
        "  - { name: a, share: 1, latency_ms: [5] }\n"
        "  - { name: b, share: 2, latency_ms: [6, 7] }\n"
        "devices:\n"
        "  - { name: x, share: 1, gflops: 2, gbytes_per_s: 3, workers: 4, up_mbit: 5 }\n"
        "churn: { kind: diurnal, up_s: [8, 9], down_s: [1, 2], swing: [0.1, 0.2], day_s: 50,\n"
        "         providers: 3, provider_up_s: [4, 5], provider_down_s: [6, 7], silent: 0.25 }\n"
        "partitions: { every_s: [1, 2], for_s: [3, 4], share: [0.5, 0.6], one_way: 0.7 }\n"
        "clogs: { every_s: [1, 2], for_s: [3, 4], ways: 5 }\n"
        "clocks: { skew_ms: [1, 2], step_ms: [3, 4], every_s: [5, 6] }\n"
        "stragglers: { share: [0.1, 0.2], speed: [0.3, 0.4] }\n"
        "dht: { lost_put: [0.1, 0.2], stale: [0.3, 0.4], refresh_s: 3 }\n"
        "chaos: { io_error: [0.1, 0.2], sites: 0.5, fires: 0.6 }\n");
    struct hth_scenario *w = parse_ok("name: run\nswarm: { hosts: 9, copies: 3, trainers: 4, dim: "
                                      "32, layers: 3, grid: 4, top_k: 5,\n"
                                      "  rows: 6, flights: 7, averaging: batch, every: 8, target: "
                                      "99, checkpoint_s: 2.5, held_mib: 3 }\n"
                                      "malice: { garbage: 1, liar: 2, mute: 3, forger: 4 }\n");
    assert_int_equal(w->nodes, 9 + 4 + 10);
    assert_true(w->swarm.copies == 3 && w->swarm.dim == 32 && w->swarm.layers == 3);
    assert_true(w->swarm.grid == 4 && w->swarm.top_k == 5 && w->swarm.rows == 6);
    assert_true(w->swarm.flights == 7 && w->swarm.averaging == HTH_SCENARIO_BATCH);
    assert_true(w->swarm.every == 8 && w->swarm.target == 99 && w->swarm.checkpoint_s == 2.5);
    assert_true(w->swarm.held_mib == 3 && w->malice.mute == 3 && w->malice.forger == 4);
    hth_scenario_free(w);
    assert_int_equal(s->nodes, 7);
    assert_true(s->load.real && s->load.hood == 4 && s->load.calls_per_s == 2);
    assert_true(s->links.loss.low == 0.1 && s->links.loss.high == 0.2);
    assert_int_equal(s->zone_count, 2);
    assert_int_equal(s->zones[1].latency_count, 2);
    assert_true(s->zones[1].latency_ms[1] == 7);
    assert_true(s->devices[0].workers == 4 && s->devices[0].up_mbit == 5 &&
                s->devices[0].disk_mb == 0);
    assert_int_equal(s->churn.kind, HTH_LIFE_DIURNAL);
    assert_true(s->churn.provider_down_s.high == 7 && s->churn.silent == 0.25);
    assert_true(s->partitions.share.high == 0.6 && s->partitions.one_way == 0.7);
    assert_true(s->clogs.ways == 5 && s->clocks.every_s.low == 5);
    assert_true(s->stragglers.speed.high == 0.4 && s->dht.stale.low == 0.3);
    assert_true(s->dht.refresh_s == 3 && s->chaos.fires == 0.6);
    hth_scenario_free(s);
}

static const struct {
    const char *text, *says;
} bad_files[] = {
    {"", "empty"},
    {"nodes: 3\n", "name"},
    {"name: \"x'; system('ls'); y='\"\n", "name must be a word"},
    {"name: \"x\\ny\"\n", "name must be a word"},
    {"name: a,b\n", "name must be a word"},
    {"name: x\nnode: 3\n", "unknown key 'node'"},
    {"name: x\nnode: 3\n", "did you mean 'nodes'?"},
    {"name: x\nchurn: { up: [1, 2] }\n", "did you mean 'churn.up_s'?"},
    {"name: x\nnodes: many\n", "nodes"},
    {"name: x\nnodes: 1\n", "nodes is 1; it must be from 2 to 20000"},
    {"name: x\nnodes: 20001\n", "nodes is 20001"},
    {"name: x\nnodes: 0\n", "nodes is 0; it must be from 2 to 20000"},
    {"name: x\nnodes: 010\n",
     "'010' in line 2, field nodes: a whole number without a 0 before it is needed"},
    {"name: x\nnodes: +010\n", "without a 0 before it"},
    {"name: x\nduration_s: 0\n", "duration_s is 0"},
    {"name: x\nload: { hood: 0 }\n", "load.hood is 0"},
    {"name: x\nload: { hood: 66, experts: 1000 }\n", "a neighbourhood has 66000 experts"},
    {"name: x\nnodes: 66\nload: { hood: 65, experts: 1000 }\n", "make load.hood or load.experts"},
    {"name: x\nload: { payload_kib: 0.0 }\n", "load.payload_kib is 0"},
    {"name: x\nchurn: { shape: [0, 0] }\n", "churn.shape is 0"},
    {"name: x\nstragglers: { speed: [0, 0] }\n", "stragglers.speed is 0"},
    {"name: x\ndht: { refresh_s: 0 }\n", "dht.refresh_s is 0"},
    {"name: x\nlinks: { loss: [0.2, 0.1] }\n", "links.loss is [0.2, 0.1]; it must rise"},
    {"name: x\nlinks: { loss: [0.1] }\n", "expected two numbers in brackets, as in [5, 50]"},
    {"name: x\nlinks: { loss: [0.1] }\n", "field 'loss' (line: 2,"},
    {"name: x\nlinks: { loss: 0.1 }\n", "or [50, 50] for 50 alone in mapping field 'loss'"},
    {"name: x\nlinks: { loss: [0, 0.1, 1] }\n", "two numbers in brackets"},
    {"name: x\nlinks: { loss: [$p, 0.1] }\n", "`hearth sim vary SCENARIO --vary p=A,B` gives it"},
    {"name: x\npartitions: { every_s: [1, 2], for_s: [1, 1], share: [1, 1] }\n",
     "partitions.share must lie between 0 and 1"},
    {"name: x\npartitions: { every_s: [1, 2], for_s: [1, 1] }\n",
     "partitions.share must lie between 0 and 1"},
    {"name: x\npartitions: { every_s: [1, 2], share: [0.1, 0.5] }\n", "partitions.for_s is 0"},
    {"name: x\nswarm: { hosts: 0 }\n", "swarm needs swarm.trainers"},
    {"name: x\nchurn: { kind: weibul }\n", "weibul"},
    {"name: x\nchurn: { kind: poisson }\n", "churn.up_s"},
    {"name: x\nsafety: 0.95\n", "safety is 0.95"},
    {"name: x\nzones:\n  - { name: a, share: 1, latency_ms: [1, 2] }\n",
     "zone 'a' has 2 latencies; it must have 1"},
    {"name: x\nzones:\n  - { name: a, share: 0, latency_ms: [1] }\n", "zones.share is 0"},
    {"name: x\ndevices:\n  - { name: a, share: 1, gflops: 0, gbytes_per_s: 1, workers: 1 }\n",
     "device 'a' has no gflops; it needs gflops, gbytes_per_s and workers, or a profile"},
    {"name: x\ndevices:\n  - { name: a, share: 1, gflops: 1, workers: 1 }\n",
     "device 'a' has no gbytes_per_s"},
    {"name: x\ndevices:\n  - { name: a, share: 1, gflops: 1, gbytes_per_s: 1 }\n",
     "device 'a' has no workers"},
    {"name: x\nlinks: &a { loss: [0, 0] }\nload: *a\n", "lias"},
    {"name: [\n", "test"},
    {"name: x\nswarm: { hosts: 3 }\n", "swarm needs swarm.trainers"},
    {"name: x\nmalice: { liar: 1 }\n", "malice needs swarm.trainers"},
    {"name: x\nswarm: { hosts: 2, trainers: 1 }\n"
     "malice: { garbage: 4294967295, liar: 1 }\n",
     "malice is 4.29497e+09; it must be from 0 to 4096"},
    {"name: x\ndevices:\n  - { name: a, share: 1, gflops: 1, gbytes_per_s: 1, workers: 1, "
     "down_mbit: 1e-300 }\n",
     "devices.down_mbit is 1e-300"},
    {"name: x\nswarm: { trainers: 1 }\n", "swarm.hosts is 0"},
    {"name: x\nswarm: { hosts: 2, trainers: 1, copies: 3 }\n", "swarm.copies is 3"},
    {"name: x\nswarm: { hosts: 2, trainers: 1, copies: 0 }\n", "swarm.copies is 0"},
    {"name: x\nnodes: 0\nswarm: { hosts: 2, trainers: 1 }\n", "nodes is 0; with a swarm"},
    {"name: x\nswarm: { hosts: 2, trainers: 257 }\n", "swarm.trainers is 257"},
    {"name: x\nswarm: { hosts: 2, trainers: 1, top_k: 5 }\n", "swarm.top_k is 5"},
    {"name: x\nswarm: { hosts: 2, trainers: 1, averaging: none }\n", "none"},
    {"name: x\nnodes: 5\nswarm: { hosts: 2, trainers: 1 }\n", "leave it out"},
    {"name: x\nswarm: { hosts: 2, trainer: 1 }\n", "did you mean 'swarm.trainers'?"},
};

TEST(errors_of_files_name_the_key)
{
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad_files); i++) {
        struct hth_scenario *s;
        char error[HTH_SCENARIO_ERROR_MAX];
        const char *text = bad_files[i].text;
        assert_err(HTH_E_CONFIG,
                   hth_scenario_parse("test", (const uint8_t *)text, strlen(text), &s, error));
        assert_null(s);
        if (strstr(error, bad_files[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", error, bad_files[i].says);
    }
    char *large = hth_calloc(HTH_SCENARIO_BYTES_MAX + 1, 1);
    struct hth_scenario *s;
    char error[HTH_SCENARIO_ERROR_MAX];
    assert_err(HTH_E_TOO_LARGE,
               hth_scenario_parse("test", (uint8_t *)large, HTH_SCENARIO_BYTES_MAX + 1, &s, error));
    hth_free(large);
    /* One zone too many. */
    char *zones = hth_calloc(65536, 1);
    size_t at = (size_t)sprintf(zones, "name: x\nzones:\n");
    for (int i = 0; i <= HTH_SCENARIO_ZONES_MAX; i++)
        at += (size_t)sprintf(zones + at, "  - { name: z, share: 1, latency_ms: [1] }\n");
    assert_err(HTH_E_CONFIG, hth_scenario_parse("test", (uint8_t *)zones, at, &s, error));
    hth_free(zones);
}

/* ---- the draw ------------------------------------------------------------------------------ */

/* Every drawn number lies in its range, seeds differ, and the mean is the middle of the range. */
TEST(draws_fill_their_ranges)
{
    (void)state;
    struct hth_scenario *s = read_scenario("faults");
    double loss = 0, up = 0;
    char text[HTH_SCENARIO_TEXT_MAX], again[HTH_SCENARIO_TEXT_MAX];
    struct hth_plan p, q;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        hth_scenario_draw(s, seed, &p);
        assert_true(p.link.loss >= 0 && p.link.loss <= 0.01);
        assert_true(p.link.latency_us >= 1000 && p.link.latency_us <= 100000);
        assert_true(p.churn.peer.shape >= 0.5 && p.churn.peer.shape <= 1.5);
        assert_true(p.partition_for_us >= HTH_US_PER_S && p.partition_for_us <= 8 * HTH_US_PER_S);
        loss += p.link.loss / 2000;
        up += (double)p.churn.peer.up_us * 1e-6 / 2000;
    }
    assert_true(loss > 0.0047 && loss < 0.0053); /* five standard errors: 0.0003 */
    assert_true(up > 104 && up < 116);
    hth_scenario_draw(s, 5, &p);
    hth_scenario_draw(s, 5, &q);
    assert_string_equal(hth_plan_text(&p, text), hth_plan_text(&q, again));
    assert_non_null(strstr(text, "scenario faults, seed 5: 50 nodes"));
    hth_scenario_draw(s, 6, &q);
    assert_true(strcmp(text, hth_plan_text(&q, again)) != 0);
    hth_scenario_free(s);
}

/* ---- runs ---------------------------------------------------------------------------------- */

TEST(same_seed_gives_the_same_run)
{
    (void)state;
    struct hth_scenario *s = read_scenario("faults");
    struct hth_scenario_report a, b, c;
    char line_a[HTH_SCENARIO_LINE_MAX], line_b[HTH_SCENARIO_LINE_MAX];
    run_one(s, 3, &a);
    run_one(s, 3, &b);
    run_one(s, 4, &c);
    assert_string_equal(hth_scenario_line(&a, "", 0, line_a), hth_scenario_line(&b, "", 0, line_b));
    assert_memory_equal(line_a, "PASS scenario=faults seed=3 hash=", 33);
    assert_true(a.hash != c.hash);
    a.pass = false;
    snprintf(a.why, sizeof(a.why), "a thing broke");
    hth_scenario_line(&a, "do it again", 2000000, line_a);
    assert_memory_equal(line_a, "FAIL scenario=faults seed=3 ", 28);
    assert_non_null(strstr(line_a, " why=\"a thing broke\" again=\"do it again\""));
    assert_non_null(strstr(line_a, " wall_s=2.00"));
    hth_scenario_free(s);
}

/* A calm world loses nothing; its numbers follow from the load. */
TEST(calm_scenarios_lose_nothing)
{
    (void)state;
    struct hth_scenario *s = parse_ok("name: c\nnodes: 10\nduration_s: 30\nload: { real: true, "
                                      "payload_kib: 2, calls_per_s: 2 }\n");
    struct hth_scenario_report r;
    run_one(s, 1, &r);
    assert_true(r.pass);
    assert_int_equal(r.calls, r.calls_ok);
    /* Ten peers, two calls a second, for 30 s minus the first two or three. */
    assert_true(r.calls > 530 && r.calls < 600);
    assert_int_equal(r.deaths + r.partitions + r.clogs + r.steps, 0);
    hth_scenario_free(s);
}

/* A trace drives the nodes: each of its two peers is played by every other node. */
TEST(traces_drive_a_scenario)
{
    (void)state;
    static const char csv[] = "peer,on,off,up,down,speed\na,0,,0,0,1\n"
                              "b,0,10,0,0,1\nb,15,20,1000000,1000000,0.1\n";
    struct hth_scenario *s = parse_ok("name: t\nnodes: 10\nduration_s: 60\nsafety: 0.5\n");
    struct hth_avail avail;
    struct hth_scenario_report r;
    struct hth_plan plan;
    char error[HTH_AVAIL_ERROR_MAX];
    assert_ok(hth_avail_parse(csv, strlen(csv), &avail, error));
    struct hth_scenario_opts opts = {.log_level = HTH_ERROR, .trace = &avail};
    hth_scenario_draw(s, 1, &plan);
    assert_ok(hth_scenario_run(&plan, &opts, &r));
    if (!r.pass)
        fail_msg("%s", r.why);
    assert_int_equal(r.deaths, 10); /* five nodes, at 10 s and at 20 s */
    hth_avail_clear(&avail);
    hth_scenario_free(s);
}

TEST(kept_seeds_pass)
{
    (void)state;
    FILE *f = fopen(HTH_SEEDS_FILE, "r");
    char line[256], name[64] = "", last[64] = "", error[HTH_SCENARIO_LINE_MAX];
    int count = 0;
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        uint64_t seed;
        struct hth_scenario_report r;
        if (line[0] == '#' || line[0] == '\n')
            continue;
        memcpy(last, name, sizeof(last));
        assert_int_equal(sscanf(line, "%63s %" SCNu64, name, &seed), 2);
        if (HTH_TEST_FEW && strcmp(name, last) == 0)
            continue;
        struct hth_scenario *s = read_scenario(name);
        run_one(s, seed, &r);
        if (!r.pass)
            fail_msg("%s", hth_scenario_line(&r, name, 0, error));
        hth_scenario_free(s);
        count++;
    }
    fclose(f);
    assert_true(count >= 8);
}

#endif
