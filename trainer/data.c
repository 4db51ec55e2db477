/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.c: the endless shuffled sequence of data.h.
 *
 *   epoch e: rng = split(split(seed, "epoch", e), "peer", p)
 *            start = rng below count, phase = rng below phases
 *            records start, start + 1, .. count - 1, 0, .. start - 1 enter the buffer in order;
 *            each delivery takes a random place of the buffer, which the next record then fills.
 *
 *   shift of a picture: rng = split(split(seed, "shift", position), "peer", p), two draws.
 *   dropped caption:    rng = split(split(seed, "caption", position), "peer", p), one draw.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/env.h"
#include "core/log.h"
#include "core/mem.h"
#include "data/words.h"
#include "kernels/ops.h"
#include "trainer/reader.h"

#define SAY_REMEDY "; put a good copy there, or name another with --data or data.path"
#define IDS_MAX    65536 /* a record holds them as uint16 */

_Static_assert(HTH_DATA_IDS_MIN == HTH_ID_WORD, "padding, begin and bytes");

struct data_file {
    struct hth_env *env;
    char *path;
};

struct hth_data {
    struct hth_data_opts opts;
    struct data_file file[2];
    struct hth_record_reader reader;
    uint64_t position; /* the next sample of the endless sequence */
    bool valid;        /* the buffer belongs to `position` */
    struct hth_rng rng;
    uint64_t taken; /* records of this epoch that have entered the buffer */
    uint64_t start; /* this epoch's first record */
    uint32_t phase;
    uint32_t held; /* records in the buffer */
    uint32_t capacity;
    uint8_t *buffer; /* capacity records */
    uint8_t *record; /* the one delivered last */
    char why[HTH_DATA_WHY_MAX];
};

static enum hth_err file_pread(void *arg, uint64_t offset, void *buf, size_t len, size_t *got)
{
    struct data_file *file = arg;

    return hth_file_pread(file->env, file->path, offset, buf, len, got);
}

static bool is_set(const struct hth_data_opts *o)
{
    return o->kind >= HTH_DATA_SET_IMAGES;
}

static bool has_pixels(const struct hth_data_opts *o)
{
    return o->kind == HTH_DATA_IMAGES || o->kind == HTH_DATA_SET_IMAGES;
}

static enum hth_err check_set(const struct hth_data_opts *o)
{
    if (!(o->caption_drop >= 0 && o->caption_drop < 1))
        return HTH_E_CONFIG;
    if (o->kind == HTH_DATA_SET_IMAGES)
        return o->features > 0 && o->std > 0 && o->shift <= HTH_DATA_SHIFT_MAX ? HTH_OK
                                                                               : HTH_E_CONFIG;
    if (o->shift > 0 || o->vocab > IDS_MAX)
        return HTH_E_CONFIG;
    if (o->kind == HTH_DATA_SET_TEXT)
        return o->seq_len > 0 && o->seq_len <= HTH_SEQ_LEN_MAX &&
                       (o->vocab == HTH_DATA_BYTES || o->vocab >= HTH_DATA_IDS_MIN)
                   ? HTH_OK
                   : HTH_E_CONFIG;
    return o->vocab >= HTH_DATA_IDS_MIN && o->codes > 0 && o->codes <= IDS_MAX && o->text_len > 0 &&
                   o->code_side > 0 && o->code_side <= HTH_SET_SIDE_MAX &&
                   o->text_len <= HTH_SEQ_LEN_MAX
               ? HTH_OK
               : HTH_E_CONFIG;
}

static enum hth_err check_opts(const struct hth_data_opts *o)
{
    if (is_set(o))
        return check_set(o);
    if (o->kind == HTH_DATA_IMAGES) {
        if (o->images == NULL || o->labels == NULL || o->classes == 0 || !(o->std > 0) ||
            o->shift > HTH_DATA_SHIFT_MAX)
            return HTH_E_CONFIG;
    } else {
        if (o->text == NULL || o->seq_len == 0 || o->seq_len > HTH_SEQ_LEN_MAX || o->shift > 0)
            return HTH_E_CONFIG;
        if (!(o->begin >= 0 && o->begin < o->end && o->end <= 1))
            return HTH_E_CONFIG;
    }
    return HTH_OK;
}

static enum hth_err open_file(struct hth_data *data, int i, struct hth_env *env, const char *path,
                              struct hth_file_bytes *out)
{
    data->file[i].env = env;
    data->file[i].path = hth_strdup(path);
    *out = (struct hth_file_bytes){
        .pread = file_pread, .arg = &data->file[i], .name = data->file[i].path, .why = data->why};
    enum hth_err err = hth_file_size(env, path, &out->size);
    return err == HTH_OK ? err : hth_file_blame(out, err, "%s", hth_err_text(err));
}

static enum hth_err open_reader(struct hth_data *data, struct hth_env *env)
{
    const struct hth_data_opts *o = &data->opts;
    struct hth_file_bytes files[2];

    if (is_set(o) && o->set == NULL) {
        snprintf(data->why, sizeof(data->why),
                 "data.path is missing: the folder that hearth data made; add it to the run file, "
                 "or give it with --data");
        return HTH_E_CONFIG;
    }
    if (is_set(o))
        return hth_reader_set(env, o, data->why, &data->reader);
    if (o->kind == HTH_DATA_IMAGES) {
        HTH_TRY(open_file(data, 0, env, o->images, &files[0]));
        HTH_TRY(open_file(data, 1, env, o->labels, &files[1]));
        return hth_reader_idx(&files[0], &files[1], o->classes, &data->reader);
    }
    HTH_TRY(open_file(data, 0, env, o->text, &files[0]));
    return hth_reader_text(&files[0], o->seq_len, o->begin, o->end, &data->reader);
}

enum hth_err hth_data_open(struct hth_env *env, const struct hth_data_opts *opts,
                           struct hth_data **out)
{
    struct hth_data *data;
    uint64_t capacity;
    enum hth_err err;

    *out = NULL;
    HTH_TRY(check_opts(opts));
    data = hth_new(struct hth_data);
    data->opts = *opts;
    HTH_GOTO(fail, open_reader(data, env));
    capacity = HTH_MIN((uint64_t)HTH_MAX(opts->shuffle_rows, 1u), data->reader.count);
    if (capacity * data->reader.record_bytes > HTH_SHUFFLE_BYTES_MAX) {
        err = HTH_E_TOO_LARGE;
        snprintf(data->why, sizeof(data->why),
                 "%" PRIu64 " samples of %u bytes in the shuffle buffer are more than %u: lower "
                 "data.shuffle_rows",
                 capacity, data->reader.record_bytes, HTH_SHUFFLE_BYTES_MAX);
        goto fail;
    }
    data->capacity = (uint32_t)capacity;
    data->buffer = hth_try_calloc(data->capacity, data->reader.record_bytes);
    data->record = hth_try_calloc(1, data->reader.record_bytes);
    if (data->buffer == NULL || data->record == NULL) {
        err = HTH_E_NO_MEMORY;
        goto fail;
    }
    *out = data;
    return HTH_OK;
fail:
    if (data->why[0] != '\0')
        HTH_LOG(env, HTH_ERROR, HTH_SUB_TRAIN, "%s%s", data->why,
                is_set(&data->opts) ? "" : SAY_REMEDY);
    hth_data_free(data);
    return err;
}

uint64_t hth_data_hash(const struct hth_hash *words, const struct hth_hash *book)
{
    struct hth_hash both[2] = {{{0}}};

    if (words == NULL && book == NULL)
        return 0;
    if (words != NULL)
        both[0] = *words;
    if (book != NULL)
        both[1] = *book;
    return hth_hash64(both, sizeof(both), 0);
}

const char *hth_data_why(const struct hth_data *data)
{
    return data->why;
}

void hth_data_free(struct hth_data *data)
{
    if (data == NULL)
        return;
    if (data->reader.free != NULL)
        data->reader.free(data->reader.self);
    hth_free(data->buffer);
    hth_free(data->record);
    hth_free(data->file[0].path);
    hth_free(data->file[1].path);
    hth_free(data);
}

void hth_data_info(const struct hth_data *data, struct hth_data_info *out)
{
    out->samples = data->reader.count;
    out->features = data->reader.features;
    out->labels = has_pixels(&data->opts) ? 1 : data->reader.features;
    out->hash = data->reader.hash;
}

/* Reads the next record of the epoch's walk round the file into `record`. */
static enum hth_err take_record(struct hth_data *data, uint8_t *record)
{
    uint64_t index = data->start + data->taken;

    if (data->taken == 0)
        HTH_TRY(data->reader.seek(data->reader.self, index, data->phase));
    else if (index == data->reader.count)
        HTH_TRY(data->reader.seek(data->reader.self, 0, data->phase));
    HTH_TRY(data->reader.next(data->reader.self, record));
    data->taken++;
    return HTH_OK;
}

static enum hth_err start_epoch(struct hth_data *data, uint64_t epoch)
{
    struct hth_rng root;

    hth_rng_init(&root, data->opts.seed);
    root = hth_rng_split(&root, "epoch", epoch);
    data->rng = hth_rng_split(&root, "peer", data->opts.peer);
    data->taken = 0;
    data->held = 0;
    data->start = 0;
    data->phase = 0;
    if (data->opts.shuffle_rows > 0) {
        data->start = hth_rng_below(&data->rng, data->reader.count);
        data->phase = (uint32_t)hth_rng_below(&data->rng, data->reader.phases);
    }
    while (data->held < data->capacity) {
        size_t at = (size_t)data->held * data->reader.record_bytes;
        HTH_TRY(take_record(data, data->buffer + at));
        data->held++;
    }
    return HTH_OK;
}

/* Delivers sample `position` into data->record and advances. */
static enum hth_err next_sample(struct hth_data *data)
{
    size_t bytes = data->reader.record_bytes;
    uint8_t *slot;

    if (data->position % data->reader.count == 0)
        HTH_TRY(start_epoch(data, data->position / data->reader.count));
    slot = data->buffer + (size_t)hth_rng_below(&data->rng, data->held) * bytes;
    memcpy(data->record, slot, bytes);
    if (data->taken < data->reader.count) {
        HTH_TRY(take_record(data, slot));
    } else {
        data->held--;
        memmove(slot, data->buffer + (size_t)data->held * bytes, bytes);
    }
    data->position++;
    return HTH_OK;
}

/* Brings the reader to `position` by walking its epoch again. */
static enum hth_err go_to(struct hth_data *data, uint64_t position)
{
    if (data->valid && data->position == position)
        return HTH_OK;
    data->valid = false;
    data->position = position - position % data->reader.count;
    while (data->position < position)
        HTH_TRY(next_sample(data));
    data->valid = true;
    return HTH_OK;
}

struct move {
    int32_t down, right; /* pixels */
};

static int32_t draw_shift(struct hth_rng *rng, int32_t most)
{
    return (int32_t)hth_rng_below(rng, 2 * (uint64_t)most + 1) - most;
}

/* The random numbers of the sample at `position`. */
static struct hth_rng rng_of(const struct hth_data *data, const char *name, uint64_t position)
{
    struct hth_rng root;

    if (data->opts.shuffle_rows == 0)
        position %= data->reader.count;
    hth_rng_init(&root, data->opts.seed);
    root = hth_rng_split(&root, name, position);
    return hth_rng_split(&root, "peer", data->opts.peer);
}

static struct move draw_move(const struct hth_data *data, uint64_t position)
{
    int32_t most = (int32_t)data->opts.shift;
    struct move move = {0, 0};
    struct hth_rng rng;

    if (most == 0)
        return move;
    rng = rng_of(data, "shift", position);
    move.down = draw_shift(&rng, most);
    move.right = draw_shift(&rng, most);
    return move;
}

static int32_t clamp(int32_t at, int32_t size)
{
    return at < 0 ? 0 : at < size ? at : size - 1;
}

static void convert_image(const struct hth_data *data, struct move move, float *x, int32_t *label)
{
    bool set = data->opts.kind == HTH_DATA_SET_IMAGES;
    int32_t numbers = (int32_t)data->reader.features, line = (int32_t)data->reader.line_bytes;
    int32_t height = numbers / line;
    int32_t bytes = set ? line / height : 1; /* of a pixel: a set's pictures are squares */
    int32_t width = line / bytes;
    float scale = 1.0f / (255.0f * data->opts.std);
    float middle = data->opts.mean / data->opts.std;

    for (int32_t row = 0; row < height; row++)
        for (int32_t i = 0; i < line; i++) {
            int32_t r = row - move.down, c = i / bytes - move.right;
            bool inside = r >= 0 && r < height && c >= 0 && c < width;
            int32_t from = clamp(r, height) * line + clamp(c, width) * bytes + i % bytes;
            uint8_t number = inside || set ? data->record[from] : 0;

            x[row * line + i] = (float)number * scale - middle;
        }
    *label = data->record[numbers];
    if (set)
        *label |= data->record[numbers + 1] << 8;
}

static void convert_text(const struct hth_data *data, int32_t *tokens, int32_t *labels)
{
    for (uint32_t i = 0; i < data->opts.seq_len; i++) {
        tokens[i] = data->record[i];
        labels[i] = data->record[i + 1];
    }
}

/* Removes the caption of a sample of codes, if that is drawn. */
static void drop_caption(struct hth_data *data, uint64_t position)
{
    struct hth_rng rng = rng_of(data, "caption", position);

    if (hth_rng_chance(&rng, data->opts.caption_drop))
        memset(data->record + 2, 0, 2 * (size_t)(data->opts.text_len - 1)); /* HTH_ID_PAD */
}

static void convert_ids(const struct hth_data *data, int32_t *tokens, int32_t *labels)
{
    uint32_t ids = data->reader.features;
    uint32_t text = data->opts.kind == HTH_DATA_SET_CODES ? data->opts.text_len : ids + 1;

    for (uint32_t i = 0; i < ids; i++) {
        uint16_t id[2];

        memcpy(id, data->record + 2 * (size_t)i, sizeof(id));
        tokens[i] = id[0];
        labels[i] = i + 1 < text && id[1] == HTH_ID_PAD ? HTH_LABEL_NONE : id[1];
    }
}

static void convert(struct hth_data *data, uint64_t position, float *x, int32_t *tokens,
                    int32_t *labels)
{
    if (has_pixels(&data->opts)) {
        convert_image(data, draw_move(data, position), x, labels);
        return;
    }
    if (data->opts.caption_drop > 0)
        drop_caption(data, position);
    if (is_set(&data->opts))
        convert_ids(data, tokens, labels);
    else
        convert_text(data, tokens, labels);
}

enum hth_err hth_data_read(struct hth_data *data, uint64_t position, uint32_t count, float *x,
                           int32_t *tokens, int32_t *labels)
{
    size_t features = data->reader.features;
    bool pixels = has_pixels(&data->opts);

    HTH_TRY(go_to(data, position));
    data->valid = false; /* an error would leave the buffer in an unknown state */
    for (uint32_t i = 0; i < count; i++) {
        HTH_TRY(next_sample(data));
        convert(data, position + i, pixels ? x + i * features : NULL,
                pixels ? NULL : tokens + i * features, labels + i * (pixels ? 1 : features));
    }
    data->valid = true;
    return HTH_OK;
}
