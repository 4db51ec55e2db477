/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <zlib.h>

#include "core/mem.h"
#include "trainer/source.h"

#define SOURCE_PIECE_BYTES (64u << 10)

struct hth_source {
    hth_pread_fn *pread;
    void *arg;
    bool gzip;
    bool ended;        /* gzip: the last member's trailer was read */
    bool lost;         /* gzip: a read failed, so that z may be beyond `pos` */
    uint64_t file_pos; /* the next byte of the file to fetch */
    uint64_t pos;      /* the next byte of the content to deliver */
    z_stream z;
    uint8_t in[SOURCE_PIECE_BYTES];
};

/* zlib allocates its window once, about 40 KiB whatever the file says. */
static enum hth_err start_inflate(struct hth_source *source)
{
    memset(&source->z, 0, sizeof(source->z));
    return inflateInit2(&source->z, 16 + MAX_WBITS) == Z_OK ? HTH_OK : HTH_E_NO_MEMORY;
}

enum hth_err hth_source_new(hth_pread_fn *pread, void *arg, struct hth_source **out)
{
    struct hth_source *source;
    uint8_t magic[2] = {0, 0};
    size_t got = 0;
    enum hth_err err;

    *out = NULL;
    source = hth_new(struct hth_source);
    source->pread = pread;
    source->arg = arg;
    HTH_GOTO(fail, pread(arg, 0, magic, sizeof(magic), &got));
    if (got == 2 && magic[0] == 0x1f && magic[1] == 0x8b) {
        HTH_GOTO(fail, start_inflate(source));
        source->gzip = true;
    }
    *out = source;
    return HTH_OK;
fail:
    hth_source_free(source);
    return err;
}

void hth_source_free(struct hth_source *source)
{
    if (source == NULL)
        return;
    if (source->gzip)
        inflateEnd(&source->z);
    hth_free(source);
}

/* Fetches the next piece of the compressed file; avail_in stays 0 at its end. */
static enum hth_err refill(struct hth_source *source)
{
    size_t got = 0;

    HTH_TRY(source->pread(source->arg, source->file_pos, source->in, sizeof(source->in), &got));
    source->file_pos += got;
    source->z.next_in = source->in;
    source->z.avail_in = (uInt)got;
    return HTH_OK;
}

/* After a member's end: another member may follow at once (RFC 1952 2.2). */
static enum hth_err next_member(struct hth_source *source)
{
    if (source->z.avail_in == 0)
        HTH_TRY(refill(source));
    if (source->z.avail_in == 0) {
        source->ended = true;
        return HTH_OK;
    }
    return inflateReset(&source->z) == Z_OK ? HTH_OK : HTH_E_CORRUPT;
}

static enum hth_err read_gzip(struct hth_source *source, uint8_t *buf, size_t len, size_t *got)
{
    size_t done = 0;

    while (done < len && !source->ended) {
        size_t want = HTH_MIN(len - done, (size_t)1 << 30);
        int z;

        if (source->z.avail_in == 0)
            HTH_TRY(refill(source));
        if (source->z.avail_in == 0)
            return HTH_E_TRUNCATED;
        source->z.next_out = buf + done;
        source->z.avail_out = (uInt)want;
        z = inflate(&source->z, Z_NO_FLUSH);
        done += want - source->z.avail_out;
        if (z == Z_STREAM_END)
            HTH_TRY(next_member(source));
        else if (z != Z_OK)
            return z == Z_MEM_ERROR ? HTH_E_NO_MEMORY : HTH_E_CORRUPT;
    }
    *got = done;
    return HTH_OK;
}

enum hth_err hth_source_read(struct hth_source *source, void *buf, size_t len, size_t *got)
{
    *got = 0;
    enum hth_err err = source->gzip ? read_gzip(source, buf, len, got)
                                    : source->pread(source->arg, source->pos, buf, len, got);
    if (err == HTH_OK)
        source->pos += *got;
    else
        source->lost = true;
    return err;
}

enum hth_err hth_source_read_all(struct hth_source *source, void *buf, size_t len)
{
    size_t got = 0;

    HTH_TRY(hth_source_read(source, buf, len, &got));
    return got == len ? HTH_OK : HTH_E_TRUNCATED;
}

enum hth_err hth_source_seek(struct hth_source *source, uint64_t offset)
{
    uint8_t waste[4096];

    if (!source->gzip) {
        source->pos = offset;
        return HTH_OK;
    }
    if (offset < source->pos || source->lost) {
        inflateEnd(&source->z);
        source->lost = true;
        HTH_TRY(start_inflate(source));
        source->lost = false;
        source->ended = false;
        source->file_pos = 0;
        source->pos = 0;
    }
    while (source->pos < offset)
        HTH_TRY(hth_source_read_all(source, waste, HTH_MIN(offset - source->pos, sizeof(waste))));
    return HTH_OK;
}

enum hth_err hth_source_length(struct hth_source *source, uint64_t file_bytes, uint64_t *out)
{
    uint8_t *piece;
    enum hth_err err;
    size_t got;

    *out = file_bytes;
    if (!source->gzip)
        return HTH_OK;
    HTH_TRY(hth_source_seek(source, 0));
    piece = hth_calloc(1, SOURCE_PIECE_BYTES);
    do
        err = hth_source_read(source, piece, SOURCE_PIECE_BYTES, &got);
    while (err == HTH_OK && got == SOURCE_PIECE_BYTES);
    hth_free(piece);
    *out = source->pos;
    return err;
}

enum hth_err hth_source_length_hint(struct hth_source *source, uint64_t file_bytes, uint32_t *out)
{
    uint8_t tail[4] = {0};
    size_t got;

    *out = (uint32_t)file_bytes;
    if (!source->gzip || file_bytes < sizeof(tail))
        return HTH_OK;
    HTH_TRY(source->pread(source->arg, file_bytes - sizeof(tail), tail, sizeof(tail), &got));
    *out = (uint32_t)tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 |
           (uint32_t)tail[3] << 24;
    return HTH_OK;
}
