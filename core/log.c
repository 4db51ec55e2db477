/* SPDX-License-Identifier: Apache-2.0 */
/* log.c: one line is built on the stack and handed to the sink whole. */
#include "core/log.h"

#include "core/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LINE_BYTES       HTH_LOG_LINE_MAX
#define REPEATS_PER_S    10
#define REPEAT_WINDOW_US HTH_US_PER_S

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

static const char *const sub_names[] = {
#define SUB_NAME(upper, lower) #lower,
    HTH_SUB_MAP(SUB_NAME)
#undef SUB_NAME
};

static void sink_stderr(void *arg, const char *line, size_t len)
{
    (void)arg;
    fwrite(line, 1, len, stderr);
}

void hth_log_init(struct hth_log *log)
{
    memset(log, 0, sizeof(*log));
    memset(log->level, HTH_INFO, sizeof(log->level));
    log->sink = sink_stderr;
}

static int find_name(const char *const *names, size_t count, const char *word, size_t len)
{
    for (size_t i = 0; i < count; i++) {
        if (strlen(names[i]) == len && memcmp(names[i], word, len) == 0)
            return (int)i;
    }
    return -1;
}

/* One word of the list: "debug" or "rpc:debug". */
static bool parse_word(struct hth_log *log, const char *word, size_t len)
{
    const char *colon = memchr(word, ':', len);
    const char *level_text = colon != NULL ? colon + 1 : word;
    size_t level_len = (size_t)(word + len - level_text);
    int level = find_name(level_names, HTH_ARRAY_LEN(level_names), level_text, level_len);
    if (level < 0)
        return false;
    if (colon == NULL) {
        memset(log->level, level, sizeof(log->level));
        return true;
    }
    int sub = find_name(sub_names, HTH_ARRAY_LEN(sub_names), word, (size_t)(colon - word));
    if (sub < 0)
        return false;
    log->level[sub] = (uint8_t)level;
    return true;
}

enum hth_err hth_log_parse(struct hth_log *log, const char *spec, char bad[64])
{
    struct hth_log parsed = *log;
    for (const char *word = spec;;) {
        size_t len = strcspn(word, ",");
        if (!parse_word(&parsed, word, len)) {
            snprintf(bad, 64, "%.*s", (int)HTH_MIN(len, (size_t)63), word);
            return HTH_E_USAGE;
        }
        if (word[len] == '\0')
            break;
        word += len + 1;
    }
    *log = parsed;
    return HTH_OK;
}

bool hth_log_wanted(const struct hth_env *env, enum hth_log_level level, enum hth_log_sub sub)
{
    return (uint8_t)level <= env->log.level[sub];
}

/* Appends text as the inside of a JSON string; control bytes become \u00xx. */
static size_t json_escape(char *out, size_t capacity, const char *text)
{
    size_t pos = 0;
    for (; *text != '\0' && pos + 7 < capacity; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            out[pos++] = '\\';
            out[pos++] = (char)c;
        } else if (c < 0x20) {
            pos += (size_t)snprintf(out + pos, capacity - pos, "\\u%04x", c);
        } else {
            out[pos++] = (char)c;
        }
    }
    out[pos] = '\0';
    return pos;
}

const char *hth_utc_text(int64_t wall_us, char out[HTH_UTC_TEXT_MAX])
{
    int64_t ms = HTH_MAX(wall_us, INT64_C(0)) / HTH_US_PER_MS, s = ms / 1000;
    /* Years begin with March here, so that a leap day is the last of its year. */
    int64_t days = s / 86400 + 719468, era = days / 146097, of_era = days % 146097;
    int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year + year / 4 - year / 100),
            month = (5 * of_year + 2) / 153;
    int64_t day = of_year - (153 * month + 2) / 5 + 1;
    month = month < 10 ? month + 3 : month - 9;
    snprintf(out, HTH_UTC_TEXT_MAX, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
             (int)(year + era * 400 + (month <= 2)), (int)month, (int)day, (int)(s / 3600 % 24),
             (int)(s / 60 % 60), (int)(s % 60), (int)(ms % 1000));
    return out;
}

/* `stamp`: the member with the time. */
static size_t json_line(char out[LINE_BYTES], const char *stamp, enum hth_log_level level,
                        enum hth_log_sub sub, const char *node, const char *text)
{
    char escaped[LINE_BYTES - 160];
    json_escape(escaped, sizeof(escaped), text);
    return (size_t)snprintf(out, LINE_BYTES,
                            "{%s,\"level\":\"%s\",\"sub\":\"%s\",\"node\":\"%s\",\"msg\":\"%s\"}\n",
                            stamp, level_names[level], sub_names[sub], node, escaped);
}

size_t hth_log_json(char out[HTH_LOG_LINE_MAX], int64_t wall_us, enum hth_log_level level,
                    enum hth_log_sub sub, const char *node, const char *text)
{
    char utc[HTH_UTC_TEXT_MAX], stamp[HTH_UTC_TEXT_MAX + 16];
    snprintf(stamp, sizeof(stamp), "\"time\":\"%s\"", hth_utc_text(wall_us, utc));
    return json_line(out, stamp, level, sub, node, text);
}

static void emit(struct hth_env *env, enum hth_log_level level, enum hth_log_sub sub,
                 const char *text)
{
    struct hth_log *log = &env->log;
    char line[LINE_BYTES], stamp[HTH_UTC_TEXT_MAX];
    size_t len;
    double seconds = (double)hth_now_us(env) / 1e6;
    if (log->json && log->wall) {
        len = hth_log_json(line, hth_wall_us(env), level, sub, log->node, text);
    } else if (log->json) {
        snprintf(stamp, sizeof(stamp), "\"t\":%.6f", seconds);
        len = json_line(line, stamp, level, sub, log->node, text);
    } else {
        if (log->wall)
            hth_utc_text(hth_wall_us(env), stamp);
        else
            snprintf(stamp, sizeof(stamp), "%10.3f", seconds);
        len =
            (size_t)snprintf(line, sizeof(line), "%s %-5s %-6s %s%s%s\n", stamp, level_names[level],
                             sub_names[sub], log->node, log->node[0] != '\0' ? " " : "", text);
    }
    if (len >= sizeof(line)) {
        len = sizeof(line) - 1;
        line[len - 1] = '\n';
    }
    log->sink(log->sink_arg, line, len);
}

void hth_log_write(struct hth_env *env, struct hth_log_site *site, enum hth_log_level level,
                   enum hth_log_sub sub, const char *fmt, ...)
{
    char text[LINE_BYTES - 200];
    int64_t now = hth_now_us(env);
    uint32_t repeats = 0;
    if (now - site->window_us >= REPEAT_WINDOW_US || now < site->window_us) {
        repeats = site->count > REPEATS_PER_S ? site->count - REPEATS_PER_S : 0;
        site->window_us = now;
        site->count = 0;
    }
    if (++site->count > REPEATS_PER_S) {
        __atomic_fetch_add(&env->log.dropped, 1, __ATOMIC_RELAXED);
        return;
    }
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (repeats > 0 && len >= 0 && (size_t)len < sizeof(text))
        snprintf(text + len, sizeof(text) - (size_t)len, " (and %u like it)", repeats);
    emit(env, level, sub, text);
}
