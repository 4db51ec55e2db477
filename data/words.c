/* SPDX-License-Identifier: Apache-2.0 */
/* words.c: splits text into words, counts and lists them, and turns text into ids and back. */
#include "data/words.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/map.h"
#include "core/mem.h"

#define VERSION 1

/* ---- text ---------------------------------------------------------------------------------- */

/* The bytes of the character at p; 0 if it is overlong, a surrogate, or not whole. */
static size_t char_len(const uint8_t *p, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc0 ? 2 : 0;
    uint32_t c = n > 1 ? p[0] & (0x7fu >> n) : p[0];

    if (n == 0 || n > left || p[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

bool hth_text_ok(const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text;

    for (size_t at = 0, n; at < len; at += n) {
        n = char_len(p + at, len - at);
        if (n == 0 || p[at] == 0x7f || (p[at] < 0x20 && strchr("\t\n\r\f", p[at]) == NULL) ||
            p[at] == 0)
            return false;
    }
    return true;
}

/* Whether they may be the first bytes of a longer character. */
static bool is_cut(const uint8_t *p, size_t len)
{
    size_t want = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;

    for (size_t i = 1; i < len && i < want; i++)
        if ((p[i] & 0xc0) != 0x80)
            return false;
    return p[0] >= 0xc2 && p[0] < 0xf5 && len < want;
}

size_t hth_text_char(const char *text, size_t len, bool more, char out[HTH_TEXT_CHAR_MAX])
{
    size_t n = len > 0 ? char_len((const uint8_t *)text, len) : 0;

    out[0] = '\0';
    if (len == 0 || (n == 0 && more && is_cut((const uint8_t *)text, len)))
        return 0;
    if (n == 0 || !hth_text_ok(text, n)) {
        memcpy(out, "\xef\xbf\xbd", 4);
        return HTH_MAX(n, (size_t)1);
    }
    memcpy(out, text, n);
    out[n] = '\0';
    return n;
}

size_t hth_text_chars(const char *text, size_t len)
{
    size_t chars = 0;

    for (size_t i = 0; i < len; i++)
        chars += ((uint8_t)text[i] & 0xc0) != 0x80;
    return chars;
}

static bool is_blank(uint8_t c)
{
    return c <= 0x20 || c == 0x7f;
}

/* The length of a sign that is not ASCII: dashes, quotes and the like (U+2000.., U+3000..). */
static size_t wide_sign(const uint8_t *p, size_t left)
{
    bool is = left >= 3 &&
              ((p[0] == 0xe2 && (p[1] == 0x80 || p[1] == 0x81)) || (p[0] == 0xe3 && p[1] == 0x80));
    return is ? 3 : 0;
}

static bool in_word(const uint8_t *p, size_t left)
{
    bool letter = (p[0] >= '0' && p[0] <= '9') || (p[0] >= 'a' && p[0] <= 'z') ||
                  (p[0] >= 'A' && p[0] <= 'Z');
    return letter || (p[0] >= 0x80 && wide_sign(p, left) == 0);
}

/* Where the word or sign at `begin` ends. A long run is cut into words between two characters. */
static size_t word_end(const uint8_t *p, size_t begin, size_t len)
{
    size_t end = begin, most = HTH_MIN(len, begin + HTH_WORD_BYTES_MAX);

    while (end < most && in_word(p + end, len - end))
        end++;
    while (end == begin + HTH_WORD_BYTES_MAX && end < len && (p[end] & 0xc0) == 0x80 &&
           end > begin + HTH_WORD_BYTES_MAX - 4)
        end--;
    if (end > begin)
        return end;
    return begin + HTH_MAX((size_t)1, wide_sign(p + begin, len - begin));
}

static size_t skip_blanks(const uint8_t *p, size_t at, size_t len)
{
    while (at < len && is_blank(p[at]))
        at++;
    return at;
}

size_t hth_text_word(const char *text, size_t len, size_t *at, char out[HTH_WORD_BYTES_MAX])
{
    const uint8_t *p = (const uint8_t *)text;
    size_t begin = skip_blanks(p, *at, len);
    size_t n;

    *at = begin;
    if (begin >= len)
        return 0;
    *at = word_end(p, begin, len);
    n = *at - begin;
    memcpy(out, p + begin, n);
    hth_text_lower(out, n);
    return n;
}

/* ---- a list -------------------------------------------------------------------------------- */

struct word {
    char *text;
    size_t len;
    uint64_t count;
    uint32_t id;
};

struct hth_words {
    struct word *list;
    uint32_t count;
    struct hth_map *by_text;
};

static struct hth_words *words_new(size_t room)
{
    struct hth_words *w = hth_new(struct hth_words);

    w->list = hth_new_array(struct word, room > 0 ? room : 1);
    w->by_text = hth_map_new();
    return w;
}

void hth_words_free(struct hth_words *w)
{
    if (w == NULL)
        return;
    for (uint32_t i = 0; i < w->count; i++)
        hth_free(w->list[i].text);
    hth_free(w->list);
    hth_map_free(w->by_text);
    hth_free(w);
}

/* Returns false if the word is there already. */
static bool add_word(struct hth_words *w, const char *text, size_t len, uint64_t count)
{
    struct word *word = &w->list[w->count];

    if (hth_map_get(w->by_text, text, len) != NULL)
        return false;
    *word = (struct word){hth_calloc(len + 1, 1), len, count, HTH_ID_WORD + w->count};
    memcpy(word->text, text, len);
    hth_map_put(w->by_text, text, len, word);
    w->count++;
    return true;
}

/* Whether the text is one word or sign, as hth_text_word would give it. */
static bool is_one_word(const char *text, size_t len)
{
    char word[HTH_WORD_BYTES_MAX];
    size_t at = 0;

    return len > 0 && len <= HTH_WORD_BYTES_MAX && hth_text_ok(text, len) &&
           hth_text_word(text, len, &at, word) == len && memcmp(word, text, len) == 0;
}

static enum hth_err parse_list(const char *file, const json_t *list, struct hth_words *w,
                               struct hth_why *why)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        const json_t *text = json_array_get(row, 0), *count = json_array_get(row, 1);
        if (!json_is_string(text) || !json_is_integer(count) || json_integer_value(count) < 0 ||
            !is_one_word(json_string_value(text), json_string_length(text)))
            return hth_blame(why, HTH_E_MALFORMED,
                             "%s: words[%zu]: expected [WORD, COUNT], with a word in lower case of "
                             "at most %d bytes",
                             file, i, HTH_WORD_BYTES_MAX);
        if (!add_word(w, json_string_value(text), json_string_length(text),
                      (uint64_t)json_integer_value(count)))
            return hth_blame(why, HTH_E_DUPLICATE, "%s: words[%zu]: '%s' is there twice", file, i,
                             json_string_value(text));
    }
    return HTH_OK;
}

static enum hth_err parse_json(const char *file, const json_t *json, struct hth_words **out,
                               struct hth_why *why)
{
    const json_t *list = json_object_get(json, "words");
    const json_t *version = json_object_get(json, "version");
    enum hth_err err;

    if (!json_is_integer(version) || !json_is_array(list))
        return hth_blame(why, HTH_E_MALFORMED, "%s: expected {\"version\": %d, \"words\": [...]}",
                         file, VERSION);
    if (json_integer_value(version) != VERSION)
        return hth_blame(why, HTH_E_VERSION,
                         "%s: version %" JSON_INTEGER_FORMAT "; this program reads version %d",
                         file, json_integer_value(version), VERSION);
    if (json_array_size(list) > HTH_WORDS_MAX)
        return hth_blame(why, HTH_E_RANGE, "%s: %zu words; at most %d", file, json_array_size(list),
                         HTH_WORDS_MAX);
    *out = words_new(json_array_size(list));
    err = parse_list(file, list, *out, why);
    if (err != HTH_OK) {
        hth_words_free(*out);
        *out = NULL;
    }
    return err;
}

enum hth_err hth_words_parse(const char *file, const uint8_t *bytes, size_t len,
                             struct hth_words **out, struct hth_why *why)
{
    json_error_t error;
    json_t *json;
    enum hth_err err;

    *out = NULL;
    if (len > HTH_WORDS_BYTES_MAX)
        return hth_blame(why, HTH_E_TOO_LARGE, "%s: %zu bytes; at most %u", file, len,
                         HTH_WORDS_BYTES_MAX);
    json = json_loadb((const char *)bytes, len, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL)
        return hth_blame(why, HTH_E_MALFORMED, "%s:%d:%d: %s", file, error.line, error.column,
                         error.text);
    err = parse_json(file, json, out, why);
    json_decref(json);
    return err;
}

enum hth_err hth_words_write(const struct hth_words *w, struct hth_blob **out)
{
    json_t *top = json_object(), *list = json_array();
    size_t len;

    for (uint32_t i = 0; i < w->count; i++) {
        json_t *row = json_array();
        json_array_append_new(row, json_stringn(w->list[i].text, w->list[i].len));
        json_array_append_new(row, json_integer((json_int_t)w->list[i].count));
        json_array_append_new(list, row);
    }
    json_object_set_new(top, "version", json_integer(VERSION));
    json_object_set_new(top, "words", list);
    len = json_dumpb(top, NULL, 0, JSON_COMPACT);
    *out = len > 0 ? hth_blob_try_new(len + 1) : NULL;
    if (*out != NULL) {
        json_dumpb(top, (char *)(*out)->data, len, JSON_COMPACT);
        (*out)->data[len] = '\n';
    }
    json_decref(top);
    return *out != NULL ? HTH_OK : HTH_E_NO_MEMORY;
}

uint32_t hth_words_count(const struct hth_words *w)
{
    return w->count;
}

const char *hth_words_at(const struct hth_words *w, uint32_t i, uint64_t *count)
{
    *count = w->list[i].count;
    return w->list[i].text;
}

/* ---- ids ----------------------------------------------------------------------------------- */

struct id_sink {
    int32_t *ids;
    size_t count, max;
};

static void put_id(struct id_sink *to, int32_t id)
{
    if (to->count < to->max)
        to->ids[to->count] = id;
    to->count++;
}

size_t hth_words_encode(const struct hth_words *w, uint32_t vocab, const char *text, size_t len,
                        int32_t *ids, size_t max)
{
    struct id_sink to = {ids, 0, max};
    bool after_bytes = false;
    char word[HTH_WORD_BYTES_MAX];
    size_t at = 0, n;

    while ((n = hth_text_word(text, len, &at, word)) > 0) {
        const struct word *known = hth_map_get(w->by_text, word, n);
        if (known != NULL && known->id < vocab) {
            put_id(&to, (int32_t)known->id);
            after_bytes = false;
            continue;
        }
        if (after_bytes)
            put_id(&to, HTH_ID_BYTE + ' ');
        for (size_t i = 0; i < n; i++)
            put_id(&to, HTH_ID_BYTE + (uint8_t)word[i]);
        after_bytes = true;
    }
    return to.count;
}

struct text_sink {
    char *out;
    size_t len, max;
    bool glue; /* the next word follows without a blank */
};

static void put_text(struct text_sink *to, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++, to->len++)
        if (to->len + 1 < to->max)
            to->out[to->len] = text[i];
}

static void put_word(struct text_sink *to, const char *text, size_t len)
{
    bool sign = len == 1 && !in_word((const uint8_t *)text, 1);

    if (to->len > 0 && !to->glue && !(sign && strchr(".,;:!?)]}'%-", text[0]) != NULL))
        put_text(to, " ", 1);
    put_text(to, text, len);
    to->glue = sign && strchr("([{'-", text[0]) != NULL;
}

size_t hth_words_decode(const struct hth_words *w, const int32_t *ids, size_t count, char *out,
                        size_t max)
{
    struct text_sink to = {out, 0, max, false};
    bool in_bytes = false;

    for (size_t i = 0; i < count; i++) {
        char byte = (char)(ids[i] - HTH_ID_BYTE);
        if (ids[i] >= HTH_ID_WORD && (uint32_t)ids[i] - HTH_ID_WORD < w->count) {
            const struct word *word = &w->list[ids[i] - HTH_ID_WORD];
            put_word(&to, word->text, word->len);
            in_bytes = false;
        } else if (ids[i] >= HTH_ID_BYTE && ids[i] < HTH_ID_WORD) {
            if (in_bytes)
                put_text(&to, &byte, 1);
            else
                put_word(&to, &byte, 1);
            in_bytes = true;
            to.glue = false;
        }
    }
    if (max > 0)
        out[HTH_MIN(to.len, max - 1)] = '\0';
    return to.len;
}

/* ---- counting ------------------------------------------------------------------------------ */

struct hth_word_counter {
    struct hth_map *by_text; /* of struct word */
};

struct hth_word_counter *hth_word_counter_new(void)
{
    struct hth_word_counter *c = hth_new(struct hth_word_counter);

    c->by_text = hth_map_new();
    return c;
}

void hth_word_counter_free(struct hth_word_counter *c)
{
    struct word *word;

    if (c == NULL)
        return;
    for (size_t it = 0; (word = hth_map_next(c->by_text, &it, NULL, NULL)) != NULL;)
        hth_free(word);
    hth_map_free(c->by_text);
    hth_free(c);
}

void hth_word_counter_add(struct hth_word_counter *c, const char *text, size_t len)
{
    char chars[HTH_WORD_BYTES_MAX];
    size_t at = 0, n;

    while ((n = hth_text_word(text, len, &at, chars)) > 0) {
        struct word *word = hth_map_get(c->by_text, chars, n);
        if (word == NULL && hth_map_count(c->by_text) < HTH_WORDS_COUNTED_MAX) {
            word = hth_new(struct word);
            hth_map_put(c->by_text, chars, n, word);
        }
        if (word != NULL)
            word->count++;
    }
}

/* A counted word and its bytes, which the map owns. */
struct counted {
    const char *text;
    size_t len;
    uint64_t count;
};

static int more_first(const void *left, const void *right)
{
    const struct counted *a = left, *b = right;
    int order = memcmp(a->text, b->text, HTH_MIN(a->len, b->len));

    if (a->count != b->count)
        return a->count > b->count ? -1 : 1;
    return order != 0 ? order : (a->len > b->len) - (a->len < b->len);
}

struct hth_words *hth_word_counter_list(const struct hth_word_counter *c, uint64_t min)
{
    struct counted *all = hth_new_array(struct counted, hth_map_count(c->by_text) + 1);
    const struct word *word;
    const void *key;
    size_t len, count = 0;
    struct hth_words *out;

    for (size_t it = 0; (word = hth_map_next(c->by_text, &it, &key, &len)) != NULL;)
        if (word->count >= min)
            all[count++] = (struct counted){key, len, word->count};
    qsort(all, count, sizeof(*all), more_first);
    out = words_new(HTH_MIN(count, (size_t)HTH_WORDS_MAX));
    for (size_t i = 0; i < HTH_MIN(count, (size_t)HTH_WORDS_MAX); i++)
        (void)add_word(out, all[i].text, all[i].len, all[i].count);
    hth_free(all);
    return out;
}
