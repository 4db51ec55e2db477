/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer that follows the protocol and lies about values, weights or means, in groups of two to
 * eight: what it does to the accuracy of the others, with the bounds of a run and without.
 */
#include "averaging/part.h"
#include "averaging/reduce_int.h"
#include "collab/collab_int.h"
#include "core/mem.h"
#include "support/suite.h"
#include "trainer/crew.h"
#include "trainer/trainer_int.h"

#include <math.h>

#define EVALS    16u
#define STEPS    48u         /* of a batch; a test each third one */
#define UPDATES  256u        /* of parameters; a test and at most a round each 16 */
#define KNOWN    8u          /* steps: then all have half the deeds of the one that began the run */
#define CLAIMED  1000000000u /* samples of a batch */
#define LOST_MAX 3u          /* tests in a row in which the others may be below 0.9 of calm */

enum lie {
    CALM,    /* nobody lies */
    NUMBERS, /* +-1000 */
    LARGE,   /* 1e30 */
    NANS,
    TURNED,  /* times -1000 */
    WEIGHTY, /* +-1000, with a weight of 1e9 */
    REDUCES, /* means of 1000 */
};

static struct {
    struct crew_scene *crew;
    enum lie lie;
    uint32_t liar; /* the last */
    bool lies;     /* has begun to */
    double accuracy[EVALS + 1];
    uint32_t evals;
    struct hth_averager honest, lying; /* LOCAL */
} scene;

static void fill(float *x, size_t n, enum lie lie)
{
    for (size_t i = 0; i < n; i++)
        x[i] = lie == NANS     ? NAN
               : lie == LARGE  ? 1e30f
               : lie == TURNED ? x[i] * -1000
                               : (i % 2 ? 1000.0f : -1000.0f);
}

/* ---- values: a batch ------------------------------------------------------------------------- */

static void (*true_take)(void *trainer);

static void take(void *trainer)
{
    struct hth_trainer *t = trainer;
    float *sum = t->batch.sum;
    size_t n = hth_params_flat_len(hth_model_params(hth_trainer_model(t)));

    fill(sum, n, scene.lie);
    if (scene.lie == WEIGHTY)
        t->batch.samples = CLAIMED;
    for (size_t i = 0; i < n && scene.lie != TURNED && scene.lie != LARGE; i++)
        sum[i] *= (float)t->batch.samples;
    true_take(t);
}

/* ---- values: parameters ---------------------------------------------------------------------- */

static enum hth_err offer(void *self, const struct hth_avg_offer *o)
{
    struct hth_avg_offer lie = *o;
    struct hth_trainer *t = hth_crew_trainer(scene.crew->crew, scene.liar);
    enum hth_err err;

    assert_ok(hth_env_blob_new(t->env, o->count * sizeof(float), NULL, &lie.values));
    memcpy(lie.values->data, o->values->data, o->count * sizeof(float));
    fill((float *)(void *)lie.values->data, o->count, scene.lie);
    if (scene.lie == WEIGHTY)
        lie.weight = HTH_AVG_WEIGHT_MAX;
    err = hth_averager_offer(&scene.honest, &lie);
    hth_blob_unref(lie.values);
    return err;
}

static void lie_about_parameters(struct hth_trainer *t)
{
    static struct hth_averager_ops ops;

    scene.honest = t->average.averager;
    ops = *scene.honest.ops;
    ops.offer = offer;
    scene.lying = (struct hth_averager){&ops, scene.honest.self};
    t->average.averager = scene.lying;
}

/* ---- means ----------------------------------------------------------------------------------- */

static bool has_begun(const struct hth_reducer *red, const struct hth_hash *group)
{
    for (uint32_t i = 0; i < red->round_count; i++)
        if (memcmp(&red->rounds[i]->is.group, group, sizeof(*group)) == 0)
            return true;
    return false;
}

/* The mean of each part that is sent to it is 1000, and everybody is in it. */
static void answer(void *arg, struct hth_rpc_request *req)
{
    struct hth_trainer *t = arg;
    size_t len, count;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    const struct hth_tensor *in = hth_rpc_tensors(req, &count);
    struct hth_part_reply reply = {.floats = 0};
    struct hth_tensor out = {.dtype = HTH_U8, .ndim = 1};
    uint8_t bytes[HTH_PART_BYTES_MAX];
    struct hth_rpc_body body = {.payload = bytes, .tensors = &out};
    struct hth_part_head head;

    assert_ok(hth_part_open(payload, len, count > 0 ? in[0].dim[0] : 0, &head));
    if (!has_begun(t->opts.share.reducer, &head.group)) {
        hth_rpc_refuse(req, HTH_E_BUSY, 20 * HTH_US_PER_MS, NULL);
        return;
    }
    out.dim[0] = head.floats * sizeof(float);
    if (head.floats > 0) {
        assert_ok(hth_env_blob_new(t->env, out.dim[0], NULL, &out.blob));
        for (uint32_t i = 0; i < head.floats; i++)
            ((float *)(void *)out.blob->data)[i] = 1000;
        reply.segments[0] = (struct hth_segment){HTH_QUANT_F32, head.floats};
        reply.segment_count = body.tensor_count = 1;
    }
    body.payload_len = hth_part_reply_pack(&reply, bytes);
    hth_rpc_reply(req, &body);
    hth_blob_unref(out.blob);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void begin_to_lie(struct hth_trainer *t)
{
    scene.lies = true;
    if (scene.lie == REDUCES) {
        hth_rpc_serve(hth_crew_rpc(scene.crew->crew, scene.liar), HTH_REDUCE_METHOD, answer, t);
    } else if (t->collab != NULL) {
        true_take = t->collab->ops.take;
        t->collab->ops.take = take;
    } else {
        lie_about_parameters(t);
    }
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct hth_trainer *t = hth_crew_trainer(scene.crew->crew, i);

    if (i != scene.liar || scene.lie == CALM)
        return;
    /* NaN from the first step on: of 3 and of 4 the liar began the run, and is its only voter. */
    if (!scene.lies && stats->updates >= (scene.lie == NANS ? 1 : KNOWN))
        begin_to_lie(t);
    if (scene.lies && scene.lie != REDUCES)
        t->average.discard = t->average.out; /* a liar takes no mean with its lie */
    if (scene.lies && scene.lie == WEIGHTY && t->collab != NULL) {
        t->batch.samples = CLAIMED;
        hth_shared_tell(t);
    }
}

static void on_eval(void *arg, uint32_t i, const struct hth_eval_result *result)
{
    if (i == 0 && scene.evals <= EVALS)
        scene.accuracy[scene.evals++] = result->accuracy;
}

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *trainer)
{
    crew_own_rows(arg, i, trainer);
    trainer->eval_every = i == 0 ? trainer->updates_max / EVALS : 0;
}

static bool is_done(void *crew)
{
    return hth_crew_is_done(crew, 0);
}

static void play_on(const char *shape, uint64_t seed, enum hth_share_mode mode, uint32_t n,
                    enum lie lie, double clip)
{
    struct hth_crew_opts o = crew_opts(mode, n);

    if (shape != NULL)
        assert_ok(hth_avg_shape_parse(shape, &o.roster.shape));
    memset(&scene, 0, sizeof(scene));
    scene.lie = lie;
    scene.liar = n - 1;
    o.trainer.updates_max = mode == HTH_SHARE_BATCH ? STEPS : UPDATES;
    o.trainer.eval_samples = 36; /* in less than a step: who tests brings nothing meanwhile */
    o.trainer.share.target = 12 * n;
    o.trainer.share.every = UPDATES / EVALS;
    o.reducer.clip = clip;
    o.edit = edit;
    o.on_update = on_update;
    o.on_eval = on_eval;
    scene.crew = crew_scene_new(seed, &o);
    assert_true(hth_world_run_until_true(scene.crew->world, is_done, scene.crew->crew, 500 * S));
    assert_ok(hth_crew_err(scene.crew->crew));
}

/* Tests in a row that were worse than 0.9 of the calm ones, at most. */
static uint32_t lost(const double *calm)
{
    uint32_t most = 0, run = 0;

    for (uint32_t i = 0; i < EVALS; i++) {
        run = scene.accuracy[i] < 0.9 * calm[i] ? run + 1 : 0;
        most = HTH_MAX(most, run);
    }
    return most;
}

/* Returns the accuracy at the end; *most of the tests in a row that were bad. */
static double outcome(enum hth_share_mode mode, uint32_t n, enum lie lie, double clip, double *calm,
                      uint32_t *most)
{
    double last;

    play_on(NULL, n, mode, n, lie, clip);
    if (lie == CALM)
        memcpy(calm, scene.accuracy, sizeof(scene.accuracy));
    assert_in_range(scene.evals, EVALS, EVALS + 1);
    last = scene.accuracy[EVALS - 1];
    *most = lost(calm);
    print_message(
        "%s of %u, clip %g, lie %d: accuracy %.3f at the end, %u tests in a row below 0.9 of "
        "calm, %llu means refused, %llu rounds failed\n",
        mode == HTH_SHARE_BATCH ? "batch" : "local", n, clip, (int)lie, last, *most,
        (unsigned long long)crew_stats(scene.crew, 0).share.means_refused,
        (unsigned long long)crew_stats(scene.crew, 0).share.run.averages.failed);
    crew_scene_free(scene.crew);
    return last;
}

TEST(one_liar_costs_little)
{
    static const struct {
        enum hth_share_mode mode;
        uint32_t n;
    } groups[] = {{HTH_SHARE_BATCH, 3},
                  {HTH_SHARE_BATCH, 4},
                  {HTH_SHARE_BATCH, 8},
                  {HTH_SHARE_LOCAL, 2},
                  {HTH_SHARE_LOCAL, 4}};
    double calm[EVALS + 1];
    uint32_t most;

    for (size_t i = 0; i < HTH_ARRAY_LEN(groups); i++) {
        double usual = outcome(groups[i].mode, groups[i].n, CALM, HTH_AVG_CLIP, calm, &most);

        for (enum lie lie = NUMBERS; lie <= REDUCES; lie++) {
            double last;

            last = outcome(groups[i].mode, groups[i].n, lie, HTH_AVG_CLIP, calm, &most);
            assert_true(last >= usual - 0.02);
            assert_true(most <= LOST_MAX);
        }
    }
}

/* Of two voters one can't go on by a quorum: it goes on by a fork. */
TEST(not_finite_values_stop_no_pair)
{
    double calm[EVALS + 1] = {0};
    uint32_t most;

    assert_true(outcome(HTH_SHARE_BATCH, 2, NANS, HTH_AVG_CLIP, calm, &most) > 0.98);
}

TEST(without_bounds_it_is_the_end)
{
    double calm[EVALS + 1];
    uint32_t most;

    assert_true(outcome(HTH_SHARE_BATCH, 4, CALM, 0, calm, &most) > 0.95);
    assert_true(outcome(HTH_SHARE_BATCH, 4, TURNED, 0, calm, &most) < 0.5);
    assert_true(outcome(HTH_SHARE_BATCH, 4, WEIGHTY, 0, calm, &most) < 0.95);
    assert_true(outcome(HTH_SHARE_LOCAL, 2, NUMBERS, 0, calm, &most) < 0.5);
}

/* Rows refuse its means, as lines of the first axis do, and soon it reduces nothing in either. */
TEST(a_liar_on_a_grid_soon_reduces_nothing)
{
    int64_t took_us[2] = {0};

    for (uint64_t seed = 1; seed <= 6; seed++)
        for (int lies = 0; lies < 2; lies++) {
            play_on("3x3", seed, HTH_SHARE_BATCH, 9, lies ? REDUCES : CALM, HTH_AVG_CLIP);
            took_us[lies] += hth_world_now_us(scene.crew->world);
            assert_true(scene.accuracy[EVALS - 1] > 0.95);
            crew_scene_free(scene.crew);
        }
    print_message("6 times %u steps on 3x3 took %.1f s, with a liar %.1f s\n", STEPS,
                  (double)took_us[0] / S, (double)took_us[1] / S);
    assert_true(took_us[1] < took_us[0] * 5 / 4);
}
