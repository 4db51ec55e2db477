/* SPDX-License-Identifier: Apache-2.0 */
/* config.c: copies a run file's numbers to the options of the modules. */
#include "cli/config.h"

#include "cli/cli.h"
#include "core/bytes.h"
#include "core/ident.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FASHION_DIR "/usr/share/datasets/fashion-mnist"
#define TEXT_PATH   "kjv.txt"
/* The last twentieth of a text is the test set. */
#define TEXT_TRAIN_END 0.95
/* Results kept for retried backwards: a retry after minutes is too rare to spend more memory. */
#define ROWS_FACTOR      UINT64_C(16)
#define RESULT_BYTES_MAX (INT64_C(64) << 20)
/* Decaying schedules end at this fraction of the rate. */
#define LR_FINAL_FACTOR 0.05f

static void find_data(const char *run_path, struct hth_runfile *run)
{
    const char *slash = strrchr(run_path, '/'), *path = run->data.path;
    if (path == NULL && run->data.kind == HTH_RUN_TEXT)
        path = TEXT_PATH;
    if (path == NULL || path[0] == '/' || slash == NULL || access(path, F_OK) == 0)
        return;
    char *beside = hth_asprintf("%.*s/%s", (int)(slash - run_path), run_path, path);
    if (access(beside, F_OK) == 0) {
        hth_free(run->data.path);
        run->data.path = beside;
    } else {
        hth_free(beside);
    }
}

enum hth_err hth_config_load(const char *path, struct hth_runfile **out)
{
    char error[HTH_RUNFILE_ERROR_MAX];
    static uint8_t bytes[HTH_RUNFILE_BYTES_MAX + 1];
    *out = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        hth_cli_say_error("run file %s: %s", path, strerror(errno));
        return errno == ENOENT ? HTH_E_NO_FILE : HTH_E_IO;
    }
    size_t len = fread(bytes, 1, sizeof(bytes), file);
    int failed = ferror(file) != 0 ? errno : 0;
    fclose(file);
    if (failed != 0) {
        hth_cli_say_error("can't read run file %s: %s", path, strerror(failed));
        return HTH_E_IO;
    }
    enum hth_err err = hth_runfile_parse(path, bytes, len, out, error);
    if (err != HTH_OK)
        hth_cli_say_error("%s", error);
    else
        find_data(path, *out);
    return err;
}

uint32_t hth_config_grids(const struct hth_runfile *run)
{
    struct hth_model_opts opts;
    hth_config_model(run, &opts);
    return opts.dense ? 0 : hth_model_sets(&opts);
}

enum hth_err hth_config_grid(const struct hth_runfile *run, uint32_t i, struct hth_grid *out)
{
    char name[32];
    snprintf(name, sizeof(name), HTH_LAYER_PREFIX "%u", i);
    return hth_grid_init(out, name, run->model.grid_count, run->model.grid);
}

static const char *expert_kind_name(enum hth_run_expert_kind kind)
{
    switch (kind) {
    case HTH_RUN_FFN:
        return "ffn";
    case HTH_RUN_TRANSFORMER:
        return "transformer";
    case HTH_RUN_NOP:
        return "nop";
    case HTH_RUN_NONE:
        return "none";
    }
    return "ffn";
}

static uint32_t block_rows(const struct hth_runfile *run)
{
    return run->model.expert == HTH_RUN_TRANSFORMER ? run->model.context : 1;
}

struct hth_layer_shape hth_config_shape(const struct hth_runfile *run)
{
    struct hth_layer_shape shape = {.d = run->model.dim, .block_rows = block_rows(run)};
    snprintf(shape.kind, sizeof(shape.kind), "%s", expert_kind_name(run->model.expert));
    return shape;
}

enum hth_matmul hth_config_compute(const struct hth_runfile *run)
{
    static const enum hth_matmul types[] = {[HTH_RUN_AUTO] = HTH_MATMUL_AUTO,
                                            [HTH_RUN_FP32] = HTH_MATMUL_F32,
                                            [HTH_RUN_BF16] = HTH_MATMUL_BF16};
    return types[run->compute];
}

void hth_config_optim(const struct hth_run_optimizer *in, struct hth_train_optim *out)
{
    static const enum hth_optim_kind kinds[] = {
        [HTH_RUN_ADAM] = HTH_OPTIM_ADAM,
        [HTH_RUN_ADAMW] = HTH_OPTIM_ADAMW,
        [HTH_RUN_SGD] = HTH_OPTIM_SGD,
        [HTH_RUN_LAMB] = HTH_OPTIM_LAMB,
    };
    static const enum hth_schedule_kind schedules[] = {
        [HTH_RUN_CONSTANT] = HTH_SCHEDULE_CONSTANT,
        [HTH_RUN_LINEAR] = HTH_SCHEDULE_LINEAR,
        [HTH_RUN_COSINE] = HTH_SCHEDULE_COSINE,
    };
    *out = (struct hth_train_optim)HTH_TRAIN_OPTIM_INIT;
    out->optim.kind = kinds[in->kind];
    out->optim.momentum = (float)in->momentum;
    out->optim.trust_max = (float)in->trust_max;
    out->optim.weight_decay = (float)in->weight_decay;
    out->schedule.kind = schedules[in->schedule];
    out->schedule.lr = (float)in->rate;
    out->schedule.lr_final = (float)in->rate * LR_FINAL_FACTOR;
    out->schedule.warmup_steps = in->warmup;
    out->schedule.total_steps = in->schedule == HTH_RUN_CONSTANT ? 0 : in->total;
    out->clip_norm = (float)in->clip;
}

static void config_masks(const struct hth_run_model *m, struct hth_model_opts *out)
{
    for (uint32_t l = 0; l < m->layers && l < HTH_MODEL_LAYERS_MAX; l++)
        out->mask[l] =
            (enum hth_mask_kind)(l + 1 < m->layers ? m->masks[l % m->masks_count] : m->last_mask);
}

/* That of the data, for who has none. */
static uint64_t data_hash(const struct hth_runfile *run)
{
    struct hth_hash words, book;
    bool has_words = run->model.words != NULL && run->model.vocab != HTH_DATA_BYTES &&
                     hth_unhex(run->model.words, words.b, HTH_HASH_LEN) == HTH_OK;
    bool has_book = run->model.codebook != NULL &&
                    hth_unhex(run->model.codebook, book.b, HTH_HASH_LEN) == HTH_OK;
    return hth_data_hash(has_words ? &words : NULL, has_book ? &book : NULL);
}

bool hth_config_closed(const struct hth_runfile *run, const struct hth_crypto *crypto,
                       struct hth_hash *run_file, struct hth_closed_run *out)
{
    memset(out, 0, sizeof(*out));
    if (run->admission.owner == NULL ||
        hth_unhex(run->admission.owner, out->owner.b, sizeof(out->owner.b)) != HTH_OK)
        return false;
    char *text = hth_runfile_canonical(run);
    crypto->hash(text, strlen(text), run_file);
    hth_free(text);
    hth_run_id(crypto, &out->owner, run_file, &out->id);
    return true;
}

void hth_config_model(const struct hth_runfile *run, struct hth_model_opts *out)
{
    const struct hth_run_model *m = &run->model;
    static const enum hth_model_kind kinds[] = {[HTH_RUN_CLASSIFIER] = HTH_MODEL_CLASSIFIER,
                                                [HTH_RUN_LM] = HTH_MODEL_LM,
                                                [HTH_RUN_PICTURE] = HTH_MODEL_PICTURE};
    *out = (struct hth_model_opts)HTH_MODEL_OPTS_INIT;
    out->kind = kinds[m->kind];
    out->d = m->dim;
    out->layers = m->layers;
    out->dense = m->expert == HTH_RUN_NONE;
    if (m->kind == HTH_RUN_CLASSIFIER) {
        out->features = m->inputs;
        out->classes = m->classes;
    } else {
        out->heads = m->heads;
        out->features = 0;
        out->classes = m->vocab;
        out->share = m->share;
        out->share_last = m->share_last;
        out->tied = m->tied;
        out->embed_dim = m->embed_dim;
        out->layer_scale = (float)m->layer_scale;
        out->objective = m->objective == HTH_RUN_MASKED ? HTH_MASKED : HTH_CAUSAL;
        out->seq_len = m->context;
        config_masks(m, out);
    }
    if (m->kind == HTH_RUN_PICTURE) {
        out->text = m->text;
        out->height = m->height;
        out->width = m->width;
        out->codes = m->codes;
        out->window = m->window;
        out->image_weight = (float)m->image_weight;
        out->seq_len = m->text + m->height * m->width - 1;
    }
    out->layer_prefix = HTH_LAYER_PREFIX;
    out->grid_ndim = run->model.grid_count;
    for (uint32_t i = 0; i < HTH_GRID_DIMS_MAX; i++)
        out->grid_dim[i] = i < run->model.grid_count ? run->model.grid[i] : 1;
    out->expert_kind = expert_kind_name(run->model.expert);
    out->top_k = run->model.top_k;
    out->noise_std = (float)run->model.noise;
    out->balance = (float)run->model.balance;
    out->k_min = run->train.k_min;
    out->seed = run->seed;
    out->data_hash = data_hash(run);
}

void hth_config_expert(const struct hth_runfile *run, struct hth_expert_opts *out)
{
    *out = (struct hth_expert_opts)HTH_EXPERT_OPTS_INIT;
    out->kind = expert_kind_name(run->model.expert);
    out->shape = (struct hth_expert_shape){
        .d = run->model.dim,
        .heads = run->model.expert == HTH_RUN_TRANSFORMER ? run->model.heads : 0,
        .block_rows = block_rows(run),
    };
    struct hth_train_optim optim;
    hth_config_optim(&run->experts.optimizer, &optim);
    out->optim = optim.optim;
    out->schedule = optim.schedule;
    out->clip_norm = optim.clip_norm;
    out->run_seed = run->seed;
    out->run = run->run;
    out->run_text = run->text;
}

uint32_t hth_config_rows_max(const struct hth_runfile *run)
{
    return (uint32_t)HTH_MIN(ROWS_FACTOR * run->train.rows, (uint64_t)HTH_MICRO_BATCH_MAX);
}

void hth_config_server(const struct hth_runfile *run, struct hth_server_opts *out)
{
    *out = (struct hth_server_opts)HTH_SERVER_OPTS_INIT;
    out->batch_rows_max = run->experts.batch_rows_max;
    out->step_rows = run->experts.step_rows;
    out->step_age_us = (int64_t)(run->experts.step_age_s * 1e6);
    out->grad_norm_max = run->experts.norm_max;
    struct hth_model_opts model;
    hth_config_model(run, &model);
    out->microbatch_rows_max = (uint32_t)HTH_MIN((uint64_t)hth_config_rows_max(run) * model.seq_len,
                                                 (uint64_t)HTH_EXPERT_MICROBATCH_ROWS_MAX);
    out->result_bytes_max = RESULT_BYTES_MAX;
    out->keep_bytes_max = INT64_MAX; /* a quarter of the process's budget for bodies */
}

static void data_fashion(const struct hth_runfile *run, struct hth_config_data *paths,
                         struct hth_data_opts *train, struct hth_data_opts *test)
{
    const char *dir = run->data.path != NULL ? run->data.path : FASHION_DIR;
    paths->train_images = hth_asprintf("%s/train-images-idx3-ubyte.gz", dir);
    paths->train_labels = hth_asprintf("%s/train-labels-idx1-ubyte.gz", dir);
    paths->test_images = hth_asprintf("%s/t10k-images-idx3-ubyte.gz", dir);
    paths->test_labels = hth_asprintf("%s/t10k-labels-idx1-ubyte.gz", dir);
    train->images = paths->train_images;
    train->labels = paths->train_labels;
    test->images = paths->test_images;
    test->labels = paths->test_labels;
}

static void data_set(const struct hth_runfile *run, struct hth_data_opts *out)
{
    static const enum hth_data_kind kinds[] = {[HTH_RUN_CLASSIFIER] = HTH_DATA_SET_IMAGES,
                                               [HTH_RUN_LM] = HTH_DATA_SET_TEXT,
                                               [HTH_RUN_PICTURE] = HTH_DATA_SET_CODES};
    out->kind = kinds[run->model.kind];
    out->set = run->data.path;
    out->words = run->model.words;
    out->book = run->model.codebook;
    out->classes = run->model.classes;
    out->features = run->model.inputs;
    out->vocab = run->model.vocab;
    out->text_len = run->model.text;
    out->codes = run->model.codes;
    out->code_side = run->model.height;
    out->caption_drop = run->data.caption_drop;
    /* -1 to 1: hearth data puts pictures on white, so no set has its own mean. */
    out->mean = out->std = 0.5f;
}

void hth_config_data(const struct hth_runfile *run, uint64_t peer, struct hth_config_data *paths,
                     struct hth_data_opts *train, struct hth_data_opts *test)
{
    memset(paths, 0, sizeof(*paths));
    *train = (struct hth_data_opts)HTH_DATA_OPTS_INIT;
    train->kind = run->data.kind == HTH_RUN_TEXT ? HTH_DATA_TEXT : HTH_DATA_IMAGES;
    if (run->data.kind == HTH_RUN_SET)
        data_set(run, train);
    train->seq_len = run->model.context;
    train->shuffle_rows = run->data.shuffle_rows;
    train->shift = run->data.shift;
    train->seed = run->seed;
    train->peer = peer;
    *test = *train;
    test->shuffle_rows = 0;
    test->peer = 0;
    test->held_out = true;
    test->caption_drop = 0;
    if (run->data.kind == HTH_RUN_SET)
        return;
    if (train->kind == HTH_DATA_IMAGES) {
        data_fashion(run, paths, train, test);
        return;
    }
    paths->text = hth_strdup(run->data.path != NULL ? run->data.path : TEXT_PATH);
    train->text = test->text = paths->text;
    train->end = test->begin = TEXT_TRAIN_END;
}

void hth_config_data_clear(struct hth_config_data *paths)
{
    hth_free(paths->train_images);
    hth_free(paths->train_labels);
    hth_free(paths->test_images);
    hth_free(paths->test_labels);
    hth_free(paths->text);
    memset(paths, 0, sizeof(*paths));
}
