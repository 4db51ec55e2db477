/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_frame.c: any bytes through the frame parser, in pieces of a size from the first byte, with a
 * budget from the second. Accepted frames must keep the promises of frame.h.
 */
#include <string.h>

#include "rpc/frame.h"

static void check(const struct hth_frame *f)
{
    uint64_t end = 0;
    for (size_t i = 0; i < f->msg.body.tensor_count; i++) {
        const struct hth_tensor *t = &f->msg.body.tensors[i];
        uint64_t bytes;
        HTH_ASSERT(hth_tensor_bytes(t, &bytes) == HTH_OK);
        HTH_ASSERT(t->offset % HTH_FRAME_ALIGN == 0);
        if (bytes == 0)
            continue;
        HTH_ASSERT(t->offset >= end && t->offset + bytes <= f->header.body_len);
        end = t->offset + bytes;
    }
    HTH_ASSERT(end == f->header.body_len);
    HTH_ASSERT(f->msg.body.payload_len <= HTH_FRAME_META_BYTES_MAX);
    if (f->msg.type == HTH_FRAME_HELLO) {
        const uint8_t *pass = f->msg.u.hello.pass;
        uint8_t sum = 0; /* a sanitizer sees a pass that lies elsewhere */
        for (size_t i = 0; i < f->msg.u.hello.pass_len; i++)
            sum ^= pass[i];
        HTH_ASSERT(f->msg.u.hello.pass_len <= HTH_CREDS_BYTES_MAX && (sum | 1) != 0);
    }
}

/* Give the parser a body, or skip it; false when there is no room for either. */
static bool give_body(struct hth_frame_parser *p, struct hth_budget *budget)
{
    struct hth_blob *blob;
    if (hth_blob_new_budget(p->frame->header.body_len, budget, &blob) == HTH_OK) {
        hth_frame_parser_body_take(p, blob);
        return true;
    }
    if (hth_blob_new_budget(64, budget, &blob) != HTH_OK)
        return false;
    hth_frame_parser_skip_take(p, blob);
    return true;
}

static void parse(struct hth_frame_parser *p, struct hth_budget *budget, const uint8_t *data,
                  size_t size, size_t piece)
{
    size_t pos = 0;
    while (pos < size) {
        struct hth_blob *into;
        size_t offset, max;
        if (hth_frame_parser_want(p, &into, &offset, &max) != HTH_OK)
            return;
        HTH_ASSERT(max > 0 && offset + max <= into->size);
        size_t n = HTH_MIN(HTH_MIN(max, size - pos), piece);
        memcpy(into->data + offset, data + pos, n);
        pos += n;
        enum hth_frame_event ev = hth_frame_parser_got(p, n);
        if (ev == HTH_FRAME_BAD) {
            HTH_ASSERT(p->err != HTH_OK && p->err != HTH_E_BUG);
            return;
        }
        if (ev == HTH_FRAME_HEAD)
            check(p->frame);
        if (ev == HTH_FRAME_HEAD && p->frame->header.body_len > 0) {
            if (!give_body(p, budget))
                return;
        } else if (ev != HTH_FRAME_MORE) {
            hth_frame_clear(p->frame);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_frame_parser parser;
    struct hth_frame frame;
    struct hth_budget budget;
    if (size < 2)
        return 0;
    hth_budget_init(&budget, (int64_t)(1 + data[1]) * 4096, NULL);
    hth_frame_init(&frame);
    hth_frame_parser_init(&parser, &budget);
    parser.frame = &frame;
    parse(&parser, &budget, data + 2, size - 2, 1 + data[0]);
    hth_frame_parser_clear(&parser);
    hth_frame_clear(&frame);
    HTH_ASSERT(hth_budget_used(&budget) == 0);
    return 0;
}
