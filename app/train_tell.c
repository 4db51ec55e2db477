/* SPDX-License-Identifier: Apache-2.0 */
#include "app/train_tell.h"

#include "app/tensorboard.h"
#include "app/train_recall.h"
#include "core/mem.h"
#include "monitor/run_metrics.h"

#include <math.h>

#define SCALARS_US (10 * HTH_US_PER_S)

struct hth_train_tell {
    struct hth_peer *peer;
    struct hth_train_tell_opts opts;
    struct hth_train_recall *recall; /* NULL: local */
    struct hth_run_metrics metrics;
    struct hth_tensorboard *board; /* NULL: none was asked for */
    int64_t scalars_us;            /* of the last ones */
    uint64_t scalars_step;
};

enum hth_err hth_train_tell_new(struct hth_peer *peer, const struct hth_train_tell_opts *opts,
                                struct hth_train_tell **out)
{
    struct hth_train_tell *t = hth_new(struct hth_train_tell);
    *out = t;
    t->peer = peer;
    t->opts = *opts;
    hth_run_metrics_init(&t->metrics, peer->env->metrics, false);
    if (peer->rpc != NULL)
        t->recall = hth_train_recall_new(peer, opts->steps);
    return opts->tensorboard != NULL ? hth_tensorboard_open(peer->env, opts->tensorboard, &t->board)
                                     : HTH_OK;
}

void hth_train_tell_free(struct hth_train_tell *t)
{
    if (t == NULL)
        return;
    hth_train_recall_free(t->recall);
    hth_tensorboard_close(t->board);
    hth_free(t);
}

static void add_scalars(struct hth_train_tell *t, const struct hth_train_stats *s, double loss,
                        uint32_t trainers)
{
    int64_t now = hth_now_us(t->peer->env);
    if (s->updates == t->scalars_step || now - t->scalars_us < SCALARS_US)
        return;
    t->scalars_us = now;
    t->scalars_step = s->updates;
    const struct hth_tfevents_scalar scalar[] = {{"train/loss", loss},
                                                 {"train/accuracy", s->accuracy_ema},
                                                 {"train/samples_per_s", s->samples_per_s},
                                                 {"train/samples", (double)s->samples},
                                                 {"train/learning_rate", s->lr},
                                                 {"train/trainers", trainers}};
    hth_tensorboard_add(t->board, s->updates, scalar, HTH_ARRAY_LEN(scalar));
}

void hth_train_tell_progress(struct hth_train_tell *t, const struct hth_train_stats *s,
                             uint32_t trainers)
{
    double loss = s->loss_ema > 0 ? s->loss_ema : NAN;
    hth_train_recall_add(t->recall, s);
    hth_run_metrics_train(&t->metrics, s->updates, t->opts.steps, loss, s->own_samples, trainers);
    add_scalars(t, s, loss, trainers);
}

void hth_train_tell_test(struct hth_train_tell *t, const struct hth_eval_result *r)
{
    bool text = t->opts.is_text;
    const struct hth_tfevents_scalar scalar[] = {
        {"test/loss", r->loss},
        {"test/accuracy", text ? NAN : r->accuracy},
        {"test/bits_per_byte", text ? r->bits_per_byte : NAN}};
    hth_train_recall_test(t->recall, r, text);
    hth_tensorboard_add(t->board, r->updates, scalar, HTH_ARRAY_LEN(scalar));
}

void hth_train_tell_saved(struct hth_train_tell *t, uint64_t step)
{
    hth_train_recall_saved(t->recall, step);
}

bool hth_train_tell_end(struct hth_train_tell *t, hth_fn *done, void *arg)
{
    return hth_train_recall_end(t->recall, done, arg);
}

void hth_train_tell_cut(struct hth_train_tell *t)
{
    hth_train_recall_cut(t->recall);
}
