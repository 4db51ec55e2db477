/* SPDX-License-Identifier: Apache-2.0 */
/* way.c: see way.h. Every arrow there is a callback; between two of them no thread is held. */
#include "trainer/way.h"

static void forward(struct hth_way *w, uint32_t l);

void hth_way_submit(struct hth_way *w, struct hth_queue *queue, void (*run)(struct hth_work *),
                    void (*done)(struct hth_work *, enum hth_err), double flops)
{
    w->work.run = run;
    w->work.done = done;
    w->work.order = w->order;
    w->work.job.flops = flops;
    w->work.job.bytes_moved = 4.0 * w->pass->rows * w->pass->model->opts.d * sizeof(float);
    hth_queue_push(queue, &w->work);
}

struct hth_transport_call hth_way_call(const struct hth_way *w, uint32_t l)
{
    const struct hth_pass *p = w->pass;
    const struct hth_pass_layer *layer = &p->layer[l];

    return (struct hth_transport_call){
        .layer = hth_model_set(&p->model->opts, l),
        .units = p->units,
        .block_rows = p->model->block_rows,
        .d = p->model->opts.d,
        .x = layer->h,
        .rows_in_microbatch = p->rows,
        .targets = layer->targets,
        .target_expert = layer->target_expert,
        .targets_count = layer->targets_count,
        .k_min = p->model->opts.k_min,
        .trace_id = p->step,
    };
}

enum hth_err hth_way_rows(const struct hth_way *w, size_t rows, struct hth_blob **out)
{
    return hth_env_blob_new(w->env, rows * w->pass->model->opts.d * sizeof(float), w->budget, out);
}

/* Layer l is done. */
static void go_on(struct hth_way *w, uint32_t l)
{
    if (l + 1 < w->pass->model->opts.layers)
        forward(w, l + 1);
    else
        w->arrived(w->arg, HTH_OK);
}

static void answered(void *arg, struct hth_transport_batch *batch)
{
    struct hth_way *w = arg;

    if (w->answered != NULL)
        w->answered(w->arg, batch);
    w->pass->layer[w->layer].batch = batch;
    go_on(w, w->layer);
}

/* Sends layer l's requests. True when answered() will follow. */
static bool ask(struct hth_way *w, uint32_t l)
{
    struct hth_pass_layer *layer = &w->pass->layer[l];
    struct hth_transport_call call = hth_way_call(w, l);
    struct hth_transport_batch *batch;
    enum hth_err err;

    hth_pass_route(w->pass, l, w->transport);
    if (layer->pairs_count == 0)
        return false;
    call.targets_count = layer->targets_count;
    call.pairs = layer->pairs;
    call.pairs_count = layer->pairs_count;
    call.keep = w->pass->train;
    /* Keep the handle in the layer until the answer, so that a reset cancels the call. */
    err = hth_transport_call(w->transport, &call, answered, w, &batch);
    if (err == HTH_OK) {
        layer->batch = batch;
        return true;
    }
    HTH_LOG(w->env, HTH_WARN, HTH_SUB_TRAIN,
            "micro-batch %llu: no request to layer %u's experts: %s; its rows take the residual "
            "path",
            (unsigned long long)w->pass->step, l, hth_err_text(err));
    layer->pairs_count = 0;
    return false;
}

static struct hth_way *of_work(struct hth_work *work)
{
    return HTH_CONTAINER(work, struct hth_way, work);
}

static void forward_run(struct hth_work *work)
{
    struct hth_way *w = of_work(work);

    w->pass->err = hth_pass_forward(w->pass, w->layer);
}

static void forward_done(struct hth_work *work, enum hth_err err)
{
    struct hth_way *w = of_work(work);
    struct hth_pass *p = w->pass;

    if (err == HTH_OK)
        err = p->err;
    if (err != HTH_OK) {
        w->arrived(w->arg, err);
        return;
    }
    if (w->layer > 0)
        hth_transport_judge(p->layer[w->layer - 1].batch);
    if (!work->ran) {
        if (w->layer > 0)
            hth_pass_ok_from_verdicts(p, w->layer - 1);
        hth_pass_choose(p, w->layer, w->rng);
    }
    if (!ask(w, w->layer))
        go_on(w, w->layer);
}

static void forward(struct hth_way *w, uint32_t l)
{
    struct hth_pass_layer *layer = &w->pass->layer[l];
    enum hth_err err;

    w->layer = l;
    err = hth_way_rows(w, w->pass->rows, &layer->h);
    if (err != HTH_OK) {
        w->arrived(w->arg, err);
        return;
    }
    layer->view = hth_grid_view_ref(
        hth_transport_view(w->transport, hth_model_set(&w->pass->model->opts, l)));
    hth_way_submit(w, w->trunk, forward_run, forward_done, hth_pass_forward_flops(w->pass, l));
}

static void dense_done(struct hth_work *work, enum hth_err err)
{
    struct hth_way *w = of_work(work);

    w->arrived(w->arg, err != HTH_OK ? err : w->pass->err);
}

void hth_way_start(struct hth_way *w)
{
    w->layer = 0;
    if (w->pass->model->opts.dense)
        hth_way_submit(w, w->trunk, forward_run, dense_done, hth_pass_forward_flops(w->pass, 0));
    else
        forward(w, 0);
}
