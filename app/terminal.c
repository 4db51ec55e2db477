/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.c: termios, and the few codes of ECMA-48 and xterm that all terminals have. */
#include "app/terminal.h"

#include "core/mem.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static struct {
    bool begun, keys;
    struct termios before;
    int stderr_before; /* -1: standard error was left alone */
} terminal = {.stderr_before = -1};

bool hth_terminal_there(void)
{
    const char *type = getenv("TERM");
    return isatty(STDOUT_FILENO) == 1 && type != NULL && type[0] != '\0' &&
           strcmp(type, "dumb") != 0;
}

bool hth_terminal_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        const char *value = getenv(names[i]);
        if (value == NULL || value[0] == '\0')
            continue;
        const char *set = strchr(value, '.');
        return set != NULL &&
               (strncasecmp(set, ".utf-8", 6) == 0 || strncasecmp(set, ".utf8", 5) == 0);
    }
    return false;
}

bool hth_terminal_colors(void)
{
    const char *no = getenv("NO_COLOR");
    return no == NULL || no[0] == '\0';
}

bool hth_terminal_size(unsigned *columns, unsigned *rows)
{
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    *columns = known ? size.ws_col : 0;
    *rows = known ? size.ws_row : 0;
    return known;
}

static void write_all(const char *text)
{
    size_t len = strlen(text);
    while (len > 0) {
        ssize_t n = write(STDOUT_FILENO, text, len);
        if (n <= 0)
            return; /* the terminal is gone: SIGHUP says so, too */
        text += n;
        len -= (size_t)n;
    }
}

static void take_keys(void)
{
    struct termios raw;
    if (tcgetattr(STDIN_FILENO, &terminal.before) != 0)
        return;
    raw = terminal.before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VSUSP] = _POSIX_VDISABLE;
    raw.c_cc[VMIN] = 0; /* a read never waits */
    raw.c_cc[VTIME] = 0;
    terminal.keys = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

void hth_terminal_begin(void)
{
    terminal.begun = true;
    atexit(hth_terminal_end);
    take_keys();
    write_all("\x1b[?1049h\x1b[?25l"); /* the other screen, without a cursor */
    if (isatty(STDERR_FILENO) == 1) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        terminal.stderr_before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        if (null >= 0)
            dup2(null, STDERR_FILENO);
        close(null);
    }
}

void hth_terminal_end(void)
{
    if (!terminal.begun)
        return;
    terminal.begun = false;
    write_all("\x1b[?25h\x1b[?1049l");
    if (terminal.keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal.before);
    if (terminal.stderr_before >= 0) {
        dup2(terminal.stderr_before, STDERR_FILENO);
        close(terminal.stderr_before);
    }
}

/* Each line erases what stood behind it, and the last what stood below. */
void hth_terminal_show(const char *frame)
{
    size_t lines = 1, at;
    for (const char *c = frame; *c != '\0'; c++)
        lines += *c == '\n';
    char *out = hth_calloc(strlen(frame) + 5 * lines + 16, 1);
    memcpy(out, "\x1b[H", 3);
    at = 3;
    for (; *frame != '\0'; frame++) {
        if (*frame == '\n') {
            memcpy(out + at, "\x1b[K\r\n", 5);
            at += 5;
        } else {
            out[at++] = *frame;
        }
    }
    memcpy(out + at, "\x1b[K\x1b[J", 6);
    write_all(out);
    hth_free(out);
}

static bool next_byte(char *c)
{
    return terminal.keys && read(STDIN_FILENO, c, 1) == 1;
}

bool hth_terminal_key(char *key, bool *escape)
{
    char c;
    *escape = false;
    if (!next_byte(key))
        return false;
    if (*key != '\x1b' || !next_byte(&c))
        return true; /* a letter, or the Esc key alone */
    *escape = true;
    if (c != '[' && c != 'O')
        return true; /* Alt and a letter: no key of ours */
    *key = '\0';
    while (next_byte(&c)) { /* ESC [ A, ESC [ 5 ~, ESC [ 1 ; 5 A */
        if (isalpha((unsigned char)c) || *key == '\0')
            *key = c;
        if (c >= '@' && c <= '~')
            break;
    }
    return true;
}
