/* SPDX-License-Identifier: Apache-2.0 */
/* part.c: between reduce.proto's bytes and checked structs. */
#include "averaging/part.h"

#include <string.h>

#include "averaging/reduce.pb-c.h"
#include "core/mem.h"

/* ---- writing ------------------------------------------------------------------------------- */

struct segment_list {
    Hth__Reduce__Segment item[HTH_AVG_SEGMENTS_MAX];
    Hth__Reduce__Segment *list[HTH_AVG_SEGMENTS_MAX];
};

static void fill(struct segment_list *to, const struct hth_segment *from, uint32_t count)
{
    HTH_ASSERT(count <= HTH_AVG_SEGMENTS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        hth__reduce__segment__init(&to->item[i]);
        to->item[i].format = from[i].format;
        to->item[i].floats = from[i].count;
        to->list[i] = &to->item[i];
    }
}

size_t hth_part_pack(const struct hth_part_head *part, uint8_t out[HTH_PART_BYTES_MAX])
{
    Hth__Reduce__Part m = HTH__REDUCE__PART__INIT;
    struct segment_list segments;
    uint8_t group[sizeof(part->group.b)];
    memcpy(group, part->group.b, sizeof(group));
    fill(&segments, part->segments, part->segment_count);
    m.group = (ProtobufCBinaryData){sizeof(group), group};
    m.part = part->part;
    m.n_segments = part->segment_count;
    m.segments = segments.list;
    HTH_ASSERT(hth__reduce__part__get_packed_size(&m) <= HTH_PART_BYTES_MAX);
    return hth__reduce__part__pack(&m, out);
}

size_t hth_part_reply_pack(const struct hth_part_reply *reply, uint8_t out[HTH_PART_BYTES_MAX])
{
    Hth__Reduce__PartReply m = HTH__REDUCE__PART_REPLY__INIT;
    struct segment_list segments;
    fill(&segments, reply->segments, reply->segment_count);
    m.missing = (ProtobufCBinaryData){sizeof(reply->missing), (uint8_t *)reply->missing};
    m.n_segments = reply->segment_count;
    m.segments = segments.list;
    HTH_ASSERT(hth__reduce__part_reply__get_packed_size(&m) <= HTH_PART_BYTES_MAX);
    return hth__reduce__part_reply__pack(&m, out);
}

/* ---- reading ------------------------------------------------------------------------------- */

enum hth_err hth_part_tensor(const struct hth_tensor *tensors, size_t count, uint64_t *bytes)
{
    *bytes = count > 0 ? tensors->dim[0] : 0;
    return count == 0 || (count == 1 && tensors->ndim == 1 && tensors->dtype == HTH_U8)
               ? HTH_OK
               : HTH_E_BAD_SHAPE;
}

/* A segment's length unpacked follows from its format and count: hth_codec_check compares. */
static enum hth_err take_segments(Hth__Reduce__Segment *const *from, size_t count, uint64_t bytes,
                                  struct hth_segment out[HTH_AVG_SEGMENTS_MAX], uint32_t *floats)
{
    if (count > HTH_AVG_SEGMENTS_MAX)
        return HTH_E_TOO_LARGE;
    for (size_t i = 0; i < count; i++) {
        struct hth_segment *s = &out[i];
        s->format = (enum hth_quant_format)HTH_MIN(from[i]->format, 255u);
        s->count = from[i]->floats;
    }
    return hth_codec_check(out, (uint32_t)count, bytes, floats);
}

enum hth_err hth_part_open(const uint8_t *payload, size_t len, uint64_t bytes,
                           struct hth_part_head *out)
{
    enum hth_err err;
    Hth__Reduce__Part *m = hth__reduce__part__unpack(NULL, len, payload);
    if (m == NULL)
        return HTH_E_MALFORMED;
    HTH_GOTO(out, m->group.len == sizeof(out->group.b) ? HTH_OK : HTH_E_MALFORMED);
    HTH_GOTO(out, take_segments(m->segments, m->n_segments, bytes, out->segments, &out->floats));
    memcpy(out->group.b, m->group.data, sizeof(out->group.b));
    out->part = m->part;
    out->segment_count = (uint32_t)m->n_segments;
out:
    hth__reduce__part__free_unpacked(m, NULL);
    return err;
}

enum hth_err hth_part_reply_open(const uint8_t *payload, size_t len, uint64_t bytes,
                                 struct hth_part_reply *out)
{
    enum hth_err err;
    Hth__Reduce__PartReply *m = hth__reduce__part_reply__unpack(NULL, len, payload);
    if (m == NULL)
        return HTH_E_MALFORMED;
    HTH_GOTO(out, m->missing.len == sizeof(out->missing) ? HTH_OK : HTH_E_MALFORMED);
    HTH_GOTO(out, take_segments(m->segments, m->n_segments, bytes, out->segments, &out->floats));
    memcpy(out->missing, m->missing.data, sizeof(out->missing));
    out->segment_count = (uint32_t)m->n_segments;
out:
    hth__reduce__part_reply__free_unpacked(m, NULL);
    return err;
}
