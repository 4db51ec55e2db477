/* SPDX-License-Identifier: Apache-2.0 */
/* place.c: processes, files and addresses of a test. */
#define _XOPEN_SOURCE 700
#include "integration/place.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGS_MAX 48
#define PAUSE_US 10000
/* Below the range from which the kernel chooses free ports. */
#define PORT_FIRST 20000
#define PORTS      1000

extern char **environ;

/* ---- time ---------------------------------------------------------------------------------- */

int64_t place_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

static void pause_a_moment(void)
{
    const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
    nanosleep(&pause, NULL);
}

void wait_step(struct wait *w, const char *what)
{
    int64_t now = place_now_us();
    if (w->begin_us == 0)
        w->begin_us = now;
    if (now - w->begin_us > WAIT_S * INT64_C(1000000))
        fail_msg("no sign of %s within %d s", what, WAIT_S);
    pause_a_moment();
}

/* ---- the folder ---------------------------------------------------------------------------- */

int place_setup(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    pid_t pid = getpid();
    if (p == NULL)
        return -1;
    p->x = (uint8_t)(1 + pid / 250 % 250);
    p->y = (uint8_t)(1 + pid % 250);
    p->root = strdup("/tmp/hearth-test-XXXXXX");
    if (p->root == NULL || mkdtemp(p->root) == NULL) {
        free(p->root);
        free(p);
        return -1;
    }
    *state = p;
    /* No test reads or writes the state of the person who runs it. */
    return setenv("XDG_STATE_HOME", p->root, 1);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void reap(struct proc *proc, int options)
{
    int status;
    if (proc->code != STILL_RUNS || waitpid(proc->pid, &status, options) != proc->pid)
        return;
    proc->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int place_teardown(void **state)
{
    struct place *p = *state;
    for (size_t i = 0; i < p->proc_count; i++) {
        if (p->proc[i].code == STILL_RUNS)
            kill(p->proc[i].pid, SIGKILL);
        reap(&p->proc[i], 0);
    }
    int left = waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? 0 : -1;
    int removed =
        getenv("HTH_TEST_KEEP") != NULL ? 0 : nftw(p->root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(p->root);
    free(p);
    *state = NULL;
    return left == 0 && removed == 0 ? 0 : -1;
}

static pid_t begin_test(const struct CMUnitTest *test)
{
    const struct CMUnitTest one[] = {*test};
    pid_t pid = fork();
    if (pid == 0)
        exit(cmocka_run_group_tests(one, NULL, NULL) == 0 ? 0 : 1);
    return pid;
}

int place_run_at_once(const struct CMUnitTest *tests, size_t count)
{
    pid_t *pid = calloc(count, sizeof(*pid));
    int bad = 0, status;
    for (size_t i = 0; i < count; i++)
        pid[i] = begin_test(&tests[i]);
    for (size_t i = 0; i < count; i++)
        bad |= pid[i] < 0 || waitpid(pid[i], &status, 0) != pid[i] || status != 0;
    free(pid);
    return bad;
}

static void fail_with_words(struct proc *proc, const char *what)
{
    char *out = place_read(proc->out, NULL), *err = place_read(proc->err, NULL);
    size_t len = out != NULL ? strlen(out) : 0, err_len = err != NULL ? strlen(err) : 0;
    print_error("%s: %s (code %d); its output:\n%s%s\n", proc->name, what, proc->code,
                len > 0 ? out + (len > 1500 ? len - 1500 : 0) : "",
                err_len > 0 ? err + (err_len > 3000 ? err_len - 3000 : 0) : "");
    free(out);
    free(err);
    fail_msg("%s: %s", proc->name, what);
}

void place_end(struct place *p)
{
    for (size_t i = p->proc_count; i-- > 0;) {
        if (proc_runs(&p->proc[i]))
            proc_signal(&p->proc[i], SIGTERM);
        else
            p->proc[i].ended = true;
    }
    for (size_t i = 0; i < p->proc_count; i++) {
        struct proc *proc = &p->proc[i];
        if (!proc->ended && proc_wait(proc) != 0)
            fail_with_words(proc, "did not end well after SIGTERM");
    }
}

/* ---- texts and files ----------------------------------------------------------------------- */

const char *place_text(struct place *p, const char *fmt, ...)
{
    char *out = p->text[p->text_next++ % PLACE_TEXTS];
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(out, PLACE_TEXT_MAX, fmt, args);
    va_end(args);
    assert_in_range(len, 0, PLACE_TEXT_MAX - 1);
    return out;
}

const char *place_path(struct place *p, const char *name)
{
    return place_text(p, "%s/%s", p->root, name);
}

void place_write(struct place *p, const char *name, const void *data, size_t len)
{
    const char *path = place_path(p, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, len, file) != len || fclose(file) != 0)
        fail_msg("%s: %s", path, strerror(errno));
}

char *place_read(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    size_t size = 0, capacity = 4096, got;
    char *text = malloc(capacity + 1);
    if (file == NULL || text == NULL) {
        free(text);
        if (file != NULL)
            fclose(file);
        return NULL;
    }
    while ((got = fread(text + size, 1, capacity - size, file)) > 0) {
        size += got;
        if (size == capacity) {
            capacity *= 2;
            text = realloc(text, capacity + 1);
            assert_non_null(text);
        }
    }
    fclose(file);
    text[size] = '\0';
    if (len != NULL)
        *len = size;
    return text;
}

bool place_exists(struct place *p, const char *name)
{
    return access(place_path(p, name), F_OK) == 0;
}

static size_t count_entries(const char *folder, const char *ending)
{
    DIR *dir = opendir(folder);
    size_t count = 0, end_len = strlen(ending);
    struct dirent *entry;
    if (dir == NULL)
        return 0;
    while ((entry = readdir(dir)) != NULL) {
        size_t len = strlen(entry->d_name);
        count += len >= end_len && strcmp(entry->d_name + len - end_len, ending) == 0;
    }
    closedir(dir);
    return count;
}

size_t place_count(struct place *p, const char *folder, const char *ending)
{
    return count_entries(place_path(p, folder), ending);
}

/* ---- addresses ----------------------------------------------------------------------------- */

static bool port_is_free(int type, uint32_t ip, uint16_t port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
    sa.sin_addr.s_addr = htonl(ip);
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    bool is_free = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0;
    close(fd);
    return is_free;
}

/* All processes share one address; docs/footguns.md says why. */
const char *place_addr(struct place *p)
{
    uint32_t ip = 127u << 24 | (uint32_t)p->x << 16 | (uint32_t)p->y << 8 | 1;
    while (p->ports < PORTS) {
        uint16_t port = (uint16_t)(PORT_FIRST + p->ports++);
        if (port_is_free(SOCK_STREAM, ip, port) && port_is_free(SOCK_DGRAM, ip, port))
            return place_text(p, "127.%u.%u.1:%u", p->x, p->y, port);
    }
    fail_msg("no port is free for both TCP and UDP");
    return NULL;
}

int place_dial(const char *to, const char *from)
{
    struct sockaddr_in peer = {.sin_family = AF_INET}, self = {.sin_family = AF_INET};
    char host[64];
    const char *colon = strchr(to, ':');
    assert_non_null(colon);
    snprintf(host, sizeof(host), "%.*s", (int)(colon - to), to);
    peer.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    assert_int_equal(inet_pton(AF_INET, host, &peer.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (from != NULL) {
        assert_int_equal(inet_pton(AF_INET, from, &self.sin_addr), 1);
        assert_int_equal(bind(fd, (struct sockaddr *)&self, sizeof(self)), 0);
    }
    if (connect(fd, (struct sockaddr *)&peer, sizeof(peer)) != 0 && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    return fd;
}

/* ---- processes ----------------------------------------------------------------------------- */

struct proc *place_start(struct place *p, const char *name, const char *const *args)
{
    return place_start_program(p, HTH_TEST_PROGRAM, name, args);
}

struct proc *place_start_program(struct place *p, const char *program, const char *name,
                                 const char *const *args)
{
    char *argv[ARGS_MAX] = {(char *)program};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t heeded;
    assert_true(p->proc_count < PLACE_PROCS_MAX);
    struct proc *proc = &p->proc[p->proc_count];
    *proc = (struct proc){.place = p, .code = STILL_RUNS};
    snprintf(proc->name, sizeof(proc->name), "%s", name);
    /* The number separates the logs of a process from those of an earlier one of its name. */
    snprintf(proc->out, sizeof(proc->out), "%s/%zu-%s.out", p->root, p->proc_count, name);
    snprintf(proc->err, sizeof(proc->err), "%s/%zu-%s.err", p->root, p->proc_count, name);
    for (size_t i = 0; args[i] != NULL; i++) {
        assert_true(i + 2 < ARGS_MAX);
        argv[i + 1] = (char *)args[i];
    }
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    int bad = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    bad |= posix_spawn_file_actions_addopen(&actions, 1, proc->out, O_WRONLY | O_CREAT | O_TRUNC,
                                            0600);
    bad |= posix_spawn_file_actions_addopen(&actions, 2, proc->err, O_WRONLY | O_CREAT | O_TRUNC,
                                            0600);
    /* The parent may ignore SIGINT, as in the background of a script. */
    assert_int_equal(posix_spawnattr_init(&attr), 0);
    sigemptyset(&heeded);
    sigaddset(&heeded, SIGINT);
    bad |= posix_spawnattr_setsigdefault(&attr, &heeded);
    bad |= posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
    if (bad == 0)
        bad = posix_spawn(&proc->pid, program, &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    if (bad != 0)
        fail_msg("%s can't be started: %s", program, strerror(bad));
    p->proc_count++;
    return proc;
}

void proc_signal(struct proc *proc, int signal)
{
    assert_true(proc_runs(proc));
    assert_int_equal(kill(proc->pid, signal), 0);
}

bool proc_runs(struct proc *proc)
{
    reap(proc, WNOHANG);
    return proc->code == STILL_RUNS;
}

int proc_wait(struct proc *proc)
{
    int64_t begin = place_now_us();
    while (proc_runs(proc)) {
        if (place_now_us() - begin > WAIT_S * INT64_C(1000000))
            fail_with_words(proc, "did not end");
        pause_a_moment();
    }
    return proc->code;
}

void proc_forget(struct proc *proc)
{
    struct place *p = proc->place;
    assert_ptr_equal(proc, &p->proc[p->proc_count - 1]);
    assert_int_not_equal(proc->code, STILL_RUNS);
    p->proc_count--;
}

int proc_stop(struct proc *proc)
{
    proc_signal(proc, SIGTERM);
    return proc_wait(proc);
}

static bool file_holds(const char *path, const char *text)
{
    char *content = place_read(path, NULL);
    bool holds = content != NULL && strstr(content, text) != NULL;
    free(content);
    return holds;
}

bool proc_said(struct proc *proc, const char *text)
{
    return file_holds(proc->out, text) || file_holds(proc->err, text);
}

void proc_must_say(struct proc *proc, const char *text)
{
    if (!proc_said(proc, text))
        fail_with_words(proc, place_text(proc->place, "did not say '%.200s'", text));
}

double proc_cpu_ms(const struct proc *proc)
{
    char path[64], text[1024];
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)proc->pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof(text), f));
    fclose(f);
    /* The name, in parentheses, may hold anything; utime is the 14th field. */
    const char *rest = strrchr(text, ')');
    assert_non_null(rest);
    assert_int_equal(
        sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel), 2);
    return (double)(user + kernel) * 1000.0 / (double)sysconf(_SC_CLK_TCK);
}

void proc_wait_text(struct proc *proc, const char *text)
{
    int64_t begin = place_now_us();
    for (;;) {
        bool ran = proc_runs(proc);
        if (proc_said(proc, text))
            return;
        if (!ran || place_now_us() - begin > WAIT_S * INT64_C(1000000))
            fail_with_words(proc, place_text(proc->place, "did not say '%.200s'", text));
        pause_a_moment();
    }
}

long proc_rss_kib(const struct proc *proc)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%ld/status", (long)proc->pid);
    char *text = place_read(path, NULL);
    const char *line = text != NULL ? strstr(text, "VmRSS:") : NULL;
    long kib = line != NULL ? strtol(line + strlen("VmRSS:"), NULL, 10) : -1;
    free(text);
    assert_true(kib > 0);
    return kib;
}

size_t proc_descriptors(const struct proc *proc)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%ld/fd", (long)proc->pid);
    return count_entries(path, "");
}
