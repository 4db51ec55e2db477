/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h: TLS 1.3 records once the handshake is over (RFC 8446, 5 and 7), on plain memory.
 *
 *     header: 23 | 3 3 | length (2)      then encrypted: content | its type | zeros, and a tag
 *
 * OpenSSL does the handshake (tls.c) and gives us the two traffic secrets. From there on only
 * records are left of TLS, and they are made here: a record is encrypted from where its bytes lie
 * into the buffer that is sent, and decrypted from the buffer that was received to where its bytes
 * belong, each in one pass. OpenSSL copies three times more, and its state for a connection is
 * twenty times as large.
 *
 * What may come besides data: KeyUpdate, session tickets (which are skipped: every connection
 * proves its key anew), alerts. Anything else ends the connection with an alert.
 */
#ifndef HTH_NET_RECORD_H
#define HTH_NET_RECORD_H

#include "core/base.h"
#include "core/err.h"

#include "net/aead.h"

#define HTH_RECORD_BYTES        16384 /* of data in one record */
#define HTH_RECORD_HEADER_BYTES 5
/* What a record is longer than its data. */
#define HTH_RECORD_EXTRA_BYTES (HTH_RECORD_HEADER_BYTES + 1 + HTH_AEAD_TAG_BYTES)
/* The longest that may come: 256 bytes more than data needs, header included. */
#define HTH_RECORD_WIRE_BYTES_MAX (HTH_RECORD_HEADER_BYTES + HTH_RECORD_BYTES + 256)
#define HTH_RECORD_SECRET_MAX     48
#define HTH_RECORD_UPDATE_BYTES   (HTH_RECORD_EXTRA_BYTES + 5)
#define HTH_RECORD_ALERT_BYTES    (HTH_RECORD_EXTRA_BYTES + 2)
/* Records in a row that carry no data; more are an attempt to keep us busy. */
#define HTH_RECORD_IDLE_MAX 32

/* Types of content. */
enum hth_record_type { HTH_RECORD_ALERT = 21, HTH_RECORD_HANDSHAKE = 22, HTH_RECORD_DATA = 23 };

/* Alerts that we send (RFC 8446, 6). */
enum hth_record_alert {
    HTH_RECORD_CLOSE_NOTIFY = 0,
    HTH_RECORD_UNEXPECTED_MESSAGE = 10,
    HTH_RECORD_BAD_MAC = 20,
    HTH_RECORD_OVERFLOW = 22,
    HTH_RECORD_DECODE_ERROR = 50
};

/* One direction. */
struct hth_record_way {
    struct hth_aead aead;
    uint8_t secret[HTH_RECORD_SECRET_MAX];
    uint8_t iv[HTH_AEAD_NONCE_BYTES];
    uint64_t count; /* records under this key: the nonce is made of it */
    bool sealing;
};

struct hth_records {
    uint16_t suite;
    bool library; /* by OpenSSL's ciphers in any case */
    struct hth_record_way out, in;
    /* Handshake messages may be cut anywhere. */
    uint8_t head[4];
    uint32_t head_have, body_left;
    uint32_t idle; /* records in a row without data */
};

/* What a record that is no data asks for. */
enum hth_record_event {
    HTH_RECORD_NOTHING,
    HTH_RECORD_ANSWER_UPDATE, /* the peer wants our key changed, too */
    HTH_RECORD_END,           /* the peer has ended its direction */
    HTH_RECORD_FAIL           /* *alert says why; 0 when the peer ended it by an alert */
};

/* Length of a suite's secrets; 0 for one that we do not know. */
size_t hth_record_secret_bytes(uint16_t suite);

/* Secrets are copied. Errors: E_UNSUPPORTED, E_NO_MEMORY. */
enum hth_err hth_records_init(struct hth_records *r, uint16_t suite, const uint8_t *out_secret,
                              const uint8_t *in_secret, bool library) HTH_MUST;
/* Forgets the keys. Also for a struct of zeros. */
void hth_records_clear(struct hth_records *r);

/* One record of at most HTH_RECORD_BYTES bytes, to len + HTH_RECORD_EXTRA_BYTES bytes at out.
 * Errors: E_NO_MEMORY. */
enum hth_err hth_records_seal(struct hth_records *r, enum hth_record_type type, const uint8_t *data,
                              size_t len, uint8_t *out) HTH_MUST;
/* HTH_RECORD_ALERT_BYTES at out. */
enum hth_err hth_records_seal_alert(struct hth_records *r, enum hth_record_alert alert,
                                    uint8_t *out) HTH_MUST;
/* Says that our key changes (HTH_RECORD_UPDATE_BYTES at out), and changes it. */
enum hth_err hth_records_seal_update(struct hth_records *r, uint8_t *out) HTH_MUST;

/* How long the record at `bytes` is, header included; 0 while the header is not all there. Errors:
 * E_PROTOCOL, with *alert. */
enum hth_err hth_records_next(const uint8_t *bytes, size_t have, size_t *len,
                              uint8_t *alert) HTH_MUST;

/*
 * Opens the whole record at `record`. `out` has room for len - HTH_RECORD_EXTRA_BYTES + 1 bytes
 * (content and its type), and may be the record's own bytes behind the header. *type is that of the
 * *got bytes of content.
 *
 * Errors: E_PROTOCOL, with *alert: forged or damaged, empty, or too long.
 */
enum hth_err hth_records_open(struct hth_records *r, const uint8_t *record, size_t len,
                              uint8_t *out, uint8_t *type, size_t *got, uint8_t *alert) HTH_MUST;

/* Content that is no data. Our reading key may change by it. */
enum hth_record_event hth_records_control(struct hth_records *r, uint8_t type,
                                          const uint8_t *content, size_t len, uint8_t *alert);

#endif
