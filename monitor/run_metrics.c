/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/run_metrics.h"

#include "monitor/run_json.h"

#include <math.h>

void hth_run_metrics_init(struct hth_run_metrics *m, struct hth_metrics *of, bool monitor)
{
    *m = (struct hth_run_metrics){
        .step = hth_gauge(of, "hearth_run_step", "Step of the run"),
        .steps = hth_gauge(of, "hearth_run_steps", "Steps of the run's schedule"),
        .loss = hth_gauge(of, "hearth_run_loss",
                          "Training loss in nats, a moving average; a monitor's: the median"),
        .samples = hth_counter(of, "hearth_run_samples_total",
                               "Samples trained on; a trainer's: by itself"),
        .trainers = hth_gauge(of, "hearth_run_trainers", "Trainers that take part")};
    if (!monitor)
        return;
    m->samples_per_s = hth_gauge(of, "hearth_run_samples_per_second", "Samples of all trainers");
    m->hosts = hth_gauge(of, "hearth_run_hosts", "Hosts that answer");
    m->silent = hth_gauge(of, "hearth_run_silent_peers", "Peers with a record that do not answer");
    m->places = hth_gauge(of, "hearth_run_experts", "Experts of all layers");
    m->served = hth_gauge(of, "hearth_run_experts_served", "Experts that a host serves");
}

static void set(struct hth_metric *metric, double value)
{
    if (isfinite(value))
        hth_metric_set(metric, value);
}

/* A counter never falls, and a run that begins anew has fewer. */
static void raise_to(struct hth_metric *counter, uint64_t value)
{
    double more = (double)value - hth_metric_value(counter);
    if (more > 0 && more < 0x1p62)
        hth_metric_add(counter, (int64_t)more);
}

void hth_run_metrics_train(struct hth_run_metrics *m, uint64_t step, uint64_t steps, double loss,
                           uint64_t samples, uint32_t trainers)
{
    set(m->step, (double)step);
    set(m->steps, (double)steps);
    set(m->loss, loss);
    raise_to(m->samples, samples);
    set(m->trainers, trainers);
}

void hth_run_metrics_watch(struct hth_run_metrics *m, const struct hth_run_now *now)
{
    const struct hth_run_view *v = now->view;
    if (v == NULL)
        return;
    hth_run_metrics_train(m, v->step, v->total, v->loss, now->samples, v->trainers);
    set(m->samples_per_s, v->samples_per_s);
    set(m->hosts, v->hosts);
    set(m->silent, v->silent);
    set(m->places, (double)v->places);
    set(m->served, (double)v->served);
}
