/* SPDX-License-Identifier: Apache-2.0 */
/*
 * board.h: a board is a topic that is watched; a publisher is a record that is kept pinned on it.
 *
 * A board keeps the newest valid record of each owner and part, calls back when one appears, is
 * replaced or ends, and refuses all others with a named error. It acts on the first valid copy and
 * does not wait for a query to end. Limits bound the work that peers can cause: records, bytes,
 * signatures a second (limits.h). Its checks run in order of their cost: format, kind, network,
 * time, sequence, and the signature last.
 *
 * In a closed run a record is believed only while its owner's pass is known (members.h). The newest
 * HTH_BOARD_WAITING_MAX records of unknown owners are kept for a while, because a host's records
 * may arrive before its pass; then they are refused with E_NOT_ADMITTED.
 *
 * A publisher publishes the payload that its owner's `fill` writes. It renews the record at a third
 * of its life with jitter and at once on hth_publisher_update, and puts a goodbye on request. Its
 * sequence never falls, even when the wall clock steps back.
 *
 * Both are generic: the announcer, the directory, joining and averaging's declarations and progress
 * stand on them. Loop thread only. Callbacks may not free the board or publisher that calls them.
 */
#ifndef HTH_DHT_BOARD_H
#define HTH_DHT_BOARD_H

#include "core/bytes.h"
#include "dht/record.h"

/* ---- reading ------------------------------------------------------------------------------- */

struct hth_board;

struct hth_board_ops {
    /* A record that is new, or newer than the one of the same owner and part. *user belongs to the
     * caller and stays with this owner and part until on_gone. An error refuses the record and
     * keeps the older one. `rec` and its payload are valid during the call. */
    enum hth_err (*on_record)(void *arg, const struct hth_record *rec, void **user);
    /* The record expired, its owner said goodbye, or the board is freed. */
    void (*on_gone)(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user);
    /* A record was refused (may be NULL). rec->payload is NULL when the format was wrong. */
    void (*on_refused)(void *arg, enum hth_err err, const struct hth_record *rec);
};

struct hth_board_opts {
    size_t records_max;
    size_t bytes_max;
    bool any_network;               /* the topic's tag is not compared: beacons of all runs */
    int64_t negative_us;            /* how long an empty answer to hth_board_ask is believed */
    struct hth_record_cache *cache; /* shared between boards; NULL: none */
    /* watches nothing until hth_board_watch; judges offered bytes */
    bool unwatched;
    /* The record of `user` was renewed with an equal payload. Returns false to have on_record
     * called all the same; NULL: always. */
    bool (*on_renewed)(void *arg, const struct hth_record *rec, int64_t now_us, void *user);
};
#define HTH_BOARD_OPTS_INIT                                                                        \
    {                                                                                              \
        .records_max = HTH_BOARD_RECORDS_MAX, .bytes_max = HTH_BOARD_BYTES_MAX,                    \
        .negative_us = 5 * 1000000                                                                 \
    }

struct hth_board_stats {
    uint64_t accepted, known, stale, refused; /* values seen, by verdict */
    uint64_t watches, gets, negative_hits;
    size_t live, bytes; /* records believed, and bytes held for them */
};

/* Starts watching, unless opts->unwatched. opts NULL takes the defaults. Errors: those of
 * hth_dht_watch. */
enum hth_err hth_board_new(struct hth_env *env, struct hth_dht *dht, const struct hth_topic *topic,
                           const struct hth_board_opts *opts, const struct hth_board_ops *ops,
                           void *arg, struct hth_board **out) HTH_MUST;
/* Starts watching an unwatched board. Errors: those of hth_dht_watch; the board retries. */
enum hth_err hth_board_watch(struct hth_board *board) HTH_MUST;
/* Calls on_gone for each live record. NULL is fine. */
void hth_board_free(struct hth_board *board);
/* Starts a get besides the watch. Errors: E_NOT_FOUND (the last one was empty, less than
 * negative_us ago), E_AGAIN (one is under way), those of hth_dht_get. */
enum hth_err hth_board_ask(struct hth_board *board) HTH_MUST;
/* Judges bytes from another source, as if the DHT had delivered them under the current epoch. */
enum hth_err hth_board_offer(struct hth_board *board, const uint8_t *data, size_t len) HTH_MUST;
void hth_board_stats(const struct hth_board *board, struct hth_board_stats *out);

/* ---- writing ------------------------------------------------------------------------------- */

struct hth_publisher;

/* Writes the payload of the next record; an error skips this round (it is logged). */
typedef enum hth_err hth_publisher_fill_fn(void *arg, struct hth_writer *w);

struct hth_publisher_opts {
    uint8_t part;
    int64_t life_us;
    uint64_t after_seq; /* the first record's sequence is higher */
};
#define HTH_PUBLISHER_OPTS_INIT                                                                    \
    {                                                                                              \
        .life_us = 60 * 1000000                                                                    \
    }

struct hth_publisher_stats {
    uint64_t puts, put_errors;
    uint32_t bytes; /* of the newest record */
    uint64_t seq;   /* of the newest record; it never falls */
};

/* Publishes on the next turn of the loop. Errors: E_CONFIG (life or part out of range). */
enum hth_err hth_publisher_new(struct hth_env *env, struct hth_dht *dht,
                               const struct hth_topic *topic, const struct hth_publisher_opts *opts,
                               hth_publisher_fill_fn *fill, void *arg,
                               struct hth_publisher **out) HTH_MUST;
/* Publishes a new record in delay_us, or earlier if one is due earlier. */
void hth_publisher_update(struct hth_publisher *publisher, int64_t delay_us);
/* Puts a goodbye in place of the record and stops renewing; fill is not called after that. done
 * (may be NULL) comes when the DHT accepted or failed the put, and may free the publisher. */
void hth_publisher_goodbye(struct hth_publisher *publisher, hth_dht_done_fn *done, void *arg);
/* Withdraws a goodbye, finished or not: publishes again, and done is not called after that. */
void hth_publisher_resume(struct hth_publisher *publisher);
/* Frees it without a goodbye. NULL is fine. */
void hth_publisher_free(struct hth_publisher *publisher);
void hth_publisher_stats(const struct hth_publisher *publisher, struct hth_publisher_stats *out);

/* The callback of a board's watches; and for a simulated world, which knows the values that will
 * arrive, a function that prefetches the memory that callback will touch: one pointer further with
 * each step from 0 to 2. */
bool hth_board_value(void *arg, const uint8_t *data, size_t len);
void hth_board_ahead(const void *arg, const uint8_t *data, size_t len, uint32_t step);

#endif
