/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h: one line per fact, with a level per subsystem.
 *
 *   HTH_LOG(env, HTH_INFO, HTH_SUB_RPC, "peer %s: %s", id, hth_err_text(err));
 *
 * The level is tested before the arguments are evaluated. A line carries time, level, subsystem,
 * the node's name and the text; as text for people or as JSON lines for machines. The time is that
 * of day, in UTC; in the simulator it is virtual, in seconds. Beyond 10 lines a second, repeats of
 * one call site are counted and not printed. Never log keys or payloads. The sink may be called
 * from any thread, one line at a time.
 */
#ifndef HTH_CORE_LOG_H
#define HTH_CORE_LOG_H

#include "core/base.h"

struct hth_env;

enum hth_log_level { HTH_ERROR, HTH_WARN, HTH_INFO, HTH_DEBUG, HTH_TRACE };

#define HTH_SUB_MAP(X)                                                                             \
    X(CORE, core)                                                                                  \
    X(NET, net)                                                                                    \
    X(RPC, rpc)                                                                                    \
    X(DHT, dht)                                                                                    \
    X(EXPERT, expert)                                                                              \
    X(GATE, gate)                                                                                  \
    X(AVG, avg)                                                                                    \
    X(TRAIN, train)                                                                                \
    X(SIM, sim)                                                                                    \
    X(APP, app)                                                                                    \
    X(KERNEL, kernel)

enum hth_log_sub {
#define HTH_SUB_ENUM(upper, lower) HTH_SUB_##upper,
    HTH_SUB_MAP(HTH_SUB_ENUM)
#undef HTH_SUB_ENUM
        HTH_SUB_COUNT
};

struct hth_log {
    uint8_t level[HTH_SUB_COUNT];
    bool json;
    bool wall;     /* lines carry hth_wall_us as a date, else hth_now_us in seconds */
    char node[24]; /* source of the lines: short peer id or simulated node */
    void (*sink)(void *arg, const char *line, size_t len);
    void *sink_arg;
    uint64_t dropped; /* repeats that were counted instead of printed */
};

/* Level INFO everywhere, text, seconds, to stderr. */
void hth_log_init(struct hth_log *log);
/* "info", or "rpc:debug,avg:trace", or both mixed ("warn,rpc:debug").
 * Errors: E_USAGE; `bad` (64 bytes) then names the unknown word. */
enum hth_err hth_log_parse(struct hth_log *log, const char *spec, char bad[64]) HTH_MUST;

struct hth_log_site { /* one per HTH_LOG line: limits repeats */
    int64_t window_us;
    uint32_t count;
};

bool hth_log_wanted(const struct hth_env *env, enum hth_log_level level, enum hth_log_sub sub);
HTH_COLD void hth_log_write(struct hth_env *env, struct hth_log_site *site,
                            enum hth_log_level level, enum hth_log_sub sub, const char *fmt, ...)
    HTH_PRINTF(5, 6);

#define HTH_UTC_TEXT_MAX 72
/* "2026-11-27T02:05:07.123Z", from 1970 on. Returns out. */
const char *hth_utc_text(int64_t wall_us, char out[HTH_UTC_TEXT_MAX]);

#define HTH_LOG_LINE_MAX 2048
/* A line as hth_log_write makes it for `json` and `wall`, with its newline; a long text is cut.
 * Returns its length. */
size_t hth_log_json(char out[HTH_LOG_LINE_MAX], int64_t wall_us, enum hth_log_level level,
                    enum hth_log_sub sub, const char *node, const char *text);

#define HTH_LOG(env, lvl, sub, ...)                                                                \
    do {                                                                                           \
        static _Thread_local struct hth_log_site hth_site;                                         \
        if (hth_log_wanted((env), (lvl), (sub)))                                                   \
            hth_log_write((env), &hth_site, (lvl), (sub), __VA_ARGS__);                            \
    } while (0)

#endif
