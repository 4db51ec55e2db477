/* SPDX-License-Identifier: Apache-2.0 */
/* fidelity_real.c: the real half: processes of this program as the hosts of a lab. */
#define _DEFAULT_SOURCE
#include "core/mem.h"
#include "lab/fidelity.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGS_MAX 24
#define START_S  60.0 /* limit for the start of a process */
#define PAUSE_NS 20000000
#define PORT     4700
#define TRAINER  0 /* indices in the lab */
#define FIRST    1 /* the first host, which bootstraps the others */
#define MORTAL   1 /* index of the host that is killed */

struct real {
    const struct hth_fidelity_case *c;
    struct hth_lab *lab;
    const char *dir, *data, *log;
    char program[4096];
    pid_t host[HTH_FIDELITY_HOSTS];
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pause_a_moment(void)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    nanosleep(&pause, NULL);
}

/* ---- in the lab ---------------------------------------------------------------------------- */

/* Start `hearth ARGS` on a host of the lab; its output goes to DIR/NAME.log. */
static pid_t start(const struct real *r, uint32_t where, const char *name, char **args)
{
    char path[4200];
    snprintf(path, sizeof(path), "%s/%s.log", r->dir, name);
    (void)remove(path); /* the log of an earlier process must not be read */
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int log = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (log >= 0 && dup2(log, 1) == 1 && dup2(log, 2) == 2 &&
        hth_lab_enter_index(r->lab, where) == HTH_OK)
        execv(r->program, args);
    _exit(126);
}

/* Wait until DIR/NAME.log has the text. Returns false when the process ended or took too long. */
static bool wait_for(const struct real *r, pid_t pid, const char *name, const char *text)
{
    char path[4200], line[1024];
    double end_s = now_s() + START_S;
    snprintf(path, sizeof(path), "%s/%s.log", r->dir, name);
    while (now_s() < end_s && waitpid(pid, NULL, WNOHANG) == 0) {
        FILE *f = fopen(path, "r");
        bool found = false;
        while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL)
            found = strstr(line, text) != NULL;
        if (f != NULL)
            fclose(f);
        if (found)
            return true;
        pause_a_moment();
    }
    fprintf(stderr, "fidelity: %s did not start; see %s\n", name, path);
    return false;
}

struct fidelity_args {
    char *word[ARGS_MAX];
    size_t count;
};

HTH_PRINTF(2, 3)
static void add(struct fidelity_args *a, const char *fmt, ...)
{
    char text[4200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    HTH_ASSERT(a->count + 1 < ARGS_MAX);
    a->word[a->count++] = hth_strdup(text);
}

/* Add the arguments of every process of the swarm. */
static void add_common(const struct real *r, struct fidelity_args *a, const char *verb,
                       uint32_t where, const char *name)
{
    add(a, "hearth");
    add(a, "%s", verb);
    add(a, "--run=%s/run.yaml", r->dir);
    add(a, "--open-to-anyone"); /* within the lab */
    add(a, "--dir=%s/%s", r->dir, name);
    add(a, "--listen=10.77.0.%u:%d", where + 1, PORT);
    add(a, "--threads=1");
    add(a, "--log=%s", r->log != NULL ? r->log : "info");
    if (where != FIRST)
        add(a, "--join=10.77.0.%d:%d", FIRST + 1, PORT);
}

static pid_t start_take(const struct real *r, uint32_t where, const char *name,
                        struct fidelity_args *a)
{
    pid_t pid = start(r, where, name, a->word);
    while (a->count > 0)
        hth_free(a->word[--a->count]);
    return pid;
}

static bool start_host(struct real *r, uint32_t i)
{
    struct fidelity_args a = {.count = 0};
    char name[32];
    snprintf(name, sizeof(name), "host%u", i);
    add_common(r, &a, "serve", FIRST + i, name);
    add(&a, "--experts=ffn0.[0:4].%u", i);
    add(&a, "--experts=ffn1.[0:4].%u", i);
    r->host[i] = start_take(r, FIRST + i, name, &a);
    return r->host[i] > 0 && wait_for(r, r->host[i], name, "serving");
}

static pid_t start_trainer(const struct real *r)
{
    struct fidelity_args a = {.count = 0};
    add_common(r, &a, "train", TRAINER, "trainer");
    add(&a, "--flights=%u", r->c->flights);
    add(&a, "--rows=%u", r->c->rows);
    add(&a, "--peer-seed=1");
    add(&a, "--metrics=%s/metrics.jsonl", r->dir);
    if (r->data != NULL)
        add(&a, "--data=%s", r->data);
    return start_take(r, TRAINER, "trainer", &a);
}

/* ---- what it counted ----------------------------------------------------------------------- */

static void add_line(const char *line, struct hth_fidelity_series *out)
{
    json_t *o = json_loads(line, 0, NULL);
    const char *kind = json_string_value(json_object_get(o, "kind"));
    if (kind != NULL && strcmp(kind, "progress") == 0) {
        struct hth_fidelity_sample s = {
            .t_s = json_number_value(json_object_get(o, "t")),
            .updates = json_number_value(json_object_get(o, "step")),
            .calls = json_number_value(json_object_get(o, "calls")),
            .failed = json_number_value(json_object_get(o, "calls_failed")),
            .bytes = json_number_value(json_object_get(o, "bytes")),
            .live = (uint32_t)json_integer_value(json_object_get(o, "experts_live")),
        };
        hth_fidelity_add(out, &s);
    }
    json_decref(o);
}

/* Read all whole lines of the trainer's metrics again. */
static void read_metrics(const struct real *r, struct hth_fidelity_series *out)
{
    char path[4200], line[4096];
    snprintf(path, sizeof(path), "%s/metrics.jsonl", r->dir);
    FILE *f = fopen(path, "r");
    out->count = 0;
    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (strchr(line, '\n') != NULL)
            add_line(line, out);
    if (f != NULL)
        fclose(f);
}

/* Write the times of the crash and restart for the process outside the lab. */
static bool write_events(const struct real *r, const struct hth_fidelity_series *s)
{
    char path[4200];
    snprintf(path, sizeof(path), "%s/events.txt", r->dir);
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return false;
    fprintf(f, "%.3f %.3f %.3f\n", s->kill_s, s->back_s, s->boot_s);
    return fclose(f) == 0;
}

static bool read_events(const struct real *r, struct hth_fidelity_series *s)
{
    char path[4200];
    snprintf(path, sizeof(path), "%s/events.txt", r->dir);
    FILE *f = fopen(path, "r");
    int got = f != NULL ? fscanf(f, "%lf %lf %lf", &s->kill_s, &s->back_s, &s->boot_s) : 0;
    if (f != NULL)
        fclose(f);
    return got == 3;
}

static bool happen(struct real *r, struct hth_fidelity_series *s)
{
    double begin_s = hth_fidelity_begin_s(s);
    if (r->c->kill_s <= 0 || begin_s < 0)
        return true;
    if (s->kill_s <= 0 && now_s() >= begin_s + r->c->kill_s) {
        s->kill_s = now_s();
        kill(r->host[MORTAL], SIGKILL);
        waitpid(r->host[MORTAL], NULL, 0);
    }
    if (s->back_s <= 0 && now_s() >= begin_s + r->c->back_s) {
        s->back_s = now_s();
        if (!start_host(r, MORTAL))
            return false;
        s->boot_s = now_s() - s->back_s;
    }
    return true;
}

/* Run the case in the lab's first process; when it ends, its children end with it. */
static int act(void *arg)
{
    struct real *r = arg;
    struct hth_fidelity_series s = {.count = 0};
    for (uint32_t i = 0; i < HTH_FIDELITY_HOSTS; i++)
        if (!start_host(r, i))
            return 1;
    pid_t trainer = start_trainer(r);
    double end_s = now_s() + START_S;
    while (!hth_fidelity_enough(&s, r->c)) {
        bool late = hth_fidelity_begin_s(&s) < 0 && now_s() > end_s;
        if (trainer < 0 || late || waitpid(trainer, NULL, WNOHANG) != 0 || !happen(r, &s)) {
            fprintf(stderr, "fidelity: the trainer makes no more updates; see %s/*.log\n", r->dir);
            return 1;
        }
        pause_a_moment();
        read_metrics(r, &s);
    }
    bool good = write_events(r, &s);
    hth_fidelity_clear(&s);
    return good ? 0 : 1;
}

/* ---- outside ------------------------------------------------------------------------------- */

static enum hth_err write_runfile(const struct real *r)
{
    char path[4200], *text = hth_fidelity_runfile();
    snprintf(path, sizeof(path), "%s/run.yaml", r->dir);
    FILE *f = fopen(path, "w");
    bool good = f != NULL && fputs(text, f) >= 0;
    good = f != NULL && fclose(f) == 0 && good;
    hth_free(text);
    return good ? HTH_OK : HTH_E_IO;
}

enum hth_err hth_fidelity_real(const struct hth_fidelity_case *c, const char *dir, const char *data,
                               const char *log, struct hth_fidelity_series *out,
                               char error[HTH_LAB_ERROR_MAX])
{
    char names[1 + HTH_FIDELITY_HOSTS][16];
    struct hth_lab_spec_host hosts[1 + HTH_FIDELITY_HOSTS];
    struct hth_lab_spec spec = {.seed = 1, .hosts = hosts, .host_count = 1 + HTH_FIDELITY_HOSTS};
    struct real r = {.c = c, .dir = dir, .data = data, .log = log};
    for (uint32_t i = 0; i < spec.host_count; i++) {
        double mbit = i == TRAINER ? c->trainer_mbit : c->host_mbit;
        snprintf(names[i], sizeof(names[i]), i == TRAINER ? "trainer" : "host%u", i - 1);
        hosts[i] = (struct hth_lab_spec_host){.name = names[i], .up_mbit = mbit, .down_mbit = mbit};
    }
    spec.link.latency_ms = c->delay_ms;
    ssize_t len = readlink("/proc/self/exe", r.program, sizeof(r.program) - 1);
    if (len <= 0 || write_runfile(&r) != HTH_OK) {
        snprintf(error, HTH_LAB_ERROR_MAX, "%s: %s", dir, strerror(errno));
        return HTH_E_IO;
    }
    HTH_TRY(hth_lab_new(&spec, &r.lab, error));
    int code = hth_lab_run(r.lab, act, &r);
    hth_lab_free(r.lab);
    read_metrics(&r, out);
    if (code == 0 && read_events(&r, out))
        return HTH_OK;
    snprintf(error, HTH_LAB_ERROR_MAX, "%s, %s: the run did not complete (code %d); see %s",
             c->part, c->name, code, dir);
    return code < 0 || code == HTH_LAB_EXIT_SKIP ? HTH_E_UNSUPPORTED : HTH_E_IO;
}
