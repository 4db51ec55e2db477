/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.c: the loop of an environment: turns, clock, timers, posts, signals, creation and end.
 *
 * The event base is used by the loop thread alone and has no locks. Other threads reach it through
 * the inbox only: two lists under a mutex and an eventfd. libevent's time cache is off: with it, a
 * timer that is armed late in a long turn would fire before its delay has passed.
 */
#define _GNU_SOURCE
#include "net/net_int.h"

#include "core/limits.h"
#include "core/map.h"
#include "core/mem.h"
#include "net/crypto.h"
#include "net/identity.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct hth_timer {
    struct hth_net *net;
    struct event event;
    hth_fn *fn;
    void *arg;
};

struct hth_net_signal {
    struct hth_net *net;
    struct event event;
    hth_fn *fn;
    void *arg;
    struct hth_net_signal *next;
};

/* ---- turns ---------------------------------------------------------------------------------- */

static int64_t clock_us(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * HTH_US_PER_S + ts.tv_nsec / 1000;
}

/* Workers read the clock when they log, so the store is atomic. */
void hth_net_tick(struct hth_net *net)
{
    __atomic_store_n(&net->env.now_us, clock_us(CLOCK_MONOTONIC), __ATOMIC_RELAXED);
}

void hth_net_enter(struct hth_net *net)
{
    if (net->depth++ == 0) {
        hth_net_tick(net);
        net->turn_start_us = net->env.now_us;
    }
}

void hth_net_leave(struct hth_net *net)
{
    if (net->depth == 1) {
        hth_net_streams_pump(net);
        hth_net_streams_bury(net);
        int64_t took_us = clock_us(CLOCK_MONOTONIC) - net->turn_start_us;
        if (took_us > HTH_NET_SLOW_TURN_US) {
            hth_metric_add(net->m_slow_turns, 1);
            HTH_LOG(&net->env, HTH_WARN, HTH_SUB_NET,
                    "a callback blocked the loop for %lld ms; timers and streams waited (work of "
                    "this size belongs in a job)",
                    (long long)(took_us / 1000));
        }
    }
    net->depth--;
}

static void ready_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_net *net = arg;
    (void)fd;
    (void)what;
    hth_net_enter(net);
    hth_net_streams_ready(net);
    hth_net_leave(net);
}

void hth_net_wake_ready(struct hth_net *net)
{
    static const struct timeval at_once;
    if (!event_pending(&net->ready_event, EV_TIMEOUT, NULL))
        event_add(&net->ready_event, &at_once);
}

static int64_t net_wall_us(struct hth_env *env)
{
    (void)env;
    return clock_us(CLOCK_REALTIME);
}

/* ---- timers --------------------------------------------------------------------------------- */

static void timer_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_timer *t = arg;
    struct hth_net *net = t->net; /* fn may free the timer */
    (void)fd;
    (void)what;
    hth_net_enter(net);
    t->fn(t->arg);
    hth_net_leave(net);
}

static struct hth_timer *net_timer_new(struct hth_env *env, hth_fn *fn, void *arg)
{
    struct hth_timer *t = hth_new(struct hth_timer);
    t->net = hth_net_of(env);
    t->fn = fn;
    t->arg = arg;
    event_assign(&t->event, t->net->base, -1, 0, timer_cb, t);
    return t;
}

static void net_timer_set(struct hth_timer *t, int64_t delay_us)
{
    int64_t d = HTH_MAX(delay_us, (int64_t)0);
    struct timeval tv = {.tv_sec = (time_t)(d / HTH_US_PER_S),
                         .tv_usec = (suseconds_t)(d % HTH_US_PER_S)};
    event_add(&t->event, &tv);
}

static void net_timer_cancel(struct hth_timer *t)
{
    event_del(&t->event);
}

static void net_timer_free(struct hth_timer *t)
{
    event_del(&t->event);
    hth_free(t);
}

/* ---- the inbox: from other threads ---------------------------------------------------------- */

/* Call with the lock held; true when the eventfd has to be written after unlocking. */
static bool inbox_mark(struct hth_net *net)
{
    bool was = net->inbox_signaled;
    net->inbox_signaled = true;
    return !was;
}

static void inbox_wake(struct hth_net *net)
{
    uint64_t one = 1;
    ssize_t n;
    do
        n = write(net->inbox_fd, &one, sizeof(one));
    while (n < 0 && errno == EINTR);
}

static void net_post(struct hth_env *env, hth_fn *fn, void *arg)
{
    struct hth_net *net = hth_net_of(env);
    struct hth_net_post *post = hth_new(struct hth_net_post);
    post->fn = fn;
    post->arg = arg;
    pthread_mutex_lock(&net->inbox_lock);
    if (net->post_tail != NULL)
        net->post_tail->next = post;
    else
        net->post_head = post;
    net->post_tail = post;
    bool wake = inbox_mark(net);
    pthread_mutex_unlock(&net->inbox_lock);
    if (wake)
        inbox_wake(net);
}

void hth_net_job_finished(struct hth_net *net, struct hth_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&net->inbox_lock);
    if (net->done_tail != NULL)
        net->done_tail->next = job;
    else
        net->done_head = job;
    net->done_tail = job;
    bool wake = inbox_mark(net);
    pthread_mutex_unlock(&net->inbox_lock);
    if (wake)
        inbox_wake(net);
}

static void run_done(struct hth_net *net, struct hth_job *job)
{
    while (job != NULL) {
        struct hth_job *next = job->next; /* done may free the job */
        net->job_count--;
        hth_net_tick(net);
        job->done(job, job->private_ticket == HTH_NET_TICKET_CANCELED ? HTH_E_CANCELED : HTH_OK);
        job = next;
    }
}

static void inbox_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_net *net = arg;
    uint64_t count;
    (void)what;
    /* Read before the lists are taken, so that a later producer writes again. */
    if (read(fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        return;
    pthread_mutex_lock(&net->inbox_lock);
    struct hth_net_post *post = net->post_head;
    struct hth_job *done = net->done_head;
    net->post_head = net->post_tail = NULL;
    net->done_head = net->done_tail = NULL;
    net->inbox_signaled = false;
    pthread_mutex_unlock(&net->inbox_lock);

    hth_net_enter(net);
    run_done(net, done);
    while (post != NULL) {
        struct hth_net_post *next = post->next;
        hth_net_tick(net);
        post->fn(post->arg);
        hth_free(post);
        post = next;
    }
    hth_net_leave(net);
}

void hth_net_jobs_end(struct hth_env *env)
{
    struct hth_net *net = hth_net_of(env);
    if (net->jobs_ended)
        return;
    net->jobs_ended = true;
    for (struct hth_net_signal *sig = net->signals; sig != NULL; sig = sig->next)
        event_del(&sig->event);
    for (uint32_t i = 0; i < HTH_LANES_MAX; i++)
        hth_net_lane_end(&net->lane[i]);
    pthread_mutex_lock(&net->inbox_lock);
    struct hth_job *done = net->done_head;
    net->done_head = net->done_tail = NULL;
    pthread_mutex_unlock(&net->inbox_lock);
    hth_net_enter(net);
    run_done(net, done);
    hth_net_leave(net);
    HTH_ASSERT(net->job_count == 0);
}

/* ---- running -------------------------------------------------------------------------------- */

static void stop_now(void *arg)
{
    struct hth_net *net = arg;
    net->stopping = true;
    event_base_loopbreak(net->base);
}

void hth_net_stop(struct hth_env *env)
{
    net_post(env, stop_now, hth_net_of(env));
}

enum hth_err hth_net_run(struct hth_env *env)
{
    struct hth_net *net = hth_net_of(env);
    HTH_ASSERT(net->depth == 0);
    net->stopping = false;
    while (!net->stopping) {
        if (event_base_loop(net->base, EVLOOP_NO_EXIT_ON_EMPTY) < 0)
            return HTH_E_IO;
    }
    return HTH_OK;
}

static void signal_cb(evutil_socket_t signo, short what, void *arg)
{
    struct hth_net_signal *sig = arg;
    (void)signo;
    (void)what;
    hth_net_enter(sig->net);
    sig->fn(sig->arg);
    hth_net_leave(sig->net);
}

enum hth_err hth_net_on_signal(struct hth_env *env, int signo, hth_fn *fn, void *arg)
{
    struct hth_net *net = hth_net_of(env);
    struct hth_net_signal *sig = hth_new(struct hth_net_signal);
    sig->net = net;
    sig->fn = fn;
    sig->arg = arg;
    event_assign(&sig->event, net->base, signo, EV_SIGNAL | EV_PERSIST, signal_cb, sig);
    if (event_add(&sig->event, NULL) != 0) {
        hth_free(sig);
        return HTH_E_IO;
    }
    sig->next = net->signals;
    net->signals = sig;
    return HTH_OK;
}

static enum hth_err net_blob_new(struct hth_env *env, size_t size, struct hth_budget *budget,
                                 struct hth_blob **out)
{
    (void)env;
    return hth_blob_new_budget(size, budget, out);
}

static const struct hth_env_ops net_ops = {
    .timer_new = net_timer_new,
    .timer_set = net_timer_set,
    .timer_cancel = net_timer_cancel,
    .timer_free = net_timer_free,
    .listen = hth_net_listen,
    .listener_addr = hth_net_listener_addr,
    .listener_free = hth_net_listener_free,
    .dial = hth_net_dial,
    .stream_attach = hth_net_stream_attach,
    .stream_write = hth_net_stream_write,
    .stream_queued = hth_net_stream_queued,
    .stream_read = hth_net_stream_read,
    .stream_pause = hth_net_stream_pause,
    .stream_peer = hth_net_stream_peer,
    .stream_close = hth_net_stream_close,
    .job_submit = hth_net_job_submit,
    .lane_width = hth_net_lane_width,
    .team = hth_net_team,
    .post = net_post,
    .blob_new = net_blob_new,
    .file_size = hth_net_file_size,
    .file_pread = hth_net_file_pread,
    .file_write = hth_net_file_write,
    .file_remove = hth_net_file_remove,
    .fault = NULL,
    .wall_us = net_wall_us,
};

/* ---- creation and end ----------------------------------------------------------------------- */

/* The cores this process may use (a container may allow fewer than the machine has), less the one
 * that the loop needs when there are peers. */
static uint32_t default_compute_threads(bool offline)
{
    cpu_set_t set;
    int cores = 1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        cores = CPU_COUNT(&set);
    return cores > 1 && !offline ? (uint32_t)cores - 1 : (uint32_t)cores;
}

static void fill_defaults(struct hth_net_opts *o)
{
    if (o->compute_threads == 0)
        o->compute_threads = default_compute_threads(o->offline);
    if (o->streams_max == 0)
        o->streams_max = HTH_STREAMS_MAX;
    if (o->streams_per_addr_max == 0)
        o->streams_per_addr_max = HTH_STREAMS_PER_ADDR_MAX;
    if (o->dial_timeout_us <= 0)
        o->dial_timeout_us = HTH_DIAL_TIMEOUT_US;
    if (o->handshake_timeout_us <= 0)
        o->handshake_timeout_us = HTH_HANDSHAKE_TIMEOUT_US;
    if (o->flush_timeout_us <= 0)
        o->flush_timeout_us = HTH_FLUSH_TIMEOUT_US;
    if (o->key_records_max == 0)
        o->key_records_max = HTH_TLS_KEY_RECORDS_MAX;
}

static void raise_open_files(uint32_t streams_max)
{
    struct rlimit lim;
    rlim_t want = (rlim_t)streams_max + 2 * HTH_HTTP_CONNS_MAX + 256;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur >= want)
        return;
    lim.rlim_cur = lim.rlim_max == RLIM_INFINITY || lim.rlim_max > want ? want : lim.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &lim);
}

static enum hth_err set_up_base(struct hth_net *net)
{
    struct event_config *config = event_config_new();
    if (config == NULL)
        return HTH_E_IO;
    event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER | EVENT_BASE_FLAG_NO_CACHE_TIME |
                                      EVENT_BASE_FLAG_NOLOCK);
    net->base = event_base_new_with_config(config);
    event_config_free(config);
    if (net->base == NULL)
        return HTH_E_IO;
    event_assign(&net->ready_event, net->base, -1, 0, ready_cb, net);
    hth_net_door_init(net);
    net->inbox_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (net->inbox_fd < 0)
        return HTH_E_IO;
    event_assign(&net->inbox_event, net->base, net->inbox_fd, EV_READ | EV_PERSIST, inbox_cb, net);
    return event_add(&net->inbox_event, NULL) == 0 ? HTH_OK : HTH_E_IO;
}

static enum hth_err set_up_identity(struct hth_net *net)
{
    struct hth_env *env = &net->env;
    uint64_t seed;
    env->crypto = hth_crypto_openssl();
    if (net->opts.secret != NULL)
        env->secret = *net->opts.secret;
    else
        HTH_TRY(hth_identity_random(&env->secret));
    net->opts.secret = NULL; /* the caller may free its copy */
    env->crypto->public_of(&env->secret, &env->pubkey);
    env->self = hth_peer_id_of(env->crypto, &env->pubkey);
    hth_peer_id_short(&env->self, env->log.node);
    if (net->opts.seed != NULL)
        seed = *net->opts.seed;
    else if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
        return HTH_E_IO;
    net->opts.seed = NULL;
    hth_rng_init(&env->rng, seed);
    return HTH_OK;
}

static void set_up_metrics(struct hth_net *net)
{
    struct hth_metrics *m = hth_metrics_new();
    net->env.metrics = m;
    net->m_streams = hth_gauge(m, "hearth_net_streams", "Streams that exist");
    net->m_bytes_in = hth_counter(m, "hearth_net_received_bytes", "Bytes received, as on the wire");
    net->m_bytes_out = hth_counter(m, "hearth_net_sent_bytes", "Bytes sent, as on the wire");
    net->m_refused = hth_counter(m, "hearth_net_refused_total", "Connections beyond a limit");
    net->m_handshake_failed =
        hth_counter(m, "hearth_net_handshake_failed_total", "Connections that never proved a key");
    net->m_slow_turns = hth_counter(m, "hearth_net_slow_turns_total", "Loop turns above 50 ms");
}

enum hth_err hth_net_new(const struct hth_net_opts *opts, struct hth_env **out)
{
    struct hth_net *net = hth_new(struct hth_net);
    enum hth_err err;

    *out = NULL;
    net->env.ops = &net_ops;
    net->opts = *opts;
    net->inbox_fd = -1;
    fill_defaults(&net->opts);
    hth_log_init(&net->env.log);
    net->env.log.wall = true;
    hth_net_tick(net);
    set_up_metrics(net);
    pthread_mutex_init(&net->inbox_lock, NULL);
    for (size_t i = 0; i < HTH_ARRAY_LEN(net->lane); i++) {
        pthread_mutex_init(&net->lane[i].lock, NULL);
        pthread_cond_init(&net->lane[i].wake, NULL);
        pthread_cond_init(&net->lane[i].helped, NULL);
        net->lane[i].team.ops = &hth_net_team_ops;
    }
    net->per_addr = hth_map_new();
    net->out = hth_calloc(1, HTH_NET_OUT_BYTES);
    net->staging = hth_calloc(1, HTH_NET_RECORD_BYTES);
    net->rx = hth_calloc(1, HTH_NET_SEND_BYTES);
    net->codec = net->opts.plain ? &hth_net_plain : &hth_net_tls;
    raise_open_files(net->opts.streams_max);

    HTH_GOTO(out, set_up_base(net));
    HTH_GOTO(out, set_up_identity(net));
    if (!net->opts.plain)
        HTH_GOTO(out, hth_net_tls_setup(net));
    HTH_GOTO(out, hth_net_lane_start(net, HTH_LANE_COMPUTE, net->opts.compute_threads));
    HTH_GOTO(out, hth_net_lane_start(net, HTH_LANE_IO, 1));
out:
    if (err != HTH_OK) {
        hth_net_free(&net->env);
        return err;
    }
    *out = &net->env;
    return HTH_OK;
}

static void free_loop(struct hth_net *net)
{
    while (net->signals != NULL) {
        struct hth_net_signal *sig = net->signals;
        net->signals = sig->next;
        event_del(&sig->event);
        hth_free(sig);
    }
    while (net->post_head != NULL) {
        struct hth_net_post *post = net->post_head;
        net->post_head = post->next;
        hth_free(post);
    }
    if (net->base == NULL)
        return;
    event_del(&net->ready_event);
    if (net->inbox_fd >= 0) {
        event_del(&net->inbox_event);
        close(net->inbox_fd);
    }
    event_base_free(net->base);
}

void hth_net_free(struct hth_env *env)
{
    if (env == NULL)
        return;
    struct hth_net *net = hth_net_of(env);
    hth_net_jobs_end(env);
    /* The grave is emptied here, without a turn: owners are freed, so no callback may run. */
    while (net->listeners != NULL)
        hth_net_listener_free(net->listeners);
    while (net->streams != NULL)
        hth_net_stream_cut(net->streams);
    hth_net_door_clear(net);
    net->depth++;
    hth_net_streams_ready(net);
    hth_net_streams_pump(net);
    hth_net_streams_bury(net);
    net->depth--;
    free_loop(net);
    hth_net_tls_teardown(net);
    hth_map_free(net->per_addr);
    for (size_t i = 0; i < HTH_ARRAY_LEN(net->lane); i++) {
        pthread_mutex_destroy(&net->lane[i].lock);
        pthread_cond_destroy(&net->lane[i].wake);
        pthread_cond_destroy(&net->lane[i].helped);
    }
    pthread_mutex_destroy(&net->inbox_lock);
    hth_metrics_free(env->metrics);
    hth_free(net->out);
    hth_free(net->staging);
    hth_free(net->rx);
    explicit_bzero(&env->secret, sizeof(env->secret));
    hth_free(net);
}

uint32_t hth_net_stream_count(const struct hth_env *env)
{
    return HTH_CONTAINER(env, const struct hth_net, env)->stream_count;
}
