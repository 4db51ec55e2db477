/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trunk's checkpoint: a safetensors file with each tensor under its name, its moments as name.m
 * and name.v, and in the metadata where the run stands:
 *
 *   hearth.kind = "trunk", hearth.schema, hearth.seed, hearth.updates, hearth.launched,
 *   hearth.samples, hearth.steps (the optimiser's), hearth.loss_ema, hearth.accuracy_ema (bits),
 *   hearth.lineage (lineage.h, in hex; only of shared batches)
 *
 * With its lineage a trainer that is back before the next step goes on in the line of the others,
 * who would else take it for one with other parameters.
 *
 * It is taken while nothing is in the air, so that `launched` is the exact position in the data and
 * in the noise. The bytes are frozen by a job of the trunk's queue; the disk then works beside
 * training.
 */
#include <stdio.h>
#include <string.h>

#include "core/bytes.h"
#include "core/mem.h"
#include "experts/safetensors.h"
#include "trainer/trainer_int.h"

#define NAME_MAX_BYTES 160

static const char *const part_suffix[] = {"", ".m", ".v"};
static const enum hth_part part_of[] = {HTH_PART_VALUE, HTH_PART_STATE0, HTH_PART_STATE1};

static uint64_t bits_of(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static double from_bits(uint64_t u)
{
    double x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static uint32_t part_count(const struct hth_params *params)
{
    return 1 + HTH_MIN(hth_params_state_slots(params), 2u);
}

/* What a checkpoint holds, as plain memory. */
static enum hth_err take_flats(struct hth_trainer *t, float *flat[3])
{
    for (uint32_t part = 0; part < part_count(hth_model_params(t->model)); part++)
        HTH_TRY(hth_model_flat_take(t->model, part_of[part], &flat[part]));
    return HTH_OK;
}

static enum hth_err give_flats(struct hth_trainer *t, float *flat[3], bool wrote)
{
    enum hth_err err = HTH_OK;

    for (uint32_t part = 0; part < 3; part++) {
        enum hth_err one = flat[part] == NULL
                               ? HTH_OK
                               : hth_model_flat_give(t->model, part_of[part], flat[part], wrote);
        err = err == HTH_OK ? one : err;
    }
    return err;
}

/* The writer borrows names until it has finished: they lie in one array. */
static void add_tensors(struct hth_st_writer *w, struct hth_params *params, float *const flat[3],
                        char (*names)[NAME_MAX_BYTES])
{
    uint32_t parts = part_count(params);

    for (uint32_t i = 0; i < hth_params_count(params); i++) {
        struct hth_weight *weight = hth_params_at(params, i);
        uint64_t dim[2] = {hth_weight_rows(weight), hth_weight_cols(weight)};

        for (uint32_t part = 0; part < parts; part++) {
            char *name = names[i * 3 + part];

            snprintf(name, NAME_MAX_BYTES, "%s%s", hth_weight_name(weight), part_suffix[part]);
            hth_st_add(w, name, HTH_F32, 2, dim, flat[part] + hth_weight_offset(weight));
        }
    }
}

/* Not of who goes on with parameters that are nobody's. On the loop thread, where that changes: who
 * has a lineage when its checkpoint is asked for changes it in jobs of the trunk's queue only. */
static bool has_lineage(const struct hth_trainer *t)
{
    return t->batch.on && !t->newcomer.approximate && t->lineage.digest != 0;
}

static void add_lineage(struct hth_st_writer *w, const struct hth_trainer *t)
{
    uint8_t bytes[HTH_LINEAGE_BYTES];
    char text[2 * HTH_LINEAGE_BYTES + 1];
    struct hth_writer out;

    if (!t->ckpt.has_lineage)
        return;
    hth_writer_init(&out, bytes, sizeof(bytes));
    hth_lineage_write(&t->lineage, &out);
    hth_hex(bytes, sizeof(bytes), text);
    hth_st_add_meta(w, "hearth.lineage", text);
}

static enum hth_err load_lineage(struct hth_trainer *t, const struct hth_st_reader *r)
{
    const char *text = hth_st_meta(r, "hearth.lineage");
    uint8_t bytes[HTH_LINEAGE_BYTES];
    struct hth_reader in;

    if (text == NULL)
        return HTH_OK; /* it begins one */
    if (hth_unhex(text, bytes, sizeof(bytes)) != HTH_OK)
        return HTH_E_CORRUPT;
    hth_reader_init(&in, bytes, sizeof(bytes));
    return hth_lineage_read(&in, t->stats.updates, &t->lineage) == HTH_OK ? HTH_OK : HTH_E_CORRUPT;
}

static void take_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, ckpt.take);
    struct hth_params *params = hth_model_params(t->model);
    struct hth_st_writer *w = hth_st_writer_new();
    float *flat[3] = {NULL, NULL, NULL};
    enum hth_err given;
    char(*names)[NAME_MAX_BYTES] = hth_calloc(3 * (size_t)hth_params_count(params), NAME_MAX_BYTES);

    hth_st_add_meta(w, "hearth.kind", "trunk");
    hth_st_add_meta_u64(w, "hearth.schema", hth_model_schema(t->model));
    hth_st_add_meta_u64(w, "hearth.seed", t->opts.model.seed);
    hth_st_add_meta_u64(w, "hearth.updates", t->stats.updates);
    hth_st_add_meta_u64(w, "hearth.launched", t->launched);
    hth_st_add_meta_u64(w, "hearth.samples", t->stats.samples);
    hth_st_add_meta_u64(w, "hearth.steps", hth_params_steps(params));
    hth_st_add_meta_u64(w, "hearth.loss_ema", bits_of(t->stats.loss_ema));
    hth_st_add_meta_u64(w, "hearth.accuracy_ema", bits_of(t->stats.accuracy_ema));
    add_lineage(w, t);
    t->ckpt.err = take_flats(t, flat);
    if (t->ckpt.err == HTH_OK) {
        add_tensors(w, params, flat, names);
        t->ckpt.err = hth_st_writer_finish(w, &t->ckpt.bytes);
    }
    given = give_flats(t, flat, false);
    t->ckpt.err = t->ckpt.err == HTH_OK ? given : t->ckpt.err;
    hth_st_writer_free(w);
    hth_free(names);
}

static void ended(struct hth_trainer *t, enum hth_err err)
{
    hth_blob_unref(t->ckpt.bytes);
    t->ckpt.bytes = NULL;
    t->ckpt.busy = false;
    if (err == HTH_OK)
        t->stats.checkpoints++;
    else
        HTH_LOG(t->env, HTH_ERROR, HTH_SUB_TRAIN, "checkpoint %s: %s", t->checkpoint_path,
                hth_err_text(err));
    if (t->opts.on.on_checkpoint != NULL)
        t->opts.on.on_checkpoint(t->opts.on.arg, t->ckpt.at, err);
    hth_trainer_pump_soon(t);
}

static void write_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, ckpt.write);
    struct hth_span span = {t->ckpt.bytes, 0, t->ckpt.bytes->size};

    t->ckpt.err = hth_file_write(t->env, t->checkpoint_path, &span, 1);
}

static void write_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, ckpt.write);

    ended(t, err != HTH_OK ? err : t->ckpt.err);
}

static void take_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, ckpt.take);

    t->ckpt.wanted = false;
    t->ckpt.at = t->stats.updates;
    if (err == HTH_OK)
        err = t->ckpt.err;
    if (err == HTH_OK && hth_fault(t->env, "trainer.checkpoint"))
        err = HTH_E_IO;
    /* Where jobs are charged and not run there are no bytes to write. */
    if (err != HTH_OK || !work->ran) {
        ended(t, err);
        return;
    }
    t->ckpt.write.run = write_run;
    t->ckpt.write.done = write_done;
    t->ckpt.write.job.bytes_moved = (double)t->ckpt.bytes->size;
    hth_queue_push(&t->io, &t->ckpt.write);
    hth_trainer_pump_soon(t);
}

void hth_checkpoint_take(struct hth_trainer *t)
{
    double bytes = 3.0 * sizeof(float) * (double)hth_params_flat_len(hth_model_params(t->model));

    t->ckpt.busy = true;
    t->ckpt.err = HTH_OK;
    t->ckpt.has_lineage = has_lineage(t);
    t->ckpt.take.run = take_run;
    t->ckpt.take.done = take_done;
    t->ckpt.take.job.bytes_moved = bytes;
    hth_queue_push(&t->trunk, &t->ckpt.take);
}

/* ---- reading --------------------------------------------------------------------------------- */

static enum hth_err copy_tensors(struct hth_params *params, const struct hth_st_reader *r,
                                 float *const flat[3])
{
    uint32_t parts = part_count(params);
    char name[NAME_MAX_BYTES];

    for (uint32_t i = 0; i < hth_params_count(params); i++) {
        struct hth_weight *w = hth_params_at(params, i);
        uint64_t count = (uint64_t)hth_weight_rows(w) * hth_weight_cols(w);

        for (uint32_t part = 0; part < parts; part++) {
            snprintf(name, sizeof(name), "%s%s", hth_weight_name(w), part_suffix[part]);
            HTH_TRY(hth_st_copy(r, name, HTH_F32, count, flat[part] + hth_weight_offset(w)));
        }
    }
    return HTH_OK;
}

static enum hth_err load_tensors(struct hth_trainer *t, const struct hth_st_reader *r)
{
    float *flat[3] = {NULL, NULL, NULL};
    enum hth_err err = take_flats(t, flat), given;

    if (err == HTH_OK)
        err = copy_tensors(hth_model_params(t->model), r, flat);
    given = give_flats(t, flat, err == HTH_OK);
    return err == HTH_OK ? given : err;
}

static enum hth_err load_place(struct hth_trainer *t, const struct hth_st_reader *r)
{
    const char *kind = hth_st_meta(r, "hearth.kind");
    uint64_t schema, seed, steps, loss, accuracy;

    if (kind == NULL || strcmp(kind, "trunk") != 0)
        return HTH_E_CORRUPT;
    HTH_TRY(hth_st_meta_u64(r, "hearth.schema", &schema));
    HTH_TRY(hth_st_meta_u64(r, "hearth.seed", &seed));
    if (schema != hth_model_schema(t->model) || seed != t->opts.model.seed)
        return HTH_E_WRONG_RUN;
    HTH_TRY(hth_st_meta_u64(r, "hearth.updates", &t->stats.updates));
    HTH_TRY(hth_st_meta_u64(r, "hearth.launched", &t->launched));
    HTH_TRY(hth_st_meta_u64(r, "hearth.samples", &t->stats.samples));
    HTH_TRY(hth_st_meta_u64(r, "hearth.steps", &steps));
    HTH_TRY(hth_st_meta_u64(r, "hearth.loss_ema", &loss));
    HTH_TRY(hth_st_meta_u64(r, "hearth.accuracy_ema", &accuracy));
    /* A position beyond this would overflow when it is multiplied by the micro-batch. */
    if (t->launched > UINT64_MAX / HTH_MICRO_BATCH_MAX / 2)
        return HTH_E_CORRUPT;
    t->stats.loss_ema = from_bits(loss);
    t->stats.accuracy_ema = from_bits(accuracy);
    t->ckpt.at = t->stats.updates;
    hth_params_set_steps(hth_model_params(t->model), steps);
    HTH_TRY(load_lineage(t, r));
    return load_tensors(t, r);
}

enum hth_err hth_checkpoint_load(struct hth_trainer *t)
{
    struct hth_blob *bytes = NULL;
    struct hth_st_reader *r = NULL;
    enum hth_err err;

    HTH_TRY(hth_file_read(t->env, t->checkpoint_path, UINT64_C(1) << 40, &bytes));
    HTH_GOTO(out, hth_st_open(bytes->data, bytes->size, &r));
    err = load_place(t, r);
    if (err == HTH_E_NOT_FOUND || err == HTH_E_MALFORMED)
        err = HTH_E_CORRUPT;
out:
    hth_st_close(r);
    hth_blob_unref(bytes);
    return err;
}
