/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines beside a progress line, as a terminal of any width shows them: the test reads the other end
 * of a pseudo terminal and keeps the screen as a terminal would. And lines as JSON.
 */
#define _GNU_SOURCE

#include "cli/cli.h"
#include "support/suite.h"

#include <jansson.h>
#include <pty.h>
#include <stdlib.h>
#include <unistd.h>

#define ROWS     40
#define COLS_MAX 200
#define PROGRESS                                                                                   \
    "step 17 of 4000  1234 samples/s  loss 1.234  experts live 16  12 MB sent  99 s left"
#define LONG "a log line of seventy bytes, which wraps on any terminal that is narrow"

struct screen {
    int cols, row, col;
    char text[ROWS][COLS_MAX + 1];
};

/* A character in the last column wraps when the next one comes. */
static void show(struct screen *s, char c)
{
    if (c == '\r') {
        s->col = 0;
    } else if (c == '\n') {
        s->row++;
    } else {
        if (s->col == s->cols) {
            s->row++;
            s->col = 0;
        }
        assert_in_range(s->row, 0, ROWS - 1);
        s->text[s->row][s->col++] = c;
    }
}

static void trim(char *row)
{
    for (size_t len = strlen(row); len > 0 && row[len - 1] == ' ';)
        row[--len] = '\0';
}

/* Calls a program with standard output and error on a terminal. */
static void capture(struct screen *s, int cols, void (*program)(void))
{
    struct winsize size = {.ws_row = ROWS, .ws_col = (unsigned short)cols};
    int master, slave, out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    char bytes[8192];
    ssize_t got;
    fflush(NULL);
    assert_int_equal(openpty(&master, &slave, NULL, NULL, &size), 0);
    dup2(slave, STDOUT_FILENO);
    dup2(slave, STDERR_FILENO);
    program();
    fflush(NULL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    close(slave);
    memset(s, 0, sizeof(*s));
    s->cols = cols > 0 ? cols : 80;
    while ((got = read(master, bytes, sizeof(bytes))) > 0)
        for (ssize_t i = 0; i < got; i++)
            show(s, bytes[i]);
    close(master);
    for (int i = 0; i < ROWS; i++)
        trim(s->text[i]);
}

/* The next rows of the screen show this line alone. */
static void expect(const struct screen *s, int *row, const char *line)
{
    for (size_t at = 0; at == 0 || at < strlen(line); at += (size_t)s->cols) {
        char want[COLS_MAX + 1];
        snprintf(want, sizeof(want), "%.*s", s->cols, line + at);
        trim(want);
        assert_string_equal(s->text[(*row)++], want);
    }
}

static void expect_progress(const struct screen *s, int *row, const char *line)
{
    char want[COLS_MAX + 1];
    snprintf(want, sizeof(want), "%.*s", s->cols - 3, line);
    trim(want);
    assert_string_equal(s->text[(*row)++], want);
}

static void mixed(void)
{
    hth_say_progress_end(); /* of the terminal before */
    assert_true(hth_say_stands());
    hth_say_progress("%s", PROGRESS);
    hth_say_log(NULL, LONG "\n", sizeof(LONG));
    hth_say("test: %d", 9);
    hth_say_progress("%s", "step 18");
    hth_say_note("news");
    hth_cli_say_error("bad");
    hth_say_progress("%s", PROGRESS);
}

static void ended(void)
{
    mixed();
    hth_say_progress_end();
    hth_say_progress_end();
    hth_say("the end");
}

TEST(test_lines_and_progress_keep_apart_at_any_width)
{
    static const int widths[] = {10, 40, 71, 72, 85, 86, 87, 200, 0};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(widths); i++) {
        struct screen s;
        int row = 0;
        capture(&s, widths[i], mixed);
        expect(&s, &row, LONG);
        expect(&s, &row, "test: 9");
        expect(&s, &row, "news");
        expect(&s, &row, "hearth: bad");
        expect_progress(&s, &row, PROGRESS);
        assert_int_equal(s.row, row - 1);
        capture(&s, widths[i], ended);
        expect(&s, &(int){row - 1}, "the end");
        assert_string_equal(s.text[row], "");
    }
}

/* A program that is interrupted echoes ^C behind the progress line. */
static void interrupted(void)
{
    hth_say_progress("step 18");
    fputs("^C", stderr);
    hth_say_note("stopping");
}

TEST(test_an_echo_behind_the_progress_line_goes_with_it)
{
    struct screen s;
    (void)state;
    hth_say_progress_end();
    capture(&s, 80, interrupted);
    assert_string_equal(s.text[0], "stopping");
    assert_string_equal(s.text[1], "step 18");
}

static void in_json(void)
{
    assert_false(hth_say_stands());
    hth_say("  serving \"%d\"", 8);
    hth_say_note("waiting");
    hth_say_progress("step 1");
    hth_say_progress_end();
    hth_cli_say_error("no \\ text");
}

TEST(test_every_line_is_an_object_in_json)
{
    static const struct {
        const char *level, *msg;
    } want[] = {{"info", "serving \"8\""},
                {"info", "waiting"},
                {"info", "step 1"},
                {"error", "no \\ text"}};
    struct screen s;
    (void)state;
    hth_say_json(true);
    hth_say_node("n7");
    capture(&s, COLS_MAX, in_json);
    hth_say_json(false);
    for (size_t i = 0; i < HTH_ARRAY_LEN(want); i++) {
        json_error_t error;
        json_t *line = json_loads(s.text[i], JSON_REJECT_DUPLICATES, &error);
        if (line == NULL)
            fail_msg("%s in %s", error.text, s.text[i]);
        assert_string_equal(json_string_value(json_object_get(line, "level")), want[i].level);
        assert_string_equal(json_string_value(json_object_get(line, "msg")), want[i].msg);
        assert_string_equal(json_string_value(json_object_get(line, "sub")), "app");
        assert_string_equal(json_string_value(json_object_get(line, "node")), "n7");
        const char *time = json_string_value(json_object_get(line, "time"));
        assert_non_null(time);
        assert_int_equal(strlen(time), strlen("2026-11-27T02:05:07.123Z"));
        json_decref(line);
    }
    assert_int_equal(s.row, HTH_ARRAY_LEN(want));
}

static void to_a_file(void)
{
    char path[] = "/tmp/hearth-say-XXXXXX", text[256];
    int fd = mkstemp(path), err = dup(STDERR_FILENO);
    assert_true(fd >= 0);
    dup2(fd, STDERR_FILENO);
    assert_false(hth_say_stands());
    hth_say_progress("step 1");
    hth_say_note("news");
    hth_say_progress("step 2");
    dup2(err, STDERR_FILENO);
    close(err);
    ssize_t got = pread(fd, text, sizeof(text) - 1, 0);
    close(fd);
    unlink(path);
    text[HTH_MAX(got, (ssize_t)0)] = '\0';
    assert_string_equal(text, "step 1\nnews\nstep 2\n");
}

TEST(test_progress_in_a_file_is_lines)
{
    (void)state;
    to_a_file();
}
