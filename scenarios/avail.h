/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avail.h: traces of real machines: when each was up, and how fast it was.
 *
 *     peer,on,off,up,down,speed
 *     alice,0,3600,1250000,6250000,1
 *     alice,7200,,1250000,6250000,1
 *     bob,60.5,1800,0,0,0.25
 *
 * CSV with exactly this first line; '#' begins a line of comment. A peer is a name of at most 23
 * letters, digits, '.', '_', '-'. It is up from `on` to `off`, in seconds since the trace began; an
 * empty `off` means until the end. `up` and `down` are its access link in bytes a second, 0 for
 * unlimited, else at least 1; `speed` multiplies the rates of its device. The rows of one peer are
 * in order and do not overlap; rows of different peers may come in any order.
 *
 * Strict: any other content is E_MALFORMED or E_RANGE, too many rows are E_TOO_LARGE, and the text
 * names line and column. Pure functions, any thread; the bytes may be hostile.
 */
#ifndef HTH_SCENARIOS_AVAIL_H
#define HTH_SCENARIOS_AVAIL_H

#include "core/base.h"

#define HTH_AVAIL_NAME_MAX  23
#define HTH_AVAIL_ERROR_MAX 200

struct hth_avail_row {
    int64_t on_us, off_us; /* off: INT64_MAX for "until the end" */
    double up_bytes_per_s, down_bytes_per_s;
    double speed;
};

struct hth_avail_peer {
    char name[HTH_AVAIL_NAME_MAX + 1];
    struct hth_avail_row *rows;
    size_t count, capacity;
};

struct hth_avail {
    struct hth_avail_peer *peers; /* in order of their first rows */
    size_t peer_count, peer_capacity;
    size_t row_count;
};

/* Parse a trace. Free *out with hth_avail_clear, whatever the result. Errors: E_MALFORMED, E_RANGE,
 * E_TOO_LARGE (HTH_AVAIL_BYTES_MAX, HTH_AVAIL_ROWS_MAX, HTH_AVAIL_PEERS_MAX), E_NO_MEMORY. */
enum hth_err hth_avail_parse(const void *data, size_t len, struct hth_avail *out,
                             char error[HTH_AVAIL_ERROR_MAX]) HTH_MUST;
void hth_avail_clear(struct hth_avail *avail);

#endif
