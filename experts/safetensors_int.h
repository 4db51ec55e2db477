/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_int.h: what the reader and the writer of safetensors.h share. */
#ifndef HTH_EXPERTS_SAFETENSORS_INT_H
#define HTH_EXPERTS_SAFETENSORS_INT_H

#include "core/base.h"
#include "core/tensor.h"

/* As our writer spells the digest's key; 16 hex digits and the two closing braces follow. */
#define HTH_ST_DIGEST_KEY "\"hearth_digest\":\""

/* NULL for a type that the format has no name for. */
const char *hth_st_dtype_name(enum hth_dtype dtype);
/* Over the header up to the digest's key, and over all tensor bytes. */
uint64_t hth_st_digest(const uint8_t *header, size_t header_len, const uint8_t *data,
                       uint64_t data_len);

#endif
