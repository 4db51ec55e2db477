/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roll_msg.h: the bytes of the roll call's messages (roll.h), and of what the members of a grid's
 * line tell their leader (collab_round.c), little-endian, a version first.
 *
 *     READY  u8 version, u8 flags (1: leaves, 2: helps, 4: signed), ballot, head 32, accepted 32,
 *            u32 accepted_n, u64 life, u32 batch, brings, u32 quota, u32 rtt_us, u32 first and
 *            last protocol, u32 up_kbit, address; if signed: signature
 *     its answer: u8 kind, then
 *       WAIT    u32 quota, u8 quorum
 *       GO      head 32, u32 n, u8 fork, u32 protocol, u32 count, of each member: id 32,
 *               u64 life, u32 batch, u32 samples, u32 next, u8 flags (1: leaves, 2: rests),
 *               u32 up_kbit, address; u32 helpers, of each: id 32, u32 up_kbit, address; u32 count,
 *               signatures (of the head)
 *       MOVE    head 32, u32 count, of each holder: id 32, address
 *       LATER   u32 n
 *       BEHIND  head 32
 *     CALL   u8 version, ballot; its answer: u8 averages (in the round of an earlier step)
 *     LINKS  u8 version, head 32 (wanted; zero: the callee's), u32 count, heads 32 (that it holds,
 *            or zero; then others whose links it has)
 *     its answer: u64 life, links (proof.h; where there are none, with signatures of the wanted
 *            head), u16 count, of each member of the tip's roll: id 32, address
 *     ROW    u8 version, group 32, u8 axis, marks: u16 count (of the list), then 2 bits for each of
 *            its members, the lowest first: HTH_ROLL_IN, HTH_ROLL_PART or 0; the rest of the last
 *            byte is 0; its answer: the same
 *
 *     signature  key 32, u64 life, u8 made, 64 bytes (proof.h)
 *     ballot   u64 step, head 32 of the base, u32 n
 *     brings   u32 samples, u32 air, u32 grain, u32 lands_us, u32 each_us (0: not known, 2^32 - 1:
 *              no more)
 *     address  u8 family (0: none, 4, 6), ip 16, u16 port
 *
 * The functions that read let through what is in range, and nothing with bytes left over. Pure
 * functions, any thread. Their errors: E_TRUNCATED, E_VERSION, E_MALFORMED, E_TOO_LARGE (a count).
 */
#ifndef HTH_COLLAB_ROLL_MSG_H
#define HTH_COLLAB_ROLL_MSG_H

#include "collab/proof.h"
#include "collab/quota.h"
#include "core/wire.h"
#include "core/ident.h"

/* The protocol of this program. READY names the range that its sender speaks, its own and the one
 * before. A link names the one that is used on top of it, and a GO that of the link to be made: the
 * next one as soon as all voters and all of the list speak it, and never an older one. Protocol 2
 * differs from 1 in one thing: the name of a round that makes such a link covers the protocol. */
#define HTH_ROLL_PROTOCOL     1

#define HTH_ROLL_METHOD_READY 72
#define HTH_ROLL_METHOD_CALL  73
#define HTH_ROLL_METHOD_LINKS 74
#define HTH_ROW_METHOD        76

/* Members of a line, in which they average (cells.h); a list has HTH_ROLL_MEMBERS_MAX. */
#define HTH_ROLL_LINE_MAX 64
/* Heads that a LINKS names. */
#define HTH_ROLL_HELD_MAX 16

/* Helpers in a list (helper.h). */
#define HTH_ROLL_HELPERS_MAX 8

/* A message of any kind has at most this many bytes: a GO to a full list. */
#define HTH_ROLL_BYTES_MAX                                                                         \
    (64 + HTH_ROLL_MEMBERS_MAX * (76 + HTH_SIG_BYTES) + HTH_ROLL_HELPERS_MAX * 55)

struct hth_roll_ballot {
    uint64_t step;
    struct hth_hash base;
    uint32_t n;
};

struct hth_ready_msg {
    struct hth_roll_ballot ballot;
    struct hth_hash head;
    struct hth_hash accepted; /* zero: none */
    uint32_t accepted_n;
    uint64_t life;
    uint32_t batch;
    struct hth_brings brings; /* its times are written as at least 0 and at most 2^32 - 2 us */
    uint32_t quota;           /* that it keeps to */
    uint32_t first, last;     /* protocols that it speaks, first > 0 */
    uint32_t rtt_us;          /* from it to its caller and back; 0: not known */
    bool leaves;
    bool helps;           /* it reduces, and is no member: what is said of a batch is of no use */
    uint32_t up_kbit;     /* that it can send in a second; 0: not known, or a client */
    struct hth_addr addr; /* family 0: it can't be dialled */
    bool is_signed;
    struct hth_sig sig; /* of the head */
};

enum hth_ready_answer {
    HTH_READY_WAIT, /* still here: send it again; and its quota */
    HTH_READY_GO,
    HTH_READY_MOVE,
    HTH_READY_LATER,
    HTH_READY_BEHIND,
};

struct hth_roll_peer {
    struct hth_peer_id id;
    uint64_t life; /* of a GO's members */
    uint32_t batch;
    uint32_t samples;
    uint32_t next; /* its quota on top of this average, to begin with */
    bool leaves;
    bool rests;       /* it reduces nothing in this round */
    uint32_t up_kbit; /* as it said, or a helper */
    struct hth_addr addr;
};

struct hth_ready_reply {
    enum hth_ready_answer kind;
    struct hth_hash head;
    uint32_t n;
    uint32_t quota;
    bool quorum; /* of WAIT: a quorum is READY with this caller */
    bool fork;
    uint32_t protocol; /* of the link that the round makes */
    uint32_t count;
    struct hth_roll_peer peer[HTH_ROLL_MEMBERS_MAX]; /* of a MOVE at most HTH_ROLL_LINE_MAX */
    uint32_t helpers;
    struct hth_roll_peer helper[HTH_ROLL_HELPERS_MAX];
    uint32_t sigs;      /* of a GO's head, at most HTH_ROLL_MEMBERS_MAX */
    const uint8_t *sig; /* HTH_SIG_BYTES of each; of a message that is read: in its bytes */
};

struct hth_links_msg {
    struct hth_hash head;
    uint32_t count;
    struct hth_hash held[HTH_ROLL_HELD_MAX]; /* the first alone with its state */
};

struct hth_row_marks {
    uint32_t count;
    uint16_t of[HTH_ROLL_MEMBERS_MAX]; /* HTH_ROLL_IN, HTH_ROLL_PART or 0 */
};

struct hth_row_msg {
    struct hth_hash group; /* of the GO */
    uint32_t axis;
    /* Of a member: whose values are in the mean that it brings; all 0: it has none. Of its leader:
     * whose are in the means of all. */
    struct hth_row_marks marks;
};
#define HTH_ROW_BYTES_MAX (36 + HTH_ROLL_MEMBERS_MAX / 4)

bool hth_roll_is_among(const struct hth_roll_peer *peers, uint32_t count,
                       const struct hth_peer_id *id);
/* Places are a u16 count, and of each peer: id 32, address. */
void hth_wire_places(struct hth_wire *io, struct hth_roll_peer *peer, uint32_t *count,
                     uint32_t max);

/* The writers' buffers have HTH_ROLL_BYTES_MAX bytes, a row's HTH_ROW_BYTES_MAX. Each returns the
 * number of bytes. */
size_t hth_ready_write(const struct hth_ready_msg *ready, uint8_t *out);
enum hth_err hth_ready_read(const uint8_t *data, size_t len, struct hth_ready_msg *out) HTH_MUST;
size_t hth_ready_reply_write(const struct hth_ready_reply *reply, uint8_t *out);
enum hth_err hth_ready_reply_read(const uint8_t *data, size_t len,
                                  struct hth_ready_reply *out) HTH_MUST;
size_t hth_call_write(const struct hth_roll_ballot *ballot, uint8_t *out);
enum hth_err hth_call_read(const uint8_t *data, size_t len, struct hth_roll_ballot *out) HTH_MUST;
size_t hth_links_write(const struct hth_links_msg *links, uint8_t *out);
enum hth_err hth_links_read(const uint8_t *data, size_t len, struct hth_links_msg *out) HTH_MUST;
size_t hth_row_write(const struct hth_row_msg *row, uint8_t *out);
enum hth_err hth_row_read(const uint8_t *data, size_t len, struct hth_row_msg *out) HTH_MUST;

#endif
