/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.h: the real world as a `struct hth_env`: libevent, TCP under TLS 1.3, worker threads, files.
 *
 *     struct hth_net_opts opts = HTH_NET_OPTS_INIT;
 *     struct hth_env *env;
 *     opts.secret = &secret;                    (from hth_identity_load, identity.h)
 *     err = hth_net_new(&opts, &env);
 *     ... build the modules on env ...
 *     err = hth_net_run(env);                   returns after hth_net_stop
 *     hth_net_jobs_end(env);                    after this no job refers to a module
 *     ... free the modules ...
 *     hth_net_free(env);
 *
 * Threads. The thread that calls hth_net_run is the loop thread; it also creates and frees the
 * environment. Any number of environments may live in one process, each on a thread of its own.
 * Compute lanes and the io lane are threads of the environment; they run jobs and nothing else.
 *
 * Streams. The bytes of a stream are TLS 1.3 records. Both sides show a self-signed certificate of
 * their Ed25519 key, made in memory; a peer's id is the SHA-256 of its raw public key and is
 * compared with the id that the dialler wants before its own certificate is sent. Nothing else of
 * the certificate matters: no name, no date, no authority. Plain mode (opts.plain) exists to
 * measure the cost of TLS: both sides send their key in clear text and prove nothing, so it must
 * never leave a benchmark.
 *
 * hth_stream_close. With flush, all queued bytes are sent, then close_notify, and the other side
 * gets on_closed(HTH_OK). Without flush the connection is cut and the other side gets
 * on_closed(HTH_E_CLOSED), as after a crash. A stream that is not open yet is cut in both cases. A
 * paused stream notices its end when it is resumed or written to.
 *
 * Turns. A turn is one call from libevent into net/; hth_now_us is constant during a callback.
 * Turns longer than 50 ms are logged (WARN, subsystem net) and counted: a callback blocked the
 * loop.
 */
#ifndef HTH_NET_NET_H
#define HTH_NET_NET_H

#include "core/env.h"

struct hth_net_opts {
    const struct hth_secret *secret; /* identity; NULL makes a key that lasts as long as env */
    const uint64_t *seed;            /* of env->rng; NULL draws one from the kernel */
    uint32_t compute_threads;        /* 0: cores - 1, at least 1; offline: all cores */
    uint32_t streams_max;            /* 0: HTH_STREAMS_MAX */
    uint32_t streams_per_addr_max;   /* accepted; 0: HTH_STREAMS_PER_ADDR_MAX */
    int64_t dial_timeout_us;         /* until TCP connects; 0: HTH_DIAL_TIMEOUT_US */
    int64_t handshake_timeout_us;    /* from TCP to a proven key; 0: HTH_HANDSHAKE_TIMEOUT_US */
    int64_t flush_timeout_us;        /* of hth_stream_close; 0: HTH_FLUSH_TIMEOUT_US */
    uint64_t key_records_max;        /* TLS records under one key; 0: HTH_TLS_KEY_RECORDS_MAX */
    bool offline;                    /* no peers: the loop needs no core of its own */
    bool plain;                      /* no TLS, nothing is authenticated: benchmarks only */
};

#define HTH_NET_OPTS_INIT                                                                          \
    {                                                                                              \
        .secret = NULL                                                                             \
    }

/* Starts the worker threads and opens no socket. Raises the soft limit of open files to the need of
 * streams_max, as far as the hard limit allows. Errors: E_IO (the kernel gave no event loop, thread
 * or random bytes), E_BAD_KEY. */
enum hth_err hth_net_new(const struct hth_net_opts *opts, struct hth_env **out) HTH_MUST;

/* Ends the jobs (as hth_net_jobs_end), cuts remaining streams and listeners without callbacks,
 * joins the threads. Timers belong to their owners, who must free them first. NULL is fine. */
void hth_net_free(struct hth_env *env);

/* Runs the loop until hth_net_stop; may be called again. Errors: E_IO (the loop failed). */
enum hth_err hth_net_run(struct hth_env *env) HTH_MUST;

/* Makes hth_net_run return soon, or at once when it has not started. Any thread. */
void hth_net_stop(struct hth_env *env);

/* After this call hth_job_submit gives E_CANCELED. Waiting jobs get done(E_CANCELED); running ones
 * finish and get done(HTH_OK), all before this returns. Signals get their default actions back
 * before it waits, so that a signal can end a process whose job never ends. Loop thread, outside of
 * callbacks. */
void hth_net_jobs_end(struct hth_env *env);

/* Calls fn(arg) on the loop thread whenever the signal arrives. One environment per process may do
 * this. Errors: E_IO. */
enum hth_err hth_net_on_signal(struct hth_env *env, int signo, hth_fn *fn, void *arg) HTH_MUST;

/* Makes the folders above a file's path. Any thread. Errors: those of files. */
enum hth_err hth_net_mkdirs(const char *path) HTH_MUST;

/* "host:port" to addresses: numeric forms at once, names through the system's resolver, which may
 * block for seconds: before the loop runs or in a job. At most `max` are stored, without repeats,
 * in the resolver's order of preference.
 *
 * Errors: E_MALFORMED, E_NOT_FOUND (no such name), E_AGAIN (the name server does not answer). */
enum hth_err hth_net_resolve(const char *text, struct hth_addr *out, size_t max,
                             size_t *count) HTH_MUST;

/* Streams that exist now, in any state. For tests and status. */
uint32_t hth_net_stream_count(const struct hth_env *env);

/* "TLS_AES_128_GCM_SHA256" or "plain". For status and benchmarks. */
const char *hth_net_stream_cipher(const struct hth_stream *s);

#endif
