/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * emu.h: the arithmetic of netlab: packets between hosts that are delayed, lost and queued, on the
 * caller's clock.
 *
 *   send -> [ sender's up line ] -> ( way: loss, delay, jitter ) -> [ receiver's down line ] -> ..
 *
 * A line, the access link of a host, sends its packets one after the other at its rate. Like a
 * router, it drops a packet that would wait behind more than queue_bytes. Each direction between
 * two hosts is a way with the laws of the simulator's links (hth_link_delay_us). A way keeps its
 * packets in order. Packets of one burst have the same jitter: it is drawn again after 64 KiB, or
 * after 2 ms without a packet, as the simulator draws one for each segment. With a draw for each
 * packet, a way in order would be as slow as the largest draw.
 *
 * Times are in nanoseconds and must not go back. Same seed, same packets at the same times: same
 * verdicts. One thread.
 */
/* clang-format on */
#ifndef HTH_LAB_EMU_H
#define HTH_LAB_EMU_H

#include "core/heap.h"
#include "sim/params.h"

#define HTH_LAB_HOSTS_MAX   200
#define HTH_LAB_QUEUE_BYTES (256u << 10) /* of a line without one of its own */
/* Limit of all packets under way: beyond it they are dropped. */
#define HTH_LAB_BYTES_MAX (512u << 20)

struct hth_lab_emu;

struct hth_lab_line {
    double up_bytes_per_s, down_bytes_per_s; /* 0: unlimited */
    uint32_t queue_bytes;
};

struct hth_lab_packet {
    struct hth_heap_node node; /* private, up to `arrived` */
    uint64_t order;
    bool arrived;
    int64_t due_ns; /* time at which it was to be delivered */
    uint32_t from, to;
    uint32_t len;
    uint8_t data[];
};

struct hth_lab_count {
    uint64_t sent, delivered, delivered_bytes;
    /* lost by chance; dropped by the queues of the lines */
    uint64_t lost, dropped_up, dropped_down;
};

struct hth_lab_emu *hth_lab_emu_new(uint64_t seed, uint32_t hosts);
void hth_lab_emu_free(struct hth_lab_emu *emu);
/* Set the line of a host. Initially lines are unlimited and ways take no time. */
void hth_lab_emu_line(struct hth_lab_emu *emu, uint32_t host, const struct hth_lab_line *line);
void hth_lab_emu_way(struct hth_lab_emu *emu, uint32_t from, uint32_t to,
                     const struct hth_link *link);

/* Make a packet with room for that many bytes of data; len is set to it. Free with hth_free. */
struct hth_lab_packet *hth_lab_packet_new(uint32_t bytes);
/* Send a packet, with from, to and len set. Takes ownership of it. */
void hth_lab_emu_send_take(struct hth_lab_emu *emu, int64_t now_ns, struct hth_lab_packet *packet);
/* Return the next packet that is due by now, which the caller frees; NULL: none. */
struct hth_lab_packet *hth_lab_emu_next(struct hth_lab_emu *emu, int64_t now_ns);
/* The time for the next call of hth_lab_emu_next; INT64_MAX: no packet is under way. */
int64_t hth_lab_emu_due_ns(const struct hth_lab_emu *emu);
/* Read the counters of a host: `sent` and losses count at the sender, `delivered` and dropped_down
 * at the receiver. */
void hth_lab_emu_count(const struct hth_lab_emu *emu, uint32_t host, struct hth_lab_count *out);

#endif
