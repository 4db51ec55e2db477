/* SPDX-License-Identifier: Apache-2.0 */
/* runfile.c: the schema of a run file as tables of libcyaml, its defaults and its limits. */
#include "cli/config.h"

#include "averaging/grid.h"
#include "averaging/shares.h"
#include "core/mem.h"
#include "core/yaml.h"
#include "dht/uid.h"
#include "kernels/quant.h"
#include "trainer/data.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cyaml_strval_t compute_types[] = {
    {"auto", HTH_RUN_AUTO}, {"fp32", HTH_RUN_FP32}, {"bf16", HTH_RUN_BF16}};
static const cyaml_strval_t model_kinds[] = {
    {"classifier", HTH_RUN_CLASSIFIER}, {"lm", HTH_RUN_LM}, {"picture", HTH_RUN_PICTURE}};
static const cyaml_strval_t objectives[] = {{"causal", HTH_RUN_CAUSAL}, {"masked", HTH_RUN_MASKED}};
static const cyaml_strval_t masks[] = {{"full", HTH_MASK_FULL},
                                       {"row", HTH_MASK_ROW},
                                       {"column", HTH_MASK_COLUMN},
                                       {"conv", HTH_MASK_CONV}};
static const cyaml_strval_t expert_kinds[] = {{"ffn", HTH_RUN_FFN},
                                              {"transformer", HTH_RUN_TRANSFORMER},
                                              {"nop", HTH_RUN_NOP},
                                              {"none", HTH_RUN_NONE}};
static const cyaml_strval_t data_kinds[] = {
    {"fashion-mnist", HTH_RUN_FASHION_MNIST}, {"text", HTH_RUN_TEXT}, {"set", HTH_RUN_SET}};
static const cyaml_strval_t optim_kinds[] = {
    {"adam", HTH_RUN_ADAM}, {"adamw", HTH_RUN_ADAMW}, {"sgd", HTH_RUN_SGD}, {"lamb", HTH_RUN_LAMB}};
static const cyaml_strval_t schedules[] = {
    {"constant", HTH_RUN_CONSTANT}, {"linear", HTH_RUN_LINEAR}, {"cosine", HTH_RUN_COSINE}};

static const cyaml_strval_t row_types[] = {
    {"auto", 0}, {"fp32", HTH_F32}, {"bf16", HTH_BF16}, {"fp16", HTH_F16}, {"int8", HTH_I8}};
static const cyaml_strval_t averaging_modes[] = {
    {"local", HTH_RUN_LOCAL}, {"batch", HTH_RUN_BATCH}, {"off", HTH_RUN_OFF}};
static const cyaml_strval_t majorities[] = {{"eventual", HTH_RUN_EVENTUAL},
                                            {"strict", HTH_RUN_STRICT}};
static const cyaml_strval_t wire_formats[] = {
    {"fp32", HTH_QUANT_F32},  {"fp16", HTH_QUANT_F16},          {"bf16", HTH_QUANT_BF16},
    {"int8", HTH_QUANT_INT8}, {"dynamic8", HTH_QUANT_DYNAMIC8}, {"uniform8", HTH_QUANT_UNIFORM8}};

#define OPT      CYAML_FLAG_OPTIONAL
#define OPT_ENUM (CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT)
#define OPT_PTR  (CYAML_FLAG_OPTIONAL | CYAML_FLAG_POINTER)
#define ENUM_FIELD(key, strct, member, table)                                                      \
    CYAML_FIELD_ENUM(key, OPT_ENUM, strct, member, table, CYAML_ARRAY_LEN(table))

static const cyaml_schema_value_t grid_entry = {CYAML_VALUE_UINT(CYAML_FLAG_DEFAULT, uint32_t)};
static const cyaml_schema_value_t mask_entry = {
    CYAML_VALUE_ENUM(CYAML_FLAG_STRICT, uint32_t, masks, CYAML_ARRAY_LEN(masks))};

static const cyaml_schema_field_t optimizer_fields[] = {
    ENUM_FIELD("kind", struct hth_run_optimizer, kind, optim_kinds),
    CYAML_FIELD_FLOAT("rate", OPT, struct hth_run_optimizer, rate),
    CYAML_FIELD_FLOAT("weight_decay", OPT, struct hth_run_optimizer, weight_decay),
    CYAML_FIELD_FLOAT("momentum", OPT, struct hth_run_optimizer, momentum),
    CYAML_FIELD_FLOAT("trust_max", OPT, struct hth_run_optimizer, trust_max),
    ENUM_FIELD("schedule", struct hth_run_optimizer, schedule, schedules),
    CYAML_FIELD_UINT("warmup", OPT, struct hth_run_optimizer, warmup),
    CYAML_FIELD_UINT("total", OPT, struct hth_run_optimizer, total),
    CYAML_FIELD_FLOAT_PTR("clip", OPT_PTR, struct hth_run_optimizer, clip_told),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t model_fields[] = {
    ENUM_FIELD("kind", struct hth_run_model, kind, model_kinds),
    CYAML_FIELD_UINT("dim", OPT, struct hth_run_model, dim),
    CYAML_FIELD_UINT("layers", OPT, struct hth_run_model, layers),
    CYAML_FIELD_UINT("inputs", OPT, struct hth_run_model, inputs),
    CYAML_FIELD_UINT("classes", OPT, struct hth_run_model, classes),
    CYAML_FIELD_UINT("heads", OPT, struct hth_run_model, heads),
    CYAML_FIELD_UINT("context", OPT, struct hth_run_model, context),
    CYAML_FIELD_UINT("vocab", OPT, struct hth_run_model, vocab),
    CYAML_FIELD_STRING_PTR("words", OPT_PTR, struct hth_run_model, words, 1, 64),
    CYAML_FIELD_STRING_PTR("codebook", OPT_PTR, struct hth_run_model, codebook, 1, 64),
    ENUM_FIELD("objective", struct hth_run_model, objective, objectives),
    CYAML_FIELD_UINT("text", OPT, struct hth_run_model, text),
    CYAML_FIELD_UINT("height", OPT, struct hth_run_model, height),
    CYAML_FIELD_UINT("width", OPT, struct hth_run_model, width),
    CYAML_FIELD_UINT("codes", OPT, struct hth_run_model, codes),
    CYAML_FIELD_FLOAT_PTR("image_weight", OPT_PTR, struct hth_run_model, image_weight_told),
    CYAML_FIELD_SEQUENCE("masks", OPT_PTR, struct hth_run_model, masks, &mask_entry, 1,
                         HTH_MODEL_LAYERS_MAX),
    CYAML_FIELD_ENUM_PTR("last_mask", OPT_PTR | CYAML_FLAG_STRICT, struct hth_run_model,
                         last_mask_told, masks, CYAML_ARRAY_LEN(masks)),
    CYAML_FIELD_UINT("window", OPT, struct hth_run_model, window),
    CYAML_FIELD_UINT("share", OPT, struct hth_run_model, share),
    CYAML_FIELD_BOOL("share_last", OPT, struct hth_run_model, share_last),
    CYAML_FIELD_BOOL("tied", OPT, struct hth_run_model, tied),
    CYAML_FIELD_UINT("embed_dim", OPT, struct hth_run_model, embed_dim),
    CYAML_FIELD_FLOAT("layer_scale", OPT, struct hth_run_model, layer_scale),
    CYAML_FIELD_SEQUENCE("grid", OPT_PTR, struct hth_run_model, grid, &grid_entry, 1,
                         HTH_GRID_DIMS_MAX),
    CYAML_FIELD_UINT("top_k", OPT, struct hth_run_model, top_k),
    ENUM_FIELD("expert", struct hth_run_model, expert, expert_kinds),
    CYAML_FIELD_FLOAT("balance", OPT, struct hth_run_model, balance),
    CYAML_FIELD_FLOAT("noise", OPT, struct hth_run_model, noise),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t data_fields[] = {
    ENUM_FIELD("kind", struct hth_run_data, kind, data_kinds),
    CYAML_FIELD_STRING_PTR("path", OPT_PTR, struct hth_run_data, path, 1, 4095),
    CYAML_FIELD_UINT("shuffle_rows", OPT, struct hth_run_data, shuffle_rows),
    CYAML_FIELD_UINT("shift", OPT, struct hth_run_data, shift),
    CYAML_FIELD_FLOAT("caption_drop", OPT, struct hth_run_data, caption_drop),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t train_fields[] = {
    CYAML_FIELD_UINT("rows", OPT, struct hth_run_train, rows),
    CYAML_FIELD_UINT("flights", OPT, struct hth_run_train, flights),
    CYAML_FIELD_UINT("steps", OPT, struct hth_run_train, steps),
    CYAML_FIELD_UINT("eval_every", OPT, struct hth_run_train, eval_every),
    CYAML_FIELD_UINT("eval_rows", OPT, struct hth_run_train, eval_rows),
    CYAML_FIELD_UINT("k_min", OPT, struct hth_run_train, k_min),
    CYAML_FIELD_FLOAT("grace_s", OPT, struct hth_run_train, grace_s),
    CYAML_FIELD_FLOAT("timeout_s", OPT, struct hth_run_train, timeout_s),
    ENUM_FIELD("wire", struct hth_run_train, wire, row_types),
    CYAML_FIELD_UINT("checkpoint_every", OPT, struct hth_run_train, checkpoint_every),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t expert_fields[] = {
    CYAML_FIELD_MAPPING("optimizer", OPT, struct hth_run_experts, optimizer, optimizer_fields),
    CYAML_FIELD_UINT("step_rows", OPT, struct hth_run_experts, step_rows),
    CYAML_FIELD_FLOAT("step_age_s", OPT, struct hth_run_experts, step_age_s),
    CYAML_FIELD_UINT("batch_rows_max", OPT, struct hth_run_experts, batch_rows_max),
    CYAML_FIELD_FLOAT("norm_max", OPT, struct hth_run_experts, norm_max),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t averaging_fields[] = {
    ENUM_FIELD("mode", struct hth_run_averaging, mode, averaging_modes),
    CYAML_FIELD_UINT_PTR("every", OPT_PTR, struct hth_run_averaging, every_told),
    ENUM_FIELD("format", struct hth_run_averaging, format, wire_formats),
    CYAML_FIELD_BOOL("states", OPT, struct hth_run_averaging, states),
    CYAML_FIELD_UINT("target", OPT, struct hth_run_averaging, target),
    CYAML_FIELD_BOOL("delayed", OPT, struct hth_run_averaging, delayed),
    ENUM_FIELD("majority", struct hth_run_averaging, majority, majorities),
    CYAML_FIELD_STRING_PTR("grid", OPT_PTR, struct hth_run_averaging, grid, 1,
                           HTH_AVG_SHAPE_TEXT_MAX),
    CYAML_FIELD_UINT("group", OPT, struct hth_run_averaging, group),
    CYAML_FIELD_FLOAT("clip", OPT, struct hth_run_averaging, clip),
    CYAML_FIELD_FLOAT("share_max", OPT, struct hth_run_averaging, share_max),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t admission_fields[] = {
    CYAML_FIELD_STRING_PTR("owner", OPT_PTR, struct hth_run_admission, owner, 1, 64),
    CYAML_FIELD_BOOL("private", OPT, struct hth_run_admission, is_private),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t run_fields[] = {
    CYAML_FIELD_STRING_PTR("run", CYAML_FLAG_POINTER, struct hth_runfile, run, 1, HTH_NAME_LEN_MAX),
    CYAML_FIELD_UINT("seed", OPT, struct hth_runfile, seed),
    ENUM_FIELD("compute", struct hth_runfile, compute, compute_types),
    CYAML_FIELD_MAPPING("model", OPT, struct hth_runfile, model, model_fields),
    CYAML_FIELD_MAPPING("data", OPT, struct hth_runfile, data, data_fields),
    CYAML_FIELD_MAPPING("train", OPT, struct hth_runfile, train, train_fields),
    CYAML_FIELD_MAPPING("optimizer", OPT, struct hth_runfile, optimizer, optimizer_fields),
    CYAML_FIELD_MAPPING("experts", OPT, struct hth_runfile, experts, expert_fields),
    CYAML_FIELD_MAPPING("averaging", OPT, struct hth_runfile, averaging, averaging_fields),
    CYAML_FIELD_MAPPING("admission", OPT, struct hth_runfile, admission, admission_fields),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t run_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct hth_runfile, run_fields),
};

static const struct hth_yaml_kind kind = {
    .what = "a run file",
    .least = "it needs at least 'run: NAME'",
    .bytes_max = HTH_RUNFILE_BYTES_MAX,
    .schema = &run_schema,
};

/* ---- defaults ------------------------------------------------------------------------------ */

#define HASH_RANGE "SHA-256: 64 hex digits in lower case"
#define KEY_RANGE  "public key: 64 hex digits in lower case"
#define NAME_RANGE "1 to 63 bytes of UTF-8, without blanks, control or direction marks, . / \\ [ ]"

/* Gradients come from strangers: a trainer's from experts, an expert's from trainers. A single one
 * of 1e14 would leave Adam's second moments at 1e28 and stop learning for tens of thousands of
 * steps. */
#define CLIP 1.0

static void default_u32(uint32_t *value, uint32_t fallback)
{
    if (*value == 0)
        *value = fallback;
}

static void default_real(double *value, double fallback)
{
    if (*value == 0.0)
        *value = fallback;
}

static void default_optimizer(struct hth_run_optimizer *o, uint32_t steps)
{
    o->clip = o->clip_told != NULL ? *o->clip_told : CLIP;
    default_real(&o->rate, o->kind == HTH_RUN_SGD ? 0.01 : 0.001);
    default_u32(&o->total, steps);
}

static void default_averaging(struct hth_run_averaging *a, const struct hth_run_train *train)
{
    a->every = a->every_told != NULL ? *a->every_told : 10;
    default_u32(&a->format, HTH_QUANT_F32);
    default_u32(&a->group, 16);
    a->share_max = a->share_max == 0 ? HTH_AVG_SHARE_MAX : a->share_max;
    if (a->target == 0)
        a->target = 16 * (uint64_t)train->rows;
}

static void default_model(struct hth_run_model *m)
{
    default_u32(&m->dim, 64);
    default_u32(&m->layers, 2);
    default_u32(&m->inputs, 784);
    default_u32(&m->classes, 10);
    default_u32(&m->heads, 4);
    default_u32(&m->context, 64);
    default_u32(&m->vocab, m->kind == HTH_RUN_PICTURE ? HTH_DATA_IDS_MIN : HTH_DATA_BYTES);
    default_u32(&m->text, 16);
    default_u32(&m->height, 8);
    default_u32(&m->width, 8);
    default_u32(&m->codes, 512);
    default_u32(&m->window, 5);
    m->image_weight = m->image_weight_told != NULL ? *m->image_weight_told : 7;
    default_u32(&m->top_k, 4);
    if (m->masks_count == 0) {
        free(m->masks);
        m->masks = calloc(1, sizeof(*m->masks));
        HTH_ASSERT(m->masks != NULL);
        m->masks[0] = HTH_MASK_FULL;
        m->masks_count = 1;
    }
    m->last_mask =
        m->last_mask_told != NULL ? *m->last_mask_told : m->masks[(m->layers - 1) % m->masks_count];
    if (m->grid_count == 0) {
        free(m->grid);
        m->grid = calloc(2, sizeof(*m->grid));
        HTH_ASSERT(m->grid != NULL);
        m->grid[0] = m->grid[1] = 4;
        m->grid_count = 2;
    }
}

static void fill_defaults(struct hth_runfile *run)
{
    static const enum hth_run_data_kind data_kinds_of[] = {
        [HTH_RUN_CLASSIFIER] = HTH_RUN_FASHION_MNIST,
        [HTH_RUN_LM] = HTH_RUN_TEXT,
        [HTH_RUN_PICTURE] = HTH_RUN_SET,
    };
    bool sequences = run->model.kind != HTH_RUN_CLASSIFIER;
    default_model(&run->model);
    if (run->data.kind == HTH_RUN_DATA_DEFAULT)
        run->data.kind = data_kinds_of[run->model.kind];
    default_u32(&run->data.shuffle_rows, 8192);
    default_u32(&run->train.rows, sequences ? 16 : 64);
    default_u32(&run->train.flights, 4);
    default_u32(&run->train.steps, 1000);
    default_u32(&run->train.eval_every, 200);
    default_u32(&run->train.k_min, 1);
    default_real(&run->train.grace_s, 0.5);
    default_real(&run->train.timeout_s, 10.0);
    default_u32(&run->train.checkpoint_every, 500);
    default_u32(&run->experts.step_rows, 64);
    default_real(&run->experts.step_age_s, 1.0);
    default_u32(&run->experts.batch_rows_max, 4096);
    default_optimizer(&run->optimizer, run->train.steps);
    /* An expert counts its own steps, not the trainers', so its schedule has no default end. */
    default_optimizer(&run->experts.optimizer, 0);
    default_averaging(&run->averaging, &run->train);
}

/* ---- keys ---------------------------------------------------------------------------------- */

enum key_type { U32, U64, REAL, WORD, BOOL, TEXT, SIZES, MASKS };

struct key {
    const char *path, *unit, *fallback;
    enum key_type type;
    size_t offset;
    double low, high;
    const cyaml_strval_t *words;
    uint32_t word_count;
    const char *range; /* NULL: from low to high, or the words */
};

#define AT(member) offsetof(struct hth_runfile, member)
#define KEY(type, member, unit, fallback, low, high)                                               \
    {                                                                                              \
#member, unit, fallback, type, AT(member), low, high, NULL, 0, NULL                        \
    }
#define KEY_OF(type, member, path, unit, fallback, low, high, range)                               \
    {                                                                                              \
        path, unit, fallback, type, AT(member), low, high, NULL, 0, range                          \
    }
#define WORD_KEY(member, words, fallback)                                                          \
    {                                                                                              \
#member, "", fallback, WORD, AT(member), 0, 0, words, CYAML_ARRAY_LEN(words), NULL         \
    }
#define OPTIMIZER_KEYS(member, end)                                                                \
    WORD_KEY(member.kind, optim_kinds, "adam"),                                                    \
        KEY(REAL, member.rate, "", "0.001, sgd: 0.01", 0, 100),                                    \
        KEY(REAL, member.weight_decay, "", "0", 0, 10),                                            \
        KEY(REAL, member.momentum, "", "0", 0, 0.9999),                                            \
        KEY(REAL, member.trust_max, "", "0", 0, 1e6),                                              \
        WORD_KEY(member.schedule, schedules, "constant"),                                          \
        KEY(U32, member.warmup, "steps", "0", 0, UINT32_MAX),                                      \
        KEY(U32, member.total, "steps", end, 0, UINT32_MAX),                                       \
        KEY(REAL, member.clip, "norm", "1", 0, 1e6)

static const struct key keys[] = {
    KEY_OF(TEXT, run, "run", "", "", 0, 0, NAME_RANGE),
    KEY_OF(U64, seed, "seed", "", "0", 0, 0x1p64, "any whole number"),
    WORD_KEY(compute, compute_types, "auto"),
    WORD_KEY(model.kind, model_kinds, "classifier"),
    KEY(U32, model.dim, "numbers", "64", 1, HTH_MODEL_DIM_MAX),
    KEY(U32, model.layers, "layers", "2", 1, HTH_MODEL_LAYERS_MAX),
    KEY(U32, model.inputs, "numbers", "784", 1, 3 * HTH_SET_SIDE_MAX * HTH_SET_SIDE_MAX),
    KEY(U32, model.classes, "classes", "10", 1, HTH_SET_CLASSES_MAX),
    KEY(U32, model.heads, "heads", "4", 1, 1024),
    KEY(U32, model.context, "ids", "64", 2, HTH_SEQ_LEN_MAX),
    KEY(U32, model.vocab, "ids", "256, picture: 258", 2, HTH_MODEL_DIM_MAX),
    KEY_OF(TEXT, model.words, "model.words", "", "any", 0, 0, HASH_RANGE),
    KEY_OF(TEXT, model.codebook, "model.codebook", "", "any", 0, 0, HASH_RANGE),
    WORD_KEY(model.objective, objectives, "causal"),
    KEY(U32, model.text, "ids", "16", 1, HTH_SEQ_LEN_MAX),
    KEY(U32, model.height, "codes", "8", 1, HTH_SEQ_LEN_MAX),
    KEY(U32, model.width, "codes", "8", 1, HTH_SEQ_LEN_MAX),
    KEY(U32, model.codes, "codes", "512", 2, HTH_MODEL_DIM_MAX),
    KEY(REAL, model.image_weight, "", "7", 0, 1e6),
    KEY_OF(MASKS, model.masks, "model.masks", "", "[full]", 0, 0,
           "full, row, column, conv; repeated over the layers"),
    WORD_KEY(model.last_mask, masks, "full, or as model.masks"),
    KEY(U32, model.window, "codes", "5", 1, HTH_SEQ_LEN_MAX),
    KEY(U32, model.share, "sets", "0", 0, HTH_MODEL_LAYERS_MAX),
    KEY(BOOL, model.share_last, "", "false", 0, 0),
    KEY(BOOL, model.tied, "", "false", 0, 0),
    KEY(U32, model.embed_dim, "numbers", "0", 0, HTH_MODEL_DIM_MAX),
    KEY(REAL, model.layer_scale, "", "0", 0, 1e6),
    KEY_OF(SIZES, model.grid, "model.grid", "experts", "[4, 4]", 1, HTH_GRID_DIM_MAX,
           "1 to 3 sizes, up to 16777216 experts"),
    KEY(U32, model.top_k, "experts", "4", 1, HTH_TOP_K_MAX),
    WORD_KEY(model.expert, expert_kinds, "ffn"),
    KEY(REAL, model.balance, "", "0", 0, 1000),
    KEY(REAL, model.noise, "", "0", 0, 1000),
    WORD_KEY(data.kind, data_kinds, "fashion-mnist, lm: text, picture: set"),
    KEY_OF(TEXT, data.path, "data.path", "", "Debian's folder, lm: kjv.txt", 0, 0, "a path"),
    KEY(U32, data.shuffle_rows, "samples", "8192", 1, 1 << 24),
    KEY(U32, data.shift, "pixels", "0", 0, HTH_DATA_SHIFT_MAX),
    KEY(REAL, data.caption_drop, "of captions", "0", 0, 0.99),
    KEY(U32, train.rows, "samples", "64, lm and picture: 16", 1, HTH_MICRO_BATCH_MAX),
    KEY(U32, train.flights, "micro-batches", "4", 1, HTH_FLIGHTS_MAX),
    KEY(U32, train.steps, "updates", "1000", 1, UINT32_MAX),
    KEY(U32, train.eval_every, "updates", "200", 1, UINT32_MAX),
    KEY(U32, train.eval_rows, "samples", "0", 0, UINT32_MAX),
    KEY_OF(U32, train.k_min, "train.k_min", "replies", "1", 1, HTH_TOP_K_MAX, "1 to model.top_k"),
    KEY(REAL, train.grace_s, "s", "0.5", 0.001, 3600),
    KEY(REAL, train.timeout_s, "s", "10", 0.01, 3600),
    WORD_KEY(train.wire, row_types, "auto"),
    KEY(U32, train.checkpoint_every, "updates", "500", 1, UINT32_MAX),
    OPTIMIZER_KEYS(optimizer, "train.steps"),
    OPTIMIZER_KEYS(experts.optimizer, "0"),
    KEY(U32, experts.step_rows, "rows", "64", 1, 1 << 24),
    KEY(REAL, experts.step_age_s, "s", "1", 0.001, 3600),
    KEY(U32, experts.batch_rows_max, "rows", "4096", 1, 1 << 20),
    KEY(REAL, experts.norm_max, "norm", "0", 0, 1e12),
    WORD_KEY(averaging.mode, averaging_modes, "local"),
    KEY(U32, averaging.every, "updates", "10", 0, 1 << 30),
    WORD_KEY(averaging.format, wire_formats, "fp32"),
    KEY(BOOL, averaging.states, "", "false", 0, 0),
    KEY(U64, averaging.target, "samples", "16 * train.rows", 1, 1e9),
    KEY(BOOL, averaging.delayed, "", "false", 0, 0),
    WORD_KEY(averaging.majority, majorities, "eventual"),
    KEY_OF(TEXT, averaging.grid, "averaging.grid", "trainers", "", 0, 0, "sizes such as 4x4"),
    KEY(U32, averaging.group, "trainers", "16", 2, HTH_AVG_MEMBERS_MAX),
    KEY_OF(REAL, averaging.clip, "averaging.clip", "medians", "0", 0, 1e6, "0, or 1 to 1000000"),
    KEY(REAL, averaging.share_max, "mean shares", "2", 1, HTH_AVG_MEMBERS_MAX),
    KEY_OF(TEXT, admission.owner, "admission.owner", "", "nobody: the run is open", 0, 0,
           KEY_RANGE),
    KEY_OF(BOOL, admission.is_private, "admission.private", "", "false", 0, 0, NULL),
};

static const void *place_of(const struct hth_runfile *run, const struct key *k)
{
    return (const char *)run + k->offset;
}

static double number_of(const struct hth_runfile *run, const struct key *k)
{
    const void *at = place_of(run, k);
    if (k->type == U32)
        return *(const uint32_t *)at;
    return k->type == U64 ? (double)*(const uint64_t *)at : *(const double *)at;
}

static void write_sizes(const struct hth_runfile *run, char *out, size_t size)
{
    size_t len = 0;
    for (uint32_t i = 0; i < run->model.grid_count && len < size; i++)
        len +=
            (size_t)snprintf(out + len, size - len, "%s%u", i > 0 ? ", " : "[", run->model.grid[i]);
    if (len < size)
        snprintf(out + len, size - len, "]");
}

static void write_masks(const struct hth_runfile *run, char *out, size_t size)
{
    size_t len = 0;
    for (uint32_t i = 0; i < run->model.masks_count && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s%s", i > 0 ? ", " : "[",
                                hth_mask_name((enum hth_mask_kind)run->model.masks[i]));
    if (len < size)
        snprintf(out + len, size - len, "]");
}

static void write_value(const struct hth_runfile *run, const struct key *k, char *out, size_t size)
{
    const void *at = place_of(run, k);
    out[0] = '\0';
    switch (k->type) {
    case U32:
        snprintf(out, size, "%u", *(const uint32_t *)at);
        break;
    case U64:
        snprintf(out, size, "%llu", (unsigned long long)*(const uint64_t *)at);
        break;
    case REAL:
        snprintf(out, size, "%.9g", *(const double *)at);
        break;
    case BOOL:
        snprintf(out, size, "%s", *(const bool *)at ? "true" : "false");
        break;
    case TEXT:
        if (*(char *const *)at != NULL)
            snprintf(out, size, "%s", *(char *const *)at);
        break;
    case SIZES:
        write_sizes(run, out, size);
        break;
    case MASKS:
        write_masks(run, out, size);
        break;
    case WORD:
        for (uint32_t i = 0; i < k->word_count; i++)
            if (k->words[i].val == *(const uint32_t *)at)
                snprintf(out, size, "%s", k->words[i].str);
        break;
    }
}

static void write_range(const struct key *k, char *out, size_t size)
{
    size_t len = 0;
    if (k->range != NULL)
        snprintf(out, size, "%s", k->range);
    else if (k->type == BOOL)
        snprintf(out, size, "true, false");
    else if (k->type != WORD)
        snprintf(out, size, "%.10g to %.10g", k->low, k->high);
    for (uint32_t i = 0; i < k->word_count && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s%s", i > 0 ? ", " : "", k->words[i].str);
}

size_t hth_runfile_keys(const struct hth_runfile *run, struct hth_run_key *out, size_t max)
{
    static const enum hth_run_value kinds[] = {
        [U32] = HTH_RUN_NUMBER,  [U64] = HTH_RUN_NUMBER,  [REAL] = HTH_RUN_NUMBER,
        [WORD] = HTH_RUN_WORD,   [BOOL] = HTH_RUN_SWITCH, [TEXT] = HTH_RUN_NAME,
        [SIZES] = HTH_RUN_SIZES, [MASKS] = HTH_RUN_WORDS,
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(keys) && i < max; i++) {
        const struct key *k = &keys[i];
        out[i] = (struct hth_run_key){k->path, k->unit, k->fallback, kinds[k->type], "", ""};
        write_value(run, k, out[i].value, sizeof(out[i].value));
        write_range(k, out[i].range, sizeof(out[i].range));
    }
    return HTH_ARRAY_LEN(keys);
}

static bool is_canonical(const struct key *k)
{
    return k->offset != AT(data.path) && k->offset != AT(admission.owner);
}

char *hth_runfile_canonical(const struct hth_runfile *run)
{
    char least[64], error[HTH_RUNFILE_ERROR_MAX], value[1024], usual[1024];
    struct hth_runfile *base, *read = NULL;
    if (run->text != NULL && hth_runfile_parse("itself", (const uint8_t *)run->text,
                                               strlen(run->text), &read, error) == HTH_OK)
        run = read;
    const char *of_kind = model_kinds[run->model.kind].str;
    snprintf(least, sizeof(least), "run: '-'\nmodel: {kind: %s}\n", of_kind);
    enum hth_err err =
        hth_runfile_parse("least", (const uint8_t *)least, strlen(least), &base, error);
    HTH_ASSERT(err == HTH_OK);
    char *out = hth_asprintf("model.kind = %s\n", of_kind);
    for (size_t i = 0; i < HTH_ARRAY_LEN(keys); i++) {
        write_value(run, &keys[i], value, sizeof(value));
        write_value(base, &keys[i], usual, sizeof(usual));
        if (!is_canonical(&keys[i]) || strcmp(value, usual) == 0)
            continue;
        char *longer = hth_asprintf("%s%s = %s\n", out, keys[i].path, value);
        hth_free(out);
        out = longer;
    }
    hth_runfile_free(base);
    hth_runfile_free(read);
    return out;
}

/* ---- limits -------------------------------------------------------------------------------- */

static bool in_range(const char *key, double value, double low, double high, const char *name,
                     char error[HTH_RUNFILE_ERROR_MAX])
{
    if (value >= low && value <= high)
        return true;
    snprintf(error, HTH_RUNFILE_ERROR_MAX, "%s: %s is %.9g; it must be from %.9g to %.9g", name,
             key, value, low, high);
    return false;
}

static bool check_ranges(const struct hth_runfile *run, const char *name,
                         char error[HTH_RUNFILE_ERROR_MAX])
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(keys); i++) {
        const struct key *k = &keys[i];
        bool number = k->type == U32 || k->type == U64 || k->type == REAL;
        if (number && !in_range(k->path, number_of(run, k), k->low, k->high, name, error))
            return false;
    }
    return true;
}

static bool check_name(const struct hth_runfile *run, const char *name,
                       char error[HTH_RUNFILE_ERROR_MAX])
{
    if (hth_name_check(run->run, strlen(run->run)) == HTH_OK)
        return true;
    snprintf(error, HTH_RUNFILE_ERROR_MAX, "%s: run is '%s'; it must be " NAME_RANGE, name,
             run->run);
    return false;
}

static bool check_schedule(const struct hth_run_optimizer *o, const char *where, const char *name,
                           char error[HTH_RUNFILE_ERROR_MAX])
{
    if (o->schedule == HTH_RUN_CONSTANT || o->total > 0)
        return true;
    snprintf(error, HTH_RUNFILE_ERROR_MAX, "%s: %s: a decaying schedule needs 'total' steps", name,
             where);
    return false;
}

static bool check_grid(const struct hth_run_model *m, const char *name,
                       char error[HTH_RUNFILE_ERROR_MAX])
{
    double experts = 1;
    for (uint32_t i = 0; i < m->grid_count; i++) {
        if (!in_range("model.grid", m->grid[i], 1, HTH_GRID_DIM_MAX, name, error))
            return false;
        experts *= m->grid[i];
    }
    return in_range("experts in model.grid", experts, 1, HTH_GRID_EXPERTS_MAX, name, error);
}

static bool differs(const char *name, char error[HTH_RUNFILE_ERROR_MAX], const char *fmt, ...)
    HTH_PRINTF(3, 4);

/* Writes the error; false. */
static bool differs(const char *name, char error[HTH_RUNFILE_ERROR_MAX], const char *fmt, ...)
{
    char what[HTH_RUNFILE_ERROR_MAX / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    snprintf(error, HTH_RUNFILE_ERROR_MAX, "%s: %s", name, what);
    return false;
}

/* Refuses pairs of settings that contradict each other. */
static bool check_pairing(const struct hth_runfile *run, const char *name,
                          char error[HTH_RUNFILE_ERROR_MAX])
{
    static const char *const files[] = {[HTH_RUN_CLASSIFIER] = "'fashion-mnist' or 'set'",
                                        [HTH_RUN_LM] = "'text' or 'set'",
                                        [HTH_RUN_PICTURE] = "'set'"};
    const struct hth_run_model *m = &run->model;
    enum hth_run_data_kind data = run->data.kind;
    bool fits = data == HTH_RUN_SET || (m->kind == HTH_RUN_LM && data == HTH_RUN_TEXT) ||
                (m->kind == HTH_RUN_CLASSIFIER && data == HTH_RUN_FASHION_MNIST);
    if (!fits)
        return differs(name, error, "model.kind '%s' learns from data.kind %s",
                       model_kinds[m->kind].str, files[m->kind]);
    if (m->kind != HTH_RUN_CLASSIFIER && run->data.shift > 0)
        return differs(name, error,
                       "data.shift moves pictures, so it needs model.kind "
                       "'classifier'; codes are moved by hearth data codes --copies");
    if (m->kind != HTH_RUN_PICTURE && run->data.caption_drop > 0)
        return differs(name, error, "data.caption_drop needs model.kind 'picture'");
    if (data == HTH_RUN_TEXT && m->vocab != HTH_DATA_BYTES)
        return differs(name, error,
                       "model.vocab %u: data.kind 'text' has 256 ids, bytes; words come with "
                       "data.kind 'set'",
                       m->vocab);
    if (data == HTH_RUN_FASHION_MNIST && (m->inputs != 784 || m->classes < 10))
        return differs(name, error,
                       "data.kind 'fashion-mnist' needs model.inputs 784 and model.classes 10");
    if (data == HTH_RUN_SET && m->kind != HTH_RUN_CLASSIFIER && m->vocab < HTH_DATA_IDS_MIN &&
        (m->vocab != HTH_DATA_BYTES || m->kind == HTH_RUN_PICTURE))
        return differs(name, error, "model.vocab is %u; with data.kind 'set' it must be %s",
                       m->vocab,
                       m->kind == HTH_RUN_LM ? "256, for bytes, or from 258 on" : "from 258 on");
    if (m->kind == HTH_RUN_PICTURE && m->height != m->width)
        return differs(name, error, "model.height %u, model.width %u: a set's pictures are squares",
                       m->height, m->width);
    return true;
}

static bool check_hex(const char *key, const char *hash, const char *range, const char *name,
                      char error[HTH_RUNFILE_ERROR_MAX])
{
    if (hash == NULL || (strlen(hash) == 64 && strspn(hash, "0123456789abcdef") == 64))
        return true;
    snprintf(error, HTH_RUNFILE_ERROR_MAX, "%s: %s is '%s'; it must be a %s", name, key, hash,
             range);
    return false;
}

static bool check_model(const struct hth_runfile *run, const char *name,
                        char error[HTH_RUNFILE_ERROR_MAX])
{
    struct hth_model_opts opts;
    char why[HTH_MODEL_WHY_MAX];
    if (!check_grid(&run->model, name, error))
        return false;
    hth_config_model(run, &opts);
    if (hth_model_check(&opts, NULL, why) == HTH_OK)
        return true;
    snprintf(error, HTH_RUNFILE_ERROR_MAX, "%s: %s", name, why);
    return false;
}

static bool check_averaging(const struct hth_run_averaging *a, const char *name,
                            char error[HTH_RUNFILE_ERROR_MAX])
{
    struct hth_avg_shape shape;
    if (a->clip > 0 && !in_range("averaging.clip", a->clip, 1, 1e6, name, error))
        return false;
    if (a->grid == NULL || hth_avg_shape_parse(a->grid, &shape) == HTH_OK)
        return true;
    snprintf(error, HTH_RUNFILE_ERROR_MAX,
             "%s: averaging.grid '%.40s': expected sizes joined by x, such as 4x4", name, a->grid);
    return false;
}

static bool check_private(const struct hth_run_admission *a, const char *name,
                          char error[HTH_RUNFILE_ERROR_MAX])
{
    return !a->is_private || a->owner != NULL ||
           differs(name, error, "admission.private needs admission.owner: somebody must invite");
}

static enum hth_err check(const struct hth_runfile *run, const char *name,
                          char error[HTH_RUNFILE_ERROR_MAX])
{
    error[0] = '\0';
    bool good = check_name(run, name, error) && check_ranges(run, name, error) &&
                in_range("train.k_min", run->train.k_min, 1, run->model.top_k, name, error) &&
                check_model(run, name, error) && check_pairing(run, name, error) &&
                check_hex("model.words", run->model.words, HASH_RANGE, name, error) &&
                check_hex("model.codebook", run->model.codebook, HASH_RANGE, name, error) &&
                check_hex("admission.owner", run->admission.owner, KEY_RANGE, name, error) &&
                check_private(&run->admission, name, error) &&
                check_schedule(&run->optimizer, "optimizer", name, error) &&
                check_schedule(&run->experts.optimizer, "experts.optimizer", name, error) &&
                check_averaging(&run->averaging, name, error);
    return good ? HTH_OK : HTH_E_CONFIG;
}

enum hth_err hth_runfile_parse(const char *name, const uint8_t *data, size_t len,
                               struct hth_runfile **out, char error[HTH_RUNFILE_ERROR_MAX])
{
    void *value = NULL;
    *out = NULL;
    HTH_TRY(hth_yaml_load(&kind, name, data, len, &value, error, HTH_RUNFILE_ERROR_MAX));
    fill_defaults(value);
    enum hth_err err = check(value, name, error);
    if (err != HTH_OK)
        hth_yaml_free(&kind, value);
    else
        *out = value;
    /* YAML may be UTF-16, which has zeros; else libyaml took it, so it is good UTF-8. */
    if (err == HTH_OK && memchr(data, 0, len) == NULL)
        (*out)->text = hth_asprintf("%.*s", (int)len, (const char *)data);
    return err;
}

/* auto sends bf16, because hosts round rows to bf16 for their products anyway (docs/numbers.md says
 * what that costs). A run with compute fp32 keeps all digits on the wire, too. */
enum hth_dtype hth_runfile_wire(const struct hth_runfile *run)
{
    if (run->train.wire != 0)
        return (enum hth_dtype)run->train.wire;
    return run->compute == HTH_RUN_FP32 ? HTH_F32 : HTH_BF16;
}

void hth_runfile_free(struct hth_runfile *run)
{
    if (run != NULL)
        hth_free(run->text);
    hth_yaml_free(&kind, run);
}
