/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quick.h: private to rpc/: the metas that nearly all frames have, written and read without a
 * description of their messages.
 *
 * Writing gives the bytes that protobuf-c would give. Reading takes only what a plain writer
 * writes: known fields in ascending order, none twice, no number longer than 9 bytes, few tensors,
 * a short payload. Everything else is refused here with `false` and is protobuf-c's to judge: so
 * what is a message and what is not has one definition, wire.proto, and one judge. (Half of the
 * instructions that a simulated call took were protobuf-c's.)
 */
#ifndef HTH_RPC_QUICK_H
#define HTH_RPC_QUICK_H

#include "rpc/frame.h"
#include "rpc/wire.pb-c.h"

#define HTH_QUICK_TENSORS_MAX 8
#define HTH_QUICK_BYTES_MAX   256 /* of a payload or text */

/* Writes the meta of a HELLO, REQUEST, REPLY or CREDIT; returns its length, at most what
 * hth_frame_pack_bound leaves for it. Tensors passed hth_frame_body_len before. */
size_t hth_quick_write(const struct hth_frame_msg *msg, uint8_t *out);

struct hth_quick {
    union {
        Hth__Rpc__Hello hello;
        Hth__Rpc__Request request;
        Hth__Rpc__Reply reply;
        Hth__Rpc__Credit credit;
    } m;
    Hth__Rpc__Tensor tensor[HTH_QUICK_TENSORS_MAX];
    Hth__Rpc__Tensor *tensor_ptr[HTH_QUICK_TENSORS_MAX];
    uint64_t dim[HTH_QUICK_TENSORS_MAX][HTH_TENSOR_DIMS_MAX];
    char text[HTH_QUICK_BYTES_MAX + 1]; /* the payload or network, with a 0 behind it */
};

/* Fills q->m, which points into q. */
bool hth_quick_read(enum hth_frame_type type, const uint8_t *in, size_t len, struct hth_quick *q);

#endif
