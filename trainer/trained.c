/* SPDX-License-Identifier: Apache-2.0 */
/* trained.c: reads a trunk's file; checkpoint.c lists what is in it. */
#include "trainer/trained.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "averaging/codec.h"
#include "core/mem.h"
#include "kernels/elements.h"
#include "trainer/pass.h"
#include "trainer/trunk_file.h"

struct hth_trained {
    struct hth_blob *bytes;
    struct hth_st_reader *reader;
    struct hth_model_about about;
};

enum hth_err hth_trunk_number(const struct hth_st_reader *r, const char *key, uint64_t max,
                              uint64_t *out, struct hth_why *why)
{
    if (hth_st_meta_u64(r, key, out) != HTH_OK)
        return hth_blame(why, HTH_E_CORRUPT, "it has no number '%s'", key);
    if (*out > max)
        return hth_blame(why, HTH_E_CORRUPT, "its '%s' is %llu, the limit is %llu", key,
                         (unsigned long long)*out, (unsigned long long)max);
    return HTH_OK;
}

/* Any alignment. */
static float element(const struct hth_st_entry *e, size_t i)
{
    uint16_t half;
    float x;

    if (e->dtype == HTH_BF16) {
        memcpy(&half, (const uint8_t *)e->data + i * sizeof(half), sizeof(half));
        return hth_el_from_bf16(half);
    }
    memcpy(&x, (const uint8_t *)e->data + i * sizeof(x), sizeof(x));
    return x;
}

/* Checks rows and columns of a tensor, not only their product: numbers in another order would load,
 * and training would continue from nonsense. */
enum hth_err hth_trunk_tensor(const struct hth_st_reader *r, const char *name,
                              const struct hth_weight *w, float *out, struct hth_why *why)
{
    const struct hth_st_entry *e = hth_st_find(r, name);
    uint32_t rows = hth_weight_rows(w), cols = hth_weight_cols(w);

    if (e == NULL)
        return hth_blame(why, HTH_E_CORRUPT, "it has no tensor '%s'", name);
    if ((e->dtype != HTH_F32 && e->dtype != HTH_BF16) || e->ndim != 2 || e->dim[0] != rows ||
        e->dim[1] != cols)
        return hth_blame(why, HTH_E_CORRUPT, "its tensor '%s' is not F32 or BF16 of shape [%u, %u]",
                         name, rows, cols);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        out[i] = element(e, i);
        if (!isfinite(out[i]))
            return hth_blame(why, HTH_E_CORRUPT, "its tensor '%s' holds NaN or infinity", name);
    }
    return HTH_OK;
}

enum hth_err hth_trunk_tensors(const struct hth_st_reader *r, const char *prefix,
                               struct hth_params *params, float *flat, struct hth_why *why)
{
    char name[HTH_ST_NAME_MAX + 1];

    for (uint32_t i = 0; i < hth_params_count(params); i++) {
        const struct hth_weight *w = hth_params_at(params, i);

        snprintf(name, sizeof(name), "%s%s", prefix, hth_weight_name(w));
        HTH_TRY(hth_trunk_tensor(r, name, w, flat + hth_weight_offset(w), why));
    }
    return HTH_OK;
}

enum hth_err hth_trunk_about(const struct hth_st_reader *r, struct hth_model_about *out,
                             struct hth_why *why)
{
    const char *experts = hth_st_meta(r, "hearth.experts");

    *out = (struct hth_model_about){.run = hth_st_meta(r, "hearth.run"),
                                    .run_text = hth_st_meta(r, "hearth.run_file"),
                                    .data = hth_st_meta(r, "hearth.data"),
                                    .licence = hth_st_meta(r, "hearth.licence"),
                                    .experts = experts == NULL || strcmp(experts, "none") != 0};
    HTH_TRY(hth_trunk_number(r, "hearth.schema", UINT64_MAX, &out->schema, why));
    HTH_TRY(hth_trunk_number(r, "hearth.updates", HTH_AVG_STEP_MAX, &out->updates, why));
    return hth_trunk_number(r, "hearth.samples", UINT64_MAX / 2, &out->samples, why);
}

const struct hth_st_reader *hth_trained_reader(const struct hth_trained *trained)
{
    return trained->reader;
}

static enum hth_err read_about(struct hth_trained *m, struct hth_why *why)
{
    const char *kind = hth_st_meta(m->reader, "hearth.kind");

    if (kind == NULL || strcmp(kind, "trunk") != 0)
        return hth_blame(why, HTH_E_CORRUPT, "it is not a trainer's checkpoint");
    HTH_TRY(hth_trunk_about(m->reader, &m->about, why));
    return hth_trunk_number(m->reader, "hearth.seed", UINT64_MAX, &m->about.seed, why);
}

static enum hth_err read_bytes(struct hth_trained *m, struct hth_why *why)
{
    enum hth_err err = hth_st_open(m->bytes->data, m->bytes->size, &m->reader);

    if (err == HTH_E_NO_MEMORY)
        return err;
    if (err == HTH_E_UNSUPPORTED)
        return hth_blame(why, HTH_E_CORRUPT,
                         "it holds tensors of a type that hearth does not read");
    if (err != HTH_OK)
        return hth_blame(why, HTH_E_CORRUPT, "%s", hth_err_text(err));
    return read_about(m, why);
}

enum hth_err hth_trained_open(struct hth_env *env, const char *path, struct hth_why *why,
                              struct hth_trained **out)
{
    struct hth_trained *m = hth_new(struct hth_trained);
    enum hth_err err = hth_file_read(env, path, HTH_TRUNK_FILE_BYTES_MAX, &m->bytes);

    *out = NULL;
    if (err == HTH_OK)
        err = read_bytes(m, why);
    else if (err != HTH_E_NO_FILE)
        err = hth_blame(why, err, "%s", hth_err_text(err));
    if (err == HTH_OK)
        *out = m;
    else
        hth_trained_free(m);
    return err;
}

void hth_trained_free(struct hth_trained *m)
{
    if (m == NULL)
        return;
    hth_st_close(m->reader);
    hth_blob_unref(m->bytes);
    hth_free(m);
}

const struct hth_model_about *hth_trained_about(const struct hth_trained *m)
{
    return &m->about;
}

const struct hth_blob *hth_trained_bytes(const struct hth_trained *m)
{
    return m->bytes;
}

enum hth_err hth_trained_fits(const struct hth_trained *m, const struct hth_model *model,
                              struct hth_why *why)
{
    if (m->about.schema != hth_model_schema(model))
        return hth_blame(why, HTH_E_WRONG_RUN, "it is of another model than the run file's");
    if (m->about.seed != model->opts.seed)
        return hth_blame(why, HTH_E_WRONG_RUN, "its seed is %llu, and the run file's is %llu",
                         (unsigned long long)m->about.seed, (unsigned long long)model->opts.seed);
    return HTH_OK;
}

enum hth_err hth_trained_fill(const struct hth_trained *m, struct hth_model *model,
                              struct hth_why *why)
{
    float *flat;
    enum hth_err err, given;

    HTH_TRY(hth_trained_fits(m, model, why));
    HTH_TRY(hth_model_flat_take(model, HTH_PART_VALUE, &flat));
    err = hth_trunk_tensors(m->reader, "", hth_model_params(model), flat, why);
    given = hth_model_flat_give(model, HTH_PART_VALUE, flat, err == HTH_OK);
    return err == HTH_OK ? given : err;
}
