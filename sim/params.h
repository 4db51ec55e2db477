/* SPDX-License-Identifier: Apache-2.0 */
/*
 * params.h: the numbers of a simulated world, as plain values.
 *
 * Every struct has an _INIT that describes a calm, ordinary world: 10 ms links without jitter or
 * loss, gigabit access, one core of a desktop, a DHT that answers truthfully, no faults. A scenario
 * draws its own numbers from the seed. Rates of 0 mean unlimited. Probabilities lie in [0, 1].
 */
#ifndef HTH_SIM_PARAMS_H
#define HTH_SIM_PARAMS_H

#include "core/base.h"

struct hth_profile;
struct hth_rng;

/* The random part of a delay. `jitter_us` is its mean; for NORMAL, the standard deviation of a
 * normal distribution that is cut off at 0. UNIFORM runs from 0 to twice the mean. */
enum hth_jitter { HTH_JITTER_NONE, HTH_JITTER_UNIFORM, HTH_JITTER_EXPONENTIAL, HTH_JITTER_NORMAL };

/* One direction between two nodes. Loss is per packet of 1460 bytes. Streams deliver every byte in
 * order, so a lost packet shows as a stall of one round trip, or of a round trip and 200 ms when no
 * later packet makes the receiver complain. */
struct hth_link {
    int64_t latency_us;
    int64_t jitter_us;
    enum hth_jitter jitter;
    double loss;
};
#define HTH_LINK_INIT                                                                              \
    {                                                                                              \
        .latency_us = 10000                                                                        \
    }

/* Draw the delay of one packet (link.c). */
int64_t hth_link_delay_us(const struct hth_link *link, struct hth_rng *rng);

/* The hardware of a node. A compute job takes max(flops / flops_per_s, bytes_moved / bytes_per_s) +
 * job_overhead_us on one of compute_workers; an io job takes bytes_moved / disk_bytes_per_s +
 * disk_latency_us on one worker. Streams of a node share its up_ and down_bytes_per_s fairly. With
 * a profile, a job whose work is counted by kind takes the measured time instead, times
 * profile_slow. */
struct hth_device {
    const struct hth_profile *profile; /* borrowed (profile.h); NULL: rates alone */
    double profile_slow;               /* factor on the profile's times; 0 counts as 1 */
    double flops_per_s;
    double bytes_per_s;
    int64_t job_overhead_us;
    uint32_t compute_workers;
    double disk_bytes_per_s;
    int64_t disk_latency_us;
    uint64_t disk_bytes_max; /* file_write returns E_DISK_FULL beyond it; 0: unlimited */
    double up_bytes_per_s;
    double down_bytes_per_s;
};
#define HTH_DEVICE_INIT                                                                            \
    {                                                                                              \
        .flops_per_s = 50e9, .bytes_per_s = 10e9, .job_overhead_us = 20, .compute_workers = 1,     \
        .disk_bytes_per_s = 500e6, .disk_latency_us = 100, .up_bytes_per_s = 125e6,                \
        .down_bytes_per_s = 125e6                                                                  \
    }

/* Multiply the speed of the processors. */
static inline void hth_device_scale(struct hth_device *device, double speed)
{
    device->flops_per_s *= speed;
    device->bytes_per_s *= speed;
    device->profile_slow = (device->profile_slow > 0 ? device->profile_slow : 1.0) / speed;
}

/* The simulated DHT. The delays follow measurements of OpenDHT on 64 nodes over 25 ms links: a put
 * ends after 1 + log2(N)/2 round trips; a get sees its first value after 1/2 + log2(N)/4 and ends
 * after 1.6 + log2(N)/2; a watch is told about when the put ends; values beyond 1200 bytes need one
 * round trip more for each further 1200. N counts the nodes that are up. */
struct hth_dht_params {
    int64_t life_us;          /* life of a value after its last announcement */
    int64_t announce_us;      /* interval at which a living publisher announces again; < life_us */
    int64_t watch_refresh_us; /* a push that was lost arrives with the next refresh */
    int64_t get_timeout_us;   /* a lost get ends with E_TIMEOUT after this */
    /* chance that the first announcement reaches no node (done gets E_TIMEOUT) */
    double lost_put;
    double lost_get; /* chance that no node answers */
    /* chance that a value is missing from an answer, or its push is lost */
    double partial;
    double repeat; /* chance that a value is given twice */
    double stale;  /* chance that nodes which lag by stale_us answer a get */
    int64_t stale_us;
};
#define HTH_DHT_PARAMS_INIT                                                                        \
    {                                                                                              \
        .life_us = 600 * HTH_US_PER_S, .announce_us = 540 * HTH_US_PER_S,                          \
        .watch_refresh_us = 30 * HTH_US_PER_S, .get_timeout_us = 10 * HTH_US_PER_S,                \
        .stale_us = 10 * HTH_US_PER_S                                                              \
    }

/* Faults that the world injects. Chances unless a unit is named. */
struct hth_chaos {
    double short_read;   /* a read gives fewer bytes than have arrived */
    double short_write;  /* a segment is cut at an arbitrary byte */
    double io_error;     /* a file operation fails with E_IO */
    double torn_file;    /* a file written in the last 5 s before a crash comes back cut short */
    double site_enabled; /* chance that a named fault site is enabled for the whole run */
    double site_fires;   /* chance that an enabled site fires when asked (Buggify: 0.25 and 0.25) */
};
#define HTH_CHAOS_INIT                                                                             \
    {                                                                                              \
        .short_read = 0.05, .short_write = 0.05                                                    \
    }
/* No faults: for tests that compute times and counts by hand. */
#define HTH_CHAOS_NONE                                                                             \
    {                                                                                              \
        .short_read = 0                                                                            \
    }

#endif
