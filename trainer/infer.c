/* SPDX-License-Identifier: Apache-2.0 */
/*
 * infer.c: one pass and its way, used again and again.
 *
 *   call -> [way.h: forward through layers and experts] -> head -> done
 */
#include "trainer/infer.h"

#include <string.h>

#include "core/mem.h"
#include "trainer/way.h"

struct hth_infer {
    struct hth_env *env;
    struct hth_model *model;
    struct hth_transport *transport;
    struct hth_queue trunk;
    struct hth_pass *pass;
    struct hth_way way;
    struct hth_rng rng;
    struct hth_budget *budget;
    uint32_t rows_max, layers; /* layers: of experts */
    struct hth_pass_grown grown;
    uint32_t sequences; /* that grow; 0: none were begun */
    hth_infer_done_fn *done;
    void *arg;
    bool busy, local, without_experts, freed;
    struct hth_infer_stats stats;
};

/* ---- one call -------------------------------------------------------------------------------- */

static void finish(struct hth_infer *f, enum hth_err err)
{
    struct hth_pass *p = f->pass;

    for (uint32_t l = 0; l < f->model->opts.layers; l++) {
        if (err != HTH_OK)
            hth_transport_judge(p->layer[l].batch);
        else if (!f->without_experts)
            f->stats.units_without_expert += p->layer[l].mixed.rows_empty;
    }
    if (err == HTH_OK) {
        f->stats.calls++;
        f->stats.rows += p->rows;
        f->stats.units += (uint64_t)p->units * f->model->opts.layers;
        if (p->grown != NULL)
            f->grown.at += p->rows / p->samples;
    }
    p->step++;
    f->busy = false;
    f->done(f->arg, err);
}

static struct hth_infer *of_work(struct hth_work *work)
{
    return HTH_CONTAINER(work, struct hth_infer, way.work);
}

static void head_run(struct hth_work *work)
{
    struct hth_infer *f = of_work(work);

    f->pass->err = hth_pass_head(f->pass);
}

static void head_done(struct hth_work *work, enum hth_err err)
{
    struct hth_infer *f = of_work(work);
    uint32_t last = f->model->opts.layers - 1;

    if (err == HTH_OK)
        err = f->pass->err;
    if (!work->ran && err == HTH_OK && f->layers > 0)
        hth_pass_ok_from_verdicts(f->pass, last);
    if (err == HTH_OK)
        hth_transport_judge(f->pass->layer[last].batch);
    finish(f, err);
}

static void arrived(void *arg, enum hth_err err)
{
    struct hth_infer *f = arg;

    if (err != HTH_OK)
        finish(f, err);
    else
        hth_way_submit(&f->way, &f->trunk, head_run, head_done, hth_pass_head_flops(f->pass));
}

static void start(struct hth_infer *f, hth_infer_done_fn *done, void *arg)
{
    hth_pass_reset(f->pass);
    f->pass->train = false;
    f->busy = true;
    f->done = done;
    f->arg = arg;
    f->way = (struct hth_way){
        .env = f->env,
        .trunk = &f->trunk,
        .transport = f->transport,
        .budget = f->budget,
        .rng = &f->rng,
        .pass = f->pass,
        .order = 1,
        .arrived = arrived,
        .arg = f,
    };
    hth_way_start(&f->way);
}

/* ---- whole samples --------------------------------------------------------------------------- */

struct hth_infer_batch hth_infer_batch(struct hth_infer *f)
{
    return (struct hth_infer_batch){f->pass->input, f->pass->tokens, f->pass->labels};
}

enum hth_err hth_infer_whole(struct hth_infer *f, uint32_t samples, hth_infer_done_fn *done,
                             void *arg)
{
    uint64_t rows = (uint64_t)samples * f->model->opts.seq_len;

    if (f->busy)
        return HTH_E_BUSY;
    if (samples == 0 || rows > f->rows_max)
        return HTH_E_TOO_LARGE;
    f->pass->grown = NULL;
    hth_pass_resize(f->pass, samples, (uint32_t)rows);
    start(f, done, arg);
    return HTH_OK;
}

enum hth_err hth_infer_part(struct hth_infer *f, uint32_t rows, hth_infer_done_fn *done, void *arg)
{
    const struct hth_model_opts *o = &f->model->opts;

    if (f->busy)
        return HTH_E_BUSY;
    if (o->kind != HTH_MODEL_LM || f->model->block_rows > 1)
        return HTH_E_UNSUPPORTED;
    if (rows == 0 || rows > o->seq_len)
        return HTH_E_TOO_LARGE;
    f->pass->grown = NULL;
    hth_pass_resize(f->pass, 1, rows);
    start(f, done, arg);
    return HTH_OK;
}

/* ---- growth ---------------------------------------------------------------------------------- */

static bool may_grow(const struct hth_model *m)
{
    return m->opts.kind != HTH_MODEL_CLASSIFIER && m->opts.objective == HTH_CAUSAL &&
           m->block_rows == 1 && (hth_backend_caps(m->backend) & HTH_CAP_HOST_MEMORY) != 0;
}

static void drop_kept(struct hth_infer *f)
{
    for (uint32_t l = 0; l < HTH_MODEL_LAYERS_MAX; l++) {
        hth_aligned_free(f->grown.kept[l]);
        f->grown.kept[l] = NULL;
    }
    f->sequences = 0;
}

enum hth_err hth_infer_begin(struct hth_infer *f, uint32_t sequences)
{
    const struct hth_model_opts *o = &f->model->opts;
    size_t floats = (size_t)sequences * o->seq_len * 2 * o->d;

    if (!may_grow(f->model))
        return HTH_E_UNSUPPORTED;
    if (f->busy)
        return HTH_E_BUSY;
    if (sequences == 0 || sequences > f->rows_max ||
        (uint64_t)sequences * o->seq_len > HTH_EXPERT_PAIRS_MAX)
        return HTH_E_TOO_LARGE;
    f->grown.positions = o->seq_len;
    f->grown.at = 0;
    if (f->sequences == sequences)
        return HTH_OK;
    drop_kept(f);
    for (uint32_t l = 0; l < o->layers; l++) {
        f->grown.kept[l] = hth_try_aligned(floats * sizeof(float));
        if (f->grown.kept[l] == NULL) {
            drop_kept(f);
            return HTH_E_NO_MEMORY;
        }
    }
    f->sequences = sequences;
    return HTH_OK;
}

enum hth_err hth_infer_grow(struct hth_infer *f, const int32_t *tokens, uint32_t count,
                            hth_infer_done_fn *done, void *arg)
{
    bool picture = f->model->opts.kind == HTH_MODEL_PICTURE;
    uint64_t rows = (uint64_t)f->sequences * count;
    uint32_t ids;

    if (f->busy)
        return HTH_E_BUSY;
    if (rows == 0 || rows > f->rows_max || count > f->grown.positions - f->grown.at)
        return HTH_E_TOO_LARGE;
    if (picture && f->grown.at == 0 && count != f->model->opts.text)
        return HTH_E_BAD_SHAPE;
    ids = f->model->ids[picture && f->grown.at > 0 ? HTH_IDS_CODES : HTH_IDS_TEXT].count;
    for (uint64_t i = 0; i < rows; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= ids)
            return HTH_E_RANGE;
    f->pass->grown = &f->grown;
    hth_pass_resize(f->pass, f->sequences, (uint32_t)rows);
    memcpy(f->pass->tokens, tokens, rows * sizeof(*tokens));
    start(f, done, arg);
    return HTH_OK;
}

uint32_t hth_infer_grown(const struct hth_infer *f)
{
    return f->grown.at;
}

uint32_t hth_infer_positions(const struct hth_infer *f)
{
    return f->model->opts.seq_len;
}

/* ---- results --------------------------------------------------------------------------------- */

const float *hth_infer_next(const struct hth_infer *f, uint32_t sequence)
{
    return hth_infer_logits(f, f->model->ids_count - 1, sequence);
}

uint32_t hth_infer_choices(const struct hth_infer *f)
{
    return f->model->ids[f->model->ids_count - 1].count;
}

uint32_t hth_infer_vocabularies(const struct hth_infer *f)
{
    return f->model->ids_count;
}

const float *hth_infer_logits(const struct hth_infer *f, uint32_t i, uint32_t row)
{
    return f->pass->logits[i] + (size_t)row * f->model->ids[i].count;
}

struct hth_infer_loss hth_infer_loss(const struct hth_infer *f, uint32_t i)
{
    const struct hth_xent_result *x = &f->pass->xent[i];

    return (struct hth_infer_loss){x->loss_sum, x->counted, x->correct};
}

double hth_infer_mean(const struct hth_infer *f,
                      const struct hth_infer_loss loss[HTH_INFER_VOCABULARIES_MAX])
{
    double mean[HTH_IDS_MAX] = {0};

    for (uint32_t i = 0; i < f->model->ids_count; i++)
        mean[i] = loss[i].sum / (double)HTH_MAX(loss[i].counted, UINT64_C(1));
    return hth_model_loss(f->model, mean);
}

void hth_infer_stats(const struct hth_infer *f, struct hth_infer_stats *out)
{
    *out = f->stats;
}

const struct hth_model_opts *hth_infer_model(const struct hth_infer *f)
{
    return hth_model_opts_of(f->model);
}

uint32_t hth_infer_rows(const struct hth_infer *f)
{
    return f->rows_max;
}

uint32_t hth_infer_live(struct hth_infer *f)
{
    uint32_t least = UINT32_MAX;

    for (uint32_t l = 0; l < f->layers; l++) {
        uint32_t live = hth_transport_view(f->transport, l)->live_count;

        if (live == 0)
            hth_transport_ask(f->transport, l);
        least = HTH_MIN(least, live);
    }
    return least;
}

/* ---- life ------------------------------------------------------------------------------------ */

static enum hth_err make_transport(struct hth_infer *f, const struct hth_infer_opts *opts)
{
    struct hth_grid grids[HTH_MODEL_LAYERS_MAX];
    struct hth_transport_opts o = {
        .env = f->env,
        .layers = f->layers,
        .grids = grids,
        .expert_kind = f->model->opts.expert_kind,
        .d = f->model->opts.d,
        .block_rows = f->model->block_rows,
        .heads = f->model->block_rows > 1 ? f->model->opts.heads : 0,
        .rpc = opts->rpc,
        .directory = opts->directory,
        .grace_us = opts->grace_us,
        .timeout_us = opts->timeout_us,
        .wire = opts->wire,
        .budget = opts->budget,
        .queue = &f->trunk,
        .backend = f->model->backend,
        .optim = &opts->local_optim,
        .without_experts = f->without_experts,
        .step_rows = 1,
        .run_seed = opts->model.seed,
        .run = opts->run,
        .experts_dir = opts->experts_dir,
        .experts_needed = true,
        .why = opts->why,
    };

    for (uint32_t l = 0; l < o.layers; l++)
        grids[l] = *hth_model_grid(f->model, l);
    return opts->local ? hth_transport_local_new(&o, &f->transport)
                       : hth_transport_net_new(&o, &f->transport);
}

static void destroy(struct hth_infer *f)
{
    hth_pass_free(f->pass);
    hth_transport_free(f->transport);
    drop_kept(f);
    hth_model_free(f->model);
    hth_free(f);
}

static void queue_idle(void *arg)
{
    destroy(arg);
}

void hth_infer_free(struct hth_infer *f)
{
    if (f == NULL || f->freed)
        return;
    f->freed = true;
    if (!hth_queue_close(&f->trunk, queue_idle, f)) {
        destroy(f);
    } else if (!f->local && f->trunk.running != &f->way.work) {
        /* The caller may free rpc next. */
        hth_pass_reset(f->pass);
        hth_transport_free(f->transport);
        f->transport = NULL;
    }
}

enum hth_err hth_infer_new(struct hth_env *env, const struct hth_infer_opts *opts,
                           struct hth_infer **out)
{
    struct hth_infer *f;
    enum hth_err err;

    *out = NULL;
    if (opts->why != NULL)
        opts->why->text[0] = '\0';
    if (!opts->local && (opts->rpc == NULL || opts->directory == NULL))
        return HTH_E_CONFIG;
    f = hth_new(struct hth_infer);
    f->env = env;
    f->local = opts->local;
    f->without_experts = !hth_trained_about(opts->trained)->experts;
    f->budget = opts->budget;
    f->rows_max = HTH_MAX(opts->rows, opts->model.seq_len);
    f->layers = opts->model.dense ? 0 : hth_model_sets(&opts->model);
    f->rng = hth_rng_split(&env->rng, "infer", 0);
    hth_queue_init(&f->trunk, env, HTH_LANE_COMPUTE);
    HTH_GOTO(fail, hth_model_new(opts->backend, &opts->model, &f->model));
    hth_exec_set_team(f->model->exec, hth_env_team(env));
    HTH_GOTO(fail, hth_trained_fill(opts->trained, f->model, opts->why));
    HTH_GOTO(fail, make_transport(f, opts));
    HTH_GOTO(fail, hth_pass_new_rows(f->model, f->rows_max, &f->pass));
    *out = f;
    return HTH_OK;
fail:
    hth_infer_free(f);
    return err;
}
