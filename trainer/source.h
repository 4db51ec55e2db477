/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.h: a file as a sequence of bytes, plain or gzip, in bounded memory.
 *
 * The file is read in pieces of 64 KiB through a function of the caller, so that the same code
 * reads a disk, a simulated disk and a fuzzer's bytes. A file that begins with gzip's magic is
 * inflated as it is read (several members in a row too) and its checksums are verified. Every byte
 * of the file is taken as hostile: output is produced only into the caller's buffer.
 *
 * One job at a time uses a source.
 */
#ifndef HTH_TRAINER_SOURCE_H
#define HTH_TRAINER_SOURCE_H

#include "core/base.h"

/* Reads len bytes at offset; *got < len only at the end. */
typedef enum hth_err hth_pread_fn(void *arg, uint64_t offset, void *buf, size_t len, size_t *got);

struct hth_source;

/* Reads the first bytes. Errors: those of `pread`; E_NO_MEMORY. */
enum hth_err hth_source_new(hth_pread_fn *pread, void *arg, struct hth_source **out) HTH_MUST;
void hth_source_free(struct hth_source *source);
/* *got < len only at the end. Errors: those of `pread`; E_CORRUPT (damaged gzip data),
 * E_TRUNCATED (gzip data that ends too early). After an error: seek before the next read. */
enum hth_err hth_source_read(struct hth_source *source, void *buf, size_t len,
                             size_t *got) HTH_MUST;
/* Exactly len bytes. Errors: also E_TRUNCATED. */
enum hth_err hth_source_read_all(struct hth_source *source, void *buf, size_t len) HTH_MUST;
/* The length of the content; a compressed file is read to its end for that. */
enum hth_err hth_source_length(struct hth_source *source, uint64_t file_bytes,
                               uint64_t *out) HTH_MUST;
/* The low 32 bits of the length, by the last member of a compressed file: only a hint. */
enum hth_err hth_source_length_hint(struct hth_source *source, uint64_t file_bytes,
                                    uint32_t *out) HTH_MUST;
/* Moves to byte `offset` of the content: at once in a plain file, by inflating in a compressed
 * one. */
enum hth_err hth_source_seek(struct hth_source *source, uint64_t offset) HTH_MUST;

#endif
