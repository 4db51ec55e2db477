/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tfevents.h: the records of TensorBoard's event files, with scalars.
 *
 *    0  bytes of the message (8)    8  masked CRC32C of these 8 bytes (4)
 *   12  the message (tfevents.proto)   then its masked CRC32C (4)
 *
 * Little-endian; a CRC is masked as ((crc >> 15) | (crc << 17)) + 0xa282ead8, so that a file of
 * records within a record keeps its worth. A file begins with a record that names the version.
 * From: TensorFlow's record writer and its messages Event and Summary.
 *
 * Pure functions, any thread.
 */
#ifndef HTH_MONITOR_TFEVENTS_H
#define HTH_MONITOR_TFEVENTS_H

#include "core/base.h"

#define HTH_TFEVENTS_SCALARS_MAX 16
#define HTH_TFEVENTS_BYTES_MAX   2048

struct hth_tfevents_scalar {
    const char *tag; /* "run/loss", at most 63 bytes */
    double value;    /* not finite: it is left out */
};

/* Each returns the number of bytes of one record; 0: no scalar is finite. */
size_t hth_tfevents_begin(double wall_s, uint8_t out[HTH_TFEVENTS_BYTES_MAX]);
size_t hth_tfevents_scalars(double wall_s, uint64_t step, const struct hth_tfevents_scalar *scalar,
                            size_t count, uint8_t out[HTH_TFEVENTS_BYTES_MAX]);
/* CRC32C (Castagnoli), for tests. */
uint32_t hth_crc32c(const void *data, size_t len);

#endif
