/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_dir.c: a folder of a model is read as written, replaced whole, and every lie named. */
#include "app/model_dir.h"
#include "core/mem.h"
#include "net/net.h"
#include "support/suite.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST 1000 /* bytes of a file */
#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

struct fixture {
    struct hth_env *env;
    char root[32], path[64];
};

static int setup(void **state)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_net_opts net = HTH_NET_OPTS_INIT;

    assert_ok(hth_net_new(&net, &f->env));
    snprintf(f->root, sizeof(f->root), "/tmp/hth-model-XXXXXX");
    assert_non_null(mkdtemp(f->root));
    snprintf(f->path, sizeof(f->path), "%s/m", f->root);
    *state = f;
    return 0;
}

static char *in(const char *folder, const char *name)
{
    return hth_asprintf("%s/%s", folder, name);
}

/* The number of entries; removes them where asked to. */
static size_t entries(const char *folder, bool drop)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    size_t count = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char *path = in(folder, entry->d_name);
        count += entry->d_name[0] != '.';
        if (drop && entry->d_name[0] != '.')
            assert_int_equal(remove(path), 0);
        hth_free(path);
    }
    if (dir != NULL)
        closedir(dir);
    return count;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    entries(f->path, true);
    entries(f->root, true);
    assert_int_equal(rmdir(f->root), 0);
    hth_net_free(f->env);
    hth_free(f);
    return 0;
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char *path = in(folder, name);
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    hth_free(path);
}

static void write_model(struct fixture *f, const char *first, const char *second)
{
    struct hth_model_dir dir = {0};
    struct hth_why why = {""};

    hth_model_dir_add_text(&dir, "a.txt", first);
    hth_model_dir_add_text(&dir, second, "b");
    assert_ok(hth_model_dir_write(f->env, &dir, f->path, &why));
    hth_model_dir_clear(&dir);
}

TEST_WITH(a_folder_is_read_as_written, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_model_dir dir;
    struct hth_why why = {""};

    write_model(f, "first", "b.txt");
    assert_ok(hth_model_dir_read(f->env, f->path, MOST, &dir, &why));
    assert_int_equal(dir.count, 2);
    assert_memory_equal(hth_model_dir_find(&dir, "a.txt")->data, "first", 5);
    assert_null(hth_model_dir_find(&dir, "sha256sums"));
    hth_model_dir_clear(&dir);

    write_model(f, "other", "c.txt"); /* in its place, with nothing of it */
    assert_ok(hth_model_dir_read(f->env, f->path, MOST, &dir, &why));
    assert_memory_equal(hth_model_dir_find(&dir, "a.txt")->data, "other", 5);
    assert_null(hth_model_dir_find(&dir, "b.txt"));
    hth_model_dir_clear(&dir);
    assert_int_equal(entries(f->path, false), 3);
    assert_int_equal(entries(f->root, false), 1); /* nothing is left beside it */
}

TEST_WITH(another_folder_is_not_replaced, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_model_dir dir = {0};
    struct hth_why why = {""};

    write_model(f, "first", "b.txt");
    write_file(f->path, "a.txt", "changed by hand");
    hth_model_dir_add_text(&dir, "a.txt", "new");
    assert_err(HTH_E_USAGE, hth_model_dir_write(f->env, &dir, f->path, &why));
    assert_non_null(strstr(why.text, "it is no whole export: give another name"));
    hth_model_dir_clear(&dir);
    assert_int_equal(entries(f->path, false), 3);
    assert_int_equal(entries(f->root, false), 1);
}

TEST_WITH(large_files_are_refused, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_model_dir dir;
    struct hth_why why = {""};

    write_model(f, "first", "b.txt");
    assert_ok(hth_model_dir_read(f->env, f->path, 5, &dir, &why));
    hth_model_dir_clear(&dir);
    assert_err(HTH_E_TOO_LARGE, hth_model_dir_read(f->env, f->path, 4, &dir, &why));
    assert_non_null(strstr(why.text, "/m/a.txt: larger than the limit"));
    assert_int_equal(dir.count, 0);
}

TEST_WITH(files_that_changed_are_named, setup, teardown)
{
    static const char *const texts[] = {"firs", "First", ""};
    struct fixture *f = *state;
    struct hth_model_dir dir;
    struct hth_why why = {""};
    char *path;

    write_model(f, "first", "b.txt");
    for (size_t i = 0; i < HTH_ARRAY_LEN(texts); i++) {
        write_file(f->path, "a.txt", texts[i]);
        why.text[0] = '\0';
        assert_err(HTH_E_CORRUPT, hth_model_dir_read(f->env, f->path, MOST, &dir, &why));
        assert_non_null(strstr(why.text, "/m/a.txt is not the file that sha256sums lists"));
        assert_int_equal(dir.count, 0);
    }
    path = in(f->path, "a.txt");
    assert_int_equal(unlink(path), 0);
    hth_free(path);
    why.text[0] = '\0';
    assert_err(HTH_E_NO_FILE, hth_model_dir_read(f->env, f->path, MOST, &dir, &why));
    assert_non_null(strstr(why.text, "/m/a.txt: no such file: get it again"));
    why.text[0] = '\0';
    assert_err(HTH_E_NO_FILE, hth_model_dir_read(f->env, f->root, MOST, &dir, &why));
    assert_non_null(strstr(why.text, "expected a folder that hearth export wrote"));
}

TEST(lies_of_a_list_are_named)
{
    static const struct {
        const char *text;
        enum hth_err err;
        const char *why;
    } bad[] = {
        {HASH "  a\nshort\n", HTH_E_MALFORMED, "s: line 2: the data can't be parsed"},
        {HASH "  ../a\n", HTH_E_MALFORMED, "line 1"},
        {HASH "  .a\n", HTH_E_MALFORMED, "line 1"},
        {HASH "  /etc/passwd\n", HTH_E_MALFORMED, "line 1"},
        {HASH "  \n", HTH_E_MALFORMED, "line 1"},
        {"x" HASH " a\n", HTH_E_MALFORMED, "line 1"},
        {HASH "  a\n" HASH "  a\n", HTH_E_DUPLICATE, "line 2: the same thing was given twice"},
        {HASH "  " HASH "\n", HTH_E_MALFORMED, "line 1"}, /* a name of 64 bytes */
    };
    struct hth_model_dir dir;
    char many[20 * 70] = "";

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        struct hth_why why = {""};
        assert_err(bad[i].err, hth_model_dir_parse("s", (const uint8_t *)bad[i].text,
                                                   strlen(bad[i].text), &dir, &why));
        if (strstr(why.text, bad[i].why) == NULL)
            fail_msg("'%s', not '%s'", why.text, bad[i].why);
    }
    for (size_t i = 0; i <= HTH_MODEL_DIR_FILES_MAX; i++)
        snprintf(many + strlen(many), 70, HASH "  %c\n", (char)('a' + i));
    assert_err(HTH_E_TOO_LARGE,
               hth_model_dir_parse("s", (const uint8_t *)many, strlen(many), &dir, NULL));
    assert_ok(hth_model_dir_parse("s", (const uint8_t *)HASH "  a\n" HASH " *b", 135, &dir, NULL));
    assert_int_equal(dir.count, 2);
    assert_string_equal(dir.file[1].name, "b");
}
