/* SPDX-License-Identifier: Apache-2.0 */
/* test_walk.c: a folder's files are listed by path, and a bar shows rate and time left. */
#include "cli/bar.h"
#include "cli/walk.h"
#include "core/mem.h"
#include "support/suite.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Makes a file, a folder (name ends in /), or a link to a folder (name ends in @). */
static void make(const char *root, const char *name)
{
    char *path = hth_asprintf("%s/%s", root, name);
    size_t end = strlen(path) - 1;
    FILE *f;
    if (path[end] == '/' || path[end] == '@') {
        bool link = path[end] == '@';
        path[end] = '\0';
        assert_int_equal(link ? symlink("..", path) : mkdir(path, 0700), 0);
    } else {
        f = fopen(path, "w");
        assert_non_null(f);
        fclose(f);
    }
    hth_free(path);
}

TEST(files_are_listed_by_path)
{
    (void)state;
    static const char *const names[] = {"b.png",   "a/",      "a/2.png", "a/1.png",
                                        "a/loop@", ".hidden", "a-1.png"};
    static const char *const want[] = {"a-1.png", "a/1.png", "a/2.png", "b.png"};
    char root[] = "/tmp/hth_walk_XXXXXX";
    struct hth_walk walk;
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++)
        make(root, names[i]);
    assert_ok(hth_walk_list(root, 100, &walk));
    assert_int_equal(walk.count, HTH_ARRAY_LEN(want));
    for (size_t i = 0; i < walk.count; i++)
        assert_string_equal(walk.files[i], want[i]);
    hth_walk_clear(&walk);
    assert_ok(hth_walk_list(root, 4, &walk)); /* as many as there are */
    hth_walk_clear(&walk);
    assert_err(HTH_E_TOO_LARGE, hth_walk_list(root, 3, &walk));
    char *command = hth_asprintf("rm -r %s", root);
    assert_int_equal(system(command), 0);
    hth_free(command);
    assert_err(HTH_E_NO_FILE, hth_walk_list(root, 100, &walk));
}

TEST(folders_too_deep_are_refused)
{
    (void)state;
    char root[] = "/tmp/hth_walk_XXXXXX", path[256] = "";
    struct hth_walk walk;
    assert_non_null(mkdtemp(root));
    for (int i = 0; i <= HTH_WALK_DEPTH_MAX; i++) {
        strcat(path, "d/");
        make(root, path);
    }
    assert_err(HTH_E_TOO_LARGE, hth_walk_list(root, 100, &walk));
    char *command = hth_asprintf("rm -r %s", root);
    assert_int_equal(system(command), 0);
    hth_free(command);
}

TEST(a_bar_shows_rate_and_time_left)
{
    (void)state;
    char text[160];
    assert_string_equal(hth_bar_text("packing", 1200, 3600, 2 * HTH_US_PER_S, text),
                        "packing  [######..............]  1,200 of 3,600  600/s  4.0 s left");
    assert_string_equal(hth_bar_text("packing", 0, 0, 0, text),
                        "packing  [....................]  0 of 0  0/s  0.0 s left");
}
