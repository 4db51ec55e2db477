/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_jobs.c: simulated processors and disks: costs, contents and refusals.
 */
#include "core/budget.h"
#include "core/limits.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

struct work {
    struct hth_job job;
    struct hth_env *env;
    int runs, dones;
    int64_t done_us;
    enum hth_err err;
    const char *path; /* written by run when set */
};

static void work_run(struct hth_job *job)
{
    struct work *work = HTH_CONTAINER(job, struct work, job);
    work->runs++;
    assert_int_equal(work->dones, 0);
    if (work->path != NULL) {
        struct hth_blob *blob = hth_blob_copy("data", 4);
        struct hth_span span = {.blob = blob, .len = 4};
        assert_ok(hth_file_write(work->env, work->path, &span, 1));
        hth_blob_unref(blob);
    }
}

static void work_done(struct hth_job *job, enum hth_err err)
{
    struct work *work = HTH_CONTAINER(job, struct work, job);
    work->dones++;
    work->err = err;
    work->done_us = hth_now_us(work->env);
}

static void submit(struct work *work, struct hth_env *env, enum hth_lane lane, double flops,
                   double bytes)
{
    const char *path = work->path;
    *work = (struct work){.env = env, .path = path};
    work->job = (struct hth_job){
        .lane = lane, .run = work_run, .done = work_done, .flops = flops, .bytes_moved = bytes};
    assert_ok(hth_job_submit(env, &work->job));
    assert_int_equal(work->runs + work->dones, 0);
}

static struct hth_world_opts machine(uint32_t workers)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    opts.device = (struct hth_device){.flops_per_s = 1e9,
                                      .bytes_per_s = 1e8,
                                      .job_overhead_us = 10,
                                      .compute_workers = workers,
                                      .disk_bytes_per_s = 1e6,
                                      .disk_latency_us = 50};
    return opts;
}

TEST(jobs_cost_their_operations_and_bytes)
{
    (void)state;
    struct hth_world_opts opts = machine(1);
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    struct work a = {.runs = 0}, b = a, c = a, d = a;
    submit(&a, env, HTH_LANE_COMPUTE, 1e6, 0); /* 1000 us of arithmetic */
    /* 5000 us of memory traffic, which hides the arithmetic */
    submit(&b, env, HTH_LANE_COMPUTE, 1e6, 5e5);
    submit(&c, env, HTH_LANE_IO, 0, 1e4); /* 10000 us on the io lane, in parallel */
    submit(&d, env, HTH_LANE_IO, 0, 0);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(a.done_us, 1010);
    assert_int_equal(b.done_us, 1010 + 5010);
    assert_int_equal(c.done_us, 10050);
    assert_int_equal(d.done_us, 10100);
    struct work *all[4] = {&a, &b, &c, &d};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(all[i]->runs, 1);
        assert_int_equal(all[i]->dones, 1);
        assert_int_equal(all[i]->err, HTH_OK);
    }
    hth_world_free(w);
}

TEST(workers_run_in_parallel)
{
    (void)state;
    struct hth_world_opts opts = machine(3);
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    struct work work[7];
    memset(work, 0, sizeof(work));
    assert_int_equal(hth_lane_width(env, HTH_LANE_COMPUTE), 3);
    assert_int_equal(hth_lane_width(env, HTH_LANE_IO), 1);
    for (int i = 0; i < 7; i++)
        submit(&work[i], env, HTH_LANE_COMPUTE, 1e6, 0);
    hth_world_run_for(w, HTH_US_PER_S);
    for (int i = 0; i < 7; i++)
        assert_int_equal(work[i].done_us, 1010 * (1 + i / 3)); /* in the order of submission */
    hth_world_free(w);
}

/* Each card computes two jobs at a time, in parallel to the other cards and the processor. */
TEST(each_card_has_its_own_lane)
{
    (void)state;
    struct hth_world_opts opts = machine(1);
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    struct work cpu, card[2][4];
    memset(&cpu, 0, sizeof(cpu));
    memset(card, 0, sizeof(card));
    assert_int_equal(hth_lane_width(env, hth_lane_of_card(HTH_CARDS_MAX - 1)), 2);
    for (int i = 0; i < 4; i++) {
        submit(&card[0][i], env, hth_lane_of_card(0), 1e6, 0);
        submit(&card[1][i], env, hth_lane_of_card(HTH_CARDS_MAX - 1), 2e6, 0);
    }
    submit(&cpu, env, HTH_LANE_COMPUTE, 1e6, 0);
    hth_world_run_for(w, HTH_US_PER_S);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(card[0][i].done_us, 1010 * (1 + i / 2));
        assert_int_equal(card[1][i].done_us, 2010 * (1 + i / 2));
    }
    assert_int_equal(cpu.done_us, 1010);
    hth_world_free(w);
}

TEST(ghosts_are_charged_but_not_run)
{
    (void)state;
    struct hth_world_opts opts = machine(1);
    opts.ghost = true;
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    struct work a = {.runs = 0};
    submit(&a, env, HTH_LANE_COMPUTE, 1e6, 0);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(a.runs, 0);
    assert_int_equal(a.done_us, 1010);
    hth_world_free(w);
}

TEST(full_lanes_refuse_and_crashes_cancel_jobs)
{
    (void)state;
    struct hth_world_opts opts = machine(1);
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_node *n = hth_world_node(w, "n", NULL);
    struct hth_env *env = hth_node_env(n);
    enum { N = HTH_LANE_JOBS_MAX + 2 };
    struct work *work = hth_new_array(struct work, N);
    for (int i = 0; i < N - 1; i++) /* one runs, the others wait */
        submit(&work[i], env, HTH_LANE_COMPUTE, 1e6, 0);
    work[N - 1].job = work[0].job;
    assert_err(HTH_E_QUEUE_FULL, hth_job_submit(env, &work[N - 1].job));
    struct hth_open_counts open;
    hth_node_open(n, &open);
    assert_int_equal(open.jobs, N - 1);
    hth_world_run_for(w, 10 * 1010);
    hth_node_crash(n, HTH_CRASH_RESET);
    for (int i = 0; i < N - 1; i++) {
        assert_int_equal(work[i].dones, 1);
        assert_int_equal(work[i].err, i < 10 ? HTH_OK : HTH_E_CANCELED);
    }
    assert_err(HTH_E_CANCELED, hth_job_submit(env, &work[N - 1].job));
    hth_free(work);
    hth_world_free(w);
}

/* ---- payload memory ------------------------------------------------------------------------ */

TEST(payloads_are_charged_to_budgets)
{
    (void)state;
    for (int ghost = 0; ghost < 2; ghost++) {
        struct hth_world_opts opts = machine(1);
        opts.ghost = ghost;
        struct hth_world *w = hth_world_new(1, &opts);
        struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
        struct hth_budget budget;
        hth_budget_init(&budget, 1000, NULL);
        struct hth_blob *a, *b;
        assert_ok(hth_env_blob_new(env, 600, &budget, &a));
        assert_int_equal(a->size, 600);
        assert_int_equal(a->data == NULL, ghost);
        assert_err(HTH_E_BUDGET, hth_env_blob_new(env, 600, &budget, &b));
        assert_null(b);
        hth_blob_unref(a);
        assert_int_equal(hth_budget_used(&budget), 0);
        hth_world_free(w);
    }
}

/* ---- disks --------------------------------------------------------------------------------- */

static enum hth_err put_file(struct hth_env *env, const char *path, const char *text)
{
    struct hth_blob *blob = hth_blob_copy(text, strlen(text));
    size_t half = blob->size / 2;
    struct hth_span spans[2] = {{blob, 0, half}, {blob, half, blob->size - half}};
    enum hth_err err = hth_file_write(env, path, spans, 2);
    hth_blob_unref(blob);
    return err;
}

static void assert_file(struct hth_env *env, const char *path, const char *text)
{
    struct hth_blob *blob;
    assert_ok(hth_file_read(env, path, 1000, &blob));
    assert_int_equal(blob->size, strlen(text));
    assert_memory_equal(blob->data, text, blob->size);
    hth_blob_unref(blob);
}

TEST(files_are_written_read_and_removed)
{
    (void)state;
    struct hth_world_opts opts = machine(1);
    opts.device.disk_bytes_max = 20;
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_node *n = hth_world_node(w, "n", NULL), *m = hth_world_node(w, "m", NULL);
    struct hth_env *env = hth_node_env(n);
    uint64_t size;
    size_t got;
    char buf[8];
    assert_err(HTH_E_NO_FILE, hth_file_size(env, "a/b", &size));
    assert_err(HTH_E_NO_FILE, hth_file_pread(env, "a/b", 0, buf, 8, &got));
    assert_err(HTH_E_NO_FILE, hth_file_remove(env, "a/b"));
    assert_ok(put_file(env, "a/b", "0123456789"));
    assert_file(env, "a/b", "0123456789");
    assert_ok(hth_file_size(env, "a/b", &size));
    assert_int_equal(size, 10);
    assert_ok(hth_file_pread(env, "a/b", 7, buf, 8, &got));
    assert_int_equal(got, 3);
    assert_memory_equal(buf, "789", 3);
    assert_ok(hth_file_pread(env, "a/b", 99, buf, 8, &got));
    assert_int_equal(got, 0);
    assert_err(HTH_E_NO_FILE, hth_file_size(hth_node_env(m), "a/b", &size)); /* another disk */

    assert_ok(put_file(env, "a/b", "abc"));
    assert_err(HTH_E_DISK_FULL, put_file(env, "c", "123456789012345678"));
    assert_file(env, "a/b", "abc");
    hth_node_crash(n, HTH_CRASH_SILENT);
    assert_err(HTH_E_IO, put_file(env, "d", "x"));
    hth_node_restart(n);
    assert_file(env, "a/b", "abc");
    assert_ok(hth_file_remove(env, "a/b"));
    assert_err(HTH_E_NO_FILE, hth_file_size(env, "a/b", &size));

    hth_world_mount(w, "data/train", "shared", 6);
    assert_file(env, "data/train", "shared");
    assert_file(hth_node_env(m), "data/train", "shared");
    assert_err(HTH_E_PERMISSION, put_file(env, "data/train", "mine"));
    assert_err(HTH_E_PERMISSION, hth_file_remove(env, "data/train"));
    hth_world_free(w);
}

TEST(disks_inject_io_errors_and_torn_files)
{
    (void)state;
    struct hth_world_opts opts = machine(1);
    opts.chaos.io_error = 1.0;
    opts.chaos.torn_file = 1.0;
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_node *n = hth_world_node(w, "n", NULL);
    struct hth_env *env = hth_node_env(n);
    assert_err(HTH_E_IO, put_file(env, "old", "0123456789"));
    opts.chaos.io_error = 0.0;
    hth_world_set_chaos(w, &opts.chaos);
    assert_ok(put_file(env, "old", "0123456789"));
    hth_world_run_for(w, 6 * HTH_US_PER_S);
    assert_ok(put_file(env, "new", "0123456789"));
    hth_node_crash(n, HTH_CRASH_SILENT);
    hth_node_restart(n);
    assert_file(env, "old", "0123456789");
    size_t len;
    assert_non_null(hth_node_disk_get(n, "new", &len));
    assert_true(len < 10);
    hth_world_free(w);
}

/* Bytes that a torn file lost take no room on the disk. */
TEST(torn_file_uses_only_its_remaining_bytes)
{
    (void)state;
    struct hth_world_opts opts = machine(1);
    opts.chaos.torn_file = 1.0;
    opts.device.disk_bytes_max = 100;
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_node *n = hth_world_node(w, "n", NULL);
    struct hth_env *env = hth_node_env(n);
    char text[101];
    size_t len;
    memset(text, 'x', sizeof(text));
    text[80] = '\0';
    assert_ok(put_file(env, "torn", text));
    assert_err(HTH_E_DISK_FULL, put_file(env, "more", "012345678901234567890"));
    hth_node_crash(n, HTH_CRASH_SILENT);
    hth_node_restart(n);
    assert_non_null(hth_node_disk_get(n, "torn", &len));
    assert_in_range(len, 0, 79);
    text[80] = 'x';
    text[100 - len] = '\0'; /* as large as the disk */
    assert_ok(put_file(env, "more", text));
    assert_err(HTH_E_DISK_FULL, put_file(env, "last", "x"));
    hth_world_free(w);
}

/* A file takes the room of its newest content, however often it is written. */
TEST(overwriting_a_file_frees_its_old_content)
{
    static const char *const contents[] = {"0123456789", "012", "", "01234567"};
    struct hth_world_opts opts = machine(1);
    char rest[21];
    (void)state;
    opts.device.disk_bytes_max = 20;
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_node *n = hth_world_node(w, "n", NULL);
    struct hth_env *env = hth_node_env(n);
    for (size_t i = 0; i < 40; i++) {
        const char *text = contents[i % HTH_ARRAY_LEN(contents)];
        size_t room = 20 - strlen(text);
        assert_ok(put_file(env, "again", text));
        memset(rest, 'x', sizeof(rest));
        rest[room] = '\0'; /* all the free room, then one byte more */
        assert_ok(put_file(env, "rest", rest));
        assert_err(HTH_E_DISK_FULL, put_file(env, "one", "x"));
        assert_ok(hth_file_remove(env, "rest"));
    }
    for (size_t i = 0; i < 40; i++) /* put by the test, from outside */
        hth_node_disk_put(n, "again", "0123456789", 10);
    assert_ok(put_file(env, "rest", "0123456789"));
    assert_err(HTH_E_DISK_FULL, put_file(env, "one", "x"));
    hth_world_free(w);
}

TEST(jobs_write_files)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) { /* run() comes early or late, by the seed */
        struct hth_world_opts opts = machine(1);
        struct hth_world *w = hth_world_new(seed, &opts);
        struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
        struct work a = {.path = "ck/1"};
        submit(&a, env, HTH_LANE_IO, 0, 4);
        hth_world_run_for(w, HTH_US_PER_S);
        assert_int_equal(a.err, HTH_OK);
        assert_file(env, "ck/1", "data");
        hth_world_free(w);
    }
}
