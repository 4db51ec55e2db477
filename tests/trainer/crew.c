/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/crew.h"

#include "collab/collab.h"
#include "core/mem.h"
#include "support/test.h"

const struct hth_device crew_slow = {.flops_per_s = 50e9,
                                     .bytes_per_s = 10e9,
                                     .job_overhead_us = 5000,
                                     .compute_workers = 1,
                                     .disk_bytes_per_s = 500e6,
                                     .disk_latency_us = 100,
                                     .up_bytes_per_s = 125e6,
                                     .down_bytes_per_s = 125e6};

static void on_log(void *arg, const char *line, size_t len)
{
    struct crew_scene *s = arg;

    len = HTH_MIN(len, sizeof(s->said) - 1 - s->said_len);
    memcpy(s->said + s->said_len, line, len);
    s->said_len += len;
}

static struct hth_world *crew_world_near(uint64_t seed, int64_t latency_us,
                                         struct task_files *files, struct crew_scene *scene)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_world *world;

    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    opts.link.latency_us = latency_us;
    if (scene != NULL) {
        opts.log_level = HTH_WARN;
        opts.log_sink = on_log;
        opts.log_arg = scene;
    }
    world = hth_world_new(seed, &opts);
    task_mount(world, files, 3);
    return world;
}

struct hth_world *crew_world(uint64_t seed, struct task_files *files)
{
    const struct hth_world_opts usual = HTH_WORLD_OPTS_INIT;

    return crew_world_near(seed, usual.link.latency_us, files, NULL);
}

struct hth_crew_opts crew_opts(enum hth_share_mode mode)
{
    struct hth_crew_opts o = HTH_CREW_OPTS_INIT;

    o.trainer = task_classifier();
    o.trainer.local_optim.schedule.lr = 0;
    o.trainer.model.balance = 0;
    o.trainer.micro_batch = 6;
    o.trainer.eval_every = 0;
    o.trainer.share.mode = mode;
    return o;
}

void crew_own_rows(void *arg, uint32_t i, struct hth_trainer_opts *trainer)
{
    trainer->data.shuffle_rows = 64;
    trainer->data.peer = i + 1;
}

struct hth_train_stats crew_stats(struct hth_crew *crew, uint32_t i)
{
    struct hth_train_stats stats = {.updates = 0};

    if (hth_crew_trainer(crew, i) != NULL)
        hth_trainer_stats(hth_crew_trainer(crew, i), &stats);
    return stats;
}

/* The step of the one head that all hold; 0: they hold several, or somebody steps. */
static uint64_t common_step(struct hth_crew *crew)
{
    struct hth_collab_stats first = {.step = 0}, s;

    for (uint32_t i = 0; i < hth_crew_count(crew); i++) {
        if (hth_crew_trainer(crew, i) == NULL)
            continue;
        hth_collab_stats(hth_trainer_collab(hth_crew_trainer(crew, i)), &s);
        if (first.step == 0)
            first = s;
        if (s.phase == HTH_COLLAB_STEPS || memcmp(&s.head, &first.head, sizeof(s.head)) != 0)
            return 0;
    }
    return first.step;
}

/* For the reader of a failed test. */
static void say(struct hth_crew *crew)
{
    struct hth_collab_stats s;

    for (uint32_t i = 0; i < hth_crew_count(crew); i++) {
        if (hth_crew_trainer(crew, i) == NULL)
            continue;
        const struct hth_collab *collab = hth_trainer_collab(hth_crew_trainer(crew, i));
        const struct hth_choice *c = hth_collab_choice(collab);

        hth_collab_stats(collab, &s);
        print_message("%u: step %llu, head %02x%02x of %u, phase %u; joined %llu, forks %llu; "
                      "ballot %u, brings %u, %u seats\n",
                      i, (unsigned long long)s.step, s.head.b[0], s.head.b[1], s.members, s.phase,
                      (unsigned long long)s.joined, (unsigned long long)s.forks, c->promised,
                      c->samples, c->seats);
    }
}

uint64_t crew_same(struct hth_world *world, struct hth_crew *crew, int64_t within_us)
{
    int64_t until = hth_world_now_us(world) + within_us;
    uint64_t step;

    while ((step = common_step(crew)) == 0 && hth_world_now_us(world) < until)
        hth_world_run_for(world, HTH_US_PER_MS);
    if (step == 0)
        say(crew);
    assert_ok(hth_crew_err(crew));
    assert_true(step > 0);
    assert_true(hth_crew_spread(crew) == 0);
    return step;
}

void crew_end(struct hth_world *world, struct hth_crew *crew)
{
    struct hth_open_counts open;

    hth_world_leaks(world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(world);
    hth_crew_free(crew);
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    ((struct crew_scene *)arg)->stats[i] = *stats;
}

struct crew_scene *crew_scene_near(uint64_t seed, int64_t latency_us, struct hth_crew_opts *opts)
{
    struct crew_scene *s = hth_new(struct crew_scene);

    assert_true(opts->members <= CREW_MAX);
    opts->members_max = CREW_MAX;
    opts->on_update = on_update;
    opts->arg = s;
    s->world = crew_world_near(seed, latency_us, &s->files, s);
    s->crew = hth_crew_new(s->world, opts);
    return s;
}

struct crew_scene *crew_scene_new(uint64_t seed, struct hth_crew_opts *opts)
{
    const struct hth_world_opts usual = HTH_WORLD_OPTS_INIT;

    return crew_scene_near(seed, usual.link.latency_us, opts);
}

void crew_scene_free(struct crew_scene *s)
{
    crew_end(s->world, s->crew);
    hth_free(s);
}

struct goal {
    const struct hth_train_stats *stats;
    uint64_t updates;
};

static bool is_reached(void *arg)
{
    const struct goal *g = arg;

    return g->stats->updates >= g->updates;
}

void crew_scene_run(struct crew_scene *s, uint32_t i, uint64_t updates, int64_t within_us)
{
    struct goal g = {&s->stats[i], updates};

    assert_true(hth_world_run_until_true(s->world, is_reached, &g, within_us));
}
