/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dense.c: dense models in whole trainers: they learn, an interrupted one goes on to the bit,
 * several average, and layers that share their weights send them once.
 */
#include "core/mem.h"
#include "support/suite.h"
#include "trainer/crew.h"

#define UPDATES 60

static struct hth_model_opts dense_lm(const struct hth_model_opts *task)
{
    struct hth_model_opts o = *task;

    o.dense = true;
    o.layers = 6;
    o.tied = true;
    o.layer_scale = 0.5f;
    return o;
}

/* ---- one trainer ----------------------------------------------------------------------------- */

/* Trains `updates` in all; with `resume` from the checkpoint. */
static void train(struct task *f, struct hth_trainer_opts *o, uint64_t updates, bool resume)
{
    o->updates_max = updates;
    o->checkpoint_path = "trunk";
    o->resume = resume;
    o->eval_every = 20;
    o->has_eval_data = true;
    task_run(f, *o);
    assert_int_equal(f->stats.rows_mixed, 0);
}

TASK_TEST(trainer_learns_and_resumes)
{
    struct task *f = *state, *g;
    struct hth_trainer_opts o = task_lm();

    o.model = dense_lm(&o.model);
    o.model.share = 2;
    o.flights = 1;
    train(f, &o, UPDATES, false);
    /* The text has a pattern of few bytes: from 8 bits to less than one byte's entropy. */
    assert_true(f->loss[0] > 4.5 && f->loss[UPDATES - 1] < 0.6 * f->loss[0]);
    assert_true(f->eval.bits_per_code == 0);
    task_setup((void **)&g);
    train(g, &o, UPDATES / 2, false);
    train(g, &o, UPDATES, true);
    assert_memory_equal(g->loss, f->loss, sizeof(f->loss));
    assert_true(g->eval.loss == f->eval.loss);
    task_teardown((void **)&g);
}

/* ---- several --------------------------------------------------------------------------------- */

/* Bytes of one round of two trainers, and the parameters of their trunks. */
static double bytes_of_round(uint32_t share, uint64_t *parameters)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_LOCAL, 2);
    struct hth_averager_stats stats;
    struct crew_scene *s;

    o.trainer.micro_batch = 4;
    crew_use_lm(&o);
    o.trainer.model = dense_lm(&o.trainer.model);
    o.trainer.model.share = share;
    o.trainer.model.share_last = share > 0;
    o.trainer.share.every = 5;
    assert_ok(hth_model_count(&o.trainer.model, parameters));
    s = crew_scene_new(7, &o);
    crew_scene_run(s, 0, 30, 600 * S);
    assert_ok(hth_crew_err(s->crew));
    for (int i = 0; i < 60; i++) {
        hth_world_run_for(s->world, S);
        hth_averager_stats(hth_crew_averager(s->crew, 0), &stats);
        if (stats.rounds > 0)
            break;
    }
    assert_true(stats.rounds > 0);
    crew_scene_free(s);
    return (double)stats.last.bytes_out;
}

TEST(shared_layers_are_sent_once)
{
    uint64_t alone, shared;
    double bytes_alone = bytes_of_round(0, &alone), bytes_shared = bytes_of_round(1, &shared);

    assert_true(alone > 3 * shared);
    assert_close(bytes_alone / bytes_shared, (double)alone / (double)shared, 0.02, 0);
}
