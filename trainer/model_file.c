/* SPDX-License-Identifier: Apache-2.0 */
/* model_file.c: from checkpoints to a model's file, and back. */
#include "trainer/model_file.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/elements.h"
#include "trainer/trunk_file.h"

#define FORMAT  "hearth-model-1"
#define EXPERTS "experts/"

/* ---- metadata ------------------------------------------------------------------------------ */

enum hth_err hth_model_file_about(const char *file, const struct hth_st_reader *reader,
                                  struct hth_model_about *out, struct hth_why *why)
{
    struct hth_why what = {""};
    enum hth_err err = hth_trunk_about(reader, out, &what);

    if (err == HTH_OK && (out->run == NULL || out->run_text == NULL))
        err = hth_blame(&what, HTH_E_CORRUPT, "it does not hold its run file");
    return err == HTH_OK ? HTH_OK : hth_blame(why, err, "%s: %s", file, what.text);
}

static void add_about(struct hth_st_writer *w, const struct hth_model_about *a, uint64_t schema)
{
    hth_st_add_meta(w, "hearth.run", a->run);
    hth_st_add_meta(w, "hearth.experts", a->experts ? "some" : "none");
    hth_st_add_meta_u64(w, "hearth.schema", schema);
    hth_st_add_meta_u64(w, "hearth.updates", a->updates);
    hth_st_add_meta_u64(w, "hearth.samples", a->samples);
    hth_st_add_meta(w, "hearth.run_file", a->run_text);
    if (a->data != NULL)
        hth_st_add_meta(w, "hearth.data", a->data);
    if (a->licence != NULL)
        hth_st_add_meta(w, "hearth.licence", a->licence);
}

/* ---- making -------------------------------------------------------------------------------- */

/* NAME.m and NAME.v, where NAME is a tensor, too. */
static bool is_moment(const struct hth_st_reader *r, const char *name)
{
    char base[HTH_ST_NAME_MAX + 1];
    size_t len = strlen(name);

    if (len < 3 || (strcmp(name + len - 2, ".m") != 0 && strcmp(name + len - 2, ".v") != 0))
        return false;
    snprintf(base, sizeof(base), "%.*s", (int)(len - 2), name);
    return hth_st_find(r, base) != NULL;
}

static uint16_t *to_bf16(const struct hth_st_entry *e)
{
    uint64_t count = e->bytes / sizeof(float);
    uint16_t *out = hth_try_calloc(count + 1, sizeof(*out));

    for (uint64_t i = 0; out != NULL && i < count; i++) {
        float x;
        memcpy(&x, (const uint8_t *)e->data + i * sizeof(x), sizeof(x));
        out[i] = hth_el_to_bf16(x);
    }
    return out;
}

/* Readers and rounded copies, which the writer borrows. */
struct making {
    struct hth_st_writer *writer;
    enum hth_dtype dtype;
    struct hth_st_reader **readers;
    size_t reader_count;
    uint16_t **copies;
    size_t copy_count;
};

static enum hth_err add_tensor(struct making *m, const struct hth_model_file_part *part,
                               const struct hth_st_entry *e, struct hth_why *why)
{
    char name[2 * HTH_ST_NAME_MAX];
    const void *data = e->data;

    if (e->dtype != HTH_F32)
        return hth_blame(why, HTH_E_UNSUPPORTED, "%s: '%s' is not F32: no checkpoint of hearth",
                         part->file, e->name);
    if (part->uid == NULL)
        snprintf(name, sizeof(name), "%s", e->name);
    else
        snprintf(name, sizeof(name), EXPERTS "%s/%s", part->uid, e->name);
    if (m->dtype == HTH_BF16) {
        uint16_t *copy = to_bf16(e);
        if (copy == NULL)
            return HTH_E_NO_MEMORY;
        m->copies = hth_realloc(m->copies, m->copy_count + 1, sizeof(*m->copies));
        m->copies[m->copy_count++] = copy;
        data = copy;
    }
    hth_st_add(m->writer, name, m->dtype, e->ndim, e->dim, data);
    return HTH_OK;
}

static bool is_of(const struct hth_st_reader *r, const struct hth_model_file_part *part)
{
    const char *kind = hth_st_meta(r, "hearth.kind"), *uid = hth_st_meta(r, "hearth.uid");

    return part->uid != NULL ? uid != NULL && strcmp(uid, part->uid) == 0
                             : kind != NULL && strcmp(kind, "trunk") == 0;
}

static enum hth_err add_part(struct making *m, const struct hth_model_file_part *part,
                             struct hth_why *why)
{
    struct hth_st_reader *r;
    enum hth_err err = hth_st_open(part->bytes->data, part->bytes->size, &r);

    if (err != HTH_OK)
        return hth_blame(why, err, "%s: %s", part->file, hth_err_text(err));
    m->readers[m->reader_count++] = r;
    if (!is_of(r, part))
        return hth_blame(why, HTH_E_WRONG_RUN, "%s: it is no checkpoint of %s", part->file,
                         part->uid != NULL ? part->uid : "a trainer");
    for (size_t i = 0; i < hth_st_count(r); i++)
        if (!is_moment(r, hth_st_at(r, i)->name))
            HTH_TRY(add_tensor(m, part, hth_st_at(r, i), why));
    return HTH_OK;
}

enum hth_err hth_model_file_make(const struct hth_model_file_part *parts, size_t count,
                                 const struct hth_model_about *about, enum hth_dtype dtype,
                                 struct hth_blob **out, struct hth_why *why)
{
    struct making m = {.writer = hth_st_writer_new(), .dtype = dtype};
    enum hth_err err = HTH_OK;

    *out = NULL;
    m.readers = hth_new_array(struct hth_st_reader *, count + 1);
    hth_st_add_meta(m.writer, "hearth.format", FORMAT);
    hth_st_add_meta(m.writer, "hearth.kind", "model");
    add_about(m.writer, about, about->schema);
    for (size_t i = 0; i < count && err == HTH_OK; i++)
        err = add_part(&m, &parts[i], why);
    if (err == HTH_OK)
        err = hth_st_writer_finish(m.writer, out);
    hth_st_writer_free(m.writer);
    for (size_t i = 0; i < m.reader_count; i++)
        hth_st_close(m.readers[i]);
    for (size_t i = 0; i < m.copy_count; i++)
        hth_free(m.copies[i]);
    hth_free(m.readers);
    hth_free(m.copies);
    return err;
}

/* ---- reading ------------------------------------------------------------------------------- */

enum hth_err hth_model_file_open(const char *file, const struct hth_blob *bytes,
                                 struct hth_st_reader **out, struct hth_why *why)
{
    enum hth_err err = hth_st_open(bytes->data, bytes->size, out);
    const char *format;

    if (err != HTH_OK)
        return hth_blame(why, err, "%s: %s: get the file again", file, hth_err_text(err));
    format = hth_st_meta(*out, "hearth.format");
    if (format == NULL || strcmp(format, FORMAT) != 0) {
        hth_st_close(*out);
        *out = NULL;
        return hth_blame(why, HTH_E_CORRUPT, "%s: it is not a model that hearth export wrote",
                         file);
    }
    return HTH_OK;
}

/* The length of "experts/UID/" in front of a tensor's name; 0: it is the trunk's. */
static size_t prefix_of(const char *name)
{
    if (strncmp(name, EXPERTS, strlen(EXPERTS)) != 0)
        return 0;
    return strlen(EXPERTS) + strcspn(name + strlen(EXPERTS), "/") + 1;
}

bool hth_model_file_next(const struct hth_st_reader *model, size_t *at, char uid[HTH_UID_TEXT_MAX])
{
    size_t count = hth_st_count(model), len = 0;
    const char *name = "";

    for (; *at < count && len == 0; ++*at) {
        name = hth_st_at(model, *at)->name;
        len = prefix_of(name);
    }
    if (len == 0)
        return false;
    snprintf(uid, HTH_UID_TEXT_MAX, "%.*s", (int)(len - strlen(EXPERTS) - 1),
             name + strlen(EXPERTS));
    while (*at < count && strncmp(hth_st_at(model, *at)->name, name, len) == 0)
        ++*at;
    return true;
}

static enum hth_err take_all(const struct hth_st_reader *model, const char *prefix,
                             struct hth_params *p, struct hth_why *why)
{
    float *values = hth_params_flat(p, HTH_PART_VALUE);
    struct hth_why what = {""};
    enum hth_err err;

    HTH_ASSERT(values != NULL);
    err = hth_trunk_tensors(model, prefix, p, values, &what);
    if (err != HTH_OK)
        return hth_blame(why, err, HTH_MODEL_FILE ": %s: it is of another model, or damaged",
                         what.text);
    hth_params_touched(p);
    return HTH_OK;
}

static void add_start(struct hth_st_writer *w, const struct hth_model_about *about,
                      const struct hth_model *model)
{
    hth_st_add_meta(w, "hearth.format", "hearth-trunk-2");
    hth_st_add_meta(w, "hearth.kind", "trunk");
    add_about(w, about, about->schema != 0 ? about->schema : hth_model_schema(model));
    hth_st_add_meta_u64(w, "hearth.seed", hth_model_opts_of(model)->seed);
    hth_st_add_meta_u64(w, "hearth.launched", about->updates);
    hth_st_add_meta_u64(w, "hearth.steps", 0);
    hth_st_add_meta_real(w, "hearth.loss_ema", 0);
    hth_st_add_meta_real(w, "hearth.accuracy_ema", 0);
}

/* Moments are 0, as before a first step. */
static enum hth_err write_trunk(const struct hth_model_about *about, struct hth_model *model,
                                struct hth_blob **out)
{
    struct hth_params *p = hth_model_params(model);
    const float *values = hth_params_flat(p, HTH_PART_VALUE);
    float *zeros = hth_try_calloc(hth_params_flat_len(p), sizeof(*zeros));
    struct hth_st_writer *w = hth_st_writer_new();
    enum hth_err err = HTH_E_NO_MEMORY;

    add_start(w, about, model);
    for (uint32_t i = 0; zeros != NULL && i < hth_params_count(p); i++) {
        static const char *const suffix[] = {"", ".m", ".v"};
        struct hth_weight *weight = hth_params_at(p, i);
        uint64_t dim[2] = {hth_weight_rows(weight), hth_weight_cols(weight)};
        char name[HTH_ST_NAME_MAX + 1];
        for (size_t part = 0; part < HTH_ARRAY_LEN(suffix); part++) {
            snprintf(name, sizeof(name), "%s%s", hth_weight_name(weight), suffix[part]);
            hth_st_add(w, name, HTH_F32, 2, dim,
                       (part == 0 ? values : zeros) + hth_weight_offset(weight));
        }
    }
    if (zeros != NULL)
        err = hth_st_writer_finish(w, out);
    hth_st_writer_free(w);
    hth_free(zeros);
    return err;
}

enum hth_err hth_model_file_trunk(const struct hth_st_reader *model,
                                  const struct hth_model_opts *opts,
                                  const struct hth_model_about *about, struct hth_blob **out,
                                  struct hth_why *why)
{
    struct hth_model *m;
    enum hth_err err;

    *out = NULL;
    HTH_TRY(hth_model_new(NULL, opts, &m));
    err = take_all(model, "", hth_model_params(m), why);
    if (err == HTH_OK)
        err = write_trunk(about, m, out);
    hth_model_free(m);
    return err;
}

enum hth_err hth_model_file_expert(const struct hth_st_reader *model, struct hth_expert *expert,
                                   struct hth_blob **out, struct hth_why *why)
{
    char prefix[sizeof(EXPERTS) + HTH_UID_TEXT_MAX + 1];

    *out = NULL;
    snprintf(prefix, sizeof(prefix), EXPERTS "%s/", hth_expert_uid_text(expert));
    HTH_TRY(hth_expert_init(expert));
    HTH_TRY(take_all(model, prefix, hth_expert_params(expert), why));
    return hth_expert_snapshot(expert, out);
}
