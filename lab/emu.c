/* SPDX-License-Identifier: Apache-2.0 */
/* emu.c: decides when packets arrive, and whether they do. */
#include "lab/emu.h"

#include "core/mem.h"
#include "core/rng.h"

#define SEGMENT_BYTES  (64u << 10)
#define SEGMENT_GAP_NS INT64_C(2000000)

/* The queue of an access link. It needs no list: its length follows from the time at which the link
 * is free. */
struct queue {
    double bytes_per_s;
    uint32_t bytes_max;
    int64_t free_ns;
};

struct emu_path {
    struct hth_link link;
    int64_t delay_ns; /* delay of the segment under way */
    uint32_t segment_left;
    int64_t last_sent_ns, last_arrive_ns;
};

struct emu_host {
    struct queue up, down;
    struct hth_lab_count count;
};

struct hth_lab_emu {
    struct hth_heap heap;
    struct hth_rng rng;
    uint64_t order;
    uint64_t bytes; /* of all packets under way */
    uint32_t hosts;
    struct emu_host *host;
    struct emu_path *way; /* [from][to] */
};

static bool sooner(const struct hth_heap_node *a, const struct hth_heap_node *b)
{
    return HTH_CONTAINER(a, const struct hth_lab_packet, node)->order <
           HTH_CONTAINER(b, const struct hth_lab_packet, node)->order;
}

struct hth_lab_emu *hth_lab_emu_new(uint64_t seed, uint32_t hosts)
{
    struct hth_lab_emu *emu = hth_new(struct hth_lab_emu);
    HTH_ASSERT(hosts > 0 && hosts <= HTH_LAB_HOSTS_MAX);
    hth_heap_init(&emu->heap, sooner);
    hth_rng_init(&emu->rng, seed);
    emu->hosts = hosts;
    emu->host = hth_new_array(struct emu_host, hosts);
    emu->way = hth_new_array(struct emu_path, (size_t)hosts * hosts);
    return emu;
}

void hth_lab_emu_free(struct hth_lab_emu *emu)
{
    if (emu == NULL)
        return;
    for (struct hth_heap_node *n; (n = hth_heap_pop(&emu->heap)) != NULL;)
        hth_free(HTH_CONTAINER(n, struct hth_lab_packet, node));
    hth_heap_clear(&emu->heap);
    hth_free(emu->host);
    hth_free(emu->way);
    hth_free(emu);
}

void hth_lab_emu_line(struct hth_lab_emu *emu, uint32_t host, const struct hth_lab_line *line)
{
    struct emu_host *h = &emu->host[host];
    h->up = (struct queue){.bytes_per_s = line->up_bytes_per_s, .bytes_max = line->queue_bytes};
    h->down = (struct queue){.bytes_per_s = line->down_bytes_per_s, .bytes_max = line->queue_bytes};
}

void hth_lab_emu_way(struct hth_lab_emu *emu, uint32_t from, uint32_t to,
                     const struct hth_link *link)
{
    emu->way[from * emu->hosts + to] = (struct emu_path){.link = *link};
}

void hth_lab_emu_count(const struct hth_lab_emu *emu, uint32_t host, struct hth_lab_count *out)
{
    *out = emu->host[host].count;
}

struct hth_lab_packet *hth_lab_packet_new(uint32_t bytes)
{
    struct hth_lab_packet *p = hth_calloc(1, sizeof(*p) + bytes);
    p->len = bytes;
    return p;
}

/* Compute when the packet has passed the access link; false when the queue is full. The queue's
 * length is the time until the link is free, in bytes; the packet that is being sent counts. */
static bool pass_line(struct queue *q, int64_t now_ns, uint32_t len, int64_t *out_ns)
{
    *out_ns = now_ns;
    if (q->bytes_per_s <= 0)
        return true;
    int64_t begin_ns = HTH_MAX(now_ns, q->free_ns);
    if ((double)(begin_ns - now_ns) * 1e-9 * q->bytes_per_s + len > q->bytes_max)
        return false;
    q->free_ns = begin_ns + (int64_t)(len * 1e9 / q->bytes_per_s + 0.5);
    *out_ns = q->free_ns;
    return true;
}

static int64_t way_delay_ns(struct hth_lab_emu *emu, struct emu_path *way, int64_t now_ns,
                            uint32_t len)
{
    if (way->segment_left < len || now_ns - way->last_sent_ns > SEGMENT_GAP_NS) {
        way->segment_left = SEGMENT_BYTES;
        way->delay_ns = hth_link_delay_us(&way->link, &emu->rng) * 1000;
    }
    way->segment_left -= HTH_MIN(len, way->segment_left);
    way->last_sent_ns = now_ns;
    return way->delay_ns;
}

static void schedule(struct hth_lab_emu *emu, struct hth_lab_packet *p, int64_t due_ns)
{
    p->node = (struct hth_heap_node){.key = due_ns};
    p->due_ns = due_ns;
    p->order = emu->order++;
    hth_heap_push(&emu->heap, &p->node);
}

static void drop(struct hth_lab_emu *emu, struct hth_lab_packet *p, uint64_t *count)
{
    (*count)++;
    emu->bytes -= p->len;
    hth_free(p);
}

void hth_lab_emu_send_take(struct hth_lab_emu *emu, int64_t now_ns, struct hth_lab_packet *p)
{
    HTH_ASSERT(p->from < emu->hosts && p->to < emu->hosts);
    struct emu_host *from = &emu->host[p->from];
    struct emu_path *way = &emu->way[p->from * emu->hosts + p->to];
    int64_t sent_ns;
    from->count.sent++;
    emu->bytes += p->len;
    p->arrived = false;
    if (emu->bytes > HTH_LAB_BYTES_MAX || !pass_line(&from->up, now_ns, p->len, &sent_ns)) {
        drop(emu, p, &from->count.dropped_up);
        return;
    }
    /* A lost packet was sent: it took its time on the access link. */
    if (hth_rng_chance(&emu->rng, way->link.loss)) {
        drop(emu, p, &from->count.lost);
        return;
    }
    int64_t arrive_ns = sent_ns + way_delay_ns(emu, way, sent_ns, p->len);
    way->last_arrive_ns = HTH_MAX(arrive_ns, way->last_arrive_ns);
    schedule(emu, p, way->last_arrive_ns);
}

/* Pass the receiver's access link at the packet's due time: a late caller does not slow the link
 * down. Returns whether the packet passes at once. */
static bool arrive(struct hth_lab_emu *emu, struct hth_lab_packet *p)
{
    struct emu_host *to = &emu->host[p->to];
    int64_t through_ns;
    p->arrived = true;
    if (to->down.bytes_per_s <= 0)
        return true;
    if (pass_line(&to->down, p->due_ns, p->len, &through_ns))
        schedule(emu, p, through_ns);
    else
        drop(emu, p, &to->count.dropped_down);
    return false;
}

struct hth_lab_packet *hth_lab_emu_next(struct hth_lab_emu *emu, int64_t now_ns)
{
    while (hth_lab_emu_due_ns(emu) <= now_ns) {
        struct hth_lab_packet *p =
            HTH_CONTAINER(hth_heap_pop(&emu->heap), struct hth_lab_packet, node);
        if (!p->arrived && !arrive(emu, p))
            continue;
        struct hth_lab_count *count = &emu->host[p->to].count;
        count->delivered++;
        count->delivered_bytes += p->len;
        emu->bytes -= p->len;
        return p;
    }
    return NULL;
}

int64_t hth_lab_emu_due_ns(const struct hth_lab_emu *emu)
{
    const struct hth_heap_node *top = hth_heap_top(&emu->heap);
    return top != NULL ? top->key : INT64_MAX;
}
