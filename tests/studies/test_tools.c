/* SPDX-License-Identifier: Apache-2.0 */
/* test_tools.c: the tools of the studies: progress, and files that are whole or unchanged. */
#include "core/mem.h"
#include "studies/tools.h"
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- progress ------------------------------------------------------------------------------ */

/* Return the text that `saying` writes to standard error, which is a file. */
static char *said(void (*saying)(struct hth_sim_progress *p), struct hth_sim_progress *p)
{
    char *text = hth_new_array(char, 4096);
    FILE *file = tmpfile();
    assert_non_null(file);
    int kept = dup(STDERR_FILENO);
    fflush(stderr);
    assert_true(kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    saying(p);
    fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(file);
    assert_true(fread(text, 1, 4095, file) < 4095);
    fclose(file);
    return text;
}

static void age(struct hth_sim_progress *p, int64_t seconds)
{
    p->shown_us = hth_sim_clock_us() - seconds * HTH_US_PER_S;
}

static void say_in_a_log(struct hth_sim_progress *p)
{
    hth_sim_progress_begin(p);
    assert_false(p->tty);
    hth_sim_progress_say(p, "too early");
    for (unsigned i = 1; i <= 3; i++) {
        age(p, 20); /* and this test may be delayed by ten */
        hth_sim_progress_say(p, "too soon");
        age(p, 30);
        hth_sim_progress_say(p, "%u of 3 runs", i);
        hth_sim_progress_say(p, "too soon");
    }
    hth_sim_progress_wipe(p);
}

static void say_on_a_terminal(struct hth_sim_progress *p)
{
    hth_sim_progress_begin(p);
    p->tty = true;
    age(p, -20);
    hth_sim_progress_say(p, "too early");
    age(p, 1);
    hth_sim_progress_say(p, "1 of 2");
    age(p, -20);
    hth_sim_progress_say(p, "too soon");
    hth_sim_progress_wipe(p);
}

/* A log gets whole lines, one in half a minute, without control characters. */
TEST(log_gets_whole_lines_of_progress)
{
    (void)state;
    struct hth_sim_progress p;
    char *text = said(say_in_a_log, &p);
    assert_string_equal(text, "1 of 3 runs\n2 of 3 runs\n3 of 3 runs\n");
    hth_free(text);
}

TEST(terminal_gets_one_line_of_progress)
{
    (void)state;
    struct hth_sim_progress p;
    char *text = said(say_on_a_terminal, &p);
    assert_string_equal(text, "\r1 of 2 \033[K\r\033[K");
    hth_free(text);
    p.begun_us = hth_sim_clock_us() - 60 * HTH_US_PER_S;
    assert_float_equal(hth_sim_progress_left_s(&p, 15, 20), 20, 1);
    assert_float_equal(hth_sim_progress_left_s(&p, 0, 20), 0, 0);
}

/* ---- files ---------------------------------------------------------------------------------- */

static char dir[] = "/tmp/hth-tools-XXXXXX";

/* A file above this process's size limit stands for a full disk: the error has the reason, the
 * earlier file is unchanged, and no part of the new one is left. */
static enum hth_err finish_too_large(const char *sub)
{
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){.rlim_cur = 20000, .rlim_max = limit.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    FILE *f = hth_sim_create(sub, "t.csv");
    assert_non_null(f);
    for (int i = 0; i < 10000; i++)
        fputs("more\n", f);
    enum hth_err err = hth_sim_finish(f, sub, "t.csv");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    return err;
}

static void finish_and_say(struct hth_sim_progress *p)
{
    char *sub = hth_strdup(dir);
    (void)p;
    assert_err(HTH_E_IO, finish_too_large(sub));
    hth_free(sub);
}

TEST(failed_write_leaves_the_old_file)
{
    (void)state;
    char *sub = hth_strdup(dir);
    FILE *f = hth_sim_create(sub, "t.csv");
    assert_non_null(f);
    fputs("before\n", f);
    assert_ok(hth_sim_finish(f, sub, "t.csv"));
    char *text = said(finish_and_say, NULL);
    char *path = hth_asprintf("%s/t.csv can't be written: File too large; it was removed", sub);
    assert_non_null(strstr(text, path));
    hth_free(path);
    hth_free(text);
    char *whole = hth_asprintf("%s/t.csv", sub), *part = hth_asprintf("%s/t.csv.part", sub);
    char line[16] = "";
    f = fopen(whole, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    assert_null(fgets(line + 8, 8, f));
    fclose(f);
    assert_string_equal(line, "before\n");
    assert_int_not_equal(access(part, F_OK), 0);
    hth_free(whole);
    hth_free(part);
    hth_free(sub);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state)
{
    (void)state;
    char *path = hth_asprintf("%s/t.csv", dir);
    (void)unlink(path);
    hth_free(path);
    return rmdir(dir);
}

/* As under nohup: Ctrl-C at the terminal is not for this process. */
TEST(ignored_interrupt_stays_ignored)
{
    (void)state;
    void (*before)(int) = signal(SIGINT, SIG_IGN);
    assert_ptr_not_equal(before, SIG_ERR);
    hth_sim_heed_interrupts();
    raise(SIGINT);
    assert_false(hth_sim_interrupted());
    signal(SIGINT, SIG_DFL);
    hth_sim_heed_interrupts();
    raise(SIGINT);
    assert_true(hth_sim_interrupted());
    signal(SIGINT, before);
}

SUITE_WITH(make_dir, remove_dir)
