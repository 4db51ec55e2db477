/* SPDX-License-Identifier: Apache-2.0 */
/* fashion.c: idx files as samples. */
#include "data/fashion.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "data/picture.h"
#include "data/shard.h"

#define PIXELS         (HTH_FASHION_SIDE * HTH_FASHION_SIDE)
#define FILE_BYTES_MAX (128u << 20) /* as stored, and unpacked */
#define IMAGES_HEADER  16
#define LABELS_HEADER  8

static const char *const names[] = {"t-shirt", "trouser", "pullover", "dress", "coat",
                                    "sandal",  "shirt",   "sneaker",  "bag",   "ankle boot"};

struct fashion {
    struct hth_env *env;
    const char *dir;
    struct hth_pack *pack;
    hth_pack_progress_fn *progress;
    void *arg;
    struct hth_why *why;
    uint8_t *square;
    uint32_t side;
};

static uint32_t load_u32be(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Reads and unpacks an idx file of `dims` dimensions, whose items have `item` bytes. */
static enum hth_err read_idx(struct fashion *f, const char *file, uint32_t dims, size_t item,
                             struct hth_blob **out, uint32_t *items)
{
    char *path = hth_asprintf("%s/%s", f->dir, file);
    size_t header = 4 + 4 * (size_t)dims;
    struct hth_blob *packed = NULL;
    enum hth_err err = hth_file_read(f->env, path, FILE_BYTES_MAX, &packed);

    *out = NULL;
    if (err != HTH_OK)
        err = hth_blame(f->why, err, "%s: %s; Debian's package dataset-fashion-mnist has it", path,
                        hth_err_text(err));
    else
        err = hth_unpack(path, packed->data, packed->size, FILE_BYTES_MAX, out, f->why);
    if (err == HTH_OK && ((*out)->size < header || load_u32be((*out)->data) != (0x800 | dims) ||
                          (dims == 3 && (load_u32be((*out)->data + 8) != HTH_FASHION_SIDE ||
                                         load_u32be((*out)->data + 12) != HTH_FASHION_SIDE))))
        err = hth_blame(f->why, HTH_E_BAD_MAGIC, "%s: not an idx file of Fashion-MNIST", path);
    if (err == HTH_OK) {
        *items = load_u32be((*out)->data + 4);
        if ((*out)->size - header != (uint64_t)*items * item)
            err = hth_blame(f->why, HTH_E_TRUNCATED, "%s: %zu bytes, but its header says %u items",
                            path, (*out)->size, *items);
    }
    hth_free(path);
    hth_blob_unref(packed);
    return err;
}

static enum hth_err pack_item(struct fashion *f, enum hth_set_part part, const uint8_t *grey,
                              uint8_t label)
{
    uint8_t rgb[3 * PIXELS];
    struct hth_picture picture = {HTH_FASHION_SIDE, HTH_FASHION_SIDE, rgb};

    if (label >= HTH_ARRAY_LEN(names))
        return hth_blame(f->why, HTH_E_RANGE, "%s: a label is %u; expected 0 to 9", f->dir, label);
    for (size_t i = 0; i < sizeof(rgb); i++)
        rgb[i] = grey[i / 3];
    hth_picture_fit(&picture, f->side, f->square);
    return hth_pack_pixels(f->pack, part, names[label], f->square, names[label],
                           strlen(names[label]), label, f->why);
}

static enum hth_err pack_part(struct fashion *f, enum hth_set_part part, const char *stem)
{
    struct hth_blob *images = NULL, *labels = NULL;
    uint32_t count = 0, label_count = 0;
    char file[64];
    enum hth_err err;

    snprintf(file, sizeof(file), "%s-images-idx3-ubyte.gz", stem);
    HTH_GOTO(out, read_idx(f, file, 3, PIXELS, &images, &count));
    snprintf(file, sizeof(file), "%s-labels-idx1-ubyte.gz", stem);
    HTH_GOTO(out, read_idx(f, file, 1, 1, &labels, &label_count));
    if (count != label_count)
        HTH_GOTO(out, hth_blame(f->why, HTH_E_BAD_SHAPE, "%s/%s: %u pictures, but %u labels",
                                f->dir, stem, count, label_count));
    for (uint32_t i = 0; i < count; i++) {
        HTH_GOTO(out, pack_item(f, part, images->data + IMAGES_HEADER + (size_t)i * PIXELS,
                                labels->data[LABELS_HEADER + i]));
        if (f->progress != NULL)
            f->progress(f->arg, i + 1, count);
    }
out:
    hth_blob_unref(images);
    hth_blob_unref(labels);
    return err;
}

enum hth_err hth_fashion_pack(struct hth_env *env, const char *dir, uint32_t side,
                              struct hth_pack *pack, hth_pack_progress_fn *progress, void *arg,
                              struct hth_why *why)
{
    struct fashion f = {env, dir, pack, progress, arg, why, NULL, side};
    enum hth_err err;

    f.square = hth_calloc((size_t)side * side, 3);
    hth_pack_classes(pack, names, HTH_ARRAY_LEN(names));
    err = pack_part(&f, HTH_SET_TRAIN, "train");
    if (err == HTH_OK)
        err = pack_part(&f, HTH_SET_TEST, "t10k");
    hth_free(f.square);
    return err;
}
