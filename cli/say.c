/* SPDX-License-Identifier: Apache-2.0 */
/* say.c: lines as text or JSON, and one progress line that gives way to them. */
#include "cli/say.h"

#include "core/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define COLUMNS_DEFAULT 80
#define ECHO_COLUMNS    3 /* for the ^C of an interrupt, and the last column */
#define TEXT_MAX        HTH_LOG_LINE_MAX

/* Standard error's lock guards `standing`. */
static struct {
    bool json;
    char node[24];
    char standing[TEXT_MAX]; /* the progress line, whole; "": none */
} say;

void hth_say_json(bool on)
{
    say.json = on;
}

void hth_say_node(const char *name)
{
    snprintf(say.node, sizeof(say.node), "%s", name);
}

bool hth_say_stands(void)
{
    return !say.json && isatty(STDERR_FILENO) == 1;
}

/* ---- the progress line --------------------------------------------------------------------- */

static int columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col <= ECHO_COLUMNS)
        return COLUMNS_DEFAULT;
    return size.ws_col;
}

/* Blanks overwrite the whole line, also what the terminal echoed behind it. The last column stays
 * free, because some terminals wrap as soon as it is written. */
static void erase(void)
{
    fprintf(stderr, "\r%*s\r", columns() - 1, "");
}

static void draw(void)
{
    erase();
    fprintf(stderr, "%.*s", columns() - ECHO_COLUMNS, say.standing);
    fflush(stderr);
}

void hth_say_progress_end(void)
{
    flockfile(stderr);
    if (say.standing[0] != '\0')
        erase();
    fflush(stderr);
    say.standing[0] = '\0';
    funlockfile(stderr);
}

/* ---- lines --------------------------------------------------------------------------------- */

/* Writes a whole line; the progress line, if it stands on the same terminal, gives way. */
static void put(FILE *to, const char *line, size_t len)
{
    flockfile(stderr);
    bool gives_way = say.standing[0] != '\0' && (to == stderr || isatty(fileno(to)) == 1);
    if (gives_way) {
        erase();
        fflush(stderr);
    }
    fwrite(line, 1, len, to);
    fflush(to);
    if (gives_way)
        draw();
    funlockfile(stderr);
}

static int64_t wall_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * HTH_US_PER_S + now.tv_nsec / 1000;
}

static HTH_PRINTF(4, 0) void put_text(FILE *to, enum hth_log_level level, const char *before,
                                      const char *fmt, va_list args)
{
    char text[TEXT_MAX], line[HTH_LOG_LINE_MAX];
    if (say.json) {
        vsnprintf(text, sizeof(text), fmt, args);
        size_t len =
            hth_log_json(line, wall_us(), level, HTH_SUB_APP, say.node, text + strspn(text, " \n"));
        put(to, line, len);
        return;
    }
    int at = snprintf(text, sizeof(text), "%s", before);
    int len = vsnprintf(text + at, sizeof(text) - (size_t)at, fmt, args) + at;
    if (len < at)
        return;
    len = HTH_MIN(len, (int)sizeof(text) - 2);
    text[len] = '\n';
    put(to, text, (size_t)len + 1);
}

void hth_say(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put_text(stdout, HTH_INFO, "", fmt, args);
    va_end(args);
}

void hth_say_note(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put_text(stderr, HTH_INFO, "", fmt, args);
    va_end(args);
}

void hth_cli_say_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put_text(stderr, HTH_ERROR, "hearth: ", fmt, args);
    va_end(args);
}

void hth_say_log(void *arg, const char *line, size_t len)
{
    (void)arg;
    put(stderr, line, len);
}

void hth_say_progress(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (hth_say_stands()) {
        flockfile(stderr);
        vsnprintf(say.standing, sizeof(say.standing), fmt, args);
        draw();
        funlockfile(stderr);
    } else {
        put_text(stderr, HTH_INFO, "", fmt, args);
    }
    va_end(args);
}
