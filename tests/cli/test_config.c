/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_config.c: each number of a run file arrives in the right option of the modules, in the unit
 * of that option.
 */
#include "cli/config.h"
#include "core/mem.h"
#include "support/suite.h"

static struct hth_runfile *parse(const char *text)
{
    struct hth_runfile *run;
    char error[HTH_RUNFILE_ERROR_MAX];
    if (hth_runfile_parse("x.yaml", (const uint8_t *)text, strlen(text), &run, error) != HTH_OK)
        fail_msg("%s", error);
    return run;
}

static const char LM[] =
    "run: b\nseed: 7\n"
    "model: {kind: lm, dim: 96, layers: 3, heads: 6, context: 32, grid: [2, 3, 5], top_k: 3,"
    " expert: transformer, balance: 0.5, noise: 0.25}\n"
    "data: {kind: text, path: /tmp/x, shuffle_rows: 10}\n"
    "train: {k_min: 2}\n"
    "optimizer: {kind: sgd, rate: 0.5, momentum: 0.75, schedule: linear, warmup: 3, total: 50,"
    " clip: 2, weight_decay: 0.125}\n"
    "experts: {optimizer: {kind: lamb, rate: 0.25, trust_max: 10, clip: 4}, step_rows: 33,"
    " step_age_s: 2.5, batch_rows_max: 77, norm_max: 8}\n";

TEST(server_gets_rows_and_microseconds)
{
    struct hth_runfile *run = parse(LM);
    struct hth_server_opts o;
    (void)state;
    hth_config_server(run, &o);
    assert_int_equal(o.step_rows, 33);
    assert_int_equal(o.step_age_us, 2500000);
    assert_int_equal(o.batch_rows_max, 77);
    assert_true(o.grad_norm_max == 8);
    run->train.rows = HTH_MICRO_BATCH_MAX;
    assert_int_equal(hth_config_rows_max(run), HTH_MICRO_BATCH_MAX);
    hth_runfile_free(run);
}

/* 16 times the run file's micro-batch, whose samples have a row for each position. */
TEST(server_takes_the_rows_of_every_model)
{
    static const struct {
        const char *model;
        uint32_t rows; /* of a sample */
    } cases[] = {
        {"{kind: classifier, dim: 32}", 1},
        {"{kind: lm, dim: 32, heads: 2, context: 24, expert: ffn}", 24},
        {"{kind: lm, dim: 32, heads: 2, context: 24, expert: transformer}", 24},
        {"{kind: picture, dim: 32, heads: 2, text: 5, height: 4, width: 4, codes: 16}", 20},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        bool picture = strstr(cases[i].model, "picture") != NULL;
        bool lm = strstr(cases[i].model, "lm") != NULL;
        char *text = hth_asprintf("run: b\nmodel: %s\ndata: {kind: %s, path: /tmp/x}\n",
                                  cases[i].model, picture ? "set" : lm ? "text" : "fashion-mnist");
        struct hth_runfile *run = parse(text);
        struct hth_server_opts o;
        hth_config_server(run, &o);
        assert_int_equal(o.microbatch_rows_max, 16 * run->train.rows * cases[i].rows);
        hth_runfile_free(run);
        hth_free(text);
    }
}

TEST(trunk_and_experts_get_separate_optimisers)
{
    struct hth_runfile *run = parse(LM);
    struct hth_train_optim trunk;
    struct hth_expert_opts expert;
    (void)state;
    hth_config_optim(&run->optimizer, &trunk);
    assert_int_equal(trunk.optim.kind, HTH_OPTIM_SGD);
    assert_true(trunk.optim.momentum == 0.75f && trunk.optim.weight_decay == 0.125f);
    assert_int_equal(trunk.schedule.kind, HTH_SCHEDULE_LINEAR);
    assert_true(trunk.schedule.lr == 0.5f && trunk.clip_norm == 2);
    assert_close(trunk.schedule.lr_final, 0.5 * 0.05, 1e-6, 0);
    assert_int_equal(trunk.schedule.warmup_steps, 3);
    assert_int_equal(trunk.schedule.total_steps, 50);
    hth_config_expert(run, &expert);
    assert_string_equal(expert.kind, "transformer");
    assert_int_equal(expert.optim.kind, HTH_OPTIM_LAMB);
    assert_true(expert.optim.trust_max == 10 && expert.schedule.lr == 0.25f);
    assert_int_equal(expert.schedule.kind, HTH_SCHEDULE_CONSTANT);
    assert_int_equal(expert.schedule.total_steps, 0); /* a constant rate has no end */
    assert_true(expert.clip_norm == 4);
    assert_int_equal(expert.shape.d, 96);
    assert_int_equal(expert.shape.heads, 6);
    assert_int_equal(expert.shape.block_rows, 32);
    assert_int_equal(expert.run_seed, 7);
    assert_string_equal(expert.run, run->run);
    hth_runfile_free(run);
}

TEST(model_follows_the_run_file)
{
    struct hth_runfile *run = parse(LM);
    struct hth_model_opts o;
    struct hth_grid grid;
    (void)state;
    hth_config_model(run, &o);
    assert_int_equal(o.kind, HTH_MODEL_LM);
    assert_int_equal(o.d, 96);
    assert_int_equal(o.layers, 3);
    assert_int_equal(o.heads, 6);
    assert_int_equal(o.seq_len, 32);
    assert_int_equal(o.classes, 256);
    assert_int_equal(o.grid_ndim, 3);
    assert_int_equal(o.grid_dim[2], 5);
    assert_int_equal(o.top_k, 3);
    assert_int_equal(o.k_min, 2);
    assert_true(o.balance == 0.5f && o.noise_std == 0.25f);
    assert_int_equal(o.seed, 7);
    assert_ok(hth_config_grid(run, 2, &grid));
    assert_string_equal(grid.name, "ffn2");
    assert_int_equal(hth_grid_size(&grid), 30);
    struct hth_layer_shape shape = hth_config_shape(run);
    assert_string_equal(shape.kind, "transformer");
    assert_int_equal(shape.d, 96);
    assert_int_equal(shape.block_rows, 32);
    hth_runfile_free(run);
    run = parse("run: a\nmodel: {expert: ffn}\n");
    hth_config_model(run, &o);
    assert_int_equal(o.kind, HTH_MODEL_CLASSIFIER);
    assert_int_equal(o.features, 784);
    assert_int_equal(o.classes, 10);
    assert_int_equal(o.seq_len, 1);
    assert_int_equal(o.grid_dim[2], 1);
    assert_int_equal(hth_config_shape(run).block_rows, 1);
    hth_runfile_free(run);
}

/* The model of "Training Transformers Together": its own counts, to the last digit. */
TEST(parameters_of_the_paper_are_counted)
{
#define PAPER                                                                                      \
    "run: paper\nmodel: {kind: picture, expert: none, dim: 1024, layers: 64, heads: 16,"           \
    " text: 257, height: 32, width: 32, vocab: 32356, codes: 8192, layer_scale: 0.1,"              \
    " masks: [row, column, row, row], last_mask: conv, window: 11"
    static const struct {
        const char *text;
        uint64_t parameters;
    } cases[] = {
        {PAPER ", share: 4}\n", 125894244},
        {PAPER "}\n", 1116354148},
        /* One set of 16 d^2 + 10 d; E factorised; masked ids have one more id, the mask. */
        {"run: albert\nmodel: {kind: lm, expert: none, dim: 64, layers: 6, context: 32,"
         " vocab: 1000, objective: masked, share: 1, share_last: true, tied: true,"
         " embed_dim: 16}\ndata: {kind: set}\n",
         16 * 64 * 64 + 10 * 64 + 6 * 4 * 64 + 1001 * 16 + 16 * 64 + 2 * 64 + 1001},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_runfile *run = parse(cases[i].text);
        struct hth_model_opts o;
        uint64_t parameters;
        hth_config_model(run, &o);
        assert_ok(hth_model_count(&o, &parameters));
        assert_int_equal(parameters, cases[i].parameters);
        hth_runfile_free(run);
    }
}

TEST(layers_get_masks_and_sets)
{
    static const enum hth_mask_kind want[] = {HTH_MASK_ROW, HTH_MASK_COLUMN, HTH_MASK_ROW,
                                              HTH_MASK_ROW, HTH_MASK_ROW,    HTH_MASK_CONV};
    static const uint32_t sets[][6] = {{0, 1, 2, 3, 0, 4}, {0, 1, 2, 3, 0, 1}};
    (void)state;
    for (int last = 0; last < 2; last++) {
        char text[256];
        snprintf(text, sizeof(text),
                 "run: a\nmodel: {kind: picture, layers: 6, share: 4, share_last: %s,"
                 " masks: [row, column, row, row], last_mask: conv, window: 3}\n",
                 last ? "true" : "false");
        struct hth_runfile *run = parse(text);
        struct hth_model_opts o;
        hth_config_model(run, &o);
        assert_int_equal(o.seq_len, 16 + 8 * 8 - 1);
        for (uint32_t l = 0; l < 6; l++) {
            assert_int_equal(o.mask[l], want[l]);
            assert_int_equal(hth_model_set(&o, l), sets[last][l]);
        }
        assert_int_equal(hth_model_sets(&o), 5 - last);
        assert_int_equal(hth_config_grids(run), 5 - last);
        hth_runfile_free(run);
    }
}

/* Training data and test set do not overlap, and all trainers have the same test set. */
TEST(training_and_test_data_do_not_overlap)
{
    static const char *const texts[] = {
        LM, "run: a\ndata: {path: /tmp/f, shuffle_rows: 9, shift: 4}\n"};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(texts); i++) {
        struct hth_runfile *run = parse(texts[i]);
        struct hth_config_data paths;
        struct hth_data_opts train, test;
        hth_config_data(run, 3, &paths, &train, &test);
        assert_int_equal(train.kind, i == 0 ? HTH_DATA_TEXT : HTH_DATA_IMAGES);
        assert_int_equal(test.kind, train.kind);
        assert_int_equal(train.peer, 3);
        assert_int_equal(test.peer, 0);
        assert_int_equal(train.shuffle_rows, i == 0 ? 10 : 9);
        assert_int_equal(test.shuffle_rows, 0);
        assert_int_equal(train.shift, i == 0 ? 0 : 4);
        assert_int_equal(test.shift, train.shift);
        assert_int_equal(test.seed, train.seed);
        if (i == 0) {
            assert_string_equal(train.text, "/tmp/x");
            assert_string_equal(test.text, "/tmp/x");
            assert_true(train.begin == 0 && train.end == 0.95);
            assert_true(test.begin == train.end && test.end == 1);
            assert_int_equal(train.seq_len, 32);
        } else {
            assert_string_equal(train.images, "/tmp/f/train-images-idx3-ubyte.gz");
            assert_string_equal(train.labels, "/tmp/f/train-labels-idx1-ubyte.gz");
            assert_string_equal(test.images, "/tmp/f/t10k-images-idx3-ubyte.gz");
            assert_string_equal(test.labels, "/tmp/f/t10k-labels-idx1-ubyte.gz");
        }
        hth_config_data_clear(&paths);
        hth_runfile_free(run);
    }
}
