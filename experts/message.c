/* SPDX-License-Identifier: Apache-2.0 */
/* message.c: converts between the bytes of expert.proto and checked structs. */
#include "experts/message.h"

#include "core/bytes.h"
#include "core/mem.h"
#include "core/rng.h"
#include "dht/uid.h"
#include "experts/expert.pb-c.h"

#include <stdio.h>
#include <string.h>

size_t hth_expert_key(const char *layer, uint32_t ndim, const uint32_t *coord,
                      uint8_t out[HTH_EXPERT_KEY_MAX])
{
    size_t len = strnlen(layer, HTH_NAME_LEN_MAX);

    memcpy(out, layer, len);
    out[len++] = 0;
    for (uint32_t i = 0; i < ndim && i < HTH_GRID_DIMS_MAX; i++, len += 4)
        hth_store_u32le(out + len, coord[i]);
    return len;
}

static enum hth_err check_work(const Hth__Expert__Work *m, uint32_t rows_max, uint32_t *total)
{
    uint64_t sum = 0;

    HTH_TRY(hth_name_check(m->layer, strlen(m->layer)));
    if (m->ndim == 0 || m->ndim > HTH_GRID_DIMS_MAX || m->n_rows == 0)
        return HTH_E_RANGE;
    if (m->n_rows > HTH_EXPERT_PARTS_MAX)
        return HTH_E_TOO_LARGE;
    if (m->n_coord != m->n_rows * m->ndim)
        return HTH_E_MALFORMED;
    for (size_t i = 0; i < m->n_coord; i++)
        if (m->coord[i] >= HTH_GRID_DIM_MAX)
            return HTH_E_RANGE;
    for (size_t i = 0; i < m->n_rows; i++) {
        if (m->rows[i] == 0)
            return HTH_E_RANGE;
        sum += m->rows[i];
    }
    if (sum > rows_max || m->rows_in_microbatch > HTH_EXPERT_MICROBATCH_ROWS_MAX)
        return HTH_E_TOO_LARGE;
    *total = (uint32_t)sum;
    return HTH_OK;
}

enum hth_err hth_expert_msg_open(const uint8_t *payload, size_t len, uint32_t rows_max,
                                 struct hth_expert_msg *out)
{
    Hth__Expert__Work *m = hth__expert__work__unpack(NULL, len, payload);
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    if (m == NULL)
        return HTH_E_MALFORMED;
    err = check_work(m, rows_max, &out->rows_total);
    if (err != HTH_OK) {
        hth__expert__work__free_unpacked(m, NULL);
        return err == HTH_E_TOO_LARGE ? err : (err == HTH_E_RANGE ? err : HTH_E_MALFORMED);
    }
    out->layer = m->layer;
    out->ndim = m->ndim;
    out->parts = (uint32_t)m->n_rows;
    out->coord = m->coord;
    out->rows = m->rows;
    out->rows_in_microbatch = m->rows_in_microbatch;
    out->forward = (struct hth_rpc_idem){m->forward_hi, m->forward_lo};
    out->message = m;
    return HTH_OK;
}

void hth_expert_msg_close(struct hth_expert_msg *work)
{
    if (work->message != NULL)
        hth__expert__work__free_unpacked(work->message, NULL);
    memset(work, 0, sizeof(*work));
}

enum hth_err hth_expert_msg_pack(const struct hth_expert_msg *work, uint8_t **out, size_t *len)
{
    Hth__Expert__Work m = HTH__EXPERT__WORK__INIT;

    m.layer = (char *)work->layer;
    m.ndim = work->ndim;
    m.n_coord = (size_t)work->parts * work->ndim;
    m.coord = (uint32_t *)work->coord;
    m.n_rows = work->parts;
    m.rows = (uint32_t *)work->rows;
    m.rows_in_microbatch = work->rows_in_microbatch;
    m.forward_hi = work->forward.hi;
    m.forward_lo = work->forward.lo;
    *len = hth__expert__work__get_packed_size(&m);
    *out = NULL;
    if (*len > HTH_FRAME_META_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    *out = hth_calloc(*len, 1);
    hth__expert__work__pack(&m, *out);
    return HTH_OK;
}

bool hth_expert_msg_names(const struct hth_expert_msg *work)
{
    return work->forward.hi != 0 || work->forward.lo != 0;
}

uint64_t hth_expert_msg_list_hash(const struct hth_expert_msg *work)
{
    size_t coords = (size_t)work->parts * work->ndim;
    uint64_t hash = hth_hash64(work->layer, strlen(work->layer), work->ndim);

    hash = hth_hash64(work->coord, coords * sizeof(*work->coord), hash);
    return hth_hash64(work->rows, work->parts * sizeof(*work->rows), hash);
}

enum hth_err hth_expert_msg_reply_open(const uint8_t *payload, size_t len, uint32_t parts,
                                       enum hth_err *out, bool *kept)
{
    Hth__Expert__WorkReply *m;
    enum hth_err err = HTH_OK;

    memset(out, 0, parts * sizeof(*out));
    if (kept != NULL)
        *kept = false;
    if (len == 0)
        return HTH_OK;
    m = hth__expert__work_reply__unpack(NULL, len, payload);
    if (m == NULL)
        return HTH_E_MALFORMED;
    if (m->n_status != 0 && m->n_status != parts)
        err = HTH_E_MALFORMED;
    else
        for (size_t i = 0; i < m->n_status; i++)
            out[i] = hth_err_from_wire(m->status[i]);
    if (kept != NULL)
        *kept = m->kept;
    hth__expert__work_reply__free_unpacked(m, NULL);
    return err;
}

void hth_expert_msg_reply_pack(const enum hth_err *status, uint32_t parts, bool kept, uint8_t **out,
                               size_t *len)
{
    Hth__Expert__WorkReply m = HTH__EXPERT__WORK_REPLY__INIT;
    uint32_t *numbers;
    bool any = false;

    *out = NULL;
    *len = 0;
    for (uint32_t i = 0; i < parts; i++)
        any = any || status[i] != HTH_OK;
    if (!any && !kept)
        return;
    numbers = hth_new_array(uint32_t, parts);
    for (uint32_t i = 0; i < parts; i++)
        numbers[i] = (uint32_t)status[i];
    m.n_status = any ? parts : 0;
    m.status = numbers;
    m.kept = kept;
    *len = hth__expert__work_reply__get_packed_size(&m);
    *out = hth_calloc(*len, 1);
    hth__expert__work_reply__pack(&m, *out);
    hth_free(numbers);
}

enum hth_err hth_info_request_open(const uint8_t *payload, size_t len, uint32_t *first)
{
    Hth__Expert__InfoRequest *m = hth__expert__info_request__unpack(NULL, len, payload);

    *first = 0;
    if (m == NULL)
        return HTH_E_MALFORMED;
    *first = m->first;
    hth__expert__info_request__free_unpacked(m, NULL);
    return HTH_OK;
}

void hth_info_request_pack(uint32_t first, uint8_t out[8], size_t *len)
{
    Hth__Expert__InfoRequest m = HTH__EXPERT__INFO_REQUEST__INIT;

    m.first = first; /* a tag and at most five bytes */
    *len = hth__expert__info_request__pack(&m, out);
}

enum hth_err hth_weights_request_open(const uint8_t *payload, size_t len, struct hth_uid *out)
{
    Hth__Expert__WeightsRequest *m = hth__expert__weights_request__unpack(NULL, len, payload);
    enum hth_err err;

    *out = (struct hth_uid){0};
    if (m == NULL)
        return HTH_E_MALFORMED;
    err = hth_uid_parse(m->uid, strlen(m->uid), out);
    hth__expert__weights_request__free_unpacked(m, NULL);
    return err == HTH_OK ? HTH_OK : HTH_E_MALFORMED;
}

void hth_weights_request_pack(const struct hth_uid *uid, uint8_t out[HTH_UID_TEXT_MAX + 4],
                              size_t *len)
{
    Hth__Expert__WeightsRequest m = HTH__EXPERT__WEIGHTS_REQUEST__INIT;
    char text[HTH_UID_TEXT_MAX];

    hth_uid_text(uid, text);
    m.uid = text; /* a tag, a length of at most two bytes, the text */
    *len = hth__expert__weights_request__pack(&m, out);
}

enum hth_err hth_info_reply_open(const uint8_t *payload, size_t len, struct hth_expert_info **out,
                                 uint32_t *count, uint32_t *total)
{
    Hth__Expert__InfoReply *m = hth__expert__info_reply__unpack(NULL, len, payload);
    struct hth_expert_info *infos;

    *out = NULL;
    *count = *total = 0;
    if (m == NULL)
        return HTH_E_MALFORMED;
    if (m->n_experts > HTH_EXPERT_INFO_PAGE_MAX) {
        hth__expert__info_reply__free_unpacked(m, NULL);
        return HTH_E_TOO_LARGE;
    }
    infos = hth_new_array(struct hth_expert_info, m->n_experts);
    for (size_t i = 0; i < m->n_experts; i++) {
        const Hth__Expert__Info *e = m->experts[i];
        snprintf(infos[i].uid, sizeof(infos[i].uid), "%s", e->uid);
        snprintf(infos[i].kind, sizeof(infos[i].kind), "%s", e->kind);
        infos[i].d = e->d;
        infos[i].block_rows = e->block_rows;
        infos[i].steps = e->steps;
        infos[i].rows_forward = e->rows_forward;
        infos[i].rows_backward = e->rows_backward;
        infos[i].returned = e->returned;
        infos[i].hosted_us = (int64_t)HTH_MIN(e->hosted_s, UINT64_C(1) << 40) * HTH_US_PER_S;
    }
    *out = infos;
    *count = (uint32_t)m->n_experts;
    *total = m->total;
    hth__expert__info_reply__free_unpacked(m, NULL);
    return HTH_OK;
}

void hth_info_reply_pack(const struct hth_expert_info *infos, uint32_t count, uint32_t total,
                         uint8_t **out, size_t *len)
{
    Hth__Expert__InfoReply m = HTH__EXPERT__INFO_REPLY__INIT;
    Hth__Expert__Info *items = hth_new_array(Hth__Expert__Info, count);
    Hth__Expert__Info **list = hth_new_array(Hth__Expert__Info *, count);

    for (uint32_t i = 0; i < count; i++) {
        hth__expert__info__init(&items[i]);
        items[i].uid = (char *)infos[i].uid;
        items[i].kind = (char *)infos[i].kind;
        items[i].d = infos[i].d;
        items[i].block_rows = infos[i].block_rows;
        items[i].steps = infos[i].steps;
        items[i].rows_forward = infos[i].rows_forward;
        items[i].rows_backward = infos[i].rows_backward;
        items[i].returned = infos[i].returned;
        items[i].hosted_s = (uint64_t)(infos[i].hosted_us / HTH_US_PER_S);
        list[i] = &items[i];
    }
    m.total = total;
    m.n_experts = count;
    m.experts = list;
    *len = hth__expert__info_reply__get_packed_size(&m);
    *out = hth_calloc(*len, 1);
    hth__expert__info_reply__pack(&m, *out);
    hth_free(list);
    hth_free(items);
}
