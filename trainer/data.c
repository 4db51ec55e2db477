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
 */
#include <string.h>

#include "core/env.h"
#include "core/log.h"
#include "core/mem.h"
#include "trainer/reader.h"

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

static enum hth_err check_opts(const struct hth_data_opts *o)
{
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
        HTH_LOG(env, HTH_ERROR, HTH_SUB_TRAIN,
                "%s; put a good copy there, or name another with --data or data.path", data->why);
    hth_data_free(data);
    return err;
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
    out->features = data->reader.record_bytes - 1;
    out->labels = data->opts.kind == HTH_DATA_IMAGES ? 1 : data->opts.seq_len;
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

/* Draws the shift of the picture at `position`. */
static struct move draw_move(const struct hth_data *data, uint64_t position)
{
    int32_t most = (int32_t)data->opts.shift;
    struct move move = {0, 0};
    struct hth_rng root, rng;

    if (most == 0)
        return move;
    if (data->opts.shuffle_rows == 0)
        position %= data->reader.count;
    hth_rng_init(&root, data->opts.seed);
    root = hth_rng_split(&root, "shift", position);
    rng = hth_rng_split(&root, "peer", data->opts.peer);
    move.down = draw_shift(&rng, most);
    move.right = draw_shift(&rng, most);
    return move;
}

static void convert_image(const struct hth_data *data, struct move move, float *x, int32_t *label)
{
    int32_t pixels = (int32_t)data->reader.record_bytes - 1;
    int32_t width = (int32_t)data->reader.line_bytes, height = pixels / width;
    float scale = 1.0f / (255.0f * data->opts.std);
    float middle = data->opts.mean / data->opts.std;

    for (int32_t row = 0; row < height; row++)
        for (int32_t col = 0; col < width; col++) {
            int32_t r = row - move.down, c = col - move.right;
            bool inside = r >= 0 && r < height && c >= 0 && c < width;
            uint8_t pixel = inside ? data->record[r * width + c] : 0;

            x[row * width + col] = (float)pixel * scale - middle;
        }
    *label = data->record[pixels];
}

static void convert_text(const struct hth_data *data, int32_t *tokens, int32_t *labels)
{
    for (uint32_t i = 0; i < data->opts.seq_len; i++) {
        tokens[i] = data->record[i];
        labels[i] = data->record[i + 1];
    }
}

enum hth_err hth_data_read(struct hth_data *data, uint64_t position, uint32_t count, float *x,
                           int32_t *tokens, int32_t *labels)
{
    size_t features = data->reader.record_bytes - 1;

    HTH_TRY(go_to(data, position));
    data->valid = false; /* an error would leave the buffer in an unknown state */
    for (uint32_t i = 0; i < count; i++) {
        HTH_TRY(next_sample(data));
        if (data->opts.kind == HTH_DATA_IMAGES)
            convert_image(data, draw_move(data, position + i), x + i * features, labels + i);
        else
            convert_text(data, tokens + i * features, labels + i * features);
    }
    data->valid = true;
    return HTH_OK;
}
