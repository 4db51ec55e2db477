/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/crew.h"

#include "core/mem.h"
#include "support/end_world.h"

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

struct hth_crew_opts crew_opts(enum hth_share_mode mode, uint32_t members)
{
    struct hth_crew_opts o = HTH_CREW_OPTS_INIT;

    o.trainer = task_classifier();
    o.trainer.local_optim.schedule.lr = 0;
    o.trainer.model.balance = 0;
    o.trainer.micro_batch = 6;
    o.trainer.eval_every = 0;
    o.trainer.updates_max = 1u << 30;
    o.trainer.share.mode = mode;
    o.members = members;
    o.device = &crew_slow;
    o.edit = crew_own_rows;
    return o;
}

struct hth_crew_opts crew_batch_opts(uint32_t members, uint64_t target)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH, members);

    o.trainer.share.target = target;
    return o;
}

void crew_use_lm(struct hth_crew_opts *o)
{
    struct hth_trainer_opts lm = task_lm();

    lm.local_optim.schedule.lr = 0;
    lm.model.balance = 0;
    lm.micro_batch = o->trainer.micro_batch;
    lm.eval_every = 0;
    lm.updates_max = o->trainer.updates_max;
    lm.share = o->trainer.share;
    o->trainer = lm;
}

void crew_own_rows(void *arg, uint32_t i, struct hth_trainer_opts *trainer)
{
    trainer->data.shuffle_rows = 64;
    trainer->data.peer = i + 1;
}

/* ---- a scene --------------------------------------------------------------------------------- */

struct crew_scene *crew_scene_near(uint64_t seed, int64_t latency_us,
                                   const struct hth_crew_opts *opts)
{
    struct crew_scene *s = hth_new(struct crew_scene);
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct hth_crew_opts crew = *opts;

    assert_true(opts->members <= CREW_MAX);
    s->opts = *opts;
    crew.members_max = CREW_MAX;
    world.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    world.link.latency_us = latency_us;
    world.log_level = HTH_WARN;
    world.log_sink = on_log;
    world.log_arg = s;
    s->world = hth_world_new(seed, &world);
    task_mount(s->world, &s->files, 3);
    s->crew = hth_crew_new(s->world, &crew);
    return s;
}

struct crew_scene *crew_scene_new(uint64_t seed, const struct hth_crew_opts *opts)
{
    const struct hth_world_opts usual = HTH_WORLD_OPTS_INIT;

    return crew_scene_near(seed, usual.link.latency_us, opts);
}

void crew_scene_free(struct crew_scene *s)
{
    end_world(s->world);
    hth_crew_free(s->crew);
    hth_free(s);
}

struct goal {
    struct hth_crew *crew;
    uint32_t i;
    uint64_t updates;
};

static bool is_reached(void *arg)
{
    const struct goal *g = arg;
    struct hth_train_stats stats = {.updates = 0};

    if (hth_crew_trainer(g->crew, g->i) != NULL)
        hth_trainer_stats(hth_crew_trainer(g->crew, g->i), &stats);
    return stats.updates >= g->updates;
}

void crew_scene_run(struct crew_scene *s, uint32_t i, uint64_t updates, int64_t within_us)
{
    struct goal g = {s->crew, i, updates};

    assert_true(hth_world_run_until_true(s->world, is_reached, &g, within_us));
}

int64_t crew_to_the_end(struct crew_scene *s, int64_t within_us)
{
    int64_t from = hth_world_now_us(s->world);

    assert_true(hth_world_run_until_true(s->world, hth_crew_all_done, s->crew, within_us));
    assert_ok(hth_crew_err(s->crew));
    return hth_world_now_us(s->world) - from;
}

void crew_crash(struct crew_scene *s, uint32_t i, enum hth_crash how)
{
    hth_node_crash(hth_crew_node(s->crew, i), how);
}

void crew_restart(struct crew_scene *s, uint32_t i)
{
    hth_node_restart(hth_crew_node(s->crew, i));
}

void crew_block(struct crew_scene *s, uint32_t i, uint32_t k)
{
    hth_world_block(s->world, hth_crew_node(s->crew, i), hth_crew_node(s->crew, k), true);
    hth_world_block(s->world, hth_crew_node(s->crew, k), hth_crew_node(s->crew, i), true);
}

struct hth_train_stats crew_stats(const struct crew_scene *s, uint32_t i)
{
    struct hth_train_stats stats = {.updates = 0};

    if (hth_crew_trainer(s->crew, i) != NULL)
        hth_trainer_stats(hth_crew_trainer(s->crew, i), &stats);
    return stats;
}

/* ---- steps ----------------------------------------------------------------------------------- */

const struct hth_collab *crew_collab(const struct crew_scene *s, uint32_t i)
{
    return hth_trainer_collab(hth_crew_trainer(s->crew, i));
}

struct hth_collab_stats crew_collab_stats(const struct crew_scene *s, uint32_t i)
{
    struct hth_collab_stats stats;

    hth_collab_stats(crew_collab(s, i), &stats);
    return stats;
}

/* The step of the one head that all hold; 0: they hold several, or somebody steps. */
static uint64_t common_step(const struct crew_scene *scene)
{
    struct hth_collab_stats first = {.step = 0}, s;

    for (uint32_t i = 0; i < hth_crew_count(scene->crew); i++) {
        if (hth_crew_trainer(scene->crew, i) == NULL)
            continue;
        s = crew_collab_stats(scene, i);
        if (first.step == 0)
            first = s;
        if (s.phase == HTH_COLLAB_STEPS || memcmp(&s.head, &first.head, sizeof(s.head)) != 0)
            return 0;
    }
    return first.step;
}

/* For the reader of a failed test. */
static void say(const struct crew_scene *scene)
{
    for (uint32_t i = 0; i < hth_crew_count(scene->crew); i++) {
        if (hth_crew_trainer(scene->crew, i) == NULL)
            continue;
        const struct hth_choice *c = hth_collab_choice(crew_collab(scene, i));
        struct hth_collab_stats s = crew_collab_stats(scene, i);

        print_message("%u: step %llu, head %02x%02x of %u, phase %u; joined %llu, forks %llu; "
                      "ballot %u, brings %u, %u seats\n",
                      i, (unsigned long long)s.step, s.head.b[0], s.head.b[1], s.members, s.phase,
                      (unsigned long long)s.joined, (unsigned long long)s.forks, c->promised,
                      c->samples, c->seats);
    }
}

uint64_t crew_same(struct crew_scene *s, int64_t within_us)
{
    int64_t until = hth_world_now_us(s->world) + within_us;
    uint64_t step;

    while ((step = common_step(s)) == 0 && hth_world_now_us(s->world) < until)
        hth_world_run_for(s->world, MS);
    if (step == 0)
        say(s);
    assert_ok(hth_crew_err(s->crew));
    assert_true(step > 0);
    assert_true(hth_crew_spread(s->crew) == 0);
    return step;
}

uint64_t crew_same_after(struct crew_scene *s, int64_t us)
{
    hth_world_run_for(s->world, us);
    return crew_same(s, S);
}
