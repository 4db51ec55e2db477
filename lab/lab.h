/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lab.h: a small internet on one machine: each host is a network namespace with one TUN device, and
 * this process carries the packets between them by the rules of emu.h.
 *
 *   namespace 1          this process                namespace 2
 *   10.77.0.1 [tun] ---> read, delay, lose, write ---> [tun] 10.77.0.2
 *
 * The caller gives a function to run in the lab. It runs in its own process, the first of a new PID
 * namespace with its own /proc. When it returns, or this process ends for any reason, the kernel
 * kills all processes of the lab. The namespaces have no names and the devices belong to this
 * process's descriptors, so nothing stays behind, not even after SIGKILL.
 *
 * In the lab, hth_lab_enter moves the calling process to a host. Any process there can do it, by
 * the environment variable NETLAB and /proc/1/fd, where the first process holds the namespaces.
 * Needs CAP_NET_ADMIN and CAP_SYS_ADMIN (root) and /dev/net/tun. Linux only. One thread.
 *
 * A lab is described in YAML. Hosts get the addresses 10.77.0.1, 10.77.0.2, ... in their order:
 *
 *     seed: 1
 *     mtu: 1500
 *     link: { latency_ms: 25, jitter_ms: 5, jitter: exponential, loss: 0.001 }
 *     hosts:
 *       - { name: home, up_mbit: 20, down_mbit: 100, queue_kib: 256 }
 *       - { name: server }
 *     ways:                       # one direction each, instead of link
 *       - { from: home, to: server, latency_ms: 100 }
 *
 * Jitter is none, uniform, exponential or normal; `jitter_ms` its mean. Rates of 0, and those left
 * out, are unlimited. Unknown keys and values out of range are errors with file, line and key.
 */
#ifndef HTH_LAB_LAB_H
#define HTH_LAB_LAB_H

#include "lab/emu.h"

#define HTH_LAB_NAME_MAX  31
#define HTH_LAB_WAYS_MAX  (HTH_LAB_HOSTS_MAX * HTH_LAB_HOSTS_MAX)
#define HTH_LAB_ERROR_MAX 512
#define HTH_LAB_TEXT_MAX  (4u << 20) /* bytes of a file */
#define HTH_LAB_MTU       1500

/* Exit code of programs that cannot make a lab here; test runners count it as "skipped". */
#define HTH_LAB_EXIT_SKIP 77

struct hth_lab_spec_link {
    double latency_ms, jitter_ms, loss;
    enum hth_jitter jitter;
};
struct hth_lab_spec_host {
    char *name;
    double up_mbit, down_mbit;
    uint32_t queue_kib; /* 0: HTH_LAB_QUEUE_BYTES */
};
struct hth_lab_spec_way {
    char *from, *to;
    struct hth_lab_spec_link link;
};
struct hth_lab_spec {
    uint64_t seed;
    uint32_t mtu; /* 0: HTH_LAB_MTU */
    struct hth_lab_spec_link link;
    struct hth_lab_spec_host *hosts;
    uint32_t host_count;
    struct hth_lab_spec_way *ways;
    uint32_t way_count;
};

/* Parse a spec (file.c). `name` appears in errors. Errors: E_CONFIG, E_TOO_LARGE. */
enum hth_err hth_lab_parse(const char *name, const uint8_t *data, size_t len,
                           struct hth_lab_spec **out, char error[HTH_LAB_ERROR_MAX]) HTH_MUST;
/* Free a spec of hth_lab_parse. NULL is fine. */
void hth_lab_spec_free(struct hth_lab_spec *spec);
/* Check that all values are within their bounds, which holds for parsed ones. Errors: E_RANGE. */
enum hth_err hth_lab_check(const struct hth_lab_spec *spec, char *error, size_t error_max) HTH_MUST;
/* Index of a host; UINT32_MAX: no host has that name. */
uint32_t hth_lab_find(const struct hth_lab_spec *spec, const char *name);

struct hth_lab;

/* Make namespaces and devices. Errors: E_RANGE; E_UNSUPPORTED (no rights, no TUN: `error` says what
 * is missing); E_IO. */
enum hth_err hth_lab_new(const struct hth_lab_spec *spec, struct hth_lab **out,
                         char error[HTH_LAB_ERROR_MAX]) HTH_MUST;
/* NULL is fine. */
void hth_lab_free(struct hth_lab *lab);

/* Run act(arg) in the lab until it returns, and carry packets meanwhile. Returns its exit code, or
 * 128 + the signal that ended it, or HTH_LAB_EXIT_SKIP where it cannot have its own /proc. SIGINT,
 * SIGTERM and SIGHUP are passed on to its command; the second one ends the lab. Errors: -1 with
 * errno. */
int hth_lab_run(struct hth_lab *lab, int (*act)(void *arg), void *arg);
/* For `act`: run a program until it ends, and reap all other children that end. Returns its exit
 * code; 126, 127 as in a shell. */
int hth_lab_command(char *const *argv);
/* In the lab: move the calling process to that host; only sockets that it makes later are there.
 * Errors: E_NOT_FOUND, E_CLOSED (not in a lab), E_IO. */
enum hth_err hth_lab_enter(const char *host) HTH_MUST;
/* The same by index, for `act`. */
enum hth_err hth_lab_enter_index(struct hth_lab *lab, uint32_t host) HTH_MUST;

/* After a run: the counters of a host, and the lateness of delivered packets against their due
 * time: the median, the 99th percentile and the maximum, in microseconds. */
void hth_lab_count(const struct hth_lab *lab, uint32_t host, struct hth_lab_count *out);
void hth_lab_lateness(const struct hth_lab *lab, double *median_us, double *p99_us,
                      double *worst_us);

#endif
