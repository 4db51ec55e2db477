/* SPDX-License-Identifier: Apache-2.0 */
/* shard.c: tar in zstd through libarchive, between memory and memory. */
#include "data/shard.h"

#include <archive.h>
#include <archive_entry.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"

#define ZSTD_LEVEL "9"

static const char *const endings[HTH_SHARD_FILES] = {"txt", "cls", "png", "codes"};

/* ---- bytes that grow ------------------------------------------------------------------------ */

struct heap_bytes {
    uint8_t *data;
    size_t len, room;
};

static enum hth_err append(struct heap_bytes *b, const void *data, size_t len)
{
    if (len > b->room - b->len) {
        size_t room = HTH_MAX(b->len + len, 2 * b->room + 4096);
        uint8_t *grown = hth_try_realloc(b->data, room, 1);
        if (grown == NULL)
            return HTH_E_NO_MEMORY;
        b->data = grown;
        b->room = room;
    }
    if (len > 0)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    return HTH_OK;
}

/* ---- reading ------------------------------------------------------------------------------- */

struct hth_shard_reader {
    const char *name;
    struct archive *archive;
    uint64_t unpacked;
    uint64_t files; /* read so far, for error texts */
    bool ended;
    bool ahead; /* `next` is a file that belongs to the next sample */
    struct {
        char key[HTH_SHARD_KEY_MAX + 1];
        enum hth_shard_file kind;
    } next;
    struct heap_bytes content[HTH_SHARD_FILES];
};

static struct archive *open_archive(const void *bytes, size_t len, bool raw)
{
    struct archive *a = archive_read_new();

    if (a == NULL)
        return NULL;
    if (raw) {
        archive_read_support_filter_gzip(a);
        archive_read_support_format_raw(a);
    } else {
        archive_read_support_format_tar(a);
    }
    archive_read_support_filter_zstd(a);
    archive_read_support_filter_none(a);
    (void)archive_read_open_memory(a, bytes, len); /* a fault shows at the first header */
    return a;
}

static const char *reason(struct archive *a)
{
    const char *text = archive_error_string(a);

    return text != NULL ? text : "damaged";
}

enum hth_err hth_shard_open(const char *name, const void *bytes, size_t len,
                            struct hth_shard_reader **out)
{
    struct hth_shard_reader *r = hth_new(struct hth_shard_reader);

    r->name = name;
    r->archive = open_archive(bytes, len, false);
    if (r->archive == NULL) {
        hth_free(r);
        return HTH_E_NO_MEMORY;
    }
    *out = r;
    return HTH_OK;
}

void hth_shard_close(struct hth_shard_reader *r)
{
    if (r == NULL)
        return;
    archive_read_free(r->archive);
    for (int i = 0; i < HTH_SHARD_FILES; i++)
        hth_free(r->content[i].data);
    hth_free(r);
}

/* Splits "00000017.png". */
static enum hth_err split_name(struct hth_shard_reader *r, const char *name, struct hth_why *why)
{
    const char *dot = name != NULL ? strchr(name, '.') : NULL;
    size_t len = dot != NULL ? (size_t)(dot - name) : 0;

    if (len == 0 || len > HTH_SHARD_KEY_MAX || strpbrk(name, "/\\") != NULL)
        return hth_blame(why, HTH_E_MALFORMED,
                         "%s: file %" PRIu64 " is named '%.100s'; expected KEY.txt, .cls, .png or "
                         ".codes, without folders",
                         r->name, r->files, name != NULL ? name : "");
    memcpy(r->next.key, name, len);
    r->next.key[len] = '\0';
    for (int i = 0; i < HTH_SHARD_FILES; i++) {
        if (strcmp(dot + 1, endings[i]) == 0) {
            r->next.kind = (enum hth_shard_file)i;
            return HTH_OK;
        }
    }
    return hth_blame(why, HTH_E_MALFORMED,
                     "%s: '%.100s': expected the ending .txt, .cls, .png or .codes", r->name, name);
}

/* Reads the head of the next file into `next`. */
static enum hth_err next_head(struct hth_shard_reader *r, struct hth_why *why)
{
    struct archive_entry *entry;
    int status = archive_read_next_header(r->archive, &entry);

    if (status == ARCHIVE_EOF) {
        r->ended = true;
        return HTH_E_NOT_FOUND;
    }
    if (status != ARCHIVE_OK)
        return hth_blame(why, HTH_E_CORRUPT, "%s: after %" PRIu64 " files: %.200s: fetch it again",
                         r->name, r->files, reason(r->archive));
    r->files++;
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != NULL)
        return hth_blame(
            why, HTH_E_MALFORMED, "%s: '%.100s' is a link, folder or special file", r->name,
            archive_entry_pathname(entry) != NULL ? archive_entry_pathname(entry) : "");
    HTH_TRY(split_name(r, archive_entry_pathname(entry), why));
    r->ahead = true;
    return HTH_OK;
}

/* Reads the content of `next`. */
static enum hth_err next_body(struct hth_shard_reader *r, struct hth_why *why)
{
    struct heap_bytes *to = &r->content[r->next.kind];
    uint8_t chunk[16384];

    to->len = 0;
    for (;;) {
        la_ssize_t got = archive_read_data(r->archive, chunk, sizeof(chunk));
        if (got == 0)
            return append(to, NULL, 0);
        if (got < 0)
            return hth_blame(why, HTH_E_CORRUPT, "%s: '%s.%s': %.200s: fetch it again", r->name,
                             r->next.key, endings[r->next.kind], reason(r->archive));
        r->unpacked += (uint64_t)got;
        if (r->unpacked > HTH_SHARD_UNPACKED_MAX)
            return hth_blame(why, HTH_E_TOO_LARGE, "%s: unpacks to more than %u bytes", r->name,
                             HTH_SHARD_UNPACKED_MAX);
        HTH_TRY(append(to, chunk, (size_t)got));
    }
}

enum hth_err hth_shard_next(struct hth_shard_reader *r, struct hth_shard_sample *out,
                            struct hth_why *why)
{
    memset(out, 0, sizeof(*out));
    if (r->ended)
        return HTH_E_NOT_FOUND;
    if (!r->ahead)
        HTH_TRY(next_head(r, why));
    memcpy(out->key, r->next.key, sizeof(out->key));
    while (r->ahead && strcmp(out->key, r->next.key) == 0) {
        struct hth_bytes *file = &out->file[r->next.kind];
        enum hth_err err;
        if (file->data != NULL)
            return hth_blame(why, HTH_E_DUPLICATE, "%s: '%s.%s' is there twice", r->name, out->key,
                             endings[r->next.kind]);
        HTH_TRY(next_body(r, why));
        file->data = r->content[r->next.kind].data != NULL ? r->content[r->next.kind].data
                                                           : (const uint8_t *)"";
        file->len = r->content[r->next.kind].len;
        r->ahead = false;
        err = next_head(r, why);
        if (err != HTH_OK && err != HTH_E_NOT_FOUND)
            return err;
    }
    return HTH_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

struct hth_shard_writer {
    struct archive *archive;
    struct heap_bytes packed;
    uint64_t bytes;
};

static la_ssize_t on_packed(struct archive *a, void *arg, const void *data, size_t len)
{
    struct hth_shard_writer *w = arg;

    (void)a;
    return append(&w->packed, data, len) == HTH_OK ? (la_ssize_t)len : -1;
}

enum hth_err hth_shard_writer_new(struct hth_shard_writer **out)
{
    struct hth_shard_writer *w = hth_new(struct hth_shard_writer);

    *out = NULL;
    w->archive = archive_write_new();
    if (w->archive == NULL || archive_write_set_format_ustar(w->archive) != ARCHIVE_OK ||
        archive_write_add_filter_zstd(w->archive) != ARCHIVE_OK ||
        archive_write_set_filter_option(w->archive, "zstd", "compression-level", ZSTD_LEVEL) !=
            ARCHIVE_OK ||
        archive_write_set_bytes_in_last_block(w->archive, 1) != ARCHIVE_OK ||
        archive_write_open(w->archive, w, NULL, on_packed, NULL) != ARCHIVE_OK) {
        bool any = w->archive != NULL;
        hth_shard_writer_free(w);
        return any ? HTH_E_UNSUPPORTED : HTH_E_NO_MEMORY;
    }
    *out = w;
    return HTH_OK;
}

void hth_shard_writer_free(struct hth_shard_writer *w)
{
    if (w == NULL)
        return;
    if (w->archive != NULL)
        archive_write_free(w->archive);
    hth_free(w->packed.data);
    hth_free(w);
}

static enum hth_err add_file(struct hth_shard_writer *w, const char *key, const char *ending,
                             const struct hth_bytes *bytes)
{
    char name[HTH_SHARD_KEY_MAX + 16];
    struct archive_entry *entry = archive_entry_new();
    bool ok;

    if (entry == NULL)
        return HTH_E_NO_MEMORY;
    snprintf(name, sizeof(name), "%s.%s", key, ending);
    archive_entry_set_pathname(entry, name);
    archive_entry_set_size(entry, (la_int64_t)bytes->len);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_mtime(entry, 0, 0); /* the same bytes whenever they are made */
    ok = archive_write_header(w->archive, entry) == ARCHIVE_OK &&
         archive_write_data(w->archive, bytes->data, bytes->len) == (la_ssize_t)bytes->len;
    archive_entry_free(entry);
    w->bytes += bytes->len;
    return ok ? HTH_OK : HTH_E_NO_MEMORY;
}

enum hth_err hth_shard_add(struct hth_shard_writer *w, const struct hth_shard_sample *sample)
{
    for (int i = 0; i < HTH_SHARD_FILES; i++)
        if (sample->file[i].data != NULL)
            HTH_TRY(add_file(w, sample->key, endings[i], &sample->file[i]));
    return HTH_OK;
}

uint64_t hth_shard_writer_bytes(const struct hth_shard_writer *w)
{
    return w->bytes;
}

enum hth_err hth_shard_finish(struct hth_shard_writer *w, struct hth_blob **out)
{
    *out = NULL;
    if (archive_write_close(w->archive) != ARCHIVE_OK)
        return HTH_E_NO_MEMORY;
    *out = hth_blob_try_new(w->packed.len);
    if (*out == NULL)
        return HTH_E_NO_MEMORY;
    memcpy((*out)->data, w->packed.data, w->packed.len);
    return HTH_OK;
}

/* ---- whole files --------------------------------------------------------------------------- */

static void free_bytes(void *arg, void *data)
{
    (void)arg;
    hth_free(data);
}

static enum hth_err unpack_all(struct archive *a, const char *name, size_t max,
                               struct heap_bytes *all, struct hth_why *why)
{
    struct archive_entry *entry;
    uint8_t chunk[16384];
    int status = archive_read_next_header(a, &entry);

    while (status == ARCHIVE_OK) {
        la_ssize_t got = archive_read_data(a, chunk, sizeof(chunk));
        if (got == 0)
            return HTH_OK;
        if (got < 0)
            break;
        if (all->len + (size_t)got > max)
            return hth_blame(why, HTH_E_TOO_LARGE, "%s: unpacks to more than %zu bytes: split it",
                             name, max);
        HTH_TRY(append(all, chunk, (size_t)got));
    }
    return hth_blame(why, HTH_E_CORRUPT, "%s: after %zu bytes: %.200s", name, all->len, reason(a));
}

enum hth_err hth_unpack(const char *name, const void *bytes, size_t len, size_t max,
                        struct hth_blob **out, struct hth_why *why)
{
    struct heap_bytes all = {0};
    struct archive *a = open_archive(bytes, len, true);
    enum hth_err err = HTH_E_NO_MEMORY;

    *out = NULL;
    if (len == 0)
        err = HTH_OK; /* libarchive takes an empty file for damaged */
    else if (a != NULL)
        err = unpack_all(a, name, max, &all, why);
    if (a != NULL)
        archive_read_free(a);
    if (err == HTH_OK)
        err = append(&all, NULL, 0);
    if (err != HTH_OK) {
        hth_free(all.data);
        return err;
    }
    *out = hth_blob_wrap(all.data, all.len, free_bytes, NULL);
    return HTH_OK;
}
