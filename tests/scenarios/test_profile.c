/* SPDX-License-Identifier: Apache-2.0 */
/* test_profile.c: the costs of a measured device, against times computed by hand; and its files. */
#include "core/limits.h"
#include "core/mem.h"
#include "scenarios/file.h"
#include "sim/profile.h"
#include "sim/world.h"
#include "support/suite.h"

static const char good[] = "name: bench\n"
                           "workers: 2\n"
                           "gflops: 10\n"
                           "gbytes_per_s: 4\n"
                           "overhead_us: 7\n"
                           "forward:\n"
                           "  - { d: 100, rows: 1, us: 40 }\n"
                           "  - { d: 100, rows: 16, us: 160 }\n"
                           "  - { d: 400, rows: 1, us: 640 }\n"
                           "  - { d: 400, rows: 16, us: 1280 }\n"
                           "step:\n"
                           "  - { d: 100, us: 50 }\n";

static struct hth_profile *parse(const char *text)
{
    char error[HTH_PROFILE_ERROR_MAX];
    struct hth_profile *p;
    enum hth_err err = hth_profile_parse("t.yaml", (const uint8_t *)text, strlen(text), &p, error);
    if (err != HTH_OK)
        fail_msg("%s", error);
    return p;
}

static double us_of(const struct hth_profile *p, enum hth_work_kind kind, double flops,
                    uint64_t rows, uint32_t batches)
{
    struct hth_job_work work = {flops, rows, batches};
    return 1e6 * hth_profile_s(p, kind, &work);
}

#define ROW(d)     (16.0 * (d) * (d)) /* operations of a row, forward */
#define near(a, b) assert_close(a, b, 1e-9, 0)

TEST(times_are_interpolated)
{
    (void)state;
    struct hth_profile *p = parse(good);
    /* At measured points. */
    near(us_of(p, HTH_WORK_FORWARD, ROW(100), 1, 1), 40);
    near(us_of(p, HTH_WORK_FORWARD, 16 * ROW(400), 16, 1), 1280);
    /* Between rows: us = 40 sqrt(rows). */
    near(us_of(p, HTH_WORK_FORWARD, 4 * ROW(100), 4, 1), 80);
    /* Between widths: the time per operation is 40 us / ROW(100) at 100 and 640 us / (16 ROW(100))
     * at 400, the same. */
    near(us_of(p, HTH_WORK_FORWARD, ROW(200), 1, 1), 160);
    /* At 16 rows it halves from 100 to 400, so it has fallen by sqrt(2) half-way. */
    near(us_of(p, HTH_WORK_FORWARD, 16 * ROW(200), 16, 1), 4 * 160 / sqrt(2));
    /* Beyond the ends. */
    near(us_of(p, HTH_WORK_FORWARD, 64 * ROW(100), 64, 1), 640);
    near(us_of(p, HTH_WORK_FORWARD, ROW(800), 1, 1), 2560);
    near(us_of(p, HTH_WORK_FORWARD, ROW(50), 1, 1), 10);
    /* Three batches of four rows are three times one of them. */
    near(us_of(p, HTH_WORK_FORWARD, 12 * ROW(100), 12, 3), 240);
    near(us_of(p, HTH_WORK_STEP, 12 * (8e4 + 700), 1, 1), 50);
    /* Not measured: the rate counts. */
    near(us_of(p, HTH_WORK_BACKWARD, 1e6, 4, 1), 100);
    assert_true(us_of(p, HTH_WORK_FORWARD, 0, 0, 0) == 0);
    hth_profile_free(p);
}

struct work {
    struct hth_job job;
    struct hth_env *env;
    int64_t done_us;
};

static void run(struct hth_job *job)
{
    (void)job;
}

static void done(struct hth_job *job, enum hth_err err)
{
    struct work *work = HTH_CONTAINER(job, struct work, job);
    assert_ok(err);
    work->done_us = hth_now_us(work->env);
}

/* Run a job whose rows are counted by kind, and one whose kind is unknown. */
static void run_two(const struct hth_device *device, int64_t us[2])
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.device = *device;
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    struct work known = {.env = env}, other = {.env = env};
    known.job = (struct hth_job){.run = run, .done = done, .bytes_moved = 1e9, .flops = 1e6};
    hth_job_add(&known.job, HTH_WORK_FORWARD, 4 * ROW(100), 4);
    hth_job_add(&known.job, HTH_WORK_STEP, 12 * (8e4 + 700), 1);
    other.job = (struct hth_job){.run = run, .done = done, .bytes_moved = 4e6, .flops = 1e6};
    assert_ok(hth_job_submit(env, &known.job));
    assert_ok(hth_job_submit(env, &other.job)); /* on the second worker */
    hth_world_run_for(w, HTH_US_PER_S);
    us[0] = known.done_us;
    us[1] = other.done_us;
    hth_world_free(w);
}

TEST(node_charges_measured_times)
{
    (void)state;
    struct hth_profile *p = parse(good);
    struct hth_device device = HTH_DEVICE_INIT;
    int64_t us[2];
    hth_profile_apply(p, &device);
    assert_int_equal(device.compute_workers, 2);
    run_two(&device, us);
    assert_int_equal(us[0], 7 + 80 + 50 + 100); /* the last: 1e6 operations of no measured kind */
    assert_int_equal(us[1], 7 + 1000);          /* its bytes */
    hth_device_scale(&device, 0.5);
    run_two(&device, us);
    assert_int_equal(us[0], 7 + 2 * (80 + 50 + 100));
    assert_int_equal(us[1], 7 + 2000);
    hth_profile_free(p);
}

static void refuse(const char *text, size_t len, enum hth_err want, const char *words)
{
    char error[HTH_PROFILE_ERROR_MAX];
    struct hth_profile *p;
    enum hth_err err = hth_profile_parse("t.yaml", (const uint8_t *)text, len, &p, error);
    if (err != want || p != NULL || strstr(error, words) == NULL)
        fail_msg("'%.60s...': error %d, text '%s' without '%s'", text, err, error, words);
}

static void refuses(const char *text, const char *words)
{
    refuse(text, strlen(text), HTH_E_CONFIG, words);
}

#define HEAD "name: a\nworkers: 1\ngflops: 1\ngbytes_per_s: 1\n"

TEST(errors_of_files_name_the_key)
{
    (void)state;
    refuses("", "empty");
    refuses("name: a\n", "workers");
    refuses(HEAD "speed: 3\n", "speed");
    refuses(HEAD "forward:\n - { d: 4, rows: x, us: 1 }\n", "rows");
    refuses(HEAD "forward:\n - { d: 0, rows: 1, us: 1 }\n", "forward[0].d is 0");
    refuses(HEAD "forward:\n - { d: 65537, rows: 1, us: 1 }\n", "forward[0].d");
    refuses(HEAD "backward:\n - { d: 8, rows: 1048577, us: 1 }\n", "backward[0].rows");
    refuses(HEAD "step:\n - { d: 8, us: -1 }\n", "step[0].us");
    refuses(HEAD "step:\n - { d: 8, us: .nan }\n", "us");
    refuses(HEAD "step:\n - { d: 8, us: 1 }\n - { d: 8, us: 2 }\n", "step[1] does not follow");
    refuses(HEAD "forward:\n - { d: 8, rows: 2, us: 1 }\n - { d: 8, rows: 1, us: 2 }\n",
            "forward[1] does not follow");
    refuses("name: a\nworkers: 0\ngflops: 1\ngbytes_per_s: 1\n", "workers is 0");
    refuses("name: a\nworkers: 1\ngflops: 1e300\ngbytes_per_s: 1\n", "gflops is 1e+300");
    refuses(HEAD "forward: &a\n - { d: 8, rows: 2, us: 1 }\nbackward: *a\n", "");
}

TEST(size_of_profiles_is_bounded)
{
    (void)state;
    size_t max = HTH_PROFILE_BYTES_MAX + 1, len = strlen(HEAD) + strlen("step:\n");
    char *text = hth_calloc(max, 1);
    memset(text, '#', max);
    refuse(text, max, HTH_E_TOO_LARGE, "at most");
    memcpy(text, HEAD "step:\n", len);
    for (uint32_t i = 0; i <= HTH_PROFILE_POINTS_MAX; i++)
        len += (size_t)sprintf(text + len, " - { d: %u, us: 1 }\n", i + 1);
    refuse(text, len, HTH_E_CONFIG, "1024 max");
    /* One less is fine. */
    while (text[--len - 1] != '\n')
        ;
    char error[HTH_PROFILE_ERROR_MAX];
    struct hth_profile *p;
    assert_ok(hth_profile_parse("t", (const uint8_t *)text, len, &p, error));
    assert_int_equal(p->step.count, HTH_PROFILE_POINTS_MAX);
    hth_profile_free(p);
    hth_free(text);
}

/* The same world is slower with slower peers, by the times of the profile. */
TEST(scenario_devices_use_their_profile)
{
    (void)state;
    static const char text[] = "name: t\nnodes: 4\nduration_s: 30\nsafety: 0\n"
                               "load: { payload_kib: 4, hood: 4 }\n"
                               "links: { latency_ms: [1, 1] }\n"
                               "devices:\n  - { name: own, share: 1, profile: own.yaml }\n";
    char error[HTH_SCENARIO_ERROR_MAX];
    struct hth_scenario *s;
    assert_ok(hth_scenario_parse("t", (const uint8_t *)text, strlen(text), &s, error));
    assert_string_equal(s->devices[0].profile, "own.yaml");
    double median[2];
    for (int slow = 0; slow < 2; slow++) {
        struct hth_scenario_opts opts = {.log_level = HTH_ERROR};
        struct hth_scenario_report report;
        struct hth_plan plan;
        struct hth_profile *p = parse(good);
        /* A call is one row of 5e7 operations: as wide as 1768. */
        for (uint32_t i = 0; i < p->forward.count; i++)
            p->forward.points[i].us *= slow ? 9 : 1;
        s->devices[0].measured = p;
        hth_scenario_draw(s, 1, &plan);
        assert_ok(hth_scenario_run(&plan, &opts, &report));
        assert_true(report.pass);
        median[slow] = report.latency_median_us;
        hth_profile_free(p);
    }
    /* 640 us for 16 * 400^2 operations: 12500 us for 5e7, and eight times as much on top. */
    assert_float_equal(median[1] - median[0], 8 * 12500, 200);
    s->devices[0].measured = NULL;
    hth_scenario_free(s);
}
