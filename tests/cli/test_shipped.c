/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shipped.c: files are found beside the program, in ../share/hearth, and in the source tree.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/shipped.h"
#include "core/mem.h"
#include "support/suite.h"

#define NAME "benchmarks/torch_ffn.py"

static void make(const char *root, const char *folder)
{
    char *path = hth_asprintf("%s/%s", root, folder);
    assert_int_equal(mkdir(path, 0700), 0);
    hth_free(path);
}

/* Makes or removes the file below a folder. */
static void put(const char *root, const char *folder, bool there)
{
    char *path = hth_asprintf("%s/%s/" NAME, root, folder);
    if (there) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        assert_int_equal(fclose(file), 0);
    } else {
        assert_int_equal(unlink(path), 0);
    }
    hth_free(path);
}

static void assert_found(const char *root, const char *where)
{
    char *program = hth_asprintf("%s/bin", root), *found = hth_shipped_find_from(program, NAME);
    char *want = hth_asprintf("%s/%s" NAME, root, where);
    assert_string_equal(found, want);
    hth_free(want);
    hth_free(found);
    hth_free(program);
}

TEST(file_beside_the_program_comes_first)
{
    static const char *const folders[] = {"bin", "bin/benchmarks", "share", "share/hearth",
                                          "share/hearth/benchmarks"};
    char root[] = "/tmp/hearth-share-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < HTH_ARRAY_LEN(folders); i++)
        make(root, folders[i]);
    put(root, "bin", true);
    put(root, "share/hearth", true);
    assert_found(root, "bin/");
    put(root, "bin", false);
    assert_found(root, "bin/../share/hearth/");
    put(root, "share/hearth", false);
    for (size_t i = HTH_ARRAY_LEN(folders); i > 0; i--) {
        char *path = hth_asprintf("%s/%s", root, folders[i - 1]);
        assert_int_equal(rmdir(path), 0);
        hth_free(path);
    }
    assert_int_equal(rmdir(root), 0);
}

/* Every file that the program asks for is in the source tree under its installed name. */
TEST(shipped_files_are_in_the_source_tree)
{
    static const char *const names[] = {NAME, "benchmarks/kernels/torch_block.py",
                                        "scenarios/files/faults.yaml"};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        char *path = hth_shipped_find(names[i]);
        assert_int_equal(access(path, R_OK), 0);
        hth_free(path);
    }
    char *none = hth_shipped_find("no/such.file");
    assert_non_null(strstr(none, "/no/such.file"));
    hth_free(none);
}
