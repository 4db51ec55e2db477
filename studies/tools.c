/* SPDX-License-Identifier: Apache-2.0 */
/* tools.c: threads, progress, files and pictures of the studies; see tools.h. */
#define _DEFAULT_SOURCE /* madvise */
#include "studies/tools.h"

#include "cli/cli.h"
#include "core/mem.h"

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX     256
#define PROGRESS_TTY_US (HTH_US_PER_S / 4)
#define PROGRESS_LOG_US (30 * HTH_US_PER_S)

extern char **environ;

void hth_sim_settle_memory(void)
{
    enum { BLOCKS = 64 };
    const size_t block = (size_t)16 << 20; /* less than malloc would map separately */
    const uintptr_t page = 4096;
    void *held[BLOCKS];
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_TOP_PAD, 64 << 20);
    /* Reserve address space only: no page is touched, and all blocks go back to malloc. */
    for (int i = 0; i < BLOCKS; i++) {
        held[i] = malloc(block);
        uintptr_t first = (uintptr_t)held[i] / page * page; /* the blocks are adjacent */
        if (held[i] != NULL)
            (void)madvise((void *)first, block, MADV_HUGEPAGE);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(held[i]);
}

int64_t hth_sim_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * HTH_US_PER_S + now.tv_nsec / 1000;
}

/* ---- progress ------------------------------------------------------------------------------ */

void hth_sim_progress_begin(struct hth_sim_progress *p)
{
    p->tty = isatty(STDERR_FILENO) == 1;
    p->begun_us = p->shown_us = hth_sim_clock_us();
}

void hth_sim_progress_say(struct hth_sim_progress *p, const char *fmt, ...)
{
    const int64_t period_us = p->tty ? PROGRESS_TTY_US : PROGRESS_LOG_US,
                  now_us = hth_sim_clock_us();
    int64_t shown_us = __atomic_load_n(&p->shown_us, __ATOMIC_RELAXED);
    char text[160];
    va_list args;
    if (now_us - shown_us < period_us ||
        !__atomic_compare_exchange_n(&p->shown_us, &shown_us, now_us, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return; /* too early, or another thread shows it */
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fprintf(stderr, p->tty ? "\r%s \033[K" : "%s\n", text);
}

double hth_sim_progress_left_s(const struct hth_sim_progress *p, uint64_t done, uint64_t total)
{
    double spent_s = (double)(hth_sim_clock_us() - p->begun_us) / HTH_US_PER_S;
    return done == 0 ? 0 : spent_s / (double)done * (double)(total - done);
}

void hth_sim_progress_wipe(const struct hth_sim_progress *p)
{
    if (p->tty)
        fputs("\r\033[K", stderr);
}

/* ---- interrupts ---------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    static const char text[] =
        "\nhearth: interrupted: no run is begun, and complete results will be "
        "shown; interrupt again to stop at once\n";
    int saved = errno;
    (void)number;
    interrupted = 1;
    if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
        errno = saved; /* an error leaves no way to report it */
    errno = saved;
}

void hth_sim_heed_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}, before;
    interrupted = 0;
    /* A script that started us in the background, or nohup, has SIGINT ignored: Ctrl-C must not
     * reach us. */
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler == SIG_IGN)
        return;
    sigaction(SIGINT, &action, NULL);
}

bool hth_sim_interrupted(void)
{
    return interrupted != 0;
}

/* ---- threads ------------------------------------------------------------------------------- */

struct spread {
    const struct hth_sim_work *work;
    uint64_t count;
    uint64_t next; /* atomic */
};

struct worker {
    pthread_t thread;
    struct spread *spread;
    void *local;
};

static void *work_on(void *arg)
{
    struct worker *w = arg;
    struct spread *s = w->spread;
    for (;;) {
        if (hth_sim_interrupted())
            return NULL;
        uint64_t index = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED);
        if (index >= s->count)
            return NULL;
        s->work->run(s->work->arg, w->local, index);
    }
}

enum hth_err hth_sim_spread(const struct hth_sim_work *work, uint64_t count, uint32_t threads)
{
    struct spread spread = {.work = work, .count = count};
    struct worker *workers = hth_new_array(struct worker, threads);
    uint32_t opened = 0, started = 0;
    enum hth_err err = HTH_OK;
    for (; opened < threads; opened++) {
        workers[opened].spread = &spread;
        HTH_GOTO(out, work->open(work->arg, &workers[opened].local));
    }
    /* The first worker is this thread, so that there is always one. */
    for (started = 1; started < threads; started++)
        if (pthread_create(&workers[started].thread, NULL, work_on, &workers[started]) != 0)
            break;
    work_on(&workers[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(workers[i].thread, NULL);
out:
    for (uint32_t i = 0; i < opened; i++)
        work->close(workers[i].local);
    hth_free(workers);
    return err;
}

uint32_t hth_sim_threads(uint32_t asked)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (asked != 0)
        return HTH_MIN(asked, THREADS_MAX);
    return cores < 1 ? 1 : (uint32_t)HTH_MIN(cores, THREADS_MAX);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void print_number(FILE *to, double value)
{
    if (isfinite(value))
        fprintf(to, "%.9g", value);
    else
        fputs("null", to);
}

void hth_sim_json_number(FILE *to, const char *name, double value)
{
    fprintf(to, "\"%s\":", name);
    print_number(to, value);
}

void hth_sim_json_list(FILE *to, const char *name, const double *values, size_t count)
{
    fprintf(to, "\"%s\":[", name);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            fputc(',', to);
        print_number(to, values[i]);
    }
    fputc(']', to);
}

/* ---- files --------------------------------------------------------------------------------- */

enum hth_err hth_sim_check_out(const char *dir)
{
    char *inside = hth_asprintf("%s/.", dir);
    bool good = (mkdir(dir, 0777) == 0 || errno == EEXIST) && access(inside, W_OK | X_OK) == 0;
    if (!good)
        hth_cli_say_error(
            "--out '%s': %s; nothing was computed. Name a writable folder, or a new one "
            "in an existing folder",
            dir, strerror(errno));
    hth_free(inside);
    return good ? HTH_OK : HTH_E_IO;
}

FILE *hth_sim_create(const char *dir, const char *name)
{
    char *path = hth_asprintf("%s/%s.part", dir, name);
    FILE *file = NULL;
    if (mkdir(dir, 0777) == 0 || errno == EEXIST)
        file = fopen(path, "w");
    if (file == NULL)
        hth_cli_say_error("%s: %s", path, strerror(errno));
    hth_free(path);
    return file;
}

/* Return why a discarded file could not be written: an earlier error has lost its errno, but
 * further bytes fail for the same reason. */
static int write_error(FILE *file)
{
    static const char more[4096];
    for (int i = 0; i < 256; i++)
        if (write(fileno(file), more, sizeof(more)) < 0)
            return errno;
    return EIO;
}

enum hth_err hth_sim_finish(FILE *file, const char *dir, const char *name)
{
    char *part = hth_asprintf("%s/%s.part", dir, name), *path = hth_asprintf("%s/%s", dir, name);
    int why = fflush(file) != 0 || ferror(file) != 0 ? write_error(file) : 0;
    if (fclose(file) != 0 && why == 0)
        why = errno;
    if (why == 0 && rename(part, path) != 0)
        why = errno;
    if (why != 0) {
        hth_cli_say_error("%s can't be written: %s; it was removed from %s", path, strerror(why),
                          dir);
        (void)unlink(part);
    }
    hth_free(part);
    hth_free(path);
    return why == 0 ? HTH_OK : HTH_E_IO;
}

static enum hth_err forget(const char *dir, const char *name)
{
    char *path = hth_asprintf("%s/%s", dir, name);
    enum hth_err err = HTH_OK;
    if (unlink(path) != 0 && errno != ENOENT) {
        hth_cli_say_error("%s is of an earlier run and can't be removed: %s", path,
                          strerror(errno));
        err = HTH_E_IO;
    }
    hth_free(path);
    return err;
}

/* Remove the pictures that the script of an earlier run names; the new run may not draw all of
 * them. */
static enum hth_err forget_pictures(const char *dir)
{
    static const char before[] = "set output '";
    char *path = hth_asprintf("%s/plot.gp", dir), *line = NULL;
    FILE *script = fopen(path, "r");
    enum hth_err err = HTH_OK;
    size_t room = 0;
    hth_free(path);
    while (script != NULL && err == HTH_OK && getline(&line, &room, script) >= 0) {
        char *name = strstr(line, before), *end = NULL;
        if (name != NULL)
            end = strchr(name += strlen(before), '\'');
        if (end == NULL || end - name < 4)
            continue;
        *end = '\0';
        if (strchr(name, '/') == NULL &&
            (strcmp(end - 4, ".png") == 0 || strcmp(end - 4, ".svg") == 0))
            err = forget(dir, name);
    }
    free(line);
    if (script != NULL)
        fclose(script);
    return err;
}

enum hth_err hth_sim_forget(const char *dir)
{
    static const char *const names[] = {"differences.csv", "events.csv", "failures.csv",
                                        "rounds.csv", "runs.csv"};
    enum hth_err err = forget_pictures(dir);
    for (size_t i = 0; i < HTH_ARRAY_LEN(names) && err == HTH_OK; i++)
        err = forget(dir, names[i]);
    return err;
}

bool hth_sim_draw(const char *dir, const char *script)
{
    char *change = hth_asprintf("cd '%s'", dir);
    char *file = hth_strdup(script);
    char program[] = "gnuplot", flag[] = "-e";
    char *argv[] = {program, flag, change, file, NULL};
    pid_t pid;
    int status = -1;
    /* gnuplot has no escape for a quote in a name. */
    if (strpbrk(dir, "'\n") == NULL && posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) == 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
    hth_free(change);
    hth_free(file);
    if (status != 0)
        hth_cli_say_error("no picture: run `gnuplot %s` in %s (Debian: gnuplot-nox)", script, dir);
    return status == 0;
}
