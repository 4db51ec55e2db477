/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * emu.h: packets between hosts that are delayed, lost and held up: the arithmetic of netlab,
 * on whatever clock the caller has.
 *
 *   send -> [ sender's up line ] -> ( way: loss, delay, jitter ) -> [ receiver's down line ] -> ..
 *
 * A line sends its packets one after the other at its rate; what would have to wait behind more
 * than queue_bytes is dropped, as a router's queue does. Each direction between two hosts is a way
 * with the laws of the simulator's links (hth_link_delay_us). A way keeps its packets in order, and
 * what is sent in one go has one jitter: it is drawn anew after 64 KiB, or after 2 ms without a
 * packet, as the simulator draws one for each segment. With a draw for each packet an order-keeping
 * way would be as slow as the largest of them.
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
#define HTH_LAB_QUEUE_BYTES (256u << 10) /* of a line, where nothing else is said */
/* All packets that are under way: beyond it they are dropped. */
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
    int64_t due_ns; /* when it was to be delivered */
    uint32_t from, to;
    uint32_t len;
    uint8_t data[];
};

struct hth_lab_count {
    uint64_t sent, delivered, delivered_bytes;
    uint64_t lost, dropped_up, dropped_down; /* by chance; by the lines' queues */
};

struct hth_lab_emu *hth_lab_emu_new(uint64_t seed, uint32_t hosts);
void hth_lab_emu_free(struct hth_lab_emu *emu);
/* Hosts have unlimited lines and ways take no time until something else is said. */
void hth_lab_emu_line(struct hth_lab_emu *emu, uint32_t host, const struct hth_lab_line *line);
void hth_lab_emu_way(struct hth_lab_emu *emu, uint32_t from, uint32_t to,
                     const struct hth_link *link);

/* With room for that many bytes of data; len is set to it. Free with hth_free. */
struct hth_lab_packet *hth_lab_packet_new(uint32_t bytes);
/* Takes the packet, with from, to and len set. */
void hth_lab_emu_send_take(struct hth_lab_emu *emu, int64_t now_ns, struct hth_lab_packet *packet);
/* The next packet that is due by now, the caller's from then on; NULL: none. */
struct hth_lab_packet *hth_lab_emu_next(struct hth_lab_emu *emu, int64_t now_ns);
/* When to call hth_lab_emu_next again; INT64_MAX: nothing is under way. */
int64_t hth_lab_emu_due_ns(const struct hth_lab_emu *emu);
/* `sent` and losses count at the sender, `delivered` and dropped_down at the receiver. */
void hth_lab_emu_count(const struct hth_lab_emu *emu, uint32_t host, struct hth_lab_count *out);

#endif
