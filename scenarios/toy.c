/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/toy.h"

#include "core/mem.h"
#include "core/rng.h"
#include "scenarios/idx.h"

#define CLASSES 4
#define ITEMS   512

struct hth_toy {
    uint8_t labels[HTH_IDX_LABELS_HEAD + ITEMS];
    uint8_t images[];
};

struct hth_toy *hth_toy_new(struct hth_world *world, uint32_t side)
{
    const uint32_t pixels = side * side;
    size_t len = HTH_IDX_IMAGES_HEAD + (size_t)ITEMS * pixels;
    struct hth_toy *toy = hth_calloc(1, sizeof(*toy) + len);
    struct hth_rng rng;

    hth_rng_init(&rng, 3);
    hth_sim_idx_heads(toy->images, toy->labels, ITEMS, side);
    for (uint32_t i = 0; i < ITEMS; i++) {
        toy->labels[HTH_IDX_LABELS_HEAD + i] = (uint8_t)hth_rng_below(&rng, CLASSES);
        for (uint32_t j = 0; j < pixels; j++)
            toy->images[HTH_IDX_IMAGES_HEAD + (size_t)i * pixels + j] =
                (uint8_t)hth_rng_below(&rng, 256);
    }
    hth_world_mount(world, "images", toy->images, len);
    hth_world_mount(world, "labels", toy->labels, sizeof(toy->labels));
    return toy;
}

void hth_toy_free(struct hth_toy *toy)
{
    hth_free(toy);
}

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *trainer)
{
    (void)arg;
    trainer->data.peer = i + 1;
}

void hth_toy_crew(uint32_t side, struct hth_crew_opts *crew)
{
    struct hth_trainer_opts *t = &crew->trainer;

    *crew = (struct hth_crew_opts)HTH_CREW_OPTS_INIT;
    t->model.d = 8;
    t->model.features = side * side;
    t->model.classes = CLASSES;
    t->model.grid_dim[0] = t->model.grid_dim[1] = 2;
    t->model.top_k = 2;
    t->model.balance = 0;
    t->model.seed = 5;
    t->optim.schedule.lr = 1e-3f;
    t->local_optim.schedule.lr = 0;
    t->data.images = "images";
    t->data.labels = "labels";
    t->data.classes = CLASSES;
    t->data.shuffle_rows = 64;
    t->eval_every = 0;
    t->micro_batch = 6;
    t->flights = 1;
    t->updates_max = 1u << 30;
    t->share.mode = HTH_SHARE_BATCH;
    t->share.every = 0;
    crew->edit = edit;
}
