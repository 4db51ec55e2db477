/* SPDX-License-Identifier: Apache-2.0 */
/* fidelity_sim.c: the simulated half, built from the same run file as the processes. */
#include "cli/config.h"
#include "core/mem.h"
#include "lab/fidelity.h"
#include "scenarios/idx.h"
#include "scenarios/swarm.h"

#include <string.h>

#define PIXELS    784
#define ITEMS     256
#define SAMPLE_US (HTH_US_PER_S / 2)
#define LIMIT_US  (600 * HTH_US_PER_S)

struct half {
    struct hth_world *world;
    struct hth_swarm *swarm;
    uint8_t images[16 + ITEMS * PIXELS], labels[8 + ITEMS];
};

/* Mount headers only: ghosts read no pixels. */
static void mount_data(struct half *h)
{
    hth_sim_idx_heads(h->images, h->labels, ITEMS, 28);
    hth_world_mount(h->world, "images", h->images, sizeof(h->images));
    hth_world_mount(h->world, "labels", h->labels, sizeof(h->labels));
}

static struct hth_device device_of(const struct hth_profile *profile, double mbit)
{
    struct hth_device d = HTH_DEVICE_INIT;
    if (profile != NULL)
        hth_profile_apply(profile, &d);
    d.compute_workers = 1; /* like --threads 1 */
    d.up_bytes_per_s = d.down_bytes_per_s = mbit * 125e3;
    return d;
}

static void make_swarm(struct half *h, const struct hth_fidelity_case *c,
                       const struct hth_runfile *run, const struct hth_device *host,
                       const struct hth_device *trainer)
{
    struct hth_swarm_opts o = HTH_SWARM_OPTS_INIT;
    o.hosts = HTH_FIDELITY_HOSTS;
    o.host_device = host;
    o.trainer_device = trainer;
    hth_config_model(run, &o.trainer.model);
    hth_config_server(run, &o.server);
    hth_config_optim(&run->optimizer, &o.trainer.optim);
    hth_config_optim(&run->experts.optimizer, &o.expert_optim);
    o.trainer.data.images = "images";
    o.trainer.data.labels = "labels";
    o.trainer.data.shuffle_rows = 0;
    o.trainer.micro_batch = c->rows;
    o.trainer.flights = c->flights;
    o.trainer.updates_max = UINT32_MAX;
    o.trainer.grace_us = (int64_t)(run->train.grace_s * 1e6);
    o.trainer.timeout_us = (int64_t)(run->train.timeout_s * 1e6);
    o.trainer.wire = hth_runfile_wire(run);
    h->swarm = hth_swarm_new(h->world, &o);
}

static void take_sample(struct half *h, struct hth_fidelity_series *out)
{
    struct hth_train_stats s;
    struct hth_trainer *trainer = hth_swarm_trainer(h->swarm);
    if (trainer == NULL)
        return;
    hth_trainer_stats(trainer, &s);
    struct hth_fidelity_sample sample = {
        .t_s = (double)hth_world_now_us(h->world) / 1e6,
        .updates = (double)s.updates,
        .calls = (double)s.requests,
        .failed = (double)s.requests_failed,
        .bytes = (double)(s.bytes_in + s.bytes_out),
        .live = s.live_experts,
    };
    hth_fidelity_add(out, &sample);
}

/* Crash the host's process; the host serves again boot_s after its restart. */
static void happen(struct half *h, const struct hth_fidelity_case *c, double boot_s,
                   struct hth_fidelity_series *out)
{
    double now_s = (double)hth_world_now_us(h->world) / 1e6;
    double begin_s = hth_fidelity_begin_s(out);
    struct hth_node *host = hth_swarm_host(h->swarm, 1);
    if (c->kill_s <= 0 || begin_s < 0)
        return;
    if (out->kill_s <= 0 && now_s >= begin_s + c->kill_s) {
        hth_node_crash(host, HTH_CRASH_RESET);
        out->kill_s = now_s;
    }
    if (out->back_s <= 0 && now_s >= begin_s + c->back_s) {
        out->back_s = now_s;
        out->boot_s = boot_s;
    }
    if (out->back_s > 0 && !hth_node_is_up(host) && now_s >= out->back_s + boot_s)
        hth_node_restart(host);
}

enum hth_err hth_fidelity_simulate(const struct hth_fidelity_case *c, const struct hth_runfile *run,
                                   const struct hth_profile *profile, uint64_t seed, double boot_s,
                                   struct hth_fidelity_series *out)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_device host = device_of(profile, c->host_mbit);
    struct hth_device trainer = device_of(profile, c->trainer_mbit);
    struct half *h = hth_new(struct half);
    enum hth_err err = HTH_OK;
    w.ghost = true;
    w.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    w.link = (struct hth_link){.latency_us = (int64_t)(c->delay_ms * 1000) + 20};
    h->world = hth_world_new(seed, &w);
    mount_data(h);
    make_swarm(h, c, run, &host, &trainer);
    /* Take small steps, so that events happen at their time. */
    for (int64_t next_us = 0; err == HTH_OK && !hth_fidelity_enough(out, c);) {
        hth_world_run_for(h->world, 20 * HTH_US_PER_MS);
        err = hth_swarm_err(h->swarm);
        happen(h, c, boot_s, out);
        if (hth_world_now_us(h->world) >= next_us) {
            take_sample(h, out);
            next_us += SAMPLE_US;
        }
        if (err == HTH_OK && hth_world_now_us(h->world) > LIMIT_US)
            err = HTH_E_TIMEOUT;
    }
    hth_world_free(h->world);
    hth_swarm_free(h->swarm);
    hth_free(h);
    return err;
}
