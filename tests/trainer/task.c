/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/task.h"

#include "core/mem.h"
#include "support/test.h"

#include <string.h>

void task_be32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
}

void task_heads(uint8_t *images, uint8_t *labels, uint32_t items, uint32_t high, uint32_t wide)
{
    const uint32_t head[] = {0x803, items, high, wide};

    for (int i = 0; images != NULL && i < 4; i++)
        task_be32(images + 4 * i, head[i]);
    if (labels != NULL) {
        task_be32(labels, 0x801);
        task_be32(labels + 4, items);
    }
}

/* Class c lights the pixels whose number is c modulo 4, under noise. */
static void make_images(struct task_files *f, struct hth_rng *rng)
{
    task_heads(f->images, f->labels, TASK_ITEMS, TASK_SIDE, TASK_SIDE);
    for (uint32_t i = 0; i < TASK_ITEMS; i++) {
        uint32_t class = (uint32_t)hth_rng_below(rng, 4);

        f->labels[8 + i] = (uint8_t) class;
        for (uint32_t j = 0; j < TASK_PIXELS; j++)
            f->images[16 + i * TASK_PIXELS + j] =
                (uint8_t)(hth_rng_below(rng, 120) + (j % 4 == class ? 100 : 0));
    }
}

void task_mount(struct hth_world *world, struct task_files *f, uint64_t seed)
{
    static const char words[] = "the sea of the stars and the sun over the land ";
    struct hth_rng rng;

    hth_rng_init(&rng, seed);
    make_images(f, &rng);
    for (uint32_t i = 0; i < TASK_TEXT_BYTES; i++)
        f->text[i] = (uint8_t)words[i % (sizeof(words) - 1)];
    hth_world_mount(world, "images", f->images, sizeof(f->images));
    hth_world_mount(world, "labels", f->labels, sizeof(f->labels));
    hth_world_mount(world, "text", f->text, sizeof(f->text));
}

static struct hth_trainer_opts common(void)
{
    struct hth_trainer_opts o = HTH_TRAINER_OPTS_INIT;

    o.model.d = 16;
    o.model.layers = 2;
    o.model.grid_ndim = 2;
    o.model.grid_dim[0] = 2;
    o.model.grid_dim[1] = 2;
    o.model.top_k = 2;
    o.model.seed = 5;
    o.optim.schedule.lr = 3e-3f;
    o.local_optim = o.optim;
    o.flights = 1;
    o.micro_batch = 32;
    o.updates_max = 60;
    o.has_eval_data = true;
    return o;
}

struct hth_world *task_world(struct task_files *files, struct hth_node **node)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;

    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    struct hth_world *world = hth_world_new(1, &opts);
    task_mount(world, files, 3);
    *node = hth_world_node(world, "trainer", NULL);
    return world;
}

struct hth_trainer_opts task_classifier(void)
{
    struct hth_trainer_opts o = common();

    o.model.kind = HTH_MODEL_CLASSIFIER;
    o.model.features = TASK_PIXELS;
    o.model.classes = 4;
    o.data.images = "images";
    o.data.labels = "labels";
    o.data.classes = 4;
    o.data.shuffle_rows = 0;
    o.eval_data = o.data;
    return o;
}

struct hth_trainer_opts task_lm(void)
{
    struct hth_trainer_opts o = common();

    o.model.kind = HTH_MODEL_LM;
    o.model.heads = 2;
    o.model.classes = 256;
    o.model.seq_len = 12;
    o.data.kind = HTH_DATA_TEXT;
    o.data.text = "text";
    o.data.seq_len = 12;
    o.data.shuffle_rows = 0;
    o.micro_batch = 8;
    o.eval_data = o.data;
    return o;
}

/* ---- one trainer ----------------------------------------------------------------------------- */

int task_setup(void **state)
{
    struct task *f = hth_new(struct task);

    f->world = task_world(&f->files, &f->node);
    f->env = hth_node_env(f->node);
    *state = f;
    return 0;
}

int task_teardown(void **state)
{
    struct task *f = *state;
    struct hth_open_counts open;

    hth_node_open(f->node, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(f->world);
    hth_free(f);
    return 0;
}

static void on_update(void *arg, const struct hth_train_stats *stats)
{
    struct task *f = arg;

    assert_true(stats->updates >= 1);
    assert_true(isfinite(stats->loss) && isfinite(stats->grad_norm));
    if (stats->updates <= TASK_UPDATES_MAX)
        f->loss[stats->updates - 1] = stats->loss;
    f->stats = *stats;
    if (f->on_update != NULL)
        f->on_update(f);
}

static void on_eval(void *arg, const struct hth_eval_result *result)
{
    struct task *f = arg;

    f->evaluated = true;
    f->eval = *result;
    assert_close(result->bits_per_byte, result->loss / log(2), 1e-12, 0);
    if (f->on_eval != NULL)
        f->on_eval(f);
}

static void on_checkpoint(void *arg, uint64_t updates, enum hth_err err)
{
    struct task *f = arg;

    assert_int_equal(err, f->save_err);
    f->saved = true;
}

void task_done(void *arg, enum hth_err err)
{
    struct task *f = arg;

    assert_false(f->done);
    f->done = true;
    f->err = err;
}

static void on_stopped(void *arg)
{
    ((struct task *)arg)->stopped = true;
}

static bool is_set(void *arg)
{
    return *(bool *)arg;
}

struct hth_train_callbacks task_callbacks(struct task *f)
{
    return (struct hth_train_callbacks){on_update, on_eval, on_checkpoint, task_done, f};
}

struct hth_trainer *task_make(struct task *f, struct hth_trainer_opts o)
{
    struct hth_trainer *t;

    o.local = true;
    o.on = task_callbacks(f);
    assert_ok(hth_trainer_new(f->env, &o, &t));
    f->done = f->stopped = f->evaluated = f->saved = false;
    return t;
}

void task_until(struct task *f, bool *flag)
{
    assert_true(hth_world_run_until_true(f->world, is_set, flag, 1000 * HTH_US_PER_S));
}

void task_stop(struct task *f, struct hth_trainer *t)
{
    hth_trainer_stop(t, on_stopped, f);
    task_until(f, &f->stopped);
}

void task_put_down(struct task *f, struct hth_trainer *t)
{
    hth_trainer_free(t);
    hth_world_run_for(f->world, HTH_US_PER_S);
}

void task_end(struct task *f, struct hth_trainer *t, enum hth_err err)
{
    hth_trainer_start(t);
    task_until(f, &f->done);
    assert_int_equal(f->err, err);
    hth_trainer_stats(t, &f->stats);
}

void task_run(struct task *f, struct hth_trainer_opts o)
{
    struct hth_trainer *t = task_make(f, o);

    task_end(f, t, HTH_OK);
    task_put_down(f, t);
}

double task_loss(struct task *f, struct hth_trainer *t)
{
    assert_ok(hth_trainer_eval(t));
    hth_trainer_start(t);
    task_until(f, &f->evaluated);
    task_put_down(f, t);
    return f->eval.loss;
}

struct hth_params *task_params(struct hth_trainer *t)
{
    return hth_model_params(hth_trainer_model(t));
}

float *task_values(struct hth_trainer *t)
{
    return hth_params_flat(task_params(t), HTH_PART_VALUE);
}

/* ---- its twin -------------------------------------------------------------------------------- */

static enum hth_err twin_start(void *self, hth_avg_round_fn *fn, void *arg)
{
    struct twin *twin = self;

    twin->fn = fn;
    twin->arg = arg;
    return HTH_OK;
}

static enum hth_err twin_ready(const void *self)
{
    const struct twin *twin = self;

    return twin->values != NULL || twin->left == 0 ? HTH_E_BUSY : HTH_OK;
}

static enum hth_err twin_offer(void *self, const struct hth_avg_offer *offer)
{
    struct twin *twin = self;
    struct hth_train_stats now;

    hth_trainer_stats(twin->trainer, &now);
    assert_true(offer->schema != 0);
    assert_true(offer->weight == (double)(now.samples - twin->samples));
    twin->samples = now.samples;
    twin->offers++;
    twin->left--;
    twin->values = hth_blob_ref(offer->values);
    twin->average = hth_blob_try_new(offer->count * sizeof(float));
    assert_non_null(twin->average);
    for (size_t i = 0; i < offer->count; i++)
        ((float *)twin->average->data)[i] =
            ((const float *)offer->values->data)[i] + twin->shift / 2;
    if (!twin->by_hand)
        hth_timer_set(twin->task->env, twin->timer, 20 * HTH_US_PER_MS);
    return HTH_OK;
}

void twin_end_round(void *arg)
{
    struct twin *twin = arg;
    struct hth_avg_result result = {.values = twin->values, .average = twin->average};

    twin->values = twin->average = NULL;
    twin->fn(twin->arg, &result);
    hth_blob_unref(result.values);
    hth_blob_unref(result.average);
}

static void twin_stop(void *self)
{
    ((struct twin *)self)->stopped = true;
}

static void twin_stats(const void *self, struct hth_averager_stats *out)
{
    memset(out, 0, sizeof(*out));
}

struct hth_trainer *twin_make(struct twin *twin, struct task *f, struct hth_trainer_opts o)
{
    static const struct hth_averager_ops ops = {.start = twin_start,
                                                .ready = twin_ready,
                                                .offer = twin_offer,
                                                .stop = twin_stop,
                                                .stats = twin_stats};

    twin->task = f;
    twin->averager = (struct hth_averager){&ops, twin};
    twin->timer = hth_timer_new(f->env, twin_end_round, twin);
    o.averager = &twin->averager;
    twin->trainer = task_make(f, o);
    return twin->trainer;
}

void twin_put_down(struct twin *twin)
{
    task_put_down(twin->task, twin->trainer);
    assert_true(twin->stopped);
    hth_timer_free(twin->task->env, twin->timer);
}
