/* SPDX-License-Identifier: Apache-2.0 */
/* test_shard.c: samples come back as written, and hostile tars are refused by name. */
#include <archive.h>
#include <archive_entry.h>

#include "core/mem.h"
#include "data/shard.h"
#include "support/suite.h"

static struct hth_bytes bytes(const char *text)
{
    return (struct hth_bytes){(const uint8_t *)text, strlen(text)};
}

static struct hth_blob *two_samples(void)
{
    struct hth_shard_sample a = {.key = "0001"}, b = {.key = "0002"};
    struct hth_shard_writer *w;
    struct hth_blob *out;
    a.file[HTH_SHARD_TXT] = bytes("a cat");
    a.file[HTH_SHARD_PNG] = bytes("picture");
    b.file[HTH_SHARD_TXT] = bytes("");
    b.file[HTH_SHARD_CLS] = bytes("7");
    assert_ok(hth_shard_writer_new(&w));
    assert_ok(hth_shard_add(w, &a));
    assert_ok(hth_shard_add(w, &b));
    assert_ok(hth_shard_finish(w, &out));
    hth_shard_writer_free(w);
    return out;
}

TEST(samples_come_back_as_written)
{
    (void)state;
    struct hth_blob *blob = two_samples(), *again = two_samples();
    struct hth_shard_reader *r;
    struct hth_shard_sample s;
    struct hth_why why = {""};
    assert_int_equal(blob->size, again->size);
    assert_memory_equal(blob->data, again->data, blob->size);
    assert_ok(hth_shard_open("s", blob->data, blob->size, &r));
    assert_ok(hth_shard_next(r, &s, &why));
    assert_string_equal(s.key, "0001");
    assert_int_equal(s.file[HTH_SHARD_TXT].len, 5);
    assert_memory_equal(s.file[HTH_SHARD_TXT].data, "a cat", 5);
    assert_memory_equal(s.file[HTH_SHARD_PNG].data, "picture", 7);
    assert_null(s.file[HTH_SHARD_CLS].data);
    assert_ok(hth_shard_next(r, &s, &why));
    assert_string_equal(s.key, "0002");
    assert_non_null(s.file[HTH_SHARD_TXT].data);
    assert_int_equal(s.file[HTH_SHARD_TXT].len, 0);
    assert_memory_equal(s.file[HTH_SHARD_CLS].data, "7", 1);
    assert_err(HTH_E_NOT_FOUND, hth_shard_next(r, &s, &why));
    assert_err(HTH_E_NOT_FOUND, hth_shard_next(r, &s, &why));
    hth_shard_close(r);
    hth_blob_unref(blob);
    hth_blob_unref(again);
}

/* Reads all of it; the first error, or OK at the end. */
static enum hth_err read_all(const void *data, size_t len, struct hth_why *why)
{
    struct hth_shard_reader *r;
    struct hth_shard_sample s;
    enum hth_err err;
    assert_ok(hth_shard_open("s.tar.zst", data, len, &r));
    do
        err = hth_shard_next(r, &s, why);
    while (err == HTH_OK);
    hth_shard_close(r);
    return err == HTH_E_NOT_FOUND ? HTH_OK : err;
}

struct odd {
    const char *name, *link;
    unsigned type;
    uint64_t zeros;
    const char *second; /* another empty file */
    enum hth_err err;
    const char *why;
};

/* A tar with one file of `zeros` bytes. */
static size_t make_odd(const struct odd *o, uint8_t *out, size_t room)
{
    static uint8_t zeros[1 << 20];
    struct archive *a = archive_write_new();
    size_t used = 0;
    archive_write_set_format_pax_restricted(a);
    archive_write_add_filter_zstd(a);
    archive_write_set_bytes_in_last_block(a, 1);
    assert_int_equal(archive_write_open_memory(a, out, room, &used), ARCHIVE_OK);
    for (int i = 0; i < (o->second != NULL ? 2 : 1); i++) {
        struct archive_entry *e = archive_entry_new();
        archive_entry_set_pathname(e, i == 0 ? o->name : o->second);
        archive_entry_set_filetype(e, o->type);
        archive_entry_set_perm(e, 0644);
        if (o->link != NULL && o->type == AE_IFLNK)
            archive_entry_set_symlink(e, o->link);
        else if (o->link != NULL)
            archive_entry_set_hardlink(e, o->link);
        archive_entry_set_size(e, i == 0 ? (la_int64_t)o->zeros : 0);
        assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
        for (uint64_t at = 0; i == 0 && at < o->zeros; at += sizeof(zeros))
            archive_write_data(a, zeros, HTH_MIN(o->zeros - at, (uint64_t)sizeof(zeros)));
        archive_entry_free(e);
    }
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_write_free(a);
    return used;
}

TEST(hostile_tars_are_refused)
{
    (void)state;
    static const struct odd odd[] = {
        {"../0001.txt", NULL, AE_IFREG, 5, NULL, HTH_E_MALFORMED, "'../0001.txt'"},
        {"/etc/0001.txt", NULL, AE_IFREG, 5, NULL, HTH_E_MALFORMED, "without folders"},
        {"a/0001.txt", NULL, AE_IFREG, 5, NULL, HTH_E_MALFORMED, "without folders"},
        {"0001.txt", "/etc/passwd", AE_IFLNK, 0, NULL, HTH_E_MALFORMED, "is a link"},
        {"0001.txt", "0002.txt", AE_IFREG, 0, NULL, HTH_E_MALFORMED, "is a link"},
        {"0001.txt", NULL, AE_IFDIR, 0, NULL, HTH_E_MALFORMED, "is a link, folder"},
        {"0001.txt", NULL, AE_IFIFO, 0, NULL, HTH_E_MALFORMED, "is a link, folder"},
        {"0001.exe", NULL, AE_IFREG, 5, NULL, HTH_E_MALFORMED, "expected the ending"},
        {"0001", NULL, AE_IFREG, 5, NULL, HTH_E_MALFORMED, "is named '0001'"},
        {"0001.txt", NULL, AE_IFREG, 5, "0001.txt", HTH_E_DUPLICATE, "is there twice"},
        {"0123456789012345678901234567890123456789012345678901234567890123.txt", NULL, AE_IFREG, 5,
         NULL, HTH_E_MALFORMED, "is named"},
        {"0001.png", NULL, AE_IFREG, HTH_SHARD_UNPACKED_MAX + 1, NULL, HTH_E_TOO_LARGE,
         "unpacks to more than"},
        {"0001.png", NULL, AE_IFREG, 1000, NULL, HTH_OK, ""},
    };
    size_t room = 1u << 20;
    uint8_t *tar = hth_calloc(room, 1);
    for (size_t i = 0; i < HTH_ARRAY_LEN(odd); i++) {
        struct hth_why why = {""};
        size_t len = make_odd(&odd[i], tar, room);
        enum hth_err err = read_all(tar, len, &why);
        if (err != odd[i].err || strstr(why.text, odd[i].why) == NULL)
            fail_msg("%s gave %s: '%s'", odd[i].name, hth_err_name(err), why.text);
    }
    hth_free(tar);
}

TEST(half_files_and_wrong_magic_are_refused)
{
    (void)state;
    struct hth_blob *blob = two_samples();
    struct hth_why why = {""};
    assert_err(HTH_E_CORRUPT, read_all(blob->data, blob->size / 2, &why));
    assert_non_null(strstr(why.text, "s.tar.zst"));
    blob->data[0] ^= 1;
    why.text[0] = '\0';
    assert_err(HTH_E_CORRUPT, read_all(blob->data, blob->size, &why));
    hth_blob_unref(blob);
}

TEST(texts_are_unpacked_within_a_limit)
{
    (void)state;
    struct hth_blob *blob = two_samples(), *out; /* a tar in zstd: any content will do */
    struct hth_why why = {""};
    assert_ok(hth_unpack("t", "plain", 5, 5, &out, &why));
    assert_int_equal(out->size, 5);
    assert_memory_equal(out->data, "plain", 5);
    hth_blob_unref(out);
    assert_ok(hth_unpack("t", "", 0, 5, &out, &why));
    assert_int_equal(out->size, 0);
    hth_blob_unref(out);
    assert_err(HTH_E_TOO_LARGE, hth_unpack("t", "plain", 5, 4, &out, &why));
    assert_ok(hth_unpack("t", blob->data, blob->size, 1u << 20, &out, &why));
    assert_true(out->size > 512);
    hth_blob_unref(out);
    assert_err(HTH_E_CORRUPT, hth_unpack("t", blob->data, blob->size / 2, 1u << 20, &out, &why));
    hth_blob_unref(blob);
}
