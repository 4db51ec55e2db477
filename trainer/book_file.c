/* SPDX-License-Identifier: Apache-2.0 */
/* book_file.c: a code book and its decoder in safetensors. */
#include "trainer/book_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "experts/safetensors.h"

#define DECODER "decoder."

/* ---- writing ------------------------------------------------------------------------------- */

static void weight_name(const struct hth_weight *w, char out[HTH_PARAM_NAME_MAX + sizeof(DECODER)])
{
    snprintf(out, HTH_PARAM_NAME_MAX + sizeof(DECODER), DECODER "%s", hth_weight_name(w));
}

static void add_decoder(struct hth_st_writer *w, struct hth_params *p)
{
    const float *values = hth_params_flat(p, HTH_PART_VALUE);
    char name[HTH_PARAM_NAME_MAX + sizeof(DECODER)];

    for (uint32_t i = 0; i < hth_params_count(p); i++) {
        struct hth_weight *weight = hth_params_at(p, i);
        uint64_t dim[] = {hth_weight_rows(weight), hth_weight_cols(weight)};
        weight_name(weight, name);
        hth_st_add(w, name, HTH_F32, 2, dim, values + hth_weight_offset(weight));
    }
}

enum hth_err hth_book_file_write(const struct hth_book *book, struct hth_decoder *decoder,
                                 struct hth_blob **out)
{
    uint64_t dim[] = {book->codes, 3 * (uint64_t)book->patch * book->patch};
    float *centres = hth_try_calloc(dim[0] * dim[1], sizeof(*centres));
    struct hth_st_writer *w;
    enum hth_err err;

    *out = NULL;
    if (centres == NULL)
        return HTH_E_NO_MEMORY;
    for (uint64_t i = 0; i < dim[0] * dim[1]; i++)
        centres[i] = (float)book->centres[i] / HTH_BOOK_SCALE;
    w = hth_st_writer_new();
    hth_st_add(w, "centres", HTH_F32, 2, dim, centres);
    hth_st_add_meta_u64(w, "patch", book->patch);
    if (decoder != NULL)
        add_decoder(w, hth_decoder_params(decoder));
    err = hth_st_writer_finish(w, out);
    hth_st_writer_free(w);
    hth_free(centres);
    return err;
}

static enum hth_err put_book(struct hth_env *env, const char *dir, const struct hth_codes *codes,
                             struct hth_side_file *out, struct hth_why *why)
{
    struct hth_blob *blob;
    char *path;
    enum hth_err err;

    *out = (struct hth_side_file){.file = HTH_BOOK_FILE, .count = codes->book.codes};
    HTH_TRY(hth_book_file_write(&codes->book, codes->decoder, &blob));
    env->crypto->hash(blob->data, blob->size, &out->sha256);
    path = hth_asprintf("%s/%s", dir, HTH_BOOK_FILE);
    err = hth_file_write(env, path, &(struct hth_span){blob, 0, blob->size}, 1);
    if (err != HTH_OK)
        err = hth_blame(why, err, "%s: %s", path, hth_err_text(err));
    hth_blob_unref(blob);
    hth_free(path);
    return err;
}

enum hth_err hth_book_file_set(struct hth_env *env, struct hth_set *from,
                               const struct hth_codes_opts *opts, struct hth_pack_opts *pack,
                               struct hth_codes *codes, struct hth_pack **made,
                               const struct hth_manifest **out, struct hth_why *why)
{
    const struct hth_manifest *m = hth_set_manifest(from);
    struct hth_side_file file;

    *made = NULL;
    *codes = (struct hth_codes){0};
    pack->kind = HTH_SET_CODES;
    pack->side = m->side;
    pack->name = pack->name != NULL ? pack->name : m->name;
    pack->licence = pack->licence != NULL ? pack->licence : m->licence;
    HTH_TRY(hth_pack_new(env, pack, made, why));
    HTH_TRY(hth_codes_train(from, opts, codes, why));
    HTH_TRY(hth_codes_pack(from, opts, codes, *made, why));
    HTH_TRY(put_book(env, pack->dir, codes, &file, why));
    hth_pack_book(*made, &file, codes->book.patch);
    return hth_pack_finish(*made, out, why);
}

/* ---- reading ------------------------------------------------------------------------------- */

static enum hth_err open_file(const char *name, const void *bytes, size_t len,
                              struct hth_st_reader **out, struct hth_why *why)
{
    enum hth_err err = hth_st_open(bytes, len, out);

    return err == HTH_OK
               ? HTH_OK
               : hth_blame(why, err, "%s: %s: make the data set again", name, hth_err_text(err));
}

static enum hth_err take_centres(const char *name, const struct hth_st_entry *e, uint64_t patch,
                                 struct hth_book *out, struct hth_why *why)
{
    uint64_t n = 3 * patch * patch;
    const float *values = e->data;

    *out = (struct hth_book){(uint32_t)e->dim[0], (uint32_t)patch, NULL};
    out->centres = hth_try_calloc(e->dim[0] * n, sizeof(*out->centres));
    if (out->centres == NULL)
        return HTH_E_NO_MEMORY;
    for (uint64_t i = 0; i < e->dim[0] * n; i++) {
        float eighths;
        memcpy(&eighths, values + i, sizeof(eighths));
        eighths *= HTH_BOOK_SCALE;
        if (!(eighths >= 0 && eighths <= 255 * HTH_BOOK_SCALE) || eighths != floorf(eighths))
            return hth_blame(why, HTH_E_MALFORMED,
                             "%s: centres: number %llu is no eighth between 0 and 255", name,
                             (unsigned long long)i);
        out->centres[i] = (int16_t)eighths;
    }
    return HTH_OK;
}

enum hth_err hth_book_file_read(const char *name, const void *bytes, size_t len,
                                struct hth_book *out, struct hth_why *why)
{
    struct hth_st_reader *r;
    const struct hth_st_entry *e;
    uint64_t patch = 0;
    enum hth_err err;

    *out = (struct hth_book){0};
    HTH_TRY(open_file(name, bytes, len, &r, why));
    e = hth_st_find(r, "centres");
    if (hth_st_meta_u64(r, "patch", &patch) != HTH_OK || patch < 1 || patch > HTH_BOOK_PATCH_MAX ||
        e == NULL || e->dtype != HTH_F32 || e->ndim != 2 || e->dim[0] < 2 ||
        e->dim[0] > HTH_BOOK_CODES_MAX || e->dim[1] != 3 * patch * patch)
        err = hth_blame(why, HTH_E_MALFORMED,
                        "%s: not a code book: expected 'patch', and 'centres' of 2 to %d codes",
                        name, HTH_BOOK_CODES_MAX);
    else
        err = take_centres(name, e, patch, out, why);
    if (err != HTH_OK)
        hth_book_clear(out);
    hth_st_close(r);
    return err;
}

static enum hth_err take_weight(const char *name, const struct hth_st_reader *r,
                                struct hth_weight *w, float *to, struct hth_why *why)
{
    char tensor[HTH_PARAM_NAME_MAX + sizeof(DECODER)];
    uint64_t count = (uint64_t)hth_weight_rows(w) * hth_weight_cols(w);
    enum hth_err err;

    weight_name(w, tensor);
    err = hth_st_copy(r, tensor, HTH_F32, count, to);
    if (err != HTH_OK)
        return hth_blame(why, err, "%s: '%s': %s", name, tensor, hth_err_text(err));
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(to[i]))
            return hth_blame(why, HTH_E_NOT_FINITE, "%s: '%s': %s", name, tensor,
                             hth_err_text(HTH_E_NOT_FINITE));
    return HTH_OK;
}

enum hth_err hth_book_file_decoder(const char *name, const void *bytes, size_t len,
                                   struct hth_decoder *decoder, struct hth_why *why)
{
    struct hth_params *p = hth_decoder_params(decoder);
    float *values = hth_params_flat(p, HTH_PART_VALUE);
    struct hth_st_reader *r;
    enum hth_err err;

    HTH_TRY(open_file(name, bytes, len, &r, why));
    err = HTH_OK;
    for (uint32_t i = 0; i < hth_params_count(p) && err == HTH_OK; i++) {
        struct hth_weight *w = hth_params_at(p, i);
        err = take_weight(name, r, w, values + hth_weight_offset(w), why);
    }
    hth_params_touched(p);
    hth_st_close(r);
    return err;
}

/* ---- painting ------------------------------------------------------------------------------ */

static enum hth_err load_decoder(const char *name, const struct hth_blob *file, uint32_t grid,
                                 struct hth_codes *out, struct hth_why *why)
{
    struct hth_decoder_opts opts = {.book = &out->book, .side = grid * out->book.patch};
    struct hth_why none = {""};
    enum hth_err err;

    HTH_TRY(hth_backend_by_name("auto", &opts.backend));
    HTH_TRY(hth_decoder_new(&opts, &out->decoder));
    err = hth_book_file_decoder(name, file->data, file->size, out->decoder, &none);
    if (err == HTH_E_NOT_FOUND) { /* made with --steps 0: the centres paint */
        hth_decoder_free(out->decoder);
        out->decoder = NULL;
        return HTH_OK;
    }
    return err == HTH_OK ? HTH_OK : hth_blame(why, err, "%s", none.text);
}

enum hth_err hth_book_file_load(const char *name, const struct hth_blob *file, uint32_t grid,
                                struct hth_codes *out, struct hth_why *why)
{
    *out = (struct hth_codes){0};
    HTH_TRY(hth_book_file_read(name, file->data, file->size, &out->book, why));
    return load_decoder(name, file, grid, out, why);
}

static enum hth_err load_of_set(struct hth_set *set, struct hth_codes *out, struct hth_why *why)
{
    const struct hth_manifest *m = hth_set_manifest(set);
    struct hth_blob *file;
    enum hth_err err;

    HTH_TRY(hth_set_side_file(set, &m->book, HTH_BOOK_FILE_BYTES_MAX, &file, why));
    err = hth_book_file_load(m->book.file, file, m->side / m->patch, out, why);
    if (err == HTH_OK && (out->book.codes != m->book.count || out->book.patch != m->patch))
        err = hth_blame(why, HTH_E_CORRUPT, "%s: %u codes, patch %u, but %s says %u and %u",
                        m->book.file, out->book.codes, out->book.patch, HTH_MANIFEST_FILE,
                        m->book.count, m->patch);
    hth_blob_unref(file);
    return err;
}

enum hth_err hth_book_file_sheet(struct hth_set *set, uint32_t count, hth_sheet_fn *each, void *arg,
                                 struct hth_sheet *out, struct hth_why *why)
{
    struct hth_codes codes = {0};
    enum hth_err err = HTH_OK;

    *out = (struct hth_sheet){0};
    if (hth_set_manifest(set)->kind == HTH_SET_CODES)
        err = load_of_set(set, &codes, why);
    if (err == HTH_OK)
        err = hth_sheet_of_set(set, &codes, count, each, arg, out, why);
    hth_codes_clear(&codes);
    return err;
}
