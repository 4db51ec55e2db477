/* SPDX-License-Identifier: Apache-2.0 */
/* trained.c: reads a trunk's file; checkpoint.c lists what is in it. */
#include "trainer/trained.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "averaging/codec.h"
#include "core/mem.h"
#include "trainer/pass.h"
#include "trainer/trunk_file.h"

struct hth_trained {
    struct hth_blob *bytes;
    struct hth_st_reader *reader;
    struct hth_trained_info info;
};

HTH_PRINTF(3, 4) enum hth_err hth_trunk_refuse(char *why, enum hth_err err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    if (why != NULL)
        vsnprintf(why, HTH_TRAINER_WHY_MAX, fmt, args);
    va_end(args);
    return err;
}

enum hth_err hth_trunk_number(const struct hth_st_reader *r, const char *key, uint64_t max,
                              uint64_t *out, char *why)
{
    if (hth_st_meta_u64(r, key, out) != HTH_OK)
        return hth_trunk_refuse(why, HTH_E_CORRUPT, "it has no number '%s'", key);
    if (*out > max)
        return hth_trunk_refuse(why, HTH_E_CORRUPT, "its '%s' is %llu, the limit is %llu", key,
                                (unsigned long long)*out, (unsigned long long)max);
    return HTH_OK;
}

/* Checks rows and columns of a tensor, not only their product: numbers in another order would load,
 * and training would continue from nonsense. */
enum hth_err hth_trunk_tensor(const struct hth_st_reader *r, const char *name,
                              const struct hth_weight *w, float *out, char *why)
{
    const struct hth_st_entry *e = hth_st_find(r, name);
    uint32_t rows = hth_weight_rows(w), cols = hth_weight_cols(w);
    size_t count = (size_t)rows * cols;

    if (e == NULL)
        return hth_trunk_refuse(why, HTH_E_CORRUPT, "it has no tensor '%s'", name);
    if (e->dtype != HTH_F32 || e->ndim != 2 || e->dim[0] != rows || e->dim[1] != cols)
        return hth_trunk_refuse(why, HTH_E_CORRUPT, "its tensor '%s' is not F32 of shape [%u, %u]",
                                name, rows, cols);
    memcpy(out, e->data, count * sizeof(float)); /* any alignment */
    for (size_t i = 0; i < count; i++)
        if (!isfinite(out[i]))
            return hth_trunk_refuse(why, HTH_E_CORRUPT, "its tensor '%s' holds NaN or infinity",
                                    name);
    return HTH_OK;
}

const struct hth_st_reader *hth_trained_reader(const struct hth_trained *trained)
{
    return trained->reader;
}

static enum hth_err read_info(struct hth_trained *m, char *why)
{
    const struct hth_st_reader *r = m->reader;
    const char *kind = hth_st_meta(r, "hearth.kind"), *experts = hth_st_meta(r, "hearth.experts");

    if (kind == NULL || strcmp(kind, "trunk") != 0)
        return hth_trunk_refuse(why, HTH_E_CORRUPT, "it is not a trainer's checkpoint");
    m->info.run = hth_st_meta(r, "hearth.run");
    m->info.run_text = hth_st_meta(r, "hearth.run_file");
    m->info.without_experts = experts != NULL && strcmp(experts, "none") == 0;
    HTH_TRY(hth_trunk_number(r, "hearth.schema", UINT64_MAX, &m->info.schema, why));
    HTH_TRY(hth_trunk_number(r, "hearth.seed", UINT64_MAX, &m->info.seed, why));
    HTH_TRY(hth_trunk_number(r, "hearth.updates", HTH_AVG_STEP_MAX, &m->info.updates, why));
    return hth_trunk_number(r, "hearth.samples", UINT64_MAX / 2, &m->info.samples, why);
}

static enum hth_err read_bytes(struct hth_trained *m, char *why)
{
    enum hth_err err = hth_st_open(m->bytes->data, m->bytes->size, &m->reader);

    if (err == HTH_E_NO_MEMORY)
        return err;
    if (err == HTH_E_UNSUPPORTED)
        return hth_trunk_refuse(why, HTH_E_CORRUPT,
                                "it holds tensors of a type that hearth does not read");
    if (err != HTH_OK)
        return hth_trunk_refuse(why, HTH_E_CORRUPT, "%s", hth_err_text(err));
    return read_info(m, why);
}

enum hth_err hth_trained_open(struct hth_env *env, const char *path, char *why,
                              struct hth_trained **out)
{
    struct hth_trained *m = hth_new(struct hth_trained);
    enum hth_err err = hth_file_read(env, path, HTH_TRUNK_FILE_BYTES_MAX, &m->bytes);

    *out = NULL;
    if (err == HTH_OK)
        err = read_bytes(m, why);
    else if (err != HTH_E_NO_FILE)
        err = hth_trunk_refuse(why, err, "%s", hth_err_text(err));
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

const struct hth_trained_info *hth_trained_info(const struct hth_trained *m)
{
    return &m->info;
}

enum hth_err hth_trained_fits(const struct hth_trained *m, const struct hth_model *model, char *why)
{
    if (m->info.schema != hth_model_schema(model))
        return hth_trunk_refuse(why, HTH_E_WRONG_RUN, "it is of another model than the run file's");
    if (m->info.seed != model->opts.seed)
        return hth_trunk_refuse(
            why, HTH_E_WRONG_RUN, "its seed is %llu, and the run file's is %llu",
            (unsigned long long)m->info.seed, (unsigned long long)model->opts.seed);
    return HTH_OK;
}

enum hth_err hth_trained_fill(const struct hth_trained *m, struct hth_model *model, char *why)
{
    struct hth_params *params = hth_model_params(model);
    float *flat;
    enum hth_err err, given;

    HTH_TRY(hth_trained_fits(m, model, why));
    HTH_TRY(hth_model_flat_take(model, HTH_PART_VALUE, &flat));
    err = HTH_OK;
    for (uint32_t i = 0; err == HTH_OK && i < hth_params_count(params); i++) {
        const struct hth_weight *w = hth_params_at(params, i);

        err = hth_trunk_tensor(m->reader, hth_weight_name(w), w, flat + hth_weight_offset(w), why);
    }
    given = hth_model_flat_give(model, HTH_PART_VALUE, flat, err == HTH_OK);
    return err == HTH_OK ? given : err;
}
