/* SPDX-License-Identifier: Apache-2.0 */
/* lab.c: the loop that carries packets, and the lab's first process. */
#define _GNU_SOURCE
#include "lab/lab_int.h"

#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READS_IN_TURN 64 /* most packets to read from one device before the next one */
#define TAG_TIMER     UINT32_MAX
#define TAG_SIGNAL    (UINT32_MAX - 1)

struct loop {
    struct hth_lab *lab;
    int epoll, timer, signals;
    int64_t armed_ns;
    pid_t child;
    int code; /* -1: still running */
    int stops;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static sigset_t our_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    return set;
}

/* ---- packets ------------------------------------------------------------------------------- */

/* Index of the host that an IPv4 packet is for; UINT32_MAX: no host of the lab. */
static uint32_t receiver_of(const struct hth_lab *lab, const uint8_t *data, ssize_t len)
{
    if (len < 20 || data[0] >> 4 != 4)
        return UINT32_MAX;
    const uint8_t *to = data + 16;
    bool ours = to[0] == LAB_NET_0 && to[1] == LAB_NET_1 && to[2] == 0 && to[3] >= 1;
    return ours && to[3] <= lab->count ? to[3] - 1u : UINT32_MAX;
}

static void read_some(struct hth_lab *lab, uint32_t from)
{
    uint8_t buf[LAB_MTU_MAX];
    for (int i = 0; i < READS_IN_TURN; i++) {
        ssize_t len = read(lab->host[from].tun, buf, sizeof(buf));
        if (len <= 0)
            return;
        uint32_t to = receiver_of(lab, buf, len);
        if (to == UINT32_MAX)
            continue;
        struct hth_lab_packet *p = hth_lab_packet_new((uint32_t)len);
        memcpy(p->data, buf, (size_t)len);
        p->from = from;
        p->to = to;
        hth_lab_emu_send_take(lab->emu, now_ns(), p);
    }
}

/* Count the lateness of a packet. Bucket i holds up to 2^(i/4) microseconds. */
static void count_lateness(struct hth_lab *lab, int64_t late_ns)
{
    double us = (double)late_ns * 1e-3, edge = 1;
    uint32_t bucket = 0;
    while (us > edge && bucket + 1 < LAB_LATE_BUCKETS) {
        edge *= 1.189207115002721; /* 2^(1/4) */
        bucket++;
    }
    lab->late[bucket]++;
    lab->late_worst_us = HTH_MAX(lab->late_worst_us, us);
}

static void deliver(struct hth_lab *lab)
{
    int64_t now = now_ns();
    for (struct hth_lab_packet *p; (p = hth_lab_emu_next(lab->emu, now)) != NULL;) {
        /* A device with a full queue loses the packet, like a host. */
        if (write(lab->host[p->to].tun, p->data, p->len) < 0 && errno == EAGAIN)
            lab->refused++;
        now = now_ns();
        count_lateness(lab, now - p->due_ns);
        hth_free(p);
    }
}

void hth_lab_lateness(const struct hth_lab *lab, double *median_us, double *p99_us,
                      double *worst_us)
{
    uint64_t all = 0, seen = 0;
    double edge = 1;
    for (uint32_t i = 0; i < LAB_LATE_BUCKETS; i++)
        all += lab->late[i];
    *median_us = *p99_us = 0;
    *worst_us = lab->late_worst_us;
    for (uint32_t i = 0; i < LAB_LATE_BUCKETS && all > 0; i++, edge *= 1.189207115002721) {
        seen += lab->late[i];
        if (*median_us == 0 && 2 * seen >= all)
            *median_us = edge;
        if (*p99_us == 0 && 100 * seen >= 99 * all)
            *p99_us = edge;
    }
}

void hth_lab_count(const struct hth_lab *lab, uint32_t host, struct hth_lab_count *out)
{
    hth_lab_emu_count(lab->emu, host, out);
}

/* ---- the loop ------------------------------------------------------------------------------ */

static void arm(struct loop *loop)
{
    int64_t due_ns = hth_lab_emu_due_ns(loop->lab->emu);
    struct itimerspec at = {.it_value = {0}};
    if (due_ns == loop->armed_ns)
        return;
    loop->armed_ns = due_ns;
    if (due_ns != INT64_MAX) {
        at.it_value.tv_sec = due_ns / INT64_C(1000000000);
        at.it_value.tv_nsec = due_ns % INT64_C(1000000000) + (due_ns == 0);
    }
    timerfd_settime(loop->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void take_signal(struct loop *loop)
{
    struct signalfd_siginfo info;
    int status;
    while (read(loop->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo != SIGCHLD) {
            kill(loop->child, loop->stops++ == 0 ? (int)info.ssi_signo : SIGKILL);
            continue;
        }
        if (waitpid(loop->child, &status, WNOHANG) == loop->child)
            loop->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
}

static void carry(struct loop *loop)
{
    struct epoll_event events[64];
    while (loop->code < 0) {
        arm(loop);
        int n = epoll_wait(loop->epoll, events, (int)HTH_ARRAY_LEN(events), -1);
        for (int i = 0; i < n; i++) {
            uint64_t ticks;
            uint32_t tag = events[i].data.u32;
            if (tag == TAG_SIGNAL)
                take_signal(loop);
            else if (tag == TAG_TIMER && read(loop->timer, &ticks, sizeof(ticks)) > 0)
                loop->armed_ns = -1;
            else if (tag < loop->lab->count)
                read_some(loop->lab, tag);
        }
        deliver(loop->lab);
    }
}

static bool watch(struct loop *loop, int fd, uint32_t tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = tag};
    return fd >= 0 && epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool loop_open(struct loop *loop, const sigset_t *signals)
{
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    loop->signals = signalfd(-1, signals, SFD_NONBLOCK | SFD_CLOEXEC);
    bool good = watch(loop, loop->timer, TAG_TIMER) && watch(loop, loop->signals, TAG_SIGNAL);
    for (uint32_t i = 0; i < loop->lab->count; i++)
        good = good && watch(loop, loop->lab->host[i].tun, i);
    return good;
}

/* ---- the first process of the lab ---------------------------------------------------------- */

struct start {
    struct hth_lab *lab;
    int (*act)(void *arg);
    void *arg;
    int alive; /* a pipe that closes when the maker of this process ends */
};

static int begin_life(const struct start *s)
{
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* The maker may have ended before the line above: then there is nothing to read. */
    if (read(s->alive, &byte, 1) != 1)
        return 1;
    close(s->alive);
    for (uint32_t i = 0; i < s->lab->count; i++)
        close(s->lab->host[i].tun);
    /* Keep signals blocked: the first process of a namespace would lose those without a handler. */
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0) {
        fprintf(stderr, "netlab: no /proc of its own: %s. A lab needs root (CAP_SYS_ADMIN)\n",
                strerror(errno));
        return HTH_LAB_EXIT_SKIP;
    }
    hth_lab_name_hosts(s->lab);
    return s->act(s->arg);
}

static pid_t begin(struct start *s)
{
    int pipe_fd[2], own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    pid_t child = -1;
    if (own < 0 || pipe2(pipe_fd, O_CLOEXEC) != 0)
        goto out;
    s->alive = pipe_fd[0];
    if (unshare(CLONE_NEWPID) == 0) {
        fflush(NULL);
        child = fork();
        if (child == 0) {
            close(pipe_fd[1]);
            int code = begin_life(s);
            fflush(NULL);
            _exit(code);
        }
        /* Later children of this process belong to the own namespace again. */
        bool good = setns(own, CLONE_NEWPID) == 0 && write(pipe_fd[1], "", 1) == 1;
        if (!good && child > 0) {
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
            child = -1;
        }
    }
    close(pipe_fd[0]);
    close(pipe_fd[1]);
out:
    if (own >= 0)
        close(own);
    return child;
}

int hth_lab_run(struct hth_lab *lab, int (*act)(void *arg), void *arg)
{
    struct loop loop = {.lab = lab, .epoll = -1, .timer = -1, .signals = -1, .code = -1};
    struct start start = {.lab = lab, .act = act, .arg = arg};
    struct sched_param priority = {.sched_priority = 1};
    sigset_t signals = our_signals(), mask;
    sigprocmask(SIG_BLOCK, &signals, &mask);
    loop.armed_ns = -1;
    if (loop_open(&loop, &signals))
        loop.child = begin(&start);
    if (loop.child > 0) {
        /* Run with real-time priority: waiting for a core makes packets late, and this process has
         * little to do. */
        int before = sched_getscheduler(0);
        struct sched_param plain = {.sched_priority = 0};
        if (sched_setscheduler(0, SCHED_RR, &priority) != 0)
            setpriority(PRIO_PROCESS, 0, -20);
        carry(&loop);
        if (before >= 0)
            sched_setscheduler(0, before, &plain);
    }
    int fds[] = {loop.epoll, loop.timer, loop.signals};
    for (size_t i = 0; i < HTH_ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return loop.code;
}

/* ---- commands in the lab ------------------------------------------------------------------- */

static volatile sig_atomic_t commanded; /* pid of the command to which our signals are passed */

static void pass_on(int signal)
{
    if (commanded > 0)
        kill((pid_t)commanded, signal);
}

int hth_lab_command(char *const *argv)
{
    static const int passed[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigset_t signals = our_signals();
    int status;
    for (size_t i = 0; i < HTH_ARRAY_LEN(passed); i++)
        sigaction(passed[i], &action, NULL);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < HTH_ARRAY_LEN(passed); i++)
            signal(passed[i], SIG_DFL);
        sigprocmask(SIG_UNBLOCK, &signals, NULL);
        execvp(argv[0], argv);
        fprintf(stderr, "netlab: %s: %s\n", argv[0], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    commanded = child;
    sigprocmask(SIG_UNBLOCK, &signals, NULL);
    for (pid_t pid; child > 0 && (pid = waitpid(-1, &status, 0)) != child;) {
        if (pid < 0 && errno != EINTR)
            return 126;
    }
    commanded = 0;
    if (child < 0)
        return 126;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
