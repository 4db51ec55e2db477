/* SPDX-License-Identifier: Apache-2.0 */
/* picture_step.c: see picture_step.h. */
#include "benchmarks/picture_step.h"

#include "benchmarks/timing.h"
#include "benchmarks/torch.h"
#include "cli/config.h"
#include "cli/json.h"
#include "cli/shipped.h"
#include "core/mem.h"
#include "core/rng.h"
#include "trainer/pass.h"

#define RUN_FILE "runs/emoji-dense.yaml"
#define ROUNDS   12
#define STEPS    3 /* of a burst; one step warms up before */

struct step {
    struct hth_model_opts opts;
    struct hth_train_optim optim;
    uint32_t samples;
    struct hth_model *model;
    struct hth_pass *pass;
    struct hth_bench_fastest ours, torch[2];
};

static const char *const types[] = {"fp32", "bf16"};

static enum hth_err load(struct step *s)
{
    char *path = hth_shipped_find(RUN_FILE);
    struct hth_runfile *run = NULL;
    enum hth_err err = hth_config_load(path, &run);
    if (err == HTH_OK) {
        hth_config_model(run, &s->opts);
        hth_config_optim(&run->optimizer, &s->optim);
        s->samples = run->train.rows;
    }
    hth_runfile_free(run);
    hth_free(path);
    return err;
}

/* Captions of some words and codes, all drawn. */
static void fill(struct step *s, uint64_t seed)
{
    const struct hth_model_opts *o = &s->opts;
    struct hth_pass *p = s->pass;
    struct hth_rng rng;
    hth_rng_init(&rng, seed);
    for (uint32_t row = 0; row < p->rows; row++) {
        uint32_t at = row % o->seq_len;
        bool padding = at < o->text && at >= o->text / 2 + 1;
        uint32_t ids = at < o->text ? o->classes : o->codes;
        p->tokens[row] = padding ? 0 : (int32_t)(1 + hth_rng_below(&rng, ids - 1));
        ids = at + 1 < o->text ? o->classes : o->codes;
        p->labels[row] = at + 1 < o->text && at >= o->text / 2 ? HTH_LABEL_NONE
                                                               : (int32_t)hth_rng_below(&rng, ids);
    }
}

static enum hth_err step(struct step *s)
{
    struct hth_model *m = s->model;
    struct hth_optim optim = s->optim.optim;
    double norm;
    bool finite;
    optim.lr = 1e-4f;
    HTH_TRY(hth_pass_dense(s->pass));
    HTH_TRY(hth_params_import(m->exec, m->params, HTH_PART_GRAD, 0, hth_params_flat_len(m->params),
                              s->pass->grads));
    HTH_TRY(hth_grad_norm(m->exec, m->params, &norm, &finite));
    HTH_TRY(hth_optim_step(m->exec, m->params, &optim, hth_clip_scale(norm, s->optim.clip_norm)));
    HTH_TRY(hth_exec_sync(m->exec));
    return finite ? HTH_OK : HTH_E_NOT_FINITE;
}

static enum hth_err run_ours(struct step *s)
{
    struct hth_bench_watch watch;
    HTH_TRY(step(s));
    for (int i = 0; i < STEPS; i++) {
        hth_bench_watch_start(&watch);
        HTH_TRY(step(s));
        hth_bench_watch_stop(&watch, false, 1, &s->ours);
    }
    return HTH_OK;
}

/* PyTorch's side builds the model from the numbers in the name of the operation. */
static bool open_case(struct hth_bench_torch *t, const struct step *s, int type)
{
    const struct hth_model_opts *o = &s->opts;
    char op[96];
    snprintf(op, sizeof(op), "picture:%u,%u,%u,%u,%u,%u,%u,%u,%u", o->layers, o->heads, o->share,
             o->text, o->height, o->width, o->classes, o->codes, o->window);
    return hth_bench_torch_case(t, op, types[type], o->d, s->samples);
}

static enum hth_err measure(struct hth_bench *b, struct step *s, struct hth_bench_torch *torch)
{
    struct hth_bench_samples rounds;
    bool has[2] = {false};
    for (int i = 0; i < 2; i++)
        has[i] = torch != NULL && open_case(torch, s, i);
    for (hth_bench_begin(&rounds); hth_bench_more(b, &rounds, ROUNDS); hth_bench_add(&rounds, 0)) {
        HTH_TRY(run_ours(s));
        for (int i = 0; i < 2; i++)
            if (has[i])
                hth_bench_fastest_add(
                    &s->torch[i],
                    (struct hth_bench_fastest){.s = hth_bench_torch_go(torch, types[i], STEPS)});
    }
    return HTH_OK;
}

static void print(struct hth_bench *b, const struct step *s)
{
    double best = 0;
    json_t *row = json_object();
    for (int i = 0; i < 2; i++)
        if (s->torch[i].s > 0 && (best == 0 || s->torch[i].s < best))
            best = s->torch[i].s;
    json_object_set_new(row, "case", json_string("emoji-dense, samples/s"));
    hth_json_real(row, "value", hth_bench_round(s->samples / s->ours.s));
    hth_json_real(row, "peer", best > 0 ? hth_bench_round(s->samples / best) : 0);
    hth_json_real(row, "ratio", best > 0 ? hth_bench_round(best / s->ours.s) : 0);
    hth_bench_row_take(b, row);
}

enum hth_err hth_bench_picture_step(struct hth_bench *b)
{
    struct step s = {.samples = 0};
    struct hth_bench_torch *torch = NULL;
    char why[160];
    enum hth_err err;
    HTH_TRY(load(&s));
    HTH_GOTO(out, hth_model_new(b->backend, &s.opts, &s.model));
    HTH_GOTO(out, hth_pass_new(s.model, s.samples, &s.pass));
    s.pass->train = true;
    fill(&s, b->seed);
    torch = hth_bench_torch_open(NULL, why);
    hth_say_note("%s", why);
    err = measure(b, &s, torch);
    if (err == HTH_OK)
        print(b, &s);
out:
    hth_bench_torch_close(torch);
    hth_pass_free(s.pass);
    hth_model_free(s.model);
    return err;
}
