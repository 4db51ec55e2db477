/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipe.c: the bytes of streams.
 *
 *   write         sender's uplink          link         receiver's downlink         read
 *   ----->[ queue ]--- segment by segment ---( delay )---[ waits its turn ]--->[ unread ]----->
 *         written                 sent                              delivered        read
 *
 * Chunks (references to the writer's blobs) never move: only the four counters do. The window
 * bounds the bytes between `sent` and `read`. So when a reader stops, the window fills, then the
 * sender's queue, and then the sender's writes return E_QUEUE_FULL.
 */
#include "sim/sim_int.h"

#include "core/limits.h"

#include <string.h>

#define PACKET_BYTES     1460u
#define SEGMENT_S_MAX    0.01 /* longest time of one segment on a slow uplink */
#define RETRY_FIRST_US   INT64_C(200000)
#define RETRY_MAX_US     (120 * HTH_US_PER_S)
#define RETRY_GIVE_UP_US (900 * HTH_US_PER_S)

static void serve_uplink(struct hth_node *node);

void hth_sim_pipe_init(struct hth_stream *s)
{
    struct hth_stream *other = sim_stream_other(s);
    sim_event_init(&s->out.arrive, SIM_ARRIVE, other->node);
    sim_event_init(&s->out.credit, SIM_CREDIT, s->node);
    sim_list_init(&s->out.ready);
}

/* Free chunks until the list holds `left` unread bytes. */
static void drop_chunks_from_end(struct sim_pipe *p, uint64_t left)
{
    struct sim_chunk **link = &p->chunks;
    struct sim_chunk *last = NULL;
    uint64_t bytes = left + p->chunk_used;
    while (*link != NULL && bytes > 0) {
        struct sim_chunk *c = *link;
        c->len = (size_t)HTH_MIN((uint64_t)c->len, bytes);
        bytes -= c->len;
        last = c;
        link = &c->next;
    }
    struct sim_chunk *rest = *link;
    *link = NULL;
    p->chunks_last = last;
    if (p->chunks == NULL)
        p->chunk_used = 0;
    while (rest != NULL) {
        struct sim_chunk *c = rest;
        rest = c->next;
        hth_blob_unref(c->blob);
        hth_free(c);
    }
}

void hth_sim_pipe_cut(struct hth_stream *s)
{
    struct sim_pipe *p = &s->out;
    drop_chunks_from_end(p, p->sent - p->read);
    p->written = p->sent;
}

void hth_sim_pipe_clear(struct hth_stream *s)
{
    struct sim_pipe *p = &s->out;
    struct hth_world *w = s->node->world;
    hth_sim_unschedule(w, &p->arrive);
    hth_sim_unschedule(w, &p->credit);
    sim_list_remove(&p->ready);
    drop_chunks_from_end(p, 0);
    while (p->chunks != NULL) { /* the chunk that has been read in part */
        struct sim_chunk *c = p->chunks;
        p->chunks = c->next;
        hth_blob_unref(c->blob);
        hth_free(c);
    }
    while (p->segments != NULL) {
        struct sim_segment *seg = p->segments;
        p->segments = seg->next;
        hth_free(seg);
    }
}

/* ---- writing ------------------------------------------------------------------------------- */

size_t hth_sim_stream_queued(const struct hth_stream *s)
{
    return (size_t)(s->out.written - s->out.sent);
}

enum hth_err hth_sim_stream_write(struct hth_stream *s, const struct hth_span *spans, size_t count)
{
    struct sim_pipe *p = &s->out;
    size_t total = 0;
    HTH_ASSERT(s->held);
    if ((s->state != SIM_END_OPEN && s->state != SIM_END_DIALING) || s->close_due)
        return HTH_E_CLOSED;
    for (size_t i = 0; i < count; i++) {
        HTH_ASSERT(spans[i].len <= spans[i].blob->size &&
                   spans[i].offset <= spans[i].blob->size - spans[i].len);
        total += spans[i].len;
        if (total > HTH_STREAM_QUEUE_BYTES_MAX)
            return HTH_E_QUEUE_FULL;
    }
    if (hth_sim_stream_queued(s) + total > HTH_STREAM_QUEUE_BYTES_MAX)
        return HTH_E_QUEUE_FULL;
    for (size_t i = 0; i < count; i++) {
        if (spans[i].len == 0)
            continue;
        struct sim_chunk *c = hth_new(struct sim_chunk);
        c->blob = hth_blob_ref(spans[i].blob);
        c->offset = spans[i].offset;
        c->len = spans[i].len;
        if (p->chunks_last != NULL)
            p->chunks_last->next = c;
        else
            p->chunks = c;
        p->chunks_last = c;
    }
    p->written += total;
    hth_sim_pipe_kick(s);
    if (hth_sim_stream_queued(s) >= HTH_STREAM_LOW_BYTES)
        s->filled = true;
    return HTH_OK;
}

/* ---- the sender's line --------------------------------------------------------------------- */

static bool can_send(const struct hth_stream *s)
{
    const struct sim_pipe *p = &s->out;
    bool alive = s->state == SIM_END_OPEN || (s->state == SIM_END_GONE && !s->crashed);
    return alive && !p->fin_sent && !p->window_full && (p->written > p->sent || p->ending);
}

void hth_sim_pipe_kick(struct hth_stream *s)
{
    if (!can_send(s))
        return;
    if (sim_list_empty(&s->out.ready))
        sim_list_append(&s->node->up_ready, &s->out.ready);
    serve_uplink(s->node);
}

/* Return 1 - (1 - loss)^packets, by squaring, so that every machine gets the same bits. */
static double loss_of_segment(double loss, uint32_t len)
{
    double kept = 1.0;
    double base = 1.0 - loss;
    for (uint32_t n = (len + PACKET_BYTES - 1) / PACKET_BYTES; n > 0; n >>= 1) {
        if (n & 1)
            kept *= base;
        base *= base;
    }
    return 1.0 - kept;
}

static int64_t loss_stall(struct hth_stream *s, const struct hth_link *link, uint32_t len)
{
    struct hth_world *w = s->node->world;
    if (link->loss <= 0.0 || len == 0 ||
        !hth_rng_chance(&w->link_rng, loss_of_segment(link->loss, len)))
        return 0;
    bool followed = len > 4 * PACKET_BYTES || s->out.written > s->out.sent;
    return 2 * link->latency_us + (followed ? 0 : RETRY_FIRST_US);
}

static void append_segment(struct hth_stream *s, struct sim_segment *seg)
{
    struct sim_pipe *p = &s->out;
    seg->arrive_us = HTH_MAX(seg->arrive_us, p->last_arrive_us);
    p->last_arrive_us = seg->arrive_us;
    if (p->segments_last != NULL) {
        p->segments_last->next = seg;
    } else {
        p->segments = seg;
        hth_sim_schedule(s->node->world, &p->arrive, seg->arrive_us);
    }
    p->segments_last = seg;
}

/* Limit a segment to 10 ms of the uplink. A segment arrives as a whole and streams send in
 * rotation: with longer segments on a slow uplink, one stream of many would be silent for seconds,
 * where real packets of all of them mix. */
static uint64_t segment_max(const struct hth_node *node)
{
    uint64_t most = node->world->opts.segment_bytes;
    double most_bytes = node->device.up_bytes_per_s * SEGMENT_S_MAX;
    if (most_bytes <= 0 || most_bytes >= (double)most)
        return most;
    return HTH_MIN(HTH_MAX((uint64_t)most_bytes, (uint64_t)PACKET_BYTES), most);
}

/* Length of the next segment. 0 although bytes wait means that the window is full. */
static uint32_t segment_length(const struct hth_stream *s)
{
    struct hth_world *w = s->node->world;
    const struct sim_pipe *p = &s->out;
    uint64_t waiting = HTH_MIN(p->written - p->sent, segment_max(s->node));
    uint64_t flying = p->sent - p->read;
    uint64_t room = flying < w->opts.window_bytes ? w->opts.window_bytes - flying : 0;
    if (room < waiting && flying > 0)
        return 0; /* wait rather than send a small segment: more room is on its way */
    uint32_t n = (uint32_t)HTH_MIN(waiting, room);
    if (n > 1 && w->opts.chaos.short_write > 0.0 &&
        hth_rng_chance(&w->chaos_rng, w->opts.chaos.short_write))
        n = 1 + (uint32_t)hth_rng_below(&w->chaos_rng, n);
    return n;
}

static void send_segment(struct hth_stream *s)
{
    struct hth_node *node = s->node;
    struct hth_world *w = node->world;
    struct sim_pipe *p = &s->out;
    struct hth_node *to = sim_stream_other(s)->node;
    uint32_t n = segment_length(s);
    if (n == 0 && p->written > p->sent) {
        p->window_full = true;
        return;
    }
    int64_t now_ns = w->now_us * 1000;
    int64_t start_ns = HTH_MAX(now_ns, node->up_free_ns);
    double rate = node->device.up_bytes_per_s;
    int64_t transmit_ns = rate > 0.0 && node != to ? (int64_t)((double)n * 1e9 / rate) : 0;
    node->up_free_ns = start_ns + transmit_ns;
    p->sent += n;
    struct sim_segment *seg = hth_new(struct sim_segment);
    seg->len = n;
    seg->transmit_us = transmit_ns / 1000;
    seg->fin = p->ending && p->sent == p->written;
    /* Draw once per statement: C leaves the order of operands open, and gcc and clang differ. */
    seg->arrive_us = (start_ns + transmit_ns + 999) / 1000;
    seg->arrive_us += hth_sim_delay(w, node, to);
    seg->arrive_us += loss_stall(s, hth_sim_link_between(w, node, to), n);
    append_segment(s, seg);
    if (seg->fin) {
        p->fin_sent = true;
        hth_sim_unschedule(w, &s->wake);
        sim_list_remove(&s->in_node);
    }
    if (s->filled && hth_sim_stream_queued(s) < HTH_STREAM_LOW_BYTES) {
        s->filled = false;
        s->drained = true;
        hth_sim_stream_rearm(s);
    }
}

/* Serve the pipes in rotation, one segment each. A segment that would start within the current
 * microsecond starts at once, so that small ones do not waste the rest of it. */
static void serve_uplink(struct hth_node *node)
{
    struct hth_world *w = node->world;
    while (!sim_list_empty(&node->up_ready)) {
        if (node->up_free_ns >= (w->now_us + 1) * 1000) {
            if (node->uplink.index == 0)
                hth_sim_schedule(w, &node->uplink, node->up_free_ns / 1000);
            return;
        }
        struct sim_pipe *p = HTH_CONTAINER(node->up_ready.next, struct sim_pipe, ready);
        struct hth_stream *s = HTH_CONTAINER(p, struct hth_stream, out);
        sim_list_remove(&p->ready);
        if (!can_send(s))
            continue;
        send_segment(s);
        if (can_send(s))
            sim_list_append(&node->up_ready, &p->ready);
    }
}

void hth_sim_uplink(struct hth_node *node)
{
    serve_uplink(node);
}

void hth_sim_pipe_send_reset(struct hth_stream *s)
{
    struct hth_world *w = s->node->world;
    struct sim_segment *seg = hth_new(struct sim_segment);
    s->out.fin_sent = true;
    seg->reset = true;
    seg->arrive_us = w->now_us + hth_sim_delay(w, s->node, sim_stream_other(s)->node);
    append_segment(s, seg);
}

/* ---- arrival ------------------------------------------------------------------------------- */

/* The segment cannot arrive at this moment. TCP retransmits later, and gives up in the end. */
static void stall(struct hth_stream *s)
{
    struct hth_world *w = s->node->world;
    struct sim_pipe *p = &s->out;
    if (s->crashed)
        return; /* the sender is gone: no node would retransmit */
    if (p->retry_us == 0) {
        p->retry_us = RETRY_FIRST_US;
        p->stalled_since_us = w->now_us;
    } else {
        p->retry_us = HTH_MIN(2 * p->retry_us, RETRY_MAX_US);
    }
    if (w->now_us - p->stalled_since_us >= RETRY_GIVE_UP_US) {
        hth_sim_stream_tell_reset(sim_stream_other(s), 0);
        hth_sim_stream_fail(s, HTH_E_TIMEOUT);
        return;
    }
    hth_sim_schedule(w, &p->arrive, w->now_us + p->retry_us);
}

/* Return whether the receiver can take the first segment at once; otherwise schedule what
 * follows. */
static bool gets_there(struct hth_stream *s)
{
    struct hth_stream *r = sim_stream_other(s);
    struct hth_world *w = s->node->world;
    bool dark = !r->node->live && r->node->silent;
    if (dark || !hth_sim_reachable(w, s->node, r->node)) {
        stall(s);
        return false;
    }
    if (r->crashed) { /* the restarted kernel does not know this connection */
        hth_sim_stream_tell_reset(s, hth_sim_delay(w, r->node, s->node));
        return false;
    }
    if (r->state == SIM_END_NONE) { /* the handshake's last message has not arrived */
        if (s->conn->stage == SIM_FINISH)
            hth_sim_schedule(w, &s->out.arrive, s->conn->finish_us + 1);
        return false;
    }
    s->out.retry_us = 0;
    return true;
}

/* The receiver's downlink serves segments in the order of their arrival. A segment from an uplink
 * that is not faster takes no further time when the downlink is free. */
static bool waits_for_downlink(struct hth_stream *s, struct sim_segment *seg)
{
    struct hth_world *w = s->node->world;
    struct hth_node *to = sim_stream_other(s)->node;
    double rate = to->device.down_bytes_per_s;
    if (rate <= 0.0 || seg->len == 0 || to == s->node)
        return false;
    int64_t first_ns = (w->now_us - seg->transmit_us) * 1000;
    int64_t start_ns = HTH_MAX(to->down_free_ns, first_ns);
    to->down_free_ns = start_ns + (int64_t)((double)seg->len * 1e9 / rate);
    if (to->down_free_ns < (w->now_us + 1) * 1000)
        return false;
    seg->queued = true;
    hth_sim_schedule(w, &s->out.arrive, to->down_free_ns / 1000);
    return true;
}

void hth_sim_pipe_arrive(struct hth_stream *s)
{
    struct hth_world *w = s->node->world;
    struct hth_stream *r = sim_stream_other(s);
    struct sim_pipe *p = &s->out;
    struct sim_segment *seg = p->segments;
    if (!seg->queued && (!gets_there(s) || waits_for_downlink(s, seg)))
        return;
    p->segments = seg->next;
    if (p->segments == NULL)
        p->segments_last = NULL;
    else
        hth_sim_schedule(w, &p->arrive, p->segments->arrive_us);
    p->delivered += seg->len;
    p->fin_delivered = p->fin_delivered || seg->fin;
    w->stats.bytes_delivered += seg->len;
    hth_sim_trace(w, r->node, SIM_ARRIVE, p->delivered);
    bool reset = seg->reset;
    hth_free(seg);
    if (r->state == SIM_END_GONE) {
        hth_sim_pipe_discard_unread(r);
        return;
    }
    if (reset)
        hth_sim_stream_fail(r, HTH_E_CLOSED);
    hth_sim_stream_call(r);
}

/* ---- reading ------------------------------------------------------------------------------- */

/* Tell the sender that the window has opened; the news takes one way. */
static void give_credit(struct hth_stream *reader)
{
    struct hth_world *w = reader->node->world;
    struct hth_stream *s = sim_stream_other(reader);
    struct sim_pipe *p = &s->out;
    uint64_t room = w->opts.window_bytes - (p->sent - p->read);
    uint64_t enough = HTH_MAX(w->opts.window_bytes / 2, w->opts.segment_bytes);
    enough = HTH_MIN(enough, w->opts.window_bytes);
    if (!p->window_full || p->credit.index != 0 || room < enough)
        return;
    const struct hth_link *link = hth_sim_link_between(w, reader->node, s->node);
    hth_sim_schedule(w, &p->credit, w->now_us + link->latency_us);
}

void hth_sim_pipe_credit(struct hth_stream *s)
{
    s->out.window_full = false;
    hth_sim_pipe_kick(s);
}

/* A ghost's digest moves with its last byte, and digests add up. So a ghost that is read whole into
 * another ghost hands its digest on, however it was cut on the way. Real bytes that are read into a
 * ghost add a hash of value and place, in which zeros (padding) count nothing. */
static void move_bytes(struct hth_blob *into, size_t at, const struct sim_chunk *c, size_t from,
                       size_t n)
{
    const struct hth_blob *src = c->blob;
    if (into->data != NULL) {
        if (src->data != NULL)
            memcpy(into->data + at, src->data + from, n);
        else
            memset(into->data + at, 0, n);
        return;
    }
    if (src->data == NULL) {
        into->digest += from + n == src->size ? src->digest : 0;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (src->data[from + i] != 0)
            into->digest += hth_mix64((uint64_t)(at + i) << 8 | src->data[from + i]);
    }
}

/* Move n bytes out of the list into a blob; NULL drops them. */
static void take_bytes(struct sim_pipe *p, struct hth_blob *into, size_t at, size_t n)
{
    p->read += n;
    while (n > 0) {
        struct sim_chunk *c = p->chunks;
        size_t part = HTH_MIN(n, c->len - p->chunk_used);
        if (into != NULL)
            move_bytes(into, at, c, c->offset + p->chunk_used, part);
        at += part;
        n -= part;
        p->chunk_used += part;
        if (p->chunk_used < c->len)
            break;
        p->chunk_used = 0;
        p->chunks = c->next;
        if (p->chunks == NULL)
            p->chunks_last = NULL;
        hth_blob_unref(c->blob);
        hth_free(c);
    }
}

size_t hth_sim_stream_read(struct hth_stream *s, struct hth_blob *into, size_t offset, size_t max)
{
    struct sim_pipe *p = &sim_stream_other(s)->out;
    struct hth_world *w = s->node->world;
    HTH_ASSERT(s->held);
    if (s->state != SIM_END_OPEN)
        return 0;
    size_t n = (size_t)HTH_MIN((uint64_t)max, p->delivered - p->read);
    if (n > 0 && s->side == 1 && s->ops != NULL && s->ops->is_stranger) {
        n = (size_t)HTH_MIN((uint64_t)n, HTH_STRANGER_BYTES_MAX - p->read);
        if (n == 0) {
            struct hth_stream *other = sim_stream_other(s);
            hth_sim_stream_fail(s, HTH_E_PROTOCOL);
            hth_sim_stream_tell_reset(other, hth_sim_delay(w, s->node, other->node));
        }
    }
    if (n == 0)
        return 0;
    if (n > 1 && w->opts.chaos.short_read > 0.0 &&
        hth_rng_chance(&w->chaos_rng, w->opts.chaos.short_read))
        n = 1 + (size_t)hth_rng_below(&w->chaos_rng, n);
    HTH_ASSERT(n <= into->size && offset <= into->size - n);
    take_bytes(p, into, offset, n);
    give_credit(s);
    return n;
}

void hth_sim_pipe_discard_unread(struct hth_stream *s)
{
    struct sim_pipe *p = &sim_stream_other(s)->out;
    take_bytes(p, NULL, 0, (size_t)(p->delivered - p->read));
    give_credit(s);
}
