/* SPDX-License-Identifier: Apache-2.0 */
/* log.c: one line is built on the stack and handed to the sink whole. */
#include "core/log.h"

#include "core/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LINE_BYTES       2048
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

static void emit(struct hth_env *env, enum hth_log_level level, enum hth_log_sub sub,
                 const char *text)
{
    struct hth_log *log = &env->log;
    char line[LINE_BYTES];
    int len;
    double seconds = (double)hth_now_us(env) / 1e6;
    if (log->json) {
        char escaped[LINE_BYTES - 160];
        json_escape(escaped, sizeof(escaped), text);
        len = snprintf(
            line, sizeof(line),
            "{\"t\":%.6f,\"level\":\"%s\",\"sub\":\"%s\",\"node\":\"%s\",\"msg\":\"%s\"}\n",
            seconds, level_names[level], sub_names[sub], log->node, escaped);
    } else {
        len = snprintf(line, sizeof(line), "%10.3f %-5s %-6s %s%s%s\n", seconds, level_names[level],
                       sub_names[sub], log->node, log->node[0] != '\0' ? " " : "", text);
    }
    if (len >= (int)sizeof(line)) {
        len = (int)sizeof(line) - 1;
        line[len - 1] = '\n';
    }
    log->sink(log->sink_arg, line, (size_t)len);
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
