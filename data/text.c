/* SPDX-License-Identifier: Apache-2.0 */
/* text.c: plain text and jsonl as samples of a data set. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "data/folder.h"
#include "data/jsonl.h"
#include "data/shard.h"

#define DOCUMENT_BYTES_MIN 1024 /* an empty line ends a document that is as long */
#define DOCUMENT_BYTES_MAX 4096 /* a line's end does */

struct text_file {
    const char *path, *name; /* the name is the path's last component */
    const char *data;
    size_t len;
    struct hth_pack *pack;
    hth_pack_progress_fn *progress;
    void *arg;
    struct hth_why *why;
};

static void report(const struct text_file *f, size_t done)
{
    if (f->progress != NULL)
        f->progress(f->arg, done, f->len);
}

static enum hth_err pack_document(const struct text_file *f, uint64_t line, const char *text,
                                  size_t len)
{
    char *name = hth_asprintf("%s:%" PRIu64, f->name, line);
    enum hth_err err = hth_pack_text(f->pack, name, text, len, f->why);

    hth_free(name);
    return err;
}

/* The length of the next document: whole lines, unless one is longer than a sample may be. */
static size_t document_len(const char *text, size_t len, uint64_t *lines)
{
    size_t end = 0;

    *lines = 0;
    while (end < len) {
        const char *newline = memchr(text + end, '\n', len - end);
        size_t next = newline != NULL ? (size_t)(newline - text) + 1 : len;
        bool empty = next - end <= 1 || (next - end == 2 && text[end] == '\r');
        if (next > DOCUMENT_BYTES_MAX && end > 0)
            return end;
        if (next > HTH_DOCUMENT_BYTES_MAX)
            break;
        end = next;
        ++*lines;
        if (empty && end >= DOCUMENT_BYTES_MIN)
            return end;
    }
    if (end > 0)
        return end;
    /* One line is longer than a sample: cut it between two characters. */
    end = HTH_DOCUMENT_BYTES_MAX;
    while (end > HTH_DOCUMENT_BYTES_MAX - 4 && ((uint8_t)text[end] & 0xc0) == 0x80)
        end--;
    return end;
}

static enum hth_err pack_plain(const struct text_file *f)
{
    uint64_t line = 1, lines;

    for (size_t at = 0, len; at < f->len; at += len, line += lines) {
        len = document_len(f->data + at, f->len - at, &lines);
        HTH_TRY(pack_document(f, line, f->data + at, len));
        report(f, at + len);
    }
    return HTH_OK;
}

static enum hth_err pack_row(const struct text_file *f, const struct hth_jsonl *rows)
{
    const char *text = hth_jsonl_text(rows, "text");

    if (text != NULL)
        return pack_document(f, rows->line, text, strlen(text));
    char *place = hth_asprintf("%s:%" PRIu64 ": no \"text\"", rows->name, rows->line);
    hth_pack_skip(f->pack, HTH_SKIP_BAD_ROW, place);
    hth_free(place);
    return HTH_OK;
}

static enum hth_err pack_rows(const struct text_file *f)
{
    struct hth_jsonl rows;
    enum hth_err err = HTH_OK;

    hth_jsonl_init(&rows, f->name, f->data, f->len);
    while (err == HTH_OK) {
        struct hth_why fault = {""};
        err = hth_jsonl_next(&rows, &fault);
        if (err == HTH_E_NOT_FOUND)
            break;
        if (err == HTH_OK)
            err = pack_row(f, &rows);
        else {
            hth_pack_skip(f->pack, HTH_SKIP_BAD_ROW, fault.text);
            err = HTH_OK;
        }
        report(f, rows.at);
    }
    hth_jsonl_clear(&rows);
    return err == HTH_E_NOT_FOUND ? HTH_OK : err;
}

/* Whether the name ends in .jsonl, .jsonl.gz or .jsonl.zst. */
static bool is_jsonl(const char *name)
{
    const char *at = strstr(name, ".jsonl");

    return at != NULL && (strcmp(at, ".jsonl") == 0 || strcmp(at, ".jsonl.gz") == 0 ||
                          strcmp(at, ".jsonl.zst") == 0);
}

enum hth_err hth_text_pack(struct hth_env *env, const char *path, struct hth_pack *pack,
                           hth_pack_progress_fn *progress, void *arg, struct hth_why *why)
{
    const char *slash = strrchr(path, '/');
    struct text_file f = {path, slash != NULL ? slash + 1 : path, NULL, 0, pack, progress, arg,
                          why};
    struct hth_blob *packed, *text;
    enum hth_err err = hth_file_read(env, path, HTH_TEXT_FILE_BYTES_MAX, &packed);

    if (err == HTH_E_TOO_LARGE)
        return hth_blame(why, err, "%s: more than %u bytes: split it", path,
                         HTH_TEXT_FILE_BYTES_MAX);
    if (err != HTH_OK)
        return hth_blame(why, err, "%s: %s", path, hth_err_text(err));
    err = hth_unpack(path, packed->data, packed->size, HTH_TEXT_FILE_BYTES_MAX, &text, why);
    hth_blob_unref(packed);
    if (err != HTH_OK)
        return err;
    f.data = (const char *)text->data;
    f.len = text->size;
    err = is_jsonl(f.name) ? pack_rows(&f) : pack_plain(&f);
    hth_blob_unref(text);
    return err;
}
