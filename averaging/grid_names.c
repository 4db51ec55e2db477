/* SPDX-License-Identifier: Apache-2.0 */
/* The names that every member of a group derives by itself: keys of lines, orders. */
#include "averaging/grid.h"
#include "core/bytes.h"

#include <stdlib.h>
#include <string.h>

#define LINE_MAGIC UINT64_C(0x33656e696c687468) /* "hthline3" */

size_t hth_avg_line_key(const struct hth_avg_line *line, uint8_t out[HTH_AVG_LINE_KEY_MAX])
{
    struct hth_writer w;
    uint32_t axis = hth_avg_axis(&line->shape, line->round);
    hth_writer_init(&w, out, HTH_AVG_LINE_KEY_MAX);
    hth_write_u64(&w, LINE_MAGIC);
    hth_write_u64(&w, line->run);
    hth_write_u8(&w, (uint8_t)axis);
    hth_write_u8(&w, (uint8_t)line->shape.dims);
    for (uint32_t i = 0; i < line->shape.dims; i++)
        hth_write_u32(&w, line->shape.size[i]);
    for (uint32_t i = 0; i < line->shape.dims; i++)
        if (i != axis)
            hth_write_u32(&w, line->cell.at[i]);
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

bool hth_avg_line_eq(const struct hth_avg_line *a, const struct hth_avg_line *b)
{
    uint8_t x[HTH_AVG_LINE_KEY_MAX], y[HTH_AVG_LINE_KEY_MAX];
    size_t x_len = hth_avg_line_key(a, x), y_len = hth_avg_line_key(b, y);
    return x_len == y_len && memcmp(x, y, x_len) == 0;
}

void hth_avg_mark(const struct hth_crypto *crypto, const void *salt, size_t salt_len,
                  const struct hth_peer_id *id, struct hth_hash *mark)
{
    uint8_t bytes[HTH_AVG_LINE_KEY_MAX + sizeof(id->b)];
    HTH_ASSERT(salt_len <= HTH_AVG_LINE_KEY_MAX);
    memcpy(bytes, salt, salt_len);
    memcpy(bytes + salt_len, id->b, sizeof(id->b));
    crypto->hash(bytes, salt_len + sizeof(id->b), mark);
}

struct marked {
    struct hth_hash mark;
    struct hth_peer_id id;
    uint32_t place;
};

static int compare_marked(const void *a, const void *b)
{
    const struct marked *x = a, *y = b;
    int by_mark = memcmp(&x->mark, &y->mark, sizeof(x->mark));
    return by_mark != 0 ? by_mark : hth_peer_id_cmp(&x->id, &y->id);
}

void hth_avg_order(const struct hth_crypto *crypto, const struct hth_hash *group,
                   const struct hth_peer_id *ids, uint32_t count, uint32_t *order)
{
    struct marked marked[HTH_AVG_MEMBERS_MAX];
    HTH_ASSERT(count <= HTH_AVG_MEMBERS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        hth_avg_mark(crypto, group->b, sizeof(group->b), &ids[i], &marked[i].mark);
        marked[i].id = ids[i];
        marked[i].place = i;
    }
    qsort(marked, count, sizeof(*marked), compare_marked);
    for (uint32_t i = 0; i < count; i++)
        order[i] = marked[i].place;
}
