/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.h: the wire format as pure functions and a parser without I/O.
 *
 *    0    4        5     6      8           16          24        28        32
 *   +------+--------+-----+------+-----------+-----------+---------+---------+------+-----------+
 *   | HRTH | version| type| flags| request id| trace id  | meta len| body len| meta | body      |
 *   +------+--------+-----+------+-----------+-----------+---------+---------+------+-----------+
 *     4       1       1     2       8           8            4         4      <=64 Ki  tensors
 *
 * Little-endian. Meta is a message of wire.proto chosen by the type. The body is the tensors, each
 * at a multiple of 64 from the body's start, in order, with only padding between them.
 *
 * The parser never reads ahead: it requests exactly the header, then the meta, and its owner
 * provides the blob of the body. So a body moves from the socket to its place without a copy, and
 * may be a ghost. Everything in a frame is checked before its body is allocated.
 */
#ifndef HTH_RPC_FRAME_H
#define HTH_RPC_FRAME_H

#include "rpc/rpc.h"

#define HTH_FRAME_HEADER_BYTES 32
#define HTH_FRAME_ALIGN        64
/* Offsets in the header. */
#define HTH_FRAME_AT_MAGIC    0
#define HTH_FRAME_AT_VERSION  4
#define HTH_FRAME_AT_TYPE     5
#define HTH_FRAME_AT_FLAGS    6
#define HTH_FRAME_AT_ID       8
#define HTH_FRAME_AT_TRACE    16
#define HTH_FRAME_AT_META_LEN 24
#define HTH_FRAME_AT_BODY_LEN 28

enum hth_frame_type {
    HTH_FRAME_HELLO = 1,
    HTH_FRAME_REQUEST = 2,
    HTH_FRAME_REPLY = 3,
    HTH_FRAME_REFUSE = 4,
    HTH_FRAME_CANCEL = 5, /* no meta */
    HTH_FRAME_CREDIT = 6,
    HTH_FRAME_PING = 7, /* no meta */
    HTH_FRAME_PONG = 8, /* no meta */
    HTH_FRAME_GOODBYE = 9,
};

struct hth_frame_header {
    uint8_t version;
    uint8_t type;
    uint16_t flags; /* none defined: 0 */
    uint64_t id;
    uint64_t trace_id;
    uint32_t meta_len;
    uint32_t body_len;
};

void hth_frame_header_write(const struct hth_frame_header *h, uint8_t out[HTH_FRAME_HEADER_BYTES]);
/* Errors: E_BAD_MAGIC, E_VERSION (not between HTH_RPC_VERSION_MIN and _MAX), E_PROTOCOL (unknown
 * type or flag, a body or meta where none is allowed), E_TOO_LARGE (meta or body beyond
 * core/limits.h). */
enum hth_err hth_frame_header_read(const uint8_t in[HTH_FRAME_HEADER_BYTES],
                                   struct hth_frame_header *h) HTH_MUST;

/* A frame's content, sent or received. Pointers are borrowed. */
struct hth_frame_msg {
    enum hth_frame_type type;
    uint64_t id;
    uint64_t trace_id;
    union {
        struct {
            uint32_t version_min, version_max;
            uint64_t features;
            uint32_t requests_max;
            uint64_t body_bytes_max, request_credit_bytes, reply_credit_bytes;
            const uint8_t *pass; /* at most HTH_CREDS_BYTES_MAX; not judged yet */
            size_t pass_len;
            const char *network; /* at most HTH_NAME_LEN_MAX bytes of any kind: compare them */
        } hello;
        struct {
            uint16_t method;
            uint32_t timeout_ms;
            struct hth_rpc_idem idem;
        } request;
        struct {
            enum hth_err err;
            uint32_t retry_after_ms; /* REFUSE only */
            const char *text;
        } refuse; /* and GOODBYE */
        struct {
            uint64_t reply_bytes;
        } credit;
    } u;
    struct hth_rpc_body body; /* REQUEST and REPLY */
};

/* ---- out ----------------------------------------------------------------------------------- */

/* Length of the body of these tensors. Errors: E_BAD_SHAPE, E_TOO_LARGE (more than
 * HTH_FRAME_TENSORS_MAX or HTH_FRAME_BODY_BYTES_MAX). */
enum hth_err hth_frame_body_len(const struct hth_tensor *tensors, size_t count,
                                uint64_t *len) HTH_MUST;
/* Bytes that hth_frame_pack needs at most. */
size_t hth_frame_pack_bound(const struct hth_frame_msg *msg);
/* A close upper bound of the meta's length, tensors that hth_frame_body_len refuses excepted. */
size_t hth_frame_meta_bound(const struct hth_frame_msg *msg);
/* Writes header and meta. `capacity` must be at least the bound. Errors: E_TOO_LARGE (the meta is
 * beyond HTH_FRAME_META_BYTES_MAX), E_BAD_SHAPE, E_NO_MEMORY. */
enum hth_err hth_frame_pack(const struct hth_frame_msg *msg, uint8_t *out, size_t capacity,
                            size_t *len) HTH_MUST;

/* ---- in ------------------------------------------------------------------------------------ */

struct hth_arena_chunk;

/* Memory of one unpacked message, bounded and drawn on a budget beyond the first part. */
struct hth_arena {
    _Alignas(16) uint8_t first[704];
    size_t first_used;
    struct hth_arena_chunk *chunks;
    size_t total; /* in chunks */
    struct hth_budget *budget;
    enum hth_err err; /* why an allocation failed */
};

struct hth_frame {
    struct hth_frame_header header;
    struct hth_frame_msg msg; /* points into the arena */
    struct hth_blob *body;
    struct hth_arena arena;
    struct hth_frame *next; /* for its owner's lists */
};

/* Makes a peer's text safe to print: printable ASCII, cut at HTH_RPC_TEXT_MAX. Returns it. Texts of
 * refusals are so when they are read. */
const char *hth_frame_clean(char *text);
/* Makes the frame empty. */
void hth_frame_init(struct hth_frame *f);
/* Frees the content; the frame can be used again. */
void hth_frame_clear(struct hth_frame *f);
/* Reads the meta that belongs to f->header. budget may be NULL; it must outlive the frame's
 * content. Errors: E_MALFORMED, E_TOO_LARGE, E_BAD_SHAPE (a tensor's place or size contradicts its
 * shape), E_RANGE (a number outside its range), E_BUDGET, E_NO_MEMORY. */
enum hth_err hth_frame_unpack(struct hth_frame *f, const uint8_t *meta,
                              struct hth_budget *budget) HTH_MUST;

enum hth_frame_event {
    HTH_FRAME_MORE, /* nothing to do: read on */
    HTH_FRAME_HEAD, /* p->frame has header and meta; when body_len > 0 give a body or skip it */
    HTH_FRAME_BODY, /* the body of p->frame is complete (or was skipped) */
    HTH_FRAME_BAD,  /* p->err says why; nothing more can be read */
};

enum hth_frame_phase {
    HTH_FRAME_IN_HEADER,
    HTH_FRAME_IN_META,
    HTH_FRAME_AT_BODY, /* HEAD was returned, the owner must act */
    HTH_FRAME_IN_BODY,
    HTH_FRAME_IN_SKIP,
    HTH_FRAME_BROKEN,
};

struct hth_frame_parser {
    struct hth_frame *frame; /* set by the owner, which replaces it to keep a frame */
    struct hth_budget *budget;
    enum hth_frame_phase phase;
    enum hth_err err;
    size_t have, need;        /* of the current phase */
    struct hth_blob *rx;      /* header and meta */
    struct hth_blob *scratch; /* where skipped bodies go */
};

void hth_frame_parser_init(struct hth_frame_parser *p, struct hth_budget *budget);
/* Does not free p->frame. */
void hth_frame_parser_clear(struct hth_frame_parser *p);
/* Where the next bytes belong: read at most *max to *into at *offset. Errors: E_NO_MEMORY,
 * E_BUDGET. */
enum hth_err hth_frame_parser_want(struct hth_frame_parser *p, struct hth_blob **into,
                                   size_t *offset, size_t *max) HTH_MUST;
/* The owner put n bytes there. p->frame must be set. */
enum hth_frame_event hth_frame_parser_got(struct hth_frame_parser *p, size_t n);
/* After HEAD with body_len > 0: the body is read into `body`, whose reference the parser takes. */
void hth_frame_parser_body_take(struct hth_frame_parser *p, struct hth_blob *body);
/* Or the body is skipped: read piece by piece into `scratch`, whose reference the parser takes. */
void hth_frame_parser_skip_take(struct hth_frame_parser *p, struct hth_blob *scratch);
/* True in the middle of a frame. */
bool hth_frame_parser_busy(const struct hth_frame_parser *p);

#endif
