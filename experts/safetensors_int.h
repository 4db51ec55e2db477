/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_int.h: declarations that the reader and the writer of safetensors.h share. */
#ifndef HTH_EXPERTS_SAFETENSORS_INT_H
#define HTH_EXPERTS_SAFETENSORS_INT_H

#include "core/base.h"
#include "core/tensor.h"

/* The digest's key as our writer writes it, and as files of version 1 have it; 16 hex digits, a
 * quote and two braces follow. */
#define HTH_ST_DIGEST_NAME   "hearth.digest"
#define HTH_ST_DIGEST_NAME_1 "hearth_digest"
#define HTH_ST_DIGEST_KEY    "\"" HTH_ST_DIGEST_NAME "\":\""
#define HTH_ST_DIGEST_KEY_1  "\"" HTH_ST_DIGEST_NAME_1 "\":\""

/* NULL for a type without a name in the format. */
const char *hth_st_dtype_name(enum hth_dtype dtype);
/* The hash of the header up to the digest's key and of all tensor bytes. */
uint64_t hth_st_digest(const uint8_t *header, size_t header_len, const uint8_t *data,
                       uint64_t data_len);

#endif
