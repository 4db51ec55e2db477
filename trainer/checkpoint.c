/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c: the trunk's checkpoint. It is a safetensors file with each tensor under its name,
 * its moments as name.m and name.v, and the position of the run in the metadata:
 *
 *   hearth.format, hearth.kind = "trunk", hearth.run (its name), hearth.run_file (its text),
 *   hearth.experts ("none" of a control, which trains without, else "some"), hearth.schema,
 *   hearth.seed, hearth.updates, hearth.launched, hearth.samples, hearth.steps (the optimiser's),
 *   hearth.loss_ema, hearth.accuracy_ema,
 *   hearth.terms (the schema of parameters, a hash of the run's settings: settings.h),
 *
 * A checkpoint is taken while no flight is in the air, so that `launched` is the exact position in
 * the data and in the noise. A job of the trunk's queue copies the bytes; the disk then works
 * beside training. Local experts are saved at the same moment, after a step on the gradients that
 * they wait for, in the files of a host; they are written first, so that no trunk is ahead of its
 * experts. A file with more updates is kept under another name. Parameters that no run could
 * continue from never replace a file: those that are not finite, and those of a trainer that ends
 * by an error in the middle of a step, or because its losses or gradients are not finite.
 *
 * A file is not trusted. Its content is held to the same bounds as a state from other trainers
 * (run_state.c), and `why` of the options says in words which bound it breaks.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/bytes.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"
#include "trainer/trunk_file.h"

/* A file without hearth.format is of version 1: it has the bits of its means as whole numbers. */
#define FORMAT "hearth-trunk-2"

static const char *const part_suffix[] = {"", ".m", ".v"};
static const enum hth_part part_of[] = {HTH_PART_VALUE, HTH_PART_STATE0, HTH_PART_STATE1};

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

/* Takes the buffers that a checkpoint saves as plain memory. */
static enum hth_err take_flats(struct hth_trainer *t, float *flat[3])
{
    for (uint32_t part = 0; part < part_count(hth_model_params(t->model)); part++)
        HTH_TRY(hth_model_flat_take(t->model, part_of[part], &flat[part]));
    return HTH_OK;
}

static enum hth_err check_finite(const struct hth_params *params, float *const flat[3])
{
    size_t n = hth_params_flat_len(params);

    for (uint32_t part = 0; part < part_count(params); part++)
        for (size_t i = 0; i < n; i++)
            if (!isfinite(flat[part][i]))
                return HTH_E_NOT_FINITE;
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

/* The writer borrows the names until it has finished, so that they lie in one array. */
static void add_tensors(struct hth_st_writer *w, struct hth_params *params, float *const flat[3],
                        char (*names)[HTH_TRUNK_NAME_BYTES])
{
    uint32_t parts = part_count(params);

    for (uint32_t i = 0; i < hth_params_count(params); i++) {
        struct hth_weight *weight = hth_params_at(params, i);
        uint64_t dim[2] = {hth_weight_rows(weight), hth_weight_cols(weight)};

        for (uint32_t part = 0; part < parts; part++) {
            char *name = names[i * 3 + part];

            snprintf(name, HTH_TRUNK_NAME_BYTES, "%s%s", hth_weight_name(weight),
                     part_suffix[part]);
            hth_st_add(w, name, HTH_F32, 2, dim, flat[part] + hth_weight_offset(weight));
        }
    }
}

static void take_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, ckpt.take);
    struct hth_params *params = hth_model_params(t->model);
    struct hth_st_writer *w = hth_st_writer_new();
    float *flat[3] = {NULL, NULL, NULL};
    enum hth_err given;
    char(*names)[HTH_TRUNK_NAME_BYTES] =
        hth_calloc(3 * (size_t)hth_params_count(params), HTH_TRUNK_NAME_BYTES);

    hth_st_add_meta(w, "hearth.format", FORMAT);
    hth_st_add_meta(w, "hearth.kind", "trunk");
    if (t->run != NULL)
        hth_st_add_meta(w, "hearth.run", t->run);
    hth_st_add_meta(w, "hearth.experts", t->opts.without_experts ? "none" : "some");
    hth_st_add_meta_u64(w, "hearth.schema", hth_model_schema(t->model));
    hth_st_add_meta_u64(w, "hearth.seed", t->opts.model.seed);
    hth_st_add_meta_u64(w, "hearth.updates", t->stats.updates);
    hth_st_add_meta_u64(w, "hearth.launched", t->launched);
    hth_st_add_meta_u64(w, "hearth.samples", t->stats.samples);
    hth_st_add_meta_u64(w, "hearth.steps", hth_params_steps(params));
    hth_st_add_meta_real(w, "hearth.loss_ema", t->stats.loss_ema);
    hth_st_add_meta_real(w, "hearth.accuracy_ema", t->stats.accuracy_ema);
    hth_st_add_meta_u64(w, "hearth.terms", hth_settings_schema(&t->settings, HTH_TICKET_PARAMS));
    if (t->opts.run_text != NULL)
        hth_st_add_meta(w, "hearth.run_file", t->opts.run_text);
    t->ckpt.err = take_flats(t, flat);
    if (t->ckpt.err == HTH_OK)
        t->ckpt.err = check_finite(params, flat);
    if (t->ckpt.err == HTH_OK && t->experts_dir != NULL)
        t->ckpt.err = hth_transport_local_save(t->transport, t->experts_dir, &t->ckpt.experts);
    if (t->ckpt.err == HTH_OK) {
        add_tensors(w, params, flat, names);
        t->ckpt.err = hth_st_writer_finish(w, &t->ckpt.bytes);
    }
    given = give_flats(t, flat, false);
    t->ckpt.err = t->ckpt.err == HTH_OK ? given : t->ckpt.err;
    hth_st_writer_free(w);
    hth_free(names);
}

static void say_ended(struct hth_trainer *t, enum hth_err err)
{
    unsigned long long at = t->ckpt.at, aside = t->ckpt.set_aside;

    t->ckpt.set_aside = 0;
    if (aside > 0)
        HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN,
                "%s held %llu updates, and this run has %llu: the longer one is kept as %s-%llu",
                t->checkpoint_path, aside, at, t->checkpoint_path, aside);
    if (err == HTH_OK) {
        t->stats.checkpoints++;
        hth_unsaved_good(&t->ckpt.unsaved, t->env, HTH_SUB_TRAIN);
        if (!t->stopping) /* else its program says so */
            HTH_LOG(t->env, HTH_INFO, HTH_SUB_TRAIN, "saved %s (update %llu)", t->checkpoint_path,
                    at);
    } else if (t->fatal || err == HTH_E_NOT_FINITE) {
        HTH_LOG(t->env, HTH_ERROR, HTH_SUB_TRAIN,
                "checkpoint %s after %llu updates was not written: %s; the file there stays",
                t->checkpoint_path, at, hth_err_text(err));
    } else {
        hth_unsaved_failed(&t->ckpt.unsaved, t->env, HTH_SUB_TRAIN, t->checkpoint_path, err);
    }
}

static void judge(struct hth_trainer *t);

static void ended(struct hth_trainer *t, enum hth_err err)
{
    hth_blob_unref(t->ckpt.bytes);
    t->ckpt.bytes = NULL;
    hth_transport_files_clear(&t->ckpt.experts);
    t->ckpt.busy = false;
    t->ckpt.last_ok = t->ckpt.last && err == HTH_OK;
    say_ended(t, err);
    if (t->opts.on.on_checkpoint != NULL)
        t->opts.on.on_checkpoint(t->opts.on.arg, t->ckpt.at, err);
    if (t->ckpt.judge)
        judge(t);
    hth_trainer_pump_soon(t);
}

/* Updates of a trunk's checkpoint; 0: it is none. */
static uint64_t updates_in(const struct hth_blob *bytes)
{
    struct hth_st_reader *r;
    const char *kind;
    uint64_t updates = 0;

    if (hth_st_open(bytes->data, bytes->size, &r) != HTH_OK)
        return 0;
    kind = hth_st_meta(r, "hearth.kind");
    if (kind == NULL || strcmp(kind, "trunk") != 0 ||
        hth_st_meta_u64(r, "hearth.updates", &updates) != HTH_OK)
        updates = 0;
    hth_st_close(r);
    return updates;
}

static enum hth_err write_whole(struct hth_trainer *t, const char *path, struct hth_blob *bytes)
{
    const struct hth_span span = {bytes, 0, bytes->size};

    return hth_file_write(t->env, path, &span, 1);
}

/* Copies the file that is about to be replaced if it has more updates. A trainer gets there when
 * its run begins anew, or adopts an earlier state of the others. */
static enum hth_err keep_longer(struct hth_trainer *t)
{
    struct hth_blob *old = NULL;
    enum hth_err err = HTH_OK;
    uint64_t updates;
    char *path;

    if (t->ckpt.known && t->ckpt.on_disk <= t->ckpt.at)
        return HTH_OK;
    if (hth_file_read(t->env, t->checkpoint_path, HTH_TRUNK_FILE_BYTES_MAX, &old) != HTH_OK)
        return HTH_OK; /* there is none, or none that can be read */
    updates = updates_in(old);
    if (updates > t->ckpt.at) {
        path = hth_asprintf("%s-%llu", t->checkpoint_path, (unsigned long long)updates);
        err = write_whole(t, path, old);
        t->ckpt.set_aside = err == HTH_OK ? updates : 0;
        hth_free(path);
    }
    hth_blob_unref(old);
    return err;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

/* The same files once more, in the folder of this step. */
static enum hth_err keep_step(struct hth_trainer *t)
{
    const struct hth_transport_files *e = &t->ckpt.experts;
    const char **names = hth_new_array(const char *, e->count + 1);
    unsigned long long at = t->ckpt.at;
    enum hth_err err = HTH_OK;
    char *path;

    for (uint32_t i = 0; err == HTH_OK && i < e->count; i++) {
        names[i] = name_of(e->file[i].path);
        path = hth_asprintf("%s/kept/%llu/experts/%s", t->ckpt.dir, at, names[i]);
        err = write_whole(t, path, e->file[i].bytes);
        hth_free(path);
    }
    if (err == HTH_OK) {
        path = hth_asprintf("%s/kept/%llu/%s", t->ckpt.dir, at, name_of(t->checkpoint_path));
        err = write_whole(t, path, t->ckpt.bytes);
        hth_free(path);
    }
    if (err == HTH_OK)
        err = hth_saved_add(t->env, t->ckpt.dir, &t->ckpt.kept, t->ckpt.at, t->opts.keep, names,
                            e->count);
    hth_free(names);
    return err;
}

/* Each file may take its part of the bound, by size. */
static enum hth_err write_newest(struct hth_trainer *t, const char *path, struct hth_blob *bytes)
{
    double all = (double)t->ckpt.bytes->size, most = (double)t->opts.disk_bytes_max;

    for (uint32_t i = 0; i < t->ckpt.experts.count; i++)
        all += (double)t->ckpt.experts.file[i].bytes->size;
    return hth_ring_write(t->env, path, bytes, t->ckpt.copy_us,
                          (uint64_t)ceil(most * ((double)bytes->size / all)));
}

static enum hth_err write_files(struct hth_trainer *t)
{
    HTH_TRY(keep_longer(t));
    if (t->ckpt.dir != NULL)
        HTH_TRY(keep_step(t));
    for (uint32_t i = 0; i < t->ckpt.experts.count; i++)
        HTH_TRY(write_newest(t, t->ckpt.experts.file[i].path, t->ckpt.experts.file[i].bytes));
    return write_newest(t, t->checkpoint_path, t->ckpt.bytes);
}

static void write_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, ckpt.write);

    t->ckpt.err = write_files(t);
    if (t->ckpt.err == HTH_OK) {
        t->ckpt.known = true;
        t->ckpt.on_disk = t->ckpt.at;
    }
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
    if (err == HTH_OK && t->spoilt) /* by the job that ran before this one */
        err = t->fatal_err;
    /* In a world of ghosts jobs do not run, and there are no bytes to write. */
    if (err != HTH_OK || !work->ran) {
        ended(t, err);
        return;
    }
    t->ckpt.copy_us = hth_ring_due(&t->ckpt.ring, hth_wall_us(t->env));
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
    t->ckpt.last = t->stopping;
    t->ckpt.err = HTH_OK;
    t->ckpt.take.run = take_run;
    t->ckpt.take.done = take_done;
    t->ckpt.take.job.bytes_moved = bytes;
    hth_queue_push(&t->trunk, &t->ckpt.take);
}

/* ---- the best of those that are kept --------------------------------------------------------- */

static void judge_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, ckpt.write);

    t->ckpt.err = hth_saved_judge(t->env, t->ckpt.dir, &t->ckpt.kept, t->ckpt.judged.updates,
                                  t->ckpt.judged.loss);
}

static void judge_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, ckpt.write);

    if (err == HTH_OK && work->ran)
        err = t->ckpt.err;
    if (err != HTH_OK)
        HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN, "%s/kept: the best was not noted: %s", t->ckpt.dir,
                hth_err_text(err));
    t->ckpt.busy = false;
    hth_trainer_pump_soon(t);
}

/* As long as it runs no checkpoint is written, and training does not end. */
static void judge(struct hth_trainer *t)
{
    t->ckpt.judge = false;
    t->ckpt.busy = true;
    t->ckpt.write.run = judge_run;
    t->ckpt.write.done = judge_done;
    hth_queue_push(&t->io, &t->ckpt.write);
}

void hth_checkpoint_judge(struct hth_trainer *t, const struct hth_eval_result *result)
{
    if (t->ckpt.dir == NULL)
        return;
    t->ckpt.judged = *result;
    t->ckpt.judge = true;
    if (!t->ckpt.busy)
        judge(t);
}

/* ---- reading --------------------------------------------------------------------------------- */

static enum hth_err read_mean(struct hth_trainer *t, const struct hth_st_reader *r, const char *key,
                              double *out)
{
    uint64_t bits;

    if (hth_st_meta(r, "hearth.format") == NULL) {
        HTH_TRY(hth_trunk_number(r, key, UINT64_MAX, &bits, t->opts.why));
        *out = from_bits(bits);
    } else if (hth_st_meta_real(r, key, out) != HTH_OK) {
        return hth_blame(t->opts.why, HTH_E_CORRUPT, "it has no number '%s'", key);
    }
    return isfinite(*out) ? HTH_OK
                          : hth_blame(t->opts.why, HTH_E_CORRUPT, "its '%s' is not finite", key);
}

/* Second moments are means of squares. */
static enum hth_err check_squares(struct hth_trainer *t, const char *name, const float *v,
                                  size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (v[i] < 0)
            return hth_blame(t->opts.why, HTH_E_CORRUPT, "its tensor '%s' holds negative squares",
                             name);
    return HTH_OK;
}

static enum hth_err read_weight(struct hth_trainer *t, const struct hth_st_reader *r,
                                const struct hth_weight *w, float *const flat[3])
{
    char name[HTH_TRUNK_NAME_BYTES];

    for (uint32_t part = 0; part < part_count(hth_model_params(t->model)); part++) {
        float *out = flat[part] + hth_weight_offset(w);

        snprintf(name, sizeof(name), "%s%s", hth_weight_name(w), part_suffix[part]);
        HTH_TRY(hth_trunk_tensor(r, name, w, out, t->opts.why));
        if (part_of[part] == HTH_PART_STATE1)
            HTH_TRY(check_squares(t, name, out, (size_t)hth_weight_rows(w) * hth_weight_cols(w)));
    }
    return HTH_OK;
}

static enum hth_err read_tensors(struct hth_trainer *t, const struct hth_st_reader *r)
{
    struct hth_params *params = hth_model_params(t->model);
    float *flat[3] = {NULL, NULL, NULL};
    enum hth_err err = take_flats(t, flat), given;

    for (uint32_t i = 0; err == HTH_OK && i < hth_params_count(params); i++)
        err = read_weight(t, r, hth_params_at(params, i), flat);
    given = give_flats(t, flat, err == HTH_OK);
    return err == HTH_OK ? given : err;
}

/* A file without the hash of its settings may be of any run. */
static enum hth_err read_terms(struct hth_trainer *t, const struct hth_st_reader *r)
{
    uint64_t settings;

    if (hth_st_meta(r, "hearth.terms") == NULL)
        return HTH_OK;
    HTH_TRY(hth_trunk_number(r, "hearth.terms", UINT64_MAX, &settings, t->opts.why));
    t->newcomer.goes_on = settings == hth_settings_schema(&t->settings, HTH_TICKET_PARAMS);
    return HTH_OK;
}

/* Checks that the file is a checkpoint of this run, model and seed. */
static enum hth_err check_kind(struct hth_trainer *t, const struct hth_trained *file)
{
    const struct hth_model_about *about = hth_trained_about(file);

    if (t->run != NULL && about->run != NULL && strcmp(about->run, t->run) != 0)
        return hth_blame(t->opts.why, HTH_E_WRONG_RUN, "it is of another run than '%s'", t->run);
    if (hth_st_meta(hth_trained_reader(file), "hearth.experts") != NULL &&
        about->experts == t->opts.without_experts)
        return hth_blame(t->opts.why, HTH_E_WRONG_RUN, "it was trained %s experts",
                         t->opts.without_experts ? "with" : "without");
    return hth_trained_fits(file, t->model, t->opts.why);
}

static enum hth_err read_place(struct hth_trainer *t, const struct hth_st_reader *r,
                               const struct hth_model_about *about)
{
    /* A position beyond this would overflow when it is multiplied by the micro-batch. */
    const uint64_t launched_max = UINT64_MAX / HTH_MICRO_BATCH_MAX / 2;
    uint64_t steps;

    t->stats.updates = about->updates;
    HTH_TRY(hth_trunk_number(r, "hearth.launched", launched_max, &t->launched, t->opts.why));
    t->stats.samples = about->samples;
    HTH_TRY(hth_trunk_number(r, "hearth.steps", HTH_AVG_STEP_MAX, &steps, t->opts.why));
    HTH_TRY(read_mean(t, r, "hearth.loss_ema", &t->stats.loss_ema));
    HTH_TRY(read_mean(t, r, "hearth.accuracy_ema", &t->stats.accuracy_ema));
    t->ckpt.at = t->ckpt.on_disk = t->stats.updates;
    t->ckpt.known = true;
    hth_params_set_steps(hth_model_params(t->model), steps);
    return HTH_OK;
}

enum hth_err hth_checkpoint_load(struct hth_trainer *t)
{
    struct hth_trained *file;
    const struct hth_st_reader *r;
    enum hth_err err;

    HTH_TRY(hth_trained_open(t->env, t->checkpoint_path, t->opts.why, &file));
    r = hth_trained_reader(file);
    HTH_GOTO(out, check_kind(t, file));
    HTH_GOTO(out, read_place(t, r, hth_trained_about(file)));
    HTH_GOTO(out, read_terms(t, r));
    HTH_GOTO(out, read_tensors(t, r));
out:
    hth_trained_free(file);
    return err;
}
